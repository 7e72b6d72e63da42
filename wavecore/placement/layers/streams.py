"""Order between threads that use one GPU; nothing on a CPU, where work is done when its call returns."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def own_stream(device: torch.device) -> AbstractContextManager[object]:
    """A stream for the calling thread alone.

    A thread that receives lets its stream wait for what was announced. On the stream of the layers that wait
    would stand before layers that the other rank in turn waits for.
    """
    return nullcontext() if device.type != "cuda" else torch.cuda.stream(torch.cuda.Stream(device))


class Mark:
    """What the calling thread has given the device to do so far, for other threads to come after."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._event = None
        if device.type == "cuda":
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(device))

    def wait(self, tensors: Iterable[Tensor] = ()) -> None:
        """Let the device do what the calling thread gives it from now on after that; the host does not wait.

        `tensors` are those of the other thread that this one goes on to use: their memory stays until then.
        """
        if self._event is None:
            return
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(self._event)
        for tensor in tensors:
            tensor.record_stream(stream)
