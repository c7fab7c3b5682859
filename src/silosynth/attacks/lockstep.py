"""Many trainings of VFLGAN at once, each as its own federation would carry it out, with the networks of all stacked.

A training on a small table is thousands of tiny products: most of its time goes into calling them. Here each is one
product for all trainings. What is drawn is drawn by each training's own parties, from their own streams and secrets, so
that weights agree with those of the conversation up to rounding (`tests/attacks/test_lockstep.py`).

The mathematics and names are those of `silosynth.models.vflgan`. Trainings have the same options, and tables that are
encoded to the same shapes. Without differential privacy, and without choosing among weights.

Legend: M trainings, B made and R real rows of a batch, I numbers of a row, W features, L levels, Z numbers of z.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from silosynth.algorithms.vflgan.networks import LocalGAN, SharedCritic
from silosynth.algorithms.vflgan.options import GANConfig, VFLGANConfig
from silosynth.core.streams import Streams
from silosynth.models.gan import SLOPE, gumbel, nearer_orthonormal
from silosynth.runtime.progress import Watch


def fits(config: Any) -> bool:
    """Whether trainings with this config can go in lockstep."""
    return (
        isinstance(config, VFLGANConfig)
        and config.select == "last"
        and config.dp.mechanism == "dpsgd"
        and (not config.dp.private)
    )


@dataclass(frozen=True)
class LockstepTraining:
    """One federation that is ready to train: each silo's networks, and the coordinator's."""

    silos: Sequence[LocalGAN]
    shared: SharedCritic

    @property
    def likeness(self) -> tuple[Any, ...]:
        """Equal for trainings that can go together."""
        rounds = self.shared.config.rounds(self.silos[0].draws.rows)
        return rounds, tuple((silo.rows.shape, silo.draws.batch) for silo in self.silos)


class NetworkStack:
    """Networks of one build, their weights stacked (M, …), with one Adam."""

    def __init__(self, networks: Sequence[nn.Module], config: VFLGANConfig) -> None:
        self.networks = networks
        states = [network.state_dict() for network in networks]
        parameters = {name for name, _ in networks[0].named_parameters()}
        self.values = {name: torch.stack([state[name] for state in states]) for name in states[0]}
        self.parameters = [value.requires_grad_() for name, value in self.values.items() if name in parameters]
        self.adam = torch.optim.Adam(
            self.parameters, lr=config.rate, betas=config.betas, weight_decay=config.decay, fused=True
        )

    def descend(self, loss: Tensor) -> None:
        """One step against the gradient of ``loss``, a sum over trainings."""
        for parameter, gradient in zip(self.parameters, torch.autograd.grad(loss, self.parameters), strict=True):
            parameter.grad = gradient.contiguous()  # fused Adam reads memory as it lies
        self.adam.step()

    def linear(self, name: str, x_MBI: Tensor) -> Tensor:
        """A linear layer."""
        return torch.baddbmm(self.values[f"{name}.bias"][:, None], x_MBI, self.values[f"{name}.weight"].mT)

    @torch.no_grad()
    def unstack(self) -> None:
        """Give each network its weights and statistics."""
        for m, network in enumerate(self.networks):
            network.load_state_dict({name: value[m].detach() for name, value in self.values.items()})


class StackedCritics(NetworkStack):
    """Critic parts: ``path`` names one of them within its network, "" the network itself."""

    def onwards(self, path: str, depth: int, x_MBI: Tensor, hidden: int) -> Tensor:
        """`CriticPart.forward` without dropout: ``depth`` linear layers, leaky ReLU behind the first ``hidden``."""
        for i in range(depth):
            x_MBI = self.linear(f"{path}linears.{i}", x_MBI)
            x_MBI = F.leaky_relu(x_MBI, SLOPE) if i < hidden else x_MBI
        return x_MBI

    def downwards(self, path: str, hidden: int, x_MBI: Tensor, grad_MBW: Tensor) -> Tensor:
        """Gradients with respect to ``hidden`` layers' outputs as gradients with respect to their inputs."""
        gates = []
        with torch.no_grad():
            for i in range(hidden):
                h_MBW = self.linear(f"{path}linears.{i}", x_MBI)
                gates.append(torch.where(h_MBW > 0, 1.0, SLOPE))
                x_MBI = h_MBW * gates[-1]
        for i in reversed(range(hidden)):
            grad_MBW = (grad_MBW * gates[i]) @ self.values[f"{path}linears.{i}.weight"]
        return grad_MBW

    @torch.no_grad()
    def keep_distances(self, path: str, depth: int) -> None:
        """`LocalCritic.keep_distances`, after a step."""
        for i in range(depth):
            weight = self.values[f"{path}linears.{i}.weight"]
            weight.copy_(nearer_orthonormal(weight))

    def gradient(self, path: str, hidden: int, x_MBI: Tensor) -> Tensor:
        """The gradient of the only output with respect to the input."""
        last = self.values[f"{path}linears.{hidden}.weight"]
        return self.downwards(path, hidden, x_MBI, last.expand(-1, x_MBI.shape[1], -1))


