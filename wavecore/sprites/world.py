"""The sprites world: one coloured shape over a textured, endless background.

The canvas is a torus, so a subject that leaves on one side comes back on the other and a
stream never has to stop. Everything visible follows from a few facts, and those facts are
kept for each frame (`Track`), so quality, prompt response and drift can be measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

CANVAS = 128  # pixels
RADIUS = 22  # pixels
FPS = 16
WINDOW = 56  # pixels around the subject that a frame redraws; covers RADIUS, edge and sub-pixel shift
SUBPIXELS = 4  # subject positions are multiples of 1 / SUBPIXELS

SHAPES = ("ball", "box", "triangle", "star", "cross")
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (225, 40, 45),
    "orange": (250, 140, 30),
    "yellow": (250, 225, 50),
    "green": (60, 210, 70),
    "cyan": (70, 220, 225),
    "blue": (50, 90, 240),
    "purple": (170, 70, 220),
    "white": (245, 245, 245),
}
BACKGROUNDS = ("grass", "sand", "water", "night", "bricks", "tiles")
# Screen directions, x to the right and y down. Diagonal components keep the speed within 6 %.
DIRECTIONS: dict[str, tuple[float, float]] = {
    "still": (0, 0),
    "left": (-1, 0),
    "right": (1, 0),
    "up": (0, -1),
    "down": (0, 1),
    "up-left": (-0.75, -0.75),
    "up-right": (0.75, -0.75),
    "down-left": (-0.75, 0.75),
    "down-right": (0.75, 0.75),
}
SPEEDS = {"slow": 1.0, "fast": 2.0}  # pixels per frame
FASTEST = 10.0  # pixels per frame that anything moves when no caption has to say it
CAMERAS = {"still": 0.0, "left": -1.0, "right": 1.0}  # camera motion in pixels per frame


@dataclass(frozen=True)
class Scene:
    """What a prompt says: the attributes that stay constant until the next prompt."""

    shape: str
    colour: str
    background: str
    motion: str
    speed: str = "slow"
    camera: str = "still"

    @property
    def velocity(self) -> tuple[float, float]:
        """Subject motion on the screen, pixels per frame, x then y."""
        x, y = DIRECTIONS[self.motion]
        return x * SPEEDS[self.speed], y * SPEEDS[self.speed]


@dataclass(frozen=True)
class Place:
    """Where a clip begins: subject centre and background offset, in pixels on the torus.

    A stream begins at the defaults: the subject in the middle, the background at rest. Where a
    subject may be anywhere, four steps have to choose a place before they can draw a shape, and all
    that a small model learns about looks and motion is blurred by it.
    """

    x: float = CANVAS / 2
    y: float = CANVAS / 2
    pan: float = 0.0


@dataclass
class Track:
    """The truth of a clip, one row a frame."""

    scenes: list[Scene] = field(default_factory=list)
    centre: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 2)))  # [f, 2] x, y
    pan: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))  # [f] camera offset


def track(scenes: list[Scene], start: Place) -> Track:
    """Follow the world for `len(scenes)` frames, one scene a frame.

    Parameters
    ----------
    scenes : list of Scene
        The scene of each frame; motion goes on from where the last scene left it.
    start : Place
        State of the first frame.
    """
    velocity = np.array([scene.velocity for scene in scenes[1:]]).reshape(-1, 2)
    camera = np.array([CAMERAS[scene.camera] for scene in scenes[1:]])
    centre = np.array([[start.x, start.y]]) + np.concatenate([np.zeros((1, 2)), velocity.cumsum(0)])
    pan = start.pan + np.concatenate([[0.0], camera.cumsum()])
    return Track(list(scenes), np.mod(np.round(centre * SUBPIXELS) / SUBPIXELS, CANVAS), np.mod(pan, CANVAS))


def render(truth: Track) -> NDArray[np.uint8]:
    """Draw a track as frames uint8 [f, CANVAS, CANVAS, 3]."""
    frames = np.empty((len(truth.scenes), CANVAS, CANVAS, 3), np.uint8)
    for frame, scene, (x, y), pan in zip(frames, truth.scenes, truth.centre, truth.pan, strict=True):
        frame[:] = np.roll(background(scene.background), -round(float(pan)), axis=1)
        left, top = int(np.floor(x)), int(np.floor(y))
        mask, paint = _subject(
            scene.shape, scene.colour, int((x - left) * SUBPIXELS), int((y - top) * SUBPIXELS)
        )
        rows = (top - WINDOW // 2 + np.arange(WINDOW)) % CANVAS
        columns = (left - WINDOW // 2 + np.arange(WINDOW)) % CANVAS
        window = np.ix_(rows, columns)
        frame[window] = np.rint(frame[window] * (1 - mask) + paint).astype(np.uint8)
    return frames


def render_moving(
    scene: Scene,
    subject: tuple[float, float],
    scenery: tuple[float, float],
    count: int,
    start: Place | None = None,
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Draw a subject and a background, each moving as it likes, whatever the scene says of motion.

    Parameters
    ----------
    scene : Scene
        Gives shape, colour and background.
    subject, scenery : (x, y)
        Motion over the screen in pixels a frame; of the background in whole pixels, rounded for each frame.
    count : int
        Frames.
    start : Place, optional
        Of the first frame; the beginning of a stream when not given.

    Returns
    -------
    frames : uint8 [count, CANVAS, CANVAS, 3]
    centre : float64 [count, 2]
        Of the subject, x and y.
    """
    start = start or Place()
    steps = np.arange(count)[:, None]
    rolled = np.rint(np.array(scenery) * steps).astype(int)
    centre = np.array((start.x, start.y)) + np.round(np.array(subject) * steps * SUBPIXELS) / SUBPIXELS
    still = Track([scene] * count, np.mod(centre - rolled, CANVAS), np.full(count, start.pan))
    frames = [np.roll(frame, (y, x), (0, 1)) for frame, (x, y) in zip(render(still), rolled, strict=True)]
    return np.stack(frames), np.mod(centre, CANVAS)


