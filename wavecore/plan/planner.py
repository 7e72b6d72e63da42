"""The best use of a number of devices for one stream: who computes what, and what comes of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from wavecore.control.streaming import partition
from wavecore.errors import UsageError
from wavecore.plan.costs import GIB, Device, LinearCost, Model
from wavecore.plan.problem import Assignment, Plan, Problem
from wavecore.plan.simulate import simulate
from wavecore.rounds import Sequential, StreamBatch, Wavefront


def plans(
    model: Model,
    device: Device,
    count: int,
    steps: int = 4,
    size: tuple[int, int] = (832, 480),
    rules: Wavefront | None = None,
    units: Sequence[float] | None = None,
    sequential: Sequential | None = None,
    stream_batch: StreamBatch | None = None,
) -> list[Plan]:
    """Every kind of placement on `count` devices, best first.

    Parameters
    ----------
    model : Model
    device : Device
    count : int
        Devices.
    steps : int
        Denoising stages.
    size : (width, height)
        Pixels.
    rules : Wavefront, optional
        Context; that of the published model when not given.
    units : sequence of float, optional
        Measured times of the decoder's units. While they are not known, cuts are taken to fall anywhere.
    sequential, stream_batch : Rules, optional
        Context of plans with these rounds; that of the published models when not given.

    Raises
    ------
    UsageError
        No device, or a size that does not fit the model.
    """
    if count < 1:
        raise UsageError(f"devices: expected at least 1, got {count}")
    rules = rules or Wavefront(steps=steps)
    problem = Problem(model, device, rules, size, units, sequential, stream_batch)
    found = [_sequential(problem), *_split(problem, count), *_layers(problem, count), *_waves(problem, count)]
    fitting = [plan for plan in found if _most_bytes(plan) <= device.capacity]
    if not fitting:
        raise UsageError(
            f"devices: expected more than {count} of {device.capacity / GIB:.0f} GiB for {model.name}, "
            f"which needs {min(map(_most_bytes, found)) / GIB:.0f} GiB on one"
        )
    return sorted(fitting, key=lambda plan: (plan.period, plan.devices))


def _most_bytes(plan: Plan) -> float:
    return max(assignment.bytes for assignment in plan.assignments)


def best_plan(*args: object, **options: object) -> Plan:
    """The first of `plans`."""
    return plans(*args, **options)[0]  # type: ignore[arg-type]


# -- one stream at a time, on one device or several --------------------------------------


def _self_forcing(problem: Problem) -> float:
    """Seconds of a chunk, one pass after the other: what Self-Forcing reads."""
    return (problem.rules.steps + 1) * problem.cost.seconds(problem.serial_reads)


def _history_bytes(problem: Problem) -> float:
    return 8 * problem.model.page_bytes(problem.tokens)


def _sequential(problem: Problem) -> Plan:
    compute = _self_forcing(problem)
    period = compute + problem.decode
    everything = Assignment(
        tuple(range(problem.rules.steps + 1)),
        1.0,
        1,
        period,
        problem.weights + _history_bytes(problem) + problem.model.decoder_bytes,
    )
    first = problem.rules.steps * problem.cost.seconds(1)
    return _simple(problem, "sequential", "sequential", [everything], compute, first)


def _split(problem: Problem, count: int) -> Iterator[Plan]:
    """Sequence parallelism: every pass split by heads; what is left of the devices decodes."""
    steps = problem.rules.steps
    for degree in range(2, count + 1):
        if problem.model.dit.heads % degree:
            continue
        compute = _self_forcing(problem) / degree + (steps + 1) * problem.split_seconds(degree)
        decode = _decoders(problem, count - degree)
        shared = Assignment(
            tuple(range(steps + 1)),
            0.0 if decode else 1.0,
            degree,
            compute + (0.0 if decode else problem.decode),
            problem.weights + _history_bytes(problem) / degree,
        )
        first = steps * (problem.cost.seconds(1) / degree + problem.split_seconds(degree))
        name = f"sequence {degree}+{len(decode)}"
        yield _simple(problem, name, "sequential", [shared, *decode], compute, first)


def _layers(problem: Problem, count: int) -> Iterator[Plan]:
    """A ring of layer ranges over which N noise levels travel as a batch (StreamDiffusionV2)."""
    steps, layers, model = problem.rules.steps, problem.model.dit.layers, problem.model
    hidden = problem.tokens * model.dit.dim * model.element_bytes
    for ranks in range(2, min(count, layers) + 1):
        # A chunk at each noise level; the longest layer range sets the pace.
        compute = steps * problem.cost.seconds(problem.ring_reads) * -(-layers // ranks) / layers
        compute += steps * hidden / problem.device.link
        decode = _decoders(problem, count - ranks)
        memory = (problem.weights + steps * _history_bytes(problem)) / ranks
        rank = Assignment(tuple(range(steps)), 0.0, 1, compute, memory)
        last = replace(rank, decode=1.0, busy=compute + problem.decode) if not decode else rank
        first = steps * problem.cost.seconds(1)
        name = f"ring {ranks}+{len(decode)}"
        yield _simple(problem, name, "stream_batch", [*[rank] * (ranks - 1), last, *decode], compute, first)


def _decoders(problem: Problem, count: int) -> list[Assignment]:
    """Devices that do nothing but decode."""
    if not count:
        return []
    shares = [sum(problem.units[a:b]) for a, b in _even_cuts(problem, count)]
    return [Assignment((), share, 1, problem.decode * share, problem.model.decoder_bytes) for share in shares]


def _simple(
    problem: Problem, name: str, rounds: str, assignments: Sequence[Assignment], compute: float, first: float
) -> Plan:
    period = max(compute, *(assignment.busy for assignment in assignments))
    first += problem.decode / problem.model.chunk_frames
    return Plan(name, rounds, tuple(assignments), compute, period, problem.frames / period, first, {})


# -- wave parallelism and its mixtures ---------------------------------------------------


Groups = Sequence[tuple[tuple[int, ...], int]]  # stages that share a device, and how many devices share them
Cuts = Sequence[
    tuple[int | None, float]
]  # the decoder's parts in order: their group, or None, and their share


def _waves(problem: Problem, count: int) -> Iterator[Plan]:
    """A device a stage, as published; then stages split or together, and decoding where there is time."""
    steps = problem.rules.steps
    apart = [((stage,), 1) for stage in range(steps + 1)]
    if count >= steps + 2:
        shares = [sum(problem.units[a:b]) for a, b in _even_cuts(problem, count - steps - 1)]
        name = f"wave {steps}+1+{count - steps - 1}"
        yield _finish(problem, name, apart, [(None, share) for share in shares])
    together = ([(group, 1) for group in groups] for groups in _groupings(list(range(steps + 1))))
    candidates = [*together, *(_with_degrees(problem, apart, count) if count > steps else ())]
    mixed = [m for groups in candidates if (m := _mixed(problem, groups, count)) is not None]
    if mixed:
        _, groups, cuts = min(mixed, key=lambda found: found[0])
        yield _finish(problem, _mixed_name(problem, groups, cuts, count), groups, cuts)


def _with_degrees(problem: Problem, apart: Groups, count: int) -> Iterator[Groups]:
    """Give ever more devices to the stage that takes longest."""
    chosen = list(apart)
    while True:
        yield list(chosen)
        degrees = [degree for degree in (2, 3, 4, 6, 8) if problem.model.dit.heads % degree == 0]
        slowest = max(range(len(chosen)), key=lambda i: _group_seconds(problem, *chosen[i]))
        group, degree = chosen[slowest]
        larger = [other for other in degrees if other > degree]
        if not larger:
            return
        chosen[slowest] = (group, larger[0])
        if sum(degree for _, degree in chosen) > count:
            return


def _group_seconds(problem: Problem, group: tuple[int, ...], degree: int) -> float:
    return sum(problem.stage_seconds(stage, degree) for stage in group)


def _groupings(items: list[int]) -> Iterator[list[tuple[int, ...]]]:
    """Every way to put the stages on devices."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for groups in _groupings(rest):
        yield [(first,), *groups]
        for i, group in enumerate(groups):
            yield [*groups[:i], (first, *group), *groups[i + 1 :]]


