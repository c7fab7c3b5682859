"""Judging: tables of a job open as its options say; a coordinator that wants others, or others' noise, gets none."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.counting.talk import NAMES, crosstab, levels, restore, until_checkpoint

from silosynth.core.conversation import Conversation, Roster
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import Release
from silosynth.core.schema import Column, ColumnSchema, Schema, Table
from silosynth.core.streams import Streams
from silosynth.counting import CellNoise, CountedColumn, judge, opening, protocol
from silosynth.counting.distances import Figure, PrepareFigures
from silosynth.counting.judge import HOLDOUT, JudgeConfig, JudgingSilo
from silosynth.privacy.accounting import spent
from silosynth.privacy.events import Target
from silosynth.privacy.sealed import seats
from silosynth.runtime.driver import drive
from silosynth.runtime.ledger import Ledger
from silosynth.runtime.wire import pack, unpack
from silosynth.simulation.silos import InProcess

CPU = torch.device("cpu")
SIZES = {"bank 0": 3, "bank 1": 2, "clinic 0": 4, "shop 0": 2}
ROWS, SILOS = 12, NAMES[:3]
RNG = np.random.default_rng(5)
HELD = {name: RNG.integers(0, size, ROWS) for name, size in SIZES.items()}
OUT = RNG.integers(0, 2, ROWS).astype(bool)
SETS = ((0, 2), (3, 0), (1,), (3, 2), (0, 1), (0, 2, 3))
NOISED = JudgeConfig(
    tuple(CountedColumn("", name, levels(size)) for name, size in SIZES.items()),
    SETS, "noised", Target(1.0, 1e-6), most_rows=20,
)  # fmt: skip
SHAPES = [tuple(SIZES[list(SIZES)[place]] for place in places) for places in SETS]
FIGURES = replace(
    NOISED, opening="figures", dp=Target(), most_rows=0,
    references=tuple(
        torch.from_numpy(RNG.integers(1, 9, shape if number != 1 else (2, *shape)))  # two of the second set
        for number, shape in enumerate(SHAPES)
    ),
)  # fmt: skip
OURS = judge.noise_of(NOISED)
EXACT = replace(NOISED, opening="exact", dp=Target(), most_rows=0)


def silos(config: JudgeConfig, held: Mapping[str, np.ndarray] = HELD, out: np.ndarray = OUT) -> dict[str, JudgingSilo]:
    made, found = seats(SILOS, Streams(7).child("seats")), {}
    for number, silo in enumerate(SILOS):
        columns = [
            Column(name, "str", torch.from_numpy(np.where(codes == SIZES[name] - 1, 0, codes)),
                   torch.from_numpy(codes == SIZES[name] - 1), levels(SIZES[name]))
            for name, codes in held.items() if name.startswith(silo)
        ]  # fmt: skip
        schema = Schema(tuple(ColumnSchema(column.name, "categorical", "str") for column in columns))
        flag = Column(HOLDOUT, "bool", torch.from_numpy(out.astype(np.int64)), torch.zeros(ROWS).bool(), (False, True))
        table = Table((*columns, flag) if config.holdout else tuple(columns))
        found[silo] = JudgingSilo(table, schema, made[silo], Streams(number), CPU, config)
    return found


def judged(
    config: JudgeConfig, parties: Mapping[str, Any] | None = None, state: Any = None, ledger: Ledger | None = None,
    asked: JudgeConfig | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Drive a judging; the coordinator may take other options than the silos."""

    def whole(_: object) -> Conversation[dict[str, Any]]:
        return (yield from judge.coordinate(Roster(SILOS), asked or config, Streams(9), CPU, state))

    with InProcess(dict(parties or silos(config))) as link:
        return drive(whole, link, Ledger() if ledger is None else ledger)


def names(number: int) -> list[str]:
    return [list(SIZES)[place] for place in SETS[number]]


def test_exact_tables_are_those_of_the_pooled_rows_and_of_three_silos_stay_closed() -> None:
    found = judged(EXACT, ledger=(ledger := Ledger()))
    assert found["owners"] == ["bank", "bank", "clinic", "shop"] and found["rows"] == 1024
    for number, table in enumerate(found["tables"][:5]):
        assert np.array_equal(table, crosstab(HELD, SIZES, names(number))) and table.dtype is torch.int64
    assert found["tables"][5] is None and found["noise"] == 0.0 and set(found["noises"]) == {0.0}
    assert not any(entry.get("events") for entry in ledger.entries())
    three = judged(replace(EXACT, three=True))["tables"][5]
    assert np.array_equal(three, crosstab(HELD, SIZES, names(5)))


