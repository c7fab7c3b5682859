"""What every training loop here needs: an optimiser that can be stored, a schedule, batches, and an average.

A `Learner` is a network in training. Its state is plain tensors and numbers, so that training can stop after any part
and continue elsewhere to the same bytes: randomness is drawn from a fresh stream per part and never stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


class Learner:
    """A network, AdamW, and an exponential moving average of the weights.

    Args:
        network: what is trained.
        rate: peak learning rate.
        steps: all steps of the schedule: a linear rise over ``warmup`` of them, then a half cosine to zero.
        decay: weight decay.
        average: length of the moving average as a share of all steps; 0 for none (it then equals the weights).
    """

    def __init__(
        self, network: nn.Module, *, rate: float, steps: int, decay: float, average: float, warmup: float = 0.03
    ) -> None:
        self.network, self.rate, self.steps, self.warmup = network, rate, steps, warmup
        self.remember = 1 - 1 / max(1.0, average * steps)
        self.weights = list(network.parameters())
        self.optimizer = torch.optim.AdamW(self.weights, lr=rate, betas=(0.9, 0.99), weight_decay=decay, fused=True)
        self.smooth = [weight.detach().clone() for weight in self.weights]
        self.step = 0
        self.best, self.since_best, self.best_weights = math.inf, 0, [weight.clone() for weight in self.smooth]

    def descend(self, loss: Tensor, clip: float) -> None:
        """One step against the gradient of ``loss``, whose norm is clipped at ``clip``."""
        self.optimizer.zero_grad()
        loss.backward()
        self.update(clip)

    def update(self, clip: float) -> None:
        """One step against the gradients that have been gathered."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * _schedule(self.step / self.steps, self.warmup) + 1e-8
        nn.utils.clip_grad_norm_(self.weights, clip, foreach=True)
        self.optimizer.step()
        self.step += 1
        decay = min(self.remember, self.step / (self.step + 20))
        torch._foreach_lerp_(self.smooth, [weight.detach() for weight in self.weights], 1 - decay)

    def judge(self, loss: float) -> None:
        """Note a held-out loss of the averaged weights; the best ones are kept."""
        if loss < self.best:
            self.best, self.since_best = loss, 0
            self.best_weights = [weight.clone() for weight in self.smooth]
        else:
            self.since_best += 1

    @torch.no_grad()
    def use(self, weights: list[Tensor]) -> list[Tensor]:
        """Put ``weights`` into the network; returns what was there."""
        before = [weight.detach().clone() for weight in self.weights]
        torch._foreach_copy_([weight.detach() for weight in self.weights], weights)
        return before

    def state(self) -> dict[str, Any]:
        """All that is needed to continue."""
        moments = self.optimizer.state_dict()["state"]
        return {
            "network": dict(self.network.state_dict()),
            "moments": {str(i): dict(moment) for i, moment in moments.items()},
            "smooth": list(self.smooth),
            "best_weights": list(self.best_weights),
            "best": self.best,
            "since_best": self.since_best,
            "step": self.step,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.network.load_state_dict(state["network"])
        stored = self.optimizer.state_dict()
        stored["state"] = {int(i): dict(moment) for i, moment in state["moments"].items()}
        self.optimizer.load_state_dict(stored)
        device = self.weights[0].device
        self.smooth = [weight.to(device) for weight in state["smooth"]]
        self.best_weights = [weight.to(device) for weight in state["best_weights"]]
        self.best, self.since_best, self.step = state["best"], state["since_best"], state["step"]


def batches(n: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Row numbers in batches of min(size, n), without end; every row once per pass, the remainder of a pass dropped."""
    size = min(size, n)
    while True:
        order = torch.randperm(n, generator=generator, device=generator.device)
        yield from order[: n - n % size].split(size)


def held_out(n: int, share: float, most: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Row numbers to train on and to judge by; below 20 rows, all are used for both."""
    order = torch.randperm(n, generator=generator, device=generator.device)
    k = min(round(n * share), most)
    return (order, order) if n < 20 or k == 0 else (order[k:].sort().values, order[:k].sort().values)


def _schedule(done: float, warmup: float) -> float:
    if done < warmup:
        return (done + 1e-3) / warmup
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (done - warmup) / (1 - warmup))))
