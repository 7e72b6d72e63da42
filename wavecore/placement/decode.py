"""The decoder of a Wan VAE cut into parts that run one behind the other, each in its own process."""

from __future__ import annotations

import mmap
import os
import pickle
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from itertools import accumulate, pairwise
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import torch
from torch import Tensor

from wavecore.control.streaming import partition
from wavecore.errors import UsageError, WavecoreError
from wavecore.models.stream import State, run_units
from wavecore.models.wan_vae import WanVAE, WanVAEConfig
from wavecore.placement.launch import module_command


def unit_seconds(vae: WanVAE, height: int, width: int, latents: int = 3, runs: int = 3) -> list[float]:
    """Measured time of each unit of the decoder for a latent of `height` x `width`, in seconds.

    The first latent of a stream, which becomes one frame instead of several, is left out. Operations would
    not do: measured times of units with equal operations differ severalfold.
    """
    samples: list[list[float]] = [[] for _ in vae.decoder.units]
    with torch.inference_mode():
        for _ in range(runs):
            states: list[State] = [()] * len(samples)
            for index in range(latents):
                x = vae.decoder_input(torch.randn(1, vae.config.z_dim, 1, height, width))
                for unit, module in enumerate(vae.decoder.units):
                    began = time.perf_counter()
                    x, states[unit] = module(x, states[unit])
                    if index:
                        samples[unit].append(time.perf_counter() - began)
    return [median(values) for values in samples]


def cut_units(seconds: Sequence[float], workers: int) -> list[range]:
    """Contiguous units for each worker such that the busiest is least busy.

    Raises
    ------
    UsageError
        More workers than units, or none.
    """
    if not 1 <= workers <= len(seconds):
        raise UsageError(f"workers: expected 1 to {len(seconds)}, one a unit at most, got {workers}")
    ends = [0, *accumulate(partition([[value] * workers for value in seconds]))]
    return [range(a, b) for a, b in pairwise(ends)]


class DecodePipeline:
    """A stream decoder whose parts work on different latents at the same time, with the bits of a whole one.

    Latents go in with `put`, frames come out of `get` in the same order.

    Parameters
    ----------
    vae : WanVAE
        On the CPU.
    cuts : sequence of range
        Units of each worker; see `cut_units`.
    threads : int
        Of each worker.
    cores : sequence of int, optional
        Cores to pin workers to, in turn.
    """

    def __init__(
        self, vae: WanVAE, cuts: Sequence[range], threads: int = 1, cores: Sequence[int] | None = None
    ) -> None:
        units = len(vae.decoder.units)
        joined = [unit for cut in cuts for unit in cut]
        if joined != list(range(units)) or not all(cuts):
            raise UsageError(f"cuts: expected units 0 to {units - 1} in order, none empty, got {list(cuts)}")
        self._waiting: deque[None] = deque()
        self._processes: list[subprocess.Popen[bytes]] = []
        pairs = [socket.socketpair() for _ in range(len(cuts) + 1)]
        weights, count = _pack(vae)
        try:
            for index, cut in enumerate(cuts):
                core = None if cores is None else cores[index % len(cores)]
                source, target = pairs[index][1], pairs[index + 1][0]
                setup = vae.config, cut, threads, core, count
                command = module_command("wavecore.placement.decode")
                command += [
                    str(source.fileno()),
                    str(target.fileno()),
                    str(weights),
                    pickle.dumps(setup).hex(),
                ]
                passed = (source.fileno(), target.fileno(), weights)
                self._processes.append(subprocess.Popen(command, pass_fds=passed, stdin=subprocess.DEVNULL))
        finally:
            os.close(weights)
            for left, right in pairs[1:-1]:
                left.close()
                right.close()
            pairs[0][1].close()
            pairs[-1][0].close()
        self._into = Connection(pairs[0][0].detach())
        self._out = Connection(pairs[-1][1].detach())
        self._dtype = vae.latents_mean.dtype
        self._vae = vae

    def put(self, latent: Tensor) -> None:
        """Give the next latent, [b, z_dim, 1, height, width]."""
        try:
            _send(self._into, self._vae.decoder_input(latent))
        except OSError:
            raise self._fault() from None
        self._waiting.append(None)

    def get(self) -> Tensor:
        """Wait for the frames [b, 3, n, height, width] in [-1, 1] of the oldest latent given.

        Raises
        ------
        WavecoreError
            A worker has ended; names it.
        """
        if not self._waiting:
            raise UsageError("get: expected a latent that was given, got none")
        try:
            frames = _receive(self._out)
        except (EOFError, OSError):
            raise self._fault() from None
        self._waiting.popleft()
        return frames.clamp(-1, 1).permute(0, 4, 1, 2, 3)

    @property
    def waiting(self) -> int:
        """Latents whose frames were not taken yet."""
        return len(self._waiting)

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
        self._out.close()
        for process in self._processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def __enter__(self) -> DecodePipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _send(connection: Connection, tensor: Tensor) -> None:
    # In the order of its memory: what a convolution gives may depend on it.
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    ordered = tensor.permute(order).contiguous()
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


def _pack(vae: WanVAE) -> tuple[int, int]:
    """Weights of the decoder in a file without a name, and its length."""
    data = pickle.dumps(dict(vae.decoder.state_dict()))
    file = os.memfd_create("wavecore-decoder")
    with os.fdopen(os.dup(file), "wb") as writer:
        writer.write(data)
    return file, len(data)


def _main() -> None:
    """Pass what comes through some units of a decoder and on."""
    source, target, weights = (int(text) for text in sys.argv[1:4])
    config, cut, threads, core, count = pickle.loads(bytes.fromhex(sys.argv[4]))
    torch.set_num_threads(threads)
    if core is not None:
        os.sched_setaffinity(0, {core})
    with mmap.mmap(weights, count, access=mmap.ACCESS_READ) as memory:
        units = _units(config, cut, pickle.loads(memory[:]))
    into, out = Connection(source), Connection(target)
    states: State = ()
    with torch.inference_mode():
        while True:
            try:
                x = _receive(into)
            except EOFError:
                return
            x, states = run_units(units, x, states)
            try:
                _send(out, x)
            except BrokenPipeError:
                return


def _units(config: WanVAEConfig, cut: range, state: dict[str, Any]) -> list[torch.nn.Module]:
    with torch.device("meta"):
        decoder = WanVAE(config).decoder
    decoder.load_state_dict(state, assign=True)
    return decoder.eval().requires_grad_(False).units[cut.start : cut.stop]


if __name__ == "__main__":
    _main()
