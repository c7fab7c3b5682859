"""Chromium at somebody's hands: keys are pressed, and what has the focus is looked at.

It speaks Chromium's DevTools protocol over a pair of pipes, so that nothing has to be installed and no port is opened.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
)  # fmt: skip
KEYS = {"Tab": 9, "Enter": 13, "Space": 32}
SHIFT = 8
SECONDS = 60.0
FOCUS = """(() => {
  const one = document.activeElement;
  if (!one || one === document.body) return null;
  const style = getComputedStyle(one), box = one.getBoundingClientRect();
  return {
    what: one.tagName.toLowerCase(), id: one.id, name: one.name || "", value: one.value || "",
    text: (one.getAttribute("aria-label") || one.textContent || "").replace(/\\s+/g, " ").trim(),
    outline: style.outlineStyle === "none" ? 0 : parseFloat(style.outlineWidth),
    seen: box.width > 0 && box.height > 0 && box.left < innerWidth && box.right > 0 && box.top < innerHeight
      && box.bottom > 0,
    number: [...document.querySelectorAll("*")].indexOf(one),
  };
})()"""
STOPS = """[...document.querySelectorAll(
    "a[href], button, textarea, input:not([type=hidden]), [tabindex='0'], summary, select")]
  .map(one => [...document.querySelectorAll("*")].indexOf(one))"""


class Page:
    """A page of a browser.

    Args:
        to: where commands are written.
        back: where answers are read.
    """

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back, self._number, self._rest = to, back, 0, b""
        self._session = ""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.ask("Page.enable")
        self.ask("Emulation.setFocusEmulationEnabled", enabled=True)

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command; returns its result."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._to, json.dumps(command).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            text = os.read(self._back, 65536)
            assert text, "Chromium has ended"
            self._rest += text
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def run(self, script: str) -> Any:
        """The value of a script."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def open(self, address: str, title: str) -> None:
        """Go to a page, and wait until it is there."""
        self.ask("Page.navigate", url=address)
        self.until(f"document.readyState === 'complete' && document.title.startsWith({json.dumps(title)})")

    def until(self, script: str) -> None:
        """Wait until a script is true, also while a page gives way to another."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            found = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
            if found["result"].get("value") is True:
                return
            time.sleep(0.05)
        raise AssertionError(f"never: {script}; {self.run('document.title')}")

    def press(self, key: str, modifiers: int = 0) -> None:
        """Press a key, and let it go."""
        code = {"key": " " if key == "Space" else key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        text = {"Enter": "\r", "Space": " "}.get(key)
        down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        self.ask("Input.dispatchKeyEvent", **down, **code, modifiers=modifiers)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **code, modifiers=modifiers)

    def write(self, text: str) -> None:
        """Write text, letter by letter."""
        for letter in text:
            self.ask("Input.dispatchKeyEvent", type="char", text=letter)

    def focus(self) -> dict[str, Any] | None:
        """What has the focus; None if nothing has."""
        found: dict[str, Any] | None = self.run(FOCUS)
        return found

    def tab_to(self, text: str) -> dict[str, Any]:
        """Press Tab until something with this text, or of this id, has the focus."""
        for _ in range(60):
            self.press("Tab")
            found = self.focus()
            if found is not None and (text in found["text"] or text == found["id"]):
                return found
        raise AssertionError(f"Tab never comes to {text!r}")


@contextmanager
def browser(profile: Path, width: int = 1280, height: int = 800) -> Iterator[Page]:
    """A page of a new browser, which ends with the block."""
    (read_by_it, to), (back, written_by_it) = _pipe(), _pipe()
    argv = [str(CHROMIUM), *FLAGS, f"--window-size={width},{height}", f"--user-data-dir={profile}", "about:blank"]
    shell = ["bash", "-c", f'exec 3<&{read_by_it} 4>&{written_by_it}; exec "$@"', "bash", *argv]
    process = subprocess.Popen(shell, pass_fds=(read_by_it, written_by_it), stderr=subprocess.DEVNULL)
    os.close(read_by_it)
    os.close(written_by_it)
    try:
        yield Page(to, back)
    finally:
        process.terminate()
        process.wait(30)
        os.close(to)
        os.close(back)


def _pipe() -> tuple[int, int]:
    """Both ends, by numbers that a browser's own 3 and 4 do not meet."""
    made = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in made)
    for end in made:
        os.close(end)
    return high[0], high[1]
