"""GDTS: one generator for silos that hold different rows of the same columns (Zhao, Birke, Chen; CLOUD 2023).

========================================  ====================================================================
paper                                     here
========================================  ====================================================================
section II-B, step 1                      `_gather`, `Silo._summarise`, `summaries`
section II-B, step 2                      `_merged`, `encoders.federated.merge`
section II-B, step 3                      `_begin`, `Silo._prepare`
section II-C, figure 4: weights           `weights`
section II-A-2, GDTS_FL                   `_average`, `_round`, `Silo._train`
section II-A-1, GDTS_MD; swaps            `md`, `Silo._criticise`; `md.swap`
========================================  ====================================================================

Readings, and deviations, each an option:

* The noise is discrete Laplace noise on whole counts: see `privacy.mechanisms`. Names of categories, which the paper
  lets out as they are, are told by ``delta`` only where enough rows hold them.
* What is told of numbers is not noised in the paper: ``numbers`` = "noised" is ours.
* Rounds: the paper averages after every epoch; ``rounds`` divides the epochs otherwise. Weights and batch
  normalisation's running statistics are averaged; every silo keeps the moments of its own Adam, and starts each round
  from the average.
* A round asks ``participation`` of the silos, and goes on without those that get lost, or are away by lot
  (``absence``); the weights of those who answer are scaled to sum 1. Whoever comes back starts from the average like
  all others. Before training, and in mode "md", every silo is needed.
* ``weights`` = "paper" are figure 4's, "sharp" ours: see `weights`. What the average models is a mixture of the silos'
  rows in these proportions; so are the frequencies by which conditions are drawn when rows are made.
* ``generator`` = "diffusion" is ours: SiloFuse's autoencoder and flow, averaged round by round.
* The generator is with the coordinator; it samples alone, under conditions drawn by all silos' (noised) frequencies.

Who learns what:

* the coordinator: columns and kinds; noised counts of categories and rows; **un-noised summaries of numbers** (unless
  "noised"); every silo's **un-noised weights** in every round (mode "fl"), or, with ``secure``, their sum only; the
  gradients that a silo's critic gives for made rows (mode "md").
* other silos: encoders merged from all, and how many rows there are; the average; in mode "md" made rows and each
  other's critics, one after the other.

With ``secure`` the coordinator still chooses weights: where they differ greatly, a sum is nearly one silo's model.

Noise covers what the ledger lists with its events, and nothing else: no epsilon holds for the model.

Shapes: P silos, W numbers of a model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from silosynth.algorithms.gdts import md
from silosynth.algorithms.gdts.messages import (
    Describe,
    Described,
    ExactSummaries,
    GDTSConfig,
    NoisedSummaries,
    Prepare,
    Send,
    Summarise,
    Train,
    Trained,
)
from silosynth.algorithms.gdts.models import LocalModel, make_model, put_weights, weights_of
from silosynth.algorithms.gdts.weights import weights
from silosynth.core import absence
from silosynth.core.conversation import Checkpoint, Conversation, Exchange, Progress
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import Done
from silosynth.core.roster import Roster
from silosynth.core.schema import Schema, Table, agreed
from silosynth.core.streams import Streams
from silosynth.encoders.column import Encoder, decode_table, restored, stored
from silosynth.encoders.federated import Summary, merge
from silosynth.models.averaging import RunningMean
from silosynth.models.encoded import shape_of
from silosynth.privacy.aggregation import LEAST, TOGETHER, secure_sum

_RESUME = "Resume from the last checkpoint; if silos are slow, with a longer time limit."


@dataclass(frozen=True)
class Known:
    """What the coordinator has been told before training, in roster order."""

    encoders: tuple[Encoder, ...]
    counts_PK: Tensor  # (P, K) int64: rows of each silo on each level, of columns with several levels
    rows: list[int]
    weights: list[float]

    def model(self, config: GDTSConfig, streams: Streams, device: torch.device) -> LocalModel | None:
        """The model that silos train, without rows, and with the law of all silos' levels."""
        shape = shape_of(self.encoders)
        levels, scores = torch.zeros(0, len(shape.widths), dtype=torch.int64), torch.zeros(0, shape.scores)
        return make_model(
            config, self.encoders, sum(self.rows), levels, scores, streams.child("model"), device, self.counts()
        )

    def counts(self) -> Tensor:
        """How often each level (K,) occurs among all rows, where a silo counts as much as in averages of models."""
        weight_P, rows_P = torch.tensor([self.weights, [max(1, rows) for rows in self.rows]], dtype=torch.float64)
        counts_K: Tensor = (weight_P * rows_P.sum() / rows_P) @ self.counts_PK.double()
        return counts_K.ceil().long()  # no level is forgotten

    def state(self) -> dict[str, Any]:
        """In storable form."""
        encoders = stored(self.encoders)
        return {"encoders": encoders, "counts": self.counts_PK, "rows": self.rows, "weights": self.weights}


