"""`wavecore serve` as a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import av
import httpx
import pytest
from support.serving import SyntheticEngine

from wavecore.cli import run
from wavecore.client import Client
from wavecore.serve.app import Server
from wavecore.serve.run import secured, serve
from wavecore.serve.settings import ServeSettings


@pytest.fixture
def process(tmp_path):
    command = [sys.executable, "-m", "wavecore", "serve", "--port", "0", "--json"]
    command += ["--recordings", str(tmp_path / "takes")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            address = json.loads(running.stdout.readline())["address"]
            yield running, address.rstrip("/")
        finally:
            running.kill()


def wait_for(url, seconds):
    end = time.monotonic() + seconds
    while True:
        try:
            if httpx.get(url, timeout=seconds).status_code == 200:
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < end
        time.sleep(0.01)


def test_it_answers_streams_and_stops_with_playable_files(process, tmp_path):
    running, url = process
    wait_for(f"{url}/healthz", 30)
    wait_for(f"{url}/readyz", 60)
    with Client(url) as client:
        client.start("a red ball moving left over sand")
        taken = list(islice(client, 12))
        assert taken[-1].image.shape == (128, 128, 3)
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 0
        assert client.ended == "shutdown"
    assert running.stderr.read() == ""
    (take,) = (tmp_path / "takes").iterdir()
    with av.open(str(take)) as container:
        assert len(list(container.decode(video=0))) >= 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "70000"], "--port: expected at most 65535"),
        (["--port", "x"], "--port: expected an integer"),
        (["--slots", "0"], "--slots: expected at least 1"),
        (["--latency-objective", "-1"], "--latency-objective: expected a number above 0"),
        (["--host", "203.0.113.7", "--port", "0"], "cannot listen on"),
    ],
)
def test_wrong_settings_are_usage_errors(arguments, message, capsys):
    assert run(["serve", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--model", "nosuch"], 2, '--model: expected "sprites", a path, or a hub name'),
        (["--checkpoint", "missing"], 2, "--checkpoint: expected none with a sprites model, got 'missing'"),
        (["--model", str(Path(__file__))], 1, "expected .safetensors, .index.json, .pt or .pth, got '.py'"),
    ],
    ids=["name", "checkpoint", "file"],
)
def test_a_model_that_cannot_be_loaded_ends_the_server(arguments, code, message, capsys):
    assert run(["serve", "--port", "0", *arguments]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_fault_that_nobody_has_worded_ends_the_server():
    class Broken(SyntheticEngine):
        def load(self):
            raise ZeroDivisionError("an engine without fuel")

    def build(settings):
        return Server(settings, Broken())

    with pytest.raises(ZeroDivisionError, match="an engine without fuel"):
        serve(ServeSettings(port=0), build, lambda address: None)


def test_a_port_that_is_taken_is_a_usage_error(process, capsys):
    _, url = process
    assert run(["serve", "--port", url.rpartition(":")[2]]) == 2
    assert "cannot listen on" in capsys.readouterr().err


@pytest.mark.parametrize("token", ["", " ", "two words", "schlüssel", "x" * 201])
def test_a_token_that_no_client_could_present_or_every_one_could_is_refused(token, capsys):
    assert run(["serve", "--host", "0.0.0.0", "--token", token]) == 2
    assert "--token: expected 1 to 200 ASCII characters" in capsys.readouterr().err


def test_a_token_is_made_up_where_others_can_connect():
    assert secured(ServeSettings()).token is None
    assert len(secured(ServeSettings(host="0.0.0.0")).token) >= 32
    assert secured(ServeSettings(host="0.0.0.0", token="mine")).token == "mine"
