"""`ss.count` gives what pandas counts in the pooled table, to the last row, whoever holds which columns or rows."""

from __future__ import annotations

import doctest
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

import silosynth as ss
from silosynth.core.errors import ConfigError, DataError, SilosynthError
from silosynth.core.messages import Release
from silosynth.data import datasets
from silosynth.runtime.ledger import Ledger
from silosynth.simulation import counting

EDGES = {"age": [30, 45.5], "seen": ["2020-03-01", "2020-09-01"]}


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng, rows = np.random.default_rng(3), 60
    return pd.DataFrame(
        {
            "age": pd.array(rng.integers(18, 70, rows), dtype="Int64"),
            "sex": rng.choice(["f", "m"], rows),
            "ill": rng.random(rows) < 0.3,
            "city": pd.Series(rng.choice(["Bern", "Oslo", "Rome"], rows)).where(rng.random(rows) < 0.8),
            "seen": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 365, rows), unit="D"),
        }
    ).assign(age=lambda table: table["age"].where(table["age"] != 40))


SCHEMA = {"age": "integer", "seen": "datetime"}


def expected(frame: pd.DataFrame, names: Sequence[str], edges: dict[str, Any]) -> np.ndarray:
    """Counts by pandas, in the order of levels; missing values last, if there are any."""
    codes, sizes = [], []
    for name in names:
        column = frame[name]
        if name in edges:
            ends = [pd.Timestamp(edge) if isinstance(edge, str) else edge for edge in edges[name]]
            below = [(column >= end).fillna(False).to_numpy(bool).astype(int) for end in ends]
            code, size = np.sum(below, axis=0), len(ends) + 1
        else:
            levels = sorted(column.dropna().unique())
            code, size = column.map({level: i for i, level in enumerate(levels)}).fillna(-1).to_numpy(int), len(levels)
        missing = column.isna().to_numpy()
        codes.append(np.where(missing, size, code))
        sizes.append(size + bool(missing.any()))
    table = np.zeros(sizes, int)
    np.add.at(table, tuple(codes), 1)
    return table


def check(frame: pd.DataFrame, federation: ss.Federation, sets: Sequence[Sequence[str]], edges: Any) -> None:
    for names, table in zip(sets, ss.count(federation, sets, edges), strict=True):
        truth = expected(frame, names, edges)
        assert np.array_equal(table.to_numpy().reshape(truth.shape), truth), names
        assert [*table.index.names, *table.columns.names][: len(names)] == [*names]


@pytest.mark.parametrize("silos", [2, 3, 5])
def test_every_pair_and_some_triples_whoever_holds_which_columns(frame: pd.DataFrame, silos: int) -> None:
    names = list(frame)
    held = {f"silo{i}": names[i::silos] for i in range(silos)}
    sets = [
        *([name] for name in names),
        *itertools.combinations(names, 2),
        ["ill", "city", "age"],
        ["seen", "sex", "ill"],
    ]
    check(frame, ss.simulate(frame, silos=held, schema=SCHEMA), sets, EDGES)


def test_silos_with_the_same_columns(frame: pd.DataFrame) -> None:
    federation = ss.simulate(frame, rows={"a": slice(20), "b": range(20, 25), "c": slice(25, 60)}, schema=SCHEMA)
    check(frame, federation, [["city"], ["sex", "city"], ["age", "ill", "city"]], EDGES)


def test_it_is_the_crosstab_of_pandas(frame: pd.DataFrame) -> None:
    federation = ss.simulate(frame, silos={"bank": ["sex", "age"], "clinic": ["city", "ill", "seen"]}, schema=SCHEMA)
    by_city, by_ill, three = ss.count(federation, [("sex", "city"), ("sex", "ill"), ("sex", "ill", "city")])
    pd.testing.assert_frame_equal(
        by_city, pd.crosstab(frame["sex"], frame["city"], dropna=False), check_index_type=False, check_column_type=False
    )
    pd.testing.assert_frame_equal(
        by_ill, pd.crosstab(frame["sex"], frame["ill"]), check_index_type=False, check_column_type=False
    )
    assert three.loc[("f", True), "Bern"] == ((frame.sex == "f") & frame.ill & (frame.city == "Bern")).sum()


def test_what_is_recorded_and_the_example() -> None:
    table = pd.DataFrame({"a": ["x", "y"] * 3, "b": ["u", "v", "v"] * 2})
    ledger = Ledger()
    ss.count(ss.simulate(table, silos={"one": ["a"], "two": ["b"]}), [["a", "b"]], ledger=ledger)
    assert {record.privacy for record in ledger.records} == {Release.NOTHING.value, Release.SEALED.value}
    assert doctest.testmod(counting).failed == 0


