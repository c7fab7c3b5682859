"""SiloFuse with differential privacy: what changes, and two modes that protect from different readers.

Ours; the paper has none. In both modes column encoders come from noised counts (`silosynth.encoders.table`), and
autoencoders are trained by DP-SGD over all their parameters. Everything else that depended on rows is dropped, or made
of noised counts:

=====================================  ==================================================================
without differential privacy           here
=====================================  ==================================================================
number of rows                         noised; the silos' mean is used wherever a size depends on it
latents normalised by their batch      each row's latents are cut to norm sqrt(L): form "clipped"
early stopping on held-out rows        none: the last weights
calibration by shares of levels        by the noised shares that encoders were made from
latents standardised                   not in "release"; by the noised latents in "upload"
=====================================  ==================================================================

``dp_mode`` = "upload" protects from the coordinator too. Every row's latents get Gaussian noise before they leave,
once. The rows lie in a noised number of slots, some of which stay empty. The order of all slots is a secret that the
silos agree on, so that one row more or less changes one slot, by the norm of all silos' latents at most. What the
coordinator does with noised latents needs no further protection: it subtracts the noise's variance from theirs, and
trains as without.

``dp_mode`` = "release" protects what is released, from outsiders. The coordinator reads un-noised latents of all rows,
and trains its model of them by DP-SGD. For the same epsilon there is far less noise.

Budget: ``dp.encoders`` of epsilon and delta for encoders, in equal parts to silos; then autoencoders get as little
noise as brings what is spent to ``dp_training.autoencoders`` of epsilon; the rest is for the upload, or for the model.
In "upload", 0.02 of epsilon and 0.05 of delta are for the number of slots. Every silo checks the sum over all silos
(`silosynth.privacy.accounting`).

Shapes: N rows, B sampled ones, S slots, L latents of all silos, L_i of silo i.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.func import functional_call

from silosynth.algorithms.silofuse.networks import Coder
from silosynth.algorithms.silofuse.options import SiloFuseConfig
from silosynth.core.conversation import Conversation, Roster, State, expect
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Message, Release, Rows, Size, from_state, to_state
from silosynth.core.streams import Streams, integers, normals, uniforms
from silosynth.models.flow import flow_loss, times
from silosynth.models.latent import LatentGenerator
from silosynth.privacy import accounting, agreement, dpsgd, sealed
from silosynth.privacy.events import Event, Scope, Target, gaussian_steps
from silosynth.privacy.mechanisms import noised_counts

SLOTS = "silofuse: slots"  # what silos agree on a secret for: the slots' order, and whether row counts are equal
_COUNT, _OVERFULL = 0.02, 0.05  # of epsilon, for the number of slots; of delta, for too few of them


# Messages in talking order: between the first two and the latents, silos agree on a secret, are charged (see
# `silosynth.privacy.accounting`) and answer `TrainAutoencoder`.


class LearnCoder(Message):
    """Coordinator: learn encoders by your part of the target, and make an autoencoder; the first silo counts slots."""


class CoderLearnt(accounting.EncodersLearnt):
    """Silo: its noised number of rows, and the number of latents of each.

    Attributes:
        slots: at least as many as rows, but for a probability that was charged; 0 where this silo counts none.
    """

    slots: int
    latents: int


class AskChargedLatents(Message, common=True):
    """Coordinator: freeze your autoencoder and send your latents, noised in ``slots`` slots, or un-noised ("release").

    ``latents`` is L, which bounds the norm of a row's latents.
    """

    slots: Rows[int]
    latents: Size[int]


class NoisedLatents(Message, release=Release.NOISED):
    """Silo: noised latents (S, L_i), in an order that only silos know."""

    z_SL: Tensor
    events: tuple[Event, ...]


class ClippedLatents(Message, release=Release.ROWS):
    """Silo: latents (N, L_i) of all rows, without noise."""

    z_NL: Tensor


# The coordinator.


def prepare(roster: Roster, config: SiloFuseConfig) -> Conversation[State]:
    """Have silos learn their encoders, agree on a secret, and charge all steps to come."""
    replies = expect((yield roster.everyone(LearnCoder())), CoderLearnt)
    charged = yield from accounting.agree_and_charge(roster, SLOTS, replies, partial(_steps, config, len(roster)))
    widths, latter = [reply.latents for reply in replies], to_state(charged.events[1])
    return {"part": 0, "rows": charged.rows, "widths": widths, "slots": replies[0].slots, "latter": latter}


def gather_latents(roster: Roster, state: State) -> Conversation[State]:
    """The state with all latents, from which the model of latents is trained."""
    ask = AskChargedLatents(state["slots"], sum(state["widths"]))
    replies = expect((yield roster.everyone(ask)), NoisedLatents, ClippedLatents)
    z_NL = torch.cat([reply.z_SL if isinstance(reply, NoisedLatents) else reply.z_NL for reply in replies], dim=1)
    latter, rows = from_state(Event, state["latter"]), state["rows"]
    if latter.scope != "release":
        z_NL, rows = without_noise(z_NL, latter.noise * math.sqrt(z_NL.shape[1])), len(z_NL)
    return {**state, "rows": rows, "latents": z_NL, "generator": None}


def train_latent_part(generator: LatentGenerator, x_NL: Tensor, state: State, clip: float, streams: Streams) -> None:
    """One part of the training of the model of latents by DP-SGD, in mode "release"."""
    steps, part = from_state(Event, state["latter"]), generator.learner.done // generator.part
    goal = min(generator.config.steps, (part + 1) * generator.part)
    train_latent(generator, x_NL, goal, steps, steps.rate * state["rows"], clip, streams.child("dp", part))


def _steps(config: SiloFuseConfig, silos: int, rows: int, learnt: Sequence[Event]) -> tuple[Event, Event]:
    """One silo's autoencoder, and the upload or the model of latents, with the least noise that keeps the target."""
    dp, training = config.dp, config.dp_training
    rate = min(1.0, max(1.0, min(training.batch, rows / 8)) / rows)
    first = replace(dp, epsilon=dp.epsilon * training.autoencoders)
    noise = accounting.noise_multiplier(first, learnt, rate, silos * training.coder_steps)
    kind, latter = _kinds(config)
    coder = replace(kind, noise=noise, rate=rate, times=training.coder_steps)
    rate, steps = (rate, training.latent_steps) if config.releases else (1.0, 1)
    noise = accounting.noise_multiplier(dp, [*learnt, *[coder] * silos], rate, steps)
    return coder, replace(latter, noise=noise, rate=rate, times=steps)


