from __future__ import annotations

import pytest
import torch

from silosynth.core.conversation import (
    Conversation,
    Exchange,
    Party,
    Progress,
    SyntheticColumns,
    check_same_rows,
    expect,
    shared_columns,
    side_by_side,
)
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Done, Missing
from silosynth.core.schema import Column, Table


def table(*values: int) -> Table:
    return Table((Column("age", "int64", torch.tensor(values), torch.zeros(len(values), dtype=torch.bool)),))


class Keeper(Party):
    def answer(self, ask):
        return Done()

    def _state(self, training):
        return {}

    def restore(self, state):
        pass


def test_replies_come_typed_and_in_order():
    replies = {"a": SyntheticColumns(table(1)), "b": SyntheticColumns(table(2))}
    assert [int(reply.table["age"].values) for reply in expect(replies, SyntheticColumns)] == [1, 2]


def test_a_reply_of_another_type_names_the_silo_and_both_types():
    with pytest.raises(ProtocolError, match=r"Silo 'b' replies with SyntheticColumns.*Missing.*same version"):
        expect({"a": SyntheticColumns(table(1)), "b": Missing()}, SyntheticColumns)
    with pytest.raises(ProtocolError, match="SyntheticColumns or Done"):
        shared_columns({"a": Missing()})


def test_silos_that_keep_their_columns_share_none():
    assert list(shared_columns({"a": Done(), "b": SyntheticColumns(table(1))})) == ["b"]


def test_unequal_row_counts_are_refused_and_tags_not_shown():
    check_same_rows("ab", [3, 3])
    with pytest.raises(ProtocolError, match=r"'a': 3, 'b': 4.*Align"):
        check_same_rows("ab", [3, 4])
    with pytest.raises(ProtocolError, match="different row counts") as error:
        check_same_rows("ab", [b"secret", b"others"])
    assert "secret" not in str(error.value)


def test_kept_columns_are_taken_once_and_below_each_other():
    party = Keeper()
    assert party.publish(table(1, 2), share=False) == Done() == party.publish(table(3), share=False)
    assert party.take_kept()["age"].values.tolist() == [1, 2, 3]
    with pytest.raises(ProtocolError, match="kept before they are taken"):
        party.take_kept()
    assert isinstance(party.publish(table(1), share=True), SyntheticColumns)
    with pytest.raises(ProtocolError, match="none"):
        party.take_kept()


def counting_down(party: str, steps: int, rides: bool = False) -> Conversation[str]:
    """Ask so many times; each reply is to be one's own."""
    for number in range(steps):
        yield Progress(party, number, steps)
        replies = yield Exchange({party: Done()}, rides=rides and number % 2 == 1)
        assert replies is None if rides and number % 2 else list(replies) == [party]
    return party


def test_conversations_side_by_side_ask_at_the_same_time():
    steps = told([counting_down("a", 1), counting_down("b", 3), counting_down("c", 3)])
    assert steps == ["a", "abc", "bc", "b", "bc", "a b c"]  # not one after the other; progress of the first


def test_exchanges_of_two_kinds_are_made_one_after_the_other():
    steps = told([counting_down("a", 3, rides=True), counting_down("b", 3)])
    assert steps == ["a", "ab", "a", "a", "b", "a", "ab", "a b"]  # progress of a; what rides is asked by itself


def told(talks: list[Conversation[str]]) -> list[str]:
    """Stages of progress, who was asked, and the results."""
    steps, got = list[str](), None

    def whole() -> Conversation[None]:
        yield Progress(" ".join((yield from side_by_side(talks))), 1, 1)

    talk = whole()
    while not steps or " " not in steps[-1]:
        step = talk.send(got)
        got = dict(step.asks) if isinstance(step, Exchange) and not step.rides else None
        steps.append("".join(step.asks) if isinstance(step, Exchange) else step.stage)
    return steps
