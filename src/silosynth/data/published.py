"""Public data sets: what is known about each, and how its publisher's file becomes a frame."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import pandas as pd

from silosynth.core.errors import DataError, StorageError, nearest


@dataclass(frozen=True)
class Publisher:
    """The publisher's file.

    Attributes:
        page: where a reader finds the data set.
        members: text files inside the archive (``outer.zip/inner.csv`` for nested ones), put below one another.
        url: address of the archive; None where it can only be downloaded by hand.
        sha256: checksum of the archive, where it is known from at least two independent sources.
        header, separator, missing, comment: how the text files are written.
        strip: characters to take off the end of the target (a trailing dot).
        drop_first: whether the first column is a running index.
    """

    page: str
    members: tuple[str, ...]
    url: str | None = None
    sha256: str | None = None
    header: bool = True
    separator: str = ","
    missing: str | None = None
    comment: str | None = None
    strip: str = ""
    drop_first: bool = False

    def by_hand(self, name: str) -> tuple[str, ...]:
        """File names under which a reader may put a hand-made download of the data set ``name``."""
        unpacked = (f"{name}.csv", self.members[0].rpartition("/")[2]) if len(self.members) == 1 else ()
        return (f"{name}.zip", *unpacked)


@dataclass(frozen=True)
class Info:
    """What is known about a data set.

    Attributes:
        kinds: columns that are categorical, mixed or identifiers; all others are numbers. Fits `infer`'s overrides.
        classes: rows of each class of the target; empty for a regression target.
        copy_sha256: checksum of the Parquet copy that silosynth's own figures were computed from; None without one.
    """

    name: str
    rows: int
    columns: tuple[str, ...]
    target: str
    task: str
    kinds: Mapping[str, str]
    classes: Mapping[str, int]
    source: str
    citation: str
    licence: str
    processing: str
    copy_sha256: str | None = None
    publisher: Publisher | None = None


@cache
def catalogue() -> Mapping[str, Info]:
    """All known data sets by name."""
    text = resources.files("silosynth.data").joinpath("published.json").read_text(encoding="utf-8")
    return {name: _info(name, entry) for name, entry in json.loads(text).items()}


def info(name: str) -> Info:
    """What is known about the data set ``name``.

    Raises:
        DataError: no such data set; names the nearest one.
    """
    if name not in catalogue():
        raise DataError("The data set must be a known one", name, nearest(name, catalogue()))
    return catalogue()[name]


def parse(raw: bytes, info: Info) -> pd.DataFrame:
    """The frame in the publisher's file, with the columns that `Info` names. Whole columns become whole numbers.

    Raises:
        StorageError: the archive is damaged or lacks a file.
        DataError: a file has another number of columns.
    """
    publisher = info.publisher
    assert publisher is not None
    frames = [_parse_text(_member(raw, member), info, publisher) for member in publisher.members]
    frame = pd.concat(frames, ignore_index=True)
    if publisher.strip:
        frame[info.target] = frame[info.target].str.rstrip(publisher.strip)
    return frame.apply(_whole)


def check(frame: pd.DataFrame, info: Info) -> None:
    """Check that ``frame`` has the rows, columns and classes that are published.

    Raises:
        DataError: it has not: another version, a part of the data set, or another one.
    """
    remedy = "It is another version or only a part. Remove the file, or read it with silosynth.data.sources.read."
    if tuple(frame.columns) != info.columns:
        odd = sorted(set(frame.columns) ^ set(info.columns)) or ["the order"]
        raise DataError(f"The data set {info.name!r} has {len(info.columns)} known columns", ", ".join(odd), remedy)
    if len(frame) != info.rows:
        raise DataError(f"The data set {info.name!r} has {info.rows} rows", len(frame), remedy)
    found = {str(value): int(n) for value, n in frame[info.target].value_counts().items()}
    if info.classes and found != dict(info.classes):
        raise DataError(f"The classes of {info.name!r} have known counts, {dict(info.classes)}", str(found), remedy)


def _info(name: str, entry: dict[str, Any]) -> Info:
    kinds = {column: kind for kind, columns in entry["kinds"].items() for column in columns.split()}
    publisher = entry.get("publisher")
    if publisher is not None:
        publisher = Publisher(**{**publisher, "members": tuple(publisher["members"])})
    return Info(
        **{**entry, "name": name, "columns": tuple(entry["columns"].split()), "kinds": kinds, "publisher": publisher}
    )


def _parse_text(text: bytes, info: Info, publisher: Publisher) -> pd.DataFrame:
    try:
        frame = pd.read_csv(
            io.BytesIO(text), sep=publisher.separator, header=0 if publisher.header else None, index_col=False,
            skipinitialspace=True, keep_default_na=False, na_values=["", publisher.missing or ""],
            comment=publisher.comment, low_memory=False,
        )  # fmt: skip
    except (ValueError, pd.errors.ParserError) as error:
        raise DataError(f"The publisher's file of {info.name!r} must be text in columns", str(error)[:120]) from error
    frame = frame.iloc[:, int(publisher.drop_first) :]
    if frame.shape[1] != len(info.columns):
        raise DataError(
            f"The publisher's file of {info.name!r} has {len(info.columns)} columns", frame.shape[1],
            "The publisher may have changed it: get another copy by hand.",
        )  # fmt: skip
    frame.columns = pd.Index(info.columns)
    return frame


def _member(raw: bytes, member: str) -> bytes:
    """The text file ``member`` in an archive, or the file itself where it is none."""
    outer, _, inner = member.partition("/")
    try:
        if raw[:2] == b"PK":
            with zipfile.ZipFile(io.BytesIO(raw)) as archive:
                held = archive.read(_find(outer, archive.namelist()))
            return _member(held, inner) if inner else held
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        if raw[257:262] == b"ustar":
            with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
                file = tar.extractfile(_find(member, tar.getnames()))
                return file.read() if file else b""
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise StorageError("The publisher's archive must be whole", str(error)[:80], "Download it again.") from error
    return raw


def _find(wanted: str, held: list[str]) -> str:
    for name in held:
        if name.rpartition("/")[2] == wanted:
            return name
    raise StorageError("The publisher's archive lacks a file", wanted, nearest(wanted, held))


def _whole(column: pd.Series) -> pd.Series:
    if not pd.api.types.is_float_dtype(column.dtype) or not (column.dropna() % 1 == 0).all():
        return column
    return column.astype("Int64" if column.isna().any() else "int64")
