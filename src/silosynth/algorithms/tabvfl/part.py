"""A party's networks in training: an optimiser per phase, and weights that were kept because they did well."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from silosynth.algorithms.tabvfl.messages import TabVFLConfig
from silosynth.models.training import trainee


class Part:
    """Networks, Adam, and kept weights."""

    def __init__(self, networks: nn.ModuleDict, config: TabVFLConfig) -> None:
        self.networks, self.config = networks, config
        self.phase = ""
        self.learner = trainee(networks, config)
        self.kept: dict[int, dict[str, Tensor]] = {}

    def begin(self, phase: str) -> None:
        """A phase starts, if it is another one: weights stay, the optimiser and what was kept are new."""
        if phase != self.phase:
            self.phase, self.kept, self.learner = phase, {}, trainee(self.networks, self.config)

    def clear(self) -> None:
        """Forget gradients; what follows is training."""
        self.networks.train()
        self.learner.clear()

    def step(self) -> None:
        """One step of Adam."""
        self.learner.step()

    def keep(self, number: int, before: int) -> None:
        """Keep the weights as they are now, besides those of number ``before``."""
        now = {name: value.detach().clone() for name, value in self.networks.state_dict().items()}
        self.kept = {old: state for old, state in self.kept.items() if old == before} | {number: now}

    def settle(self, number: int) -> None:
        """Go back to the weights of this number; -1 leaves them as they are."""
        if number >= 0:
            self.networks.load_state_dict(self.kept[number])
        self.kept = {}

    def state(self, training: bool) -> dict[str, Any]:
        """All that is needed to continue; or the weights alone."""
        kept = {str(number): state for number, state in self.kept.items()} if training else {}
        return {"phase": self.phase, "kept": kept, **self.learner.state(training)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.phase = state["phase"]
        self.learner.restore(state)
        device = next(self.networks.parameters()).device
        self.kept = {
            int(number): {name: torch.as_tensor(value).to(device) for name, value in kept.items()}
            for number, kept in state["kept"].items()
        }
