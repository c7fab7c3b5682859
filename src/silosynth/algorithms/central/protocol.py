"""Central baselines: one silo holds all columns, trains one generator, and draws synthetic columns.

The generators that papers on vertical federated synthesis compare themselves with, written here from their papers:

=========  ==============================================================  =======================
name       paper                                                           model
=========  ==============================================================  =======================
ctgan      CTGAN, Xu et al. 2019; GAN(linear) of VT-GAN, section 4.1       `models.ctgan`
ctabgan    CTAB-GAN, Zhao et al. 2021; GAN(conv) of SiloFuse, section V-A  `models.conv_gan`
tvae       TVAE, Xu et al. 2019, section 4.5                               `models.autoencoder`
tabddpm    TabDDPM, Kotelnikov et al. 2022                                 `models.tabddpm`
=========  ==============================================================  =======================

One conversation serves them all; only the config differs. What leaves the silo: the number of its rows, and synthetic
columns, to whoever assembles the table (not at all if they stay partitioned). No formal guarantee protects anybody.
"""

from __future__ import annotations

import torch

from silosynth.core.conversation import Checkpoint, Conversation, Progress, Roster, State, expect, shared_columns
from silosynth.core.messages import Done, Message, Release, Rows, Struct, check_part
from silosynth.core.schema import Table
from silosynth.core.streams import Streams

PARTS = 20  # messages in which training is asked for, whatever the number of epochs


# Messages in talking order.


class PrepareModel(Message):
    """Coordinator: fit encoders and make a model."""


class ModelPrepared(Message, release=Release.COUNTS):
    """Silo: its number of rows."""

    rows: int


class TrainModel(Message):
    """Coordinator: train your model for part ``part`` of `PARTS`."""

    part: int

    def _check(self) -> None:
        check_part(self.part, PARTS)


class SynthesiseRows(Message):
    """Coordinator: draw ``rows`` synthetic rows. ``draw`` names the random stream."""

    rows: Rows[int]
    draw: str


def coordinate(
    roster: Roster, config: Struct, streams: Streams, device: torch.device, state: State | None = None
) -> Conversation[State]:
    """Have the silo train; returns the coordinator's part of the model, which is the number of rows."""
    if state is None:
        (prepared,) = expect((yield roster.everyone(PrepareModel())), ModelPrepared)
        state = {"part": 0, "rows": prepared.rows}
        yield Checkpoint(state)
    for part in range(state["part"], PARTS):
        yield Progress("training", part, PARTS)
        expect((yield roster.everyone(TrainModel(part))), Done)
        yield Checkpoint({**state, "part": part + 1})
    yield Progress("training", PARTS, PARTS)
    return {"rows": state["rows"]}


def synthesise(
    roster: Roster, config: Struct, model: State, rows: int, streams: Streams, device: torch.device
) -> Conversation[dict[str, Table]]:
    """Have the silo draw ``rows`` synthetic rows; its columns, or none where they stay partitioned."""
    return shared_columns((yield roster.everyone(SynthesiseRows(rows, "/".join(streams.path)))))
