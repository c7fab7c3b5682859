"""VT-GAN driven by hand, and the same in one piece with the same random draws."""

from __future__ import annotations

import torch
from tests.algorithms.customers import table
from tests.bounds import bounds_if_private
from tests.oracles import vtgan_one_piece as whole

import silosynth as ss
from silosynth.algorithms.vtgan import protocol as vtgan
from silosynth.algorithms.vtgan.networks import SiloSizes, Tops
from silosynth.algorithms.vtgan.silo import VTGANSilo
from silosynth.catalog import ALGORITHMS
from silosynth.core.conversation import Exchange
from silosynth.core.streams import Streams
from silosynth.privacy.sealed import seats
from silosynth.runtime.wire import decode, encode

CPU = torch.device("cpu")
SIZES = {
    "width": 12,
    "generator_width": 14,
    "noise": 5,
    "batch": 16,
    "epochs": 1,
    "least_rounds": 1,
    "encoders.modes": 3,
}


class Play:
    """Silos and the coordinator's networks, up to the point where training starts."""

    def __init__(self, silos: dict[str, list[str]] | None = None, **options) -> None:
        frame = table()
        silos = silos or {"a": ["city", "income"], "b": ["debt", "sex", "visits"]}
        self.federation = ss.simulate(frame, silos=silos, schema=bounds_if_private(frame, options))
        self.roster = self.federation.roster
        self.config = ALGORITHMS["vtgan"].configure("fast", SIZES | options)
        seat = seats(self.roster, Streams(0).child("seats"))
        self.silos = {
            name: VTGANSilo(held, self.federation.schemas[name], seat[name], Streams(0).party(name), CPU, self.config)
            for name, held in self.federation.tables.items()
        }
        self.said: list[tuple[str, object, object]] = []
        state = self.drive(vtgan._begin(self.roster, self.config))
        self.sizes = SiloSizes(state["rows"], state["columns"], state["conditions"])
        self.tops = Tops(self.config, self.sizes, Streams(0).child("weights"), CPU)

    def drive(self, conversation):
        """Drive a part of the conversation to its end; every message passes through the wire format."""
        got = None
        while True:
            try:
                step = conversation.send(got)
            except StopIteration as end:
                return end.value
            got = {}
            if isinstance(step, Exchange):
                for name, ask in step.asks.items():
                    got[name] = decode(encode(self.silos[name].answer(decode(encode(ask)))))
                    self.said.append((name, ask, got[name]))

    def batches(self, first: int, chosen: list[str]):
        return self.drive(vtgan._draw_conditions(self.roster, self.sizes, first, chosen))

    def real_rows(self, batch) -> torch.Tensor:
        return self.silos[batch.contributor].batches[batch.step][1]


def stream(seed: int = 9) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def masks_of_silo(silo: VTGANSilo, step: int, made: int, pushed: int):
    draw = silo.bottoms._dropout(step)
    return silo.bottoms.critic.network.masks(made, draw), silo.bottoms.critic.network.masks(pushed, draw)


