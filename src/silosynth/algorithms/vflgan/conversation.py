"""VFLGAN: a Wasserstein GAN with local critics and a shared one (Yuan, Yang, Gope, Pasikhani, Sikdar).

Columns of the same rows are spread over N silos. Each has a generator and a critic of its own columns; all generators
are fed the same z. The first part of each critic gives features, which a critic at the coordinator judges together.

=======================================  ====================================================================
paper, Algorithm 1                       here
=======================================  ====================================================================
initialise                               `_begin`, `Silo._prepare`, `Split`, `Shared`
the loop over epochs, T_d critic steps   `coordinate`, `_train_round`
a batch x^B of real rows                 `Draws.batch_of`; with differential privacy `Draws.sample_of`
z^B, and made rows G_i(z^B)              `Draws.noise`, `Local._make`
losses L_Di                              `RealLoss`, `MadeLoss` of `models.vflgan`
loss L_Ds                                `Shared.descend`, `SharedRealLoss`, `SharedMadeLoss`
update of D_i and D_s, (13) to (16)      `Local.descend_critic`, `Shared.descend`
made rows anew, L_G (17)                 `Local.generate`, `Shared.slopes`
update of G_i, (18) and (19)             `Local.generator_gradient`
clip and noise, (20) and (21)            `Local._noise_first_layer`, for dp = "paper-unsound" alone
publication, (7)                         `synthesise`, `Silo._synthesise`
=======================================  ====================================================================

Readings, and deviations, each an option:

* N silos, not two. The widths of networks are those of each silo, whatever its columns.
* An epoch is rows // batch critic steps, as in the public code; each T_d of them are followed by a generators' step.
  ``least_rounds`` (ours) is for small tables.
* ``local`` = False is VFLGAN-base: no second part. What bounds its first part, the paper doesn't say, and without a
  bound it would grow for ever; here it is the penalty on the sum of its features, or ``slopes`` = "orthonormal".
* ``slopes``: the penalty bounds D_i in rows, as in (8), or either part of it by itself, as in the public code. That of
  D_s is between features, as in Algorithm 1; the public code takes features of rows between. With "orthonormal" (ours)
  first parts lengthen no distance, a penalty in features bounds slopes in rows, and VFLGAN-base has none in silos.
* Points between real and made rows are drawn by each critic for itself.
* λ1 weighs D_s' loss in the local critics' (8), not in its own (13).
* ``norm_epsilon`` = 0.8 is the public code's, by mistake: it is what batch normalisation adds to variances.
* ``select`` = "frechet": the paper keeps the weights that are nearest to the pooled real rows, which nobody has here.
  Each silo takes the distance of its own columns, and their sum decides. That leaves out how columns of different
  silos depend on each other.
* ``calibrate`` (ours): when rows are drawn, each silo shifts levels and scores to their marginals in training.
* ``dp``: the paper's mechanism protects nobody (docs/algorithms/vflgan.md); ``dp.epsilon`` is for one that does.

An exchange per step: the message with the slopes of a step also asks for the features of the next.

Who learns what, besides synthetic columns:

* the coordinator: the number of rows; of each step **features of a batch of real rows, un-noised**, of every silo; with
  ``select`` = "frechet" the distances. It knows neither which rows those are nor z: both come from a secret that the
  silos agree on, new for each training. But rows with equal values have equal features, so that rows can be followed.
* other silos: which rows are in a batch, and D_s' slopes at the features of its rows, which depend on all columns.
* whoever gets the model or the synthetic table: what the noise of ``dp`` leaves; without it there is no guarantee.

With differential privacy the noise protects rows from whoever gets the released model or table, and **not from the
coordinator or the silos**, who see un-noised features and slopes.

Shapes: B made rows, R real rows of a batch, W features of all silos.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from silosynth.algorithms.vflgan.local import Budget
from silosynth.algorithms.vflgan.messages import (
    BATCHES,
    PUBLICATION,
    Charge,
    Charged,
    Criticise,
    DescendCritic,
    DescendGenerator,
    FakeFeatures,
    Features,
    GANConfig,
    Judge,
    Judged,
    Keep,
    Prepare,
    Prepared,
    PreparedPrivately,
    Synthesise,
    SyntheticColumns,
    VertiGANConfig,
    VFLGANConfig,
)
from silosynth.algorithms.vflgan.shared import Shared
from silosynth.core.conversation import Checkpoint, Conversation, Progress, Replies
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Message
from silosynth.core.roster import Roster
from silosynth.core.schema import Table
from silosynth.core.state import from_state, to_state
from silosynth.core.streams import Streams
from silosynth.privacy.agreement import agree

M = TypeVar("M", bound=Message)
REPORTS = 200  # times that a run says how far it is, and can be resumed from


class PrivacyWarning(UserWarning):
    """A setting looks like protection, and protects nobody."""


def coordinate(
    roster: Roster, config: VFLGANConfig, streams: Streams, device: torch.device, state: dict[str, Any] | None = None
) -> Conversation[dict[str, Any]]:
    """Train; returns the coordinator's part of the model, which is the number of rows and the training's name."""
    state = (yield from begin(roster, config)) if state is None else state
    budget = None if state["budget"] is None else from_state(Budget, state["budget"])
    shared = Shared(len(roster), config, budget, streams, device)
    if "shared" in state:
        shared.restore(state["shared"])
    plan = Plan(config.rounds(state["rows"]))
    for number in range(state["round"], plan.rounds):
        if plan.reports(number):
            yield Progress("adversarial training", number, plan.rounds)
            yield Checkpoint({**state, "round": number, "shared": shared.state()})
            replies = yield roster.everyone(Criticise())
        last = plan.reports(number + 1)
        replies = yield from _train_round(roster, config, shared, number, replies, more=not last)
        if last:
            state["best"] = yield from choose(roster, config, state["best"])
    yield Progress("adversarial training", plan.rounds, plan.rounds)
    return {"rows": state["rows"], "run": state["run"]}


@dataclass(frozen=True)
class Plan:
    """When a training of so many rounds stops to report."""

    rounds: int

    def reports(self, number: int) -> bool:
        """Whether a report comes before round ``number``; before the first always, and after the last."""
        return number % max(1, self.rounds // REPORTS) == 0 or number == self.rounds


def begin(roster: Roster, config: VFLGANConfig | VertiGANConfig) -> Conversation[dict[str, Any]]:
    """Encoders, the secret of batches, and the budget."""
    if config.unsound:
        warnings.warn(
            "dp = 'paper-unsound' is the published mechanism, whose proof is wrong: it protects nobody and no epsilon "
            "can be stated. For a guarantee give dp = {epsilon, delta}.",
            PrivacyWarning,
            stacklevel=2,
        )
    replies = yield roster.everyone(Prepare(config))
    prepared = said(replies, PreparedPrivately) if config.dp.private else said(replies, Prepared)
    if not config.dp.private:
        _check_rows([reply.rows for reply in prepared])
    nonces = " ".join(reply.nonce for reply in prepared)
    yield from agree(roster, f"{BATCHES} {nonces}", fresh=False)  # new all the same: no silo has had its nonce before
    run = hashlib.sha256(nonces.encode()).hexdigest()[:16]
    rows = max(2, round(sum(reply.rows for reply in prepared) / len(prepared)))  # with noise they differ
    budget = (yield from _charge(roster, config, prepared, rows)) if config.dp.private or config.unsound else None
    state = {"round": 0, "rows": rows, "run": run, "best": float("inf")}
    return state | {"budget": None if budget is None else to_state(budget)}


def _charge(
    roster: Roster,
    config: VFLGANConfig | VertiGANConfig,
    prepared: Sequence[Prepared] | Sequence[PreparedPrivately],
    rows: int,
) -> Conversation[Budget | None]:
    """Have all steps charged before the first, for a (noised) number of rows; None where that protects nobody."""
    steps, expected = config.critic_steps * config.rounds(rows), float(max(2, min(config.batch, rows)))
    events = tuple(event for reply in prepared if isinstance(reply, PreparedPrivately) for event in reply.events)
    ask = Charge(steps, expected / rows, expected, events)
    charged = said((yield roster.everyone(ask)), Charged)
    if config.unsound:
        return None
    _check_rows([reply.tag.hex() for reply in charged])
    if len({reply.events for reply in charged}) > 1:
        raise ProtocolError("All silos charge the same event for what they do together", len(charged))
    blocks = len(roster) + isinstance(config, VFLGANConfig)
    return Budget(steps, ask.rate, expected, blocks, charged[0].events[0].noise)


def _check_rows(told: Sequence[object]) -> None:
    if len(set(told)) > 1:
        raise ProtocolError(
            "Silos must hold the same rows in the same order", told, "Align the silos by an identifier first."
        )


def _train_round(
    roster: Roster, config: VFLGANConfig, shared: Shared, number: int, replies: Replies, more: bool
) -> Conversation[Replies]:
    """T_d critic steps, then one of the generators. From the features of the first to those that come next."""
    for i in range(config.critic_steps):
        features = said(replies, Features)
        fake_BW = torch.cat([reply.fake_BW for reply in features], dim=1)
        real_RW = torch.cat([reply.real_RW for reply in features], dim=1)
        slopes = shared.descend(number * config.critic_steps + i, fake_BW, real_RW)
        parts = zip(roster, *map(shared.split, slopes), strict=True)
        again = i + 1 < config.critic_steps
        replies = yield roster.each({party: DescendCritic(fake, real, again) for party, fake, real in parts})
    fake_BW = torch.cat([reply.fake_BW for reply in said(replies, FakeFeatures)], dim=1)
    downwards = zip(roster, shared.split(shared.slopes(fake_BW)), strict=True)
    return (yield roster.each({party: DescendGenerator(fake, more) for party, fake in downwards}))


def choose(roster: Roster, config: GANConfig, best: float) -> Conversation[float]:
    """With each report: have silos keep the weights if they are the best until now; returns the least distance."""
    if config.select == "last":
        return best
    judged = said((yield roster.everyone(Judge())), Judged)
    distance = sum(reply.distance for reply in judged)
    if distance < best:
        yield roster.everyone(Keep())
    return min(best, distance)


def synthesise(
    roster: Roster, config: GANConfig, model: dict[str, Any], rows: int, streams: Streams, device: torch.device
) -> Conversation[dict[str, Table]]:
    """Make ``rows`` synthetic rows; each silo's columns, or none where they stay partitioned.

    z comes from a secret of the silos, so that the coordinator cannot tell which z made which row.
    """
    draw = f"{'/'.join(streams.path)} of {model['run']}"
    yield from agree(roster, f"{PUBLICATION} {draw}", fresh=False)
    replies = yield roster.everyone(Synthesise(rows, draw, config.synthesis == "shared"))
    return {party: reply.table for party, reply in replies.items() if isinstance(reply, SyntheticColumns)}


def said(replies: Replies, kind: type[M]) -> list[M]:
    """The replies in order, all of the kind that was asked for."""
    for party, reply in replies.items():
        if not isinstance(reply, kind):
            raise ProtocolError(
                f"Silo {party!r} answers with {kind.__name__}", type(reply).__name__, "Both must run the same version."
            )
    return list(replies.values())  # type: ignore[arg-type]
