"""VT-GAN with differential privacy: DP-SGD over all critic parts. Ours; the paper clips and noises otherwise.

It protects what is released, the model and its synthetic tables, from outsiders. The coordinator reads features of
sampled rows, and silos gradients in them, without noise.

- Encoders come from noised counts (`silosynth.encoders.private`). So does the number of rows, wherever it is used.
- **No conditions.** Sampling them by the logarithm of counts would need a bill of its own: rare levels are then hit far
  more often. There is no contributor and no row number either: every row takes part in a step by itself, with the same
  probability, by a secret of the silos (Poisson sampling). All silos know the batch; the coordinator does not.
- Made rows are as many as ever, whoever was sampled; each sampled row is judged beside one of them, drawn by itself. An
  example's loss is D(made) - D(real), with its own gradient penalty inside.
- Each silo's bottom critic is a block of parameters, and D^t is one; D^s has nothing to filter. Every example's
  gradient is cut to an equal share of ``dp.clip`` in each, every block's sum is noised by its owner, and a step is
  charged once. Orthonormal rows of bottom critics are what follows from noised ones.
- Without dropout, and with one kind of running statistics: batches are no longer of different kinds.

The generator learns from noised critics and made rows alone. A silo takes no more critic steps than it was charged for.

Shapes: B made rows, R sampled ones, W features of all silos, W_i of silo i.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from silosynth.algorithms.vtgan.messages import ORDER, Encode, Features, VTGANConfig
from silosynth.algorithms.vtgan.tops import Tops
from silosynth.core.conversation import Conversation, Exchange
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Message, Release
from silosynth.core.roster import Roster
from silosynth.core.streams import Streams, integers, uniforms
from silosynth.models.gan import CriticPart, orthonormalise
from silosynth.models.training import Trainee
from silosynth.privacy.accounting import noise_multiplier
from silosynth.privacy.agreement import agree
from silosynth.privacy.dpsgd import block_clips, clipped_gradients, noised
from silosynth.privacy.events import Event, gaussian_steps

_STEEP = 1e-12  # added to a squared slope, so that its root has a gradient at zero


@dataclass(frozen=True, slots=True)
class EncodedPrivately(Message):
    """I have about so many rows, and so many columns. ``nonce`` makes the secret of this training a new one."""

    release: ClassVar[Release] = Release.NOISED
    rows: int
    columns: int
    nonce: str
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Charge(Message):
    """Charge for all critic steps before the first. All silos have about ``rows`` rows."""

    rows: int
    event: Event


@dataclass(frozen=True, slots=True)
class Charged(Message):
    """I have. Where ``tag`` (32 bytes) is the same, so are numbers of rows; the coordinator learns no more from it."""

    release: ClassVar[Release] = Release.NOISED
    tag: bytes
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class CriticisePrivately(Message):
    """Make rows from this slice (B, F_i); send their features (B, W_i), and those of the rows sampled (R, W_i)."""

    step: int
    slice_BF: Tensor


@dataclass(frozen=True, slots=True)
class DescendPrivately(Message):
    """Each example's gradients (R, W_i) in features: of the made row that it was judged beside, and of its own."""

    release: ClassVar[Release] = Release.GRADIENTS
    fake_RW: Tensor
    real_RW: Tensor
    pairs_R: Tensor


def settled(config: VTGANConfig) -> VTGANConfig:
    """The options that differential privacy leaves: no dropout or lists, one kind of batches; every part learns."""
    if not config.dp.private:
        return config
    return replace(config, dropout=0.0, statistics="all", index_privacy="full", bottom_gradients="all")


def charge(roster: Roster, config: VTGANConfig) -> Conversation[tuple[int, list[int], Event]]:
    """Encoders, the secret of batches, and the bill of all steps; about how many rows, and columns of each silo."""
    told = yield roster.everyone(Encode(config))
    encoded = [reply for reply in told.values() if isinstance(reply, EncodedPrivately)]
    yield from agree(roster, f"{ORDER} {' '.join(reply.nonce for reply in encoded)}", fresh=False)
    rows = max(2, round(sum(reply.rows for reply in encoded) / len(encoded)))
    events = [event for reply in encoded for event in reply.events]
    rate, steps = min(config.batch / rows, 1.0), config.critic_steps * config.rounds(rows)
    noise = noise_multiplier(config.dp, events, rate, steps)
    event = gaussian_steps("steps of the critics", noise, rate, steps, joint=True, target=config.dp.delta)
    told = yield roster.everyone(Charge(rows, event))
    if len({reply.tag for reply in told.values() if isinstance(reply, Charged)}) != 1:
        raise ProtocolError(
            "Silos must hold the same rows in the same order",
            "unlike numbers",
            "Align the silos by an identifier first.",
        )
    return rows, [reply.columns for reply in encoded], event


