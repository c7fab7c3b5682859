"""Attacks on VT-GAN's messages: they succeed where the documentation says so, and are at chance where it says so."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import binom
from typer.testing import CliRunner

import silosynth as ss
from silosynth.algorithms.vtgan import protocol as vtgan
from silosynth.attacks import findings
from silosynth.attacks.findings import PartyFinding
from silosynth.attacks.inference import attack, levels_by_gradients
from silosynth.attacks.listening import Overheard, overhear
from silosynth.cli import app
from silosynth.core.errors import ConfigError
from silosynth.core.messages import Message
from silosynth.papers import results, vtgan_figures4_5
from silosynth.papers.vtgan_figures4_5 import SETTINGS, attacked

ROWS, BATCH, ROUNDS = 200, 40, 20
ADAM = {"rate": 2e-4, "betas": (0.5, 0.9)}  # the paper's, so that settings differ in privacy alone
TINY = {"width": 24, "generator_width": 12, "noise": 4, "batch": BATCH, "epochs": ROUNDS * BATCH // ROWS} | ADAM
SILOS = {"bank": ["job", "home", "income"], "clinic": ["sex", "health", "visits"]}
SHUFFLED = ["paper", "full, step"]
TOLD = ["paper, shuffling off", "paper", "full, contributor's gradients"]
LISTS = {"decoys 4": 4, "decoys 16": 16}


def table(rows: int = ROWS) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    job = rng.choice(["clerk", "nurse", "pilot", "smith"], rows, p=[0.4, 0.3, 0.2, 0.1])
    return pd.DataFrame(
        {
            "job": job,
            "home": rng.choice(["owned", "rented"], rows, p=[0.7, 0.3]),
            "income": rng.normal(50, 9, rows) + 20 * (job == "pilot"),
            "sex": rng.choice(["f", "m"], rows),
            "health": rng.choice(["good", "fair", "poor"], rows, p=[0.6, 0.3, 0.1]),
            "visits": rng.gamma(2.0, 3.0, rows),
        }
    )


@cache
def heard(setting: str) -> tuple[Overheard, list[tuple[str, Message]]]:
    """A training in that setting, and all that silos are asked in it."""
    asked: list[tuple[str, Message]] = []
    federation = ss.simulate(table(), SILOS)
    config = replace(SETTINGS[setting], **TINY)
    return overhear(federation, config, 0, also=lambda silo, ask, reply: asked.append((silo, ask))), asked


@cache
def found(setting: str) -> dict[str, PartyFinding]:
    return {finding.attack: finding for finding in attack(heard(setting)[0], np.random.default_rng(0))}


def test_without_shuffling_row_numbers_give_the_table_away():
    """The paper's figure 4."""
    cells, coverage, rows = (
        found("paper, shuffling off")[name] for name in ("numbers, cells", "numbers, coverage", "numbers, rows")
    )
    assert cells.value == 1.0 and not cells.at_chance
    assert coverage.value is not None and coverage.value >= 0.95
    assert rows.value == 1.0 and not rows.at_chance
    truth = heard("paper, shuffling off")[0]
    for step, told in truth.coordinator.steps.items():
        assert (told.number_B == truth.truth.row_B[step]).all()


@pytest.mark.parametrize("setting", SHUFFLED)
def test_with_shuffling_guesses_by_row_number_are_chance(setting):
    """The paper's figure 5. The secret is the operating system's: bounds are four standard deviations wide."""
    cells, coverage = (found(setting)[name] for name in ("numbers, cells", "numbers, coverage"))
    assert coverage.value is not None and coverage.value >= 0.95
    deviation = (cells.chance_high - cells.chance_low) / (2 * 1.96)
    assert abs(cells.value - cells.chance) < 4 * deviation
    assert 0 < deviation < 0.05


@pytest.mark.parametrize("setting", [*SHUFFLED, *LISTS, "none"])
def test_with_shuffling_no_row_number_links_two_rounds(setting):
    rows = found(setting)["numbers, rows"]
    assert rows.trials > 50 and rows.chance == 1 / ROWS
    assert binom.sf(round(rows.value * rows.trials) - 1, rows.trials, 1 / ROWS) > 1e-6


