"""Short English captions of scenes, with the variety that free text needs."""

from __future__ import annotations

from typing import Literal

import numpy as np

from wavecore.sprites.world import Scene

SHAPE_WORDS = {
    "ball": ("ball", "ball", "circle", "disc", "sphere", "orb"),
    "box": ("box", "box", "square", "cube", "block"),
    "triangle": ("triangle", "triangle", "pyramid"),
    "star": ("star", "star", "starfish"),
    "cross": ("cross", "cross", "plus sign"),
}
COLOUR_WORDS = {
    "red": ("red", "red", "crimson", "scarlet"),
    "orange": ("orange", "orange", "amber"),
    "yellow": ("yellow", "yellow", "golden", "lemon"),
    "green": ("green", "green", "emerald", "lime"),
    "cyan": ("cyan", "cyan", "turquoise", "aqua"),
    "blue": ("blue", "blue", "azure", "sapphire"),
    "purple": ("purple", "purple", "violet", "lilac"),
    "white": ("white", "white", "snowy", "pale"),
}
BACKGROUND_WORDS = {
    "grass": ("grass", "grass", "a meadow", "the lawn", "a grassy field"),
    "sand": ("sand", "sand", "a beach", "the desert", "dunes"),
    "water": ("water", "water", "the sea", "the ocean", "a lake"),
    "night": ("the night sky", "a starry night", "space", "the night"),
    "bricks": ("bricks", "a brick wall", "the brick wall", "a wall"),
    "tiles": ("tiles", "a tiled floor", "a checkerboard", "grey tiles"),
}
THING_WORDS = ("thing", "object", "figure", "shape")
MOVE_WORDS = ("moving", "rolling", "flying", "gliding", "drifting", "going", "sliding", "floating")
FAST_WORDS = ("quickly", "fast", "rapidly", "swiftly")
SLOW_WORDS = ("slowly", "gently", "calmly")
STILL_WORDS = ("standing still", "at rest", "not moving", "resting", "motionless")
DIRECTION_WORDS = {
    "left": ("left", "left", "to the left", "leftwards"),
    "right": ("right", "right", "to the right", "rightwards"),
    "up": ("up", "up", "upwards"),
    "down": ("down", "down", "downwards"),
    "up-left": ("up and left", "up left", "up and to the left", "to the upper left"),
    "up-right": ("up and right", "up right", "up and to the right", "to the upper right"),
    "down-left": ("down and left", "down left", "down and to the left", "to the lower left"),
    "down-right": ("down and right", "down right", "down and to the right", "to the lower right"),
}
CAMERA_STILL = ("static camera", "the camera is still", "fixed camera")
CAMERA_MOVES = ("camera panning {}", "the camera pans {}", "camera moving {}", "pan {}")
OPENINGS = ("a video of", "a clip of", "we see", "there is", "watch")
PLACES = ("over", "on", "above", "across", "in front of", "against")
ADJECTIVES = ("small", "pretty", "shiny", "single", "beautiful", "little", "nice", "bright", "lonely")
ENDINGS = ("cinematic", "high quality", "4k", "in the style of a game", "minimalist", "smooth motion")


def plain_caption(scene: Scene) -> str:
    """The canonical caption: every attribute that is not at rest, in the commonest words."""
    move = "standing still"
    if scene.motion != "still":
        adverb = " quickly" if scene.speed == "fast" else ""
        move = f"moving {DIRECTION_WORDS[scene.motion][0]}{adverb}"
    pan = "" if scene.camera == "still" else f", camera panning {scene.camera}"
    return f"a {scene.colour} {scene.shape} {move} over {BACKGROUND_WORDS[scene.background][0]}{pan}"


def caption(
    scene: Scene,
    generator: np.random.Generator,
    unsaid: Literal["colour", "shape"] | None = None,
    motion: bool = True,
) -> str:
    """A caption with synonyms, filler, changed order and now and then a typing error.

    `unsaid` is left out: "a star", "a red thing", "something red"; without `motion` also what moves where.
    """

    def pick(options: tuple[str, ...]) -> str:
        return str(options[generator.integers(len(options))])

    def chance(probability: float) -> bool:
        return bool(generator.random() < probability)

    colour, shape = pick(COLOUR_WORDS[scene.colour]), pick(SHAPE_WORDS[scene.shape])
    if unsaid == "shape":
        shape = pick(THING_WORDS)
    subject = shape if unsaid == "colour" else f"{colour} {shape}"
    if chance(0.15):
        subject = f"{pick(ADJECTIVES)} {subject}"
    article = "the" if chance(0.15) else "a"
    if unsaid == "shape" and chance(0.4):
        article, subject = "something", colour
    if not motion:
        move = ""
    elif scene.motion == "still":
        move = "" if chance(0.4) else pick(STILL_WORDS)
    else:
        move = f"{pick(MOVE_WORDS)} {pick(DIRECTION_WORDS[scene.motion])}"
        if scene.speed == "fast":
            move = f"{pick(FAST_WORDS)} {move}" if chance(0.4) else f"{move} {pick(FAST_WORDS)}"
        elif chance(0.4):
            move = f"{pick(SLOW_WORDS)} {move}" if chance(0.4) else f"{move} {pick(SLOW_WORDS)}"
    where = f"{pick(PLACES)} {pick(BACKGROUND_WORDS[scene.background])}"
    parts = [article, subject, where, move] if chance(0.2) else [article, subject, move, where]
    if motion and scene.camera != "still":
        parts.append(f", {pick(CAMERA_MOVES).format(scene.camera)}")
    elif motion and chance(0.25):
        parts.append(f", {pick(CAMERA_STILL)}")
    if chance(0.15):
        parts.insert(0, pick(OPENINGS))
    if chance(0.15):
        parts.append(f", {pick(ENDINGS)}")
    words = " ".join(part for part in parts if part).replace(" ,", ",").split()
    if chance(0.1):  # a word nobody knows, so that unknown words learn to mean nothing
        letters = generator.integers(97, 123, generator.integers(3, 9))
        words.insert(int(generator.integers(len(words) + 1)), "".join(map(chr, letters)))
    if chance(0.08):
        words = _mistype(words, generator)
    text = " ".join(words)
    return text.capitalize() + "." if chance(0.2) else text


def _mistype(words: list[str], generator: np.random.Generator) -> list[str]:
    at = int(generator.integers(len(words)))
    word = words[at]
    if len(word) > 3:
        i = int(generator.integers(1, len(word) - 1))
        swap = generator.random() < 0.5
        word = word[:i] + (word[i + 1] + word[i] + word[i + 2 :] if swap else word[i + 1 :])
    return [*words[:at], word, *words[at + 1 :]]
