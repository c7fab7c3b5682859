"""Rules in jobs, with silos in this process: synthetic rows keep them, and nobody is told whether real rows do."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.deployment.common import OPEN, SMALL, Rows, customers, job, parties, prepared
from tests.deployment.sites import ABSENT, COLUMNS, carry_out, more, same_rows, table

import silosynth as ss
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.rules import Rule, read_rules
from silosynth.data.infer import ColumnWarning
from silosynth.data.rules import listed
from silosynth.deployment.coordinator import MODEL, Order
from silosynth.deployment.kept import kept_model
from silosynth.deployment.protocol import Job

OWN = [
    {"kind": "inequality", "low": "age", "high": "income", "on_break": "ignore"},
    {"kind": "range", "column": "visits", "high": 9, "on_break": "ignore"},
]
ACROSS = [{"kind": "inequality", "low": "visits", "high": "age", "strict": True}]
LONG = {"kind": "combination", "columns": ["age", "paid"], "allowed": [[age, "card"] for age in range(257)]}
APART = [
    *ACROSS,
    {"kind": "combination", "columns": ["age", "paid"],
     "allowed": [[age, paid] for age in range(18, 81) for paid in ("card", "cash")][:120]},
]  # fmt: skip
UNIQUE = [{"kind": "unique", "columns": ["income"], "on_break": "ignore"}]

GDTS = {
    "generator": "ctgan", "rounds": 1, "ctgan.epochs": 1, "ctgan.batch": 50, "ctgan.least_rounds": 0,
    "ctgan.generator": [8], "ctgan.critic": [8], "ctgan.encoders.modes": 2,
}  # fmt: skip


def ruled(silos: Mapping[str, Any], rules: list[dict[str, Any]], **changes: Any) -> Job:
    """A job with rules."""
    return replace(job(silos, **{"align": None, **changes}), rules=read_rules(rules))


def fitted(rules: list[dict[str, Any]], **options: Any) -> ss.Model:
    """What `silosynth.fit` makes of the same rows."""
    federation = ss.simulate(customers(120).drop(columns="customer"), silos=COLUMNS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ColumnWarning)
        return ss.fit("silofuse", federation, "fast", 7, options=SMALL | options, rules=rules, progress=False)


@pytest.mark.slow
def test_rows_keep_rules_as_those_of_a_simulated_federation_do(tmp_path: Path) -> None:
    rules = [*OWN, *ACROSS, *UNIQUE]
    place = carry_out(Order(ruled(same_rows(), rules)), same_rows(), tmp_path)
    made, model = table(place), fitted(rules)
    pd.testing.assert_frame_equal(made, model.sample(50))
    assert (made["visits"] < made["age"]).all() and made["visits"].max() <= 9 and made["income"].is_unique
    later = table(carry_out(more(tmp_path, 30, 4, "late"), ABSENT, tmp_path))
    pd.testing.assert_frame_equal(later, model.sample(30, seed=4))
    facts = json.loads((place / "label.json").read_text())["facts"]
    assert facts["rules"] == ["age <= income", "visits to 9", "visits < age", "income unique"]
    known = kept_model(tmp_path / "bank" / "trial", "bank", model.schemas["bank"], [])
    assert known is not None and [rule.in_words for rule in known.ruling.rules] == ["age <= income", "income unique"]


@pytest.mark.slow
def test_columns_that_stay_keep_rules_and_silos_only_say_which_rows_do(tmp_path: Path) -> None:
    rules, options = [*OWN, *UNIQUE], {"synthesis": "partitioned"}
    policy = OPEN.model_copy(update={"share_synthetic": False, "rules": "all"})
    asked = ruled(same_rows(), rules, options={**SMALL, **options})
    carry_out(Order(asked), same_rows(), tmp_path, policy=policy)
    model = fitted(rules, **options)
    for silo, held in model.sample_parts(50).items():
        pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / silo / "trial" / "synthetic.parquet"), held)


@pytest.mark.slow
def test_rules_across_silos_are_kept_by_columns_that_stay_and_no_value_leaves(tmp_path: Path) -> None:
    rules, policy = [*OWN, *UNIQUE, *APART], OPEN.model_copy(update={"share_synthetic": False, "rules": "all"})
    asked = ruled(same_rows(), rules, options=SMALL | {"synthesis": "partitioned"})
    place = carry_out(Order(asked), same_rows(), tmp_path, policy=policy)
    carry_out(more(tmp_path, 30, 4, "late"), ABSENT, tmp_path, policy=policy)
    model = fitted(rules, synthesis="partitioned")
    for name, parts in (("trial", model.sample_parts(50)), ("late", model.sample_parts(30, seed=4))):
        held = {silo: pd.read_parquet(tmp_path / silo / name / "synthetic.parquet") for silo in parts}
        for silo, part in parts.items():
            pd.testing.assert_frame_equal(held[silo], part)
        whole = pd.concat(held.values(), axis=1)
        assert (whole["visits"] < whole["age"]).all() and whole["paid"].isin(["card", "cash"]).all()
        assert whole["income"].is_unique
    said = {json.loads(line)["type"] for line in (place / "ledger.jsonl").read_text().splitlines()}
    assert "deployment.RowCodes" in said and "core.SyntheticColumns" not in said


def test_nobody_is_told_whether_one_person_breaks_a_rule(tmp_path: Path) -> None:
    """A coordinator would ask so about anybody: is there somebody with exactly this income?"""
    whole = customers(120)
    highest = float(whole["income"].max())
    rules = [{"kind": "range", "column": "income", "low": 0, "high": highest}]
    replies = []
    for name, income in (("keeps", highest), ("breaks", highest + 0.25)):
        frame = whole.copy()
        frame.loc[whole["income"].idxmax(), "income"] = income
        silos = {silo: Rows(frame[held]) for silo, held in COLUMNS.items()}
        said: list[str] = []
        sides = parties(silos, tmp_path / name)
        sides["bank"]._say = said.append
        replies.append(prepared(sides, ruled(silos, rules)))
        assert any("1 of 120 rows break the rule" in line for line in said) is (name == "breaks")
    assert replies[0] == replies[1]
    with pytest.raises(ConfigError, match="nobody is told whether a silo's real rows keep a rule"):
        ruled(same_rows(), [rules[0] | {"on_break": "error"}])


def test_no_rule_has_silos_read_a_file(tmp_path: Path) -> None:
    (tmp_path / "both.csv").write_text("age,income\n20,1700\n21,1740\n")
    rule = {"kind": "combination", "columns": ["age", "income"], "file": str(tmp_path / "both.csv")}
    with pytest.raises(ConfigError, match="lists combinations itself"):
        ruled(same_rows(), [rule])
    read: Any = listed(read_rules([rule])[0])
    assert read.allowed == (("20", "1700"), ("21", "1740")) and not read.file


@pytest.mark.parametrize(
    ("rule", "options", "what"),
    [
        ({"kind": "unique", "columns": ["age", "paid"]}, {"synthesis": "partitioned"}, "stay in their silos"),
        (LONG, {"synthesis": "partitioned"}, "at most 256 combinations"),
        ({"kind": "inequality", "low": "paid", "high": "age"}, {}, "its columns can be compared"),
        ({"kind": "inequality", "low": "visits", "high": "agee"}, {}, "Did you mean 'age'"),
        ({"kind": "combination", "columns": ["age", "paid"], "learn": True}, {}, "rows of one silo"),
    ],
)
def test_rules_that_nobody_can_keep_are_refused_before_training(
    rule: dict[str, Any], options: dict[str, Any], what: str, tmp_path: Path
) -> None:
    order, policy = Order(ruled(same_rows(), [rule], options=SMALL | options)), OPEN.model_copy(update={"rules": "all"})
    with pytest.raises(ConfigError, match=what):
        carry_out(order, same_rows(), tmp_path, policy=policy)
    assert "silofuse" not in (tmp_path / "coordinator" / "trial" / "ledger.jsonl").read_text()


def test_jobs_that_count_have_no_rules(tmp_path: Path) -> None:
    asked = ruled(
        same_rows(),
        OWN,
        algorithm="judge",
        options={"dp": {"epsilon": 1.0, "delta": 1e-6}},
        rows=None,
        preset="balanced",
    )
    with pytest.raises(ProtocolError, match="Rules are for rows that a generator draws"):
        carry_out(Order(asked), same_rows(), tmp_path, policy=OPEN.model_copy(update={"algorithms": ["judge"]}))


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [pytest.param("gdts", GDTS, marks=pytest.mark.slow), ("mst", {"horizontal": True})],
)
def test_silos_with_different_rows_keep_rules(algorithm: str, options: dict[str, Any], tmp_path: Path) -> None:
    whole = customers(240).drop(columns="customer")
    silos = {name: Rows(whole[k::3].reset_index(drop=True)) for k, name in enumerate(("north", "south", "west"))}
    policy = OPEN.model_copy(update={"algorithms": [algorithm], "open_tables": "exact"})
    rules = [*OWN, *ACROSS]
    asked = ruled(silos, rules, algorithm=algorithm, options=options)
    made = table(carry_out(Order(asked), silos, tmp_path, policy=policy))
    assert (made["visits"] < made["age"]).all() and made["visits"].max() <= 9 and len(made) == 50
    model = ss.load(tmp_path / "coordinator" / "trial" / MODEL)
    again = model.sample(50)
    assert (again["visits"] < again["age"]).all() and again["visits"].max() <= 9
    absent = dict.fromkeys(silos, ABSENT["bank"])
    later = table(carry_out(more(tmp_path, 20, 3, "late"), absent, tmp_path, policy=policy))
    assert len(later) == 20 and (later["visits"] < later["age"]).all()


def test_rules_are_structs_of_the_job() -> None:
    asked = ruled(same_rows(), [*OWN, *ACROSS])
    assert all(isinstance(rule, Rule) for rule in asked.rules) and asked.accepting
