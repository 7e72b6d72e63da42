"""One section of the device report, in a process of its own: started by device_report.py.

Prints a line for the items, then one when each begins and one with its result, each JSON behind `MARK`. Ends
with `BROKEN` when the device no longer works, as after an access to memory that is not there: the report then
starts another process for the items that are left.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1]))  # the package of this checkout, where none is installed

MARK = "::"
BROKEN = 3
Row = dict[str, Any]
Items = dict[str, Callable[[], Row]]


def correctness(device: str) -> Items:
    """Error of each operation against float64, and of a wave over processes, and its bound."""
    from device_checks import Check, checks
    from device_replicas import replicas_agree

    def row(check: Check) -> Row:
        error, bound = check.run()
        return {"error": error, "bound": bound, "passed": error <= bound}

    found = {check.name: lambda check=check: row(check) for check in checks(device)}
    return {**found, "replicas of three ranks": lambda: replicas_agree((f"{device}:0",) * 3)}


def speed(device: str) -> Items:
    """Ceilings of the device, then each operation beside PyTorch."""
    from device_timings import ceilings, compare, comparisons

    found = {f"{case.op} ({case.shape})": lambda case=case: compare(case) for case in comparisons(device)}
    return {"ceilings": ceilings, **found}


def end_to_end(device: str) -> Items:
    """Frames a second of streams, and where the time goes."""
    from device_stream import STREAMS, Workload, frames_per_second

    work = Workload()
    streams = {name: lambda name=name: frames_per_second(name, work) for name in STREAMS}
    first = next(iter(streams))
    # Second, should the time run out: of a slow stream it says more than others do.
    profile = {"where the time goes": lambda: frames_per_second(first, work, profile=True)}
    return {first: streams[first], **profile, **streams}


def peers(device: str) -> Items:
    """Attention of other packages, where they are installed."""
    from device_timings import milliseconds
    from device_timings import peers as others

    def row(make: Callable[[], Callable[[], object]]) -> Row:
        try:
            call = make()
        except ImportError as missing:
            return {"skipped": str(missing)}
        return {"milliseconds": milliseconds(call)}

    return {name: lambda make=make: row(make) for name, make in others(device)}


SECTIONS: dict[str, Callable[[str], Items]] = {
    "correctness": correctness,
    "speed": speed,
    "end_to_end": end_to_end,
    "peers": peers,
}


def say(**message: Any) -> None:
    print(MARK + json.dumps(message), flush=True)


def operation(item: str) -> str:
    """The operation that an item is about: the first word of its name."""
    return item.split()[0].rstrip(",")


def device_works() -> bool:
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def run(items: Items, skip: int, without: set[str]) -> int:
    """Run the items from number `skip` on; those of operations in `without` are left out."""
    say(items=list(items))
    for name, item in list(items.items())[skip:]:
        say(begin=name)
        if operation(name) in without:
            say(row={"left_out": "its check failed"})
            continue
        try:
            row = item()
        except Exception as problem:  # an item that fails is a result too
            say(row={"problem": f"{type(problem).__name__}: {str(problem)[:400]}"})
            if not device_works():
                return BROKEN
        else:
            say(row=row)
    return 0


def main() -> int:
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("section", choices=list(SECTIONS))
    parser.add_argument("--skip", type=int, default=0, help="begin with the item of this number")
    parser.add_argument("--without", default="", help="operations to leave out, with commas")
    arguments = parser.parse_args()
    with torch.inference_mode():
        items = SECTIONS[arguments.section]("cuda")
        return run(items, arguments.skip, set(filter(None, arguments.without.split(","))))


if __name__ == "__main__":
    sys.exit(main())
