"""Drawings: which settings stand in which panel, and files that are the same for the same rows."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from silosynth.papers import (
    EXPERIMENTS,
    drawings,
    experiment,
    settings,
    tabvfl_figure5,
    tabvfl_figure6,
    vflgan_figures5_6,
    vtgan_figure7,
)
from silosynth.papers.drawings import Panel
from silosynth.papers.published import ENTRIES


def row(table: str, partition: str, **figures: Any) -> dict[str, Any]:
    sizes = {"rows": 9, "epochs": 2, "seed": 0, "version": "1"}
    return {"table": table, "partition": partition, **sizes, **figures}


def test_every_published_figure_is_drawn() -> None:
    for entry in ENTRIES:
        if entry.number.startswith("figure"):
            assert entry.experiment in EXPERIMENTS
            assert experiment.load(str(entry.experiment)).pictures is not None, entry.name


def test_a_panel_has_the_points_of_all_rows_that_have_the_figure() -> None:
    rows: list[dict[str, Any]] = [{"x": 1, "f": 0.5, "g": None}, {"x": 2, "f": 0.7, "g": None, "spread": {"f": 0.1}}]
    (panel,) = drawings.panels(rows, {"f": "F", "g": "G"}, lambda row: row["x"], lambda row: "all", "x", "t")
    assert panel == Panel("t: F", "x", {"all": [(1, 0.5, 0.0), (2, 0.7, 0.1)]}, joined=False)
    assert drawings.wrapped([panel] * 4, 3)[1] == [panel, Panel("", ""), Panel("", "")]
    assert drawings.wrapped([]) == [] == drawings.beside(Path("none.md"), [], "nothing")


def test_settings_differ_by_more_than_colour_and_words_stand_on_the_axis(tmp_path: Path) -> None:
    points = {name: [("a", 0.5, 0.1), ("b", 0.25, 0.0)] for name in ("one", "two <&>$")}
    lines = [[Panel("words", "", points, joined=False), Panel("log", "n", {"one": [(10, 100.0, 0.0)]}, log=True)]]
    figure = drawings.drawn(lines)
    words, log = figure.axes
    assert [line.get_marker() for line in words.lines] == ["o", "s"] and log.get_xscale() == "log"
    assert [text.get_text() for text in words.get_xticklabels()] == ["a", "b"] and len(words.collections) == 2
    assert drawings.svg(figure) == drawings.svg(drawings.drawn(lines))
    assert drawings.beside(tmp_path / "page.md", lines, "All") == ["![All](page.svg)"]
    ElementTree.fromstring((tmp_path / "page.svg").read_text())


def test_settings_above_a_word_lie_beside_each_other_and_few_points_are_all_marked() -> None:
    same = {name: [("a", 0.5, 0.1), ("b", 0.25, 0.0)] for name in "xyz"}
    few, many = ({"one": [(float(x), 0.5, 0.0) for x in range(2, 2 + count)]} for count in (4, drawings.FEW + 1))
    dense = {str(i): [("a", 0.5, 0.0)] for i in range(12)}
    line = [Panel("", "", same, joined=False), Panel("", "", few), Panel("", "", many), Panel("", "", dense, False)]
    words, joined, long, crowded = drawings.drawn([line]).axes
    places = [x for setting in words.lines for x in setting.get_xdata()]
    assert places == pytest.approx([-0.12, 0.88, 0, 1, 0.12, 1.12])
    assert crowded.lines[-1].get_xdata()[0] < 0.3  # nearer to its own word than to the next one
    assert joined.lines[0].get_markevery() is None and joined.get_xticks().tolist() == [2, 3, 4, 5]
    assert joined.get_xlim()[0] > 1 and long.lines[0].get_markevery() == [-1] and long.get_xlim()[0] == 0


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The panels that were to be drawn."""
    seen: list[Any] = []
    monkeypatch.setattr(drawings, "beside", lambda page, lines, what: seen.extend(lines) or [])
    return seen


