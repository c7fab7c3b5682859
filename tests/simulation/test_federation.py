"""Who holds what: columns or rows dealt out, each silo with its own levels, and all of it in one place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st

import silosynth as ss
from silosynth.core.errors import ConfigError, DataError, SchemaError, SilosynthError
from silosynth.data.frames import as_flavour, to_frame


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "age": [30, 41, 52, 63, 74, 85],
            "spent": [0.5, None, 2.25, 3.0, 4.5, 5.0],
            "city": ["Bern", "Delft", "Bern", "Oslo", None, "Delft"],
            "size": pd.Categorical(list("slmsls"), ["s", "m", "l"], ordered=True),
            "member": [True, True, True, True, True, False],
            "since": pd.date_range("2020", periods=6),
        }
    )


def held(federation: ss.Federation, silo: str) -> pd.DataFrame:
    found: pd.DataFrame = to_frame(federation.tables[silo])
    return found


@pytest.mark.parametrize(
    "rows",
    [
        [1, 2, 5],
        (1, 2, 5),
        np.array([1, 2, 5], dtype=np.uint8),
        pd.Series([1, 2, 5]),
        np.array([False, True, True, False, False, True]),
        [False, True, True, False, False, True],
        pd.Series([False, True, True, False, False, True], dtype="boolean"),
    ],
    ids=["list", "tuple", "array", "series", "mask", "list of booleans", "nullable mask"],
)
def test_rows_are_given_by_position_or_mask(rows: Any) -> None:
    federation = ss.simulate(frame(), rows={"north": rows, "south": slice(None, None, -2)})
    assert held(federation, "north")["age"].tolist() == [41, 52, 85]
    assert held(federation, "south")["age"].tolist() == [85, 63, 41]
    assert federation.horizontal
    assert federation.rows == 6
    assert federation.silos == {silo: list(frame().columns) for silo in ("north", "south")}


def test_rows_may_repeat_and_silos_may_hold_the_same() -> None:
    federation = ss.simulate(frame(), rows={"a": range(6), "b": range(6), "c": [0, 0, 0]})
    assert federation.rows == 15
    assert held(federation, "c")["age"].tolist() == [30, 30, 30]
    assert len(federation.central().tables["central"]) == federation.central().rows == 15


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([], "'north' holds no row"),
        (slice(9, None), "'north' holds no row"),
        ([False] * 6, "'north' holds no row"),
        ([True] * 5, r"mask of silo 'north'.*5 booleans for 6 rows"),
        ([0, 6], r"'north' names a row that the table lacks \(got: 6\). Positions are 0 to 5"),
        ([-1], r"table lacks \(got: -1\)"),
        ([0.0], r"'north' needs positions.*float"),
        ("ab", "'north' needs positions"),
        (3, "'north' needs positions"),
        ([True, 1], "'north' needs positions"),
        ([[0, 1], [2]], "'north' needs positions"),
    ],
)
def test_rows_that_cannot_be_dealt_out_are_refused(rows: Any, says: str) -> None:
    with pytest.raises(DataError, match=says) as caught:
        ss.simulate(frame(), rows={"south": [0], "north": rows})
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"frame": frame(), "silos": {"a": ["age"]}, "rows": {"a": [0]}}, "both dealt out to groups of silos"),
        ({"frame": {"a": frame()}, "silos": {"a": ["age"]}}, "frames and silos"),
        ({"frame": {"a": frame()}, "rows": {"a": [0]}}, "frames and rows"),
    ],
)
def test_there_is_one_way_to_deal_out(how: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ss.simulate(**how)


def test_silos_are_given_by_name() -> None:
    with pytest.raises(DataError, match=r"by name, in a dictionary \(got: int\)"):
        ss.simulate(frame(), silos=2)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", [{"frame": frame(), "rows": {}}, {"frame": {}}])
def test_a_federation_has_a_silo(how: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="at least one silo"):
        ss.simulate(**how)


def test_a_silo_knows_the_levels_of_its_own_rows_only() -> None:
    whole = frame()
    for federation in (
        ss.simulate(whole, rows={"a": [0, 2], "b": [1, 3, 4]}),
        ss.simulate({"a": whole.iloc[[0, 2]], "b": whole.iloc[[1, 3, 4]]}),
    ):
        a, b = federation.tables["a"], federation.tables["b"]
        assert (a["city"].levels, b["city"].levels) == (("Bern",), ("Delft", "Oslo"))
        assert (a["size"].levels, b["size"].levels) == (("s", "m"), ("s", "l"))
        assert a["member"].levels == b["member"].levels == (False, True)
        assert held(federation, "b")["city"].fillna("").tolist() == ["Delft", "Oslo", ""]
        assert set(federation.central().tables["central"]["size"].levels or ()) == {"s", "m", "l"}


POSITIONS = st.lists(st.integers(0, 5), min_size=1, max_size=8)


@pytest.mark.slow
@settings(max_examples=25)
@given(st.dictionaries(st.sampled_from("abc"), POSITIONS, min_size=1))
def test_all_silos_rows_below_each_other_are_the_central_table(rows: dict[str, list[int]]) -> None:
    whole = frame()
    kinds = {column.name: {"kind": column.kind} for column in ss.simulate(whole).schema.columns}
    dealt = ss.simulate(whole, rows=rows, schema=kinds)
    given_apart = ss.simulate({silo: whole.iloc[some] for silo, some in rows.items()}, schema=kinds)
    expected = pd.concat([whole.iloc[some] for some in rows.values()], ignore_index=True)
    for federation in (dealt, given_apart):
        central = federation.central()
        assert not central.horizontal
        assert central.rows == federation.rows == len(expected)
        pd.testing.assert_frame_equal(to_frame(central.tables["central"]), expected, check_categorical=False)
    assert dealt.central().digest() == given_apart.central().digest()
    assert dealt.digest() == given_apart.digest()


def test_kinds_of_dealt_rows_are_those_of_the_whole_frame() -> None:
    federation = ss.simulate(frame(), rows={"a": [0], "b": [5]})
    assert federation.schemas["a"] == federation.schemas["b"] == federation.schema == ss.simulate(frame()).schema


def test_silos_own_frames_agree_in_the_first_ones_order() -> None:
    coarse = pd.DataFrame({"x": [10.5, 20.5, 30.5], "city": ["Bern", "Oslo", "Bern"]})
    fine = pd.DataFrame({"city": ["Delft", "Bern"], "x": [1.25, 2.5]})
    federation = ss.simulate({"a": coarse, "b": fine}, schema={"x": {"low": 0}})
    assert federation.columns == ("x", "city")
    assert federation.silos == {"a": ["x", "city"], "b": ["x", "city"]}
    assert federation.schemas["a"] == federation.schemas["b"]
    assert (federation.schema["x"].decimals, federation.schema["x"].low, federation.schema["x"].high) == (2, 0, None)
    assert federation.rows == 5


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (lambda f: f.assign(age=list("abcdef")), SchemaError, r"'age'.*kind.*integer in a; categorical in b.*schema="),
        (lambda f: f.assign(age=f["age"].astype("int16")), SchemaError, r"'age'.*int64 in a; int16 in b.*\.astype"),
        (lambda f: f.drop(columns="age"), SchemaError, r"'age' must be in every silo.*there in a; absent in b"),
        (lambda f: f.rename(columns={"age": "years"}), SchemaError, r"a: without years; b: without age.*identifier="),
        (lambda f: f.assign(extra=1), SchemaError, r"'extra' must be in every silo.*absent in a; there in b"),
        (lambda f: f.head(0), DataError, r"Silo 'b': A table needs at least one row"),
        (lambda f: f.assign(age=np.inf), DataError, r"Silo 'b': .*infinities"),
        (lambda f: [1], DataError, r"Silo 'b': A table is a pandas\.DataFrame"),
    ],
)  # fmt: skip
def test_silos_own_frames_that_disagree_are_refused(change: Any, error: type[SilosynthError], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        ss.simulate({"a": frame(), "b": change(frame())})
    assert caught.value.remedy


@pytest.mark.parametrize("flavour", ["polars", "arrow"])
def test_silos_own_frames_may_be_of_any_flavour(flavour: Any) -> None:
    if flavour == "polars":
        pytest.importorskip("polars")
    data = frame().drop(columns="size")
    federation = ss.simulate({"a": as_flavour(data, flavour), "b": as_flavour(data.head(3), flavour)})
    assert (federation.flavour, federation.rows) == (flavour, 9)


def test_one_silo_of_rows_is_horizontal_and_one_of_columns_is_not() -> None:
    assert ss.simulate(frame(), rows={"a": slice(3)}).horizontal
    assert ss.simulate({"a": frame()}).horizontal
    assert not ss.simulate(frame()).horizontal
