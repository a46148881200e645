"""Headless Chromium for the page's end-to-end tests: started without anything that would talk to the network by itself."""

from __future__ import annotations

import json
import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.orchestrator.stand_in import wait_for

CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
DRIVER = shutil.which("chromedriver")
MISSING = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver")
MARKS = [pytest.mark.browser, pytest.mark.slow, MISSING]
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class Browser(AbstractContextManager):
    """A driver with the few verbs the tests use, and a record of everything that the page asked the network for."""

    def __init__(self, profile: Path, *, width: int = 1400, height: int = 1000, dark: bool = False) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = str(CHROMIUM)
        for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def open(self, url: str) -> None:
        self.driver.get(url)
        self.wait("document.querySelector('[data-panel=front] .main-svg .points') && Craft.page.table && Craft.page.table.data")

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(f"return ({script});", *arguments)

    def wait(self, script: str, seconds: float = 60.0) -> Any:
        """Until the script's value is true; the value."""
        return wait_for(lambda: self.run(script), seconds=seconds)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, **more})

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        self.mouse("mouseMoved", *start)
        self.mouse("mousePressed", *start, button="left", buttons=1, clickCount=1)
        for share in (0.3, 0.6, 1.0):
            at = (start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1]))
            self.mouse("mouseMoved", *at, button="left", buttons=1)
        self.mouse("mouseReleased", *end, button="left", clickCount=1)

    def complaints(self) -> list[str]:
        """Console messages that are errors or warnings, since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def hosts(self) -> set[str]:
        """Hosts of all requests the page has made since the last call; data: and blob: are no requests."""
        asked = set()
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = urlsplit(message["params"]["request"]["url"])
                # chrome: and chrome-untrusted: are the browser's own, the empty tab that it starts with
                if url.scheme not in ("data", "blob", "chrome", "chrome-untrusted"):
                    asked.add(f"{url.scheme}://{url.netloc}")
        return asked

    def __exit__(self, *_: object) -> None:
        self.driver.quit()
