"""TabNet's blocks (S. Arik, T. Pfister: "TabNet: Attentive Interpretable Tabular Learning", AAAI 2021).

Written from the paper; where it leaves room, by what the usual implementation (`pytorch-tabnet` 4.1) computes, with
which these blocks agree from the same weights (tests/models/test_tabnet.py). The first batch normalisation of the
encoder and the last layer of the decoder are not in here: they belong to whoever holds the columns.

=====================================  =======================================
paper, section 3                       here
=====================================  =======================================
ghost batch normalisation              `GhostNorm`
feature transformer (figure 4c)        `FeatureTransformer`
attentive transformer (figure 4d)      `AttentiveTransformer`, `sparsemax`
encoder (4a), sparsity regularisation  `TabNetEncoder`
decoder (4b)                           `TabNetDecoder`
masked columns, reconstruction loss    `obfuscate`, `reconstruction_loss`
=====================================  =======================================

Shapes: B rows, F features, D numbers of a decision (n_d), A of attention (n_a).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from silosynth.core.errors import ConfigError
from silosynth.core.messages import AtMost, Positive, Size, Struct
from silosynth.models.training import check_weights

EPSILON = 1e-15  # keeps logarithms of masks finite
INPUT_MOMENTUM = 0.01  # of the batch normalisation before the encoder


class TabNetConfig(Struct):
    """Sizes, with the paper's symbols."""

    latent: Size[int] = 5  # n_d, length of a decision and of the latent vector
    attention: Size[int] = 2  # n_a, length of what goes on to the next step
    steps: Size[int] = 4  # N_steps
    gamma: float = 1.5  # γ, above 1: how freely a feature is used in several steps
    shared: AtMost[int] = 1  # gated layers that all steps of the encoder share
    independent: AtMost[int] = 1  # and those of each step by itself
    decoder_shared: AtMost[int] = 1
    decoder_independent: AtMost[int] = 1
    ghost: Size[int] = 128  # B_V, rows that are normalised together
    momentum: Positive[float] = 0.02  # weight of a batch in running means and variances

    def _check(self) -> None:
        if self.gamma < 1 or self.momentum > 1:
            raise ConfigError(
                "Options 'gamma' and 'momentum' are at least, and at most, 1", (self.gamma, self.momentum)
            )
        for name in ("shared", "decoder_shared"):
            own = name.replace("shared", "independent")
            counts = getattr(self, name), getattr(self, own)
            if min(counts) < 0 or not any(counts):
                raise ConfigError(f"Options {name!r} and {own!r} are not negative, and not both 0", counts)


