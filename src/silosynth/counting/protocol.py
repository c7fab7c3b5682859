"""Counting: silos get additive shares of contingency tables of columns that different silos hold. Nobody opens them.

After a counting each silo of a set holds one matrix of words; modulo 2^k the sum of all silos' is the table, and fewer
than all say nothing of it. What becomes of the shares (`TableCounter.shares`) is no part of this;
`silosynth.counting.opening` opens tables with noise.

*Two silos* (Du and Atallah 2001; Beaver 1991), a before b in the roster. Their flags (`silosynth.counting.plan`) are X
and Y, with a row for each row of theirs. The coordinator deals: a random matrix U to a, V to b, and shares of U'V. Then

    a seals for b  D = X + U      a keeps  R - U'E
    b seals for a  E = Y + V      b keeps  D'Y + (U'V - R)      together  X'Y

*Three silos* (Beaver's product of three factors). With c, whose flags are Z, hidden as F = Z + W, and products of rows
with each other (u ⊗ v is a row of all products of a row of U and one of V): from X = D - U and so on,

    X ⊗ Y ⊗ Z = D ⊗ E ⊗ Z  -  U ⊗ E ⊗ F  -  D ⊗ V ⊗ F  +  (U ⊗ V) ⊗ F  +  (U ⊗ W) ⊗ E  +  (V ⊗ W) ⊗ D  -  U ⊗ V ⊗ W

summed over rows. The first term is c's own, the second a's, the third b's. Products of two random matrices are shared
row by row, the last one as a sum: the earlier silo's share is random, the later silo is sent the rest. In return no
silo hides anything but its flags, once.

*What is dealt are seeds of 32 bytes*, from which silo and dealer expand all random matrices (ChaCha20); only the later
silo's shares are sent as words: one matrix for each pair of silos, and for sets of three silos some of each block. The
key of a random matrix is derived from the dealer's seed and a nonce that the silo draws in each counting. So a silo
hides with new matrices each time, even from a dealer that repeats its seeds; and it hides each block once.

*One hidden matrix of a silo serves all its partners and all sets.* U is used for X only. Whoever sees D sees X plus
uniform words, and sees the same again wherever D is used again. Shares of different products are random by seeds of
their own, so that the shares of one say nothing of another.

*Masks of shares.* From a's share alone the dealer, who knows U, R and V, would learn U'Y. So each pair of silos adds
and subtracts a random mask whose seed one seals for the other: to the dealer, too, a share is uniform.

Rows beyond a silo's own, up to ``CountRequest.rows``, are rows without flags. That silos hold equally many rows is
checked by tags (`check_same_rows`); that they are the same rows in the same order is what an alignment checks.

Sets of one silo's columns need no messages: that silo's share is its own table, all others' are zero. If all silos hold
the same columns, each silo's share is the table of its own rows; secure sums (`privacy.aggregation`) open such shares.

Messages in talking order: an agreement (`privacy.agreement`), `PrepareCount` → `CountPrepared`, `DealSeed` → `Done`;
for each block `HideBlock` → `HiddenBlock`, `TakeBlock` → `Done`; `FinishCount` → `Done`.

Who learns what:

* each silo: what is counted, the public bound of row numbers, and uniform words. That it holds as many rows as others.
* the coordinator: what is counted; whether silos hold equally many rows, but not how many. All else is sealed.

Threat model. Parties follow the protocol and infer what they can; random words are those of ChaCha20 and HKDF-SHA256,
so guarantees are computational.

* **The dealer together with one silo reads the flags of all silos that share a set with that one**: all counted columns
  of all rows. D minus U is X. Who deals must not hold counted columns, nor collude with a silo that does. It is the
  coordinator, or another party (``CountRequest.dealer``, `silosynth.counting.dealing`), of which all this holds then.
* Silos together without the dealer learn nothing but what they hold.
* A dealer that deviates on its own learns nothing, since it sees no hidden matrix, mask or share; it can make tables
  wrong. Those of two silos then are wrong by an amount that it chooses, whatever the rows. In sets of three
  silos, where shares of row products are dealt, the error can depend on rows that the dealer chooses: **once opened,
  such a table may show single rows' levels.** Open tables of three silos only where the dealer is trusted to deal
  right.
* A silo may hide other words than its rows' flags: the table is then of what it made up, such as of a single row of its
  partner's, as many times as it likes. Noise in shares, before they open, hides single rows from silos that follow the
  protocol; not from one that gives a row more weight than the noise has.
* A coordinator that alters, repeats or mixes up envelopes, or asks silos for different tables, is detected: an envelope
  opens in one place of one counting of one request only.

Shapes: N rows of a block, K and J flags of two silos.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from silosynth.core.conversation import (
    Conversation,
    Exchange,
    Progress,
    Replies,
    Roster,
    check_same_rows,
    expect,
    expect_one,
)
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import Done, Message, Release
from silosynth.counting import plan as planning
from silosynth.counting.plan import CountRequest, Plan
from silosynth.counting.products import WIDTHS, AnyWords, product, random_words, row_products
from silosynth.privacy.agreement import agree
from silosynth.privacy.sealed import Envelope

PURPOSE = "counting"  # of the silos' secret, new in each counting
SEED = 32  # bytes, of seeds and nonces
STAGE = "counting"


# Messages, in talking order.


class PrepareCount(Message):
    """Coordinator: these tables are counted."""

    request: CountRequest


class CountPrepared(Message):
    """Silo: a nonce of 32 bytes; and a tag that is equal where row counts are, and tells nothing else."""

    nonce: bytes
    tag: bytes


class DealSeed(Message):
    """Coordinator: the seed (32 bytes) of your random matrices."""

    seed: bytes


class HideBlock(Message):
    """Coordinator: hide the next block of your flags."""

    number: int


class HiddenBlock(Message, release=Release.SEALED):
    """Silo: my flags plus random words, sealed for each silo that shares a set with me."""

    envelopes: tuple[Envelope, ...]


class TakeBlock(Message, release=Release.SEALED):
    """Coordinator: what those silos hid; and of sets of three silos your dealt shares of products, row by row.

    Those of another dealer come in the last envelope.
    """

    number: int
    envelopes: tuple[Envelope, ...]
    dealt: tuple[Tensor, ...]


class FinishCount(Message):
    """Coordinator: your dealt shares of products of random matrices; those of another dealer in an envelope."""

    dealt: tuple[Tensor, ...]
    envelope: Envelope | None = None


# Messages to another dealer than the coordinator, in talking order: see `silosynth.counting.dealing`.


class PrepareDealing(Message):
    """Coordinator: you deal for the counting under way; the nonces of all silos that hide flags."""

    nonces: tuple[bytes, ...]


class SeedsDealt(Message, release=Release.SEALED):
    """Dealer: a seed for each silo that hides flags."""

    envelopes: tuple[Envelope, ...]


class TakeSeed(Message, release=Release.SEALED):
    """Coordinator, to a silo: the dealer's seed for you, and the nonces that it was told."""

    envelope: Envelope
    nonces: tuple[bytes, ...]


