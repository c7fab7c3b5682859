from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
import struct
import zlib
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from markupsafe import Markup

from silosynth.evaluation import svg
from silosynth.evaluation.about import About
from silosynth.evaluation.report import MAX_OVERLAYS, Report, human_bytes, relate, render
from silosynth.evaluation.scores import ColumnScore, Pairs, Rows, Score, SiloScores, Skipped

EVIL = "<script>alert('x')</script>\"&"
SILOS = {"bank": ("age", "income"), "tax <b>office</b>": ("region",), "insurer": ("claims", EVIL)}


def make_score(name: str = "column_shape_error", **changes: Any) -> Score:
    plain: dict[str, Any] = {
        "label": name.replace("_", " ").capitalize(),
        "group": "fidelity",
        "value": 0.62,
        "floor": 0.5,
        "floor_note": "training against hold-out rows",
        "low": 0.55,
        "high": 0.7,
        "unit": "%",
        "better": "lower",
        "ideal": 0.0,
        "n": 20_000,
        "explanation": "How far off a column is.",
        "method": "jackknife",
    }
    return Score(name=name, **(plain | changes))


def make_auc(value: float, low: float, high: float, floor: float = 0.501) -> Score:
    shape: dict[str, Any] = {"unit": "AUC", "better": "near", "ideal": 0.5, "group": "two-sample"}
    return make_score("two_sample_auc", value=value, low=low, high=high, floor=floor, **shape)


def make_share(value: float, low: float, high: float) -> Score:
    shape: dict[str, Any] = {"unit": "%", "better": "near", "ideal": 50.0, "floor": 50.0, "group": "disclosure"}
    return make_score("nearest_neighbour_share", value=value, low=low, high=high, **shape)


def make_numeric(name: str, error: float, silo: str | None = None, **changes: Any) -> ColumnScore:
    edges, real = np.linspace(0, 10, 6), np.array([0.1, 0.4, 0.3, 0.15, 0.05])
    plots: dict[str, Any] = {"edges": edges, "real_density": real / 2, "synthetic_density": real[::-1] / 2}
    gaps: dict[str, Any] = {"missing_real": 0.0, "missing_synthetic": 0.0, "floor": 0.4, "low": error, "high": error}
    return ColumnScore(name=name, silo=silo, kind="numeric", error=error, **(gaps | plots | changes))


def make_levels(name: str, error: float, levels: Sequence[str], silo: str | None = None) -> ColumnScore:
    real = np.full(len(levels), 1 / len(levels))
    plots: dict[str, Any] = {"levels": tuple(levels), "real_shares": real, "synthetic_shares": real[::-1]}
    gaps: dict[str, Any] = {"missing_real": 0.25, "missing_synthetic": 0.2, "floor": None, "low": None, "high": None}
    return ColumnScore(name=name, silo=silo, kind="categorical", error=error, **gaps, **plots)


def make_pairs(names: Sequence[str], silos: Sequence[str | None], floor: bool = True) -> Pairs:
    d = len(names)
    real = np.random.default_rng(0).uniform(-1, 1, (d, d))
    error = np.abs(real) * 10
    return Pairs(tuple(names), tuple(silos), real, real * 0.9, error, error / 2 if floor else None)


def make_ledger() -> tuple[dict[str, Any], ...]:
    latents = {"step": 2, "to": "coordinator", "type": "algorithms.silofuse.Latents", "privacy": "one un-noised value"}
    setup = {"step": 1, "from": "coordinator", "to": "bank", "type": "Fit", "bytes": 10, "privacy": "nothing"}
    sent = [latents | {"from": "bank", "bytes": 700_000}, latents | {"from": "bank", "bytes": 800_000}]
    return (setup, *sent, latents | {"from": EVIL, "bytes": 12, "privacy": ""})


