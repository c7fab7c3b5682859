"""A silo of GDTS: its rows, what it tells of them, and the model that it trains.

Shapes: N rows, B rows of a batch, W numbers of a model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from silosynth.algorithms.gdts.messages import (
    Criticise,
    Describe,
    Described,
    GDTSConfig,
    Prepare,
    SealCritic,
    SealedCritic,
    Send,
    Slopes,
    Summarise,
    TakeCritic,
    Train,
    Trained,
)
from silosynth.algorithms.gdts.models import LocalModel, make_model, put_weights, weights_of
from silosynth.algorithms.gdts.summaries import categories, numbers
from silosynth.core.conversation import Party
from silosynth.core.errors import DataError, ProtocolError
from silosynth.core.messages import Done, Message, fields_of
from silosynth.core.schema import Schema, Table
from silosynth.core.state import from_state, to_state
from silosynth.core.streams import Streams
from silosynth.encoders.column import encode_table
from silosynth.models.averaging import flatten, unflatten
from silosynth.models.ctgan import ConditionalGAN
from silosynth.privacy.masker import Masker
from silosynth.privacy.sealed import Seat

LEAST_ROWS = 2


class Silo(Party):
    """A silo's side of GDTS."""

    def __init__(self, table: Table, schema: Schema, seat: Seat, streams: Streams, device: torch.device) -> None:
        self.table = table.select([name for name in table.names if name in schema.modelled])
        self.schema, self.seat, self.streams, self.device = schema, seat, streams, device
        self.config = GDTSConfig()
        self.asked: GDTSConfig | None = None
        self.prepared: Prepare | None = None
        self.model: LocalModel | None = None
        self.masker = Masker(seat)

    def answer(self, ask: Message) -> Message:
        """Answer one message of the coordinator."""
        reply = self.masker.answer(ask)
        if reply is not None:
            return reply
        match ask:
            case Describe():
                return self._describe()
            case Summarise():
                return self._summarise(ask)
            case Prepare():
                self._prepare(ask)
                return Done()
            case Train():
                self._train(ask)
                return Done()
            case Send():
                return self._send(ask)
            case Criticise():
                return self._criticise(ask)
            case SealCritic():
                return self._seal_critic(ask)
            case TakeCritic():
                return self._take_critic(ask)
            case _:
                raise ProtocolError("A GDTS silo does not understand this message", type(ask).__name__)

    # Columns.

    def _describe(self) -> Described:
        """Kinds of the modelled columns; why they were inferred stays here."""
        if not self.table.columns:
            raise DataError("A silo needs at least one column that is not an identifier", self.schema.names)
        if len(self.table) < LEAST_ROWS:
            raise DataError(f"A generator needs at least {LEAST_ROWS} rows", len(self.table), "Give the silo more.")
        columns = (replace(self.schema[name], reason="") for name in self.table.names)
        return Described(Schema(tuple(columns)))

    def _summarise(self, ask: Summarise) -> Message:
        if self.asked is not None and ask.config != self.asked:
            both = ((name, getattr(ask.config, name), getattr(self.asked, name)) for name, _ in fields_of(GDTSConfig))
            other = [name for name, new, old in both if new != old]
            raise ProtocolError("Options are told once", other, "A silo goes by the first: start a new run.")
        self.config = self.asked = ask.config
        self.table = self.table.select(ask.schema.names)
        rng = self.streams.child("summaries", ask.part).numpy()
        tell = categories if ask.part == "categories" else numbers
        return tell(self.table, ask.schema, self.config, rng)

    def _prepare(self, ask: Prepare) -> None:
        """Step 3: encode, and make a model. Its first weights come with the first round."""
        self.prepared = ask
        levels, scores = encode_table(self.table, ask.encoders, self.streams.child("ties").numpy())
        self.model = make_model(
            self.config, ask.encoders, ask.rows, levels, scores, self.streams.child("model"), self.device
        )

    # Mode "fl".

    def _train(self, ask: Train) -> None:
        model = self._trainee(ask)
        put_weights(model.given(ask.part, self.config.rounds), ask.weights_W)
        model.train(ask.part, self.config.rounds)

    def _send(self, ask: Send) -> Message:
        weights_W = weights_of(self._trainee(ask).networks(ask.part, self.config.rounds))
        return self.masker.mask(weights_W, ask.weight, ask.part) if self.config.secure else Trained(weights_W)

    # Mode "md".

    def _criticise(self, ask: Criticise) -> Slopes:
        """E steps of the critic, then what the generator has to know."""
        gan = self._critic(ask)
        streams = self.streams.child("step", ask.step)
        draw, pick = streams.child("noise").torch(self.device), streams.child("rows").torch()
        for made_BW, given_B in zip(ask.made_EBW, ask.given_EB, strict=True):
            gan.critic_step(made_BW.to(self.device), given_B.long(), draw, pick)
        slope_BW = gan.slope(ask.asked_BW.to(self.device), ask.position_B.long().to(self.device), draw)
        return Slopes(slope_BW.cpu())

    def _seal_critic(self, ask: SealCritic) -> SealedCritic:
        weights_W = flatten(self._critic(ask).critic.network.state_dict())
        context = f"gdts: critic of swap {ask.swap}"
        return SealedCritic(self.seat.seal(ask.receiver, context, weights_W.cpu().numpy().tobytes()))

    def _take_critic(self, ask: TakeCritic) -> Done:
        """Another silo's critic goes on here; the moments of Adam stay where they are."""
        critic = self._critic(ask).critic.network
        sealed = self.seat.open(ask.envelope, f"gdts: critic of swap {ask.swap}")
        weights_W = torch.from_numpy(np.frombuffer(sealed[: len(sealed) // 4 * 4], np.float32).copy())
        critic.load_state_dict(unflatten(weights_W.to(self.device), critic.state_dict()))
        return Done()

    # State.

    def state(self) -> dict[str, Any]:
        """Encoders, model and its training."""
        return {
            "config": to_state(self.config),
            "prepared": None if self.prepared is None else to_state(self.prepared),
            "model": None if self.model is None else self.model.state(training=True),
            "masker": self.masker.state(),
        }

    def trained(self) -> dict[str, Any]:
        """Nothing: the coordinator has the generator."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned; of what `trained` returned there is nothing to restore."""
        if not state or state["prepared"] is None or not len(self.table):
            return
        self.config = self.asked = from_state(GDTSConfig, state["config"])
        self.masker.restore(state["masker"])
        self._prepare(from_state(Prepare, state["prepared"]))
        if self.model is not None:
            self.model.restore(state["model"])

    def _trainee(self, ask: Message) -> LocalModel:
        if self.model is None:
            raise ProtocolError("A silo is prepared before it trains", f"{type(ask).__name__} comes too early")
        return self.model

    def _critic(self, ask: Message) -> ConditionalGAN:
        model = self._trainee(ask)
        if not isinstance(model, ConditionalGAN):
            raise ProtocolError("Only a GAN has a critic", self.config.generator, "Set generator = 'ctgan'.")
        return model
