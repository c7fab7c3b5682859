"""Networks in training: initial weights, an optimiser that can be stored, schedules, averages of weights, and batches.

A `Trainee` is a network with its optimiser, a `Learner` one with a schedule and an average as well. Their state is
plain tensors and numbers, so that training can stop after any part and continue elsewhere to the same bytes: randomness
is drawn from a fresh stream per part and never stored. `RunningMean` averages networks of several silos as vectors.

Shapes: W numbers of a network: all weights and floating-point buffers, in the order of its state dict.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW
from torch.overrides import TorchFunctionMode

from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.threads import Share, in_turn
from silosynth.models.shampoo import Shampoo

M = TypeVar("M", bound=nn.Module)
N = TypeVar("N", bound=nn.Module)
_BETAS = (0.9, 0.99)  # what AdamW keeps of both moments at each batch
_DIVERGED = "Training diverged: lower the learning rate."
MOST_WEIGHTS = 2**28  # a gigabyte
MOST_TENSORS = 2**16  # of weights: a layer takes some kilobytes, however narrow it is
_AMBIENT = threading.Lock()  # silos in threads must not put back each other's states


def build(make: Callable[..., M], *arguments: object, generator: torch.Generator) -> M:
    """``make(*arguments)`` with every weight drawn from ``generator``, by PyTorch's own default laws.

    PyTorch's constructors draw from the ambient generator: its state is put back, and their draws are overwritten.

    Raises:
        ConfigError: it would have more weights than `MOST_WEIGHTS`, or in more tensors than `MOST_TENSORS`; no more
            were allocated.
    """
    with _AMBIENT, torch.random.fork_rng(devices=[]), WeightLimit():
        module = make(*arguments)
    for part in module.modules():
        _draw_weights(part, generator)
    return module


def check_weights(weights: int) -> None:
    """Refuse a network before memory is taken for it: its sizes may have come in a message, or in somebody's file.

    Raises:
        ConfigError: it has more than `MOST_WEIGHTS`.
    """
    if weights > MOST_WEIGHTS:
        raise ConfigError(f"A network has at most {MOST_WEIGHTS:,} weights", f"{weights:,}", "Lower its widths.")


class WeightLimit(TorchFunctionMode):
    """Within it, no more than `MOST_WEIGHTS` numbers can be allocated for weights, all together, in `MOST_TENSORS`.

    Raises:
        ConfigError: there would be more; no more were allocated.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weights = self.tensors = 0

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is torch.empty:
            self.weights += math.prod(args[0] if isinstance(args[0], (tuple, list)) else args)
            check_weights(self.weights)
            self.tensors += 1
            if self.tensors > MOST_TENSORS:
                rule = f"The layers of a network have at most {MOST_TENSORS:,} tensors of weights"
                raise ConfigError(rule, "more", "Lower the number of its layers.")
        return func(*args, **(kwargs or {}))


def _draw_weights(part: nn.Module, generator: torch.Generator) -> None:
    if isinstance(part, nn.Linear):
        bound = 1 / math.sqrt(max(1, part.in_features))
        nn.init.uniform_(part.weight, -bound, bound, generator=generator)
        nn.init.uniform_(part.bias, -bound, bound, generator=generator)
    elif isinstance(part, nn.Embedding):
        nn.init.normal_(part.weight, generator=generator)
    elif isinstance(part, (nn.LayerNorm, nn.BatchNorm1d)):
        pass  # ones and zeros
    elif next(part.parameters(recurse=False), None) is not None:
        raise TypeError(f"no initial law for {type(part).__name__}")


def dropout(x: Tensor, rate: float, generator: torch.Generator | None) -> Tensor:
    """Dropout whose mask comes from ``generator``; None switches it off (sampling)."""
    if rate == 0 or generator is None:
        return x
    keep = torch.rand(x.shape, generator=generator, device=x.device) >= rate
    return x * keep / (1 - rate)


