"""Train VT-GAN and record what each party is sent: the coordinator, every silo; and the truth, to score attacks by.

A `Wiretap` around the link feeds the ears, so that an attack cannot use more than its party is sent. `Truth` looks
into the silos; only scoring may use it. Of old rounds only counts are kept.

Shapes: N rows, B rows of a batch, R rows that a silo pushes, W features of a silo, P positions: levels that a silo's
conditions can name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from silosynth.algorithms.vtgan import protocol as vtgan
from silosynth.algorithms.vtgan.options import VTGANConfig
from silosynth.algorithms.vtgan.silo import VTGANSilo
from silosynth.attacks.findings import Ints
from silosynth.core.conversation import Progress
from silosynth.core.messages import Message
from silosynth.core.streams import Streams
from silosynth.privacy.sealed import seats
from silosynth.runtime.driver import drive
from silosynth.runtime.ledger import Ledger
from silosynth.runtime.link import Link, Received
from silosynth.simulation.federation import Federation
from silosynth.simulation.silos import InProcess

Ear = Callable[[str, Message, Message], None]  # (silo, what it is asked, what it replies)
KEPT = 10  # last rounds of which batches are kept
PUSHED = 2  # last rounds of which everything that silos push is kept


class Wiretap(Link):
    """A link that repeats every ask and its reply to some ears, after the exchange."""

    def __init__(self, link: Link, ears: list[Ear]) -> None:
        self._link, self._ears = link, ears

    def begin(self) -> None:
        """See `Link.begin`."""
        self._link.begin()

    def exchange(self, step: int, asks: Mapping[str, Message]) -> Mapping[str, Received]:
        """See `Link.exchange`."""
        received = self._link.exchange(step, asks)
        for silo, ask in asks.items():
            for ear in self._ears:
                ear(silo, ask, received[silo].reply)
        return received

    def save(self, number: int) -> None:
        """See `Link.save`."""
        self._link.save(number)

    def restore(self, number: int) -> None:
        """See `Link.restore`."""
        self._link.restore(number)

    def close(self) -> None:
        """See `Link.close`."""
        self._link.close()


@dataclass
class CriticStep:
    """A critic step as the coordinator sees it.

    Attributes:
        position_B: drawn levels, counted within the contributor's; -1 for no condition.
        number_B: row numbers, or places in the list that is sealed for the others.
        features: of real rows (R, W) by silo; the contributor's are those of the batch.
    """

    contributor: str
    position_B: Tensor
    number_B: Tensor
    features: dict[str, Tensor] = field(default_factory=dict)


class CoordinatorEar:
    """What the coordinator is sent.

    Attributes:
        votes: by silo how often a number came with a position (N, P), in all of the training.
        steps: the critic steps of the last rounds.
    """

    def __init__(self, config: VTGANConfig) -> None:
        self._steps = config.critic_steps + 1
        self.votes: dict[str, Tensor] = {}
        self.steps: dict[int, CriticStep] = {}

    def __call__(self, silo: str, ask: Message, reply: Message) -> None:
        """Hear one exchange."""
        if isinstance(reply, vtgan.Encoded):
            self.votes[silo] = torch.zeros(reply.rows, reply.conditions, dtype=torch.int32)
        elif isinstance(ask, vtgan.DrawConditions) and isinstance(reply, vtgan.DrawnConditions):
            for i, step in enumerate(ask.critic):
                self.steps[step] = CriticStep(silo, reply.positions_TB[i].long(), reply.picks_CB[i].long())
                self._count(silo, self.steps[step])
        elif isinstance(ask, vtgan.PushRows | vtgan.PushListed) and isinstance(reply, vtgan.PushedFeatures):
            self.steps[ask.step].features[silo] = reply.real_RW
            self._forget(ask.step // self._steps)

    def _count(self, silo: str, heard: CriticStep) -> None:
        votes = self.votes[silo]
        known = (heard.position_B >= 0) & (heard.number_B < len(votes))  # a list may be longer than the table
        at = heard.number_B[known], heard.position_B[known]
        votes.index_put_(at, torch.ones(len(at[0]), dtype=torch.int32), accumulate=True)

    def _forget(self, now: int) -> None:
        forget(self.steps, (now - KEPT + 1) * self._steps)
        for number, step in self.steps.items():
            if number < (now - PUSHED + 1) * self._steps:
                step.features = {k: v for k, v in step.features.items() if k == step.contributor}


class SiloEar:
    """What a silo learns about rows that others contribute: from sealed lists, or from the gradients that it is sent.

    Attributes:
        silo: itself, with all that it holds.
        count_N: how often each of its rows was named to it.
        lists: the rows that were named to it in critic steps of the last rounds.
        surest: of these, as many as a batch has: those that had been named most often before.
        gradients: by critic step of the last rounds: the rows (B,) of the batch that it knows, and the gradients (B, W)
            of the loss with respect to their features.
    """

    def __init__(self, silo: VTGANSilo, config: VTGANConfig) -> None:
        self.silo, self._config, self._step = silo, config, 0
        self.count_N = torch.zeros(len(silo.columns.table), dtype=torch.int64)
        self.lists: dict[int, Tensor] = {}
        self.surest: dict[int, Tensor] = {}
        self.gradients: dict[int, tuple[Tensor, Tensor]] = {}

    def hear(self, ask: Message) -> None:
        """Hear one ask, after it was answered: the silo still holds what it pushed for it."""
        if isinstance(ask, vtgan.PushRows | vtgan.PushListed):
            self._step = ask.step
        if isinstance(ask, vtgan.PushListed):
            self._note_rows(self.silo.pushed)
        elif isinstance(ask, vtgan.DescendPicked):
            self._note_rows(self.silo.pushed[ask.picks_B.long()])
            self._note_gradients(self.silo.pushed[ask.picks_B.long()], ask.grad_real_BW)
        elif isinstance(ask, vtgan.DescendBottomCritic):
            self._note_gradients(self.silo.pushed, ask.grad_real_BW)

    def _note_gradients(self, row_B: Tensor, gradient_BW: Tensor) -> None:
        self.gradients[self._step] = row_B.clone(), gradient_BW
        forget(self.gradients, self._kept)

    def _note_rows(self, row_R: Tensor) -> None:
        """Count a step's rows, in place of what was noted earlier for the same step."""
        before = self.lists.get(self._step, row_R[:0])
        self.count_N -= torch.bincount(before, minlength=len(self.count_N))
        most = torch.argsort(self.count_N[row_R], descending=True, stable=True)
        self.lists[self._step], self.surest[self._step] = row_R.clone(), row_R[most[: self._config.batch]]
        self.count_N += torch.bincount(row_R, minlength=len(self.count_N))
        forget(self.lists, self._kept)
        forget(self.surest, self._kept)

    @property
    def _kept(self) -> int:
        """The first step that is not forgotten yet."""
        return self._step - KEPT * (self._config.critic_steps + 1)


