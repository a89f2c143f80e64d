"""A headless Chromium driven over its debugging pipe: no package beyond the browser itself is needed."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str | None:
    """Path of an installed Chromium; None if there is none."""
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


class Page:
    """One tab. `problems` collects errors, warnings and dialogs; `requests` every address the page asked for."""

    def __init__(self, browser: Chromium, session: str):
        self._browser, self._session = browser, session
        self.problems: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, params, self._session)

    def open(self, path: Path, *, width: int, height: int = 900, scheme: str = "light") -> None:
        """Loads a file at a window size with a colour scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=path.resolve().as_uri())
        self._browser.wait_for(lambda event: event.get("method") == "Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        """The JSON value of an expression; an exception in it fails the test."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def move_mouse(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        data = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(f"exception: {params['exceptionDetails']}")
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.problems.append(f"console: {params['args']}")
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.problems.append(f"log: {params['entry']['text']}")
            case "Page.javascriptDialogOpening":
                self.problems.append(f"dialog: {params['message']}")
                self._browser.send("Page.handleJavaScriptDialog", {"accept": True}, self._session)
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])


class Chromium:
    """The process and its pipe: messages are JSON, each ended by a NUL byte."""

    TIMEOUT = 60.0

    def __init__(self, program: str):
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-")
        child_in, self._out = os.pipe()
        self._in, child_out = os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        options += ["--disable-background-networking", "--hide-scrollbars", f"--user-data-dir={self._profile.name}"]
        # The browser reads file descriptor 3 and writes 4: a small launcher puts the pipes there.
        launcher = (
            "import os, sys; there, back = int(sys.argv[1]), int(sys.argv[2]); "
            "os.dup2(there, 100); os.dup2(back, 101); os.dup2(100, 3); os.dup2(101, 4); os.execv(sys.argv[3], sys.argv[3:])"
        )
        self._log = Path(self._profile.name) / "stderr.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    launcher,
                    str(child_in),
                    str(child_out),
                    program,
                    "--remote-debugging-pipe",
                    *options,
                ],
                pass_fds=(child_in, child_out),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        os.close(child_in)
        os.close(child_out)
        self._buffer, self._last_id = b"", 0
        self._pages: dict[str, Page] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._out)  # the browser leaves when its pipe ends
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        self._profile.cleanup()

    def new_page(self) -> Page:
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        self._pages[session] = page = Page(self, session)
        return page

    def send(self, method: str, params: dict[str, Any], session: str | None = None) -> int:
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": params}
        os.write(self._out, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        return self._last_id

    def call(self, method: str, params: dict[str, Any], session: str | None = None) -> dict[str, Any]:
        identifier = self.send(method, params, session)
        answer = self.wait_for(lambda event: event.get("id") == identifier)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Reads on until a message fits; every event on the way is noted by its page."""
        deadline = time.monotonic() + self.TIMEOUT
        while True:
            message = self._read(deadline)
            if (page := self._pages.get(message.get("sessionId", ""))) is not None:
                page.note(message)
            if wanted(message):
                return message

    def _read(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "Chromium did not answer in time"
            piece = os.read(self._in, 1 << 16)
            assert piece, f"Chromium has left: {self._log.read_text(errors='replace')[-2000:]}"
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)
