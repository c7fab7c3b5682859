"""VT-GAN with differential privacy: DP-SGD over all critic parts. Ours; the paper clips and noises otherwise.

It protects what is released, the model and its synthetic tables, from outsiders. The coordinator reads features of
sampled rows, and silos read gradients in them, without noise.

- Charging, encoders and row counts: see `silosynth.privacy.accounting`.
- **No conditions.** Sampling them by the logarithm of counts would have to be charged separately, as rare levels are
  then hit far more often. There is no contributor and no row number either: each row takes part in a step on its own,
  with the same probability, drawn from the silos' secret (Poisson sampling). All silos know the batch; the coordinator
  does not.
- The number of made rows is fixed, whoever was sampled; each sampled row is judged beside one of them, drawn for it. An
  example's loss is D(made) - D(real), with its own gradient penalty inside.
- Each silo's bottom critic is a block of parameters, and D^t is one; D^s has nothing to filter. Every example's
  gradient is clipped to an equal share of ``dp.clip`` in each, every block's sum is noised by its owner, and a step is
  charged once. Bottom critics are made orthonormal after the noised update.
- Without dropout, and with one set of running statistics, as there is only one kind of batch.

The generator learns from noised critics and made rows alone. A silo takes no more critic steps than it was charged for.

Shapes: B made rows, R sampled ones, W features of all silos, W_i of silo i.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from silosynth.algorithms.vtgan.networks import Bottoms, Tops
from silosynth.algorithms.vtgan.options import VTGANConfig
from silosynth.core.errors import ProtocolError
from silosynth.core.streams import Keystream, Streams, integers, uniforms
from silosynth.models.encoded import EncodedRows
from silosynth.models.gan import orthonormalise
from silosynth.privacy import accounting, agreement
from silosynth.privacy.dpsgd import block_clips, poisson_mask, set_private_gradient
from silosynth.privacy.events import Event

Loss = Callable[..., Tensor]
STEPS = "steps of the critics"  # what is charged
_STEEP = 1e-12  # added to a squared norm, so that its root has a gradient at zero


# What is charged.


def solve(config: VTGANConfig, rows: int, learnt: Sequence[Event]) -> tuple[Event, ...]:
    """The event of all critic steps."""
    rate, steps = min(config.batch / rows, 1.0), config.critic_steps * config.rounds(rows)
    return accounting.joint_steps(STEPS, config.dp, rate, steps, learnt)


# The coordinator.


def descend_top(
    tops: Tops, step: int, fake_BW: Tensor, real_RW: Tensor, rows: int, event: Event, streams: Streams
) -> tuple[Tensor, Tensor, Tensor]:
    """Update D^t; pairs and noise are drawn from ``streams``.

    Returns:
        Each example's gradients (R, W) in features, of its made row and of its real one; its made row's number (R,).
    """
    pairs_R = integers(streams.child("pairs", step).noise(), len(fake_BW), len(real_RW), tops.device)
    mix_R = uniforms(streams.child("between", step).noise(), len(real_RW), device=tops.device)
    fake_RW, real_RW = fake_BW.to(tops.device)[pairs_R], real_RW.to(tops.device)
    grad_fake_RW, grad_real_RW = gradients(tops.top, fake_RW), -gradients(tops.top, real_RW)
    dp, loss = tops.config.dp, top_loss(tops.top, tops.config.penalty)
    clip, rng = block_clips(dp.clip, len(tops.widths) + 1)[-1], streams.child("noise", step).noise()
    set_private_gradient(tops.top, loss, (fake_RW, real_RW, mix_R), clip, event.noise * dp.clip, event.rate * rows, rng)
    tops.critic.step()
    return grad_fake_RW, grad_real_RW, pairs_R.cpu()


def no_condition(size: int) -> Tensor:
    """Positions (size,) of no condition at all."""
    return torch.full((size,), -1)


def top_loss(critic: nn.Module, penalty: float) -> Loss:
    """The loss of one example, given the features (W,) of a made and of a real row, and the mix for the penalty."""

    def loss(weights: dict[str, Tensor], fake_W: Tensor, real_W: Tensor, mix: Tensor) -> Tensor:
        def judged(x_W: Tensor) -> Tensor:
            return functional_call(critic, weights, (x_W[None], ())).squeeze()  # type: ignore[no-any-return]

        gradient_W = grad(judged)(fake_W + mix * (real_W - fake_W))
        norm = (gradient_W.square().sum() + _STEEP).sqrt()
        total: Tensor = judged(fake_W) - judged(real_W) + penalty * (norm - 1).square()
        return total

    return loss


def bottom_loss(critic: nn.Module) -> Loss:
    """The same in a silo: of one made and one real row as vectors, and the gradients in their features."""

    def loss(weights: dict[str, Tensor], fake: Tensor, real: Tensor, grad_fake: Tensor, grad_real: Tensor) -> Tensor:
        h_2W = functional_call(critic, weights, (torch.stack([fake, real]), ()))
        total: Tensor = (h_2W * torch.stack([grad_fake, grad_real])).sum()
        return total

    return loss


def gradients(critic: nn.Module, x_RW: Tensor) -> Tensor:
    """Gradients (R, W) of the critic's output in its inputs."""
    x_RW = x_RW.detach().requires_grad_()
    (gradient_RW,) = torch.autograd.grad(critic(x_RW, ()).sum(), x_RW)
    return gradient_RW


