"""Read-back finds the facts that the world was drawn from."""

from dataclasses import replace

import numpy as np
import pytest

from wavecore.sprites.readback import classify_motion, nearest_colour, read_clip, read_frame
from wavecore.sprites.world import (
    CANVAS,
    COLOURS,
    DIRECTIONS,
    SHAPES,
    SPEEDS,
    Place,
    Scene,
    random_place,
    random_scene,
    render,
    track,
)


@pytest.mark.parametrize("seed", range(8))
def test_true_clips_are_read_without_error(seed):
    generator = np.random.default_rng(seed)
    scene = random_scene(generator)
    truth = track([scene] * 17, random_place(generator))
    facts = read_clip(render(truth))
    read = Scene(facts.shape, facts.colour, facts.background, facts.motion, facts.speed, facts.camera)
    assert read == (scene if scene.motion != "still" else replace(scene, speed="slow"))
    assert facts.present == 1
    error = (facts.centre - truth.centre + CANVAS / 2) % CANVAS - CANVAS / 2
    assert np.abs(error).max() < 1


def test_reading_every_second_frame_gives_the_same_speed():
    frames = render(track([Scene("ball", "red", "sand", "left", "fast", "right")] * 33, Place()))
    for every in (1, 2, 3):
        facts = read_clip(frames, every)
        assert np.allclose(facts.velocity, [-2, 0], atol=0.1)
        assert facts.pan_velocity == pytest.approx(1, abs=0.1)


def test_an_empty_scene_has_no_subject():
    frame = render(track([Scene("ball", "red", "water", "still")], Place()))[0]
    empty = np.tile(frame[:32], (4, 1, 1))  # rows that the subject does not reach
    assert read_frame(empty).overlap.max() < 0.2


@pytest.mark.parametrize("motion", [m for m in DIRECTIONS if m != "still"])
@pytest.mark.parametrize("speed", SPEEDS)
def test_directions_are_told_apart(motion, speed):
    velocity = np.array(DIRECTIONS[motion]) * SPEEDS[speed]
    assert classify_motion(velocity + np.array([0.15, -0.15])) == (motion, speed)


def test_colours_are_told_apart_under_shading():
    for name, rgb in COLOURS.items():
        for light in (0.88, 1.0, 1.1):
            assert nearest_colour(np.clip(np.array(rgb) * light, 0, 255)) == name


def test_shapes_are_told_apart_when_blurred():
    from scipy.ndimage import gaussian_filter

    for shape in SHAPES:
        frame = render(track([Scene(shape, "yellow", "grass", "still")], Place(30.5, 100.25)))[0]
        blurred = gaussian_filter(frame.astype(float), (2, 2, 0), mode="wrap").astype(np.uint8)
        assert SHAPES[int(read_frame(blurred).overlap.argmax())] == shape
