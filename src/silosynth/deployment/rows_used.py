"""Which rows of its table a silo has trained on, and which it held out: for its own reports on them, later."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import torch
from torch import Tensor

from silosynth.core.files import PRIVATE, make_folder, read, write_atomic
from silosynth.runtime.wire import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Mapping

ROWS_USED = "rows-used.silosynth"


@dataclass(frozen=True)
class RowsUsed:
    """Rows of a table, by their places.

    Attributes:
        table: a hash of all of it.
        train, held: places (N,) of the rows that were trained on, and held out.
    """

    table: str
    train: Tensor
    held: Tensor

    def keep(self, folder: Path) -> None:
        """Write it into the folder of the job that trains.

        Raises:
            StorageError: it cannot be written.
        """
        content = {"table": self.table, "train": self.train, "held": self.held}
        write_atomic(make_folder(folder) / ROWS_USED, pack(content), PRIVATE)

    def frames(self, whole: pd.DataFrame) -> Mapping[str, pd.DataFrame | None]:
        """The rows of each kind; None where none were held out."""
        parts = {"train": self.train, "holdout": self.held}
        return {
            name: whole.iloc[place.numpy()].reset_index(drop=True) if len(place) else None
            for name, place in parts.items()
        }


def rows_used(frame: pd.DataFrame, order: Tensor | None, held: Tensor) -> RowsUsed:
    """Which rows of a table a job trains on, and which are held out.

    Args:
        frame: the table.
        order: places of all of these rows; None for every row in order.
        held: which of them (N,) bool are held out; empty for none.
    """
    places = torch.arange(len(frame)) if order is None else order
    held = held if len(held) else torch.zeros(len(places), dtype=torch.bool)
    return RowsUsed(table_hash(frame), places[~held], places[held])


def table_hash(frame: pd.DataFrame) -> str:
    """A hash of a table's values and names, by which it is known again."""
    hashed = pd.util.hash_pandas_object(frame, index=False).to_numpy().tobytes()
    return hashlib.sha256(repr(list(map(str, frame.columns))).encode() + hashed).hexdigest()


def read_rows_used(folder: Path) -> RowsUsed | None:
    """What was kept of a job; None of one that did not train here, or of an earlier version.

    Raises:
        StorageError: the file is damaged.
    """
    path = folder / ROWS_USED
    return RowsUsed(**unpack(read(path))) if path.exists() else None
