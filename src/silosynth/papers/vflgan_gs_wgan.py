"""GS-WGAN, with which VFLGAN's figure 8 compares, for numbers in [0, 1]; in one place, without silos.

D. Chen, T. Orekondy, M. Fritz: "GS-WGAN: A Gradient-Sanitized Approach for Learning Differentially Private Generators",
NeurIPS 2020.

The rows are dealt out at random into as many parts as there are critics. In each round one critic, drawn at random,
learns from its part without noise; then the gradients that it gives for made rows are clipped, row by row, and noised,
and the generator learns from these. So all that a row can change in the generator is one critic's gradients of a batch
of B rows, each of norm C at most: two tables that differ in one row give sums of norm 2 C sqrt(B) at most. A round is
a Gaussian mechanism on one of K parts, drawn without replacement; its cost under substitution of a row is that of Wang,
Balle, Kasiviswanathan (AISTATS 2019), as dp-accounting computes it. The number of rows counts as public.

As VFLGAN's authors have it, rows have no classes, and networks are those of the other mechanisms.

Shapes: N rows, P numbers of a row, B rows of a batch, Z numbers of noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from silosynth.core.errors import ConfigError
from silosynth.core.streams import Streams
from silosynth.evaluation.scores import Floats
from silosynth.models.gan import CriticPart, norm_penalty
from silosynth.models.training import build
from silosynth.models.vflgan import Generator

WIDEST = 1e6  # noise multipliers that are tried


@dataclass(frozen=True)
class SanitisedConfig:
    """Options of a training; ``clip`` is C, and ``noise`` the deviation of the noise over 2 C sqrt(B)."""

    rounds: int
    noise: float
    critics: int = 100
    critic_steps: int = 5
    batch: int = 64
    inputs: int = 100
    generator: Sequence[int] = (128, 256, 512, 1024)
    critic: Sequence[int] = (512, 256)
    clip: float = 1.0
    penalty: float = 10.0
    rate: float = 2e-4
    betas: tuple[float, float] = (0.0, 0.99)

    @property
    def deviation(self) -> float:
        """Of the noise on each number of a made row's gradient."""
        return 2 * self.clip * math.sqrt(self.batch) * self.noise


@cache
def spent(population: int, sample: int, noise: float, steps: int, delta: float) -> float:
    """Epsilon of ``steps`` Gaussian mechanisms, each on ``sample`` of ``population`` drawn without replacement.

    Neighbours differ in one member. ``noise`` is the deviation over the most that one member changes.
    """
    return float(_composed(population, sample, noise, steps).get_epsilon(delta))


def _composed(population: int, sample: int, noise: float, steps: int) -> Any:
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    one = dp_accounting.GaussianDpEvent(noise)
    return accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(population, sample, one), steps)


def calibrated(population: int, sample: int, steps: int, epsilon: float, delta: float) -> float:
    """The least noise, to a hundredth, at which `spent` is at most ``epsilon``.

    Raises:
        ConfigError: there is none.
    """
    if not 0 < sample <= population or steps < 1:
        raise ConfigError("A step takes some of all rows or parts", (population, sample, steps))
    low, high = 0.0, 1.0
    while spent(population, sample, high, steps, delta) > epsilon:
        low, high = high, 2 * high
        if high > WIDEST:
            raise ConfigError("No noise keeps this budget", (epsilon, delta))
    while high - low > 1e-2 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if spent(population, sample, middle, steps, delta) > epsilon else (low, middle)
    return high


def sanitised(gradient_BP: Tensor, clip: float, deviation: float, draw: torch.Generator) -> Tensor:
    """Each row cut to norm ``clip``, and noise added to all numbers."""
    norms_B1 = gradient_BP.norm(dim=1, keepdim=True)
    cut_BP = gradient_BP / (norms_B1 / clip).clamp(min=1.0)
    noised_BP: Tensor = cut_BP + deviation * torch.randn(cut_BP.shape, generator=draw)
    return noised_BP


