"""What goes out first, and what is left out."""

from __future__ import annotations

import asyncio

import pytest

from wavecore.serve import protocol
from wavecore.serve.encode import EncodedGroup
from wavecore.serve.outbox import Outbox

COMMIT = 1, 2, 3


def group(position, size=100, frames=4):
    return EncodedGroup(position, 0, 0.25 * position, 0.0, 0.0, 1 / 16, (b"x" * size,) * frames)


def state():
    return protocol.State(0, COMMIT, 0, 0, False, [], [], {}, 1.0, 0.0, 0.0)


def record(version):
    return protocol.Record(update=version, version=version, outcome="superseded")


@pytest.fixture
def now():
    return [0.0]


@pytest.fixture
def outbox(now):
    return Outbox(state, lambda: now[0], groups=3, size=3_000)


def take(outbox, count):
    async def run():
        return [await asyncio.wait_for(outbox.next(), 1) for _ in range(count)]

    return asyncio.run(run())


def test_replies_go_before_records_states_and_frames(outbox):
    outbox.offer(group(0), COMMIT, False)
    outbox.changed()
    outbox.record(record(1))
    outbox.reply(protocol.Okay(id=1, time=0.0))
    kinds = [type(message).__name__ for message in take(outbox, 7)]
    assert kinds == ["Okay", "Record", "State", "Frame", "Frame", "Frame", "Frame"]


def test_frames_carry_their_times_and_the_first_of_a_group_is_a_key_frame(outbox):
    assert outbox.offer(group(2), COMMIT, False) == range(4)
    frames = take(outbox, 4)
    assert [f.number for f in frames] == [0, 1, 2, 3]
    assert [f.key for f in frames] == [True, False, False, False]
    assert [f.pts for f in frames] == [0.5, 0.5625, 0.625, 0.6875]
    assert all(f.commit == COMMIT and f.position == 2 for f in frames)


def test_groups_without_room_are_left_out_whole_until_frames_are_received(outbox):
    numbers = [outbox.offer(group(p), COMMIT, False) for p in range(5)]
    assert [len(n) for n in numbers] == [4, 4, 4, 0, 0]
    assert outbox.dropped == 2
    outbox.received(2)  # the group is not complete
    assert not outbox.offer(group(5), COMMIT, False)
    outbox.received(3)
    assert outbox.offer(group(6), COMMIT, False) == range(12, 16)


def test_bytes_under_way_are_bounded_but_one_group_always_fits(outbox):
    assert outbox.offer(group(0, size=5_000), COMMIT, False)
    assert not outbox.offer(group(1, size=1), COMMIT, False)


def test_of_states_only_the_latest_is_sent_and_not_too_often(outbox, now):
    for _ in range(10):
        outbox.changed()
    assert type(take(outbox, 1)[0]) is protocol.State
    outbox.changed()
    outbox.offer(group(0), COMMIT, False)
    assert [type(m).__name__ for m in take(outbox, 4)] == ["Frame"] * 4
    now[0] = 0.1
    assert type(take(outbox, 1)[0]) is protocol.State


def test_of_too_many_records_the_oldest_go(outbox):
    for version in range(200):
        outbox.record(record(version))
    outbox.reply(protocol.Okay(id=0, time=0.0))
    assert [m.version for m in take(outbox, 65)[1:]] == list(range(136, 200))


def test_requests_are_left_unread_while_replies_wait(outbox):
    async def run():
        for number in range(64):
            outbox.reply(protocol.Okay(id=number, time=0.0))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(outbox.room(), 0.01)
        await outbox.next()
        await asyncio.wait_for(outbox.room(), 1)

    asyncio.run(run())


def test_closing_sends_what_is_left_and_the_last_word(outbox):
    outbox.offer(group(0, frames=1), COMMIT, False)
    outbox.reply(protocol.Okay(id=1, time=0.0))
    outbox.changed()
    outbox.close(protocol.Ended("stopped"))
    outbox.changed()
    assert [type(m).__name__ for m in take(outbox, 4)] == ["Okay", "Frame", "Ended", "NoneType"]