def time_features(t: Tensor, width: int, scale: float = 1000.0) -> Tensor:
    """Sinusoidal features (B, width) of times t (B,) in [0, 1]."""
    half = width // 2
    rates = torch.exp(-math.log(10_000) * torch.arange(half, device=t.device) / half)
    angles = scale * t[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class AdamConfig(Protocol):
    """The options that an optimiser is made of."""

    @property
    def rate(self) -> float:
        """Learning rate."""

    @property
    def betas(self) -> tuple[float, float]:
        """What is kept of both moments at each step."""

    @property
    def decay(self) -> float:
        """Weight decay."""


class Trainee(Generic[N]):
    """A network and its optimiser; both can be stored.

    Args:
        network: what is trained, on the device where it is trained.
        rate, betas, decay: learning rate, decay rates of both moments, and weight decay.
        kind: Adam, as GANs are trained, or AdamW.
        others: weights of the network that something else trains.
    """

    def __init__(
        self, network: N, *, rate: float, betas: tuple[float, float], decay: float,
        kind: type[Adam | AdamW] = Adam, others: Sequence[Tensor] = (),
    ) -> None:  # fmt: skip
        self.network = network
        taken = {id(other) for other in others}
        mine = [weight for weight in network.parameters() if id(weight) not in taken]
        self.optimizer = kind(mine, lr=rate, betas=betas, weight_decay=decay, fused=True)

    def clear(self) -> None:
        """Forget gradients."""
        self.network.zero_grad()

    def step(self) -> None:
        """One step against the gathered gradients."""
        self.optimizer.step()

    def descend(self, roots: Tensor | Sequence[Tensor], gradients: Any = None) -> None:
        """One step against the gradient of a loss; or given ``gradients`` in ``roots``, a tensor or None for each."""
        self.clear()
        torch.autograd.backward(roots, gradients)
        self.step()

    def state(self, training: bool) -> dict[str, Any]:
        """Weights and buffers; for training also the optimiser's moments."""
        moments = self.optimizer.state_dict()["state"]
        return {
            "network": dict(self.network.state_dict()),
            "moments": {str(i): dict(moment) for i, moment in moments.items()} if training else None,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.network.load_state_dict(state["network"])
        if state["moments"] is not None:
            stored = self.optimizer.state_dict()
            stored["state"] = {int(i): dict(moment) for i, moment in state["moments"].items()}
            self.optimizer.load_state_dict(stored)


def trainee(network: N, config: AdamConfig) -> Trainee[N]:
    """A network with its Adam; it is where it is to be trained."""
    return Trainee(network, rate=config.rate, betas=config.betas, decay=config.decay)


class Learner(Trainee[nn.Module]):
    """A network, AdamW, and an exponential moving average of the weights, for diffusions and autoencoders.

    No `MovingAverage`, as GANs have: that averages running statistics too, where here those of the time are kept beside
    the averaged weights that held-out rows prefer.

    Args:
        network: what is trained.
        rate: peak learning rate.
        steps: all steps of the schedule, one for each batch.
        schedule: "one-cycle" (a linear rise over 3 % of the steps, then a half cosine to zero) or "constant".
        decay: weight decay.
        clip: gradients are scaled down to this norm; 0 for never.
        average: length of the moving average as a share of all steps; 0 for none (it then equals the weights).
        wide: weights, matrices, that are trained by `Shampoo` in place of AdamW, at the peak rate ``wide_rate``.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        rate: float,
        steps: int,
        schedule: str = "one-cycle",
        decay: float = 0.0,
        clip: float = 0.0,
        average: float = 0.0,
        wide: Sequence[Tensor] = (),
        wide_rate: float = 0.0,
    ) -> None:
        super().__init__(network, rate=rate, betas=_BETAS, decay=decay, kind=AdamW, others=wide)
        self.shampoo, self.wide_rate = Shampoo(wide, decay), wide_rate
        self.rate, self.steps, self.schedule = rate, steps, schedule
        self.clip, self.remember = clip or math.inf, 1 - 1 / max(1.0, average * steps)
        self.weights, self.buffers = list(network.parameters()), list(network.buffers())
        self.smooth = _copies(self.weights)
        self.done = 0
        self.best, self.best_weights, self.best_buffers = math.inf, _copies(self.weights), _copies(self.buffers)

    def follow(self, gradients: Iterable[tuple[Tensor, ...]], share: Share = in_turn) -> None:
        """One step against the mean gradient of several batches, given those of all weights for each batch."""
        total, *others = gradients
        for other in others:
            total = torch._foreach_add(total, other)
        for weight, gradient in zip(self.weights, torch._foreach_div(total, 1 + len(others)), strict=True):
            weight.grad = gradient
        self.step(1 + len(others), share)

    def step(self, batches: int = 1, share: Share = in_turn) -> None:
        """One step against the gathered gradients, a mean over ``batches``: as long as those of so many together."""
        now = _one_cycle(self.done / self.steps) if self.schedule == "one-cycle" else 1.0
        for group in self.optimizer.param_groups:
            group["lr"], group["betas"] = batches * self.rate * now, tuple(beta**batches for beta in _BETAS)
        if self.clip < math.inf:
            nn.utils.clip_grad_norm_(self.weights, self.clip, foreach=True)
        self.optimizer.step()
        self.shampoo.step(self.wide_rate * now, batches, share)
        self.done += batches
        decay = min(self.remember**batches, self.done / (self.done + 20))
        torch._foreach_lerp_(self.smooth, [weight.detach() for weight in self.weights], 1 - decay)

    def judge(self, loss: float) -> bool:
        """Note a held-out loss of the averaged weights: the best ones are kept. Whether these are."""
        better = loss < self.best
        if better:
            self.keep(loss)
        return better

    def keep(self, loss: float = -math.inf) -> None:
        """Keep the averaged weights, with the buffers of this time; judged by who knows the loss, if not told."""
        self.best, self.best_weights, self.best_buffers = loss, _copies(self.smooth), _copies(self.buffers)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The averaged weights are in the network while the block runs."""
        trained = _copies(self.weights)
        _put(self.weights, self.smooth)
        yield
        _put(self.weights, trained)

    def settle(self) -> None:
        """Put the weights into the network that held-out rows preferred; the averaged ones if none were asked."""
        judged = self.best < math.inf
        _put(self.weights, self.best_weights if judged else self.smooth)
        _put(self.buffers, self.best_buffers if judged else self.buffers)

    def state(self, training: bool = True) -> dict[str, Any]:
        """All that is needed to continue training."""
        return {
            **super().state(training),
            "smooth": list(self.smooth),
            "best_weights": list(self.best_weights),
            "best_buffers": list(self.best_buffers),
            "best": self.best,
            "step": self.done,
            **({"shampoo": self.shampoo.state()} if training and self.shampoo.weights else {}),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        super().restore(state)
        device = self.weights[0].device
        for name in ("smooth", "best_weights", "best_buffers"):
            setattr(self, name, [tensor.to(device) for tensor in state[name]])
        self.best, self.done = state["best"], state["step"]
        if self.shampoo.weights:
            self.shampoo.restore(state["shampoo"])


def batches(n: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Row numbers in batches of min(size, n), without end; every row once per pass, the remainder of a pass dropped."""
    size = min(size, n)
    while True:
        order = torch.randperm(n, generator=generator, device=generator.device)
        yield from order[: n - n % size].split(size)


def held_out(n: int, share: float, most: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Row numbers to train on and to judge by; below 20 rows, all are used for both."""
    order = torch.randperm(n, generator=generator, device=generator.device)
    k = min(round(n * share), most, n - 1)
    return (order, order) if n < 20 or k == 0 else (order[k:].sort().values, order[:k].sort().values)


def _one_cycle(done: float, rise: float = 0.03) -> float:
    if done < rise:
        return (done + 1e-3) / rise
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (done - rise) / (1 - rise)))) + 1e-5


def _copies(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


@torch.no_grad()
def _put(where: Iterable[Tensor], what: Iterable[Tensor]) -> None:
    for old, new in zip(where, what, strict=True):
        old.copy_(new)


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


def flatten(state: Mapping[str, Tensor]) -> Tensor:
    """A network's state dict as float32 (W,). Integer buffers, such as batch counts, are left out.

    Raises:
        ProtocolError: a number is not finite, or there is none; names the tensor.
    """
    parts = {name: tensor.detach().reshape(-1).float() for name, tensor in _floating(state).items()}
    for name, part in parts.items():
        if not part.isfinite().all():
            raise ProtocolError("Networks that are averaged are finite", name, _DIVERGED)
    if not parts:
        raise ProtocolError("Networks that are averaged have weights", "none", "Pass the state dict of a network.")
    return torch.cat(list(parts.values()))


def unflatten(vector_W: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict that `flatten` flattened, with the shapes, dtypes and integer buffers of ``like``, copied.

    Raises:
        ProtocolError: the vector has another length than a network like this, or holds a number that is not finite.
    """
    floating = _floating(like)
    sizes = [tensor.numel() for tensor in floating.values()]
    if vector_W.shape != (sum(sizes),):
        raise ProtocolError(
            f"A vector for this network is ({sum(sizes)},)", tuple(vector_W.shape), "Compare the networks' options."
        )
    parts = dict(zip(floating, vector_W.split(sizes), strict=True))
    for name, part in parts.items():
        if not part.isfinite().all():
            raise ProtocolError("Networks that are averaged are finite", name, _DIVERGED)
    return {
        name: parts[name].reshape(tensor.shape).to(tensor.dtype, copy=True) if name in parts else tensor.clone()
        for name, tensor in like.items()
    }


def width(state: Mapping[str, Tensor]) -> int:
    """W: how many numbers `flatten` gives for such a network."""
    return sum(tensor.numel() for tensor in _floating(state).values())


class RunningMean:
    """Σ weight · vector / Σ weight. It holds the sum so far, in float64, and no vector: memory does not grow.

    Args:
        width: W.
    """

    def __init__(self, width: int) -> None:
        self._sum_W = torch.zeros(width, dtype=torch.float64)
        self.weight = 0.0
        self.count = 0

    def add(self, vector_W: Tensor, weight: float) -> None:
        """Add a vector to the mean.

        Raises:
            ProtocolError: the vector has another length or is not finite, or the weight is not finite and above zero.
        """
        if vector_W.shape != self._sum_W.shape or not vector_W.is_floating_point():
            got = f"{tuple(vector_W.shape)} of {vector_W.dtype}"
            raise ProtocolError(f"A vector of this mean has {len(self._sum_W)} numbers", got, "Compare networks.")
        if not vector_W.isfinite().all():
            raise ProtocolError("Vectors that are averaged are finite", "one that is not", _DIVERGED)
        if not (math.isfinite(weight) and weight > 0):
            raise ProtocolError("A weight is finite and above zero", weight, "Leave out whoever has no rows.")
        self._sum_W.add_(vector_W, alpha=weight)
        self.weight += weight
        self.count += 1

    def mean(self) -> Tensor:
        """The weighted mean so far, (W,) float64.

        Raises:
            ProtocolError: no vector was added yet.
        """
        if not self.count:
            raise ProtocolError("A mean is over at least one vector", self.count, "Add one first.")
        return self._sum_W / self.weight


def _floating(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state.items() if tensor.is_floating_point()}