def test_rows_drawn_for_rare_levels_are_linked_all_the_same():
    named = table().assign(job=[f"job {i}" for i in range(ROWS)])  # a level of one row says which row it is
    config = replace(SETTINGS["paper"], **TINY | {"epochs": 2})
    linked = {f.attack: f for f in attacked(ss.simulate(named, SILOS, {"job": "categorical"}), config, 0)}
    assert linked["levels, rows"].low > 0.5 > linked["numbers, rows"].high


def test_a_round_shows_columns_together_and_a_step_or_a_list_hardly():
    by_round, by_step, by_list = (found(s)["columns together"].value for s in ("paper", "full, step", "decoys 4"))
    assert by_round > 2 * by_step > 0 and by_round > 2 * by_list


@pytest.mark.parametrize("setting", SETTINGS)
def test_features_give_levels_and_rows_away(setting):
    """Keeps the warning in the algorithm's documentation honest."""
    cells, rows = (found(setting)[name] for name in ("features, cells", "features, rows"))
    assert cells.value > cells.chance + 0.2 and cells.low > cells.chance and not cells.at_chance
    assert rows.low > 0.5 and rows.chance < 0.1


@pytest.mark.parametrize("setting", ["none", "paper"])
def test_exact_lists_and_gradients_name_the_batch(setting):
    assert found(setting)["lists, batch"].value == found(setting)["lists, surest"].value == 1.0
    assert found(setting)["lists, rare level"].low > 0.5


@pytest.mark.parametrize("setting", SETTINGS)
def test_gradients_give_others_levels_away_where_there_are_any(setting):
    """Also where a silo is told nothing of the others' rows: columns of this table do not depend on each other."""
    levels = found(setting)["gradients, levels"]
    if setting in TOLD:
        assert levels.low > levels.chance and not levels.at_chance
    else:
        assert levels.value is None


def test_gradients_that_say_nothing_give_nothing_away():
    overheard, _ = heard("full, contributor's gradients")
    rng, noise = np.random.default_rng(1), torch.Generator().manual_seed(1)
    ears = {name: copy.copy(ear) for name, ear in overheard.ears.items()}
    for ear in ears.values():
        ear.gradients = {
            s: (rows, torch.randn(told.shape, generator=noise)) for s, (rows, told) in ear.gradients.items()
        }
    levels = levels_by_gradients(replace(overheard, ears=ears), rng)
    assert levels.trials > 100 and levels.at_chance
    empty = {name: copy.copy(ear) for name, ear in ears.items()}
    for ear in empty.values():
        ear.gradients = {}
    assert levels_by_gradients(replace(overheard, ears=empty), rng).value is None


@pytest.mark.parametrize("setting", ["full, step", "full, contributor's gradients"])
def test_nothing_is_said_of_the_contributors_rows_when_all_are_pushed_and_at_most_it_descends(setting):
    overheard, asked = heard(setting)
    told = [ask for silo, ask in asked if isinstance(ask, vtgan.PushRows) and ask.contributor != silo]
    assert len(told) == ROUNDS * 5 and not any(
        isinstance(ask, vtgan.PushListed | vtgan.DescendPicked) for _, ask in asked
    )
    contributors = [(silo, ask.contributor == silo) for silo, ask in asked if isinstance(ask, vtgan.PushRows)]
    updated = [silo for silo, ask in asked if isinstance(ask, vtgan.DescendBottomCritic)]
    assert updated == [silo for silo, contributes in contributors if contributes and setting in TOLD]
    assert not any(ear.count_N.any() for ear in overheard.ears.values())
    assert all(found(setting)[name].value is None for name in ("lists, rare level", "lists, batch"))


@pytest.mark.parametrize("setting", LISTS)
def test_decoys_hide_the_batch_as_they_promise_and_no_better(setting):
    """No row stands in a list twice, so that nothing but how often it stood in others tells it from a decoy."""
    batch, surest = found(setting)["lists, batch"], found(setting)["lists, surest"]
    overheard, _ = heard(setting)
    lists = [listed for ear in overheard.ears.values() for listed in ear.lists.values()]
    assert lists and all(len(listed.unique()) == len(listed) == min(ROWS, LISTS[setting] * BATCH) for listed in lists)
    distinct = np.mean([len(rows.unique()) for rows in overheard.truth.row_B.values()])
    assert batch.value == pytest.approx(distinct / len(lists[0]), abs=0.03)
    if len(lists[0]) < ROWS:
        assert surest.value > batch.value and found(setting)["lists, rare level"].low > 0.5
    else:  # a list of everybody says nothing
        assert found(setting)["lists, rare level"].value == 0.5