@dataclass
class SanitisedTraining:
    """A generator, and a critic for each part of the rows, made when it is first drawn."""

    rows_NP: Tensor
    config: SanitisedConfig
    streams: Streams
    ledger: list[dict[str, Any]] = field(default_factory=list)  # no message is sent

    def __post_init__(self) -> None:
        if not 1 <= self.config.critics <= len(self.rows_NP) // 2:
            raise ConfigError("A critic learns from two rows at least", (self.config.critics, len(self.rows_NP)))
        config, width = self.config, self.rows_NP.shape[1]
        weights = self.streams.child("generator").torch()
        shape = config.inputs, tuple(config.generator), width, 0.0, True
        self.generator = build(Generator, *shape, generator=weights)
        self._adam = torch.optim.Adam(self.generator.parameters(), config.rate, config.betas)
        order = torch.randperm(len(self.rows_NP), generator=self.streams.child("parts").torch())
        self.parts = order.tensor_split(config.critics)
        self._critics: dict[int, tuple[CriticPart, torch.optim.Adam]] = {}
        self._draw = self.streams.child("steps").torch()
        self._choice = self.streams.child("choice").numpy()

    def train(self, tell: Callable[[float], None] = lambda share: None) -> SanitisedTraining:
        """All rounds."""
        for number in range(self.config.rounds):
            tell(number / self.config.rounds)
            self.round(int(self._choice.integers(self.config.critics)))
        return self

    def round(self, chosen: int) -> None:
        """One critic learns from its part, and the generator from its sanitised gradients."""
        critic, adam = self._critic(chosen)
        for _ in range(self.config.critic_steps):
            self._learn(critic, adam, self.parts[chosen])
        made_BP = self._made(self.config.batch)
        shown_BP = made_BP.detach().requires_grad_()
        (gradient_BP,) = torch.autograd.grad(-critic(shown_BP, []).sum(), shown_BP)
        noised_BP = sanitised(gradient_BP, self.config.clip, self.config.deviation, self._draw)
        self._adam.zero_grad()
        made_BP.backward(noised_BP / self.config.batch)
        self._adam.step()

    def _critic(self, number: int) -> tuple[CriticPart, torch.optim.Adam]:
        if number not in self._critics:
            shape = self.rows_NP.shape[1], tuple(self.config.critic), 1, 0.0
            critic = build(CriticPart, *shape, generator=self.streams.child("critic", number).torch())
            self._critics[number] = critic, torch.optim.Adam(critic.parameters(), self.config.rate, self.config.betas)
        return self._critics[number]

    def _learn(self, critic: CriticPart, adam: torch.optim.Adam, part: Tensor) -> None:
        """A step of WGAN-GP."""
        rows = part[torch.randint(len(part), (self.config.batch,), generator=self._draw)]
        real_BP, made_BP = self.rows_NP[rows], self._made(self.config.batch).detach()
        share_B1 = torch.rand(self.config.batch, 1, generator=self._draw)
        between_BP = (share_B1 * real_BP + (1 - share_B1) * made_BP).requires_grad_()
        (slope_BP,) = torch.autograd.grad(critic(between_BP, []).sum(), between_BP, create_graph=True)
        loss = critic(made_BP, []).mean() - critic(real_BP, []).mean()
        loss = loss + self.config.penalty * norm_penalty(slope_BP).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()

    def _made(self, count: int, draw: torch.Generator | None = None) -> Tensor:
        z_BZ = torch.randn(count, self.config.inputs, generator=draw or self._draw)
        made: Tensor = self.generator(z_BZ).sigmoid()
        return made

    @torch.no_grad()
    def sample(self, n: int, seed: int) -> Floats:
        """Made rows (n, P)."""
        return np.asarray(self._made(n, Streams(seed).child("sample").torch()).double().numpy())
