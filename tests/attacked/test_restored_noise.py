"""A coordinator brings a silo back to a checkpoint and asks it something else: the same noise would cancel out.

Row counts asked for at epsilon 0.4, 0.2, 0.1… of one checkpoint had the same noise, only larger, and cost 0.1 in all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.attacked.driving import (
    across,
    charged,
    columns_of_the_same_rows,
    killed,
    rows_of_the_same_columns,
    saved,
    secret_job,
    sides,
    until,
)
from tests.deployment.common import Rows

from silosynth.algorithms.dplt.protocol import (
    GroupAttributes,
    Hidden,
    HiddenPeer,
    Hide,
    NoisedRelated,
    PrepareAttributes,
    Relate,
)
from silosynth.algorithms.gdts.protocol import Describe, NoisedSummaries, Summarise
from silosynth.algorithms.marginals.protocol import ROW_STEPS, MakeAttributes
from silosynth.algorithms.silofuse import private as silofuse
from silosynth.algorithms.vflgan.protocol import VFLGANPrepare
from silosynth.algorithms.vtgan.protocol import EncodeRows
from silosynth.core.conversation import Checkpoint, Exchange
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Message
from silosynth.core.schema import Schema
from silosynth.core.streams import Streams
from silosynth.counting.joint import HideBits, TakeBits
from silosynth.counting.opening import NoisedSum, OpenTables, SharesOpened
from silosynth.deployment import silo as deployment_silo
from silosynth.deployment.conducting import conduct
from silosynth.deployment.protocol import Job
from silosynth.deployment.silo import DeploymentSilo
from silosynth.privacy import accounting
from silosynth.privacy.events import Target
from silosynth.runtime.wire import encode

COUNTING = ("mst", "aim")
DP = {"dp": {"epsilon": 5.0, "delta": 1e-5, "encoders": 0.5}}
Asked = tuple[DeploymentSilo, Message, Callable[[], DeploymentSilo], Path]


def at(kind: type[Message], algorithm: str, folder: Path, **options: Any) -> Asked:
    """A silo before an ask of this type; the ask; what makes the silo anew in another process; and its folder."""
    rows = rows_of_the_same_columns() if algorithm == "gdts" else columns_of_the_same_rows()
    silos, name = sides(rows, folder), next(iter(rows))
    asks, _ = until(secret_job(rows, algorithm, **options), silos, lambda ask: isinstance(ask, kind))
    return silos[name], asks[name], lambda: sides(rows, folder)[name], folder / name


def kinds(algorithm: str) -> tuple[type[Message], dict[str, Any]]:
    """The first message of each algorithm that is answered with noise, and options that have it so."""
    if algorithm == "gdts":
        return Summarise, {"epsilon": 0.5}
    first = {"silofuse": silofuse.LearnCoder, "vtgan": EncodeRows, "vflgan": VFLGANPrepare, "vertigan": VFLGANPrepare}
    first |= dict.fromkeys(COUNTING, MakeAttributes)
    return first.get(algorithm, PrepareAttributes), DP


@pytest.mark.parametrize("algorithm", ["gdts", "silofuse", "vtgan", "vflgan", "vertigan", "dplt", *COUNTING])
def test_the_same_asks_after_kill_9_have_the_same_noise_and_count_once(algorithm: str, tmp_path: Path) -> None:
    kind, options = kinds(algorithm)
    silo, ask, again, folder = at(kind, algorithm, tmp_path, **options)
    before = saved(silo)
    first = across(silo, ask)
    events = charged(folder)
    assert getattr(first, "events", ())
    for _ in range(2):
        assert encode(across(killed(silo, again(), before), ask)) == encode(first)
        assert charged(folder) == events


def test_a_job_killed_after_its_tables_have_left_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    """The newest checkpoint may lie before `Hide`: sealed anew, its replies would make another ask of `Relate`."""
    rows, told, charges = columns_of_the_same_rows(), [], []
    silos = sides(rows, tmp_path)
    hide, _ = until(secret_job(rows, "dplt", most=1, states=4, **DP), silos, lambda ask: isinstance(ask, Hide))
    before = {name: saved(silo) for name, silo in silos.items()}
    states = {name: tuple(silo._party._sizes()) for name, silo in silos.items()}  # type: ignore[union-attr]
    for _ in range(2):
        silos = {name: killed(silo, sides(rows, tmp_path)[name], before[name]) for name, silo in silos.items()}
        hidden = [across(silos[name], ask) for name, ask in hide.items()]
        dealt = torch.zeros([sum(sizes) for sizes in states.values()], dtype=torch.int64)
        for reply in hidden:
            assert isinstance(reply, Hidden)
            (envelope,) = reply.envelopes
            ask = Relate(0.1, (HiddenPeer(envelope, states[envelope.sender], dealt),))
            told.append(encode(across(silos[envelope.receiver], ask)))
        charges.append([event for name in rows for event in charged(tmp_path / name)])
    assert told[:2] == told[2:] and charges[0] == charges[1]


def at_tables(algorithm: str, folder: Path) -> tuple[Asked, list[Message]]:
    """A silo before tables open, and what it is asked for that: to hide bits for noise, to take others', to open."""
    rows, before = columns_of_the_same_rows(), list[bytes]()
    silos, name = sides(rows, folder), next(iter(rows))

    def here(ask: Message) -> bool:
        if isinstance(ask, HideBits) and not before:
            before.append(saved(silos[name]))
        return isinstance(ask, OpenTables)

    asks, sent = until(secret_job(rows, algorithm, **DP), silos, here)
    told = [ask for silo, ask in sent if silo == name and isinstance(ask, HideBits | TakeBits)]
    silo = killed(silos[name], sides(rows, folder)[name], before[0])
    return (silo, asks[name], lambda: sides(rows, folder)[name], folder / name), [*told, asks[name]]


