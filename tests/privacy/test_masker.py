"""What a silo refuses from the coordinator on the way to a masked update; and what it stores."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.privacy.sums import Train, maskers, names, play, refused, silos, until

from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Message
from silosynth.privacy import masker
from silosynth.privacy.aggregation import ConfirmArrivals, Deal, DealtShares, Masked, Offer, Offered, Relay, Unmask
from silosynth.privacy.masker import Masker
from silosynth.privacy.masks import public_key
from silosynth.runtime.wire import pack, unpack

STRANGER_KEY = public_key(bytes([9]) * 32)


class TestTables:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda d: (d.silos[:2], d.keys[:2], 2), "sums over 3 to 10000 silos"),
            (lambda d: (d.silos[1:], d.keys[1:], 2), "sums where it takes part"),
            (lambda d: (d.silos, (STRANGER_KEY, *d.keys[1:]), 3), "with its key of this round"),
            (lambda d: ((*d.silos, "x"), (*d.keys, STRANGER_KEY), 3), "silos of its roster .*x.*Compare the rosters"),
            (lambda d: (d.silos, d.keys[:3], 3), "4 names, 3 keys"),
            (lambda d: ((*d.silos, "silo1"), (*d.keys, STRANGER_KEY), 3), "have a key each"),
            (lambda d: (d.silos, (*d.keys[:3], d.keys[0]), 3), "have a key each"),
            (lambda d: (d.silos, d.keys, 2), "deals shares of which 3 or more of 4"),
            (lambda d: (d.silos, d.keys, 5), "deals shares of which 3 or more of 4"),
        ],
    )
    def test_tables_that_are_refused(self, change, words: str) -> None:
        parties = silos(4)
        deal = until(Deal, parties)["silo0"]
        assert isinstance(deal, Deal)
        refused(parties["silo0"], Deal(0, *change(deal)), f"Silo 'silo0' .*{words}")
        assert isinstance(parties["silo0"].answer(deal), DealtShares)

    def test_a_silo_that_expects_traitors_wants_more_tags(self) -> None:
        with pytest.raises(ProtocolError, match="deals shares of which 4 or more of 5"):
            play(silos(5, colluding=1))
        play(silos(5, colluding=0), colluding=1)

    def test_two_silos_only_if_told_so(self) -> None:
        with pytest.raises(ProtocolError, match=r"sums over 3 to 10000 silos.*2.*Ask more"):
            play(silos(2), least=2)

    @pytest.mark.parametrize("place", [1, 2])
    def test_a_key_of_the_coordinators_in_place_of_a_silos(self, place: int) -> None:
        """With it the coordinator would know a pair's seed. Silos that received other keys do not open envelopes."""

        def middle(silo: str, ask: Message) -> Message:
            if silo != "silo0" or not isinstance(ask, Deal):
                return ask
            keys = (*ask.keys[:place], STRANGER_KEY, *ask.keys[place + 1 :])
            return dataclasses.replace(ask, keys=keys)

        with pytest.raises(ProtocolError, match="opens with the pinned keys, for the context"):
            play(silos(3), meddle=middle)

    def test_key_of_low_order(self) -> None:
        def weak(silo: str, reply: Message) -> Message:
            return Offered(bytes(32)) if isinstance(reply, Offered) and silo == "silo1" else reply

        parties = silos(3)
        with pytest.raises(ProtocolError, match="with its key of this round"):
            play(parties, answered=weak)
        del parties["silo1"]
        dealt = Deal(1, names(3), (*(b"",) * 3,), 2)
        for silo in parties.values():
            silo.answer(Offer(1))
        refused(parties["silo0"], dealt, "have a key each")


class TestEnvelopes:
    @pytest.mark.parametrize(
        "change",
        [
            lambda sent: sent[:1],
            lambda sent: (*sent, sent[0]),
            lambda sent: (sent[0], sent[0]),
            lambda sent: (sent[0], dataclasses.replace(sent[1], sender="silo0")),
            lambda sent: (sent[0], dataclasses.replace(sent[1], sender="x")),
            lambda sent: (),
        ],
    )
    def test_not_one_from_each(self, change) -> None:
        parties = silos(3)
        relay = until(Relay, parties)["silo0"]
        assert isinstance(relay, Relay)
        refused(parties["silo0"], Relay(0, change(relay.envelopes)), "once from each other silo of the round")

    def test_altered_or_of_another_round(self) -> None:
        parties = silos(3)
        old = until(Relay, parties)["silo0"]
        new = until(Relay, parties)["silo0"]
        assert isinstance(old, Relay) and isinstance(new, Relay)
        refused(parties["silo0"], old, "for the context that it was sealed for")
        text = bytearray(new.envelopes[0].ciphertext)
        text[5] ^= 1
        bad = dataclasses.replace(new.envelopes[0], ciphertext=bytes(text))
        refused(parties["silo0"], Relay(0, (bad, new.envelopes[1])), "for the context that it was sealed for")

    def test_of_another_length(self) -> None:
        parties = silos(3)
        relay = until(Relay, parties)["silo0"]
        other = parties["silo1"].masker
        assert isinstance(relay, Relay) and other._round is not None and other._round.members is not None
        short = other._seat.seal("silo0", masker._sealed_for(other._round.members), b"short")
        refused(parties["silo0"], Relay(0, (short, relay.envelopes[1])), "98 bytes from each other silo")


