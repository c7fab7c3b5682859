"""A silo's generator G_i and critic D_i, with one step of training for each: of VFLGAN, and of VertiGAN.

With differential privacy a critic step is one of DP-SGD (`silosynth.privacy.dpsgd`) in the block that is this silo's
whole critic. What a real row adds to the loss is its own: its features, D_s' slope there, and its penalty, between it
and a made row that is drawn for it; its gradient is clipped. Made rows know nothing of real ones but through noised
weights: what they add is clipped alike but not noised (`set_gradient`), and they are as many whatever the batch.

Shapes: B made rows, R real rows of a batch, I numbers of a row, W features, Z numbers of z, G generated rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from silosynth.algorithms.vflgan.draws import Draws
from silosynth.algorithms.vflgan.messages import GANConfig
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Struct
from silosynth.core.streams import Streams, integers, uniforms
from silosynth.models.autoencoder import Buckets
from silosynth.models.calibration import Calibration, calibrate
from silosynth.models.encoded import EncodedRows, chunks, joined
from silosynth.models.gan import frozen
from silosynth.models.layers import build
from silosynth.models.training import MovingAverage, Trainee, trainee
from silosynth.models.vflgan import LocalCritic, MadeLoss, RealLoss, SampledRows, frechet_distance
from silosynth.privacy.dpsgd import block_clips, set_gradient

STARTING = 1024  # rows by which a generator's start is set
MATCHING = 16_384  # rows, at most, by which drawn marginals are matched
MOST_NUMBERS = 2**22  # of them at once: fewer rows where levels are many


@dataclass(frozen=True, slots=True)
class Budget(Struct):
    """What was charged for, in this silo's critic.

    Attributes:
        steps: critic steps, at most.
        rate: the probability with which a row takes part in a step.
        expected: rows of a batch, on average.
        blocks: blocks of parameters that see real rows, over all silos and the coordinator.
        noise: noise multiplier.
    """

    steps: int
    rate: float
    expected: float
    blocks: int
    noise: float

    def scales(self, clip: float) -> tuple[float, float, float]:
        """Of a block, where ``clip`` is that of all: its clip, the noise's deviation, and the expected batch."""
        return block_clips(clip, self.blocks)[0], self.noise * clip, self.expected


