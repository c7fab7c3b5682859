"""Networks and losses of VFLGAN: generators, local critics in two parts, and what of a critic's loss is a row's own.

A generator is linear layers with leaky ReLU between, normalised by the batch from the second on. A local critic's first
part gives a row's features, its second part judges them. Without a second part (VFLGAN-base) it judges nothing.

Shapes: B rows, I numbers of an encoded row, W features.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from silosynth.models.encoded import RowShape
from silosynth.models.gan import SLOPE, Activation, CriticPart, norm_penalty, orthonormalise

Slopes = Literal["critic", "parts", "orthonormal"]
LEAST_SHARE = 1e-3  # of a level where a generator starts
MOST_COVARIANCES = 2048  # numbers of a row, at most, that a Fréchet distance is taken of


class Generator(nn.Module):
    """Hidden layers, of which all but a ``plain`` first one are normalised; then a linear layer if outputs are wanted.

    Args:
        epsilon: what batch normalisation adds to variances; 0 for no normalisation.
    """

    def __init__(self, inputs: int, hidden: Sequence[int], outputs: int | None, epsilon: float, plain: bool) -> None:
        super().__init__()
        widths = [inputs, *hidden]
        self.linears = nn.ModuleList(nn.Linear(wide, narrow) for wide, narrow in pairwise(widths))
        self.norms = nn.ModuleList(
            nn.BatchNorm1d(width, eps=epsilon) if epsilon > 0 and not (plain and i == 0) else nn.Identity()
            for i, width in enumerate(hidden)
        )
        self.last = nn.Identity() if outputs is None else nn.Linear(widths[-1], outputs)

    def forward(self, z_BI: Tensor) -> Tensor:
        """Outputs (B, O)."""
        out: Tensor = self.last(self.hidden(z_BI))
        return out

    def hidden(self, z_BI: Tensor) -> Tensor:
        """What the last layer gets."""
        for linear, norm in zip(self.linears, self.norms, strict=True):
            z_BI = F.leaky_relu(norm(linear(z_BI)), SLOPE)
        return z_BI

    @torch.no_grad()
    def start_at(self, z_BI: Tensor, shares_K: Tensor) -> None:
        """Change the last layer such that outputs for ``z_BI`` are logits around these shares, and then normal scores.

        Scores get the mean 0 and the variance 1, and are uncorrelated, as far as there are hidden units enough.
        """
        last, levels = self.last, len(shares_K)
        assert isinstance(last, nn.Linear)
        last.bias[:levels] = shares_K.clamp(min=LEAST_SHARE).log()
        if last.out_features == levels:
            return
        out_BS = last(self.hidden(z_BI))[:, levels:]
        values, rows = torch.linalg.eigh(torch.cov(out_BS.T).reshape(out_BS.shape[1], -1).double())
        values = values.clamp(min=LEAST_SHARE * float(values.max()))
        whiten_SS = ((rows / values.sqrt()) @ rows.T).to(out_BS)
        last.bias[levels:] = whiten_SS @ (last.bias[levels:] - out_BS.mean(0))
        last.weight[levels:] = whiten_SS @ last.weight[levels:]


class LocalCritic(nn.Module):
    """D_i: ``first`` gives features f_i, ``second`` (None: VFLGAN-base) judges them."""

    def __init__(self, inputs: int, first: Sequence[int], second: Sequence[int] | None) -> None:
        super().__init__()
        self.first = CriticPart(inputs, first, None, 0.0)
        self.second = None if second is None else CriticPart(self.first.outputs, second, 1, 0.0)

    def features(self, x_BI: Tensor) -> Tensor:
        """f_i (B, W) of rows (equation (11))."""
        return self.first(x_BI, ())  # type: ignore[no-any-return]

    def judge(self, f_BW: Tensor) -> Tensor:
        """D_i (B,) of rows with these features; 0 without a second part."""
        judged: Tensor = f_BW.new_zeros(len(f_BW)) if self.second is None else self.second(f_BW, ()).squeeze(1)
        return judged

    def penalty(self, x_BI: Tensor, slopes: Slopes) -> Tensor:
        """(|gradient| - 1)² (B,) at rows, as a function of the weights.

        Of D_i in the row ("critic", equation (8)); or of the sum of features in the row, plus of the second part in the
        features ("parts", the public code). Without a second part there is only the first of the latter two. With
        "orthonormal" the first part cannot be steep (`keep_distances`): only the second one's gradient is left.
        """
        with torch.no_grad():
            f_BW = self.features(x_BI)
        gradient_BW = torch.ones_like(f_BW) if self.second is None else self.second.input_gradient(f_BW, ())
        if slopes == "orthonormal":
            return f_BW.new_zeros(len(f_BW)) if self.second is None else norm_penalty(gradient_BW)
        if slopes == "critic" or self.second is None:
            return norm_penalty(self._through_first(x_BI, gradient_BW))
        return norm_penalty(self._through_first(x_BI, torch.ones_like(f_BW))) + norm_penalty(gradient_BW)

    def keep_distances(self, exactly: bool = False) -> None:
        """Bring the first part's matrices to orthonormal ones (``exactly``), or back to them after a step of training.

        Then no gradient in rows is longer than the one in features that it comes from: a penalty on those in features,
        the coordinator's among them, bounds those in rows, which nobody has side by side.
        """
        orthonormalise(self.first, exactly)

    def _through_first(self, x_BI: Tensor, gradient_BW: Tensor) -> Tensor:
        """Gradients in features (B, W) as those in rows (B, I): `CriticPart.input_gradient` from the features down."""
        gates = []
        with torch.no_grad():
            for linear in self.first.linears:
                h_BW = linear(x_BI)
                gates.append(torch.where(h_BW > 0, 1.0, SLOPE))
                x_BI = h_BW * gates[-1]
        for linear, gate in zip(reversed(self.first.linears), reversed(gates), strict=True):
            gradient_BW = (gradient_BW * gate) @ linear.weight  # type: ignore[operator]
        return gradient_BW


class SampledRows(nn.Module):
    """From a generator's outputs to rows: scores as they are, levels by the Gumbel-softmax (VFLGAN, section 5.1.1)."""

    def __init__(self, shape: RowShape, tau: float, hard: bool) -> None:
        super().__init__()
        self.shape, self.tau, self.hard = shape, tau, hard
        self.activation = Activation(RowShape(shape.widths))

    def forward(self, out_BI: Tensor, draw: torch.Generator) -> Tensor:
        """Differentiable rows (B, I); with ``hard`` one-hot, with the gradient of the softmax."""
        levels = self.shape.levels
        soft: Tensor = self.activation(out_BI[:, :levels], self.tau, draw)
        if self.hard and levels:
            chosen, _ = self.activation.draw(soft.detach(), None)
            soft = self.activation.shape.vectors(chosen, soft[:, :0].detach()) + soft - soft.detach()
        return torch.cat([soft, out_BI[:, levels:]], dim=1)

    def draw(self, out_BI: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """Levels (B, C), drawn from their softmax, and scores (B, S)."""
        levels, _ = self.activation.draw(out_BI[:, : self.shape.levels], draw)
        return levels, out_BI[:, self.shape.levels :]


class RealLoss(nn.Module):
    """What one real row adds to the loss of a silo's critic, as a module, so that its gradient can be taken per row."""

    def __init__(self, critic: LocalCritic, penalty: float, slopes: Slopes) -> None:
        super().__init__()
        self.critic, self.weight, self.slopes = critic, penalty, slopes

    def forward(self, x_BI: Tensor, between_BI: Tensor, gradient_BW: Tensor, f_BW: Tensor | None = None) -> Tensor:
        """-D_i(x) + λ penalty + <gradient, f_i> (B,), of rows, points between, and gradients of D_s."""
        f_BW = self.critic.features(x_BI) if f_BW is None else f_BW
        penalty = self.critic.penalty(between_BI, self.slopes)
        return -self.critic.judge(f_BW) + self.weight * penalty + (gradient_BW * f_BW).sum(1)


class MadeLoss(nn.Module):
    """What one made row adds."""

    def __init__(self, critic: LocalCritic) -> None:
        super().__init__()
        self.critic = critic

    def forward(self, x_BI: Tensor, gradient_BW: Tensor, f_BW: Tensor | None = None) -> Tensor:
        """D_i(x) + <gradient, f_i> (B,)."""
        f_BW = self.critic.features(x_BI) if f_BW is None else f_BW
        return self.critic.judge(f_BW) + (gradient_BW * f_BW).sum(1)


class SharedRealLoss(nn.Module):
    """What the features of one real row, of all silos, add to the loss of D_s."""

    def __init__(self, critic: CriticPart, penalty: float) -> None:
        super().__init__()
        self.critic, self.weight = critic, penalty

    def forward(self, f_BW: Tensor, between_BW: Tensor) -> Tensor:
        """-D_s(f) + λ penalty (B,)."""
        out: Tensor = -self.critic(f_BW, ()).squeeze(1) + self.weight * norm_penalty(
            self.critic.input_gradient(between_BW, ())
        )
        return out


class SharedMadeLoss(nn.Module):
    """What those of one made row add."""

    def __init__(self, critic: CriticPart) -> None:
        super().__init__()
        self.critic = critic

    def forward(self, f_BW: Tensor) -> Tensor:
        """D_s(f) (B,)."""
        out: Tensor = self.critic(f_BW, ()).squeeze(1)
        return out


def frechet_distance(real_NI: Tensor, fake_NI: Tensor) -> float:
    """Between normal distributions with the means and covariances of both (VFLGAN, equation (23))."""
    tables = real_NI.double(), fake_NI.double()
    moments = [(x_NI.mean(0), torch.cov(x_NI.T).reshape(x_NI.shape[1], -1)) for x_NI in tables]
    return gaussian_frechet(*moments[0], *moments[1])


def gaussian_frechet(mean_I: Tensor, cov_II: Tensor, other_I: Tensor, other_II: Tensor) -> float:
    """Squared Wasserstein-2 distance of two normal distributions."""
    cross = torch.linalg.svdvals(_root(cov_II) @ _root(other_II)).sum()  # the trace of (V V~)^(1/2)
    distance = (mean_I - other_I).square().sum() + cov_II.trace() + other_II.trace() - 2 * cross
    return float(distance.clamp(min=0))


def _root(cov_II: Tensor) -> Tensor:
    """The positive semi-definite root of a symmetric matrix; what rounding left below zero counts as zero."""
    values, vectors = torch.linalg.eigh(cov_II)
    root: Tensor = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    return root
