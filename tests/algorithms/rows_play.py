"""A training of MST over silos or groups of silos with different rows, driven by hand, and checks of its noise.

What weakens a mechanism, for tests of these checks, is here as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from silosynth.algorithms.marginals import private, protocol as marginals
from silosynth.algorithms.marginals.silo import RowsSilo
from silosynth.catalog import algorithm
from silosynth.core.messages import Message
from silosynth.core.schema import Table
from silosynth.core.streams import Streams
from silosynth.counting import opening
from silosynth.counting.opening import CellNoise
from silosynth.counting.plan import CountRequest
from silosynth.counting.silo import TableCounter
from silosynth.encoders import column as coding, summed
from silosynth.privacy.accounting import affords
from silosynth.privacy.aggregation import Masked
from silosynth.privacy.events import Event
from silosynth.privacy.masker import Masker
from silosynth.privacy.mechanisms import LEAST_VARIANCE
from silosynth.privacy.sealed import seats
from silosynth.runtime.wire import pack
from silosynth.simulation.federation import Federation
from silosynth.simulation.training import with_groups

CPU = torch.device("cpu")
TINY = {"bins": 5, "groups": 3}
DP = {"epsilon": 1.0, "delta": 1e-5, "encoders": 0.5}
KEY = bytes(range(32))
AT_EPSILONS = [
    ("mst", 0.3), ("mst", 1.0), ("mst", 3.0), ("mst", 10.0), pytest.param("aim", 0.3, marks=pytest.mark.slow),
    ("aim", 1.0), pytest.param("aim", 3.0, marks=pytest.mark.slow), ("aim", 10.0),
]  # fmt: skip
SUMS = marginals.SumCells, marginals.SumBins, opening.OpenSums  # what silos are asked for in sums, but for names


def with_small_sketches(patched: pytest.MonkeyPatch) -> None:
    """Have sketches of few buckets, for which two trainings have the same key."""
    patched.setattr(summed, "BUCKETS", 256)
    patched.setattr(RowsSilo, "_names_key", KEY)


@dataclass
class RowsPlay:
    """A training driven by hand, with what silos mask noted before it is masked."""

    federation: Federation
    options: dict[str, Any] = field(default_factory=dict)
    said: list[tuple[str, Message, Message]] = field(default_factory=list)
    words: dict[tuple[str, int], np.ndarray] = field(default_factory=dict)  # by silo, and number of the sum
    opened: list[tuple[CountRequest, dict[int, np.ndarray]]] = field(default_factory=list)  # to the coordinator
    model: dict[str, Any] = field(default_factory=dict)
    kind: str = "mst"
    change: Callable[[str, Message], Message] = lambda name, ask: ask  # by a coordinator that deviates

    def __post_init__(self) -> None:
        self.entry = algorithm(self.kind).divided(True)
        self.config = self.entry.configure("fast", TINY | with_groups(self.options, self.federation))
        seated, schemas = seats(self.federation.roster, Streams(4)), self.federation.schemas
        self.silos = {
            name: RowsSilo(table, schemas[name], seated[name], Streams(5).child(name), CPU, self.config)
            for name, table in self.federation.tables.items()
        }

    def drive(self, monkeypatch: pytest.MonkeyPatch) -> RowsPlay:
        real, sums, opens = Masker.mask_words, dict.fromkeys(self.silos, 0), opening.open_tables

        def mask_words(masker: Masker, words: np.ndarray, *more: Any) -> Masked:
            name = masker._seat.name
            self.words[name, sums[name]] = words.copy().view(np.int64)
            sums[name] += 1
            return real(masker, words, *more)

        def open_tables(roster: Any, request: CountRequest, *more: Any) -> Any:
            found = yield from opens(roster, request, *more)
            self.opened.append((request, found.own))
            return found

        with monkeypatch.context() as patched:
            patched.setattr(Masker, "mask_words", mask_words)
            patched.setattr(opening, "open_tables", open_tables)
            conversation = self.entry.coordinate(self.federation.roster, self.config, Streams(6), CPU, None)
            got: Any = None
            while True:
                try:
                    step = conversation.send(got)
                except StopIteration as end:
                    self.model = end.value
                    return self
                got = {}
                for name, ask in getattr(step, "asks", {}).items():
                    got[name] = self.silos[name].answer(self.change(name, ask))
                    self.said.append((name, ask, got[name]))

    def asked(self, *kinds: type[Message]) -> list[Any]:
        first = next(iter(self.silos))
        return [ask for name, ask, _ in self.said if isinstance(ask, kinds) and name == first]

    def sums(self) -> Iterator[Summed]:
        """All blocks of cells that were summed, and what each silo added to its own counts."""
        for number, ask in enumerate(self.asked(*SUMS)):
            events = [reply.events for _, one, reply in self.said if repr(one) == repr(ask)]
            assert len(events) == len(self.silos) and len(set(events)) == 1  # each silo lists all of its own
            exact = {name: self.counted(name, ask) for name in self.silos}
            bounds = np.cumsum([0, *map(len, next(iter(exact.values())))])
            for place, event in zip(range(len(bounds) - 1), events[0], strict=True):
                at = slice(bounds[place], bounds[place + 1])
                words = {name: self.words[name, number + bool(number)] for name in self.silos}  # the second is of names
                bits = self.unused_bits if isinstance(ask, opening.OpenSums) else 0
                noise = {name: (words[name][at] - (own[place] << bits)) >> bits for name, own in exact.items()}
                yield Summed(number, event, noise)

    @property
    def unused_bits(self) -> int:
        """Of a word that is summed, below a share."""
        request = next(iter(self.silos.values())).counter.request
        assert request is not None
        return 64 - request.bits if self.federation.groups else 0

    def counted(self, name: str, ask: Message) -> list[np.ndarray]:
        """What a silo counts in its rows, by block of cells; or its shares."""
        silo = self.silos[name]
        if isinstance(ask, opening.OpenSums):
            return [silo.counter.shares[number].reshape(-1).astype(np.int64) for number in ask.sets]
        table, schema = silo.columns.table, silo.agreed
        assert schema is not None
        if isinstance(ask, marginals.SumBins):
            of = [schema.names.index(one.name) for one in summed.numbers(schema)]
            grids = {schema.names[place]: grid for place, grid in zip(of, ask.grids, strict=True)}
        found = []
        for column in ("", *schema.names):
            there = column in table.names
            held = table if there or not column else Table((summed.blank(schema[column]),))
            own = schema.select([column] if column else [])
            if isinstance(ask, marginals.SumCells):
                cells = summed.first_cells(held.select(own.names), own, silo._names_key)
                cells = cells[1:] if column else [replace(cells[0], counts=torch.tensor([self._own_rows(name)]))]
            else:
                assert isinstance(ask, marginals.SumBins)
                its = [grids[column]] if column in grids else []
                cells = summed.second_cells(held.select(own.names), own, its, ask.bins)
            found += [one.counts.numpy() for one in cells]
        return found

    def _own_rows(self, name: str) -> int:
        """What a silo counts of the number of rows: those of a group are counted once."""
        first = [group[0] for group in self.federation.groups]
        return len(self.federation.tables[name]) if name in first or not first else 0


@dataclass
class Summed:
    """Cells that were summed: the number of the sum, their event, and each silo's noise."""

    number: int
    event: Event
    noise: dict[str, np.ndarray]


