"""The sprites world: what is drawn is what the track says."""

from dataclasses import replace

import numpy as np
import pytest

from wavecore.sprites.world import (
    BACKGROUNDS,
    CANVAS,
    COLOURS,
    FASTEST,
    HELD_OUT_PAIRS,
    RADIUS,
    SHAPES,
    Place,
    Scene,
    background,
    random_change,
    random_motion,
    random_scene,
    render,
    render_moving,
    signed_distance,
    track,
)


def test_a_still_scene_repeats_one_frame():
    frames = render(track([Scene("ball", "red", "grass", "still")] * 3, Place()))
    assert frames.shape == (3, CANVAS, CANVAS, 3) and frames.dtype == np.uint8
    assert (frames == frames[0]).all()


def test_motion_follows_the_velocity_and_wraps_around():
    truth = track([Scene("box", "blue", "sand", "right", "fast")] * 65, Place(10, 20))
    assert truth.centre[1].tolist() == [12, 20]
    assert truth.centre[64].tolist() == [(10 + 128) % CANVAS, 20]
    assert np.array_equal(render(truth)[0], render(truth)[64])


def test_the_camera_moves_the_background_only():
    still, panned = (
        render(track([Scene("star", "white", "tiles", "still", camera=camera)] * 9, Place()))
        for camera in ("still", "right")
    )
    assert np.array_equal(panned[8][:20], np.roll(still[8], -8, axis=1)[:20])
    assert np.array_equal(panned[8][60:68, 60:68], still[8][60:68, 60:68])


def test_a_change_of_scene_goes_on_from_the_same_place():
    truth = track(
        [Scene("ball", "red", "night", "up")] * 5 + [Scene("cross", "cyan", "water", "left")] * 5,
        Place(64, 64),
    )
    assert truth.centre[4].tolist() == [64, 60]
    assert truth.centre[5].tolist() == [63, 60]


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_fit_their_window(shape):
    axis = np.arange(-40, 41)
    inside = signed_distance(shape, axis[None, :], axis[:, None]) < 0
    rows, columns = np.nonzero(inside)
    assert inside[40, 40]
    assert max(np.abs(rows - 40).max(), np.abs(columns - 40).max()) <= 1.2 * RADIUS


@pytest.mark.parametrize("name", BACKGROUNDS)
def test_backgrounds_repeat_and_keep_away_from_the_subject_colours(name):
    texture = background(name).astype(int)
    assert np.abs(texture[:, :64] - texture[:, 64:]).max() <= 1  # rounding
    for colour in COLOURS.values():
        assert np.linalg.norm(texture - np.array(colour), axis=-1).min() > 60


def test_training_never_shows_a_held_out_pair():
    generator = np.random.default_rng(0)
    scenes = [random_scene(generator) for _ in range(500)]
    scenes += [random_change(scene, generator) for scene in scenes]
    assert not {(scene.colour, scene.shape) for scene in scenes} & HELD_OUT_PAIRS
    held_out = {(s.colour, s.shape) for s in (random_scene(generator, held_out=True) for _ in range(200))}
    assert held_out == HELD_OUT_PAIRS


def test_subject_and_background_move_apart_whatever_the_scene_says():
    scene = Scene("cross", "cyan", "bricks", "left", "fast", "right")
    frames, centre = render_moving(scene, (2.5, -4), (-7, 3), 40, Place(10, 20, 5))
    assert frames.shape == (40, CANVAS, CANVAS, 3) and frames.dtype == np.uint8
    assert centre[3].tolist() == [17.5, 8] and centre[8].tolist() == [30, (20 - 32) % CANVAS]
    resting = render(track([replace(scene, camera="still")], Place(10, 20, 5)))[0]
    assert np.array_equal(frames[0], resting)
    plain = np.roll(background("bricks"), -5, axis=1)
    for index in (4, 39):
        x, y = centre[index]
        rows, columns = np.arange(CANVAS)[:, None], np.arange(CANVAS)[None]
        gaps = np.abs(rows - y), np.abs(columns - x)
        away = np.maximum(*(np.minimum(gap, CANVAS - gap) for gap in gaps)) > RADIUS + 3
        assert np.array_equal(frames[index][away], np.roll(plain, (3 * index, -7 * index), (0, 1))[away])
        assert frames[index][round(y) % CANVAS, round(x) % CANVAS] == pytest.approx(COLOURS["cyan"], abs=4)


def test_motion_of_fractions_of_a_pixel_adds_up_without_rounding():
    _, centre = render_moving(Scene("ball", "red", "sand", "still"), (0.3, 0), (0.4, 0), 101)
    assert centre[100].tolist() == [(64 + 30) % CANVAS, 64]


def test_motions_are_together_apart_or_of_one_thing_only():
    generator = np.random.default_rng(3)
    drawn = [random_motion(generator) for _ in range(400)]
    still = (0.0, 0.0)
    kinds = [(a == b, a == still, b == still) for a, b in drawn]
    together, only_subject, only_scenery = (True, False, False), (False, False, True), (False, True, False)
    assert set(kinds) == {together, only_subject, only_scenery, (False, False, False)}
    assert max(float(np.hypot(*motion)) for pair in drawn for motion in pair) <= FASTEST
