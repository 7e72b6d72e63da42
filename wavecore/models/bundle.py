"""A model with everything a stream of it needs: transformer, VAE, text encoder and their defaults."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from wavecore.errors import CheckpointError
from wavecore.models.dit import CausalWanDiT, DiTConfig
from wavecore.models.sprites_text import SpritesTextEncoder
from wavecore.models.sprites_vae import SpritesVAE
from wavecore.models.stream import StreamingVAE

SPRITES_FILE = "sprites.safetensors"


@dataclass(frozen=True)
class StreamDefaults:
    """How a model was trained to stream.

    Attributes
    ----------
    size : (width, height)
        Pixels.
    fps : float
        Frames a second.
    shift : float
        Timestep shift of the noise schedule.
    chunk_frames : int
        Latent frames of a chunk.
    anchor_chunks : int
        Chunks from the beginning of the stream that stay in the context.
    history : int or None
        Clean chunks in the context of a wavefront besides the live store; None for what the
        window of Wan leaves.
    store_history : int
        The same for the store pass.
    strength : float
        Share of noise with which restyling begins.
    """

    size: tuple[int, int]
    fps: float
    shift: float
    chunk_frames: int = 3
    anchor_chunks: int = 1
    history: int | None = None
    store_history: int = 5
    strength: float = 0.9


@dataclass(frozen=True)
class StreamModel:
    """A model that can stream.

    Attributes
    ----------
    name : str
    dit : CausalWanDiT
    vae : StreamingVAE
    encode_text : callable
        Prompts to features [b, l, text_dim].
    defaults : StreamDefaults
    """

    name: str
    dit: CausalWanDiT
    vae: StreamingVAE
    encode_text: Callable[[list[str]], Tensor]
    defaults: StreamDefaults


SPRITES_DEFAULTS = StreamDefaults(
    size=(128, 128), fps=16, shift=5.0, anchor_chunks=0, history=1, store_history=2
)


def save_sprites(
    path: Path, dit: CausalWanDiT, vae: SpritesVAE, text_encoder: SpritesTextEncoder, dtype: torch.dtype
) -> None:
    """Write the three parts of a sprites model as one safetensors file."""
    parts = {"dit": dit, "vae": vae, "text": text_encoder}
    tensors = {
        f"{part}.{name}": value.detach().to(dtype).contiguous()
        for part, module in parts.items()
        for name, value in module.state_dict().items()
    }
    save_file(tensors, path, metadata={"dit": json.dumps(asdict(dit.config))})


def load_sprites(path: Path | None = None) -> StreamModel:
    """Load a sprites model; the one in the package when no path is given."""
    if path is None:
        path = Path(str(resources.files("wavecore") / "weights" / SPRITES_FILE))
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file, expected the weights of the sprites model")
    with safe_open(path, "pt") as file:
        names = list(file.keys())
        config = json.loads(file.metadata()["dit"])
        tensors = {name: file.get_tensor(name).float() for name in names}
    config["patch"] = tuple(config["patch"])
    dit = CausalWanDiT(DiTConfig(**config))
    vae, text_encoder = SpritesVAE(), SpritesTextEncoder(dit.config.text_dim)
    modules: dict[str, nn.Module] = {"dit": dit, "vae": vae, "text": text_encoder}
    for part, module in modules.items():
        state = {n.removeprefix(f"{part}."): t for n, t in tensors.items() if n.startswith(f"{part}.")}
        module.load_state_dict(state)
        module.eval().requires_grad_(False)
    return StreamModel("sprites", dit, vae, text_encoder, SPRITES_DEFAULTS)
