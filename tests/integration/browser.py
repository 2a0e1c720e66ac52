"""Drives a headless Chromium through its WebDriver, with nothing but the standard library.

Not here: tests; they skip with a reason where there is no Chromium.
"""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key that the WebDriver standard prescribes
_START_S = 30.0


def missing() -> str | None:
    """Why no browser can be driven here, or None."""
    if shutil.which("chromedriver") is None:
        return "no chromedriver: apt-get install chromium chromium-driver"
    if not any(shutil.which(name) for name in BROWSERS):
        return "no Chromium: apt-get install chromium chromium-driver"
    return None


class Browser:
    """One page in one session."""

    def __init__(self, address: str, session: str) -> None:
        self._base = f"{address}/session/{session}"

    def open(self, page: Path) -> None:
        """Opens a file from disk."""
        self._post("url", {"url": page.resolve().as_uri()})

    def resize(self, width: int, height: int) -> None:
        """Gives the page itself (not the window around it) a size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        command = {"cmd": "Emulation.setDeviceMetricsOverride", "params": size}
        self._post("goog/cdp/execute", command)

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of ``return ...`` in the page."""
        return self._post("execute/sync", {"script": script, "args": list(arguments)})

    def click(self, selector: str) -> None:
        """Clicks the first element that a selector finds."""
        self._post(f"element/{self._find(selector)}/click", {})

    def hover(self, selector: str) -> None:
        """Moves the pointer over the middle of an element."""
        origin = {_ELEMENT: self._find(selector)}
        move = {"type": "pointerMove", "duration": 0, "origin": origin, "x": 0, "y": 0}
        pointer = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}}
        self._post("actions", {"actions": [{**pointer, "actions": [move]}]})

    def screenshot(self, path: Path) -> None:
        """Writes what is visible as PNG."""
        path.write_bytes(base64.b64decode(self._send("GET", "screenshot")))

    def console(self) -> list[str]:
        """Messages of the console that are errors or warnings, since the last call."""
        return [
            f"{entry['level']}: {entry['message']}"
            for entry in self._post("se/log", {"type": "browser"})
        ]

    def requests(self) -> list[str]:
        """Addresses that the page asked for, since the last call."""
        found = []
        for entry in self._post("se/log", {"type": "performance"}):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.append(message["params"]["request"]["url"])
        return found

    def _find(self, selector: str) -> str:
        found = self._post("element", {"using": "css selector", "value": selector})
        return str(found[_ELEMENT])

    def _post(self, command: str, body: dict[str, Any]) -> Any:
        return self._send("POST", command, body)

    def _send(self, method: str, command: str, body: dict[str, Any] | None = None) -> Any:
        return send(method, f"{self._base}/{command}", body)


def send(method: str, url: str, body: dict[str, Any] | None = None) -> Any:
    """One WebDriver command; returns its value."""
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urlopen(request, timeout=60) as response:
        return json.loads(response.read())["value"]


@contextmanager
def browser(width: int, height: int) -> Iterator[Browser]:
    """A headless browser whose page has this size."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    driver = subprocess.Popen(
        ["chromedriver", f"--port={port}", "--log-level=OFF"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        _await(address)
        session = send("POST", f"{address}/session", _capabilities(width, height))["sessionId"]
        try:
            page = Browser(address, session)
            page.resize(width, height)
            yield page
        finally:
            send("DELETE", f"{address}/session/{session}")
    finally:
        driver.terminate()
        driver.wait()


def _await(address: str) -> None:
    end = time.monotonic() + _START_S
    while True:
        try:
            if send("GET", f"{address}/status")["ready"]:
                return
        except (URLError, ConnectionError):
            if time.monotonic() > end:
                raise
        time.sleep(0.05)


def _capabilities(width: int, height: int) -> dict[str, Any]:
    binary = next(path for name in BROWSERS if (path := shutil.which(name)))
    arguments = [
        "--headless=new",
        "--no-sandbox",  # containers forbid the sandbox's system calls
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        f"--window-size={width},{height}",
    ]
    options = {"binary": binary, "args": arguments}
    logs = {"browser": "WARNING", "performance": "ALL"}
    return {
        "capabilities": {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": logs}}
    }
