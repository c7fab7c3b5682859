"""What a silo of VT-GAN does under differential privacy, beside what it does anyway. Why: `private`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from silosynth.algorithms.vtgan.messages import ORDER, Features
from silosynth.algorithms.vtgan.private import (
    Charge,
    Charged,
    CriticisePrivately,
    DescendPrivately,
    EncodedPrivately,
    descend_bottom,
)
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Message
from silosynth.core.state import from_state, to_state
from silosynth.core.streams import keyed
from silosynth.encoders.column import Encoder
from silosynth.encoders.private import fit_private
from silosynth.privacy.accounting import spent
from silosynth.privacy.dpsgd import block_clips, poisson_mask
from silosynth.privacy.events import Event

if TYPE_CHECKING:
    from silosynth.algorithms.vtgan.silo import Silo


class PrivateSide:
    """Steps of a silo, of which it takes no more than it was charged for."""

    def __init__(self, silo: Silo) -> None:
        self.silo, self.streams = silo, silo.streams.child("private")
        self.events: tuple[Event, ...] = ()
        self.nonce = f"{self.streams.child('nonce').integer():016x}"
        self.charge: Charge | None = None
        self.taken = 0
        self.open: tuple[int, Tensor, Tensor] | None = None  # a step, and its made and real rows as vectors

    def encode(self) -> tuple[tuple[Encoder, ...], EncodedPrivately]:
        """Learn encoders by this silo's part of the budget."""
        silo, dp = self.silo, self.silo.config.dp
        share, rng = dp.encoders / len(silo.silos), silo.streams.child("encoders").noise()
        config, delta = silo.config.encoders, dp.delta
        encoders, rows, self.events = fit_private(
            silo.table, silo.schema, config, dp.epsilon * share, delta * share, rng, target=delta
        )
        return encoders, EncodedPrivately(rows, len(silo.table.columns), self.nonce, self.events)

    def expects(self, purpose: str) -> bool:
        """Whether a secret of that purpose is for this training."""
        return bool(self.events) and purpose.startswith(ORDER) and self.nonce in purpose

    def answer(self, ask: Message) -> Message | None:
        """The answer to a message of `private`; None if ``ask`` is not one, or is one that changes networks alone.

        Raises:
            ProtocolError: it comes too early or too often, or would cost more than the target.
        """
        if isinstance(ask, Charge):
            return self._charge(ask)
        return self._criticise(ask) if isinstance(ask, CriticisePrivately) else None

    def descend(self, ask: DescendPrivately) -> None:
        """Update the bottom critic; see `private`."""
        charge, silo = self._charged(), self.silo
        if self.open is None or self.taken >= charge.event.times:
            raise ProtocolError("Critic steps are as many as were charged for, each after features", self.taken)
        (step, fake, real), self.open, self.taken = self.open, None, self.taken + 1
        rows = fake[ask.pairs_R.to(silo.device)], real, ask.fake_RW.to(silo.device), ask.real_RW.to(silo.device)
        dp, bottoms = silo.config.dp, silo.bottoms
        clip, rng = block_clips(dp.clip, len(silo.silos) + 1)[0], self.streams.child("noise", step).noise()
        descend_bottom(
            bottoms.critic, bottoms.orthonormal, rows, clip, charge.event.noise * dp.clip,
            charge.event.rate * charge.rows, rng,
        )  # fmt: skip

    def state(self) -> dict[str, Any]:
        """What training goes on from."""
        return {"charge": None if self.charge is None else to_state(self.charge), "taken": self.taken}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self.charge = None if state["charge"] is None else from_state(Charge, state["charge"])
        self.taken = state["taken"]

    def _charge(self, ask: Charge) -> Charged:
        dp, own = self.silo.config.dp, (*self.events, ask.event)
        delta = dp.delta - math.fsum(event.delta for event in own)
        if not (self.events and self.charge is None and spent(own, delta).epsilon <= dp.epsilon):
            raise ProtocolError(
                "What a silo is charged costs at most the target, once, and it has learnt its encoders before",
                f"noise {ask.event.noise:.3g}",
                "Both sides must run the same version of silosynth.",
            )
        self.charge = ask
        return Charged(self.silo.secret.key(f"{len(self.silo.table)} rows"), (ask.event,))

    def _charged(self) -> Charge:
        if self.charge is None:
            raise ProtocolError("Critic steps are taken after they were charged", "not charged")
        return self.charge

    @torch.no_grad()
    def _criticise(self, ask: CriticisePrivately) -> Features:
        charge, silo = self._charged(), self.silo
        rng = keyed(silo.secret.key(f"rows of step {ask.step}"))
        rows = poisson_mask(len(silo.table), charge.event.rate, rng).to(silo.device)
        fake = silo.bottoms.made(ask.step, ask.slice_BF, 0)
        real = silo.shape.vectors(silo.levels[rows], silo.scores[rows])
        self.open, critic = (ask.step, fake, real), silo.bottoms.critic.network
        return Features(critic(fake, ()).cpu(), critic(real, ()).cpu())
