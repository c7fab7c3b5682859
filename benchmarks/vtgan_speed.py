"""What splitting costs: VT-GAN's rounds per second and bytes per step, against the same networks in one piece.

    python benchmarks/vtgan_speed.py                  # Adult, two silos, D^2_0 G^0_2, batch 500

"in one piece" trains the same parts (tops, bottoms, filter) in one graph over pooled rows, without messages, and
keeps the same matrices orthonormal. "split" is the real conversation over the in-process runtime, with ledger. All take
turns round by round, in one run; read ratios. The last rows compare an epoch of `ctgan` with a plain loop as one would
write it by hand: one softmax per column, and the gradient penalty by a second backward pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import common
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import silosynth as ss
from silosynth.algorithms.central.protocol import PrepareModel
from silosynth.algorithms.central.silo import CentralSilo
from silosynth.algorithms.vtgan import protocol as vtgan
from silosynth.algorithms.vtgan.networks import SiloSizes, Tops
from silosynth.algorithms.vtgan.silo import VTGANSilo
from silosynth.catalog import ALGORITHMS
from silosynth.core.streams import Streams
from silosynth.models.ctgan import ConditionalGAN, CTGANConfig
from silosynth.models.encoded import EncodedRows
from silosynth.models.gan import Conditions, frozen, orthonormalise
from silosynth.models.training import Trainee
from silosynth.papers import tables
from silosynth.privacy.sealed import seats
from silosynth.runtime.driver import drive
from silosynth.runtime.ledger import Ledger
from silosynth.simulation.silos import InProcess

CPU = torch.device("cpu")
SETTINGS = {
    "none": {"index_privacy": "none", "bottom_gradients": "all"},
    "decoys": {"index_privacy": "decoys", "bottom_gradients": "none"},
    "full": {"index_privacy": "full", "bottom_gradients": "none"},
    "full, as in the paper": {"index_privacy": "full", "bottom_gradients": "all", "shuffle": "round"},
}


class Split:
    """A federation in training over the in-process runtime; `round` trains one round."""

    def __init__(self, federation: ss.Federation, options: dict[str, Any]) -> None:
        self.roster, self.config = federation.roster, ALGORITHMS["vtgan"].configure("balanced", options)
        seat = seats(self.roster, Streams(0).child("seats"))
        self.silos = {
            name: VTGANSilo(table, federation.schemas[name], seat[name], Streams(0).party(name), CPU, self.config)
            for name, table in federation.tables.items()
        }
        self.link, self.ledger, self.number = InProcess(self.silos), Ledger(), 0
        state = drive(lambda _: vtgan._begin(self.roster, self.config), self.link, self.ledger)
        self.sizes = SiloSizes(state["rows"], state["columns"], state["conditions"])
        self.tops = Tops(self.config, self.sizes, Streams(0).child("weights"), CPU)

    def round(self) -> None:
        """One round of the conversation; the ledger begins anew each time."""
        number, self.number = self.number, self.number + 1
        args = (self.roster, self.config, self.sizes, self.tops, Streams(0), number)
        drive(lambda _: vtgan._train_round(*args), self.link, self.ledger)

    def megabytes_per_step(self) -> float:
        """Both ways, all silos, of the last round."""
        return sum(record.bytes for record in self.ledger.records) / (self.config.critic_steps + 1) / 1e6


class OnePiece:
    """The same parts in one graph: generator and critic are one optimiser each, rows are pooled."""

    def __init__(self, split: Split) -> None:
        self.split, self.config, self.tops = split, split.config, split.tops
        self.silos = list(split.silos.values())
        self.levels = [silo.rows.levels for silo in self.silos]
        self.conditions = [silo.conditions for silo in self.silos]
        config = self.config
        settings = {"rate": config.rate, "betas": config.betas, "decay": config.decay}
        tops = self.tops
        self.bottoms = [silo.bottoms for silo in self.silos]
        critics = nn.ModuleList([tops.critic.network, *(part.critic.network for part in self.bottoms)])
        generators = nn.ModuleList([tops.generator.network, *(part.generator.network for part in self.bottoms)])
        self.critic, self.generator = Trainee(critics, **settings), Trainee(generators, **settings)
        self.draw = torch.Generator().manual_seed(1)

    def round(self) -> None:
        """``critic_steps`` critic steps and one generator step."""
        for _ in range(self.config.critic_steps):
            self._critic_step()
        self._generator_step()

    def _conditions(self) -> tuple[int, Tensor, Tensor, Tensor]:
        sizes = self.split.sizes
        chosen = int(sizes.contributors(1, True, self.draw))
        position_B = self.conditions[chosen].draw(self.config.batch, self.draw)
        rows = self.conditions[chosen].matching(position_B, self.draw)
        return chosen, position_B, rows, self.tops.conditional(sizes.among_all(chosen, position_B))

    def _made(self, cv_BP: Tensor) -> list[Tensor]:
        parts = self.tops.generate(cv_BP, self.draw, 0).split(self.tops.slices, dim=1)
        self.outs = [silo.bottoms.generator.network(part) for silo, part in zip(self.silos, parts, strict=True)]
        pairs = zip(self.silos, self.outs, strict=True)
        return [silo.bottoms.activation(out, self.config.tau, self.draw) for silo, out in pairs]

    def _features(self, made: list[Tensor]) -> Tensor:
        critics = [silo.bottoms.critic.network for silo in self.silos]
        return torch.cat([c(x, c.masks(len(x), self.draw)) for c, x in zip(critics, made, strict=True)], dim=1)

    def _critic_step(self) -> None:
        _, _, rows, cv_BP = self._conditions()
        with torch.no_grad():
            made = self._made(cv_BP)
        reals = []
        for silo, part in zip(self.silos, self.bottoms, strict=True):
            critic = part.critic.network
            masks = critic.masks(len(rows), self.draw)
            reals.append(critic.of_codes(silo.rows.shape, silo.rows.levels[rows], silo.rows.scores[rows], masks))
        self.critic.clear()
        self.tops.critic_loss(self._features(made), torch.cat(reals, dim=1), cv_BP, self.draw).backward()
        self.critic.step()
        if self.config.bottom_critics == "orthonormal":
            for first in (*(part.critic.network for part in self.bottoms), self.tops.filter):
                orthonormalise(first)

    def _generator_step(self) -> None:
        chosen, position_B, _, cv_BP = self._conditions()
        self.generator.clear()
        with frozen(self.critic.network):
            loss = self.tops.generator_loss(self._features(self._made(cv_BP)), cv_BP, self.draw)
            silo = self.silos[chosen]
            (loss + silo.bottoms.condition_loss(self.outs[chosen], silo.level_of_P[position_B])).backward()
        self.generator.step()


class PlainLoop:
    """A CTGAN-like loop as one would write it by hand, of the sizes of `CTGANConfig`."""

    def __init__(self, coded: EncodedRows, config: CTGANConfig) -> None:
        self.coded, self.config, shape = coded, config, coded.shape
        self.widths = [shape.widths[c] for c in coded.categorical]
        self.conditions = Conditions(coded.levels[:, list(coded.categorical)], tuple(self.widths))
        given = sum(self.widths)
        self.x = shape.vectors(coded.levels, coded.scores)
        self.norms = nn.ModuleList([nn.BatchNorm1d(256), nn.BatchNorm1d(256)])
        first = config.noise + given
        self.lines = nn.ModuleList(
            [nn.Linear(first, 256), nn.Linear(first + 256, 256), nn.Linear(first + 512, shape.size)]
        )
        self.critic = nn.Sequential(
            nn.Linear(shape.size + given, 256), nn.LeakyReLU(0.2), nn.Dropout(0.5), nn.Linear(256, 256),
            nn.LeakyReLU(0.2), nn.Dropout(0.5), nn.Linear(256, 1),
        )  # fmt: skip
        adam = {"lr": 2e-4, "betas": (0.5, 0.9), "weight_decay": 1e-6}
        self.of_generator = torch.optim.Adam([*self.lines.parameters(), *self.norms.parameters()], **adam)
        self.of_critic = torch.optim.Adam(self.critic.parameters(), **adam)
        self.draw = torch.Generator().manual_seed(2)
        starts = shape.starts.tolist()
        self.blocks = [(starts[c], width) for c, width in enumerate(shape.widths)]
        self.named = [self.blocks[c] for c in coded.categorical]

    def round(self) -> None:
        """``critic_steps`` critic steps and one generator step."""
        for _ in range(self.config.critic_steps):
            position, cv = self._given()
            order = torch.randperm(len(cv))
            real = torch.cat([self.x[self.conditions.matching(position[order], self.draw)], cv[order]], dim=1)
            fake = torch.cat([self._made(cv)[1], cv], dim=1).detach()
            mix = torch.rand(len(cv), 1)
            between = (mix * real + (1 - mix) * fake).requires_grad_()
            judged = self.critic(between)
            (slope,) = torch.autograd.grad(judged, between, torch.ones_like(judged), create_graph=True)
            loss = self.critic(fake).mean() - self.critic(real).mean() + 10 * ((slope.norm(dim=1) - 1) ** 2).mean()
            self.of_critic.zero_grad()
            loss.backward()
            self.of_critic.step()
        position, cv = self._given()
        out, made = self._made(cv)
        loss = -self.critic(torch.cat([made, cv], dim=1)).mean() + self._cross_entropy(out, cv)
        self.of_generator.zero_grad()
        loss.backward()
        self.of_generator.step()

    def _given(self) -> tuple[Tensor, Tensor]:
        position = self.conditions.draw(self.config.batch, self.draw)
        return position, F.one_hot(position, sum(self.widths)).float()

    def _made(self, cv: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.cat([torch.randn(len(cv), self.config.noise), cv], dim=1)
        for line, norm in zip(self.lines, self.norms, strict=False):
            x = torch.cat([F.relu(norm(line(x))), x], dim=1)
        out = self.lines[2](x)
        parts = [F.gumbel_softmax(out[:, start : start + width], tau=0.2) for start, width in self.blocks]
        return out, torch.cat([*parts, out[:, self.coded.shape.levels :].tanh()], dim=1)

    def _cross_entropy(self, out: Tensor, cv: Tensor) -> Tensor:
        losses, start = [], 0
        for first, width in self.named:
            given = cv[:, start : start + width]
            loss = F.cross_entropy(out[:, first : first + width], given.argmax(dim=1), reduction="none")
            losses.append(loss * given.sum(dim=1))
            start += width
        return torch.stack(losses).sum() / len(cv)


def central(federation: ss.Federation) -> ConditionalGAN:
    """`ctgan`'s model of all columns."""
    pooled = federation.central()
    (name,) = pooled.roster
    seat = seats([name], Streams(0))[name]
    config = ALGORITHMS["ctgan"].configure("best")
    party = CentralSilo(pooled.tables[name], pooled.schemas[name], seat, Streams(0), CPU, config)
    party.answer(PrepareModel())
    assert isinstance(party.model, ConditionalGAN)
    return party.model


