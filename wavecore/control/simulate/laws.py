"""The laws of the specification, each measured by simulation against its theory.

The update-rate law is about the controller alone (calls take no time, refills start when nothing is left),
the others use the full scheduler at constant cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from wavecore.control.simulate.arrivals import GeometricArrivals, IsolatedArrivals, PoissonArrivals
from wavecore.control.simulate.run import Result, Scenario, simulate
from wavecore.control.speculative import Keyframes, LatentInput, RetainedPrefix, UnitCosts

LATENTS = (4, 8, 16, 21)
PROBABILITIES = (0.0, 0.01, 0.1, 0.5, 1.0)


@dataclass(frozen=True)
class Law:
    """One comparison.

    Attributes
    ----------
    name : str
    setting : str
    theory, measured : float
    tolerance : float
        Allowed relative difference; absolute where theory is 0.
    updates : int
        Simulated updates, or positions shown where there were none.
    """

    name: str
    setting: str
    theory: float
    measured: float
    tolerance: float
    updates: int

    @property
    def error(self) -> float:
        """Relative difference, absolute where theory is 0."""
        difference = abs(self.measured - self.theory)
        return difference / abs(self.theory) if self.theory else difference

    @property
    def holds(self) -> bool:
        """Whether the difference is allowed."""
        return self.error <= self.tolerance

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self) | {"error": self.error, "holds": self.holds}


def constant(latents: int, period: float, generation: float) -> Scenario:
    """K latents that play T seconds and take C seconds, all groups ready together."""
    return Scenario(
        adapter=RetainedPrefix(latents),
        costs=UnitCosts(denoise=generation),
        group_seconds=Fraction(period) / latents,
    )


def mean_alignment(period: float, generation: float, group: float) -> float:
    """E[Q] of isolated uniform arrivals, one refill of length C in every period T.

    A refill launched at 0 is due at C, where a group boundary lies. An update at x >= C starts at once and
    waits (-x) mod δ; one at x < C starts at C and waits (-C) mod δ. Only the phase of arrival + R + C counts.
    """
    busy = generation * (-generation % group)

    def integral(x: float) -> float:  # of (-s) mod δ for s from 0 to x
        whole, rest = divmod(x, group)
        return whole * group**2 / 2 + rest * (group - rest / 2)

    return (busy + integral(period) - integral(generation)) / period


def fixed_chunk(count: int, seed: int) -> Iterator[Law]:
    """Mean latency C + T/2, and its boundary T ceil((t + C) / T) for every single update."""
    for period, generation in ((5.0, 1.6), (3.0, 0.5), (2.0, 2.0)):
        scenario = constant(8, period, generation).chunked()
        result = simulate(scenario, IsolatedArrivals(count, period, seed))
        setting = f"T = {period:g}, C = {generation:g}"
        theory = generation + period / 2
        yield Law("fixed chunk: C + T/2", setting, theory, _mean(result, "response"), 0.02, count)
        begun = (result.totals.began or 0) / 1e9
        worst = 0.0
        for record in result.records:
            arrival, shown = record.arrival / 1e9 - begun, (record.display or 0) / 1e9 - begun
            boundary = period * math.ceil(round((arrival + generation) / period, 9))
            worst = max(worst, abs(shown - boundary))
        yield Law("fixed chunk: boundary T ceil((t + C)/T)", setting, 0.0, worst, 1e-6, count)


def immediate(count: int, seed: int) -> Iterator[Law]:
    """Mean latency C + δ/2 of updates that find no job active, at whole groups of phases."""
    for latents, period, generation in ((20, 5.0, 1.6), (12, 3.0, 0.7), (21, 5.25, 1.1)):
        group = period / latents
        free = math.floor((period - generation) / group) * group
        arrivals = IsolatedArrivals(count, period, seed, first=generation, length=free)
        result = simulate(constant(latents, period, generation), arrivals)
        setting = f"K = {latents}, T = {period:g}, C = {generation:g}"
        theory = generation + group / 2
        yield Law("immediate start: C + δ/2", setting, theory, _mean(result, "response"), 0.02, count)


def indivisible(count: int, seed: int) -> Iterator[Law]:
    """E[R] = C²/(2T) and E[L] = C + C²/(2T) + E[Q]; for T = 5 and C = 1.6 idle and busy apart."""
    for latents, period, generation in ((20, 5.0, 1.6), (12, 3.0, 0.5), (8, 2.0, 1.9), (21, 5.25, 3.0)):
        result = simulate(constant(latents, period, generation), IsolatedArrivals(count, period, seed))
        setting = f"K = {latents}, T = {period:g}, C = {generation:g}"
        residual = generation**2 / (2 * period)
        alignment = mean_alignment(period, generation, period / latents)
        wait, response = result.seconds("wait"), _mean(result, "response")
        yield Law("residual E[R] = C²/(2T)", setting, residual, float(wait.mean()), 0.01, count)
        theory = generation + residual + alignment
        yield Law("E[L] = C + C²/(2T) + E[Q]", setting, theory, response, 0.02, count)
        if (period, generation) == (5.0, 1.6):
            total = wait + result.seconds("generation")
            busy = wait > 0
            yield Law("idle R + C", setting, 1.6, float(total[~busy].mean()), 0.01, int((~busy).sum()))
            yield Law("busy R + C", setting, 2.4, float(total[busy].mean()), 0.01, int(busy.sum()))
            yield Law("overall R + C", setting, 1.856, float(total.mean()), 0.01, count)


def saturated(count: int, seed: int) -> Iterator[Law]:
    """C = T: E[R] = T/2, Q = 0, mean 3T/2, whatever the number of latents."""
    for latents in (4, 20):
        result = simulate(constant(latents, 3.0, 3.0), IsolatedArrivals(count, 3.0, seed))
        setting = f"K = {latents}, T = C = 3"
        yield Law("C = T: E[R] = T/2", setting, 1.5, _mean(result, "wait"), 0.01, count)
        yield Law("C = T: Q = 0", setting, 0.0, float(result.seconds("alignment").max()), 1e-6, count)
        yield Law("C = T: 3T/2", setting, 4.5, _mean(result, "response"), 0.02, count)


def geometric_amplification(latents: int, probability: float) -> float:
    """A = K p / (1 - (1 - p)^K), from E[M] = (1 - (1 - p)^K) / p groups played of each call."""
    if probability == 0:
        return 1.0
    return latents * probability / (1 - (1 - probability) ** latents)


def poisson_amplification(latents: int, rate: float, group: float) -> float:
    """A at Poisson rate λ: the geometric law with p = 1 - exp(-λδ)."""
    return geometric_amplification(latents, -math.expm1(-rate * group))


def amplification(count: int, seed: int) -> Iterator[Law]:
    """A under geometric updates."""
    for latents in LATENTS:
        for probability in PROBABILITIES:
            scenario = constant(latents, latents / 4, 0.0)
            result = simulate(scenario, GeometricArrivals(count, probability, seed))
            yield Law(
                "A = K p / (1 - (1 - p)^K)",
                f"K = {latents}, p = {probability:g}",
                geometric_amplification(latents, probability),
                result.totals.amplification,
                0.01,
                count,
            )


def small_rate(count: int, seed: int) -> Iterator[Law]:
    """A ≈ 1 + λ(K - 1)δ/2 for λT << 1."""
    latents, group, rate = 20, 0.25, 0.004
    scenario = constant(latents, latents * group, 0.0)
    count = max(count // 8, 100)  # they are far apart
    result = simulate(scenario, PoissonArrivals(count, rate, seed))
    theory = 1 + rate * (latents - 1) * group / 2
    setting = f"K = {latents}, δ = {group:g}, λ = {rate:g}"
    yield Law("A ≈ 1 + λ(K - 1)δ/2", setting, theory, result.totals.amplification, 0.01, count)


def trimmed(count: int, seed: int) -> Iterator[Law]:
    """A of a trimmed adapter is relative to its own full-use yield M."""
    adapter = Keyframes(12, group=4)
    scenario = Scenario(adapter=adapter, costs=UnitCosts(denoise=0.0), group_seconds=Fraction(1, 4))
    result = simulate(scenario, GeometricArrivals(count, 0.0, seed))
    setting = "keyframes, K = 12, overlap 4, p = 0"
    yield Law("trimmed: A(0) = 1", setting, 1.0, result.totals.amplification, 0.01, count)
    share = result.totals.overlap / result.totals.sampled
    yield Law("trimmed: overlap apart", setting, 4 / 12, share, 0.01, count)


LAWS: tuple[Callable[[int, int], Iterable[Law]], ...] = (
    fixed_chunk,
    immediate,
    indivisible,
    saturated,
    amplification,
    small_rate,
    trimmed,
)


def measure(count: int, seed: int, advance: Callable[[int], None] = lambda steps: None) -> list[Law]:
    """Measure all laws.

    Parameters
    ----------
    count : int
        Updates of each simulation.
    seed : int
    advance : callable
        Is told of every group of laws that is done.
    """
    laws: list[Law] = []
    for law in LAWS:
        laws += law(count, seed)
        advance(1)
    return laws


def table(laws: Iterable[Law]) -> str:
    """Laws as a Markdown table."""
    rows = [
        f"| {law.name} | {law.setting} | {law.theory:.5g} | {law.measured:.5g} | {law.error:.3%} "
        f"| {law.tolerance:.2g} | {'yes' if law.holds else 'NO'} |"
        for law in laws
    ]
    head = "| law | setting | theory | measured | difference | allowed | holds |"
    return "\n".join([head, "|---" * 7 + "|", *rows])


def full_scheduler(
    count: int, seed: int, generation: float = 0.5, group: float = 0.25
) -> list[dict[str, Any]]:
    """A with calls that take time and refills that start in time, beside the law, which knows neither."""
    rows = []
    for latents in LATENTS:
        for probability in PROBABILITIES:
            scenario = constant(latents, latents * group, generation)
            result = simulate(scenario, GeometricArrivals(count, probability, seed))
            rows.append(
                {
                    "latents": latents,
                    "probability": probability,
                    "generation": generation,
                    "law": geometric_amplification(latents, probability),
                    "amplification": result.totals.amplification,
                    "load": result.totals.load(generation, latents * group),
                    "superseded": result.totals.superseded,
                }
            )
    return rows


def chunk_lengths(count: int, seed: int, generation: float = 0.3) -> list[dict[str, Any]]:
    """Response of a bidirectional adapter at several K with the same C: a long chunk answers no later."""
    rows = []
    for latents in (3, 12, 20, 40):
        scenario = Scenario(
            adapter=LatentInput(latents), costs=UnitCosts(denoise=generation), group_seconds=Fraction(1, 4)
        )
        result = simulate(scenario, IsolatedArrivals(count, scenario.period, seed))
        chunked = simulate(scenario.chunked(), IsolatedArrivals(count, scenario.period, seed))
        rows.append(
            {
                "latents": latents,
                "generation": generation,
                "response": _mean(result, "response"),
                "median_response": float(np.median(result.seconds("response"))),
                "fixed_chunk": _mean(chunked, "response"),
            }
        )
    return rows


def _mean(result: Result, part: str) -> float:
    return float(np.mean(result.seconds(part)))
