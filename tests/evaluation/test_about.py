"""The head of the report: what an evaluation knows of the model and its data, and what it says it cannot know."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Any

import numpy as np
import pandas as pd
import pytest

from silosynth.core.schema import Schema
from silosynth.core.version import VERSION
from silosynth.data.infer import infer
from silosynth.evaluation import Report, evaluate
from silosynth.evaluation.about import About
from silosynth.evaluation.report import _head

ROWS = 60


class Stated:
    """A model that says what it is told to."""

    def __init__(self, **facts: Any) -> None:
        self.ledger = [{"from": "bank", "to": "coordinator", "type": "T", "bytes": 1, "privacy": "raw"}]
        self.facts = {
            "algorithm": "silofuse", "preset": "fast", "seed": 7, "partition": "vertical", "guarantee": "none: raw",
            "silos": {"bank": ["wage", "member"], "clinic": ["job", "flat"], "post": ["stamps"]},
            "columns": {"wage": "continuous", "member": "identifier", "job": "categorical", "flat": "integer"},
            "pooled": ["job", "stamps"],
            "ranges": {"wage": {"low": 2, "high": 9.5, "declared": True}, "flat": {"low": 1, "high": 1, "declared": 0}},
        } | facts  # fmt: skip

    @property
    def schema(self) -> Schema:
        return infer(tables()[0])

    def describe(self) -> dict[str, Any]:
        return self.facts


def tables() -> tuple[pd.DataFrame, None, pd.DataFrame]:
    train = pd.DataFrame({"wage": np.linspace(0, 10, ROWS + 1)[1:], "job": ["a", "b"] * (ROWS // 2), "flat": 1})
    drawn = train.assign(job=["a", "b", "(rare)"] * (ROWS // 3))
    return train, None, drawn


def report(**given: Any) -> Report:
    return evaluate(*tables(), figures="gan", **given)


@pytest.fixture(scope="module")
def known() -> Report:
    return report(model=Stated(), data="Wages of 2024")


def facts(made: Report) -> dict[str, tuple[str, dict[str, str]]]:
    return {fact.label: (fact.text, dict(fact.details)) for fact in _head(made)}


def test_what_the_model_says_stands_in_the_head(known: Report) -> None:
    about = known.about
    assert (about.data, about.date, about.version) == ("Wages of 2024", date.today().isoformat(), VERSION)
    assert (about.algorithm, about.preset, about.seed, about.partition) == ("silofuse", "fast", 7, "vertical")
    assert about.guarantee == "none: raw"
    shown = facts(known)
    assert shown["data"] == ("Wages of 2024", {})
    assert shown["generator"] == ("silofuse, preset fast, seed 7", {})
    assert shown["privacy guarantee"] == ("none: raw", {})
    assert "made by silofuse, preset fast, seed 7\nprivacy guarantee: none: raw" in str(known)


def test_silos_and_the_ledger_are_the_models_unless_given(known: Report) -> None:
    assert known.about.silos == {"bank": ("wage",), "clinic": ("job", "flat")}
    assert facts(known)["silos"] == ("2 silos", {"bank": "1 column: wage", "clinic": "2 columns: job, flat"})
    assert known.ledger == tuple(Stated().ledger)
    given = report(model=Stated(), silos={"all": ["wage", "job", "flat"]}, ledger=[])
    assert (given.about.silos, given.ledger) == ({"all": ("wage", "job", "flat")}, ())


def test_pooled_left_out_and_clamped_columns_are_named(known: Report) -> None:
    assert known.about.pooled == {"job": pytest.approx(1 / 3), "stamps": None}
    assert facts(known)["pooled"][1]["job"] == "33.3 % of the synthetic rows"
    assert list(known.about.left_out) == ["member", "flat"]
    assert facts(known)["left out"][1]["flat"] == "constant: one value in all training rows"
    assert known.about.ranges is not None
    assert list(known.about.ranges) == ["wage"]  # a column of one level has no range
    held, wage = known.about.ranges["wage"], tables()[0]["wage"]
    assert (held.below, held.above) == (pytest.approx((wage < 2).mean()), pytest.approx((wage > 9.5).mean()))
    assert facts(known)["clamped"] == (
        "1 column, whose synthetic values end earlier",
        {"wage": "18 % of the training values lie below 2, 5 % of the training values lie above 9.5, a declared bound"},
    )


def test_identifiers_are_left_out_with_the_reason() -> None:
    train, _, drawn = tables()
    numbered = [table.assign(member=[f"M{i:04d}" for i in range(ROWS)]) for table in (train, drawn)]
    left_out = evaluate(numbered[0], None, numbered[1], figures="gan").about.left_out
    assert left_out["member"].startswith("identifier: all 60 values differ")


def test_what_is_left_out_is_called_by_its_kind() -> None:
    train, _, drawn = tables()
    posted = [table.assign(email=[f"m{i}@a.org" for i in range(ROWS)], member=range(ROWS)) for table in (train, drawn)]
    schema = {"email": "pseudonym", "member": "identifier"}
    left_out = evaluate(posted[0], None, posted[1], figures="gan", schema=schema).about.left_out
    assert (left_out["email"], left_out["member"]) == ("pseudonym: declared", "identifier: declared")


def test_a_secret_seed_is_not_told() -> None:
    made = report(model=Stated(seed=-1))
    assert made.about.seed == "secret"
    assert facts(made)["generator"][0] == "silofuse, preset fast, a secret seed"


def test_nothing_pooled_and_nothing_clamped_are_said() -> None:
    train, _, _ = tables()
    shown = facts(evaluate(train, None, train, figures="gan", model=Stated(pooled=[], ranges={})))
    assert shown["pooled"][0].startswith("nothing") and shown["clamped"][0].startswith("nothing")


def test_without_a_model_the_head_says_what_is_unknown() -> None:
    made = report()
    assert made.about == replace(
        About(), date=date.today().isoformat(), left_out=made.about.left_out, pooled={"job": pytest.approx(1 / 3)}
    )
    shown = facts(made)
    for label in ("generator", "privacy guarantee", "pooled", "clamped"):
        assert "given no model" in shown[label][0], label
    assert shown["data"][0] == "not named" and shown["silos"][0] == "not given"
    assert (
        report(ledger=Stated().ledger).about.guarantee
        == "none: no differential privacy was applied, no epsilon can be stated"
    )


def test_the_head_is_part_of_the_json(known: Report) -> None:
    about = known.to_dict()["about"]
    assert about["ranges"]["wage"]["declared"] is True
    assert about["left_out"]["member"].startswith("identifier")
