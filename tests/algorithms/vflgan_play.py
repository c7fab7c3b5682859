"""VFLGAN and VertiGAN driven by hand, and the same in one piece with the same random draws."""

from __future__ import annotations

import pandas as pd
import torch
from tests.algorithms.customers import table
from tests.bounds import bounds_if_private
from tests.oracles import vflgan_one_piece as one

import silosynth as ss
from silosynth.algorithms.vflgan import protocol
from silosynth.algorithms.vflgan.networks import SharedCritic
from silosynth.algorithms.vflgan.private import ChargedSteps
from silosynth.catalog import ALGORITHMS
from silosynth.core.conversation import Exchange
from silosynth.core.messages import from_state
from silosynth.core.streams import Streams
from silosynth.privacy.sealed import seats
from silosynth.runtime.wire import decode, encode

CPU = torch.device("cpu")
UNSHARED = ("vertigan", "wgan-gp")  # without a critic at the coordinator
SIZES = {"noise": 5, "generator": [7, 8, 9], "critic": [10, 6], "batch": 16, "epochs": 3, "least_rounds": 2,
         "norm_epsilon": 1e-5, "betas": (0.5, 0.999), "hard": True, "tau": 1.0}  # fmt: skip
SPLITS = {
    1: {"a": ["city", "income", "debt", "sex", "visits"]},
    2: {"a": ["city", "income"], "b": ["debt", "sex", "visits"]},
    3: {"a": ["city"], "b": ["income", "visits"], "c": ["debt", "sex"]},
}


class Play:
    """Silos, and the coordinator's networks, up to the point where training starts."""

    def __init__(self, name: str = "vflgan", silos: int = 2, frame: pd.DataFrame | None = None, **options) -> None:
        frame = table() if frame is None else frame
        self.federation = ss.simulate(frame, silos=SPLITS[silos], schema=bounds_if_private(frame, options))
        self.name, self.roster, self.entry = name, self.federation.roster, ALGORITHMS[name]
        self.config = self.entry.configure("fast", SIZES | options)
        seat = seats(self.roster, Streams(0).child("seats"))
        self.silos = {
            silo: self.entry.party(
                held, self.federation.schemas[silo], seat[silo], Streams(0).child(silo), CPU, self.config
            )
            for silo, held in self.federation.tables.items()
        }
        self.said: list[tuple[str, object, object]] = []
        self.exchanges = 0

    def begin(self) -> dict:
        """Run up to the first step."""
        state = self.drive(protocol.begin(self.roster, self.config))
        self.budget = None if state["budget"] is None else from_state(ChargedSteps, state["budget"])
        if self.name not in UNSHARED:
            streams = Streams(0).child("coordinator")
            self.shared = SharedCritic(len(self.roster), self.config, self.budget, streams, CPU)
        return state

    def whole(self) -> dict:
        """Run all of training."""
        return self.drive(self.entry.coordinate(self.roster, self.config, Streams(0).child("coordinator"), CPU))

    def drive(self, talk):
        """Drive a part of the conversation to its end; every message passes through the wire format."""
        got = None
        while True:
            try:
                step = talk.send(got)
            except StopIteration as end:
                return end.value
            got = self.exchange(step) if isinstance(step, Exchange) else {}

    def exchange(self, step: Exchange) -> dict:
        self.exchanges += 1
        got = {}
        for silo, ask in step.asks.items():
            got[silo] = decode(encode(self.silos[silo].answer(decode(encode(ask)))))
            self.said.append((silo, ask, got[silo]))
        return got

    def tell(self, ask) -> dict:
        return self.exchange(self.roster.everyone(ask))

    def local(self, silo: str):
        return self.silos[silo].training


class Oracle:
    """The same in one piece, with copies of all weights of a play, and its own optimisers."""

    def __init__(self, play: Play) -> None:
        self.play, self.config = play, play.config
        locals_ = {silo: party._trainer() for silo, party in play.silos.items()}
        critics = {silo: one.weights_of(local.critic.network) for silo, local in locals_.items()}
        shared = None if play.name in UNSHARED else one.weights_of(play.shared.critic.network)
        self.whole = one.Whole(critics, shared, play.config)
        self.parts = {silo: [one.weights_of(p.network) for p in local.parts] for silo, local in locals_.items()}
        if play.name in UNSHARED:  # one backbone
            first = next(iter(self.parts.values()))[0]
            for parts in self.parts.values():
                parts[0] = first
        self.groups = [*critics.values(), *([] if shared is None else [shared])]
        makers = {id(w): w for parts in self.parts.values() for w in parts}.values()
        self.of_critics, self.of_makers = self._adam(self.groups), self._adam(makers)

    def _adam(self, groups) -> torch.optim.Adam:
        weights = [weight for group in groups for weight in group.values()]
        return torch.optim.Adam(weights, lr=self.config.rate, betas=self.config.betas)

    def follow(self) -> None:
        """Copy the play's current weights."""
        for silo, weights in self.whole.critics.items():
            _copy(self.play.local(silo).critic.network, weights)
        if self.whole.shared is not None:
            _copy(self.play.shared.critic.network, self.whole.shared)

    def made(self, silo: str, context: str, draw: torch.Generator) -> torch.Tensor:
        local, config = self.play.local(silo), self.config
        out = local.draws.noise(local.made, config.noise, context).double()
        for i, weights in enumerate(self.parts[silo]):
            out = one.generator(weights, out, config.norm_epsilon, plain=i == 0)
        shape = local.rows.shape
        uniform = torch.rand(len(out), shape.levels, generator=draw)
        return one.rows(out, shape.widths, config.tau, config.hard, uniform)

    def critic_step(self, step: int) -> None:
        """Gradients of all critics."""
        fake, real, losses = {}, {}, []
        for silo in self.play.silos:
            local = self.play.local(silo)
            draw = local.streams.child("critic", step).torch()
            rows = local.draws.batch_of(step)
            real[silo] = local.rows.shape.vectors(*local.rows.batch(rows, draw)).double()
            made = local.streams.child("made", step).torch()
            fake[silo] = self.made(silo, f"critic {step}", made).detach()
            mix = torch.rand(len(rows), 1, generator=draw).double()
            losses.append(self.whole.local_loss(silo, fake[silo], real[silo], mix))
        self.of_critics.zero_grad()
        if self.whole.shared is not None:
            draw = self.play.shared.streams.child("critic", step).torch()
            mix = torch.rand(len(mix), 1, generator=draw).double()
            shared = self.whole.shared_loss(fake, real, mix)
            (sum(losses) + self.config.lambda1 * shared).backward()
            for weight in self.whole.shared.values():  # (13) has no λ1
                weight.grad /= self.config.lambda1
        else:
            sum(losses).backward()

    def generator_step(self, step: int) -> None:
        """Gradients of all generators."""
        fake = {}
        for silo in self.play.silos:
            draw = self.play.local(silo).streams.child("generator", step).torch()
            fake[silo] = self.made(silo, f"generator {step}", draw)
        self.of_makers.zero_grad()
        self.whole.generator_loss(fake).backward()


def _copy(module: torch.nn.Module, weights: dict[str, torch.Tensor]) -> None:
    for name, weight in module.named_parameters():
        weights[name].data.copy_(weight.detach())
