"""Rows of figures in a file of one experiment: found again by their identity, so that a run can go on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from silosynth.core import files
from silosynth.core.errors import ConfigError, StorageError
from silosynth.papers.common import Row
from silosynth.papers.results import SUFFIXES, stamp


def find(rows: Sequence[Row], identity: Row) -> Row | None:
    """The row of that identity, if it is known."""
    return next((row for row in rows if all(row.get(k) == v for k, v in identity.items())), None)


def read(path: Path, form: str) -> list[Row]:
    """The rows that another run has left in this file, or for one that ends in .md in the JSON file beside it.

    Raises:
        ConfigError: the path ends in neither.
        StorageError: the file holds something else.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError("The file of results must end in .json or .md", str(path))
    place = path.with_suffix(".json")
    if not place.exists():
        return []
    wrong = StorageError(
        f"This file does not hold results of `{form}`", str(place), "Name another file, or delete this one."
    )
    try:
        content = json.loads(files.read(place))
        if content["form"] != form:
            raise wrong
        return list(content["rows"])
    except (ValueError, KeyError, TypeError) as error:
        raise wrong from error


def save(path: Path, form: str, rows: Sequence[Row], markdown: str) -> None:
    """Write the rows as JSON, and for a path that ends in .md also the text."""
    content = {"form": form, "stamp": stamp(), "rows": list(rows)}
    files.write_atomic(path.with_suffix(".json"), (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
    if path.suffix.lower() == ".md":
        files.write_atomic(path, markdown.encode())
