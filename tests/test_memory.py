"""What memory is left, by what the system says, and what is refused for want of it."""

from pathlib import Path

import pytest

from wavecore import memory
from wavecore.errors import UsageError
from wavecore.media import VideoReader, read_video
from wavecore.memory import available_bytes, check_memory

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "dog.mp4"
MEBI = 2**20
MEMINFO = "MemTotal: 9000 kB\nMemFree: 1 kB\nMemAvailable: 4096 kB\nSwapFree: 1024 kB\nHugePages_Total: 0\n"


def system(root, files):
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def group(path, limit, used, cache, version=2):
    names = ("memory.max", "memory.current", "file")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "cache")
    texts = (f"{limit}\n", f"{used}\n", f"anon 7\n{names[2]} {cache}\n")
    files = (*names[:2], "memory.stat")
    return {f"sys/fs/cgroup/{path}{name}": text for name, text in zip(files, texts, strict=True)}


def test_the_machine_says_what_is_left_swap_included(tmp_path):
    assert available_bytes(system(tmp_path, {})) == 5 * MEBI


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({"proc/self/cgroup": "0::/\n", **group("", 3 * MEBI, 2 * MEBI, MEBI // 2)}, 1.5),
        ({"proc/self/cgroup": "0::/\n", **group("", "max", 2 * MEBI, 0)}, 5),
        ({"proc/self/cgroup": "0::/\n", **group("", MEBI, 2 * MEBI, 0)}, 0),
        (
            {"proc/self/cgroup": "0::/a/b\n", **group("a/b/", "max", 0, 0), **group("a/", 2 * MEBI, 0, 0)},
            2,
        ),
        ({"proc/self/cgroup": "0::/outside\n", **group("", 2 * MEBI, MEBI, 0)}, 1),
        (
            {
                "proc/self/cgroup": "5:cpu:/\n4:memory:/a\n0::/\n",
                **group("memory/a/", 4 * MEBI, MEBI, 0, version=1),
                **group("memory/", 2**63 - 4096, MEBI, 0, version=1),
            },
            3,
        ),
    ],
    ids=["limit", "no limit", "over", "parent", "container", "version 1"],
)
def test_limits_of_control_groups_leave_less(tmp_path, files, left):
    assert available_bytes(system(tmp_path, files)) == left * MEBI


def test_a_system_that_says_nothing_refuses_nothing(tmp_path, monkeypatch):
    assert available_bytes(tmp_path) is None
    monkeypatch.setattr(memory, "available_bytes", lambda: None)
    check_memory("size", 2**80, "much")


def test_what_fits_is_not_refused(monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 3 * 2**30)
    check_memory("size", 3 * 2**30, "as much as there is")
    said = "size: expected what 3.0 GiB of memory are enough for, got more, which needs at least 3.5 GiB"
    with pytest.raises(UsageError, match=said):
        check_memory("size", 7 * 2**29, "more")


def test_a_clip_is_refused_before_it_is_read(monkeypatch):
    with pytest.raises(UsageError, match=r"size: .* got 999999x999999, which needs"):
        VideoReader(EXAMPLE, size=(999_999, 999_999))
    monkeypatch.setattr(memory, "available_bytes", lambda: 100_000)
    VideoReader(EXAMPLE, size=(64, 64))
    with pytest.raises(UsageError, match=r"size: .* got [0-9]+ frames of 64x64, which needs"):
        read_video(EXAMPLE, size=(64, 64))
