"""How a trained generator is sampled, on this machine and in a deployment alike: streams, batches, and the table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from silosynth.catalog import Algorithm
from silosynth.core.conversation import Conversation, Roster
from silosynth.core.errors import ConfigError
from silosynth.core.messages import Struct
from silosynth.core.schema import Column, ColumnSchema, Kind, Schema, Table, below, beside
from silosynth.core.streams import Streams
from silosynth.data.dtypes import resolve
from silosynth.data.frames import to_frame

BATCH = 16_384


class SampleBatch(NamedTuple):
    """Synthetic rows that are drawn at a time: the batch's number, its first row (both from 0), and its size."""

    number: int
    first: int
    rows: int


def sampling_streams(streams: Streams, call: int = 0, seed: int | None = None) -> Streams:
    """The streams of one sampling: those of its seed; without one, of the model's ``call``-th sampling, from 0."""
    return streams.child("sample", f"call {call}" if seed is None else f"seed {seed}")


def batches(rows: int, size: int = BATCH) -> Iterator[SampleBatch]:
    """The batches in which ``rows`` rows are drawn."""
    for number, first in enumerate(range(0, rows, size)):
        yield SampleBatch(number, first, min(size, rows - first))


def draw(
    entry: Algorithm, roster: Roster, config: Struct, coordinator: Mapping[str, Any], batch: SampleBatch,
    streams: Streams, device: torch.device,
) -> Conversation[dict[str, Table]]:  # fmt: skip
    """The coordinator's side of drawing a batch: synthetic columns by silo, without those that stay in their silo.

    ``streams`` are those of all batches (`sampling_streams`).
    """
    assert entry.synthesise is not None  # a generator has it
    return entry.synthesise(roster, config, coordinator, batch.rows, streams.child(batch.number), device)


def all_columns(schemas: Mapping[str, Schema], horizontal: bool) -> Schema:
    """The columns of all silos, in silos' order; of silos with different rows, those that all of them have."""
    held = list(schemas.values())[: 1 if horizontal else None]
    return Schema(tuple(column for schema in held for column in schema.columns))


def to_synthetic_frame(parts: Sequence[Table], schema: Schema, start: int = 1, flavour: str = "pandas") -> Any:
    """A frame of the schema's columns: batches of modelled columns, and identifiers as running numbers from ``start``.

    Args:
        parts: tables of the modelled columns, to be set one below the other.
        schema: the columns of the frame, in order.
        start: the first running number.
        flavour: "pandas", "polars" or "arrow".
    """
    modelled = below(parts)
    numbers = [_surrogate(column, start, len(modelled)) for column in schema.columns if _is_identifier(column)]
    table = beside([modelled, Table(tuple(numbers))]).select(schema.names)
    return to_frame(table, flavour)  # type: ignore[arg-type]


def check_identifiers_fit(schema: Schema, rows: int) -> None:
    """Refuse more rows than an identifier's dtype can number.

    Raises:
        ConfigError: names the column, and how many rows it can number.
    """
    for column in filter(_is_identifier, schema.columns):
        dtype = resolve(column.dtype)
        if dtype.kind not in "iuf":
            continue
        width = f"{dtype.kind}{dtype.itemsize}"
        most = 2 ** (np.finfo(width).nmant + 1) if dtype.kind == "f" else int(np.iinfo(width).max)
        if rows > most:
            raise ConfigError(
                f"Identifier column {column.name!r} of dtype {column.dtype} can number at most {most:,} rows",
                rows,
                "Sample fewer, or train with the column cast to int64, declared another kind, or left out.",
            )


def _is_identifier(column: ColumnSchema) -> bool:
    return column.kind == Kind.IDENTIFIER.value


def _surrogate(schema: ColumnSchema, start: int, size: int) -> Column:
    """Running numbers in place of an identifier: as numbers, or as texts."""
    numbers = torch.arange(start, start + size)
    missing = torch.zeros(size, dtype=torch.bool)
    kind = resolve(schema.dtype).kind
    if kind in "iuf":
        return Column(schema.name, schema.dtype, numbers.double() if kind == "f" else numbers, missing)
    texts = tuple(f"synthetic-{i}" for i in numbers.tolist())
    return Column(schema.name, schema.dtype, torch.arange(size), missing, texts)
