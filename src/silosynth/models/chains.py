"""Latents under a condition that only silos can judge: Markov chains in the noise that a flow starts from.

A flow makes one vector of latents of each vector of normal noise. So latents under a condition come from normal noise
that is kept where the condition holds of what it leads to. Some is found by drawing. Where that is too little, a chain
goes on from copies of each: a step proposes noise nearby, of a law that leaves normal noise normal (preconditioned
Crank-Nicolson: Neal 1999; Cotter et al. 2013), and takes it by how probable the condition is there, over what it was
(Metropolis et al. 1953). A chain that begins with noise that was found has the law of such noise at the beginning, and
so after every step: nothing has to be forgotten. Steps are there to lead copies away from each other. Few
long chains whose places on the way count lead farther, for the same work, than many short ones whose ends do.

Shapes: G latents, L numbers of each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from silosynth.core.streams import Streams

_TAKEN = 0.5  # share of steps to be taken, for which their size is changed
_FIRST = 0.5  # size of the first step: 1 forgets where it began


@dataclass(frozen=True)
class Led:
    """Noise, the latents (both (G, L)) that it leads to, and how probable (G,) the condition is of these."""

    noise_GL: Tensor
    z_GL: Tensor
    chance_G: Tensor

    def __len__(self) -> int:
        return len(self.z_GL)

    def at(self, place: Tensor) -> Led:
        """Those at these places, or where a mask is true."""
        return Led(self.noise_GL[place], self.z_GL[place], self.chance_G[place])

    def and_then(self, others: Led) -> Led:
        """These, and others after them."""
        pairs = (self.noise_GL, others.noise_GL), (self.z_GL, others.z_GL), (self.chance_G, others.chance_G)
        return Led(*map(torch.cat, pairs))

    def kept(self, streams: Streams) -> Led:
        """Those that fulfil the condition, each with its probability."""
        return self.at(torch.rand(len(self), generator=streams.child("kept").torch()) < self.chance_G)


class Chains:
    """Chains that begin with what was found.

    Attributes:
        now: where they are.
        passed: places that they have passed by.
    """

    def __init__(self, found: Led, count: int) -> None:
        self.now, self._size = found.at(torch.arange(count) % len(found)), _FIRST
        self.passed = found.at(torch.arange(0))

    def pass_by(self, count: int) -> None:
        """Note where chains are, one after the other and round again, until there are so many places."""
        places = torch.arange(len(self.passed), count) % len(self.now)
        self.passed = self.passed.and_then(self.now.at(places))

    def proposed(self, streams: Streams) -> Tensor:
        """Noise (G, L) nearby."""
        draw = streams.child("proposed").torch()
        size_G1 = (self._size * (0.25 + torch.rand(len(self.now), 1, generator=draw))).clamp(max=1.0)
        fresh_GL = torch.randn(self.now.noise_GL.shape, generator=draw)
        return (1 - size_G1.square()).sqrt() * self.now.noise_GL + size_G1 * fresh_GL

    def step(self, there: Led, streams: Streams) -> None:
        """Go where the condition is as probable as here, or else with a probability; then change the steps' size."""
        lot_G = torch.rand(len(there), generator=streams.child("taken").torch())
        taken_G = lot_G * self.now.chance_G < there.chance_G
        place = torch.arange(len(there)) + torch.where(taken_G, len(there), 0)
        self.now = self.now.and_then(there).at(place)
        self._size = min(1.0, self._size * math.exp(float(taken_G.float().mean()) - _TAKEN))
