"""A Chromium that a test drives: pages at any width, what a reader would see, and what the browser complains about.

It speaks the DevTools protocol over two pipes, which needs no further package.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
_PATIENCE = 60.0


class Page:
    """One tab.

    Attributes:
        complaints: Errors of scripts, refusals of the content security policy, files that could not be loaded.
    """

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read, self._rest = write, read, b""
        self._numbers, self._session = itertools.count(1), ""
        self.complaints: list[str] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._ask(f"{domain}.enable")

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select.select([self._read], [], [], _PATIENCE)[0], "Chromium does not answer"
            piece = os.read(self._read, 1 << 20)
            assert piece, "Chromium has ended"
            self._rest += piece
        raw, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(raw)
        about = found.get("params", {})
        if found.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(about["exceptionDetails"])[:500])
        if found.get("method") == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{about['entry']['text']} {about['entry'].get('url', '')}")
        return found

    def resize(self, width: int, height: int = 900) -> None:
        """As on a screen of this width; below 600 as on a phone."""
        self._ask(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )

    def scripts(self, allowed: bool) -> None:
        """Whether pages may run scripts from here on."""
        self._ask("Emulation.setScriptExecutionDisabled", value=not allowed)

    def open(self, address: str) -> None:
        """Open a page, and wait until it is there."""
        self._ask("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def leave(self) -> None:
        """Show nothing, so that no page asks a server that has ended; what was complained about is forgotten."""
        self._ask("Page.navigate", url="about:blank")
        self.complaints.clear()

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript comes to."""
        with_promise = {"awaitPromise": True, "returnByValue": True}
        found = self._ask("Runtime.evaluate", expression=expression, **with_promise)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, expression: str, seconds: float = 30) -> Any:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while True:
            # Between two pages there is nothing to ask.
            with suppress(AssertionError):
                if found := self.value(f"Boolean({expression})"):
                    return found
            assert time.monotonic() < end, f"never: {expression}\n{self.text()[:3000]}\n{self.complaints}"
            time.sleep(0.05)

    def click(self, selector: str) -> None:
        """Click what a CSS selector names; it must be there."""
        self.value(f"document.querySelector({json.dumps(selector)}).click()")

    def fill(self, selector: str, text: str) -> None:
        """Fill in a field."""
        self.value(f"document.querySelector({json.dumps(selector)}).value = {json.dumps(text)}")

    def text(self) -> str:
        """What the page says."""
        return str(self.value("document.body.innerText"))

    def too_wide(self) -> list[str]:
        """What sticks out on the right, so that a reader would have to scroll; small type, too."""
        return list(
            self.value("""(() => {
  const wide = document.documentElement.clientWidth;
  const told = document.documentElement.scrollWidth > wide ? ["the page: " + document.documentElement.scrollWidth] : [];
  for (const one of document.querySelectorAll("main *")) {
    if (!one.checkVisibility()) continue;  // what is folded away is not laid out
    const box = one.getBoundingClientRect();
    if (box.width && box.right > wide + 1 && !one.closest(".scroll, .log, svg")) told.push(one.outerHTML.slice(0, 120));
    if (one.matches("input, select, button, textarea, p, td, label") && parseFloat(getComputedStyle(one).fontSize) < 11)
      told.push("small: " + one.outerHTML.slice(0, 120));
  }
  return told.slice(0, 5);
})()""")
        )

    def picture(self, file: Path, *, whole: bool = True) -> None:
        """A PNG of the page, or of what of it the window shows."""
        found = self._ask("Page.captureScreenshot", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(found["data"]))


def chromium() -> str | None:
    """Where Chromium is."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A tab of a Chromium of its own, which ends with the block."""
    program = chromium()
    assert program is not None
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--no-first-run",
        "--remote-debugging-pipe",
    ]
    flags += ["--disable-background-networking", "--disable-component-update", f"--user-data-dir={folder}/profile"]
    # Chromium reads from descriptor 3 and writes to 4.
    command = ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{from_write}', "chromium", program, *flags, "about:blank"]
    process = subprocess.Popen(
        command,
        pass_fds=(to_read, from_write),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_read)
    os.close(from_write)
    try:
        yield Page(to_write, from_read)
    finally:
        process.terminate()
        process.wait(20)
        os.close(to_write)
        os.close(from_read)