class Local:
    """Networks of a silo. What a step has computed is kept until D_s' slopes come.

    Args:
        coded: the silo's encoded rows; none of them to sample.
        parts: what z passes through, each with its optimiser.
        draws: what all silos draw alike.
        budget: None without differential privacy.
    """

    def __init__(
        self, coded: EncodedRows, config: GANConfig, parts: Sequence[Trainee[Any]], draws: Draws, budget: Budget | None,
        streams: Streams, device: torch.device,
    ) -> None:  # fmt: skip
        self.coded, self.config, self.parts, self.draws = coded, config, parts, draws
        self.budget, self.streams, self.device = budget, streams, device
        self.rows = SampledRows(coded.shape, config.tau, config.hard).to(device)
        second = config.second if getattr(config, "local", True) else None
        critic = build(
            LocalCritic, coded.shape.size, config.critic, second,
            generator=streams.child("weights", "critic").torch(),
        )  # fmt: skip
        if config.slopes == "orthonormal":
            critic.keep_distances(exactly=True)
        self.critic = trainee(critic.to(device), config)
        self.real_loss = RealLoss(self.critic.network, config.penalty, config.slopes)
        self.made_loss = MadeLoss(self.critic.network)
        self.made = max(2, draws.batch)
        self.critic_steps = self.generator_steps = 0
        self.averages = [MovingAverage(part.network, config.average) for part in parts]
        self.kept: list[dict[str, Tensor]] = []  # the parts' weights at their best

    def start(self, shares_K: Tensor) -> None:
        """Have the generator start at these shares of levels and at normal scores, which depend on nothing."""
        out = self.draws.noise(STARTING, self.config.noise, "start").to(self.device)
        for part in self.parts[:-1]:
            out = part.network(out)
        self.parts[-1].network.start_at(out, shares_K.to(self.device))

    # A step of the critic.

    def criticise(self) -> tuple[Tensor, Tensor]:
        """Features of made rows (B, W) and of real ones (R, W) (Algorithm 1, lines 3 to 5)."""
        step, stream = self.critic_steps, self.streams.child("critic", self.critic_steps)
        draw = stream.torch(self.device) if self.budget is None else stream.noise()  # what real rows draw is secret
        if self.budget is not None and step >= self.budget.steps:
            raise ProtocolError(
                "A silo takes no more critic steps than it has charged for", step + 1, "Train no longer."
            )
        self.critic_steps += 1
        picked = self.draws.batch_of(step) if self.budget is None else self.draws.sample_of(step, self.budget.rate)
        self.real = self.coded.shape.vectors(*self.coded.batch(picked.to(self.device), draw))
        with torch.no_grad():
            made = self.streams.child("made", step).torch(self.device)  # of its own: the other knows how many rows
            self.fake = self._make(self.draws.noise(self.made, self.config.noise, f"critic {step}"), made)
        beside = self.fake
        if self.budget is not None:  # which made row is drawn for a real one must not depend on others
            beside = self.fake[integers(draw, self.made, len(self.real), self.device)]
        mix = uniforms(draw, len(self.real), 1, device=self.device)
        self.between = beside[: len(self.real)] + mix * (self.real - beside[: len(self.real)])
        critic = self.critic.network
        if self.budget is not None:  # by themselves: made rows' must not tell of real ones, by rounding errors either
            with torch.no_grad():
                return critic.features(self.fake).cpu(), critic.features(self.real).cpu()
        self.features = critic.features(torch.cat([self.fake, self.real]))
        fake, real = self.features.detach().cpu().split([len(self.fake), len(self.real)])
        return fake, real

    def descend_critic(self, fake_BW: Tensor, real_RW: Tensor) -> None:
        """Update D_i by its own loss and by D_s' slopes in its features (equations (14) to (16))."""
        fake_BW, real_RW = fake_BW.to(self.device), real_RW.to(self.device)
        self.critic.clear()
        if self.budget is None:
            of_fake, of_real = self.features.split([len(self.fake), len(self.real)])
            real = self.real_loss(self.real, self.between, real_RW, of_real).mean()
            (real + self.made_loss(self.fake, fake_BW, of_fake).mean()).backward()
        else:
            rng = self.streams.child("privacy", self.critic_steps).noise()
            real_rows, made_rows = (self.real, self.between, real_RW), (self.fake, fake_BW)
            scales = self.budget.scales(self.config.dp.clip)
            set_gradient(self.real_loss, real_rows, self.made_loss, made_rows, *scales, rng)
        if self.config.unsound:
            self._noise_first_layer()
        self.critic.step()
        if self.config.slopes == "orthonormal":
            self.critic.network.keep_distances()

    def _noise_first_layer(self) -> None:
        """Equations (20) and (21): the gradient of the batch, of the first layer alone. It protects nobody."""
        clip = self.config.dp.clip / self.draws.batch  # gradients are means over the batch
        draw = self.streams.child("unsound", self.critic_steps).torch(self.device)
        weights = self.critic.network.first.linears[0].parameters()
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        for gradient in gradients:
            noise = torch.randn(gradient.shape, generator=draw, device=self.device)
            gradient.div_(torch.clamp(norm / clip, min=1.0)).add_(noise, alpha=2 * clip * self.config.dp.noise)

    # A step of the generator.

    def generate(self) -> Tensor:
        """Features (B, W) of made rows, on the way to updating the generator (line 13)."""
        step = self.generator_steps
        self.generator_steps += 1
        draw = self.streams.child("generator", step).torch(self.device)
        critic = self.critic.network
        with frozen(critic):
            made = self._make(self.draws.noise(self.made, self.config.noise, f"generator {step}"), draw)
            self.features = critic.features(made)
        return self.features.detach().cpu()

    def generator_gradient(self, fake_BW: Tensor) -> None:
        """Gradients of all parts by -E[D_i] and D_s' slopes (equations (17) and (18))."""
        for part in self.parts:
            part.clear()
        with frozen(self.critic.network):
            judged = self.critic.network.judge(self.features)
        ((fake_BW.to(self.device) * self.features).sum(1) - judged).mean().backward()

    def _make(self, z_BZ: Tensor, draw: torch.Generator) -> Tensor:
        """Made rows (B, I)."""
        out = z_BZ.to(self.device)
        for part in self.parts:
            out = part.network(out)
        made: Tensor = self.rows(out, draw)
        return made

    # Which weights are kept, and what they make.

    def distance(self) -> float:
        """Of as many made rows as there are real ones (equation (23)), in this silo's columns."""
        streams = self.streams.child("distance", self.generator_steps)
        draw = streams.torch(self.device)
        z_NZ = self.draws.noise(len(self.coded), self.config.noise, f"distance {self.generator_steps}")
        drawn = self.draw(z_NZ, draw, self.weights())
        every = torch.arange(len(self.coded), device=self.device)
        real = self.coded.shape.vectors(*self.coded.batch(every, draw)).cpu()
        return frechet_distance(real, self.coded.shape.vectors(*drawn))

    def average(self) -> None:
        """Take the parts' weights as they are now into their moving averages, if these are wanted."""
        for average in self.averages:
            average.take()

    def keep(self) -> None:
        """Keep the weights as they are."""
        self.kept = _copies(self.weights())

    def weights(self) -> list[dict[str, Tensor]]:
        """Of each part, as training has made them: averaged, where that is wanted."""
        return [average.weights for average in self.averages]

    @torch.no_grad()
    def draw(
        self, z_GZ: Tensor, draw: torch.Generator, weights: list[dict[str, Tensor]], match: Calibration | None = None
    ) -> tuple[Tensor, Tensor]:
        """Levels (G, C) and scores (G, S), by running statistics; corrected by `matching`, where that is given."""
        drawn = []
        for z_BZ in z_GZ.split(list(chunks(len(z_GZ), self.coded.shape.size)) or [0]):
            out = self._outputs(z_BZ, weights)
            drawn.append(self.rows.draw(out if match is None else torch.cat(match.apply(*self._heads(out)), 1), draw))
        return joined(drawn)

    @torch.no_grad()
    def matching(self, shares_K: Tensor, weights: list[dict[str, Tensor]]) -> Calibration:
        """Corrections by which drawn rows have these shares of levels, and normal scores where those of training are.

        They cost no message, and nothing of a privacy budget: shares are counted with noise then (docs/decisions/0004).
        """
        draw, shape = self.streams.child("matching").torch(self.device), self.coded.shape
        buckets = Buckets(shape).to(self.device)
        rows = max(64, min(MATCHING, MOST_NUMBERS // max(1, shape.size)))
        z_GZ = torch.randn(rows, self.config.noise, generator=draw, device=self.device)
        found = calibrate(buckets, *self._heads(self._outputs(z_GZ, weights)), shares_K.to(self.device), draw)
        return found if self.config.numbers == "quantile" else replace(found, seen=found.meant.expand_as(found.seen))

    def _outputs(self, z_BZ: Tensor, weights: list[dict[str, Tensor]]) -> Tensor:
        """What the parts make of z with these weights (B, K + S), by running statistics."""
        out = z_BZ.to(self.device)
        for part, these in zip(self.parts, weights, strict=True):
            part.network.eval()
            out = functional_call(part.network, these, (out,))
            part.network.train()
        return out

    def _heads(self, out_BI: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, K) and scores (B, S)."""
        return out_BI[:, : self.coded.shape.levels], out_BI[:, self.coded.shape.levels :]

    # State.

    def state(self, training: bool) -> dict[str, Any]:
        """All that is needed to continue; to sample, the weights of the parts that are released."""
        released = [{"network": weights, "moments": None} for weights in self.kept or self.weights()]
        return {
            "parts": [part.state(training) for part in self.parts] if training else released,
            "averages": [average.state() if training else None for average in self.averages],
            "kept": self.kept if training else [],
            "critic": self.critic.state(training) if training else None,
            "steps": [self.critic_steps, self.generator_steps],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        for part, stored in zip(self.parts, state["parts"], strict=True):
            part.restore(stored)
        self.kept = _copies(state["kept"], self.device)
        for average, stored in zip(self.averages, state["averages"], strict=True):
            average.restore(stored)
        self.critic_steps, self.generator_steps = state["steps"]
        if state["critic"] is not None:
            self.critic.restore(state["critic"])


def _copies(states: Sequence[Mapping[str, Tensor]], device: torch.device | None = None) -> list[dict[str, Tensor]]:
    return [{name: value.detach().to(device, copy=True) for name, value in state.items()} for state in states]
