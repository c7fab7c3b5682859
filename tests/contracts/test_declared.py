"""What each reply depends on, found from data flow: its type declares it, and under an epsilon nothing else leaves.

One silo answers the same asks from its table, and from one that differs in a row. With differential privacy noised
quantities are played back: then whatever still differs has reached the reply without noise.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from tests.contracts.settings import PRIVATE, TINY, entry_of
from tests.contracts.test_every_algorithm import CPU, Talk

from silosynth.algorithms.dplt import private as dplt
from silosynth.algorithms.silofuse import private as silofuse
from silosynth.core.conversation import Exchange, Party, SyntheticColumns
from silosynth.core.errors import PolicyError
from silosynth.core.messages import Message, Release, wire_name
from silosynth.core.schema import Column, Table
from silosynth.core.streams import Streams
from silosynth.counting import opening, silo as counting
from silosynth.deployment.policy import UNDER_A_BUDGET, SiloPolicy
from silosynth.deployment.tallies import DRAWN
from silosynth.encoders import summed, table as private_encoders
from silosynth.privacy import agreement, dpsgd, masker, masks, sealed
from silosynth.runtime.wire import encode, pack, unpack

NOISY = (
    (private_encoders, "noised_counts"), (private_encoders, "noised_levels"), (silofuse, "noised_counts"),
    (dplt, "noised_counts"), (dpsgd, "noised"), (private_encoders, "gaussian_counts"),
    (private_encoders, "gaussian_levels"), (counting.TableCounter, "_noised"), (opening, "with_parts"),
)  # fmt: skip
MORE = {"dplt private": TINY["dplt"] | PRIVATE}
QUICK = ("vtgan",)
ROW, ROWS = 4, 12  # the row that differs; synthetic rows that are drawn
deployed = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in sorted([*TINY, *MORE]) if not entry_of(name).central
    ],
)  # fmt: skip


class Playback:
    """What a function gave within one silo's answers: recorded, or given again."""

    def __init__(self) -> None:
        self.outputs: list[Any] | None = None
        self.again = False

    def wrap(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any) -> Any:
            if self.outputs is None:
                return real(*args)
            if self.again:
                return self.outputs.pop(0)
            self.outputs.append(real(*args))
            return self.outputs[-1]

        return called


noise, chance = Playback(), Playback()  # of mechanisms; of the operating system


@dataclass
class Heard:
    """A silo's part in a conversation: what it was asked, and replied; None where it changed to sampling."""

    steps: list[tuple[Message, Message] | None] = field(default_factory=list)
    noise: list[Any] = field(default_factory=list)
    chance: list[Any] = field(default_factory=list)


def sampling(talk: Talk, silo: str, party: Party) -> Party:
    """A party with the trained part and no row, as a deployed silo makes it."""
    if not talk.entry.parts:
        return party
    fresh = talk.party(silo, Table(()), Streams(0).party(silo).child("sampling"))
    fresh.restore(unpack(pack(party.trained())))
    return fresh


@cache
def first(name: str) -> Mapping[str, Heard]:
    """Training and sampling with the real tables."""
    talk, heard = Talk(name), {silo: Heard() for silo in Talk(name).federation.tables}
    streams = Streams(0).child("coordinator")

    def play(conversation: Any) -> Any:
        got: Any = None
        while True:
            try:
                step = conversation.send(got)
            except StopIteration as end:
                return end.value
            got = {}
            for silo, ask in step.asks.items() if isinstance(step, Exchange) else ():
                noise.outputs, chance.outputs = heard[silo].noise, heard[silo].chance
                got[silo] = talk.parties[silo].answer(ask)
                noise.outputs = chance.outputs = None
                heard[silo].steps.append((ask, got[silo]))

    roster = talk.federation.roster
    trained = play(talk.entry.coordinate(roster, talk.config, streams, CPU))
    for silo in heard:
        heard[silo].steps.append(None)
        talk.parties[silo] = sampling(talk, silo, talk.parties[silo])
    play(talk.entry.synthesise(roster, talk.config, unpack(pack(trained)), ROWS, streams.child("sample"), CPU))
    return heard


def differing(column: Column) -> Column:
    """The column, in which one row holds what another one does."""
    other = next(
        (row for row in range(len(column)) if column.values[row] != column.values[ROW] and not column.missing[row]), ROW
    )
    values, missing = column.values.clone(), column.missing.clone()
    values[ROW], missing[ROW] = values[other], missing[other]
    return replace(column, values=values, missing=missing)


@cache
def again(name: str, silo: str) -> list[tuple[Message, Message, Message]]:
    """The asks of `first` once more, to a silo whose table differs in a row: each with both replies."""
    talk, heard, found = Talk(name), first(name)[silo], []
    table = talk.federation.tables[silo]
    party = talk.party(silo, Table(tuple(map(differing, table.columns))), Streams(0).party(silo))
    noise.outputs, noise.again = (list(heard.noise), True) if "dp" in TINY[name] else (None, False)
    chance.outputs, chance.again = list(heard.chance), True
    try:
        for step in heard.steps:
            if step is None:
                party = sampling(talk, silo, party)
            else:
                found.append((step[0], step[1], party.answer(step[0])))
    finally:
        for playback in (noise, chance):
            playback.outputs, playback.again = None, False
    return found


@pytest.fixture(autouse=True)
def _recording(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, options in MORE.items():
        monkeypatch.setitem(TINY, name, options)
    for module, name in NOISY:
        monkeypatch.setattr(module, name, noise.wrap(getattr(module, name)))
    for module in (
        agreement,
        counting,
        masker,
        sealed,
        summed,
    ):  # and no other: a library that is first used might draw
        monkeypatch.setattr(module, "os", SimpleNamespace(urandom=chance.wrap(os.urandom)))
    monkeypatch.setattr(masks, "secrets", SimpleNamespace(randbelow=chance.wrap(secrets.randbelow)))


@deployed
def test_every_reply_that_depends_on_a_row_declares_it(name: str) -> None:
    private, told = "dp" in TINY[name], set()
    for silo in first(name):
        for ask, one, other in again(name, silo):
            if encode(one) == encode(other):
                continue
            told.add(wire_name(type(one)))
            what = f"{silo}: {wire_name(type(one))} after {wire_name(type(ask))}"
            assert one.release not in (Release.NOTHING, Release.SCHEMA), what
            noised = one.release in (Release.NOISED, Release.DERIVED, Release.SYNTHETIC)
            assert not (private and noised), f"{what} is not noised"
    assert told or private  # a row that changes nothing would prove nothing


@deployed
def test_what_may_leave_under_an_epsilon_depends_on_no_row(name: str) -> None:
    """All that a silo lets out while an epsilon is limited, up to its first refusal, but what it seals for others."""
    policy = SiloPolicy(largest_epsilon=100.0, share_decoders=True)
    charged = False
    for silo in first(name):
        for _, one, other in again(name, silo):
            try:
                policy.check_reply(one, charged)
            except PolicyError:
                break
            charged = charged or any(event.scope != "readers" for event in getattr(one, "events", ()))
            assert one.release is Release.SEALED or encode(one) == encode(other), wire_name(type(one))


@deployed
def test_rows_that_are_drawn_are_counted(name: str) -> None:
    for heard in first(name).values():
        for step in heard.steps:
            if step is not None and isinstance(step[1], SyntheticColumns):
                assert DRAWN[type(step[0])](step[0]) >= len(step[1].table) == ROWS


def test_what_may_leave_has_a_reason() -> None:
    assert all(reason and not reason.endswith(".") for reason in UNDER_A_BUDGET.values())