def taking_turns(rounds: dict[str, Callable[[], None]], turns: int) -> dict[str, tuple[float, float]]:
    """Median seconds of a round of each, taken in turns: by the clock, and of processor time, all threads."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in rounds}
    for turn in range(turns + 1):
        for name, go in rounds.items():
            start = time.perf_counter(), time.process_time()
            go()
            if turn:  # the first one warms up
                taken[name].append((time.perf_counter() - start[0], time.process_time() - start[1]))
    return {name: (median(t[0] for t in times), median(t[1] for t in times)) for name, times in taken.items()}


def main() -> None:
    """Measure and keep."""
    parser = common.parser(__doc__)
    parser.add_argument("--turns", type=int, default=15)
    turns = parser.parse_args().turns
    torch.set_num_threads(1)
    train, _ = tables.thirds(tables.modelled("adult"))
    federation = tables.in_silos(train, 2)
    splits = {name: Split(federation, options) for name, options in SETTINGS.items()}
    whole = OnePiece(Split(federation, SETTINGS["none"]))
    ours = central(federation)
    config = ours.config
    plain = PlainLoop(ours.coded, config)
    draws = Streams(0).child("bench").torch(), Streams(0).child("rows").torch()
    rounds = {"in one piece": whole.round} | {name: split.round for name, split in splits.items()}
    rounds |= {"ctgan": lambda: ours.round(*draws), "a plain loop": plain.round}
    seconds = taking_turns(rounds, turns)
    steps, epoch = config.critic_steps + 1, len(train) // config.batch
    rows = []
    for name, (clock, processor) in seconds.items():
        base = "a plain loop" if name in ("ctgan", "a plain loop") else "in one piece"
        rows.append(
            {
                "what": name,
                "steps per second": steps / clock,
                "epoch s": clock * epoch,
                "speed against": base,
                "by the clock": seconds[base][0] / clock,
                "by processor time": seconds[base][1] / processor,
                "MB per step": splits[name].megabytes_per_step() if name in splits else 0.0,
            }
        )
    common.keep("vtgan_speed", rows)


if __name__ == "__main__":
    main()
