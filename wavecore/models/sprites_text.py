"""Text encoder of the `sprites` model: free text to a fixed number of features."""

from __future__ import annotations

import re
import zlib

import torch
from torch import Tensor, nn

WORDS = 24  # words read of a prompt
_WORD = re.compile(r"\w+", re.UNICODE)


def word_features(word: str, buckets: int) -> list[int]:
    """Hash a word and its character 3- to 5-grams into buckets.

    A word never seen shares its n-grams with words that were, so inflections and typing
    errors land near what was meant (Bojanowski et al. 2017, "Enriching Word Vectors with
    Subword Information").
    """
    marked = f"<{word}>"
    grams = [marked[i : i + n] for n in (3, 4, 5) for i in range(len(marked) - n + 1)]
    return [zlib.crc32(gram.encode()) % buckets for gram in (f"={word}", *grams)]


class SpritesTextEncoder(nn.Module):
    """Hashed words through a small transformer.

    Parameters
    ----------
    dim : int
        Feature size.
    buckets : int
        Rows of the hash table.
    layers, heads : int
        Size of the transformer.
    isolation : float
        Probability, in training mode, that the words of a prompt do not see each other. It keeps what
        a word means from depending on the words it was trained beside, so that new pairs compose.
    """

    def __init__(
        self, dim: int = 96, buckets: int = 4096, layers: int = 2, heads: int = 4, isolation: float = 0.5
    ) -> None:
        super().__init__()
        self.buckets, self.heads, self.isolation = buckets, heads, isolation
        self.words = nn.EmbeddingBag(buckets, dim, mode="mean")
        self.positions = nn.Parameter(torch.randn(WORDS, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(
            dim, heads, 2 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)

    def forward(self, prompts: list[str]) -> Tensor:
        """Features [b, WORDS, dim] of prompts; only the first `WORDS` words count.

        Word order and pads: pads carry zeros before the transformer and are masked in it; their
        output rows are zero, as Wan's text pads are.
        """
        split = [_WORD.findall(prompt.lower())[:WORDS] for prompt in prompts]
        flat = [word_features(word, self.buckets) for words in split for word in words]
        if not flat:
            return self.positions.new_zeros(len(prompts), WORDS, self.positions.shape[1])
        device = self.positions.device
        offsets = torch.tensor([0, *map(len, flat[:-1])], device=device).cumsum(0)
        embedded = self.words(torch.tensor([i for row in flat for i in row], device=device), offsets)
        counts = torch.tensor([len(words) for words in split], device=device)
        places = torch.arange(WORDS, device=device)
        rows = torch.repeat_interleave(torch.arange(len(prompts), device=device), counts)
        columns = torch.cat([places[: len(words)] for words in split])
        x = embedded.new_zeros(len(prompts), WORDS, embedded.shape[1]).index_put((rows, columns), embedded)
        empty = places[None] >= counts[:, None]
        pad = empty.clone()
        pad[:, 0] = False  # an empty prompt still needs one key
        x = self.norm(self.encoder(x + self.positions, self._isolated(pad) if self.training else None, pad))
        return x.masked_fill(empty[..., None], 0.0)

    def _isolated(self, pad: Tensor) -> Tensor:
        """Forbidden attention [b * heads, WORDS, WORDS] of a training step; a pad may see every word."""
        alone = torch.rand(len(pad), device=pad.device) < self.isolation
        others = ~torch.eye(WORDS, dtype=torch.bool, device=pad.device)
        forbidden = alone[:, None, None] & others & ~pad[:, :, None]
        return forbidden.repeat_interleave(self.heads, 0)
