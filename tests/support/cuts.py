"""Waves that are cut, next to the same ones without the cut and to ones with nothing behind it."""

from __future__ import annotations

from support.generators import OLD, latents, same

from wavecore.interactive.predictions import NOTHING_YET


def run_cuts(generator, latents, cuts):
    """Run a call that is cut at each (round, position, latents); returns the cuts that came too late."""
    rounds, left = 0, list(enumerate(cuts))
    for made in generator.call(0, latents, 0, OLD):
        rounds += made is NOTHING_YET
        if made is NOTHING_YET and left and rounds == left[0][1][0]:
            index, (_, position, more) = left.pop(0)
            assert generator.splice(position, more, f"prompt {index}")
    return left


def check_random_cuts(random, wave):
    """Before each cut nothing changes; behind the last one nothing tells that anything else was there."""
    first_alone, length = random.random() < 0.5, 12
    cuts, round, position = [], 0, 0
    for _ in range(random.randint(1, 3)):
        round += random.randint(1, 4)
        position += 3 * random.randint(1, 2)
        cuts.append((round, position, 9))
    made = []
    for count in range(len(cuts) + 1):
        generator = wave(first_alone=first_alone)
        late = run_cuts(generator, length, cuts[:count])
        assert not late, "a call of 9 latents and more goes on for longer than to the next cut"
        made.append(latents(generator))
        generator.close()
    for (_, position, _), before, after in zip(cuts, made, made[1:], strict=False):
        kept = [{p: latent for p, latent in run.items() if p < position} for run in (before, after)]
        assert same(*kept), "the run with the update equals the one without it"
    *earlier, (round, position, more) = cuts
    ends = [end for _, end, _ in cuts]
    nothing_behind = [(r, p, end - p) for (r, p, _), end in zip(earlier, ends[1:], strict=False)]
    fresh = wave(first_alone=first_alone)
    late = run_cuts(fresh, ends[0], [*nothing_behind, (round, position, more)])
    fresh.close()
    if not late:  # else without anything behind it the call before has ended, and there is nothing to cut
        assert same(latents(fresh), made[-1]), "from there on it is a fresh continuation"