def _kinds(config: SiloFuseConfig) -> tuple[Event, Event]:
    """Those two events, but for their noise; one step of each, in which all rows take part."""
    scope: Scope = "release" if config.releases else "all"
    what = "steps of the coordinator's model of latents" if config.releases else "latents of all rows, sent once"
    coder = gaussian_steps("steps of the silo's autoencoder", 1.0, 1.0, 1, scope=scope, target=config.dp.delta)
    return coder, gaussian_steps(what, 1.0, 1.0, 1, scope=scope, joint=True, target=config.dp.delta)


# A silo.


class SiloFusePrivateSide:
    """What a silo does under differential privacy, with its `Coder`."""

    def __init__(self, coder: Coder, config: SiloFuseConfig, seat: sealed.Seat, streams: Streams) -> None:
        self.coder, self.config, self.coder_config = coder, config, config.coder_of(len(seat.roster))
        self.streams, self.silos = streams.child("private"), len(seat.roster)
        self.counts_slots = config.dp_mode == "upload" and seat.name == seat.roster.parties[0]
        self.group, self.account, self.nonce = agreement.Group(seat), accounting.Account(), ""
        rule = "Silos agree on the order of slots, for this training alone"
        self.agreements = agreement.Agreements(rule, self._group_for, self.group)

    def answer(self, ask: Message) -> Message | None:
        """The answer to a message of this module, of an agreement, or of a charge; None if it is another.

        Raises:
            ProtocolError: it comes too early, or what is to be charged costs more than the target.
        """
        match ask:
            case LearnCoder():
                return self._learn()
            case accounting.Charge():
                return self._charge(ask)
            case AskChargedLatents():
                return self._latents(ask)
            case _:
                return self.agreements.answer(ask)

    def _group_for(self, ask: agreement.OfferShares) -> agreement.Group | None:
        return self.group if agreement.is_new(ask, SLOTS, self.nonce) else None

    def train(self, part: int, parts: int) -> None:
        """Train the autoencoder for one of ``parts`` equal parts of the steps that were charged.

        Raises:
            ProtocolError: none were.
        """
        charged, clip = self.account.charged, self.account.target.clip
        steps = charged.events[0]
        train_coder(self.coder, part, parts, steps, steps.rate * charged.rows, clip, self.streams.child("coder", part))

    def state(self) -> State:
        """All that is needed to continue training."""
        return {"account": self.account.state(), "group": self.group.state(), "nonce": self.nonce}

    def restore(self, state: State) -> None:
        """Continue from what `state` returned."""
        self.account.restore(state["account"])
        self.group.restore(state["group"])
        self.nonce = state["nonce"]

    def _learn(self) -> CoderLearnt:
        dp = self.config.dp
        learnt = self.coder.learn(self.coder_config, dp, self.silos)
        slots, counted = self._slots(dp) if self.counts_slots else (0, ())
        events = (*learnt.events, *counted)
        self.account.begin(dp, events)
        self.nonce = f"{self.streams.child('nonce').integer():016x}"
        return CoderLearnt(learnt.rows, self.nonce, events, slots, self.coder.latents)

    def _slots(self, dp: Target) -> tuple[int, tuple[Event, ...]]:
        """A noised number, below that of rows with a probability that its event is charged for."""
        epsilon, delta = dp.epsilon * _COUNT, dp.delta * _OVERFULL
        count = torch.tensor([self.coder.rows])
        noisy, event = noised_counts(
            count, epsilon, "the number of rows, rounded up", self.streams.child("slots").noise()
        )
        spare = math.ceil(-math.log(delta) / epsilon)
        charged = () if event is None else (replace(event, delta=delta, scope="all", target=dp.delta),)
        return max(2, int(noisy[0]) + spare), charged

    def _charge(self, ask: accounting.Charge) -> accounting.Charged:
        kinds, steps = [replace(event, noise=1.0, rate=1.0, times=1) for event in ask.events], self.coder_config.steps
        coder, latter = ask.events if len(ask.events) == 2 else (None, None)
        sampled = self.config.releases  # an upload is of all rows, once
        if (
            coder is None or latter is None or kinds != list(_kinds(self.config)) or coder.times < steps
            or not (sampled or (latter.rate, latter.times) == (1.0, 1))
        ):  # fmt: skip
            raise ProtocolError(
                "A silo is charged for all steps of its autoencoder, and for its latents",
                [event.what for event in ask.events],
                "Both sides must run the same version of silosynth.",
            )
        tag = self.group.key(f"{self.coder.rows} rows")
        return self.account.charge(ask, self.silos, tag, later=not self.config.releases)

    def _latents(self, ask: AskChargedLatents) -> Message:
        latter = self.account.charged.events[1]
        if self.config.releases:
            return ClippedLatents(self.coder.encode())
        if ask.latents < self.coder.latents:
            raise ProtocolError("The norm of noised latents is bounded by that of all silos'", ask.latents)
        z_SL = in_slots(self.coder.encode(), self.group.permutation(ask.slots, "slots"))
        deviation = latter.noise * math.sqrt(ask.latents)
        noisy = dpsgd.noised({"z": z_SL}, deviation, self.streams.child("upload").noise())
        return NoisedLatents(noisy["z"], (latter,))


