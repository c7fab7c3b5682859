"""Public data sets, fetched from their publishers on first use, and a demonstration table that needs no network.

>>> from silosynth import datasets
>>> datasets.info("adult").target
'income'

A data set is looked for in this order: the folder named by the environment variable ``SILOSYNTH_DATA`` (as
``<name>.parquet``, or the publisher's own file), the cache (``SILOSYNTH_CACHE``, else the user's cache folder), and the
publisher. Sets that require a log-in must be downloaded by hand; the error says from where and to where.

Rows, columns and class counts are always checked against the published figures. So is the checksum of a download, where
independent sources agree on it (`Publisher.sha256`); elsewhere the first download is trusted, its checksum is kept
beside the cached copy, and later downloads must match it. A cached copy is checked against its own checksum.

Downloads are by hand (`download`, with `urllib`): we cache the checked Parquet copy, not the publisher's file, so of
pooch we would use the HTTP request alone, at the price of `requests` in every install and without ``file://`` mirrors.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import json
import os
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import pandas as pd
import platformdirs

from silosynth.core.errors import DataError, StorageError, UnavailableError, nearest
from silosynth.core.files import replacing
from silosynth.data.sources import read, write

__all__ = ["Demo", "Info", "cache_folder", "demo", "info", "load", "names"]


def names() -> tuple[str, ...]:
    """Names of all data sets in the catalogue, sorted."""
    return tuple(sorted(catalogue()))


def cache_folder() -> Path:
    """Where downloads are kept: ``SILOSYNTH_CACHE``, else the user's cache folder."""
    return Path(os.environ.get("SILOSYNTH_CACHE") or platformdirs.user_cache_dir("silosynth"))


@overload
def load(name: str, *, return_info: Literal[False] = False, url: str | None = None) -> pd.DataFrame: ...
@overload
def load(name: str, *, return_info: Literal[True], url: str | None = None) -> tuple[pd.DataFrame, Info]: ...
def load(name: str, *, return_info: bool = False, url: str | None = None) -> pd.DataFrame | tuple[pd.DataFrame, Info]:
    """A data set as a pandas frame, and its `Info` if ``return_info``.

    ``url`` is a mirror of the publisher's file, with the same bytes.

    Raises:
        DataError: no such data set, or a file holds another version of it.
        UnavailableError: it is not on this machine and cannot be downloaded; says what to do.
        StorageError: a file or download is damaged, or its checksum differs.
    """
    data_set = info(name)
    frame = next(_local(data_set), None)
    if frame is None:
        frame = _fetched(data_set, url)
    return (frame, data_set) if return_info else frame


def _local(data_set: Info) -> Iterator[pd.DataFrame]:
    folder = os.environ.get("SILOSYNTH_DATA")
    if folder:
        if not Path(folder).is_dir():
            raise StorageError("SILOSYNTH_DATA must name a folder", folder, "Correct or unset the variable.")
        yield from _in_folder(Path(folder), data_set)
    yield from _in_folder(cache_folder(), data_set)


def _in_folder(folder: Path, data_set: Info) -> Iterator[pd.DataFrame]:
    """The copies in ``folder``: a Parquet file, or the publisher's own file."""
    copy = folder / f"{data_set.name}.parquet"
    if copy.is_file():
        _check_cached(copy)
        frame = read(copy)
        check(frame, data_set)
        yield frame
    publisher = data_set.publisher
    if publisher is None:
        return
    for raw in (folder / name for name in publisher.by_hand(data_set.name)):
        if raw.is_file():
            frame = parse(raw.read_bytes(), data_set)
            check(frame, data_set)
            yield frame


def _check_cached(copy: Path) -> None:
    known = recall(copy.with_suffix(".json")).get("parquet")
    if known is not None:
        remedy = "The cached copy was altered or damaged: delete it."
        check_sum(f"The file {copy}", copy.read_bytes(), known, remedy)


def _fetched(data_set: Info, url: str | None) -> pd.DataFrame:
    """Download, check, parse, check again, and keep as Parquet with checksums beside it."""
    publisher, folder = data_set.publisher, cache_folder()
    where = f"put it into {folder}, or into the folder that SILOSYNTH_DATA names"
    if publisher is None:
        raise UnavailableError(
            f"The data set {data_set.name!r} is a sample that no publisher gives out", "not on this machine",
            f"Get {data_set.name}.parquet from whoever made it, and {where}.",
        )  # fmt: skip
    accepted = " or ".join(publisher.by_hand(data_set.name))
    by_hand = f"Download it by hand from {publisher.page} and {where}, as {accepted}."
    address = url or publisher.url
    if address is None:
        raise UnavailableError(
            f"The data set {data_set.name!r} can only be downloaded after a log-in", "not on this machine", by_hand
        )
    kept = folder / f"{data_set.name}.json"
    expected = publisher.sha256 or recall(kept).get("download")
    raw = download(address, f"Set SILOSYNTH_DATA to a folder that holds {data_set.name}.parquet. Or: {by_hand}")
    if expected is not None:
        check_sum(f"The download of {data_set.name!r}", raw, expected, f"The publisher's file has changed. {by_hand}")
    frame = parse(raw, data_set)
    check(frame, data_set)
    return _cached(frame, folder, data_set.name, {"url": address, "download": sha256(raw)})


