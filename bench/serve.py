"""Latency of `wavecore serve`: `python bench/serve.py [--parts startup,transport,keystroke,users]`.

Prints a table and merges its rows into bench/results/serve.json. Further parts are `batching`, and `memory`,
which takes ten minutes. `transport` and `keystroke` need Chromium
and chromedriver.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).parent))
from machine import RESULTS, write_result

from wavecore.client import Client

PROMPTS = [
    f"a {colour} {shape} moving {direction} over {ground}"
    for colour in ("red", "blue", "green", "white")
    for shape in ("ball", "star", "cross", "box")
    for direction in ("left", "up")
    for ground in ("sand", "grass")
]
_STOP_SECONDS = 120  # a machine with other work to do
PARTS = ("wait", "generation", "alignment", "transport", "total")


def quantiles(values: list[float]) -> dict[str, float]:
    """p50, p95 and the largest, in milliseconds."""
    ordered = sorted(values)
    at = lambda share: ordered[min(len(ordered) - 1, int(share * len(ordered)))]  # noqa: E731
    return {"p50": at(0.5), "p95": at(0.95), "max": ordered[-1], "count": len(ordered)}


@contextlib.contextmanager
def server(*command: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a server as a process of its own."""
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1].split("#")[0].rstrip("/")
        try:
            yield process, address
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(_STOP_SECONDS)


def note(text: str) -> None:
    """Say what is going on."""
    print(text, file=sys.stderr, flush=True)


def sprites() -> contextlib.AbstractContextManager[tuple[subprocess.Popen[str], str]]:
    """Serve the embedded model."""
    return server("-m", "wavecore", "serve", "--port", "0")


def wait_ready(url: str, path: str = "/readyz") -> None:
    """Wait for a probe to answer."""
    while True:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(url + path, timeout=30).status_code == 200:
                return
        time.sleep(0.005)


