"""The best use of a number of devices for one stream: who computes what, and what comes of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from wavecore.control.streaming import partition
from wavecore.errors import UsageError
from wavecore.plan.costs import GIB, Device, LinearCost, Model
from wavecore.plan.problem import Assignment, Plan, Problem
from wavecore.plan.simulate import simulate
from wavecore.rounds import Sequential, StageMap, StreamBatch, Wavefront


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


# The decoder's parts in order: the device of stages beside which it is, or None, and its share.
Cuts = Sequence[tuple[int | None, float]]
# Stages move from device to device only where that saves as much: each holds the pages of all of them.
_TURNS_SAVE = 0.02


@dataclass(frozen=True)
class _Seating:
    """Which devices compute which stages: `degrees` of them split those of each rank."""

    map: StageMap
    degrees: tuple[int, ...]

    @property
    def devices(self) -> int:
        return sum(self.degrees)

    def seconds(self, problem: Problem) -> list[float]:
        """Of each rank in a round; the mean where they take turns."""
        map, degrees = self.map, self.degrees
        if map.in_turn:
            every = sum(problem.stage_seconds(stage) for stage in range(map.stages))
            return [every / map.ranks] * map.ranks
        return [
            sum(problem.stage_seconds(stage, degree) for stage in map.stages_of(rank))
            for rank, degree in enumerate(degrees)
        ]


def _waves(problem: Problem, count: int) -> Iterator[Plan]:
    """A device a stage, as published; then stages split, together or in turn, decoding in spare time."""
    steps = problem.rules.steps
    stages = steps + 1
    apart = _Seating(StageMap(stages, stages), (1,) * stages)
    if count >= steps + 2:
        shares = [sum(problem.units[a:b]) for a, b in _even_cuts(problem, count - steps - 1)]
        name = f"wave {steps}+1+{count - steps - 1}"
        yield _finish(problem, name, apart, [(None, share) for share in shares])
    candidates = [
        _Seating(StageMap.of_groups(groups, stages), (1,) * len(groups))
        for groups in _groupings(list(range(stages)))
    ]
    candidates += _with_degrees(problem, apart, count) if count > steps else ()
    mixed = [m for seating in candidates if (m := _mixed(problem, seating, count)) is not None]
    turns = [StageMap(stages, ranks) for ranks in range(2, min(count, steps) + 1)]
    for map in turns:
        found = _mixed(problem, _Seating(map, (1,) * map.ranks), count) if map.in_turn else None
        if found is not None and found[0] < (1 - _TURNS_SAVE) * min(period for period, _, _ in mixed):
            mixed.append(found)
    if mixed:
        _, seating, cuts = min(mixed, key=lambda found: found[0])
        yield _finish(problem, _mixed_name(seating, cuts), seating, cuts)


def _with_degrees(problem: Problem, apart: _Seating, count: int) -> Iterator[_Seating]:
    """Give ever more devices to the stage that takes longest."""
    chosen = list(apart.degrees)
    while sum(chosen) <= count:
        seating = _Seating(apart.map, tuple(chosen))
        yield seating
        degrees = [degree for degree in (2, 3, 4, 6, 8) if problem.model.dit.heads % degree == 0]
        loads = seating.seconds(problem)
        slowest = max(range(len(chosen)), key=loads.__getitem__)
        larger = [other for other in degrees if other > chosen[slowest]]
        if not larger:
            return
        chosen[slowest] = larger[0]


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


def _mixed(problem: Problem, seating: _Seating, count: int) -> tuple[float, _Seating, Cuts] | None:
    """Stages as given; the decoder on the devices left, and in what time the others have to spare."""
    idle = count - seating.devices
    if idle < 0:
        return None
    loads = seating.seconds(problem)
    # Free devices first, then those of the stages with the most time to spare. A split stage takes no part.
    hosts: list[int | None] = [None] * min(idle, problem.most_decoders)
    hosts += [i for i in sorted(range(len(loads)), key=loads.__getitem__) if seating.degrees[i] == 1]
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
    return high, seating, best


def _mixed_name(seating: _Seating, cuts: Cuts) -> str:
    """Such as "wave 4+1+3 shared 1" (a part of the decoder beside a stage) or "wave 0|12|3s+1" (together)."""
    map, steps = seating.map, seating.map.stages - 1
    idle = sum(host is None for host, _ in cuts)
    name = f"wave {steps}+1+{idle}"
    if map.in_turn:
        name = f"wave in turn {map.ranks}+{idle}"
    elif map.ranks <= steps:
        groups = [map.stages_of(rank) for rank in range(map.ranks)]
        names = ["".join("s" if stage == steps else str(stage) for stage in group) for group in groups]
        name = f"wave {'|'.join(sorted(names))}+{idle}"
    split = sorted((degree for degree in seating.degrees if degree > 1), reverse=True)
    shared = sum(host is not None for host, _ in cuts)
    return (
        name
        + (f" split {','.join(str(degree) for degree in split)}" if split else "")
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


def _finish(problem: Problem, name: str, seating: _Seating, cuts: Cuts) -> Plan:
    """Run the rounds in virtual time and put the numbers together."""
    map, degrees = seating.map, seating.degrees

    def cost(stage: int, chunks: int) -> object:
        degree = 1 if map.in_turn else degrees[map.rank(stage, 0)]
        whole: LinearCost = problem.cost.scaled(1 / degree)
        return replace(whole, fixed=whole.fixed + problem.split_seconds(degree))(stage, chunks)

    result = simulate(problem.rules, cost, problem.exchange, share=map.rank)  # type: ignore[arg-type]
    assignments = []
    held, loads = problem.page_bytes(map), seating.seconds(problem)
    for rank, degree in enumerate(degrees):
        share = sum(share for host, share in cuts if host == rank)
        assignments.append(
            Assignment(
                map.stages_of(rank),
                share,
                degree,
                loads[rank] + share * problem.decode,
                problem.weights + held[rank] / degree + (problem.model.decoder_bytes if share else 0),
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
        map,
    )