@pytest.mark.parametrize(
    ("sets", "edges", "error"),
    [
        ([["sex", "agee"]], {}, "Did you mean 'age'"),
        ([["age"]], {}, r"edges=\{\"age\": \[10, 20\]\}"),
        ([["sex"]], {"sex": [1]}, "Leave them out"),
        ([["sex"]], {"sax": [1]}, "Did you mean 'sex'"),
        ([["age"]], {"age": [2, 1]}, "finite and rise"),
        ([["age"]], {"age": 5}, "are a list"),
        ([["age"]], {"age": [None]}, "are numbers, as it holds"),
        ([["age"]], {"age": [pd.Timestamp(2020, 1, 1)]}, "are numbers, as it holds"),
        ([["seen"]], {"seen": ["9999-01-01"]}, "are dates, as it holds"),
        ([["sex", "sex"]], {}, "each once"),
        ([[]], {}, "each once"),
        ([], {}, "At least one set"),
        ([["age", "sex", "ill", "city"]], EDGES, "at most 3 silos"),
    ],
)
def test_what_cannot_be_counted(frame: pd.DataFrame, sets: Any, edges: Any, error: str) -> None:
    silos = {"a": ["age"], "b": ["sex"], "c": ["ill"], "d": ["city", "seen"]}
    with pytest.raises(ConfigError, match=error) as raised:
        ss.count(ss.simulate(frame, silos=silos, schema=SCHEMA), sets, edges)
    assert isinstance(raised.value, SilosynthError)


def test_identifiers_and_other_things_are_refused(frame: pd.DataFrame) -> None:
    named = frame.assign(key=[f"person {i}" for i in range(60)])
    federation = ss.simulate(named, silos={"a": ["key", "sex"], "b": ["city"]}, schema={"key": "pseudonym"})
    with pytest.raises(ConfigError, match="neither identifiers nor pseudonyms"):
        ss.count(federation, [["key", "city"]])
    with pytest.raises(ConfigError, match="takes a federation"):
        ss.count(frame, [["sex"]])  # type: ignore[arg-type]
    federation = ss.simulate(named, silos={"a": ["key"], "b": ["city"]}, schema={"key": "pseudonym"})
    with pytest.raises(DataError, match="has a column that can be counted"):
        ss.count(federation, [["city"]])
    nothing = ss.simulate(frame.assign(nothing=None), silos={"a": ["nothing"], "b": ["city"]})
    with pytest.raises(DataError, match="holds a value"):
        ss.count(nothing, [["nothing", "city"]])


def test_with_noise(frame: pd.DataFrame) -> None:
    federation = ss.simulate(frame, silos={"bank": ["sex", "age"], "clinic": ["city", "ill", "seen"]}, schema=SCHEMA)
    sets, ledger = [["sex", "city"], ["sex"]], Ledger()
    first, own = ss.count(federation, sets, epsilon=1.0, seed=4, ledger=ledger)
    assert (first.shape, own.shape) == ((3, 4), (3, 1))  # of missing values, too
    exact = ss.count(federation, sets)
    noise = first.iloc[:2].to_numpy() - exact[0].to_numpy()
    assert 0 < np.abs(noise).max() < 30
    again, other = (ss.count(federation, sets, epsilon=1.0, seed=seed)[0] for seed in (4, 5))
    assert first.equals(again) and not first.equals(other)
    events = [(record.sender, event.epsilon) for record in ledger.records for event in record.events]
    assert events == [("bank", 1.0), ("bank", 1.0), ("clinic", 1.0)]
    for epsilon in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(ConfigError, match="finite epsilon"):
            ss.count(federation, sets, epsilon=epsilon)


def test_a_silo_that_holds_no_counted_column_deals(frame: pd.DataFrame) -> None:
    silos = {"bank": ["sex", "age"], "clinic": ["city", "ill"], "notary": ["seen"]}
    federation, sets = ss.simulate(frame, silos=silos, schema=SCHEMA), [["sex", "city"], ["ill", "sex"]]
    ledger = Ledger()
    dealt = ss.count(federation, sets, dealer="notary", ledger=ledger)
    assert all(table.equals(same) for table, same in zip(dealt, ss.count(federation, sets), strict=True))
    assert "counting.SeedsDealt" in {record.type for record in ledger.records}
    with pytest.raises(ConfigError, match="holds no column that is counted"):
        ss.count(federation, sets, dealer="bank")


def test_with_noise_in_parts_of_silos_that_hold_different_rows(frame: pd.DataFrame) -> None:
    federation = ss.simulate(frame, rows={"a": slice(20), "b": slice(20, 60)}, schema=SCHEMA)
    exact, noised = ss.count(federation, [["sex"]])[0], ss.count(federation, [["sex"]], epsilon=1.0, seed=3)[0]
    error = noised.iloc[:2].to_numpy() - exact.to_numpy()
    assert 0 < np.abs(error).max() < 30


def quantiles(frame: pd.DataFrame) -> dict[str, list[float]]:
    numbers = frame.select_dtypes("number")
    return {name: sorted(set(numbers[name].quantile([0.2, 0.4, 0.6, 0.8]).tolist())) for name in numbers}


@pytest.mark.slow
@pytest.mark.parametrize("silos", [2, 3, 4, 5])
@pytest.mark.parametrize("name", ["demo", "adult"])
def test_real_tables(name: str, silos: int) -> None:
    try:
        frame = datasets.demo().frame if name == "demo" else datasets.load(name)
    except SilosynthError as error:
        pytest.skip(str(error))
    edges = quantiles(frame)
    names = list(frame)
    held = {f"silo{i}": names[i::silos] for i in range(silos)}
    kinds = {column: "continuous" if column in edges else "categorical" for column in names}
    sets = [*itertools.combinations(names, 2), names[:3], names[-3:]]
    check(frame, ss.simulate(frame, silos=held, schema=kinds), sets, edges)
