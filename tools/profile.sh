#!/usr/bin/env bash
# Profile a run over replicas with Nsight Systems: tools/profile.sh OUTPUT [arguments of `wavecore generate`].
# Leaves OUTPUT.nsys-rep with every stage's streams, copies and NVTX ranges, and OUTPUT.jsonl, the event log.
set -euo pipefail
if [ $# -lt 2 ]; then
  echo "usage: tools/profile.sh OUTPUT PROMPT [FLAGS]" >&2
  exit 2
fi
if ! command -v nsys > /dev/null; then
  echo "tools/profile.sh: expected nsys (Nsight Systems) on the path, got none" >&2
  exit 1
fi
output=$1
shift
nsys profile --output "$output" --force-overwrite true --trace cuda,nvtx,osrt --trace-fork-before-exec true \
  python -m wavecore generate "$@" --placement replicas --events "$output.jsonl" --output-path "$output.mp4"
