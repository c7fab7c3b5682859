"""VT-GAN: a conditional tabular GAN split between a coordinator and N silos (Zhao, Wu, van Moorsel, Chen).

Columns of the same rows are spread over silos. Generator and critic are cut: top parts stand at the coordinator, each
silo has bottom parts for its own columns. Activations and gradients cross the cut in every step.

=============================================  ==============================================================
paper, Algorithm 1                             here
=============================================  ==============================================================
line 1, Encode                                 `_begin`, `Silo._encode`
lines 2-24, the loop over rounds               `coordinate`, `_train_round`
lines 4 and 18, CVGeneration                   `_draw_conditions`, `Silo._draw_conditions`
lines 5-16, a step of the critic               `_critic_step`, `Silo._criticise`, `Tops.critic_loss`
lines 10 and 12, which rows are pushed         `Silo._real_features`
lines 19-22, a step of the generator           `_generator_step`, `Tops.generator_loss`
line 23, Shuffle                               `Silo._order`: not the table is shuffled but the numbers of its rows
section 3.1.7, publication                     `synthesise`, `Silo._synthesise`
=============================================  ==============================================================

Readings, and deviations, each an option:

* D^a_b G^c_d: ``critic_blocks`` = (a, b), ``generator_blocks`` = (c, d). With b = 0 a silo's bottom critic is one
  linear layer; G^t ends in a linear layer whose outputs are split among the silos, so that it learns where c = 0 too.
* P_r, the ratio of features, decides who contributes conditions and how widths are split. A silo without a categorical
  column has nothing to condition on and never contributes, unless no silo has one: then nothing is conditioned.
* An epoch is rows / batch rounds; a round is ``critic_steps`` critic steps and one generator step, as in CTGAN.
* Row numbers: by ``index_privacy`` = "full" the contributor tells them to the coordinator, in an order that it does
  not know, and the others push all their rows (paper). Otherwise they never reach the coordinator: the contributor
  seals for the other silos a list of rows to push, exactly the batch ("none", the paper's section 3.1.6) or
  ``decoys`` times as many ("decoys", ours).
* ``shuffle`` = "round" renumbers rows after every round (paper), "step" after every step (ours).
* **The paper's index privacy does not survive its own backward pass**: only picked rows have a gradient that is not
  zero, so a silo that is handed gradients learns which rows were picked. ``bottom_gradients`` = "all" is the paper's
  update of every bottom critic; "contributor" (ours) updates the contributor's alone, which knows the rows anyway.
* The paper's shuffle seed becomes a secret that the silos agree on (`privacy.agreement`) and renew every round.

Who learns what, besides synthetic columns:

* the coordinator: numbers of rows, columns and conditional levels; of each step who contributes, the drawn levels (not
  their names) and, with "full", numbers of their rows in a secret order; **features of real rows**, un-noised, of
  every silo; at sampling the frequencies of levels. Row numbers cannot be linked between rounds. Features can: rows
  with equal values have equal features, and features change slowly. `bench.reconstruction` measures both.
* other silos: with "full" and "contributor" nothing of the contributor's rows; with "decoys" a list that holds them;
  with "none", or with "all", the rows themselves.

No formal guarantee protects anybody here.

Shapes: N rows, B rows of a batch, T steps of a round, W_i features of silo i, F_i its slice of G^t's outputs, G
generated rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from silosynth.algorithms.vtgan.tops import Tops, TopsConfig
from silosynth.core.conversation import Checkpoint, Conversation, Exchange, Progress
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import Message, Release, Struct, check_positive
from silosynth.core.roster import Roster
from silosynth.core.schema import Table
from silosynth.core.streams import Streams
from silosynth.encoders.mode_specific import ModeConfig
from silosynth.models.gan import proportions
from silosynth.privacy.agreement import agree

ORDER = "vtgan: order of rows"  # what silos agree on a secret for: the order that row numbers refer to
PUBLICATION = "vtgan: publication"  # and the order in which synthetic rows are published
REPORTS = 200  # times that a run says how far it is, and can be resumed from


@dataclass(frozen=True, slots=True)
class VTGANConfig(Struct):
    """All options."""

    critic_blocks: tuple[int, int] = (2, 0)  # a, b of D^a_b: at the coordinator, in each silo
    generator_blocks: tuple[int, int] = (0, 2)  # c, d of G^c_d
    width: int = 256  # of a block of the critic, all silos together
    generator_width: int = 256  # of a block of the generator, all silos together (paper, enlarged: 768)
    noise: int = 128  # length of Z
    epochs: int = 300
    critic_steps: int = 5  # e, critic steps per round
    batch: int = 500
    rate: float = 2e-4  # Adam's
    betas: tuple[float, float] = (0.5, 0.9)
    decay: float = 1e-6
    penalty: float = 10.0  # weight of the gradient penalty
    tau: float = 0.2  # temperature of the Gumbel-softmax
    dropout: float = 0.5  # of the critic's blocks
    index_privacy: Literal["full", "decoys", "none"] = "decoys"
    decoys: int = 4  # rows pushed for each row of the batch, with index_privacy = "decoys"
    bottom_gradients: Literal["all", "contributor"] = "contributor"
    shuffle: Literal["step", "round", "off"] = "step"  # when row numbers change; "off" is for showing what that costs
    encoders: ModeConfig = ModeConfig()
    synthesis: Literal["shared", "partitioned"] = "shared"  # whether synthetic columns leave their silo

    def __post_init__(self) -> None:
        Struct.__post_init__(self)
        positive = ("width", "generator_width", "noise", "epochs", "critic_steps", "rate", "tau", "decoys")
        check_positive(self, *positive)
        if self.batch < 2:
            raise ConfigError("Batch normalisation needs a batch of at least 2 rows", self.batch)
        for name in ("critic_blocks", "generator_blocks"):
            if min(getattr(self, name)) < 0:
                raise ConfigError(f"Option {name!r} is two numbers of blocks, zero or more", getattr(self, name))
        if self.index_privacy == "decoys" and self.bottom_gradients == "all":
            raise ConfigError(
                "Decoys have no gradient: a silo that is handed gradients tells them from the batch",
                self.bottom_gradients,
                "Set bottom_gradients = 'contributor', or index_privacy = 'none'.",
            )


_PAPER = VTGANConfig(
    index_privacy="full", bottom_gradients="all", shuffle="round", encoders=ModeConfig(pool_rare=False)
)  # fmt: skip

PRESETS: Mapping[str, VTGANConfig] = {
    "paper": _PAPER,
    "fast": VTGANConfig(epochs=15),
    "balanced": VTGANConfig(epochs=100),
    "best": VTGANConfig(epochs=300, generator_width=768),
}


# What is said, in talking order.


@dataclass(frozen=True, slots=True)
class Encode(Message):
    """Fit your encoders and encode your rows."""

    config: VTGANConfig


@dataclass(frozen=True, slots=True)
class Encoded(Message):
    """I have so many rows, columns, and levels that conditions can name."""

    release: ClassVar[Release] = Release.COUNTS
    rows: int
    columns: int
    conditions: int


@dataclass(frozen=True, slots=True)
class Build(Message):
    """Make your bottom parts: blocks and features of the critic are ``width`` wide, the generator's ``slice`` wide."""

    width: int
    slice: int


