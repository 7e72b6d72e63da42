#!/usr/bin/env bash
# Install wavecore with its test tools into a virtual environment (.venv-test, or the folder given) and run every check.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv-test}

bash tools/setup.sh "$venv" dev
"$venv/bin/ruff" check .
"$venv/bin/ruff" format --check .
"$venv/bin/mypy"
"$venv/bin/pytest" -q
