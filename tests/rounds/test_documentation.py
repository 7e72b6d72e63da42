"""The tables of docs/rounds.md are what the code prints."""

from pathlib import Path

from wavecore.rounds import sequential, stream_batch, table, warped_levels, wavefront

PAGE = Path(__file__).parents[2] / "docs" / "rounds.md"


def test_tables_are_current():
    text = PAGE.read_text(encoding="utf-8")
    levels = warped_levels((1000, 750, 500, 250), shift=5)
    assert table(wavefront(4, 8), [level.sigma for level in levels]) in text
    assert table(sequential(2, 2)) in text
    assert table(stream_batch(2, 6)) in text
