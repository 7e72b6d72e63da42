"""What the viewer of a session was sent, and what became of it on the viewer's side."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any

from wavecore.serve import protocol
from wavecore.serve.encode import EncodedGroup
from wavecore.serve.metrics import Metrics
from wavecore.serve.outbox import Outbox

_SENT = 512  # frames whose fate is not known yet
_VERSIONS = 64  # whose first display is remembered


class _Sent:
    """A group as it was sent once."""

    def __init__(self, group: EncodedGroup, replay: bool) -> None:
        self.group, self.replay = group, replay
        self.seen = False


class Viewer:
    """The viewer of a session, who may be lost and come back. Belongs to the event loop's thread.

    Parameters
    ----------
    metrics : Metrics

    Attributes
    ----------
    outbox : Outbox or None
        Messages on their way to the viewer; None while there is none.
    displayed, skipped, dropped : int
        Frames that were shown and that were not, as the viewer says, and groups that were not sent.
    """

    def __init__(self, metrics: Metrics) -> None:
        self.outbox: Outbox | None = None
        self.displayed = self.skipped = self.dropped = 0
        self._metrics = metrics
        self._sent: OrderedDict[int, _Sent] = OrderedDict()  # by frame number
        self._shown: OrderedDict[int, float] = OrderedDict()  # first display of versions
        self._unshown: OrderedDict[int, protocol.Record] = OrderedDict()

    def attach(self, outbox: Outbox) -> None:
        """Connect: what was sent before is not known to the new connection."""
        self.outbox = outbox
        self._sent.clear()

    def changed(self) -> None:
        """Have the state of the session sent."""
        if self.outbox is not None:
            self.outbox.changed()

    def offer(self, group: EncodedGroup, commit: tuple[int, int, int], replay: bool) -> None:
        """Send a group, unless the viewer is too far behind; `commit` and `replay` as of `Outbox.offer`."""
        if self.outbox is None:
            return
        numbers = self.outbox.offer(group, commit, replay)
        if not numbers:
            self.dropped += 1
            self._metrics.dropped.inc()
            return
        sent = _Sent(group, replay)
        for number in numbers:
            self._sent[number] = sent
        _keep_latest(self._sent, _SENT)

    def acknowledge(self, ack: protocol.Ack) -> list[EncodedGroup]:
        """Take note of what the viewer has got and seen; returns the groups seen for the first time."""
        if self.outbox is not None:
            self.outbox.received(ack.received)
        now, seen = time.monotonic(), []
        for number, shown in ack.displayed:
            sent = self._sent.pop(number, None)
            if sent is None:
                continue
            self.displayed += 1
            self._metrics.displayed.inc()
            if not sent.seen:
                sent.seen = True
                seen.append(sent.group)
            if not sent.replay and sent.group.version not in self._shown:
                # Never before it was due, nor after we hear of it, whatever the viewer's clock says.
                self._shown[sent.group.version] = min(max(shown, sent.group.due), now)
                self._join(sent.group.version)
                _keep_latest(self._shown, _VERSIONS)
        for number in ack.skipped:
            if self._sent.pop(number, None) is not None:
                self.skipped += 1
                self._metrics.skipped.inc()
        return seen

    def settled(self, record: protocol.Record) -> None:
        """Tell the viewer what became of an update, and once more when it was seen."""
        self._metrics.record(record)
        if record.outcome == "displayed":
            self._unshown[record.version] = record
            _keep_latest(self._unshown, _VERSIONS)
        self._send(record)
        self._join(record.version)

    def _join(self, version: int) -> None:
        """Once both are known, say when an update was really seen."""
        record, shown = self._unshown.get(version), self._shown.get(version)
        if record is None or shown is None or record.display is None:
            return
        del self._unshown[version]
        record.shown, record.transport = shown, shown - record.display
        self._metrics.shown(record)
        self._send(record)

    def _send(self, record: protocol.Record) -> None:
        if self.outbox is not None:
            self.outbox.record(record)


def _keep_latest(remembered: OrderedDict[int, Any], most: int) -> None:
    while len(remembered) > most:
        remembered.popitem(last=False)
