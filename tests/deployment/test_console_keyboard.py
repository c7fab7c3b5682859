"""The console by keyboard alone, in a real browser: where Tab goes, that one sees it, and that an officer decides."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.browser import CHROMIUM, SHIFT, STOPS, Page, browser
from tests.deployment import test_console_live
from tests.deployment.test_console import hold

place, port = test_console_live.place, test_console_live.port  # fixtures
pytestmark = [pytest.mark.live, pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")]
AGAIN = 5.0  # seconds after which a page fetches its facts anew


@pytest.fixture(scope="module")
def page(place: Path, port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The console's first page, after somebody has signed in without a mouse."""
    for job in ("yes", "no"):
        folder = place / "work" / "jobs" / job
        folder.mkdir()
        (folder / "log.txt").write_text("2026-01-01 00:00:00 rows are held\n")
        hold(folder, job)
    begin = place / "work" / "jobs" / "begin"
    begin.mkdir()
    (begin / "log.txt").write_text("2026-01-01 00:00:00 the job is held\n")
    terms = {"digest": "cd", "rows": 0, "since": 1e9, "terms": ["submitted by = alice", 'algorithm = "silofuse"']}
    (begin / "held.json").write_text(json.dumps(terms))
    with browser(tmp_path_factory.mktemp("profile")) as shown:
        shown.open(f"http://127.0.0.1:{port}/login", "Sign in")
        shown.tab_to("token")
        shown.write((place / "work" / "console.token").read_text().strip())
        shown.press("Enter")
        shown.until("document.title.startsWith('Jobs')")
        yield shown


def walked(page: Page, modifiers: int = 0) -> list[dict[str, Any]]:
    """All that has the focus, one after the other, until Tab leaves the page."""
    found: list[dict[str, Any]] = []
    for _ in range(100):
        page.press("Tab", modifiers)
        one = page.focus()
        if one is None or (found and one["number"] == found[0]["number"]):
            return found
        found.append(one)
    raise AssertionError("Tab never leaves the page")


@pytest.mark.parametrize(
    ("path", "title"),
    [
        ("/", "Jobs"), ("/policy", "The policy"), ("/job/yes", "Job"), ("/job/yes/held", "Decide on"),
        ("/job/begin/held", "Decide on"), ("/job/held/ledger", "Ledger of"), ("/job/none", "That did not work"),
    ],
)  # fmt: skip
def test_tab_comes_to_everything_once_in_the_order_of_the_page_and_one_sees_where(
    page: Page, port: int, path: str, title: str
) -> None:
    page.open(f"http://127.0.0.1:{port}{path}", title)
    stops = page.run(STOPS)
    on = walked(page)
    assert [one["number"] for one in on] == stops
    assert [one for one in on if one["outline"] < 2] == []
    assert [one for one in on if not one["seen"]] == []
    assert all(one["text"] or one["what"] == "input" for one in on)
    assert on[0]["text"] == "To the content"
    page.open(f"http://127.0.0.1:{port}{path}", title)
    back = walked(page, SHIFT)
    assert [one["number"] for one in back] == stops[::-1]


def test_a_focus_that_nobody_sees_would_be_found(page: Page, port: int) -> None:
    page.open(f"http://127.0.0.1:{port}/job/none", "That did not work")
    page.run("document.querySelector('main a').style.outline = 'none'")
    page.run("document.querySelector('nav a').tabIndex = -1")
    on = walked(page)
    assert [one["text"] for one in on if one["outline"] < 2] == ["To all jobs"]
    assert len(on) == len(page.run(STOPS)) - 1


def test_the_bar_is_skipped(page: Page, port: int) -> None:
    page.open(f"http://127.0.0.1:{port}/policy", "The policy")
    page.tab_to("To the content")
    page.press("Enter")
    assert page.run("document.activeElement.id") == "main"
    page.press("Tab")
    focus = page.focus()
    assert focus is not None and focus["text"] == "Rules in force"


@pytest.mark.slow
def test_nothing_takes_the_focus_from_who_works(page: Page, place: Path, port: int) -> None:
    page.open(f"http://127.0.0.1:{port}/job/held", "Job")
    page.tab_to("The ledger, line by line")
    (place / "work" / "jobs" / "held" / "log.txt").write_text("2026-01-01 00:00:01 something new\n")
    time.sleep(AGAIN + 2)
    focus = page.focus()
    assert focus is not None and focus["text"] == "The ledger, line by line"
    page.run("document.activeElement.blur()")
    page.until("document.body.textContent.includes('something new')")


@pytest.mark.parametrize(
    ("job", "waits", "button", "key", "verdict"),
    [
        ("yes", "rows of yes wait", "Yes, they may leave", "Enter", "approved"),
        ("no", "rows of no wait", "No, end the job here", "Space", "refused"),
        ("begin", "The start of begin waits", "Yes, it may begin", "Space", "approved"),
    ],
)
def test_an_officer_decides_without_a_mouse(
    page: Page, place: Path, port: int, job: str, waits: str, button: str, key: str, verdict: str
) -> None:
    page.open(f"http://127.0.0.1:{port}/", "Jobs")
    page.tab_to(waits)
    page.press("Enter")
    page.until(f"document.title.startsWith('Decide on {job}')")
    page.tab_to(button)  # nothing is sent without a name and a reason
    page.press(key)
    assert not (place / "work" / "jobs" / job / "decisions.jsonl").exists()
    focus = page.focus()
    assert focus is not None and focus["id"] == "who"
    page.write("Ada")
    page.press("Tab")
    page.write("looked at, by keyboard")
    page.tab_to(button)
    page.press(key)
    page.until("!document.title.startsWith('Decide')")
    (line,) = (place / "work" / "jobs" / job / "decisions.jsonl").read_text().splitlines()
    decided = json.loads(line)
    assert (decided["verdict"], decided["reason"]) == (verdict, "looked at, by keyboard")
    assert "Ada" in decided["by"]
