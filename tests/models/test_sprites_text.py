"""The sprites text encoder takes any text."""

import pytest
import torch

from wavecore.models.sprites_text import WORDS, SpritesTextEncoder, word_features


@pytest.fixture(scope="module")
def encoder():
    torch.manual_seed(0)
    return SpritesTextEncoder(32).eval().requires_grad_(False)


def test_a_batch_equals_single_prompts(encoder):
    prompts = ["a red ball", "", "a blue star moving up over sand"]
    together = encoder(prompts)
    assert together.shape == (3, WORDS, 32)
    for row, prompt in zip(together, prompts, strict=True):
        torch.testing.assert_close(encoder([prompt])[0], row, atol=1e-5, rtol=0)
    assert (together[1] == 0).all() and (together[0, 3:] == 0).all()


@pytest.mark.parametrize(
    "text", ["🙂 🎈", "红色的球", "كرة حمراء", "word " * 20_000, "...!?", "A\tRED\nball"]
)
def test_any_script_and_length_gives_finite_features(encoder, text):
    assert encoder([text]).isfinite().all()


def test_case_and_punctuation_do_not_matter(encoder):
    assert torch.equal(encoder(["A Red, ball."]), encoder(["a red ball"]))


def test_similar_words_share_features():
    def shared(a: str, b: str) -> int:
        return len(set(word_features(a, 4096)) & set(word_features(b, 4096)))

    assert shared("triangle", "triangel") > shared("triangle", "ball")


def test_isolated_words_mean_the_same_beside_any_other():
    torch.manual_seed(0)
    encoder = SpritesTextEncoder(32, isolation=1.0)
    red, blue, _ = encoder(["a red star", "a blue star", ""])
    torch.testing.assert_close(red[2], blue[2], atol=1e-5, rtol=0)
    encoder.eval()
    red, blue = encoder(["a red star", "a blue star"])
    assert (red[2] - blue[2]).abs().max() > 1e-3
