"""A silo of VFLGAN or VertiGAN: its columns, what it charges for, its part in training, and what it publishes.

Shapes: N rows, C columns with levels, S scores, K levels of all columns, W features, P numbers of the backbone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from silosynth.algorithms.vflgan import networks, options, private, protocol
from silosynth.core.conversation import State, Turn, check_tensor, often, once
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import Done, Message, from_state, to_state
from silosynth.core.streams import Streams
from silosynth.encoders.table import ColumnParty
from silosynth.models.encoded import EncodedRows, encoded_rows, shape_of
from silosynth.models.marginals import Calibration, level_shares
from silosynth.models.training import build, trainee
from silosynth.models.vflgan import MOST_COVARIANCES, Generator
from silosynth.privacy import accounting, agreement
from silosynth.privacy.events import Event


class VFLGANPart(networks.LocalGAN):
    """A silo's part in training VFLGAN: each answer to gradients of D_s begins the next step."""

    ASKS = protocol.CriticiseBatch, protocol.DescendLocalCritic, protocol.DescendLocalGenerator

    def __init__(
        self, rows: EncodedRows, config: options.GANConfig, draws: networks.CommonDraws,
        charged: private.ChargedSteps | None, account: accounting.Account, streams: Streams, device: torch.device,
    ) -> None:  # fmt: skip
        generator = build(
            Generator, config.noise, config.generator, rows.shape.size, config.norm_epsilon, True,
            generator=streams.child("weights", "generator").torch(),
        )  # fmt: skip
        parts = [trainee(generator.to(device), config)]
        super().__init__(rows, config, parts, draws, charged, account, streams, device)
        self.awaited: type[Message] | None = None  # what gradients are awaited for

    def answer(self, ask: Message) -> Message | None:
        """The answer to a message of training; None if ``ask`` is not one.

        Raises:
            ProtocolError: gradients come for another step than the last; or the step is beyond what was charged.
        """
        match ask:
            case protocol.CriticiseBatch():
                return self._features()
            case protocol.DescendLocalCritic():
                self._check_awaited(protocol.DescendLocalCritic)
                self.descend_critic(ask.grad_fake_BW, ask.grad_real_RW)
                if ask.more:
                    return self._features()
                self.awaited = protocol.DescendLocalGenerator
                return protocol.MadeFeatures(self.generate())
            case protocol.DescendLocalGenerator():
                self._check_awaited(protocol.DescendLocalGenerator)
                self.set_generator_gradient(ask.grad_fake_BW)
                self.parts[0].step()
                self.average()
                return self._features() if ask.more else Done()
            case _:
                return None

    def _features(self) -> protocol.BatchFeatures:
        self.awaited = protocol.DescendLocalCritic
        return protocol.BatchFeatures(*self.criticise())

    def _check_awaited(self, kind: type[Message]) -> None:
        awaited, self.awaited = self.awaited, None
        if awaited is not kind:
            name = "none" if awaited is None else awaited.__name__
            raise ProtocolError("Gradients follow the features that they belong to", name)


class VertiGANPart(networks.LocalGAN):
    """A silo's part in training VertiGAN: backbone G_b, which all silos share, and head of its generator."""

    ASKS = (protocol.BackboneRound,)

    def __init__(
        self, rows: EncodedRows, config: options.VertiGANConfig, draws: networks.CommonDraws,
        charged: private.ChargedSteps | None, account: accounting.Account, streams: Streams, device: torch.device,
    ) -> None:  # fmt: skip
        shared, own = config.generator[: config.backbone], config.generator[config.backbone :]
        weights = streams.child("weights", "generator").torch()  # of the head; of the backbone where only to sample
        common = draws.generator("backbone") if draws.secret.ready else weights
        backbone = build(Generator, config.noise, shared, None, config.norm_epsilon, True, generator=common)
        head = build(Generator, shared[-1], own, rows.shape.size, config.norm_epsilon, False, generator=weights)
        self.backbone, self.head = (trainee(network.to(device), config) for network in (backbone, head))
        super().__init__(rows, config, [self.backbone, self.head], draws, charged, account, streams, device)
        self.awaiting = False  # whether a sum of gradients is awaited

    def answer(self, ask: Message) -> Message | None:
        """The answer to a message of training; None if ``ask`` is not one.

        Raises:
            ProtocolError: a sum of gradients without a round, or none after one; or a step beyond what was charged.
        """
        if not isinstance(ask, protocol.BackboneRound):
            return None
        if self.awaiting != bool(len(ask.grad_sum_P)):
            raise ProtocolError("A sum of gradients follows a round, and ends it", len(ask.grad_sum_P))
        if self.awaiting:
            self._descend_backbone(ask.grad_sum_P)
        self.awaiting = ask.more
        return protocol.BackboneGradient(self._round()) if ask.more else Done()

    def _round(self) -> Tensor:
        """T_d critic steps and the head's one, as in a Wasserstein GAN (4); gradient (P,) of the backbone."""
        for _ in range(self.config.critic_steps):
            fake_BW, real_RW = self.criticise()
            self.descend_critic(torch.zeros_like(fake_BW), torch.zeros_like(real_RW))
        self.set_generator_gradient(torch.zeros_like(self.generate()))
        self.head.step()
        gradients = [weight.grad for weight in self.backbone.network.parameters()]
        return torch.cat([gradient.flatten().cpu() for gradient in gradients if gradient is not None])

    def _descend_backbone(self, grad_sum_P: Tensor) -> None:
        """Equation (5), and the step."""
        weights = list(self.backbone.network.parameters())
        check_tensor("The sum of gradients", grad_sum_P, sum(weight.numel() for weight in weights))
        gradients = grad_sum_P.to(self.device).split([weight.numel() for weight in weights])
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient.reshape(weight.shape)
        self.backbone.step()
        self.average()


