"""Rectified flow: a network learns the velocity of the straight path from data to noise.

x_t = (1 - t) x_0 + t e, velocity e - x_0 (Liu et al. 2023; Lipman et al. 2023). Times are logit-normal and stratified
(Esser et al. 2024), so that a batch covers the path evenly. The network learns what is left over by the best linear
guess for data of unit variance (as in Karras et al. 2022). Shapes: B rows, L latents, T times, each of which holds for
B / T neighbouring rows: what networks compute of a time alone is computed once for these.

Training and sampling end where the path's noise is ``noise`` times its data: closer to the data there is nothing that
decoders who learnt to read through that noise would need.

What the network is to say at a point of the path is the mean velocity of all rows that may have led there. A training
row and its noise are one draw of it. The mean over some thousand rows, each by how likely it led there, has the same
expectation and less variance: nearly none near the noise, where all rows are likely (`mean_velocity`).
"""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.quasirandom import SobolEngine

from silosynth.models.denoisers import Network

_START = 0.9995  # the first time at sampling: at 1 the log noise-to-signal ratio is infinite


def last_time(noise: float) -> float:
    """The time at which noise is ``noise`` times data: t / (1 - t) = noise."""
    return noise / (1 + noise)


def draw_times(n: int, mean: float, sd: float, noise: float, generator: torch.Generator) -> Tensor:
    """Stratified logit-normal times (n,), cut off below `last_time`."""
    device = generator.device
    cell = torch.randperm(n, generator=generator, device=device)
    return times((cell + torch.rand(n, generator=generator, device=device)) / n, mean, sd, noise)


def times(rank: Tensor, mean: float, sd: float, noise: float) -> Tensor:
    """Logit-normal times (n,), cut off below `last_time`, of ranks (n,) in [0, 1)."""
    end = torch.tensor(last_time(noise), dtype=torch.float64).logit()
    least = float(torch.special.ndtr((end - mean) / sd))
    return torch.sigmoid(mean + sd * torch.special.ndtri((least + (1 - least) * rank).clamp(1e-5, 1 - 1e-5)))


def of_rows(t_T: Tensor, rows: int) -> Tensor:
    """The time (B, 1) of each row."""
    return t_T.repeat_interleave(rows // len(t_T))[:, None]


def velocity(network: Network, x_BL: Tensor, t_T: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Predicted velocity (B, L) at x_t: the best linear guess for unit-variance data, corrected by the network."""
    t = of_rows(t_T, len(x_BL))
    spread = (t.square() + (1 - t).square()).rsqrt()
    return (2 * t - 1) * spread.square() * x_BL + spread * network(x_BL * spread, t_T, generator)


def flow_loss(
    network: Network, x_BL: Tensor, t_T: Tensor, noise_BL: Tensor, generator: torch.Generator | None,
    among_RL: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Mean squared error of the predicted velocity against each row's own, or the mean one of ``among_RL``."""
    t = of_rows(t_T, len(x_BL))
    there_BL = (1 - t) * x_BL + t * noise_BL
    target_BL = noise_BL - x_BL if among_RL is None else mean_velocity(there_BL, t_T, among_RL)
    return (velocity(network, there_BL, t_T, generator) - target_BL).square().mean()


def mean_velocity(x_BL: Tensor, t_T: Tensor, rows_RL: Tensor) -> Tensor:
    """The mean velocity (B, L) of the rows that may have led to x_t, if each of ``rows_RL`` was as likely to be chosen.

    Where the row that did lead there is one of them, and the others are drawn like it, this is the expectation of its
    own velocity, given x_t and the rows. So losses against either have the same gradient on average (Rao, Blackwell).
    Xu, Tong, Jaakkola (2023) do so for diffusions.
    """
    t = of_rows(t_T, len(x_BL))
    ratio = (1 - t) / t
    ask_BK = torch.cat([ratio / t * x_BL, ratio.square()], dim=1)
    row_RK = torch.cat([rows_RL, -0.5 * rows_RL.square().sum(dim=1, keepdim=True)], dim=1)
    ask, row = ask_BK[None, None], row_RK[None, None]  # their product is the log weight; four dimensions are fast
    of = x_BL.device.type
    with (
        torch.autocast(of, enabled=False) if torch.is_autocast_enabled(of) else nullcontext()
    ):  # weights need precision
        mean_BK = F.scaled_dot_product_attention(ask, row, row, scale=1.0)[0, 0]
    return (x_BL - mean_BK[:, :-1]) / t


def start_noise(n: int, latents: int, generator: torch.Generator) -> Tensor:
    """Standard normal starting points (n, L) from a scrambled Sobol sequence: they cover the space evenly.

    A generated table then has less sampling error than one of independent draws.
    """
    if latents > SobolEngine.MAXDIM:
        return torch.randn(n, latents, generator=generator, device=generator.device)
    seed = int(torch.randint(2**31 - 1, (1,), generator=generator, device=generator.device))
    points = SobolEngine(latents, scramble=True, seed=seed).draw(n, dtype=torch.float64)
    order = torch.randperm(n, generator=generator, device=generator.device)
    noise: Tensor = torch.special.ndtri(points.clamp(1e-7, 1 - 1e-7)).float().to(generator.device)
    return noise[order]


def sample_flow(network: Network, noise_BL: Tensor, steps: int, noise: float) -> Tensor:
    """Carry noise (B, L) to data plus ``noise`` in ``steps`` steps, with one velocity for each and one at the start.

    A predictor and corrector of third order (Adams, Bashforth and Moulton): a step is first taken along the polynomial
    through the last three velocities, and again along that through the last two and the one found there, which serves
    the next step as well. The first steps are shorter: no velocities are known yet. Where ``noise`` is 0 the last step
    is not corrected, as there is no velocity at time 0.
    """
    x, known, found = noise_BL, [_START], [_velocity_at(network, noise_BL, _START)]
    for now, then in pairwise(_sampling_times(steps, noise)):
        ahead = x + _along(known, found, now, then)
        if then > 0:
            known, found = [*known[-2:], then], [*found[-2:], _velocity_at(network, ahead, then)]
            ahead = x + _along(known, found, now, then)
        x = ahead
    return x / (1 - last_time(noise))


def _sampling_times(steps: int, noise: float) -> list[float]:
    share = torch.linspace(0, 1, steps + 1, dtype=torch.float64) ** 1.2
    return (_START + (last_time(noise) - _START) * share).tolist()


def _velocity_at(network: Network, x_BL: Tensor, time: float) -> Tensor:
    return velocity(network, x_BL, x_BL.new_full((1,), time))


def _along(known: list[float], found: list[Tensor], now: float, then: float) -> Tensor:
    """The integral (B, L) from ``now`` to ``then`` of the polynomial through the ``found`` at the ``known`` times."""
    power = torch.arange(len(known), dtype=torch.float64)
    apart = torch.tensor(known, dtype=torch.float64) - now
    shares = torch.linalg.solve(apart ** power[:, None], (then - now) ** (power + 1) / (power + 1)).tolist()
    total: Tensor = sum((share * v for share, v in zip(shares, found, strict=True)), torch.zeros_like(found[0]))
    return total