class TestOrder:
    ASKS = (
        Deal(0, names(3), (b"a", b"b", b"c"), 2),
        Relay(0, ()),
        Train(0),
        ConfirmArrivals(0, names(3)),
        Unmask(0, (), ()),
    )

    @pytest.mark.parametrize("ask", ASKS)
    def test_nothing_before_an_offer(self, ask: Message) -> None:
        refused(silos(3)["silo0"], ask, "Silo 'silo0' takes this step in round 0 where it is .*none under way")

    @pytest.mark.parametrize("stage", [Deal, Relay, Train, ConfirmArrivals, Unmask])
    def test_only_the_next_step(self, stage: type[Message]) -> None:
        for ask in self.ASKS:
            parties = silos(3)
            until(stage, parties)
            if type(ask) is not stage:
                refused(parties["silo0"], ask, "takes this step in round 0 where it is")

    @pytest.mark.parametrize("stage", [Deal, Relay, Train, ConfirmArrivals, Unmask])
    def test_not_with_another_rounds_number(self, stage: type[Message]) -> None:
        parties = silos(3)
        ask = until(stage, parties, 7)["silo0"]
        for number in (6, 8):
            refused(parties["silo0"], dataclasses.replace(ask, number=number), f"takes this step in round {number} ")

    @pytest.mark.parametrize("stage", [Relay, Train, ConfirmArrivals, Unmask])
    def test_not_twice(self, stage: type[Message]) -> None:
        parties = silos(3)
        ask = until(stage, parties)["silo0"]
        parties["silo0"].answer(ask)
        refused(parties["silo0"], ask, "takes this step in round 0 where it is")

    def test_it_masks_once_for_a_number(self) -> None:
        parties = silos(3)
        until(ConfirmArrivals, parties, 4)
        for number in (4, 3, -1):
            refused(parties["silo0"], Offer(number), "masks once per round; rounds' numbers rise")
        assert isinstance(parties["silo0"].answer(Offer(5)), Offered)

    def test_a_set_up_may_be_repeated_with_other_keys(self) -> None:
        silo = silos(3)["silo0"]
        assert silo.answer(Offer(0)) != silo.answer(Offer(0))

    def test_what_is_not_of_a_sum_is_left_to_the_party(self) -> None:
        assert maskers(3)["silo0"].answer(Train(0)) is None


class TestErrorsOnTheWay:
    def test_an_update_that_does_not_fit_does_not_end_the_round(self) -> None:
        parties = silos(3)
        ask = until(Train, parties)["silo0"]
        right, parties["silo0"].update = parties["silo0"].update, torch.full((5,), float("nan"))
        with pytest.raises(ProtocolError, match="Silo 'silo0' masks finite numbers"):
            parties["silo0"].answer(ask)
        parties["silo0"].update = right
        assert isinstance(parties["silo0"].answer(ask), Masked)


class TestState:
    def test_a_silo_goes_on_with_the_next_round(self) -> None:
        parties = silos(4)
        play(parties, 3)
        states = {name: unpack(pack(silo.masker.state())) for name, silo in parties.items()}
        again = silos(4)
        for name, silo in again.items():
            silo.masker.restore(states[name])
            refused(silo, Offer(3), "rounds' numbers rise .*3 after 3")
        assert play(again, 4).total.silos == names(4)

    @pytest.mark.parametrize("stage", [Deal, Relay, Train, ConfirmArrivals, Unmask])
    def test_a_round_under_way_is_not_kept(self, stage: type[Message]) -> None:
        """So no checkpoint lets a coordinator go back, and open a second list with the same masks."""
        silo = (parties := silos(3))["silo0"]
        ask = until(stage, parties)["silo0"]
        state = silo.masker.state()
        assert set(state) == {"last"}
        silo.masker.restore(state)
        refused(silo, ask, "none under way")

    def test_secrets_are_not_shown(self) -> None:
        parties = silos(3)
        until(ConfirmArrivals, parties)
        one: Masker = parties["silo0"].masker
        assert one._round is not None
        shown = repr(one._round)
        for name in ("seed", "private", "tagging", "shares", "pairs", "tag_keys"):
            assert f" {name}=" not in shown
