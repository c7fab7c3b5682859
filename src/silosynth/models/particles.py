"""Latents under a condition that only silos can judge: a flow's particles, weighted and resampled on their way.

Sequential Monte Carlo (Doucet et al. 2001), "twisted" by a guess of what each particle will become (Wu et al. 2023).
The network is the one that was trained without any condition. Each step of a particle

1. takes noise on, to a noise-to-signal ratio 1.5 times as high (Karras et al. 2022), so that copies of a particle part;
   more of it in the direction in which the condition gets more probable, for which weights make up;
2. goes on along the flow, by Heun's method, to the next time;
3. is weighted by how probable the condition is, given the latents that it seems to lead to, over what that was before.

Where few particles have most of the weight, they are drawn again by it. Whatever the guesses are, the last weight is by
the latents themselves, so that with more particles their law tends to that of a model's latents given the condition: as
if latents that do not fulfil it were drawn and thrown away. Bad guesses cost particles, not truth.

Shapes: G particles, L latents.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from silosynth.core.streams import Streams
from silosynth.models.latent import LatentGenerator, last_time, start_noise, velocity

_CHURN = 1.5  # of the noise-to-signal ratio, before each step
_CHUNK = 4096
_ENOUGH = 0.6  # share of particles that count, below which they are drawn again
_LONGEST = 1.5  # push towards the condition, in deviations of that noise
_SHAKEN, _SHAKES = 0.7, 4  # noise over data that alike latents take on, and steps back
_LEAST = 0.02  # is added to guessed chances: none is so small that a wrong guess gives a particle all the weight


class Particles:
    """Latents on their way from noise, with weights.

    Args:
        generator: the flow.
        count: G.
        streams: the random numbers.

    Attributes:
        at: the number of the time that they have reached.
        noise: through which `latents` are seen, over data; 0 at the end.
    """

    def __init__(self, generator: LatentGenerator, count: int, streams: Streams) -> None:
        self._generator, self._draw = generator, streams.torch(generator.device)
        config = generator.config
        steps = max(2, config.sample_steps)
        self._times = torch.linspace(0.9995, last_time(config.left), steps + 1).tolist()
        self._x_GL = self._guess_GL = start_noise(count, generator.latents, self._draw)
        self.at = 0
        self._chance_G = torch.ones(count)  # by the last guess
        self._weight_G = torch.zeros(count)  # logarithms
        self._slope_GL = torch.zeros_like(self._x_GL)
        self.noise = 1.0

    @property
    def finished(self) -> bool:
        """Whether these are latents, with no noise left to remove."""
        return self.at == len(self._times) - 1

    @property
    def latents(self) -> Tensor:
        """Latents (G, L) with the noise that they still have, on the CPU."""
        return self._raw(self._x_GL / (1 - self._times[self.at]))

    @property
    def guess(self) -> Tensor:
        """The latents (G, L) that they seem to lead to, on the CPU."""
        return self._raw(self._guess_GL)

    def _raw(self, x_GL: Tensor) -> Tensor:
        return (x_GL * self._generator.scale + self._generator.mean).cpu()

    @torch.no_grad()
    def move(self) -> None:
        """Go on to the next time."""
        self.at += 1
        now, then = self._times[self.at - 1], self._times[self.at]
        if self.at > 1:
            now = self._churn(now)
        moved = [self._step(x, now, then) for x in self._x_GL.split(_CHUNK)]
        self._x_GL, self._guess_GL = (torch.cat(parts) for parts in zip(*moved, strict=True))
        ratio = then / (1 - then)
        self.noise = 0.0 if self.finished else ratio

    def weigh(self, chance_G: Tensor, slope_GL: Tensor) -> None:
        """Weight particles by how probable (G,) the condition is; draw them again where few count.

        ``slope_GL`` is the gradient of its logarithm in `guess`.
        """
        chance_G = chance_G if self.finished else (chance_G + _LEAST)
        self._weight_G = self._weight_G + chance_G.log() - self._chance_G.log()
        self._chance_G = chance_G
        self._slope_GL = slope_GL.to(self._x_GL.device) * self._generator.scale
        share_G = self._weight_G.softmax(0)
        if not self.finished and 1 / float(share_G.square().sum()) < _ENOUGH * len(share_G):
            self._keep(self._drawn(len(share_G)))

    def take(self, count: int) -> Tensor:
        """``count`` latents, drawn by weight, in random order; any, if none can fulfil the condition."""
        if not bool(self._weight_G.isfinite().any()):
            return self.latents[:count]
        picked = self._drawn(count)
        order = torch.randperm(count, generator=self._draw, device=self._draw.device).cpu()
        return self.latents[picked[order]]

    @torch.no_grad()
    def shaken(self, z_BL: Tensor, streams: Streams) -> Tensor:
        """Latents (B, L) taken back into noise and along the flow again: others of the same law, and not far away."""
        draw = streams.torch(self._generator.device)
        x_BL = ((z_BL.to(draw.device) - self._generator.mean) / self._generator.scale).float()
        x_BL = x_BL + _SHAKEN * torch.randn(x_BL.shape, generator=draw, device=draw.device)
        times = torch.linspace(last_time(_SHAKEN), self._times[-1], _SHAKES + 1).tolist()
        x_BL = x_BL * (1 - times[0])
        for now, then in pairwise(times):
            x_BL, _ = self._step(x_BL, now, then)
        return self._raw(x_BL / (1 - times[-1]))

    def _drawn(self, count: int) -> Tensor:
        """Numbers (count,) of particles, as many of each as expected, up to one (systematic resampling)."""
        total_G = self._weight_G.double().softmax(0).cumsum(0)
        offset = float(torch.rand(1, generator=self._draw, device=self._draw.device))
        points = (torch.arange(count, dtype=torch.float64) + offset) / count * float(total_G[-1])
        return torch.searchsorted(total_G, points).clamp(max=len(total_G) - 1)

    def _keep(self, picked_G: Tensor) -> None:
        self._x_GL, self._guess_GL = self._x_GL[picked_G], self._guess_GL[picked_G]
        self._slope_GL = self._slope_GL[picked_G]
        self._chance_G, self._weight_G = self._chance_G[picked_G], torch.zeros(len(picked_G))

    def _churn(self, now: float) -> float:
        """Take noise on, in the direction in which the condition seems more probable, with weights for that."""
        ratio = now / (1 - now)
        more = _CHURN * ratio
        added = math.sqrt(more**2 - ratio**2)
        shift_GL = added / (1 + ratio**2) * self._slope_GL
        length_G1 = shift_GL.norm(dim=1, keepdim=True).clamp_min(1e-9)
        shift_GL = shift_GL * (length_G1.clamp(max=_LONGEST) / length_G1)
        fresh_GL = torch.randn(self._x_GL.shape, generator=self._draw, device=self._x_GL.device)
        self._weight_G = self._weight_G - (shift_GL * (fresh_GL + shift_GL / 2)).sum(1).cpu()
        later = more / (1 + more)
        self._x_GL = (self._x_GL / (1 - now) + added * (fresh_GL + shift_GL)) * (1 - later)
        return later

    def _step(self, x_BL: Tensor, now: float, then: float) -> tuple[Tensor, Tensor]:
        """Particles at ``then``, and the latents that they seem to lead to, from those at ``now``."""
        generator = self._generator
        with generator.arithmetics():
            v = velocity(generator.network, x_BL, x_BL.new_full((len(x_BL),), now))
            ahead = velocity(generator.network, x_BL + (then - now) * v, x_BL.new_full((len(x_BL),), then))
        x_BL = x_BL + (then - now) * (v + ahead) / 2
        return x_BL, x_BL - then * ahead
