"""Captions say what the scene is, in many ways."""

import re

import numpy as np

from wavecore.sprites.caption import MOVE_WORDS, caption, plain_caption
from wavecore.sprites.world import Scene, random_scene


def test_the_plain_caption_names_every_attribute():
    scene = Scene("star", "purple", "night", "up-left", "fast", "right")
    assert plain_caption(scene) == (
        "a purple star moving up and left quickly over the night sky, camera panning right"
    )
    assert plain_caption(Scene("box", "red", "sand", "still")) == "a red box standing still over sand"


def test_captions_vary_and_differ_between_scenes():
    generator = np.random.default_rng(0)
    scene = random_scene(generator)
    texts = {caption(scene, generator) for _ in range(50)}
    assert len(texts) > 40
    assert plain_caption(scene) != plain_caption(random_scene(generator))


def test_captions_are_short_enough_to_be_read_whole():
    generator = np.random.default_rng(1)
    from wavecore.models.sprites_text import WORDS

    lengths = [len(caption(random_scene(generator), generator).split()) for _ in range(500)]
    assert np.mean(np.array(lengths) <= WORDS) > 0.99


def test_a_caption_without_motion_says_nothing_of_subject_and_camera():
    generator = np.random.default_rng(8)
    moves = {
        *MOVE_WORDS,
        "left",
        "right",
        "up",
        "down",
        "camera",
        "still",
        "rest",
        "resting",
        "motionless",
        "pan",
    }
    for _ in range(300):
        words = set(re.findall("[a-z]+", caption(random_scene(generator), generator, motion=False).lower()))
        assert not words & moves
