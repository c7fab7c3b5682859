"""GDTS's experiments: who holds what, options by sizes, a training that is watched, curves, and the commands."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner, Result

import silosynth as ss
from silosynth import catalog
from silosynth.algorithms.gdts.options import PRESETS
from silosynth.cli import app
from silosynth.core.conversation import Checkpoint, Exchange, Progress
from silosynth.core.errors import ConfigError, DataError
from silosynth.papers import curves, gdts_tables1_2, settings
from silosynth.papers.gdts_tables1_2 import copied, copies, odd, one_row
from silosynth.papers.results import text
from silosynth.papers.settings import Setting, means, sections
from silosynth.papers.tables import TableSplit

COMPARED = {"gdts/table-1": copies, "gdts/table-2": odd}
SMALL = {"generator": "ctgan", "ctgan.generator": (8,), "ctgan.critic": (8,), "ctgan.noise": 4}
OURS = {"diffusion.hidden": (8,), "diffusion.latent.width": 8, "diffusion.latent.depth": 1,
        "diffusion.latent.sample_steps": 3}  # fmt: skip


def table(rows: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=rows), "word": rng.choice(list("abc"), rows, p=[0.6, 0.3, 0.1])})
    return frame.assign(y=np.where(frame["x"] > 0, "yes", "no"))


def split(rows: int = 60) -> TableSplit:
    return TableSplit(table(rows), table(rows)[:20], "y", {})


def of(compared: Sequence[Setting], name: str) -> Setting:
    return next(setting for setting in compared if setting.labels["setting"] == name)


# Who holds what, and with which options


def test_every_silo_has_a_copy() -> None:
    held = copied(3, split(), 0)
    assert list(held) == ["silo1", "silo2", "silo3"] and all(rows == list(range(60)) for rows in held.values())


def test_the_odd_silo_has_one_row_as_often_as_all_others_have_rows() -> None:
    held = one_row(5, split(), 0)
    *shares, last = held.values()
    assert [len(share) for share in shares] == [15] * 4 and sorted(i for share in shares for i in share) == list(
        range(60)
    )
    assert len(last) == 60 and len(set(last)) == 1 and list(held)[-1] == "odd"
    assert held == one_row(5, split(), 0) != one_row(5, split(), 1)
    with pytest.raises(DataError, match="two rows"):
        one_row(5, split(7), 0)


@pytest.mark.parametrize("compared", COMPARED.values(), ids=COMPARED)
@pytest.mark.parametrize(("epochs", "rows"), [(1, 12), (10, 300), (500, 10_000)])
def test_settings_are_distinct_and_their_options_exist(compared: Any, epochs: int, rows: int) -> None:
    configs = []
    for setting in compared(4):
        assert setting.labels["silos"] == 4 and setting.watched
        options = {**setting.sized(epochs, rows), **setting.options}
        configs.append(catalog.algorithm(setting.algorithm).configure(setting.preset, options))
    assert all(a != b for i, a in enumerate(configs) for b in configs[:i])


def test_the_papers_sizes_give_the_papers_options() -> None:
    def config(name: str, compared: Any = copies) -> Any:
        setting = of(compared(), name)
        options = {**setting.sized(gdts_tables1_2.PAPER["epochs"], 10_000), **setting.options}
        return catalog.algorithm(setting.algorithm).configure(setting.preset, options)

    paper, central, md = PRESETS["paper"], config("central"), config("md")
    assert config("fl") == config("fl", odd) == paper
    assert config("fl, no noise") == replace(paper, epsilon=float("inf"))
    assert config("fl, weights by rows", odd) == replace(paper, weights="rows")
    assert config("fl, sharp weights", odd) == replace(paper, weights="sharp")
    assert md.mode == "md" and md.ctgan.epochs == 150 and replace(md.ctgan, epochs=500) == paper.ctgan
    for name in ("epochs", "batch", "critic_steps", "pac", "encoders", "generator", "critic", "rate"):
        assert getattr(central, name) == getattr(paper.ctgan, name)
    assert config("diffusion") == PRESETS["best"]
    assert gdts_tables1_2.PAPER["rows"] == 50_000 and len(copies()) == 7 and len(odd()) == 5


def test_other_epsilons_of_the_counts_are_trained_only_if_they_are_named() -> None:
    usual = gdts_tables1_2.COPIES.jobs(tables=("adult",), gan="paper")
    (named,) = gdts_tables1_2.COPIES.jobs(tables=("adult",), gan="paper", setting=["fl, epsilon 10"])
    assert [job.setting.labels["setting"] for job in usual] == ["fl", "fl, no noise", "md", "central", "diffusion"]
    assert named.setting.options["epsilon"] == 10


# A training that is watched


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "rounds"),
    [
        (
            "gdts",
            {"rounds": 3, "ctgan.epochs": 3, "ctgan.batch": 10, "ctgan.pac": 10, "ctgan.least_rounds": 9, **SMALL},
            [1, 2, 3],
        ),
        ("gdts", {"mode": "md", "ctgan.epochs": 2, "ctgan.batch": 20, **SMALL}, [2 / 3, 4 / 3, 2]),
        (
            "gdts",
            {"generator": "diffusion", "rounds": 5, "diffusion.steps": 5, "diffusion.latent.steps": 20, **OURS},
            [1, 2, 3, 4, 5],
        ),
        (
            "ctgan",
            {"epochs": 2, "batch": 20, "least_rounds": 40, "generator": (8,), "critic": (8,)},
            [0.1 * i for i in range(1, 21)],
        ),
    ],
    ids=["fl", "md", "diffusion", "central"],
)
def test_watching_changes_no_bit_and_sees_where_training_is(
    name: str, options: Mapping[str, Any], rounds: list[float]
) -> None:
    frame, told = table(), list[Progress]()
    federation = ss.simulate(frame, rows={"a": range(0, 40), "b": range(20, 60)})
    if name == "ctgan":
        federation = ss.simulate(frame)
    if options.get("mode") == "md":
        options = {**options, "ctgan.least_rounds": 3}
    seen = curves.fit(name, federation, "fast", 3, real=frame, options=options, progress=told.append)
    plain = ss.fit(name, federation, "fast", 3, options=options, progress=False)
    pd.testing.assert_frame_equal(seen.sample(50, 1), plain.sample(50, 1))
    assert [record["bytes"] for record in seen.ledger] == [
        record["bytes"] for record in plain.ledger[: len(seen.ledger)]
    ]
    assert told[-1].done == told[-1].total
    assert [look["round"] for look in seen.curve] == pytest.approx(rounds)
    for key in ("seconds", "side by side"):
        assert (np.diff([look[key] for look in seen.curve]) > 0).all() and seen.extra[key] == seen.curve[-1][key]
    assert all(0 < look["side by side"] <= look["seconds"] for look in seen.curve)
    assert seen.curve[-1] == {**seen.curve[-1], **curves.distances(frame, seen.sample(60, 3))}
    assert len({look["JSD"] for look in seen.curve}) > 1


def test_distances_are_those_of_the_report() -> None:
    real, drawn = table(), table(90).assign(x=lambda t: t["x"] * 2, word="a")
    report, found = ss.evaluate(real, None, drawn, figures="gdts"), curves.distances(real, drawn)
    assert found == {
        "JSD": pytest.approx(report.score("gan_jsd").value), "WD": pytest.approx(report.score("gan_wasserstein").value),
    }  # fmt: skip
    assert curves.distances(real[["x"]], drawn[["x"]])["JSD"] is None
    assert curves.distances(real[["y"]], drawn[["y"]])["WD"] is None


def test_side_by_side_counts_the_slowest_silo_and_in_turn_all() -> None:
    class Slow:
        def exchange(self, step: int, asks: Mapping[str, float]) -> Mapping[str, float]:
            assert len(asks) == 1  # nobody competes for the machine
            time.sleep(sum(asks.values()))
            return asks

    clock = curves.Clock(coordinator=1.0)
    link = curves.OneByOne(Slow(), clock, torch.device("cpu"))  # type: ignore[arg-type]
    assert list(link.exchange(1, {"a": 0.02, "b": 0.05})) == ["a", "b"]  # type: ignore[dict-item]
    link.exchange(2, {"a": 0.01})  # type: ignore[dict-item]
    assert clock.silos >= 0.08 and 0.06 <= clock.slowest <= clock.silos - 0.02
    assert clock.read == {"seconds": 1 + clock.silos, "side by side": 1 + clock.slowest}


def test_looks_are_taken_where_progress_and_a_safe_point_meet() -> None:
    taken: list[tuple[float, int]] = []
    looks = curves.Looks(lambda share, state: taken.append((share, state["n"])))
    for n in range(100):
        steps = [Progress("x", n, 100), Checkpoint({"n": n})]
        for step in steps if n % 2 else steps[::-1]:
            looks(step)
        looks(Exchange({}))
    assert taken == [(n / 100, n) for n in range(5, 100, 5)]
    looks(Progress("x", 96, 100))
    looks(Exchange({}))
    looks(Checkpoint({"n": 99}))
    assert len(taken) == curves.LOOKS - 1


# Rows, means and curves


def row(setting: str, seed: int = 0, scale: float = 1.0, **changes: Any) -> dict[str, Any]:
    looks = [
        {"round": i, "seconds": 2.0 * i * scale, "side by side": i * scale, "JSD": 1 / i, "WD": None} for i in (1, 2)
    ]
    whole = {"table": "t", "setting": setting, "silos": 5, "rows": 9, "epochs": 2, "seed": seed, "version": "1"}
    costs = {"seconds": 4.0 * scale, "bytes": 10, "side by side": 2.0 * scale}
    return {**whole, "F1": 0.1, "JSD": 0.5, "WD": None, **costs, "curve": looks} | changes


def drawn(rows: list[dict[str, Any]]) -> str:
    ((_, heads, lines),) = sections(rows)
    return text(heads, lines)


def test_spread_is_over_seeds() -> None:
    (found,) = means([row("fl", JSD=0.2), row("fl", 1, JSD=0.4), row("fl", 2, JSD=0.6)])
    assert found["JSD"] == pytest.approx(0.4) and found["spread"]["JSD"] == pytest.approx(0.2)
    assert found["spread"]["F1"] == pytest.approx(0) and found["spread"]["WD"] is None
    shown = drawn([found])
    assert "0.400 ± 0.200" in shown and "s side by side" in shown and "curve" not in shown and "spread" not in shown
    assert "±" not in drawn(means([row("fl")]))


def test_figures_are_read_off_when_another_setting_ends() -> None:
    rows = [row("md"), row("md", 1), row("fl", 0, 2.0), row("fl", 1, 9.0), row("fl", 7)]
    assert curves.at_equal_time(rows, "md") == [
        ["t", "md", "0.500", "", "0.500", ""],
        ["t", "fl", "1.000", "", "1.000", ""],  # the first seed's first look; the second one's is later
    ]


def test_f1_is_read_off_too_where_it_was_taken() -> None:
    looks = [{"round": r, "seconds": 2.0 * r, "side by side": r, "JSD": 0.5, "WD": 0.1, "F1": 1 / r} for r in (1, 4)]
    rows = [row("central", curve=looks[:1], seconds=5.0, **{"side by side": 4.0}), row("fl", curve=looks)]
    read = curves.at_equal_time(rows, "central")
    assert curves.taken(rows) == ["JSD", "WD", "F1"] and curves.taken([row("fl")]) == ["JSD", "WD"]
    assert read[1] == ["t", "fl", "0.500", "0.100", "1.000", "0.500", "0.100", "0.250"]  # side by side: all of it
    jobs = gdts_tables1_2.jobs(copies, ("demo",), 120, 2, setting=["fl"], f1_along=True)
    assert jobs[0].f1_along and jobs[0].identity == replace(jobs[0], f1_along=False).identity


def test_what_is_published_stands_below_for_the_tables_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves.drawings, "written", lambda page, figure, what: [])
    monkeypatch.setattr(curves, "figure", lambda found: None)
    page = curves.paragraphs([row("fl", table="adult")], Path("x.md"), "md", gdts_tables1_2.PUBLISHED_ODD)
    assert "| adult | fl, weights by rows | 0.265 | 0.040 | 0.117 |" in "\n".join(page) and "covertype" not in str(page)
    assert "Published" not in str(curves.paragraphs([row("fl")], Path("x.md"), "md", gdts_tables1_2.PUBLISHED_ODD))


@pytest.mark.slow
def test_a_picture_has_a_line_for_each_setting_in_each_panel(tmp_path: Path) -> None:
    rows = [row("fl"), row("fl", 1, 3.0), row("md <&>$", JSD=0.1)]
    lines = curves.mean_curves(rows)["t"]
    assert [look["seconds"] for look in lines["fl"]] == [4.0, 8.0] and list(lines) == ["fl", "md <&>$"]
    figure = curves.figure({"t": lines})
    assert [len(panel.lines) for panel in figure.axes] == [2, 2, 2]  # of JSD; there is no WD
    styles = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in figure.axes[0].lines}
    assert len(styles) == 2
    assert curves.svg(figure) == curves.svg(curves.figure({"t": lines}))
    ElementTree.fromstring(curves.svg(figure))
    assert curves.paragraphs([row("fl", curve=[])], tmp_path / "none.md", "md") == [] == list(tmp_path.iterdir())
    page = "\n".join(curves.paragraphs(rows, tmp_path / "rows.md", "fl"))
    assert "(rows.svg)" in page and "| t | fl | 2.0 | 8.000 | 4.000 | 0.500 |  |" in page


def test_without_matplotlib_a_page_is_refused_before_the_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = call("gdts/table-1", "--table", "demo", "--out", tmp_path / "rows.md")
    assert result.exit_code == 5 and "pip install 'silosynth[papers]'" in result.stderr


@pytest.mark.slow
def test_a_row_has_the_papers_figures_and_a_curve(fits: Any) -> None:
    jobs = gdts_tables1_2.jobs(copies, ("demo",), 120, 2, setting=["fl", "central"])
    fl, central = (settings.measure(job, fit=fits) for job in jobs)
    assert [name for name in fl if name in settings.FIGURES] == ["F1", "JSD", "WD"]
    assert "random forest" not in fl["skipped"] and fl["bytes"] == 42 and central["bytes"] is None
    asked = fits.calls[0]
    assert asked["options"] == {"rounds": 2, "ctgan.epochs": 2, "ctgan.batch": 10} and len(asked["silos"]) == 5
    assert fits.calls[1]["options"] == {"epochs": 2, "batch": 10, "critic_steps": 1, "pac": 10}


def test_gans_can_be_trained_as_balanced_does() -> None:
    jobs = {job.setting.labels["setting"]: job for job in gdts_tables1_2.jobs(copies, ("adult",), 500, gan="balanced")}
    balanced = {"critic_steps": 5, "pac": 1, "rake": True, "rate": 5e-4}
    assert jobs["fl"].setting.options == {f"ctgan.{name}": value for name, value in balanced.items()}
    assert jobs["central"].setting.options == {**balanced, "rake": False}
    assert jobs["diffusion"].setting.options == gdts_tables1_2.NARROW and jobs["fl"].identity["rate"] == "0.0005"
    with pytest.raises(ConfigError):
        gdts_tables1_2.jobs(copies, ("loan",), gan="paper")


# Commands


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["papers", "run", *map(str, arguments)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "chosen"),
    [("gdts/table-1", ["fl", "central"]), ("gdts/table-2", ["md", "diffusion"])],
)
def test_the_algorithms_run_through_each_command(name: str, chosen: list[str], tmp_path: Path) -> None:
    sizes = ("--table", "demo", "--rows", 100, "--epochs", 1, "--silos", 3, *(f"--setting={one}" for one in chosen))
    result = call(name, *sizes, "--out", tmp_path / "rows.md", "--json")
    assert result.exit_code == 0, result.stderr
    facts = json.loads(result.stdout)
    assert [(r["setting"], r["silos"]) for r in facts["rows"]] == [(setting, 3) for setting in chosen]
    for found in facts["rows"]:
        assert all(found[figure] is not None for figure in ("F1", "JSD", "WD"))
        assert 0 < found["side by side"] <= found["seconds"]
        last = found["curve"][-1]
        assert (last["JSD"], last["WD"]) == (pytest.approx(found["JSD"]), pytest.approx(found["WD"]))
    assert facts["stamp"]["silosynth"] and "s side by side" in result.stderr
    page = (tmp_path / "rows.md").read_text()
    assert "(rows.svg)" in page and "## When" in page and "silosynth 0" in page
    ElementTree.fromstring((tmp_path / "rows.svg").read_text())
    again = call(name, *sizes, "--seeds", 1, "--out", tmp_path / "rows.md")
    assert again.exit_code == 0 and "2 of 2 rows are in" in again.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPARED)
def test_all_settings_run_through_each_command(name: str) -> None:
    result = call(name, "--table", "demo", "--rows", 200, "--epochs", 1, "--json")
    assert result.exit_code == 0, result.stderr
    assert len(json.loads(result.stdout)["rows"]) == 5


def test_a_single_silo_is_refused() -> None:
    assert call("gdts/table-1", "--silos", 1).exit_code == 2


def test_gans_as_published_are_trained_quickly_on_each_of_the_paper_s_tables() -> None:
    four = gdts_tables1_2.PAPER["tables"]
    for jobs, count in ((gdts_tables1_2.copies, 5), (gdts_tables1_2.odd, 5)):
        found = gdts_tables1_2.jobs(jobs, tables=four, rows=4_000, gan="paper")
        assert {job.identity["table"] for job in found} == set(four) and len(found) == count * len(four)
    for compared, count in ((gdts_tables1_2.COPIES, 4 * 4 + 2), (gdts_tables1_2.ODD, 3 * 4)):  # two epsilons of Adult
        assert len(compared.sized("kept", {"rows": 4_000, "repeats": 1})) == count


def test_settings_of_a_curve_are_named_by_the_sizes_that_differ_where_they_have_one() -> None:
    looks = [{"round": 1.0, "seconds": 1.0, "side by side": 1.0, "JSD": 0.1}]
    row = {"table": "t", "seed": 0, "setting": "fl", "rows": 9, "gan": "paper", "rate": 0.5, "curve": looks}
    other = {**row, "setting": "diffusion", "gan": None, "rate": ""}
    assert list(curves.mean_curves([row, other])["t"]) == ["fl, paper gan, rate 0.5", "diffusion"]
