"""What happens around the calls of a generator when a stream branches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wavecore.control.speculative.events import Launch
from wavecore.interactive.predictions import Generator, Made


class Branches:
    """What a generator does around each call: cuts, keeps the shelf, restores, releases.

    Parameters
    ----------
    generator : Generator
    """

    def __init__(self, generator: Generator) -> None:
        self.generator = generator
        self.committed = 0  # positions before it are irrevocable; written by the thread that plays
        self._shelf: Any = None

    def restore(self) -> None:
        """Put back what the latest call replaced."""
        if self._shelf is not None:
            self.generator.restore(self._shelf)
            self._shelf = None

    def call(self, launch: Launch) -> Iterator[Made]:
        """Steps of a call; what it has made and not reported when it ends is forgotten."""
        generator, reported = self.generator, set[int]()
        made = generator.call(launch.position, launch.groups, launch.trimmed, launch.condition)
        try:
            for step in made:
                reported.add(step.position)
                yield step
        finally:
            made.close()  # type: ignore[attr-defined]
            predictions = generator.predictions
            predictions.drop([p for p in predictions if p >= launch.position and p not in reported])

    def splice(self, launch: Launch) -> bool:
        """Let the running call go on as another one from a position on; see `Generator.splice`."""
        self.generator.release(min(self.committed, launch.position))
        return self.generator.splice(launch.position, launch.groups, launch.condition)

    def begin(self, launch: Launch, keep: bool) -> None:
        """Cut the suffix that a call replaces; with `keep` it can be restored until the next call."""
        if self._shelf is not None:
            self.generator.discard(self._shelf)
        self.generator.release(min(self.committed, launch.position))
        shelf = self.generator.cut(launch.position)
        self._shelf = shelf if keep else None
        if not keep:
            self.generator.discard(shelf)
