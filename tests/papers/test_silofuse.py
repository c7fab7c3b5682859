"""SiloFuse's tables: what is compared with what is published, and the score of privacy."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from silosynth import catalog
from silosynth.attacks import questions
from silosynth.core.errors import ConfigError
from silosynth.papers import (
    silofuse_table2 as sizes,
    silofuse_table5 as associations,
    silofuse_tables3_4 as nine,
    silofuse_tables6_7 as privacy,
)  # fmt: skip
from silosynth.papers.silofuse_tables3_4 import NineTablesJob


def table(rows: int = 150) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    words = {name: rng.choice(list("abc"), rows) for name in ("one", "two")}
    return pd.DataFrame({"x": rng.normal(size=rows), **words, "y": rng.normal(size=rows)})


def test_jobs_are_all_tables_models_silos_and_seeds() -> None:
    jobs = nine.jobs(("loan", "loan", "heloc"), ("silofuse", "gan-linear"), silos=(4, 8), repeats=2, seed=3)
    assert len(jobs) == 2 * 2 * 2 * 2 and {job.seed for job in jobs} == {3, 4}
    permuted = [job.permuted for job in nine.robustness_jobs(("loan",))]
    assert permuted == [False, False, True, True]
    by_steps = privacy.jobs(("loan",), ("latentdiff",), steps=(2, 5))
    assert [dict(job.options) for job in by_steps] == [{privacy.STEPS: 2}, {privacy.STEPS: 5}]
    wrong: tuple[dict[str, Any], ...] = ({"tables": ("laon",)}, {"methods": ("gan",)}, {"silos": ()})
    for one in wrong:
        with pytest.raises(ConfigError):
            nine.jobs(**one)
    with pytest.raises(ConfigError):
        privacy.jobs(methods=("gan-linear",))


def test_three_seeds_of_seven_models_are_part_of_size_kept_and_one_command() -> None:
    kept = [job.identity for job in nine.EXPERIMENT.sized("kept", {})]
    jobs = nine.EXPERIMENT.sized("kept", {"preset": "fast"})
    every = {(name, method, seed) for name in nine.TABLES for method in nine.METHODS for seed in range(3)}
    assert {(job.table, job.method, job.seed) for job in jobs} == every and len(jobs) == len(every)
    assert all(job.identity in kept for job in jobs)


def test_figures_stand_beside_those_of_their_table_and_model() -> None:
    made = nine.published
    assert made(nine._RESEMBLANCE, "diabetes_pima", "silofuse") == "84.0 ± 0.63"
    assert made(nine._UTILITY, "loan", "tabddpm") == "98.8 ± 1.17"
    assert made(nine._RESEMBLANCE, "adult", "gan-conv") == "38.0 ± 0.00"
    assert made(nine._UTILITY, "heloc", "e2edistr") == "39.2 ± 0.40"
    assert made(privacy._PRIVACY, "intrusion_nsl_kdd_20pct", "tabddpm") == "92.1 ± 2.62"
    assert made(privacy._PRIVACY, "loan", "gan-linear") == ""
    every = (*nine._RESEMBLANCE.values(), *nine._UTILITY.values(), *privacy._PRIVACY.values())
    assert {len(own.split()) for own in every} == {9}


@pytest.mark.parametrize(
    ("silos", "permuted", "beside"),
    [(4, False, ["81.2 ± 0.40", "90.0 ± 0.89"]), (8, False, ["", ""]), (4, True, ["", ""])],
)
def test_published_figures_are_of_four_silos_with_columns_in_order(
    silos: int, permuted: bool, beside: list[str]
) -> None:
    row = {
        **NineTablesJob("loan", "fast", 0, silos=silos, permuted=permuted).identity,
        "training rows": 2,
        "columns": 2,
    }
    ((_, heads, (cells,)),) = nine.sections(nine.means([{**row, **dict.fromkeys(nine.AVERAGED, 50.0)}]))
    assert [cell for head, cell in zip(heads, cells, strict=True) if head == "published"] == beside


@pytest.fixture
def copier(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Models that draw their training rows; the federations that they were trained on."""
    seen: list[Any] = []

    def train(name: str, federation: Any, preset: str, seed: int, options: Any, tell: Any) -> Any:
        seen.append((name, federation, options))
        return SimpleNamespace(sample=lambda n, seed=0: nine.tables.thirds(table())[0]), {"seconds": 1.0}

    monkeypatch.setattr(nine.tables, "modelled", lambda name: table())
    monkeypatch.setattr(nine.experiment, "train", train)
    return seen


def test_columns_are_permuted_and_dealt_out(copier: list[Any]) -> None:
    for permuted in (False, True):
        nine.fitted(NineTablesJob("loan", "fast", 0, silos=2, permuted=permuted), lambda stage, share: None)
    (_, plain, _), (_, other, _) = copier
    assert plain.silos == {"silo1": ["x", "one"], "silo2": ["two", "y"]}
    dealt = [name for columns in other.silos.values() for name in columns]
    assert sorted(dealt) == sorted(table().columns) and dealt != list(table().columns)


