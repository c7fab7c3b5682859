"""A silo's columns ⇄ encoded rows: every algorithm's party has a `TableCoder` of its own table.

Shapes: N rows, C columns with levels, S scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from silosynth.core.schema import Column, ColumnSchema, Schema, Table, check_trainable, modelled_columns
from silosynth.core.streams import Streams
from silosynth.encoders.column import Encoder, EncoderConfig, decode_table, encode_table, fit_encoder, restored, stored
from silosynth.encoders.private import Learnt, learn
from silosynth.privacy.target import Target

Fit = Callable[[Column, ColumnSchema, Any, np.random.Generator], Encoder]


class TableCoder:
    """Encoders of a silo's modelled columns. Restored to decode only, it needs no rows.

    Attributes:
        table: the modelled columns.
        encoders: one for each; none before `fit`, `learn` or `restore`.
    """

    def __init__(self, table: Table, schema: Schema, streams: Streams) -> None:
        self.table, self.schema, self.streams = modelled_columns(table, schema), schema, streams
        self.encoders: tuple[Encoder, ...] = ()

    def fit(self, config: EncoderConfig, fit: Fit = fit_encoder) -> None:
        """Fit encoders to the rows.

        Raises:
            DataError: there is no column to model, or there are fewer than two rows.
        """
        check_trainable(self.table, self.schema)
        rng = self.streams.child("encoders").numpy()
        self.encoders = tuple(fit(column, self.schema[column.name], config, rng) for column in self.table.columns)

    def learn(self, config: EncoderConfig, target: Target, silos: int) -> Learnt:
        """Learn encoders from noised counts, by one of ``silos`` equal parts of the target's budget for encoders.

        Raises:
            DataError: see `fit`; or no level of a column of numbers is common enough to be released.
        """
        check_trainable(self.table, self.schema)
        rng = self.streams.child("encoders").noise()
        learnt = learn(self.table, self.schema, config, *target.encoder_budget(silos), rng, target=target.delta)
        self.encoders = learnt.encoders
        return learnt

    def encode(self, ties: str = "ties") -> tuple[Tensor, Tensor]:
        """Levels (N, C) and scores (N, S) of the rows; ties are broken at random by the stream of that name."""
        if not len(self.table):
            levels = sum(encoder.width > 1 for encoder in self.encoders)
            scores = sum(encoder.continuous for encoder in self.encoders)
            return torch.zeros(0, levels, dtype=torch.int64), torch.zeros(0, scores)
        return encode_table(self.table, self.encoders, self.streams.child(ties).numpy())

    def decode(self, levels_NC: Tensor, scores_NS: Tensor, streams: Streams) -> Table:
        """Columns of encoded rows, which lie on the CPU; values between levels are drawn from ``streams``."""
        return decode_table(levels_NC, scores_NS, self.encoders, streams.child("columns").numpy())

    def state(self) -> list[dict[str, Any]]:
        """The encoders in storable form."""
        return stored(self.encoders)

    def restore(self, state: Sequence[Any]) -> None:
        """Continue from what `state` returned."""
        self.encoders = restored(state)
