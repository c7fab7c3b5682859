"""Counting: shares add up to the tables; who sees uniform words alone; and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from tests.counting.talk import NAMES, Held, Talk, counters, crosstab, request, run

from silosynth.core.conversation import Roster
from silosynth.core.errors import ConfigError, DataError, ProtocolError
from silosynth.core.messages import Done, Message, Release, all_structs
from silosynth.core.schema import Column, ColumnSchema, Schema, Table
from silosynth.core.streams import Streams
from silosynth.counting import CountedColumn, CountRequest, TableCounter, count, plan, protocol
from silosynth.counting.products import product, random_words
from silosynth.privacy.agreement import OfferShares
from silosynth.privacy.sealed import seats
from silosynth.runtime.driver import drive
from silosynth.runtime.ledger import Ledger
from silosynth.runtime.wire import pack, unpack
from silosynth.simulation.silos import InProcess

SIZES = {"bank 0": 3, "bank 1": 2, "clinic 0": 4, "clinic 1": 2, "shop 0": 3, "school 0": 2}
PAIR, TRIPLE = ["bank 0", "clinic 0"], ["bank 0", "clinic 1", "shop 0"]


def drawn(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.integers(0, size, rows) for name, size in SIZES.items()}


def counted(sets: list[list[str]], rows: int = 10, bits: int = 16, held: Held | None = None, **more: Any) -> Talk:
    held = drawn(rows) if held is None else held
    return run(counters(held, SIZES, NAMES), request(SIZES, sets, NAMES, rows + 3, bits), **more)


class TestTables:
    @settings(max_examples=12)
    @given(st.data(), st.integers(0, 9), st.integers(2, 4), st.sampled_from([16, 32, 64]), st.integers(0, 3))
    def test_they_are_those_of_counting_rows(
        self, data: st.DataObject, rows: int, silos: int, bits: int, spare: int
    ) -> None:
        """Of one, two or three silos; crossed; whatever order columns have; one level; no rows; all missing."""
        names = NAMES[:silos]
        columns = [f"{silo} {number}" for silo in names for number in range(2)]
        sizes = {name: data.draw(st.integers(1, 3)) for name in columns}
        sizes = {name: max(2, size) for name, size in sizes.items()}  # one level and that of missing values at least
        code = {name: st.integers(data.draw(st.sampled_from([0, size - 1])), size - 1) for name, size in sizes.items()}
        held = {
            name: np.array(data.draw(st.lists(code[name], min_size=rows, max_size=rows)), np.int64) for name in columns
        }
        some = st.lists(st.sampled_from(columns), min_size=1, max_size=4, unique=True)
        few = some.filter(lambda chosen: len({name.split()[0] for name in chosen}) <= 3)
        sets = data.draw(st.lists(few, min_size=1, max_size=3))
        talk = run(counters(held, sizes, names), request(sizes, sets, names, max(1, rows + spare), bits))
        for table, columns in zip(talk.tables(), sets, strict=True):
            assert table.dtype.itemsize * 8 == bits
            assert np.array_equal(table, crosstab(held, sizes, columns))

    def test_in_several_blocks_the_same_table_twice_and_in_another_order(self) -> None:
        sets = [PAIR, PAIR, PAIR[::-1], TRIPLE, TRIPLE[::-1]]
        talk = counted(sets)
        pair, same, turned, triple, back = talk.tables()
        assert np.array_equal(pair, crosstab(drawn(10), SIZES, PAIR)) and np.array_equal(pair, same)
        assert np.array_equal(turned, pair.T) and np.array_equal(back, triple.T)
        assert np.array_equal(triple, crosstab(drawn(10), SIZES, TRIPLE))
        assert len(talk.replies(protocol.HiddenBlock)["bank"]) == 4  # of 4 rows each, for 13

    def test_silos_without_columns_of_a_set_hold_zeros(self) -> None:
        talk = counted([PAIR, ["shop 0"]])
        assert not talk.silos["school"].shares[0].any() and not talk.silos["shop"].shares[0].any()
        own = talk.silos["shop"].shares[1]
        assert np.array_equal(own, crosstab(drawn(10), SIZES, ["shop 0"]))
        assert not any(talk.silos[name].shares[1].any() for name in ("bank", "clinic", "school"))
        assert set(talk.replies(protocol.HiddenBlock)) == {"bank", "clinic"}  # nobody else hides anything

    def test_no_share_of_a_table_across_silos_is_the_table(self) -> None:
        talk = counted([PAIR, TRIPLE], bits=64)
        for number, owners in enumerate([("bank", "clinic"), ("bank", "clinic", "shop")]):
            for silo in owners:
                assert (talk.silos[silo].shares[number] > 10).all()  # of 64 bits: none is a count

    def test_where_silos_have_the_same_columns_each_share_is_its_own_table(self) -> None:
        column, names = CountedColumn("", "x", ("a", "b")), NAMES[:2]
        made, silos = seats(names, Streams(7).child("seats")), {}
        for name, rows in zip(names, (3, 6), strict=True):
            own = Column("x", "str", torch.arange(rows) % 2, torch.zeros(rows, dtype=torch.bool), ("b", "a"))
            schema = Schema((ColumnSchema("x", "categorical", "str"),))
            silos[name] = TableCounter(Table((own,)), schema, made[name])
        talk = run(silos, CountRequest(names, (column,), ((0,),), 10, 16))
        assert [silo.shares[0].tolist() for silo in silos.values()] == [[1, 2, 0], [3, 3, 0]]
        prepared = talk.replies(protocol.CountPrepared).values()
        assert all(reply.tag == b"" for (reply,) in prepared)  # type: ignore[attr-defined]
        assert not talk.replies(protocol.HiddenBlock)

    def test_through_a_runtime(self) -> None:
        silos, ledger, heard = counters(drawn(9), SIZES, NAMES), Ledger(), []
        asked = request(SIZES, [PAIR, TRIPLE], NAMES, 16)
        with InProcess(silos) as link:
            drive(lambda _: count(Roster(NAMES), asked), link, ledger, watch=lambda step: heard.append(step.done))
        assert np.array_equal(Talk(silos).tables()[1], crosstab(drawn(9), SIZES, TRIPLE))
        assert heard == [0, 1, 2, 3, 4]
        told = {record.type: record.privacy for record in ledger.records}
        sealed_ones = {"counting.HiddenBlock", "counting.TakeBlock", "privacy.Shares", "privacy.RelayedShares"}
        assert {name for name, privacy in told.items() if privacy == Release.SEALED.value} == sealed_ones
        assert {told[name] for name in told.keys() - sealed_ones} == {Release.NOTHING.value}


class TestState:
    def test_shares_are_kept_and_a_counting_under_way_is_not(self) -> None:
        talk = counted([PAIR])
        old = talk.silos["bank"]
        again = counters(drawn(10), SIZES, NAMES)["bank"]
        again.restore(unpack(pack(old.state())))
        assert np.array_equal(again.shares[0], old.shares[0]) and again.shares[0].dtype == old.shares[0].dtype
        assert old.trained() == {"events": []}

    def test_another_counting_replaces_the_shares_and_hides_by_other_words(self) -> None:
        silos, asked = counters(drawn(10), SIZES, NAMES), request(SIZES, [PAIR], NAMES, 13)
        first = run(silos, asked)
        hidden = [seen(first, "bank", "clinic")]
        shares = silos["bank"].shares[0].copy()
        hidden.append(seen(run(silos, asked), "bank", "clinic"))
        assert not np.array_equal(shares, silos["bank"].shares[0])
        assert not np.array_equal(*hidden)


def seen(talk: Talk, sender: str, receiver: str) -> np.ndarray:
    """What one silo hid for another, in words: what the latter reads."""
    now, words = talk.silos[receiver], []
    asks = [ask for silo, ask in talk.asked if silo == receiver]
    (prepared,) = (ask for ask in asks if isinstance(ask, protocol.PrepareCount))
    for ask in asks:
        if isinstance(ask, protocol.TakeBlock):
            (one,) = (envelope for envelope in ask.envelopes if envelope.sender == sender)
            context = f"counting {now._used.hex()} {prepared.request.digest()} block {ask.number}"
            content = now._seat.open(one, context)
            first = ask.number == 0 and NAMES.index(sender) < NAMES.index(receiver)
            words.append(content[protocol.SEED :] if first else content)
    return np.frombuffer(b"".join(words), f"<u{prepared.request.bits // 8}")


class TestSecrecy:
    def test_messages_say_what_they_give_away(self) -> None:
        rooms = tuple(f"silosynth.counting.{name}" for name in ("protocol", "opening", "distances", "judge"))
        kinds = {kind.__name__: kind.release for kind in all_structs(Message).values() if kind.__module__ in rooms}
        assert {name: release for name, release in kinds.items() if release is not Release.NOTHING} == {
            "HiddenBlock": Release.SEALED, "TakeBlock": Release.SEALED, "SharesOpened": Release.NOISED,
            "SharesRevealed": Release.TABLES, "RowsTold": Release.COUNTS, "ColumnsHeld": Release.SCHEMA,
            "NumbersTold": Release.COUNTS, "HiddenShares": Release.SEALED, "TakeShares": Release.SEALED,
            "FiguresOpened": Release.FIGURES, "ExactSum": Release.TABLES, "NoisedSum": Release.NOISED,
            "SeedsDealt": Release.SEALED, "TakeSeed": Release.SEALED, "BlockDealt": Release.SEALED,
            "RestDealt": Release.SEALED, "FiguresDealt": Release.SEALED,
        }  # fmt: skip

    def test_the_dealer_sees_neither_hidden_words_nor_masks_nor_row_counts(self) -> None:
        talk = counted([PAIR, TRIPLE], bits=64)
        told = b"".join(
            reply.nonce + reply.tag if isinstance(reply, protocol.CountPrepared) else b"" for _, reply in talk.answered
        )
        hidden = seen(talk, "bank", "clinic")
        sent = b"".join(one.ciphertext for replies in talk.replies(protocol.HiddenBlock).values() for r in replies
                        for one in r.envelopes)  # type: ignore[attr-defined]  # fmt: skip
        assert not any(word.tobytes() in sent for word in hidden)
        shorter = counted([PAIR, TRIPLE], bits=64, held={n: c[:8] for n, c in drawn(10).items()})
        assert len(told) == 4 * 64
        assert [type(m) for _, m in talk.answered] == [type(m) for _, m in shorter.answered]

    def test_a_dealer_that_repeats_its_seeds_does_not_make_silos_repeat_theirs(self) -> None:
        """Otherwise the difference of what a silo hides twice would be that of its rows."""
        found = []
        for flags in (drawn(10, 0), drawn(10, 1)):
            same = lambda silo, ask: replace(ask, seed=bytes(32)) if isinstance(ask, protocol.DealSeed) else ask  # noqa: E731
            found.append(seen(counted([PAIR], held=flags, asks=same), "bank", "clinic").astype(np.int64))
        difference = (found[0] - found[1]) % (1 << 16)
        assert (np.isin(difference, [0, 1, (1 << 16) - 1])).mean() < 0.1

    def test_a_dealer_and_a_silo_together_read_the_others_flags(self) -> None:
        """As the documents say."""
        talk = counted([PAIR])
        flags = np.zeros((13, 3), np.uint16)
        flags[np.arange(10), drawn(10)["bank 0"]] = 1
        assert np.array_equal(seen(talk, "bank", "clinic").reshape(13, 3) - pads(talk, "bank", 3), flags)

    def test_from_a_share_that_opened_alone_the_dealer_learns_nothing_of_the_other_silo(self) -> None:
        """Without masks the first silo's would be what was dealt it minus U'E, and so reveal U'Y."""
        talk = counted([PAIR], bits=64)
        u, e = pads(talk, "bank", 3), seen(talk, "clinic", "bank").reshape(13, 4)
        known = random_words(key(talk, "bank", *plan.pair_name("clinic")), 3, 4, 64)
        assert not np.isin(talk.silos["bank"].shares[0], known - product(u, e)).any()

    @pytest.mark.parametrize(
        "runs", [pytest.param(25), pytest.param(5_000, marks=[pytest.mark.slow, pytest.mark.timeout(3000)])]
    )
    def test_what_is_seen_is_uniform_whatever_the_rows(self, runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """All words of two tables that differ in every row, by who sees them, in 8 classes: chi-square of each."""
        fixed = np.random.default_rng(5)
        monkeypatch.setattr("os.urandom", fixed.bytes)
        monkeypatch.setattr(protocol.Dealer.__init__, "__defaults__", (fixed.bytes,))
        held = [{"bank 0": np.array([code]), "clinic 0": np.array([code])} for code in (0, 1)]
        heard = [transcripts(one, runs) for one in held]
        limit = 7 + 5 * np.sqrt(2 * 7)
        for place in heard[0]:
            counts = np.stack([np.bincount(one[place] >> 13, minlength=8) for one in heard])
            even = counts.sum(axis=1, keepdims=True) / 8
            assert (((counts - even) ** 2 / even).sum(axis=1) < limit).all(), place
            apart = (counts[0] - counts[1]) ** 2 / counts.sum(axis=0)  # of two samples of one size
            assert apart.sum() < limit, place


def key(talk: Talk, silo: str, *what: str) -> bytes:
    """Of something that was dealt to a silo."""
    (seed,) = (ask.seed for name, ask in talk.asked if name == silo and isinstance(ask, protocol.DealSeed))
    ((prepared,),) = (replies for name, replies in talk.replies(protocol.CountPrepared).items() if name == silo)
    return plan.dealt_key(seed, prepared.nonce, *what)  # type: ignore[attr-defined]


def pads(talk: Talk, silo: str, width: int) -> np.ndarray:
    """The random matrix of all 13 rows of a silo."""
    bits = talk.silos[silo].shares[0].itemsize * 8
    blocks = [random_words(key(talk, silo, *plan.pad_name(i)), n, width, bits) for i, n in enumerate((4, 4, 4, 1))]
    return np.concatenate(blocks)


def transcripts(held: Held, runs: int) -> dict[tuple[str, str], np.ndarray]:
    """All words of many countings of one row, by who sees which: 16 bits each."""
    names, sizes = NAMES[:2], {"bank 0": 2, "clinic 0": 2}
    asked, heard = request(sizes, [list(sizes)], names, 1), dict[tuple[str, str], list[np.ndarray]]()
    silos = counters(held, sizes, names)
    for _ in range(runs):
        talk = run(silos, asked)
        for a, b in (names, names[::-1]):
            heard.setdefault((b, f"flags of {a}"), []).append(seen(talk, a, b))
        shares = [silos[name].shares[0].reshape(-1) for name in names]
        for name, share in zip(names, shares, strict=True):
            heard.setdefault((name, "share"), []).append(share)
        for silo, message in (*talk.asked, *talk.answered):
            for what, words in _words(message):
                heard.setdefault(("coordinator", f"{what} of {silo}"), []).append(words)
    return {place: np.concatenate(words).astype(np.int64) for place, words in heard.items()}


def _words(message: Message) -> list[tuple[str, np.ndarray]]:
    """What the coordinator sees of a message that the rows, or words that hide them, went into."""
    match message:
        case protocol.CountPrepared():
            return [("nonce", np.frombuffer(message.nonce, "<u2"))]
        case protocol.HiddenBlock():
            return [("envelope", np.frombuffer(one.ciphertext, "<u2")) for one in message.envelopes]
        case protocol.FinishCount():
            return [("dealt", words.numpy().view("<u2").reshape(-1)) for words in message.dealt]
        case _:
            return []


def changed(kind: type[Message], change: Callable[[Any], Message], silo: str = "") -> Callable[[str, Message], Message]:
    return lambda name, message: change(message) if type(message) is kind and silo in ("", name) else message


class TestFaults:
    @pytest.mark.parametrize("kind", [protocol.HideBlock, protocol.TakeBlock, protocol.FinishCount, protocol.DealSeed])
    def test_nothing_is_answered_twice(self, kind: type[Message]) -> None:
        talk = None

        def twice(name: str, ask: Message) -> Message:
            if type(ask) is kind and name == "bank":
                silos["bank"].answer(ask)
            return ask

        silos = counters(drawn(10), SIZES, NAMES)
        with pytest.raises(ProtocolError, match=r"Silo 'bank' (takes|hides|is dealt|prepares)"):
            talk = run(silos, request(SIZES, [PAIR, TRIPLE], NAMES, 13), twice)
        assert (talk is None and not silos["bank"].shares) or kind is protocol.FinishCount

    def test_a_block_is_hidden_in_its_turn_and_only_after_the_one_before_was_taken(self) -> None:
        for number in (1, 3, 4, 99, -1):
            with pytest.raises(ProtocolError, match="once and in order"):
                counted([PAIR], asks=changed(protocol.HideBlock, lambda ask, n=number: replace(ask, number=n)))

    def test_steps_out_of_order(self) -> None:
        silo = counters(drawn(10), SIZES, NAMES)["bank"]
        asked = request(SIZES, [PAIR], NAMES, 13)
        for ask in (protocol.DealSeed(bytes(32)), protocol.HideBlock(0), protocol.TakeBlock(0, (), ()),
                    protocol.FinishCount(())):  # fmt: skip
            with pytest.raises(ProtocolError, match="prepares a counting first"):
                silo.answer(ask)
        with pytest.raises(ProtocolError, match="secret is used once all silos"):
            silo.answer(protocol.PrepareCount(asked))
        with pytest.raises(ProtocolError, match="does not understand"):
            silo.answer(Done())
        with pytest.raises(ProtocolError, match="for nothing else"):
            silo.answer(OfferShares("alignment: tags", True))
        with pytest.raises(ProtocolError, match="for nothing else"):
            silo.answer(OfferShares(protocol.PURPOSE, False))

    def test_a_counting_needs_a_secret_of_its_own(self) -> None:
        silos, asked = counters(drawn(10), SIZES, NAMES), request(SIZES, [PAIR], NAMES, 13)
        run(silos, asked)
        with pytest.raises(ProtocolError, match="counts once with each secret"):
            silos["bank"].answer(protocol.PrepareCount(asked))

    def test_more_rows_than_the_public_number(self) -> None:
        with pytest.raises(ProtocolError, match=r"no more rows than the request says \(got: more than 9\)"):
            run(counters(drawn(10), SIZES, NAMES), request(SIZES, [PAIR], NAMES, 9))

    def test_silos_with_other_numbers_of_rows(self) -> None:
        held = {name: codes[:9] if name.startswith("shop") else codes for name, codes in drawn(10).items()}
        with pytest.raises(ProtocolError, match="same rows in the same order") as raised:
            counted([PAIR], held=held)
        assert "9" not in str(raised.value) and "10" not in str(raised.value)

    def test_silos_that_are_asked_for_different_tables_do_not_open_each_others_words(self) -> None:
        other = request(SIZES, [["bank 0", "clinic 1"]], NAMES, 13)
        with pytest.raises(ProtocolError, match="opens with the pinned keys"):
            counted([PAIR], asks=changed(protocol.PrepareCount, lambda ask: replace(ask, request=other), "clinic"))

    @pytest.mark.parametrize("what", ["other silos", "another order", "no such column"])
    def test_requests_that_do_not_fit_the_silo(self, what: str) -> None:
        asked = request(SIZES, [PAIR], NAMES, 13)
        silos = counters(drawn(10), SIZES, NAMES)
        if what == "no such column":
            columns = tuple(
                replace(column, name="bank 9") if i == 0 else column for i, column in enumerate(asked.columns)
            )
            with pytest.raises(DataError, match="no such column"):
                run(silos, replace(asked, columns=columns))
            return
        names = NAMES[::-1] if what == "another order" else (*NAMES[:3], "town")
        columns = tuple(column for column in asked.columns if column.silo in names)
        wrong = replace(asked, silos=names, columns=columns)
        with pytest.raises(ConfigError, match="silos of the roster"):
            run(silos, wrong)
        with pytest.raises(ProtocolError, match="silos of its roster"):
            run(silos, asked, changed(protocol.PrepareCount, lambda ask: replace(ask, request=wrong)))

    def test_an_identifier_is_not_counted(self) -> None:
        table = counters(drawn(10), SIZES, NAMES)["bank"]._table
        schema = Schema(tuple(ColumnSchema(name, "pseudonym", "str") for name in table.names))
        silo = TableCounter(table, schema, seats(NAMES, Streams(7).child("seats"))["bank"])
        assert silo._table.names == ()

    def test_envelopes_that_are_altered_swapped_or_of_another_block_do_not_open(self) -> None:
        first: dict[str, Any] = {}

        def earlier(ask: protocol.TakeBlock) -> Message:
            again = first.setdefault(ask.envelopes[0].receiver, ask)
            return replace(again, number=ask.number)

        def torn(ask: protocol.TakeBlock) -> Message:
            one = ask.envelopes[0]
            return replace(ask, envelopes=(replace(one, ciphertext=bytes(len(one.ciphertext))), *ask.envelopes[1:]))

        for change in (earlier, torn):
            with pytest.raises(ProtocolError, match="opens with the pinned keys"):
                counted([PAIR], asks=changed(protocol.TakeBlock, change))
        for change in (
            lambda ask: replace(ask, envelopes=()),
            lambda ask: replace(ask, envelopes=ask.envelopes * 2),
            lambda ask: replace(ask, envelopes=ask.envelopes[::-1]),
        ):
            with pytest.raises(ProtocolError, match="a block of each silo"):
                counted([TRIPLE], asks=changed(protocol.TakeBlock, change))

    @pytest.mark.parametrize("kind", [protocol.TakeBlock, protocol.FinishCount])
    def test_dealt_words_of_other_shapes(self, kind: type[Any]) -> None:
        changes: list[tuple[Callable[[Any], Message], str]] = [
            (lambda ask: replace(ask, dealt=ask.dealt[:-1]), "too few"),
            (lambda ask: replace(ask, dealt=(*ask.dealt, torch.zeros(1))), "too many"),
            (lambda ask: replace(ask, dealt=(ask.dealt[0][:, :1], *ask.dealt[1:])), "words of 16 bits"),
            (lambda ask: replace(ask, dealt=(ask.dealt[0].long(), *ask.dealt[1:])), "words of 16 bits"),
        ]
        for change, error in changes:
            with pytest.raises(ProtocolError, match=error):
                counted([PAIR, TRIPLE], asks=changed(kind, change, "shop"))

    def test_what_was_refused_half_way_does_not_go_on(self) -> None:
        """Else a block could be added to shares twice, and the error in the table would depend on rows."""
        silos = counters(drawn(10), SIZES, NAMES)

        def first_too_much(name: str, ask: Message) -> Message:
            if isinstance(ask, protocol.TakeBlock) and name == "clinic":
                with pytest.raises(ProtocolError, match="too many"):
                    silos[name].answer(replace(ask, dealt=(torch.zeros(1),)))
            return ask

        with pytest.raises(ProtocolError, match="prepares a counting first"):
            run(silos, request(SIZES, [PAIR], NAMES, 13), first_too_much)

    def test_seeds_and_nonces_of_another_length(self) -> None:
        with pytest.raises(ProtocolError, match="one seed of 32 bytes"):
            counted([PAIR], asks=changed(protocol.DealSeed, lambda ask: replace(ask, seed=b"")))
        with pytest.raises(ProtocolError, match="nonce has 32 bytes"):
            counted([PAIR], replies=changed(protocol.CountPrepared, lambda reply: replace(reply, nonce=b"")))

    def test_silos_that_send_something_else(self) -> None:
        for change in (lambda reply: protocol.HiddenBlock(()), lambda reply: Done()):
            with pytest.raises(ProtocolError):
                counted([PAIR], replies=changed(protocol.HiddenBlock, change))

    def test_wrong_words_of_the_dealer_for_two_silos_shift_the_table_whatever_the_rows(self) -> None:
        shifts = []
        for seed in (0, 1):
            plus = changed(protocol.FinishCount, lambda ask: replace(ask, dealt=tuple(d + 5 for d in ask.dealt)))
            held = drawn(10, seed)
            (table,) = counted([PAIR], held=held, asks=plus).tables()
            shifts.append((table.astype(int) - crosstab(held, SIZES, PAIR)) % (1 << 16))
        assert (shifts[0] == 5).all() and (shifts[1] == 5).all()


def test_shares_of_fewer_than_all_silos_are_no_table() -> None:
    talk = counted([TRIPLE], bits=64)
    shares = [talk.silos[name].shares[0] for name in ("bank", "clinic", "shop")]
    for some in itertools.combinations(shares, 2):
        assert (sum(some[1:], start=some[0]) > 10).all()
