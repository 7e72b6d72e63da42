"""What the shipped sprites model can do: `python bench/sprites.py`.

Runs `wavecore eval` at 4 steps on both kinds of rounds, and with int8 keys and layers; writes
bench/results/sprites.json beside the bars.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from machine import write_result

import wavecore
from wavecore.train.evaluation import Setting, evaluate, prompt_accuracy

BARS = {
    "prompts_held_out": {"colour": 95, "shape": 85, "direction": 90},
    "switch": {"within_bar": 95, "intact": 100},
    "stream_60s": "last_* within 5 of first_*; drift at most 1 px/s",
    "restyle": {"correlation": 0.9, "colour": 90},
    "codec": {"psnr": 30},
}


def main() -> None:
    pipe = wavecore.load("sprites")
    int8_keys = wavecore.load("sprites", key_cache="int8")
    int8 = wavecore.load("sprites", quantization="int8", key_cache="int8")
    result = {
        "bars": BARS,
        "wavefront": evaluate(pipe, Setting()),
        "wavefront_int8_keys": evaluate(int8_keys, Setting()),
        "wavefront_int8_layers_and_keys": evaluate(int8, Setting()),
        "wavefront_trained_pairs": prompt_accuracy(pipe, Setting(), held_out=False),
        "sequential": prompt_accuracy(pipe, Setting(rounds="sequential")),
        "sequential_20_steps": prompt_accuracy(pipe, Setting(steps=20, rounds="sequential"), count=16),
    }
    print(json.dumps(result, indent=1))
    print(write_result("sprites", result))


if __name__ == "__main__":
    main()
