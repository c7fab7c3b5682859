"""TabVFL's three designs in one piece: the same weights, rows and masks in one graph, layer by layer in float64.

No silo, no message: autograd sees all networks at once. Slow and obvious; batch normalisation by its definition.
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


def under(w: Weights, name: str) -> Weights:
    return {key.removeprefix(f"{name}."): value for key, value in w.items() if key.startswith(f"{name}.")}


def count(w: Weights, name: str) -> int:
    return len({key.split(".")[1] for key in w if key.startswith(f"{name}.")})


def norm(w: Weights, name: str, x: Tensor) -> Tensor:
    centred = x - x.mean(0)
    return centred / (centred.square().mean(0) + 1e-5).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]


def project(row: Tensor) -> Tensor:
    """Sparsemax of one row, by trying every size of the support."""
    ordered = row.sort(descending=True).values
    for size in range(len(row), 0, -1):
        threshold = (ordered[:size].sum() - 1) / size
        if ordered[size - 1] > threshold:
            return (row - threshold).clamp(min=0)
    raise AssertionError("one of them is positive")


def transform(w: Weights, shared: list[Tensor], x: Tensor) -> Tensor:
    layers = shared + [w[f"own.{i}.weight"] for i in range(count(w, "own"))]
    for i, layer in enumerate(layers):
        y = norm(w, f"norms.{i}", x @ layer.T)
        value, gate = y[:, : y.shape[1] // 2], y[:, y.shape[1] // 2 :]
        y = value / (1 + (-gate).exp())
        x = y if i == 0 else (x + y) * 0.5**0.5
    return x


def encode(w: Weights, x: Tensor, prior: Tensor, latent: int, gamma: float) -> tuple[list[Tensor], Tensor]:
    """Decisions of all steps, and the mean entropy of the masks."""
    shared = [w[f"shared.{i}.weight"] for i in range(count(w, "shared"))]
    attention, decisions, entropies = transform(under(w, "first"), shared, x)[:, latent:], [], []
    for i in range(count(w, "transformers")):
        looked = prior * norm(w, f"attention.{i}.norm", attention @ w[f"attention.{i}.layer.weight"].T)
        mask = torch.stack([project(row) for row in looked])
        entropies.append(-(mask * (mask + 1e-15).log()).sum(1).mean())
        prior = prior * (gamma - mask)
        out = transform(under(w, f"transformers.{i}"), shared, mask * x)
        decisions.append(out[:, :latent].clamp(min=0))
        attention = out[:, latent:]
    return decisions, sum(entropies) / len(entropies)


def decode(w: Weights, decisions: list[Tensor]) -> Tensor:
    shared = [w[f"shared.{i}.weight"] for i in range(count(w, "shared"))]
    return sum(transform(under(w, f"transformers.{i}"), shared, d) for i, d in enumerate(decisions))


def reconstruction(made: Tensor, x: Tensor, mask: Tensor) -> Tensor:
    """The masked, scaled loss, row by row and feature by feature."""
    total = torch.zeros((), dtype=torch.float64)
    for b in range(len(x)):
        errors = []
        for f in range(x.shape[1]):
            if mask[b, f]:
                variance, mean = x[:, f].var(), x[:, f].mean().abs()
                scale = variance if variance > 0 else (mean if mean > 0 else torch.ones(()))
                errors.append((made[b, f] - x[b, f]).square() / scale)
        total = total + (sum(errors) / len(errors) if errors else 0)
    return total / len(x)


@dataclass
class Whole:
    """All weights: silos' by name, and the coordinator's."""

    guests: dict[str, Weights]
    host: Weights
    config: object
    partitions: list[int]

    def pretraining_loss(self, x: dict[str, Tensor], mask: dict[str, Tensor]) -> Tensor:
        """Algorithm 1: the sum of all silos' losses."""
        net, sent = self.config.net, {}
        for silo, w in self.guests.items():
            sent[silo] = norm(w, "front.norm", x[silo] * (1 - mask[silo]))
        if self.config.design == "tabvfl":
            z = torch.cat([sent[silo] @ w["front.mix.weight"].T for silo, w in self.guests.items()], dim=1)
            prior = 1 - torch.cat(list(mask.values()), dim=1)
            decisions, _ = encode(under(self.host, "encoder"), z, prior, net.latent, net.gamma)
        else:
            each = [
                encode(under(w, "front.encoder"), sent[silo], 1 - mask[silo], net.latent, net.gamma)[0]
                for silo, w in self.guests.items()
            ]
            decisions = [sum(steps) for steps in zip(*each, strict=True)]
        outs = decode(under(self.host, "decoder"), decisions).split(self.partitions, dim=1)
        pairs = zip(self.guests.items(), outs, strict=True)
        return sum(reconstruction(o @ w["rebuild.weight"].T, x[silo], mask[silo]) for (silo, w), o in pairs)

    def alone(self, silo: str, x: Tensor, mask: Tensor, latent: int) -> Tensor:
        """LT's pre-training of one silo."""
        w = self.guests[silo]
        normed = norm(w, "front.norm", x * (1 - mask))
        decisions, _ = encode(under(w, "front.encoder"), normed, 1 - mask, latent, self.config.net.gamma)
        return reconstruction(decode(under(w, "decoder"), decisions) @ w["rebuild.weight"].T, x, mask)

    def finetuning_loss(self, x: dict[str, Tensor], labels: Tensor, classes: int) -> Tensor:
        """Algorithm 2, and the entropy of all encoders' masks."""
        net, parts, entropy = self.config.net, [], 0
        for (silo, w), part in zip(self.guests.items(), self.partitions, strict=True):
            normed = norm(w, "front.norm", x[silo])
            if self.config.design == "tabvfl":
                parts.append(normed @ w["front.mix.weight"].T)
                continue
            size = part if self.config.design == "local" else net.latent
            decisions, more = encode(under(w, "front.encoder"), normed, torch.ones_like(normed), size, net.gamma)
            entropy = entropy + more
            parts.append(sum(decisions))
        if self.config.design == "tabvfl":
            z = torch.cat(parts, dim=1)
            decisions, entropy = encode(under(self.host, "encoder"), z, torch.ones_like(z), net.latent, net.gamma)
            latent = sum(decisions)
        else:
            latent = torch.cat(parts, dim=1) if self.config.design == "local" else sum(parts)
        out = latent @ self.host["mapping.weight"].T
        loss = F.cross_entropy(out, labels) if classes else (out[:, 0] - labels).square().mean()
        return loss + self.config.sparsity * entropy
