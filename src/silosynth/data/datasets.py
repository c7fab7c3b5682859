"""Public data sets, fetched from their publishers on first use, and a demonstration table that needs no network.

>>> from silosynth import datasets
>>> datasets.info("adult").target
'income'

A set is looked for in this order: the folder that the environment variable ``SILOSYNTH_DATA`` names (as
``<name>.parquet``, or the publisher's own file), the cache (``SILOSYNTH_CACHE``, else the user's cache folder), and
the publisher. Sets that their publisher gives out only after a log-in must be downloaded by hand; the error says from
where and to where.

What is checked: rows, columns and class counts against the published figures, always. The checksum of a download where
it is known from independent sources (`Info.publisher`); where it is not, the first download is trusted, its checksum is
kept beside the cache, and later downloads must have the same. A cached copy is checked against its own checksum.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, overload

import numpy as np
import pandas as pd
import platformdirs

from silosynth.core.errors import StorageError, UnavailableError
from silosynth.data.fetch import check_sum, download, recall, remember, sha256
from silosynth.data.published import Info, catalogue, check, info, parse
from silosynth.data.sources import read, write

__all__ = ["Demo", "Info", "cache_folder", "demo", "info", "load", "names"]


def names() -> tuple[str, ...]:
    """Names of all known data sets, sorted."""
    return tuple(sorted(catalogue()))


def cache_folder() -> Path:
    """Where downloads are kept: ``SILOSYNTH_CACHE``, else the user's cache folder."""
    return Path(os.environ.get("SILOSYNTH_CACHE") or platformdirs.user_cache_dir("silosynth"))


@overload
def load(name: str, *, return_info: Literal[False] = False, url: str | None = None) -> pd.DataFrame: ...
@overload
def load(name: str, *, return_info: Literal[True], url: str | None = None) -> tuple[pd.DataFrame, Info]: ...
def load(name: str, *, return_info: bool = False, url: str | None = None) -> pd.DataFrame | tuple[pd.DataFrame, Info]:
    """A data set as a pandas frame, with what is known about it if ``return_info``.

    ``url`` is another address of the publisher's file (a mirror); it must hold the same bytes.

    Raises:
        DataError: no such data set, or a file holds another version of it.
        UnavailableError: it is not on this machine and cannot be fetched; says what to do.
        StorageError: a file or download is damaged, or its checksum differs.
    """
    about = info(name)
    frame = next(_local(about), None)
    if frame is None:
        frame = _fetched(about, url)
    return (frame, about) if return_info else frame


def _local(about: Info) -> Iterator[pd.DataFrame]:
    folder = os.environ.get("SILOSYNTH_DATA")
    if folder:
        if not Path(folder).is_dir():
            raise StorageError("SILOSYNTH_DATA must name a folder", folder, "Correct or unset the variable.")
        yield from _in_folder(Path(folder), about)
    yield from _in_folder(cache_folder(), about)


def _in_folder(folder: Path, about: Info) -> Iterator[pd.DataFrame]:
    """The copy in ``folder``, if there is one: a Parquet file, or what the publisher gives out."""
    copy = folder / f"{about.name}.parquet"
    if copy.is_file():
        _check_cached(copy)
        frame = read(copy)
        check(frame, about)
        yield frame
    publisher = about.publisher
    if publisher is None:
        return
    for raw in (folder / name for name in publisher.by_hand(about.name)):
        if raw.is_file():
            frame = parse(raw.read_bytes(), about)
            check(frame, about)
            yield frame


def _check_cached(copy: Path) -> None:
    known = recall(copy.with_suffix(".json")).get("parquet")
    if known is not None:
        remedy = "The cached copy was altered or damaged: delete it."
        check_sum(f"The file {copy}", copy.read_bytes(), known, remedy)


def _fetched(about: Info, url: str | None) -> pd.DataFrame:
    """Download, check, parse, check again, and keep as Parquet with checksums beside it."""
    publisher, folder = about.publisher, cache_folder()
    where = f"put it into {folder}, or into the folder that SILOSYNTH_DATA names"
    if publisher is None:
        raise UnavailableError(
            f"The data set {about.name!r} is a sample that no publisher gives out", "not on this machine",
            f"Get {about.name}.parquet from whoever made it, and {where}.",
        )  # fmt: skip
    accepted = " or ".join(publisher.by_hand(about.name))
    by_hand = f"Download it by hand from {publisher.page} and {where}, as {accepted}."
    address = url or publisher.url
    if address is None:
        raise UnavailableError(
            f"The data set {about.name!r} can only be downloaded after a log-in", "not on this machine", by_hand
        )
    kept = folder / f"{about.name}.json"
    expected = publisher.sha256 or recall(kept).get("download")
    raw = download(address, f"Set SILOSYNTH_DATA to a folder that holds {about.name}.parquet. Or: {by_hand}")
    if expected is not None:
        check_sum(f"The download of {about.name!r}", raw, expected, f"The publisher's file has changed. {by_hand}")
    frame = parse(raw, about)
    check(frame, about)
    return _cached(frame, folder, about.name, {"url": address, "download": sha256(raw)})


def _cached(frame: pd.DataFrame, folder: Path, name: str, sums: dict[str, str]) -> pd.DataFrame:
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / f"{name}.parquet"
    kept = copy.with_suffix(".json")
    remember(
        kept, {key: value for key, value in sums.items() if key != "parquet"}
    )  # an old sum must not judge a new copy
    write(frame, copy)
    remember(kept, {**sums, "parquet": sha256(copy.read_bytes())})
    return read(copy)


@dataclass(frozen=True)
class Demo:
    """A table to try things on: ``silos`` deals its columns out to two organisations."""

    frame: pd.DataFrame
    silos: Mapping[str, list[str]]
    target: str
    about: str


def demo() -> Demo:
    """The RAND Health Insurance Experiment, one row per person, as it ships inside statsmodels (public domain).

    Columns are renamed and put back into everyday units: the logarithms of coinsurance and incentive are undone, and
    three yes-no columns on self-rated health become one. An insurer holds plan and visits, a clinic holds health. The
    published table repeats people over years: rows that differ in visits alone are taken as one person, whose first
    year is kept, because repeated people would be in training and hold-out at once.

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
    again = frame.drop(columns="visits").duplicated()
    frame = frame[~again].reset_index(drop=True)
    silos = {"insurer": list(frame.columns[:5]), "clinic": list(frame.columns[5:])}
    about = "RAND Health Insurance Experiment (RAND Corporation; Cameron and Trivedi 2005), public domain"
    return Demo(frame, silos, "health", about)