class Truth:
    """What attacks on the last rounds are scored by.

    Attributes:
        row_B: the rows of each critic step.
        pushed: which rows (R,) each silo has pushed in it.
    """

    def __init__(self, silos: Mapping[str, VTGANSilo], config: VTGANConfig) -> None:
        self._silos, self._kept = silos, KEPT * (config.critic_steps + 1)
        self.row_B: dict[int, Tensor] = {}
        self.pushed: dict[int, dict[str, Tensor]] = {}

    def __call__(self, silo: str, ask: Message, reply: Message) -> None:
        """Look into a silo after an exchange."""
        if isinstance(ask, vtgan.PushRows | vtgan.PushListed):
            self.pushed.setdefault(ask.step, {})[silo] = self._silos[silo].pushed.clone()
            if isinstance(ask, vtgan.PushRows) and ask.contributor == silo:
                self.row_B[ask.step] = self.pushed[ask.step][silo]
            forget(self.row_B, ask.step - self._kept)
            forget(self.pushed, ask.step - self._kept)


@dataclass(frozen=True, eq=False)
class Overheard:
    """A training, and what each party heard in it."""

    config: VTGANConfig
    silos: dict[str, VTGANSilo]
    coordinator: CoordinatorEar
    ears: dict[str, SiloEar]
    truth: Truth

    @property
    def rows(self) -> int:
        """N."""
        return len(next(iter(self.silos.values())).columns.table)

    def round_of(self, step: int) -> int:
        """The round that a step is in."""
        return step // (self.config.critic_steps + 1)


def levels_of(silo: VTGANSilo) -> tuple[Ints, Ints]:
    """A silo's categorical columns (N, C), and their numbers of levels (C,)."""
    return silo.rows.levels.numpy()[:, list(silo.rows.categorical)], np.array(silo.law.widths, dtype=np.int64)


def forget(store: dict[int, Any], before: int) -> None:
    """Drop entries of earlier steps."""
    for step in [step for step in store if step < before]:
        del store[step]


def overhear(
    federation: Federation, config: VTGANConfig, seed: int, watch: Callable[[Progress], None] | None = None,
    also: Ear | None = None,
) -> Overheard:  # fmt: skip
    """Train with ears on the link; ``also`` is one more of them.

    Raises:
        DataError, ConfigError: the federation or the options are not valid.
    """
    streams, cpu = Streams(seed), torch.device("cpu")
    seated = seats(federation.roster, streams.child("seats"))
    silos = {
        name: VTGANSilo(table, federation.schemas[name], seated[name], streams.party(name), cpu, config)
        for name, table in federation.tables.items()
    }
    coordinator, truth = CoordinatorEar(config), Truth(silos, config)
    ears = {name: SiloEar(silo, config) for name, silo in silos.items()}
    heard: list[Ear] = [coordinator, truth, lambda silo, ask, reply: ears[silo].hear(ask)]
    start = partial(vtgan.coordinate, federation.roster, config, streams.child("coordinator"), cpu)
    with Wiretap(InProcess(silos), heard + ([] if also is None else [also])) as link:
        drive(start, link, Ledger(), watch=watch)
    return Overheard(config, silos, coordinator, ears, truth)
