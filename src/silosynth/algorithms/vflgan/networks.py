"""Networks of VFLGAN and VertiGAN and their steps: `LocalGAN`, G_i and D_i of a silo; `SharedCritic`, D_s.

With differential privacy a critic step is one of DP-SGD (`silosynth.privacy.dpsgd`); each silo's whole critic is a
block, and D_s is one. What a real row adds to a silo's loss depends on that row alone: its features, the gradient of
D_s there, and its penalty, between it and a made row that is drawn for it; likewise -D_s and its penalty at the
coordinator. Its gradient is clipped, in each block. Gradients that D_s sends are not clipped: each silo clips what they
come to in its own weights. Made rows depend on real ones through noised weights alone: their gradients are clipped in
the same way but not noised (`set_gradient`), and their number is fixed.

Shapes: N rows, B made rows, R real rows of a batch, I numbers of a row, W features (at the coordinator of all silos),
Z numbers of z, G generated rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from silosynth.algorithms.vflgan.options import GANConfig, VFLGANConfig
from silosynth.algorithms.vflgan.private import ChargedSteps, noise_as_in_paper
from silosynth.core.conversation import check_tensor
from silosynth.core.streams import Draw, Keystream, Streams, integers, uniforms
from silosynth.models import autoencoder, gan, vflgan as models
from silosynth.models.encoded import EncodedRows, chunks, joined
from silosynth.models.marginals import Calibration, calibrate
from silosynth.models.training import MovingAverage, Trainee, build, trainee
from silosynth.privacy import accounting, agreement, dpsgd

STARTING = 1024  # rows by which a generator's start is set
MATCHING = 16_384  # most rows by which drawn marginals are matched
MOST_NUMBERS = 2**22  # in these rows: fewer rows where there are many levels


class CommonDraws:
    """What all silos draw alike, from their secret, and the coordinator cannot: rows of batches, and z.

    Args:
        rows: N.
        batch: rows of a batch, where they are not sampled each with a probability.
    """

    def __init__(self, secret: agreement.Group, rows: int, batch: int) -> None:
        self.secret, self.rows, self.batch = secret, rows, batch
        self._epoch, self._order = -1, torch.zeros(0, dtype=torch.int64)

    def batch_of(self, step: int) -> Tensor:
        """Row numbers (R,) of a critic step: every row once per epoch, the remainder of an epoch dropped."""
        epoch, place = divmod(step, max(1, self.rows // self.batch))
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self.secret.permutation(self.rows, f"epoch {epoch}")
        return self._order[place * self.batch : (place + 1) * self.batch]

    def sample_of(self, step: int, rate: float) -> Tensor:
        """Row numbers (R,) of a critic step with differential privacy: each row on its own, with this probability."""
        return dpsgd.poisson_mask(self.rows, rate, Keystream(self.secret.key(f"rows {step}"))).nonzero().flatten()

    def noise(self, rows: int, width: int, context: str) -> Tensor:
        """z (B, Z), on the CPU whatever the silos' devices: it must be the same everywhere."""
        return torch.randn(rows, width, generator=self.generator(f"z {context}"))

    def generator(self, context: str) -> torch.Generator:
        """A generator that all silos have alike. It keeps 32 bits of the secret: for z and weights alone."""
        return torch.Generator().manual_seed(int.from_bytes(self.secret.key(context)[:8], "big") >> 1)