def known(state: dict[str, Any]) -> Known:
    """What `Known.state` stored."""
    encoders = restored(state["encoders"])
    return Known(encoders, state["counts"], state["rows"], state["weights"])


def coordinate(
    roster: Roster, config: GDTSConfig, streams: Streams, device: torch.device, state: dict[str, Any] | None = None
) -> Conversation[dict[str, Any]]:
    """Train; returns the coordinator's part of the model, which is all that sampling needs."""
    if config.secure and len(roster) < LEAST:
        raise ConfigError(
            f"Secure aggregation hides silos among at least {LEAST}", len(roster), "Set secure = false, or find more."
        )
    if state is None:
        about = yield from _begin(roster, config, streams)
        state = {**about.state(), "round": 0, "model": None}
    about = known(state)
    model = about.model(config, streams, device)
    if model is not None:
        if state["model"] is not None:
            model.restore(state["model"])
        train = _average if config.mode == "fl" else md.train
        yield from train(roster, config, about, model, streams, state)
        state = {**state, "model": model.state(training=False)}
    return {name: value for name, value in state.items() if name != "round"}


def synthesise(
    roster: Roster, config: GDTSConfig, model: dict[str, Any], rows: int, streams: Streams, device: torch.device
) -> Conversation[dict[str, Table]]:
    """Make ``rows`` synthetic rows. The coordinator needs nobody for that."""
    yield from ()
    about = known(model)
    generator = about.model(config, streams, device)
    levels, scores = torch.zeros(rows, 0, dtype=torch.int64), torch.zeros(rows, 0)
    if generator is not None:
        generator.restore(model["model"])
        levels, scores = generator.sample(rows, streams.child("rows"))
    return {"coordinator": decode_table(levels, scores, about.encoders, streams.child("columns").numpy())}


# Before training: encoders and weights.


def _begin(roster: Roster, config: GDTSConfig, streams: Streams) -> Conversation[Known]:
    replies = yield roster.everyone(Describe())
    schemas = {party: reply.schema for party, reply in zip(roster, _said(replies, Described), strict=True)}
    schema = agreed(schemas)
    told, rows = yield from _gather(roster, config, schema)
    rng = streams.child("encoders").numpy()
    noise = math.sqrt(2) / config.epsilon if config.delta else 0.0
    merged = {name: merge(told[name], rows, schema[name], config.model.encoders, rng, noise) for name in schema.names}
    rule = config.weights if config.mode == "fl" else "equal"  # in mode "md" all silos teach the generator alike
    weighed = weights(rule, list(merged.values()), rows)
    encoders = tuple(column.encoder for column in merged.values())
    yield roster.everyone(Prepare(encoders, sum(rows)))
    counts = [column.counts for column in merged.values() if column.encoder.width > 1]
    return Known(encoders, torch.cat([torch.zeros(len(rows), 0, dtype=torch.int64), *counts], dim=1), rows, weighed)


