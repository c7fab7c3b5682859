"""Noise that two silos draw together: what opens, who could take it off, and what silos refuse."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.counting.talk import NAMES, Meddle, counters, crosstab, request, run, untouched
from tests.privacy.test_joint import refuted

from silosynth.core.conversation import Exchange, Roster
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import Message, Release
from silosynth.core.streams import Chain, Streams
from silosynth.counting import CellNoise, CountRequest, OpenedTables, TableCounter, joint, open_tables, protocol
from silosynth.counting.joint import HiddenBits, HideBits, TakeBits
from silosynth.counting.opening import OpenTables, SharesOpened
from silosynth.counting.plan import Plan
from silosynth.privacy.events import Target
from silosynth.privacy.joint import charged, draw, weights
from silosynth.privacy.sealed import Seat
from silosynth.runtime.wire import decode, encode

SIZES = {"bank 0": 24, "clinic 0": 20, "shop 0": 3}
PAIR, OTHER, OWN, TRIPLE = ["bank 0", "clinic 0"], ["shop 0", "bank 0"], ["bank 0"], list(SIZES)
SILOS = NAMES[:3]
HELD = {name: np.random.default_rng(i).integers(0, size, 300) for i, (name, size) in enumerate(SIZES.items())}
NOISE, VARIANCE = CellNoise(half_variance=100, joint=True), 200
TARGET = Target(2.0, 1e-6)
Counted = tuple[dict[str, TableCounter], CountRequest]


def counted(sets: Any = (PAIR, OTHER, OWN), seed: int = 0, bits: int = 16, chains: bool = False) -> Counted:
    """Silos that have counted, and what; with ``chains`` their bits depend on what they were asked."""
    silos = counters(HELD, SIZES, SILOS)
    for number, silo in enumerate(silos.values()):
        streams = Streams(10 * seed + number, chain=Chain(b"") if chains else None)
        silo._target, silo._streams = TARGET, streams
        silo._joint = joint.JointNoise(silo._seat, streams)
    asked = request(SIZES, sets, SILOS, 1024, bits, block=512)
    run(silos, asked)
    return silos, asked


def opened(
    made: Counted, noises: dict[int, CellNoise], asks: Meddle = untouched, replies: Meddle = untouched, seed: int = 9
) -> tuple[OpenedTables, list[tuple[str, Message, Message]]]:
    (silos, asked), said = made, list[tuple[str, Message, Message]]()
    talk, got = open_tables(Roster(SILOS), asked, noises, Streams(seed).noise()), None
    while True:
        try:
            step: Any = talk.send(got)  # type: ignore[arg-type]
        except StopIteration as end:
            return end.value, said
        got = {}
        for silo, ask in step.asks.items() if isinstance(step, Exchange) else ():
            ask = asks(silo, decode(encode(ask)))  # type: ignore[arg-type]
            if silos[silo]._streams.chain is not None:
                silos[silo]._streams.chain.add(hash_of(ask))
            got[silo] = replies(silo, decode(encode(silos[silo].answer(ask))))  # type: ignore[arg-type]
            said.append((silo, ask, got[silo]))
        got = {} if step.rides else got


def hash_of(ask: Message) -> Any:
    class Done:
        value = hashlib.sha256(encode(ask)).digest()

    return Done()


def off(tables: OpenedTables, names: list[str], number: int = 0) -> np.ndarray:
    noise: np.ndarray = tables.own[number] - crosstab(HELD, SIZES, names)
    return noise


def bits_of(made: Counted, silo: str, number: int, noises: dict[int, CellNoise]) -> np.ndarray:
    """The oracle: what a silo draws before anything has opened."""
    plan = Plan(made[1])
    mine = {n: 2 * one.half_variance for n, one in noises.items() if silo in plan.parts[n] and len(plan.parts[n]) == 2}
    streams = made[0][silo]._streams.child("bits", 0, repr(mine)).child("set", number)
    return draw(math.prod(made[1].shape(number)), len(weights(mine[number])), streams.noise())


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_what_opens_is_the_table_with_the_exclusive_ors_of_both_silos_bits(bits: int) -> None:
    made, noises = counted(bits=bits), {0: NOISE, 1: CellNoise(half_variance=900, joint=True), 2: NOISE}
    tables, said = opened(made, noises)
    for number, names in ((0, PAIR), (1, OTHER)):
        of = np.array(weights(2 * noises[number].half_variance))
        first, second = (bits_of(made, name.split()[0], number, noises) for name in names)
        noise = (first ^ second).astype(np.int64) @ of - of.sum() // 2
        assert np.array_equal(off(tables, names, number).reshape(-1), noise)
        assert np.array_equal(tables.own[number], tables.passed_on[number])
    assert [type(ask) for silo, ask, _ in said if silo == "shop"] == [HideBits, TakeBits, OpenTables]
    assert {type(reply).__name__: reply.release for _, _, reply in said} == {
        "HiddenBits": Release.SEALED, "Done": Release.NOTHING, "SharesOpened": Release.NOISED
    }  # fmt: skip


def test_the_noise_has_the_law_that_is_charged_and_events_say_so() -> None:
    tables, said = opened(made := counted(), {0: NOISE, 2: NOISE})
    assert refuted(off(tables, PAIR).reshape(-1), VARIANCE) > 1e-4
    events = {silo: reply.events for silo, _, reply in said if isinstance(reply, SharesOpened)}
    deviation, slip = charged(VARIANCE, TARGET.delta)
    (of_two,) = events["clinic"]
    assert (of_two.noise, of_two.delta, of_two.joint, of_two.mechanism) == (deviation, slip, True, "discrete Gaussian")
    assert events["bank"][0] == of_two and (events["bank"][1].noise, events["bank"][1].delta) == (VARIANCE**0.5, 0.0)
    assert made[0]["bank"].events == list(events["bank"])


def test_bits_of_many_sets_are_hidden_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("silosynth.counting.plan.WORDS", 480 * len(weights(VARIANCE)))
    made = counted((PAIR, OTHER, PAIR))
    tables, said = opened(made, dict.fromkeys(range(3), NOISE))
    assert [ask.sets for silo, ask, _ in said if silo == "bank" and isinstance(ask, HideBits)] == [(0,), (1,), (2,)]
    first, second = (off(tables, PAIR, number) for number in (0, 2))
    assert refuted(second.reshape(-1), VARIANCE) > 1e-4 and not np.array_equal(first, second)


# Who could take it off.


def test_a_silo_that_knows_its_bits_and_all_that_it_hears_faces_all_of_the_noise() -> None:
    """The same bits of one silo, those of the other anew: the first hears uniform words, and the noise is another."""
    noises, heard, noise = {0: NOISE}, list[np.ndarray](), list[np.ndarray]()
    for seed in range(12):
        made = counted((PAIR,), seed)
        made[0]["bank"]._joint = joint.JointNoise(made[0]["bank"]._seat, Streams(77))
        real, texts = Seat.open, list[bytes]()

        def recorded(seat: Seat, envelope: Any, context: str, real: Any = real, texts: list[bytes] = texts) -> bytes:
            texts.append(real(seat, envelope, context))
            return texts[-1]

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Seat, "open", lambda *given: recorded(*given))
            tables, _ = opened(made, noises)
        heard.append(np.frombuffer(texts[0], "<u2").astype(np.float64))
        noise.append(off(tables, PAIR).reshape(-1))
    own = bits_of((counted((PAIR,))[0] | {"bank": made[0]["bank"]}, made[1]), "bank", 0, noises)
    assert own.shape == (480, len(weights(VARIANCE)))
    found = np.concatenate(noise)
    assert refuted(found, VARIANCE) > 1e-4
    words = np.concatenate(heard)
    assert abs(words.mean() / 2**15 - 1) < 5 / math.sqrt(3 * len(words))
    sums = np.concatenate([one[: 480 * len(weights(VARIANCE))].reshape(480, -1).sum(axis=1) for one in heard])
    assert abs(np.corrcoef(sums, found)[0, 1]) < 5 / math.sqrt(len(found))
    assert abs(np.corrcoef(np.stack(noise))[np.triu_indices(12, 1)]).max() < 5 / math.sqrt(480)


def test_the_coordinator_sees_shares_that_say_nothing_but_their_sum() -> None:
    """It knows all random words that it dealt, and so would read bits from a share that is not masked."""
    made, noises = counted((PAIR,)), {0: NOISE}
    _, said = opened(made, noises)
    hidden = {silo: reply for silo, _, reply in said if isinstance(reply, HiddenBits)}
    asks = {silo: ask for silo, ask, _ in said if isinstance(ask, HideBits)}
    shares = {s: r.shares[0].numpy().view("u2").reshape(-1) for s, _, r in said if isinstance(r, SharesOpened)}
    plan, of = Plan(made[1]), np.array(weights(VARIANCE)).astype("u2")
    pads = {s: joint._words(plan, 0, VARIANCE, asks[s].seed, hidden[s].nonce) for s in hidden}
    known = joint._first_share(plan, 0, asks["bank"].seed, hidden["bank"].nonce).reshape(-1)
    bank, clinic = (bits_of(made, silo, 0, noises).astype("u2") for silo in ("bank", "clinic"))
    table = made[0]["bank"].shares[0].reshape(-1)
    middle = np.uint16(sum(weights(VARIANCE)) // 2)
    bare = bank @ of - 2 * (known - (pads["bank"] * (clinic + pads["clinic"])) @ of) - middle
    left = shares["bank"] - table - bare  # a mask, and nothing else
    assert len(np.unique(left)) > 450 and abs(left.astype(float).mean() / 2**15 - 1) < 5 / math.sqrt(3 * 480)
    other = made[0]["clinic"].shares[0].reshape(-1)
    bare = clinic @ of - 2 * (((bank + pads["bank"]) * clinic) @ of + (pads["bank"] * pads["clinic"]) @ of - known)
    assert np.array_equal(shares["clinic"] - other - bare, np.zeros(480, "u2") - left)
    assert [len(ask.dealt) for _, ask, _ in said if isinstance(ask, TakeBits)] == [0, 1]


def test_a_coordinator_that_deals_wrong_words_moves_cells_by_what_it_knows_and_no_noise_comes_off() -> None:
    def wrong(silo: str, ask: Message) -> Message:
        if isinstance(ask, TakeBits) and silo == "clinic":
            return replace(ask, dealt=(ask.dealt[0] + torch.arange(480, dtype=torch.int16).reshape(1, -1),))
        return ask

    as_dealt, _ = opened(counted((PAIR,)), {0: NOISE})
    tables, _ = opened(counted((PAIR,)), {0: NOISE}, wrong)
    moved = (tables.own[0] - as_dealt.own[0]).reshape(-1)
    assert np.array_equal(moved, -2 * np.arange(480))


def test_what_a_silo_hid_in_an_earlier_attempt_takes_no_noise_off() -> None:
    """The coordinator delivers old envelopes: it knows the words, but noise of the new bits is left."""
    said = opened(counted((PAIR,), seed=1), {0: NOISE})[1]
    old = {silo: reply.envelopes for silo, _, reply in said if isinstance(reply, HiddenBits)}
    deals = {silo: (ask.seed, reply.nonce) for silo, ask, reply in said if isinstance(ask, HideBits)}
    made = counted((PAIR,), seed=2)

    def swapped(silo: str, ask: Message) -> Message:
        return replace(ask, envelopes=old["bank"]) if isinstance(ask, TakeBits) and silo == "clinic" else ask

    tables, said = opened(made, {0: NOISE}, swapped)
    of, bank, clinic = (
        np.array(weights(VARIANCE)).astype("u2"),
        *(bits_of(made, silo, 0, {0: NOISE}).astype("u2") for silo in ("bank", "clinic")),
    )
    earlier = bits_of(counted((PAIR,), seed=1), "bank", 0, {0: NOISE}).astype("u2")
    now = {silo: (ask.seed, reply.nonce) for silo, ask, reply in said if isinstance(ask, HideBits)}
    plan = Plan(made[1])
    pads = [joint._words(plan, 0, VARIANCE, *key) for key in (deals["bank"], now["bank"])]
    middle = np.uint16(sum(weights(VARIANCE)) // 2)
    masks = off(tables, PAIR).reshape(-1).astype("u2")
    told = bank @ of + clinic @ of - middle - 2 * (((earlier + pads[0] - pads[1]) * clinic) @ of)
    assert len(np.unique(masks - told)) > 450  # the masks differ as well: nothing can be read at all
    assert not np.array_equal(bank, earlier)


def test_a_silo_that_hides_other_words_than_bits_makes_all_noise_a_multiple(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not prevented, as with flags: the rest of each count's division by three is told."""
    real = joint.draw

    def drawn(cells: int, count: int, rng: Any) -> Any:
        bits = real(cells, count, rng)
        return bits if lies.pop() else np.where(bits, 2, np.uint64(2**64 - 1))

    lies = [True, False]  # the second silo
    monkeypatch.setattr(joint, "draw", drawn)
    tables, _ = opened(counted((PAIR,)), {0: NOISE})
    noise = off(tables, PAIR).reshape(-1)
    assert set((noise - noise[0]) % 3) == {0} and np.std(noise) > 2.5 * math.sqrt(VARIANCE)


