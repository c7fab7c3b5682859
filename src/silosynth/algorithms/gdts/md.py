"""GDTS_MD: a generator with the coordinator, a critic in every silo (GDTS, section II-A-1; MD-GAN, Hardy et al. 2019).

A step: the coordinator makes rows for each silo, under conditions that it draws by that silo's noised counts; each
silo teaches its critic on some of them, and says in which direction others would please it; the generator takes one
step along all that together. Every ``swap_every`` epochs critics change places, sealed, so that none learns one silo
by heart.

Shapes: P silos, B rows of a batch, E critic steps, K levels, S scores.
"""

from __future__ import annotations

from typing import Any

import torch

from silosynth.algorithms.gdts.messages import Criticise, GDTSConfig, SealCritic, SealedCritic, Slopes, TakeCritic
from silosynth.core.conversation import Checkpoint, Conversation, Progress
from silosynth.core.errors import ProtocolError
from silosynth.core.roster import Roster
from silosynth.core.streams import Streams
from silosynth.models.conditions import ConditionLaw
from silosynth.models.ctgan import ConditionalGAN

REPORTS = 200  # times that a run says how far it is, and can be resumed from


def train(
    roster: Roster, config: GDTSConfig, about: Any, model: Any, streams: Streams, state: dict[str, Any]
) -> Conversation[None]:
    """All steps. An epoch is as many as the mean silo has batches of rows."""
    gan: ConditionalGAN = model
    gan.generator.network.train()
    epoch = max(1, sum(about.rows) // len(roster) // config.ctgan.batch)
    steps = max(config.ctgan.epochs * epoch, config.ctgan.least_rounds)
    laws = [gan.law_of(counts_K) for counts_K in about.counts_PK]
    for step in range(state["round"], steps):
        if step % max(1, steps // REPORTS) == 0:
            yield Progress("adversarial training", step, steps)
            yield Checkpoint({**state, "round": step, "model": gan.state(training=True)})
        yield from _step(roster, config, gan, laws, step, streams.child("step", step))
        if (step + 1) % (epoch * config.swap_every) == 0 and len(roster) > 1:
            yield from swap(roster, step, streams.child("swap", step))
    yield Progress("adversarial training", steps, steps)


def _step(
    roster: Roster, config: GDTSConfig, gan: ConditionalGAN, laws: list[ConditionLaw], step: int, streams: Streams
) -> Conversation[None]:
    draw, pick = streams.child("noise").torch(gan.device), streams.child("conditions").torch()
    sizes = [config.ctgan.critic_steps, 1]
    asks, kept = {}, {}
    for party, law in zip(roster, laws, strict=True):
        given_EB = torch.stack([law.draw(config.ctgan.batch, pick) for _ in range(sum(sizes))])
        with torch.no_grad():
            made = torch.stack([gan.made(given.to(gan.device), draw)[1].cpu() for given in given_EB[:-1]])
        last_B = given_EB[-1].to(gan.device)
        kept[party] = (*gan.made(last_B, draw), last_B)
        asks[party] = Criticise(step, made, given_EB[:-1].int(), kept[party][1].detach().cpu(), given_EB[-1].int())
    replies = yield roster.each(asks)
    gan.generator.clear()
    for party, reply in replies.items():
        if not isinstance(reply, Slopes):
            raise ProtocolError(f"Silo {party!r} answers what it was asked", type(reply).__name__, "Compare versions.")
        out_BO, made_BW, given_B = kept[party]
        gan.gather(out_BO, made_BW, reply.slope_BW.to(gan.device), given_B, 1 / len(roster))
    gan.generator.step()


def swap(roster: Roster, number: int, streams: Streams) -> Conversation[None]:
    """Each critic goes to another silo: along a circle through all, in an order drawn anew each time."""
    order = [roster.parties[i] for i in streams.numpy().permutation(len(roster))]
    to = dict(zip(order, order[1:] + order[:1], strict=True))
    replies = yield roster.each({party: SealCritic(number, to[party]) for party in roster})
    for party, reply in replies.items():
        if not isinstance(reply, SealedCritic) or reply.envelope.receiver != to[party]:
            raise ProtocolError(f"Silo {party!r} seals its critic for {to[party]!r}", type(reply).__name__)
    yield roster.each({to[party]: TakeCritic(number, replies[party].envelope) for party in roster})  # type: ignore[attr-defined]
