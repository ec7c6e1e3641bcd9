"""Chromium without a window, driven by its DevTools protocol."""

import base64
import contextlib
import itertools
import json
import re
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from websockets.sync.client import connect

from support.cluster import find_tool, wait_until

# Without those of drivers that keep hidden pages awake.
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # which does not work as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--ignore-certificate-errors",  # of authorities of the tests, which users import
    "--remote-debugging-port=0",
    "--window-size=1000,900",
)


class Tab:
    """A page."""

    def __init__(self, url: str):
        self._opened = contextlib.ExitStack()
        self._link = self._opened.enter_context(connect(url, max_size=None, compression=None))
        self._numbers = itertools.count(1)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Calls a method of the protocol; returns its result."""
        number = next(self._numbers)
        self._link.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:  # events come in between
            answer = json.loads(self._link.recv(timeout=60))
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def evaluate(self, expression: str) -> Any:
        """Returns the value of an expression of JavaScript, or of its promise."""
        wanted = {"returnByValue": True, "awaitPromise": True}
        result = self.call("Runtime.evaluate", expression=expression, **wanted)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, condition: str, timeout_sec: float = 60) -> None:
        """Waits until an expression is true."""
        wait_until(lambda: self.evaluate(condition), (condition, self), timeout_sec)

    def take_screenshot(self, file: Path) -> None:
        """Writes a PNG of what the page shows."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        """Ends the link; the page stays."""
        self._opened.close()

    def __repr__(self) -> str:
        return f"the page shows {self.evaluate('document.body && document.body.innerText')!r}"


def open_tab(browser: str, url: str, in_window: bool = False) -> Tab:
    """Opens a page in front of the others.

    Args:
      browser: `url` of a `Chromium`.
      url: of the page.
      in_window: in a window of its own, so that no other page hides it.
    """
    link = Tab(browser)
    try:
        target = link.call("Target.createTarget", url=url, newWindow=in_window)["targetId"]
    finally:
        link.close()
    return Tab(f"ws://{urlsplit(browser).netloc}/devtools/page/{target}")


class Chromium:
    """A browser with a profile of its own. A context manager.

    Attributes:
      url: of its DevTools.

    Args:
      folder: for the profile.
    """

    def __init__(self, folder: Path):
        path = find_tool("chromium", "chromium", "RELAAX_REQUIRE_CHROMIUM")
        self._log = folder / "chromium.log"
        self._tabs: list[Tab] = []
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [path, *_FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            pattern = r"DevTools listening on ws://([\d.]+:\d+)/(\S+)"
            found = wait_until(lambda: re.search(pattern, self._log.read_text()), self._log)
            self.url = f"ws://{found[1]}/{found[2]}"
        except BaseException:
            self.close()
            raise

    def open(self, url: str) -> Tab:
        """Opens a page in front of the others."""
        self._tabs.append(open_tab(self.url, url))
        return self._tabs[-1]

    def close(self) -> None:
        """Ends the browser and all its processes."""
        for tab in self._tabs:
            tab.close()
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(20)

    def __enter__(self) -> "Chromium":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
