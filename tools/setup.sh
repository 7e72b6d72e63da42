#!/usr/bin/env bash
# Make a virtual environment with wavecore in it: tools/setup.sh FOLDER [EXTRA]
#
# PyTorch's CPU build is a tenth of the size of its CUDA build, so a machine without an NVIDIA GPU gets that
# one, and a machine with one the build for its driver. uv knows which is which; where the place it looks in
# cannot be reached, the version named here is taken from wherever pip is set up to look.
set -euo pipefail

folder=${1:?usage: tools/setup.sh FOLDER [EXTRA]}
extra=${2:+[$2]}
torch=2.13.0
here=$(cd "$(dirname "$0")/.." && pwd)

[ -x "$folder/bin/python" ] || "${PYTHON:-python3}" -m venv "$folder"
pip() { "$folder/bin/python" -m pip "$@" --disable-pip-version-check --quiet; }

if ! "$folder/bin/python" -c 'import torch' 2>/dev/null; then
    pip install uv
    UV_HTTP_TIMEOUT=30 UV_HTTP_RETRIES=0 "$folder/bin/uv" pip install --quiet --python "$folder/bin/python" \
        --torch-backend=auto "torch==$torch" 2>/dev/null || {
        echo "setup: uv found no PyTorch $torch for this machine; taking the one that pip finds" >&2
        pip install "torch==$torch"
    }
fi
pip install "$here$extra"
