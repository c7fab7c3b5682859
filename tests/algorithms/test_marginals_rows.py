"""MST and AIM of silos that hold different rows: sums over silos, and what of the noise each party faces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.contracts.settings import BOUNDS, frame

import silosynth as ss
from silosynth.algorithms.marginals import private, protocol as marginals
from silosynth.algorithms.marginals.silo import RowsSilo
from silosynth.catalog import algorithm
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import Message
from silosynth.core.schema import Schema, same_columns
from silosynth.core.streams import Streams
from silosynth.counting import opening
from silosynth.counting.opening import CellNoise
from silosynth.encoders import summed
from silosynth.privacy.accounting import affords
from silosynth.privacy.aggregation import Masked
from silosynth.privacy.events import Event
from silosynth.privacy.masker import Masker
from silosynth.privacy.mechanisms import LEAST_VARIANCE
from silosynth.privacy.sealed import seats
from silosynth.runtime.wire import pack
from silosynth.simulation.federation import Federation

CPU = torch.device("cpu")
TINY = {"bins": 5, "groups": 3}
DP = {"epsilon": 1.5, "delta": 1e-5, "encoders": 0.5}


def divided(data: pd.DataFrame, silos: int = 3, bounds: Any = BOUNDS) -> Federation:
    parts = np.array_split(np.arange(len(data)), silos)
    return ss.simulate(data, rows={f"silo{n}": part.tolist() for n, part in enumerate(parts)}, schema=bounds)


@dataclass
class RowsPlay:
    """A training driven by hand, with what silos mask noted before it is masked."""

    federation: Federation
    options: dict[str, Any] = field(default_factory=dict)
    said: list[tuple[str, Message, Message]] = field(default_factory=list)
    words: dict[tuple[str, int], np.ndarray] = field(default_factory=dict)  # by silo, and number of the sum
    model: dict[str, Any] = field(default_factory=dict)
    kind: str = "mst"

    def __post_init__(self) -> None:
        self.entry = algorithm(self.kind).divided(True)
        self.config = self.entry.configure("fast", TINY | self.options)
        seated, schemas = seats(self.federation.roster, Streams(4)), self.federation.schemas
        self.silos = {
            name: RowsSilo(table, schemas[name], seated[name], Streams(5).child(name), CPU, self.config)
            for name, table in self.federation.tables.items()
        }

    def drive(self, monkeypatch: pytest.MonkeyPatch) -> RowsPlay:
        real, sums = Masker.mask_words, dict.fromkeys(self.silos, 0)

        def mask_words(masker: Masker, words: np.ndarray, number: int) -> Masked:
            name = masker._seat.name
            self.words[name, sums[name]] = words.copy().view(np.int64)
            sums[name] += 1
            return real(masker, words, number)

        with monkeypatch.context() as patched:
            patched.setattr(Masker, "mask_words", mask_words)
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
                    got[name] = self.silos[name].answer(ask)
                    self.said.append((name, ask, got[name]))

    def asked(self, *kinds: type[Message]) -> list[Any]:
        return [ask for name, ask, _ in self.said if isinstance(ask, kinds) and name == "silo0"]

    def sums(self) -> Iterator[Summed]:
        """All blocks of cells that were summed, and what each silo added to its own counts."""
        for number, ask in enumerate(self.asked(marginals.SumCells, marginals.SumBins, opening.OpenSums)):
            events = [reply.events for _, one, reply in self.said if repr(one) == repr(ask)]
            assert len(events) == len(self.silos) and len(set(events)) == 1  # each silo lists all of its own
            exact = {name: self._exact(silo, ask) for name, silo in self.silos.items()}
            bounds = np.cumsum([0, *map(len, exact["silo0"])])
            for place, event in zip(range(len(bounds) - 1), events[0], strict=True):
                at = slice(bounds[place], bounds[place + 1])
                words = {name: self.words[name, number + bool(number)] for name in self.silos}  # the second is of names
                yield Summed(number, event, {name: words[name][at] - own[place] for name, own in exact.items()})

    @staticmethod
    def _exact(silo: RowsSilo, ask: Message) -> list[np.ndarray]:
        """What a silo counts in its rows."""
        if isinstance(ask, opening.OpenSums):
            return [silo.counter.shares[number].reshape(-1).astype(np.int64) for number in ask.sets]
        table, schema = silo.columns.table, silo.agreed
        assert schema is not None
        if isinstance(ask, marginals.SumCells):
            return [cells.counts.numpy() for cells in summed.first_cells(table, schema, silo._names_key)]
        assert isinstance(ask, marginals.SumBins)
        return [cells.counts.numpy() for cells in summed.second_cells(table, schema, ask.grids, ask.bins)]


@dataclass
class Summed:
    """Cells that were summed: the number of the sum, their event, and each silo's noise."""

    number: int
    event: Event
    noise: dict[str, np.ndarray]


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
    assert affords(play.config.dp, [replace(event, times=1) for event in events])
    assert {event.scope for event in events} == {"all"} and not any(event.joint for event in events)
    drawn = [noise[:6].tobytes() for block in blocks for noise in block.noise.values() if len(noise) >= 6]
    assert len(set(drawn)) == len(drawn), "the same noise twice"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Sketches of few buckets, for which two trainings have the same key."""
    monkeypatch.setattr(summed, "BUCKETS", 256)
    monkeypatch.setattr(RowsSilo, "_names_key", KEY)
    return monkeypatch


@pytest.fixture(scope="module")
def noised() -> RowsPlay:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(summed, "BUCKETS", 256)
        patched.setattr(RowsSilo, "_names_key", KEY)
        return RowsPlay(divided(frame()), {"dp": DP}).drive(patched)


@pytest.fixture(scope="module")
def exact() -> RowsPlay:
    with pytest.MonkeyPatch.context() as patched:
        return RowsPlay(divided(frame(), bounds=None)).drive(patched)


KEY = bytes(range(32))


def test_sums_are_noised_as_charged(noised: RowsPlay, small: pytest.MonkeyPatch) -> None:
    check_noise(noised)
    assert len(noised.asked(opening.OpenSums)) == 2  # groups of all pairs, and the tree


def half_the_noise(patched: pytest.MonkeyPatch) -> None:
    real = CellNoise.part
    patched.setattr(CellNoise, "part", lambda noise, parts, *more: real(noise, 2 * parts, *more))


def an_event_left_out(patched: pytest.MonkeyPatch) -> None:
    real = RowsSilo._summed
    patched.setattr(RowsSilo, "_summed", lambda *args: (r := real(*args), replace(r, events=r.events[:-1]))[1])


def noise_reused(patched: pytest.MonkeyPatch) -> None:
    real = Streams.noise
    patched.setattr(Streams, "noise", lambda streams: real(Streams(0)))


def less_noise_in_the_plan(patched: pytest.MonkeyPatch) -> None:
    real = private.column_noise
    patched.setattr(private, "column_noise", lambda plan, factor=1.0: real(plan, factor / 2))


def half_on_full_tables(patched: pytest.MonkeyPatch) -> None:
    real = private.full_noise
    patched.setattr(private, "full_noise", lambda *given: halved(real(*given)))


def half_on_the_last_tables(patched: pytest.MonkeyPatch) -> None:
    real = private.last_noise
    patched.setattr(private, "last_noise", lambda *given: halved(real(*given)))


def last_tables_as_if_none_were_open(patched: pytest.MonkeyPatch) -> None:
    real = private.last_noise
    patched.setattr(
        private, "last_noise", lambda config, held, levels, opened, last: real(config, held, levels, 0, last)
    )


def halved(noise: CellNoise | None) -> CellNoise:
    assert noise is not None
    return replace(noise, half_variance=max(LEAST_VARIANCE, noise.half_variance // 2))


def extended(patched: pytest.MonkeyPatch) -> RowsPlay:
    """AIM, which opens more tables than a tree's: its last ones get what is left of the budget."""
    data = pd.concat([frame()] * 200, ignore_index=True)
    play = RowsPlay(divided(data), {"dp": DP, "tables": 2.0, "rounds": 1}, kind="aim").drive(patched)
    assert len(play.asked(opening.OpenSums)) == 3, "groups of all pairs, the tree, and more"
    return play