def test_the_hold_out_is_the_last_axis() -> None:
    for table, number in zip(judged(replace(EXACT, holdout=True))["tables"][:5], range(5), strict=True):
        for axis, chosen in enumerate((~OUT, OUT)):
            rows = {name: codes[chosen] for name, codes in HELD.items()}
            assert np.array_equal(table[..., axis], crosstab(rows, SIZES, names(number)))


def test_noised_tables_share_the_target() -> None:
    parties = silos(NOISED)
    found = judged(NOISED, parties)
    for number, table in enumerate(found["tables"][:5]):
        error = table.numpy() - crosstab(HELD, SIZES, names(number))
        assert np.abs(error).max() < 60 and (number == 2 or error.any())
    events = {event for party in parties.values() for event in party._counter.events}
    assert len(events) == 5 and 0.8 < spent(events, 1e-6).epsilon < 1.0  # of six sets, one stays closed
    assert found["noise"] == found["noises"][0] > found["noises"][2] > 0  # two silos' tables have a half more
    assert all(not isinstance(table, np.ndarray) for table in found["tables"])


def test_between_counting_and_opening_it_resumes() -> None:
    parties, again = silos(NOISED), silos(NOISED)
    state = until_checkpoint(judge.coordinate(Roster(SILOS), NOISED, Streams(9), CPU), parties)
    restore(again, parties)
    first = judged(NOISED, parties, state=state)
    second = judged(NOISED, again, state=unpack(pack(state)))
    assert all(torch.equal(a, b) for a, b in zip(first["tables"][:5], second["tables"][:5], strict=True))


@pytest.mark.parametrize(
    ("job", "asked", "error"),
    [
        (NOISED, replace(EXACT, most_rows=20), "bits|exactly if it was made to|as its job says|counts what its job"),
        (NOISED, EXACT, "tells about how many rows"),
        (NOISED, replace(NOISED, dp=Target(0.5, 1e-6)), "noise that follows from its job|counts what its job"),
        (NOISED, replace(NOISED, sets=((0, 2),)), "counts what its job says"),
        (NOISED, replace(NOISED, most_rows=1024), "as many rows as its job says"),
        (EXACT, NOISED, "rounded number"),
        (EXACT, replace(EXACT, most_rows=13), "rounded number"),
        (EXACT, replace(EXACT, sets=(*SETS, (1, 2))), "counts what its job says"),
        (EXACT, replace(EXACT, three=True), "counts what its job says"),
        (replace(EXACT, holdout=True), EXACT, "counts what its job says"),
    ],
)
def test_a_coordinator_that_wants_something_else_gets_nothing(job: JudgeConfig, asked: JudgeConfig, error: str) -> None:
    with pytest.raises(ProtocolError, match=error):
        judged(job, asked=asked)


def test_an_opening_that_the_job_does_not_have_is_refused_after_an_honest_counting() -> None:
    noised, exact = silos(NOISED), silos(EXACT)
    judged(NOISED, noised)
    judged(EXACT, exact)
    with pytest.raises(ProtocolError, match="exactly if it was made to"):
        noised["bank"].answer(opening.RevealTables((0,)))
    with pytest.raises(ProtocolError, match="noise that follows from its job"):
        noised["bank"].answer(opening.OpenTables((0,), (CellNoise(half_variance=1000),)))
    with pytest.raises(ProtocolError, match="each table of its job once"):
        noised["bank"].answer(opening.OpenTables((0,), (OURS,)))  # again, with other noise
    with pytest.raises(ProtocolError, match=r"given a target|noise that follows"):
        exact["bank"].answer(opening.OpenTables((0,), (OURS,)))


def test_a_silo_that_was_brought_back_answers_the_same() -> None:
    parties = silos(NOISED)
    judged(NOISED, parties)
    before = silos(NOISED)["bank"].state() | {"opened": []}
    before["counter"] = parties["bank"]._counter.state() | {"events": []}
    parties["bank"].restore(before)
    first = parties["bank"].answer(opening.OpenTables((0,), (OURS,)))
    parties["bank"].restore(before)
    again = parties["bank"].answer(opening.OpenTables((0,), (OURS,)))
    assert torch.equal(first.shares[0], again.shares[0])  # type: ignore[attr-defined]


def test_columns_are_in_one_silo() -> None:
    unknown = replace(EXACT, columns=(*EXACT.columns, CountedColumn("", "moon", ("new",))))
    with pytest.raises(ConfigError, match=r"'moon' that is judged is in one silo .*in none"):
        judged(unknown)
    parties = silos(EXACT)
    parties["shop"]._held = (0, 3)
    with pytest.raises(ConfigError, match=r"'bank 0' that is judged is in one silo .*bank.*shop"):
        judged(EXACT, parties)
    lying = silos(EXACT)
    lying["shop"]._held = (0, 3)
    lying["bank"]._held = (1,)
    with pytest.raises(Exception, match="no such column"):
        judged(EXACT, lying)


