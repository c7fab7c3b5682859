"""Tables, splits, rows of figures, files of results, and the forecast of how long it takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from silosynth.core.conversation import Progress
from silosynth.core.errors import ConfigError, DataError, StorageError, UnavailableError
from silosynth.data import datasets
from silosynth.papers import results, settings, tables
from silosynth.papers.experiment import TRAINING, PaperExperiment
from silosynth.papers.results import Results, text
from silosynth.papers.settings import FIGURES, SettingJob, means, sections
from silosynth.runtime import progress as pace

TINY = {"tables": ("demo",), "rows": 120, "epochs": 1}


def computed(jobs: list[SettingJob], fits: Any) -> list[dict[str, Any]]:
    return [settings.measure(job, fit=fits) for job in jobs]


# Tables


def test_a_split_keeps_the_shares_of_classes() -> None:
    frame = pd.DataFrame({"x": range(1000), "y": ["often"] * 900 + ["seldom"] * 90 + ["rare"] * 9 + [None]})
    data = tables.split(frame, "y", {}, rows=500, seed=0)
    assert len(data.train) == 400 and len(data.holdout) == 100
    assert data.train["y"].value_counts()["seldom"] == 36 and data.holdout["y"].value_counts()["seldom"] == 9
    assert not set(data.train["x"]) & set(data.holdout["x"])
    assert data.columns == ["x", "y"]
    again, other = (tables.split(frame, "y", {}, 500, seed).train for seed in (0, 1))
    assert data.train.equals(again) and not data.train.equals(other)


def test_all_rows_are_used_where_none_or_too_many_are_asked_for() -> None:
    frame = pd.DataFrame({"x": range(50), "y": [0, 1] * 25})
    for rows in (None, 50, 70):
        data = tables.split(frame, "y", {}, rows, 0)
        assert len(data.train) + len(data.holdout) == 50
    with pytest.raises(DataError, match="two rows each"):
        tables.split(frame, "y", {}, 3, 0)


def test_identifiers_and_names_of_people_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pd.DataFrame({"id": range(20), "surname": ["x"] * 20, "word": list("ab") * 10, "y": [0, 1] * 10})
    about = replace(datasets.info("churn"), target="y", kinds={"id": "identifier", "word": "categorical"})
    monkeypatch.setattr(datasets, "load", lambda name, return_info: (frame, about))
    data = tables.load("churn", None, 0)
    assert data.columns == ["word", "y"] and data.kinds == {"word": "categorical"}


def test_a_table_without_classes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    about = datasets.info("abalone")
    monkeypatch.setattr(datasets, "load", lambda name, return_info: (pd.DataFrame(), replace(about, task="regression")))
    with pytest.raises(DataError, match="classes to predict"):
        tables.load("abalone", None, 0)


def test_a_table_that_is_not_here_names_the_one_that_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SILOSYNTH_CACHE", str(tmp_path))
    monkeypatch.delenv("SILOSYNTH_DATA", raising=False)
    with pytest.raises(UnavailableError, match="the table 'demo'"):
        tables.load("loan", None, 0)


# Rows


@pytest.mark.slow
def test_a_row_holds_its_settings_figures_and_costs(experiment: PaperExperiment, fits: Any) -> None:
    shares: list[float] = []
    jobs = experiment.jobs(**TINY)
    split, central = (settings.measure(job, lambda stage, share: shares.append(share), fits) for job in jobs)
    assert list(split) == [
        "table", "partition", "rows", "epochs", "seed", "version", *FIGURES, "seconds", "bytes", "scores", "skipped",
    ]  # fmt: skip
    assert all(isinstance(split[name], float) for name in FIGURES) and split["skipped"] == {}
    assert split["bytes"] == 42 and central["bytes"] is None
    assert split["scores"]["gan_jsd"]["floor"] > 0
    own = shares[: len(shares) // 2]
    assert own == sorted(own) and own[0] == 0 and own[-1] <= 1
    json.dumps([split, central], allow_nan=False)


def test_what_is_asked_of_the_algorithms(experiment: PaperExperiment, fits: Any, figures_once: None) -> None:
    computed(experiment.jobs(**TINY, seed=4), fits)
    split, central = fits.calls
    assert (split["name"], central["name"]) == ("vtgan", "ctgan")
    assert split["options"] == {"epochs": 1, "batch": 96, "critic_blocks": [2, 0]}
    assert split["seed"] == 4 and split["preset"] == "paper"
    assert len(split["silos"]) == 2 and len(central["silos"]) == 1
    assert not Path(split["folder"]).exists()


def test_jobs_go_table_by_table_and_repeat_by_repeat(experiment: PaperExperiment) -> None:
    jobs = experiment.jobs(("a", "b", "a"), repeats=2, seed=3)
    assert [(j.table, j.seed) for j in jobs[::2]] == [("a", 3), ("a", 4), ("b", 3), ("b", 4)]
    assert len({tuple(j.identity.items()) for j in jobs}) == len(jobs) == 8


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"epochs": 0}, {"repeats": 0}, {"tables": ()}])
def test_wrong_sizes_are_refused(wrong: dict[str, Any], experiment: PaperExperiment) -> None:
    with pytest.raises(ConfigError):
        experiment.jobs(**{**TINY, **wrong})


def test_the_papers_sizes() -> None:
    assert (settings.PAPER["rows"], settings.PAPER["epochs"], settings.PAPER["repeats"]) == (None, 300, 3)
    assert all(datasets.info(name).task != "regression" for name in settings.PAPER["tables"])


# Results


def row(table: str = "a", seed: int = 0, **changes: Any) -> dict[str, Any]:
    whole = {"table": table, "partition": "p", "rows": None, "epochs": 1, "seed": seed, "version": "1"}
    return {**whole, **dict.fromkeys(FIGURES, 0.5), "seconds": 2.0, "bytes": 10, "scores": {}, "skipped": {}} | changes


def test_means_are_over_repeats_and_then_over_tables() -> None:
    rows = [row(JSD=0.2), row(seed=1, JSD=0.4, AUC=None), row("b", partition="alone")]
    rows += [row("b", JSD=0.7, AUC=None), row("b", seed=1, JSD=0.7, AUC=None)]
    a, alone, b, mean = means(rows)
    assert (a["JSD"], a["repeats"], a["AUC"]) == (pytest.approx(0.3), 2, 0.5)
    assert (b["JSD"], b["AUC"], alone["partition"]) == (0.7, None, "alone")
    assert (mean["table"], mean["partition"], mean["JSD"]) == ("mean", "p", pytest.approx(0.5))
    assert list(mean) == list(a)


def test_tables_of_different_sizes_are_not_averaged_together() -> None:
    found = means([row(), row("b"), row("b", epochs=9)])
    assert [(r["table"], r["epochs"]) for r in found] == [("a", 1), ("b", 1), ("b", 9), ("mean", 1)]


def test_sizes_that_all_rows_share_are_in_the_title() -> None:
    ((heading, heads, cells),) = sections(means([row(), row(partition="q")]))
    assert heading == "all rows, 1 epochs, one repeat"
    assert heads[:3] == ["table", "partition", "accuracy"] and heads[-2:] == ["s", "MB"]
    assert cells[0][:3] == ["a", "p", "0.500"]
    first, second, _ = text(heads, cells).splitlines()
    assert first.startswith("table  partition  accuracy ") and second.startswith("a      p             0.500 ")
    assert len(first) == len(second)
    ((heading, heads, cells),) = sections(means([row(), row(epochs=7, JSD=None)]))
    assert "epochs" in heads and "" in cells[1] and heading == "all rows, one repeat"


@pytest.mark.parametrize("ending", ["json", "md"])
def test_rows_that_a_file_holds_are_found_again(
    ending: str, experiment: PaperExperiment, fits: Any, figures_once: None, tmp_path: Path
) -> None:
    path, jobs = tmp_path / f"rows.{ending}", experiment.jobs(**TINY)
    first = Results(experiment, path)
    (found,) = computed(jobs[:1], fits)
    first.add(found, jobs[0].identity)
    again = Results(experiment, path)
    assert again.find(jobs[0].identity) == first.rows[0] and first.rows[0]["torch"]
    assert again.find(jobs[1].identity) is None
    for changed in ({"epochs": 2}, {"rows": 121}, {"seed": 1}):
        assert again.find(experiment.jobs(**{**TINY, **changed})[0].identity) is None
    assert (tmp_path / "rows.json").exists()
    if ending == "md":
        page = path.read_text()
        assert page.startswith("# An experiment\n") and "| demo | split |" in page and "120 rows, 1 epochs" in page


@pytest.mark.live
def test_a_stamp_names_the_commit_and_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert set(results.stamp()) == set(results.STAMP) and "cores" in results.stamp()["machine"]


def test_runs_side_by_side_share_a_file_and_rows_are_replaced(experiment: PaperExperiment, tmp_path: Path) -> None:
    one, other = (Results(experiment, tmp_path / "rows.json") for _ in range(2))
    one.add(row(), {"table": "a"})
    other.add(row("b"), {"table": "b"})
    one.add(row(JSD=0.1), {"table": "a"})
    assert [(r["table"], r["JSD"]) for r in Results(experiment, tmp_path / "rows.json").rows] == [
        ("b", 0.5),
        ("a", 0.1),
    ]


def test_a_file_of_something_else_is_refused(experiment: PaperExperiment, tmp_path: Path) -> None:
    for content in ("[]", "{", '{"form": "x", "experiment": "partitions", "rows": []}'):
        (tmp_path / "rows.json").write_text(content)
        with pytest.raises(StorageError):
            Results(experiment, tmp_path / "rows.json")
    Results(experiment, tmp_path / "own.json").add(row(), {"table": "a"})
    with pytest.raises(StorageError, match="another experiment, 'partitions'"):
        Results(replace(experiment, name="silos"), tmp_path / "own.json")
    with pytest.raises(ConfigError, match=r"\.json or \.md"):
        Results(experiment, tmp_path / "rows.csv")


# Forecasts


class Clock:
    """Seconds that pass when work says so."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(pace, "time", made)
    return made


