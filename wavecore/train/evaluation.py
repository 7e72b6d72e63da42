"""What a sprites model can do, measured: the world is known, so every answer can be checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from wavecore.control.speculative import UnitCosts
from wavecore.errors import UsageError
from wavecore.interactive.speculation import Speculation, fitting_adapters
from wavecore.models.sprites_vae import SpritesVAE
from wavecore.source import to_pixels
from wavecore.sprites.caption import plain_caption
from wavecore.sprites.readback import ClipFacts, read_clip, read_frame
from wavecore.sprites.world import (
    CANVAS,
    DIRECTIONS,
    FPS,
    Scene,
    random_change,
    random_place,
    random_scene,
    render,
    track,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wavecore.interactive.session import SpeculativeSession
    from wavecore.pipeline import Pipeline
    from wavecore.rounds import RoundsKind
    from wavecore.session import FrameGroup, Session

Progress = Callable[[str, int, int], None]
EVERY = 2  # only every second frame is read
SHOWN = 12  # positions before and after an update that are read


@dataclass(frozen=True)
class Setting:
    """How the clips under evaluation are made."""

    steps: int = 4
    rounds: RoundsKind = "wavefront"
    seed: int = 0


def _silent(what: str, done: int, total: int) -> None:
    pass


def _hits(facts: ClipFacts, scene: Scene) -> dict[str, bool]:
    return {
        "colour": facts.colour == scene.colour,
        "shape": facts.shape == scene.shape,
        "direction": facts.motion == scene.motion,
        "speed": scene.motion == "still" or facts.speed == scene.speed,
        "background": facts.background == scene.background,
        "camera": facts.camera == scene.camera,
        "present": facts.present >= 0.9,
    }


def _rates(rows: Sequence[dict[str, bool]]) -> dict[str, float]:
    """Share of rows in which each thing is right, in percent."""
    return {name: 100 * float(np.mean([row[name] for row in rows])) for name in rows[0]}


def _scenes(seed: int, count: int, held_out: bool) -> list[Scene]:
    generator = np.random.default_rng([seed, 17])
    return [random_scene(generator, held_out) for _ in range(count)]


def prompt_accuracy(
    pipe: Pipeline,
    setting: Setting,
    count: int = 64,
    held_out: bool = True,
    progress: Progress = _silent,
) -> dict[str, float]:
    """Share of prompts, in percent, whose clip shows the right thing over 1 to 5 s.

    With `held_out`, no training caption has the words of colour and shape together.
    """
    rows = []
    for index, scene in enumerate(_scenes(setting.seed, count, held_out)):
        session = pipe.session(
            plain_caption(scene),
            seed=setting.seed + index,
            steps=setting.steps,
            rounds=setting.rounds,
            num_frames=5 * FPS + 1,
        )
        rows.append(_hits(read_clip(_frames(session)[FPS:], EVERY), scene))
        progress("prompts", index + 1, count)
    return _rates(rows)


def switch_response(
    pipe: Pipeline, setting: Setting, count: int = 40, progress: Progress = _silent
) -> dict[str, float]:
    """Chunks from a prompt update at a random time until the new subject is seen.

    Returns
    -------
    dict
        `within_bar`: percent of runs in which colour and shape are the new ones within steps + 2
        chunks; `colour_within_bar`: the same for the colour alone; `median_chunks`; `intact`: percent
        of runs whose groups and time stamps have no gap and no repetition.
    """
    generator = np.random.default_rng([setting.seed, 29])
    chunk_groups = pipe.model.defaults.chunk_frames
    chunks, colour_chunks, intact = [], [], []
    for index in range(count):
        before = random_scene(generator)
        after = random_change(before, generator)
        while after.colour == before.colour:
            after = random_change(before, generator)
        at = int(generator.integers(4, 20))
        session = pipe.session(
            plain_caption(before), seed=setting.seed + index, steps=setting.steps, rounds=setting.rounds
        )
        groups: list[FrameGroup] = []
        with session:
            for group in session:
                groups.append(group)
                if len(groups) == at:
                    session.update(plain_caption(after))
                if len(groups) == at + chunk_groups * (setting.steps + 4):
                    break
        facts = [read_clip(group.frames[-1:]) for group in groups[at:]]
        coloured = [fact.present == 1 and fact.colour == after.colour for fact in facts]
        shaped = [right and fact.shape == after.shape for right, fact in zip(coloured, facts, strict=True)]
        colour_chunks.append(_groups_until(coloured) / chunk_groups)
        chunks.append(_groups_until(shaped) / chunk_groups)
        expected = [0.0, *(1 / FPS + np.arange(len(groups) - 1) * 4 / FPS)]
        intact.append(
            [group.index for group in groups] == list(range(len(groups)))
            and np.allclose([group.pts for group in groups], expected)
        )
        progress("switches", index + 1, count)
    return {
        "within_bar": 100 * float(np.mean(np.array(chunks) <= setting.steps + 2)),
        "colour_within_bar": 100 * float(np.mean(np.array(colour_chunks) <= setting.steps + 2)),
        "median_chunks": float(np.median(chunks)),
        "intact": 100 * float(np.mean(intact)),
    }


def _groups_until(seen: list[bool]) -> float:
    """Groups up to and with the first that shows it."""
    return seen.index(True) + 1 if True in seen else float("inf")


def long_stream(
    pipe: Pipeline, setting: Setting, count: int = 8, seconds: int = 60, progress: Progress = _silent
) -> dict[str, float]:
    """Accuracy at the end of a long stream against its beginning, and drift of a still camera.

    Returns
    -------
    dict
        `first_*` and `last_*` percent over the first and last 5 s, and `drift`: the largest motion of
        a background that should stand still, in pixels per second.
    """
    rows: dict[str, list[dict[str, bool]]] = {"first": [], "last": []}
    drifts = []
    for index, scene in enumerate(_scenes(setting.seed + 1, count, held_out=True)):
        still = replace(scene, camera="still") if index % 2 == 0 else scene
        session = pipe.session(
            plain_caption(still),
            seed=setting.seed + index,
            steps=setting.steps,
            rounds=setting.rounds,
            seconds=seconds,
        )
        frames = _frames(session)
        rows["first"].append(_hits(read_clip(frames[: 5 * FPS], EVERY), still))
        rows["last"].append(_hits(read_clip(frames[-5 * FPS :], EVERY), still))
        if still.camera == "still":
            pans = np.array([read_frame(frame).pan for frame in frames[FPS :: FPS // 2]])
            steps = (np.diff(pans) + 16) % 32 - 16
            drifts.append(abs(float(steps.sum())) / (seconds - 1))
        progress("long streams", index + 1, count)
    result = {f"{when}_{name}": value for when in rows for name, value in _rates(rows[when]).items()}
    return {**result, "drift": max(drifts)}


def restyle_fidelity(
    pipe: Pipeline, setting: Setting, count: int = 16, progress: Progress = _silent
) -> dict[str, float]:
    """Restyle clips with another colour and shape: is the motion kept, is the new look there?

    Returns
    -------
    dict
        `correlation`: median over clips of the correlation between the source's and the result's
        tracks (the worse of the axes that move); `colour`, `shape`: percent right.
    """
    generator = np.random.default_rng([setting.seed, 43])
    correlations, rows = [], []
    for index in range(count):
        scene = random_scene(generator)
        while scene.motion == "still":
            scene = random_scene(generator)
        look = random_scene(generator)
        while look.colour == scene.colour or look.shape == scene.shape:
            look = random_scene(generator)
        wanted = replace(scene, colour=look.colour, shape=look.shape)
        truth = track([scene] * (5 * FPS + 1), random_place(generator))
        session = pipe.restyle(
            render(truth),
            plain_caption(wanted),
            seed=setting.seed + index,
            steps=setting.steps,
            rounds=setting.rounds,
        )
        facts = read_clip(_frames(session), EVERY)
        correlations.append(_track_correlation(truth.centre[::EVERY], facts.centre, scene))
        rows.append(_hits(facts, wanted))
        progress("restyled clips", index + 1, count)
    rates = _rates(rows)
    return {
        "correlation": float(np.median(correlations)),
        "colour": rates["colour"],
        "shape": rates["shape"],
    }


def _track_correlation(truth: NDArray[np.float64], read: NDArray[np.float64], scene: Scene) -> float:
    steps = (np.diff(truth, axis=0) + CANVAS / 2) % CANVAS - CANVAS / 2
    path = np.concatenate([np.zeros((1, 2)), steps.cumsum(0)])
    moving = [axis for axis in range(2) if DIRECTIONS[scene.motion][axis]]
    return min(float(np.corrcoef(path[:, axis], read[:, axis])[0, 1]) for axis in moving)


def update_readback(
    pipe: Pipeline, setting: Setting, speculation: Speculation, count: int = 40, progress: Progress = _silent
) -> dict[str, float]:
    """What a speculative stream shows in the `SHOWN` positions before and after a prompt update.

    Returns
    -------
    dict
        Percent of updates after which each thing is right; `before_*` the same before the update; `seam`:
        median distance in pixels of the subject between the last frame before and the first after it.
    """
    generator = np.random.default_rng([setting.seed, 71])
    rows: dict[str, list[dict[str, bool]]] = {"before_": [], "": []}
    seams = []
    for index in range(count):
        before = random_scene(generator)
        after = random_change(before, generator)
        at = int(generator.integers(SHOWN, 2 * SHOWN))
        groups: list[FrameGroup] = []
        session = pipe.session(
            plain_caption(before),
            seed=setting.seed + index,
            steps=setting.steps,
            rounds=setting.rounds,
            control="speculative",
            speculation=speculation,
        )
        with session:
            for group in session:
                groups.append(group)
                if len(groups) == at:
                    session.update(plain_caption(after))
                first = next((g.index for g in groups if g.version), len(groups))
                if len(groups) == first + SHOWN:
                    break
        old = np.concatenate([group.frames for group in groups[first - SHOWN : first]])
        new = np.concatenate([group.frames for group in groups[first:]])
        rows["before_"].append(_hits(read_clip(old, EVERY), before))
        rows[""].append(_hits(read_clip(new, EVERY), after))
        jump = read_frame(new[0]).centre - read_frame(old[-1]).centre
        seams.append(float(np.hypot(*((jump + CANVAS / 2) % CANVAS - CANVAS / 2))))
        progress("updates", index + 1, count)
    rates = {f"{when}{name}": value for when in rows for name, value in _rates(rows[when]).items()}
    return {**rates, "seam": float(np.median(seams))}


def adapter_readback(
    pipe: Pipeline, setting: Setting, count: int = 40, progress: Progress = _silent
) -> dict[str, dict[str, float]]:
    """`update_readback` of every adapter that fits the model, in virtual time at the same cost of a call."""
    costs = UnitCosts(denoise=0.25, decode=0.01)
    return {
        name: update_readback(
            pipe, setting, Speculation(adapter=name, pacing="virtual", costs=costs), count, progress
        )
        for name in fitting_adapters(pipe.model)
    }


@torch.inference_mode()
def codec_psnr(vae: SpritesVAE, seed: int = 0, count: int = 24, held_out: bool = True) -> float:
    """Peak signal-to-noise ratio in dB of encoded and decoded clips of 33 frames."""
    generator = np.random.default_rng([seed, 61])
    errors = []
    for _ in range(count):
        scene = random_scene(generator, held_out)
        video = to_pixels(render(track([scene] * 33, random_place(generator))))
        decoded = vae.decode(vae.encode(video)).clamp(-1, 1)
        errors.append(float((decoded - video).square().mean()))
    return 10 * float(np.log10(4 / np.mean(errors)))


def evaluate(pipe: Pipeline, setting: Setting, progress: Progress = _silent) -> dict[str, dict[str, float]]:
    """Every measurement, under the names of the table in docs/sprites.md; of the bidirectional variant, which
    only streams speculatively, what its adapters show after updates.

    Raises
    ------
    UsageError
        The model is not a sprites model.
    """
    if not isinstance(pipe.model.vae, SpritesVAE):
        raise UsageError(f"model: expected a sprites model, got {pipe.model.name}")
    if pipe.model.defaults.joint_latents is not None:
        return adapter_readback(pipe, setting, progress=progress)
    return {
        "prompts_held_out": prompt_accuracy(pipe, setting, progress=progress),
        "switch": switch_response(pipe, setting, progress=progress),
        "stream_60s": long_stream(pipe, setting, progress=progress),
        "restyle": restyle_fidelity(pipe, setting, progress=progress),
        "codec": {"psnr": codec_psnr(pipe.model.vae, setting.seed)},
    }


def _frames(session: Session | SpeculativeSession) -> NDArray[np.uint8]:
    with session:
        return np.concatenate([group.frames for group in session])