def make_report(**changes: Any) -> Report:
    names = [name for own in SILOS.values() for name in own]
    silos = [silo for silo, own in SILOS.items() for _ in own]
    columns = (
        make_numeric("age", 1.0, "bank"),
        make_numeric("income", 3.0, "bank"),
        make_levels("region", 2.0, ["north", EVIL], "tax <b>office</b>"),
        make_numeric("claims", float("nan"), "insurer"),
        make_levels(EVIL, 0.5, ["yes", "no"], "insurer"),
    )
    plain: dict[str, Any] = {
        "scores": (make_score(), make_auc(0.62, 0.61, 0.63), make_share(52.0, 51.0, 53.0)),
        "skipped": (Skipped("utility", f"takes minutes {EVIL}"),),
        "columns": columns,
        "pairs": make_pairs(names, silos),
        "rows": Rows(32_561, 16_281, 20_000),
        "about": About(silos=SILOS),
        "target": EVIL,
        "ledger": make_ledger(),
    }
    return Report(**(plain | changes))


class Elements(HTMLParser):
    """Start tags with their attributes, and whether every element is closed in order."""

    VOID = frozenset({"meta", "link", "br", "wbr", "input"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def of_class(self, name: str) -> list[dict[str, str | None]]:
        return [attrs for _, attrs in self.tags if name in (attrs.get("class") or "").split()]


@pytest.fixture(scope="module")
def page() -> str:
    return render(make_report())


def section(page: str, name: str) -> str:
    return page.split(f'<section id="{name}"')[1].split("</section>")[0]


def test_nothing_is_fetched(page: str) -> None:
    assert "default-src 'none'" in page
    assert not re.search(r"https?:|@import|url\(", page)
    for tag, attrs in Elements(page).tags:
        assert tag not in {"iframe", "object", "embed"}
        for name in ("src", "href"):
            assert (attrs.get(name) or "#").startswith(("#", "data:"))


def test_the_page_allows_one_script_and_carries_no_other(page: str) -> None:
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in page
    assert not [name for _, attrs in Elements(page).tags for name in attrs if name.startswith("on")]


def test_anchors_lead_somewhere_and_elements_are_closed(page: str) -> None:
    elements = Elements(page)
    ids = {attrs["id"] for _, attrs in elements.tags if "id" in attrs}
    assert {attrs["href"][1:] for tag, attrs in elements.tags if tag == "a" and attrs["href"]} <= ids
    assert {"verdict", "scores", "columns", "pairs", "ledger", "skipped", "method"} <= ids
    assert elements.open == []


def test_names_levels_and_ledger_entries_are_escaped(page: str) -> None:
    assert page.count("<script") == 1
    assert "tax <b>" not in page
    assert "&lt;script&gt;alert(" in page
    names = [attrs.get("data-column") for attrs in Elements(page).of_class("card")]
    assert EVIL in names


def test_the_page_head_on_paper_cannot_leave_its_string() -> None:
    page = render(make_report(about=About(data='Wages "} body { display: none } </style><script>alert(1)</script> é')))
    style = page.split("<style>")[1].split("</style>")[0]
    assert style.rstrip().endswith("}")
    (running,) = re.findall(r'@top-left \{ content: "(.*)"; \} \}', style)
    assert re.fullmatch(r"(?:[0-9A-Za-z]|\\[0-9a-f]+ )+", running)
    assert r"\22 \7d \20 body" in running
    assert page.count("<script>") == 1 and page.count("</style>") == 1


def test_facts_of_the_head_are_shown_and_folded(page: str) -> None:
    named = About(data=EVIL, algorithm="gdts", preset="fast", seed="secret", left_out={EVIL: "identifier"}, silos=SILOS)
    page = render(make_report(about=named))
    head = page.split("<header>")[1].split("</header>")[0]
    for fact in ("data", "generator", "evaluated", "privacy guarantee", "silos", "pooled", "left out", "clamped"):
        assert f'data-fact="{fact}"' in head
    assert "gdts, preset fast, a secret seed" in head
    assert "<summary>3 silos</summary>" in head and "tax &lt;b&gt;office&lt;/b&gt;</b> 1 column: region" in head
    assert EVIL not in head
    assert f"<title>silosynth evaluation: {Markup.escape(EVIL)}</title>" in page


def test_silos_with_different_rows_have_a_row_each() -> None:
    silos = (SiloScores("north", 1200, (make_score(), make_score("pair_trend_error", value=0.4))),)
    silos += (SiloScores(EVIL, 30, (make_score(low=0.4), make_score("pair_trend_error", floor=None, floor_note="x"))),)
    table = section(render(make_report(by_silo=silos)), "by-silo")
    north, other = table.split("<tr data-silo=")[1:]
    assert "1,200" in north and "0.62" in north and "0.55 to 0.70" in north
    assert "1.24 times its floor" in north and "no worse than its floor" in north
    assert "floor inside the interval" in other and "no floor: x" in other
    assert 'id="by-silo"' not in render(make_report())


def test_same_report_same_bytes(page: str) -> None:
    assert render(make_report()) == page


def test_every_figure_stands_beside_its_floor(page: str) -> None:
    table = section(page, "scores")
    for score in make_report().scores:
        row = table.split(f'data-score="{score.name}"')[1].split("</tr>")[0]
        digits = 3 if score.unit == "AUC" else 2
        for number in (score.value, score.floor, score.low, score.high):
            assert f"{number:.{digits}f}" in row
        assert 'class="floor"' in row


def test_a_missing_floor_is_explained_instead_of_drawn() -> None:
    score = make_score(floor=None, floor_note="no floor: tables too small", low=None, high=None)
    table = section(render(make_report(scores=(score,))), "scores")
    row = table.split("data-score=")[1].split("</tr>")[0]
    assert "no floor: tables too small" in row
    assert "no interval" in row
    assert 'class="floor"' not in row
    assert 'class="interval"' not in row


def test_every_picture_has_a_text_alternative(page: str) -> None:
    pictures = [attrs for tag, attrs in Elements(page).tags if tag == "svg"]
    assert all(
        attrs.get("aria-hidden") or (attrs.get("role") == "img" and attrs.get("aria-label")) for attrs in pictures
    )
    assert len(pictures) > 10


@pytest.mark.parametrize(
    ("score", "state", "words"),
    [
        (make_score(value=0.49), "level", "no worse than its floor"),
        (make_score(low=0.45), "unsure", "floor inside the interval"),
        (make_score(), "short", "1.24 times its floor"),
        (make_score(low=None, high=None), "short", "1.24 times its floor"),
        (
            make_score(value=0.9, floor=0.93, low=0.89, high=0.91, better="higher", ideal=1.0, unit="AUC"),
            "short",
            "0.030 below",
        ),
        (
            make_score(value=0.93, floor=0.93, low=0.92, high=0.94, better="higher", ideal=1.0, unit="AUC"),
            "level",
            "no w",
        ),
        (make_auc(0.62, 0.61, 0.63), "short", "0.119 above its floor"),
        (make_auc(0.51, 0.499, 0.52), "unsure", "floor inside"),
        (make_auc(0.45, 0.4, 0.49, floor=0.499), "level", "no worse"),  # below 0.5 is guessing, too
        (make_auc(0.56, 0.55, 0.57, floor=0.42), "short", "0.140 above"),  # a lucky floor excuses nothing
        (make_share(52.0, 51.0, 53.0), "short", "2.00 points above its floor"),
        (make_share(46.0, 45.0, 47.0), "level", "no worse"),  # farther from the training rows than real ones: no leak
        (make_score("distance_to_closest_record", group="disclosure", better="near"), "none", "not a verdict"),
        (make_score(value=float("nan")), "none", "not a number"),
    ],
)
def test_relation_to_the_floor(score: Score, state: str, words: str) -> None:
    relation = relate(score)
    assert relation.state == state
    assert relation.text.startswith(words) or words in relation.text


def test_the_verdict_counts_and_does_not_promise_privacy(page: str) -> None:
    verdict = section(page, "verdict")
    assert "1 of 1 figure is worse than the floor: a sign that training rows show through" in verdict
    assert "not a proof of privacy" in verdict
    clean = section(render(make_report(scores=(make_share(50.0, 49.0, 51.0),))), "verdict")
    assert "does not prove that nothing leaks" in clean
    assert "show through" not in clean


def test_no_epsilon_is_printed_but_what_the_ledger_says() -> None:
    event = "Gaussian, epsilon 3.20 at delta 1e-6; protects rows of what is published from outsiders"
    entry = {"step": 1, "from": "bank", "to": "coordinator", "type": "Noised", "bytes": 9, "privacy": event}
    page = render(make_report(ledger=(entry,)))
    assert page.count(event) == 1
    assert not re.search(r"(epsilon|ε)\s*(=|of)?\s*\d", page.replace(event, ""))


def test_worst_columns_come_first_and_undefined_ones_last(page: str) -> None:
    cards = [attrs["data-column"] for attrs in Elements(page).of_class("card")]
    assert cards == ["income", "region", "age", EVIL, "claims"]


def test_missing_rates_are_noted(page: str) -> None:
    card = page.split('data-column="region"')[1].split("</li>")[0]
    assert "25.0&nbsp;% real, 20.0&nbsp;% synthetic" in card


def test_many_columns_keep_the_page_small() -> None:
    names = [f"column_{i:03}" for i in range(500)]
    columns = tuple(make_numeric(name, float(i)) for i, name in enumerate(names))
    page = render(make_report(columns=columns, pairs=make_pairs(names, ["a"] * 200 + ["b"] * 300), about=About()))
    assert len(page.encode()) < 5_000_000
    assert len(Elements(page).of_class("card")) == MAX_OVERLAYS
    assert "440 are left out" in page
    assert "column_000" in page  # in the table of all columns
    assert len(Elements(page).of_class("raster")) == 3
    assert "neighbours are merged" in page
    assert "round" not in section(page, "pairs")


def test_long_names_break_after_underscores_and_stay_escaped() -> None:
    page = render(make_report(columns=(make_numeric("log_of_<b>", 1.0),)))
    assert "<h3>log_<wbr>of_<wbr>&lt;b&gt;<" in page and 'data-column="log_of_&lt;b&gt;"' in page


@pytest.mark.parametrize("silos", [("a",), ("a", "b"), ("a", "b", "c", "d")])
def test_silo_borders_are_drawn_in_every_heatmap(silos: tuple[str, ...]) -> None:
    names = [f"{silo}{i}" for i in range(3) for silo in silos]  # interleaved: the report groups them by silo
    page = render(make_report(pairs=make_pairs(names, [name[0] for name in names]), about=About()))
    assert len(Elements(page).of_class("border")) == 3 * 2 * (len(silos) - 1)
    heat = page.split('data-heat="1"')[1].split("</figure>")[0]
    shown = re.findall(r'class="name"[^>]*>([^<]+)<', heat)
    assert shown == sorted(names)
    assert heat.count('class="silo"') == 2 * len(silos)


def test_cells_tell_the_sign_without_colour_and_the_scale_is_stated() -> None:
    pairs = make_pairs(["x", "y"], [None, None])
    matrix = np.array([[1.0, -0.5], [0.5, 1.0]])
    page = render(
        make_report(pairs=Pairs(pairs.names, pairs.silos, matrix, matrix * 0.9, pairs.error, None), about=About())
    )
    elements = Elements(page)
    assert all(attrs.get("rx") for attrs in elements.of_class("neg"))
    assert not any(attrs.get("rx") for attrs in elements.of_class("pos"))
    assert len(elements.of_class("neg")) == len(elements.of_class("pos")) == 3
    assert "from −0.05 to 0.05" in page


def test_within_and_across_silos_are_shown_beside_their_floors() -> None:
    scores = (make_score("pair_trend_error_within", value=1.23), make_score("pair_trend_error_across", value=4.56))
    page = section(render(make_report(scores=scores)), "pairs")
    table = page.split('id="split"')[1].split("</table>")[0]
    assert "1.23" in table
    assert "4.56" in table
    assert table.count("0.50") == 2
    assert 'id="blocks"' in page


@pytest.mark.parametrize(("d", "titles", "names"), [(40, 3 * 40 * 40, 0), (41, 0, 3)])
def test_cells_have_names_and_values(d: int, titles: int, names: int) -> None:
    columns = [f"c{i} <b>" for i in range(d)]
    pairs = section(render(make_report(pairs=make_pairs(columns, [None] * d), about=About())), "pairs")
    assert pairs.count("<title>c") == titles
    cells = [
        json.loads(attrs["data-cells"] or "") for attrs in Elements(pairs).of_class("heat") if "data-cells" in attrs
    ]
    assert [one["names"] for one in cells] == [columns] * names
    assert all(one["scale"] > 0 for one in cells)


def test_undefined_associations_are_left_blank() -> None:
    pairs = make_pairs(["x", "y"], ["a", "b"], floor=False)
    hollow = np.array([[1.0, np.nan], [np.nan, 1.0]])
    page = render(make_report(pairs=Pairs(pairs.names, pairs.silos, hollow, hollow, pairs.error, None), about=About()))
    assert len(Elements(page).of_class("gap")) == 6


def test_the_ledger_is_summed_per_sender_and_type(page: str) -> None:
    sent = section(page, "ledger")
    bank = sent.split('data-sender="bank"')[1].split("</table>")[0]
    assert bank.count("Latents</code>") == 1
    assert "2 messages, 1.5 MB" in bank
    assert "one un-noised value" in bank
    assert sent.index('data-sender="bank"') < sent.index("What the coordinator sent")
    assert "not stated" in sent


def test_what_was_noised_stands_below_the_ledger(page: str) -> None:
    assert "What was noised" not in section(page, "ledger")
    event = {"mechanism": "discrete Laplace", "epsilon": 0.5, "delta": 0.0, "what": f"counts of {EVIL}"}
    entry = {"step": 1, "from": "bank", "to": "coordinator", "type": "Counts", "bytes": 9, "privacy": "un-noised too"}
    noised = section(render(make_report(ledger=(entry | {"events": [event] * 4}, entry))), "ledger")
    table = noised.split("data-budget")[1].split("</table>")[0]
    rows = table.split("<tr")
    assert "data-total" in rows[-1] and "total" in rows[-1] and "<strong>2</strong>" in rows[-1]
    assert "<strong>1e-05</strong>" in rows[-1] and len(rows) == 4
    assert '<td class="num">4</td><td>discrete Laplace</td><td class="num">0.5</td>' in table
    assert EVIL not in table
    assert "The rest of the training is un-noised (un-noised too)" in noised


def test_without_a_ledger_the_report_says_so() -> None:
    assert "cannot say what crossed" in section(render(make_report(ledger=None)), "ledger")


def test_skipped_figures_keep_their_reasons(page: str) -> None:
    assert "takes minutes" in section(page, "skipped")
    assert "utility" in section(page, "skipped")
    assert 'id="skipped"' not in render(make_report(skipped=()))


def test_the_least_a_report_can_hold_is_drawn() -> None:
    one = make_numeric("x", 0.0, edges=None, real_density=None, synthetic_density=None)
    blank = np.zeros((1, 1))
    report = make_report(columns=(one,), pairs=Pairs(("x",), (None,), blank, blank, blank, None), scores=())
    page = render(report)
    assert 'id="pairs"' not in page
    assert Elements(page).open == []


def test_a_constant_column_and_a_date_are_drawn() -> None:
    day = 86_400e9
    flat = make_numeric(
        "flat", 0.0, edges=np.array([3.0, 3.0]), real_density=np.zeros(1), synthetic_density=np.zeros(1)
    )
    dated = make_numeric("when", 1.0, edges=np.linspace(0, 365 * day, 6))
    dated = ColumnScore(**{**_fields(dated), "kind": "datetime"})
    assert svg.axis_ends(dated) == ("1970-01-01", "1971-01-01")
    assert "nan" not in svg.column_overlay(flat)


def _fields(column: ColumnScore) -> dict[str, Any]:
    return {name: getattr(column, name) for name in column.__slots__}


def test_whole_numbers_are_not_shown_with_half_bins() -> None:
    assert svg.axis_ends(make_numeric("age", 0.0, edges=np.arange(16.5, 91))) == ("17", "90")


def test_beyond_eight_levels_the_rest_is_one_level_and_sums_stay() -> None:
    levels = [*(f"level {i}" for i in range(15)), "(missing)", "(other)"]
    picture = svg.column_overlay(make_levels("job", 1.0, levels))
    assert picture.count('class="level"') == 10
    shares = [float(x) for x in re.findall(r">([\d.]+) % ·", picture)]
    assert sum(shares) == pytest.approx(100, abs=0.5)


def test_levels_keep_their_order_when_rare_ones_are_folded() -> None:
    levels = [f"{10 * i} to {10 * i + 9}" for i in range(12)]
    column = make_levels("age", 1.0, levels)
    shares = np.array([1, 2, 9, 9, 9, 9, 9, 9, 9, 9, 2, 1]) / 78
    picture = svg.column_overlay(dataclasses.replace(column, real_shares=shares, synthetic_shares=shares))
    assert re.findall(r'class="level"[^>]*>([^<]+)<', picture) == [*levels[2:10], "(other)"]


def test_a_column_is_a_picture_for_notebooks_and_files(tmp_path: Path) -> None:
    report = make_report()
    for column in report.columns:
        picture = report.plot(column.name)
        root = ElementTree.fromstring(picture._repr_svg_())
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert "script" not in {element.tag.rpartition("}")[2] for element in root.iter()}
        assert len(list(root.iter())) > 10
    assert repr(report.plot("age")) == "Picture of column 'age': shape error 1.00 %, floor 0.40 %"
    path = report.plot("age").save(tmp_path / "age.svg")
    assert path.read_text(encoding="utf-8") == report.plot("age").svg
    with pytest.raises(KeyError, match="Did you mean 'age'"):
        report.plot("aeg")


def test_a_notebook_shows_the_figures(page: str) -> None:
    report = make_report()
    assert repr(report) == "Report on a table of 5 columns: 3 of 3 figures worse than the floor"
    shown = report._repr_html_()
    assert Elements(shown).open == []
    assert EVIL not in shown and "takes minutes &lt;script&gt;" in shown
    for score in report.scores:
        assert f'>{score.label}</th><td style="text-align:left">{score.value:.3f}'[:-1] in shown


def test_the_raster_keeps_the_matrix() -> None:
    matrix = np.array([[1.0, -0.5], [np.nan, 0.0]])
    chunks, at, data = {}, 8, svg._png(matrix, 1.0)
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        chunks[data[at + 4 : at + 8]] = data[at + 8 : at + 8 + size]
        at += 12 + size
    rows = zlib.decompress(chunks[b"IDAT"])
    opacity = [chunks[b"tRNS"][i] for i in (rows[1], rows[2], rows[5])]
    hues = [tuple(chunks[b"PLTE"][3 * i : 3 * i + 3]) for i in (rows[1], rows[2], rows[4])]
    assert opacity == [255, pytest.approx(128, abs=3), 0]
    assert hues == [svg.POSITIVE, svg.NEGATIVE, svg.NEUTRAL]


def test_merged_cells_keep_the_largest_value() -> None:
    matrix = np.zeros((900, 900))
    matrix[450, 10] = -0.7
    small = svg._pooled(matrix)
    assert len(small) <= svg.RASTER_CELLS
    assert small.min() == -0.7


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (521_000, "521 kB"),
        (99_960, "100 kB"),
        (2_170_000, "2.2 MB"),
    ],
)
def test_bytes_in_words(count: int, text: str) -> None:
    assert human_bytes(count) == text
