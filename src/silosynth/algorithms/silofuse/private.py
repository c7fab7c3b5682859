"""SiloFuse with differential privacy: what changes, and two modes that protect from different people.

Ours; the paper has none. In both modes column encoders come from noised counts (`silosynth.encoders.private`), and
autoencoders are trained by DP-SGD over all their parameters. What else looked at rows is gone or made of noised counts:

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
once. The rows lie in a noised number of slots, of which some are left empty: the order of all slots, empty ones too, is
a secret that the silos agree on, so that a row more or less changes one slot, by the norm of all silos' latents at
most. What the coordinator does with them is its own business: it takes the noise's variance out of theirs, and trains
as without.

``dp_mode`` = "release" protects what is released, from outsiders. The coordinator reads latents of all rows as they
are, and trains its model of them by DP-SGD. For the same epsilon there is far less noise.

A silo goes by the noise that the coordinator names, after it has checked that its own part of it costs no more than
the target. That all silos' parts together do not is the coordinator's sum: it is taken to keep to the protocol.

Budget: ``dp.encoders`` of epsilon and delta for encoders, in equal parts to silos; then autoencoders get as little
noise as brings what is spent to ``dp_training.autoencoders`` of epsilon; the rest is for the upload, or for the model.
In "upload", 0.02 of epsilon and 0.05 of delta are for the number of slots.

Shapes: N rows, S slots, L latents of all silos, L_i of silo i.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from silosynth.algorithms.silofuse.coder import PARTS, CoderConfig
from silosynth.algorithms.silofuse.private_steps import train_latent, without_noise
from silosynth.core.conversation import Checkpoint, Conversation, Progress, Replies
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import Message, Release, Struct, check_positive
from silosynth.core.roster import Roster
from silosynth.core.state import from_state, to_state
from silosynth.core.streams import Streams
from silosynth.models.latent import LatentConfig, LatentGenerator
from silosynth.privacy.accounting import noise_multiplier
from silosynth.privacy.agreement import agree
from silosynth.privacy.events import Event, Scope, gaussian_steps
from silosynth.privacy.target import Target

if TYPE_CHECKING:
    from silosynth.algorithms.silofuse.messages import SiloFuseConfig

M = TypeVar("M", bound=Message)
Mode = Literal["upload", "release"]
SLOTS = "silofuse: slots"  # what silos agree on a secret for: their order, and whether they are as many


@dataclass(frozen=True, slots=True)
class Training(Struct):
    """How networks are trained under differential privacy; in place of the options for training without."""

    autoencoders: float = 0.5  # share of epsilon that is spent when autoencoders are trained, encoders included
    hidden: tuple[int, ...] = (64, 64)  # widths of the autoencoders' hidden layers
    latents_per_column: int = 1
    coder_steps: int = 600  # of each autoencoder
    batch: int = 512  # expected number of rows that a step samples; fewer of small tables
    rate: float = 2e-3
    width: int = 128  # of the model of latents, in "release"
    depth: int = 2
    latent_steps: int = 1500

    def __post_init__(self) -> None:
        Struct.__post_init__(self)
        check_positive(
            self, "hidden", "latents_per_column", "coder_steps", "batch", "rate", "width", "depth", "latent_steps"
        )
        if not 0 < self.autoencoders < 1:
            raise ConfigError("Option 'dp_training.autoencoders' is a share, above 0 and below 1", self.autoencoders)


# What is said, in talking order.


@dataclass(frozen=True, slots=True)
class PreparePrivately(Message):
    """Learn encoders by your part of this target, one of ``silos``; with ``slots`` also tell how many rows to send."""

    coder: CoderConfig
    dp: Target
    silos: int
    slots: bool


@dataclass(frozen=True, slots=True)
class PreparedPrivately(Message):
    """I have about so many rows, and will have so many latents. ``nonce`` makes the slots' secret a new one."""

    release: ClassVar[Release] = Release.NOISED
    rows: int
    slots: int  # at least as many as rows, almost certainly; 0 where they were not asked for
    latents: int
    nonce: str
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Charge(Message):
    """Charge for your autoencoder, and for what follows, before the first step. All silos have about ``rows`` rows."""

    rows: int
    slots: int
    latents: int
    autoencoder: Event
    latter: Event


@dataclass(frozen=True, slots=True)
class Charged(Message):
    """I have. Where ``tag`` (32 bytes) is the same, so are numbers of rows; the coordinator learns no more from it."""

    release: ClassVar[Release] = Release.NOISED
    tag: bytes
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class TrainPrivately(Message):
    """Train your autoencoder for part ``part`` of ``parts``."""

    part: int
    parts: int


@dataclass(frozen=True, slots=True)
class AskClipped(Message):
    """Freeze your autoencoder and send your latents: in mode "upload" noised, in "release" as they are."""


@dataclass(frozen=True, slots=True)
class NoisedLatents(Message):
    """Noised latents (S, L_i), in an order that only silos know."""

    release: ClassVar[Release] = Release.NOISED
    z_SL: Tensor
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class ClippedLatents(Message):
    """Latents (N, L_i) of all rows, without noise."""

    release: ClassVar[Release] = Release.ROWS
    z_NL: Tensor


# The coordinator.


