"""Messages: what is read, and what is said about the rest."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavecore.serve import protocol
from wavecore.serve.protocol import ClientDecoder, ProtocolError

encode = msgspec.msgpack.encode


def test_messages_survive_the_wire():
    sent = protocol.Start(id=3, protocol=1, prompt="ein 🟦", size=(64, 48), codec="jpeg")
    assert ClientDecoder().decode(encode(sent)) == sent
    ack = protocol.Ack(received=7, displayed=[(6, 1.5)], skipped=[7])
    assert ClientDecoder().decode(encode(ack)) == ack


@pytest.mark.parametrize(
    ("data", "code", "identifier"),
    [
        (b"", "malformed", None),
        (b"\xc1", "malformed", None),
        (b"{}", "invalid", None),
        (encode(3), "invalid", None),
        (encode({}), "invalid", None),
        (encode({"type": "dance", "id": 4}), "invalid", 4),
        (encode({"type": "pause"}), "invalid", None),
        (encode({"type": "pause", "id": -1}), "invalid", None),
        (encode({"type": "pause", "id": True}), "invalid", None),
        (encode({"type": "pause", "id": 2, "more": 1}), "invalid", 2),
        (encode({"type": "update", "id": 2, "prompt": 5}), "invalid", 2),
        (encode({"type": "update", "id": 2, "prompt": "x" * 5_000}), "invalid", 2),
        (encode({"type": "update", "id": 2, "prompt": "x", "transition": 0}), "invalid", 2),
        (encode({"type": "seek", "id": 2, "position": 1.5}), "invalid", 2),
        (encode({"type": "start", "id": 2, "protocol": 1, "prompt": "x", "size": [1, 1]}), "invalid", 2),
        (encode({"type": "start", "id": 2, "protocol": 1, "prompt": "x", "fps": float("nan")}), "invalid", 2),
        (encode({"type": "image", "data": b""}), "invalid", None),
        (encode({"type": "ack", "received": 0, "displayed": [[0, 0.0]] * 20_000}), "invalid", None),
        (bytes(3_000_000), "too_large", None),
        (b"\x91" * 100_000 + b"\xc0", "invalid", None),
    ],
)
def test_what_cannot_be_followed_has_a_code_and_its_id(data, code, identifier):
    with pytest.raises(ProtocolError) as caught:
        ClientDecoder().decode(data)
    assert (caught.value.code, caught.value.id) == (code, identifier)
    assert "\n" not in caught.value.message


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    try:
        ClientDecoder().decode(data)
    except ProtocolError as error:
        assert error.code in ("malformed", "invalid")


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**63) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.sampled_from(["start", "attach", "update", "pause", "resume", "seek", "stop", "ping", "ack", "image"]),
    st.dictionaries(
        st.sampled_from(["id", "protocol", "prompt", "position", "size", "data", "received", "token"]), values
    ),
)
def test_any_fields_are_read_or_refused(kind, fields):
    try:
        ClientDecoder().decode(encode({"type": kind, **fields}))
    except ProtocolError as error:
        assert error.code == "invalid"
        identifier = fields.get("id")
        valid = type(identifier) is int and 0 <= identifier < 2**53
        assert error.id == (identifier if valid else None)
