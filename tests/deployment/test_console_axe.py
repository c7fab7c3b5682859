"""All pages of the console under axe, in a real browser: on a phone and on a desk, light and dark."""

from __future__ import annotations

import html
import importlib.util
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.deployment import test_console
from tests.deployment.test_console import Desk, KnownSite, desk, enter, get

from silosynth.deployment import audits
from silosynth.deployment.label_page import label_page
from silosynth.evaluation.pages import source

bank, coordinator = test_console.bank, test_console.coordinator  # fixtures
CHROMIUM = shutil.which("chromium")
pytestmark = [pytest.mark.live, pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")]
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--allow-file-access-from-files", "--virtual-time-budget=60000",
)  # fmt: skip
WIDTHS = (375, 1280)
DARK, LIGHT = "--blink-settings=preferredColorScheme=0", "--blink-settings=preferredColorScheme=1"
HARNESS = """<!doctype html><html lang="en"><head><title>Harness</title></head><body>FRAMES
<pre id="found"></pre><script>
addEventListener("load", async () => {
  const found = [];
  for (const frame of document.querySelectorAll("iframe")) {
    const view = frame.contentWindow, page = frame.contentDocument;
    const result = await view.axe.run(page);
    const wide = page.documentElement.scrollWidth <= view.innerWidth ? [] : [...page.querySelectorAll("body, body *")]
      .filter(e => e.getBoundingClientRect().right > view.innerWidth && !e.closest(".scroll, .log"))
      .map(e => e.outerHTML.slice(0, 200));
    if (page.documentElement.scrollWidth > view.innerWidth) wide.push("the page");
    found.push({page: frame.title, passes: result.passes.length, wide: wide,
      wrong: result.violations.map(v => v.id + ": " + v.nodes.map(n => n.html).join(" | "))});
  }
  document.getElementById("found").textContent = "FOUND" + JSON.stringify(found) + "END";
});
</script></body></html>"""


def axe() -> str:
    """The newest axe that is named by AXE_CORE, or the one of the Python package."""
    if named := os.environ.get("AXE_CORE"):
        return Path(named).read_text("utf-8")
    spec = importlib.util.find_spec("axe_core_python")
    assert spec is not None and spec.origin is not None, "pip install axe-core-python"
    return Path(spec.origin).with_name("axe.min.js").read_text("utf-8")


def pages(at: Desk, *targets: str) -> dict[str, str]:
    """Pages of a console by their addresses, each whole in itself."""
    cookie = enter(at)
    style = f"<style>{source('report.css')}\n{source('console.css')}</style><script src='axe.js'></script>"
    made = {}
    for target in targets:
        shown = get(at, target, cookie="" if target == "/login" else cookie)
        text = shown.body.decode()
        text = re.sub(r'<link rel="stylesheet"[^>]*>', lambda _: style, text)
        made[target] = re.sub(r"<script src=\"/console.js\"[^>]*></script>", "", text)
    return made


def measured(folder: Path, shown: dict[str, str], scheme: str) -> list[dict[str, object]]:
    """What axe says of each page in each width."""
    (folder / "axe.js").write_text(axe(), encoding="utf-8")
    frames = "\n".join(
        f'<iframe title="{html.escape(name)} {width}" width="{width}" height="900" srcdoc="{html.escape(text)}">'
        "</iframe>"
        for name, text in shown.items()
        for width in WIDTHS
    )
    (folder / "harness.html").write_text(HARNESS.replace("FRAMES", frames), encoding="utf-8")
    argv = [str(CHROMIUM), *FLAGS, scheme, f"--user-data-dir={folder / 'profile'}", "--dump-dom",
            (folder / "harness.html").as_uri()]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, timeout=240, check=True)
    match = re.search(r"FOUND(\[.*\])END</pre>", done.stdout, re.DOTALL)
    assert match, done.stderr[-2000:]
    found: list[dict[str, object]] = json.loads(html.unescape(match[1]))
    return found


@pytest.fixture
def all_pages(bank: KnownSite, coordinator: KnownSite) -> dict[str, str]:
    """Of a silo and of a coordinator."""
    start = bank.kit.jobs / "start"
    start.mkdir()
    (start / "log.txt").write_text("2026-01-01 00:00:00 the job is held\n")
    asked = {"digest": "cd", "rows": 0, "since": 1e9, "terms": ["submitted by = alice", 'algorithm = "silofuse"']}
    (start / "held.json").write_text(json.dumps(asked))
    silo = pages(
        desk(bank), "/login", "/", "/policy", "/job/old", "/job/held", "/job/held/held", "/job/start",
        "/job/start/held", "/job/busy/ledger", "/job/busy/ledger?q=nothing-like-this", "/job/none",
    )  # fmt: skip
    here = pages(desk(coordinator), "/", "/submit", "/job/runs", "/job/lost", "/job/runs/ledger")
    named = {f"bank {name}": text for name, text in silo.items()} | {
        f"here {name}": text for name, text in here.items()
    }
    return named | {"label": label()}


def label() -> str:
    """The page of a label with an audit whose findings were added, one whose were not, and a silo without any."""
    figure = {"name": "copies", "label": "Exact copies", "group": "disclosure", "value": 0.0, "low": 0.0, "high": 7.1,
              "floor": None, "unit": "%"}  # fmt: skip
    audit = {"of": audits.OWN, "at": "2026-01-01T00:00:00+00:00", "beside": "rows trained on", "rows": 9, "columns": [],
             "sha256": "ab", "withheld": "Too few rows.", "figures": [figure], "not_computed": {"auc": "no target"},
             "salt": "cd"}  # fmt: skip
    looked = {"of": audits.HELD, "at": "2026-01-01T00:00:00+00:00", "published": True, "hash": 64 * "e"}
    facts = {"job": "trial", "silos": ["bank", "shop"], "rows": 9, "columns": ["age"], "algorithm": "silofuse",
             "preset": "fast", "guarantee": "none", "target": None, "options": {}, "sha256": 64 * "a"}  # fmt: skip
    signed = {
        silo: {"key": 64 * "b", "signature": 86 * "c", "statement": {
            "version": "0.1.0", "gave_away": ["counts"], "ledger": {"lines": 9, "hash": 64 * "d"}, "audits": made}}
        for silo, made in (("bank", [looked]), ("shop", []))
    }  # fmt: skip
    text = label_page({"facts": facts, "silos": signed, "audits": {"bank": {"statement": {"audits": [audit]}}}})
    return re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "<script src='axe.js'></script>", text)


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_axe_finds_no_error_and_no_page_is_wider_than_its_window(
    scheme: str, all_pages: dict[str, str], tmp_path: Path
) -> None:
    found = measured(tmp_path, all_pages, scheme)
    assert len(found) == len(WIDTHS) * len(all_pages)
    assert [(one["page"], one["wrong"]) for one in found if one["wrong"]] == []
    assert [(one["page"], one["wide"]) for one in found if one["wide"]] == []
    assert all(int(str(one["passes"])) > 10 for one in found)


def test_axe_would_find_an_error(tmp_path: Path, all_pages: dict[str, str]) -> None:
    broken = all_pages["bank /login"].replace('<label for="token">Token</label>', "").replace('lang="en"', "")
    (one, _) = measured(tmp_path, {"broken": broken}, LIGHT)
    assert {str(text).partition(":")[0] for text in one["wrong"]} >= {"html-has-lang", "label"}  # type: ignore[attr-defined]