def changes_by_a_row(
    play: RowsPlay, fewer: Mapping[str, Table], patched: pytest.MonkeyPatch
) -> list[tuple[Summed, np.ndarray]]:
    """Each block of cells that opens, and by how much its cells change if silos hold ``fewer`` rows: no noise does.

    The second training has the noise of the first, and its coordinator is told what opened in the first one: further
    tables, and their noise, follow from what has opened, and this is how adaptive releases compose.

    Where a number lies within its grid cell is drawn for each row and column, in the product from one stream, so that a
    row less moves the draws of a silo's next columns. That costs no privacy. The draws are independent of all values,
    and of each other: those of the other rows have the same law with and without the row. Whatever they are, what opens
    keeps its (epsilon, delta) if both tables have the same ones; so it does on average over them. Here both have: each
    column has a stream of its own, and the row is the last one.
    """
    opened, changes = deque[np.ndarray](), list[np.ndarray]()
    tables = {**play.federation.tables, **fewer}
    other = RowsPlay(replace(play.federation, tables=tables), play.options, kind=play.kind)

    def noted(real: Callable[..., Any], again: bool) -> Callable[..., Any]:
        def secure_words(asks: Any, number: int, *more: Any) -> Any:
            words, silos = yield from real(asks, number, *more)
            if not again:
                opened.append(words.copy())
                return words, silos
            before = opened.popleft()
            if number != marginals._NAMES:  # a single row's is charged by the probability that it opens
                changes.append((before - words).view(np.int64))
            return before, silos

        return secure_words

    for one, again in ((play, False), (other, True)):
        with patched.context() as playing:
            playing.setattr(coding, "encode_table", with_a_stream_for_each_column(coding.encode_table))
            for module in (marginals, opening):
                playing.setattr(module, "secure_words", noted(module.secure_words, again))
            one.drive(playing)
    assert not opened and pack(other.model) == pack(play.model), "not played back"
    blocks = list(play.sums())
    assert [block.event for block in blocks] == [block.event for block in other.sums()]
    bits = [play.unused_bits if isinstance(ask, opening.OpenSums) else 0 for ask in play.asked(*SUMS)]
    cells = np.concatenate([change >> own for change, own in zip(changes, bits, strict=True)])
    ends = np.cumsum([len(next(iter(block.noise.values()))) for block in blocks])
    assert ends[-1] == len(cells)
    return list(zip(blocks, np.split(cells, ends[:-1]), strict=True))


