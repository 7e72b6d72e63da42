"""Small random models, and a stream run to its end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from wavecore.cache import ContextCache, PagePool, pages_used
from wavecore.models.bundle import StreamDefaults, StreamModel
from wavecore.models.dit import CausalWanDiT, DiTConfig, TextContext
from wavecore.models.sprites_text import SpritesTextEncoder
from wavecore.models.sprites_vae import SpritesVAE
from wavecore.placement import Handoff, LocalPlacement, local_cache
from wavecore.rounds import NoiseLevel, Round, warped_levels

HEIGHT, WIDTH, TEXT_DIM = 4, 6, 16
RAW_STEPS = {1: (1000,), 2: (1000, 500), 4: (1000, 750, 500, 250), 5: (1000, 800, 600, 400, 200)}


def tiny_dit(layers: int = 2, head_dim: int = 16) -> CausalWanDiT:
    """Random model whose every parameter matters (modulations and gates of order 1)."""
    generator = torch.Generator().manual_seed(layers * 1000 + head_dim)
    dit = CausalWanDiT(
        DiTConfig(
            dim=2 * head_dim,
            heads=2,
            layers=layers,
            ffn_dim=64,
            in_channels=4,
            out_channels=4,
            text_dim=TEXT_DIM,
            frequency_dim=32,
        )
    )
    for parameter in dit.parameters():
        scale = 0.3 if parameter.dim() == 1 else parameter[0].numel() ** -0.5
        parameter.data = torch.randn(parameter.shape, generator=generator) * scale
    return dit.eval().requires_grad_(False)


def text_features(seed: int = 0) -> Tensor:
    """Random text features [1, 5, text_dim]."""
    return torch.randn(1, 5, TEXT_DIM, generator=torch.Generator().manual_seed(seed))


def levels_of(steps: int) -> tuple[NoiseLevel, ...]:
    return warped_levels(RAW_STEPS[steps], shift=5)


def run_stream(
    dit: CausalWanDiT,
    rounds: Iterable[Round],
    levels: Sequence[NoiseLevel],
    order: str = "slots",
    seed: int = 0,
    pool: PagePool | None = None,
    prompts: int = 1,
) -> tuple[list[Tensor], ContextCache]:
    """Final latent [c, f, h, w] of each chunk, and the cache as it was left; stale reads give NaN.

    Chunk c follows prompt c modulo `prompts`.
    """
    stream = list(rounds)
    cache = local_cache(dit, pages_used(stream), HEIGHT, WIDTH, pool=pool, poison=True)
    placement = LocalPlacement(dit, cache, order)
    handoff = Handoff(levels, seed, (dit.config.in_channels, HEIGHT, WIDTH))
    dtype = dit.patch_embedding.weight.dtype
    texts = [dit.encode_text(text_features(prompt).to(dtype)) for prompt in range(prompts)]
    final: dict[int, Tensor] = {}
    for round in stream:
        text = {slot.chunk: texts[slot.chunk % prompts] for slot in round.slots}
        estimates = placement.run(round, handoff.latents(round), levels, text)
        complete = handoff.advance(round, estimates)
        assert (complete is None) == (round.completes is None)
        if complete is not None:
            final[round.completes] = complete
    return [final[chunk] for chunk in range(len(final))], cache


def every_chunk(round: Round, text: TextContext) -> dict[int, TextContext]:
    return {slot.chunk: text for slot in round.slots}


def tiny_stream_model(layers: int = 2) -> StreamModel:
    """A whole model, with text and VAE, whose every parameter matters."""
    torch.manual_seed(0)
    dit = CausalWanDiT(
        DiTConfig(dim=32, heads=2, layers=layers, ffn_dim=64, patch=(1, 4, 4), text_dim=16, prediction="x0")
    )
    for parameter in dit.parameters():
        scale = 0.3 if parameter.dim() == 1 else parameter[0].numel() ** -0.5
        parameter.data = torch.randn(parameter.shape) * scale
    modules = dit, SpritesVAE(width=16, blocks=1), SpritesTextEncoder(16, buckets=256, layers=1, heads=2)
    for module in modules:
        module.eval().requires_grad_(False)
    defaults = StreamDefaults(size=(64, 32), fps=16, shift=5.0, anchor_chunks=0, history=1, store_history=2)
    return StreamModel("tiny", *modules, defaults)
