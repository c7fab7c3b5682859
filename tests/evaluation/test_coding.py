"""What a column is and how it is coded, whatever dtype it comes in."""

from __future__ import annotations

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from silosynth.core.errors import DataError
from silosynth.data.infer import infer
from silosynth.evaluation.coding import Coded, check_silos, check_target, code_tables, cut


def coded(**tables: pd.DataFrame) -> dict[str, Coded]:
    return code_tables({name.replace("_", "-"): table for name, table in tables.items()})


def kind_of(values: object) -> str:
    table = pd.DataFrame({"c": values})
    return coded(training=table)["training"].fields[0].kind


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (list("abc"), "categorical"),
        ([True, False, True], "categorical"),
        (list(range(20)) * 2, "categorical"),
        (list(range(21)) * 2, "numeric"),
        ([0.0, 1.0, 1.0], "categorical"),
        ([1.0, 2.0, 3.0, 3.0], "categorical"),
        ([1.0, 2.0, 3.5, 3.0], "numeric"),
        (["2020-01-01", None, "2021-01-01"], "datetime"),
        (["2020-01-01", None, "20210101"], "categorical"),
        ([0.0, 1.0, np.nan], "categorical"),  # how pandas stores an integer column with a gap
        ([0.5, 1.0, np.nan], "numeric"),
        (pd.array([1, 2, None], dtype="Int64"), "categorical"),
        (pd.array([True, None, False], dtype="boolean"), "categorical"),
        (pd.array(["a", None, "b"], dtype="string"), "categorical"),
        (pd.Categorical(range(30)), "categorical"),
        (pd.to_datetime(["2020-01-01", None, "2021-01-01"]), "datetime"),
        (pd.to_datetime(["2020-01-01", "2021-01-01"], utc=True), "datetime"),
        ([datetime.date(2020, 1, 1), datetime.date(2021, 1, 1)], "datetime"),
        (pd.to_timedelta([1, 2], unit="h"), "duration"),
        ([Decimal("1.5"), Decimal(2)], "numeric"),
        ([1, "a", None], "categorical"),
        ([np.nan, np.nan], "numeric"),
        ([None, None], "categorical"),
    ],
)
def test_kind(values: object, kind: str) -> None:
    assert kind_of(values) == kind


def test_training_table_alone_decides_the_kind() -> None:
    few, many = pd.DataFrame({"c": [1, 2]}), pd.DataFrame({"c": [*range(50), 1]})
    assert coded(training=few, synthetic=many)["synthetic"].fields[0].categorical
    assert not coded(training=many, synthetic=few)["synthetic"].fields[0].categorical


@pytest.mark.parametrize(
    ("real", "other"),
    [
        ([1, 2, 3], [1.0, 2.0, 3.0]),
        ([1, 2, 3], pd.array([1, 2, 3], dtype="Int8")),
        ([1, 2, 3], pd.Categorical([1, 2, 3])),
        ([True, False], [1, 0]),
        ([True, False], ["True", "false"]),
        (["a", "b"], pd.Categorical(["a", "b"], categories=["b", "a", "z"])),
        (["a", None], pd.array(["a", None], dtype="string")),
        (pd.Categorical([3, 1]), [3.0, 1.0]),
    ],
)
def test_equal_values_get_equal_codes_across_dtypes(real: object, other: object) -> None:
    tables = coded(training=pd.DataFrame({"c": real}), synthetic=pd.DataFrame({"c": other}))
    np.testing.assert_array_equal(tables["training"].values[0], tables["synthetic"].values[0])


def test_missing_is_the_last_code_and_unseen_levels_have_one() -> None:
    tables = coded(training=pd.DataFrame({"c": ["b", None]}), synthetic=pd.DataFrame({"c": ["a", "b"]}))
    assert tables["training"].fields[0].levels == ("a", "b")
    assert tables["training"].values[0].tolist() == [1, 2]
    assert tables["training"].missing(0).tolist() == [False, True]
    assert tables["synthetic"].values[0].tolist() == [0, 1]


def test_declared_marks_are_missing_in_every_table() -> None:
    real = pd.DataFrame({"n": [-9, 2, 3], "c": ["?", "a", "b"]})
    other = pd.DataFrame({"n": [-9.0, 2.0], "c": ["a", "?"]})
    declared = {"n": {"missing": [-9]}, "c": {"missing": ["?"]}}
    for schema in (declared, infer(real, declared)):
        tables = code_tables({"training": real, "synthetic": other}, schema)
        assert [tables["training"].missing(j).tolist() for j in (0, 1)] == [[True, False, False]] * 2
        assert [tables["synthetic"].missing(j).tolist() for j in (0, 1)] == [[True, False], [False, True]]