def _mixed(problem: Problem, groups: Groups, count: int) -> tuple[float, Groups, Cuts] | None:
    """Stages as given; the decoder on the devices left, and in what time the others have to spare."""
    idle = count - sum(degree for _, degree in groups)
    if idle < 0:
        return None
    loads = [_group_seconds(problem, *group) for group in groups]
    # Free devices first, then those of the stages with the most time to spare. A split stage takes no part.
    hosts: list[int | None] = [None] * min(idle, problem.most_decoders)
    hosts += [i for i in sorted(range(len(groups)), key=lambda i: loads[i]) if groups[i][1] == 1]
    low, high = max(loads), max(loads) + 1.001 * problem.decode  # all of it on one device always fits
    best = _fill(problem, hosts, loads, high)
    if best is None:
        return None
    for _ in range(30):
        middle = (low + high) / 2
        attempt = _fill(problem, hosts, loads, middle)
        if attempt is None:
            low = middle
        else:
            high, best = middle, attempt
    return high, groups, best


def _mixed_name(problem: Problem, groups: Groups, cuts: Cuts, count: int) -> str:
    """Such as "wave 4+1+3 shared 1" (a part of the decoder beside a stage) or "wave 0|12|3s+1" (together)."""
    steps = problem.rules.steps
    idle = sum(host is None for host, _ in cuts)
    name = f"wave {steps}+1+{idle}"
    if len(groups) <= steps:
        names = ["".join("s" if stage == steps else str(stage) for stage in group) for group, _ in groups]
        name = f"wave {'|'.join(sorted(names))}+{idle}"
    split = sorted((degree for _, degree in groups if degree > 1), reverse=True)
    shared = sum(host is not None for host, _ in cuts)
    return (
        name
        + (f" split {','.join(map(str, split))}" if split else "")
        + (f" shared {shared}" if shared else "")
    )


