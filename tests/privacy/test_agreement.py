from __future__ import annotations

import itertools

import pytest
from tests.oracles import sealed as slow
from tests.privacy.talk import NAMES, agreed, groups, run, secret

from silosynth.core.conversation import Roster
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Done, Message, Release
from silosynth.core.streams import Streams
from silosynth.privacy.agreement import (
    Confirmation,
    Confirmations,
    Group,
    OfferShares,
    RelayedShares,
    Shares,
    agree,
)
from silosynth.privacy.sealed import framed, seats
from silosynth.runtime.wire import pack, unpack


class TestAgreement:
    @pytest.mark.parametrize("count", range(1, 6))
    @pytest.mark.parametrize("fresh", [True, False])
    def test_all_silos_hold_the_same_secret(self, count: int, fresh: bool) -> None:
        silos = agreed(count, fresh=fresh)
        assert all(group.ready for group in silos.values())
        assert len({group.key("k") for group in silos.values()}) == 1
        assert len({tuple(group.permutation(50, "p").tolist()) for group in silos.values()}) == 1
        for one, other in itertools.permutations(silos.values(), 2):
            assert other.open("c", one.seal("c", b"text")) == b"text"

    def test_the_secret_is_the_hash_that_the_docstring_describes(self) -> None:
        silos, shares = groups(3), {}

        def watch(silo: str, ask: Message) -> Message:
            shares.update({name: group.state()["share"] for name, group in silos.items()})
            return ask

        talk = agree(Roster(NAMES[:3]), "shuffle")
        asks = next(talk).asks
        offered = {silo: group.answer(asks[silo]) for silo, group in silos.items()}
        watch("", Done())
        for silo, ask in talk.send(offered).asks.items():
            silos[silo].answer(ask)
        keys = seats(NAMES[:3], Streams(7).child("seats"))["bank"].roster.keys
        about = framed("silosynth group 1", "secret", "shuffle", "fresh", *NAMES[:3], *keys)
        expected = slow.hkdf(b"".join(shares[name] for name in NAMES[:3]), about)
        assert {secret(group) for group in silos.values()} == {expected}

    def test_a_coordinator_sees_neither_secret_nor_shares(self) -> None:
        silos, kept = groups(4), []

        def watch(silo: str, ask: Message) -> Message:
            kept.extend(group.state()["share"] for group in silos.values())
            return ask

        seen = run(agree(Roster(NAMES[:4]), "shuffle"), silos, watch)
        hidden = {share for share in kept if share} | {silos["bank"].key("k"), secret(silos["bank"])}
        hidden |= {seat.private for seat in seats(NAMES[:4], Streams(7).child("seats")).values()}
        assert len(hidden) == 4 + 2 + 4
        everything = b"".join(blob for _, blob in seen)
        assert not [value for value in hidden if value in everything]

    def test_messages_say_what_they_give_away(self) -> None:
        assert Shares.release is RelayedShares.release is Release.SEALED
        assert {kind.release for kind in (OfferShares, Confirmation, Confirmations)} == {Release.NOTHING}

    def test_messages_have_the_same_length_each_time(self) -> None:
        """The ledger of a repeated run is the same to the byte."""
        first, second = (run(agree(Roster(NAMES[:3]), "shuffle"), groups(3)) for _ in range(2))
        assert [len(blob) for _, blob in first] == [len(blob) for _, blob in second]

    def test_fresh_secrets_differ_each_time(self) -> None:
        silos = agreed()
        before = silos["bank"].key("k")
        run(agree(Roster(NAMES[:3]), "shuffle"), silos)
        assert len({before, silos["bank"].key("k"), agreed()["bank"].key("k")}) == 3

    def test_lasting_secrets_come_back_for_the_same_purpose_keys_and_group_only(self) -> None:
        same = agreed(fresh=False)["bank"].key("k")
        assert agreed(fresh=False)["shop"].key("k") == same
        others = [
            agreed(fresh=False, purpose="shuffle 2"),
            agreed(fresh=False, seed=8),
            agreed(fresh=False, count=2),
            agreed(fresh=True),
        ]
        assert same not in {one["bank"].key("k") for one in others}

    def test_a_silo_that_joins_later_does_not_learn_the_shares_of_before(self) -> None:
        two, three = groups(2), groups(3)
        for silos in (two, three):
            for silo in silos.values():
                silo.answer(OfferShares("shuffle", False))
        assert two["bank"].state()["share"] != three["bank"].state()["share"]

    def test_other_messages_are_not_its_business(self) -> None:
        assert groups()["bank"].answer(Done()) is None


class TestOrder:
    @pytest.mark.parametrize("ask", [RelayedShares(()), Confirmations((b"",))])
    def test_messages_that_come_too_early(self, ask: Message) -> None:
        with pytest.raises(ProtocolError, match=type(ask).__name__):
            groups()["bank"].answer(ask)

    @pytest.mark.parametrize("upto", [0, 1, 2])
    def test_the_secret_is_not_used_before_all_have_confirmed_it(self, upto: int) -> None:
        (silo,) = groups(1).values()
        talk, answer = agree(Roster(("bank",)), "shuffle"), None
        for _ in range(upto):
            answer = {"bank": silo.answer(talk.send(answer).asks["bank"])}  # type: ignore[arg-type, dict-item]
        assert not silo.ready
        uses = [lambda: silo.key("k"), lambda: silo.permutation(3, "p"), lambda: silo.seal("c", b""),
                lambda: silo.open("c", bytes(40))]  # fmt: skip
        for use in uses:
            with pytest.raises(ProtocolError, match="Agree on one first"):
                use()

    def test_a_new_agreement_puts_the_old_secret_out_of_use(self) -> None:
        silo = agreed()["bank"]
        silo.answer(OfferShares("shuffle", True))
        assert not silo.ready
        with pytest.raises(ProtocolError, match="once all silos have confirmed"):
            silo.key("k")

    def test_shares_are_not_relayed_again_once_agreed(self) -> None:
        silos, relayed = groups(), {}

        def note(silo: str, ask: Message) -> Message:
            return relayed.setdefault(silo, ask) if isinstance(ask, RelayedShares) else ask

        run(agree(Roster(NAMES[:3]), "shuffle"), silos, note)
        with pytest.raises(ProtocolError, match="after they were offered"):
            silos["bank"].answer(relayed["bank"])
        assert silos["bank"].ready

    def test_state_goes_on_from_every_step(self) -> None:
        """Each silo is written to a file and read again before each message."""
        silos, made = groups(), seats(NAMES[:3], Streams(7).child("seats"))

        def reborn(silo: str, ask: Message) -> Message:
            state = unpack(pack(silos[silo].state()))
            silos[silo] = Group(made[silo])
            silos[silo].restore(state)
            return ask

        run(agree(Roster(NAMES[:3]), "shuffle"), silos, reborn)
        reborn("bank", Done())
        assert len({group.key("k") for group in silos.values()}) == 1

    def test_the_share_is_forgotten_when_all_agree(self) -> None:
        assert all(group.state()["share"] is None for group in agreed().values())
