"""Build of the native module `wavecore._native` with CMake and ninja.

The module needs neither libtorch nor nvcc. Without a working C++ compiler the package installs as pure
Python: every operation then runs on its PyTorch implementation, and `wavecore doctor` says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.resolve()


def skip(reason: str) -> None:
    """Say why there will be no native module."""
    print(f"wavecore: native kernels not built ({reason}); installing as pure Python", file=sys.stderr)


class CMakeBuild(build_ext):
    """Configure and build csrc/ and put the module where setuptools expects it."""

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        target.unlink(missing_ok=True)  # one of an earlier build must not pass for this one's
        try:
            self._build(target)
        except subprocess.CalledProcessError as error:
            skip(f"{' '.join(error.cmd[:2])} failed with exit code {error.returncode}")
        except (OSError, ImportError) as error:
            skip(str(error))

    def _build(self, target: Path) -> None:
        import pybind11

        compiler = os.environ.get("CXX") or next(filter(shutil.which, ("c++", "g++", "clang++")), None)
        if compiler is None:
            raise OSError("no C++ compiler found")
        build = Path(self.build_temp).resolve() / "native"
        build.mkdir(parents=True, exist_ok=True)
        configure = [
            "cmake",
            "-S",
            str(ROOT),
            "-B",
            str(build),
            "-G",
            "Ninja",
            "-DCMAKE_BUILD_TYPE=Release",
            f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={target.parent}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
        ]
        # A folder configured in an isolated environment remembers a ninja that is gone with it.
        if ninja := shutil.which("ninja"):
            configure.append(f"-DCMAKE_MAKE_PROGRAM={ninja}")
        subprocess.run(configure, check=True)
        subprocess.run(["cmake", "--build", str(build)], check=True)


setup(
    ext_modules=[Extension("wavecore._native", sources=[], optional=True)],
    cmdclass={"build_ext": CMakeBuild},
)
