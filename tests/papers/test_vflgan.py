"""``silosynth papers run vflgan/…``: rows appear, are kept, and are not computed twice."""

from __future__ import annotations

import io
import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner, Result

from silosynth.cli import app
from silosynth.core.errors import ConfigError
from silosynth.core.streams import Streams
from silosynth.papers import (
    drawings,
    vflgan_figure8 as private,
    vflgan_figures5_6 as digits,
    vflgan_table1 as comparison,
    vflgan_table3 as attacks,
    vflgan_tables2_4 as records,
)  # fmt: skip
from silosynth.papers.experiment import Size
from silosynth.papers.vflgan_gs_wgan import SanitisedConfig, SanitisedTraining, calibrated, sanitised, spent
from silosynth.papers.vflgan_table1 import TotalDifferenceJob, algorithm_options
from silosynth.simulation import training as api

needs_data = pytest.mark.skipif("SILOSYNTH_DATA" not in os.environ, reason="needs the data sets")


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["papers", "run", *map(str, arguments)])


@pytest.fixture
def stand_in(fits: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(api, "fit", fits)
    return fits


def test_jobs_are_all_that_is_asked_for():
    jobs = comparison.jobs(["adult", "adult"], ["dplt", "wgan-gp"], dp="both", repeats=2, seed=3)
    found = [(job.algorithm, job.epsilon, job.seed) for job in jobs]
    assert [one for one in found if one[0] == "dplt"] == [("dplt", e, s) for s in (3, 4) for e in (0.0, 10.0)]
    assert len({json.dumps(job.identity) for job in jobs}) == len(jobs)
    assert algorithm_options(jobs[1])["dp"] == {"epsilon": 10.0, "delta": 1e-5}
    unknown: tuple[dict[str, Any], ...] = (
        {"tables": ["adlut"]}, {"tables": ["adult"], "algorithms": ["tvae"]}, {"tables": []},
        {"tables": ["adult"], "algorithms": ["vflgan", "dplt"], "preset": "private"}, {"tables": ["adult"], "draws": 0},
    )  # fmt: skip
    for bad in unknown:
        with pytest.raises(ConfigError):
            comparison.jobs(**bad)


def test_the_published_noise_has_no_epsilon() -> None:
    jobs = comparison.jobs(["adult"], dp="published", preset="paper", own=True, epochs=3)
    assert [job.algorithm for job in jobs] == ["wgan-gp", "vertigan", "vflgan-base", "vflgan"]  # DPLT has no critic
    options = comparison.with_published_noise(jobs[3], algorithm_options(jobs[3]), 4000)
    noise = calibrated(4000, 64, 190, 10.0, 1e-5)  # 3 epochs of 62 steps, five to a round
    assert options == {"epochs": 3, "least_rounds": 0, "dp": {"mechanism": "paper-unsound", "noise": noise}}
    assert jobs[3].identity != replace(jobs[3], options=()).identity
    figures = dict.fromkeys(f"{one} {what}" for one in ("trtr", "tsts", "trts", "tstr") for what in ("accuracy", "f1"))
    row = {**jobs[3].identity, **dict.fromkeys(figures, 0.5), "total difference": 0.2, "FD": 0.1, "seeds": 1}
    cells = comparison.cells(
        {**row, "totals": [[0.2]], "paper": comparison.published(jobs[3]), "seconds": 1.0, "bytes": 1}
    )
    found = dict(zip(comparison.HEADS, cells, strict=True))
    assert found["epsilon"] == "published noise" and found["paper"] == "0.16"


def test_totals_stand_beside_those_of_their_own_table() -> None:
    red = TotalDifferenceJob("wine_quality_red", "vertigan")
    number = replace(red, target="number")
    assert [comparison.published(job) for job in (red, replace(red, epsilon=10.0), number)] == [0.58, 0.74, 1.14]
    assert (
        comparison.published(replace(number, epsilon=10.0)) is None is comparison.published(replace(red, epsilon=5.0))
    )
    assert comparison.published(replace(number, algorithm="dplt")) is None
    assert comparison.published(replace(number, table="adult")) == 1.47


def test_figures_along_trainings_are_of_ours_as_published() -> None:
    for experiment, target in ((comparison.AS_NUMBER, "number"), (comparison.DISTANCES, "classes")):
        sizes: tuple[Size, ...] = ("small", "kept", "published")
        jobs = [job for size in sizes for job in experiment.sized(size, {})]
        assert {(job.preset, job.target, job.curve) for job in jobs} == {("paper", target, True)}
        assert "dplt" not in {job.algorithm for job in jobs}
    assert {job.epsilon for job in comparison.AS_NUMBER.sized("published", {})} == {0.0}
    assert {job.epsilon for job in comparison.DISTANCES.sized("kept", {})} == {0.0, 10.0}


def test_rows_of_a_preset_s_other_settings_are_others() -> None:
    one = TotalDifferenceJob("adult", "vflgan", preset="fast")
    batch = TotalDifferenceJob("adult", "vflgan", preset="fast", options=(("batch", 33),))
    assert json.loads(one.settings) == {**json.loads(batch.settings), "batch": 32}
    assert json.loads(TotalDifferenceJob("adult", "vflgan", 10.0, preset="private").settings)["dp"]["epsilon"] == 10


def test_options_are_those_that_an_algorithm_has():
    job = TotalDifferenceJob("adult", "dplt", epochs=5, options=(("bins", 4), ("batch", 16)))
    assert algorithm_options(job) == {"bins": 4}
    job = TotalDifferenceJob("adult", "wgan-gp", epochs=5, options=(("batch", 16),))
    assert algorithm_options(job) == {"epochs": 5, "least_rounds": 0, "batch": 16}


def test_ours_as_published_has_the_settings_of_the_table_s_own_public_code() -> None:
    of: dict[str, Any] = {"preset": "paper", "own": True}
    red, white = (comparison.jobs([table], ["vflgan-base"], **of)[0] for table in comparison.OWN)
    (adult,), (plain,) = (
        comparison.jobs(["adult"], ["vflgan"], **of),
        comparison.jobs(algorithms=["vflgan"], preset="paper"),
    )
    assert json.loads(red.settings)["generator"] == [16, 32, 64] and json.loads(red.settings)["batch"] == 16
    assert json.loads(white.settings)["rate"] == 4e-4 and json.loads(white.settings)["epochs"] == 400
    assert adult.options == plain.options == () and json.loads(plain.settings)["epochs"] == 75
    (given,) = comparison.jobs(["wine_quality_red"], ["vertigan"], epochs=7, options=(("batch", 32),), **of)
    assert {"batch": 32, "epochs": 7, "noise": 10}.items() <= algorithm_options(given).items()
    assert "shared" not in algorithm_options(given)


@needs_data
def test_tables_are_divided_as_in_the_public_code():
    adult, wine = comparison.load("adult", 500), comparison.load("wine_quality_red", 200, target="number")
    assert len(adult.frame) == 500 and not adult.frame.isna().any().any()
    assert adult.silos["first"][-1] == "relationship" and adult.silos["second"][0] == "race"
    assert len(adult.categories) == 9
    assert wine.categories == frozenset() and wine.kinds["quality"] == "integer"
    credit = comparison.load("south_german_credit", bounds=True)
    assert credit.frame["purpose"].str.len().unique().tolist() == [2]  # "00" to "10": text in the order of numbers
    assert credit.kinds["age"] == {"kind": "integer", "low": 19, "high": 75}


@needs_data
@pytest.mark.slow
def test_rows_are_kept_and_the_same_command_continues(stand_in: Any, tmp_path: Path) -> None:
    out = tmp_path / "rows.md"
    sizes = ("--rows", 60, "--epochs", 2, "--dp", "off", "-a", "wgan-gp", "-a", "dplt")
    command = ("vflgan/table-1", *sizes, "--out", out)
    result = call(*command, "--json")
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    assert [row["algorithm"] for row in rows] == ["wgan-gp", "dplt"]
    assert rows[0]["bytes"] is None and rows[1]["bytes"] == 42
    assert rows[0]["paper"] == 0.09 and rows[0]["FD"] < 3  # rows of the table, drawn with replacement
    assert [call["options"] for call in stand_in.calls] == [{"epochs": 2, "least_rounds": 0}, {}]
    assert out.read_text().count("| wine_quality_red |") == 2
    again = call(*command)
    assert again.exit_code == 0 and "2 of 2 rows are in" in again.stderr and len(stand_in.calls) == 2
    (tmp_path / "rows.json").write_text("{}")
    assert call(*command).exit_code == 4
    assert call("vflgan/table-1", "--dp", "maybe").exit_code == 2


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("algorithm", comparison.ALGORITHMS)
def test_the_algorithms_run_with_a_curve(algorithm: str):
    job = TotalDifferenceJob("wine_quality_red", algorithm, preset="fast", rows=200, epochs=4, curve=True)
    row = comparison.measure(job)
    assert row["curve"] or algorithm == "dplt"
    for last in row["curve"][-1:]:
        assert last["FD"] == pytest.approx(row["FD"], rel=0.5)
    assert row["total difference"] > 0


@needs_data
@pytest.mark.slow
def test_a_private_row_says_what_it_cost():
    row = comparison.measure(TotalDifferenceJob("wine_quality_red", "dplt", 10.0))
    assert "epsilon at most" in row["privacy"] and row["total difference"] < 1.0


# Digits.


@needs_data
def test_judges_know_digits_and_are_kept(tmp_path: Path):
    """Inception scores alone say little of what is no digit yet: noise scores more than the mean image."""
    judges = digits.Judges(tmp_path, epochs=1)
    truth = digits.images()[1]
    said = judges.probabilities(judges.pixels_NP)
    assert (said.argmax(axis=1) == truth).mean() > 0.85
    again = digits.Judges(tmp_path, epochs=1)
    np.testing.assert_array_equal(again.latents(judges.pixels_NP[:50]), judges.latents(judges.pixels_NP[:50]))
    assert (tmp_path / "judges-1.bin").exists()
    real, draw = judges.pixels_NP[:500], np.random.default_rng(0)
    made = {"noise": draw.permuted(real, axis=0), "mean": np.broadcast_to(real.mean(0), real.shape)}
    score = {name: digits.judged(judges, real, pixels) for name, pixels in made.items()}
    assert score["mean"]["IS"] == pytest.approx(1) and score["noise"]["IS"] > 1.2
    assert score["noise"]["real IS"] > 5 and score["noise"]["FD"] > 10 * score["noise"]["real FD"]


@needs_data
def test_digits_are_pictured_and_judged(stand_in: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "JUDGE_EPOCHS", 1)
    assert [job.seed for job in digits.jobs(("vflgan",), repeats=3)] == [0, 1, 2]
    sizes = ("-a", "wgan-gp", "--rows", 200, "--epochs", 1)
    command = ("vflgan/figure-6", *sizes, "--out", tmp_path / "out" / "page.md", "--json")
    result = call(*command)
    assert result.exit_code == 0, result.stderr
    (row,) = json.loads(result.stdout)["rows"]
    assert row["FD"] < row["real FD"] and 5 < row["IS"] < 10  # real images, some of them twice
    assert decoded((tmp_path / "out" / "wgan-gp-200-1-0.png").read_bytes()).shape == (280, 280)
    assert stand_in.calls[0]["silos"] == {"central": [f"pixel_{i}" for i in range(784)]}
    assert call(*command).exit_code == 0 and len(stand_in.calls) == 1
    assert call("vflgan/figure-6", "-a", "dplt").exit_code == 2


def test_bounds_of_pixels_are_declared_only_where_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "HALF", 1)
    frame = pd.DataFrame({"pixel_0": [0.0, 0.5], "pixel_1": [0.5, 1.0]})
    plain, bounded = (digits.federation(frame, **own).schema.columns[0] for own in ({}, private.BOUNDS))
    assert plain.low is None is plain.high and (bounded.low, bounded.high) == (0.0, 1.0)


