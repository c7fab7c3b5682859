"""Opening: the noise that is in shares before they open, what silos refuse, and what the ledger says."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.counting.talk import NAMES, counters, crosstab, request, run

from silosynth.core.conversation import Roster
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import Message, Release
from silosynth.core.streams import Keystream, Streams
from silosynth.counting import CellNoise, CountRequest, OpenedTables, TableCounter, bits_to_open, open_tables
from silosynth.counting.opening import OpenTables, RevealTables, SharesOpened
from silosynth.privacy.accounting import spent
from silosynth.privacy.events import Target
from silosynth.privacy.mechanisms import part_noise
from silosynth.runtime.wire import decode, encode, pack, unpack

SIZES = {"bank 0": 3, "clinic 0": 4, "shop 0": 2}
PAIR, OTHER, OWN, TRIPLE = ["bank 0", "clinic 0"], ["shop 0", "bank 0"], ["bank 0"], list(SIZES)
SILOS = NAMES[:3]
HELD = {name: np.random.default_rng(i).integers(0, size, 10) for i, (name, size) in enumerate(SIZES.items())}


def counted(epsilon: float = 4.0, sets: Any = (PAIR, OTHER, OWN, TRIPLE), bits: int = 16) -> Any:
    """Silos that have counted, and what."""
    silos = counters(HELD, SIZES, SILOS)
    for number, silo in enumerate(silos.values()):
        silo._target, silo._streams = Target(epsilon, 1e-6), Streams(number)
    asked = request(SIZES, sets, SILOS, 13, bits)
    run(silos, asked)
    return silos, asked


def opened(
    silos: Mapping[str, TableCounter], asked: CountRequest, epsilons: Mapping[int, float],
    replies: Callable[[Any], Message] = lambda reply: reply,
) -> tuple[OpenedTables, dict[str, SharesOpened]]:  # fmt: skip
    talk = open_tables(Roster(SILOS), asked, noises(epsilons), Streams(9).noise())
    step: Any = next(talk)
    heard: Any = {s: replies(decode(encode(silos[s].answer(decode(encode(a)))))) for s, a in step.asks.items()}
    with pytest.raises(StopIteration) as end:
        talk.send(heard)
    return end.value.value, heard


def noises(epsilons: Mapping[int, float]) -> dict[int, CellNoise | None]:
    """Infinite ones are none."""
    return {number: None if epsilon == math.inf else CellNoise(epsilon) for number, epsilon in epsilons.items()}


def ask(sets: tuple[int, ...], epsilons: tuple[float, ...]) -> OpenTables:
    return OpenTables(sets, tuple(map(CellNoise, epsilons)))


def noise(seed: int, before: int = 0) -> Keystream:
    """What a silo draws from for the first set, with epsilon 0.5, after so many tables."""
    return Streams(seed).child("opening", before, 0, repr(CellNoise(0.5))).noise()


def test_tables_open_with_both_silos_halves_and_are_passed_on_with_the_coordinators() -> None:
    silos, asked = counted()
    tables, heard = opened(silos, asked, {0: 0.5})
    shape = (1, 12)
    a, b = (part_noise(0.5, 2, shape, noise(number)).numpy().reshape(3, 4) for number in range(2))
    c = part_noise(0.5, 2, (3, 4), Streams(9).noise()).numpy()
    truth = crosstab(HELD, SIZES, PAIR)
    assert np.array_equal(tables.own[0], truth + a + b) and (tables.own[0] < 0).any()
    assert np.array_equal(tables.passed_on[0], truth + a + b + c)
    assert {reply.release for reply in heard.values()} == {Release.NOISED}
    assert list(heard) == ["bank", "clinic"]


@pytest.mark.parametrize("bits", [32, 64])
def test_in_wider_words_and_none_of_a_single_share(bits: int) -> None:
    silos, asked = counted(bits=bits)
    tables, heard = opened(silos, asked, {0: 0.5})
    assert np.abs(tables.own[0] - crosstab(HELD, SIZES, PAIR)).max() < 60
    for reply in heard.values():
        assert (np.abs(reply.shares[0].numpy().astype(float)) > 60).all()  # no count, with whatever noise


def test_of_one_silos_columns_it_draws_all_noise() -> None:
    silos, asked = counted()
    tables, heard = opened(silos, asked, {2: 0.5})
    assert list(heard) == ["bank"] and np.array_equal(tables.own[2], tables.passed_on[2])
    assert not np.array_equal(tables.own[2], crosstab(HELD, SIZES, OWN))
    (event,) = heard["bank"].events
    assert (event.what, event.epsilon, event.joint) == ("a table of bank 0", 0.5, False)


def test_events_of_two_silos_count_once() -> None:
    silos, asked = counted()
    tables, heard = opened(silos, asked, {1: 0.5, 0: 0.25, 2: 1.0})
    assert np.array_equal(np.sign(tables.own[1].shape), [1, 1]) and tables.own[1].shape == (2, 3)
    assert {name: [event.epsilon for event in reply.events] for name, reply in heard.items()} == {
        "bank": [0.5, 0.25, 1.0], "clinic": [0.25], "shop": [0.5]
    }  # fmt: skip
    joint = {event for reply in heard.values() for event in reply.events if event.joint}
    assert len(joint) == 2
    assert spent(silos["bank"].events, 0.0).pure_epsilon == 1.75


def test_no_noise_is_drawn_twice() -> None:
    silos, asked = counted()
    first, again = (opened(silos, asked, {0: 0.5})[0].own[0] for _ in range(2))
    assert not np.array_equal(first, again)
    a, b = (part_noise(0.5, 2, (1, 12), noise(seed, 1)).numpy().reshape(3, 4) for seed in range(2))
    assert np.array_equal(again, crosstab(HELD, SIZES, PAIR) + a + b)


def test_a_silo_that_was_brought_back_gives_no_table_the_noise_of_another() -> None:
    """Asked for one set, and after that for another in its place, or with another epsilon."""
    drawn = []
    for sets, epsilon in (((0, 1), 0.5), ((1,), 0.5), ((0,), 0.6)):
        silos, _ = counted(sets=(PAIR, PAIR))
        reply: Any = silos["bank"].answer(ask(sets, (epsilon,) * len(sets)))
        own = [silos["bank"].shares[number].reshape(1, -1) for number in sets]
        drawn.append([one.numpy().view("u2") - share for one, share in zip(reply.shares, own, strict=True)])
    (first, second), (again,), (other,) = drawn
    assert np.array_equal(second, again) and not np.array_equal(first, second) and not np.array_equal(first, other)


def test_a_silo_opens_what_its_target_affords_with_all_that_it_has_opened() -> None:
    silos, asked = counted(epsilon=1.0)
    with pytest.raises(ProtocolError, match="no tables beyond its target"):
        opened(silos, asked, {0: 0.6, 1: 0.6})
    assert all(not silo.events for silo in silos.values())
    opened(silos, asked, {0: 0.6})
    with pytest.raises(ProtocolError, match="with all that it has opened"):
        silos["bank"].answer(ask((1,), (0.6,)))
    run(silos, asked)  # another counting of the same rows
    with pytest.raises(ProtocolError, match="with all that it has opened"):
        silos["bank"].answer(ask((0,), (0.6,)))
    again = counters(HELD, SIZES, SILOS)["bank"]
    again.restore(unpack(pack(silos["bank"].state())))
    again._target = Target(1.0, 1e-6)
    with pytest.raises(ProtocolError, match="with all that it has opened"):
        again.answer(ask((0,), (0.6,)))
    assert isinstance(again.answer(ask((0,), (0.3,))), SharesOpened)


def test_without_a_target_nothing_opens() -> None:
    for target in (None, Target()):
        silos, _ = counted()
        silos["bank"]._target = target
        with pytest.raises(ProtocolError, match="it was given none"):
            silos["bank"].answer(ask((0,), (0.1,)))


def test_silos_check_what_they_are_asked_to_open() -> None:
    silos, _ = counted()
    for wrong, error in (
        (ask((0, 0), (0.1, 0.1)), "each set once"),
        (ask((0,), (0.1, 0.1)), "a noise of its own"),
        (ask((1,), (0.1,)), "that it is part of"),
    ):
        with pytest.raises(ProtocolError, match=error):
            silos["clinic"].answer(wrong)
    for number, epsilon, error in (
        (3, 0.1, "one or two silos"),
        (4, 0.1, "were counted"),
        (-1, 0.1, "were counted"),
        (0, 1e-3, "no room"),
    ):
        with pytest.raises(ConfigError, match=error):
            silos["bank"].answer(ask((number,), (epsilon,)))
        with pytest.raises(ConfigError, match=error):
            opened(silos, request(SIZES, (PAIR, OTHER, OWN, TRIPLE), SILOS, 13), {number: epsilon})
    with pytest.raises(ProtocolError, match="counting that has ended"):
        counters(HELD, SIZES, SILOS)["bank"].answer(ask((0,), (0.1,)))


def test_replies_of_another_length_are_refused() -> None:
    silos, asked = counted()
    with pytest.raises(ProtocolError, match="that it was asked for"):
        opened(silos, asked, {0: 0.5}, lambda reply: replace(reply, shares=()))


def test_words_have_room_for_counts_and_noise() -> None:
    assert [bits_to_open(50_000, CellNoise(epsilon)) for epsilon in (1.0, 0.01, 0.001, 1e-9)] == [16, 16, 32, 64]


def test_noise_has_a_finite_epsilon() -> None:
    for epsilon in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match="finite epsilon"):
            CellNoise(epsilon)


class TestExactly:
    def test_tables_of_one_two_and_three_silos_and_no_single_share(self) -> None:
        silos, asked = counted()
        for silo in silos.values():
            silo._exact = True
        tables, heard = opened(silos, asked, dict.fromkeys(range(4), math.inf))
        for number, names in enumerate((PAIR, OTHER, OWN, TRIPLE)):
            assert np.array_equal(tables.own[number], crosstab(HELD, SIZES, names))
            assert np.array_equal(tables.passed_on[number], tables.own[number])
        assert {reply.release for reply in heard.values()} == {Release.TABLES}
        assert all((np.abs(reply.shares[0].numpy()) > 10).any() for reply in heard.values())
        assert not any(silo.events for silo in silos.values())

    def test_only_of_silos_that_were_made_to(self) -> None:
        silos, asked = counted()
        with pytest.raises(ProtocolError, match="opens tables exactly if it was made to"):
            opened(silos, asked, {0: math.inf})

    def test_each_once_and_of_those_that_it_is_part_of(self) -> None:
        silos, _ = counted()
        silos["clinic"]._exact = True
        for sets, error in (((0, 0), "each set once"), ((1,), "part of")):
            with pytest.raises(ProtocolError, match=error):
                silos["clinic"].answer(RevealTables(sets))