# What silos refuse, and how they draw again.


def refused(rule: str, asks: Meddle, sets: Any = (PAIR, OTHER, OWN)) -> None:
    with pytest.raises(ProtocolError, match=rule):
        opened(counted(sets), {0: NOISE, 1: NOISE}, asks)


def changed(kind: type[Message], change: Callable[[Any], Any], who: str = "bank") -> Meddle:
    return lambda silo, ask: change(ask) if isinstance(ask, kind) and silo == who else ask


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda ask: replace(ask, sets=(2, 0)), "of it and another silo"),
        (lambda ask: replace(ask, sets=(0, 0)), "of it and another silo"),
        (lambda ask: replace(ask, sets=(0, 9)), "of it and another silo"),
        (lambda ask: replace(ask, seed=b"short"), "a variance and a seed"),
        (lambda ask: replace(ask, variances=(200,)), "a variance and a seed"),
        (lambda ask: replace(ask, variances=(200, 0)), "a variance and a seed"),
        (lambda ask: replace(ask, variances=(200, 2**28)), "a variance and a seed"),
        (lambda ask: replace(ask, variances=(200, 2)), "sealed for"),
    ],
)
def test_bits_are_for_the_sets_and_variances_that_both_silos_were_told(change: Any, rule: str) -> None:
    refused(rule, changed(HideBits, change))


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda ask: replace(ask, envelopes=ask.envelopes[:1]), "of each silo that it shares a set with"),
        (lambda ask: replace(ask, envelopes=ask.envelopes[::-1]), "of each silo that it shares a set with"),
        (lambda ask: replace(ask, dealt=(torch.zeros(1, 480, dtype=torch.int16),)), "no more than its shares"),
    ],
)
def test_bits_of_each_partner_are_taken_once(change: Any, rule: str) -> None:
    refused(rule, changed(TakeBits, change))


