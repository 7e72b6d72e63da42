"""How a new branch continues the stream: the data side of each adapter.

An adapter says what must be there before a call at a position (`needs`), how many of the call's latents
are new to playback, where the regenerated ones lie, and what the call costs. What it does to tensors is
the worker's business.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from wavecore.control.clock import nanoseconds
from wavecore.control.speculative.events import CONTEXT, LATENT, PIXELS, SNAPSHOT
from wavecore.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class UnitCosts:
    """Seconds of the pieces of a call.

    Parameters
    ----------
    denoise : float
        All denoising steps over the K latents.
    decode : float
        One latent to its frames.
    store : float
        The pass that makes the keys and values of the finished latents, after the last step.
    prefill : float
        Clean keys and values of one retained latent.
    encode : float
        The image encoder on one boundary image.
    whole_clip : bool
        True when the decoder gives nothing before it has decoded the whole clip.
    """

    denoise: float
    decode: float = 0.0
    store: float = 0.0
    prefill: float = 0.0
    encode: float = 0.0
    whole_clip: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name != "whole_clip":
                nanoseconds(getattr(self, field.name), field.name)


@dataclass(frozen=True)
class CallCost:
    """Where the time of one call goes, in seconds.

    Attributes
    ----------
    prepare : float
        Before denoising: encoding the boundary image, prefilling retained latents.
    denoise, store : float
    ready : tuple of float
        From launch to each playable group deliverable (Ĉ_m for constant costs).
    finish : float
        From launch to the end of the job.
    """

    prepare: float
    denoise: float
    store: float
    ready: tuple[float, ...]
    finish: float


@dataclass(frozen=True)
class Adapter:
    """What all adapters have in common.

    Parameters
    ----------
    latents : int
        K, sampled by one call.
    """

    latents: int

    name = ""
    needs = LATENT | CONTEXT
    """Parts that every retained position before the branch must have."""
    carries_decoder = True
    """True when decoding goes on from a snapshot at the branch; False when a call is a clip of its own."""

    def __post_init__(self) -> None:
        if self.latents < 1:
            raise UsageError(f"latents: expected at least 1, got {self.latents}")
        if self.latents <= self.overlap:
            raise UsageError(
                f"latents: expected more than the {self.overlap} that a {self.name} branch regenerates, "
                f"got {self.latents}"
            )

    @property
    def overlap(self) -> int:
        """Latents before a branch that its call regenerates."""
        return 0

    @property
    def phase(self) -> int:
        """A branch lies at a multiple of this many positions."""
        return 1

    @property
    def parts(self) -> int:
        """Parts without which a finished prediction is of no use."""
        return LATENT | PIXELS | self.needs | (SNAPSHOT if self.carries_decoder else 0)

    def trimmed(self, position: int) -> int:
        """Latents of a call at `position` that are regenerated and dropped; none at the beginning."""
        return min(self.overlap, position)

    def playable(self, position: int) -> int:
        """Newly playable groups M_j of a call at `position`."""
        return self.latents - self.trimmed(position)

    def source(self, position: int, group: int) -> int:
        """Index in its call of the latent that plays at `position + group`; it also anchors later calls."""
        return self.trimmed(position) + group

    def playback(self, position: int) -> tuple[int | None, ...]:
        """For each latent of a call at `position` where it plays; None for what is trimmed."""
        trimmed = self.trimmed(position)
        return tuple(None if s < trimmed else position + s - trimmed for s in range(self.latents))

    def prepare(self, costs: UnitCosts, position: int, retained: int) -> float:
        """Seconds before denoising; `retained` positions before it have no clean context yet."""
        return 0.0

    def cost(self, costs: UnitCosts, position: int, retained: int = 0) -> CallCost:
        """Split the time of a call at `position`.

        Trimmed latents are denoised and, since the decoder needs them first, decoded too.
        """
        prepare = self.prepare(costs, position, retained)
        sampled = prepare + costs.denoise
        decoded = [sampled + (index + 1) * costs.decode for index in range(self.latents)]
        if costs.whole_clip:
            decoded = [decoded[-1]] * self.latents
        ready = tuple(decoded[self.trimmed(position) :])
        return CallCost(prepare, costs.denoise, costs.store, ready, decoded[-1] + costs.store)


@dataclass(frozen=True)
class RetainedPrefix(Adapter):
    """Continue from the prefix latents and the keys and values of their own inference, positions kept."""

    name = "retained prefix"


@dataclass(frozen=True)
class CleanPrefill(Adapter):
    """Continue from the prefix latents with keys and values rebuilt from the clean ones.

    Another policy than `RetainedPrefix`: the model sees other keys and values. Each retained latent is
    prefilled once, before the first call that continues it.
    """

    name = "clean prefill"
    needs = LATENT

    def prepare(self, costs: UnitCosts, position: int, retained: int) -> float:
        """Prefill what is not prefilled yet."""
        return retained * costs.prefill


@dataclass(frozen=True)
class BoundaryImage(Adapter):
    """Continue from the last frame before the branch, through image conditioning, as a clip of its own.

    The clip's first latent regenerates the anchor frame and is trimmed.
    """

    name = "boundary image"
    needs = PIXELS
    carries_decoder = False

    @property
    def overlap(self) -> int:
        """The latent of the anchor frame."""
        return 1

    def prepare(self, costs: UnitCosts, position: int, retained: int) -> float:
        """Encode the boundary image."""
        return costs.encode if position else 0.0


@dataclass(frozen=True)
class LatentInput(Adapter):
    """Continue from the clean latent before the branch, in place of an encoded image."""

    name = "latent input"
    needs = LATENT
    carries_decoder = False

    @property
    def overlap(self) -> int:
        """The latent that is given."""
        return 1


@dataclass(frozen=True)
class Keyframes(Adapter):
    """Continue from a group of retained latents that begins at a multiple of its length.

    Parameters
    ----------
    group : int
        Retained latents, which the call regenerates at its beginning.
    """

    group: int = 4

    name = "keyframes"
    needs = LATENT
    carries_decoder = False

    def __post_init__(self) -> None:
        if self.group < 1:
            raise UsageError(f"group: expected at least 1, got {self.group}")
        super().__post_init__()

    @property
    def overlap(self) -> int:
        """The group."""
        return self.group

    @property
    def phase(self) -> int:
        """The group's length."""
        return self.group


ADAPTERS: dict[str, type[Adapter]] = {
    "retained-prefix": RetainedPrefix,
    "clean-prefill": CleanPrefill,
    "boundary-image": BoundaryImage,
    "latent-input": LatentInput,
    "keyframes": Keyframes,
}
