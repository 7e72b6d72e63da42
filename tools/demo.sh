#!/usr/bin/env bash
# Install wavecore into .venv and run the main job: a prompt that changes twice, then a real clip restyled.
set -euo pipefail
cd "$(dirname "$0")/.."

bash tools/setup.sh .venv
mkdir -p outputs
.venv/bin/wavecore generate --prompts examples/prompts.yaml --seconds 12 \
    --output-path outputs/generate.mp4 --contact-sheet outputs/generate.png --events outputs/generate.jsonl
.venv/bin/wavecore restyle examples/dog.mp4 "a white ball over water" \
    --output-path outputs/restyle.mp4 --contact-sheet outputs/restyle.png