def test_a_picture_is_a_png():
    grey = np.linspace(-0.1, 1.1, 12).reshape(3, 4)
    np.testing.assert_allclose(decoded(drawings.png(grey)), grey.clip(0, 1), atol=1 / 255)


def test_a_grid_has_images_in_reading_order():
    whole = digits.grid(np.repeat(np.arange(9.0)[:, None], 784, axis=1), side=3)
    assert whole[0, 0] == 0 and whole[0, 83] == 2 and whole[83, 0] == 6


def decoded(png: bytes) -> np.ndarray:
    """Of a grey PNG, numbers from 0 to 1."""
    from matplotlib.image import imread  # half a second, for these tests alone

    return np.asarray(imread(io.BytesIO(png)))[:, :, 0]


# Records under attack.


def test_attacks_stand_beside_the_published_ones() -> None:
    beside = attacks.published
    assert beside("wine_quality_red", 100, "assd", "naive") == 0.98 and len(attacks.RIVALS) == 6
    assert beside("wine_quality_white", 200, "rivals", "DOMIAS") == 0.58
    assert beside("california_housing", 100, "assd", "naive") == 0.81
    assert beside("california_housing", 200, "rivals", "LOGAN-D1") == 0.54
    assert beside("wine_quality_red", 100, "rivals", "LOGAN-0") == 0.47
    for part, name in (("private", "naive"), ("assd", "nearness")):
        assert beside("wine_quality_red", 100, part, name) is None
    assert beside("wine_quality_red", 40, "assd", "naive") is None