def test_dealt_words_have_the_shape_of_tables() -> None:
    refused("is dealt words of 16 bits", changed(TakeBits, lambda ask: replace(ask, dealt=ask.dealt[:1] * 0 + (
        torch.zeros(1, 3, dtype=torch.int16),)), "clinic"))  # fmt: skip


def test_tables_open_with_noise_that_was_drawn_for_them_once() -> None:
    silos, asked = counted()
    ask = OpenTables((0,), (NOISE,))
    with pytest.raises(ProtocolError, match="that both have drawn for it"):
        silos["bank"].answer(ask)
    with pytest.raises(ProtocolError, match="after it has hidden its own"):
        silos["bank"].answer(TakeBits((), ()))
    opened((silos, asked), {0: NOISE})
    with pytest.raises(ProtocolError, match="that both have drawn for it"):
        silos["bank"].answer(ask)
    more = CellNoise(half_variance=400, joint=True)
    lower = changed(OpenTables, lambda ask: replace(ask, noises=(more, *ask.noises[1:])))
    refused("that both have drawn for it", lower)
    silos["bank"].answer(HideBits((0,), (200,), bytes(32)))
    silos["bank"].restore(silos["bank"].state())
    with pytest.raises(ProtocolError, match="after it has hidden its own"):
        silos["bank"].answer(TakeBits((), ()))


