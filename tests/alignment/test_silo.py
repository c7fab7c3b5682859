"""The same identifier is the same bytes, whatever holds it."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given, strategies as st

from silosynth.alignment import canonical
from silosynth.alignment.silo import usable
from silosynth.core.errors import DataError
from silosynth.core.schema import Column, ColumnSchema, Schema
from silosynth.data.frames import to_table
from silosynth.data.infer import infer
from silosynth.privacy.sealed import framed


def ids(values: object, dtype: object = None, kind: str = "identifier", spelling: str = "") -> list[bytes | None]:
    """Identifiers of a frame's column, as a silo reads it."""
    frame = pd.DataFrame({"id": pd.Series(values, dtype=dtype)})  # type: ignore[call-overload]
    return canonical(to_table(frame, Schema((ColumnSchema("id", kind, spelling),))).columns)


def text(*values: str | None) -> list[bytes | None]:
    return [None if value is None else framed(value) for value in values]


class TestValues:
    @pytest.mark.parametrize(
        ("values", "dtype"),
        [
            ([7, 12], "int64"),
            ([7, 12], "uint8"),
            ([7.0, 12.0], "float64"),
            ([7.0, 12.0], "float32"),
            (["7", " 12\t"], "object"),
            (["7", "12 "], "string"),
            (["7", "12"], pd.ArrowDtype(pa.string())),
            ([7, 12], "Int64"),
            ([7, 12], "object"),
            ([Decimal("7.00"), Decimal("12")], "object"),
            ([7, 12], "category"),
            (["7", "12"], "category"),
            ([7.0, 12.0], "category"),
        ],
    )
    def test_whole_numbers_match_however_they_are_stored(self, values: list[object], dtype: object) -> None:
        assert ids(values, dtype) == text("7", "12")

    @pytest.mark.parametrize("kind", ["identifier", "integer", "continuous", "categorical", "mixed"])
    def test_the_kind_does_not_matter(self, kind: str) -> None:
        assert ids([7, 12], "int64", kind) == ids([7.0, 12.0], "float64", kind) == text("7", "12")
        assert ids([7.0, None], "float64", kind) == text("7", None)

    def test_text_is_exact_but_for_white_space_and_composition(self) -> None:
        held = ["é", "e\u0301", "\u00a0x ", "X", "007", "7.0", "a b", "-0"]
        assert ids(held) == text("é", "é", "x", "X", "007", "7.0", "a b", "-0")
        assert len({*text("x", "X", "007", "7", "7.0")}) == 5

    def test_numbers(self) -> None:
        assert ids([-0.0, -3.0, 7.5, 1e-7]) == text("0", "-3", "7.5", "1e-07")
        assert ids([-(2**63), 2**63 - 1], "int64") == text(str(-(2**63)), str(2**63 - 1))
        assert ids([2**60, None], "Int64") == text(str(2**60), None)
        assert ids([float(2**53 - 1), -5e15]) == text("9007199254740991", "-5000000000000000")

    @pytest.mark.parametrize("kind", ["identifier", "integer", "continuous"])
    @pytest.mark.parametrize(
        ("values", "dtype"),
        [
            ([1.0, 2.0**53], "float64"),
            ([1.0, -(2.0**60), None], "float64"),
            ([1.0, 2.0**24], "float32"),
            ([1.0, 2.0**24], "Float32"),
            ([1.0, 2.0**24], pd.ArrowDtype(pa.float32())),
            ([1.0, 2.0**11], "float16"),
            ([1.0, 2.0**53], pd.ArrowDtype(pa.float64())),
            ([Decimal(1), Decimal(2**53 + 1)], "object"),
        ],
    )
    def test_floats_that_may_have_lost_digits_are_refused(self, values: list[object], dtype: object, kind: str) -> None:
        with pytest.raises(DataError, match="column 'id'") as raised:
            ids(values, dtype, kind)
        assert "as text" in raised.value.remedy
        assert not any(digits in str(raised.value) for digits in ("900719", "16777216", "2048", "11529"))

    def test_large_float_categories_are_refused_too(self) -> None:
        with pytest.raises(DataError, match="stored exactly"):
            ids([1.0, 2.0**53], "category")

    def test_booleans(self) -> None:
        assert ids([True, False], "bool") == ids([True, False], "category") == text("true", "false")

    @pytest.mark.parametrize(
        ("values", "kind"),
        [
            (pd.to_datetime(["2020-01-31", "1930-12-01", None]), "identifier"),
            (pd.to_datetime(["2020-01-31", "1930-12-01", None]), "datetime"),
            (pd.to_datetime(["2020-01-31", "1930-12-01", None]).astype("datetime64[s]"), "datetime"),
            ([dt.date(2020, 1, 31), dt.date(1930, 12, 1), None], "datetime"),
            ([dt.date(2020, 1, 31), dt.date(1930, 12, 1), None], "identifier"),
            (pd.array([dt.date(2020, 1, 31), dt.date(1930, 12, 1), None], pd.ArrowDtype(pa.date32())), "datetime"),
            (["2020-01-31", "1930-12-01", None], "identifier"),
        ],
    )
    def test_dates_are_in_iso_form(self, values: object, kind: str) -> None:
        assert ids(values, None, kind) == text("2020-01-31", "1930-12-01", None)

    def test_text_that_is_declared_a_date_is_one(self) -> None:
        assert ids(["31.01.2020", None], None, "datetime", "str|%d.%m.%Y") == text("2020-01-31", None)

    def test_times(self) -> None:
        stamps = pd.to_datetime(
            ["2020-01-31T08:30:00.250", "2020-01-31", "1930-12-01T23:59:59.000000001"], format="ISO8601"
        )
        assert ids(stamps, None, "datetime") == text(
            "2020-01-31T08:30:00.25", "2020-01-31", "1930-12-01T23:59:59.000000001"
        )
        berlin = stamps.tz_localize("Europe/Berlin")
        utc = text("2020-01-31T07:30:00.25Z", "2020-01-30T23:00:00Z", "1930-12-01T22:59:59.000000001Z")
        assert ids(berlin, None, "datetime") == utc
        arrow = pd.Series(berlin).astype(pd.ArrowDtype(pa.timestamp("ns", tz="Europe/Berlin")))
        assert ids(arrow, None, "datetime") == utc

    def test_durations_identify_nobody(self) -> None:
        with pytest.raises(DataError, match="Durations"):
            ids(pd.to_timedelta([1, 2], unit="D"), None, "datetime")

    def test_as_the_kinds_are_inferred(self) -> None:
        numbers = np.arange(1000) + 10_000
        frames = [pd.DataFrame({"id": numbers}), pd.DataFrame({"id": numbers.astype(str)})]
        frames.append(pd.DataFrame({"id": numbers.astype(float)}))
        held = [canonical(to_table(frame, infer(frame)).columns) for frame in frames]
        assert held[0] == held[1] == held[2] == text(*map(str, numbers))


