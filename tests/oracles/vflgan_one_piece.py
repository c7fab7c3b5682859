"""VFLGAN and VertiGAN in one piece: the same weights, rows and random draws in one graph, layer by layer in float64.

No silo, no message: autograd sees all critics and generators, and takes gradients of penalties too. Slow and obvious.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Weights = dict[str, Tensor]


def weights_of(module: torch.nn.Module) -> Weights:
    """Copies of a module's weights that track gradients."""
    return {name: weight.detach().double().requires_grad_() for name, weight in module.named_parameters()}


def linear(w: Weights, name: str, x: Tensor) -> Tensor:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def leaky(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 0.2 * x)


def generator(w: Weights, z: Tensor, epsilon: float, plain: bool) -> Tensor:
    """Linear layers; batch normalisation from the second on, or (not ``plain``) from the first; leaky ReLU."""
    layers = sum(name.startswith("linears") and name.endswith("weight") for name in w)
    for i in range(layers):
        z = linear(w, f"linears.{i}", z)
        if (i > 0 or not plain) and f"norms.{i}.weight" in w:
            z = (z - z.mean(0)) / (z.var(0, correction=0) + epsilon).sqrt()
            z = z * w[f"norms.{i}.weight"] + w[f"norms.{i}.bias"]
        z = leaky(z)
    return linear(w, "last", z) if "last.weight" in w else z


def rows(out: Tensor, widths: tuple[int, ...], tau: float, hard: bool, uniform: Tensor) -> Tensor:
    """Generated rows: one softmax after the other, then scores as they are."""
    noise = -torch.log(-torch.log(uniform.clamp(1e-9, 1 - 1e-7))).double()
    parts, start = [], 0
    for width in widths:
        soft = F.softmax((out[:, start : start + width] + noise[:, start : start + width]) / tau, dim=1)
        parts.append(F.one_hot(soft.argmax(1), width) + soft - soft.detach() if hard else soft)
        start += width
    return torch.cat([*parts, out[:, start:]], dim=1)


def part(w: Weights, name: str, x: Tensor, last: bool) -> Tensor:
    """Layers of a critic's part; leaky ReLU after each, or after all but the ``last``."""
    layers = sum(key.startswith(f"{name}linears") and key.endswith("weight") for key in w)
    for i in range(layers):
        x = linear(w, f"{name}linears.{i}", x)
        x = x if last and i == layers - 1 else leaky(x)
    return x


def steepness(y: Tensor, x: Tensor) -> Tensor:
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return ((slope.square().sum(1).sqrt() - 1) ** 2).mean()


@dataclass
class Whole:
    """All critics' weights, by silo, and the shared one's; None for VertiGAN."""

    critics: dict[str, Weights]
    shared: Weights | None
    config: object

    def features(self, silo: str, x: Tensor) -> Tensor:
        return part(self.critics[silo], "first.", x, last=False)

    def judge(self, silo: str, x: Tensor) -> Tensor:
        if "second.linears.0.weight" not in self.critics[silo]:
            return torch.zeros(len(x), dtype=torch.float64)
        return part(self.critics[silo], "second.", self.features(silo, x), last=True).squeeze(1)

    def all_features(self, x: dict[str, Tensor]) -> Tensor:
        return torch.cat([self.features(silo, x[silo]) for silo in self.critics], dim=1)

    def penalty(self, silo: str, between: Tensor) -> Tensor:
        between = between.clone().requires_grad_()
        second = "second.linears.0.weight" in self.critics[silo]
        if second and self.config.slopes == "critic":
            return steepness(self.judge(silo, between), between)
        f = self.features(silo, between)
        if self.config.slopes == "orthonormal":
            return steepness(part(self.critics[silo], "second.", f, last=True), f) if second else 0 * f.sum()
        found = steepness(f.sum(1), between)
        return found + steepness(part(self.critics[silo], "second.", f, last=True), f) if second else found

    def local_loss(self, silo: str, fake: Tensor, real: Tensor, mix: Tensor) -> Tensor:
        """L(D_i) of equation (8)."""
        between = fake + mix * (real - fake)
        return (
            self.judge(silo, fake).mean()
            - self.judge(silo, real).mean()
            + self.config.penalty * self.penalty(silo, between)
        )

    def shared_loss(self, fake: dict[str, Tensor], real: dict[str, Tensor], mix: Tensor) -> Tensor:
        """L(D_s) of equation (8), with the penalty's point between features, as a function of all weights."""
        f, r = self.all_features(fake), self.all_features(real)
        between = f + mix * (r - f)
        judged = part(self.shared, "", between, last=True)
        return (
            part(self.shared, "", f, last=True).mean()
            - part(self.shared, "", r, last=True).mean()
            + self.config.penalty * steepness(judged, between)
        )

    def generator_loss(self, fake: dict[str, Tensor]) -> Tensor:
        """Equation (17), with λ2."""
        loss = -sum(self.judge(silo, fake[silo]).mean() for silo in fake)
        if self.shared is not None:
            loss = loss - self.config.lambda2 * part(self.shared, "", self.all_features(fake), last=True).mean()
        return loss
