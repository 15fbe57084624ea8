"""A headless Chromium, controlled over its debugging pipe: one page, with evaluation, waits and screenshots."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

DEADLINE_S = 30.0
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # as root, which CI is, it has none
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--no-proxy-server",
    "--mute-audio",
    "--remote-debugging-pipe",
)


class Browser:
    """One browser with one page.

    Attributes:
        errors: what the page logged as an error, and exceptions that nobody caught.
        requests: urls that the document which is open now asked for, itself first.
    """

    def __init__(self, folder: Path) -> None:
        """Start it; its profile is kept in `folder`."""
        chromium = shutil.which("chromium") or shutil.which("chromium-browser")
        assert chromium, "chromium is not installed: apt-get install chromium"
        to_read, self._write = os.pipe2(os.O_CLOEXEC)
        self._read, to_write = os.pipe2(os.O_CLOEXEC)
        # Chromium wants them as 3 and 4, which only a shell gives without a word between fork and exec.
        command = ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write}', "bash", chromium, *_FLAGS, f"--user-data-dir={folder}"]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, pass_fds=(to_read, to_write), stdin=quiet, stdout=quiet, stderr=quiet)
        os.close(to_read)
        os.close(to_write)
        self._number = 0
        self._buffer = b""
        self._answers: dict[int, dict[str, Any]] = {}
        self._session: str | None = None
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._loader = ""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: object) -> dict[str, Any]:
        """Send a command; its result."""
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while self._number not in self._answers:
            self._take()
        answer = self._answers.pop(self._number)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def _take(self) -> None:
        data = os.read(self._read, 1 << 20)
        assert data, "the browser is gone"
        *messages, self._buffer = (self._buffer + data).split(b"\0")
        for text in messages:
            self._told(json.loads(text))

    def _told(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers[message["id"]] = message
            return
        told = message["params"]
        if message["method"] == "Network.requestWillBeSent":
            if told["type"] == "Document":
                self.requests.clear()
                self._loader = told["loaderId"]
            if told["loaderId"] in ("", self._loader):  # the document before may ask until this one is there
                self.requests.append(told["request"]["url"])
        elif message["method"] == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(told["exceptionDetails"])[:1000])
        elif message["method"] == "Log.entryAdded" and told["entry"]["level"] == "error" and told["entry"]["source"] != "network":
            self.errors.append(told["entry"]["text"])

    def open(self, url: str) -> None:
        """Go there, and wait until the page is loaded."""
        self.ask("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str) -> Any:
        """Return the value of an expression, or of its promise."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, script: str) -> Any:
        """Wait until an expression holds; its value."""
        deadline = time.monotonic() + DEADLINE_S
        while not (found := self.run(script)):
            assert time.monotonic() < deadline, f"never came true: {script}; the page says: {self.text()[:3000]}; {self.errors}"
            time.sleep(0.05)
        return found

    def text(self, selector: str = "body") -> str:
        """Return the visible text of an element."""
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def press(self, *keys: str) -> None:
        """Press keys, by name (Tab, Enter, ArrowLeft)."""
        for key in keys:
            text = {"text": "\r"} if key == "Enter" else {}
            code = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39}[key]
            self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=code, **text)
            self.ask("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)

    def size(self, width: int, height: int, *, scheme: str = "light", mobile: bool = False) -> None:
        """Give the page a size and a colour scheme."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def close(self) -> None:
        """End it."""
        self._session = None
        try:
            self.ask("Browser.close")
        except (AssertionError, OSError):
            self._process.kill()  # it went before it answered, or hangs
        self._process.wait(DEADLINE_S)
        os.close(self._read)
        os.close(self._write)

    def __enter__(self) -> Self:
        """The browser itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End it."""
        self.close()


def same_origin(urls: Sequence[str], origin: str) -> bool:
    """Return whether all requests went to the page's own origin."""
    return all(url.startswith((origin, "data:", "about:", "blob:")) for url in urls)
