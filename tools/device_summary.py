"""The device report for a reader: a line for each result, and the project's bars beside what was reached."""

from __future__ import annotations

from typing import Any

FPS_BAR, PUBLISHED_FPS = 38.0, 19.06  # on one GPU


def line(item: str, row: dict[str, Any], found: dict[str, Any]) -> str:
    """A result in one line."""
    if "problem" in row:
        said = f"PROBLEM  {row['problem']}"
    elif "passed" in row:
        said = "passed" if row["passed"] else "FAILED"
        said += (
            f"  {row['error']:.2e} <= {row['bound']:.2e}" if "error" in row else f"  {row.get('tail', '')}"
        )
    elif isinstance(row.get("milliseconds"), dict):
        said = f"{row['milliseconds']['median']:9.4f} ms  {shares(row, found)}  " + "  ".join(
            f"{name} {peer['ratio']:.2f}x" if "ratio" in peer else f"{name}: {peer['problem']}"
            for name, peer in row.items()
            if isinstance(peer, dict) and name != "milliseconds"
        )
    elif "kernels" in row:
        said = "".join(
            f"\n    {each['share']:6.1%} {each['milliseconds']:9.2f} ms {each['calls']:6} x {each['kernel']}"
            for each in row["kernels"]
        )
    else:
        said = "  ".join(f"{key} {value}" for key, value in row.items())
    return f"  {item:58} {said}"


def shares(row: dict[str, Any], found: dict[str, Any]) -> str:
    """The rate as a share of what this device reached for a matrix product or a copy."""
    limits = found.get("speed", {}).get("ceilings", {})
    parts = []
    if "operations_per_second" in row:
        rate = row["operations_per_second"]
        parts.append(f"{rate / 1e12:.0f} T/s")
        parts += [f"{rate / limits[kind]:.0%} of {kind}" for kind in ("bf16", "int8") if kind in limits]
    if "bytes_per_second" in row and "bytes" in limits:
        parts.append(f"{row['bytes_per_second'] / limits['bytes']:.0%} of copy")
    return ", ".join(parts)


def bars(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The bars for a GPU, with what was reached; those that were not measured are left out."""
    speed, streams = found.get("speed", {}), found.get("end_to_end", {})
    limits = speed.get("ceilings", {})
    made: list[dict[str, Any]] = []

    def add(name: str, bar: float, reached: float) -> None:
        made.append({"what": name, "bar": bar, "reached": round(reached, 3), "met": reached >= bar})

    for item, row in speed.items():
        if "milliseconds" not in row:
            continue
        if row["op"] == "paged_attention" and "bf16" in limits:
            add(f"{item}, share of a bf16 product", 0.7, row["operations_per_second"] / limits["bf16"])
        for peer, bar in (("own_bf16", 1.4), ("linear_bf16", 1.5)):
            if "ratio" in row.get(peer, {}):
                add(f"{item}, times {peer}", bar, row[peer]["ratio"])
        if "bytes_per_second" in row and "bytes" in limits:
            add(f"{item}, share of a copy", 0.8, row["bytes_per_second"] / limits["bytes"])
    for item, row in streams.items():
        if "frames_per_second" in row:
            add(f"{item}, frames a second (published: {PUBLISHED_FPS})", FPS_BAR, row["frames_per_second"])
    return made
