from __future__ import annotations

import itertools
import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.stats import chi2
from tests.oracles import aggregation as slow
from tests.privacy.sums import TOLD, Talk, Train, play, silos, sums

from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import Done, Message, Release
from silosynth.privacy import masker
from silosynth.privacy.aggregation import (
    ArrivalsConfirmed,
    ConfirmArrivals,
    Deal,
    DealtShares,
    Masked,
    Offer,
    Offered,
    Relay,
    Revealed,
    RoundMembers,
    Unmask,
    secure_sum,
    threshold,
)

STAGES = (Offer, Deal, Relay, Train, ConfirmArrivals, Unmask)


def check(talk: Talk, parties: dict, among: tuple[str, ...]) -> None:
    expected, weight = slow.total(*sums(parties, among))
    assert talk.total.silos == among
    assert talk.total.sum_W.tolist() == expected and talk.total.weight == weight
    exact = sum(parties[silo].update.double() * parties[silo].weight for silo in among)
    assert (talk.total.sum_W - exact).abs().max() <= len(among) * 2.0**-30
    assert torch.allclose(talk.total.mean(), exact / weight, atol=1e-8)


class TestSums:
    @pytest.mark.parametrize(("count", "least"), [(2, 2), (3, 3), (4, 3), (7, 3)])
    def test_nobody_lost(self, count: int, least: int) -> None:
        parties = silos(count, least=least)
        check(play(parties, least=least), parties, tuple(parties))

    @settings(max_examples=60)
    @given(st.integers(4, 8), st.integers(0, 1), st.data())
    def test_whoever_is_lost_wherever(self, count: int, colluding: int, data: st.DataObject) -> None:
        """Silos are lost from some stage on, or never. The sum covers those whose updates arrived, or there is none."""
        parties = silos(count, colluding=colluding)
        until = {silo: data.draw(st.sampled_from([*range(len(STAGES)), *[len(STAGES)] * 8])) for silo in parties}

        def lost(silo: str, ask: Message) -> bool:
            return STAGES.index(type(ask)) >= until[silo]

        stays = [[silo for silo in parties if until[silo] > stage] for stage in range(len(STAGES))]
        needed = threshold(len(stays[1]), colluding)  # those that dealt shares
        enough = (3, 3, 3, max(3, needed), needed, needed)
        if all(len(left) >= least for left, least in zip(stays, enough, strict=True)):
            check(play(parties, lost=lost, colluding=colluding), parties, tuple(stays[3]))
        else:
            with pytest.raises(ProtocolError, match=r"At least \d silos .*go on with the next"):
                play(parties, lost=lost, colluding=colluding)

    def test_rounds_follow_each_other(self) -> None:
        """Also after a lost round, with silos that were missing before."""
        parties = silos(5)
        for number in range(4):
            gone = [("silo1",), ("silo1", "silo2", "silo4"), (), ("silo0", "silo3")][number]

            def lost(silo: str, ask: Message, gone: tuple[str, ...] = gone) -> bool:
                return isinstance(ask, Train) and silo in gone

            if len(gone) == 3:
                with pytest.raises(ProtocolError, match=r"At least 3 silos deliver an update .*2: silo0, silo3"):
                    play(parties, number, lost)
            else:
                here = tuple(silo for silo in parties if silo not in gone)
                check(play(parties, number, lost), parties, here)

    def test_the_result_does_not_depend_on_chance(self) -> None:
        first, second = (play(silos(4), number) for number in (0, 5))
        assert torch.equal(first.total.sum_W, second.total.sum_W)

    def test_too_many_silos(self) -> None:
        with pytest.raises(ProtocolError, match="at most 10000 silos"):
            next(secure_sum({f"s{i}": Train(0) for i in range(10_001)}, 0, 3))

    @pytest.mark.parametrize(("least", "colluding"), [(1, 0), (2, 1), (0, -2), (3, -1)])
    def test_policies(self, least: int, colluding: int) -> None:
        with pytest.raises(ConfigError, match="colluding silos a sum is over at least"):
            next(secure_sum({"a": Train(0)}, 0, 3, least, colluding))
        with pytest.raises(ConfigError, match="colluding silos a sum is over at least"):
            silos(3, least=least, colluding=colluding)


