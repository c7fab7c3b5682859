"""The report as a browser sees it: a harness page holds it in frames of several widths and measures it there."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from silosynth.evaluation import evaluate

CHROMIUM = shutil.which("chromium")
pytestmark = [pytest.mark.live, pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")]

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--allow-file-access-from-files",
    "--virtual-time-budget=10000",
    "--enable-logging=stderr",
    "--v=0",
)
WIDTHS = (375, 1280)
SECTIONS = {"verdict", "scores", "columns", "pairs", "ledger", "combinations", "skipped", "method"}
LONG = "a_column_name_that_is_much_longer_than_any_phone_is_wide_<img src=x onerror=alert(1)>"

HARNESS = """<!doctype html>
<html><head><meta charset="utf-8"><meta name="color-scheme" content="light dark"></head><body>
FRAMES<pre id="found"></pre><script>
function rgba(text) { const n = text.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; }
function luminance(colour) {
  const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const [r, g, b] = colour.slice(0, 3).map(v => linear(v / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function behind(view, element) {
  for (; element; element = element.parentElement) {
    const colour = rgba(view.getComputedStyle(element).backgroundColor);
    if (colour[3] > 0.99) return colour;
  }
  return [255, 255, 255, 1];
}
function measured(view, node) {
  const element = node.parentElement, style = view.getComputedStyle(element);
  const inSvg = element.namespaceURI.includes("svg"), matrix = inSvg && element.getScreenCTM();
  const scale = matrix ? Math.hypot(matrix.a, matrix.b) : 1;
  const [a, b] = [rgba(inSvg ? style.fill : style.color), behind(view, element)].map(luminance);
  return {
    text: node.data.trim().slice(0, 30), size: parseFloat(style.fontSize) * scale,
    contrast: (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05),
  };
}
function texts(view) {
  const found = [], walker = view.document.createTreeWalker(view.document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, element = node.parentElement;
    const seen = node.data.trim() && !element.closest("title, style") && element.getClientRects().length;
    if (seen) found.push(measured(view, node));
  }
  return found;
}
function survey(frame) {
  const view = frame.contentWindow, page = view.document, root = page.documentElement;
  page.querySelectorAll("details").forEach(d => d.open = true);
  const found = texts(view), least = key => found.reduce((a, b) => a[key] < b[key] ? a : b);
  return {
    width: root.clientWidth, scroll: root.scrollWidth, ids: [...page.querySelectorAll("section")].map(s => s.id),
    background: rgba(view.getComputedStyle(page.body).backgroundColor),
    texts: found.length, smallest: least("size"), palest: least("contrast"),
    flat: [...page.querySelectorAll("svg")].filter(s => s.getBoundingClientRect().width < 5).length,
    fetched: view.performance.getEntriesByType("resource").map(e => e.name).filter(n => !n.startsWith("data:")),
    images: page.querySelectorAll("img").length,
  };
}
addEventListener("load", () => {
  document.getElementById("found").textContent = JSON.stringify([...document.querySelectorAll("iframe")].map(survey));
});
</script></body></html>"""


@dataclass(frozen=True)
class Saved:
    path: Path
    harness: Path


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    folder = tmp_path_factory.mktemp("report")
    path = _report().save(folder / "report.html")
    frames = "".join(f'<iframe src="report.html" style="border:0;width:{w}px;height:900px"></iframe>' for w in WIDTHS)
    harness = folder / "harness.html"
    harness.write_text(HARNESS.replace("FRAMES", frames), encoding="utf-8")
    return Saved(path, harness)


def _report() -> Any:
    train, holdout, synthetic = (_people(np.random.default_rng(seed)) for seed in (1, 2, 3))
    silos = {"bank": ["age", "income"], "tax_office_of_a_very_long_name": ["region", LONG], "insurer": ["since", "ill"]}
    entry = {
        "step": 1,
        "to": "coordinator",
        "type": "algorithms.silofuse.Latents",
        "bytes": 4000,
        "privacy": "raw latents",
    }
    return evaluate(train, holdout, synthetic, silos=silos, ledger=[entry | {"from": silo} for silo in silos])


def _people(rng: np.random.Generator, n: int = 120) -> pd.DataFrame:
    age = rng.integers(18, 80, n)
    return pd.DataFrame(
        {
            "age": age,
            "income": np.where(rng.random(n) < 0.3, np.nan, age * 1000 + rng.normal(0, 9000, n)),
            "region": rng.choice(["north", "<b>south</b>", "east " + "and beyond " * 12], n),
            LONG: rng.choice(["yes", "no"], n),
            "since": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 2000, n), unit="D"),
            "ill": rng.random(n) < 0.2,
        }
    )


def chromium(tmp_path: Path, page: Path, *options: str, dark: bool = False) -> tuple[str, list[str]]:
    """Standard output, and what the page wrote to its console."""
    assert CHROMIUM is not None
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    profile = f"--user-data-dir={tempfile.mkdtemp(dir=tmp_path)}"
    command = [CHROMIUM, *FLAGS, scheme, profile, *options, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def measure(tmp_path: Path, saved: Saved, dark: bool) -> list[dict[str, Any]]:
    dom, console = chromium(tmp_path, saved.harness, "--window-size=1400,2000", "--dump-dom", dark=dark)
    assert console == []
    found = re.search(r'<pre id="found">(.*?)</pre>', dom, re.DOTALL)
    assert found is not None
    assert found[1], "the harness measured nothing"
    return list(json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_readable_on_a_desk_and_on_a_phone(tmp_path: Path, saved: Saved, dark: bool) -> None:
    measured = measure(tmp_path, saved, dark)
    assert [frame["width"] for frame in measured] == list(WIDTHS)
    for frame in measured:
        assert set(frame["ids"]) == SECTIONS
        assert frame["scroll"] <= frame["width"]
        assert frame["texts"] > 100
        assert frame["smallest"]["size"] >= 10.5, frame["smallest"]
        assert frame["palest"]["contrast"] >= 4.5, frame["palest"]
        assert (sum(frame["background"][:3]) < 150) is dark
        assert frame["fetched"] == []
        assert frame["images"] == frame["flat"] == 0


def test_the_console_stays_silent_and_the_dom_is_whole(tmp_path: Path, saved: Saved) -> None:
    dom, console = chromium(tmp_path, saved.path, "--dump-dom")
    assert console == []
    assert {found for found in re.findall(r'<section id="(\w+)"', dom)} == SECTIONS
    assert "onerror=alert(1)&gt;" in dom


def test_the_console_is_watched(tmp_path: Path) -> None:
    page = tmp_path / "loud.html"
    page.write_text("<script>console.error('heard')</script>", encoding="utf-8")
    assert "heard" in str(chromium(tmp_path, page, "--dump-dom")[1])


USE = """<!doctype html><html><body><iframe src="report.html" style="width:1280px;height:900px"></iframe>
<pre id="found"></pre><script>
addEventListener("load", () => setTimeout(() => {
  const view = document.querySelector("iframe").contentWindow, page = view.document;
  const seen = kind => [...page.querySelectorAll(kind)].filter(e => e.getClientRects().length).length;
  const find = page.getElementById("find"), before = seen(".card");
  const readouts = [...page.querySelectorAll("[data-heat]")].map(figure => {
    const area = figure.querySelector("image, .frame"), box = area.getBoundingClientRect();
    const at = { bubbles: true, clientX: box.left + box.width * CELL, clientY: box.top + 1 };
    const target = figure.querySelector("image") || figure.querySelectorAll("title")[1].parentElement;
    target.dispatchEvent(new view.PointerEvent("pointermove", at));
    return figure.querySelector(".readout").textContent;
  });
  find.value = "TYPED"; find.dispatchEvent(new view.Event("input"));
  document.getElementById("found").textContent = JSON.stringify({
    before, after: seen(".card"), rows: seen("tr[data-find]"), said: page.getElementById("found").textContent, readouts,
  });
}, 500));
</script></body></html>"""


def used(folder: Path, cell: float, typed: str) -> dict[str, Any]:
    """What the page in ``folder`` shows after a cell was pointed at and a column was searched."""
    harness = folder / "use.html"
    harness.write_text(USE.replace("CELL", str(cell)).replace("TYPED", typed), encoding="utf-8")
    dom, console = chromium(folder, harness, "--window-size=1400,2000", "--dump-dom")
    assert console == []
    (found,) = re.findall(r'<pre id="found">(.*?)</pre>', dom, re.DOTALL)
    return dict(json.loads(found.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")))


def test_columns_are_found_by_name_and_silo_and_cells_say_what_they_are(saved: Saved) -> None:
    shown = used(saved.path.parent, 0.25, "BANK")
    assert (shown["before"], shown["after"], shown["rows"]) == (6, 2, 2)
    assert shown["said"] == "2 of 6 columns"
    assert all(re.fullmatch(r"age × income: -?\d\.\d{3}", text) for text in shown["readouts"])


def test_cells_of_a_raster_say_what_they_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tables = [pd.DataFrame(rng.normal(size=(40, 50)), columns=[f"c{i}" for i in range(50)]) for _ in range(2)]
    report = evaluate(tables[0], None, tables[1], figures="gan")
    report.save(tmp_path / "report.html")
    shown = used(tmp_path, (7 + 0.5) / 50, "c7")
    assert (shown["after"], shown["rows"]) == (1, 1)
    matrices = report.pairs.real, report.pairs.synthetic, report.pairs.synthetic - report.pairs.real
    for text, matrix in zip(shown["readouts"], matrices, strict=True):
        named, value = text.split(": about ")
        assert named == "c0 × c7"
        assert float(value) == pytest.approx(matrix[0, 7], abs=0.02)


def test_paper_is_a4_and_shows_what_is_folded(tmp_path: Path, saved: Saved) -> None:
    pdf = tmp_path / "report.pdf"
    chromium(tmp_path, saved.path, "--no-pdf-header-footer", f"--print-to-pdf={pdf}")
    boxes = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", pdf.read_bytes())
    assert 5 <= len(boxes) <= 12
    assert {(round(float(w)), round(float(h))) for w, h in boxes} <= {(595, 842), (596, 842)}
    if shutil.which("pdftotext") is None:
        return
    text = subprocess.run(["pdftotext", "-layout", pdf, "-"], capture_output=True, text=True, check=True).stdout
    pages = text.split("\f")[:-1]
    assert all("silosynth evaluation" in page.splitlines()[0] for page in pages)
    assert all(re.search(rf"\b{i} ?/ ?{len(pages)}$", page.rstrip()) for i, page in enumerate(pages, 1))
    assert "Marks compare a figure with its floor only" in text and "Find a column" not in text


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (375, False)])
def test_screenshots_show_something(tmp_path: Path, saved: Saved, width: int, dark: bool) -> None:
    blank = tmp_path / "blank.html"
    blank.write_text("<!doctype html><title>blank</title>", encoding="utf-8")
    sizes = []
    for page in (blank, saved.path):
        picture = tmp_path / f"{page.stem}.png"
        chromium(tmp_path, page, f"--window-size={width},1600", f"--screenshot={picture}", dark=dark)
        assert struct.unpack(">II", picture.read_bytes()[16:24]) == (width, 1600)
        sizes.append(picture.stat().st_size)
    assert sizes[1] > 5 * sizes[0]
