"""VFLGAN: a Wasserstein GAN with local critics and a shared one (Yuan, Yang, Gope, Pasikhani, Sikdar); and VertiGAN.

Columns of the same rows are spread over N silos. Each has a generator and a critic of its own columns; all generators
are fed the same z. The first part of each critic gives features, which a critic at the coordinator judges together.

=======================================  ====================================================================
paper, Algorithm 1                       here
=======================================  ====================================================================
initialise                               `begin`, `VFLGANSilo._prepare`, `VFLGANPart`, `SharedCritic`
the loop over epochs, T_d critic steps   `coordinate`, `_train_round`
a batch x^B of real rows                 `CommonDraws.batch_of`; with differential privacy `CommonDraws.sample_of`
z^B, and made rows G_i(z^B)              `CommonDraws.noise`, `LocalGAN._make`
losses L_Di                              `RealLoss`, `MadeLoss` of `models.vflgan`
loss L_Ds                                `SharedCritic.descend`, `SharedRealLoss`, `SharedMadeLoss`
update of D_i and D_s, (13) to (16)      `LocalGAN.descend_critic`, `SharedCritic.descend`
made rows anew, L_G (17)                 `LocalGAN.generate`, `SharedCritic.gradient_of_generator_loss`
update of G_i, (18) and (19)             `LocalGAN.set_generator_gradient`
clip and noise, (20) and (21)            `private.noise_as_in_paper`, for dp = "paper-unsound" alone
publication, (7)                         `synthesise`, `VFLGANSilo._synthesise`
=======================================  ====================================================================

Readings, and deviations, each an option:

* N silos, not two. The widths of networks are those of each silo, whatever its columns.
* An epoch is rows // batch critic steps, as in the public code; each T_d of them are followed by a generators' step.
  ``least_rounds`` (ours) is for small tables.
* ``local`` = False is VFLGAN-base: no second part. The paper doesn't say what bounds its first part, which would grow
  for ever without a bound; here it is the penalty on the sum of its features, or ``slopes`` = "orthonormal".
* ``slopes``: the penalty bounds D_i in rows, as in (8), or either part of it separately, as in the public code. That of
  D_s is between features, as in Algorithm 1; the public code takes features of rows between. With "orthonormal" (ours)
  first parts lengthen no distance, a penalty in features bounds gradients in rows, and VFLGAN-base has none in silos.
* Points between real and made rows are drawn by each critic separately.
* λ1 weighs the loss of D_s in the local critics' (8), not in its own (13).
* ``norm_epsilon`` = 0.8 is the public code's, by mistake: it is what batch normalisation adds to variances.
* ``select`` = "frechet": the paper keeps the weights that are nearest to the pooled real rows, which nobody has here.
  Each silo measures the distance of its own columns, and their sum decides. That leaves out how columns of different
  silos depend on each other.
* ``calibrate`` (ours): when rows are drawn, each silo shifts levels and scores to their marginals in training.
* ``dp``: the paper's mechanism protects nobody (docs/algorithms/vflgan.md); ``dp.epsilon`` is for one that does.

An exchange per step: the message with the gradients of a step also asks for the features of the next.

Who learns what, besides synthetic columns:

* the coordinator: the number of rows; of each step **features of a batch of real rows, un-noised**, of every silo; with
  ``select`` = "frechet" the distances. It knows neither which rows those are nor z: both come from a secret that the
  silos agree on, new for each training. But rows with equal values have equal features, so that rows can be followed.
* other silos: which rows are in a batch, and gradients of D_s in the features of its rows, which depend on all columns.
* whoever gets the model or the synthetic table: what the noise of ``dp`` leaves; without it there is no guarantee.

With differential privacy the noise protects rows from whoever gets the released model or table, and **not from the
coordinator or the silos**, who see un-noised features and gradients.

**VertiGAN** (Jiang et al. 2023), as VFLGAN, section 2.3, describes it: a GAN per silo, whose generators share a part.
Each silo has a generator and a critic of its own columns, and trains both by itself (4): `VertiGANPart`. The first
layers of all generators, the backbone G_b, are the same network: it begins with the same weights, is fed the same z,
and is updated by the sum of all silos' gradients (5). Nothing else ties columns of different silos together. One
exchange per round: the message with the summed gradient of the last round begins the next. With differential privacy
each silo's critic is a block of its own, and there is none at the coordinator. The coordinator learns each silo's
gradients of the backbone, which come from made rows and from critics that were trained on real ones; other silos learn
the sums, and which rows are in a batch. With a single silo it is the Wasserstein GAN with gradient penalty of Gulrajani
et al. 2017: the catalogue's "wgan-gp".

Shapes: B made rows, R real rows of a batch, W features (of one silo, or of all), P numbers of the backbone.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from silosynth.algorithms.vflgan import networks, private
from silosynth.algorithms.vflgan.options import GANConfig, VertiGANConfig, VFLGANConfig
from silosynth.core import conversation
from silosynth.core.conversation import Checkpoint, Conversation, Progress, Replies, Roster, State, expect
from silosynth.core.messages import Done, Message, Release, Rows, from_state, to_state
from silosynth.core.schema import Table
from silosynth.core.streams import Streams
from silosynth.privacy import accounting, agreement

BATCHES = "vflgan: batches"  # purpose of the secret from which rows and noise of every step are drawn
PUBLICATION = "vflgan: publication"  # and of that from which a synthetic table's noise is drawn
REPORTS = 200  # times that a training reports progress, and can be resumed from
NOTHING = torch.zeros(0)


class PrivacyWarning(UserWarning):
    """A setting looks like protection, and protects nobody."""


# Messages, in talking order.


class VFLGANPrepare(Message, common=True):
    """Fit your encoders and make your networks."""


class VFLGANPrepared(Message, release=Release.COUNTS):
    """My number of rows. ``nonce`` makes the secret of this training a new one."""

    rows: int
    nonce: str


class VFLGANPreparedPrivately(accounting.EncodersLearnt):
    """The same with noise, and what that and the encoders have cost."""


class CriticiseBatch(Message, common=True):
    """Send the features of the next critic step."""


class BatchFeatures(Message, release=Release.ROWS):
    """Features of made rows (B, W) and of real ones (R, W)."""

    fake_BW: Tensor
    real_RW: Tensor


class DescendLocalCritic(Message, release=Release.GRADIENTS):
    """λ1 times the gradients of the loss of D_s in your features: update your critic. ``more``: then another step."""

    grad_fake_BW: Tensor
    grad_real_RW: Tensor
    more: bool


class MadeFeatures(Message, release=Release.MADE):
    """Features (B, W) of made rows, for the update of the generator."""

    fake_BW: Tensor


class DescendLocalGenerator(Message):
    """λ2 times the gradients of -D_s in your features: update your generator. ``more``: then another critic step."""

    grad_fake_BW: Tensor
    more: bool


class BackboneRound(Message, common=True):
    """VertiGAN: update the backbone by this sum of gradients (P,), none before the first round; train if ``more``."""

    grad_sum_P: Tensor
    more: bool


class BackboneGradient(Message, release=Release.GRADIENTS):
    """My gradient (P,) of the backbone."""

    gradient_P: Tensor


class MeasureDistance(Message, common=True):
    """Measure the distance between rows that your generator makes now, and your own."""


class MeasuredDistance(Message, release=Release.STATISTICS):
    """The Fréchet distance of my columns."""

    distance: float


class KeepBestWeights(Message, common=True):
    """Keep the generator's weights as they are now: they are the best so far."""


