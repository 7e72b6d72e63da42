"""Streams around a ring, next to the same streams in one process."""

from __future__ import annotations

from support.models import HEIGHT, WIDTH, levels_of, text_features

from wavecore.cache import pages_needed
from wavecore.placement import Handoff, LocalPlacement, local_cache
from wavecore.rounds import Rounds, StreamBatch


def stream(placement, rules, chunks, steps, prompts=1, each=lambda index: None, seed=0, rounds=None):
    """Final latents of a stream, and the micro-step after which the first one was there."""
    handoff = Handoff(levels_of(steps), seed, (4, HEIGHT, WIDTH))
    texts = [placement.encode_text(text_features(prompt)) for prompt in range(prompts)]
    flight, final, first = [], {}, None
    rounds = list(Rounds(rules, chunks)) if rounds is None else rounds
    for index in range(len(rounds) + placement.depth - 1):
        if index < len(rounds):
            round = rounds[index]
            text = {slot.chunk: texts[slot.chunk % prompts] for slot in round.slots}
            each(index)
            placement.submit(round, handoff.latents(round), handoff.levels_of(round), text)
            flight.append(round)
        if len(flight) == placement.depth or index >= len(rounds):
            round = flight.pop(0)
            complete = handoff.advance(round, placement.collect())
            if complete is not None:
                first = index + 1 if first is None else first
                final[round.completes] = complete
    placement.close()
    return [final[chunk] for chunk in range(chunks)], first


def rules_for(ranks, steps, **more):
    return StreamBatch(steps=steps, lag=ranks, **more)


def alone(dit, rules, chunks, steps, **more):
    cache = local_cache(dit, pages_needed(rules), HEIGHT, WIDTH)
    return stream(LocalPlacement(dit, cache), rules, chunks, steps, **more)[0]


def around(ring, rules, chunks, steps, **more):
    return stream(ring.open(rules, pages_needed(rules), HEIGHT, WIDTH), rules, chunks, steps, **more)