class DealBlock(Message):
    """Coordinator: deal the next block."""

    number: int


class BlockDealt(Message, release=Release.SEALED):
    """Dealer: shares of products, row by row, for each silo; none if there are no sets of three silos."""

    envelopes: tuple[Envelope, ...]


class FinishDealing(Message):
    """Coordinator: deal shares of the products of all blocks."""


class RestDealt(Message, release=Release.SEALED):
    """Dealer: these, for each silo."""

    envelopes: tuple[Envelope, ...]


# The coordinator.


def count(roster: Roster, request: CountRequest, apart: bool = False) -> Conversation[None]:
    """The coordinator's side, which deals and relays; shares stay in the silos (`TableCounter.shares`).

    ``apart`` says that the roster is one group of several, each of which counts its own rows.

    Raises:
        ConfigError: the request is for other silos.
        DataError: a column is not there, or not as declared.
        ProtocolError: silos hold different numbers of rows, or more than the request says; or a silo replied with
            something else.
    """
    if request.silos != roster.parties:
        raise ConfigError("Tables are counted in the silos of the roster", request.silos, "Name them in its order.")
    plan = Plan(request)
    if plan.factors:
        yield Progress(STAGE, 0, len(plan.blocks))
    yield from agree(roster, PURPOSE, apart=apart)
    prepared = expect((yield roster.everyone(PrepareCount(request))), CountPrepared)
    if not request.horizontal:
        tags = {silo: reply.tag for silo, reply in zip(roster, prepared, strict=True) if silo != request.dealer}
        check_same_rows(tags, tags.values())
    nonces = {silo: reply.nonce for silo, reply in zip(roster, prepared, strict=True)}
    rest = {silo: FinishCount(()) for silo in roster}
    if plan.factors:
        rest |= yield from _dealt_by_party(plan, nonces) if request.dealer else _dealt_here(plan, nonces)
    expect((yield roster.each(rest)), Done)


