from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from tests.privacy.talk import NAMES, Meddle, groups, run, secret

from silosynth.core.conversation import Roster
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Done, Message
from silosynth.core.streams import Streams
from silosynth.privacy.agreement import (
    Confirmations,
    Group,
    OfferShares,
    RelayedShares,
    Shares,
    agree,
)
from silosynth.privacy.sealed import Envelope, seats


def swapping(target: str, change: Callable[[tuple[Envelope, ...]], tuple[Envelope, ...]]) -> Meddle:
    def meddle(silo: str, ask: Message) -> Message:
        return RelayedShares(change(ask.envelopes)) if silo == target and isinstance(ask, RelayedShares) else ask

    return meddle


class TestCoordinatorsWhoCheat:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda sent: sent[:1], "missing: shop"),
            (lambda sent: (), "missing: clinic, shop"),
            (lambda sent: (*sent, sent[0]), "more than one: clinic"),
            (lambda sent: (sent[0], sent[0]), "missing: shop; more than one: clinic"),
            (lambda sent: (*sent, dataclasses.replace(sent[0], sender="x")), "not of this group: x"),
            (lambda sent: (*sent, dataclasses.replace(sent[0], sender="bank")), "not of this group: bank"),
        ],
        ids=["missing", "none", "doubled", "replaced", "stranger", "own"],
    )
    def test_envelopes_that_are_not_one_from_each(self, change, words: str) -> None:
        with pytest.raises(ProtocolError, match=f"one share from each other silo.*{words}"):
            run(agree(Roster(NAMES[:3]), "shuffle"), groups(), swapping("bank", change))

    def test_an_envelope_for_another_silo(self) -> None:
        silos, kept = groups(), {}

        def cross(silo: str, ask: Message) -> Message:
            if isinstance(ask, RelayedShares):
                kept[silo] = ask
                return kept["bank"] if silo == "clinic" else ask
            return ask

        with pytest.raises(ProtocolError, match="missing: bank"):
            run(agree(Roster(NAMES[:3]), "shuffle"), silos, cross)

    def test_a_share_sent_back_to_its_owner(self) -> None:
        """With two silos: each gets its own envelope back, with sender and receiver swapped."""

        def back(silo: str, ask: Message) -> Message:
            if not isinstance(ask, RelayedShares):
                return ask
            (other,) = ask.envelopes
            return RelayedShares((dataclasses.replace(other, sender=other.receiver, receiver=other.sender),))

        with pytest.raises(ProtocolError, match="not of this group: bank"):
            run(agree(Roster(NAMES[:2]), "shuffle"), groups(2), back)

    @pytest.mark.parametrize("targets", [("bank",), ("bank", "shop")])
    def test_an_old_share_in_a_new_agreement_is_refused_by_name(self, targets: tuple[str, ...]) -> None:
        """A share of an earlier run opens; the confirmation shows that its owner did not send it this time."""
        old: dict[str, RelayedShares] = {}

        def note(silo: str, ask: Message) -> Message:
            if isinstance(ask, RelayedShares):
                old[silo] = ask
            return ask

        run(agree(Roster(NAMES[:3]), "shuffle"), groups(), note)

        def replay(silo: str, ask: Message) -> Message:
            if not isinstance(ask, RelayedShares) or silo not in targets:
                return ask
            return RelayedShares(
                tuple(
                    past if past.sender == "clinic" else now
                    for past, now in zip(old[silo].envelopes, ask.envelopes, strict=True)
                )
            )

        silos = groups()
        with pytest.raises(ProtocolError, match=r"All silos confirm.*clinic.* do not\).*Old or altered"):
            run(agree(Roster(NAMES[:3]), "shuffle"), silos, replay)
        assert not any(group.ready for group in silos.values())

    def test_nobody_is_content_when_everything_is_replayed(self) -> None:
        """Every silo receives a full replay of an old run, tags included, and refuses: its own share is different."""
        old: dict[tuple[str, type], Message] = {}

        def note(silo: str, ask: Message) -> Message:
            return old.setdefault((silo, type(ask)), ask)

        run(agree(Roster(NAMES[:3]), "shuffle"), groups(), note)
        for name, silo in groups().items():
            for kind in (OfferShares, RelayedShares):
                silo.answer(old[name, kind])
            with pytest.raises(ProtocolError, match="All silos confirm"):
                silo.answer(old[name, Confirmations])
            assert not silo.ready

    @pytest.mark.parametrize("told", [OfferShares("shuffle 2", True), OfferShares("shuffle", False)])
    def test_silos_that_are_told_different_purposes(self, told: OfferShares) -> None:
        def mislead(silo: str, ask: Message) -> Message:
            return told if isinstance(ask, OfferShares) and silo == "shop" else ask

        with pytest.raises(ProtocolError, match="for the context"):
            run(agree(Roster(NAMES[:3]), "shuffle"), groups(), mislead)

    def test_keys_of_its_own_in_place_of_a_silos(self) -> None:
        """A man in the middle impersonates the other silos to each: only the keys that each silo pinned count."""
        silos, false = groups(), groups(seed=99)
        offered = {silo: group.answer(OfferShares("shuffle", True)) for silo, group in false.items()}

        def middle(silo: str, ask: Message) -> Message:
            if not isinstance(ask, RelayedShares):
                return ask
            sent = [one for shares in offered.values() if isinstance(shares, Shares) for one in shares.envelopes]
            return RelayedShares(tuple(one for one in sent if one.receiver == silo))

        with pytest.raises(ProtocolError, match=r"pinned keys.*one from 'clinic'"):
            run(agree(Roster(NAMES[:3]), "shuffle"), silos, middle)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda tags: (tags[0], bytes(32), tags[2]), "silos clinic do not"),
            (lambda tags: (tags[0], tags[2], tags[1]), "silos clinic, shop do not"),
            (lambda tags: (tags[0], tags[0], tags[0]), "silos clinic, shop do not"),
            (lambda tags: tags[:2], "silos shop do not"),
            (lambda tags: (), "silos bank, clinic, shop do not"),
            (lambda tags: (*tags, tags[0]), "4 tags for 3 silos"),
            (lambda tags: (tags[0], tags[1], tags[2] + b"\0"), "silos shop do not"),
        ],
    )
    def test_tags_that_are_not_those_of_this_secret(self, change, words: str) -> None:
        def meddle(silo: str, ask: Message) -> Message:
            return Confirmations(change(ask.tags)) if isinstance(ask, Confirmations) else ask

        silos = groups()
        with pytest.raises(ProtocolError, match=words):
            run(agree(Roster(NAMES[:3]), "shuffle"), silos, meddle)
        assert not silos["bank"].ready and secret(silos["bank"]) is None

    def test_a_roster_of_another_order(self) -> None:
        with pytest.raises(ProtocolError, match="All silos confirm"):
            run(agree(Roster(("shop", "clinic", "bank")), "shuffle"), groups())


