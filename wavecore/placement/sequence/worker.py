"""The process of one sequence-parallel rank."""

from __future__ import annotations

import os
from datetime import timedelta
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist

from wavecore.errors import WavecoreError
from wavecore.models.dit import CausalWanDiT, TextContext
from wavecore.placement import protocol
from wavecore.placement.sequence.group import TokenGroup
from wavecore.placement.sequence.messages import Drop, Estimates, Join, Run
from wavecore.placement.sequence.rounds import SequenceRank


def serve_sequence(connection: Connection, dit: CausalWanDiT, join: Join) -> None:
    """Take part in every round until the connection ends."""
    torch.set_num_threads(join.threads)
    if join.core is not None:
        os.sched_setaffinity(0, {join.core})
    timeout = timedelta(seconds=join.timeout)
    first = join.rank == 0
    store = dist.TCPStore("127.0.0.1", join.port, is_master=first, timeout=timeout, wait_for_workers=False)
    if first:
        protocol.send(connection, store.port)
    try:
        dist.init_process_group("gloo", store=store, rank=join.rank, world_size=join.ranks, timeout=timeout)
        rank = SequenceRank(dit, join.mode, TokenGroup(), join.pages, join.height, join.width)
        _serve(connection, rank, first)
    except RuntimeError as error:  # a neighbour is gone: its own end says why
        raise WavecoreError(f"rank {join.rank} of the sequence: {str(error).splitlines()[0]}") from None


def _serve(connection: Connection, rank: SequenceRank, reports: bool) -> None:
    texts: dict[int, TextContext] = {}
    while True:
        try:
            message = protocol.receive(connection)
        except (EOFError, OSError):
            return
        if isinstance(message, Drop):
            rank.drop(message.keys)
            continue
        assert isinstance(message, Run)
        texts |= {number: TextContext(*pair) for number, pair in message.new_text.items()}
        text = {chunk: texts[number] for chunk, number in message.text.items()}
        texts = {number: texts[number] for number in set(message.text.values())}
        estimates = rank.run(message.round, message.latents, message.levels, text)
        if reports:
            protocol.send(connection, Estimates(estimates))
