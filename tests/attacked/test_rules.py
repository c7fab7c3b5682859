"""A coordinator that declares rules, to be told of values that stay in their silo: yes or no for each decoded row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.attacked.desk import OPENED, Desk, a_job
from tests.deployment.common import SMALL, customers

from silosynth.algorithms.silofuse.protocol import SynthesiseFromLatents
from silosynth.core.errors import PolicyError
from silosynth.core.rules import read_rules
from silosynth.deployment import exposure
from silosynth.deployment.policy import SiloPolicy
from silosynth.deployment.protocol import AcceptKeys, AcceptRows, Job, RowsAccepted

STAYS = OPENED + "share_synthetic = false\n"
UNIQUE = [{"kind": "unique", "columns": ["age"]}]


def ruled(synthesis: str = "partitioned", **changes: Any) -> Job:
    return replace(a_job(options={**SMALL, "synthesis": synthesis}, **changes), rules=read_rules(UNIQUE))


def test_by_a_rule_a_silo_tells_which_values_are_alike_that_should_stay(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "bank", STAYS + 'rules = "all"\n')
    width = desk.sampling(ruled())
    z_GL = torch.randn(40, width, generator=torch.Generator().manual_seed(1))
    desk.ask(SynthesiseFromLatents(torch.cat([z_GL, z_GL]), 80, "sample"))
    assert isinstance(desk.ask(AcceptRows(0)), RowsAccepted)
    reply = desk.ask(AcceptKeys(0, 0, torch.ones(80, dtype=torch.bool)))
    assert isinstance(reply, RowsAccepted) and 0 < int(reply.accepted_N.sum()) < 80


@pytest.mark.parametrize("rules", ["", 'rules = "shared"\n', 'rules = "no"\n'])
def test_it_tells_so_no_more_unless_its_policy_says_so(rules: str, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="'rules'"):
        Desk(tmp_path / "bank", STAYS + rules).begin(ruled())


def test_rules_that_cause_no_answer_can_be_forbidden_too(tmp_path: Path) -> None:
    Desk(tmp_path / "bank").begin(ruled("shared"))
    with pytest.raises(PolicyError, match="'rules'"):
        Desk(tmp_path / "other", OPENED + 'rules = "no"\n').begin(ruled("shared"))


def test_an_end_that_a_rule_needs_stands_for_as_many_people_as_the_policy_says(tmp_path: Path) -> None:
    """What is modelled as a difference ends where its column does: there, the five highest were told by their mean."""
    desk = Desk(tmp_path, OPENED + "min_count = 20\n")
    (tmp_path / "silo.toml").write_text('[data]\npath = "rows.csv"\n')
    rules = read_rules([{"kind": "inequality", "low": "age", "high": "income"}])
    desk.prepared(replace(a_job(options={**SMALL, "coder.encoders.min_count": 20}), rules=rules))
    silo: Any = desk.answer._endpoint.party  # type: ignore[union-attr]
    (above,) = silo._ruling.forms["bank"].computed
    incomes = customers(120)["income"].sort_values()
    assert incomes[-20:].mean() - 0.01 < above.most < incomes[-20:].mean() + 0.02 < incomes[-5:].mean()
    assert incomes[:20].mean() + 0.01 > above.least > incomes[:20].mean() - 0.02


@pytest.mark.parametrize("rules", ["no", "shared", "all"])
def test_the_officer_is_told_what_rules_tell(rules: str) -> None:
    told = [one.key for one in exposure.exposures(SiloPolicy(rules=rules)) if one.key.startswith("rules")]  # type: ignore[arg-type]
    assert told == {"no": [], "shared": ['rules = "no"'], "all": ['rules = "shared"', 'rules = "no"']}[rules]
