"""A headless Chromium, driven over a pipe with its DevTools protocol: no network but the page's own."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
LAUNCHER = """
import fcntl, os, sys
aside = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 100) for number in sys.argv[1:3]]
for number, wanted in zip(aside, (3, 4)):
    os.dup2(number, wanted)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One tab; Chromium reads commands from descriptor 3 and answers on descriptor 4, each message ended by a zero."""

    def __init__(self, profile: Path):
        read, self._write = os.pipe()
        self._read, write = os.pipe()
        command = [str(PROGRAM), *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        command = [sys.executable, "-IS", "-c", LAUNCHER, str(read), str(write), *command]
        self._process = subprocess.Popen(command, pass_fds=(read, write), stderr=subprocess.DEVNULL)
        os.close(read)
        os.close(write)
        self._rest, self._number, self._session = b"", 0, None
        self.problems: list[str] = []  # errors of the page: exceptions, what its security policy blocks
        self.requests: list[str] = []  # addresses that the page asked for
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def open(self, url: str, width: int = 1400, height: int = 1000, dark: bool = False) -> None:
        self.resize(width, height)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._call("Emulation.setEmulatedMedia", features=scheme)
        self._call("Page.navigate", url=url)

    def resize(self, width: int, height: int = 1000) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **size)

    def get(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        found = self._evaluate(expression)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Return the value of an expression once it is true; give up after a minute.

        Not yet true is also one about an element that the page is just drawing.
        """
        end = time.monotonic() + 60
        while not (value := self._evaluate(expression)["result"].get("value")):
            assert time.monotonic() < end, f"never true: {expression}\n{self.get('document.body.innerText')}"
            time.sleep(0.05)
        return value

    def _evaluate(self, expression: str) -> dict[str, Any]:
        return self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)

    def press(self, key: str) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            code = {"Tab": 9, " ": 32, "ArrowLeft": 37, "ArrowRight": 39, "Escape": 27}[key]
            self._call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code)
            if key == " " and kind == "rawKeyDown":
                self._call("Input.dispatchKeyEvent", type="char", key=key, text=" ")

    def screenshot(self, file: Path, whole: bool = False) -> Path:
        file.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]))
        return file

    def close(self) -> None:
        with suppress(OSError, EOFError):
            self._session = None
            self._call("Browser.close")
        self._process.terminate()
        self._process.wait(30)
        os.close(self._write)
        os.close(self._read)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._message()).get("id") != self._number:
            self._note(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _note(self, event: dict[str, Any]) -> None:
        about = event.get("params", {})
        if event["method"] == "Runtime.exceptionThrown":
            self.problems.append(str(about["exceptionDetails"]))
        elif event["method"] == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.problems.append(str(about["entry"]["text"]))
        elif event["method"] == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._read, 2**16)
            if not more:
                raise EOFError("Chromium has ended.")
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)