@contextlib.contextmanager
def page(url: str, query: str = "") -> Iterator[Any]:
    """Open the page in headless Chromium."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--disable-gpu", "--no-sandbox", "--window-size=1200,1000"):
        options.add_argument(argument)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        browser.get(f"{url}/{query}")
        until(lambda: browser.find_element("id", "status").text == "ready")
        yield browser
    finally:
        browser.quit()


def until(condition: Any, seconds: float = 60) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.02)


def startup(repeats: int) -> dict[str, Any]:
    """Process start to /healthz and to /readyz, and SIGTERM to exit with a stream running."""
    healthy, ready, stopped = [], [], []
    for _ in range(repeats):
        began = time.monotonic()
        with sprites() as (process, url):
            wait_ready(url, "/healthz")
            healthy.append(1e3 * (time.monotonic() - began))
            wait_ready(url)
            ready.append(1e3 * (time.monotonic() - began))
            with Client(url, decode=False) as client:
                client.start(PROMPTS[0])
                list(itertools.islice(client, 8))
                began = time.monotonic()
                process.send_signal(signal.SIGTERM)
                process.wait(30)
                stopped.append(1e3 * (time.monotonic() - began))
    return {
        "start to /healthz": quantiles(healthy),
        "start to /readyz": quantiles(ready),
        "SIGTERM to exit": quantiles(stopped),
    }


def transport(seconds: float) -> dict[str, Any]:
    """Server's playback to the page's, 832x480 at 16 fps, synthetic frames, one a position."""
    result = {}
    with server(str(Path(__file__).parent / "serve_synthetic.py")) as (_, url):
        wait_ready(url)
        for codec in ("h264", "jpeg"):
            with page(url, f"?codec={codec}") as browser:
                browser.execute_async_script(
                    "const done = arguments[0];"
                    "import('/connection.js').then(({Connection}) => {"
                    "  const start = Connection.prototype.start;"
                    "  Connection.prototype.start = function (fields) {"
                    "    return start.call(this, {...fields, size: [832, 480]}) };"
                    "  done() })"
                )
                browser.find_element("id", "go").click()
                time.sleep(1.5)
                browser.execute_script("wavecore.viewer.transports.length = 0")
                note(f"transport, {codec}: measuring for {seconds:g} s")
                time.sleep(seconds)
                values = browser.execute_script("return wavecore.viewer.transports")
                counts = browser.execute_script(
                    "const v = wavecore.viewer;"
                    "return {displayed: v.playback.displayed, skipped: v.playback.skipped,"
                    "        dropped: v.state.counters.dropped}"
                )
                result[f"ready to displayed, {codec}"] = quantiles(values) | counts
    return result


def keystroke(updates: int) -> dict[str, Any]:
    """Enter pressed in the prompt box to the first pixel of the new prompt, sprites live."""
    rng = random.Random(0)
    with sprites() as (_, url):
        wait_ready(url)
        with page(url) as browser:
            box = browser.find_element("id", "prompt")
            box.send_keys("\n")
            until(lambda: browser.execute_script("return (wavecore.viewer?.playback.displayed ?? 0) > 16"))
            browser.execute_script("wavecore.viewer.updates.limit = 1000")
            note(f"keystroke: measuring {updates} updates")
            previous = None
            for _ in range(updates):
                prompt = rng.choice([p for p in PROMPTS if p != previous])
                previous = prompt
                browser.execute_script("arguments[0].value = arguments[1]", box, prompt)
                box.send_keys("\n")
                time.sleep(rng.uniform(0.7, 1.2))
            time.sleep(2)
            entries = browser.execute_script("return wavecore.viewer.updates.list")
            box.send_keys("\ue00c")
            browser.find_element("id", "stop").click()
            until(lambda: "ended" in browser.find_element("id", "status").text)
            counts = browser.execute_script(
                "const v = wavecore.viewer; return {displayed: v.playback.displayed,"
                "  skipped: v.playback.skipped, server: v.state.counters, A: v.state.amplification,"
                "  rho: v.state.load}"
            )
        metrics = httpx.get(url + "/metrics").text
    shown = [entry for entry in entries if entry.get("total") is not None]
    off = [abs(e["total"] - sum(e[part] for part in PARTS[:-1])) for e in shown]
    lines = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
    counts["metrics"] = {
        "displayed": float(lines["wavecore_displayed_frames_total"]),
        "skipped": float(lines["wavecore_skipped_frames_total"]),
    }
    rows: dict[str, Any] = {
        f"keystroke: {part}": quantiles([entry[part] for entry in shown]) for part in PARTS
    }
    rows["keystroke: sum of parts off by"] = quantiles(off)
    rows["keystroke: counters"] = counts
    return rows


def users(count: int, seconds: float) -> dict[str, Any]:
    """Scripted viewers at once; each updates its prompt every second or so."""
    records: list[Any] = []
    rates: list[float] = []
    refused: list[str] = []

    def view(number: int, url: str) -> None:
        rng = random.Random(number)
        with Client(url, decode=False) as client:
            try:
                client.start(rng.choice(PROMPTS), seed=number)
            except Exception as error:
                refused.append(str(error))
                return
            began = due = time.monotonic()
            frames = 0
            for _ in client:
                frames += 1
                now = time.monotonic()
                if now >= due:
                    client.update(rng.choice(PROMPTS))
                    due = now + rng.uniform(0.8, 1.4)
                if now - began > seconds:
                    break
            rates.append(frames / (time.monotonic() - began))
            records.extend(r for r in client.records if r.transport is not None)
            client.stop()

    with sprites() as (_, url):
        wait_ready(url)
        note(f"{count} users: measuring for {seconds:g} s")
        threads = [threading.Thread(target=view, args=(number, url)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    rows: dict[str, Any] = {}
    for part in PARTS[:-1]:
        values = [1e3 * getattr(record, part) for record in records]
        rows[f"{count} users: {part}"] = quantiles(values)
    rows[f"{count} users: total"] = quantiles([1e3 * (r.shown - r.arrival) for r in records])
    rows[f"{count} users: rates"] = {"frames_per_second": rates, "refused": refused}
    return rows


def batching(repeats: int) -> dict[str, Any]:
    """Calls of several sessions at once, each in its own forwards and all in common ones: interleaved."""
    import torch

    import wavecore
    from wavecore.serve.sharing import make_device, time_calls

    pipe = wavecore.load("sprites")
    latents = pipe.model.defaults.chunk_frames
    rows: dict[str, Any] = {}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for count in (1, 2, 4):
            times: dict[str, list[float]] = {"own": [], "common": []}
            device = make_device(pipe, count, 0.25)
            for _ in range(repeats):
                for kind, shared in (("own", None), ("common", device)):
                    times[kind] += [1e3 * value for value in time_calls(pipe, count, latents, 4, shared)]
            device.close()
            for kind, values in times.items():
                rows[f"{count} calls at once, {kind} forwards, threads {threads}"] = quantiles(values)
    return rows


def memory(minutes: float) -> dict[str, Any]:
    """Slope of the server's memory, and whether calls take longer as a session goes on."""
    samples, calls = [], []
    with sprites() as (process, url):
        wait_ready(url)
        observed = psutil.Process(process.pid)
        with Client(url, decode=False) as client:
            client.start(PROMPTS[0])
            began = due = time.monotonic()
            for _ in client:
                now = time.monotonic() - began
                if now + began >= due:
                    due += 5
                    client.update(random.choice(PROMPTS))
                    samples.append((now / 60, observed.memory_info().rss / 2**20))
                    if client.records and client.records[-1].generation is not None:
                        calls.append((now / 60, 1e3 * client.records[-1].generation))
                if now > 60 * minutes:
                    break
            client.stop()
    warm = [sample for sample in samples if sample[0] > 1.5]  # the retained past fills for a minute
    slope = statistics.linear_regression(*zip(*warm, strict=True)).slope
    half = len(calls) // 2
    return {
        f"memory, {minutes:g} min": {
            "MiB_per_minute": slope,
            "first_MiB": warm[0][1],
            "last_MiB": warm[-1][1],
            "generation_ms_first_half": statistics.median(value for _, value in calls[:half]),
            "generation_ms_second_half": statistics.median(value for _, value in calls[half:]),
        }
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default="startup,transport,keystroke,users,batching")
    parser.add_argument("--users", type=int, default=2)
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    run = {
        "startup": lambda: startup(arguments.repeats),
        "transport": lambda: transport(arguments.seconds),
        "keystroke": lambda: keystroke(arguments.updates),
        "users": lambda: users(arguments.users, arguments.seconds),
        "batching": lambda: batching(2 * arguments.repeats),
        "memory": lambda: memory(arguments.minutes),
    }
    rows: dict[str, Any] = {}
    for part in arguments.parts.split(","):
        for name, row in run[part]().items():
            rows[name] = row
            shown = ", ".join(f"{k} {v:.1f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
            print(f"{name}: {shown}", flush=True)
    path = RESULTS / "serve.json"
    earlier = json.loads(path.read_text())["rows"] if path.exists() else {}
    write_result("serve", {"rows": earlier | rows})


if __name__ == "__main__":
    main()