@dataclass(frozen=True, slots=True)
class DrawConditions(Message):
    """Contribute conditions, with rows that fulfil them, to these critic steps, and to these generator steps."""

    critic: tuple[int, ...]
    generator: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Drawn(Message):
    """Positions (T, B) of the drawn levels, critic steps first, and where their rows are found among what is pushed.

    ``picks_TB`` are numbers of rows in the silos' secret order, or places in the list that is sealed for the others.
    """

    release: ClassVar[Release] = Release.CONDITIONS
    positions_TB: Tensor
    picks_TB: Tensor
    sealed: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Criticise(Message):
    """Make rows from this slice (B, F_i), and send features of these and of real rows.

    Which real rows: the contributor's are those of the step; the others' are all, or those of the sealed list.
    """

    release: ClassVar[Release] = Release.SEALED
    step: int
    slice_BF: Tensor
    contributor: bool
    sealed: bytes | None


@dataclass(frozen=True, slots=True)
class Features(Message):
    """Features of made rows (B, W_i), and of real rows (B, all, or some, W_i)."""

    release: ClassVar[Release] = Release.ROWS
    fake_BW: Tensor
    real_RW: Tensor


@dataclass(frozen=True, slots=True)
class DescendCritic(Message):
    """Gradients (B, W_i) in the features of the step: update your bottom critic.

    ``picks_B`` says whose gradients of pushed rows these are; None to the contributor, which knows.
    """

    release: ClassVar[Release] = Release.GRADIENTS
    fake_BW: Tensor
    real_BW: Tensor
    picks_B: Tensor | None


