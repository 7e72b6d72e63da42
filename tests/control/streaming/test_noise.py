"""Motion-aware noise: the public numbers, the rules of the window and the average, bad settings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavecore.control.streaming import NoiseController, NoiseSettings, pixel_differences
from wavecore.errors import UsageError

STILL, FULL = [0.0] * 4, [0.2] * 4


def follow(controller, differences, chunks):
    return [(round(controller.update(differences), 6), controller.timestep) for _ in range(chunks)]


def compatible():
    return NoiseController(NoiseSettings(mode="compatible"))


def test_a_still_scene_keeps_the_public_start_for_ever():
    assert set(follow(compatible(), STILL, 1000)) == {(0.8, 700)}


def test_half_motion_has_the_public_numbers():
    controller = compatible()
    assert follow(controller, [0.1] * 4, 2) == [(0.755, 654), (0.7505, 650)]
    assert follow(controller, [0.1] * 4, 50)[-1][0] == pytest.approx(0.75, abs=1e-6)


@pytest.mark.parametrize("motion", [0.2, 0.5, 2.0])
def test_full_motion_and_back_has_the_public_numbers(motion):
    controller = compatible()
    assert follow(controller, [motion] * 4, 2) == [(0.71, 610), (0.701, 601)]
    assert follow(controller, [motion] * 4, 50)[-1] == (0.7, 600)
    assert follow(controller, STILL, 1) == [(0.79, 690)]


def test_the_first_chunk_has_nothing_to_compare():
    controller = compatible()
    assert controller.update([]) == 0.8
    assert controller.timestep == 700


def test_the_largest_of_the_window_decides_also_across_chunks():
    controller = NoiseController(NoiseSettings(window=4, smoothing=1.0))
    assert controller.update([0.2, 0.0]) == pytest.approx(0.7)
    assert controller.update([0.0]) == pytest.approx(0.7)
    assert controller.update([0.0]) == pytest.approx(0.7)
    assert controller.update([0.0]) == pytest.approx(0.8), "the moving frame has left the window"


def test_the_paper_mode_tells_the_model_the_noise_that_is_there():
    controller = NoiseController(NoiseSettings())
    controller.update(FULL)
    assert controller.timestep == 1000 * controller.strength


@given(
    st.lists(st.lists(st.floats(0, 10), max_size=6), max_size=20), st.sampled_from(["paper", "compatible"])
)
def test_the_share_of_noise_stays_within_its_bounds(chunks, mode):
    settings = NoiseSettings(mode=mode, highest=0.9, span=0.3)
    controller = NoiseController(settings)
    for differences in chunks:
        before = controller.strength
        after = controller.update(differences)
        assert 0.6 - 1e-9 <= after <= 0.9 + 1e-9
        if not differences:
            assert after == before


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"mode": "public"}, "mode"),
        ({"highest": 0}, "highest"),
        ({"highest": 1.1}, "highest"),
        ({"span": 0.8}, "span"),
        ({"span": -0.1}, "span"),
        ({"scale": 0}, "scale"),
        ({"window": 0}, "window"),
        ({"smoothing": 0}, "smoothing"),
        ({"smoothing": float("nan")}, "smoothing"),
        ({"mode": "compatible", "offset": 701}, "offset"),
    ],
)
def test_a_wrong_constant_is_named(wrong, name):
    with pytest.raises(UsageError, match=f"^{name}: expected"):
        NoiseSettings(**wrong)


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_a_difference_is_a_finite_number(value):
    with pytest.raises(UsageError, match="differences"):
        compatible().update([value])


def test_pixel_differences_are_measured_in_float_on_pixels_from_minus_one_to_one():
    black, grey, white = (np.full((4, 6, 3), level, np.uint8) for level in (0, 1, 255))
    assert pixel_differences([white, white, black], black) == pytest.approx([2.0, 0.0, 2.0])
    assert pixel_differences([grey, black], None) == pytest.approx([1 / 127.5])


def test_black_frames_do_not_move():
    black = np.zeros((4, 6, 3), np.uint8)
    controller = compatible()
    controller.update(pixel_differences([black] * 4, black))
    assert controller.timestep == 700