class StackedGenerators(NetworkStack):
    """Generators of one silo in all trainings."""

    momentum = 0.1
    averaged: dict[str, Tensor] | None = None
    steps = 0  # that the average has taken

    @torch.no_grad()
    def average(self, step: int, kept: float) -> None:
        """`LocalGAN.average`, after generator step ``step``, counted from 1."""
        share, self.steps = max(1 - kept, 10 / (10 + step)), step
        if self.averaged is None:
            self.averaged = {name: value.detach().clone() for name, value in self.values.items()}
        for name, value in self.values.items():
            held = self.averaged[name]
            held.lerp_(value, share) if value.is_floating_point() else held.copy_(value)

    def outputs(self, z_MBZ: Tensor, config: GANConfig) -> Tensor:
        """`Generator.forward`, normalised by the batch."""
        for i in range(len(config.generator)):
            z_MBZ = self.linear(f"linears.{i}", z_MBZ)
            if f"norms.{i}.weight" in self.values:
                z_MBZ = self._normalised(f"norms.{i}", z_MBZ, config.norm_epsilon)
            z_MBZ = F.leaky_relu(z_MBZ, SLOPE)
        return self.linear("last", z_MBZ)

    def _normalised(self, name: str, h_MBW: Tensor, epsilon: float) -> Tensor:
        values, rows = self.values, h_MBW.shape[1]
        mean_MW, var_MW = h_MBW.mean(1), h_MBW.var(1, correction=0)
        with torch.no_grad():
            values[f"{name}.running_mean"].lerp_(mean_MW, self.momentum)
            values[f"{name}.running_var"].lerp_(var_MW * rows / (rows - 1), self.momentum)
            values[f"{name}.num_batches_tracked"] += 1
        unit = (h_MBW - mean_MW[:, None]) / (var_MW[:, None] + epsilon).sqrt()
        return unit * values[f"{name}.weight"][:, None] + values[f"{name}.bias"][:, None]


