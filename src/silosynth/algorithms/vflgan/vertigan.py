"""VertiGAN (Jiang et al. 2023), as VFLGAN, section 2.3, describes it: a GAN per silo, of which generators share a part.

Each silo has a generator and a critic of its own columns, and trains both by itself (4). The first layers of all
generators, the backbone G_b, are the same network: it begins with the same weights, is fed the same z, and is updated
by the sum of all silos' gradients (5). Nothing else ties columns of different silos together.

One exchange per round: the message with the summed gradient of the last round begins the next. With differential
privacy each silo's critic is a block of its own, and there is none at the coordinator.

With a single silo it is the Wasserstein GAN with gradient penalty of Gulrajani et al. 2017: the catalogue's "wgan-gp".

Who learns what: the coordinator the number of rows, and each silo's gradients of the backbone, which come from made
rows and from critics that were trained on real ones; other silos the sums, and which rows are in a batch. The rest is
as in VFLGAN: see `conversation`.

Shapes: P numbers of the backbone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from silosynth.algorithms.vflgan.conversation import Plan, begin, choose, said
from silosynth.algorithms.vflgan.draws import Draws, seeded
from silosynth.algorithms.vflgan.local import Budget, Local
from silosynth.algorithms.vflgan.messages import VertiGANConfig
from silosynth.algorithms.vflgan.silo import Silo
from silosynth.core.conversation import Checkpoint, Conversation, Progress
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Done, Message, Release
from silosynth.core.roster import Roster
from silosynth.core.streams import Streams
from silosynth.models.encoded import EncodedRows
from silosynth.models.layers import build
from silosynth.models.training import trainee
from silosynth.models.vflgan import Generator

NOTHING = torch.zeros(0)


@dataclass(frozen=True, slots=True)
class Round(Message):
    """Update the backbone by this sum of gradients (P,), none before the first round. ``more``: then train on."""

    sum_P: Tensor
    more: bool


@dataclass(frozen=True, slots=True)
class BackboneGradient(Message):
    """My gradient (P,) of the backbone."""

    release: ClassVar[Release] = Release.GRADIENTS
    gradient_P: Tensor


class Backboned:
    """A silo's part in training."""

    def __init__(
        self, coded: EncodedRows, config: VertiGANConfig, draws: Draws, budget: Budget | None, streams: Streams,
        device: torch.device,
    ) -> None:  # fmt: skip
        shared, own = config.generator[: config.backbone], config.generator[config.backbone :]
        weights = streams.child("weights", "generator").torch()  # of the head; of the backbone where only to sample
        common = seeded(draws.secret, "backbone") if draws.secret.ready else weights
        backbone = build(Generator, config.noise, shared, None, config.norm_epsilon, True, generator=common)
        head = build(Generator, shared[-1], own, coded.shape.size, config.norm_epsilon, False, generator=weights)
        self.backbone, self.head = (trainee(network.to(device), config) for network in (backbone, head))
        self.local = Local(coded, config, [self.backbone, self.head], draws, budget, streams, device)
        self.critic_steps, self.open = config.critic_steps, False

    def answer(self, ask: Message) -> Message | None:
        """The answer to a message of training; None if ``ask`` is not one."""
        if not isinstance(ask, Round):
            return None
        if self.open != bool(len(ask.sum_P)):
            raise ProtocolError("A sum of gradients follows a round, and ends it", len(ask.sum_P))
        if self.open:
            self._descend_backbone(ask.sum_P)
        self.open = ask.more
        return BackboneGradient(self._round()) if ask.more else Done()

    def _round(self) -> Tensor:
        """T_d critic steps and the head's one, as in a Wasserstein GAN (4); gradient (P,) of the backbone."""
        for _ in range(self.critic_steps):
            fake_BW, real_RW = self.local.criticise()
            self.local.descend_critic(torch.zeros_like(fake_BW), torch.zeros_like(real_RW))
        self.local.generator_gradient(torch.zeros_like(self.local.generate()))
        self.head.step()
        gradients = [weight.grad for weight in self.backbone.network.parameters()]
        return torch.cat([gradient.flatten().cpu() for gradient in gradients if gradient is not None])

    def _descend_backbone(self, sum_P: Tensor) -> None:
        """Equation (5), and the step."""
        weights = list(self.backbone.network.parameters())
        parts = sum_P.to(self.local.device).split([weight.numel() for weight in weights])
        for weight, part in zip(weights, parts, strict=True):
            weight.grad = part.reshape(weight.shape)
        self.backbone.step()
        self.local.average()

    def state(self, training: bool) -> dict[str, Any]:
        """See `Local.state`. No round is open at a checkpoint."""
        return self.local.state(training)

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.local.restore(state)


VertiGANSilo = partial(Silo, make=Backboned)


def coordinate(
    roster: Roster, config: VertiGANConfig, streams: Streams, device: torch.device, state: dict[str, Any] | None = None
) -> Conversation[dict[str, Any]]:
    """Train; returns the coordinator's part of the model, which is the number of rows and the training's name."""
    state = (yield from begin(roster, config)) if state is None else state
    plan = Plan(config.rounds(state["rows"]))
    for number in range(state["round"], plan.rounds):
        if plan.reports(number):
            yield Progress("adversarial training", number, plan.rounds)
            yield Checkpoint({**state, "round": number})
            replies = yield roster.everyone(Round(NOTHING, True))
        last = plan.reports(number + 1)
        total_P = torch.stack([reply.gradient_P for reply in said(replies, BackboneGradient)]).sum(0)
        replies = yield roster.everyone(Round(total_P, not last))
        if last:
            state["best"] = yield from choose(roster, config, state["best"])
    yield Progress("adversarial training", plan.rounds, plan.rounds)
    return {"rows": state["rows"], "run": state["run"]}