def _dealt_here(plan: Plan, nonces: Mapping[str, bytes]) -> Conversation[dict[str, FinishCount]]:
    """Deal seeds, relay all blocks between the silos that share sets, and say how each finishes."""
    dealer, blocks = Dealer(plan, nonces), plan.blocks
    yield Exchange({silo: DealSeed(dealer.seeds[silo]) for silo in plan.factors}, rides=True)
    for number in range(len(blocks)):
        hidden = yield Exchange({silo: HideBlock(number) for silo in plan.factors})
        sent, dealt = _envelopes(hidden, plan), dealer.block(number)
        asks = {silo: TakeBlock(number, _to(silo, sent), dealt[silo]) for silo in plan.factors}
        yield Exchange(asks, rides=True)
        yield Progress(STAGE, number + 1, len(blocks))
    return {silo: FinishCount(dealer.rest(silo)) for silo in plan.factors}


def _dealt_by_party(plan: Plan, nonces: Mapping[str, bytes]) -> Conversation[dict[str, FinishCount]]:
    """Relay seeds, blocks, and what another dealer deals, which is sealed."""
    dealer, blocks = plan.request.dealer, plan.blocks
    told = tuple(nonces[silo] for silo in plan.factors)
    seeds = expect_one(dealer, (yield Exchange({dealer: PrepareDealing(told)}))[dealer], SeedsDealt)
    yield Exchange({silo: TakeSeed(one_envelope(seeds.envelopes, silo), told) for silo in plan.factors}, rides=True)
    for number in range(len(blocks)):
        asks: dict[str, Message] = {silo: HideBlock(number) for silo in plan.factors}
        replies = yield Exchange(asks | {dealer: DealBlock(number)})
        dealt = expect_one(dealer, replies[dealer], BlockDealt)
        sent = [*_envelopes({silo: replies[silo] for silo in asks}, plan), *dealt.envelopes]
        yield Exchange({silo: TakeBlock(number, _to(silo, sent), ()) for silo in plan.factors}, rides=True)
        yield Progress(STAGE, number + 1, len(blocks))
    rest = expect_one(dealer, (yield Exchange({dealer: FinishDealing()}))[dealer], RestDealt)
    return {silo: FinishCount((), one_envelope(rest.envelopes, silo)) for silo in plan.factors}


def _to(silo: str, envelopes: Iterable[Envelope]) -> tuple[Envelope, ...]:
    return tuple(envelope for envelope in envelopes if envelope.receiver == silo)


def one_envelope(envelopes: Iterable[Envelope], silo: str) -> Envelope:
    """The one envelope of a dealer's for a silo."""
    found = _to(silo, envelopes)
    if len(found) != 1:
        rule = "A dealer seals one envelope for each silo"
        raise ProtocolError(rule, len(found), "Both sides must run the same version of silosynth.")
    return found[0]


def _envelopes(hidden: Replies, plan: Plan) -> list[Envelope]:
    """What silos hid, each for all its peers."""
    found: list[Envelope] = []
    for silo, reply in zip(hidden, expect(hidden, HiddenBlock), strict=True):
        routes = tuple((envelope.sender, envelope.receiver) for envelope in reply.envelopes)
        if routes != tuple((silo, peer) for peer in plan.peers(silo)):
            rule = f"Silo {silo!r} seals its flags for each silo that shares a set with it"
            raise ProtocolError(rule, len(routes), "Both sides must run the same version of silosynth.")
        found.extend(reply.envelopes)
    return found


