"""Exchanges that travel with the next one: same replies, same ledger, fewer round trips."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from silosynth.core.conversation import Checkpoint, Conversation, Exchange, Party, Roster, State
from silosynth.core.errors import DataError, MessageError, ProtocolError
from silosynth.core.messages import Done, Message, Release, Several
from silosynth.runtime.checkpoint import CheckpointStore
from silosynth.runtime.driver import drive
from silosynth.runtime.endpoint import PartyEndpoint
from silosynth.runtime.ledger import Ledger
from silosynth.runtime.link import Reached, Received, TellSlow
from silosynth.runtime.wire import encode
from silosynth.simulation.silos import InProcess

ROSTER = Roster(("bank", "clinic", "shop"))


class Tell(Message):
    """Remember a number."""

    number: int


class Recall(Message):
    """What do you remember?"""


class Remembered(Message, release=Release.COUNTS):
    numbers: tuple[int, ...]


class Memory(Party):
    def __init__(self) -> None:
        self.numbers: list[int] = []

    def answer(self, ask: Message) -> Message:
        if isinstance(ask, Tell):
            if ask.number < 0:
                raise DataError("Numbers are not negative", ask.number, "Count up.")
            self.numbers.append(ask.number)
            return Done()
        return Remembered(tuple(self.numbers))

    def _state(self, training: bool) -> State:
        return {"numbers": list(self.numbers)}

    def restore(self, state: State) -> None:
        self.numbers = list(state["numbers"])


class Counting(InProcess):
    """Counts round trips; ``far`` as said."""

    def __init__(self, far: bool, folder: Path) -> None:
        super().__init__({name: Memory() for name in ROSTER}, folder)
        self.far, self.trips = far, 0

    def exchange(self, step: int, asks: Mapping[str, Message]) -> Mapping[str, Received]:
        self.trips += 1
        return super().exchange(step, asks)


SOME = st.sets(st.sampled_from(ROSTER.parties), min_size=1).map(sorted)
PLANS = st.lists(st.tuples(st.sampled_from(["tell", "ride", "recall", "alone", "checkpoint"]), SOME), max_size=12)


def converse(plan: list[tuple[str, list[str]]]) -> Conversation[list[tuple[int, ...]]]:
    """Store and recall as planned; "alone" does not travel with others."""
    heard: list[tuple[int, ...]] = []
    for number, (what, whom) in enumerate(plan):
        if what == "checkpoint":
            yield Checkpoint({})
        elif what in ("tell", "ride"):
            replies = yield Exchange({name: Tell(number) for name in whom}, rides=what == "ride")
            assert what == "ride" or list(replies) == whom
        else:
            replies = yield Exchange(dict.fromkeys(whom, Recall()), missing=what == "alone")
            assert list(replies) == whom
            heard += [reply.numbers for reply in replies.values() if isinstance(reply, Remembered)]
    return heard


def driven(plan: list[tuple[str, list[str]]], far: bool, seconds: float) -> tuple[list[tuple[int, ...]], bytes, int]:
    with tempfile.TemporaryDirectory() as place:
        store = CheckpointStore(Path(place), "plan")
        with Counting(far, store.parties) as link:
            ledger = Ledger(Path(place) / "ledger.jsonl")
            heard = drive(lambda state: converse(plan), link, ledger, store, seconds=seconds)
            final = [tuple(link._desks[name].party.numbers) for name in ROSTER]  # type: ignore[attr-defined]
        return [*heard, *final], (Path(place) / "ledger.jsonl").read_bytes(), link.trips


@settings(max_examples=60)
@given(PLANS, st.sampled_from([0.0, 1e9]))
@pytest.mark.slow
def test_answers_and_ledger_are_the_same_with_fewer_trips(plan: list[tuple[str, list[str]]], seconds: float) -> None:
    heard, ledger, trips = driven(plan, False, seconds)
    assert driven(plan, True, seconds)[:2] == (heard, ledger)
    saved = trips - driven(plan, True, 1e9)[2]
    plain = [what for what, _ in plan if what != "checkpoint"]
    assert saved == sum(a == "ride" and b in ("tell", "recall") for a, b in pairwise(plain))


def asked(plan: Mapping[str, Exchange], folder: Path, far: bool = True) -> list[Mapping[str, Message]]:
    heard: list[Mapping[str, Message]] = []

    def conversation() -> Conversation[None]:
        for exchange in plan.values():
            heard.append((yield exchange))

    with Counting(far, folder) as link:
        drive(lambda state: conversation(), link, Ledger())
    return heard


EITHER = pytest.mark.parametrize("far", [False, True])


@EITHER
@pytest.mark.parametrize("alone", [False, True])
def test_a_rider_may_reply_only_done(tmp_path: Path, far: bool, alone: bool) -> None:
    plan = {"rider": Exchange({"bank": Recall()}, rides=True)}
    if not alone:
        plan["other"] = Exchange({"bank": Recall()})
    with pytest.raises(ProtocolError, match=r"'bank' answers step 1 with Done.*Remembered"):
        asked(plan, tmp_path, far)


@EITHER
def test_what_a_rider_raises_is_raised(tmp_path: Path, far: bool) -> None:
    plan = {"rider": Exchange({"bank": Tell(-1)}, rides=True), "other": Exchange({"clinic": Tell(1)})}
    with pytest.raises(DataError, match=r"'bank'.*step 1, on .*Tell: Numbers are not negative"):
        asked(plan, tmp_path, far)


@EITHER
def test_the_reply_of_a_rider_is_dropped(tmp_path: Path, far: bool) -> None:
    plan = {"rider": Exchange({"bank": Tell(1)}, rides=True), "other": Exchange({"bank": Recall()})}
    assert asked(plan, tmp_path, far) == [{}, {"bank": Remembered((1,))}]


class Noting(Counting):
    """Records how it was asked."""

    def reach(self, step: int, exchange: Exchange, tell: TellSlow = lambda slow: None) -> Reached:
        self.asked = [*getattr(self, "asked", []), exchange]
        return super().reach(step, exchange, tell)


@pytest.mark.parametrize("first", [{"missing": True}, {"wait": True}, {"times": 3.0}, {}], ids=str)
def test_a_riders_flags_apply(tmp_path: Path, first: dict[str, Any]) -> None:
    def conversation() -> Conversation[None]:
        yield Exchange({"bank": Tell(1)}, rides=True, **first)
        yield Exchange({"bank": Recall()})

    with Noting(True, tmp_path) as link:
        drive(lambda state: conversation(), link, Ledger())
        terms = [(one.missing, one.wait, one.times) for one in link.asked]
    alone = [(True, False, 1.0), (False, False, 1.0)]
    together = [(False, "wait" in first, first.get("times", 1.0) + 1.0)]
    assert terms == (alone if "missing" in first else together)


def several(*parts: tuple[int, Message]) -> bytes:
    steps, messages = zip(*parts, strict=True)
    return encode(Several(steps, tuple(encode(message) for message in messages)))


def test_a_partly_failed_exchange_is_not_repeated() -> None:
    memory = Memory()
    endpoint = PartyEndpoint("bank", memory, None)
    for _ in range(2):
        with pytest.raises(DataError, match="Numbers are not negative"):
            endpoint.answer("job", 2, several((1, Tell(7)), (2, Tell(-1))))
    assert memory.numbers == [7]
    endpoint.answer("job", 3, encode(Tell(8)))
    assert memory.numbers == [7, 8]


@pytest.mark.parametrize("steps", [(2, 4), (5, 5), (5, 4), (4, 9)])
def test_steps_of_several_go_forward(steps: tuple[int, int]) -> None:
    memory = Memory()
    endpoint = PartyEndpoint("bank", memory, None)
    endpoint.answer("job", 3, encode(Tell(0)))
    with pytest.raises((ProtocolError, MessageError), match=r"increasing steps|go forward"):
        endpoint.answer("job", 6, several((steps[0], Tell(1)), (steps[1], Tell(2))))
    assert memory.numbers == [0]


def test_as_many_messages_as_steps() -> None:
    with pytest.raises(MessageError, match="increasing steps"):
        Several((1, 2), (b"",))
