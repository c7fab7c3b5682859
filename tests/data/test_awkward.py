"""Sixty awkward tables: each ends in a sound table, or in an error that names column, rule and remedy."""

from __future__ import annotations

import datetime as dt
import warnings
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import silosynth as ss
from silosynth.core.errors import DataError, SchemaError, SilosynthError, StorageError
from silosynth.core.streams import Streams
from silosynth.data.csvfiles import EncodingWarning
from silosynth.data.frames import flavour, to_pandas
from silosynth.data.infer import ColumnWarning
from silosynth.data.sources import read
from silosynth.encoders.column import EncoderConfig
from silosynth.encoders.table import TableCoder
from silosynth.simulation.model import to_synthetic_frame

N = 120
RNG = np.random.default_rng(5)
X = RNG.normal(50, 9, N).round(2)
DAYS = pd.Timestamp("2020-01-01") + pd.to_timedelta(RNG.integers(0, 900, N), unit="D")
WORDS = RNG.choice(["north", "south", "west"], N)


class Awkward(NamedTuple):
    """A table; what is declared about it; and what becomes of its first column: a kind, or an error and its words."""

    name: str
    make: Callable[[Path], Any]
    ends: str | tuple[type[SilosynthError], tuple[str, ...]]
    schema: dict[str, Any] | None = None


def column(values: Any, dtype: Any = None) -> Callable[[Path], Any]:
    """A table of these values beside a column of numbers."""
    series = pd.Series(values, dtype=dtype)
    return lambda folder: pd.DataFrame({"a": series, "x": X[: len(series)] if len(series) <= N else 1.5})


def polars(values: Any, dtype: Any) -> Callable[[Path], Any]:
    """The same in Polars."""
    return lambda folder: pl.DataFrame({"a": pl.Series(values, dtype=dtype), "x": X})


def arrow(values: Any) -> Callable[[Path], Any]:
    """The same in Arrow."""
    return lambda folder: pa.table({"a": values, "x": X})


def file(contents: str | bytes, name: str = "t.csv", **how: Any) -> Callable[[Path], Any]:
    """The table in a file."""

    def make(folder: Path) -> Any:
        path = folder / name
        path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
        return read(path, **how)

    return make


def lines(values: Any, separator: str = ",") -> str:
    """A CSV file of these values beside a number."""
    return f"a{separator}x\n" + "".join(f"{value}{separator}{i % 7}.5\n" for i, value in enumerate(values))


def refused(kind: type[SilosynthError], *words: str) -> tuple[type[SilosynthError], tuple[str, ...]]:
    return kind, words


