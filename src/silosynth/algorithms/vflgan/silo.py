"""A silo of VFLGAN or VertiGAN: its columns, what it charges for, and what it publishes. Training: `split`, `vertigan`.

Shapes: N rows, C columns with levels, S scores, W features.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from silosynth.algorithms.vflgan.columns import Columns
from silosynth.algorithms.vflgan.draws import Draws
from silosynth.algorithms.vflgan.local import Budget, Local
from silosynth.algorithms.vflgan.messages import (
    BATCHES,
    PUBLICATION,
    Charge,
    Charged,
    GANConfig,
    Judge,
    Judged,
    Keep,
    Prepare,
    Prepared,
    PreparedPrivately,
    Synthesise,
    SyntheticColumns,
    VFLGANConfig,
)
from silosynth.algorithms.vflgan.split import Split
from silosynth.core.conversation import Party
from silosynth.core.errors import ConfigError, DataError, ProtocolError
from silosynth.core.messages import Done, Message
from silosynth.core.schema import Schema, Table
from silosynth.core.state import from_state, to_state
from silosynth.core.streams import Streams
from silosynth.encoders.column import decode_table
from silosynth.models.calibration import Calibration
from silosynth.models.vflgan import MOST_COVARIANCES
from silosynth.privacy.accounting import noise_multiplier
from silosynth.privacy.agreement import Confirmations, Group, OfferShares, RelayedShares
from silosynth.privacy.events import gaussian_steps, unsound
from silosynth.privacy.sealed import Seat

LEAST_ROWS = 2
STEPS = "gradients of critics, a silo's and the shared one's together"


class Training(Protocol):
    """A silo's part in the training of one of the two algorithms."""

    local: Local

    def answer(self, ask: Message) -> Message | None:
        """The answer to a message of training; None if ``ask`` is not one."""

    def state(self, training: bool) -> dict[str, Any]:
        """All that is needed to continue, or to sample."""

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""


