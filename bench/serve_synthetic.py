"""A server of coloured pictures at a given rate: what transport and page cost, without a model.

`python bench/serve_synthetic.py [--fps 16] [--group 1]` prints its address and serves until it is stopped.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.serving import SyntheticEngine

from wavecore.serve.app import Server
from wavecore.serve.run import serve
from wavecore.serve.settings import ServeSettings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fps", type=float, default=16.0)
    parser.add_argument("--group", type=int, default=1, help="frames of a position")
    arguments = parser.parse_args()
    engine = SyntheticEngine(fps=arguments.fps, group=arguments.group)
    serve(
        ServeSettings(port=0),
        lambda settings: Server(settings, engine),
        lambda address: print(address, flush=True),
    )


if __name__ == "__main__":
    main()