NUMBERS = [f"{value * 100.37:,.2f}" for value in X]
DECIMALS = [Decimal(f"{value:.2f}") for value in X]
LEVELS = ["north", "south", "west", "east"]
AWKWARD = [
    Awkward("day first", column(DAYS.strftime("%d.%m.%Y")), "datetime"),
    Awkward("month first", column(DAYS.strftime("%m/%d/%Y")), "datetime"),
    Awkward("without leading zeros", column([f"{d.month}/{d.day}/{d.year} 9:05" for d in DAYS]), "datetime"),
    Awkward("ambiguous days", column(["01/02/2020", "03/04/2021"] * 60), "datetime"),
    Awkward("declared days", column(["01/02/2020", "03/04/2021"] * 60), "datetime", {"a": {"format": "%d/%m/%Y"}}),
    Awkward("two-digit years", column(DAYS.strftime("%d.%m.%y")), "datetime", {"a": {"format": "%d.%m.%y"}}),
    Awkward("month names", column(DAYS.strftime("%d %b %Y")), "datetime"),
    Awkward("milliseconds", column(DAYS.strftime("%Y-%m-%dT%H:%M:%S.250Z")), "datetime"),
    Awkward("one offset", column(DAYS.strftime("%Y-%m-%d %H:%M:%S+02:00")), "datetime"),
    Awkward("offsets that change", column([f"{d:%Y-%m-%dT%H:%M}+0{1 + d.month % 2}:00" for d in DAYS]), "datetime"),
    Awkward("dates in two forms", column([f"{d:%Y-%m-%d}" if d.day % 2 else f"{d:%d.%m.%Y}" for d in DAYS]), "pooled"),
    Awkward(
        "a form that is not that of the dates", column(DAYS.strftime("%d.%m.%Y")),
        refused(SchemaError, "'a'", "one known form", "%m.%d.%Y", "Declare"), {"a": {"format": "%m.%d.%Y"}},
    ),
    Awkward("time zone", column(DAYS.tz_localize("Europe/Zurich")), "datetime"),
    Awkward(
        "mixed time zones", column([pd.Timestamp(d, tz=("UTC", "Asia/Tokyo")[i % 2]) for i, d in enumerate(DAYS)]),
        refused(DataError, "'a'", "cannot be read", "utc=True"),
    ),
    Awkward("dates and times", column([d.date() for d in DAYS], object), "datetime"),
    Awkward("year 9999", column([*DAYS[1:].strftime("%Y-%m-%d"), "9999-12-31"]), "pooled"),
    Awkward(
        "instants out of reach", column([dt.date(9999, 12, 31), dt.date(2020, 1, 1)] * 9, object),
        refused(DataError, "'a'", "1677 to 2262", "missing"),
    ),
    Awkward("durations", column(pd.to_timedelta(RNG.integers(0, 99, N), unit="h")), "datetime"),
    Awkward("decimal comma", column([f"{value:.2f}".replace(".", ",") for value in X]), "continuous"),
    Awkward("thousands", column(NUMBERS), "continuous"),
    Awkward("continental", column([n.translate(str.maketrans(",.", ".,")) for n in NUMBERS]), "continuous"),
    Awkward("Swiss", column([f"CHF {n.replace(',', chr(39))}" for n in NUMBERS]), "continuous"),
    Awkward("per cent", column([f"{value:.1f} %" for value in X]), "continuous"),
    Awkward("currency", column([f"€ {value:.0f}" for value in X]), "integer"),
    Awkward("negative", column([f"{value - 50:.1f} °C" for value in X]), "continuous"),
    Awkward("declared point", column([f"{v:.3f}" for v in X]), "integer", {"a": {"decimal": ","}}),
    Awkward("marks among numbers", column([*["?", "n/a", "-"] * 3, *(f"{v:.1f}" for v in X[9:])]), "continuous"),
    Awkward(
        "text among numbers", column([*map(str, X[1:]), "a lot"]),
        refused(SchemaError, "'a'", "one known form", "format"), {"a": "continuous"},
    ),
    Awkward("declared marks", column([-9, *RNG.integers(0, 99, N - 1)], "int64"), "integer", {"a": {"missing": [-9]}}),
    Awkward("leading zeros", file(lines(f"{i % 9:05d}" for i in range(N))), "categorical"),
    Awkward("latin-1", file(lines(["Zürich", "Genève"] * 60).encode("latin-1")), "categorical"),
    Awkward("UTF-16", file(lines(["Zürich", "Genève"] * 60, "\t").encode("utf-16")), "categorical"),
    Awkward("byte order mark", file(b"\xef\xbb\xbf" + lines(["Zürich"] * 60).encode()), "categorical"),
    Awkward("semicolons", file(lines(["1,5", "2,5"] * 60, ";"), decimal=","), "boolean"),
    Awkward("bars", file(lines(["a", "b"] * 60, "|")), "categorical"),
    Awkward("Namibia", file(lines(["NA", "CH"] * 60), missing=[]), "categorical"),
    Awkward("damaged UTF-8", file("a\nZürich\n".encode() + b"\xff\n"), refused(DataError, "utf-8", "byte offset")),
    Awkward("an empty file", file(""), refused(DataError, "t.csv is empty", "cut off")),
    Awkward("a header only", file("a,x\n"), refused(DataError, "header only", "cut off")),
    Awkward("names twice", file("a,a\n1,2\n"), refused(DataError, "a name of its own", "Rename")),
    Awkward("ragged lines", file("a,x\n1,2\n3\n"), refused(DataError, "line 3 has 1", "quotes")),
    Awkward("an unknown ending", file("a\n1\n", "t.sav"), refused(DataError, ".parquet", "t.sav")),
    Awkward("no Parquet", file("PAR1", "t.parquet"), refused(StorageError, "whole Parquet", "cut off")),
    Awkward("one row", column([1.5]), refused(DataError, "at least 2 rows", "Give the silo more")),
    Awkward("two rows", column([1.5, 2.5]), "continuous"),
    Awkward("five rows", column(list("abcab")), "pooled"),
    Awkward("no rows", column([], float), refused(DataError, "at least one row")),
    Awkward("all missing", column([None] * N, object), "categorical"),
    Awkward("all NaN", column([np.nan] * N), "categorical"),
    Awkward("constant", column([7] * N), "integer"),
    Awkward("10 000 levels", column([f"level {i}" for i in range(10_000)]), "pooled"),
    Awkward("beyond 2^53", column(2**62 + RNG.integers(0, 2**40, N)), "integer"),
    Awkward("beyond 2^63", column([2**64 - 1] * 9, "uint64"), refused(DataError, "'a'", "64 bits", "text")),
    Awkward("infinities", column([np.inf, *X[1:]]), refused(DataError, "'a'", "infinities", "missing values")),
    Awkward("columns twice", lambda _: pd.DataFrame([[1, 2]], columns=["a"] * 2), refused(DataError, "of its own")),
    Awkward("unicode", column(RNG.choice(["日本", "Ελλάδα", "🙂"], N)), "categorical"),
    Awkward("booleans as text", column(RNG.choice(["True", "False"], N)), "categorical"),
    Awkward("mixed types", column([1, "a"] * 60, object), refused(DataError, "'a'", "several types", ".astype")),
    Awkward("unused levels", column(pd.Categorical(WORDS, LEVELS)), "categorical"),
    Awkward("nullable integers", column([None, *RNG.integers(0, 99, N - 1)], "Int64"), "integer"),
    Awkward("lists", column([[1, 2]] * N), refused(DataError, "'a'", "cannot be modelled", "drop the column")),
    Awkward("bytes", column([b"a", b"b"] * 60), refused(DataError, "'a'", "cannot be modelled")),
    Awkward("complex numbers", column([1 + 2j] * N), refused(DataError, "'a'", "complex", "Convert")),
    Awkward("periods", column(pd.period_range("2020", periods=N, freq="M")), refused(DataError, "'a'", "to_timestamp")),
    Awkward("Decimal", column(DECIMALS), "continuous"),
    Awkward("Polars Enum", polars(WORDS, pl.Enum(LEVELS)), "categorical"),
    Awkward("Polars Decimal", polars(DECIMALS, pl.Decimal(12, 2)), "continuous"),
    Awkward("Arrow dictionary", arrow(pa.array(WORDS).dictionary_encode()), "categorical"),
    Awkward("Arrow decimal", arrow(pa.array(DECIMALS, pa.decimal128(12, 2))), "continuous"),
    Awkward("Arrow structs", arrow([{"b": 1}] * N), refused(DataError, "'a'", "cannot be modelled")),
    Awkward("people", column(RNG.choice(["Anna Müller", "Peter Meier", "Li Wei"], N)), "pseudonym"),
    Awkward("e-mail", column(RNG.choice(["a.b@uni.ch", "c.d@uni.ch"], N)), "pseudonym"),
    Awkward("names, published", column(["Anna Müller", "Peter Meier"] * 60), "categorical", {"a": "categorical"}),
    Awkward(
        "nothing left to model", lambda _: pd.DataFrame({"name": ["Anna Müller", "Peter Meier"] * 9}),
        refused(DataError, "neither an identifier nor a pseudonym", "Declare"),
    ),
    Awkward("bounds", column(X), refused(SchemaError, "'a'", "low must not exceed"), {"a": {"low": 9, "high": 1}}),
    Awkward(
        "bounds of no dates", column([pd.NaT] * N), refused(SchemaError, "'a' is of kind", "categorical", "datetime"),
        {"a": {"low": "2020-01-01"}},
    ),
    Awkward(
        "no dates, declared", column([pd.NaT] * N), "datetime", {"a": {"kind": "datetime", "low": "2020-01-01"}},
    ),
    Awkward("as far apart as floats go", column([*X[2:], -1.7e308, 1.7e308]), "continuous"),
]  # fmt: skip
CASES = [pytest.param(one, id=one.name) for one in AWKWARD]


