"""A silo of TabVFL: its encoded columns, and what it answers. Its networks: `guest`."""

from __future__ import annotations

from typing import Any

import torch

from silosynth.algorithms.tabvfl.batches import Batches
from silosynth.algorithms.tabvfl.guest import Features, Guest
from silosynth.algorithms.tabvfl.messages import (
    HELD_OUT,
    Compare,
    Descend,
    Embed,
    Embedded,
    Judged,
    Keep,
    Look,
    Prepare,
    Prepared,
    Reconstruct,
    Reconstructed,
    Settle,
    TrainAlone,
)
from silosynth.core.conversation import Party
from silosynth.core.errors import DataError, ProtocolError
from silosynth.core.messages import Done, Message
from silosynth.core.schema import Schema, Table
from silosynth.core.state import from_state, to_state
from silosynth.core.streams import Streams
from silosynth.encoders.column import Encoder, encode_table, fit_encoder, restored, stored
from silosynth.encoders.normalised import fit_standard_encoder
from silosynth.privacy.sealed import Seat

LEAST_ROWS = 2


class Silo(Party):
    """A silo's side, which needs no seat among silos. With a restored state it embeds whatever rows it has."""

    def __init__(self, table: Table, schema: Schema, seat: Seat, streams: Streams, device: torch.device) -> None:
        self.table = table.select([name for name in table.names if name in schema.modelled])
        self.schema, self.streams, self.device = schema, streams, device
        self.encoders: tuple[Encoder, ...] = ()
        self.asked: Prepare | None = None
        self.guest: Guest | None = None

    def answer(self, ask: Message) -> Message:
        """Answer one message of the coordinator."""
        match ask:
            case Prepare():
                return self._prepare(ask)
            case Embed():
                return self._embed(ask)
            case Reconstruct():
                return Reconstructed(*self._guest(ask).reconstruct(ask.step, ask.out_BP))
            case Descend():
                self._guest(ask).descend(ask.of, ask.gradient_BW)
            case TrainAlone():
                return Judged(self._guest(ask).train_alone(ask.epoch))
            case Look():
                guest = self._guest(ask)
                rows_B = guest.batches.some(ask.rows)[ask.start : ask.stop]
                return Embedded(guest.look(ask.phase, rows_B))
            case Compare():
                guest = self._guest(ask)
                rows_B = guest.batches.some(HELD_OUT)[ask.start : ask.stop]
                return Judged(guest.compare(rows_B, ask.out_BP))
            case Keep():
                self._guest(ask).part.keep(ask.number, ask.before)
            case Settle():
                self._guest(ask).part.settle(ask.number)
            case _:
                raise ProtocolError("A TabVFL silo does not understand this message", type(ask).__name__)
        return Done()

    def _prepare(self, ask: Prepare) -> Prepared:
        """Encode the columns; Algorithm 1, line 1."""
        if not self.table.columns:
            raise DataError(
                "A silo needs at least one column that is neither an identifier nor the label", self.schema.names
            )
        if len(self.table) < LEAST_ROWS:
            raise DataError(f"A representation needs at least {LEAST_ROWS} rows", len(self.table), "Give more.")
        rng = self.streams.child("encoders").numpy()
        fit = fit_standard_encoder if ask.config.numbers == "standard" else fit_encoder
        self.encoders = tuple(
            fit(column, self.schema[column.name], ask.config.encoders, rng) for column in self.table.columns
        )
        self._make(ask)
        return Prepared(len(self.table), self._guest(ask).width)

    def _embed(self, ask: Embed) -> Embedded:
        guest = self._guest(ask)
        if ask.gradient_BW is not None:
            guest.descend(ask.of, ask.gradient_BW)
        return Embedded(*guest.embed(ask.phase, ask.step))

    def _make(self, ask: Prepare) -> None:
        """Networks, and the encoded rows, if there are any."""
        widths = [encoder.width for encoder in self.encoders if encoder.width > 1]
        numbers = sum(encoder.continuous for encoder in self.encoders)
        levels, scores = torch.zeros(0, len(widths), dtype=torch.int64), torch.zeros(0, numbers)
        if len(self.table):
            levels, scores = encode_table(self.table, self.encoders, self.streams.child("ties").numpy())
        features = Features(widths, levels.to(self.device), scores.to(self.device))
        batches = Batches(len(self.table), ask.config, ask.order)
        self.asked = ask
        self.guest = Guest(features, ask.config, ask.partition, batches, self.streams.child("guest"), self.device)

    def _guest(self, ask: Message) -> Guest:
        if self.guest is None:
            raise ProtocolError("A silo is prepared first", f"{type(ask).__name__} comes too early")
        return self.guest

    # State.

    def state(self) -> dict[str, Any]:
        """Encoders, networks, optimiser, and weights that were kept."""
        return self._state(training=True)

    def trained(self) -> dict[str, Any]:
        """Encoders and networks: what embeds rows."""
        return self._state(training=False)

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state` or `trained`; rows may be others."""
        if state["asked"] is None:
            return
        self.encoders = restored(state["encoders"])
        self._make(from_state(Prepare, state["asked"]))
        assert self.guest is not None
        self.guest.part.restore(state["part"])

    def _state(self, training: bool) -> dict[str, Any]:
        if self.guest is None or self.asked is None:
            return {"asked": None}
        return {
            "asked": to_state(self.asked),
            "encoders": stored(self.encoders),
            "part": self.guest.part.state(training),
        }
