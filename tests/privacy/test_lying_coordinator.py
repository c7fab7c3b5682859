"""A coordinator that sends silos different lists of arrivals, or forged tags."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest
from hypothesis import given, settings, strategies as st
from tests.privacy.sums import Train, names, refused, silos, until

from silosynth.core.conversation import Exchange
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Message
from silosynth.privacy import masker
from silosynth.privacy.aggregation import ArrivalsConfirmed, ConfirmArrivals, Revealed, Unmask, secure_sum


def tags_for(reader: str, arrived: tuple[str, ...], confirmed: Mapping[str, Message]) -> Unmask:
    """All these silos' tags for one reader, as if all had received the reader's list."""
    tags = {silo: reply.tags for silo, reply in confirmed.items() if isinstance(reply, ArrivalsConfirmed)}
    return Unmask(0, tuple(tags), tuple((of[arrived.index(reader)] if of else b"") for of in tags.values()))


class TestLists:
    def test_one_is_told_that_all_arrived_and_the_others_that_it_did_not(self) -> None:
        """The others reveal the seeds of its pairs. Its own seed would unmask its update: nobody reveals that."""
        parties = silos(5)
        until(ConfirmArrivals, parties)
        everyone, others = names(5), names(5)[1:]
        mine = parties["silo0"].answer(ConfirmArrivals(0, everyone))
        theirs = {silo: parties[silo].answer(ConfirmArrivals(0, others)) for silo in others}
        assert isinstance(mine, ArrivalsConfirmed)
        said = tuple(reply.tags for reply in theirs.values() if isinstance(reply, ArrivalsConfirmed))
        asked = Unmask(0, everyone, (b"", *(tags[0] for tags in said)))
        refused(parties["silo0"], asked, "Silo 'silo0' reveals once silos confirmed the same.*silo1, .*silo4 did not")
        short = Unmask(0, ("silo0",), (b"",))
        refused(parties["silo0"], short, "once 3 silos confirmed the same list")
        for place, silo in enumerate(others):
            reply = parties[silo].answer(Unmask(0, others, tuple(tags[place] for tags in said)))
            assert isinstance(reply, Revealed)  # of silo0 a share of its key, and nothing of its seed

    @settings(max_examples=40)
    @given(st.integers(4, 7), st.integers(0, 2), st.data())
    def test_two_lists_never_open(self, count: int, colluding: int, data: st.DataObject) -> None:
        """Honest silos receive one of two lists; colluding ones make tags for both. All who reveal have one list."""
        if colluding + 2 > count:
            return
        least = max(3, colluding + 2)
        parties = silos(count, least=least, colluding=colluding)
        talk = secure_sum({name: Train(0) for name in parties}, 0, 5, least, colluding)
        step = next(talk)
        while isinstance(step, Exchange) and not isinstance(next(iter(step.asks.values())), ConfirmArrivals):
            step = talk.send({silo: parties[silo].answer(ask) for silo, ask in step.asks.items()})
        everyone = names(count)
        subsets = st.lists(st.sampled_from(everyone), unique=True, min_size=1).map(sorted).map(tuple)
        lists = [data.draw(subsets), everyone]
        traitors, honest = everyone[:colluding], everyone[colluding:]
        told: dict[str, tuple[str, ...]] = {}
        tags: dict[str, tuple[bytes, ...]] = {}
        for silo in honest:
            arrived = data.draw(st.sampled_from(lists))
            try:
                reply = parties[silo].answer(ConfirmArrivals(0, arrived))
            except ProtocolError:
                continue
            assert isinstance(reply, ArrivalsConfirmed)
            told[silo], tags[silo] = arrived, reply.tags
        opened = set()
        for reader, arrived in told.items():
            given_ = {silo: tags[silo][arrived.index(reader)] for silo in told if told[silo] == arrived}
            for silo in traitors:
                now = parties[silo].masker._round
                assert now is not None
                given_[silo] = masker._tag(masker._tag_key(now, reader), arrived)
            try:
                parties[reader].answer(Unmask(0, tuple(given_), tuple(given_.values())))
            except ProtocolError:
                continue
            opened.add(arrived)
        assert len(opened) <= 1

    @pytest.mark.parametrize(
        ("arrived", "words"),
        [
            (("silo1", "silo2", "silo3"), "confirms lists that it is on"),
            (("silo0", "silo1"), "confirms sums over 3 silos or more"),
            (("silo0", "silo1", "silo9"), "confirms silos of the round, once each"),
            (("silo0", "silo1", "silo1"), "confirms silos of the round, once each"),
            (("silo1", "silo0", "silo2"), "confirms silos of the round, once each and in its order"),
            ((), "confirms lists that it is on"),
        ],
    )
    def test_lists_that_are_refused(self, arrived: tuple[str, ...], words: str) -> None:
        parties = silos(4)
        until(ConfirmArrivals, parties)
        refused(parties["silo0"], ConfirmArrivals(0, arrived), f"Silo 'silo0' {words}")
        assert isinstance(
            parties["silo0"].answer(ConfirmArrivals(0, names(4))), ArrivalsConfirmed
        )  # and continues with a right one

    def test_a_minority(self) -> None:
        parties = silos(7)
        until(ConfirmArrivals, parties)
        refused(parties["silo0"], ConfirmArrivals(0, names(3)), "sums over 4 silos or more")

    def test_it_confirms_one(self) -> None:
        parties = silos(4)
        until(Unmask, parties)
        for arrived in (names(4), names(3)):
            refused(
                parties["silo0"], ConfirmArrivals(0, arrived), "takes this step in round 0 where it is 'masked', once"
            )

    def test_it_reveals_once(self) -> None:
        parties = silos(4)
        asks = until(Unmask, parties)
        assert isinstance(parties["silo0"].answer(asks["silo0"]), Revealed)
        refused(parties["silo0"], asks["silo0"], "none under way")

    def test_shares_are_of_seed_or_key_by_who_arrived(self) -> None:
        parties = silos(4)
        until(ConfirmArrivals, parties)
        now = parties["silo0"].masker._round
        assert now is not None
        shares = now.shares
        arrived = names(3)
        said = {silo: parties[silo].answer(ConfirmArrivals(0, arrived)) for silo in arrived}
        reply = parties["silo0"].answer(tags_for("silo0", arrived, said))
        assert isinstance(reply, Revealed)
        assert reply.shares == (*(shares[silo][0] for silo in arrived), shares["silo3"][1])


class TestTags:
    @pytest.mark.parametrize("place", [1, 2, 3])
    @pytest.mark.parametrize("byte", [0, 31])
    def test_a_changed_byte(self, place: int, byte: int) -> None:
        parties = silos(4)
        ask = until(Unmask, parties)["silo0"]
        assert isinstance(ask, Unmask)
        tags = [bytearray(tag) for tag in ask.tags]
        tags[place][byte] ^= 1
        changed = dataclasses.replace(ask, tags=tuple(bytes(tag) for tag in tags))
        refused(parties["silo0"], changed, f"same list of arrivals .*silo{place} did not.*do not trust")
        assert isinstance(parties["silo0"].answer(ask), Revealed)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda ask: Unmask(0, ask.confirmed, ask.tags[:3]), "one tag of each silo that confirmed"),
            (lambda ask: Unmask(0, ask.confirmed[:2], ask.tags[:2]), "once 3 silos confirmed"),
            (lambda ask: Unmask(0, ("silo0", "silo1", "silo1"), ask.tags[:3]), "one tag of each"),
            (lambda ask: Unmask(0, ("silo0", "silo2", "silo1"), ask.tags[:3]), "silo2, silo1 did not"),
            (lambda ask: Unmask(0, ("silo0", "silo1", "silo9"), ask.tags[:3]), "silo9 did not"),
            (lambda ask: Unmask(0, (), ()), "once 3 silos confirmed"),
        ],
    )
    def test_other_sets_of_tags(self, change, words: str) -> None:
        parties = silos(4)
        refused(parties["silo0"], change(until(Unmask, parties)["silo0"]), words)

    def test_tags_for_another_silo(self) -> None:
        parties = silos(4)
        asks = until(Unmask, parties)
        refused(parties["silo0"], asks["silo1"], "silo2, silo3 did not")

    def test_tags_of_another_round(self) -> None:
        """Same list, same round number, silos restarted from a checkpoint: the keys of tags belong to one round."""
        parties = silos(4)
        old = until(Unmask, parties)
        for silo in parties.values():
            silo.masker.restore({"last": -1})
        until(Unmask, parties)
        refused(parties["silo0"], old["silo0"], "silo1, silo2, silo3 did not")