def _gather(
    roster: Roster, config: GDTSConfig, schema: Schema
) -> Conversation[tuple[dict[str, list[Summary]], list[int]]]:
    """What silos tell of each column, in roster order, and how many rows they have (step 1)."""
    told: dict[str, list[Summary]] = {}
    rows: list[int] = []
    for part in ("categories", "numbers"):
        if len(told) == len(schema.names):
            break  # there are no numbers
        replies = yield roster.everyone(Summarise(config, schema, part))
        for reply in _said(replies, (NoisedSummaries, ExactSummaries)):
            for summary in reply.columns:
                told.setdefault(summary.encoder.name, []).append(summary)
            rows += [reply.rows] if part == "categories" else []
    silent = [name for name in schema.names if len(told.get(name, ())) != len(roster)]
    if silent or set(told) != set(schema.names):
        raise ProtocolError("Every silo tells of every column, once", silent or sorted(told), "Compare versions.")
    return told, rows


# Mode "fl".


def _average(
    roster: Roster, config: GDTSConfig, about: Known, model: LocalModel, streams: Streams, state: dict[str, Any]
) -> Conversation[None]:
    """Section II-A-2: silos train, the coordinator averages, ``rounds`` times."""
    for number in range(state["round"], config.rounds):
        yield Progress("federated rounds", number, config.rounds)
        yield Checkpoint({**state, "round": number, "model": model.state(training=True)})
        active = present(roster, config, streams.child("round", number).numpy())
        yield from _round(active, dict(zip(roster, about.weights, strict=True)), model, number, config)
    yield Progress("federated rounds", config.rounds, config.rounds)


def present(roster: Roster, config: GDTSConfig, rng: np.random.Generator) -> list[str]:
    """Who takes part in a round: ``participation`` of the silos are asked, each of them is away by ``absence``.

    One is always there; under secure aggregation as many as it takes.
    """
    least = LEAST if config.secure else 1
    asked = rng.permutation(len(roster))[: max(least, round(config.participation * len(roster)))]
    return [roster.parties[i] for i in sorted(absence.present(asked.tolist(), config.absence, rng, least))]


def _round(
    active: Sequence[str], weight: dict[str, float], model: LocalModel, number: int, config: GDTSConfig
) -> Conversation[None]:
    """One round: all train, then tell what they have learnt, themselves or in a sum. Who gets lost is left out."""
    networks = model.networks(number, config.rounds)
    width, train = len(weights_of(networks)), Train(number, weights_of(model.given(number, config.rounds)))
    trained = yield Exchange({party: train for party in active}, missing=True)
    _said(trained, Done)
    asks = {party: Send(number, weight[party]) for party in trained}
    if config.secure:
        mean_W = (yield from secure_sum(asks, number, width)).mean()
    else:
        mean_W = yield from averaged(asks, width)
    put_weights(networks, mean_W.float())


def averaged(asks: dict[str, Send], width: int) -> Conversation[Tensor]:
    """The weighted mean (W,) of silos' weights, which are fetched a few at a time, and added up as they come.

    Raises:
        ProtocolError: all silos are lost.
    """
    mean, parties = RunningMean(width), list(asks)
    for first in range(0, len(parties), TOGETHER):
        some = parties[first : first + TOGETHER]
        replies = yield Exchange({party: asks[party] for party in some}, missing=True)
        for party, reply in zip(replies, _said(replies, Trained), strict=True):
            mean.add(reply.weights_W, asks[party].weight)
    if not mean.count:
        raise ProtocolError("A round has at least one silo that answers", "none", _RESUME)
    return mean.mean()


def _said(replies: Any, kind: Any) -> list[Any]:
    """The replies in order, all of the kind that was asked for."""
    for party, reply in replies.items():
        if not isinstance(reply, kind):
            raise ProtocolError(f"Silo {party!r} answers what it was asked", type(reply).__name__, "Compare versions.")
    return list(replies.values())
