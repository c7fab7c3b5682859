"""Frames of conditions in files: a row of conditions for each synthetic row that is wanted.

Each is read as texts such as ``--given`` takes (`silosynth.core.conditions.from_text`), one for each column that has a
condition in that row: who has the model reads them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from silosynth.core.conditions import is_absent
from silosynth.core.errors import DataError
from silosynth.core.files import existing, read
from silosynth.data import sources

Texts = tuple[str, ...]


def rows_in(path: Path) -> list[Texts]:
    """The conditions of each row of a table, where empty cells are none; or of a JSON file, a list of objects.

    Texts in a table are written as after ``COLUMN=``: ``60..80``, ``poor,fair``.

    Raises:
        StorageError: no such file, or it cannot be read.
        DataError: it is no table, no list of objects, or has no row.
    """
    if path.suffix.lower() != ".json":
        return [_of_cells(row) for row in sources.read(path).to_dict("records")]
    try:
        rows = json.loads(read(existing(path)))
    except ValueError as error:
        raise DataError(f"{path.name} must be JSON", str(error)) from error
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path.name} must hold a list of conditions", type(rows).__name__, _SUCH_AS)
    return [in_json(row) for row in rows]


_SUCH_AS = 'Such as [{"health": "poor", "age": {"low": 60}}, {"health": "fair"}].'


def in_json(given: Mapping[str, Any]) -> Texts:
    """A text for each condition of a mapping."""
    return tuple(json.dumps({name: value}, default=str) for name, value in given.items())


def _of_cells(row: Mapping[Any, Any]) -> Texts:
    """A text for each cell of a row that is not empty."""
    held = {str(name): value for name, value in row.items() if not is_absent(value) and value != ""}
    return tuple(
        f"{name}={value}" if isinstance(value, str) else json.dumps({name: value}, default=str)
        for name, value in held.items()
    )
