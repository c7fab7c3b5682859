"""Diffusion over latents as SiloFuse, section IV-B, and Ho et al. (2020) write it: plain loops in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def kept_shares(betas: Sequence[float]) -> list[float]:
    """alpha_bar_t, the product of 1 - beta up to t."""
    products, product = [], 1.0
    for beta in betas:
        product *= 1 - beta
        products.append(product)
    return products


def noised(betas: Sequence[float], z: Floats, t: int, noise: Floats) -> Floats:
    """Eq. (1): latents (L,) after step t, which counts from 0."""
    kept = kept_shares(betas)[t]
    return np.asarray(math.sqrt(kept) * z + math.sqrt(1 - kept) * noise)


def loss(
    betas: Sequence[float], guess: Callable[[Floats, int], Floats], z: Floats, t: Sequence[int], noise: Floats, of: str
) -> float:
    """Eq. (2) for ``of`` "noise" and eq. (5) for "latent": over latents z (B, L), each at its own step."""
    wrong = [
        (guess(noised(betas, row, step, e), step) - (e if of == "noise" else row)) ** 2
        for row, step, e in zip(z, t, noise, strict=True)
    ]
    return float(np.mean(wrong))


def ancestral(
    betas: Sequence[float], clean: Callable[[Floats, int], Floats], x: Floats, fresh: Callable[[], Floats]
) -> Floats:
    """From noise x (B, L) to latents, a step at a time: q(x_{t-1} | x_t, z) of Ho et al., eqs. (6) and (7)."""
    kept = kept_shares(betas)
    for t in reversed(range(len(betas))):
        before, z = kept[t - 1] if t else 1.0, clean(x, t)
        mean = (
            math.sqrt(before) * betas[t] / (1 - kept[t]) * z
            + math.sqrt(1 - betas[t]) * (1 - before) / (1 - kept[t]) * x
        )
        deviation = math.sqrt((1 - before) / (1 - kept[t]) * betas[t])
        x = mean + deviation * fresh() if t else mean
    return x