class LockstepSilo:
    """One silo's networks in all trainings; `LocalGAN`, stacked."""

    def __init__(self, locals_: Sequence[LocalGAN]) -> None:
        config = locals_[0].config
        assert isinstance(config, VFLGANConfig)  # see `fits`
        self.locals, self.config = locals_, config
        self.critics = StackedCritics([local.critic.network for local in locals_], self.config)
        self.generators = StackedGenerators([local.parts[0].network for local in locals_], self.config)
        self.depth, self.judging = len(self.config.critic), len(self.config.second)

    def criticise(self, step: int, z_MBZ: Tensor) -> tuple[Tensor, Tensor]:
        """Features of made rows (M, B, W) and of real ones (M, R, W)."""
        drawn = [self._draw(local, step) for local in self.locals]
        self.real, gumbel_MBL, mix = (torch.stack(part) for part in zip(*drawn, strict=True))
        with torch.no_grad():
            self.fake = self._rows(self.generators.outputs(z_MBZ, self.config), gumbel_MBL)
        beside = self.fake[:, : self.real.shape[1]]
        self.between = beside + mix * (self.real - beside)
        self.features = self._features(torch.cat([self.fake, self.real], dim=1))
        return self._split(self.features.detach())

    def descend_critic(self, grad_fake_MBW: Tensor, grad_real_MRW: Tensor) -> None:
        """Update the critics."""
        of_fake, of_real = self._split(self.features)
        real = -self._judge(of_real) + self.config.penalty * self._penalty() + (grad_real_MRW * of_real).sum(2)
        fake = self._judge(of_fake) + (grad_fake_MBW * of_fake).sum(2)
        self.critics.descend(real.mean(1).sum() + fake.mean(1).sum())
        if self.config.slopes == "orthonormal":
            self.critics.keep_distances("first.", self.depth)

    def generate(self, step: int, z_MBZ: Tensor) -> Tensor:
        """Features (M, B, W) of made rows, on the way to updating the generators."""
        noise = [self._gumbel(local, local.streams.child("generator", step).torch()) for local in self.locals]
        self.features = self._features(self._rows(self.generators.outputs(z_MBZ, self.config), torch.stack(noise)))
        return self.features.detach()

    def descend_generator(self, step: int, grad_fake_MBW: Tensor) -> None:
        """Update the generators."""
        loss = (grad_fake_MBW * self.features).sum(2) - self._judge(self.features)
        self.generators.descend(loss.mean(1).sum())
        if self.config.average:
            self.generators.average(step + 1, self.config.average)

    def unstack(self) -> None:
        """Give each training's silo its networks."""
        self.critics.unstack()
        self.generators.unstack()
        for m, local in enumerate(self.locals if self.generators.averaged else ()):
            averaged = {name: value[m] for name, value in (self.generators.averaged or {}).items()}
            local.averages[0].restore({"averaged": averaged, "steps": self.generators.steps})

    def _draw(self, local: LocalGAN, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """What `LocalGAN.criticise` draws."""
        draw = local.streams.child("critic", step).torch()
        real = local.rows.shape.vectors(*local.rows.batch(local.draws.batch_of(step), draw))
        noise = self._gumbel(local, local.streams.child("made", step).torch())
        return real, noise, torch.rand(len(real), 1, generator=draw)

    def _gumbel(self, local: LocalGAN, draw: torch.Generator) -> Tensor:
        return gumbel((local.made, local.rows.shape.levels), draw)

    def _rows(self, out_MBI: Tensor, gumbel_MBL: Tensor) -> Tensor:
        """`SampledRows.forward` with noise that is drawn already."""
        output, config = self.locals[0].output, self.config
        levels = output.shape.levels
        if not levels:
            return out_MBI
        logits = ((out_MBI[..., :levels] + gumbel_MBL) / config.tau).flatten(0, 1)
        soft = torch.cat([part.softmax(1) for part in logits.split(list(output.shape.widths), dim=1)], dim=1)
        if config.hard:
            chosen, _ = output.activation.draw(soft.detach(), None)
            soft = output.activation.shape.vectors(chosen, soft[:, :0].detach()) + soft - soft.detach()
        return torch.cat([soft.unflatten(0, out_MBI.shape[:2]), out_MBI[..., levels:]], dim=2)

    def _features(self, x_MBI: Tensor) -> Tensor:
        return self.critics.onwards("first.", self.depth, x_MBI, self.depth)

    def _judge(self, f_MBW: Tensor) -> Tensor:
        if not self.config.local:
            return f_MBW.new_zeros(f_MBW.shape[:2])
        return self.critics.onwards("second.", self.judging + 1, f_MBW, self.judging).squeeze(2)

    def _penalty(self) -> Tensor:
        """`LocalCritic.penalty`, between made and real rows."""
        with torch.no_grad():
            f_MBW = self._features(self.between)
        through = torch.ones_like(f_MBW)
        gradient = self.critics.gradient("second.", self.judging, f_MBW) if self.config.local else None
        if self.config.slopes == "orthonormal":
            return f_MBW.new_zeros(f_MBW.shape[:2]) if gradient is None else _one_norm_penalty(gradient)
        if gradient is not None and self.config.slopes == "critic":
            through, gradient = gradient, None
        first = _one_norm_penalty(self.critics.downwards("first.", self.depth, self.between, through))
        return first if gradient is None else first + _one_norm_penalty(gradient)

    def _split(self, all_MBW: Tensor) -> tuple[Tensor, Tensor]:
        fake, real = all_MBW.split([self.fake.shape[1], self.real.shape[1]], dim=1)
        return fake, real


class LockstepCoordinators:
    """The shared critics of all trainings; `SharedCritic`, stacked."""

    def __init__(self, shared: Sequence[SharedCritic]) -> None:
        self.config, self.streams = shared[0].config, [one.streams for one in shared]
        self.critics = StackedCritics([one.critic.network for one in shared], self.config)
        self.hidden = len(self.config.shared)

    def descend(self, step: int, fake_MBW: Tensor, real_MRW: Tensor) -> tuple[Tensor, Tensor]:
        """Update the shared critics; returns λ1 times their gradients from before the update."""
        with torch.no_grad():
            gradients = self._gradient(fake_MBW), -self._gradient(real_MRW)
        mix = torch.stack([_mixed(streams, step, real_MRW.shape[1]) for streams in self.streams])
        between = fake_MBW[:, : real_MRW.shape[1]]
        between = between + mix * (real_MRW - between)
        judged = self._judge(fake_MBW).mean(1) - self._judge(real_MRW).mean(1)
        self.critics.descend((judged + self.config.penalty * _one_norm_penalty(self._gradient(between)).mean(1)).sum())
        return self.config.lambda1 * gradients[0], self.config.lambda1 * gradients[1]

    @torch.no_grad()
    def gradients(self, fake_MBW: Tensor) -> Tensor:
        """λ2 times the gradients of the generators' loss with respect to features of made rows."""
        return -self.config.lambda2 * self._gradient(fake_MBW)

    def _judge(self, f_MBW: Tensor) -> Tensor:
        return self.critics.onwards("", self.hidden + 1, f_MBW, self.hidden).squeeze(2)

    def _gradient(self, f_MBW: Tensor) -> Tensor:
        return self.critics.gradient("", self.hidden, f_MBW)


def _mixed(streams: Streams, step: int, rows: int) -> Tensor:
    return torch.rand(rows, 1, generator=streams.child("critic", step).torch())


def _one_norm_penalty(grad_MBW: Tensor) -> Tensor:
    penalty: Tensor = (grad_MBW.norm(dim=2) - 1).square()
    return penalty


def train(trainings: Sequence[LockstepTraining], watch: Watch) -> None:
    """Carry out trainings of one likeness; each one's networks have their final weights afterwards.

    ``watch`` is called before each round with the share of the rounds that is done.
    """
    config = trainings[0].shared.config
    silos = [LockstepSilo(locals_) for locals_ in zip(*(training.silos for training in trainings), strict=True)]
    coordinators = LockstepCoordinators([training.shared for training in trainings])
    first = [training.silos[0] for training in trainings]  # all silos of a training draw the same z
    rounds = config.rounds(first[0].draws.rows)
    for number in range(rounds):
        watch("lockstep", number / rounds)
        for step in range(number * config.critic_steps, (number + 1) * config.critic_steps):
            features = [silo.criticise(step, _noise(first, f"critic {step}")) for silo in silos]
            fake, real = (torch.cat(part, dim=2) for part in zip(*features, strict=True))
            gradients = (part.chunk(len(silos), dim=2) for part in coordinators.descend(step, fake, real))
            for silo, of_fake, of_real in zip(silos, *gradients, strict=True):
                silo.descend_critic(of_fake, of_real)
        z_MBZ = _noise(first, f"generator {number}")
        made = torch.cat([silo.generate(number, z_MBZ) for silo in silos], dim=2)
        for silo, gradient in zip(silos, coordinators.gradients(made).chunk(len(silos), dim=2), strict=True):
            silo.descend_generator(number, gradient)
    for silo in silos:
        silo.unstack()
    coordinators.critics.unstack()


def _noise(first: Sequence[LocalGAN], context: str) -> Tensor:
    return torch.stack([local.draws.noise(local.made, local.config.noise, context) for local in first])
