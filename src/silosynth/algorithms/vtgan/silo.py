"""A silo of VT-GAN: its columns, which rows it pushes, and what it answers. Its networks: `bottoms`.

Shapes: N rows, B rows of a batch, R rows that are pushed, C columns with levels, S scores, P positions of the silo's
conditions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from silosynth.algorithms.vtgan.bottoms import Bottoms
from silosynth.algorithms.vtgan.messages import (
    ORDER,
    PUBLICATION,
    Build,
    Criticise,
    DescendCritic,
    DescendGenerator,
    DrawConditions,
    Drawn,
    Encode,
    Encoded,
    FakeFeatures,
    Features,
    Generate,
    SampleConditions,
    SampledConditions,
    SliceGradients,
    Synthesise,
    SyntheticColumns,
    VTGANConfig,
)
from silosynth.core.conversation import Party
from silosynth.core.errors import DataError, ProtocolError
from silosynth.core.messages import Done, Message, Struct
from silosynth.core.schema import Schema, Table
from silosynth.core.state import from_state, to_state
from silosynth.core.streams import Streams
from silosynth.encoders.column import CategoricalEncoder, Encoder, decode_table, encode_table
from silosynth.encoders.mode_specific import fit_mode_encoder
from silosynth.models.conditions import ConditionLaw, Conditions
from silosynth.models.gan import Shape
from silosynth.privacy.agreement import Group, OfferShares
from silosynth.privacy.sealed import Seat

LEAST_ROWS = 2


class Silo(Party):
    """A silo's side of VT-GAN."""

    def __init__(self, table: Table, schema: Schema, seat: Seat, streams: Streams, device: torch.device) -> None:
        self.table = table.select([name for name in table.names if name in schema.modelled])
        self.schema, self.seat, self.streams, self.device = schema, seat, streams, device
        self.group = Group(seat)
        self.encoders: tuple[Encoder, ...] = ()
        self.build: Build | None = None
        self.kept: list[Table] = []  # synthetic columns that stay here, when synthesis is partitioned
        self.order_of, self.order = "", torch.zeros(0, dtype=torch.int64)

    def answer(self, ask: Message) -> Message:
        """Answer one message of the coordinator."""
        match ask:
            case Encode():
                return self._encode(ask)
            case Build():
                return self._build(ask)
            case DrawConditions():
                return self._draw_conditions(ask)
            case Criticise():
                return self._criticise(ask)
            case DescendCritic():
                return self._descend_critic(ask)
            case Generate():
                return self._generate(ask)
            case DescendGenerator():
                return self._descend_generator(ask)
            case SampleConditions():
                return self._sample_conditions(ask)
            case Synthesise():
                return self._synthesise(ask)
            case OfferShares():
                _check_secret(ask)
        reply = self.group.answer(ask)
        if reply is None:
            raise ProtocolError("A VT-GAN silo does not understand this message", type(ask).__name__)
        return reply

    # Encoders and networks.

    def _encode(self, ask: Encode) -> Encoded:
        """Algorithm 1, line 1."""
        if not self.table.columns:
            raise DataError("A silo needs at least one column that is not an identifier", self.schema.names)
        if len(self.table) < LEAST_ROWS:
            raise DataError(f"A generator needs at least {LEAST_ROWS} rows", len(self.table), "Give the silo more.")
        rng = self.streams.child("encoders").numpy()
        self.config = ask.config
        self.encoders = tuple(
            fit_mode_encoder(column, self.schema[column.name], ask.config.encoders, rng)
            for column in self.table.columns
        )
        self._encode_rows()
        return Encoded(len(self.table), len(self.table.columns), self.conditions.width)

    def _encode_rows(self) -> None:
        levels, scores = encode_table(self.table, self.encoders, self.streams.child("modes").numpy())
        named = list(_condition_columns(self.encoders))
        self.conditions = Conditions(levels[:, named], tuple(self._widths[column] for column in named))
        self.law = self.conditions.law
        scores = torch.nn.functional.pad(scores, (0, self.shape.scores - scores.shape[1]))
        self.levels, self.scores = levels.to(self.device), scores.to(self.device)

    def _build(self, ask: Build) -> Done:
        self.build = ask
        self.bottoms = Bottoms(self.shape, self.config, ask, self.streams, self.device)
        return Done()

    @property
    def shape(self) -> Shape:
        """Of encoded rows; a table of constants has one score, always 0."""
        scores = sum(encoder.continuous for encoder in self.encoders)
        return Shape(self._widths, scores if self._widths else max(1, scores))

    @property
    def _widths(self) -> tuple[int, ...]:
        return tuple(encoder.width for encoder in self.encoders if encoder.width > 1)

    # Conditions, and the rows that fulfil them.

    def _draw_conditions(self, ask: DrawConditions) -> Drawn:
        """Lines 4 and 18."""
        self.batches: dict[int, tuple[Tensor, Tensor]] = {}
        positions, picks, sealed = [], [], []
        for step in (*ask.critic, *ask.generator):
            draw = self.streams.child("conditions", step).torch()
            position_B = self.conditions.draw(self.config.batch, draw)
            row_B = self.conditions.matching(position_B, draw)
            self.batches[step] = position_B, row_B
            positions.append(position_B)
            if step in ask.critic:
                pick_B, listed = self._hidden(step, row_B, draw)
                picks.append(pick_B)
                sealed += [] if listed is None else [listed]
        picks_TB = torch.stack(picks) if picks else torch.zeros(0, self.config.batch)
        return Drawn(torch.stack(positions).int(), picks_TB.int(), tuple(sealed))

    def _hidden(self, step: int, row_B: Tensor, draw: torch.Generator) -> tuple[Tensor, bytes | None]:
        """How the coordinator (and nobody else) finds the rows among what the others push, and the list for these."""
        if self.config.index_privacy == "full":
            number_of = torch.empty_like(self._order(step))
            number_of[self._order(step)] = torch.arange(len(self.table))
            return number_of[row_B], None
        many = self.config.decoys if self.config.index_privacy == "decoys" else 1
        decoys = torch.randint(len(self.table), (len(row_B) * (many - 1),), generator=draw)
        place = torch.randperm(len(row_B) * many, generator=draw)  # where each of them stands in the list
        listed = torch.empty_like(place)
        listed[place] = torch.cat([row_B, decoys])
        return place[: len(row_B)], self.group.seal(_list_of(step), listed.int().numpy().tobytes())

    def _order(self, step: int) -> Tensor:
        """The rows in the order that the coordinator's row numbers refer to: secret, and common to all silos."""
        steps = self.config.critic_steps + 1
        name = {"step": f"step {step}", "round": f"round {step // steps}", "off": "off"}[self.config.shuffle]
        if name != self.order_of:
            rows = len(self.table)
            self.order = torch.arange(rows) if name == "off" else self.group.permutation(rows, f"order of rows, {name}")
            self.order_of = name
        return self.order

    def _listed(self, step: int, sealed: bytes) -> Tensor:
        """The rows that the contributor wants to have pushed."""
        content = self.group.open(_list_of(step), sealed)
        rows = torch.frombuffer(bytearray(content), dtype=torch.int32).long()
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(self.table):
            raise ProtocolError("A list of rows names rows that there are", len(self.table))
        return rows

    # Steps of training.

    def _criticise(self, ask: Criticise) -> Features:
        """Lines 6 and 9 to 13."""
        self.pushed = self._pushed(ask)
        rows = self.pushed.to(self.device)
        return Features(
            *self.bottoms.criticise(ask.step, ask.slice_BF, self.levels[rows], self.scores[rows], ask.contributor)
        )

    def _pushed(self, ask: Criticise) -> Tensor:
        """Which rows (R,): those of the batch at the contributor; elsewhere all, or those of a list."""
        if ask.contributor:
            return self.batches[ask.step][1]
        return self._order(ask.step) if ask.sealed is None else self._listed(ask.step, ask.sealed)

    def _descend_critic(self, ask: DescendCritic) -> Done:
        """Line 16, this silo's part."""
        self.bottoms.descend_critic(ask.fake_BW, ask.real_BW, ask.picks_B)
        return Done()

    def _generate(self, ask: Generate) -> FakeFeatures:
        """Line 20."""
        self.asked = ask
        return FakeFeatures(self.bottoms.generate(ask.step, ask.slice_BF))

    def _descend_generator(self, ask: DescendGenerator) -> SliceGradients:
        """Line 22, this silo's part; the contributor adds the cross-entropy of its conditions."""
        level_B = None
        if self.asked.contributor and self.conditions.columns:
            level_B = self.level_of_P[self.batches[self.asked.step][0]]
        return SliceGradients(self.bottoms.descend_generator(ask.fake_BW, level_B))

    @property
    def level_of_P(self) -> Tensor:
        """Each position of the conditional vector as a level among all of the silo's."""
        starts = self.shape.starts.tolist()
        return torch.cat(
            [
                torch.arange(starts[column], starts[column] + self._widths[column])
                for column in _condition_columns(self.encoders)
            ]
        )

    # Publication.

    def _sample_conditions(self, ask: SampleConditions) -> SampledConditions:
        draw = self.streams.child("conditions", ask.draw).torch()
        return SampledConditions(self.law.draw(ask.rows, draw, "frequency").int())

    def _synthesise(self, ask: Synthesise) -> Message:
        """Section 3.1.7: rows in an order that only the silos know."""
        streams = self.streams.child("synthesise", ask.draw)
        levels, scores = self.bottoms.draw(ask.slice_GF, streams.child("levels").torch(self.device))
        table = decode_table(levels, scores, self.encoders, streams.child("columns").numpy())
        table = table.take(self.group.permutation(len(table), "order of publication"))
        if ask.share:
            return SyntheticColumns(table)
        self.kept.append(table)
        return Done()

    # State.

    def state(self) -> dict[str, Any]:
        """Encoders, networks, optimisers, and the secret from which row numbers are shuffled."""
        return self._state(training=True)

    def trained(self) -> dict[str, Any]:
        """What sampling needs: encoders, the bottom generator, and how often levels occur."""
        return self._state(training=False)

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state` or `trained`."""
        self.encoders = tuple(from_state(Struct, encoder) for encoder in state["encoders"])  # type: ignore[misc]
        if not self.encoders:
            return
        self.config = from_state(VTGANConfig, state["config"])
        self.law = ConditionLaw(state["counts"], tuple(self._widths[c] for c in _condition_columns(self.encoders)))
        if len(self.table):
            self._encode_rows()
        if state["build"] is not None:
            self._build(from_state(Build, state["build"]))
            self.bottoms.restore(state["bottoms"])
        if state["group"] is not None:
            self.group.restore(state["group"])
        self.order_of = ""

    def _state(self, training: bool) -> dict[str, Any]:
        if not self.encoders:
            return {"encoders": []}
        return {
            "encoders": [to_state(encoder) for encoder in self.encoders],
            "config": to_state(self.config),
            "counts": self.law.counts,
            "build": None if self.build is None else to_state(self.build),
            "bottoms": None if self.build is None else self.bottoms.state(training),
            "group": self.group.state() if training else None,
        }


def _condition_columns(encoders: tuple[Encoder, ...]) -> tuple[int, ...]:
    """Which of the columns with levels are categorical: those that conditions can name."""
    with_levels = [encoder for encoder in encoders if encoder.width > 1]
    return tuple(i for i, encoder in enumerate(with_levels) if isinstance(encoder, CategoricalEncoder))


def _check_secret(ask: OfferShares) -> None:
    """Row numbers need a new secret in every run, or runs could be linked; publications repeat for the same draw."""
    if not (ask.purpose == ORDER if ask.fresh else ask.purpose.startswith(PUBLICATION)):
        raise ProtocolError("A secret is fresh for row numbers, and the same again for a publication", ask.purpose)


def _list_of(step: int) -> str:
    return f"rows to push, step {step}"
