"""A stream decoder cut into parts that run one behind the other, each in its own process."""

from __future__ import annotations

import io
import mmap
import os
import pickle
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from wavecore.arguments import whole
from wavecore.control.streaming import partition
from wavecore.errors import UsageError, WavecoreError
from wavecore.models.stream import State, UnitDecoder, run_units
from wavecore.placement.launch import start_module
from wavecore.transfer import on_host


@dataclass(frozen=True, kw_only=True)
class DecodeOptions:
    """Processes that decode.

    Attributes
    ----------
    workers : int
    threads : int
        Of each.
    cores : sequence of int, optional
        Cores to pin them to, in turn. Not pinned when left out.
    busy : sequence of float, optional
        Seconds that each one's core is busy with other work for every latent, such as a stage beside it:
        it then gets fewer units.
    devices : sequence of str, optional
        Where they decode, in turn, such as ("cuda:1", "cuda:0"). When left out: the CPU, or for a decoder on
        a GPU all GPUs of the machine, the last one first, since ranks take the first ones.
    """

    workers: int = 1
    threads: int = 1
    cores: Sequence[int] | None = None
    busy: Sequence[float] | None = None
    devices: Sequence[str] | None = None

    def __post_init__(self) -> None:
        for name in ("workers", "threads"):
            whole(name, getattr(self, name), 1)
        if self.busy is not None and len(self.busy) != self.workers:
            raise UsageError(f"busy: expected {self.workers} numbers, one a worker, got {len(self.busy)}")
        if self.devices is not None and not self.devices:
            raise UsageError("devices: expected at least one, got none")

    def devices_for(self, device: torch.device) -> Sequence[str]:
        """Devices of the workers for a decoder on `device`."""
        if self.devices is not None:
            return self.devices
        if device.type != "cuda":
            return ["cpu"]
        return [f"cuda:{index}" for index in reversed(range(torch.cuda.device_count()))]


def unit_seconds(
    vae: UnitDecoder, latent: tuple[int, int, int], latents: int = 3, runs: int = 3
) -> list[float]:
    """Measured time of each unit of a decoder for latents (channels, height, width), in seconds.

    The first latent of a stream, which becomes one frame instead of several, is left out. Operations would
    not do: measured times of units with equal operations differ severalfold.
    """
    units, device = vae.decoder_units, _device_of(vae)
    samples: list[list[float]] = [[] for _ in units]
    channels, height, width = latent
    with torch.inference_mode():
        for _ in range(runs):
            states: list[State] = [()] * len(units)
            for index in range(latents):
                x = vae.decoder_input(torch.randn(1, channels, 1, height, width, device=device))
                for unit, module in enumerate(units):
                    began = time.perf_counter()
                    x, states[unit] = module(x, states[unit])
                    if device.type == "cuda":
                        torch.cuda.synchronize(device)
                    if index:
                        samples[unit].append(time.perf_counter() - began)
    return [median(values) for values in samples]


def cut_units(seconds: Sequence[float], workers: int, busy: Sequence[float] | None = None) -> list[range]:
    """Contiguous units for each worker such that the busiest is least busy.

    Parameters
    ----------
    seconds : sequence of float
        Of each unit.
    workers : int
    busy : sequence of float, optional
        Seconds that each worker is busy with other work.

    Raises
    ------
    UsageError
        More workers than units, or none.
    """
    if not 1 <= workers <= len(seconds):
        raise UsageError(f"workers: expected 1 to {len(seconds)}, one a unit at most, got {workers}")
    ends = [0, *accumulate(partition([[value] * workers for value in seconds], busy))]
    return [range(a, b) for a, b in pairwise(ends)]


