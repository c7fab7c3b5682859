"""Declared bounds, which differential privacy presupposes, for tables that tests make."""

from __future__ import annotations

from typing import Any

import pandas as pd
from pandas.api import types


def bounds(data: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """The range of every column of numbers or instants: tests know what their tables hold."""
    return {
        str(name): {"low": column.min(), "high": column.max()}
        for name, column in data.items()
        if types.is_datetime64_any_dtype(column) or (types.is_numeric_dtype(column) and column.dtype != bool)
    }


def bounds_if_private(data: pd.DataFrame, options: dict[str, Any]) -> dict[str, dict[str, Any]] | None:
    """`bounds` where options ask for an epsilon."""
    dp = options.get("dp")
    return bounds(data) if isinstance(dp, dict) and "epsilon" in dp else None