class LocalGAN:
    """Generator and critic of a silo. What a step computes is kept until the gradients of D_s come.

    Args:
        rows: the silo's encoded rows; none of them to sample.
        parts: the networks that z passes through, in training.
        charged: None without differential privacy.
        account: whose steps critic steps then are.
    """

    def __init__(
        self, rows: EncodedRows, config: GANConfig, parts: Sequence[Trainee[Any]], draws: CommonDraws,
        charged: ChargedSteps | None, account: accounting.Account, streams: Streams, device: torch.device,
    ) -> None:  # fmt: skip
        self.rows, self.config, self.parts, self.draws = rows, config, parts, draws
        self.charged, self.account, self.streams, self.device = charged, account, streams, device
        self.output = models.SampledRows(rows.shape, config.tau, config.hard).to(device)
        second = config.second if getattr(config, "local", True) else None
        weights = streams.child("weights", "critic").torch()
        critic = build(models.LocalCritic, rows.shape.size, config.critic, second, generator=weights)
        if config.slopes == "orthonormal":
            critic.keep_distances(exactly=True)
        self.critic = trainee(critic.to(device), config)
        self.real_loss = models.RealLoss(self.critic.network, config.penalty, config.slopes)
        self.made_loss = models.MadeLoss(self.critic.network)
        self.made = max(2, draws.batch)
        self.critic_steps = self.generator_steps = 0
        self.averages = [MovingAverage(part.network, config.average) for part in parts]
        self.best: list[dict[str, Tensor]] = []  # the parts' weights when they were best

    def start(self, shares_K: Tensor) -> None:
        """Have the generator start at these shares of levels and at normal scores, all independent."""
        out = self.draws.noise(STARTING, self.config.noise, "start").to(self.device)
        for part in self.parts[:-1]:
            out = part.network(out)
        self.parts[-1].network.start_at(out, shares_K.to(self.device))

    # A step of the critic.

    def criticise(self) -> tuple[Tensor, Tensor]:
        """Features of made rows (B, W) and of real ones (R, W) (Algorithm 1, lines 3 to 5).

        Raises:
            ProtocolError: all steps that were charged have been taken.
        """
        step, stream, charged = self.critic_steps, self.streams.child("critic", self.critic_steps), self.charged
        draw = stream.torch(self.device) if charged is None else stream.noise()  # what real rows draw is secret
        if charged is not None:
            self.account.take_step()
        self.critic_steps += 1
        picked = self.draws.batch_of(step) if charged is None else self.draws.sample_of(step, charged.rate)
        self.real = self.rows.shape.vectors(*self.rows.batch(picked.to(self.device), draw))
        with torch.no_grad():
            made = self.streams.child("made", step).torch(self.device)  # separate: the other knows how many real rows
            self.fake = self._make(self.draws.noise(self.made, self.config.noise, f"critic {step}"), made)
        self.between = _between(self.fake, self.real, draw, private=charged is not None)
        critic = self.critic.network
        if charged is not None:  # separately: made rows' must not depend on real ones, not even by rounding errors
            with torch.no_grad():
                return critic.features(self.fake).cpu(), critic.features(self.real).cpu()
        self.features = critic.features(torch.cat([self.fake, self.real]))
        fake, real = self.features.detach().cpu().split([len(self.fake), len(self.real)])
        return fake, real

    def descend_critic(self, grad_fake_BW: Tensor, grad_real_RW: Tensor) -> None:
        """Update D_i by its own loss and by the gradients of D_s in its features (equations (14) to (16))."""
        check_tensor("Gradients of made rows", grad_fake_BW, len(self.fake), self.config.critic[-1])
        check_tensor("Gradients of real rows", grad_real_RW, len(self.real), self.config.critic[-1])
        grad_fake_BW, grad_real_RW = grad_fake_BW.to(self.device), grad_real_RW.to(self.device)
        self.critic.clear()
        if self.charged is None:
            of_fake, of_real = self.features.split([len(self.fake), len(self.real)])
            real = self.real_loss(self.real, self.between, grad_real_RW, of_real).mean()
            (real + self.made_loss(self.fake, grad_fake_BW, of_fake).mean()).backward()
        else:
            rng = self.streams.child("privacy", self.critic_steps).noise()
            real_rows, made_rows = (self.real, self.between, grad_real_RW), (self.fake, grad_fake_BW)
            scales = self.charged.scales(self.config.dp.clip)
            dpsgd.set_gradient(self.real_loss, real_rows, self.made_loss, made_rows, *scales, rng)
        if self.config.unsound:
            weights = self.critic.network.first.linears[0].parameters()
            gradients = [weight.grad for weight in weights if weight.grad is not None]
            clip = self.config.dp.clip / self.draws.batch  # gradients are means over the batch
            draw = self.streams.child("unsound", self.critic_steps).torch(self.device)
            noise_as_in_paper(gradients, clip, self.config.dp.noise, draw)
        self.critic.step()
        if self.config.slopes == "orthonormal":
            self.critic.network.keep_distances()

    # A step of the generator.

    def generate(self) -> Tensor:
        """Features (B, W) of made rows, for the update of the generator (line 13)."""
        step = self.generator_steps
        self.generator_steps += 1
        draw = self.streams.child("generator", step).torch(self.device)
        critic = self.critic.network
        with gan.frozen(critic):
            made = self._make(self.draws.noise(self.made, self.config.noise, f"generator {step}"), draw)
            self.features = critic.features(made)
        return self.features.detach().cpu()

    def set_generator_gradient(self, grad_fake_BW: Tensor) -> None:
        """Set the gradients of all parts, by -E[D_i] and the gradients of D_s (equations (17) and (18))."""
        check_tensor("Gradients of made rows", grad_fake_BW, *self.features.shape)
        for part in self.parts:
            part.clear()
        with gan.frozen(self.critic.network):
            judged = self.critic.network.judge(self.features)
        ((grad_fake_BW.to(self.device) * self.features).sum(1) - judged).mean().backward()

    def average(self) -> None:
        """Take the parts' weights as they are now into their moving averages, if these are wanted."""
        for average in self.averages:
            average.take()

    def _make(self, z_BZ: Tensor, draw: torch.Generator) -> Tensor:
        """Made rows (B, I)."""
        out = z_BZ.to(self.device)
        for part in self.parts:
            out = part.network(out)
        made: Tensor = self.output(out, draw)
        return made

    # Which weights are kept, and the rows that they make.

    def distance(self) -> float:
        """Distance between real rows and as many made ones, in this silo's columns (equation (23))."""
        draw = self.streams.child("distance", self.generator_steps).torch(self.device)
        z_NZ = self.draws.noise(len(self.rows), self.config.noise, f"distance {self.generator_steps}")
        drawn = self.draw(z_NZ, draw, self.weights())
        every = torch.arange(len(self.rows), device=self.device)
        real = self.rows.shape.vectors(*self.rows.batch(every, draw)).cpu()
        return models.frechet_distance(real, self.rows.shape.vectors(*drawn))

    def keep(self) -> None:
        """Keep the weights as they are."""
        self.best = _copies(self.weights())

    def weights(self) -> list[dict[str, Tensor]]:
        """Weights of each part, averaged where that is wanted."""
        return [average.weights for average in self.averages]

    @torch.no_grad()
    def draw(
        self, z_GZ: Tensor, draw: torch.Generator, weights: list[dict[str, Tensor]], match: Calibration | None = None
    ) -> tuple[Tensor, Tensor]:
        """Levels (G, C) and scores (G, S), by running statistics; corrected by `matching`, where that is given."""
        drawn = []
        for z_BZ in z_GZ.split(list(chunks(len(z_GZ), self.rows.shape.size)) or [0]):
            out = self._outputs(z_BZ, weights)
            matched = out if match is None else torch.cat(match.apply(*self._heads(out)), 1)
            drawn.append(self.output.draw(matched, draw))
        return joined(drawn)

    @torch.no_grad()
    def matching(self, shares_K: Tensor, weights: list[dict[str, Tensor]]) -> Calibration:
        """Corrections by which drawn rows have these shares of levels, and normal scores where those of training are.

        They cost no message, and no privacy budget: shares are counted with noise then (docs/decisions/0004).
        """
        draw, shape = self.streams.child("matching").torch(self.device), self.rows.shape
        buckets = autoencoder.Buckets(shape).to(self.device)
        rows = max(64, min(MATCHING, MOST_NUMBERS // max(1, shape.size)))
        z_GZ = torch.randn(rows, self.config.noise, generator=draw, device=self.device)
        match = calibrate(buckets, *self._heads(self._outputs(z_GZ, weights)), shares_K.to(self.device), draw)
        return match if self.config.numbers == "quantile" else replace(match, seen=match.meant.expand_as(match.seen))

    def _outputs(self, z_BZ: Tensor, weights: list[dict[str, Tensor]]) -> Tensor:
        """Outputs of the parts for z with these weights (B, K + S), by running statistics."""
        out = z_BZ.to(self.device)
        for part, these in zip(self.parts, weights, strict=True):
            part.network.eval()
            out = functional_call(part.network, these, (out,))
            part.network.train()
        return out

    def _heads(self, out_BI: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, K) and scores (B, S)."""
        return out_BI[:, : self.rows.shape.levels], out_BI[:, self.rows.shape.levels :]

    # State. No step is open at a checkpoint.

    def state(self, training: bool) -> dict[str, Any]:
        """All that is needed to continue; to sample, the weights of the parts that are released."""
        released = [{"network": weights, "moments": None} for weights in self.best or self.weights()]
        return {
            "parts": [part.state(training) for part in self.parts] if training else released,
            "averages": [average.state() if training else None for average in self.averages],
            "kept": self.best if training else [],
            "critic": self.critic.state(training) if training else None,
            "steps": [self.critic_steps, self.generator_steps],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        for part, stored in zip(self.parts, state["parts"], strict=True):
            part.restore(stored)
        self.best = _copies(state["kept"], self.device)
        for average, stored in zip(self.averages, state["averages"], strict=True):
            average.restore(stored)
        self.critic_steps, self.generator_steps = state["steps"]
        if state["critic"] is not None:
            self.critic.restore(state["critic"])


class SharedCritic:
    """The coordinator's critic D_s, which judges the features of all silos together; and its optimiser."""

    def __init__(
        self, silos: int, config: VFLGANConfig, charged: ChargedSteps | None, streams: Streams, device: torch.device
    ) -> None:
        self.silos, self.config, self.charged, self.device = silos, config, charged, device
        self.streams = streams
        critic = gan.make_critic(silos * config.critic[-1], config.shared, 1, 0.0, streams.child("weights").torch())
        self.critic = trainee(critic.to(device), config)
        self.real_loss = models.SharedRealLoss(self.critic.network, config.penalty)
        self.made_loss = models.SharedMadeLoss(self.critic.network)

    def descend(self, step: int, fake_BW: Tensor, real_RW: Tensor) -> tuple[Tensor, Tensor]:
        """Update D_s (equations (13) and (16)).

        Returns:
            λ1 times the gradients of its loss in the features, as it was before: of D_s in those of made rows (B, W),
            and of -D_s in those of real ones (R, W).
        """
        fake_BW, real_RW = fake_BW.to(self.device), real_RW.to(self.device)
        critic, stream = self.critic.network, self.streams.child("critic", step)
        draw = stream.torch(self.device) if self.charged is None else stream.noise()  # what real rows draw is secret
        with torch.no_grad():
            gradients = critic.input_gradient(fake_BW, ()), -critic.input_gradient(real_RW, ())
        between = _between(fake_BW, real_RW, draw, private=self.charged is not None)
        self.critic.clear()
        if self.charged is None:
            (self.made_loss(fake_BW).mean() + self.real_loss(real_RW, between).mean()).backward()
        else:
            rng, scales = self.streams.child("privacy", step).noise(), self.charged.scales(self.config.dp.clip)
            dpsgd.set_gradient(self.real_loss, (real_RW, between), self.made_loss, (fake_BW,), *scales, rng)
        self.critic.step()
        return self.config.lambda1 * gradients[0], self.config.lambda1 * gradients[1]

    @torch.no_grad()
    def gradient_of_generator_loss(self, fake_BW: Tensor) -> Tensor:
        """λ2 times the gradient (B, W) of the generators' loss in features of made rows (equation (17))."""
        return -self.config.lambda2 * self.critic.network.input_gradient(fake_BW.to(self.device), ())

    def split(self, all_BW: Tensor) -> list[Tensor]:
        """Each silo's own part."""
        return [part.contiguous() for part in all_BW.cpu().chunk(self.silos, dim=1)]

    def state(self) -> dict[str, Any]:
        """All that is needed to continue."""
        return self.critic.state(training=True)

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.critic.restore(state)


def _between(fake_BW: Tensor, real_RW: Tensor, draw: Draw, private: bool) -> Tensor:
    """Points (R, W) between real rows and made ones.

    Each real row has the made one of its place; with privacy one that is drawn for it, as which made row a real one
    meets must not depend on other rows.
    """
    beside = fake_BW[integers(draw, len(fake_BW), len(real_RW), fake_BW.device)] if private else fake_BW[: len(real_RW)]
    mix = uniforms(draw, len(real_RW), 1, device=fake_BW.device)
    return beside + mix * (real_RW - beside)


def _copies(states: Sequence[Mapping[str, Tensor]], device: torch.device | None = None) -> list[dict[str, Tensor]]:
    return [{name: value.detach().to(device, copy=True) for name, value in state.items()} for state in states]