def test_lists_heard_are_the_rows_that_were_pushed():
    overheard, _ = heard("none")
    for name, ear in overheard.ears.items():
        assert ear.lists and ear.count_N.sum() > 0
        for step in ear.lists.keys() & overheard.coordinator.steps.keys():
            assert overheard.coordinator.steps[step].contributor != name
            assert set(ear.lists[step].tolist()) == set(overheard.truth.row_B[step].tolist())


def test_what_is_kept_does_not_grow_with_the_training():
    overheard, _ = heard("paper")
    assert len(overheard.coordinator.steps) <= 50 and len(overheard.truth.pushed) <= 60
    full = [told for told in overheard.coordinator.steps.values() if len(told.features) == len(SILOS)]
    assert len(full) <= 10


def test_tables_without_categories_and_single_rounds_give_nothing_to_attack():
    numbers = {"a": ["income"], "b": ["visits"]}
    config = replace(SETTINGS["paper"], **TINY | {"epochs": 1, "batch": ROWS})
    left = {f.attack: f for f in attacked(ss.simulate(table(), numbers), config, 0)}
    for name in ("numbers, cells", "numbers, rows", "levels, rows", "features, cells", "lists, rare level"):
        assert left[name].value is None and left[name].at_chance is None
    assert left["lists, batch"].value == 1.0


def test_three_silos_are_attacked_too():
    silos = {"a": ["job"], "b": ["home", "income", "sex"], "c": ["health", "visits"]}
    options = TINY | {"epochs": 2}
    config = replace(SETTINGS["none"], **options)
    left = {f.attack: f for f in attacked(ss.simulate(table(), silos), config, 0)}
    assert len(left) == 11 and left["lists, batch"].value == 1.0


def test_scores_by_hand():
    truth = np.array([[0, 1], [0, 1], [0, 1], [1, 0]])
    right = np.array([[True, True], [True, True], [False, True], [True, False]])
    value, influence = findings.balanced(right, truth)
    assert value == pytest.approx(((2 / 3 + 1) / 2 + (0 + 1) / 2) / 2)
    assert influence.sum() == pytest.approx(0)
    every = np.ones_like(truth, dtype=bool)
    cells = findings.against_permuted("x", truth, truth, every, np.random.default_rng(0), "")
    assert cells.value == 1.0 and cells.low == cells.high == 1.0
    assert cells.chance == pytest.approx(5 / 8, abs=0.05) and cells.chance_high == 1.0
    half = findings.share("silo", "x", 5, 10, 0.5, "")
    assert half.at_chance and 0.2 < half.low < 0.5 < half.high < 0.8
    assert findings.share("silo", "x", 10, 10, 0.5, "").at_chance is False


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(results, "_commit", lambda root: "")  # for which a process is started


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["papers", "run", "vtgan/figure-4", "--table", "demo", *map(str, arguments)])


def test_the_command_shows_and_writes_a_table(elsewhere: None, tmp_path: Path) -> None:
    sizes = ("--rows", 200, "--epochs", 3)
    result = call(*sizes, "--out", tmp_path / "found.md", "--json")
    assert result.exit_code == 0, result.stderr
    (row,) = json.loads(result.stdout)["rows"]
    assert [f["attack"] for f in row["findings"][:2]] == ["numbers, cells", "numbers, coverage"]
    assert (tmp_path / "found.md").read_text().count("| demo | paper, shuffling off |") == len(row["findings"])
    again = call(*sizes, "--out", tmp_path / "found.json")
    assert again.exit_code == 0 and "1 of 1 rows are in" in again.stderr


def test_wrong_sizes_and_files_are_clean_errors(elsewhere: None, tmp_path: Path) -> None:
    assert call("--out", tmp_path / "found.csv").exit_code == 2
    with pytest.raises(ConfigError, match="epochs"):
        vtgan_figures4_5.jobs(("demo",), 200, 0)
    with pytest.raises(ConfigError, match="table"):
        vtgan_figures4_5.jobs(())
