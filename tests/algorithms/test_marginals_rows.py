"""MST and AIM of silos that hold different rows: sums over silos, and what of the noise each party faces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.algorithms.rows_play import (
    AT_EPSILONS,
    BEYOND_A_TREE,
    CAUGHT,
    DP,
    EVERYWHERE,
    RowsPlay,
    check_noise,
    check_sensitivity,
    with_small_sketches,
)
from tests.contracts.settings import BOUNDS, frame

import silosynth as ss
from silosynth.algorithms.marginals import protocol as marginals
from silosynth.algorithms.marginals.silo import RowsSilo
from silosynth.catalog import algorithm
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import Message
from silosynth.core.schema import Schema, same_columns
from silosynth.counting import opening
from silosynth.counting.opening import CellNoise
from silosynth.encoders import summed
from silosynth.runtime.wire import pack
from silosynth.simulation.federation import Federation


def divided(data: pd.DataFrame, silos: int = 3, bounds: Any = BOUNDS) -> Federation:
    parts = np.array_split(np.arange(len(data)), silos)
    return ss.simulate(data, rows={f"silo{n}": part.tolist() for n, part in enumerate(parts)}, schema=bounds)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    with_small_sketches(monkeypatch)
    return monkeypatch


@pytest.fixture(scope="module")
def noised() -> RowsPlay:
    with pytest.MonkeyPatch.context() as patched:
        with_small_sketches(patched)
        return RowsPlay(divided(frame()), {"dp": DP}).drive(patched)


@pytest.fixture(scope="module")
def exact() -> RowsPlay:
    with pytest.MonkeyPatch.context() as patched:
        return RowsPlay(divided(frame(), bounds=None)).drive(patched)


def test_sums_are_noised_as_charged(noised: RowsPlay, small: pytest.MonkeyPatch) -> None:
    check_noise(noised)
    assert len(noised.asked(opening.OpenSums)) == 2  # groups of all pairs, and the tree


def extended(patched: pytest.MonkeyPatch) -> RowsPlay:
    """AIM, which opens more tables than a tree's: its last ones get what is left of the budget."""
    data = pd.concat([frame()] * 200, ignore_index=True)
    play = RowsPlay(divided(data), {"dp": DP, "tables": 2.0, "rounds": 1}, kind="aim").drive(patched)
    assert len(play.asked(opening.OpenSums)) == 3, "groups of all pairs, the tree, and more"
    return play


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


@pytest.mark.parametrize(("kind", "epsilon"), AT_EPSILONS)
def test_neighbours_change_what_opens_by_its_sensitivity(kind: str, epsilon: float, small: pytest.MonkeyPatch) -> None:
    """One row less in one silo, with the same noise; of AIM further tables as well, in two rounds."""
    data = pd.concat([frame()] * (1 if kind == "mst" else 40), ignore_index=True)
    options = {"dp": DP | {"epsilon": epsilon}} | ({} if kind == "mst" else {"tables": 2.0, "rounds": 2})
    play = RowsPlay(divided(data), options, kind=kind)
    check_sensitivity(play, ["silo1"], small)
    assert (len(play.asked(opening.OpenSums)) > 2) == (kind == "aim")


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
        cells = [sum(exact.counted(name, ask)[at] for name in exact.silos) for at in range(len(ask.sets))]
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
