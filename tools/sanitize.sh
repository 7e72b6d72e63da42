#!/usr/bin/env bash
# Run the tests of the C++ kernels under the address and undefined-behaviour sanitizers, with the AVX-512 and AMX
# kernels emulated where the processor lacks either: tools/sanitize.sh [PYTHON] [pytest arguments].
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3}
shift || true
build=build/sanitize
package=$build/package

emulate=ON
if grep -qw avx512_vnni /proc/cpuinfo && grep -qw amx_tile /proc/cpuinfo; then emulate=OFF; fi
mkdir -p "$package/wavecore"
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=None -DWAVECORE_SANITIZE=ON -DWAVECORE_EMULATE_AVX512=$emulate \
  -DCMAKE_LIBRARY_OUTPUT_DIRECTORY="$PWD/$package/wavecore" -DPython_EXECUTABLE="$(command -v "$python")" \
  -Dpybind11_DIR="$("$python" -c 'import pybind11; print(pybind11.get_cmake_dir())')"
cmake --build "$build"

# The package beside this module is the one of the working tree, by links.
for entry in wavecore/*; do
  case $entry in
  *.so | */__pycache__) ;;
  *) ln -sfn "$PWD/$entry" "$package/$entry" ;;
  esac
done

# The working folder is taken off the path: its package has a module built without sanitizers. Leaks are not looked
# for: the interpreter and PyTorch keep memory to the end.
LD_PRELOAD="$(${CXX:-c++} -print-file-name=libasan.so) $(${CXX:-c++} -print-file-name=libubsan.so)" \
  ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0 UBSAN_OPTIONS=print_stacktrace=1 \
  PYTHONPATH="$PWD/$package" \
  "$python" -c '
import sys
sys.path.remove("")
import pytest
from wavecore import _native
print("testing", _native.__file__, flush=True)
sys.exit(pytest.main(sys.argv[1:]))' -q -k "native" --import-mode=importlib -p no:cacheprovider "${@:-tests/ops}"
