"""Attacks on a model file: what somebody who has nothing else learns of the rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.contracts.settings import TINY, federation
from typer.testing import CliRunner

import silosynth as ss
from silosynth.cli import app
from silosynth.core.files import read
from silosynth.core.streams import Streams
from silosynth.privacy.mechanisms import noised_counts
from silosynth.privacy.statement import known_noise, statement
from silosynth.runtime.wire import unpack

SEED = 5_140_936_220_118_774_023  # no one guesses it
SETTING = "wgan-gp private"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Any:
    silos = federation(SETTING)
    model = ss.fit("wgan-gp", silos, preset="fast", options=TINY[SETTING], progress=False, seed=SEED)
    path = tmp_path_factory.mktemp("model") / "model.silosynth"
    model.save(path)
    return path


def rows_if_seed_is(seed: int, path: Any) -> int:
    """The exact number of rows: the noised one less the noise, which is the first that the silo drew."""
    content = unpack(read(path))
    silo = content["about"]["silos"][0]
    events = [event for record in json.loads(content["about"]["ledger"]) for event in record.get("events", ())]
    epsilon = next(event["epsilon"] for event in events if event["what"] == "the number of rows")
    noise = Streams(seed).party(silo).child("encoders").noise()
    noise.words(2)
    drawn, _ = noised_counts(torch.zeros(1, dtype=torch.int64), epsilon, "", noise)
    return int(content["coordinator"]["rows"]) - int(drawn)


def integers(value: Any) -> Iterator[int]:
    """All whole numbers in a file, those in texts included."""
    if isinstance(value, dict):
        for each in value.values():
            yield from integers(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from integers(each)
    elif isinstance(value, str) and value.startswith(("[", "{")):
        yield from integers(json.loads(value))
    elif isinstance(value, int):
        yield value


def test_the_seed_that_made_noise_is_not_in_the_file(file: Any) -> None:
    exact = federation(SETTING).rows
    assert rows_if_seed_is(SEED, file) == exact  # the attack works for whoever knows the seed
    found = {number for number in integers(unpack(read(file))) if number >= 0} | set(range(200))
    assert SEED not in found and str(SEED).encode() not in file.read_bytes()
    hits = sum(rows_if_seed_is(number, file) == exact for number in found)
    assert hits < 0.1 * len(found)  # those that noise of this size leaves by chance


def test_a_model_with_known_noise_states_no_epsilon_anywhere(file: Any) -> None:
    model = ss.load(file)
    facts = model.describe()
    assert facts["guarantee"].startswith("none: the noise follows from the seed")
    assert facts["privacy"]["release"] is None and (facts["seed"], facts["seeded"]) == (-1, True)
    told = [own for budget in facts["privacy"]["silos"].values() for own in (budget, *budget["events"])]
    assert told and {own["epsilon"] for own in told} == {None}
    assert "epsilon at most" not in model._repr_html_() and "a given seed, which is not kept" in model._repr_html_()
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["inspect", str(file)]).stdout
    assert "epsilon at most" not in shown and "Guarantee: none: the noise follows" in " ".join(shown.split())
    assert statement(model.ledger, assume_secret=True)["release"]["epsilon"] <= 5


def test_a_model_with_a_secret_seed_states_its_epsilon(file: Any) -> None:
    known = ss.load(file)
    records = [{key: value for key, value in record.items() if key != "noise"} for record in known.ledger]
    secret = replace(known, ledger=records)
    assert secret.describe()["guarantee"].startswith("epsilon at most")
    assert not secret.describe()["seeded"] and "a secret seed" in secret._repr_html_()


def test_an_older_file_that_has_a_seed_states_no_epsilon_either(file: Any) -> None:
    known = ss.load(file)
    records = [{key: value for key, value in record.items() if key != "noise"} for record in known.ledger]
    older = replace(known, seed=7, ledger=records)
    assert older.seed == -1 and older.describe()["guarantee"].startswith("none")
    assert known_noise(records) == older.ledger