@dataclass(frozen=True, slots=True)
class Generate(Message):
    """Make rows from this slice (B, F_i), and send their features."""

    step: int
    slice_BF: Tensor
    contributor: bool


@dataclass(frozen=True, slots=True)
class FakeFeatures(Message):
    """Features (B, W_i) of made rows."""

    fake_BW: Tensor


@dataclass(frozen=True, slots=True)
class DescendGenerator(Message):
    """Gradient (B, W_i) in the features of the made rows: update your bottom generator."""

    fake_BW: Tensor


@dataclass(frozen=True, slots=True)
class SliceGradients(Message):
    """Gradient (B, F_i) in the slice."""

    slice_BF: Tensor


@dataclass(frozen=True, slots=True)
class SampleConditions(Message):
    """Draw so many conditions as often as their levels occur. ``draw`` names the random stream."""

    rows: int
    draw: str


@dataclass(frozen=True, slots=True)
class SampledConditions(Message):
    """Positions (G,) of the drawn levels."""

    release: ClassVar[Release] = Release.CONDITIONS
    position_G: Tensor


@dataclass(frozen=True, slots=True)
class Synthesise(Message):
    """Make rows from this slice (G, F_i), put them in the silos' secret order; ``share`` asks for the columns."""

    slice_GF: Tensor
    draw: str
    share: bool


@dataclass(frozen=True, slots=True)
class SyntheticColumns(Message):
    """Synthetic columns of a silo."""

    release: ClassVar[Release] = Release.SYNTHETIC
    table: Table


@dataclass(frozen=True)
class Sizes:
    """What silos have told of themselves, in roster order."""

    rows: int
    columns: list[int]
    conditions: list[int]

    @property
    def ratio(self) -> Tensor:
        """The chance (N silos,) of each silo to contribute: P_r, among those that have something to condition on."""
        columns, conditions = torch.tensor(self.columns), torch.tensor(self.conditions)
        able = columns * (conditions > 0)
        return (able if able.any() else columns).double()

    def start(self, silo: int) -> int:
        """Where the silo's levels begin in the conditional vector."""
        return sum(self.conditions[:silo])


