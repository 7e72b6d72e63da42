"""Calls, cuts, ends and restorations at random, on one generator and then, the same ones, on another."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch

from wavecore.interactive.branches import Branches
from wavecore.interactive.predictions import NOTHING_YET


class Decisions:
    """Draws decisions, or gives those again that another one has drawn."""

    def __init__(self, random=None, drawn=None):
        self._random, self.drawn = random, [] if drawn is None else drawn
        self._again = iter(self.drawn) if random is None else None

    def number(self, first, last):
        """A number from `first` to `last`."""
        return self.choice(range(first, last + 1))

    def choice(self, values, weights=None):
        """One of the values."""
        if self._again is not None:
            return next(self._again)
        self.drawn += self._random.choices(values, weights)
        return self.drawn[-1]


def decide(generator, decisions, calls=4):
    """Latent and frames of every position, in the order in which they were made.

    Positions are those that the controller may choose: within what is stored, or between two chunks.
    """
    branches, made, prompts, end = Branches(generator), [], 0, 0

    def launch(position, groups):
        nonlocal prompts
        prompts += 1
        return SimpleNamespace(
            position=position,
            groups=groups,
            trimmed=0,
            condition=f"prompt {prompts % 3}",
        )

    for _ in range(calls):
        branches.committed = max(0, end - decisions.number(4, 7))
        position = decisions.number(branches.committed, end)
        current = launch(position, decisions.number(2, 12))
        keep = decisions.choice([False, True])
        branches.begin(current, keep)
        call = branches.call(current)
        for step in call:
            if step is not NOTHING_YET:
                if step.position >= 0 and step.position in generator.predictions:
                    prediction = generator.predictions[step.position]
                    made.append((step.position, prediction.latent, prediction.frames))
                continue
            what = decisions.choice(["go on", "cut", "end"], [12, 4, 1])
            if what == "end":
                break
            if what == "cut":
                stored = max((piece.end for piece in generator._pieces), default=0)
                between = range(current.position + 3, current.position + current.groups, 3)
                behind = range(max(current.position, branches.committed) + 1, stored + 1)
                allowed = sorted({*between, *behind})
                if allowed:
                    cut = launch(decisions.choice(allowed), decisions.number(2, 9))
                    if branches.splice(cut):  # not where calls are of one piece
                        current = cut
        call.close()
        end = max((piece.end for piece in generator._pieces), default=0)
        if keep and decisions.choice([False, True]):
            branches.restore()
            end = max((piece.end for piece in generator._pieces), default=0)
    return made


def same_stream(one, other):
    """Whether both made the same positions with the same bits, in the same order."""
    return len(one) == len(other) and all(
        a == b and torch.equal(x, y) and np.array_equal(f, g)
        for (a, x, f), (b, y, g) in zip(one, other, strict=True)
    )
