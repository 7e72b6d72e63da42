"""A server without a model: frames whose colours tell version and position, at any rate and size."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch

from wavecore.client import Client, ClientFrame
from wavecore.serve.admission import Cost
from wavecore.serve.app import Server
from wavecore.serve.engine import Engine
from wavecore.serve.feed import ImageFeed
from wavecore.serve.protocol import Start
from wavecore.serve.settings import ServeSettings
from wavecore.serve.stream import FollowedTrace, PacedStream, Stream
from wavecore.trace import Event, Trace

SIZE = (64, 48)
_LEVELS = 8
_COST = Cost(response=0.01, load=0.05, group=0.1)


@dataclass
class Group:
    frames: np.ndarray
    index: int
    version: int
    pts: float
    latent: torch.Tensor


def picture(version: int, position: int, frame: int, size: tuple[int, int]) -> np.ndarray:
    """Left half: the version, right half: the position, modulo 8; a moving bar at the bottom."""
    image = np.zeros((size[1], size[0], 3), np.uint8)
    half = size[0] // 2
    image[:, :half] = 16 + 28 * (version % _LEVELS)
    image[:, half:] = 16 + 28 * (position % _LEVELS)
    image[-8:, 8 * frame : 8 * frame + 8] = 255
    return image


def read_picture(image: np.ndarray) -> tuple[int, int]:
    """(version, position) modulo 8 of a decoded picture."""
    half = image.shape[1] // 2
    levels = image[8:-16, half // 4 : -half // 4]
    left, right = levels[:, : half // 2].mean(), levels[:, -(half // 2) :].mean()
    return round((left - 16) / 28), round((right - 16) / 28)


class SyntheticSession:
    """Makes groups of pictures as a `wavecore.session.Session` would, each in `seconds`."""

    in_flight = 0

    def __init__(
        self,
        trace: Trace,
        size: tuple[int, int],
        fps: float,
        seconds: float,
        groups: int | None,
        count: int,
        fail_at: int | None,
        feed: ImageFeed | None,
    ) -> None:
        self.fps = fps
        self._trace, self._size, self._seconds, self._count = trace, size, seconds, count
        self._groups, self._fail_at, self._feed = groups, fail_at, feed
        self._version = self._index = 0
        self._admitted = -1
        trace.record("prompt", version=0, prompt="")

    def update(self, prompt: str, transition: int = 1) -> int:
        self._version += 1
        self._trace.record("prompt", version=self._version, prompt=prompt)
        return self._version

    def __next__(self) -> Group:
        index, version = self._index, self._version
        if index == self._groups:
            raise StopIteration
        if index == self._fail_at:
            raise RuntimeError("the model failed")
        self._trace.record("admit", chunk=index, version=version)
        count = 1 if index == 0 else self._count
        if self._feed is None:
            time.sleep(self._seconds)
            frames = np.stack([picture(version, index, f, self._size) for f in range(count)])
        else:
            frames = np.stack([next(self._feed) for _ in range(count)])
        first = 0 if index == 0 else 1 + (index - 1) * self._count
        self._trace.record("ready", group=index, version=version, frames=count)
        self._index += 1
        return Group(frames, index, version, first / self.fps, torch.zeros(1))

    def close(self) -> None:
        pass


@dataclass
class SyntheticEngine:
    """An engine of synthetic sessions."""

    model: str = "synthetic"
    seconds: float = 0.002
    fps: float = 40.0
    group: int = 4
    groups: int | None = None
    fail_at: int | None = None
    load_seconds: float = 0.0
    cost: Cost = _COST

    def load(self) -> Cost:
        time.sleep(self.load_seconds)
        return self.cost

    def size(self, start: Start) -> tuple[int, int]:
        return start.size or SIZE

    def open(self, start: Start, follow: Callable[[Event], None], feed: ImageFeed | None) -> Stream:
        size, fps = self.size(start), start.fps or self.fps

        def session(trace: Trace) -> Any:
            return SyntheticSession(
                trace, size, fps, self.seconds, self.groups, self.group, self.fail_at, feed
            )

        return PacedStream(session, FollowedTrace(follow), size, self.group, 1, live=feed is not None)

    def make_video(self, start: Start, seconds: float, path: Path, progress: Callable[[float], None]) -> None:
        from wavecore.media import VideoWriter

        fps = start.fps or self.fps
        total = max(1, round(seconds * fps))
        with VideoWriter(path, fps) as writer:
            for frame in range(total):
                time.sleep(self.seconds)
                writer.write(picture(0, frame, 0, self.size(start)))
                progress((frame + 1) / total)


@dataclass
class Running:
    """A server that runs in a thread."""

    url: str
    server: Server

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, **options)


@contextlib.contextmanager
def serving(engine: Engine | None = None, **settings: Any) -> Iterator[Running]:
    """Run a server on a free port, ready, until the block ends."""
    import uvicorn

    server = Server(ServeSettings(**settings), SyntheticEngine() if engine is None else engine)
    listener = socket.socket()
    listener.bind((settings.get("host", "127.0.0.1"), 0))
    config = uvicorn.Config(
        server.app,
        log_level="error",
        ws="websockets-sansio",
        ws_max_size=4 << 20,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=3,
    )
    runner = uvicorn.Server(config)
    thread = threading.Thread(target=runner.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    running = Running(f"http://127.0.0.1:{listener.getsockname()[1]}", server)
    try:
        wait_until(lambda: server.sessions.admission is not None or server.sessions.failure is not None)
        wait_until(lambda: runner.started)
        yield running
    finally:
        runner.should_exit = True
        thread.join(10)
        assert not thread.is_alive(), "the server did not stop"


def wait_until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.005)


def frames(client: Client, count: int) -> list[ClientFrame]:
    """The next frames that a client gets."""
    return list(islice(client, count))
