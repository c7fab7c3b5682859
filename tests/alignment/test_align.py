"""Alignment against a plain intersection of sets; who learns what; and who is stopped."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import itertools
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from tests.alignment.talk import NAMES, Held, aligned, aligners, expected, in_order, people, run

from silosynth.alignment import AlignConfig, Aligner, align, protocol
from silosynth.core.conversation import Roster
from silosynth.core.errors import ConfigError, DataError, ProtocolError, UnavailableError
from silosynth.core.messages import Done, Message, Release
from silosynth.core.streams import Streams
from silosynth.privacy.sealed import seats
from silosynth.runtime.driver import drive
from silosynth.runtime.ledger import Ledger
from silosynth.runtime.wire import pack, unpack
from silosynth.simulation.silos import InProcess

pytest.importorskip("private_set_intersection.python")
METHODS = ["psi", "keyed-hash"]
both = pytest.mark.parametrize("method", METHODS)
SOME = [people(range(40)), people(range(60, 10, -1)), people(range(20, 50))]
identifier = st.one_of(st.none(), st.sampled_from([b"", b"a", b"b", b"c", b"d", b"e", b"f", bytes(3), b"\xff\xfe"]))

HASHED = AlignConfig("keyed-hash")


class TestResult:
    @both
    @settings(max_examples=25)
    @given(held=st.lists(st.lists(identifier, max_size=12), min_size=2, max_size=5))
    @example(held=[[b"a", None, b"b"], [b"b", b"a", b"a"], [b"b", b"c"]])
    def test_it_is_the_intersection_of_sets(self, method: str, held: list[list[bytes | None]]) -> None:
        common, counts = expected(held)
        if not common:
            with pytest.raises(DataError):
                aligned(held, method)
            return
        done = aligned(held, method)
        assert list(done.matched.values()) == counts
        orders = in_order(done.silos, held)
        assert set(orders[0]) == common and len(orders[0]) == len(common)
        assert all(order == orders[0] for order in orders)

    @both
    def test_rows_that_have_no_part_in_it_are_counted_and_not_named(self, method: str) -> None:
        held = [[b"x", None, b"y", b"x", b"z", b"z", b"w"], [b"w", None, None, b"y", b"q", b"x"]]
        done = aligned(held, method)
        bank, clinic = done.matched.values()
        assert (bank.rows, bank.duplicated, bank.empty, bank.unmatched, bank.common) == (7, 4, 1, 0, 2)
        assert (clinic.rows, clinic.duplicated, clinic.empty, clinic.unmatched, clinic.common) == (6, 0, 2, 2, 2)

    @both
    def test_one_common_row(self, method: str) -> None:
        done = aligned([people([1, 2, 3]), people([9, 3]), people([3])], method)
        assert [silo.rows.tolist() for silo in done.silos.values()] == [[2], [1], [0]]
        assert all(silo.rows.dtype == torch.int64 for silo in done.silos.values())

    @both
    def test_a_single_silo_keeps_its_usable_rows(self, method: str) -> None:
        done = aligned([[b"a", None, b"b", b"b"]], method)
        assert done.silos["bank"].rows.tolist() == [0]

    @both
    def test_through_a_runtime(self, method: str) -> None:
        config = AlignConfig(method)  # type: ignore[arg-type]
        silos, ledger = aligners(SOME, config=config), Ledger()
        heard: list[tuple[int, int]] = []
        with InProcess(silos) as link:
            watch = lambda step: heard.append((step.done, step.total))  # noqa: E731
            matched = drive(lambda _: align(Roster(NAMES[:3]), config), link, ledger, watch=watch)
        assert list(matched.values()) == expected(SOME)[1]
        assert heard == [(done, heard[-1][1]) for done in range(len(heard) - 1)] + [(heard[-1][1],) * 2]
        assert [silo.rows.tolist() for silo in aligned(SOME, method).silos.values()] == [
            silo.rows.tolist() for silo in silos.values()
        ]
        privacy = {record.privacy for record in ledger.records}
        assert (Release.PSEUDONYMS.value in privacy) == (method == "keyed-hash")
        assert Release.SEALED.value in privacy and Release.COUNTS.value in privacy


class TestOrder:
    def test_both_methods_give_the_same_and_so_does_every_run(self) -> None:
        runs = [aligned(SOME, method) for method in (*METHODS, *METHODS)]
        orders = [in_order(done.silos, SOME) for done in runs]
        assert all(order == orders[0] for order in orders)

    @both
    def test_other_keys_or_another_seed_give_another(self, method: str) -> None:
        orders = [in_order(aligned(SOME, method, seed, keys).silos, SOME)[0] for seed, keys in ((7, 7), (8, 7), (7, 8))]
        assert all(set(order) == set(orders[0]) for order in orders)
        assert all(one != other for one, other in itertools.combinations(orders, 2))

    @both
    def test_it_is_neither_sorted_nor_any_silos_own(self, method: str) -> None:
        done = aligned(SOME, method)
        order = in_order(done.silos, SOME)[0]
        assert order not in (sorted(order), sorted(order, reverse=True))
        for silo in done.silos.values():
            rows = silo.rows.tolist()
            assert rows not in (sorted(rows), sorted(rows, reverse=True))

    def test_it_is_a_keyed_hash_that_the_coordinator_cannot_compute(self) -> None:
        done = aligned(SOME, "keyed-hash")
        key = done.silos["bank"].state()["ordering"]["secret"]
        assert key not in done.seen()
        order = in_order(done.silos, SOME)[0]
        (told,) = {message.tags for _, message, _ in done.asked if isinstance(message, protocol.PlacePseudonyms)}
        tagging = done.silos["bank"]._tagging.key("tags")
        tags = [hmac.digest(tagging, one, "sha256") for one in order if one]
        assert sorted(tags) == [told[at : at + 32] for at in range(0, len(told), 32)]
        assert tags != sorted(tags)  # what the coordinator holds is in another order

    @both
    def test_there_are_no_rows_before_all_have_confirmed(self, method: str) -> None:
        silos = aligners(SOME, config=AlignConfig(method))  # type: ignore[arg-type]

        def none_yet(silo: str, message: Message) -> Message:
            if isinstance(message, protocol.ConfirmOrder):
                assert len(silos[silo].rows) == 0
            return message

        run(silos, AlignConfig(method), none_yet)  # type: ignore[arg-type]
        assert all(len(silo.rows) for silo in silos.values())


class TestTooFew:
    @both
    def test_no_common_row(self, method: str) -> None:
        with pytest.raises(DataError, match=r"at least 1 rows that all silos hold \(got: 0\)"):
            aligned([people([1, 2]), people([3, 4]), people([1, 4])], method)

    @both
    def test_fewer_than_wanted_says_how_many_and_no_more(self, method: str) -> None:
        with pytest.raises(DataError, match=r"at least 31 rows that all silos hold \(got: 20\)") as raised:
            aligned(SOME, method, least=31)
        assert "person" not in str(raised.value)
        assert aligned(SOME, method, least=20).matched["bank"].common == 20

    @both
    @pytest.mark.parametrize("held", [[], [None, None], [b"a", b"a", None]])
    def test_a_silo_without_a_usable_identifier(self, method: str, held: Held) -> None:
        counts = f"{len(held)} rows, {sum(one is None for one in held)} without one"
        with pytest.raises(DataError, match=counts) as raised:
            aligned([people([1]), held], method)
        assert raised.value.remedy

    @pytest.mark.parametrize("least", [0, -1])
    def test_the_least_is_one(self, least: int) -> None:
        with pytest.raises(ConfigError, match="least"):
            AlignConfig(least=least)


class TestSecrecy:
    @pytest.mark.parametrize(("method", "count"), [("psi", 2), ("psi", 3), ("keyed-hash", 3)])
    def test_the_coordinator_sees_no_identifier_and_no_hash_of_one_without_a_key(self, method: str, count: int) -> None:
        done = aligned(SOME[:count], method)
        seen = done.seen()
        for one in {one for held in SOME[:count] for one in held if one}:
            for known in (one, one.hex().encode(), *_digests(one), *_digests(one.hex().encode())):
                assert known not in seen
        assert b"person" not in seen

    def test_with_psi_it_sees_no_keyed_hash_either(self) -> None:
        done = aligned(SOME, "psi")
        seen = done.seen()
        for silo, held in zip(done.silos.values(), SOME, strict=True):
            for key in (silo._tagging.key("tags"), silo._ordering.key("order 7")):
                assert not [one for one in held if one and hmac.digest(key, one, "sha256") in seen]
        assert {kind.release for _, m, _ in done.answered if (kind := type(m))} <= {
            Release.SEALED,
            Release.COUNTS,
            Release.NOTHING,
        }

    def test_pseudonyms_are_others_each_time_and_in_no_order_of_rows(self) -> None:
        first, second = aligned(SOME, "keyed-hash"), aligned(SOME, "keyed-hash")
        sent = [
            {
                message.tags[at : at + 32]  # type: ignore[attr-defined]
                for _, message, _ in done.received(protocol.Pseudonyms)
                for at in range(0, 960, 32)
            }
            for done in (first, second)
        ]
        assert not sent[0] & sent[1]
        for _, message, _ in first.received(protocol.Pseudonyms):
            tags = [message.tags[at : at + 32] for at in range(0, len(message.tags), 32)]  # type: ignore[attr-defined]
            assert tags == sorted(tags)

    def test_silos_learn_the_sizes_that_the_docs_say(self) -> None:
        """The leader asks the third silo about nothing but what the second holds."""
        done = aligned(SOME, "psi")
        lengths = [len(m.query.ciphertext) for _, m, _ in done.asked if isinstance(m, protocol.Answer)]
        assert lengths[0] - lengths[1] == pytest.approx(35 * (40 - 29), abs=20)  # 40 rows, 29 of them in the second

    def test_messages_say_what_they_give_away(self) -> None:
        names = ("Encrypted", "Query", "Answer", "Answered", "Narrow", "Common", "PlaceSealed")
        sealed = [getattr(protocol, name) for name in names]
        assert {kind.release for kind in sealed} == {Release.SEALED}
        assert protocol.Pseudonyms.release is protocol.PlacePseudonyms.release is Release.PSEUDONYMS
        assert protocol.Placed.release is Release.COUNTS
        assert protocol.TagRows.release is protocol.ConfirmOrder.release is Release.NOTHING

    def test_no_secret_is_shown(self) -> None:
        silo = aligned(SOME).silos["bank"]
        assert "person" not in repr(silo) and "person" not in str(silo.state())
        assert silo.trained() == {}


class TestFaults:
    def test_a_tampered_envelope_is_refused(self) -> None:
        for kind in (protocol.Answer, protocol.Narrow, protocol.PlaceSealed):
            with pytest.raises(ProtocolError, match="opens with the pinned keys"):
                run(aligners(SOME), AlignConfig(), lambda silo, ask, kind=kind: _damaged(ask, kind))

    def test_an_envelope_of_an_earlier_alignment_is_refused(self) -> None:
        earlier = [message for _, message, _ in aligned(SOME).asked if isinstance(message, protocol.PlaceSealed)]
        old = {message.envelope.receiver: message for message in earlier if message.envelope is not None}

        def repeat(silo: str, ask: Message) -> Message:
            return old[silo] if isinstance(ask, protocol.PlaceSealed) and ask.envelope is not None else ask

        with pytest.raises(ProtocolError, match="of another step"):
            run(aligners(SOME), AlignConfig(), repeat)

    def test_an_envelope_of_another_silo_is_refused(self) -> None:
        silos, kept = aligners(SOME), {}

        def swap(silo: str, reply: Message) -> Message:
            if isinstance(reply, protocol.Encrypted):
                kept[silo] = reply
            return kept["clinic"] if silo == "shop" and isinstance(reply, protocol.Encrypted) else reply

        with pytest.raises(ProtocolError, match="from silo 'shop'"):
            run(silos, AlignConfig(), replies=swap)

    def test_a_coordinator_that_names_rows_which_are_not_here(self) -> None:
        def extend(silo: str, ask: Message) -> Message:
            return protocol.PlacePseudonyms(ask.tags + bytes(32)) if isinstance(ask, protocol.PlacePseudonyms) else ask

        with pytest.raises(ProtocolError, match="Common rows are rows of this silo"):
            run(aligners(SOME, config=HASHED), HASHED, extend)

    def test_a_coordinator_that_names_a_row_twice_or_half_a_row(self) -> None:
        for change in (lambda tags: tags + tags[:32], lambda tags: tags[:-1]):

            def meddle(silo: str, ask: Message, change=change) -> Message:  # type: ignore[no-untyped-def]
                return protocol.PlacePseudonyms(change(ask.tags)) if isinstance(ask, protocol.PlacePseudonyms) else ask

            with pytest.raises(ProtocolError, match="rows of this silo, each named once"):
                run(aligners(SOME, config=HASHED), HASHED, meddle)

    def test_a_coordinator_that_tells_silos_different_rows(self) -> None:
        def cut(silo: str, ask: Message) -> Message:
            if not isinstance(ask, protocol.PlacePseudonyms):
                return ask
            return protocol.PlacePseudonyms(ask.tags[32:] if silo == "bank" else ask.tags[:-32])

        silos = aligners(SOME, config=HASHED)
        with pytest.raises(ProtocolError, match="silos clinic, shop did not"):
            run(silos, HASHED, cut)
        assert all(len(silo.rows) == 0 for silo in silos.values())

    def test_proofs_cannot_be_left_out_or_exchanged(self) -> None:
        for change in (lambda proofs: proofs[:2], lambda proofs: (*proofs, b""), lambda proofs: (proofs[0],) * 3):

            def meddle(silo: str, ask: Message, change=change) -> Message:  # type: ignore[no-untyped-def]
                return protocol.ConfirmOrder(change(ask.proofs)) if isinstance(ask, protocol.ConfirmOrder) else ask

            with pytest.raises(ProtocolError, match="same rows in the same order"):
                run(aligners(SOME), AlignConfig(), meddle)

    def test_silos_with_different_seeds_notice(self) -> None:
        silos = {**aligners(SOME), "shop": aligners(SOME, seed=8)["shop"]}
        with pytest.raises(ProtocolError, match="have different seeds"):
            run(silos, AlignConfig())

    @pytest.mark.parametrize(
        "ask",
        [
            protocol.TagRows(),
            protocol.PlacePseudonyms(bytes(32)),
            protocol.PlaceSealed(None),
            protocol.ConfirmOrder(()),
            Done(),
        ],
    )
    def test_messages_that_come_too_early_or_not_at_all(self, ask: Message) -> None:
        with pytest.raises(ProtocolError):
            aligners(SOME)["bank"].answer(ask)

    def test_an_agreement_for_something_else_is_refused(self) -> None:
        for ask in (
            protocol.agree(Roster(NAMES[:3]), "vtgan"),
            protocol.agree(Roster(NAMES[:3]), protocol.TAGS, fresh=False),
        ):
            with pytest.raises(ProtocolError, match="fresh for tags"):
                aligners(SOME)["bank"].answer(next(ask).asks["bank"])  # type: ignore[union-attr]

    @both
    def test_a_silo_that_answers_something_else(self, method: str) -> None:
        for kind in (protocol.Encrypted, protocol.Query, protocol.Common, protocol.Pseudonyms, protocol.Placed):
            if (kind is protocol.Pseudonyms) == (method == "psi") and kind is not protocol.Placed:
                continue
            with pytest.raises(ProtocolError, match=f"replies with {kind.__name__}"):
                run(
                    aligners(SOME, config=AlignConfig(method)),  # type: ignore[arg-type]
                    AlignConfig(method),  # type: ignore[arg-type]
                    replies=lambda silo, reply, kind=kind: Done() if isinstance(reply, kind) else reply,
                )

    def test_tags_that_are_none(self) -> None:
        for sent in (bytes(31), bytes(64)):
            with pytest.raises(ProtocolError, match="tags of 32 bytes, each once"):
                protocol.match({"bank": sent, "clinic": bytes(32)})


class TestState:
    @both
    def test_it_goes_on_from_every_step(self, method: str) -> None:
        """Each silo is written to a file and read again before each message."""
        config = AlignConfig(method)  # type: ignore[arg-type]
        silos, made = aligners(SOME, config=config), seats(NAMES[:3], Streams(7).child("seats"))

        def reborn(silo: str, ask: Message) -> Message:
            state = unpack(pack(silos[silo].state()))
            silos[silo] = Aligner(SOME[NAMES.index(silo)], made[silo], Streams(7).party(silo), config)
            silos[silo].restore(state)
            return ask

        done = run(silos, config, reborn)
        reborn("bank", Done())
        assert in_order(done.silos, SOME) == in_order(aligned(SOME, method).silos, SOME)

    @both
    def test_a_repeated_ask_after_restoring_gives_the_same_rows(self, method: str) -> None:
        silos = aligners(SOME, config=AlignConfig(method))  # type: ignore[arg-type]

        def twice(silo: str, ask: Message) -> Message:
            before = silos[silo].state()
            silos[silo].answer(ask)
            silos[silo].restore(before)
            return ask

        done = run(silos, AlignConfig(method), twice)  # type: ignore[arg-type]
        assert in_order(done.silos, SOME) == in_order(aligned(SOME, method).silos, SOME)

    def test_what_sampling_keeps_is_nothing(self) -> None:
        silo = aligners(SOME)["bank"]
        silo.restore({})
        assert len(silo.rows) == 0


def test_without_the_library_psi_says_how_to_get_it_and_keyed_hash_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "private_set_intersection.python", None)
    with pytest.raises(UnavailableError, match=r"pip install 'silosynth\[psi\]'"):
        aligned(SOME, "psi")
    assert aligned(SOME, "keyed-hash").matched["bank"].common == 20


@pytest.mark.live
def test_importing_it_imports_neither_the_library_nor_pandas(tmp_path: Path) -> None:
    code = "import sys, silosynth.alignment.silo as s; print(any('private_set' in m for m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def _digests(one: bytes) -> Sequence[bytes]:
    found = [hashlib.new(name, one) for name in ("md5", "sha1", "sha256", "sha512")]
    return [form for digest in found for form in (digest.digest(), digest.hexdigest().encode())]


def _damaged(ask: Message, kind: type[Message]) -> Message:
    if not isinstance(ask, kind):
        return ask
    fields = {field.name: getattr(ask, field.name) for field in dataclasses.fields(ask)}
    for name, envelope in fields.items():
        if envelope is not None:
            changed = bytes([envelope.ciphertext[0] ^ 1]) + envelope.ciphertext[1:]
            fields[name] = type(envelope)(envelope.sender, envelope.receiver, envelope.ephemeral, changed)
    return kind(**fields)