def _cached(frame: pd.DataFrame, folder: Path, name: str, sums: dict[str, str]) -> pd.DataFrame:
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / f"{name}.parquet"
    kept = copy.with_suffix(".json")
    # Without the old copy's checksum, by which the new copy would be judged if we were stopped here.
    remember(kept, sums)
    write(frame, copy)
    remember(kept, {**sums, "parquet": sha256(copy.read_bytes())})
    return read(copy)


@dataclass(frozen=True)
class Demo:
    """A table to try things on; ``silos`` are the columns of two organisations."""

    frame: pd.DataFrame
    silos: Mapping[str, list[str]]
    target: str
    about: str


def demo() -> Demo:
    """The RAND Health Insurance Experiment, one row per person, as shipped with statsmodels (public domain).

    Columns are renamed and converted to everyday units: the logarithms of coinsurance and incentive are undone, and
    three yes-no columns on self-rated health become one. An insurer holds plan and visits, a clinic holds health. The
    published table has a row per person and year: rows that differ in visits alone are taken as one person, whose
    first year is kept, lest the same person be in training and hold-out.

    Raises:
        UnavailableError: statsmodels is not installed.
    """
    try:
        from statsmodels.datasets import randhie
    except ImportError as error:
        raise UnavailableError(
            "The demonstration table ships inside statsmodels", "not installed", "pip install statsmodels"
        ) from error
    raw = randhie.load_pandas().data
    health = np.select([raw["hlthg"] == 1, raw["hlthf"] == 1, raw["hlthp"] == 1], ["good", "fair", "poor"], "excellent")
    frame = pd.DataFrame(
        {
            "visits": raw["mdvis"].astype("int64"),
            "coinsurance_percent": np.expm1(raw["lncoins"]).round().astype("int64"),
            "deductible_plan": raw["idp"].astype(bool),
            "incentive_dollars": np.exp(raw["lpi"]).round(2),
            "log_maximum_expenditure": raw["fmde"],
            "physical_limitation": raw["physlm"],
            "chronic_disease_index": raw["disea"],
            "health": health,
        }
    )
    repeated = frame.drop(columns="visits").duplicated()
    frame = frame[~repeated].reset_index(drop=True)
    silos = {"insurer": list(frame.columns[:5]), "clinic": list(frame.columns[5:])}
    about = "RAND Health Insurance Experiment (RAND Corporation; Cameron and Trivedi 2005), public domain"
    return Demo(frame, silos, "health", about)


@dataclass(frozen=True)
class Publisher:
    """The publisher's file.

    Attributes:
        page: the web page of the data set.
        members: text files inside the archive (``outer.zip/inner.csv`` for nested ones), put below one another.
        url: address of the archive; None where it can only be downloaded by hand.
        sha256: checksum of the archive, where at least two independent sources agree on it.
        header, separator, missing, comment: the format of the text files.
        strip: characters to strip from the end of the target (a trailing dot).
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
        """File names under which a manual download of the data set ``name`` is recognised."""
        unpacked = (f"{name}.csv", self.members[0].rpartition("/")[2]) if len(self.members) == 1 else ()
        return (f"{name}.zip", *unpacked)


@dataclass(frozen=True)
class Info:
    """Facts about a data set.

    Attributes:
        kinds: columns that are categorical, mixed or identifiers; the others are numbers. For `infer`'s overrides.
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
    """All data sets by name."""
    text = resources.files("silosynth.data").joinpath("datasets.json").read_text(encoding="utf-8")
    return {name: _info(name, entry) for name, entry in json.loads(text).items()}


def info(name: str) -> Info:
    """Facts about the data set ``name``.

    Raises:
        DataError: no such data set; names the nearest.
    """
    if name not in catalogue():
        raise DataError("The data set must be a known one", name, nearest(name, catalogue()))
    return catalogue()[name]


