"""Ranks that torchrun starts: the latents of one device, and one line for what cannot be."""

import os
import socket
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from wavecore.cli import run
from wavecore.errors import UsageError
from wavecore.placement import ranks
from wavecore.placement.launch import module_command
from wavecore.placement.replicas import ReplicaOptions, Replicas
from wavecore.rounds import Wavefront

CLIP = ["generate", "a red ball", "--num-frames", "13", "--size", "64x64", "--output-type", "latent"]
REPLICAS = ["--steps", "1", "--placement", "replicas"]


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    path = tmp_path_factory.mktemp("local") / "clip.safetensors"
    assert run([*CLIP, "--steps", "1", "--output-path", str(path)]) == 0
    return load_file(path)["latents"]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def job(count, local_count, *arguments):
    """Exit code and errors of each of some processes with the variables that torchrun sets."""
    port = str(free_port())
    processes = []
    for rank in range(count):
        variables = {
            "RANK": str(rank),
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(local_count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "OMP_NUM_THREADS": "1",
        }
        command = [*module_command("wavecore"), *CLIP, *arguments]
        processes.append(
            subprocess.Popen(
                command,
                env=os.environ | variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    ended = [process.communicate(timeout=300) for process in processes]
    return [(process.returncode, errors) for process, (_, errors) in zip(processes, ended, strict=True)]


def test_ranks_on_two_machines_give_the_latents_of_one_device(local, tmp_path):
    """As far as the two know: each is told that it is the only one on its machine, so messages go by gloo."""
    path = tmp_path / "clip.safetensors"
    ended = job(2, 1, *REPLICAS, "--output-path", str(path))
    assert [code for code, _ in ended] == [0, 0], ended
    assert torch.equal(load_file(path)["latents"], local)


@pytest.mark.slow
def test_torchrun_on_one_machine(local, tmp_path):
    path = tmp_path / "clip.safetensors"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "wavecore", *CLIP, *REPLICAS, "--output-path", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert torch.equal(load_file(path)["latents"], local)


@pytest.mark.slow
def test_fewer_ranks_than_stages_take_them_in_turn(tmp_path):
    path, expected = tmp_path / "clip.safetensors", tmp_path / "local.safetensors"
    assert run([*CLIP, "--steps", "2", "--output-path", str(expected)]) == 0
    ended = job(2, 2, "--steps", "2", "--placement", "replicas", "--output-path", str(path))
    assert [code for code, _ in ended] == [0, 0], ended
    assert torch.equal(load_file(path)["latents"], load_file(expected)["latents"])


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--devices", "2"], []])
def test_another_number_of_ranks_than_can_share_the_stages(tmp_path, arguments):
    ended = job(3, 3, *REPLICAS, *arguments, "--output-path", str(tmp_path / "a.safetensors"))
    assert [code for code, _ in ended] == [2, 1, 1]
    assert ended[0][1].splitlines()[-1] == "wavecore: ranks: expected torchrun with 2 processes, got 3"
    for rank in (1, 2):
        said = ended[rank][1].splitlines()[-1]
        assert said == f"wavecore: rank {rank}: expected rank 0 to take it, it did not"


@pytest.mark.slow
def test_a_rank_that_never_comes_is_named(dit, monkeypatch):
    variables = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    for name, value in (variables | {"MASTER_PORT": str(free_port())}).items():
        monkeypatch.setenv(name, value)
    from support.replicas import LATENT

    from wavecore.errors import WavecoreError

    with pytest.raises(WavecoreError, match=r"rank 1: expected it within 1 s, it did not come"):
        Replicas(dit, Wavefront(steps=1), LATENT, ReplicaOptions(launch="torchrun", timeout=1.0))


def test_outside_of_a_job(dit):
    assert ranks.rank() is None
    with pytest.raises(UsageError, match="launch: expected a process that torchrun started as rank 0"):
        ranks.Ranks(dit, 1.0)
    with pytest.raises(UsageError, match="rank: expected a process that torchrun started as rank 1 or above"):
        ranks.serve_rank(dit)
    with pytest.raises(UsageError, match="launch: expected one of fork, torchrun, got 'magic'"):
        ReplicaOptions(launch="magic")