def test_a_silo_counts_the_columns_that_it_holds() -> None:
    owners = ("bank", "bank", "clinic", "shop")
    for others in (("clinic", "bank", "clinic", "shop"), ("bank", "bank", "nobody", "shop"), ("bank", "bank")):
        asked = judge.request_for(EXACT, SILOS, owners, 1024)
        columns = tuple(replace(c, silo=o) for c, o in zip(asked.columns, others, strict=False))
        changed = object.__new__(type(asked))
        for field in ("silos", "sets", "rows", "bits", "block"):
            object.__setattr__(changed, field, getattr(asked, field))
        object.__setattr__(changed, "columns", columns)
        with pytest.raises(ProtocolError, match=r"columns that it holds|of the silos of its roster"):
            silos(EXACT)["bank"].answer(protocol.PrepareCount(changed))


def test_options_are_checked() -> None:
    column = NOISED.columns[0]
    for change, error in (
        ({"columns": (column, column), "sets": ()}, "each name once"),
        ({"columns": (replace(column, name=HOLDOUT),), "sets": ()}, "each name once"),
        ({"columns": (replace(column, silo="bank"),), "sets": ()}, "no silo"),
        ({"sets": ((0, 0),)}, "by their places"),
        ({"sets": ((9,),)}, "by their places"),
        ({"sets": ((),)}, "by their places"),
        ({"dp": Target()}, "open with noise have a target"),
        ({"opening": "exact"}, "open with noise have a target"),
    ):
        with pytest.raises(ConfigError, match=error):
            replace(NOISED, **change)
    with pytest.raises(ConfigError, match="public bound of their rows"):
        judged(replace(NOISED, most_rows=0))
    table, seat = silos(EXACT)["bank"]._counter._table, seats(SILOS, Streams(7))["bank"]
    with pytest.raises(ConfigError, match="which rows those are"):
        JudgingSilo(table, Schema(()), seat, Streams(0), CPU, replace(EXACT, holdout=True))
    with pytest.raises(ConfigError, match="few enough silos"):
        judged(replace(NOISED, sets=((0, 2, 3),)))


def test_only_what_was_agreed_leaves() -> None:
    for config, kinds in ((EXACT, {Release.TABLES, Release.COUNTS}), (NOISED, {Release.NOISED})):
        judged(config, ledger=(ledger := Ledger()))
        told = {entry["privacy"] for entry in ledger.entries()}
        assert told == {kind.value for kind in (*kinds, Release.NOTHING, Release.SCHEMA, Release.SEALED)}


@pytest.mark.parametrize("noise", [CellNoise(0.4), CellNoise(half_variance=20)])
def test_deviations_are_those_of_the_noise(noise: CellNoise) -> None:
    rng = Streams(1).noise()
    halves = sum(noise.part(2, (40_000,), rng) for _ in range(3))
    assert math.isclose(float(np.std(halves)), noise.deviation(3), rel_tol=0.03)
    assert math.isclose(float(np.std(noise.whole((40_000,), rng))), noise.deviation(2), rel_tol=0.03)