def federation(one: Awkward, folder: Path) -> ss.Federation:
    """The federation of an awkward table."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EncodingWarning)
        return ss.simulate(one.make(folder), schema=one.schema)


def synthetic(one: ss.Federation) -> Any:
    """Its rows, encoded and decoded: what a perfect generator would make."""
    coder = TableCoder(one.tables["silo1"], one.schema, Streams(0))
    coder.fit(EncoderConfig())
    made = coder.decode(*coder.encode(), Streams(1))
    return to_synthetic_frame([made], one.schema, Streams(1), 1, one.flavour, one.types)


def check_sound(real: Any, made: Any, kind: str) -> None:
    """The synthetic table has the real one's columns and types, and nothing that few rows hold."""
    assert flavour(real) == flavour(made)
    if flavour(real) != "pandas":
        assert made.schema == real.schema
    before, after = to_pandas(real), to_pandas(made)
    assert list(after.columns) == list(before.columns)
    common = before["a"].astype(object).value_counts().loc[lambda counts: counts >= 5]
    if kind in ("categorical", "pooled"):
        levels = set(after["a"].dropna().astype(object)) - {"(rare)"}
        assert levels <= set(common.index)
    if kind == "pseudonym":
        assert not set(after["a"]) & set(before["a"])
    if kind in ("continuous", "integer") and pd.api.types.is_numeric_dtype(before["a"]):
        assert before["a"].min() <= after["a"].min()
        assert after["a"].max() <= before["a"].max()


