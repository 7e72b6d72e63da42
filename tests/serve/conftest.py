"""A server with a client, and a browser where the system has one."""

from __future__ import annotations

import os
import shutil

import pytest
from support.serving import serving

from wavecore.client import Client


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium from the system's packages, driven over WebDriver."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no Chromium with chromedriver (Debian: apt-get install chromium chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--disable-gpu", "--window-size=1200,900", "--hide-scrollbars"):
        options.add_argument(argument)
    options.add_argument("--use-fake-device-for-media-stream")
    options.add_argument("--use-fake-ui-for-media-stream")
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium has none for root
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    started.set_script_timeout(30)
    yield started
    started.quit()


@pytest.fixture(scope="module")
def server():
    with serving() as running:
        yield running


@pytest.fixture
def client(server):
    with Client(server.url) as connected:
        yield connected
        if connected.started is not None and connected.close_code is None:
            connected.stop()
