"""Speculative sessions in virtual time with fixed costs, played to their end."""

from __future__ import annotations

from wavecore.control.speculative import UnitCosts
from wavecore.interactive.speculation import Speculation

COSTS = UnitCosts(denoise=0.3, decode=0.01, store=0.05)
CAUSAL = ("retained-prefix", "clean-prefill")
JOINT = ("boundary-image", "latent-input", "keyframes")


def start(
    pipe,
    adapter="retained-prefix",
    rounds="sequential",
    frames=61,
    trace=None,
    costs=COSTS,
    placement="local",
    devices=None,
    **more,
):
    speculation = Speculation(
        adapter=adapter, latents=6, overlap=2, pacing="virtual", costs=costs, **{"margin": 0.01, **more}
    )
    return pipe.session(
        "a red ball",
        steps=2,
        seed=3,
        num_frames=frames,
        rounds=rounds,
        placement=placement,
        devices=devices,
        control="speculative",
        speculation=speculation,
        trace=trace,
    )


def play(session, updates=()):
    """All groups; `updates` maps a position to the prompt asked for when it has been shown."""
    updates, groups, tickets = dict(updates), [], []
    with session:
        for group in session:
            groups.append(group)
            if group.index in updates:
                tickets.append(session.update(updates.pop(group.index)))
    return groups, [ticket.result(0) for ticket in tickets]


def break_call(session, number, after=1):
    """Let call `number` of the session fail after `after` reports."""
    generator = session._worker.branches.generator
    call, calls = generator.call, []

    def failing(*arguments):
        calls.append(arguments)
        made = call(*arguments)
        try:
            for index, step in enumerate(made):
                if len(calls) - 1 == number and index == after:
                    raise RuntimeError("out of memory")
                yield step
        finally:
            made.close()

    generator.call = failing
