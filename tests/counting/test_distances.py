"""Figures: squared distances by products of shares, exact; what silos and coordinator see; and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.counting.talk import NAMES, Held, counters, crosstab, request, run

from silosynth.core.conversation import Exchange, Roster
from silosynth.core.errors import ConfigError, MessageError, ProtocolError
from silosynth.core.messages import Message
from silosynth.counting import CountRequest, TableCounter, distances
from silosynth.counting.distances import Figure, FiguresOpened, FiguresPrepared, HiddenShares, HideShares, TakeShares
from silosynth.counting.plan import Plan
from silosynth.counting.protocol import FinishCount
from silosynth.runtime.wire import decode, encode

SIZES = {"bank 0": 3, "clinic 0": 4, "shop 0": 2}
PAIR, OTHER, OWN, TRIPLE = ["bank 0", "clinic 0"], ["shop 0", "bank 0"], ["bank 0"], list(SIZES)
SETS = (PAIR, OTHER, OWN, TRIPLE)
SILOS = NAMES[:3]
HELD = {name: np.random.default_rng(i).integers(0, size, 10) for i, (name, size) in enumerate(SIZES.items())}
RNG = np.random.default_rng(11)


def figure(number: int, weights: tuple[int, ...] = (1,)) -> Figure:
    shape = [SIZES[name] for name in SETS[number]][: None if len(weights) == 1 else -1]
    return Figure(number, weights, torch.from_numpy(RNG.integers(-3, 9, shape)))


FIGURES = (
    figure(0), figure(3, (2, -5)), figure(1), figure(0, (-7,)), figure(2), figure(3, (0, 1)), figure(3, (1, 0)),
)  # fmt: skip


def truth(one: Figure, held: Held = HELD) -> int:
    table = crosstab(held, SIZES, SETS[one.number])
    weighed = table * one.weights[0] if len(one.weights) == 1 else table @ np.array(one.weights)
    return int(((weighed - one.reference.numpy()) ** 2).sum())


def counted(bits: int = 64, held: Held = HELD) -> tuple[dict[str, TableCounter], CountRequest]:
    silos, asked = counters(held, SIZES, SILOS), request(SIZES, SETS, SILOS, 13, bits)
    for silo in silos.values():
        silo._figures = True
    run(silos, asked)
    return silos, asked


Meddle = Callable[[str, Message], Message]


def opened(
    silos: dict[str, TableCounter], asked: CountRequest, figures: Sequence[Figure] = FIGURES,
    asks: Meddle = lambda silo, ask: ask, replies: Meddle = lambda silo, reply: reply,
) -> tuple[tuple[int, ...], list[tuple[str, Message]]]:  # fmt: skip
    talk, heard = distances.open_distances(Roster(SILOS), asked, figures), list[tuple[str, Message]]()
    got: Any = None
    while True:
        try:
            step: Any = talk.send(got)
        except StopIteration as end:
            return end.value, heard
        assert isinstance(step, Exchange)
        got = {}
        for silo, ask in step.asks.items():
            reply = silos[silo].answer(asks(silo, decode(encode(ask))))  # type: ignore[arg-type]
            got[silo] = replies(silo, decode(encode(reply)))  # type: ignore[arg-type]
            heard.append((silo, got[silo]))


def changed(kind: type[Message], change: Callable[[Any], Message], who: str = "clinic") -> Meddle:
    return lambda silo, message: change(message) if isinstance(message, kind) and silo == who else message


def test_figures_of_one_two_and_three_silos_are_exact() -> None:
    silos, asked = counted()
    assert opened(silos, asked)[0] == tuple(map(truth, FIGURES))
    assert opened(silos, asked, FIGURES[:1])[0] == (truth(FIGURES[0]),)


def test_large_counts_and_weights_are_exact() -> None:
    rows = 40_000
    held = {name: np.random.default_rng(i).integers(0, size, rows) for i, (name, size) in enumerate(SIZES.items())}
    silos, asked = counters(held, SIZES, SILOS), request(SIZES, [PAIR], SILOS, rows, 64, 8192)
    for silo in silos.values():
        silo._figures = True
    run(silos, asked)
    table = crosstab(held, SIZES, PAIR)
    scaled = torch.from_numpy(table * 20_000 + RNG.integers(-900, 900, table.shape))
    expected = int(((table.astype(object) * 20_000 - scaled.numpy()) ** 2).sum())
    assert opened(silos, asked, [Figure(0, (20_000,), scaled)])[0] == (expected,)


def test_no_silos_part_says_anything_by_itself() -> None:
    """Of tables of several silos: parts are new random words each time, and none is near a figure."""
    silos, asked = counted()
    kept = [one for one in FIGURES if one.number != 2]
    first, again = (
        [reply.words for _, reply in opened(silos, asked, kept)[1] if isinstance(reply, FiguresOpened)]
        for _ in range(2)
    )
    assert not any(bool((one == two).any()) for one, two in zip(first, again, strict=True))
    assert all(int(words.abs().min()) > 2**40 for words in first)


def test_hidden_shares_are_shares_plus_the_dealers_words_and_all_else_is_sealed() -> None:
    silos, asked = counted()
    plan = distances.FigurePlan(Plan(asked), FIGURES)
    told = opened(silos, asked)[1]
    assert [type(reply).__name__ for _, reply in told] == [
        name for name in ("FiguresPrepared", "HiddenShares", "FiguresOpened") for _ in SILOS
    ]
    sealed = b"".join(one.ciphertext for _, reply in told if isinstance(reply, HiddenShares) for one in reply.envelopes)
    for silo in silos.values():
        assert silo.shares[0].astype("<u8").tobytes() not in sealed
    assert plan.peers("bank") == ("clinic", "shop") and plan.sets("clinic", "shop") == (3,)


@pytest.mark.parametrize(
    ("meddle", "error"),
    [
        (changed(distances.PrepareFigures, lambda ask: replace(ask, figures=ask.figures[::-1])), "sealed for"),
        (changed(distances.PrepareFigures, lambda ask: replace(ask, figures=(figure(2),))), "shares of"),
        (changed(HideShares, lambda ask: replace(ask, nonces=(bytes(32), *ask.nonces[1:]))), "sealed for"),
        (changed(HideShares, lambda ask: replace(ask, nonces=ask.nonces[::-1]), "bank"), "its own nonce"),
        (changed(HideShares, lambda ask: replace(ask, seed=b"")), "and a seed"),
        (changed(TakeShares, lambda ask: replace(ask, envelopes=ask.envelopes[::-1])), "of each silo"),
        (changed(TakeShares, lambda ask: replace(ask, envelopes=(ask.envelopes[0],) * 2)), "of each silo"),
        (changed(TakeShares, lambda ask: replace(ask, dealt=ask.dealt[1:])), "too few|words of 64 bits"),
        (changed(TakeShares, lambda ask: replace(ask, dealt=(*ask.dealt, ask.dealt[0]))), "too many"),
        (changed(TakeShares, lambda ask: replace(ask, dealt=tuple(w.int() for w in ask.dealt))), "words of 64 bits"),
    ],
)  # fmt: skip
def test_a_coordinator_that_deviates_is_refused(meddle: Meddle, error: str) -> None:
    silos, asked = counted()
    with pytest.raises((ProtocolError, MessageError), match=error):
        opened(silos, asked, asks=meddle)


def test_asks_come_in_turn_and_once() -> None:
    silos, asked = counted()
    kept = list[Message]()
    opened(silos, asked, asks=lambda silo, ask: kept.append(ask) or ask)  # type: ignore[func-returns-value]
    for ask in (kept[3], kept[6]):
        with pytest.raises(ProtocolError, match="once"):
            silos["bank"].answer(ask)
    assert isinstance(silos["bank"].answer(kept[0]), FiguresPrepared)
    with pytest.raises(ProtocolError, match="its own nonce"):  # those of the other opening
        silos["bank"].answer(kept[3])


def test_only_silos_that_were_made_to_open_figures() -> None:
    silos, asked = counted()
    silos["bank"]._figures = False
    with pytest.raises(ProtocolError, match="if it was made to"):
        opened(silos, asked)
    fresh = counters(HELD, SIZES, SILOS)["bank"]
    fresh._figures = True
    with pytest.raises(ProtocolError, match="of a counting that has ended"):
        fresh.answer(distances.PrepareFigures(FIGURES))


def test_figures_are_checked() -> None:
    silos, asked = counted()
    zeros = torch.zeros(3, 4).long()
    for wrong, error in (
        ((Figure(9, (1,), zeros),), "of sets that were counted"),
        ((Figure(0, (1, 2), zeros),), "one weight, or one for each place"),
        ((Figure(0, (), zeros),), "one weight, or one for each place"),
        ((Figure(0, (1,), zeros[1:]),), "one weight, or one for each place"),
        ((Figure(0, (1,), zeros.double()),), "one weight, or one for each place"),
        ((figure(1), figure(1, (1, 1, 1))), "equally many weights"),
        ((Figure(0, (2**30,), zeros),), "below 2"),
        ((Figure(0, (1,), zeros + 2**62),), "below 2"),
        ((), "figures open at a time"),
    ):
        for answer in (lambda w=wrong: silos["bank"].answer(distances.PrepareFigures(w)),
                       lambda w=wrong: opened(silos, asked, w)):  # fmt: skip
            with pytest.raises(ConfigError, match=error):
                answer()
    silos, asked = counted(bits=32)
    with pytest.raises(ConfigError, match="have 64 bits"):
        opened(silos, asked)


def test_replies_of_another_shape_are_refused() -> None:
    silos, asked = counted()
    short = changed(FiguresOpened, lambda reply: replace(reply, words=reply.words[:, 1:]))
    with pytest.raises(ProtocolError, match="words of 64 bits"):
        opened(silos, asked, replies=short)


def test_a_dealer_that_deals_other_words_makes_figures_wrong_whatever_the_rows() -> None:
    """The error is the same with other rows: what it dealt wrong, twice."""
    wrong = changed(TakeShares, lambda ask: replace(ask, dealt=(ask.dealt[0] + 3, *ask.dealt[1:])))
    for held in (HELD, {name: codes * 0 for name, codes in HELD.items()}):
        silos, asked = counted(held=held)
        assert opened(silos, asked, FIGURES[:1], wrong)[0] == (truth(FIGURES[0], held) + 6,)


def test_a_dealer_that_makes_counts_wrong_and_sees_figures_chooses_what_they_tell() -> None:
    """As the documents say: here one cell's count, in the upper bits of a figure. So a silo counts once for a job."""
    silos, asked = counters(HELD, SIZES, SILOS), request(SIZES, [PAIR], SILOS, 13, 64)
    more = torch.zeros(3, 4, dtype=torch.int64)
    more[1, 2] = 1 << 40

    def wrong(silo: str, ask: Message) -> Message:
        deals = isinstance(ask, FinishCount) and ask.dealt
        return replace(ask, dealt=(ask.dealt[0] + more,)) if deals else ask  # type: ignore[attr-defined, call-arg]

    for silo in silos.values():
        silo._figures = True
    run(silos, asked, asks=wrong)
    (found,), _ = opened(silos, asked, [Figure(0, (1,), torch.zeros(3, 4).long())])
    assert found >> 41 == crosstab(HELD, SIZES, PAIR)[1, 2] > 0
