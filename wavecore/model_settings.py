"""Which model a command runs, and how: settings that all of them share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from wavecore.faults import fault, shown

if TYPE_CHECKING:
    from wavecore.pipeline import Pipeline


def _path(value: object) -> object:
    if isinstance(value, str) and (not value or "\0" in value):
        raise fault(f"expected a path, got {shown(value)}")
    return value


FilePath = Annotated[Path, BeforeValidator(_path)]


class ModelSettings(BaseModel):
    """What every command that runs a model shares."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: str = Field(
        "sprites",
        description="the model: sprites, a file of weights, or folder or hub name of a Wan-class one",
    )
    recipe: Literal["wave-forcing", "self-forcing", "streamdiffusionv2"] | None = Field(
        None, description="how a Wan-class model was distilled; wave-forcing when left out"
    )
    checkpoint: FilePath | None = Field(
        None, description="distilled transformer in place of the one in a Wan-class folder"
    )
    vae: FilePath | None = Field(None, description="Wan VAE or TAEHV in place of the one in the folder")
    device: str = Field("cpu", description="device of the model, such as cuda:0")
    dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        None, description="type of the weights; that of the files when left out"
    )
    quantization: Literal["int8"] | None = Field(
        None, description="run the linear layers of the transformer in int8, weights and activations"
    )

    key_cache: Literal["int8"] | None = Field(None, description="hold the keys of the context in int8")

    def load(self) -> Pipeline:
        """The model, ready to run."""
        import torch

        import wavecore

        return wavecore.load(
            self.model,
            recipe=self.recipe,
            checkpoint=self.checkpoint,
            vae=self.vae,
            device=self.device,
            dtype=None if self.dtype is None else getattr(torch, self.dtype),
            quantization=self.quantization,
            key_cache=self.key_cache,
        )