def test_a_slow_start_is_no_pace(clock: Clock) -> None:
    def work(watch: Callable[[str, float], None]) -> None:
        watch("training", 0.0)
        clock.sleep(0.2)  # a hundredth of the work, as slow as nothing after it
        for done in range(1, 100):
            watch("training", done / 100)
            clock.sleep(0.005)

    assert pace.seconds_of(work, 0.4) < 0.2 * 100 / 2


def test_the_pace_of_a_stopped_training_tells_how_long_all_take(
    experiment: PaperExperiment, fits: Any, clock: Clock
) -> None:
    def slow(*given: Any, progress: Any, **asked: Any) -> Any:
        for done in range(1000):
            progress(Progress("training", done, 1000))
            clock.sleep(0.01)
        raise AssertionError("was not stopped")

    jobs = experiment.jobs(**TINY, repeats=2)
    assert settings.forecast(jobs, slow, seconds=0.2) == pytest.approx(4 * 10 / TRAINING)
    assert settings.forecast(jobs, fits) == 0  # ends by itself


def test_privacy_has_a_pace_of_its_own(experiment: PaperExperiment, clock: Clock) -> None:
    def fit(*given: Any, progress: Any, options: Any, **asked: Any) -> Any:
        for done in range(1000):
            progress(Progress("training", done, 1000))
            clock.sleep(0.04 if "dp" in options else 0.01)
        raise AssertionError("was not stopped")

    (job,) = experiment.jobs(**{**TINY, "repeats": 1})[:1]
    private = replace(job, setting=replace(job.setting, options={"dp": {"epsilon": 1.0, "delta": 1e-5}}))
    expected = (2 * 10 + 40) / TRAINING
    assert settings.forecast([job, private, job], fit, seconds=0.4) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("seconds", "text"), [(3.2, "4 seconds"), (600, "10 minutes"), (5400, "1.5 hours"), (3e6, "35 days")]
)
def test_durations_are_said_in_fitting_units(seconds: float, text: str) -> None:
    assert pace.duration(seconds) == text