def last(silo: DeploymentSilo, asks: list[Message]) -> Message:
    """The reply to the last of these asks."""
    return [across(silo, ask) for ask in asks][-1]


@pytest.mark.parametrize("algorithm", COUNTING)
def test_counted_tables_open_to_the_same_bytes_after_kill_9_and_count_once(algorithm: str, tmp_path: Path) -> None:
    (silo, _, again, folder), asks = at_tables(algorithm, tmp_path)
    before, learnt = saved(silo), len(charged(folder))
    first = last(silo, asks)
    assert isinstance(first, SharesOpened) and len(charged(folder)) == learnt + len(first.events)
    assert any(event.joint for event in first.events)
    events = charged(folder)
    for _ in range(2):
        assert encode(last(killed(silo, again(), before), asks)) == encode(first)
        assert charged(folder) == events


@pytest.mark.parametrize("algorithm", COUNTING)
def test_another_choice_of_counted_tables_has_other_noise_and_is_charged(algorithm: str, tmp_path: Path) -> None:
    (silo, _, again, folder), asks = at_tables(algorithm, tmp_path)
    hide, take, ask = asks
    assert isinstance(hide, HideBits) and isinstance(ask, OpenTables) and len(ask.sets) > 1
    before, learnt = saved(silo), len(charged(folder))
    first = last(silo, asks)
    assert isinstance(first, SharesOpened)
    for changed in ([hide, take, OpenTables(ask.sets[:1], ask.noises[:1])], [replace(hide, seed=bytes(32)), take, ask]):
        once = len(charged(folder))
        other = last(killed(silo, again(), before), changed)
        assert isinstance(other, SharesOpened)
        drawn_before = changed[0] == hide and ask.sets[0] in hide.sets  # by both silos, by the same asks
        assert torch.equal(first.shares[0], other.shares[0]) == drawn_before
        assert len(charged(folder)) == once + len(other.events)
    assert learnt < once


def resumed(
    job: Job, rows: Mapping[str, Rows], folder: Path, openings: int, opens: type[Message] = SharesOpened
) -> Iterator[list[bytes]]:
    """What silos reply where tables open for the n-th time; and again, brought back to the checkpoint before that."""
    told, kept, before = list[dict[str, Message]](), 0, dict[str, bytes]()
    for attempt in range(2):
        silos, talk = sides(rows, folder), conduct(job, Streams(1), torch.device("cpu"))
        if attempt:
            silos, told = {name: killed(silo, silo, before[name]) for name, silo in silos.items()}, told[:kept]
        step, opened, number = next(talk), 0, 0
        while opened < openings:
            replies: dict[str, Message] = {}
            if isinstance(step, Checkpoint) and told and not attempt:
                before, kept = {name: saved(silo) for name, silo in silos.items()}, len(told)
            if isinstance(step, Exchange):
                if number == len(told):
                    told.append({name: across(silos[name], ask) for name, ask in step.asks.items()})
                replies, number = told[number], number + 1
            opened += any(isinstance(reply, opens) for reply in replies.values())
            step = talk.send(replies)
        yield [encode(reply) for reply in told[-1].values()]


@pytest.mark.parametrize("openings", [1, pytest.param(2, id="agreed")])
@pytest.mark.parametrize("algorithm", COUNTING)
def test_a_counting_job_that_resumes_opens_to_the_same_bytes(algorithm: str, openings: int, tmp_path: Path) -> None:
    """What silos agree to open in full comes after the newest checkpoint: sealed anew, it would change the next ask."""
    rows = columns_of_the_same_rows()
    job = secret_job(rows, algorithm, **DP)
    found = [(told, [charged(tmp_path / name) for name in rows]) for told in resumed(job, rows, tmp_path, openings)]
    assert found[0] == found[1]


def test_sums_that_would_open_again_with_other_noise_are_refused(tmp_path: Path) -> None:
    """Masks of a sum are never the same again, so that a job that resumes is asked something else."""
    rows = rows_of_the_same_columns()
    attempts = resumed(secret_job(rows, "mst", horizontal=True, **DP), rows, tmp_path, 1, NoisedSum)
    next(attempts)
    with pytest.raises(ProtocolError, match="no more in a job than the job's target"):
        next(attempts)
    assert all(accounting.affords(Target(5.0, 1e-5), charged(tmp_path / name)) for name in rows)