# A silo.


class PrivateSteps:
    """A silo's critic steps, no more than were charged.

    Args:
        streams: for the nonce, which makes the secret of this training a new one, and for noise.
        silos: number of all silos.
    """

    def __init__(self, streams: Streams, silos: int) -> None:
        self.streams, self.silos = streams, silos
        self.account = accounting.Account()
        self.nonce = f"{streams.child('nonce').integer():016x}"
        self.pending: tuple[int, Tensor, Tensor] | None = None  # a step, and its made and real rows as vectors

    @torch.no_grad()
    def features(
        self, bottoms: Bottoms, secret: agreement.Group, step: int, slice_BF: Tensor, rows: EncodedRows
    ) -> tuple[Tensor, Tensor]:
        """Features of made rows (B, W_i), and of those that the secret samples (R, W_i)."""
        rng = Keystream(secret.key(f"rows of step {step}"))
        sampled = poisson_mask(len(rows), self.account.charged.events[0].rate, rng).to(bottoms.device)
        fake = bottoms.made(step, slice_BF, 0)
        real = rows.shape.vectors(rows.levels[sampled], rows.scores[sampled])
        self.pending, critic = (step, fake, real), bottoms.critic.network
        return critic(fake, ()).cpu(), critic(real, ()).cpu()

    def descend(self, bottoms: Bottoms, grad_fake_RW: Tensor, grad_real_RW: Tensor, pairs_R: Tensor) -> None:
        """Update the bottom critic.

        Raises:
            ProtocolError: no features were sent for this step, or all steps that were charged have been taken.
        """
        charged, dp, device = self.account.charged, bottoms.config.dp, bottoms.device
        if self.pending is None:
            raise ProtocolError("Gradients of the critic follow the features that they belong to", "no features")
        self.account.take_step()
        (step, fake, real), self.pending = self.pending, None
        per_row = fake[pairs_R.to(device)], real, grad_fake_RW.to(device), grad_real_RW.to(device)
        event, critic = charged.events[0], bottoms.critic.network
        clip, rng = block_clips(dp.clip, self.silos + 1)[0], self.streams.child("noise", step).noise()
        set_private_gradient(
            critic, bottom_loss(critic), per_row, clip, event.noise * dp.clip, event.rate * charged.rows, rng
        )
        bottoms.critic.step()
        if bottoms.orthonormal:
            orthonormalise(critic)