EVERYWHERE = [half_the_noise, an_event_left_out, noise_reused, less_noise_in_the_plan]
BEYOND_A_TREE = [half_on_full_tables, half_on_the_last_tables, last_tables_as_if_none_were_open]
CAUGHT = r"noise below|the same noise|zip\(\)|affords|opens no tables beyond"


@pytest.mark.parametrize("mutated", EVERYWHERE)
def test_weaker_mechanisms_are_caught(mutated: Any, small: pytest.MonkeyPatch) -> None:
    mutated(small)
    with pytest.raises((AssertionError, ValueError), match=CAUGHT):
        check_noise(RowsPlay(divided(frame()), {"dp": DP}).drive(small))


def test_further_tables_are_noised_as_charged(small: pytest.MonkeyPatch) -> None:
    check_noise(extended(small))


@pytest.mark.parametrize("mutated", EVERYWHERE + BEYOND_A_TREE)
def test_weaker_mechanisms_are_caught_beyond_a_tree(mutated: Any, small: pytest.MonkeyPatch) -> None:
    mutated(small)
    with pytest.raises((AssertionError, ValueError, ProtocolError), match=CAUGHT):
        check_noise(extended(small))


def test_neighbours_change_what_opens_by_its_sensitivity(noised: RowsPlay, small: pytest.MonkeyPatch) -> None:
    """One row less in one silo, with the same noise: each block of cells changes by one in as many as are charged."""
    federation = noised.federation
    fewer = {**federation.tables, "silo1": federation.tables["silo1"].take(torch.arange(29))}
    other = RowsPlay(replace(federation, tables=fewer), {"dp": DP}).drive(small)
    assert [repr(ask) for ask in other.asked(marginals.SumCells, marginals.SumBins, opening.OpenSums)] == [
        repr(ask) for ask in noised.asked(marginals.SumCells, marginals.SumBins, opening.OpenSums)
    ]
    bounds = [len(block.noise["silo1"]) for block in noised.sums()]
    times = [block.event.times for block in noised.sums()]
    changed = [noised.words[key] - other.words[key] for key in noised.words if key[0] == "silo1" and key[1] != 1]
    cells = np.concatenate([own[: len(own) - (number > 1)] for number, own in enumerate(changed)])  # behind: weights
    blocks = np.split(cells, np.cumsum(bounds)[:-1])
    assert [int(block.sum()) for block in blocks] == times and [int(np.abs(block).sum()) for block in blocks] == times
    assert all(np.array_equal(noised.words[key], other.words[key]) for key in noised.words if key[0] == "silo0")