def test_each_step_with_noised_sums_has_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    rows, found = rows_of_the_same_columns(), 0
    silos, talk = (
        sides(rows, tmp_path),
        conduct(secret_job(rows, "mst", horizontal=True, **DP), Streams(1), torch.device("cpu")),
    )
    step = next(talk)
    with contextlib.suppress(StopIteration):
        while True:
            found += isinstance(step, Checkpoint) and step.always
            asks = step.asks if isinstance(step, Exchange) else {}
            step = talk.send({name: across(silos[name], ask) for name, ask in asks.items()})
    assert found == len(ROW_STEPS)


def test_counts_asked_for_at_another_epsilon_have_other_noise_and_are_charged(tmp_path: Path) -> None:
    silo, ask, again, folder = at(Relate, "dplt", tmp_path, most=1, states=4, **DP)
    assert isinstance(ask, Relate)
    before, learnt = saved(silo), len(charged(folder))
    tables, told = [], []
    for share in (1.0, 0.999, 0.998):
        asked = replace(ask, epsilon=share * ask.epsilon)
        reply = across(killed(silo, again(), before), asked)
        assert isinstance(reply, NoisedRelated)
        tables.append(torch.cat([table.flatten() for table in reply.own]))
        told += reply.events
        assert len(charged(folder)) == learnt + len(told)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert (tables[one] != tables[other]).double().mean() > 0.5  # today's: all but the rounding of the noise


def test_groups_asked_for_at_another_epsilon_are_charged(tmp_path: Path) -> None:
    silo, ask, again, folder = at(GroupAttributes, "dplt", tmp_path, **DP)
    assert isinstance(ask, GroupAttributes)
    before = saved(silo)
    across(silo, ask)
    once = len(charged(folder))
    across(killed(silo, again(), before), replace(ask, epsilon_groups=0.9 * ask.epsilon_groups))
    assert len(charged(folder)) > once


def test_summaries_of_columns_agreed_otherwise_have_other_noise_and_are_charged(tmp_path: Path) -> None:
    silo, ask, again, folder = at(Summarise, "gdts", tmp_path, epsilon=0.2)
    assert isinstance(ask, Summarise)
    before, wider = saved(silo), [replace(one, reason="another") for one in ask.schema.columns]
    first = across(silo, ask)
    once = charged(folder)
    other = across(killed(silo, again(), before), replace(ask, schema=Schema(tuple(wider))))
    assert isinstance(first, NoisedSummaries) and isinstance(other, NoisedSummaries)
    counts = [
        torch.cat([torch.tensor([reply.rows]), *(one.counts.double() for one in reply.columns)])
        for reply in (first, other)
    ]
    assert not torch.equal(*counts)
    assert len(charged(folder)) == 2 * len(once)


def test_all_attempts_of_a_job_together_keep_its_target(tmp_path: Path) -> None:
    """Each stays below the target by itself, and no policy limits a budget."""
    silo, ask, again, folder = at(GroupAttributes, "dplt", tmp_path, **DP)
    assert isinstance(ask, GroupAttributes)
    before = saved(silo)
    across(silo, ask)

    def ask_again() -> None:
        for share in range(9, 0, -1):
            across(killed(silo, again(), before), replace(ask, epsilon_groups=share / 10 * ask.epsilon_groups))

    with pytest.raises(ProtocolError, match="no more in a job than the job's target"):
        ask_again()
    assert accounting.affords(Target(5.0, 1e-5), charged(folder))


def test_latents_asked_for_with_larger_noise_do_not_come_off_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the reply less that at twice the noise were the latents themselves, to 2e-5."""
    monkeypatch.setattr(accounting, "noise_multiplier", lambda *args: 1.0)  # solving for it takes seconds
    for module in (accounting, deployment_silo):  # charges are asked about below, not what they come to
        monkeypatch.setattr(module, "affords", lambda *args: True)
    small = {"dp_training": {"coder_steps": 10, "hidden": (8,)}}
    silo, ask, again, folder = at(silofuse.AskChargedLatents, "silofuse", tmp_path, **DP, **small)
    assert isinstance(ask, silofuse.AskChargedLatents)
    before, party = saved(silo), silo._party
    assert party is not None
    first = across(silo, ask)
    once = len(charged(folder))
    other = across(killed(silo, again(), before), replace(ask, latents=4 * ask.latents))
    assert isinstance(first, silofuse.NoisedLatents) and isinstance(other, silofuse.NoisedLatents)
    z_NL = party.coder.encode()  # type: ignore[attr-defined]
    order_S = party.private.group.permutation(ask.slots, "slots")  # type: ignore[attr-defined]
    z_SL = silofuse.in_slots(z_NL, order_S)
    assert (2 * first.z_SL - other.z_SL - z_SL).abs().max() > 0.1
    assert len(charged(folder)) == once + 1


def test_a_silo_that_was_only_described_restores_too(tmp_path: Path) -> None:
    silo, ask, again, _ = at(Describe, "gdts", tmp_path)
    before = saved(silo)
    assert encode(across(silo, ask)) == encode(across(killed(silo, again(), before), ask))