@pytest.mark.parametrize(("size", "tables"), [("kept", {*attacks.TABLES[:2]}), ("published", {*attacks.TABLES})])
def test_wines_and_houses_are_attacked_and_each_can_be_had_alone(size: Size, tables: set[str]) -> None:
    jobs = attacks.EXPERIMENT.sized(size, {})
    assert {(job.table, job.rows) for job in jobs} == {(table, rows) for table in tables for rows in (100, 200)}
    alone = attacks.EXPERIMENT.sized(size, {"tables": ("wine_quality_red",)})
    assert [job.identity for job in alone] == [job.identity for job in jobs if job.table == "wine_quality_red"]


@needs_data
def test_the_value_of_houses_is_a_number() -> None:
    train, others, reference = attacks.records("california_housing", 100)
    assert (len(train), len(others), len(reference)) == (100, 100, 10_000)
    task = comparison.load("california_housing", bounds=True)
    assert task.categories == frozenset() and train.dtypes["median_house_value"] == "int64"
    assert task.kinds["median_house_value"] == {"kind": "integer", "low": 14_999, "high": 500_001}
    assert [len(columns) for columns in task.silos.values()] == [5, 4]


def test_two_records_are_attacked_the_second_another_one() -> None:
    numbers = np.random.default_rng(0).uniform(1, 2, (50, 3))
    numbers[7] = (90, -90, 90)  # alone, and outlying in all columns
    numbers[9] = (30, 30, 1.5)
    assert records.vulnerable(pd.DataFrame(numbers, columns=list("abc"))) == (7, 9)