def test_options_go_to_the_models_that_have_them(copier: list[Any]) -> None:
    for method in ("latentdiff", "gan-linear"):
        job = NineTablesJob("loan", "fast", 0, method, options=((privacy.STEPS, 2),))
        nine.fitted(job, lambda stage, share: None)
    (_, _, latent), (name, _, gan) = copier
    assert latent == {privacy.STEPS: 2} and name == "ctgan" and privacy.STEPS not in gan and gan["normalised"]


def test_rivals_have_the_networks_that_the_paper_gives_them() -> None:
    for method in nine.METHODS:
        for preset in ("fast", "paper"):
            name, options = nine.trained_by(NineTablesJob("loan", preset, 0, method))
            config = catalog.algorithm(name).configure(preset, options)
            assert getattr(config, "normalised", True), method
            if preset == "paper" and name in ("ctgan", "ctabgan"):
                assert (config.least_rounds, config.batch, config.rate) == (500_000, 512, 1e-3)
            if preset == "paper" and name == "tabddpm":
                assert config.layers == (256,) * 6 and (config.diffusion_steps, config.sample_steps) == (200, 25)


def test_a_generator_that_copies_rows_has_little_privacy(copier: list[Any]) -> None:
    row = privacy.measure(NineTablesJob("loan", "fast", 0))
    parts = {part: row[part] for part in privacy.PARTS}
    assert row["privacy"] == pytest.approx(100 - np.mean(list(parts.values())))
    assert parts["linking"] > 50 and parts["inference"] > 40 and row["privacy"] < 70
    real, holdout = nine.tables.thirds(table())
    names = [one.score.name for one in questions.ask(real, holdout, real)]
    assert all(any(name.startswith(prefix) for name in names) for prefix in privacy.PARTS.values())


def test_a_row_is_shown_with_its_reading_and_what_is_published() -> None:
    job = NineTablesJob("abalone", "paper", 0, "latentdiff", options=((privacy.STEPS, 5),))
    row = {**job.identity, "privacy": 60.0, "singling out": 1.0, "linking": 2.0, "inference": 3.0, "fit s": 1.0}
    ((_, heads, (cells,)),) = privacy.sections(privacy.means([row, {**row, "seed": 1, "privacy": 62.0}]))
    shown = dict(zip(heads, cells, strict=True))
    assert shown["reading"] == "ours as published" and shown["published"] == "51.6 ± 0.41" and shown["steps"] == "5"
    assert shown["privacy"] == "61.0 ± 1.4" and shown["seeds"] == "2"


def test_widths_count_a_column_for_each_level() -> None:
    frame = pd.DataFrame({"word": ["a", "b", None, "a"], "x": [1, 2, 3, 4], "flag": [0, 1, 0, 1]})
    counted = sizes.widths(frame, {"word": "categorical", "flag": "categorical", "x": "mixed"})
    assert counted == {"rows": 4, "categorical": 2, "numeric": 1, "before": 3, "after": 6, "increase": 2.0}
    assert sizes.PAPER["churn"][4] == 2964 and set(sizes.PAPER) == set(nine.TABLES)
    row = {"table": "loan", **counted}
    assert sizes.sections([row])[0][2][0][:5] == ["loan", "4", "5000", "2", "7"]


def test_differences_are_nothing_for_a_copy_and_all_for_a_lost_association() -> None:
    x = np.arange(200.0)
    real = pd.DataFrame({"x": x, "y": 2 * x, "word": np.where(x < 100, "a", "b")})
    assert associations.differences(real, real).max() == 0
    broken = real.assign(y=np.random.default_rng(0).permutation(real["y"]))
    apart = associations.differences(real, broken)
    assert apart[0, 1] == apart[1, 0] > 0.8 and apart[0, 2] == 0 and np.diag(apart).max() == 0


def test_pictures_are_means_over_seeds(copier: list[Any], tmp_path: Path) -> None:
    row = associations.measure(NineTablesJob("loan", "fast", 0))
    assert row["columns"] == 4 and row["largest difference"] == 0  # training rows again
    other = {**row, "seed": 1, "differences": (np.array(row["differences"]) + 1).tolist()}
    shown: list[Any] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(associations, "figure", lambda found: shown.append(found) or Figure())
        associations.pictures([row, other], tmp_path / "page.md")
    assert np.allclose(shown[0]["loan"]["silofuse, fast"], 0.5)
    assert len(associations.figure({"t": {"a": np.eye(2)}, "u": {"b": np.eye(3)}}).axes) == 5  # with the scale
    ((_, heads, (cells,)),) = associations.sections(associations.means([row, other]))
    assert dict(zip(heads, cells, strict=True))["seeds"] == "2"
