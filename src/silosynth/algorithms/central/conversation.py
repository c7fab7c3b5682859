"""Central baselines: one silo holds all columns, trains one generator, and draws synthetic columns.

The generators that papers on vertical federated synthesis compare themselves with, written here from their papers:

=========  ==============================================================  =======================
name       paper                                                           model
=========  ==============================================================  =======================
ctgan      CTGAN, Xu et al. 2019; GAN(linear) of VT-GAN, section 4.1       `models.ctgan`
ctabgan    CTAB-GAN, Zhao et al. 2021; GAN(conv) of SiloFuse, section V-A  `models.conv_gan`
tvae       TVAE, Xu et al. 2019, section 4.5                               `models.tvae`
tabddpm    TabDDPM, Kotelnikov et al. 2022                                 `models.tabddpm`
=========  ==============================================================  =======================

One conversation serves them all; only the config differs. What leaves the silo: the number of its rows, and synthetic
columns, to whoever assembles the table (not at all if they stay partitioned). No formal guarantee protects anybody.

Shapes: N training rows, C columns with levels, S columns with scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from silosynth.algorithms.central.options import (
    CTABGANOptions,
    CTGANOptions,
    Options,
    TabDDPMOptions,
    TVAEOptions,
)
from silosynth.core.conversation import Checkpoint, Conversation, Party, Progress
from silosynth.core.errors import ConfigError, DataError, ProtocolError, nearest
from silosynth.core.messages import Done, Message, Release, Struct
from silosynth.core.roster import Roster
from silosynth.core.schema import Schema, Table
from silosynth.core.state import from_state, to_state
from silosynth.core.streams import Streams
from silosynth.encoders.column import Encoder, EncoderConfig, decode_table, encode_table, fit_encoder, restored, stored
from silosynth.encoders.normalised import ModeConfig, fit_mode_encoders
from silosynth.models.conv_gan import ConvolutionalGAN
from silosynth.models.ctgan import ConditionalGAN
from silosynth.models.encoded import TableModel, encoded_rows, shape_of
from silosynth.models.tabddpm import RowDiffusion
from silosynth.models.tvae import TVAE
from silosynth.privacy.sealed import Seat

PARTS = 20  # messages in which training is asked for, whatever the number of epochs
LEAST_ROWS = 2

MODELS: Mapping[type[Struct], Callable[..., TableModel]] = {
    CTGANOptions: ConditionalGAN,
    CTABGANOptions: ConvolutionalGAN,
    TVAEOptions: TVAE,
    TabDDPMOptions: RowDiffusion,
}


# What is said, in talking order.


@dataclass(frozen=True, slots=True)
class Prepare(Message):
    """Fit your encoders and make a model with these options, of one of the classes above."""

    config: Struct


@dataclass(frozen=True, slots=True)
class Prepared(Message):
    """I have so many rows."""

    release: ClassVar[Release] = Release.COUNTS
    rows: int


@dataclass(frozen=True, slots=True)
class Train(Message):
    """Train your model for part ``part`` of ``parts``."""

    part: int
    parts: int


@dataclass(frozen=True, slots=True)
class Draw(Message):
    """Draw so many synthetic rows. ``draw`` names the random stream, ``share`` asks for the columns."""

    rows: int
    draw: str
    share: bool


@dataclass(frozen=True, slots=True)
class SyntheticColumns(Message):
    """Synthetic columns of the silo."""

    release: ClassVar[Release] = Release.SYNTHETIC
    table: Table


class CentralParty(Party):
    """The one silo. It talks to no other: needs no seat. To draw with a restored state, an empty table will do."""

    def __init__(self, table: Table, schema: Schema, seat: Seat, streams: Streams, device: torch.device) -> None:
        self.table = table.select([name for name in table.names if name in schema.modelled])
        self.schema, self.streams, self.device = schema, streams, device
        self.config: Options | None = None
        self.encoders: tuple[Encoder, ...] = ()
        self.model: TableModel | None = None  # None also where every column is constant: there is nothing to learn
        self.kept: list[Table] = []  # synthetic columns that stay here, when synthesis is partitioned

    def answer(self, ask: Message) -> Message:
        """Answer one message of the coordinator."""
        match ask:
            case Prepare():
                return self._prepare(ask)
            case Train():
                return self._train(ask)
            case Draw():
                return self._draw(ask)
            case _:
                raise ProtocolError("A central baseline does not understand this message", type(ask).__name__)

    def state(self) -> dict[str, Any]:
        """Options, encoders, model and its training."""
        return self._state(training=True)

    def trained(self) -> dict[str, Any]:
        """What drawing needs."""
        return self._state(training=False)

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state` or `trained`."""
        if state["config"] is None:
            return
        self.config = _checked(from_state(Struct, state["config"]))
        self.encoders = restored(state["encoders"])
        self._make_model()
        if self.model is not None:
            self.model.restore(state["model"])

    def _state(self, training: bool) -> dict[str, Any]:
        return {
            "config": None if self.config is None else to_state(self.config),
            "encoders": stored(self.encoders),
            "model": None if self.model is None else self.model.state(training),
        }

    def _prepare(self, ask: Prepare) -> Prepared:
        """Fit the column encoders and make a fresh model.

        Raises:
            DataError: the table has fewer than two rows, or no column to model.
            ConfigError: the target is no column to model, or has less than two levels.
            ProtocolError: the options are of no baseline.
        """
        if not self.table.columns:
            raise DataError("A silo needs at least one column that is not an identifier", self.schema.names)
        if len(self.table) < LEAST_ROWS:
            raise DataError(f"A generator needs at least {LEAST_ROWS} rows", len(self.table), "Give the silo more.")
        self.config = _checked(ask.config)
        target = getattr(ask.config, "target", "")
        if target and target not in self.table.names:
            raise ConfigError("Option 'target' names a column to model", target, nearest(target, self.table.names))
        self.encoders = _fitted(self.table, self.schema, self.config.encoders, self.streams.child("encoders").numpy())
        if target and all(encoder.width < 2 for encoder in self.encoders if encoder.name == target):
            remedy = "Name another one, or none: the classifier is then left out."
            raise ConfigError("Option 'target' names a column with at least two levels or modes", target, remedy)
        self._make_model()
        return Prepared(len(self.table))

    def _train(self, ask: Train) -> Done:
        self._check_prepared(ask)
        if self.model is not None:
            self.model.train(ask.part, ask.parts)
        return Done()

    def _draw(self, ask: Draw) -> Message:
        self._check_prepared(ask)
        streams = self.streams.child("synthesise", ask.draw)
        levels, scores = torch.zeros(ask.rows, 0, dtype=torch.int64), torch.zeros(ask.rows, 0)
        if self.model is not None:
            levels, scores = self.model.sample(ask.rows, streams.child("rows"))
        table = decode_table(levels, scores, self.encoders, streams.child("columns").numpy())
        if ask.share:
            return SyntheticColumns(table)
        self.kept.append(table)
        return Done()

    def _check_prepared(self, ask: Message) -> None:
        if self.config is None:
            raise ProtocolError("A silo is prepared before it trains or draws", type(ask).__name__)

    def _make_model(self) -> None:
        """Encode the rows, if there are any, and make a model of them."""
        shape = shape_of(self.encoders)
        levels, scores = torch.zeros(0, len(shape.widths), dtype=torch.int64), torch.zeros(0, shape.scores)
        if len(self.table):
            levels, scores = encode_table(self.table, self.encoders, self.streams.child("ties").numpy())
        self.model = None
        if self.config is not None and shape.size:
            target = getattr(self.config, "target", "")
            coded = encoded_rows(self.encoders, levels.to(self.device), scores.to(self.device), target)
            self.model = MODELS[type(self.config)](coded, self.config, self.streams.child("model"), self.device)


