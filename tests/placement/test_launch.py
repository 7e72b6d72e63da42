"""Processes of the library run the library that started them."""

import subprocess

import wavecore
from wavecore.placement.launch import module_command


def test_a_package_in_the_working_directory_is_not_taken(tmp_path):
    (tmp_path / "wavecore").mkdir()
    (tmp_path / "wavecore" / "__init__.py").write_text('raise SystemExit("the wrong package")')
    done = subprocess.run(
        [*module_command("wavecore"), "--version"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert wavecore.__version__ in done.stdout