def coordinate(
    roster: Roster, config: VTGANConfig, streams: Streams, device: torch.device, state: dict[str, Any] | None = None
) -> Conversation[dict[str, Any]]:
    """Train; returns the coordinator's part of the model (paper, Algorithm 1)."""
    if state is None:
        state = yield from _begin(roster, config)
    sizes = Sizes(state["rows"], state["columns"], state["conditions"])
    tops = Tops(_tops_config(config, sizes), streams.child("weights"), device)
    if state["tops"] is not None:
        tops.restore(state["tops"])
    rounds = config.epochs * max(1, sizes.rows // config.batch)
    for number in range(state["round"], rounds):
        if number % max(1, rounds // REPORTS) == 0:
            yield Progress("adversarial training", number, rounds)
            yield Checkpoint({**state, "round": number, "tops": tops.state(training=True)})
        yield from _train_round(roster, config, sizes, tops, streams, number)
    yield Progress("adversarial training", rounds, rounds)
    return {**state, "round": rounds, "tops": tops.state(training=False)}


def _begin(roster: Roster, config: VTGANConfig) -> Conversation[dict[str, Any]]:
    """Line 1, the widths of all parts by P_r, and the secret from which the silos shuffle."""
    replies = yield roster.everyone(Encode(config))
    told = [reply for party in roster if isinstance(reply := replies[party], Encoded)]
    if len({reply.rows for reply in told}) > 1:
        rows = {party: reply.rows for party, reply in zip(roster, told, strict=True)}
        raise ProtocolError(
            "Silos must hold the same rows in the same order", rows, "Align the silos by an identifier first."
        )
    columns = [reply.columns for reply in told]
    widths = zip(proportions(config.width, columns), proportions(config.generator_width, columns), strict=True)
    yield roster.each({party: Build(*width) for party, width in zip(roster, widths, strict=True)})
    yield from agree(roster, ORDER)
    conditions = [reply.conditions for reply in told]
    return {"round": 0, "rows": told[0].rows, "columns": columns, "conditions": conditions, "tops": None}


def _tops_config(config: VTGANConfig, sizes: Sizes) -> TopsConfig:
    return TopsConfig(
        noise=config.noise, conditions=sum(sizes.conditions),
        features=proportions(config.width, sizes.columns), slices=proportions(config.generator_width, sizes.columns),
        critic=(config.width,) * config.critic_blocks[0],
        generator=(config.generator_width,) * config.generator_blocks[0],
        rate=config.rate, betas=config.betas, decay=config.decay, penalty=config.penalty, dropout=config.dropout,
    )  # fmt: skip


@dataclass(frozen=True)
class Batch:
    """The conditions of one step: who contributes them, their positions (B,) among all, and their rows."""

    step: int
    contributor: str
    position_B: Tensor
    picks_B: Tensor
    sealed: bytes | None


def _train_round(
    roster: Roster, config: VTGANConfig, sizes: Sizes, tops: Tops, streams: Streams, number: int
) -> Conversation[None]:
    """Lines 3 to 22: ``critic_steps`` critic steps, then one of the generator."""
    draw = streams.child("round", number).torch(tops.device)
    first = number * (config.critic_steps + 1)
    chosen = torch.multinomial(
        sizes.ratio, config.critic_steps + 1, replacement=True, generator=streams.child("contributors", number).torch()
    )
    *critic, last = yield from _draw_conditions(roster, sizes, first, [roster.parties[i] for i in chosen.tolist()])
    for batch in critic:
        yield from _critic_step(roster, config, tops, batch, draw)
    yield from _generator_step(roster, tops, last, draw)


def _draw_conditions(roster: Roster, sizes: Sizes, first: int, chosen: list[str]) -> Conversation[list[Batch]]:
    """Conditions for all steps of a round, the last of which is the generator's, asked of each contributor at once."""
    last = first + len(chosen) - 1
    steps = {party: [first + i for i, name in enumerate(chosen) if name == party] for party in set(chosen)}
    asks = {
        party: DrawConditions(tuple(s for s in steps[party] if s < last), tuple(s for s in steps[party] if s == last))
        for party in roster
        if party in steps
    }
    replies = yield Exchange(asks)
    batches = {}
    for party, reply in replies.items():
        assert isinstance(reply, Drawn)
        start = sizes.start(roster.parties.index(party))
        for i, step in enumerate(steps[party]):
            position_B = reply.positions_TB[i].long()
            picks_B = reply.picks_TB[i].long() if step < last else position_B[:0]
            sealed = reply.sealed[i] if step < last and reply.sealed else None
            position_B = torch.where(position_B < 0, position_B, position_B + start)
            batches[step] = Batch(step, party, position_B, picks_B, sealed)
    return [batches[first + i] for i in range(len(chosen))]


def _critic_step(
    roster: Roster, config: VTGANConfig, tops: Tops, batch: Batch, draw: torch.Generator
) -> Conversation[None]:
    """Lines 5 to 16."""
    cv_BP = tops.conditional(batch.position_B)
    with torch.no_grad():
        slices = tops.split(tops.generate(cv_BP, draw))
    asks = {}
    for party, slice_BF in zip(roster, slices, strict=True):
        own = party == batch.contributor
        asks[party] = Criticise(batch.step, slice_BF, own, None if own else batch.sealed)
    replies = yield roster.each(asks)
    fakes, reals = [], []
    for party in roster:
        reply = replies[party]
        assert isinstance(reply, Features)
        fakes.append(reply.fake_BW)
        reals.append(reply.real_RW if party == batch.contributor else reply.real_RW[batch.picks_B])  # line 14
    fake_BW, real_BW = tops.descend_critic(torch.cat(fakes, dim=1), torch.cat(reals, dim=1), cv_BP, draw)
    updates = {}
    for party, fake, real in zip(roster, tops.features(fake_BW), tops.features(real_BW), strict=True):
        if party == batch.contributor:
            updates[party] = DescendCritic(fake, real, None)
        elif config.bottom_gradients == "all":
            updates[party] = DescendCritic(fake, real, batch.picks_B.int())
    yield Exchange(updates)


def _generator_step(roster: Roster, tops: Tops, batch: Batch, draw: torch.Generator) -> Conversation[None]:
    """Lines 19 to 22. The contributor adds the cross-entropy of the conditions, which it alone can compute."""
    cv_BP = tops.conditional(batch.position_B)
    slice_BF = tops.generate(cv_BP, draw)
    asks = zip(roster, tops.split(slice_BF.detach()), strict=True)
    replies = yield roster.each({party: Generate(batch.step, part, party == batch.contributor) for party, part in asks})
    fakes = [reply.fake_BW for party in roster if isinstance(reply := replies[party], FakeFeatures)]
    fake_BW = tops.gradient_of_generator_loss(torch.cat(fakes, dim=1), cv_BP, draw)
    parts = zip(roster, tops.features(fake_BW), strict=True)
    replies = yield roster.each({party: DescendGenerator(part) for party, part in parts})
    found = [reply.slice_BF for party in roster if isinstance(reply := replies[party], SliceGradients)]
    tops.descend_generator(slice_BF, torch.cat(found, dim=1))


def synthesise(
    roster: Roster, config: VTGANConfig, model: dict[str, Any], rows: int, streams: Streams, device: torch.device
) -> Conversation[dict[str, Table]]:
    """Make ``rows`` synthetic rows; each silo's columns, or none where they stay partitioned (section 3.1.7).

    The silos put them into an order that the coordinator does not know, so that it cannot tell which noise made which.
    """
    draw = "/".join(streams.path)
    yield from agree(roster, f"{PUBLICATION} {draw}", fresh=False)
    sizes = Sizes(model["rows"], model["columns"], model["conditions"])
    tops = Tops(_tops_config(config, sizes), streams, device)
    tops.restore(model["tops"])
    position_G = yield from _sample_conditions(roster, sizes, rows, streams)
    slices = tops.split(tops.sample(position_G, streams.child("noise").torch(device)))
    share = config.synthesis == "shared"
    asks = {party: Synthesise(part, draw, share) for party, part in zip(roster, slices, strict=True)}
    replies = yield roster.each(asks)
    return {party: reply.table for party, reply in replies.items() if isinstance(reply, SyntheticColumns)}


def _sample_conditions(roster: Roster, sizes: Sizes, rows: int, streams: Streams) -> Conversation[Tensor]:
    """Positions (G,) drawn as often as levels occur, from contributors by P_r."""
    chosen = torch.multinomial(sizes.ratio, rows, replacement=True, generator=streams.child("contributors").torch())
    counts = torch.bincount(chosen, minlength=len(roster)).tolist()
    asks = {
        party: SampleConditions(count, "/".join(streams.path))
        for party, count in zip(roster, counts, strict=True)
        if count
    }
    replies = yield Exchange(asks)
    parts = []
    for party, reply in replies.items():
        assert isinstance(reply, SampledConditions)
        start = sizes.start(roster.parties.index(party))
        position_G = reply.position_G.long()
        parts.append(torch.where(position_G < 0, position_G, position_G + start))
    return torch.cat(parts)
