"""What is to be predicted: from a column to what networks learn, and back.

Shapes: N rows, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from silosynth.algorithms.tabvfl.host import Labels
from silosynth.core.errors import DataError, SchemaError
from silosynth.core.messages import Struct
from silosynth.core.schema import Column, Kind

Value: TypeAlias = "str | int | float | bool"
MOST_CLASSES = 20  # a column of whole numbers with more values than this is a number


@dataclass(frozen=True, slots=True)
class Label(Struct):
    """What is known of the label.

    Attributes:
        name: of the column.
        kind: of the column, a value of `Kind`.
        silo: whose column it was; "" if it came by itself.
        classes: the classes, in order; none if the label is a number.
        mean, deviation: of the number.
    """

    name: str
    kind: str
    silo: str = ""
    classes: tuple[Value, ...] = ()
    mean: float = 0.0
    deviation: float = 1.0

    def numbers(self, column: Column) -> Tensor:
        """(N,) int64 numbers of classes, K for one that training didn't know; or float32 standardised numbers."""
        if not self.classes:
            return ((_line(column) - self.mean) / self.deviation).float()
        place = {value: i for i, value in enumerate(self.classes)}
        return torch.tensor([place.get(value, len(place)) for value in values_of(column)], dtype=torch.int64)

    def known(self, column: Column) -> Labels:
        """What the coordinator learns from."""
        return Labels(self.numbers(column), len(self.classes))


def fit_label(column: Column, kind: str, silo: str = "") -> Label:
    """Classes, or mean and deviation of a number. Whole numbers of few values are classes, unless declared continuous.

    Raises:
        DataError: a label is missing, or all are the same.
        SchemaError: labels are instants, or texts that are different in nearly all rows.
    """
    if kind == Kind.DATETIME.value or (kind == Kind.IDENTIFIER.value and column.levels is not None):
        raise SchemaError(f"Label {column.name!r} is a category or a number", kind, "Declare another kind.")
    check_labels(column)
    values = set(values_of(column))
    if len(values) < 2:
        raise DataError(f"Label {column.name!r} has at least two values", len(values), "There is nothing to predict.")
    whole = kind == Kind.INTEGER.value and not column.values.is_floating_point()
    if column.levels is not None or (whole and len(values) <= MOST_CLASSES):
        order = column.levels if column.levels is not None else sorted(values)
        return Label(column.name, kind, silo, tuple(value for value in order if value in values))
    numbers = _line(column)
    return Label(column.name, kind, silo, (), numbers.mean().item(), numbers.std().item())


def check_labels(column: Column) -> None:
    """Refuse labels that are missing.

    Raises:
        DataError: says how many.
    """
    gaps = int(column.missing.sum())
    if gaps:
        raise DataError(f"Label {column.name!r} is there in each row", f"missing in {gaps}", "Leave those rows out.")


def values_of(column: Column) -> Sequence[Value]:
    """The values as they are in frames."""
    codes: list[int | float] = column.values.tolist()
    return codes if column.levels is None else [column.levels[int(code)] for code in codes]


def _line(column: Column) -> Tensor:
    """(N,) float64 numbers, also of a column in which so few occur that they were read as categories.

    Raises:
        SchemaError: they are texts.
    """
    if column.levels is None:
        return column.values.double()
    if any(isinstance(level, str) for level in column.levels):
        raise SchemaError(f"Label {column.name!r} is a number, as in training", "text", "Convert it.")
    return torch.tensor([float(value) for value in values_of(column)], dtype=torch.float64)
