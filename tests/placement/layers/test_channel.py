"""A buffer is given out again only when the send that reads it is complete."""

from __future__ import annotations

import torch
import torch.distributed as dist

from wavecore.placement.layers.channel import BufferPool, Channel
from wavecore.placement.layers.messages import Stop


class Send:
    """A send that is complete when somebody waits for it."""

    def __init__(self, tensors):
        self.tensors, self.complete = tensors, False
        self.sent = [tensor.clone() for tensor in tensors]

    def wait(self):
        assert all(torch.equal(a, b) for a, b in zip(self.tensors, self.sent, strict=True)), "overwritten"
        self.complete = True


class Group:
    """Takes sends and completes none of them by itself."""

    def __init__(self):
        self.sends = []

    def send(self, tensors, to, tag):
        self.sends.append(Send(tensors))
        return self.sends[-1]


def channel(outstanding):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    made = Channel(store, 0, 1, outstanding=outstanding)
    made._headers = Group()
    return made


def test_a_buffer_in_a_send_under_way_is_not_given_out_again():
    sender = channel(outstanding=2)
    for index in range(8):
        sender.send(1, Stop(), [torch.full((100,), float(index))])
        sends = sender._headers.sends
        assert sum(not send.complete for send in sends) <= 2 * 2
        bodies = [send.tensors[0] for send in sends if not send.complete and len(send.tensors[0]) < 1000]
        assert len({body.data_ptr() for body in bodies}) == len(bodies), "each has its own memory"
    assert len({send.tensors[0].data_ptr() for send in sends[1::2]}) == 3, "and memory is used again after it"
    sender.flush()
    assert all(send.complete for send in sends)
    assert sender.messages == 16, "a header and a body each"


def test_a_pool_keeps_few_buffers_of_a_size():
    pool = BufferPool(torch.device("cpu"))
    buffers = [pool.take(64) for _ in range(10)]
    for buffer in buffers:
        pool.give_back(buffer)
    assert len(pool._free[64]) == 4
