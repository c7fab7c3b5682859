"""A coordinator that declares rules, to be told of values that stay in their silo: yes or no for each decoded row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.attacked.desk import HELD, OPENED, Desk, a_job
from tests.deployment.common import SMALL, customers

import silosynth as ss
from silosynth.algorithms.silofuse.protocol import SynthesiseFromLatents
from silosynth.core.conversation import Party, State
from silosynth.core.errors import PolicyError, ProtocolError
from silosynth.core.messages import Message
from silosynth.core.rules import read_rules
from silosynth.core.schema import Table
from silosynth.core.streams import Streams
from silosynth.deployment import exposure
from silosynth.deployment.policy import SiloPolicy
from silosynth.deployment.protocol import AcceptKeys, AcceptRows, AskCodes, Job, RowsAccepted, rows_purpose
from silosynth.deployment.silo_sampling import SiloSampling
from silosynth.privacy.agreement import OfferShares
from silosynth.simulation.ruling import Ruling

STAYS = OPENED + "share_synthetic = false\n"
UNIQUE = [{"kind": "unique", "columns": ["age"]}]


class Holding(Party):
    """A silo's party that has drawn a table, and answers nothing."""

    def __init__(self, table: Table) -> None:
        self.publish(table, share=False)

    def answer(self, ask: Message) -> Message:
        raise NotImplementedError

    def _state(self, training: bool) -> State:
        raise NotImplementedError

    def restore(self, state: State) -> None:
        raise NotImplementedError


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


def test_codes_of_rows_are_sent_once_and_for_rules_across_silos_alone() -> None:
    """Under one secret twice, they would tell which digits of two values are the same."""
    frame = customers(60)[HELD["bank"]]
    rules = [{"kind": "inequality", "low": "age", "high": high} for high in ("visits", "income")]
    asked = replace(ruled(), rules=read_rules([*UNIQUE, *rules]))
    silo = ss.simulate(frame, silos={"bank": HELD["bank"]})
    schema, table = silo.schemas["bank"], silo.tables["bank"]
    sampling, every = SiloSampling("bank", asked, schema, Ruling(), (), Streams(1)), torch.ones(60, dtype=torch.bool)
    sampling.accept(AcceptRows(0), Holding(table))
    assert sampling.codes(AskCodes(0, 1, every), bytes(32)).codes.shape == (60, 64)
    for rule in (1, 0, 2, 3, -1):  # once more; a unique key; one that the silo keeps alone; none
        with pytest.raises(ProtocolError, match="once for each rule across silos"):
            sampling.codes(AskCodes(0, rule, every), bytes(32))
    with pytest.raises(ProtocolError, match="just drawn"):
        sampling.codes(AskCodes(1, 1, every), bytes(32))
    sampling.accept(AcceptRows(1), Holding(table))  # rows of the next batch, for which another key is derived
    assert len(sampling.codes(AskCodes(1, 1, ~every), bytes(32)).codes) == 0


def test_silos_agree_anew_before_columns_that_stay_are_compared(tmp_path: Path) -> None:
    """So the secret of codes is new after a restart as well, whatever rows are drawn then."""
    desk = Desk(tmp_path / "bank", STAYS + 'rules = "all"\n')
    asked = replace(ruled(), rules=read_rules([{"kind": "inequality", "low": "age", "high": "visits"}]))
    width = desk.sampling(asked)
    with pytest.raises(ProtocolError, match="messages in their turn"):
        desk.ask(SynthesiseFromLatents(torch.zeros(20, width), 20, "sample"))
    other = Desk(tmp_path / "other", STAYS + 'rules = "all"\n')
    other.sampling(asked)
    with pytest.raises(ProtocolError, match="told the same job"):
        other.ask(OfferShares(rows_purpose(asked), fresh=False))


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
