"""Streams over replicas, next to the same streams on one device."""

from __future__ import annotations

import os
import time

import psutil
from support.models import HEIGHT, WIDTH, levels_of, text_features
from torch import Tensor

from wavecore.placement.replicas import Replicas
from wavecore.rounds import Rules

LATENT = (4, HEIGHT, WIDTH)


def drive(
    replicas: Replicas, dit, rules: Rules, chunks: int, seed: int = 0, prompts: int = 1
) -> list[Tensor]:
    """Final latent of each chunk; chunk c follows prompt version c * prompts // chunks."""
    stream = replicas.stream(rules, levels_of(rules.steps), seed, chunks)
    texts = [dit.encode_text(text_features(prompt)) for prompt in range(prompts)]
    final = []
    while not stream.over:
        while stream.wants_chunk:
            version = stream.entered * prompts // chunks
            stream.enter(version, texts[version])
        taken = stream.take()
        if taken is not None:
            assert taken[0] == len(final)
            final.append(taken[1])
    return final


def sent_bytes(replicas: Replicas, number: int) -> dict[int, int]:
    """Bytes of keys and values that each stage sent in a stream, once all are through with it."""
    deadline = time.monotonic() + 20
    while len(replicas.bytes_sent.get(number, {})) < replicas.map.ranks:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return replicas.bytes_sent[number]


def family() -> set[int]:
    """This process and all that it has started, by their numbers."""
    return {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}


def segments(pids: set[int]) -> set[str]:
    """Names of shared memory that these processes have made, whose numbers are in them."""
    return {name for name in os.listdir("/dev/shm") if {str(pid) for pid in pids} & set(name.split("_"))}
