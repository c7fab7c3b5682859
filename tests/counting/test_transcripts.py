"""All that anybody hears of a job that counts, but what was agreed to open, is alike whatever rows are.

Each party's view is recorded over many runs: all asks and replies for the coordinator; for a silo what it is asked, and
what it opens of that. Every number of 16 bits in them, by its place, is compared between two tables that the party may
not tell apart: for the coordinator those whose joint table is the same; for a silo those that differ in others' rows.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from silosynth.core.conversation import Exchange, Roster
from silosynth.core.messages import Struct
from silosynth.core.schema import Column, ColumnSchema, Schema, Table
from silosynth.core.streams import Streams
from silosynth.counting import CountedColumn, distances, judge, protocol
from silosynth.counting.judge import JudgeConfig, JudgingSilo
from silosynth.privacy.events import Target
from silosynth.privacy.sealed import Seat, seats

Rows = Mapping[str, tuple[int, ...]]
Views = Mapping[str, Mapping[tuple[Any, ...], bytearray]]
COLUMNS = (CountedColumn("", "a", ("x", "y"), missing=False), CountedColumn("", "b", ("x", "y"), missing=False))
EXACT = JudgeConfig(COLUMNS, ((0, 1),), "exact", most_rows=2)
NOISED = replace(EXACT, opening="noised", dp=Target(5.0, 1e-6))
FIGURES = replace(EXACT, opening="figures", references=(torch.tensor([[1, 2], [3, 4]]),))
HELD = {"bank": "a", "clinic": "b"}
SAME, TURNED, OTHER = ({"bank": (0, 1), "clinic": (0, 1)}, {"bank": (1, 0), "clinic": (1, 0)},
                       {"bank": (0, 1), "clinic": (1, 0)})  # fmt: skip
PAIRS = {"coordinator": (SAME, TURNED), "bank": (SAME, OTHER), "clinic": (TURNED, OTHER), "notary": (SAME, OTHER)}
LIMIT = float(stats.chi2.isf(1e-10, 8))  # of thousands of comparisons, so that none fails by chance
WORDS = 40  # of a leaf that are looked at


def leaves(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], bytes]]:
    """Numbers of 16 bits in a message, by place."""
    match value:
        case Struct():
            for field in dataclasses.fields(value):
                yield from leaves(getattr(value, field.name), (*place, field.name))
        case tuple():
            for number, item in enumerate(value):
                yield from leaves(item, (*place, number))
        case torch.Tensor():
            yield place, value.contiguous().numpy().tobytes()[: 2 * WORDS]
        case bytes():
            yield place, value[: min(2 * WORDS, len(value) // 2 * 2)]
        case int() | float():
            yield place, np.float64(value).tobytes()
        case _:
            pass


def views(config: JudgeConfig, rows: Rows, runs: int, heard: list[tuple[str, bytes]]) -> Views:
    """What each party hears in so many runs, by place: one run after the other."""
    found: dict[str, dict[tuple[Any, ...], bytearray]] = defaultdict(lambda: defaultdict(bytearray))
    made = seats(rows, Streams(7).child("seats"))
    for number in range(runs):
        silos = {name: silo(config, made[name], rows[name], number) for name in rows}
        talk = judge.coordinate(Roster(tuple(rows)), config, Streams(number).child("c"), torch.device("cpu"))
        got, step = None, 0
        heard.clear()
        while True:
            try:
                asked: Any = talk.send(got)  # type: ignore[arg-type]
            except StopIteration:
                break
            got = {}
            for name, ask in asked.asks.items() if isinstance(asked, Exchange) else ():
                reply = silos[name].answer(ask)
                for party, message in (("coordinator", ask), ("coordinator", reply), (name, ask)):
                    note(found[party], (step, name, type(message).__name__), message)
                got[name] = reply
            got = {} if isinstance(asked, Exchange) and asked.rides else got
            step += 1
        for place, (name, text) in enumerate(heard):
            note(found[name], ("opened", place), text)
    return found


def note(found: dict[tuple[Any, ...], bytearray], place: tuple[Any, ...], value: Any) -> None:
    for where, words in leaves(value, place):
        found[where] += words


def silo(config: JudgeConfig, seat: Seat, codes: tuple[int, ...], seed: int) -> JudgingSilo:
    names = ["a", "b"] if config.horizontal else [HELD[seat.name]] if seat.name in HELD else []
    columns = [Column(name, "str", torch.tensor(codes), torch.zeros(len(codes)).bool(), ("x", "y")) for name in names]
    schema = Schema(tuple(ColumnSchema(name, "categorical", "str") for name in names))
    return JudgingSilo(Table(tuple(columns)), schema, seat, Streams(seed).child(seat.name), torch.device("cpu"), config)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bytes]]:
    """What silos open of envelopes; and all secrets follow from one seed."""
    fixed, opened = np.random.default_rng(3), list[tuple[str, bytes]]()
    monkeypatch.setattr("os.urandom", fixed.bytes)
    for dealer in (protocol.Dealer, distances.ShareDealer):
        monkeypatch.setattr(dealer.__init__, "__defaults__", (fixed.bytes,))
    real = Seat.open

    def recorded(seat: Seat, envelope: Any, context: str) -> bytes:
        text = real(seat, envelope, context)
        opened.append((seat.name, text))
        return text

    monkeypatch.setattr(Seat, "open", recorded)
    return opened


def compare(one: Mapping[Any, bytearray], other: Mapping[Any, bytearray], runs: int) -> int:
    """Chi-square of two samples of each word, in eight ranges that both fill alike; how many words vary at all."""
    assert one.keys() == other.keys()
    varied = 0
    for place in one:
        assert len(one[place]) == len(other[place]), place
        first, second = (np.frombuffer(own[place], "<u2").reshape(runs, -1) for own in (one, other))
        for a, b in zip(first.T, second.T, strict=True):
            both = np.concatenate([a, b])
            edges = np.unique(np.quantile(both, np.arange(1, 8) / 8, method="higher"))
            counts = np.stack([np.bincount(np.searchsorted(edges, own), minlength=9) for own in (a, b)])
            used = counts[:, counts.sum(axis=0) > 0]
            varied += both.min() < both.max()
            assert float(((used[0] - used[1]) ** 2 / used.sum(axis=0)).sum()) < LIMIT, (place, used)
    return varied


LONG = [pytest.mark.slow, pytest.mark.timeout(3000)]
CASES = {
    "exact": EXACT, "noised": NOISED, "figures": FIGURES,
    "exact, dealt": replace(EXACT, dealer="notary"), "figures, dealt": replace(FIGURES, dealer="notary"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("case", "runs"), [("figures, dealt", 6), *(pytest.param(case, 5000, marks=LONG) for case in CASES)]
)
def test_of_silos_with_different_columns(case: str, runs: int, heard: list[tuple[str, bytes]]) -> None:
    config = CASES[case]
    deals = {"notary": ()} if config.dealer else {}
    tables = {id(rows): views(config, rows | deals, runs, heard) for rows in (SAME, TURNED, OTHER)}
    for party, (one, other) in PAIRS.items():
        if party == "notary" and not deals:
            continue
        views_of = [tables[id(rows)][party] for rows in (one, other)]
        assert compare(*views_of, runs) > (20 if party != "notary" else 5)


@pytest.mark.parametrize(
    ("opening", "runs"), [("exact", 6), *(pytest.param(how, 5000, marks=LONG) for how in ("exact", "noised"))]
)
def test_of_silos_with_different_rows(opening: str, runs: int, heard: list[tuple[str, bytes]]) -> None:
    """Rows of two silos change places; the coordinator and the third silo hear the same."""
    config = replace(EXACT if opening == "exact" else NOISED, horizontal=True)
    tables = [
        views(config, {"bank": first, "clinic": second, "shop": (0, 1)}, runs, heard)
        for first, second in (((0, 0), (1, 1)), ((1, 1), (0, 0)))
    ]
    for party in ("coordinator", "shop"):
        assert compare(tables[0][party], tables[1][party], runs) > 20


def test_without_random_words_it_is_found_out(heard: list[tuple[str, bytes]], monkeypatch: pytest.MonkeyPatch) -> None:
    def ones(seed: bytes, rows: int, columns: int, bits: int) -> np.ndarray:
        return np.ones((rows, columns), f"u{bits // 8}")

    for room in ("protocol", "silo"):
        monkeypatch.setattr(f"silosynth.counting.{room}.random_words", ones)
    one, other = (views(EXACT, rows, 40, heard)["bank"] for rows in (SAME, OTHER))
    with pytest.raises(AssertionError):
        compare(one, other, 40)
