"""Policies for silos that get lost, through conversations driven by hand; what stands in for them; absence by lot."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch

from silosynth.core.conversation import Checkpoint, Conversation, Exchange, Progress
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.lost import LastRows, chosen, present, under
from silosynth.core.messages import Done
from silosynth.core.streams import Streams

EVERY = ("fail", "wait", "omit", "cache", "zeros")
ASKS = {"a": Done(), "b": Done()}


def talk(closed: list[bool]) -> Conversation[list[list[str]]]:
    """Who answered what can do without some, and what cannot."""
    answered = []
    try:
        yield Progress("asking", 0, 2)
        answered.append(list((yield Exchange(ASKS, missing=True, times=3.0))))
        yield Checkpoint({"at": 1})
        answered.append(list((yield Exchange(ASKS))))
        return answered
    finally:
        closed.append(True)


def drive(led: Conversation[list[list[str]]], steps: list) -> list[list[str]]:
    """By hand; b is lost wherever that may be."""
    got = None
    while True:
        try:
            steps.append(led.send(got))
        except StopIteration as end:
            return end.value
        got = {"a": Done()} if getattr(steps[-1], "missing", False) else ASKS


@pytest.mark.parametrize("policy", EVERY)
def test_a_policy_is_said_of_each_exchange(policy):
    goes_on, closed = policy not in ("fail", "wait"), []
    steps = []
    answered = drive(under(policy, talk(closed)), steps)
    assert answered == [["a"] if goes_on else ["a", "b"], ["a", "b"]]
    assert steps[0] == Progress("asking", 0, 2) and steps[2] == Checkpoint({"at": 1})
    first, second = steps[1], steps[3]
    assert (first.missing, first.wait, first.times) == (goes_on, policy == "wait", 3.0)
    assert (second.missing, second.wait, second.times) == (False, policy != "fail", 1.0)
    assert closed == [True]


def test_a_conversation_that_is_broken_off_is_closed():
    closed = []
    led = under("wait", talk(closed))
    next(led)
    led.close()
    assert closed == [True]


def test_what_is_not_supported_is_refused_with_what_is():
    assert chosen(None, ("fail", "wait")) == "fail"
    assert chosen("wait", ("fail", "wait")) == "wait"
    with pytest.raises(ConfigError, match=r'got: cache.*Choose "fail" or "wait"'):
        chosen("cache", ("fail", "wait"))


def test_absence_is_by_lot_from_a_stream_and_leaves_some_where_that_is_asked():
    parties, draw = list("abcd"), Streams(5).child("absence")
    assert present(parties, 0.4, draw.numpy()) == present(parties, 0.4, draw.numpy())
    assert present(parties, 0.0, draw.numpy()) == parties
    rng = draw.numpy()
    seen = Counter(itertools.chain.from_iterable(present(parties, 0.3, rng) for _ in range(4000)))
    assert all(0.67 < seen[party] / 4000 < 0.73 for party in parties)
    few = [present(parties, 0.9, rng, least=2) for _ in range(200)]
    assert min(map(len, few)) == 2 and parties[:2] in few


def sent(rows_B, silo: str, epoch: int) -> torch.Tensor:
    """What a silo sends is different for each row, silo and epoch."""
    return torch.stack([rows_B * 1.0, torch.full((len(rows_B),), ord(silo) + 1000.0 * epoch)], dim=1)


def test_what_was_sent_last_of_each_row_stands_in_whatever_the_batches():
    """Against a dictionary by silo and row, over epochs with other batches each; state and restore in between."""
    generator, known = torch.Generator().manual_seed(1), {}
    kept = LastRows({"a": 2, "b": 2}, 12, "cache")
    for epoch in range(6):
        for rows_B in torch.randperm(12, generator=generator).split(5):
            there = {silo for silo in "ab" if epoch == 0 or torch.rand(1, generator=generator) < 0.5}
            parts = {silo: sent(rows_B, silo, epoch) for silo in there}
            known |= {(silo, int(row)): part for silo in there for row, part in zip(rows_B, parts[silo], strict=True)}
            for silo, part in zip("ab", kept.fill(rows_B, parts), strict=True):
                assert torch.equal(part, torch.stack([known[silo, int(row)] for row in rows_B]))
        again = LastRows({"a": 2, "b": 2}, 12, "cache")
        again.restore(kept.state())
        kept = again


@pytest.mark.parametrize("policy", ["zeros", "omit", "fail", "wait"])
def test_other_policies_keep_nothing_and_zeros_stand_in(policy):
    rows_B = torch.arange(3)
    kept = LastRows({"a": 2, "b": 1}, 12, policy, torch.bool)
    kept.fill(rows_B, {"a": torch.ones(3, 2, dtype=torch.bool), "b": torch.ones(3, 1, dtype=torch.bool)})
    assert sum(part.nbytes for part in kept.state().values()) == 0
    a, b = kept.fill(rows_B, {"a": torch.ones(3, 2, dtype=torch.bool)})
    assert a.all() and torch.equal(b, torch.zeros(3, 1, dtype=torch.bool))


def test_rows_of_another_width_are_refused():
    with pytest.raises(ProtocolError, match=r"'a' sends 2 numbers per row"):
        LastRows({"a": 2}, 12, "cache").fill(torch.arange(3), {"a": torch.ones(3, 1)})
