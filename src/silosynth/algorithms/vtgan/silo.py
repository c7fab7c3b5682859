"""A silo of VT-GAN: its columns, which rows it pushes (`RowNumbers`: index privacy), and what it answers.

Shapes: N rows, B rows of a batch, R pushed rows, C columns with levels, S scores, P positions of the silo's conditions.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from silosynth.algorithms.vtgan import networks, private, protocol
from silosynth.algorithms.vtgan.options import VTGANConfig
from silosynth.core.conversation import State, Turn, check_tensor, often, once
from silosynth.core.errors import ProtocolError, nearest
from silosynth.core.messages import Done, Message, from_state, to_state
from silosynth.encoders.table import ColumnParty
from silosynth.models.encoded import encoded_rows
from silosynth.models.gan import ConditionLaw, Conditions
from silosynth.privacy import accounting, agreement

_CRITIC = (
    protocol.DrawConditions, protocol.PushRows, protocol.PushListed, protocol.DescendBottomCritic,
    protocol.DescendPicked,
)  # fmt: skip
_PRIVATE_CRITIC = protocol.PushSampled, protocol.DescendPrivately
_GENERATOR = protocol.GenerateRows, protocol.DescendBottomGenerator


class VTGANSilo(ColumnParty):
    """A silo's side of VT-GAN."""

    def _set_up(self) -> None:
        self.name, self.silos = self.seat.name, self.seat.roster.parties
        self.secret = agreement.Group(self.seat)  # of row numbers
        self.publication = agreement.Group(self.seat)  # and of the order of publication
        rule = "A secret is fresh for row numbers, and the same again for a publication"
        self.agreements = agreement.Agreements(rule, self._group_for, self.secret)
        self.config: VTGANConfig = self.config.settled
        self.build: protocol.BuildBottoms | None = None
        self.batches: dict[int, tuple[Tensor, Tensor]] = {}  # own conditions and rows, by step
        self.pending: Message | None = None  # the last step that gradients may be sent for
        self.pushed = torch.zeros(0, dtype=torch.int64)
        self.private = private.PrivateSteps(self.streams.child("private"), len(self.silos))

    def _script(self, training: bool) -> tuple[Turn, ...]:
        if not training:
            conditions = () if self.config.dp.private else (protocol.SampleConditions,)
            return often(*agreement.ASKS, *conditions, protocol.VTGANSynthesise)
        if self.config.dp.private:
            begins = once(protocol.EncodeRows, *agreement.ASKS, accounting.Charge, protocol.BuildBottoms)
            return (*begins, *often(*_PRIVATE_CRITIC, *_GENERATOR, by="step"))
        begins = once(protocol.EncodeRows, protocol.BuildBottoms, *agreement.ASKS)
        return (*begins, *often(*_CRITIC, *_GENERATOR, by="step"))

    def _answer(self, ask: Message) -> Message:
        if (reply := self.agreements.answer(ask)) is not None:
            return reply
        match ask:
            case protocol.EncodeRows():
                return self._encode()
            case accounting.Charge():
                tag = self.secret.key(f"{len(self.columns.table)} rows")
                return self.private.account.charge_joint(ask, len(self.silos), tag, private.STEPS)
            case protocol.BuildBottoms():
                return self._build(ask)
            case protocol.DrawConditions():
                return self._draw_conditions(ask)
            case protocol.PushRows() | protocol.PushListed():
                return self._push(ask)
            case protocol.PushSampled():
                self._check_slice(ask.slice_BF)
                args = self.bottoms, self.secret, ask.step, ask.slice_BF, self.rows
                return protocol.PushedFeatures(*self.private.features(*args))
            case protocol.DescendBottomCritic() | protocol.DescendPicked():
                return self._descend_critic(ask)
            case protocol.DescendPrivately():
                self._check_gradients(ask.grad_fake_RW, ask.grad_real_RW)
                self.private.descend(self.bottoms, ask.grad_fake_RW, ask.grad_real_RW, ask.pairs_R)
                return Done()
            case protocol.GenerateRows():
                return self._generate(ask)
            case protocol.DescendBottomGenerator():
                return self._descend_generator(ask)
            case protocol.SampleConditions():
                return self._sample_conditions(ask)
            case protocol.VTGANSynthesise():
                return self._synthesise(ask)
            case _:
                raise ProtocolError("A VT-GAN silo does not understand this message", type(ask).__name__)

    def _group_for(self, ask: agreement.OfferShares) -> agreement.Group | None:
        """The secret of row numbers, new in every training; or that of a publication, the same for the same one."""
        if ask.purpose.startswith(protocol.PUBLICATION):
            return None if ask.fresh else self.publication
        ours = ask.fresh and ask.purpose == protocol.ORDER
        if self.config.dp.private:
            ours = bool(self.private.account.learnt) and agreement.is_new(ask, protocol.ORDER, self.private.nonce)
        return self.secret if ours else None

    # Encoders and networks.

    def _encode(self) -> protocol.Encoded | protocol.EncodedPrivately:
        """Algorithm 1, line 1."""
        config, dp = self.config, self.config.dp
        columns = len(self.columns.table.columns)
        if dp.private:
            learnt = self.columns.learn(config.encoders, dp, len(self.silos))
            self.private.account.begin(dp, learnt.events)
            self._encode_rows()
            return protocol.EncodedPrivately(learnt.rows, self.private.nonce, learnt.events, columns)
        self.columns.fit(config.encoders)
        self._encode_rows()
        return protocol.Encoded(len(self.rows), columns, self.conditions.width)

    def _encode_rows(self) -> None:
        """Encode the rows, if there are any; a table of constants has one score, always 0."""
        self.rows = encoded_rows(self.columns.encoders, self.columns.encode("modes"), self.device, padded=True)
        self.numbers = RowNumbers(self.secret, self.config, len(self.rows))
        widths, starts = self.rows.shape.widths, self.rows.shape.starts.tolist()
        columns = () if self.config.dp.private else self.rows.categorical  # those that conditions can name
        self.conditions = Conditions(self.rows.levels[:, list(columns)], tuple(widths[c] for c in columns))
        self.law = self.conditions.law
        of_columns = [torch.arange(starts[c], starts[c] + widths[c]) for c in columns]
        self.level_of_P = torch.cat([*of_columns, torch.zeros(0, dtype=torch.int64)])  # positions as levels of the row

    def _build(self, ask: protocol.BuildBottoms) -> Done:
        self.build, shape, silos = ask, self.rows.shape, len(self.silos)
        self.bottoms = networks.Bottoms(shape, self.config, ask.width, ask.slice, silos, self.streams, self.device)
        return Done()

    # Conditions, and the rows that fulfil them.

    def _draw_conditions(self, ask: protocol.DrawConditions) -> protocol.DrawnConditions:
        """Lines 4 and 18. Conditions are PyTorch's: who sees them can search for the 32 bits that it starts from.

        The coordinator does see them. Rows, which it must not find this way, come from a stream of their own, of 128
        bits.
        """
        if not 0 < len(ask.critic) + len(ask.generator) <= self.config.critic_steps + 1:
            raise ProtocolError("Conditions are drawn for the steps of a round", len(ask.critic) + len(ask.generator))
        self.batches = {}
        positions, picks, sealed = [], [], []
        for step in (*ask.critic, *ask.generator):
            position_B = self.conditions.draw(self.config.batch, self.streams.child("conditions", step).torch())
            rng = self.streams.child("rows", step).picks()
            row_B = self.conditions.rows_at(position_B, torch.from_numpy(rng.random(len(position_B))))
            self.batches[step] = position_B, row_B
            positions.append(position_B)
            if step in ask.critic:
                pick_B, listed = self.numbers.hide(step, row_B, rng)
                picks.append(pick_B)
                sealed += [] if listed is None else [listed]
        picks_CB = torch.stack(picks) if picks else torch.zeros(0, self.config.batch)
        return protocol.DrawnConditions(torch.stack(positions).int(), picks_CB.int(), tuple(sealed))

    # Steps of training.

    def _push(self, ask: protocol.PushRows | protocol.PushListed) -> protocol.PushedFeatures:
        """Lines 6 and 9 to 13."""
        self._check_slice(ask.slice_BF)
        self.pending = ask
        own = ask.contributor == self.name
        self.pushed = self._rows_to_push(ask)
        rows = self.pushed.to(self.device)
        order = rows if isinstance(ask, protocol.PushRows) and not own else None
        codes = self.rows.levels[rows], self.rows.scores[rows]
        kind, updated = self._kind(ask.contributor), self.config.updates(ask.contributor, self.name)
        return protocol.PushedFeatures(
            *self.bottoms.criticise(ask.step, ask.slice_BF, kind, *codes, order, updated, own)
        )

    def _check_slice(self, slice_BF: Tensor) -> None:
        assert self.build is not None  # which comes first
        check_tensor("A slice of the generator's outputs", slice_BF, None, self.build.slice)

    def _check_gradients(self, *grads: Tensor) -> None:
        assert self.build is not None
        for grad in grads:
            check_tensor("Gradients in features", grad, None, self.build.width)

    def _kind(self, contributor: str) -> int:
        if not contributor and self.config.statistics == "all":
            return 0
        if contributor not in self.silos:
            raise ProtocolError("The contributor is one of the silos", contributor, nearest(contributor, self.silos))
        return self.config.kind(self.silos.index(contributor))

    def _rows_to_push(self, ask: protocol.PushRows | protocol.PushListed) -> Tensor:
        """Which rows (R,): those of the batch at the contributor; elsewhere all, or those of a list."""
        if isinstance(ask, protocol.PushRows) and ask.contributor == self.name:
            return self._batch(ask.step)[1]
        if isinstance(ask, protocol.PushListed) == (self.config.index_privacy == "full"):
            raise ProtocolError(
                "A silo pushes rows as the setting requires that all agreed to",
                type(ask).__name__,
                f"It is index_privacy = {self.config.index_privacy!r}.",
            )
        if isinstance(ask, protocol.PushListed):
            return self.numbers.listed(ask.step, ask.sealed)
        return self.numbers.order(ask.step)

    def _batch(self, step: int) -> tuple[Tensor, Tensor]:
        if step not in self.batches:
            raise ProtocolError("A silo contributes to the steps that it has drawn conditions for", step)
        return self.batches[step]

    def _descend_critic(self, ask: protocol.DescendBottomCritic | protocol.DescendPicked) -> Done:
        """Line 16, this silo's part."""
        if not isinstance(self.pending, protocol.PushRows | protocol.PushListed):
            raise ProtocolError("Gradients of the critic follow a step of the critic", type(self.pending).__name__)
        if not self.config.updates(self.pending.contributor, self.name):
            raise ProtocolError(
                "Bottom critics are updated as the setting requires that all agreed to",
                type(ask).__name__,
                f"It is bottom_gradients = {self.config.bottom_gradients!r}.",
            )
        grad_real_BW, picks_B = ask.grad_real_BW, None
        self._check_gradients(ask.grad_fake_BW, grad_real_BW)
        self.pending = None  # gradients come once
        if isinstance(ask, protocol.DescendBottomCritic):
            check_tensor("Gradients of pushed rows", grad_real_BW, len(self.pushed), None)
        else:
            check_tensor("Places of pushed rows", ask.picks_B, None, below=len(self.pushed))
            by_row = self.pushed[ask.picks_B.long()].argsort(stable=True)  # sums must not depend on the secret order
            grad_real_BW, picks_B = grad_real_BW[by_row], ask.picks_B[by_row]
        self.bottoms.descend_critic(ask.grad_fake_BW, grad_real_BW, picks_B)
        return Done()

    def _generate(self, ask: protocol.GenerateRows) -> protocol.FakeFeatures:
        """Line 20."""
        self._check_slice(ask.slice_BF)
        self.pending = ask
        return protocol.FakeFeatures(self.bottoms.generate(ask.step, ask.slice_BF, self._kind(ask.contributor)))

    def _descend_generator(self, ask: protocol.DescendBottomGenerator) -> protocol.SliceGradients:
        """Line 22, this silo's part; the contributor adds the cross-entropy of its conditions."""
        if not isinstance(self.pending, protocol.GenerateRows):
            last = type(self.pending).__name__
            raise ProtocolError("Gradients of the generator follow a step of the generator", last)
        self._check_gradients(ask.grad_fake_BW)
        level_B = None
        if self.pending.contributor == self.name and self.conditions.columns:
            level_B = self.level_of_P[self._batch(self.pending.step)[0]]
        self.pending = None
        return protocol.SliceGradients(self.bottoms.descend_generator(ask.grad_fake_BW, level_B))

    # Publication.

    def _sample_conditions(self, ask: protocol.SampleConditions) -> protocol.SampledConditions:
        draw = self.streams.child("conditions", ask.draw).torch()
        return protocol.SampledConditions(self.law.draw(ask.rows, draw, "frequency").int())

    def _synthesise(self, ask: protocol.VTGANSynthesise) -> Message:
        """Section 3.1.7: rows in an order that only the silos know."""
        if self.publication.purpose != f"{protocol.PUBLICATION} {ask.draw}":
            raise ProtocolError("Silos agree on the order of a publication before it", ask.draw, "Agree on it first.")
        self._check_slice(ask.slice_GF)
        if min(ask.contributed, default=0) < 0 or sum(ask.contributed) != len(ask.slice_GF):
            raise ProtocolError("Each row was drawn for a silo's condition, or for none", ask.contributed)
        streams = self.streams.child("synthesise", ask.draw)
        levels, scores = self.bottoms.draw(ask.slice_GF, ask.contributed, streams.child("levels").torch(self.device))
        table = self.columns.decode(levels, scores, streams)
        return self.publish(table.take(self.publication.permutation(len(table), "order of publication")), self._shares)

    # State.

    def _restore(self, state: State) -> None:
        self.columns.restore(state["encoders"])
        if not self.columns.encoders:
            return
        self._encode_rows()
        self.law = ConditionLaw(state["counts"], self.law.widths)
        if state["build"] is not None:
            self._build(from_state(protocol.BuildBottoms, state["build"]))
            self.bottoms.restore(state["bottoms"])
        if state["group"] is not None:
            self.secret.restore(state["group"])
            self.private.account.restore(state["private"])

    def _state(self, training: bool) -> State:
        """Encoders, networks, counts of levels; with ``training`` also optimisers, and the secret of row numbers."""
        if not self.columns.encoders:
            return {"encoders": []}
        return {
            "encoders": self.columns.state(),
            "config": to_state(self.config),
            "counts": self.law.counts,
            "build": None if self.build is None else to_state(self.build),
            "bottoms": None if self.build is None else self.bottoms.state(training),
            "group": self.secret.state() if training else None,
            "private": self.private.account.state() if training else None,
        }