class TestTheForm:
    def test_it_is_what_the_oracle_computes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._fix(monkeypatch)
        talk = play(silos(4, width=11))
        table = self._members(talk)
        for place, silo in enumerate(table.silos):
            private, seed = (bytes([3 * place + i]) * 32 for i in (0, 1))
            numbers = silos(4, width=11)[silo].update.double().tolist()
            expected = slow.masked(
                silo, numbers, 1.0 + place, seed, private, (0, table.threshold, table.silos, table.keys), TOLD
            )
            assert self._masked(talk)[silo].tolist() == expected

    def test_it_does_not_drift(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Silos of different versions sum together: changing this takes other labels."""
        self._fix(monkeypatch)
        parties = silos(3, width=2)
        for silo in parties.values():
            silo.update = torch.tensor([1.0, -0.25])
        talk = play(parties)
        assert self._members(talk).digest().hex() == ABOUT
        assert {silo: words.tolist() for silo, words in self._masked(talk).items()} == WORDS
        (tags,) = (
            reply.tags for silo, reply in talk.replies if isinstance(reply, ArrivalsConfirmed) and silo == "silo0"
        )
        assert [tag.hex() for tag in tags] == ["", *TAGS]

    @staticmethod
    def _fix(monkeypatch: pytest.MonkeyPatch) -> None:
        """Fixed secrets, in the order in which silos are asked: 32 times 0, 1 and 2, then 3, 4 and 5…"""
        drawn, make = itertools.count(), masker._Round

        def fixed(number: int) -> masker._Round:
            private, seed, tagging = (bytes([next(drawn)]) * 32 for _ in range(3))
            return make(number, private=private, seed=seed, tagging=tagging)

        monkeypatch.setattr(masker, "_Round", fixed)

    @staticmethod
    def _members(talk: Talk) -> RoundMembers:
        deal = next(ask for _, ask in talk.asks if isinstance(ask, Deal))
        return RoundMembers(deal.number, deal.silos, deal.keys, deal.threshold)

    @staticmethod
    def _masked(talk: Talk) -> dict[str, torch.Tensor]:
        return {silo: reply.words for silo, reply in talk.replies if isinstance(reply, Masked)}

    def test_what_it_gives_away(self) -> None:
        kinds = {Release.SEALED: {DealtShares, Relay}, Release.MASKED: {Masked, Revealed}}
        kinds[Release.NOTHING] = {Offer, Offered, Deal, ConfirmArrivals, ArrivalsConfirmed, Unmask}
        assert all(kind.release is release for release, those in kinds.items() for kind in those)


class TestMaskedVectors:
    def vectors(self, width: int, count: int = 3, rounds: int = 1) -> list[np.ndarray]:
        found = []
        parties = silos(count, width=width)
        for party in parties.values():
            party.update, party.weight = torch.zeros(width), 1.0
        for number in range(rounds):
            found += [one.words.numpy() for _, one in play(parties, number).replies if isinstance(one, Masked)]
        return found

    def test_each_looks_like_noise(self) -> None:
        """Bytes of every position in a word: chi-square; a false alarm once in about 10¹⁰ runs."""
        for words in self.vectors(20_000):
            bytes_ = np.ascontiguousarray(words).view(np.uint8).reshape(-1, 8)
            for place in range(8):
                counts = np.bincount(bytes_[:, place], minlength=256)
                expected = len(bytes_) / 256
                assert chi2.sf(((counts - expected) ** 2 / expected).sum(), 255) > 1e-10 / 24

    def test_equal_updates_do_not_look_alike(self) -> None:
        """Between silos and between rounds: no word is equal, and neither differences nor sums are small."""
        vectors = self.vectors(2_000, rounds=2)
        assert len(vectors) == 6
        for i, one in enumerate(vectors):
            for other in vectors[:i]:
                assert not (one == other).any()
                for together in (one - other, one + other):
                    assert abs((together < 0).mean() - 0.5) < 0.08
                    assert np.median(np.abs(together.astype(float))) > 2.0**61

    def test_partial_sums_look_like_noise_too(self) -> None:
        one, two, three = self.vectors(2_000)
        for together in (one + two, one + three, two + three, one + two + three):  # own seeds are still in the last
            assert np.median(np.abs(together.astype(float))) > 2.0**61


class TestRepliesThatAreNot:
    @pytest.mark.parametrize(
        ("kind", "reply", "words"),
        [
            (Offered, Done(), "'silo1' replies with Offered"),
            (DealtShares, Done(), "'silo1' replies with DealtShares"),
            (Done, Offered(b""), "'silo1' replies with Done"),
            (Masked, Done(), "'silo1' replies with Masked"),
            (Masked, Masked(torch.zeros(5, dtype=torch.int64)), "masks 6 words"),
            (Masked, Masked(torch.zeros(6)), "masks 6 words"),
            (ArrivalsConfirmed, Done(), "'silo1' replies with ArrivalsConfirmed"),
            (ArrivalsConfirmed, ArrivalsConfirmed((b"",)), "a tag for each silo that arrived"),
            (Revealed, Done(), "'silo1' replies with Revealed"),
            (Revealed, Revealed((bytes(33),)), "33 bytes for each silo"),
            (Revealed, Revealed((bytes(33), bytes(33), bytes(32), bytes(33))), "33 bytes for each silo"),
        ],
    )
    def test_of_another_kind_or_form(self, kind: type[Message], reply: Message, words: str) -> None:
        def other(silo: str, said: Message) -> Message:
            return reply if silo == "silo1" and isinstance(said, kind) else said

        with pytest.raises(ProtocolError, match=words) as caught:
            play(silos(4), answered=other)
        assert "silo1" in str(caught.value) and caught.value.remedy

    def test_envelopes_in_another_name(self) -> None:
        kept: list[Message] = []

        def twice(silo: str, said: Message) -> Message:
            if isinstance(said, DealtShares):
                kept.append(said)
            return kept[0] if isinstance(said, DealtShares) else said

        with pytest.raises(ProtocolError, match="'silo1' sends envelopes in its own name"):
            play(silos(3), answered=twice)

    def test_wrong_vectors_and_wrong_shares_are_noticed(self) -> None:
        def noise(silo: str, said: Message) -> Message:
            return Masked(said.words.roll(1)) if silo == "silo1" and isinstance(said, Masked) else said

        with pytest.raises(ProtocolError, match="Without masks a sum over 4 silos"):
            play(silos(4, width=200), answered=noise)

        def false(silo: str, said: Message) -> Message:
            if silo == "silo1" and isinstance(said, Revealed):
                return Revealed(tuple(bytes([0]) + os.urandom(32) for _ in said.shares))
            return said

        with pytest.raises(ProtocolError, match=r"Without masks|of one secret"):
            play(silos(4, width=200), answered=false)
        with pytest.raises(ProtocolError, match=r"key of silo 'silo3' give that key|of one secret"):
            play(silos(4, width=200), lost=lambda silo, ask: silo == "silo3" and type(ask) is Train, answered=false)


ABOUT = "2ce294279f4d63cefa17ceaceb0d591591bd2bb94543bf07a9a40c6de82d056d"
WORDS = {
    "silo0": [2767244095501661470, -7394910377937130394, -8656683053841050299],
    "silo1": [-916948513157864557, 882592831609336877, -6043801317320448419],
    "silo2": [-7166282628268548419, 2302717172606147097, 2715874942998677546],
}
TAGS = [
    "71626e1803a080377949a259e7df6c8bfb6ff7326fc915fbef32ab2a2905b99a",
    "9aafaa9823431fae45e2d94ba17f990c88a0ecf1bf2fecaf1209539b79ccb6d9",
]
