from __future__ import annotations

from dataclasses import replace

import pytest

from silosynth.core.conversation import Conversation, Roster
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Done
from silosynth.core.streams import Streams
from silosynth.privacy.accounting import (
    Account,
    Charge,
    Charged,
    EncodersLearnt,
    agree_and_charge,
    cost,
    joint_steps,
    mean_rows,
)
from silosynth.privacy.agreement import Group
from silosynth.privacy.events import DISCRETE_LAPLACE, Event, Target
from silosynth.privacy.sealed import seats

TARGET = Target(epsilon=2.0, delta=1e-5)
ENCODERS = Event(DISCRETE_LAPLACE, 0.05, 0.0, "counts", scope="all", target=1e-5)
LEARNT = (ENCODERS, replace(ENCODERS, what="other counts"))
ROSTER = Roster(("a", "b"))


def steps(learnt: tuple[Event, ...], times: int = 20) -> tuple[Event, ...]:
    return joint_steps("steps", TARGET, 0.1, times, learnt)


def charging() -> tuple[Conversation[Charge], Charge]:
    """The conversation, once silos have agreed on their secret, and what they are charged."""
    silos = {name: Group(seat) for name, seat in seats(ROSTER, Streams(7)).items()}
    learnt = [EncodersLearnt(rows, f"nonce{rows}", (event,)) for rows, event in zip((99, 101), LEARNT, strict=True)]
    conversation = agree_and_charge(ROSTER, "steps", learnt, lambda rows, events: steps(events))
    step = next(conversation)
    while not isinstance(step.asks["a"], Charge):
        step = conversation.send({name: silos[name].answer(ask) for name, ask in step.asks.items()})
    assert all(silo.purpose == "steps nonce99 nonce101" for silo in silos.values())
    return conversation, step.asks["a"]


def account(*learnt: Event) -> Account:
    opened = Account()
    opened.begin(TARGET, learnt or LEARNT[:1])
    return opened


def test_what_the_coordinator_solves_for_every_silo_accepts_once():
    conversation, ask = charging()
    assert (ask.rows, ask.learnt) == (100, LEARNT)
    assert cost([*LEARNT, *ask.events], TARGET) == pytest.approx(TARGET.epsilon, rel=0.01)
    silo = account()
    replies = {name: (silo if name == "a" else account(LEARNT[1])).charge(ask, 2, b"tag") for name in ROSTER}
    with pytest.raises(StopIteration) as end:
        conversation.send(replies)
    assert end.value.value == ask == silo.charged
    with pytest.raises(ProtocolError, match="at most the target, once"):
        silo.charge(ask, 2, b"tag")


@pytest.mark.parametrize(
    "change",
    [
        lambda ask: replace(ask, learnt=LEARNT[1:]),  # omits what this silo has charged
        lambda ask: replace(ask, events=(replace(ask.events[0], noise=0.8 * ask.events[0].noise),)),
        lambda ask: replace(ask, events=(replace(ask.events[0], times=2 * ask.events[0].times),)),
        lambda ask: replace(ask, events=(replace(ask.events[0], joint=False),)),  # then each silo's adds up
    ],
)
def test_a_charge_above_the_target_is_refused_and_nothing_is_charged(change):
    ask, silo = Charge(100, LEARNT, steps(LEARNT)), account()
    with pytest.raises(ProtocolError, match=r"epsilon .* of 2"):
        silo.charge(change(ask), 2, b"tag")
    with pytest.raises(ProtocolError, match="not charged"):
        silo.take_step()
    assert silo.charge(ask, 2, b"tag").events == ask.events


def test_nothing_is_charged_before_encoders_were_learnt():
    with pytest.raises(ProtocolError, match="charged before"):
        Account().charge(Charge(100, (), steps(LEARNT)), 2, b"tag")


def test_steps_end_where_the_charge_ends_also_after_a_restart():
    silo = account()
    silo.charge(Charge(100, LEARNT, steps(LEARNT, times=3)), 2, b"tag")
    assert [silo.take_step(), silo.take_step()] == [0, 1]
    again = Account()
    again.restore(silo.state())
    assert again.take_step() == 2
    with pytest.raises(ProtocolError, match="no more private steps"):
        again.take_step()


@pytest.mark.parametrize(
    "change", [{"what": "other steps"}, {"joint": False}, {"mechanism": DISCRETE_LAPLACE, "epsilon": 0.1}]
)
def test_a_charge_for_joint_steps_is_for_them_alone(change):
    ask = Charge(100, LEARNT, steps(LEARNT))
    for wrong in ((replace(ask.events[0], **change),), (), ask.events * 2):
        with pytest.raises(ProtocolError, match="one event for all steps"):
            account().charge_joint(replace(ask, events=wrong), 2, b"tag", "steps")
    assert account().charge_joint(ask, 2, b"tag", "steps").events == ask.events


def test_events_of_later_messages_are_not_listed_with_the_charge():
    ask = Charge(100, LEARNT, (*steps(LEARNT),))
    assert account().charge(ask, 2, b"tag", later=1).events == ()


@pytest.mark.parametrize("second", [Charged(b"other", ()), Done()])
def test_silos_with_other_rows_or_another_protocol_end_the_training(second):
    conversation, _ = charging()
    with pytest.raises(ProtocolError, match=r"same rows in the same order|replies with Charged"):
        conversation.send({"a": Charged(b"tag", ()), "b": second})


def test_the_mean_of_noised_counts_is_a_row_count():
    assert (mean_rows([10, 11, 13]), mean_rows([-3, 1])) == (11, 2)