def parse(raw: bytes, info: Info) -> pd.DataFrame:
    """The frame in the publisher's file, with the columns of `Info`. Floats that are all integers become integers.

    Raises:
        StorageError: the archive is damaged, or a file is not in it.
        DataError: a file has another number of columns.
    """
    publisher = info.publisher
    assert publisher is not None
    frames = [_parse_text(_member(raw, member), info, publisher) for member in publisher.members]
    frame = pd.concat(frames, ignore_index=True)
    if publisher.strip:
        frame[info.target] = frame[info.target].str.rstrip(publisher.strip)
    return frame.apply(_as_integers)


def check(frame: pd.DataFrame, info: Info) -> None:
    """Check that ``frame`` has the published rows, columns and classes.

    Raises:
        DataError: it does not: it is another version, a part of the data set, or another data set.
    """
    remedy = "It is another version or only a part. Remove the file, or read it with silosynth.data.sources.read."
    if tuple(frame.columns) != info.columns:
        odd = sorted(set(frame.columns) ^ set(info.columns)) or ["the order"]
        raise DataError(f"The data set {info.name!r} has {len(info.columns)} known columns", ", ".join(odd), remedy)
    if len(frame) != info.rows:
        raise DataError(f"The data set {info.name!r} has {info.rows} rows", len(frame), remedy)
    counts = {str(value): int(n) for value, n in frame[info.target].value_counts().items()}
    if info.classes and counts != dict(info.classes):
        raise DataError(f"The classes of {info.name!r} have known counts, {dict(info.classes)}", str(counts), remedy)


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
    """The text file ``member`` of an archive, or the file itself if it is no archive."""
    outer, _, inner = member.partition("/")
    try:
        if raw[:2] == b"PK":
            with zipfile.ZipFile(io.BytesIO(raw)) as archive:
                contents = archive.read(_find(outer, archive.namelist()))
            return _member(contents, inner) if inner else contents
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        if raw[257:262] == b"ustar":
            with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
                file = tar.extractfile(_find(member, tar.getnames()))
                return file.read() if file else b""
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise StorageError("The publisher's archive must be whole", str(error)[:80], "Download it again.") from error
    return raw


def _find(member: str, names: list[str]) -> str:
    for name in names:
        if name.rpartition("/")[2] == member:
            return name
    raise StorageError("The publisher's archive lacks a file", member, nearest(member, names))


def _as_integers(column: pd.Series) -> pd.Series:
    if not pd.api.types.is_float_dtype(column.dtype) or not (column.dropna() % 1 == 0).all():
        return column
    return column.astype("Int64" if column.isna().any() else "int64")


TIMEOUT = 60.0
"""Seconds of silence after which a download is abandoned."""


def download(url: str, remedy: str, timeout: float = TIMEOUT) -> bytes:
    """The bytes at ``url``.

    Raises:
        UnavailableError: no connection, or the server answers with an error; names the address and ``remedy``.
        StorageError: fewer bytes arrived than announced.
    """
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "silosynth"})
        with urllib.request.urlopen(request, timeout=timeout) as reply:
            length = reply.headers.get("Content-Length")
            raw: bytes = reply.read()
    except http.client.IncompleteRead as error:
        raise StorageError(
            "The download must be whole", f"{url}: {len(error.partial)} bytes arrived", "Try again."
        ) from error
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(error, urllib.error.HTTPError):
            reason = f"HTTP {error.code} {error.reason}"
            error.close()
        raise UnavailableError("The data set must be fetched, and that failed", f"{url}: {reason}", remedy) from error
    if length is not None and len(raw) != int(length):
        raise StorageError("The download must be whole", f"{url}: {len(raw)} of {length} bytes arrived", "Try again.")
    return raw


def sha256(raw: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(raw).hexdigest()


def check_sum(what: str, raw: bytes, expected: str, remedy: str) -> None:
    """Check the checksum of ``raw``.

    Raises:
        StorageError: it differs from ``expected``.
    """
    digest = sha256(raw)
    if digest != expected:
        raise StorageError(f"{what} must have the checksum {expected}", digest, remedy)


def recall(path: Path) -> dict[str, str]:
    """Checksums that an earlier use kept in the file ``path``; empty if there is none.

    Raises:
        StorageError: the file is damaged.
    """
    if not path.exists():
        return {}
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        return {str(key): str(value) for key, value in known.items()}
    except (ValueError, AttributeError) as error:
        raise StorageError("The kept checksums must be readable", str(path), "Delete the file.") from error


def remember(path: Path, sums: dict[str, str]) -> None:
    """Keep checksums for later use."""
    with replacing(path) as part:
        part.write_text(json.dumps(sums, indent=1) + "\n", encoding="utf-8")
