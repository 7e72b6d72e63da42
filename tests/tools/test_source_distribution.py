"""What `python -m build --sdist` packs."""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_PACKED = {".ci/run", ".gitignore", "wavecore/triton_kernels"}  # the last is a link, packed as a folder


@pytest.mark.slow
def test_a_source_distribution_has_every_file_of_the_repository(tmp_path):
    pytest.importorskip("build")
    if not (ROOT / ".git").exists():
        pytest.skip("only of a checkout is known what belongs to it")
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, check=True, text=True
    ).stdout
    files = [name for name in listed.split("\0") if name and (ROOT / name).exists()]
    source = tmp_path / "source"
    for name in files:  # a copy, since building writes beside the sources
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name, follow_symlinks=False)
    command = [sys.executable, "-m", "build", "--sdist", "--outdir", str(tmp_path), str(source)]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    (archive,) = tmp_path.glob("wavecore-*.tar.gz")
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    kernels = {f"wavecore/{name}" for name in files if name.startswith("triton_kernels/")}
    assert ({*files, *kernels} - NOT_PACKED) - names == set()