class Whole:
    """The one-piece network with copies of all weights of a play."""

    def __init__(self, play: Play) -> None:
        self.play, self.config = play, play.config
        self.top_g, self.top_d = (whole.weights_of(t.network) for t in (play.tops.generator, play.tops.critic))
        self.g = {name: whole.weights_of(silo.bottoms.generator.network) for name, silo in play.silos.items()}
        self.d = {name: whole.weights_of(silo.bottoms.critic.network) for name, silo in play.silos.items()}

    def made(self, batch, draw) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        tops, config = self.play.tops, self.config
        cv = torch.zeros(len(batch.position_B), tops.conditions, dtype=torch.float64)
        cv[torch.arange(len(cv)), batch.position_B] = 1.0
        z = torch.randn(len(cv), config.noise, generator=draw).double()
        slices = whole.generator(self.top_g, config.generator_blocks[0], torch.cat([z, cv], dim=1))
        outs, made = {}, {}
        for (name, silo), part in zip(self.play.silos.items(), slices.split(tops.slices, dim=1), strict=True):
            outs[name] = whole.generator(self.g[name], config.generator_blocks[1], part)
            noise = silo.streams.child("gumbel", batch.step).torch()
            uniform = torch.rand(len(cv), silo.rows.shape.levels, generator=noise)
            made[name] = whole.rows(outs[name], silo.rows.shape.widths, config.tau, uniform)
        return outs, made

    def bottoms(self, x: dict[str, torch.Tensor], masks: dict[str, list]) -> torch.Tensor:
        return torch.cat(
            [whole.critic(self.d[n], self.config.critic_blocks[1], x[n], masks[n], self.config.dropout) for n in x],
            dim=1,
        )

    def judge(self, x, masks):
        return whole.critic(self.top_d, self.config.critic_blocks[0], x, masks, self.config.dropout, "0.")

    def beside(self, h: torch.Tensor, position_B: torch.Tensor) -> torch.Tensor:
        cv = torch.zeros(len(position_B), self.play.tops.conditions, dtype=torch.float64)
        cv[torch.arange(len(cv)), position_B] = 1.0
        return torch.cat([h, whole.linear(self.top_d, "1.linears.0", cv)], dim=1)

    def critic_loss(self, batch, draw) -> torch.Tensor:
        tops, b = self.play.tops, len(batch.position_B)
        made = {name: x.detach() for name, x in self.made(batch, draw)[1].items()}
        rows = self.play.real_rows(batch)
        fake_masks, real_masks, real = {}, {}, {}
        for name, silo in self.play.silos.items():
            real[name] = whole.real_vectors(silo.rows.levels[rows], silo.rows.scores[rows], silo.rows.shape.widths)
            pushed = self.pushed(name, batch)
            fake_masks[name], masks = masks_of_silo(silo, batch.step, b, pushed)
            by_row = self.config.index_privacy == "full"  # if all rows are pushed, a mask belongs to its row
            found = rows if by_row else batch.picks_B
            real_masks[name] = masks if name == batch.contributor else [mask[found] for mask in masks]
        fake, real = self.bottoms(made, fake_masks), self.bottoms(real, real_masks)
        order, mix = torch.randperm(b, generator=draw), torch.rand(b, 1, generator=draw)
        fake, real = self.beside(fake, batch.position_B), self.beside(real[order], batch.position_B[order])
        masks = tops.top.masks(2 * b, draw)
        judged = self.judge(torch.cat([fake, real]), masks)
        masks = tops.top.masks(b, draw)
        slope = whole.penalty(lambda x: self.judge(x, masks), fake, real, mix)
        return judged[:b].mean() - judged[b:].mean() + self.config.penalty * slope

    def pushed(self, name: str, batch) -> int:
        if name == batch.contributor:
            return self.config.batch
        decoys = min(self.play.sizes.rows, self.config.batch * self.config.decoys)
        many = {"full": self.play.sizes.rows, "decoys": decoys}
        return many.get(self.config.index_privacy, self.config.batch)

    def generator_loss(self, batch, draw) -> torch.Tensor:
        outs, made = self.made(batch, draw)
        b = len(batch.position_B)
        masks = {name: masks_of_silo(silo, batch.step, b, 0)[0] for name, silo in self.play.silos.items()}
        inputs = self.beside(self.bottoms(made, masks), batch.position_B)
        loss = -self.judge(inputs, self.play.tops.top.masks(b, draw)).mean()
        return loss + self.condition_loss(outs[batch.contributor], batch)

    def condition_loss(self, out, batch) -> torch.Tensor:
        """Cross-entropy row by row and column by column."""
        silo = self.play.silos[batch.contributor]
        number = self.play.roster.parties.index(batch.contributor)
        own = batch.position_B - self.play.sizes.among_all(number, torch.tensor(0))
        names = [encoder.name for encoder in silo.columns.encoders if encoder.width > 1]
        kinds = {column.name: column.kind for column in silo.columns.schema.columns}
        losses = []
        for row, position in enumerate(own.tolist()):
            start, seen = 0, 0
            for name, width in zip(names, silo.rows.shape.widths, strict=True):
                if kinds[name] in ("categorical", "boolean"):
                    if seen <= position < seen + width:
                        logits = out[row, start : start + width]
                        losses.append(-torch.log_softmax(logits, dim=0)[position - seen])
                    seen += width
                start += width
        assert len(losses) == len(own)
        return torch.stack(losses).mean()


def check(weights: dict[str, torch.Tensor], module: torch.nn.Module) -> None:
    """Gradients of the split network equal those of the network in one piece."""
    assert weights
    for name, weight in module.named_parameters():
        expected = torch.zeros_like(weights[name]) if weights[name].grad is None else weights[name].grad
        torch.testing.assert_close(weight.grad.double(), expected, rtol=2e-4, atol=2e-6, msg=lambda m: f"{name}: {m}")  # noqa: B023


def compare_critic_step(play: Play, step: int, chosen: list[str]) -> list[str]:
    """Compare a critic step with one piece; returns the silos whose bottom critics it updates."""
    batch, *_ = play.batches(step, chosen)
    one = Whole(play)
    loss = one.critic_loss(batch, stream())
    loss.backward()
    seen = []
    descend = play.tops.critic_loss
    play.tops.critic_loss = lambda *a: seen.append(descend(*a)) or seen[-1]
    play.drive(vtgan._critic_step(play.roster, play.config, play.tops, batch, stream()))
    torch.testing.assert_close(seen[0].double(), loss, rtol=1e-5, atol=1e-6)
    check(one.top_d, play.tops.critic.network)
    told = {"all": set(play.silos), "contributor": {batch.contributor}, "none": set()}
    updated = [name for name in play.silos if name in told[play.config.bottom_gradients]]
    for name in updated:
        check(one.d[name], play.silos[name].bottoms.critic.network)
    return updated


def compare_generator_step(play: Play, step: int, contributor: str) -> None:
    """Compare a generator step with one piece."""
    (batch,) = play.batches(step, [contributor])
    one = Whole(play)
    loss = one.generator_loss(batch, stream())
    loss.backward()
    judged, named = [], []
    bottoms = play.silos[contributor].bottoms
    judge, name_levels = play.tops.generator_loss, bottoms.condition_loss
    play.tops.generator_loss = lambda *x: judged.append(judge(*x)) or judged[-1]
    bottoms.condition_loss = lambda *x: named.append(name_levels(*x)) or named[-1]
    play.drive(vtgan._generator_step(play.roster, play.config, play.tops, batch, stream()))
    torch.testing.assert_close((judged[0] + named[0]).double(), loss, rtol=1e-5, atol=1e-6)
    check(one.top_g, play.tops.generator.network)
    for name, silo in play.silos.items():
        check(one.g[name], silo.bottoms.generator.network)


def untouched(*networks: torch.nn.Module) -> bool:
    return all(weight.grad is None for network in networks for weight in network.parameters())


def a_round(play: Play, number: int = 0) -> None:
    play.drive(vtgan._train_round(play.roster, play.config, play.sizes, play.tops, Streams(4), number))
