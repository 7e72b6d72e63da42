"""How a speculative session is set up, and the parts that it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from wavecore.arguments import frame_rate, whole
from wavecore.cache import PoolSize
from wavecore.control.adapter_name import AdapterName
from wavecore.control.speculative import (
    ADAPTERS,
    FALLBACKS,
    Adapter,
    CleanPrefill,
    Controller,
    Keyframes,
    QuantileEstimator,
    Settings,
    UnitCosts,
)
from wavecore.control.speculative.events import Fallback
from wavecore.errors import UsageError
from wavecore.interactive.causal import CausalGenerator, calls_pool
from wavecore.interactive.joint import JointGenerator
from wavecore.interactive.predictions import Generator
from wavecore.models.bundle import StreamModel
from wavecore.models.footprint import check_stream_memory
from wavecore.placement.calls import CallPlace, local_place
from wavecore.rounds import NoiseLevel, Rules, Sequential, Wavefront
from wavecore.rounds.calls import CallRules

Pacing = Literal["real", "virtual"]
CAUSAL: tuple[AdapterName, ...] = ("retained-prefix", "clean-prefill")
LATENTS = 12


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """Parameters of a speculative session; see docs/speculative.md.

    Parameters
    ----------
    adapter : str, optional
        How a branch continues: `retained-prefix` or `clean-prefill` on a causal model, `boundary-image`,
        `latent-input` or `keyframes` on a bidirectional one. The first of those that fit when left out.
    latents : int, optional
        K, sampled by one call: 12, or what a bidirectional model samples, when left out.
    overlap : int
        Retained latents of the keyframe adapter.
    fallback : "freeze", "drop", "stale" or "retarget"
        What covers a loss; see `wavecore.control.speculative.Settings`.
    margin : float
        Safety margin ε in seconds.
    underrun_rate : float, optional
        Share of missing groups that the margin is adapted to hold.
    refill_lead : float, optional
        η in seconds; what a call needs when left out.
    commit_lead : float
        Seconds by which a group becomes irrevocable before it is shown.
    job_timeout : float
        Seconds after which a call is told to end.
    whole_clip : bool
        Decode a call as a whole, not latent by latent.
    cut : bool, optional
        A new prompt cuts a wave that is under way, at the earliest chunk that is feasible. Slots before it go
        on, and the wave is filled anew behind them. So it is, when left out, wherever calls are waves: with
        rounds "wavefront" on a causal model that decodes latents one by one.
    prior : sequence of float, optional
        Seconds that a call takes to each of its latents, for as long as this session has measured none; the
        first call of the session, which has no context, when left out.
    pacing : "real" or "virtual"
        Whether groups come when they are due, or at once, with the measured time of calls on a virtual clock.
    costs : UnitCosts, optional
        Virtual pacing: time of calls on a simulated machine, in place of the measured one.
    """

    adapter: AdapterName | None = None
    latents: int | None = None
    overlap: int = 4
    fallback: Fallback = "freeze"
    margin: float = 0.02
    underrun_rate: float | None = None
    refill_lead: float | None = None
    commit_lead: float = 0.0
    job_timeout: float = 60.0
    whole_clip: bool = False
    cut: bool | None = None
    prior: Sequence[float] | None = None
    pacing: Pacing = "real"
    costs: UnitCosts | None = None

    def __post_init__(self) -> None:
        for name, allowed in (
            ("adapter", (None, *ADAPTERS)),
            ("fallback", FALLBACKS),
            ("pacing", get_args(Pacing)),
        ):
            if getattr(self, name) not in allowed:
                choices = ", ".join(choice for choice in allowed if choice)
                raise UsageError(f"{name}: expected one of {choices}, got {getattr(self, name)!r}")
        if self.latents is not None:
            whole("latents", self.latents, 1)
        if self.cut and self.whole_clip:
            raise UsageError("cut: expected latents that are decoded one by one, got whole_clip")
        if self.costs is not None and self.pacing != "virtual":
            raise UsageError(f"costs: expected virtual pacing with costs, got {self.pacing}")


@dataclass(frozen=True)
class Parts:
    """What a session is made of."""

    adapter: Adapter
    controller: Controller
    generator: Generator


def make_parts(
    model: StreamModel,
    speculation: Speculation,
    rules: Rules,
    levels: Sequence[NoiseLevel],
    seed: int,
    size: tuple[int, int],
    fps: float,
    place: CallPlace | None = None,
) -> Parts:
    """Make adapter, controller and generator for a model.

    `place` is where the rounds of a causal model run; the device of the model when left out.

    Raises
    ------
    UsageError
        The adapter or the order of the rounds does not fit the model.
    """
    adapter = _adapter(model, speculation)
    joint = model.defaults.joint_latents is not None
    waves = not joint and isinstance(rules, Wavefront)
    cut = waves and not speculation.whole_clip if speculation.cut is None else speculation.cut
    if cut and not waves:
        got = _kind(model) if joint else rules.kind
        raise UsageError(f"cut: expected rounds wavefront on a causal model, got {got}")
    if joint and place is not None:
        raise UsageError(f"placement: expected local with {_kind(model)}, got {place.name}")
    pages, place = PoolSize(0, 0), place or local_place(model.dit)
    if not joint:
        calls = call_rules(rules, place.apart)
        pages = calls_pool(calls, adapter.latents)
    if place.name != "shared":  # which has memory of its own
        check_stream_memory(model, size, pages, model.dit.config.layers if place.name == "layers" else 1)
    estimator = QuantileEstimator(
        adapter.latents,
        margin=speculation.margin,
        prior=speculation.prior,
        target=speculation.underrun_rate,
        lead=speculation.refill_lead,
    )
    frame = 1 / frame_rate("fps", fps)
    settings = Settings(
        adapter=adapter,
        group_seconds=model.vae.temporal_factor * frame,
        first_group_seconds=(frame,),
        fallback=speculation.fallback,
        commit_lead=speculation.commit_lead,
        job_timeout=speculation.job_timeout,
        cut_every=rules.chunk_frames if cut else None,
    )
    whole: dict[str, Any] = {"whole_clip": speculation.whole_clip}
    generator: Generator
    if not joint:
        prefill = isinstance(adapter, CleanPrefill)
        generator = CausalGenerator(
            model, calls, levels, seed, size, adapter.latents, prefill=prefill, place=place.open, **whole
        )
    else:
        generator = JointGenerator(model, adapter, levels, seed, size, **whole)
    return Parts(adapter, Controller(settings, estimator), generator)


def call_rules(rules: Rules, apart: bool = False) -> CallRules:
    """Rules of calls after those of an endless stream: histories are counted in latents, not in chunks.

    The first chunk of a wave goes alone, so that it answers as soon as in sequential order, unless slots are
    `apart`, each in a process.
    """
    if not isinstance(rules, Sequential | Wavefront):
        raise UsageError(
            "rounds: expected wavefront or sequential with speculative control, got stream_batch"
        )
    wave = isinstance(rules, Wavefront)
    history = rules.width(rules.steps) if isinstance(rules, Wavefront) else rules.history
    return CallRules(
        steps=rules.steps,
        order="wavefront" if wave else "sequential",
        chunk_frames=rules.chunk_frames,
        history=history * rules.chunk_frames,
        store_history=rules.store_history * rules.chunk_frames,
        anchor=rules.anchor_chunks > 0,
        first_alone=wave and not apart,
    )


def _kind(model: StreamModel) -> str:
    return f"a bidirectional model ({model.name})"


def fitting_adapters(model: StreamModel) -> tuple[AdapterName, ...]:
    """Names of the adapters with which a model can continue a stream."""
    if model.defaults.joint_latents is None:
        return CAUSAL
    return tuple(name for name in get_args(AdapterName) if name not in CAUSAL)


def _adapter(model: StreamModel, speculation: Speculation) -> Adapter:
    joint, fitting = model.defaults.joint_latents, fitting_adapters(model)
    name = speculation.adapter or fitting[0]
    if name not in fitting:
        kind = "causal" if joint is None else "bidirectional"
        raise UsageError(f"adapter: expected one of {', '.join(fitting)} with a {kind} model, got {name!r}")
    latents = speculation.latents or joint or LATENTS
    kind_of = ADAPTERS[name]
    return Keyframes(latents, group=speculation.overlap) if kind_of is Keyframes else kind_of(latents)
