"""A party that deals in place of the coordinator: the same tables, and the coordinator knows no random matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.counting.talk import Talk, counters, crosstab, request, run
from tests.counting.test_distances import figure, opened, truth

from silosynth.core.errors import ConfigError, MessageError, ProtocolError
from silosynth.core.messages import Message
from silosynth.counting import plan, protocol
from silosynth.counting.distances import DealShares, FiguresDealt, HideShares, TakeShares
from silosynth.privacy.sealed import Envelope

SIZES = {"bank 0": 3, "clinic 0": 4, "shop 0": 2}
SETS = [["bank 0", "clinic 0"], ["shop 0", "bank 0"], ["bank 0"], list(SIZES)]
NAMES = ("bank", "clinic", "shop", "notary")
HELD = {name: np.random.default_rng(i).integers(0, size, 10) for i, (name, size) in enumerate(SIZES.items())}
Meddle = Callable[[str, Message], Message]


def counted(sets: Any = SETS, bits: int = 16, **more: Any) -> tuple[Talk, plan.CountRequest]:
    asked = replace(request(SIZES, sets, NAMES, 13, bits), dealer="notary")  # type: ignore[arg-type]
    return run(counters(HELD, SIZES, NAMES), asked, **more), asked


def changed(kind: type[Message], change: Callable[[Any], Message], who: str = "clinic") -> Meddle:
    return lambda silo, message: change(message) if isinstance(message, kind) and silo == who else message


@pytest.mark.parametrize("bits", [16, 64])
@pytest.mark.parametrize("sets", [SETS, SETS[:1], SETS[2:3]])
def test_tables_are_those_of_counting_rows(sets: list[list[str]], bits: int) -> None:
    talk, _ = counted(sets, bits)
    for table, names in zip(talk.tables(), sets, strict=True):
        assert np.array_equal(table, crosstab(HELD, SIZES, names))
    assert not any(share.any() for share in talk.silos["notary"].shares)


def test_all_that_is_dealt_is_sealed_and_the_coordinator_deals_nothing() -> None:
    talk, _ = counted()
    kinds = {type(ask).__name__ for silo, ask in talk.asked if silo != "notary"}
    assert "TakeSeed" in kinds and "DealSeed" not in kinds
    for _, ask in talk.asked:
        assert not getattr(ask, "dealt", ())
    replies = {type(reply).__name__ for silo, reply in talk.answered if silo == "notary"}
    assert {"SeedsDealt", "BlockDealt", "RestDealt"} <= replies and "HiddenBlock" not in replies


def test_the_dealer_is_told_nothing_that_silos_hid() -> None:
    talk, _ = counted()
    heard = [ask for silo, ask in talk.asked if silo == "notary"]
    kinds = [type(ask).__name__ for ask in heard if type(ask).__module__ == "silosynth.counting.protocol"]
    assert kinds == ["PrepareCount", "PrepareDealing", *["DealBlock"] * 4, "FinishDealing", "FinishCount"]
    hidden = [one for _, reply in talk.answered if isinstance(reply, protocol.HiddenBlock) for one in reply.envelopes]
    assert "notary" not in {envelope.receiver for envelope in hidden}


def seed(ask: Any) -> Message:
    return protocol.DealSeed(bytes(32))


def from_bank(ask: Any) -> Envelope:
    return replace(ask.envelope, sender="bank")  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("asks", "error"),
    [
        (changed(protocol.TakeSeed, seed), "by the party that the request names"),
        (changed(protocol.TakeSeed, lambda ask: replace(ask, envelope=from_bank(ask))), "party that the request names"),
        (changed(protocol.TakeSeed, lambda ask: replace(ask, nonces=(bytes(32),))), "sealed for"),
        (changed(protocol.PrepareDealing, lambda ask: replace(ask, nonces=ask.nonces[1:]), "notary"), "once and in"),
        (changed(protocol.DealBlock, lambda ask: replace(ask, number=ask.number + 1), "notary"), "once and in order"),
        (changed(protocol.TakeBlock, lambda ask: replace(ask, envelopes=ask.envelopes[:-1])), "the request names"),
        (changed(protocol.TakeBlock, lambda ask: replace(ask, envelopes=())), "is dealt shares of each block"),
        (changed(protocol.TakeBlock, lambda ask: replace(ask, dealt=(torch.zeros(1),))), "by the coordinator|names"),
        (changed(protocol.FinishCount, lambda ask: replace(ask, envelope=None)), "too few"),
        (changed(protocol.FinishCount, lambda ask: replace(ask, envelope=from_bank(ask))), "request names"),
        (changed(protocol.FinishCount, lambda ask: replace(ask, dealt=(torch.zeros(1),))), "request names"),
    ],
)  # fmt: skip
def test_a_coordinator_that_deals_itself_or_mixes_envelopes_up_is_refused(asks: Meddle, error: str) -> None:
    with pytest.raises((ProtocolError, MessageError), match=error):
        counted(asks=asks)


def test_only_the_party_that_the_request_names_deals_and_once() -> None:
    talk, _ = counted()
    for silo in ("bank", "notary"):  # the counting has ended
        with pytest.raises(ProtocolError, match="prepares a counting first"):
            talk.silos[silo].answer(protocol.PrepareDealing((bytes(32),) * 3))

    def twice(silo: str, ask: Message) -> Message:
        if isinstance(ask, protocol.DealBlock) and ask.number == 1:
            talk.silos["notary"].answer(protocol.DealBlock(0))
        return ask

    silos = talk.silos
    asked = replace(request(SIZES, SETS, NAMES, 13), dealer="notary")
    with pytest.raises(ProtocolError, match="once and in order"):
        run(silos, asked, asks=twice)

    def others(silo: str, ask: Message) -> Message:
        if isinstance(ask, protocol.TakeSeed):
            silos[silo].answer(protocol.PrepareDealing(ask.nonces))
        return ask

    with pytest.raises(ProtocolError, match="whose requests name it"):
        run(silos, asked, asks=others)


def test_a_dealer_takes_part_and_holds_nothing_that_is_counted() -> None:
    for dealer in ("bank", "nobody"):
        with pytest.raises(ConfigError, match="holds no column that is counted"):
            replace(request(SIZES, SETS, NAMES, 13), dealer=dealer)


def test_a_dealer_that_forgets_a_silo_is_found_out() -> None:
    for kind in (protocol.SeedsDealt, protocol.RestDealt):
        forgets = changed(kind, lambda reply: replace(reply, envelopes=reply.envelopes[1:]), "notary")
        with pytest.raises(ProtocolError, match="one envelope for each silo"):
            counted(replies=forgets)


class TestFigures:
    FIGURES = figure(0), figure(3, (2, -5)), figure(1), figure(2)

    def made(self) -> tuple[dict[str, Any], plan.CountRequest]:
        talk, asked = counted(bits=64)
        for silo in talk.silos.values():
            silo._figures = True
        return talk.silos, asked

    def test_they_are_exact(self) -> None:
        silos, asked = self.made()
        found, told = opened(silos, asked, self.FIGURES)
        assert found == tuple(map(truth, self.FIGURES))
        assert [type(reply) for silo, reply in told if silo == "notary"] == [FiguresDealt]

    @pytest.mark.parametrize(
        ("asks", "error"),
        [
            (changed(HideShares, lambda ask: replace(ask, seed=bytes(32), envelope=None)), "the request names"),
            (changed(HideShares, lambda ask: replace(ask, envelope=from_bank(ask))), "the request names"),
            (changed(TakeShares, lambda ask: replace(ask, dealt=(torch.zeros(1, 1).long(),))), "by the coordinator"),
            (changed(DealShares, lambda ask: replace(ask, nonces=ask.nonces[1:]), "notary"), "of each silo"),
            (changed(DealShares, lambda ask: replace(ask, figures=ask.figures[:1]), "notary"), "of each silo"),
            (changed(DealShares, lambda ask: replace(ask, figures=ask.figures[::-1]), "notary"), "sealed for"),
        ],
    )  # fmt: skip
    def test_a_coordinator_that_deals_itself_is_refused(self, asks: Meddle, error: str) -> None:
        silos, asked = self.made()
        with pytest.raises(ProtocolError, match=error):
            opened(silos, asked, self.FIGURES, asks)

    def test_others_do_not_deal(self) -> None:
        silos, _ = self.made()
        with pytest.raises(ProtocolError, match="prepares figures"):
            silos["bank"].answer(DealShares(self.FIGURES, (bytes(32),) * 3))