class VFLGANSilo(ColumnParty):
    """A silo's side. ``part`` is its part in training: of VFLGAN, or of VertiGAN."""

    part: type[VFLGANPart | VertiGANPart] = VFLGANPart

    def _set_up(self) -> None:
        self.silos = len(self.seat.roster)
        self.secret, self.publication = agreement.Group(self.seat), agreement.Group(self.seat)
        rule = "Silos agree on a secret for a training that this one was prepared for, or for a publication"
        self.agreements = agreement.Agreements(rule, self._group_for, self.secret)
        self.config: options.GANConfig
        self.account = accounting.Account()
        self.charged: private.ChargedSteps | None = None
        self.shares = torch.zeros(0)  # of rows on each level (K,), once counted; noised with differential privacy
        self.training: VFLGANPart | VertiGANPart | None = None
        self.match: Calibration | None = None  # of drawn rows, computed when first needed

    def _script(self, training: bool) -> tuple[Turn, ...]:
        if not training:
            return often(*agreement.ASKS, protocol.VFLGANSynthesise)
        charge = once(accounting.Charge) if self.config.dp.private or self.config.unsound else ()
        choosing = () if self.config.select == "last" else (protocol.MeasureDistance, protocol.KeepBestWeights)
        return (*once(protocol.VFLGANPrepare, *agreement.ASKS), *charge, *often(*self.part.ASKS, *choosing))

    def _answer(self, ask: Message) -> Message:
        if (reply := self.agreements.answer(ask)) is not None:
            return reply
        match ask:
            case protocol.VFLGANPrepare():
                return self._prepare()
            case accounting.Charge():
                return self._charge(ask)
            case protocol.MeasureDistance():
                return self._measure_distance()
            case protocol.KeepBestWeights():
                self.match = None
                self._trainer().keep()
                return Done()
            case protocol.VFLGANSynthesise():
                return self._synthesise(ask)
            case _:
                self.match = None  # weights change
                reply = self._trainer().answer(ask)
        if reply is None:
            raise ProtocolError("A VFLGAN silo does not understand this message", type(ask).__name__)
        return reply

    # Encoders, the secret, and what is charged.

    def _prepare(self) -> protocol.VFLGANPrepared | protocol.VFLGANPreparedPrivately:
        """Section 5.1.1, preprocessing."""
        config, dp = self.config, self.config.dp
        if dp.private:
            learnt = self.columns.learn(config.encoders, dp, self.silos)
            self.account.begin(dp, learnt.events)
            self.shares = torch.cat([torch.zeros(0), *(part.float() for part in learnt.shares if len(part) > 1)])
            return protocol.VFLGANPreparedPrivately(learnt.rows, self._nonce(), learnt.events)
        self.columns.fit(config.encoders, config.numbers)
        size = shape_of(self.columns.encoders).size
        if config.select == "frechet" and size > MOST_COVARIANCES:
            rule = f"Option select = 'frechet' is for rows of at most {MOST_COVARIANCES} numbers"
            raise ConfigError(rule, size, "Set select = 'last'.")
        return protocol.VFLGANPrepared(len(self.columns.table), self._nonce())

    def _nonce(self) -> str:
        """A word that no other training has."""
        return f"{self.streams.child('nonce', repr(self.config)).integer():016x}"

    def _group_for(self, ask: agreement.OfferShares) -> agreement.Group | None:
        """The secret of this training, whose purpose contains this silo's nonce; or of a publication."""
        if agreement.is_new(ask, protocol.BATCHES, self._nonce()):
            return self.secret
        return self.publication if ask.purpose.startswith(protocol.PUBLICATION) and not ask.fresh else None

    def _charge(self, ask: accounting.Charge) -> accounting.Charged:
        """Charge all steps before the first."""
        if self.config.unsound:
            return accounting.Charged(b"", private.UNSOUND)
        tag = self.secret.key(f"{len(self.columns.table)} rows")
        reply = self.account.charge_joint(ask, self.silos, tag, private.STEPS)
        self.charged = private.charged_steps(ask, self.config, self.silos)
        return reply

    # Training.

    def _trainer(self) -> VFLGANPart | VertiGANPart:
        """This silo's part in training; made when it is first needed."""
        if self.training is None:
            if not self.secret.ready or (self.config.dp.private and self.charged is None):
                raise ProtocolError("Silos train after they have agreed on a secret, and charged for all steps")
            return self._make()
        return self.training

    def _make(self) -> VFLGANPart | VertiGANPart:
        """Networks, and encoded rows, if there are any; a table of constants has one score, always 0."""
        self.rows = encoded_rows(self.columns.encoders, self.columns.encode(), self.device, padded=True)
        n, config = len(self.rows), self.config
        batch = min(config.batch, max(1, n)) if self.charged is None else round(self.charged.expected)
        draws = networks.CommonDraws(self.secret, n, batch)
        parts = self.rows, config, draws, self.charged, self.account, self.streams, self.device
        self.training = self.part(*parts)  # type: ignore[arg-type]
        if n and not config.dp.private:
            self.shares = level_shares(self.rows.shape, self.rows.levels).cpu()
        if config.start == "shares" and n and self.secret.ready:
            self.training.start(self.shares)
        return self.training

    @torch.no_grad()
    def features(self) -> Tensor:
        """Features (N, W) of all rows, by the first part of the critic as it is now (section 4.2, ASIF)."""
        training, every = self._trainer(), torch.arange(len(self.columns.table), device=self.device)
        rows = self.rows.batch(every, self.streams.child("features").torch(self.device))
        return training.critic.network.features(self.rows.shape.vectors(*rows)).cpu()

    def _measure_distance(self) -> protocol.MeasuredDistance:
        """The distance of made rows from real ones: exact, and charged to nothing; not with differential privacy."""
        return protocol.MeasuredDistance(self._trainer().distance())

    # Publication.

    def _synthesise(self, ask: protocol.VFLGANSynthesise) -> Message:
        """G_i(z) of a z that all silos share and nobody else knows (equation (7))."""
        if self.publication.purpose != f"{protocol.PUBLICATION} {ask.draw}" or self.training is None:
            raise ProtocolError("Silos agree on the noise of a publication before it", ask.draw, "Agree on it first.")
        training, streams = self.training, self.streams.child("synthesise", ask.draw)
        z_GZ = networks.CommonDraws(self.publication, 0, 1).noise(ask.rows, self.config.noise, "publication")
        weights = training.best or training.weights()
        if self.config.calibrate and self.match is None:
            self.match = training.matching(self.shares, weights)
        levels, scores = training.draw(z_GZ, streams.child("levels").torch(self.device), weights, self.match)
        return self.publish(self.columns.decode(levels, scores, streams), self._shares)

    # State.

    def _restore(self, state: State) -> None:
        self.match = None
        self.columns.restore(state["encoders"])
        if not self.columns.encoders:
            return
        self.shares = state["shares"]
        self.charged = None if state["budget"] is None else from_state(private.ChargedSteps, state["budget"])
        if state["group"] is None:
            self.account.begin(self.config.dp, [from_state(Event, event) for event in state["events"]])
        else:
            self.account.restore(state["account"])
            self.secret.restore(state["group"])
        if state["training"] is not None:
            self._make().restore(state["training"])

    def _state(self, training: bool) -> State:
        """Encoders and networks; with ``training`` also optimisers, what was charged, and the secret of batches."""
        if not self.columns.encoders:
            return {"encoders": []}
        return {
            "encoders": self.columns.state(),
            "events": [to_state(event) for event in self.account.learnt],
            "shares": self.shares if training or self.config.calibrate else torch.zeros(0),
            "config": to_state(self.config),
            "budget": None if self.charged is None else to_state(self.charged),
            "account": self.account.state() if training else None,
            "group": self.secret.state() if training else None,
            "training": None if self.training is None else self.training.state(training),
        }


class VertiGANSilo(VFLGANSilo):
    """A silo's side of VertiGAN."""

    part = VertiGANPart
