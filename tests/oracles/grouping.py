"""One row for each subject, by loops over rows and without pandas' groups."""

from __future__ import annotations

import math
from typing import Any


def subjects(names: list[tuple[Any, ...]]) -> list[list[int]]:
    """The rows of each subject, in the order of their first rows; a row that lacks a name is alone."""
    found: dict[Any, list[int]] = {}
    for row, name in enumerate(names):
        found.setdefault(("nobody", row) if any(one is None for one in name) else name, []).append(row)
    return list(found.values())


def summary(values: list[Any], how: str) -> Any:
    """The summary of the values of one subject, which come in the order of their first places in the whole table; None
    stands for missing."""
    known = [value for value in values if value is not None]
    if how == "count":
        return len(known)
    if not known:
        return None
    match how:
        case "sum":
            return math.fsum(known)
        case "mean":
            return math.fsum(known) / len(known)
        case "min":
            return min(known)
        case "max":
            return max(known)
    return max(known, key=known.count)  # of equally frequent ones the first
