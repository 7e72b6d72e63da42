#!/usr/bin/env bash
# Run the tests of the native code under sanitizers: the stream scheduler under the thread sanitizer, the kernels under
# the address and undefined-behaviour sanitizers, with the AVX-512 and AMX kernels emulated where the processor lacks
# either: tools/sanitize.sh [--all] [PYTHON] [test files].
#
# Without --all the tests of threads run on the instruction sets of this processor alone: emulated, they take long.
# Prints a line for each file. The exit status is 1 if any failed; their output is in build/sanitize/*.log.
set -euo pipefail
cd "$(dirname "$0")/.."
threads="portable or avx2 or lock or pytorch"
if [ "${1:-}" = --all ]; then threads=native; shift; fi
python=${1:-python3}
shift || true
command -v "$python" >/dev/null || { echo "sanitize.sh: PYTHON: no such program: $python" >&2; exit 2; }
build=build/sanitize
package=$build/package

emulate=ON
if grep -qw avx512_vnni /proc/cpuinfo && grep -qw amx_tile /proc/cpuinfo; then emulate=OFF threads=native; fi
mkdir -p "$package/wavecore"
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=None -DWAVECORE_SANITIZE=ON -DWAVECORE_EMULATE_AVX512=$emulate \
  -DCMAKE_LIBRARY_OUTPUT_DIRECTORY="$PWD/$package/wavecore" -DPython_EXECUTABLE="$(command -v "$python")" \
  -Dpybind11_DIR="$("$python" -c 'import pybind11; print(pybind11.get_cmake_dir())')" >"$build/configure.log"
cmake --build "$build"

# The package beside this module is the one of the working tree, by links.
for entry in wavecore/*; do
  case $entry in
  *.so | */__pycache__) ;;
  *) ln -sfn "$PWD/$entry" "$package/$entry" ;;
  esac
done

failed=()
# Runs a command with its output in a file, and prints what it is, how it ended and how long it took.
report() {
  local name=$1 log=$build/$(basename "$1").log began=$SECONDS status=0
  shift
  "$@" >"$log" 2>&1 || status=$?
  printf '%-40s %4d s  %s\n' "$name" $((SECONDS - began)) "$(grep -E '[0-9]+ (passed|failed)' "$log" | tail -1)"
  if [ $status -ne 0 ] && [ $status -ne 5 ]; then # 5: no test of the native code in this file
    failed+=("$name")
    grep -E 'ERROR: AddressSanitizer|WARNING: ThreadSanitizer|runtime error:|^FAILED|^E  ' "$log" | head -20 || tail -20 "$log"
  fi
}

# The working folder is taken off the path: its package has a module built without sanitizers. Leaks are not looked
# for: the interpreter and PyTorch keep memory to the end.
kernels() {
  LD_PRELOAD="$(${CXX:-c++} -print-file-name=libasan.so) $(${CXX:-c++} -print-file-name=libubsan.so)" \
    ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0 UBSAN_OPTIONS=print_stacktrace=1 \
    PYTHONPATH="$PWD/$package" \
    "$python" -c '
import sys
sys.path.remove("")
import pytest
from wavecore import _native
print("testing", _native.__file__, flush=True)
sys.exit(pytest.main(sys.argv[1:]))' -q --import-mode=importlib -p no:cacheprovider -o timeout=0 "$@"
}

if [ $# -eq 0 ]; then
  report tests/csrc "$python" -m pytest -q -p no:cacheprovider tests/csrc
  set -- tests/ops/test_*.py
fi
for file in "$@"; do
  if [ "$(basename "$file")" = test_native.py ]; then tests=$threads; else tests=native; fi
  report "$file" kernels -k "$tests" "$file"
done
if [ ${#failed[@]} -ne 0 ]; then
  echo "failed: ${failed[*]}"
  exit 1
fi
echo "no fault found"
