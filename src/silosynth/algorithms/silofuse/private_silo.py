"""A silo's side of SiloFuse with differential privacy. What is said, and why: `private`.

Shapes: N rows, S slots, L latents of this silo.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from silosynth.algorithms.silofuse.coder import Coder
from silosynth.algorithms.silofuse.private import (
    SLOTS,
    AskClipped,
    Charge,
    Charged,
    ClippedLatents,
    NoisedLatents,
    PreparedPrivately,
    PreparePrivately,
    TrainPrivately,
)
from silosynth.algorithms.silofuse.private_steps import train_coder
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Done, Message
from silosynth.core.state import from_state, to_state
from silosynth.core.streams import Streams
from silosynth.privacy.accounting import spent
from silosynth.privacy.agreement import Confirmations, Group, OfferShares, RelayedShares
from silosynth.privacy.dpsgd import noised
from silosynth.privacy.events import Event
from silosynth.privacy.mechanisms import noised_counts
from silosynth.privacy.sealed import Seat
from silosynth.privacy.target import Target

_COUNT, _OVERFULL = 0.02, 0.05  # of epsilon for the number of slots; of delta, that there are too few


class PrivateSide:
    """What a silo does under differential privacy, with its `Coder`."""

    def __init__(self, coder: Coder, seat: Seat, streams: Streams) -> None:
        self.coder, self.streams, self.group = coder, streams.child("private"), Group(seat)
        self.dp, self.nonce = Target(), ""
        self.events: tuple[Event, ...] = ()
        self.charge: Charge | None = None

    def answer(self, ask: Message) -> Message | None:
        """The answer to a message of this module; None if it is not one.

        Raises:
            ProtocolError: it comes too early, or what is to be charged costs this silo more than the target.
        """
        match ask:
            case PreparePrivately():
                return self._prepare(ask)
            case OfferShares() if ask.fresh or not ask.purpose.startswith(SLOTS) or self.nonce not in ask.purpose:
                raise ProtocolError("Silos agree on the order of slots, for this training alone", ask.purpose)
            case OfferShares() | RelayedShares() | Confirmations():
                return self.group.answer(ask)
            case Charge():
                return self._charge(ask)
            case TrainPrivately():
                train_coder(self.coder, ask.part, ask.parts, *self._steps(), self.streams.child("coder", ask.part))
                return Done()
            case AskClipped():
                return self._latents()
            case _:
                return None

    def state(self) -> dict[str, Any]:
        """What training goes on from."""
        charge = None if self.charge is None else to_state(self.charge)
        return {"dp": to_state(self.dp), "charge": charge, "group": self.group.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self.dp, self.charge = from_state(Target, state["dp"]), None
        if state["charge"] is not None:
            self.charge = from_state(Charge, state["charge"])
        self.group.restore(state["group"])

    def _prepare(self, ask: PreparePrivately) -> PreparedPrivately:
        self.dp, dp = ask.dp, ask.dp
        share, delta = dp.encoders / ask.silos, dp.delta
        learnt = self.coder.learn_encoders(ask.coder, dp.epsilon * share, delta * share, delta)
        slots, counted = self._slots() if ask.slots else (0, None)
        self.events = learnt.events if counted is None else (*learnt.events, counted)
        self.nonce = f"{self.streams.child('nonce').integer():016x}"
        return PreparedPrivately(learnt.rows, slots, self.coder.latents, self.nonce, self.events)

    def _slots(self) -> tuple[int, Event | None]:
        """A noised number that is below that of rows with the probability that its event is charged for."""
        epsilon, delta = self.dp.epsilon * _COUNT, self.dp.delta * _OVERFULL
        rows, rng = torch.tensor([len(self.coder.table)]), self.streams.child("slots").noise()
        found, event = noised_counts(rows, epsilon, "the number of rows, rounded up", rng)
        spare = math.ceil(-math.log(delta) / epsilon)
        charged = None if event is None else replace(event, delta=delta, scope="all", target=self.dp.delta)
        return max(2, int(found[0]) + spare), charged

    def _charge(self, ask: Charge) -> Charged:
        own = (*self.events, ask.autoencoder, ask.latter)
        delta = self.dp.delta - math.fsum(event.delta for event in own)
        enough = ask.autoencoder.times >= self.coder.config.steps and ask.latents >= self.coder.latents
        if not (self.events and enough and spent(own, delta).epsilon <= self.dp.epsilon):
            raise ProtocolError(
                "What a silo is to be charged costs at most the target, and it has learnt its encoders before",
                f"noise {ask.autoencoder.noise:.3g} and {ask.latter.noise:.3g}",
                "Both sides must run the same version of silosynth.",
            )
        self.charge = ask
        now = (ask.autoencoder, ask.latter) if ask.latter.scope == "release" else (ask.autoencoder,)
        return Charged(self.group.key(f"{len(self.coder.table)} rows"), now)

    def _steps(self) -> tuple[Event, float, float]:
        if self.charge is None:
            raise ProtocolError("Autoencoders are trained after their steps were charged", "TrainPrivately")
        event = self.charge.autoencoder
        return event, event.rate * self.charge.rows, self.dp.clip

    def _latents(self) -> Message:
        self._steps()
        assert self.charge is not None
        z_NL, latter = self.coder.encode(), self.charge.latter
        if latter.scope == "release":
            return ClippedLatents(z_NL)
        z_SL = in_slots(z_NL, self.group.permutation(self.charge.slots, "slots"))
        deviation = latter.noise * math.sqrt(self.charge.latents)
        told = noised({"z": z_SL}, deviation, self.streams.child("upload").noise())["z"]
        return NoisedLatents(told, (latter,))


def in_slots(z_NL: Tensor, order_S: Tensor) -> Tensor:
    """Latents in slots (S, L): row i in slot ``order_S[i]``, and the slots that are left over empty.

    Rows and empty slots lie in one secret order of all slots, so that a row more or less changes one of them. Rows that
    find no slot are left out; how likely that is, `PrivateSide._slots` has charged for.
    """
    place = order_S[: len(z_NL)]
    z_SL = z_NL.new_zeros(len(order_S), z_NL.shape[1])
    z_SL[place] = z_NL[: len(place)]
    return z_SL
