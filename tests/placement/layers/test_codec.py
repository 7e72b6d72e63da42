"""Encoding and decoding on another rank of a ring: the same bits, for any number of streams."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import torch
from support.models import tiny_dit

from wavecore.errors import UsageError, WavecoreError
from wavecore.models.sprites_vae import SpritesVAE
from wavecore.placement.layers import Ring
from wavecore.source import ChunkSource


@pytest.fixture(scope="module")
def vae():
    torch.manual_seed(0)
    return SpritesVAE(width=16, blocks=1).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def ring(vae):
    with Ring(tiny_dit(layers=2), 2, vae=vae, encode_on=1, decode_on=1) as ring:
        yield ring


def video(seed, frames):
    return torch.rand(1, 3, frames, 32, 48, generator=torch.Generator().manual_seed(seed)) * 2 - 1


@torch.inference_mode()
def test_two_streams_are_encoded_and_decoded_as_here(ring, vae):
    encoders = [ring.vae.stream_encoder() for _ in range(2)]
    decoders = [ring.vae.remote_decoder() for _ in range(2)]
    here = [(vae.stream_encoder(), vae.stream_decoder()) for _ in range(2)]
    for index in range(3):
        for stream in range(2):
            frames = video(10 * stream + index, 4 if index else 1)
            latent = encoders[stream](frames)
            assert torch.equal(latent, here[stream][0](frames))
            decoders[stream].put(latent)
            assert decoders[stream].waiting == 1
            assert torch.equal(decoders[stream].get(), here[stream][1](latent))
    for encoder, decoder in zip(encoders, decoders, strict=True):
        assert encoder.flush() is None
        decoder.close()


@torch.inference_mode()
def test_latents_may_be_given_ahead_and_frames_come_in_order(ring, vae):
    decoder, here = ring.vae.remote_decoder(), vae.stream_decoder()
    latents = [torch.randn(1, 16, 1, 4, 6, generator=torch.Generator().manual_seed(i)) for i in range(5)]
    for latent in latents:
        decoder.put(latent)
    for latent in latents:
        assert torch.equal(decoder.get(), here(latent))
    assert decoder.waiting == 0 and not decoder.ready


def test_an_exchange_takes_two_messages_each_way(ring):
    channel = ring._codecs[1]._channel
    decoder = ring.vae.remote_decoder()
    before = channel.messages
    decoder.put(torch.zeros(1, 16, 1, 4, 6))
    decoder.get()
    assert channel.messages - before == 2, "a header and a body"


@pytest.mark.parametrize("count", [1, 2, 5, 9, 11])
def test_the_next_frames_are_encoded_while_those_before_them_are_at_work(ring, vae, count):
    frames = np.random.default_rng(0).integers(0, 256, (count, 32, 48, 3), dtype=np.uint8)
    read = []

    def source():
        for index, frame in enumerate(frames):
            read.append(index)
            yield frame

    here = ChunkSource(iter(frames), vae, (48, 32))
    there = ChunkSource(source(), ring.vae, (48, 32), ahead=True)
    taken = 1
    while here.prepare(1):
        assert there.prepare(1)
        assert len(read) == min(count, taken + 4), "the four after those whose latent is needed"
        assert torch.equal(there.take(), here.take())
        assert there.frames_left(0) == len(read)
        taken += 4
    assert not there.prepare(1)


def test_work_on_another_rank_is_measured(ring):
    client = ring._codecs[1]
    client.worked = client.waited = 0.0
    ring.vae.stream_encoder()(video(0, 1))
    # It may have worked before this one began to wait, where this process got no core meanwhile.
    assert client.worked > 0 and client.waited > 0


def test_the_codec_may_be_here_and_a_place_that_is_none_is_named(vae):
    with Ring(tiny_dit(layers=2), 1, vae=vae) as ring:
        assert ring.vae.remote_decoder() is None
        assert torch.equal(ring.vae.stream_encoder()(video(0, 1)), vae.stream_encoder()(video(0, 1)))
    for name in ("encode_on", "decode_on"):
        with pytest.raises(UsageError, match=f"{name}: expected a rank from 0 to 1, got 2"):
            Ring(tiny_dit(layers=2), 2, vae=vae, **{name: 2})


def test_a_rank_that_is_killed_while_it_decodes_is_named(vae):
    ring = Ring(tiny_dit(layers=2), 2, vae=vae, decode_on=1)
    decoder = ring.vae.remote_decoder()
    os.kill(ring._processes[0].pid, signal.SIGKILL)
    with pytest.raises(WavecoreError, match="ring: rank 1 was ended by signal 9"):
        for _ in range(20):
            decoder.put(torch.zeros(1, 16, 1, 4, 6))
            decoder.get()
    ring.close()


@pytest.mark.slow
def test_a_fault_of_the_codec_ends_the_rank_and_is_reported(vae):
    ring = Ring(tiny_dit(layers=2), 2, vae=vae, decode_on=1)
    decoder = ring.vae.remote_decoder()
    decoder.put(torch.zeros(1, 3, 1, 4, 6))  # not the channels of the VAE
    with pytest.raises(WavecoreError, match="ring: rank 1 ended with exit code 1"):
        decoder.get()
    ring.close()