class TestColumns:
    def test_several_are_framed(self) -> None:
        def two(*pairs: tuple[str | None, str | None]) -> list[bytes | None]:
            frame = pd.DataFrame(pairs, columns=["a", "b"], dtype="str")
            kinds = tuple(ColumnSchema(name, "identifier", "") for name in frame)
            return canonical(to_table(frame, Schema(kinds)).columns)

        assert two(("ab", "c"), ("a", "bc")) == [framed("ab", "c"), framed("a", "bc")]
        assert len({*two(("ab", "c"), ("a", "bc"), ("c", "ab"))}) == 3
        assert two(("x", None), (" ", "y"), ("x", "y"), (None, None)) == [None, None, framed("x", "y"), None]

    def test_names_do_not_matter(self) -> None:
        values, missing = torch.tensor([3, 4]), torch.tensor([False, True])
        one, other = (canonical([Column(name, "int64", values, missing)]) for name in ("id", "number"))
        assert one == other == text("3", None)

    def test_empty_text_is_no_identifier(self) -> None:
        assert ids(["", "  ", None, "x"]) == text(None, None, None, "x")
        assert ids([None, None], "object") == [None, None]
        assert canonical([Column("id", "int64", torch.zeros(0), torch.zeros(0).bool())]) == []

    def test_there_is_one_at_least(self) -> None:
        with pytest.raises(DataError, match="at least one identifier column"):
            canonical([])

    @given(st.lists(st.one_of(st.none(), st.sampled_from([b"a", b"b", b"c"])), max_size=8))
    def test_usable_rows_are_those_that_are_alone(self, held: list[bytes | None]) -> None:
        found = usable(held)
        assert [held[row] for row in found.rows] == list(found.identifiers)
        assert all(one is not None and held.count(one) == 1 for one in found.identifiers)
        assert found.empty == held.count(None)
        assert found.duplicated == sum(one is not None and held.count(one) > 1 for one in held)
        assert len(found.rows) + found.empty + found.duplicated == len(held)