@needs_data
@pytest.mark.parametrize(("table", "known"), [("wine_quality_red", (1235, 151)), ("wine_quality_white", (1034, 2781))])
def test_records_are_those_that_the_public_code_s_files_are_named_after(table: str, known: tuple[int, int]) -> None:
    assert records.vulnerable(comparison.load(table).frame) == known


def test_lines_have_each_record_s_areas_beside_the_published_ones() -> None:
    one = {"AUC": 0.7, "low": 0.6, "high": 0.8, "spread": 0.05}
    names = [f"{scheme}_{kind}" for scheme in ("assd", "asif") for kind in records.FEATURES]
    found = {f"{name}_record_{i}": one for name in names for i in (1, 2)}
    row = {**records.jobs(("adult",), (5.0,))[0].identity, "findings": {**found, "assd_nearness_record_2": one}}
    tables, features = records.sections([row])
    heads = dict.fromkeys(records.HEADS)
    shown = [dict(zip(heads, cells, strict=True)) for cells in tables[2]]
    assert [(cells["record"], cells["features"], cells["paper"]) for cells in shown] == [
        ("record 1", "naive", "0.50 ± 0.09"), ("record 1", "correlation", "0.49 ± 0.10"),
        ("record 2", "naive", "0.50 ± 0.08"), ("record 2", "correlation", "0.48 ± 0.11"), ("record 2", "nearness", ""),
    ]  # fmt: skip
    assert [cells[10] for cells in features[2]] == ["0.49 ± 0.03", "0.50 ± 0.12", "0.54 ± 0.09", "0.51 ± 0.10"]
    with pytest.raises(ConfigError):
        records.jobs(epsilons=(-1.0,))


def test_rows_of_other_settings_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {name: attacks.jobs(rows=(100,), parts=(name,))[0] for name in attacks.PARTS}
    digit, record = private.jobs(("gs-wgan",))[0], records.jobs(options=(("penalty", 8.0),))[0]
    before = [job.identity for job in (*made.values(), digit)]
    assert before[0]["options"]["penalty"] == 10.0 and "dp" in before[2]["options"]
    assert json.loads(record.identity["settings"])["penalty"] == 8.0
    monkeypatch.setitem(attacks.SETTING, "penalty", 9.0)
    monkeypatch.setitem(digits.NETWORKS, "penalty", 9.0)
    changed = [job.identity for job in (*made.values(), digit)]
    assert all(one != other for one, other in zip(before, changed, strict=True))


@needs_data
def test_the_audited_generator_has_the_table_s_budget() -> None:
    private, plain = (records.subject(records.jobs(epsilons=(e,), rows=60, epochs=2)[0])[1] for e in (5.0, 0.0))
    assert private.config.dp.epsilon == 5.0 and private.config.dp.delta == 5e-4 and private.config.select == "last"
    assert not plain.config.dp.private and plain.config.epochs == 2


# Private digits.


