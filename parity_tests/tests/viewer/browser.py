"""Chromium without a window, driven through a pipe by its own protocol; nothing is installed for it."""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-extensions", "--disable-background-networking", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip


def chromium() -> str | None:
    """The program; None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One tab. Errors of a page, and whatever it tries to fetch, are kept."""

    def __init__(self, write: int, read: int) -> None:
        self.out, self.into, self.number = os.fdopen(write, "wb", 0), os.fdopen(read, "rb"), 0
        self.errors: list[str] = []
        self.fetched: list[str] = []
        self.session = ""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "Accessibility"):
            self.ask(f"{domain}.enable")

    def _message(self) -> dict[str, Any]:
        text = bytearray()
        while (c := self.into.read(1)) not in (b"\0", b""):
            text += c
        if not text:
            raise ConnectionError("chromium ended")
        message = json.loads(text)
        said = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            details = said["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif message.get("method") == "Log.entryAdded" and said["entry"]["level"] == "error":
            self.errors.append(said["entry"]["text"])
        elif message.get("method") == "Network.requestWillBeSent":
            self.fetched.append(said["request"]["url"])
        return message

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of one command.

        Raises:
            RuntimeError: the browser refuses it.
        """
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        message |= {"sessionId": self.session} if self.session else {}
        self.out.write(json.dumps(message).encode() + b"\0")
        while (answer := self._message()).get("id") != self.number:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a file, in a window of a size, in light or dark."""
        self.errors.clear()
        self.fetched.clear()
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask("Page.navigate", url=path.resolve().as_uri())
        while self._message().get("method") != "Page.loadEventFired":
            pass

    def run(self, script: str) -> Any:
        """The value of an expression in the page.

        Raises:
            RuntimeError: it throws.
        """
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"].get("exception", {}).get("description", script))
        return found["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """A key, as a keyboard sends it."""
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def screenshot(self, path: Path) -> None:
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        found = self.ask("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with a profile of its own in a folder, ended with the context."""
    (their_in, write), (read, their_out) = os.pipe(), os.pipe()
    # Chromium reads commands from descriptor 3 and writes to 4.
    command = [str(chromium()), *OPTIONS, f"--user-data-dir={profile}", "about:blank"]
    script = f'exec 3<&{their_in} 4>&{their_out}; exec "$0" "$@"'
    process = subprocess.Popen(
        ["/bin/bash", "-c", script, *command],
        pass_fds=(their_in, their_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    os.close(their_in)
    os.close(their_out)
    tab = Browser(write, read)
    try:
        yield tab
    finally:
        process.terminate()
        process.wait(timeout=20)
        tab.out.close()
        tab.into.close()
