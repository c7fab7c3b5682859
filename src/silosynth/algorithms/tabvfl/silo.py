"""A silo of TabVFL: its encoded columns, and what it answers. Its networks: `networks.Guest`."""

from __future__ import annotations

from silosynth.algorithms.tabvfl import networks, protocol as tabvfl
from silosynth.core.conversation import State, Turn, often, once
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Done, Message, from_state, to_state
from silosynth.encoders.table import ColumnParty
from silosynth.models.encoded import encoded_rows


class TabVFLSilo(ColumnParty):
    """A silo's side. With a restored state it embeds whatever rows it has."""

    prepared: tabvfl.PrepareGuest | None = None
    guest: networks.Guest | None = None

    def _script(self, training: bool) -> tuple[Turn, ...]:
        if not training:
            return often(tabvfl.EmbedRows)
        steps = tabvfl.Embed, tabvfl.Reconstruct, tabvfl.ApplyGradient, tabvfl.TrainAlone, tabvfl.EndPhase
        judged = tabvfl.EmbedRows, tabvfl.EvaluateRows, tabvfl.StoreWeights
        return (*once(tabvfl.PrepareGuest), *often(*steps, *judged))

    def _answer(self, ask: Message) -> Message:
        match ask:
            case tabvfl.PrepareGuest():
                return self._prepare(ask)
            case tabvfl.Embed():
                return self._embed(ask)
            case tabvfl.Reconstruct():
                return tabvfl.Reconstructed(*self._guest(ask).reconstruct(ask.step, ask.out_BP))
            case tabvfl.ApplyGradient():
                self._guest(ask).descend(ask.of, ask.grad_BW)
            case tabvfl.TrainAlone():
                return tabvfl.ReconstructionLoss(self._guest(ask).train_alone(ask.epoch))
            case tabvfl.EmbedRows():
                guest = self._guest(ask)
                rows_B = guest.batches.rows(ask.rows)[ask.start : ask.stop]
                return tabvfl.Embedded(guest.embed_rows(ask.phase, rows_B))
            case tabvfl.EvaluateRows():
                guest = self._guest(ask)
                rows_B = guest.batches.held_out[ask.start : ask.stop]
                return tabvfl.ReconstructionLoss(guest.reconstruction_loss(rows_B, ask.out_BP))
            case tabvfl.StoreWeights():
                self._guest(ask).trainee.keep(ask.number, ask.before)
            case tabvfl.EndPhase():
                self._guest(ask).trainee.end_phase(ask.number)
            case _:
                raise ProtocolError("A TabVFL silo does not understand this message", type(ask).__name__)
        return Done()

    def _prepare(self, ask: tabvfl.PrepareGuest) -> tabvfl.GuestPrepared:
        """Encode the columns; Algorithm 1, line 1."""
        self.columns.fit(self.config.encoders, self.config.numbers)
        return tabvfl.GuestPrepared(len(self.columns.table), self._make_guest(ask).width)

    def _embed(self, ask: tabvfl.Embed) -> tabvfl.Embedded:
        guest = self._guest(ask)
        if ask.grad_BW is not None:
            guest.descend(ask.of, ask.grad_BW)
        return tabvfl.Embedded(*guest.embed(ask.phase, ask.step))

    def _make_guest(self, ask: tabvfl.PrepareGuest) -> networks.Guest:
        """Networks, and the encoded rows, if there are any."""
        rows = encoded_rows(self.columns.encoders, self.columns.encode(), self.device)
        batches = networks.Batches(len(self.columns.table), self.config, ask.order)
        self.prepared = ask
        self.guest = networks.Guest(rows, self.config, ask.partition, batches, self.streams.child("guest"), self.device)
        return self.guest

    def _guest(self, ask: Message) -> networks.Guest:
        if self.guest is None:
            raise ProtocolError("A silo is prepared first", f"{type(ask).__name__} comes too early")
        return self.guest

    # State.

    def _restore(self, state: State) -> None:
        """Rows may be others."""
        if state["asked"] is None:
            return
        self.columns.restore(state["encoders"])
        self._make_guest(from_state(tabvfl.PrepareGuest, state["asked"])).trainee.restore(state["part"])

    def _state(self, training: bool) -> State:
        """Encoders and networks, which embed rows; with ``training`` also the optimiser, and kept weights."""
        if self.guest is None or self.prepared is None:
            return {"asked": None}
        return {
            "asked": to_state(self.prepared),
            "config": to_state(self.config),
            "encoders": self.columns.state(),
            "part": self.guest.trainee.state(training),
        }