# Steps, which know no message.


def train_coder(
    coder: Coder, part: int, parts: int, steps: Event, expected: float, clip: float, streams: Streams
) -> None:
    """One of ``parts`` equal parts of an autoencoder's steps of DP-SGD.

    Args:
        coder: with the encoded rows.
        part, parts: which part.
        steps: the event of all steps: sampling rate and noise.
        expected: number of rows that a step samples on average.
        clip: largest norm of a row's gradient.
        streams: for the sampled rows, and the noise; secret.
    """
    if not coder.network.shape.size:
        return
    rng, config, network = streams.noise(), coder.config, coder.network

    def loss(parameters: dict[str, Tensor], levels: Tensor, scores: Tensor, noise: Tensor) -> Tensor:
        row = levels[None], scores[None], noise[None], config.sigma, config.weight
        return functional_call(network, parameters, row)  # type: ignore[no-any-return]

    network.train()
    while coder.learner.done < config.steps * (part + 1) // parts:
        rows = dpsgd.poisson_mask(coder.rows, steps.rate, rng)
        noise = normals(rng, int(rows.sum()), coder.latents, device=coder.device)
        batch = coder.levels[rows], coder.scores[rows], noise
        dpsgd.set_private_gradient(network, loss, batch, clip, steps.noise * clip, expected, rng)
        coder.learner.step()
    if part == parts - 1:
        coder.learner.settle()
        network.eval()


