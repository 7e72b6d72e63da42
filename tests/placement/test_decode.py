"""A decoder cut into parts."""

import os
import signal

import pytest
import torch

from wavecore.errors import UsageError, WavecoreError
from wavecore.models.sprites_vae import SpritesVAE
from wavecore.models.taehv import TAEHV, TAEHVConfig
from wavecore.models.wan_vae import WanVAE, WanVAEConfig
from wavecore.placement.decode import DecodeOptions, DecodePipeline, cut_units, unit_seconds

TINY = TAEHVConfig(encoder_width=8, decoder_widths=(16, 12, 8, 6))
KINDS = {
    "wan": lambda: WanVAE(WanVAEConfig(base_dim=8, num_res_blocks=1)),
    "taehv": lambda: TAEHV(TINY),
    "sprites": lambda: SpritesVAE(width=16, blocks=1),
}


def made(kind):
    torch.manual_seed(0)
    return KINDS[kind]().eval().requires_grad_(False)


@pytest.fixture(scope="module")
def vae():
    return made("wan")


@pytest.fixture(scope="module")
def latents():
    return torch.randn(4, 1, 16, 1, 2, 3, generator=torch.Generator().manual_seed(1))


def decoded(vae, latents):
    decoder = vae.stream_decoder()
    with torch.inference_mode():
        return [decoder(latent) for latent in latents]


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_anywhere_gives_the_same_bits(kind, latents):
    """Units one after the other from every boundary on, with their states: what workers do."""
    vae = made(kind)
    expected = decoded(vae, latents)
    units = vae.decoder_units
    assert len(units) == len(unit_seconds(vae, (16, 2, 3), runs=1))
    for cut in range(len(units)):
        states = [[()] * cut, [()] * (len(units) - cut)]
        for latent, frames in zip(latents, expected, strict=True):
            with torch.inference_mode():
                x = vae.decoder_input(latent)
                for part, own in zip((units[:cut], units[cut:]), states, strict=True):
                    for index, unit in enumerate(part):
                        x, own[index] = unit(x, own[index])
            assert torch.equal(vae.decoder_output(x), frames)


def test_workers_overlap_and_give_the_bits_of_one_decoder(vae, latents):
    cuts = cut_units(unit_seconds(vae, (16, 2, 3), runs=1), 3)
    with DecodePipeline(vae, cuts) as pipeline:
        for latent in latents:  # all under way before the first is taken
            pipeline.put(latent)
        assert pipeline.waiting == 4
        frames = [pipeline.get() for _ in latents]
        assert all(map(torch.equal, frames, decoded(vae, latents)))
        with pytest.raises(UsageError, match="get: expected a latent"):
            pipeline.get()
        os.kill(pipeline._processes[1].pid, signal.SIGKILL)
        pipeline.put(latents[0])
        with pytest.raises(WavecoreError, match=r"decode worker 1, process \d+: it was ended by signal 9"):
            pipeline.get()


@pytest.mark.parametrize(
    ("seconds", "workers", "cuts"),
    [
        ([1, 1, 1, 1], 2, [range(2), range(2, 4)]),
        ([5, 1, 1, 1], 2, [range(1), range(1, 4)]),
        ([1, 2, 3], 3, [range(1), range(1, 2), range(2, 3)]),
    ],
)
def test_cuts_balance_measured_times(seconds, workers, cuts):
    assert cut_units(seconds, workers) == cuts


def test_a_worker_beside_other_work_gets_fewer_units():
    assert cut_units([1, 1, 1, 1, 1, 1], 2, busy=(3, 0)) == [range(1), range(1, 6)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers: expected a whole number of at least 1, got 0"),
        ({"threads": 0}, "threads: expected a whole number of at least 1, got 0"),
        ({"workers": 2, "busy": (1.0,)}, "busy: expected 2 numbers, one a worker, got 1"),
        ({"devices": ()}, "devices: expected at least one, got none"),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(UsageError, match=message):
        DecodeOptions(**options)


def test_devices_of_the_workers(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert DecodeOptions().devices_for(torch.device("cpu")) == ["cpu"]
    assert DecodeOptions().devices_for(torch.device("cuda:0")) == ["cuda:2", "cuda:1", "cuda:0"]
    assert DecodeOptions(devices=("cuda:1",)).devices_for(torch.device("cuda:0")) == ("cuda:1",)


@pytest.mark.parametrize("workers", [0, 4])
def test_more_workers_than_units(workers):
    with pytest.raises(UsageError, match=f"workers: expected 1 to 3, one a unit at most, got {workers}"):
        cut_units([1, 1, 1], workers)


def test_cuts_that_leave_units_out(vae):
    with pytest.raises(UsageError, match="cuts: expected units 0 to"):
        DecodePipeline(vae, [range(2), range(3, 5)])