class TestSilosWhoCheat:
    def test_a_share_of_another_length(self) -> None:
        made = seats(NAMES[:2], Streams(7).child("seats"))
        silo = Group(made["bank"])
        silo.answer(OfferShares("shuffle", True))
        with pytest.raises(ProtocolError, match="that of silo 'clinic' is not"):
            silo.answer(RelayedShares((made["clinic"].seal("bank", "share fresh shuffle", b"short"),)))

    def test_answers_of_another_kind_and_other_silos_names(self) -> None:
        roster, silos = Roster(NAMES[:2]), groups(2)
        talk = agree(roster, "shuffle")
        asks = next(talk).asks
        shares = {silo: group.answer(asks[silo]) for silo, group in silos.items()}
        with pytest.raises(ProtocolError, match="'clinic' sends envelopes in its own name"):
            talk.send({"bank": shares["bank"], "clinic": shares["bank"]})
        talk = agree(roster, "shuffle")
        next(talk)
        with pytest.raises(ProtocolError, match="'bank' replies with Shares"):
            talk.send({"bank": Done(), "clinic": Done()})
        talk = agree(roster, "shuffle")
        next(talk)
        talk.send(shares)
        with pytest.raises(ProtocolError, match="'bank' replies with Confirmation"):
            talk.send({"bank": Done(), "clinic": Done()})