def with_a_stream_for_each_column(real: Callable[..., Any]) -> Callable[..., Any]:
    """Encode columns one by one, so that what is drawn for a column's rows does not hang on those of another."""

    def encode_table(table: Table, encoders: Sequence[coding.Encoder], rng: np.random.Generator) -> Any:
        each = [real(table, [one], np.random.default_rng(list(one.name.encode()))) for one in encoders]
        return tuple(torch.cat(parts, dim=1) for parts in zip(*each, strict=True))

    return encode_table


def check_sensitivity(play: RowsPlay, silos: Sequence[str], patched: pytest.MonkeyPatch) -> None:
    """Check that a row less of these silos changes one cell by one in each block; or in as many as are charged."""
    tables = play.federation.tables
    fewer = {silo: tables[silo].take(torch.arange(len(tables[silo]) - 1)) for silo in silos}
    for block, cells in changes_by_a_row(play, fewer, patched):
        assert int(cells.sum()) == int(np.abs(cells).sum()) == block.event.times, block.event.what


def check_noise(play: RowsPlay) -> None:
    """Check that whoever takes one silo's noise off faces what is charged, that all is charged, and no noise twice."""
    blocks = list(play.sums())
    for number in {block.number for block in blocks}:
        for left_out in play.silos:
            faced = [
                sum(noise for name, noise in block.noise.items() if name != left_out) / block.event.noise
                for block in blocks if block.number == number
            ]  # fmt: skip
            units = np.concatenate(faced)
            assert np.mean(units**2) > 1 - 5 * np.sqrt(2 / len(units)), f"sum {number}: noise below its event's"
    events = [block.event for block in blocks for _ in range(block.event.times)]
    every = [replace(event, times=1) for event in events]
    assert affords(play.config.dp, every), "more is spent than the target affords"
    assert {event.scope for event in events} == {"all"} and not any(event.joint for event in events)
    drawn = [noise[:6].tobytes() for block in blocks for noise in block.noise.values() if len(noise) >= 6]
    assert len(set(drawn)) == len(drawn), "the same noise twice"


def half_the_noise(patched: pytest.MonkeyPatch) -> None:
    real = CellNoise.part
    patched.setattr(CellNoise, "part", lambda noise, parts, *more: real(noise, 2 * parts, *more))


def an_event_left_out(patched: pytest.MonkeyPatch) -> None:
    real = RowsSilo._summed
    patched.setattr(RowsSilo, "_summed", lambda *args: (r := real(*args), replace(r, events=r.events[:-1]))[1])


def a_tables_event_left_out(patched: pytest.MonkeyPatch) -> None:
    real = TableCounter._sum
    patched.setattr(TableCounter, "_sum", lambda *args: (r := real(*args), replace(r, events=r.events[:-1]))[1])


def noise_reused(patched: pytest.MonkeyPatch) -> None:
    real = Streams.noise
    patched.setattr(Streams, "noise", lambda streams: real(Streams(0)))


def less_noise_in_the_plan(patched: pytest.MonkeyPatch) -> None:
    real = private.column_noise
    patched.setattr(private, "column_noise", lambda variance, factor=1.0: real(variance, factor / 2))


def half_on_full_tables(patched: pytest.MonkeyPatch) -> None:
    real = private.next_noise
    patched.setattr(private, "next_noise", lambda *given: halved(real(*given)))


def half_on_later_tables(patched: pytest.MonkeyPatch) -> None:
    real = private.next_noise

    def next_noise(config: Any, held: Any, opened: Any, planned: int) -> Any:
        noise = real(config, held, opened, planned)
        return halved(noise) if opened else noise

    patched.setattr(private, "next_noise", next_noise)


def later_tables_as_if_none_were_open(patched: pytest.MonkeyPatch) -> None:
    real = private.next_noise
    patched.setattr(private, "next_noise", lambda config, held, opened, planned: real(config, held, (), planned))


def halved(noise: CellNoise | None) -> CellNoise:
    assert noise is not None
    return replace(noise, half_variance=max(LEAST_VARIANCE, noise.half_variance // 2))


EVERYWHERE = [half_the_noise, an_event_left_out, a_tables_event_left_out, noise_reused, less_noise_in_the_plan]
BEYOND_A_TREE = [half_on_full_tables, half_on_later_tables, later_tables_as_if_none_were_open]
CAUGHT = r"noise below|the same noise|zip\(\)|affords|opens no tables beyond"