def test_a_mean_over_some_of_the_rows_says_so() -> None:
    rows = [row(JSD=0.2), row(seed=1, JSD=0.4), row(seed=2, JSD=None)]
    ((_, heads, (cells,)),) = sections(means(rows))
    assert cells[heads.index("JSD")] == "0.300 ± 0.141 (1 row without)" and cells[heads.index("WD")] == "0.500 ± 0.000"


def test_rows_whose_values_stand_in_another_order_are_averaged_together() -> None:
    first, other = row(JSD=0.2), dict(reversed(row(seed=1, JSD=0.4).items()))
    (one,) = means([first, other])
    assert one["JSD"] == pytest.approx(0.3) and list(one)[:3] == ["table", "partition", "rows"]


def test_a_mean_over_tables_says_how_many_rows_of_theirs_are_without_a_figure() -> None:
    seeds = [(0, 0.2), (1, None), (2, None)]
    rows = [row(table=table, seed=seed, JSD=value, WD=None) for table in ("one", "other") for seed, value in seeds]
    ((_, heads, lines),) = sections(means(rows))
    shown = {cells[0]: (cells[heads.index("JSD")], cells[heads.index("WD")]) for cells in lines}
    own = ("0.200 (2 rows without)", "")
    assert shown == {"one": own, "other": own, "mean": ("0.200 (4 rows without)", "")}
