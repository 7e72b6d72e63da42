"""Prometheus metrics, taken from the event logs of the sessions: nothing counts twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from wavecore.control.speculative.accounting import Totals
from wavecore.serve.protocol import Record
from wavecore.trace import Event

_SECONDS = (0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.35, 0.5, 0.75, 1, 2, 5)


class Metrics:
    """Metrics of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str) -> Counter:
            return Counter(f"wavecore_{name}", text, registry=registry)

        self.underruns = counter("underruns", "Times that playback found nothing to show")
        self.superseded = counter("superseded_updates", "Updates replaced by a later one before they showed")
        self.discarded = counter("discarded_latents", "Predictions thrown away")
        self.played = counter("played_latents", "Latents played")
        self.calls = counter("calls", "Model calls launched")
        self.displayed = counter("displayed_frames", "Frames that viewers say they displayed")
        self.skipped = counter("skipped_frames", "Frames that reached viewers too late to be displayed")
        self.dropped = counter("dropped_groups", "Groups left out for viewers that read too slowly")
        self.images_dropped = counter("dropped_images", "Images from viewers left out for want of time")
        self.errors = Counter("wavecore_errors", "Coded errors sent", ["code"], registry=registry)
        self.refused = counter("refused_sessions", "Sessions not admitted")
        self._latency = Histogram(
            "wavecore_latency_seconds",
            "Latency of updates by part: R wait, C generation, Q alignment, transport, and all of them",
            ["part"],
            buckets=_SECONDS,
            registry=registry,
        )

    def follow(self, event: Event) -> None:
        """Count an event; from any thread."""
        kind, data = event.kind, event.data
        if kind == "underrun":
            self.underruns.inc()
        elif kind == "discard":
            self.discarded.inc(data["groups"])
        elif kind == "display":
            self.played.inc()
        elif kind == "launch":
            self.calls.inc()
        elif kind == "update" and data["outcome"] == "superseded":
            self.superseded.inc()

    def record(self, record: Record) -> None:
        """Observe the parts of an update that was displayed."""
        for part, value in (("R", record.wait), ("C", record.generation), ("Q", record.alignment)):
            if record.outcome == "displayed" and value is not None:
                self._latency.labels(part).observe(value)

    def shown(self, record: Record) -> None:
        """Observe when the viewer saw it."""
        if record.transport is not None and record.shown is not None and record.arrival is not None:
            self._latency.labels("transport").observe(record.transport)
            self._latency.labels("response").observe(record.shown - record.arrival)

    def watch(
        self,
        totals: Callable[[], Iterable[Totals]],
        sessions: Callable[[], tuple[int, int]],
        ages: dict[str, Callable[[], float]],
    ) -> None:
        """Take gauges from the sessions whenever they are asked for.

        Parameters
        ----------
        totals : callable
            Counts of each session that runs.
        sessions : callable
            How many are connected, and how many wait for their viewer.
        ages : dict of callable
            Seconds that the oldest entry of a queue has waited.
        """
        state = Gauge("wavecore_sessions", "Sessions by state", ["state"], registry=self.registry)
        state.labels("connected").set_function(lambda: sessions()[0])
        state.labels("waiting").set_function(lambda: sessions()[1])
        cost = Gauge(
            "wavecore_cost",
            "Of the running sessions: amplification A, waste w, load rho",
            ["part"],
            registry=self.registry,
        )
        cost.labels("A").set_function(lambda: 1 / max(1 - _waste(totals()), 1e-6))
        cost.labels("w").set_function(lambda: _waste(totals()))
        cost.labels("rho").set_function(lambda: sum(t.as_dict()["utilisation"] for t in totals()))
        age = Gauge(
            "wavecore_queue_age_seconds", "Wait of the oldest entry", ["queue"], registry=self.registry
        )
        for queue, measure in ages.items():
            age.labels(queue).set_function(measure)

    def text(self) -> bytes:
        """In the Prometheus text format."""
        return generate_latest(self.registry)


def _waste(totals: Iterable[Totals]) -> float:
    played = discarded = 0
    for each in totals:
        played += each.played
        discarded += sum(list(each.discarded.values()))
    return discarded / (played + discarded) if played + discarded else 0.0
