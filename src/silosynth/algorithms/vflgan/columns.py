"""A silo's columns as its networks see them: encoders, what these have cost, and how often each level is.

Shapes: N rows, C columns with levels, S scores, K levels of all columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from silosynth.algorithms.vflgan.messages import GANConfig
from silosynth.core.schema import Schema, Table
from silosynth.core.state import from_state, to_state
from silosynth.core.streams import Streams
from silosynth.encoders.column import Encoder, encode_table, fit_encoder, restored, stored
from silosynth.encoders.normalised import fit_standard_encoder
from silosynth.encoders.private import learn
from silosynth.models.calibration import level_shares
from silosynth.models.encoded import EncodedRows, RowShape, encoded_rows, shape_of
from silosynth.privacy.events import Event


class Columns:
    """Empty until `fit` or `restore`.

    Attributes:
        encoders: one per column.
        events: what they have cost; none without differential privacy.
        shares: of the rows, on each level (K,), once they are counted; with differential privacy from noised counts.
    """

    def __init__(self) -> None:
        self.encoders: tuple[Encoder, ...] = ()
        self.events: tuple[Event, ...] = ()
        self.shares = torch.zeros(0)

    def fit(self, table: Table, schema: Schema, config: GANConfig, silos: int, streams: Streams) -> int:
        """Section 5.1.1, preprocessing. The number of rows; with differential privacy a noised one."""
        dp = config.dp
        if dp.private:
            share, rng = dp.encoders / silos, streams.child("encoders").noise()
            about = table, schema, config.encoders, share * dp.epsilon, share * dp.delta, rng
            learnt = learn(*about, target=dp.delta)
            self.encoders, self.events = learnt.encoders, learnt.events
            self.shares = torch.cat([torch.zeros(0), *(part.float() for part in learnt.shares if len(part) > 1)])
            return learnt.rows
        fit = fit_standard_encoder if config.numbers == "standard" else fit_encoder
        rng = streams.child("encoders").numpy()
        self.encoders = tuple(fit(column, schema[column.name], config.encoders, rng) for column in table.columns)
        return len(table)

    def count(self, levels_NC: Tensor) -> None:
        """Take the shares from encoded rows: not with differential privacy."""
        self.shares = level_shares(self.shape, levels_NC).cpu()

    @property
    def shape(self) -> RowShape:
        """Of encoded rows; a table of constants has one score, always 0."""
        return shape_of(self.encoders, padded=True)

    def coded(self, table: Table, streams: Streams, device: torch.device) -> EncodedRows:
        """Encoded rows, if there are any."""
        shape, rng = self.shape, streams.child("ties").numpy()
        levels, scores = torch.zeros(0, len(shape.widths), dtype=torch.int64), torch.zeros(0, shape.scores)
        if len(table):
            levels, scores = encode_table(table, self.encoders, rng)
        return encoded_rows(self.encoders, levels.to(device), scores.to(device), padded=True)

    def state(self, counts: bool) -> dict[str, Any]:
        """Everything; the shares only with ``counts``."""
        return {
            "encoders": stored(self.encoders),
            "events": [to_state(event) for event in self.events],
            "shares": self.shares if counts else torch.zeros(0),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.encoders = restored(state["encoders"])
        self.events = tuple(from_state(Event, event) for event in state["events"])
        self.shares = state["shares"]