def test_vtgan_s_averages_over_tables_are_shown_where_the_paper_shows_them(shown: list[Any]) -> None:
    rows = [row(table, name, F1=f) for table, f in (("a", 0.1), ("b", 0.3)) for name in ("D^2_0 G^0_2", "central GAN")]
    settings.pictures(rows, Path("x.md"), "partition", averaged=True)
    ((mean,),) = shown
    assert {name: [point[:2] for point in points] for name, points in mean.settings.items()} == {
        "mean": [("D^2_0 G^0_2", pytest.approx(0.2)), ("central GAN", pytest.approx(0.2))]
    }
    shown.clear()
    by_silos = [{**row("a", "P", F1=0.1), "silos": 2}, {**row("a", "Q", F1=0.2), "silos": 2}]
    keys = ("table", "partition", "silos", "rows", "epochs", "seed", "version", "F1")
    settings.pictures([{key: one[key] for key in keys} for one in by_silos], Path("x.md"), "silos", averaged=True)
    assert [panel.title for line in shown for panel in line] == ["P: F1", "Q: F1"]
    assert vtgan_figure7.EXPERIMENT.pictures is not None


def test_both_lines_start_where_no_guest_fails(shown: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    base = {"table": "t", "p": 0.0, "in place": "", "rows": 9, "paper F1": 0.9, "preset": "paper", "epochs": 6}
    other = {**base, "epochs": None, "paper F1": 0.8, "options": '{"pretraining_epochs": 2, "finetuning_epochs": 3}'}
    base["options"] = "{}"
    rows = [base, {**base, "p": 0.5, "in place": "zeros", "paper F1": 0.5}, other]
    monkeypatch.setattr(tabvfl_figure6, "means", list)
    tabvfl_figure6.pictures(rows, Path("x.md"))
    panel, longer = (panel for line in shown for panel in line if panel.settings)
    if "2 and 3" in panel.x:
        panel, longer = longer, panel
    assert (panel.x, longer.x) == ("p; 6 and 6 epochs", "p; 2 and 3 epochs")  # trainings of two lengths do not mix
    assert longer.settings["cache, 9 rows"] == [(0.0, 0.8, 0.0)]
    assert panel.settings == {"cache, 9 rows": [(0.0, 0.9, 0.0)], "zeros, 9 rows": [(0.0, 0.9, 0.0), (0.5, 0.5, 0.0)]}


def test_points_lie_within_the_frame_and_those_below_zero_are_seen() -> None:
    points = {"a": [("x", 0.8, 0.3), ("y", 0.7, 0.0)]}
    for below, drawn in ((False, points), (True, {"a": [("x", -0.1, 0.0), ("y", 0.4, 0.0)]})):
        (place,) = drawings.drawn([[Panel("t", "x", drawn)]]).axes
        low, high = place.get_ylim()
        highest = max(y + deviation for _, y, deviation in drawn["a"])
        assert high > highest + 0.05 * (high - low) and (low < -0.1 if below else low == 0)


def test_one_method_s_rows_of_other_sizes_or_options_are_drawn_apart(
    shown: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    usual = {
        "table": "bank_marketing", "guests": 5, "method": "lt", "preset": "paper", "rows": 9, "epochs": None,
        "options": '{"batch": 8, "rate": 1}', "paper F1": 0.5,
    }  # fmt: skip
    others: list[dict[str, Any]] = [
        {"method": "ct"}, {"rows": None}, {"options": "{}"}, {"options": '{"batch": 8, "rate": 2}'}, {"epochs": 3},
        {"options": '{"rate": 1}'}, {"options": "{}", "preset": "fast", "epochs": 20, "rows": 50},
    ]  # fmt: skip
    monkeypatch.setattr(tabvfl_figure5, "means", list)
    tabvfl_figure5.pictures([{**usual, **other} for other in ({}, {}, *others)], Path("x.md"))
    ((panel,),) = shown
    assert list(panel.settings) == [
        "ct", "lt", "lt, all rows", "lt, as published", "lt, rate 2", "lt, epochs 3", "lt, fewer options",
        "lt, 50 rows, preset fast, epochs 20",
    ]  # fmt: skip


def test_digits_of_two_sizes_are_drawn_apart_and_images_are_of_the_larger_one(shown: list[Any]) -> None:
    curve = [{"round": 1, "FD": 9.0, "IS": 1.0}]
    rows = [
        {"algorithm": name, "rows": size, "epochs": 2, "seed": seed, "curve": curve}
        for size in (90, 10) for name in ("vflgan", "wgan-gp") for seed in (1, 0)
    ]  # fmt: skip
    rows.append({**rows[-1], "algorithm": "vertigan", "curve": []})
    images = vflgan_figures5_6.pictures(rows, Path("x.md"))
    assert [{panel.x for panel in line} for line in shown] == [{f"epoch of 2, {size} images"} for size in (10, 90)]
    assert shown[1][0].settings == {name: [(1, 9.0, 0.0)] for name in ("vflgan", "wgan-gp")}
    assert images == [f"![{name}-90-2-0.png]({name}-90-2-0.png)" for name in ("vflgan", "wgan-gp")]


def test_seeds_are_averaged_look_by_look_where_their_rounds_differ_a_little() -> None:
    curves = [[{"round": at, "FD": value} for at, value in own] for own in (((3.75, 8.0), (7.5, 4.0)), ((3.25, 6.0),))]
    assert drawings.along(curves, "round", "FD") == [(3.5, 7.0, pytest.approx(2**0.5))]
    assert drawings.along(curves[:1], "round", "FD") == [(3.75, 8.0, 0.0), (7.5, 4.0, 0.0)]


@pytest.mark.parametrize("name", ["vtgan_figures4_5", "silofuse_figure10", "silofuse_tables3_4"])
def test_rows_of_other_shapes_are_drawn(name: str, shown: list[Any]) -> None:
    rows = {
        "vtgan_figures4_5": [{
            "table": "t", "setting": "none",
            "findings": [{"attacker": "c", "attack": name, "value": v} for name, v in (("rows", 0.5), ("x", None))],
        }],
        "silofuse_figure10": [{"table": "t", "algorithm": "e2e", "iterations": i, "bytes": 10 * i} for i in (500, 50)],
        "silofuse_tables3_4": [
            {"table": "t", "silos": n, "permuted": True, "preset": "fast", "resemblance": 90.0, "utility": 80.0}
            for n in (4, 8)
        ],
    }[name]  # fmt: skip
    module = importlib.import_module(f"silosynth.papers.{name}")
    (module.robustness_pictures if name == "silofuse_tables3_4" else module.pictures)(rows, Path("x.md"))
    found = [panel for line in shown for panel in line if panel.settings]
    points = {name: [point[:2] for point in points] for name, points in found[0].settings.items()}
    assert (len(found), points) == {
        "vtgan_figures4_5": (1, {"t": [("none", 0.5)]}),
        "silofuse_figure10": (1, {"e2e": [(50, 500), (500, 5000)]}),
        "silofuse_tables3_4": (2, {"t, fast": [("4 permuted", 90.0), ("8 permuted", 90.0)]}),
    }[name]


def test_joined_points_stand_in_the_order_of_their_places_and_words_have_room() -> None:
    figure = drawings.drawn([[Panel("", "silos", {"one": [(2, 0.1, 0.0), (5, 0.2, 0.0), (3, 0.3, 0.0)]})]])
    assert figure.axes[0].lines[0].get_xdata().tolist() == [2, 3, 5]
    short, long = (drawings.drawn([[Panel("", "", {"one": [(word, 0.1, 0.0)]})]]) for word in ("word", 30 * "w"))
    assert long.get_size_inches()[1] > short.get_size_inches()[1] + 1
