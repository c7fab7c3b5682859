"""What a report is about: what somebody who files it must find in its head, as far as an evaluation can know it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Literal, Protocol

import numpy as np

from silosynth.core.schema import ColumnSchema, Kind, Schema
from silosynth.core.version import VERSION
from silosynth.encoders.column import RARE
from silosynth.evaluation.coding import Coded
from silosynth.evaluation.scores import Floats
from silosynth.privacy.statement import statement

UNLEARNT = {
    Kind.IDENTIFIER.value: "identifier: not learnt, synthetic rows are numbered",
    Kind.PSEUDONYM.value: "pseudonym: not learnt, synthetic rows have substitutes",
}
CONSTANT = "constant: one value in all training rows"


class AnyModel(Protocol):
    """What is asked of a model: `silosynth.Model` has it."""

    ledger: list[dict[str, Any]]

    @property
    def schema(self) -> Schema:
        """The kinds of its columns."""

    def describe(self) -> dict[str, Any]:
        """What it is, as plain values."""


@dataclass(frozen=True, slots=True)
class Range:
    """The range to which a generator keeps a column's values; instants in nanoseconds since 1970."""

    low: float
    high: float
    declared: bool
    below: float  # share of the present training values that lie below it, 0..1
    above: float


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What is known of the generator and its data. None: unknown, because `evaluate` was given no model."""

    data: str | None = None  # its name
    date: str | None = None  # of the evaluation, YYYY-MM-DD
    version: str = VERSION  # of silosynth
    algorithm: str | None = None
    preset: str | None = None
    seed: int | Literal["secret", "given"] | None = None  # "given": one that made noise, and is not kept
    partition: str | None = None  # "horizontal", "vertical" or "mixed"
    silos: Mapping[str, tuple[str, ...]] | None = None  # each silo's columns
    guarantee: str | None = None  # begins with "none" where there is none
    pooled: Mapping[str, float | None] = field(default_factory=dict)  # columns with rare levels -> share of "(rare)"
    ranges: Mapping[str, Range] | None = None  # of columns of numbers and instants
    left_out: Mapping[str, str] = field(default_factory=dict)  # columns that nothing is learnt of or shown by -> why
    counted: Mapping[str, str] | None = None  # if only tables of real rows are known: how they were counted, in words


def about(
    train: Coded,
    synthetic: Coded,
    unmodelled: Sequence[ColumnSchema],
    data: str | None,
    silos: Mapping[str, Sequence[str]] | None,
    model: AnyModel | None,
    ledger: Sequence[Mapping[str, Any]] | None,
) -> About:
    """What an evaluation knows of its tables, and of the model that drew the synthetic one.

    ``unmodelled`` are the columns that are not compared: identifiers and pseudonyms.
    """
    uncompared = {column.name: f"{column.kind}: {column.reason}" for column in unmodelled}
    constant = {f.name: CONSTANT for f, values in zip(train.fields, train.values, strict=True) if _constant(values)}
    held = None if silos is None else {name: tuple(columns) for name, columns in silos.items()}
    common: dict[str, Any] = {"data": data, "date": date.today().isoformat(), "silos": held}
    if model is None:
        return About(
            **common,
            left_out={**uncompared, **constant},
            pooled=_labelled(synthetic),
            guarantee=None if ledger is None else statement(ledger)["summary"],
        )
    facts = model.describe()
    made = _made(facts)
    return About(
        **common,
        **{key: made[key] for key in ("algorithm", "preset", "partition", "guarantee", "seed")},
        left_out=made["left_out"] | {**uncompared, **constant},
        pooled=made["pooled"] | _labelled(synthetic),
        ranges=None if facts["ranges"] is None else _ranges(train, facts["ranges"]),
    )


def about_tables(
    data: str | None,
    silos: Mapping[str, tuple[str, ...]] | None,
    model: AnyModel | None,
    counted: Mapping[str, str],
) -> About:
    """What is known where real rows are known by tables only; ``counted`` says how those came to be."""
    made = {} if model is None else _made(model.describe())
    return About(data=data, date=date.today().isoformat(), silos=silos, counted=counted, **made)


def _made(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What a model says of itself."""
    return {
        **{key: facts[key] for key in ("algorithm", "preset", "partition", "guarantee")},
        "left_out": {name: UNLEARNT[kind] for name, kind in facts["columns"].items() if kind in UNLEARNT},
        "seed": facts["seed"] if facts["seed"] != -1 else "given" if facts.get("seeded") else "secret",
        "pooled": dict.fromkeys(facts["pooled"]),
    }


def _constant(values: Floats) -> bool:
    return bool(
        ((values == values[0]) | (np.isnan(values) & np.isnan(values[0]))).all()
    )  # missing values are one value


def _labelled(table: Coded) -> dict[str, float]:
    """The share of rows whose level was pooled, of each column in which such levels have a label."""
    return {
        column.name: float((values == column.levels.index(RARE)).mean())
        for column, values in zip(table.fields, table.values, strict=True)
        if RARE in column.levels
    }


def _ranges(train: Coded, stated: Mapping[str, Mapping[str, Any]]) -> dict[str, Range]:
    ranges = {}
    for column, values in zip(train.fields, train.values, strict=True):
        present = values[~np.isnan(values)] if column.name in stated and not column.categorical else values[:0]
        if len(present):
            low, high = (float(stated[column.name][end]) for end in ("low", "high"))
            slack = 1e-9 * max(abs(low), abs(high))
            beyond = (float((present < low - slack).mean()), float((present > high + slack).mean()))
            ranges[column.name] = Range(low, high, stated[column.name]["declared"], *beyond)
    return ranges