def test_noise_is_drawn_together_by_two_silos_that_the_coordinator_deals_for() -> None:
    silos, asked = counted((TRIPLE,))
    with pytest.raises(ConfigError, match="one or two silos"):
        opened((silos, asked), {0: NOISE})
    same = replace(asked, columns=tuple(replace(one, silo="") for one in asked.columns))
    party = replace(asked, columns=asked.columns[:2], sets=((0, 1),), dealer="shop")
    for other in (same, party):
        with pytest.raises(ConfigError, match="the coordinator deals"):
            next(open_tables(Roster(SILOS), other, {0: NOISE}, Streams(0).noise()))
        silo = counters(HELD, SIZES, SILOS)["bank"]
        silo._ended = Plan(other)
        with pytest.raises(ProtocolError, match="that the coordinator dealt for"):
            silo.answer(HideBits((0,), (200,), bytes(32)))
    with pytest.raises(ConfigError, match="or Gaussian"):
        CellNoise(1.0, joint=True)
    with pytest.raises(ProtocolError, match="a counting"):
        counters(HELD, SIZES, SILOS)["bank"].answer(HideBits((0,), (200,), bytes(32)))


def test_asked_the_same_a_silo_says_the_same_and_asked_anything_else_it_has_other_bits() -> None:
    told = []
    for seed in (9, 9, 10):
        made = counted((PAIR,), chains=True)
        tables, said = opened(made, {0: NOISE}, seed=seed)
        told.append((off(tables, PAIR), [encode(reply) for _, _, reply in said if isinstance(reply, HiddenBits)]))
    (first, hidden), (again, same), (other, new) = told
    assert np.array_equal(first, again) and hidden == same
    assert not np.array_equal(first, other) and hidden != new
    assert abs(np.corrcoef(first.reshape(-1), other.reshape(-1))[0, 1]) < 5 / math.sqrt(480)


def test_replies_to_another_silo_are_refused() -> None:
    def alone(silo: str, reply: Message) -> Message:
        return replace(reply, envelopes=()) if isinstance(reply, HiddenBits) else reply

    with pytest.raises(ProtocolError, match="seals its bits for each silo"):
        opened(counted((PAIR,)), {0: NOISE}, replies=alone)
    with pytest.raises(ProtocolError, match="replies with HiddenBits"):
        opened(counted((PAIR,)), {0: NOISE}, replies=lambda silo, reply: protocol.HiddenBlock(()))