class VFLGANSynthesise(Message, common=True):
    """Make ``rows`` rows from the secret of the publication ``draw``."""

    rows: Rows[int]
    draw: str


# Training.


def coordinate(
    roster: Roster, config: VFLGANConfig, streams: Streams, device: torch.device, state: State | None = None
) -> Conversation[State]:
    """Train VFLGAN; returns the coordinator's part of the model: the number of rows and the training's name."""
    state = (yield from begin(roster, config)) if state is None else state
    charged = None if state["budget"] is None else from_state(private.ChargedSteps, state["budget"])
    shared = networks.SharedCritic(len(roster), config, charged, streams, device)
    if "shared" in state:
        shared.restore(state["shared"])
    train_round = partial(_train_round, roster, config, shared)
    return (yield from _train(roster, config, state, CriticiseBatch(), train_round, lambda: {"shared": shared.state()}))


def coordinate_vertigan(
    roster: Roster, config: VertiGANConfig, streams: Streams, device: torch.device, state: State | None = None
) -> Conversation[State]:
    """Train VertiGAN; returns the same as `coordinate`."""
    state = (yield from begin(roster, config)) if state is None else state
    return (yield from _train(roster, config, state, BackboneRound(NOTHING, True), partial(_backbone_round, roster)))


def begin(roster: Roster, config: VFLGANConfig | VertiGANConfig) -> Conversation[State]:
    """Encoders, the secret of batches, and the charge."""
    if config.unsound:
        warnings.warn(
            "dp = 'paper-unsound' is the published mechanism, whose proof is wrong: it protects nobody and no epsilon "
            "can be stated. For a guarantee give dp = {epsilon, delta}.",
            PrivacyWarning,
            stacklevel=2,
        )
    replies = yield roster.everyone(VFLGANPrepare())
    if config.dp.private:
        learnt = expect(replies, VFLGANPreparedPrivately)
        charge = yield from accounting.agree_and_charge(roster, BATCHES, learnt, partial(private.solve, config))
        nonces, charged = [reply.nonce for reply in learnt], private.charged_steps(charge, config, len(roster))
        more: State = {"rows": charge.rows, "budget": to_state(charged)}
    else:
        exact = expect(replies, VFLGANPrepared)
        conversation.check_same_rows(roster, [reply.rows for reply in exact])
        nonces, more = [reply.nonce for reply in exact], {"rows": exact[0].rows, "budget": None}
        yield from agreement.agree(roster, agreement.new_purpose(BATCHES, nonces), fresh=False)
        if config.unsound:  # nothing is solved for: silos list the event themselves
            expect((yield roster.everyone(accounting.Charge(exact[0].rows, (), ()))), accounting.Charged)
    run = hashlib.sha256(" ".join(nonces).encode()).hexdigest()[:16]
    return {"round": 0, "run": run, "best": float("inf"), **more}