def test_each_silo_has_a_part_of_the_noise() -> None:
    """Of n silos, n - 1 have all of it, whichever they are; all have n / (n - 1) times as much, up to rounding."""
    for silos in (2, 3, 5, 20):
        for half in (8, 100, 12345):
            part = CellNoise(half_variance=half).part_variance(silos - 1)
            assert 2 * half <= part * (silos - 1) and (part == 8 or part * (silos - 1) < 2 * half + silos)


def test_tables_and_levels_without_noise_are_those_of_the_pooled_rows(exact: RowsPlay) -> None:
    data = frame()
    encoders = {one["fields"]["name"]: one["fields"] for one in exact.model["encoders"]}
    assert exact.model["rows"] == 90 and set(encoders["city"]["kept"]) == {"Bern", "Delft", "Oslo"}
    assert encoders["note"]["missing"] and set(encoders["note"]["kept"]) == {"a", "b"}
    city = exact.model["names"].index("city")
    shares = exact.model["attributes"][city]["fields"]["share_F"]
    counts = data["city"].value_counts()
    assert torch.allclose(
        shares * 90, torch.tensor([float(counts[name]) for name in encoders["city"]["kept"]]).double()
    )
    for ask in exact.asked(opening.OpenSums):
        cells = [sum(exact._exact(silo, ask)[at] for silo in exact.silos.values()) for at in range(len(ask.sets))]
        assert {int(table.sum()) for table in cells} == {90}


