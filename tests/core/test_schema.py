from __future__ import annotations

import pytest
import torch

from silosynth.core.errors import DataError, SchemaError, StorageError
from silosynth.core.messages import Done, from_state, to_state
from silosynth.core.schema import Column, ColumnSchema, Kind, Schema, Table, agreed, below, beside, check_partition
from silosynth.runtime.wire import decode, encode, pack, unpack


def column(name: str, *values: int, levels: tuple[str, ...] | None = None) -> Column:
    return Column(name, "int64", torch.tensor(values), torch.zeros(len(values), dtype=torch.bool), levels)


AGE, JOB = column("age", 30, 40, 50), column("job", 0, 1, 0, levels=("a", "b"))
TABLE = Table((AGE, JOB))


def test_tables_are_cut_and_joined() -> None:
    assert TABLE.names == ("age", "job")
    assert len(TABLE) == 3
    assert len(Table(())) == 0
    assert TABLE.select(["job"]).names == ("job",)
    assert TABLE.take(torch.tensor([2, 0]))["age"].values.tolist() == [50, 30]
    assert TABLE.take(slice(0, 1))["job"].levels == ("a", "b")
    assert beside([TABLE.select(["age"]), TABLE.select(["job"])]).names == TABLE.names
    assert below([TABLE, TABLE])["age"].values.tolist() == [30, 40, 50] * 2


def test_tables_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DataError, match="same length"):
        Table((AGE, column("x", 1)))
    with pytest.raises(DataError, match="name of its own"):
        Table((AGE, AGE))
    with pytest.raises(DataError, match="Did you mean 'age'"):
        TABLE["agee"]


def test_tables_travel_and_are_stored() -> None:
    back = decode(encode(TABLE))
    assert isinstance(back, Table)
    assert torch.equal(back["job"].values, JOB.values)
    assert back["job"].levels == ("a", "b")
    again = from_state(Table, unpack(pack(to_state(TABLE))))
    assert torch.equal(again["age"].values, AGE.values)
    assert again["job"].levels == ("a", "b")


def test_stored_state_of_another_kind_or_version_is_told() -> None:
    with pytest.raises(StorageError, match="holds a Table"):
        from_state(Table, to_state(Done()))
    with pytest.raises(StorageError, match="holds a Table"):
        from_state(Table, 3)
    for state in ({"struct": "core.Gone", "fields": {}}, {"struct": "core.Table", "fields": {"x": 1}}):
        with pytest.raises(StorageError, match="another version"):
            from_state(Table, state)


def test_schemas() -> None:
    schema = Schema((ColumnSchema("id", Kind.IDENTIFIER.value, "int64"), ColumnSchema("age", "integer", "int64")))
    assert schema.names == ("id", "age")
    assert schema.modelled == ("age",)
    assert schema.select(["age"]).names == ("age",)
    with pytest.raises(SchemaError, match="Did you mean 'age'"):
        schema["aeg"]
    assert Kind.DATETIME.numeric
    assert not Kind.BOOLEAN.numeric


@pytest.mark.parametrize(
    ("silos", "says"),
    [
        ({"a": ["age", "nope"]}, "unknown column"),
        ({"a": ["age"], "b": ["age"]}, "'a' and in 'b'"),
        ({"a": []}, "holds no column"),
        ({"a": "age"}, r"Write \['age'\]"),
    ],
)
def test_partitions_that_do_not_deal_out_are_refused(silos: dict[str, list[str]], says: str) -> None:
    with pytest.raises(DataError, match=says):
        check_partition(["age", "job"], silos)


def test_columns_may_be_left_out() -> None:
    check_partition(["age", "job"], {"a": ["age"]})


def said(kind: str = "continuous", dtype: str = "float64", name: str = "x", **more: float | None) -> Schema:
    return Schema((ColumnSchema(name, kind, dtype, **more),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("a", "b", "together"),
    [
        ({"decimals": 1}, {"decimals": 3}, {"decimals": 3}),
        ({"decimals": -2}, {"decimals": -1}, {"decimals": -1}),
        ({"decimals": 1}, {"decimals": None}, {"decimals": None}),
        ({"low": 0.0, "high": 5.0}, {"low": -1.0, "high": 4.0}, {"low": -1.0, "high": 5.0}),
        ({"low": 0.0, "high": 5.0}, {"high": 7.0}, {"low": None, "high": 7.0}),
    ],
)
def test_agreed_columns_are_as_fine_and_as_wide_as_any(a: dict, b: dict, together: dict) -> None:  # type: ignore[type-arg]
    for schemas in ({"a": said(**a), "b": said(**b)}, {"b": said(**b), "a": said(**a)}):
        assert agreed(schemas) == said(**together, reason="agreed")  # type: ignore[arg-type]


def test_agreed_columns_are_in_the_first_silos_order() -> None:
    one, two = ColumnSchema("one", "integer", "int64"), ColumnSchema("two", "integer", "int64")
    assert agreed({"a": Schema((two, one)), "b": Schema((one, two))}).names == ("two", "one")


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (said(name="y"), r"'x' must be in every silo \(got: there in a, c; absent in b\)"),
        (said("integer"), r"'x' must be of the same kind.*continuous in a, c; integer in b.*schema=\{\"x\": "),
        (said(dtype="float32"), r"'x' must have the same dtype.*float64 in a, c; float32 in b.*Cast it"),
    ],
)  # fmt: skip
def test_silos_that_disagree_about_a_column_are_named(other: Schema, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        agreed({"a": said(), "b": other, "c": said()})
