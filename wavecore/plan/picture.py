"""Timelines as pictures: a row a track, a bar a piece of work, waits in another colour."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from wavecore.files import complete_or_nothing
from wavecore.plan.simulate import Span
from wavecore.trace import Event

_COLOURS = ("#4c78a8", "#72b7b2", "#54a24b", "#eeca3b", "#b279a2", "#9d755d", "#79706e", "#439894")
_WAIT = "#e45756"
_ROW, _LEFT, _TOP = 34, 90, 24


def draw(spans: Sequence[Span], path: str | os.PathLike[str], title: str = "", width: int = 1200) -> None:
    """Write a timeline as PNG.

    Parameters
    ----------
    spans : sequence of Span
        At least one; bars of a colour belong to the same chunk.
    path : path
    title : str
    width : int
        Pixels.

    Raises
    ------
    InputError
        The file cannot be written.
    """
    from PIL import Image, ImageDraw

    tracks = list(dict.fromkeys(sorted(span.track for span in spans)))
    begin = min(span.begin for span in spans)
    length = max(span.end for span in spans) - begin
    image = Image.new("RGB", (width, _TOP + _ROW * len(tracks) + 28), "white")
    pen = ImageDraw.Draw(image)
    scale = (width - _LEFT - 12) / length

    def across(time: float) -> float:
        return _LEFT + (time - begin) * scale

    pen.text((8, 6), title, fill="black")
    for row, track in enumerate(tracks):
        top = _TOP + row * _ROW
        pen.text((8, top + 9), track, fill="black")
        for span in (span for span in spans if span.track == track):
            colour = _COLOURS[int(span.label) % len(_COLOURS)] if span.label.isdigit() else _COLOURS[0]
            box = (
                across(span.begin),
                top + 4,
                max(across(span.end) - 1, across(span.begin) + 1),
                top + _ROW - 4,
            )
            pen.rectangle(box, fill=colour)
            for first, last in span.waits:
                if last > first:
                    pen.rectangle((across(first), top + 4, across(last), top + _ROW - 4), fill=_WAIT)
            if box[2] - box[0] > 14:
                pen.text((box[0] + 3, top + 9), span.label, fill="white")
    bottom = _TOP + _ROW * len(tracks)
    pen.text((_LEFT, bottom + 8), "0", fill="black")
    end = f"{length * 1e3:.4g} ms"
    pen.text((width - 12 - pen.textlength(end), bottom + 8), end, fill="black")
    with complete_or_nothing(Path(path)) as pending:
        image.save(pending, format="PNG")


def spans_of(events: Sequence[Event], rounds: range | None = None) -> list[Span]:
    """Rounds of the stages in an event log, with their waits, as spans.

    Parameters
    ----------
    events : sequence of Event
        Of a run over replicas.
    rounds : range, optional
        Only these.
    """
    waits: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for event in events:
        if event.kind == "wait" and "round" in event.data:
            key = event.track, event.data["round"]
            waits.setdefault(key, []).append((event.time, event.time + event.duration))
    spans = []
    for event in events:
        index: int = event.data.get("index", -1)
        if event.kind != "round" or event.track == "main" or (rounds is not None and index not in rounds):
            continue
        chunk = str(next(iter(event.data["slots"].values())))
        own = tuple(waits.get((event.track, index), ()))
        spans.append(Span(event.track, chunk, event.time, event.time + event.duration, own))
    return spans
