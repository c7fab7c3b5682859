"""A moving average of a network's weights over the steps of its training (Yazıcı et al. 2019).

A generator against a critic does not settle, it circles; what it has been on average is nearer to the aim.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class MovingAverage:
    """Of a network's weights and running statistics.

    Args:
        network: what is averaged; it trains on unaveraged.
        keep: how much of the average a step keeps, from 0 (no average is wanted) to below 1.
    """

    def __init__(self, network: nn.Module, keep: float) -> None:
        self.network, self.keep, self.steps = network, keep, 0
        self._averaged: dict[str, Tensor] = {}

    @property
    def weights(self) -> dict[str, Tensor]:
        """The average, or the network's own weights where there is none."""
        return self._averaged or dict(self.network.state_dict())

    @torch.no_grad()
    def take(self) -> None:
        """Take the weights as they are now into the average, if one is wanted."""
        if not self.keep:
            return
        self.steps += 1
        now = self.network.state_dict()
        if not self._averaged:
            self._averaged = {name: value.clone() for name, value in now.items()}
        share = max(1 - self.keep, 10 / (10 + self.steps))  # the first weights are soon forgotten
        for name, value in now.items():
            mean = self._averaged[name]
            mean.lerp_(value, share) if value.is_floating_point() else mean.copy_(value)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The network has the averaged weights while the block runs."""
        own = {name: value.clone() for name, value in self.network.state_dict().items()}
        self.network.load_state_dict(self.weights)
        try:
            yield
        finally:
            self.network.load_state_dict(own)

    def state(self) -> dict[str, Any]:
        """All that is needed to continue."""
        return {"averaged": self._averaged, "steps": self.steps}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Continue from what `state` returned; None: without an average, where training is over."""
        stored: Mapping[str, Any] = {"averaged": {}, "steps": 0} if state is None else state
        own, self.steps = self.network.state_dict(), stored["steps"]
        self._averaged = {name: value.clone().to(own[name].device) for name, value in stored["averaged"].items()}