def coordinate(
    roster: Roster, config: Struct, streams: Streams, device: torch.device, state: dict[str, Any] | None = None
) -> Conversation[dict[str, Any]]:
    """Have the silo train; returns the coordinator's part of the model, which is the number of rows."""
    if state is None:
        replies = yield roster.everyone(Prepare(config))
        state = {"part": 0, "rows": next(reply.rows for reply in replies.values() if isinstance(reply, Prepared))}
        yield Checkpoint(state)
    for part in range(state["part"], PARTS):
        yield Progress("training", part, PARTS)
        yield roster.everyone(Train(part, PARTS))
        yield Checkpoint({**state, "part": part + 1})
    yield Progress("training", PARTS, PARTS)
    return {"rows": state["rows"]}


def synthesise(
    roster: Roster, config: Struct, model: dict[str, Any], rows: int, streams: Streams, device: torch.device
) -> Conversation[dict[str, Table]]:
    """Have the silo draw ``rows`` synthetic rows; its columns, or none where they stay partitioned."""
    share = _checked(config).synthesis == "shared"
    replies = yield roster.everyone(Draw(rows, "/".join(streams.path), share))
    return {party: reply.table for party, reply in replies.items() if isinstance(reply, SyntheticColumns)}


def _checked(config: Struct) -> Options:
    """The options, if they are of a baseline; raises ProtocolError if not."""
    if not isinstance(config, Options):
        raise ProtocolError("A central baseline has options of its own", type(config).__name__)
    return config


def _fitted(table: Table, schema: Schema, config: EncoderConfig, rng: np.random.Generator) -> tuple[Encoder, ...]:
    """Encoders of the kind that the options are for."""
    if isinstance(config, ModeConfig):
        return fit_mode_encoders(table, schema, config, rng)
    return tuple(fit_encoder(column, schema[column.name], config, rng) for column in table.columns)