class Dealer:
    """Random matrices and shares of their products. It never sees what they hide.

    Args:
        plan: what is counted.
        nonces: of all silos.
        draw: draws so many secret bytes.

    Attributes:
        seeds: one for each silo.
    """

    def __init__(self, plan: Plan, nonces: Mapping[str, bytes], draw: Callable[[int], bytes] = os.urandom) -> None:
        self.plan, self._nonces = plan, dict(nonces)
        self.seeds = {silo: draw(SEED) for silo in plan.factors}
        bad = [silo for silo in plan.factors if len(self._nonces[silo]) != SEED]
        if bad:
            raise ProtocolError(f"A silo's nonce has {SEED} bytes", bad, "Both sides must run the same version.")
        zeros, width = plan.zeros, plan.width
        self._pairs = {(a, b): zeros(width(a), width(b)) for a, b in plan.pairs}  # U'V so far
        self._triples = {number: zeros(*_split(plan, number)) for number in plan.triples}  # of U ⊗ V and W

    def block(self, number: int) -> dict[str, tuple[Tensor, ...]]:
        """What each silo is sent for one block; to be called once for each, in order."""
        rows = self.plan.blocks[number]
        count = rows.stop - rows.start
        pads = {s: self._drawn(s, planning.pad_name(number), count, self.plan.width(s)) for s in self.plan.factors}
        for (a, b), total in self._pairs.items():
            total += product(pads[a], pads[b])
        dealt: dict[str, list[Tensor]] = {silo: [] for silo in self.plan.factors}
        for one in self.plan.triples:
            self._deal_rows(one, number, pads, dealt)
        return {silo: tuple(words) for silo, words in dealt.items()}

    def rest(self, silo: str) -> tuple[Tensor, ...]:
        """What a silo is sent in the end: its shares of products with the silos before it."""
        dealt = []
        for (a, b), total in self._pairs.items():
            if b == silo:
                dealt.append(as_tensor(total - self._drawn(a, planning.pair_name(b), *total.shape)))
        for number, total in self._triples.items():
            first, _, third = self.plan.parts[number]
            if third == silo:
                dealt.append(as_tensor(-total - self._drawn(first, planning.triple_name(number), *total.shape)))
        return tuple(dealt)

    def _deal_rows(
        self, number: int, block: int, pads: Mapping[str, AnyWords], dealt: Mapping[str, list[Tensor]]
    ) -> None:
        """Shares of products, row by row, of each two factors of a set: first and second, first and third, …"""
        parts = self.plan.parts[number]
        own = {silo: pads[silo][:, self.plan.place(silo, factor)] for silo, factor in parts.items()}
        for earlier, later in ordered_pairs(parts):
            products = row_products(own[earlier], own[later])
            share = self._drawn(earlier, planning.rows_name(number, later, block), *products.shape)
            dealt[later].append(as_tensor(products - share))
        first, second, third = own.values()
        self._triples[number] += product(row_products(first, second), third)

    def _drawn(self, silo: str, what: tuple[str, ...], rows: int, columns: int) -> AnyWords:
        key = planning.dealt_key(self.seeds[silo], self._nonces[silo], *what)
        return random_words(key, rows, columns, self.plan.request.bits)


def ordered_pairs(parts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """First and second, first and third, second and third silo of a set."""
    first, second, third = parts
    return [(first, second), (first, third), (second, third)]


def _split(plan: Plan, number: int) -> tuple[int, int]:
    """Cells of the first two factors of a set of three silos, and of the third."""
    first, second, third = map(plan.request.size, plan.parts[number].values())
    return first * second, third


def as_tensor(words: AnyWords) -> Tensor:
    """Words as signed numbers of the same bits, which messages can hold."""
    return torch.from_numpy(np.ascontiguousarray(words).view(f"i{words.itemsize}"))


def as_words(tensor: Tensor, shape: tuple[int, int], bits: int, silo: str) -> AnyWords:
    """What `as_tensor` made.

    Raises:
        ProtocolError: shape or bits differ from those that ``silo`` expects.
    """
    if tuple(tensor.shape) != shape or tensor.dtype != getattr(torch, f"int{bits}"):
        got = f"{tuple(tensor.shape)} of {tensor.dtype}"
        raise ProtocolError(f"Silo {silo!r} is dealt words of {bits} bits, {shape}", got, "Start the counting again.")
    words: AnyWords = tensor.numpy().view(WIDTHS[bits])
    return words
