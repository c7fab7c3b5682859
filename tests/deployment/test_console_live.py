"""The console as a process, in a real browser."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.deployment.test_console import NASTY, hold, kit, lines, message

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.live
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--virtual-time-budget=8000", "--enable-logging=stderr", "--v=0",
)  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A silo's kit, with a job that holds rows."""
    folder = kit(tmp_path_factory.mktemp("console") / "bank", "bank")
    job = folder / "work" / "jobs" / "held"
    job.mkdir()
    (job / "log.txt").write_text(f"2026-01-01 00:00:00 {NASTY}\n")
    (job / "ledger.jsonl").write_text(lines(message(0, "bank", 10)))
    hold(job, "ab")
    return folder


@pytest.fixture(scope="module")
def port(place: Path) -> Iterator[int]:
    """Of a console, with what it has said in ``place / "said.txt"``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = int(free.getsockname()[1])
    argv = [sys.executable, "-m", "silosynth", "console", "--kit", str(place), "--port", str(number)]
    with open(place / "said.txt", "w") as said, subprocess.Popen(argv, stdout=said, stderr=said) as process:
        try:
            _until_it_answers(number)
            yield number
        finally:
            process.terminate()


def _until_it_answers(port: int) -> None:
    for _ in range(1200):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
        except urllib.error.HTTPError:
            return  # it answers that the engine does not run
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the console does not answer")


def test_it_answers_whom_it_should_and_says_no_token(place: Path, port: int) -> None:
    token = (place / "work" / "console.token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=headers)) as answer:
        assert b"silosynth_held_rows 2" in answer.read()
    for wrong in ({"Host": "evil.example"}, {"Authorization": "Bearer no"}, {"Content-Length": "9999999"}):
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=wrong))
    said = (place / "said.txt").read_text()
    assert token not in said and "console.token" in said


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_a_browser_signs_in_by_a_link_and_runs_nothing_of_others(place: Path, port: int) -> None:
    token = (place / "work" / "console.token").read_text().strip()
    with tempfile.TemporaryDirectory() as profile:
        shown = subprocess.run(
            [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", "--dump-dom",
             f"http://127.0.0.1:{port}/login#{token}"],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
    assert "<title>Jobs – bank – silosynth</title>" in shown.stdout
    assert "2 synthetic rows of held wait for a decision" in re.sub(r"\s+", " ", shown.stdout)
    assert "Content Security Policy" not in shown.stderr and token not in shown.stdout