def _train(
    roster: Roster, config: GANConfig, state: State, start: Message,
    train_round: Callable[[int, Replies, bool], Conversation[Replies]],
    save: Callable[[], State] = dict,
) -> Conversation[State]:  # fmt: skip
    """All rounds. After each report, ``start`` begins the next one; a round not before a report begins its next."""
    rounds = config.rounds(state["rows"])
    replies: Replies = {}
    for number in range(state["round"], rounds):
        if _reports(number, rounds):
            yield Progress("adversarial training", number, rounds)
            yield Checkpoint({**state, "round": number, **save()})
            replies = yield roster.everyone(start)
        last = _reports(number + 1, rounds)
        replies = yield from train_round(number, replies, not last)
        if last:
            expect(replies, Done)
        if last and config.select != "last":
            state["best"] = yield from _choose(roster, state["best"])
    yield Progress("adversarial training", rounds, rounds)
    return {"rows": state["rows"], "run": state["run"]}


def _reports(number: int, rounds: int) -> bool:
    """Whether training reports before round ``number``; before the first always, and after the last."""
    return number % max(1, rounds // REPORTS) == 0 or number == rounds


def _train_round(
    roster: Roster, config: VFLGANConfig, shared: networks.SharedCritic, number: int, replies: Replies, more: bool
) -> Conversation[Replies]:
    """T_d critic steps, then one of the generators. From the features of the first to those that come next."""
    for i in range(config.critic_steps):
        features = expect(replies, BatchFeatures)
        fake_BW = torch.cat([reply.fake_BW for reply in features], dim=1)
        real_RW = torch.cat([reply.real_RW for reply in features], dim=1)
        gradients = shared.descend(number * config.critic_steps + i, fake_BW, real_RW)
        parts = zip(roster, *map(shared.split, gradients), strict=True)
        again = i + 1 < config.critic_steps
        replies = yield roster.each({silo: DescendLocalCritic(fake, real, again) for silo, fake, real in parts})
    fake_BW = torch.cat([reply.fake_BW for reply in expect(replies, MadeFeatures)], dim=1)
    ends = zip(roster, shared.split(shared.gradient_of_generator_loss(fake_BW)), strict=True)
    return (yield roster.each({silo: DescendLocalGenerator(gradient, more) for silo, gradient in ends}))


def _backbone_round(roster: Roster, number: int, replies: Replies, more: bool) -> Conversation[Replies]:
    """Equation (5) of VertiGAN: sum the gradients of a round."""
    grad_sum_P = torch.stack([reply.gradient_P for reply in expect(replies, BackboneGradient)]).sum(0)
    return (yield roster.everyone(BackboneRound(grad_sum_P, more)))


def _choose(roster: Roster, best: float) -> Conversation[float]:
    """Have silos keep the weights if they are the best so far; returns the least distance."""
    measured = expect((yield roster.everyone(MeasureDistance())), MeasuredDistance)
    distance = sum(reply.distance for reply in measured)
    if distance < best:
        expect((yield roster.everyone(KeepBestWeights())), Done)
    return min(best, distance)


# Publication.


def synthesise(
    roster: Roster, config: GANConfig, model: State, rows: int, streams: Streams, device: torch.device
) -> Conversation[dict[str, Table]]:
    """Make ``rows`` synthetic rows; each silo's columns, or none where they stay partitioned.

    z comes from a secret of the silos, so that the coordinator cannot tell which z made which row.
    """
    draw = f"{'/'.join(streams.path)} of {model['run']}"
    yield from agreement.agree(roster, f"{PUBLICATION} {draw}", fresh=False)
    replies = yield roster.everyone(VFLGANSynthesise(rows, draw))
    return conversation.shared_columns(replies)