class Silo(Party):
    """A silo's side. ``make`` makes its part in training: of VFLGAN, or of VertiGAN."""

    def __init__(
        self, table: Table, schema: Schema, seat: Seat, streams: Streams, device: torch.device,
        make: Callable[..., Training] = Split,
    ) -> None:  # fmt: skip
        self.table = table.select([name for name in table.names if name in schema.modelled])
        self.schema, self.streams, self.device, self.make = schema, streams, device, make
        self.silos = len(seat.roster)
        self.secret, self.publication = Group(seat), Group(seat)
        self.agreeing, self.purpose = self.secret, ""
        self.config: GANConfig = VFLGANConfig()
        self.columns = Columns()
        self.budget: Budget | None = None
        self.training: Training | None = None
        self.match: Calibration | None = None  # of what is drawn, found when it is first needed
        self.kept: list[Table] = []  # synthetic columns that stay here, when synthesis is partitioned

    def answer(self, ask: Message) -> Message:
        """Answer one message of the coordinator."""
        if not self.columns.encoders and not isinstance(
            ask, Prepare | OfferShares | RelayedShares | Confirmations | Done
        ):
            raise ProtocolError("A silo is prepared first", f"{type(ask).__name__} comes too early")
        match ask:
            case Prepare():
                return self._prepare(ask)
            case OfferShares() | RelayedShares() | Confirmations():
                return self._agree(ask)
            case Charge():
                return self._charge(ask)
            case Judge():
                return self._judge()
            case Keep():
                self.match = None
                self._trainer().local.keep()
                return Done()
            case Synthesise():
                return self._synthesise(ask)
            case _:
                self.match = None  # weights change
                reply = None if isinstance(ask, Done) else self._trainer().answer(ask)
        if reply is None:
            raise ProtocolError("A VFLGAN silo does not understand this message", type(ask).__name__)
        return reply

    # Encoders, and the secret.

    def _prepare(self, ask: Prepare) -> Prepared | PreparedPrivately:
        """Section 5.1.1, preprocessing."""
        if not self.table.columns:
            raise DataError("A silo needs at least one column that is not an identifier", self.schema.names)
        if len(self.table) < LEAST_ROWS:
            raise DataError(f"A generator needs at least {LEAST_ROWS} rows", len(self.table), "Give the silo more.")
        self.config, self.training, self.match = ask.config, None, None
        rows = self.columns.fit(self.table, self.schema, self.config, self.silos, self.streams)
        if ask.config.select == "frechet" and self.columns.shape.size > MOST_COVARIANCES:
            raise ConfigError(
                f"Option select = 'frechet' is for rows of at most {MOST_COVARIANCES} numbers", self.columns.shape.size,
                "Set select = 'last'.",
            )  # fmt: skip
        if ask.config.dp.private:
            return PreparedPrivately(rows, self._nonce(), self.columns.events)
        return Prepared(rows, self._nonce())

    def _nonce(self) -> str:
        """A word that no other training has."""
        return f"{self.streams.child('nonce', repr(self.config)).integer():016x}"

    def _agree(self, ask: Message) -> Message:
        """Agree on a secret: of this training, in whose purpose this silo's own nonce is; or of a publication."""
        if isinstance(ask, OfferShares):
            training = ask.purpose.startswith(BATCHES)
            right = self._nonce() in ask.purpose.split() if training else ask.purpose.startswith(PUBLICATION)
            if ask.fresh or not right:
                raise ProtocolError(
                    "Silos agree on a secret for a training that this one was prepared for, or for a publication",
                    ask.purpose,
                    "Both sides must run the same version of silosynth.",
                )
            self.agreeing, self.purpose = (self.secret if training else self.publication), ask.purpose
        reply = self.agreeing.answer(ask)
        assert reply is not None
        return reply

    # Differential privacy.

    def _charge(self, ask: Charge) -> Charged:
        """Charge all steps before the first; `Local.criticise` refuses any beyond them."""
        config, dp = self.config, self.config.dp
        if config.unsound:
            return Charged(b"", (unsound("gradients of the first layers of local critics, as in the paper"),))
        if not dp.private or self.training is not None:
            raise ProtocolError("Steps are charged once, before the first, where differential privacy was asked for")
        if Counter(self.columns.events) - Counter(ask.events):
            raise ProtocolError("What this silo has charged already is among what all have", len(ask.events))
        noise = noise_multiplier(dp, ask.events, ask.rate, ask.steps)
        blocks = self.silos + isinstance(config, VFLGANConfig)
        self.budget = Budget(ask.steps, ask.rate, ask.expected, blocks, noise)
        tag = self.secret.key(f"{len(self.table)} rows")
        return Charged(tag, (gaussian_steps(STEPS, noise, ask.rate, ask.steps, joint=True, target=dp.delta),))

    # Training.

    def _trainer(self) -> Training:
        """This silo's part in training; made when it is first needed."""
        if self.training is None:
            if not self.secret.ready or (self.config.dp.private and self.budget is None):
                raise ProtocolError("Silos train after they have agreed on a secret, and charged for all steps")
            self._make()
        assert self.training is not None
        return self.training

    def _make(self) -> None:
        """Networks, and the rows, if there are any."""
        n, batch = len(self.table), min(self.config.batch, max(1, len(self.table)))
        if self.budget is not None:
            batch = round(self.budget.expected)
        draws = Draws(self.secret, n, batch)
        self.coded = self.columns.coded(self.table, self.streams, self.device)
        self.training = self.make(self.coded, self.config, draws, self.budget, self.streams, self.device)
        if n and not self.config.dp.private:
            self.columns.count(self.coded.levels)
        if self.config.start == "shares" and n and self.secret.ready:
            self.training.local.start(self.columns.shares)

    @property
    def levels(self) -> Tensor:
        """The rows' levels (N, C)."""
        return self.coded.levels

    @property
    def scores(self) -> Tensor:
        """The rows' scores (N, S)."""
        return self.coded.scores

    @torch.no_grad()
    def features(self) -> Tensor:
        """Features (N, W) of all rows, by the first part of the critic as it is now (section 4.2, ASIF)."""
        local, every = self._trainer().local, torch.arange(len(self.table), device=self.device)
        rows = self.coded.batch(every, self.streams.child("features").torch(self.device))
        return local.critic.network.features(self.coded.shape.vectors(*rows)).cpu()

    # Publication.

    def _synthesise(self, ask: Synthesise) -> Message:
        """G_i(z) of a z that all silos share and nobody else knows (equation (7))."""
        if self.purpose != f"{PUBLICATION} {ask.draw}" or self.training is None:
            raise ProtocolError("Silos agree on the noise of a publication before it", ask.draw, "Agree on it first.")
        local, streams = self.training.local, self.streams.child("synthesise", ask.draw)
        z_GZ = Draws(self.publication, 0, 1).noise(ask.rows, self.config.noise, "publication")
        weights = local.kept or local.weights()
        if self.config.calibrate and self.match is None:
            self.match = local.matching(self.columns.shares, weights)
        levels, scores = local.draw(z_GZ, streams.child("levels").torch(self.device), weights, self.match)
        table = decode_table(levels, scores, self.columns.encoders, streams.child("columns").numpy())
        if ask.share:
            return SyntheticColumns(table)
        self.kept.append(table)
        return Done()

    def _judge(self) -> Judged:
        """How far made rows are from real ones: exact, and charged to nothing."""
        if self.config.dp.private:
            raise ProtocolError("Under differential privacy a silo tells no distance of its rows", "Judge")
        return Judged(self._trainer().local.distance())

    # State.

    def state(self) -> dict[str, Any]:
        """Encoders, networks, optimisers, what was charged, and the secret of batches."""
        return self._state(training=True)

    def trained(self) -> dict[str, Any]:
        """What sampling needs: encoders, the generator, and shares of levels where ``calibrate`` matches them."""
        return self._state(training=False)

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state` or `trained`."""
        self.match = None
        if not state["encoders"]:
            return
        self.columns.restore(state)
        self.config = from_state(GANConfig, state["config"])
        self.budget = None if state["budget"] is None else from_state(Budget, state["budget"])
        if state["group"] is not None:
            self.secret.restore(state["group"])
        if state["training"] is not None:
            self._make()
            assert self.training is not None
            self.training.restore(state["training"])

    def _state(self, training: bool) -> dict[str, Any]:
        if not self.columns.encoders:
            return {"encoders": []}
        return {
            **self.columns.state(counts=training or self.config.calibrate),
            "config": to_state(self.config),
            "budget": None if self.budget is None else to_state(self.budget),
            "group": self.secret.state() if training else None,
            "training": None if self.training is None else self.training.state(training),
        }