class RowNumbers:
    """How silos refer to rows past the coordinator: by numbers in a secret order, or by places in sealed lists.

    Silos that share the secret understand each other.

    Args:
        secret: what the silos have agreed on.
        config: index privacy, decoys, and how often the order changes.
        rows: N.
    """

    def __init__(self, secret: agreement.Group, config: VTGANConfig, rows: int) -> None:
        self.secret, self.config, self.rows = secret, config, rows
        self._order_of, self._order = "", torch.arange(0)

    def hide(self, step: int, row_B: Tensor, rng: np.random.Generator) -> tuple[Tensor, bytes | None]:
        """Where the coordinator finds these rows among what the others push, and the list for the others, if any."""
        if self.config.index_privacy == "full":
            number_of = torch.empty(self.rows, dtype=torch.int64)
            number_of[self.order(step)] = torch.arange(self.rows)
            return number_of[row_B], None
        if self.config.index_privacy == "none":
            place, listed = torch.arange(len(row_B)), row_B
        else:
            place, listed = _among_decoys(row_B, self.config.decoys * len(row_B), self.rows, rng)
        return place, self.secret.seal(_context(step), listed.int().numpy().tobytes())

    def order(self, step: int) -> Tensor:
        """The rows (N,) in the order that the coordinator's row numbers refer to (Algorithm 1, line 23)."""
        steps = self.config.critic_steps + 1
        name = {"step": f"step {step}", "round": f"round {step // steps}", "off": "off"}[self.config.shuffle]
        if name == "off":
            return torch.arange(self.rows)
        if name != self._order_of:
            self._order_of, self._order = name, self.secret.permutation(self.rows, f"order of rows, {name}")
        return self._order

    def listed(self, step: int, sealed: bytes) -> Tensor:
        """The rows (R,) that the contributor asks the others to push.

        Raises:
            ProtocolError: the list was altered, is of another step, or has row numbers out of range.
        """
        content = self.secret.open(_context(step), sealed)
        rows = torch.frombuffer(bytearray(content), dtype=torch.int32).long()
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < self.rows:
            raise ProtocolError("A list has numbers of existing rows only", int(rows.max()), f"There are {self.rows}.")
        return rows


def _among_decoys(row_B: Tensor, size: int, rows: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Where each row (B,) stands in a list, and the list: ``size`` distinct rows, or all where there are fewer.

    If the list repeated the batch's rows as conditions repeat them, they could be told from decoys.
    """
    distinct, which_B = row_B.unique(return_inverse=True)
    spare = torch.ones(rows, dtype=torch.bool)
    spare[distinct] = False
    others = spare.nonzero().squeeze(1)
    decoys = others[torch.from_numpy(rng.permutation(len(others)))[: max(0, size - len(distinct))]]
    place = torch.from_numpy(rng.permutation(len(distinct) + len(decoys)))
    listed = torch.empty_like(place)
    listed[place] = torch.cat([distinct, decoys])
    return place[which_B], listed


def _context(step: int) -> str:
    return f"rows to push, step {step}"
