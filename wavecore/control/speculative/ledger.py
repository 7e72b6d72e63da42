"""Keeps the accounts: opens and settles the record of every update, counts every prediction."""

from __future__ import annotations

from collections.abc import Iterable

from wavecore.control.speculative.accounting import Totals, UpdateRecord
from wavecore.control.speculative.events import Discard, FellBack, Outcome, Output, Settled
from wavecore.control.speculative.state import LATE, Job, Prediction


class Ledger:
    """Records that are open, and totals. What it has to tell it appends to `out`.

    Attributes
    ----------
    totals : Totals
    open : dict of UpdateRecord by version
        Updates whose fate is not known. Settled ones are given out and forgotten.
    """

    def __init__(self) -> None:
        self.totals = Totals()
        self.open: dict[int, UpdateRecord] = {}
        self.out: list[Output] = []
        self._last_bootstrap = -1

    def arrive(self, version: int, time: int) -> UpdateRecord:
        """Open a record."""
        record = self.open[version] = UpdateRecord(version, time)
        return record

    def settle(self, version: int, outcome: Outcome, time: int, by: int | None = None) -> None:
        """Close a record, if it is open."""
        record = self.open.pop(version, None)
        if record is not None:
            record.outcome, record.by = outcome, by
            setattr(self.totals, outcome, getattr(self.totals, outcome) + 1)
            self.out.append(Settled(time, record))

    def launch(self, job: Job, sampled: int, passed: int) -> None:
        """Count a job, and note it in the record that it is the first to serve."""
        totals = self.totals
        if job.reason == "bootstrap":
            self._last_bootstrap = job.number
            totals.bootstrap_calls += 1
            totals.bootstrap_sampled += sampled
        else:
            totals.calls += 1
            totals.sampled += sampled
            totals.overlap += job.latent
            totals.playable += job.groups
        record = self.open.get(job.version)
        if record is not None and record.start is None:
            record.start, record.why, record.passed = job.start, job.reason, passed
            record.position = record.first = job.position
            record.launches += 1

    def end(self, job: Job, time: int) -> None:
        """Count the time of a job that ended."""
        if job.number > self._last_bootstrap:
            self.totals.busy += time - job.start

    def display(self, prediction: Prediction, time: int) -> None:
        """Count a position that was shown; the first one of a version settles it."""
        if prediction.job > self._last_bootstrap:
            self.totals.played += 1
        else:
            self.totals.bootstrap_played += 1
        record = self.open.get(prediction.version)
        if record is not None:
            record.start, record.ready, record.display = prediction.start, prediction.ready, time
            self.settle(prediction.version, "displayed", time)

    def discard(self, predictions: dict[int, Prediction], reason: str, time: int) -> None:
        """Count predictions thrown away; those that came too late have been counted."""
        lost = [position for position, p in predictions.items() if not p.parts & LATE]
        if lost:
            bootstrap = sum(predictions[position].job <= self._last_bootstrap for position in lost)
            self.totals.bootstrap_discarded += bootstrap
            if len(lost) > bootstrap:
                self.totals.count(self.totals.discarded, reason, len(lost) - bootstrap)
            self.out.append(Discard(time, min(lost), max(lost) + 1, len(lost), reason))

    def late(self, predictions: dict[int, Prediction], time: int) -> None:
        """Count predictions that were due before they were ready and are left out."""
        for position, prediction in predictions.items():
            if prediction.job > self._last_bootstrap:
                self.totals.count(self.totals.discarded, "late")
            else:
                self.totals.bootstrap_discarded += 1
            self.out.append(Discard(time, position, position + 1, 1, "late"))
            record = self.open.get(prediction.version)
            if record is not None and record.first == position:
                record.first = position + 1

    def supersede(self, first: int, by: int, time: int) -> None:
        """Settle every version of which nothing was shown and all that was made lies behind `first`."""
        gone = [v for v, r in self.open.items() if v != by and r.first is not None and r.first >= first]
        for version in gone:
            self.settle(version, "superseded", time, by)

    def relaunch(self, version: int) -> bool:
        """Forget the launch of a version of which nothing was shown; True if there was one."""
        record = self.open.get(version)
        if record is None or record.start is None:
            return False
        record.start = record.position = record.first = None
        return True

    def fall_back(self, kind: str, position: int, detail: str, time: int) -> None:
        """Note that a declared fallback covers a loss."""
        self.totals.count(self.totals.fallbacks, kind)
        self.out.append(FellBack(time, kind, position, detail))

    def close(self, predictions: Iterable[dict[int, Prediction]], cursor: int, time: int) -> None:
        """Settle all records as lost and discard what was not shown."""
        for rest in predictions:
            self.discard({p: entry for p, entry in rest.items() if p >= cursor}, "closed", time)
        for version in list(self.open):
            self.settle(version, "lost", time)