class TestFigures:
    def test_distances_are_those_of_the_pooled_rows(self) -> None:
        for config in (FIGURES, replace(FIGURES, holdout=True), replace(FIGURES, three=True, holdout=True)):
            found = judged(config, ledger=(ledger := Ledger()))
            assert found["tables"] == [None] * 6 and found["noise"] == 0.0
            kept = ~OUT if config.holdout else OUT | True
            for number, own in enumerate(found["distances"][: 6 if config.three else 5]):
                real = crosstab({name: codes[kept] for name, codes in HELD.items()}, SIZES, names(number)) / kept.sum()
                public = [table.numpy() / table.sum().item() for table in config.compared(number)]
                if config.holdout:
                    held = crosstab({name: codes[OUT] for name, codes in HELD.items()}, SIZES, names(number))
                    public.append(held / OUT.sum())
                assert own == pytest.approx([((real - table) ** 2).sum() for table in public], rel=1e-6)
            assert config.three or found["distances"][5] is None
            told = {entry["privacy"] for entry in ledger.entries()}
            kinds = Release.NOTHING, Release.SCHEMA, Release.SEALED, Release.COUNTS, Release.FIGURES
            assert told == {kind.value for kind in kinds}

    def test_a_table_that_is_its_own_reference_is_at_no_distance(self) -> None:
        tables = [crosstab(HELD, SIZES, names(number)) for number in range(5)]
        config = replace(FIGURES, sets=SETS[:5], references=tuple(map(torch.from_numpy, tables)))
        assert judged(config)["distances"] == [[0.0]] * 5

    def test_it_resumes_between_counting_and_opening(self) -> None:
        parties, again = silos(FIGURES), silos(FIGURES)
        state = until_checkpoint(judge.coordinate(Roster(SILOS), FIGURES, Streams(9), CPU), parties)
        restore(again, parties)
        assert judged(FIGURES, again, state=unpack(pack(state))) == judged(FIGURES)

    def test_a_silo_opens_the_figures_of_its_job_once_counted(self) -> None:
        with pytest.raises(ProtocolError, match="opens the figures that follow from its job"):
            judged(FIGURES, asked=replace(FIGURES, references=tuple(2 * own + 1 for own in FIGURES.references)))
        parties = silos(FIGURES)
        judged(FIGURES, parties)
        with pytest.raises(ProtocolError, match="counts once for its job"):
            judged(FIGURES, parties)
        for ask in (opening.RevealTables((0,)), opening.OpenTables((0,), (OURS,))):
            with pytest.raises(ProtocolError):
                parties["bank"].answer(ask)
        for config in (NOISED, EXACT):
            judged(config, parties := silos(config))
            with pytest.raises(ProtocolError, match="if its job says so"):
                parties["bank"].answer(PrepareFigures((Figure(0, (1,), torch.zeros(3, 4).long()),)))
            with pytest.raises(ProtocolError, match="numbers of rows if figures open"):
                parties["bank"].answer(judge.TellNumbers())

    def test_silos_that_hold_different_numbers_of_rows_are_not_compared(self) -> None:
        config, other = replace(FIGURES, holdout=True), OUT.copy()
        other[np.flatnonzero(OUT)[0]] = False
        parties = silos(config) | {"shop": silos(config, out=other)["shop"]}
        with pytest.raises(ProtocolError, match="same rows in the same order"):
            judged(config, parties)
        with pytest.raises(ConfigError, match="one held out"):
            judged(config, silos(config, out=OUT & False))

    def test_references_are_checked(self) -> None:
        first, *rest = FIGURES.references
        for wrong in (first.double(), -first - 1, first[:-1], first * 0, torch.stack([first] * 5), first[None, None]):
            with pytest.raises(ConfigError, match="tables of counts of its shape"):
                replace(FIGURES, references=(wrong, *rest))
        for config, references in ((FIGURES, (first,)), (EXACT, (first,)), (FIGURES, ())):
            with pytest.raises(ConfigError, match="references for each set"):
                replace(config, references=references)

    def test_scales_are_next_to_equal_and_small(self) -> None:
        for rows, others in ((50_000, 1_000), (7, 3), (10**6, 999_983), (3, 10**6), (1000, 16_000_000)):
            real, public = judge._scales(rows, others)
            assert real * rows <= 1 << 30 and real * rows == pytest.approx(public * others, rel=1e-3)
        with pytest.raises(ConfigError, match="not too far apart"):
            judge._scales(10**6, 1_234_567_891)

    def test_a_loose_bound_of_rows_changes_nothing(self) -> None:
        assert judged(replace(FIGURES, most_rows=10**6))["distances"] == judged(FIGURES)["distances"]


@pytest.mark.parametrize("config", [EXACT, NOISED, FIGURES])
def test_a_silo_that_holds_nothing_deals(config: JudgeConfig) -> None:
    """It may have no rows either, and no hold-out."""
    config = replace(config, dealer="school", holdout=True, three=True)
    names = (*SILOS, "school")
    made, parties = seats(names, Streams(7).child("seats")), dict[str, JudgingSilo]()
    for number, (silo, party) in enumerate(silos(config).items()):
        schema = Schema(tuple(ColumnSchema(name, "categorical", "str") for name in SIZES if name.startswith(silo)))
        parties[silo] = JudgingSilo(party._counter._table, schema, made[silo], Streams(number), CPU, config)
    parties["school"] = JudgingSilo(Table(()), Schema(()), made["school"], Streams(3), CPU, config)

    def whole(_: object) -> Conversation[dict[str, Any]]:
        return (yield from judge.coordinate(Roster(names), config, Streams(9), CPU))

    with InProcess(dict(parties)) as link:
        found = drive(whole, link, Ledger())
    other = judged(replace(config, dealer=""))
    assert found.get("distances") == other.get("distances") and found["owners"] == other["owners"]
    for table, same in zip(found["tables"], other["tables"], strict=True):
        assert (table is None and same is None) or torch.equal(table, same)
