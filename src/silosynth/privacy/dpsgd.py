"""Steps of DP-SGD (Abadi et al. 2016): sums of clipped per-example gradients over Poisson-sampled rows, with noise.

Tensors only: nothing here knows a party, a message or a budget. One step, over parameters in one place or in several:

1. every row is sampled by itself, with probability ``rate``                             `poisson_mask`
2. each sampled row's own gradient                                                       `per_example`
3. it is clipped to norm C_b in each block b of parameters, Σ C_b² = C², and summed      `block_clips`, `clipped_sum`
4. noise of standard deviation σC on every block's sum, then division by the **expected** number of sampled rows:
   ``rate`` times the (noised) number of all. The number that were sampled is a secret    `noised`

A row more or less changes the sums of all blocks together by at most C, so that σ is the noise multiplier of one
Poisson-sampled Gaussian, which `silosynth.privacy.events.gaussian_steps` charges, however many blocks there are.

What this rests on: sampling and noise are secret. They come from a stream cipher with a key of 256 bits
(`Streams.noise`), and not from PyTorch's generators, of which the CPU's keeps 32 bits of a seed: all its streams can be
tried. Where a simulation is given a seed they follow from it, and protect from nobody who knows it.

Floating point: adding noise to a floating-point number tells of the number by the last bits of the sum (Mironov 2012).
So sums and noise are both rounded to a grid, 2³⁴ times as fine as the noise, and added as whole numbers: the result is
a function of (rounded sum + Gaussian noise), which is what accounting speaks of. Norms and sums are computed in 64
bits, whose rounding the margin `_BELOW` covers, so that a row moves a sum by no more than the clip (Casacuberta et al.
2022). What stays open: a row's own gradient, in 32 bits, may differ in its last bits with the rows computed beside it;
and how long a step takes is not hidden.

Shapes: N rows, B sampled ones, P parameters of a block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from silosynth.core.errors import ConfigError
from silosynth.core.streams import Keystream

Parameters = Mapping[str, Tensor]
_BELOW = 1 - 1e-6  # norm of a clipped gradient, in clips: rounding errors must not lift it above 1
_FINER = 34  # bits: how much finer the grid is than the noise on it


def poisson_mask(n: int, rate: float, rng: Keystream) -> Tensor:
    """Which of n rows take part (n,) bool, on the CPU: each with probability ``rate``, by itself. There may be none."""
    return torch.from_numpy(rng.uniforms(n) < rate)


def per_example(loss: Callable[..., Tensor], parameters: Parameters, *per_row: Tensor) -> dict[str, Tensor]:
    """Each example's own gradient, by name: (B, *shape of the parameter).

    Args:
        loss: the scalar loss of one example, ``loss(parameters, *row)``, as a function of nothing else: no batch
            statistics, and no random numbers that are not passed along, one per row.
        parameters: by name.
        per_row: tensors (B, …), of which the loss gets one row each.
    """
    held = {name: parameter.detach() for name, parameter in parameters.items()}
    if not len(per_row[0]):
        return {name: parameter.new_zeros(0, *parameter.shape) for name, parameter in held.items()}
    return vmap(grad(loss), in_dims=(None, *(0 for _ in per_row)))(held, *per_row)  # type: ignore[no-any-return]


def clipped_sum(gradients: Parameters, clip: float) -> dict[str, Tensor]:
    """Sums over examples of gradients (B, …) of one block, each example's clipped to norm ``clip`` over all tensors.

    An example whose gradient is not finite counts as zero: it must not spoil the sum. Sums are float64.
    """
    rows = {name: g.flatten(1) if g.dim() > 1 else g[:, None] for name, g in gradients.items()}
    norm_B = torch.stack([_squared_norms(g) for g in rows.values()]).sum(0).sqrt()
    weight_B = torch.where(norm_B > _BELOW * clip, _BELOW * clip / norm_B, 1.0)
    if not (finite := norm_B.isfinite()).all():
        rows, weight_B = {name: g[finite] for name, g in rows.items()}, weight_B[finite]
    return {name: _weighted_sum(g, weight_B).reshape(gradients[name].shape[1:]) for name, g in rows.items()}


def _squared_norms(g_BP: Tensor) -> Tensor:
    """Squares of norms, float64: those of short parts are right to 1e-7 in 32 bits, which of long ones they are not."""
    return torch.stack([torch.linalg.vector_norm(part, dim=1).double().square() for part in g_BP.split(4096, 1)]).sum(0)


def _weighted_sum(g_BP: Tensor, weight_B: Tensor) -> Tensor:
    """The sum (P,) of weighted rows, float64; a few rows at a time, as a copy of all in 64 bits would take longer."""
    total = g_BP.new_zeros(g_BP.shape[1], dtype=torch.float64)
    for part, weight in zip(g_BP.split(16), weight_B.split(16), strict=True):
        total += weight @ part.double()
    return total


def clipped_gradients(
    loss: Callable[..., Tensor], parameters: Parameters, clip: float, *per_row: Tensor, most: int = 2**24
) -> dict[str, Tensor]:
    """`clipped_sum` of `per_example`, in chunks whose gradients have at most ``most`` numbers."""
    chunk = max(1, most // sum(parameter.numel() for parameter in parameters.values()))
    total = {name: torch.zeros_like(each, dtype=torch.float64) for name, each in parameters.items()}
    for rows in zip(*(x.split(chunk) for x in per_row), strict=True):
        part = clipped_sum(per_example(loss, parameters, *rows), clip)
        total = {name: each + part[name] for name, each in total.items()}
    return total


def noised(sums: Parameters, deviation: float, rng: Keystream) -> dict[str, Tensor]:
    """Sums with Gaussian noise of this standard deviation on every number: multiples of a fine grid."""
    if not deviation:
        return dict(sums)
    grid = 2.0 ** (math.frexp(deviation)[1] - 1 - _FINER)
    return {name: _noised_on_grid(total, deviation, grid, rng) for name, total in sums.items()}


def clipped_losses(losses: nn.Module, clip: float, *per_row: Tensor) -> dict[str, Tensor]:
    """`clipped_gradients` of a module that gives the losses (B,) of rows, each a function of that row alone."""

    def loss(parameters: dict[str, Tensor], *row: Tensor) -> Tensor:
        out: Tensor = functional_call(losses, parameters, tuple(part[None] for part in row))
        return out[0]

    return clipped_gradients(loss, dict(losses.named_parameters()), clip, *per_row)


def set_private_gradient(
    network: nn.Module, loss: Callable[..., Tensor], per_row: Sequence[Tensor], clip: float, deviation: float,
    expected: float, rng: Keystream,
) -> None:  # fmt: skip
    """Set a network's gradient by steps 2 to 4: the noised sum of clipped ones over the expected number of rows.

    Args:
        network: whose parameters ``loss`` takes, by name.
        loss, per_row: see `per_example`.
        clip: of this block of parameters.
        deviation: standard deviation of the noise: sigma times the clip of all blocks together.
        expected: number of rows that a step samples on average.
        rng: the noise; secret.
    """
    parameters = dict(network.named_parameters())
    sums = clipped_gradients(loss, parameters, clip, *per_row)
    for name, total in noised(sums, deviation, rng).items():
        parameters[name].grad = (total / expected).to(parameters[name].dtype)


def set_gradient(
    real: nn.Module, real_rows: Sequence[Tensor], made: nn.Module, made_rows: Sequence[Tensor], clip: float,
    deviation: float, expected: float, rng: Keystream,
) -> None:  # fmt: skip
    """Set a critic's gradient: its real rows' by steps 2 to 4, and the mean of made rows', cut alike and not noised.

    Made rows may depend on real ones through noised weights alone. They are cut too, or the critic would learn how much
    of real rows' gradients is cut, and nothing else (docs/decisions/0022).

    Args:
        real, made: modules of the same parameters that give losses (B,) of rows, each a function of that row alone.
        real_rows, made_rows: what they are given.
        clip: of this block; ``deviation``: σ times that of all blocks; ``expected``: real rows of a batch.
        rng: the noise; secret.
    """
    noisy = noised(clipped_losses(real, clip, *real_rows), deviation, rng)
    still = clipped_losses(made, clip, *made_rows)
    for name, parameter in real.named_parameters():
        parameter.grad = (noisy[name] / expected + still[name] / len(made_rows[0])).to(parameter.dtype)


def block_clips(total: float, blocks: int | Sequence[float]) -> list[float]:
    """Clips of blocks, whose squares sum to total²: of ``blocks`` equal blocks, or in proportion to given shares.

    Raises:
        ConfigError: there is no block, or a share is not above zero.
    """
    shares = [1.0] * blocks if isinstance(blocks, int) else list(blocks)
    if not shares or min(shares) <= 0:
        raise ConfigError("Every block of parameters gets a share of the clip that is above zero", shares)
    length = math.sqrt(math.fsum(share**2 for share in shares))
    return [total * share / length for share in shares]


def _noised_on_grid(total: Tensor, deviation: float, grid: float, rng: Keystream) -> Tensor:
    """``total`` with noise, in its dtype. Both become multiples of ``grid``, a power of two, and are added as such.

    Their sum is exact up to 2⁵³ multiples: as long as a sum has fewer rows than 2¹⁸ noise multipliers.
    """
    noise = torch.from_numpy(rng.normals(*total.shape)).to(total.device)
    multiples = (total.double() / grid).round() + (noise * (deviation / grid)).round()
    return (multiples * grid).to(total.dtype)