@cache
def _subject(
    shape: str, colour: str, x_phase: int, y_phase: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Coverage [WINDOW, WINDOW, 1] and painted colour, for one sub-pixel position."""
    grid = np.arange(WINDOW) - WINDOW // 2
    x = grid[None, :] - x_phase / SUBPIXELS
    y = grid[:, None] - y_phase / SUBPIXELS
    mask = np.clip(0.5 - signed_distance(shape, x, y) / 2.0, 0, 1)[..., None]
    light = 1.0 - 0.14 * np.clip(y / RADIUS, -1, 1)[..., None]  # from above
    paint = np.clip(np.array(COLOURS[colour]) * np.broadcast_to(light, (WINDOW, WINDOW, 1)), 0, 255)
    return mask.astype(np.float32), (mask * paint).astype(np.float32)


def signed_distance(shape: str, x: NDArray, y: NDArray) -> NDArray:
    """Distance in pixels to the outline of a shape centred at 0, negative inside."""
    if shape == "ball":
        return np.hypot(x, y) - RADIUS
    return _polygon_distance(_outline(shape), x, y)


def _outline(shape: str) -> NDArray[np.float64]:
    if shape == "box":
        side = 0.84 * RADIUS
        return np.array([(-side, -side), (side, -side), (side, side), (-side, side)])
    if shape == "triangle":
        angles = np.pi * (-0.5 + np.arange(3) * 2 / 3)
        return 1.12 * RADIUS * np.stack([np.cos(angles), np.sin(angles)], 1) + (0, 0.2 * RADIUS)
    if shape == "star":
        angles = np.pi * (-0.5 + np.arange(10) / 5)
        radius = np.where(np.arange(10) % 2 == 0, 1.12, 0.5) * RADIUS
        return radius[:, None] * np.stack([np.cos(angles), np.sin(angles)], 1)
    if shape == "cross":
        long, short = RADIUS, 0.34 * RADIUS
        return np.array(
            [
                (-short, -long),
                (short, -long),
                (short, -short),
                (long, -short),
                (long, short),
                (short, short),
                (short, long),
                (-short, long),
                (-short, short),
                (-long, short),
                (-long, -short),
                (-short, -short),
            ]
        )
    raise ValueError(f"shape: expected one of {SHAPES}, got {shape!r}")


def _polygon_distance(corners: NDArray, x: NDArray, y: NDArray) -> NDArray:
    x, y = np.broadcast_arrays(x, y)
    points = np.stack([x, y], -1)
    squared = np.full(x.shape, np.inf)
    inside = np.zeros(x.shape, bool)
    for a, b in zip(corners, np.roll(corners, -1, 0), strict=True):
        edge, offset = b - a, points - a
        along = np.clip(offset @ edge / (edge @ edge), 0, 1)
        squared = np.minimum(squared, ((offset - along[..., None] * edge) ** 2).sum(-1))
        if a[1] != b[1]:
            crosses = (a[1] <= y) != (b[1] <= y)
            inside ^= crosses & (x < a[0] + (y - a[1]) * edge[0] / edge[1])
    return np.where(inside, -1, 1) * np.sqrt(squared)


@cache
def background(name: str) -> NDArray[np.uint8]:
    """Periodic texture uint8 [CANVAS, CANVAS, 3]; muted, so that no subject colour occurs in it."""
    x, y = np.meshgrid(np.arange(CANVAS), np.arange(CANVAS))
    u, v = 2 * np.pi * x / 32, 2 * np.pi * y / 32  # every texture repeats after 32 or 64 pixels
    if name == "grass":
        level = 0.5 + 0.3 * np.sin(u + np.sin(v)) + 0.2 * np.sin(u - 2 * v)
        dark, light = (34, 62, 30), (74, 104, 52)
    elif name == "sand":
        level = 0.5 + 0.5 * np.sin(v + 0.9 * np.sin(u / 2))
        dark, light = (140, 118, 84), (178, 156, 116)
    elif name == "water":
        level = 0.5 + 0.35 * np.sin(2 * v + np.sin(u)) + 0.15 * np.sin(u)
        dark, light = (22, 48, 84), (52, 92, 128)
    elif name == "night":
        level = _stars(x, y)
        dark, light = (14, 12, 34), (128, 124, 150)
    elif name == "bricks":
        row = np.floor(y / 16)
        across = np.abs((x + 16 * (row % 2)) % 32 - 16)
        upright = np.abs(y % 16 - 8)
        level = np.clip(np.minimum(15 - across, 7 - upright) / 2, 0, 1)
        dark, light = (116, 112, 106), (112, 62, 50)
    elif name == "tiles":
        level = 0.5 + 0.5 * np.clip(3 * np.sin(u) * np.sin(v), -1, 1)
        dark, light = (58, 58, 62), (106, 104, 108)
    else:
        raise ValueError(f"background: expected one of {BACKGROUNDS}, got {name!r}")
    return np.rint(np.array(dark) + level[..., None] * (np.array(light) - np.array(dark))).astype(np.uint8)


def _stars(x: NDArray, y: NDArray) -> NDArray:
    level = np.zeros(x.shape)
    for star_x, star_y, size in ((9, 12, 2.4), (40, 6, 1.8), (26, 38, 2.8), (55, 50, 2.0), (12, 54, 1.8)):
        across = (x - star_x + 32) % 64 - 32
        upright = (y - star_y + 32) % 64 - 32
        level += np.exp(-(across**2 + upright**2) / (2 * size**2))
    return np.clip(level, 0, 1)


# -- drawing scenes at random ------------------------------------------------------------

# Pairs of colour and shape whose words no training caption has together; the held-out prompts do.
HELD_OUT_PAIRS = frozenset(
    {
        ("red", "star"),
        ("blue", "triangle"),
        ("yellow", "box"),
        ("green", "cross"),
        ("white", "ball"),
        ("purple", "star"),
    }
)


def random_scene(generator: np.random.Generator, held_out: bool | None = False) -> Scene:
    """Draw a scene; `held_out` chooses between pairs never named together and the others, None for both."""
    while True:
        scene = Scene(
            shape=str(generator.choice(SHAPES)),
            colour=str(generator.choice(list(COLOURS))),
            background=str(generator.choice(BACKGROUNDS)),
            motion=str(generator.choice(list(DIRECTIONS))),
            speed=str(generator.choice(list(SPEEDS))),
            camera=str(generator.choice(list(CAMERAS), p=[0.6, 0.2, 0.2])),
        )
        if held_out in (None, (scene.colour, scene.shape) in HELD_OUT_PAIRS):
            return scene


def random_change(scene: Scene, generator: np.random.Generator, held_out: bool | None = False) -> Scene:
    """A different scene that keeps each attribute of `scene` with probability one half.

    `held_out` as for `random_scene`.
    """
    while True:
        fresh = random_scene(generator, None)
        kept = {name: getattr(scene, name) for name in Scene.__dataclass_fields__ if generator.random() < 0.5}
        changed = replace(fresh, **kept)
        pair_fits = held_out in (None, (changed.colour, changed.shape) in HELD_OUT_PAIRS)
        if changed != scene and pair_fits:
            return changed


def random_motion(generator: np.random.Generator) -> tuple[tuple[float, float], tuple[float, float]]:
    """Motion of subject and background, x and y in pixels a frame: together, apart, or only one of them."""

    def anywhere() -> tuple[float, float]:
        angle, speed = generator.uniform(0, 2 * np.pi), generator.uniform(0, FASTEST)
        return float(speed * np.cos(angle)), float(speed * np.sin(angle))

    subject, kind = anywhere(), generator.random()
    if kind < 1 / 4:
        return subject, subject
    if kind < 1 / 2:
        return subject, (0.0, 0.0)
    return ((0.0, 0.0) if kind < 5 / 8 else subject), anywhere()


def random_place(generator: np.random.Generator) -> Place:
    """Anywhere, as in the middle of a stream."""
    x, y = generator.integers(0, CANVAS * SUBPIXELS, 2) / SUBPIXELS
    return Place(float(x), float(y), float(generator.integers(0, CANVAS)))
