"""SiloFuse's training by DP-SGD: of an autoencoder, and of the model of latents; and what is made of noised latents.

Shapes: N rows, B sampled ones, S slots, L latents.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from silosynth.algorithms.silofuse.coder import Coder
from silosynth.core.streams import Streams, integers, normals, uniforms
from silosynth.models.latent import LatentGenerator, flow_loss, times
from silosynth.models.training import Learner
from silosynth.privacy.dpsgd import clipped_gradients, noised, poisson_mask
from silosynth.privacy.events import Event


def without_noise(z_SL: Tensor, deviation: float) -> Tensor:
    """Latents (S, L) shrunk such that their covariance is that of noised ones, less the noise's."""
    mean = z_SL.double().mean(dim=0)
    values, vectors = torch.linalg.eigh(torch.atleast_2d((z_SL.double() - mean).T.cov(correction=0)))
    keep = (1 - deviation**2 / values.clamp_min(1e-12)).clamp(1e-4, 1).sqrt()
    shrunk: Tensor = mean + (z_SL.double() - mean) @ (vectors * keep) @ vectors.T
    return shrunk.float()


def train_coder(
    coder: Coder, part: int, parts: int, steps: Event, expected: float, clip: float, streams: Streams
) -> None:
    """One of ``parts`` equal parts of an autoencoder's steps; ``streams`` draw what is sampled, and the noise."""
    if not coder.network.shape.size:
        return
    rng, config, network = streams.noise(), coder.config, coder.network

    def loss(parameters: dict[str, Tensor], levels: Tensor, scores: Tensor, noise: Tensor) -> Tensor:
        rows = levels[None], scores[None], noise[None], config.sigma, config.weight
        return functional_call(network, parameters, rows)  # type: ignore[no-any-return]

    network.train()
    while coder.learner.done < config.steps * (part + 1) // parts:
        rows = poisson_mask(len(coder.levels), steps.rate, rng)
        noise = normals(rng, int(rows.sum()), coder.latents, device=coder.device)
        batch = coder.levels[rows], coder.scores[rows], noise
        descend(coder.learner, loss, batch, steps.noise, expected, clip, rng)
    if part == parts - 1:
        coder.learner.settle()
        network.eval()


def train_latent(
    generator: LatentGenerator, x_NL: Tensor, goal: int, steps: Event, expected: float, clip: float, streams: Streams
) -> None:
    """Steps of the model of latents up to ``goal``. Every row draws its own time: others' must not depend on it."""
    rng, config = streams.noise(), generator.config
    path = generator.gaussian

    def loss(parameters: dict[str, Tensor], x: Tensor, noise: Tensor, at: Tensor) -> Tensor:
        def network(*inputs: Tensor) -> Tensor:
            return functional_call(generator.network, parameters, inputs)  # type: ignore[no-any-return]

        if config.path == "flow":
            return flow_loss(network, x[None], at[None], noise[None], None)
        return path.loss(network, x[None], at[None], noise[None], None)

    while generator.learner.done < goal:
        x = x_NL[poisson_mask(len(x_NL), steps.rate, rng)]
        noise = normals(rng, *x.shape, device=x.device)
        if config.path == "flow":
            rank = uniforms(rng, len(x), device=x.device)
            at = times(rank, config.time_mean, config.time_sd, config.left)
        else:
            at = integers(rng, path.steps, len(x), x.device)
        descend(generator.learner, loss, (x, noise, at), steps.noise, expected, clip, rng)


def descend(
    learner: Learner, loss: Callable[..., Tensor], batch: tuple[Tensor, ...], noise: float, expected: float,
    clip: float, rng: np.random.Generator,
) -> None:  # fmt: skip
    """One step against the noised sum of clipped gradients, over the expected number of rows."""
    parameters = dict(learner.network.named_parameters())
    sums = clipped_gradients(loss, {name: p.detach() for name, p in parameters.items()}, clip, *batch)
    for name, total in noised(sums, noise * clip, rng).items():
        parameters[name].grad = total / expected
    learner.step()