def _fill(
    problem: Problem, hosts: Sequence[int | None], loads: Sequence[float], period: float
) -> Cuts | None:
    """Cut the decoder so that nobody needs longer than `period`; None when that cannot be."""
    cuts: list[tuple[int | None, float]] = []
    unit, last = 0, len(problem.units)
    for host in hosts:
        room = period - (0.0 if host is None else loads[host])
        share = 0.0
        while unit < last and room >= problem.units[unit] * problem.decode:
            room -= problem.units[unit] * problem.decode
            share += problem.units[unit]
            unit += 1
        if share:
            cuts.append((host, share))
        if unit == last:
            return cuts
    return None


def _even_cuts(problem: Problem, parts: int) -> list[tuple[int, int]]:
    """Contiguous parts of the decoder with the least maximum."""
    parts = min(parts, problem.most_decoders)
    ends = [0, *accumulate(partition([[unit] * parts for unit in problem.units]))]
    return list(pairwise(ends))


def _finish(
    problem: Problem,
    name: str,
    groups: Groups,
    cuts: Cuts,
) -> Plan:
    """Run the rounds in virtual time and put the numbers together."""
    device_of = {stage: i for i, (group, _) in enumerate(groups) for stage in group}
    degree_of = {stage: degree for group, degree in groups for stage in group}

    def cost(stage: int, chunks: int) -> object:
        whole: LinearCost = problem.cost.scaled(1 / degree_of[stage])
        extra = problem.split_seconds(degree_of[stage])
        return replace(whole, fixed=whole.fixed + extra)(stage, chunks)

    result = simulate(problem.rules, cost, problem.exchange, share=device_of.__getitem__)  # type: ignore[arg-type]
    assignments = []
    for i, (group, degree) in enumerate(groups):
        share = sum(share for host, share in cuts if host == i)
        pages = sum(problem.stage_bytes(stage) for stage in group) / degree
        assignments.append(
            Assignment(
                group,
                share,
                degree,
                _group_seconds(problem, group, degree) + share * problem.decode,
                problem.weights + pages + (problem.model.decoder_bytes if share else 0),
            )
        )
    assignments += [
        Assignment((), share, 1, share * problem.decode, problem.model.decoder_bytes)
        for host, share in cuts
        if host is None
    ]
    period = max(result.tick, *(assignment.busy for assignment in assignments))
    # The first latent goes through every part of the decoder.
    first = result.first + problem.decode / problem.model.chunk_frames
    return Plan(
        name,
        "wavefront",
        tuple(assignments),
        result.tick,
        period,
        problem.frames / period,
        first,
        result.exposed,
        result,
    )