def test_there_are_sixty() -> None:
    assert len(AWKWARD) >= 60
    assert len({one.name for one in AWKWARD}) == len(AWKWARD)


@pytest.mark.parametrize("one", CASES)
def test_a_sound_table_or_a_clear_error(one: Awkward, tmp_path: Path) -> None:
    if isinstance(one.ends, tuple):
        kind, words = one.ends
        with pytest.raises(kind) as caught:
            synthetic(federation(one, tmp_path))
        assert all(word in str(caught.value) for word in words), str(caught.value)
        assert caught.value.remedy or "line" in str(caught.value)
        return
    held = federation(one, tmp_path)
    assert held.schema["a"].kind == ("categorical" if one.ends == "pooled" else one.ends), held.schema["a"].reason
    made = synthetic(held)
    real = one.make(tmp_path) if one.name != "latin-1" else read(tmp_path / "t.csv", encoding="latin-1")
    check_sound(real, made, one.ends)
    dtype = "Int64" if one.name == "declared marks" else str(to_pandas(real)["a"].dtype)
    assert str(to_pandas(made)["a"].dtype) == dtype


TINY = {"coder.steps": 2, "latent.steps": 2, "latent.width": 16, "latent.sample_steps": 2}


@pytest.mark.slow
@pytest.mark.parametrize("one", [case for case in CASES if isinstance(case.values[0].ends, str)])  # type: ignore[union-attr]
def test_what_is_sound_can_be_trained_on(one: Awkward, tmp_path: Path) -> None:
    held = federation(one, tmp_path)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", ColumnWarning)
        model = ss.fit("silofuse", held, "fast", options=TINY, progress=False)
    assert any("(rare)" in str(text.message) for text in said) is (one.ends == "pooled")
    assert len(model.sample(20, seed=1)) == 20