def gradients(rows: Any, **options: Any) -> SanitisedTraining:
    sizes = {"critics": 3, "critic_steps": 3, "batch": 4, "inputs": 2, "generator": (5,), "critic": (4,)}
    config = SanitisedConfig(6, 0.1, **{**sizes, **options})
    return SanitisedTraining(torch.as_tensor(rows, dtype=torch.float32), config, Streams(0))


def test_gradients_are_cut_row_by_row_and_noised() -> None:
    gradient = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    draw = torch.Generator()
    torch.testing.assert_close(sanitised(gradient, 1.0, 0.0, draw), torch.tensor([[0.6, 0.8], [0.3, 0.4]]))
    noise = sanitised(torch.zeros(20_000, 2), 1.0, 3.0, draw.manual_seed(0))
    assert float(noise.std()) == pytest.approx(3.0, rel=0.02)


def test_all_that_a_row_changes_is_its_own_critic_s_gradients() -> None:
    rows = np.random.default_rng(0).random((12, 3))
    one = gradients(rows)
    changed = rows.copy()
    changed[one.parts[2].numpy()] = 0.0
    other = gradients(changed)
    for number in (0, 1, 0, 0, 1):  # not the critic whose rows differ
        one.round(number)
        other.round(number)
    assert all(torch.equal(a, b) for a, b in zip(one.generator.parameters(), other.generator.parameters(), strict=True))
    one.round(2)
    other.round(2)
    weights = zip(one.generator.parameters(), other.generator.parameters(), strict=True)
    assert not all(torch.equal(a, b) for a, b in weights)


def test_noise_covers_a_batch_whose_gradients_all_change() -> None:
    one, other = torch.full((4, 1), 9.0), torch.full((4, 1), -9.0)  # what the worst critics of two tables give
    draw = torch.Generator()
    apart = sanitised(one, 1.0, 0.0, draw) - sanitised(other, 1.0, 0.0, draw)
    config = SanitisedConfig(1, 0.5, batch=4)
    assert float(apart.norm()) == pytest.approx(config.deviation / config.noise)


def test_epsilon_is_that_of_wang_s_bound_and_noise_keeps_it() -> None:
    noise = calibrated(20, 1, 50, 10.0, 1e-5)
    assert spent(20, 1, noise, 50, 1e-5) <= 10.0 < spent(20, 1, 0.98 * noise, 50, 1e-5)
    converted = {a: math.log((a - 1) / a) - (math.log(1e-5) + math.log(a)) / (a - 1) for a in range(2, 20)}
    own = min(50 * wang(a, 1 / 20, noise) + more for a, more in converted.items())
    assert spent(20, 1, noise, 50, 1e-5) == pytest.approx(own, rel=0.02)
    with pytest.raises(ConfigError):
        calibrated(20, 21, 50, 10.0, 1e-5)


def wang(order: int, rate: float, noise: float) -> float:
    """Theorem 9 of Wang, Balle and Kasiviswanathan for a Gaussian mechanism, terms added up one by one."""
    renyi = {j: j / (2 * noise**2) for j in range(2, order + 1)}
    second = min(4 * math.expm1(renyi[2]), 2 * math.exp(renyi[2]))
    total = 1 + rate**2 * math.comb(order, 2) * second
    for j in range(3, order + 1):
        total += rate**j * math.comb(order, j) * 2 * math.exp((j - 1) * renyi[j])
    return math.log(total) / (order - 1)


def test_no_epsilon_stands_beside_the_published_mechanism() -> None:
    job = private.jobs(("as published",), 128, 1)[0]
    dp = private.budget(job, 128)
    assert dp["mechanism"] == "paper-unsound" and dp["noise"] > 0 and "epsilon" not in dp
    figures = dict.fromkeys(("FD", "real FD", "IS", "real IS", "seconds"), 1.0)
    row = {**job.identity, **figures, "bytes": 1, "privacy": "none: …"}
    ((_, heads, (cells,)), (_, _, claims)) = private.sections([row])
    assert dict(zip(heads, cells, strict=True))["epsilon"] == "none" and claims == [("as published", "none: …")]
    assert private.budget(private.jobs(("wgan-gp as published",), 128, 1)[0], 128) == dp
    assert [job.seed for job in private.jobs(("gs-wgan",), repeats=2, seed=3)] == [3, 4]
    assert private.budget(private.jobs(("dp-vflgan",))[0], 128) == {"epsilon": 10.0, "delta": 1e-5}
    with pytest.raises(ConfigError):
        private.jobs(("dp",))
