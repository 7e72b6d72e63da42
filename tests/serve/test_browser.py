"""The page in a real browser."""

from __future__ import annotations

import io
import time

import av
import numpy as np
import pytest
from support.serving import SyntheticEngine, read_picture, serving, wait_until

SIZE = (160, 96)


@pytest.fixture
def server():
    with serving(SyntheticEngine(fps=16.0)) as running:
        yield running


def open_page(browser, url, query=""):
    browser.get(f"{url}/{query}")
    wait_until(lambda: text(browser, "status") == "ready")


def text(browser, name):
    return browser.find_element("id", name).text


def start(browser, prompt="first"):
    type_prompt(browser, prompt)
    wait_until(lambda: counter(browser, "displayed") >= 8, 20)


def type_prompt(browser, prompt):
    field = browser.find_element("id", "prompt")
    field.clear()
    field.send_keys(prompt + "\n")


def counter(browser, name):
    return int(browser.find_element("css selector", f'[data-counter="{name}"]').text)


def pixels(browser):
    """Version and position, modulo 8, that the canvas shows."""
    data = browser.execute_script(
        """const c = document.getElementById('screen');
        const {data} = c.getContext('2d').getImageData(0, 0, c.width, c.height);
        return [c.width, c.height, Array.from(data)]"""
    )
    width, height, values = data
    return read_picture(np.array(values, np.uint8).reshape(height, width, 4)[..., :3])


def errors(browser):
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


@pytest.mark.parametrize("codec", ["h264", "jpeg"])
def test_an_update_is_seen_measured_and_counted(browser, server, codec):
    open_page(browser, server.url, f"?codec={codec}")
    start(browser)
    assert codec in text(browser, "status")
    type_prompt(browser, "second")
    wait_until(lambda: browser.find_elements("css selector", "#updates .total"), 10)
    wait_until(lambda: pixels(browser)[0] == 1)
    entry = browser.execute_script("return wavecore.viewer.updates.list[0]")
    parts = sum(entry[name] for name in ("wait", "generation", "alignment", "transport"))
    assert entry["total"] == pytest.approx(parts, abs=5)
    assert 0 <= entry["transport"] < entry["total"]
    assert text(browser, "histogram-text").startswith("1 updates")
    browser.find_element("id", "stop").click()
    wait_until(lambda: text(browser, "status") == "ended: stopped")
    page = browser.execute_script(
        "const p = wavecore.viewer.playback; return [p.displayed, p.skipped, wavecore.viewer.state.counters]"
    )
    wait_until(lambda: f"wavecore_displayed_frames_total {float(page[0])}" in server.get("/metrics").text)
    assert f"wavecore_skipped_frames_total {float(page[1])}" in server.get("/metrics").text
    started = browser.execute_script("return wavecore.viewer.started.recording")
    with av.open(io.BytesIO(server.get(started).content)) as container:
        frames = [read_picture(frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]
    assert {version for version, _ in frames} == {0, 1}
    assert errors(browser) == []


def test_keys_pause_seek_and_leave_the_prompt(browser, server):
    open_page(browser, server.url)
    start(browser)
    body = browser.find_element("tag name", "body")
    browser.find_element("id", "prompt").send_keys("\ue00c")  # Escape
    body.send_keys(" ")
    wait_until(lambda: text(browser, "pause") == "Resume")
    time.sleep(0.3)
    shown = counter(browser, "displayed")
    time.sleep(0.5)
    assert counter(browser, "displayed") == shown
    cursor = browser.execute_script("return wavecore.viewer.state.cursor")
    body.send_keys("\ue012")  # left
    body.send_keys(" ")
    wait_until(lambda: counter(browser, "displayed") > shown + 8, 10)
    assert browser.execute_script("return wavecore.viewer.state.cursor") >= cursor
    body.send_keys("/")
    assert browser.switch_to.active_element.get_attribute("id") == "prompt"
    assert errors(browser) == []


def test_a_lost_connection_is_taken_up_again(browser, server):
    open_page(browser, server.url)
    start(browser)
    browser.execute_script("wavecore.viewer.connection.socket.close()")
    before = counter(browser, "displayed")
    wait_until(lambda: counter(browser, "displayed") > before + 8, 15)
    assert text(browser, "status").startswith("free")


def test_the_camera_is_restyled(browser, server):
    open_page(browser, server.url)
    browser.execute_script(
        "document.getElementById('source').value = 'camera';"
        "document.getElementById('source').dispatchEvent(new Event('change'))"
    )
    start(browser)
    browser.find_element("id", "stop").click()
    wait_until(lambda: text(browser, "status") == "ended: stopped")
    assert errors(browser) == []


def test_the_page_fits_a_phone(browser, server):
    open_page(browser, server.url)
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True},
    )
    try:
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        small = browser.execute_script(
            "return [...document.querySelectorAll('button')].filter(b => b.offsetHeight < 32).length"
        )
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert wide <= 360
    assert small == 0
