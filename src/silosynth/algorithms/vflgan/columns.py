"""A silo's columns as its networks see them: encoders, what these have cost, and how often each level is.

Shapes: N rows, C columns with levels, S scores, K levels of all columns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from silosynth.algorithms.vflgan.messages import GANConfig
from silosynth.core.schema import Schema, Table
from silosynth.core.state import from_state, to_state
from silosynth.core.streams import Streams
from silosynth.encoders.column import Encoder, encode_table, fit_encoder, restored, stored
from silosynth.encoders.normalised import fit_standard_encoder
from silosynth.encoders.private import learn
from silosynth.models.autoencoder import Layout
from silosynth.models.calibration import level_shares
from silosynth.models.coded import Coded, coded_by
from silosynth.models.gan import Shape
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
        self.shares = level_shares(Layout(self.shape.widths, ()), levels_NC).cpu()

    @property
    def shape(self) -> Shape:
        """Of encoded rows; a table of constants has one score, always 0."""
        widths = tuple(encoder.width for encoder in self.encoders if encoder.width > 1)
        scores = sum(encoder.continuous for encoder in self.encoders)
        return Shape(widths, scores if widths else max(1, scores))

    def coded(self, table: Table, streams: Streams, device: torch.device) -> Coded:
        """Encoded rows, if there are any."""
        shape, rng = self.shape, streams.child("ties").numpy()
        levels, scores = torch.zeros(0, len(shape.widths), dtype=torch.int64), torch.zeros(0, shape.scores)
        if len(table):
            levels, scores = encode_table(table, self.encoders, rng)
            scores = F.pad(scores, (0, shape.scores - scores.shape[1]))
        coded = coded_by(self.encoders, levels.to(device), scores.to(device))
        padding = shape.scores - coded.shape.scores
        return replace(
            coded, shape=shape, level_of=coded.level_of + (-1,) * padding, lines=coded.lines + (1,) * padding
        )

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