def train_latent(
    generator: LatentGenerator, x_NL: Tensor, goal: int, steps: Event, expected: float, clip: float, streams: Streams
) -> None:
    """Steps of the model of latents up to ``goal``. Every row draws its own time: others' must not depend on it."""
    rng, config, path = streams.noise(), generator.config, generator.gaussian

    def loss(parameters: dict[str, Tensor], x: Tensor, noise: Tensor, at: Tensor) -> Tensor:
        def network(*inputs: Tensor) -> Tensor:
            return functional_call(generator.network, parameters, inputs)  # type: ignore[no-any-return]

        if config.path == "flow":
            return flow_loss(network, x[None], at[None], noise[None], None)
        return path.loss(network, x[None], at[None], noise[None], None)

    while generator.learner.done < goal:
        x = x_NL[dpsgd.poisson_mask(len(x_NL), steps.rate, rng)]
        noise = normals(rng, *x.shape, device=x.device)
        if config.path == "flow":
            rank = uniforms(rng, len(x), device=x.device)
            at = times(rank, config.time_mean, config.time_sd, config.left)
        else:
            at = integers(rng, path.steps, len(x), x.device)
        batch = x, noise, at
        dpsgd.set_private_gradient(generator.network, loss, batch, clip, steps.noise * clip, expected, rng)
        generator.learner.step()


def in_slots(z_NL: Tensor, order_S: Tensor) -> Tensor:
    """Latents in slots (S, L): row i in slot ``order_S[i]``, all other slots empty.

    Rows and empty slots lie in one secret order of all slots, so that a row more or less changes one of them. Rows that
    find no slot are left out; the probability of that is charged for.
    """
    place = order_S[: len(z_NL)]
    z_SL = z_NL.new_zeros(len(order_S), z_NL.shape[1])
    z_SL[place] = z_NL[: len(place)]
    return z_SL


def without_noise(z_SL: Tensor, deviation: float) -> Tensor:
    """Latents (S, L) shrunk such that their covariance is that of the noised ones, less the noise's."""
    mean = z_SL.double().mean(dim=0)
    values, vectors = torch.linalg.eigh(torch.atleast_2d((z_SL.double() - mean).T.cov(correction=0)))
    keep = (1 - deviation**2 / values.clamp_min(1e-12)).clamp(1e-4, 1).sqrt()
    shrunk: Tensor = mean + (z_SL.double() - mean) @ (vectors * keep) @ vectors.T
    return shrunk.float()