def gather(roster: Roster, config: SiloFuseConfig, state: dict[str, Any] | None) -> Conversation[dict[str, Any]]:
    """Encoders, budget, autoencoders, and latents: the state from which the model of latents is trained."""
    if state is None:
        state = yield from _charged(roster, config)
        yield Checkpoint(state)
    for part in range(state["part"], PARTS):
        yield Progress("autoencoders", part, PARTS)
        yield roster.everyone(TrainPrivately(part, PARTS))
        yield Checkpoint({**state, "part": part + 1})
    yield Progress("autoencoders", PARTS, PARTS)
    replies = yield roster.everyone(AskClipped())
    told = [reply for party in roster if isinstance(reply := replies[party], NoisedLatents | ClippedLatents)]
    z_NL = torch.cat([one.z_SL if isinstance(one, NoisedLatents) else one.z_NL for one in told], dim=1)
    latter, rows = from_state(Event, state["latter"]), state["rows"]
    if latter.scope != "release":
        z_NL, rows = without_noise(z_NL, latter.noise * math.sqrt(z_NL.shape[1])), len(z_NL)
    state = {**state, "rows": rows, "latents": z_NL, "generator": None}
    yield Checkpoint(state)
    return state


def train_diffusion(
    config: SiloFuseConfig, streams: Streams, device: torch.device, state: dict[str, Any]
) -> Conversation[LatentGenerator]:
    """The model of latents by DP-SGD, in mode "release"; latents are taken as they are, neither shifted nor scaled."""
    x_NL, steps = state["latents"].to(device), from_state(Event, state["latter"])
    generator = LatentGenerator(state["rows"], x_NL.shape[1], latent_config(config), streams.child("diffusion"), device)
    if state["generator"] is not None:
        generator.restore(state["generator"])
    while not generator.finished:
        part = generator.learner.done // generator.part
        goal = min(generator.config.steps, (part + 1) * generator.part)
        train_latent(
            generator, x_NL, goal, steps, steps.rate * state["rows"], config.dp.clip, streams.child("dp", part)
        )
        yield Progress("diffusion", generator.learner.done, generator.config.steps)
        yield Checkpoint({**state, "generator": generator.state(training=True)})
    generator.finish()
    return generator


def latent_config(config: SiloFuseConfig) -> LatentConfig:
    """Options of the model of latents: those of ``dp_training`` where it is trained by DP-SGD."""
    if not config.dp.private or config.dp_mode == "upload":
        return config.latent
    training = config.dp_training
    return replace(
        config.latent, fit_to_rows=False, held_out=0.0, clip=0.0, dropout=0.0, width=training.width,
        depth=training.depth, steps=training.latent_steps, rate=training.rate,
    )  # fmt: skip


def _charged(roster: Roster, config: SiloFuseConfig) -> Conversation[dict[str, Any]]:
    dp, training, upload = config.dp, config.dp_training, config.dp_mode == "upload"
    coder = replace(
        config.coder, form="clipped", spread=False, fit_to_rows=False, held_out=0.0, clip=0.0, decay=0.0,
        hidden=training.hidden, latents_per_column=training.latents_per_column, steps=training.coder_steps,
        rate=training.rate,
    )  # fmt: skip
    first = next(iter(roster))
    asks = {silo: PreparePrivately(coder, dp, len(roster), upload and silo == first) for silo in roster}
    told = _said((yield roster.each(asks)), PreparedPrivately)
    yield from agree(roster, f"{SLOTS} {' '.join(reply.nonce for reply in told)}", fresh=False)
    rows = max(2, round(sum(reply.rows for reply in told) / len(told)))
    rate = min(1.0, max(1.0, min(training.batch, rows / 8)) / rows)
    events = [event for reply in told for event in reply.events]
    widths = [reply.latents for reply in told]
    charge = Charge(rows, told[0].slots, sum(widths), *_events(config, events, rate, len(roster)))
    charged = _said((yield roster.everyone(charge)), Charged)
    if len({reply.tag for reply in charged}) > 1:
        raise ProtocolError(
            "Silos must hold the same rows in the same order",
            "unlike numbers",
            "Align the silos by an identifier first.",
        )
    return {"part": 0, "rows": rows, "widths": widths, "latter": to_state(charge.latter)}


def _events(config: SiloFuseConfig, events: list[Event], rate: float, silos: int) -> tuple[Event, Event]:
    """One silo's autoencoder, and the upload or the model of latents, with the least noise that keeps the target."""
    dp, training, upload = config.dp, config.dp_training, config.dp_mode == "upload"
    scope: Scope = "all" if upload else "release"
    first = replace(dp, epsilon=dp.epsilon * training.autoencoders)
    noise = noise_multiplier(first, events, rate, silos * training.coder_steps)
    what = "steps of the silo's autoencoder"
    coder = gaussian_steps(what, noise, rate, training.coder_steps, scope=scope, target=dp.delta)
    charged = [*events, *[coder] * silos]
    if upload:
        noise = noise_multiplier(dp, charged, 1.0, 1)
        what = "latents of all rows, sent once"
        return coder, gaussian_steps(what, noise, 1.0, 1, scope="all", joint=True, target=dp.delta)
    noise = noise_multiplier(dp, charged, rate, training.latent_steps)
    what = "steps of the coordinator's model of latents"
    steps = training.latent_steps
    return coder, gaussian_steps(what, noise, rate, steps, scope="release", joint=True, target=dp.delta)


def _said(replies: Replies, kind: type[M]) -> list[M]:
    return [reply for reply in replies.values() if isinstance(reply, kind)]