def test_the_same_seed_gives_the_same_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash of names as well: its key follows from what silos draw."""
    monkeypatch.setattr(summed, "BUCKETS", 256)
    first, second = (RowsPlay(divided(frame()), {"dp": DP}).drive(monkeypatch) for _ in range(2))
    assert pack(first.model) == pack(second.model)
    names = {name: [play.silos[name]._names_key for play in (first, second)] for name in first.silos}
    assert len({key for keys in names.values() for key in keys}) == 1


def test_silos_see_nothing_of_each_other_and_keep_no_model(noised: RowsPlay) -> None:
    assert all(silo.trained() == {} for silo in noised.silos.values())
    told = {type(ask) for name, ask, _ in noised.said}
    assert marginals.TakeNoisedAttributes in told and marginals.TakeAttributes not in told


@pytest.mark.parametrize(("silos", "options"), [(2, {}), (1, {"dp": DP}), (1, {})])
def test_too_few_silos(silos: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=f"over {2 if options else 3} or more, of which each knows its own"):
        RowsPlay(divided(frame(), silos), options).drive(monkeypatch)


def test_options_that_do_not_go_together() -> None:
    entry = algorithm("mst")
    with pytest.raises(ConfigError, match="no columns of their own that could stay"):
        entry.configure("balanced", {"horizontal": True, "synthesis": "partitioned"})
    with pytest.raises(ConfigError, match="which columns determine others"):
        entry.configure("balanced", {"horizontal": True, "encoders.dependencies": "keep"})
    assert entry.configure("fast", {"horizontal": True}) == entry.divided(True).configure("fast")
    assert entry.of(entry.configure("fast", {"horizontal": True})).horizontal
    assert not entry.of(entry.configure("fast")).horizontal


def test_a_federation_of_columns_refuses_to_be_one_of_rows() -> None:
    columns = ss.simulate(frame(), silos={"a": ["age", "spent"], "b": ["city"]})
    with pytest.raises(ConfigError, match="is for silos that hold different rows"):
        ss.fit("mst", columns, options={"horizontal": True}, progress=False)
    with pytest.raises(ConfigError, match="is for silos that hold different columns"):
        ss.fit("mst", divided(frame()), options={"horizontal": False}, progress=False)


def test_what_decides_are_the_columns_that_silos_hold() -> None:
    assert same_columns({"a": ["x", "y"], "b": ["y", "x"]})
    assert not same_columns({"a": ["x"], "b": ["y"]})
    with pytest.raises(ConfigError, match=r"the same columns, of different rows, or different columns.*others not: x"):
        same_columns({"a": ["x", "y"], "b": ["x"]})


# What a silo refuses.


def again(play: RowsPlay, kind: type[Message]) -> tuple[RowsSilo, Any]:
    """A silo that has just been asked this for the first time, and the ask."""
    fresh = RowsPlay(play.federation, play.options).silos["silo0"]
    fresh.agreed, fresh.columns.table = play.silos["silo0"].agreed, play.silos["silo0"].columns.table
    fresh.held = play.silos["silo0"].held
    return fresh, play.asked(kind)[0]


def test_a_silo_names_no_levels_beyond_delta(noised: RowsPlay) -> None:
    silo, ask = again(noised, marginals.SumNames)
    every = torch.arange(summed.BUCKETS)
    with pytest.raises(ProtocolError, match="a single row's level is named"):
        silo._sum_names(replace(ask, places=tuple(every for _ in ask.places)))
    with pytest.raises(ProtocolError, match="in buckets of each table"):
        silo._sum_names(replace(ask, places=ask.places[1:]))


def test_a_silo_takes_attributes_of_its_columns_only(noised: RowsPlay) -> None:
    silo, ask = again(noised, marginals.TakeAttributes)
    first = ask.attributes[0]
    for attributes in (
        ask.attributes[1:],
        (replace(first, level_F=first.level_F[1:]), *ask.attributes[1:]),
        (replace(first, level_F=first.level_F + 99), *ask.attributes[1:]),
        (replace(first, group_L=torch.zeros(40, dtype=torch.int64)), *ask.attributes[1:]),
    ):
        with pytest.raises(ProtocolError, match="takes attributes of the columns that silos agreed on"):
            silo._take(replace(ask, attributes=attributes))
    with pytest.raises(ProtocolError, match="takes attributes of the columns"):
        silo._take(replace(ask, encoders=ask.encoders[::-1]))


def test_a_silo_opens_a_tree_and_with_the_planned_noise_only(noised: RowsPlay) -> None:
    silo, (groups, tree) = noised.silos["silo0"], noised.asked(opening.OpenSums)
    with pytest.raises(ProtocolError, match="opens each table once, in full those that all silos agreed on"):
        silo._open(replace(groups, number=9))
    with pytest.raises(ProtocolError, match="with the noise that follows from its options"):
        silo._open(replace(tree, number=9, noises=(CellNoise(half_variance=8),) * len(tree.sets)))
    with pytest.raises(ProtocolError, match="with the noise that follows from its options"):
        silo._open(opening.OpenSums(9, tree.sets, ()))


def test_sums_need_all_silos_and_columns_that_silos_have(noised: RowsPlay) -> None:
    silo, ask = again(noised, marginals.SumCells)
    with pytest.raises(ProtocolError, match="covers each silo's own columns"):
        silo._sum_cells(replace(ask, schema=Schema(ask.schema.columns[1:])))
    assert silo._masker._least == 3
