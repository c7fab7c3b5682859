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
    CriticiseListed,
    DescendCritic,
    DescendGenerator,
    DescendPicked,
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
from silosynth.algorithms.vtgan.numbers import Numbers
from silosynth.algorithms.vtgan.private import CriticisePrivately, DescendPrivately, EncodedPrivately
from silosynth.algorithms.vtgan.private_silo import PrivateSide
from silosynth.core.conversation import Party
from silosynth.core.errors import DataError, ProtocolError, nearest
from silosynth.core.messages import Done, Message
from silosynth.core.schema import Schema, Table
from silosynth.core.state import from_state, to_state
from silosynth.core.streams import Streams
from silosynth.encoders.column import Encoder, decode_table, encode_table, restored, stored
from silosynth.encoders.normalised import fit_mode_encoder
from silosynth.models.conditions import ConditionLaw, Conditions
from silosynth.models.encoded import RowShape, shape_of
from silosynth.privacy.agreement import Confirmations, Group, OfferShares, RelayedShares
from silosynth.privacy.sealed import Seat

LEAST_ROWS = 2
_WITHOUT_NOISE = (DrawConditions, Criticise, CriticiseListed, DescendCritic, DescendPicked, SampleConditions)


class Silo(Party):
    """A silo's side of VT-GAN."""

    def __init__(self, table: Table, schema: Schema, seat: Seat, streams: Streams, device: torch.device) -> None:
        self.table = table.select([name for name in table.names if name in schema.modelled])
        self.schema, self.streams, self.device = schema, streams, device
        self.name, self.silos = seat.name, seat.roster.parties
        self.secret, self.publication = Group(seat), Group(seat)  # of row numbers, and of the order of publication
        self.agreeing, self.purpose = self.secret, ""
        self.config = VTGANConfig()
        self.encoders: tuple[Encoder, ...] = ()
        self.build: Build | None = None
        self.batches: dict[int, tuple[Tensor, Tensor]] = {}  # own conditions and rows, by step
        self.open: Message | None = None  # the last step that gradients may be sent for
        self.pushed = torch.zeros(0, dtype=torch.int64)
        self.kept: list[Table] = []  # synthetic columns that stay here, when synthesis is partitioned
        self.private = PrivateSide(self)

    def answer(self, ask: Message) -> Message:
        """Answer one message of the coordinator."""
        _check_time(ask, bool(self.encoders), self.build is not None)
        if self.config.dp.private and isinstance(ask, _WITHOUT_NOISE):
            raise ProtocolError("Under differential privacy, rows are not asked after otherwise", type(ask).__name__)
        match ask:
            case Encode():
                return self._encode(ask)
            case Build():
                return self._build(ask)
            case OfferShares() | RelayedShares() | Confirmations():
                return self._agree(ask)
            case DrawConditions():
                return self._draw_conditions(ask)
            case Criticise() | CriticiseListed():
                return self._criticise(ask)
            case DescendCritic() | DescendPicked():
                return self._descend_critic(ask)
            case Generate():
                return self._generate(ask)
            case DescendGenerator():
                return self._descend_generator(ask)
            case SampleConditions():
                return self._sample_conditions(ask)
            case Synthesise():
                return self._synthesise(ask)
            case DescendPrivately():
                self.private.descend(ask)
                return Done()
        reply = self.private.answer(ask)
        if reply is None:
            raise ProtocolError("A VT-GAN silo does not understand this message", type(ask).__name__)
        return reply

    def _agree(self, ask: Message) -> Message:
        """Agree on a secret: new in every training for row numbers, the same for the same publication."""
        if isinstance(ask, OfferShares):
            noised = self.config.dp.private  # then the nonces in its purpose make the secret fresh
            training = self.private.expects(ask.purpose) if noised else ask.purpose == ORDER
            training = training and ask.fresh != noised
            if not (training or (ask.purpose.startswith(PUBLICATION) and not ask.fresh)):
                raise ProtocolError(
                    "A secret is fresh for row numbers, and the same again for a publication",
                    ask.purpose,
                    "Both sides must run the same version of silosynth.",
                )
            self.agreeing, self.purpose = (self.secret if training else self.publication), ask.purpose
        reply = self.agreeing.answer(ask)
        assert reply is not None
        return reply

    # Encoders and networks.

    def _encode(self, ask: Encode) -> Encoded | EncodedPrivately:
        """Algorithm 1, line 1."""
        if not self.table.columns:
            raise DataError("A silo needs at least one column that is not an identifier", self.schema.names)
        if len(self.table) < LEAST_ROWS:
            raise DataError(f"A generator needs at least {LEAST_ROWS} rows", len(self.table), "Give the silo more.")
        self.config = ask.config
        if self.config.dp.private:
            self.encoders, reply = self.private.encode()
            self._encode_rows()
            return reply
        rng = self.streams.child("encoders").numpy()
        self.encoders = tuple(
            fit_mode_encoder(column, self.schema[column.name], ask.config.encoders, rng)
            for column in self.table.columns
        )
        self._encode_rows()
        return Encoded(len(self.table), len(self.table.columns), self.conditions.width)

    def _encode_rows(self) -> None:
        levels, scores = encode_table(self.table, self.encoders, self.streams.child("modes").numpy())
        self.numbers = Numbers(self.secret, self.config, len(self.table))
        named = list(self._named)
        self.conditions = Conditions(levels[:, named], tuple(self._widths[column] for column in named))
        self.law = self.conditions.law
        scores = torch.nn.functional.pad(scores, (0, self.shape.scores - scores.shape[1]))
        self.levels, self.scores = levels.to(self.device), scores.to(self.device)
        starts = self.shape.starts.tolist()
        of_columns = [torch.arange(starts[column], starts[column] + self._widths[column]) for column in named]
        self.level_of_P = torch.cat([*of_columns, torch.zeros(0, dtype=torch.int64)])  # positions as levels of the row

    def _build(self, ask: Build) -> Done:
        self.build = ask
        self.bottoms = Bottoms(self.shape, self.config, ask, len(self.silos), self.streams, self.device)
        return Done()

    @property
    def shape(self) -> RowShape:
        """Of encoded rows; a table of constants has one score, always 0."""
        return shape_of(self.encoders, padded=True)

    @property
    def _named(self) -> tuple[int, ...]:
        """Columns that conditions can name; under differential privacy there are none."""
        return () if self.config.dp.private else condition_columns(self.encoders)

    @property
    def _widths(self) -> tuple[int, ...]:
        return tuple(encoder.width for encoder in self.encoders if encoder.width > 1)

    # Conditions, and the rows that fulfil them.

    def _draw_conditions(self, ask: DrawConditions) -> Drawn:
        """Lines 4 and 18. Conditions are PyTorch's: who sees them can search for the 32 bits that it starts from.

        The coordinator does see them. Rows, which it must not find so, come from a stream of their own, of 128 bits.
        """
        self.batches = {}
        positions, picks, sealed = [], [], []
        for step in (*ask.critic, *ask.generator):
            position_B = self.conditions.draw(self.config.batch, self.streams.child("conditions", step).torch())
            rng = self.streams.child("rows", step).noise()
            row_B = self.conditions.rows_at(position_B, torch.from_numpy(rng.random(len(position_B))))
            self.batches[step] = position_B, row_B
            positions.append(position_B)
            if step in ask.critic:
                pick_B, listed = self.numbers.hide(step, row_B, rng)
                picks.append(pick_B)
                sealed += [] if listed is None else [listed]
        picks_TB = torch.stack(picks) if picks else torch.zeros(0, self.config.batch)
        return Drawn(torch.stack(positions).int(), picks_TB.int(), tuple(sealed))

    # Steps of training.

    def _criticise(self, ask: Criticise | CriticiseListed) -> Features:
        """Lines 6 and 9 to 13."""
        self.open = ask
        own = ask.contributor == self.name
        self.pushed = self._pushed(ask)
        rows = self.pushed.to(self.device)
        order = rows if isinstance(ask, Criticise) and not own else None
        codes = self.levels[rows], self.scores[rows]
        kind, updated = self._kind(ask.contributor), self.config.updates(ask.contributor, self.name)
        return Features(*self.bottoms.criticise(ask.step, ask.slice_BF, kind, *codes, order, updated, own))

    def _kind(self, contributor: str) -> int:
        if not contributor and self.config.statistics == "all":
            return 0
        if contributor not in self.silos:
            raise ProtocolError("The contributor is one of the silos", contributor, nearest(contributor, self.silos))
        return self.config.kind(self.silos.index(contributor))

    def _pushed(self, ask: Criticise | CriticiseListed) -> Tensor:
        """Which rows (R,): those of the batch at the contributor; elsewhere all, or those of a list."""
        if isinstance(ask, Criticise) and ask.contributor == self.name:
            return self._batch(ask.step)[1]
        if isinstance(ask, CriticiseListed) == (self.config.index_privacy == "full"):
            raise ProtocolError(
                "A silo pushes rows as the setting says that all agreed to",
                type(ask).__name__,
                f"It is index_privacy = {self.config.index_privacy!r}.",
            )
        return (
            self.numbers.listed(ask.step, ask.sealed)
            if isinstance(ask, CriticiseListed)
            else self.numbers.order(ask.step)
        )

    def _batch(self, step: int) -> tuple[Tensor, Tensor]:
        if step not in self.batches:
            raise ProtocolError("A silo contributes to the steps that it has drawn conditions for", step)
        return self.batches[step]

    def _descend_critic(self, ask: DescendCritic | DescendPicked) -> Done:
        """Line 16, this silo's part."""
        if not isinstance(self.open, Criticise | CriticiseListed):
            raise ProtocolError("Gradients of the critic follow a step of the critic", type(self.open).__name__)
        if not self.config.updates(self.open.contributor, self.name):
            raise ProtocolError(
                "Bottom critics are updated as the setting says that all agreed to",
                type(ask).__name__,
                f"It is bottom_gradients = {self.config.bottom_gradients!r}.",
            )
        real_BW, picks_B = ask.real_BW, None
        if isinstance(ask, DescendPicked):
            by_row = self.pushed[ask.picks_B.long()].argsort(stable=True)  # sums must not depend on the secret order
            real_BW, picks_B = real_BW[by_row], ask.picks_B[by_row]
        self.bottoms.descend_critic(ask.fake_BW, real_BW, picks_B)
        return Done()

    def _generate(self, ask: Generate) -> FakeFeatures:
        """Line 20."""
        self.open = ask
        return FakeFeatures(self.bottoms.generate(ask.step, ask.slice_BF, self._kind(ask.contributor)))

    def _descend_generator(self, ask: DescendGenerator) -> SliceGradients:
        """Line 22, this silo's part; the contributor adds the cross-entropy of its conditions."""
        if not isinstance(self.open, Generate):
            raise ProtocolError("Gradients of the generator follow a step of the generator", type(self.open).__name__)
        level_B = None
        if self.open.contributor == self.name and self.conditions.columns:
            level_B = self.level_of_P[self._batch(self.open.step)[0]]
        return SliceGradients(self.bottoms.descend_generator(ask.fake_BW, level_B))

    # Publication.

    def _sample_conditions(self, ask: SampleConditions) -> SampledConditions:
        draw = self.streams.child("conditions", ask.draw).torch()
        return SampledConditions(self.law.draw(ask.rows, draw, "frequency").int())

    def _synthesise(self, ask: Synthesise) -> Message:
        """Section 3.1.7: rows in an order that only the silos know."""
        if self.purpose != f"{PUBLICATION} {ask.draw}":
            raise ProtocolError("Silos agree on the order of a publication before it", ask.draw, "Agree on it first.")
        streams = self.streams.child("synthesise", ask.draw)
        levels, scores = self.bottoms.draw(ask.slice_GF, ask.contributed, streams.child("levels").torch(self.device))
        table = decode_table(levels, scores, self.encoders, streams.child("columns").numpy())
        table = table.take(self.publication.permutation(len(table), "order of publication"))
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
        self.encoders = restored(state["encoders"])
        if not self.encoders:
            return
        self.config = from_state(VTGANConfig, state["config"])
        self.law = ConditionLaw(state["counts"], tuple(self._widths[c] for c in self._named))
        if len(self.table):
            self._encode_rows()
        if state["build"] is not None:
            self._build(from_state(Build, state["build"]))
            self.bottoms.restore(state["bottoms"])
        if state["group"] is not None:
            self.secret.restore(state["group"])
            self.private.restore(state["private"])

    def _state(self, training: bool) -> dict[str, Any]:
        if not self.encoders:
            return {"encoders": []}
        return {
            "encoders": stored(self.encoders),
            "config": to_state(self.config),
            "counts": self.law.counts,
            "build": None if self.build is None else to_state(self.build),
            "bottoms": None if self.build is None else self.bottoms.state(training),
            "group": self.secret.state() if training else None,
            "private": self.private.state() if training else None,
        }


def condition_columns(encoders: tuple[Encoder, ...]) -> tuple[int, ...]:
    """Which of the columns with levels are categorical: those that conditions can name."""
    with_levels = [encoder for encoder in encoders if encoder.width > 1]
    return tuple(i for i, encoder in enumerate(with_levels) if encoder.categorical)


def _check_time(ask: Message, encoded: bool, built: bool) -> None:
    """Networks need encoders, and steps need networks."""
    steps = (
        DrawConditions, Criticise, CriticiseListed, DescendCritic, DescendPicked, Generate, DescendGenerator,
        SampleConditions, Synthesise, CriticisePrivately, DescendPrivately,
    )  # fmt: skip
    if (isinstance(ask, Build) and not encoded) or (isinstance(ask, steps) and not built):
        raise ProtocolError("A silo is set up before it takes steps", f"{type(ask).__name__} comes too early")