def test_instants_are_nanoseconds_also_far_ones() -> None:
    moments = [datetime.datetime(1970, 1, 1, 0, 0, 1), datetime.datetime(9999, 1, 1), None]
    values = coded(training=pd.DataFrame({"c": moments}))["training"].values[0]
    assert values[0] == 1e9
    assert values[1] == pytest.approx(253370764800 * 1e9)
    assert np.isnan(values[2])


def test_columns_follow_the_training_order() -> None:
    real = pd.DataFrame({"a": [0.5], "b": [1.5]})
    tables = coded(training=real, synthetic=real[["b", "a"]])
    assert [v[0] for v in tables["synthetic"].values] == [0.5, 1.5]


def test_arrow_tables_are_taken() -> None:
    real = pd.DataFrame({"a": [0.5, 1.0], "b": ["x", "y"]})
    tables = code_tables({"training": real, "synthetic": pa.Table.from_pandas(real)})
    assert tables["synthetic"].values[1].tolist() == [0, 1]


GOOD = pd.DataFrame({"age": [1.5, 2.5], "job": ["a", "b"]})


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (GOOD.drop(columns="job"), ["synthetic", "job"]),
        (GOOD.assign(extra=1), ["synthetic", "extra"]),
        (GOOD.iloc[:0], ["synthetic", "one row"]),
        (GOOD.assign(age=[np.inf, 1.0]), ["'age'", "finite", "synthetic"]),
        (GOOD.assign(age=["x", "y"]), ["'age'", "numbers", "synthetic"]),
        (GOOD.assign(age=pd.to_datetime(["2020", "2021"])), ["'age'", "numbers", "synthetic"]),
        (GOOD.assign(job=[[1], [2]]), ["'job'", "plain values"]),
        (GOOD.assign(job=[(1,), (2,)]), ["'job'", "plain values"]),
        ([1, 2], ["synthetic", "pandas"]),
    ],
)
def test_errors_name_table_and_column(other: object, words: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        code_tables({"training": GOOD, "synthetic": other})
    assert all(word in str(caught.value) for word in words)


def test_unknown_target_names_the_nearest_column() -> None:
    with pytest.raises(DataError, match="Did you mean 'age'"):
        check_target("aeg", coded(training=GOOD)["training"].fields)


@pytest.mark.parametrize(
    ("silos", "words"),
    [
        ({"a": ["age"]}, "job"),
        ({"a": ["age", "job"], "b": ["job"]}, "'a' and 'b'"),
        ({"a": ["age", "job", "jbo"]}, "Did you mean 'job'"),
        ({"a": "age"}, "list of its columns"),
    ],
)
def test_silos_divide_the_columns(silos: dict[str, list[str]], words: str) -> None:
    with pytest.raises(DataError, match=words):
        check_silos(silos, coded(training=GOOD)["training"].fields)


def test_cut_against_a_loop() -> None:
    real = np.array([0.0, 3.0, 10.0, np.nan])
    values = np.array([-5.0, 0.0, 0.99, 1.0, 9.99, 10.0, 77.0, np.nan])
    assert cut(values, real, 10).tolist() == [0, 0, 0, 1, 9, 9, 9, 10]
    assert cut(values, np.array([4.0, 4.0]), 10).tolist() == [0] * 7 + [10]
    assert cut(values, np.array([np.nan]), 10).tolist() == [0] * 7 + [10]


@pytest.mark.parametrize(
    ("values", "order"),
    [
        (["10-19", "<10", "20+", "(rare)"], ("<10", "10-19", "20+")),
        ([">50K", "<=50K"], ("<=50K", ">50K")),
        ([">9", "9", "under 9", "≥ 10"], ("under 9", "9", ">9", "≥ 10")),
        (["b", "a", "c"], ()),
        (["1st", "second"], ()),
        (pd.Categorical(["low", "high"], ["low", "middle", "high"], ordered=True), ("low", "middle", "high")),
        (pd.Categorical(["low", "high"], ["low", "high"]), ()),
        ([30, 4, 4], ("4", "30")),
        ([True, False], ("False", "True")),
    ],
)
def test_levels_that_have_an_order(values: object, order: tuple[str, ...]) -> None:
    assert coded(training=pd.DataFrame({"c": values}))["training"].fields[0].order == order
