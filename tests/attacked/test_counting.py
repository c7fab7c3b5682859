"""A coordinator that wants more of a job that counts than was agreed: other tables, other noise, the same again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.attacked.coordinators import COUNTED, SETS, conversations
from tests.attacked.driving import across, charged, columns_of_the_same_rows, killed, saved, secret_job, until
from tests.deployment.common import parties
from tests.deployment.test_counting_jobs import judging

from silosynth.core.errors import PolicyError, ProtocolError, SilosynthError
from silosynth.core.messages import Message
from silosynth.counting import CellNoise, CountedColumn, opening, protocol as counting
from silosynth.counting.distances import FiguresOpened
from silosynth.counting.judge import HOLDOUT, JudgeConfig
from silosynth.deployment.exposure import exposures
from silosynth.deployment.policy import SiloPolicy
from silosynth.deployment.protocol import Begin, Job
from silosynth.deployment.silo import DeploymentSilo
from silosynth.privacy.accounting import spent
from silosynth.privacy.events import Target

COLUMNS = (
    CountedColumn("", "age", edges=(30, 50)), CountedColumn("", "income", edges=(2000.0,)),
    CountedColumn("", "visits", edges=(5,)), CountedColumn("", "paid", ("card", "cash"), others=True),
)  # fmt: skip
PAIRS = ((0, 2), (0, 3), (1, 2))
NOISED = JudgeConfig(COLUMNS, PAIRS, "noised", Target(0.5, 1e-6), most_rows=100)
EXACT = JudgeConfig(COLUMNS, PAIRS, "exact")
POLICY = SiloPolicy(algorithms=["judge"], least_rows=10, require_alignment=False, min_count=1)
OPEN = POLICY.model_copy(update={"open_tables": "exact"})
ROWS = columns_of_the_same_rows()


def a_job(config: JudgeConfig, **changes: Any) -> Job:
    return judging(ROWS, config, align=None, **changes)


def at(kind: type[Message], config: JudgeConfig, folder: Path, policy: SiloPolicy = OPEN) -> tuple[DeploymentSilo, Any]:
    """The bank, in a job that has come to a message of this type; and that message."""
    silos = parties(ROWS, folder, policy)
    asks, _ = until(a_job(config), silos, lambda ask: isinstance(ask, kind))
    return silos["bank"], asks["bank"]


# Tables that were not agreed to.


@pytest.mark.parametrize("rule", ["noised", "no"])
def test_a_policy_of_noise_opens_nothing_exactly(rule: Any, tmp_path: Path) -> None:
    """Neither in a job that says so, nor in one that does not."""
    silo = parties(ROWS, tmp_path / "a", POLICY.model_copy(update={"open_tables": rule}))["bank"]
    with pytest.raises(PolicyError, match="open_tables"):
        silo.answer(Begin(a_job(EXACT)))
    if rule == "noised":
        silo, ask = at(opening.OpenTables, NOISED, tmp_path / "b", POLICY)
        with pytest.raises(SilosynthError, match=r"exactly|open_tables"):
            silo.answer(opening.RevealTables(ask.sets))


def test_a_policy_catches_what_a_silo_would_open(tmp_path: Path) -> None:
    """Even if the counting silo opened exactly: the policy looks at every reply."""
    silo, ask = at(opening.OpenTables, NOISED, tmp_path, POLICY)
    reply = opening.SharesRevealed((torch.zeros(1),))
    silo._party.answer = lambda ask: reply  # type: ignore[union-attr, method-assign]
    with pytest.raises(PolicyError, match="open_tables"):
        silo.answer(ask)


@pytest.mark.parametrize("how", ["noised", "no"])
def test_a_policy_without_figures_opens_none(how: Any, tmp_path: Path) -> None:
    references = tuple(torch.ones([COLUMNS[place].size for place in places]).long() for places in PAIRS)
    figures = replace(EXACT, opening="figures", references=references)
    closed = POLICY.model_copy(update={"open_tables": how})
    for number, allowed in enumerate((OPEN, closed.model_copy(update={"open_figures": True}))):
        across(parties(ROWS, tmp_path / f"{number}", allowed)["bank"], Begin(a_job(figures)))
    for policy, job in ((closed, figures), (closed.model_copy(update={"open_figures": True}), twice(figures))):
        with pytest.raises(PolicyError, match="open_figures"):
            parties(ROWS, tmp_path / f"{len(job.sets)}", policy)["bank"].answer(Begin(a_job(job)))
    silo, ask = at(opening.OpenTables, NOISED, tmp_path / "b", POLICY)
    silo._party.answer = lambda ask: FiguresOpened(torch.zeros(1))  # type: ignore[union-attr, method-assign]
    with pytest.raises(PolicyError, match="open_figures"):
        silo.answer(ask)


def twice(figures: JudgeConfig) -> JudgeConfig:
    """The same tables again, with their columns in another order, so that two figures tell a cell."""
    turned = tuple(places[::-1] for places in figures.sets)
    given = tuple(table.T.contiguous() for table in figures.references)
    return replace(figures, sets=figures.sets + turned, references=figures.references + given)


def less(ask: Any) -> Any:
    return replace(ask, noises=tuple(CellNoise(50.0) for _ in ask.noises))


@pytest.mark.parametrize("change", [less, lambda ask: replace(ask, sets=ask.sets[:1] * len(ask.sets))])
def test_less_noise_or_a_table_repeated_is_refused(change: Callable[[Any], Any], tmp_path: Path) -> None:
    silo, ask = at(opening.OpenTables, NOISED, tmp_path, POLICY)
    with pytest.raises(SilosynthError, match=r"noise that follows|opens each"):
        silo.answer(change(ask))
    assert not charged(tmp_path / "bank")


def test_tables_open_once(tmp_path: Path) -> None:
    silo, ask = at(opening.OpenTables, NOISED, tmp_path, POLICY)
    across(silo, ask)
    with pytest.raises(ProtocolError, match=r"opens each table of its job once"):
        silo.answer(ask)


def other_levels(request: Any) -> Any:
    fine = replace(request.columns[0], edges=tuple(range(20, 70)))
    return replace(request, columns=(fine, *request.columns[1:]))


@pytest.mark.parametrize(
    "change",
    [
        other_levels,
        lambda request: replace(request, sets=(*request.sets, (1, 3))),
        lambda request: replace(request, sets=((0, 1, 2), *request.sets[1:])),
        lambda request: replace(request, rows=64),
        lambda request: replace(request, bits=64),
        lambda request: replace(request, silos=request.silos[::-1]),
    ],
)
def test_other_tables_than_the_jobs_are_not_counted(change: Callable[[Any], Any], tmp_path: Path) -> None:
    silo, ask = at(counting.PrepareCount, NOISED, tmp_path)
    with pytest.raises(SilosynthError):
        silo.answer(replace(ask, request=change(ask.request)))


def test_a_small_level_does_not_open_exactly(tmp_path: Path) -> None:
    """By an edge that parts one person from all others, in either direction."""
    ages = np.sort(ROWS["bank"].frame["age"].unique())
    alone = JudgeConfig((CountedColumn("", "age", edges=(int(ages[1]),)), *COLUMNS[1:]), PAIRS, "exact")
    silos = parties(ROWS, tmp_path, OPEN.model_copy(update={"min_count": 5}))
    with pytest.raises(PolicyError, match=r"Policy rule 'min_count'.*at least 5 rows"):
        until(a_job(alone), silos, lambda ask: isinstance(ask, opening.RevealTables))


# The hold-out.


def test_two_hold_outs_do_not_open_exactly(tmp_path: Path) -> None:
    """What their tables tell apart would be of the few people between both shares."""
    held = replace(EXACT, holdout=True)
    silos = parties(ROWS, tmp_path, OPEN)
    across(silos["bank"], Begin(a_job(held, holdout=0.4, name="first")))
    for job in (a_job(held, holdout=0.4, name="again"), a_job(EXACT, name="without")):
        across(parties(ROWS, tmp_path, OPEN)["bank"], Begin(job))
    noised = replace(NOISED, holdout=True)
    across(parties(ROWS, tmp_path, OPEN)["bank"], Begin(a_job(noised, holdout=0.5, name="noised")))
    with pytest.raises(PolicyError, match=r"open_tables.*of one hold-out.*0\.5, not 0\.4"):
        parties(ROWS, tmp_path, OPEN)["bank"].answer(Begin(a_job(held, holdout=0.5, name="other")))


def test_a_small_hold_out_does_not_open_exactly(tmp_path: Path) -> None:
    silos = parties(ROWS, tmp_path, OPEN.model_copy(update={"least_rows": 20}))
    with pytest.raises(PolicyError, match=r"Policy rule 'least_rows'.*hold-out of which tables open without noise"):
        until(
            a_job(replace(EXACT, holdout=True), holdout=0.1), silos, lambda ask: isinstance(ask, counting.PrepareCount)
        )


def test_a_silos_own_column_of_that_name_is_no_hold_out(tmp_path: Path) -> None:
    bank = replace(ROWS["bank"], frame=ROWS["bank"].frame.assign(**{HOLDOUT: True}))
    silos = parties({**ROWS, "bank": bank}, tmp_path, OPEN)
    with pytest.raises(SilosynthError, match="hold-out"):
        until(
            a_job(replace(EXACT, holdout=True), holdout=0.4), silos, lambda ask: isinstance(ask, counting.PrepareCount)
        )


# Again and again.


def test_noise_is_not_averaged_out_beyond_a_budget(tmp_path: Path) -> None:
    policy = POLICY.model_copy(update={"largest_epsilon": 0.7})
    for name in ("one", "two"):
        silos = parties(ROWS, tmp_path, policy)
        asks, _ = until(a_job(NOISED, name=name), silos, lambda ask: isinstance(ask, opening.OpenTables))
        for silo, ask in asks.items():
            across(silos[silo], ask)
    silos = parties(ROWS, tmp_path, policy)
    asks, _ = until(a_job(NOISED, name="three"), silos, lambda ask: isinstance(ask, opening.OpenTables))
    with pytest.raises(PolicyError, match="largest_epsilon"):
        silos["bank"].answer(asks["bank"])
    events = charged(tmp_path / "bank")
    assert len(events) == 2 * len(PAIRS) and spent(events, 1e-5).epsilon <= 0.7


def test_a_restored_silo_has_the_same_noise_or_none(tmp_path: Path) -> None:
    silo, ask = at(opening.OpenTables, NOISED, tmp_path, POLICY)
    state, first = saved(silo), across(silo, ask)
    silo = killed(silo, parties(ROWS, tmp_path, POLICY)["bank"], state)
    again = across(silo, ask)
    assert all(map(torch.equal, first.shares, again.shares))  # type: ignore[attr-defined]
    assert len(charged(tmp_path / "bank")) == len(PAIRS)
    silo = killed(silo, parties(ROWS, tmp_path, POLICY)["bank"], state)
    with pytest.raises(ProtocolError, match="no more in a job than the job's target, all attempts together"):
        silo.answer(replace(ask, sets=ask.sets[::-1]))
    assert len(charged(tmp_path / "bank")) == len(PAIRS)


# What an officer is told.


def test_the_officer_is_told_what_opens() -> None:
    def told(**changes: Any) -> str:
        return " ".join(one.learns for one in exposures(POLICY.model_copy(update=changes)))

    assert "exactly how many people hold each two levels" in told(open_tables="exact")
    assert "an epsilon of its choice" in told()
    assert "each two levels" not in told(open_tables="no") + told(largest_epsilon=1.0) + told(algorithms=["dplt"])
    assert "each two levels" not in told(open_tables="exact", largest_epsilon=1.0)
    assert "up to four of its choice" in told(open_figures=True)
    assert "if another silo works with it, the columns that are counted" in told(largest_epsilon=1.0)
    assert "if another silo works with it, the columns that are counted" not in told(require_dealer=True)
    assert "up to four of its choice" not in told() + told(open_figures=True, largest_epsilon=1.0)


def test_the_harness_counts_to_the_end(tmp_path: Path) -> None:
    """`test_any_coordinator` deviates anywhere between greeting and the comparison of ledgers."""
    assert len(COUNTED) == 4 and len(SETS) == 5
    asked: list[str] = []
    conversations("judge", OPEN, tmp_path, lambda _, __, ask: asked.append(type(ask).__name__))
    assert asked[0] == "Greet" and asked[-1] == "RelayedHeads" and "CountedTables" in asked


def test_a_training_job_opens_no_tables(tmp_path: Path) -> None:
    policy = OPEN.model_copy(update={"algorithms": ["silofuse"]})
    silos = parties(ROWS, tmp_path, policy)
    until(secret_job(ROWS, "silofuse"), silos, lambda ask: type(ask).__name__ == "FitCoder")
    with pytest.raises(SilosynthError):
        silos["bank"].answer(opening.RevealTables((0,)))