def plain_layer(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """A layer without bias; Xavier's normal law times sqrt((inputs + outputs) / sqrt(4 inputs))."""
    return _layer(inputs, outputs, inputs**-0.25, generator)


def _gated_layer(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """A layer before a gate: twice the outputs, and Xavier's law times sqrt((inputs + 2 outputs) / sqrt(inputs))."""
    return _layer(inputs, 2 * outputs, math.sqrt(2) * inputs**-0.25, generator)


def _layer(inputs: int, outputs: int, deviation: float, generator: torch.Generator) -> nn.Linear:
    """`skip_init` draws nothing from the ambient generator."""
    check_weights(inputs * outputs)
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=deviation, generator=generator)
    return layer


def sparsemax(x_BF: Tensor) -> Tensor:
    """The nearest point (B, F) of the simplex, row by row (A. Martins, R. Astudillo, ICML 2016, algorithm 1)."""
    shifted = x_BF - x_BF.amax(dim=-1, keepdim=True)
    ordered = shifted.sort(dim=-1, descending=True).values
    sums = ordered.cumsum(dim=-1) - 1
    counts = torch.arange(1, x_BF.shape[-1] + 1, device=x_BF.device, dtype=x_BF.dtype)
    support = (counts * ordered > sums).sum(dim=-1, keepdim=True)
    return torch.relu(shifted - sums.gather(-1, support - 1) / support)


class GhostNorm(nn.BatchNorm1d):
    """Batch normalisation over virtual batches of ``ghost`` rows (E. Hoffer, I. Hubara, D. Soudry, 2017)."""

    def __init__(self, features: int, ghost: int, momentum: float) -> None:
        super().__init__(features, momentum=momentum)
        self.ghost = ghost

    def forward(self, x_BF: Tensor) -> Tensor:
        """Normalised rows (B, F); one row that is left over goes with those before it."""
        if not self.training or len(x_BF) <= self.ghost:
            return super().forward(x_BF)
        parts = list(x_BF.chunk(math.ceil(len(x_BF) / self.ghost)))
        if len(parts[-1]) == 1:
            parts[-2:] = [torch.cat(parts[-2:])]
        return torch.cat([super(GhostNorm, self).forward(part) for part in parts])


class FeatureTransformer(nn.Module):
    """Gated layers, shared ones first; from the second on with a residual connection, scaled by sqrt(1/2)."""

    def __init__(
        self, inputs: int, width: int, shared: int, independent: int, config: TabNetConfig, generator: torch.Generator
    ) -> None:
        super().__init__()
        starts = [inputs if shared + i == 0 else width for i in range(independent)]
        self.own = nn.ModuleList(_gated_layer(start, width, generator) for start in starts)
        count = shared + independent
        self.norms = nn.ModuleList(GhostNorm(2 * width, config.ghost, config.momentum) for _ in range(count))

    def forward(self, x_BF: Tensor, shared: nn.ModuleList) -> Tensor:
        """(B, width)."""
        for i, (layer, norm) in enumerate(zip([*shared, *self.own], self.norms, strict=True)):
            gated = F.glu(norm(layer(x_BF)), dim=1)
            x_BF = gated if i == 0 else (x_BF + gated) * math.sqrt(0.5)
        return x_BF


class AttentiveTransformer(nn.Module):
    """Which features the next step looks at."""

    def __init__(self, features: int, config: TabNetConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.layer = plain_layer(config.attention, features, generator)
        self.norm = GhostNorm(features, config.ghost, config.momentum)

    def forward(self, prior_BF: Tensor, attention_BA: Tensor) -> Tensor:
        """A mask (B, F) whose rows add up to 1."""
        return sparsemax(prior_BF * self.norm(self.layer(attention_BA)))


class TabNetEncoder(nn.Module):
    """From normalised features to one decision per step, without the batch normalisation that comes first."""

    def __init__(self, features: int, config: TabNetConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.config, width = config, config.latent + config.attention
        starts = [features, *[width] * config.shared][: config.shared]
        self.shared = nn.ModuleList(_gated_layer(start, width, generator) for start in starts)
        arguments = features, width, config.shared, config.independent, config, generator
        self.first = FeatureTransformer(*arguments)
        self.transformers = nn.ModuleList(FeatureTransformer(*arguments) for _ in range(config.steps))
        self.attention = nn.ModuleList(AttentiveTransformer(features, config, generator) for _ in range(config.steps))

    def forward(self, x_BF: Tensor, prior_BF: Tensor | None = None) -> tuple[list[Tensor], Tensor]:
        """Decisions (B, D) of all steps, and the mean entropy of the masks (the sparsity regularisation).

        ``prior_BF`` says which features may be looked at: 1, or 0; None for all.
        """
        prior_BF = torch.ones_like(x_BF) if prior_BF is None else prior_BF
        attention_BA = self.first(x_BF, self.shared)[:, self.config.latent :]
        decisions, entropy = [], x_BF.new_zeros(())
        for transformer, attend in zip(self.transformers, self.attention, strict=True):
            mask_BF = attend(prior_BF, attention_BA)
            entropy = entropy - (mask_BF * (mask_BF + EPSILON).log()).sum(dim=1).mean()
            prior_BF = prior_BF * (self.config.gamma - mask_BF)
            out = transformer(mask_BF * x_BF, self.shared)
            decisions.append(out[:, : self.config.latent].relu())
            attention_BA = out[:, self.config.latent :]
        return decisions, entropy / self.config.steps


class TabNetDecoder(nn.Module):
    """From decisions back towards features, without the layer that comes last."""

    def __init__(self, config: TabNetConfig, generator: torch.Generator) -> None:
        super().__init__()
        width, shared = config.latent, config.decoder_shared
        self.shared = nn.ModuleList(_gated_layer(width, width, generator) for _ in range(shared))
        arguments = width, width, shared, config.decoder_independent, config, generator
        self.transformers = nn.ModuleList(FeatureTransformer(*arguments) for _ in range(config.steps))

    def forward(self, decisions: Sequence[Tensor]) -> Tensor:
        """The sum (B, D) of what all steps give."""
        parts = [step(x_BD, self.shared) for step, x_BD in zip(self.transformers, decisions, strict=True)]
        return torch.stack(parts).sum(dim=0)


def latent(decisions: Sequence[Tensor]) -> Tensor:
    """The latent vectors (B, D): all steps' decisions, added up."""
    return torch.stack(list(decisions)).sum(dim=0)


def obfuscate(x_BF: Tensor, share: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Features (B, F) of which this share is 0, by lot, each by itself; and the mask (B, F), 1 where that is so."""
    mask_BF = (torch.rand(x_BF.shape, generator=generator, device=x_BF.device) < share).to(x_BF.dtype)
    return x_BF * (1 - mask_BF), mask_BF


def reconstruction_loss(made_BF: Tensor, x_BF: Tensor, mask_BF: Tensor) -> Tensor:
    """Squared error of what was masked, over each feature's variance in the batch: mean over rows of their means.

    A feature that is constant in the batch is divided by the size of its value instead, or by 1 if that is 0. (The
    usual implementation divides by the value: where that is negative, errors would be rewarded.)
    """
    mean_F, variance_F = x_BF.mean(dim=0).abs(), x_BF.var(dim=0)
    scale_F = torch.where(variance_F > 0, variance_F, torch.where(mean_F > 0, mean_F, 1.0))
    errors_B = ((made_BF - x_BF) * mask_BF).square() @ (1 / scale_F)
    return (errors_B / (mask_BF.sum(dim=1) + 1e-9)).mean()