class DecodePipeline:
    """A stream decoder whose parts work on different latents at the same time, with the bits of a whole one.

    Latents go in with `put`, frames come out of `get` in the same order.

    Parameters
    ----------
    vae : UnitDecoder
    cuts : sequence of range
        Units of each worker; see `cut_units`.
    threads : int
        Of each worker.
    cores : sequence of int, optional
        Cores to pin workers to, in turn.
    on_arrival : callable, optional
        Called from a thread when frames have come, or can come no more.
    devices : sequence of str
        Where workers decode, in turn. What goes from one to the next takes the way of the host's memory.
    """

    def __init__(
        self,
        vae: UnitDecoder,
        cuts: Sequence[range],
        threads: int = 1,
        cores: Sequence[int] | None = None,
        on_arrival: Callable[[], None] | None = None,
        devices: Sequence[str] = ("cpu",),
    ) -> None:
        units = vae.decoder_units
        joined = [unit for cut in cuts for unit in cut]
        if joined != list(range(len(units))) or not all(cuts):
            raise UsageError(
                f"cuts: expected units 0 to {len(units) - 1} in order, none empty, got {list(cuts)}"
            )
        self._vae, self._on_arrival = vae, on_arrival
        self._given = self._taken = 0
        self._arrived: deque[Tensor] = deque()
        self._ended = False
        self._changed = threading.Condition()
        self._processes: list[subprocess.Popen[bytes]] = []
        pairs = [socket.socketpair() for _ in range(len(cuts) + 1)]
        try:
            for index, cut in enumerate(cuts):
                core = -1 if cores is None else cores[index % len(cores)]
                source, target = pairs[index][1].fileno(), pairs[index + 1][0].fileno()
                device = devices[index % len(devices)]
                self._start(units[cut.start : cut.stop], source, target, threads, core, device)
        finally:
            for left, right in pairs[1:-1]:
                left.close()
                right.close()
            pairs[0][1].close()
            pairs[-1][0].close()
        self._into = Connection(pairs[0][0].detach())
        self._out = Connection(pairs[-1][1].detach())
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _start(
        self, units: Sequence[nn.Module], source: int, target: int, threads: int, core: int, device: str
    ) -> None:
        """Start a worker, which gets its units in a file without a name."""
        memory = os.memfd_create("wavecore-decoder")
        try:
            with os.fdopen(os.dup(memory), "wb") as file:
                pickle.dump([on_host(unit) for unit in units], file)
            files = source, target, memory
            arguments = "wavecore.placement.decode", *files, threads, core, device
            process = start_module(*arguments, pass_fds=files, stdin=subprocess.DEVNULL)
            self._processes.append(process)
        finally:
            os.close(memory)

    def put(self, latent: Tensor) -> None:
        """Give the next latent, [b, c, 1, height, width]."""
        try:
            _send(self._into, self._vae.decoder_input(latent))
        except OSError:
            raise self._fault() from None
        self._given += 1

    def get(self) -> Tensor:
        """Wait for the frames [b, 3, n, height, width] in [-1, 1] of the oldest latent given.

        Raises
        ------
        WavecoreError
            A worker has ended; names it.
        """
        if not self.waiting:
            raise UsageError("get: expected a latent that was given, got none")
        with self._changed:
            self._changed.wait_for(lambda: self._arrived or self._ended)
            if not self._arrived:
                raise self._fault()
            x = self._arrived.popleft()
        self._taken += 1
        return self._vae.decoder_output(x)

    @property
    def waiting(self) -> int:
        """Latents whose frames were not taken yet."""
        return self._given - self._taken

    @property
    def ready(self) -> bool:
        """Whether `get` returns, or raises, at once."""
        return bool(self._arrived) or self._ended

    def _read(self) -> None:
        """Take frames as they come, so that the last worker never waits for whoever reads them."""
        while not self._ended:
            try:
                arrived = _receive(self._out)
            except (EOFError, OSError):
                arrived = None
            with self._changed:
                if arrived is None:
                    self._ended = True
                else:
                    self._arrived.append(arrived)
                self._changed.notify_all()
            if self._on_arrival is not None:
                self._on_arrival()

    def _fault(self) -> WavecoreError:
        for index, process in enumerate(self._processes):
            try:
                code = process.wait(1)
            except subprocess.TimeoutExpired:
                continue
            if code:
                how = f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
                return WavecoreError(f"decode worker {index}, process {process.pid}: it was {how}")
        return WavecoreError("decode: expected workers that run, got none")

    def close(self) -> None:
        """End the workers."""
        self._into.close()
        for process in self._processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._reader.join()  # the last worker's end has closed its connection
        self._out.close()

    def __enter__(self) -> DecodePipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start_decoders(
    vae: UnitDecoder,
    latent: tuple[int, int, int],
    options: DecodeOptions,
    on_arrival: Callable[[], None] | None = None,
) -> DecodePipeline:
    """Workers cut by measured times for latents of this size (channels, height, width).

    Raises
    ------
    UsageError
        More workers than the decoder has units.
    """
    units = len(vae.decoder_units)
    if options.workers > units:
        got = f"got {options.workers}"
        raise UsageError(f"decoders: expected at most {units}, one a unit of the model's decoder, {got}")
    if options.workers == 1:
        cuts = [range(len(vae.decoder_units))]
    else:
        cuts = cut_units(unit_seconds(vae, latent), options.workers, options.busy)
    devices = options.devices_for(_device_of(vae))
    return DecodePipeline(vae, cuts, options.threads, options.cores, on_arrival, devices)


def _device_of(vae: UnitDecoder) -> torch.device:
    tensors = (tensor for unit in vae.decoder_units for tensor in unit.state_dict().values())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


def _send(connection: Connection, tensor: Tensor) -> None:
    # In the order of its memory: what a convolution gives may depend on it.
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    ordered = tensor.permute(order).contiguous().cpu()
    head = pickle.dumps((tuple(ordered.shape), tensor.dtype, order))
    data = ordered.view(torch.uint8).numpy()
    connection.send_bytes(struct.pack("<I", len(head)) + head + data.tobytes())


def _receive(connection: Connection) -> Tensor:
    data = bytearray(connection.recv_bytes())
    (length,) = struct.unpack_from("<I", data)
    shape, dtype, order = pickle.loads(bytes(data[4 : 4 + length]))
    body = bytearray(data[4 + length :])  # aligned, unlike the middle of the message
    tensor = torch.frombuffer(body, dtype=dtype).reshape(shape)
    return tensor.permute([order.index(axis) for axis in range(len(order))])


def _main() -> None:
    """Pass what comes through some units of a decoder and on."""
    source, target, memory, threads, core = map(int, sys.argv[1:6])
    device = torch.device(sys.argv[6])
    torch.set_num_threads(threads)
    if core >= 0:
        os.sched_setaffinity(0, {core})
    with mmap.mmap(memory, 0, access=mmap.ACCESS_READ) as weights:
        units: list[Any] = [unit.to(device) for unit in pickle.load(io.BytesIO(weights[:]))]
    os.close(memory)
    into, out = Connection(source), Connection(target)
    states: State = ()
    with torch.inference_mode():
        while True:
            try:
                x = _receive(into)
            except (EOFError, OSError):  # at the end of a message, or within one that was broken off
                return
            x, states = run_units(units, x.to(device), states)
            try:
                _send(out, x)
            except BrokenPipeError:
                return


if __name__ == "__main__":
    _main()