def critic_step(
    roster: Roster, config: VTGANConfig, tops: Tops, step: int, rows: int, event: Event, streams: Streams
) -> Conversation[None]:
    """One critic step; its made rows, pairs and noise are drawn from ``streams``."""
    draw, expected = streams.child("step", step).torch(tops.device), event.rate * rows
    with torch.no_grad():
        slices = tops.split(tops.generate(tops.conditional(no_condition(config.batch)), draw, 0))
    asks = {party: CriticisePrivately(step, part) for party, part in zip(roster, slices, strict=True)}
    replies = yield roster.each(asks)
    told = [reply for reply in replies.values() if isinstance(reply, Features)]
    fake_BW, real_RW = torch.cat([one.fake_BW for one in told], dim=1), torch.cat([one.real_RW for one in told], dim=1)
    pairs_R = integers(streams.child("pairs", step).noise(), config.batch, len(real_RW), tops.device)
    mix_R = uniforms(streams.child("between", step).noise(), len(real_RW), device=tops.device)
    fake_RW, real_RW = fake_BW.to(tops.device)[pairs_R], real_RW.to(tops.device)
    critic = tops.critic
    slopes = [sign * _slopes(critic, x) for sign, x in ((1.0, fake_RW), (-1.0, real_RW))]
    clip = block_clips(config.dp.clip, len(roster) + 1)[-1]
    loss = top_loss(critic, config.penalty)
    sums = clipped_gradients(loss, parameters(critic), clip, fake_RW, real_RW, mix_R)
    rng = streams.child("noise", step).noise()
    descend(tops.of_critic, critic, noised(sums, event.noise * config.dp.clip, rng), expected)
    fakes, reals = (tops.features(part) for part in slopes)
    ends = zip(roster, fakes, reals, strict=True)
    updates = {party: DescendPrivately(fake, real, pairs_R.cpu()) for party, fake, real in ends}
    yield Exchange(updates, rides=True)


def no_condition(size: int) -> Tensor:
    """Positions (size,) of no condition at all."""
    return torch.full((size,), -1)


def parameters(network: nn.Module) -> dict[str, Tensor]:
    """By name, without their history."""
    return {name: parameter.detach() for name, parameter in network.named_parameters()}


Loss = Callable[..., Tensor]


def top_loss(critic: nn.Module, penalty: float) -> Loss:
    """The loss of one example, given the features (W,) of a made and of a real row, and where between them to look."""

    def loss(weights: dict[str, Tensor], fake_W: Tensor, real_W: Tensor, mix: Tensor) -> Tensor:
        def judged(x_W: Tensor) -> Tensor:
            return functional_call(critic, weights, (x_W[None], ())).squeeze()  # type: ignore[no-any-return]

        slope_W = grad(judged)(fake_W + mix * (real_W - fake_W))
        steep = (slope_W.square().sum() + _STEEP).sqrt()
        total: Tensor = judged(fake_W) - judged(real_W) + penalty * (steep - 1).square()
        return total

    return loss


def bottom_loss(critic: nn.Module) -> Loss:
    """The same, seen from a silo: of one made and one real row as vectors, and the gradients in their features."""

    def loss(weights: dict[str, Tensor], fake: Tensor, real: Tensor, of_fake: Tensor, of_real: Tensor) -> Tensor:
        h_2W = functional_call(critic, weights, (torch.stack([fake, real]), ()))
        total: Tensor = (h_2W * torch.stack([of_fake, of_real])).sum()
        return total

    return loss


def descend(trainee: Trainee[Any], network: nn.Module, sums: dict[str, Tensor], expected: float) -> None:
    """One step against a noised sum, over the expected number of rows."""
    trainee.clear()
    for name, parameter in network.named_parameters():
        parameter.grad = sums[name] / expected
    trainee.step()


def descend_bottom(
    trainee: Trainee[CriticPart], orthonormal: bool, rows: tuple[Tensor, ...], clip: float, deviation: float,
    expected: float, rng: np.random.Generator,
) -> None:  # fmt: skip
    """A silo's part of a critic step."""
    critic = trainee.network
    sums = clipped_gradients(bottom_loss(critic), parameters(critic), clip, *rows)
    descend(trainee, critic, noised(sums, deviation, rng), expected)
    if orthonormal:
        orthonormalise(critic)


def _slopes(critic: nn.Module, x_RW: Tensor) -> Tensor:
    x_RW = x_RW.detach().requires_grad_()
    (slope_RW,) = torch.autograd.grad(critic(x_RW, ()).sum(), x_RW)
    return slope_RW
