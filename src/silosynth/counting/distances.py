"""Figures of tables that nobody opens: squared distances to public tables, by products of shares.

A figure is a sum over cells (`Figure`): (Σ_j w_j R_j - S)², with a public table S and public weights w, one for each
place j on the last axis of the counted table R, or one for the whole table. So it is the distance of R to a synthetic
table that was scaled to its number of rows, or to what independence would give; and, where the last axis tells rows
that were trained on from rows that were held out, of one to the other. Whoever sees figures learns these, and nothing
else of the table: but of a table of a few cells a few figures are the table, and two figures whose S differ in a
single cell tell that cell. Figures are exact, so under a privacy budget they stay closed.

*Products.* R is a sum of shares r, a matrix with a row for each cell and a column for each place j. All figures of a
table follow from R'R and R'S. The second is linear in shares. The first is the sum of r_a'r_b over all pairs of the
set's silos, a = b included. For a before b in the roster, random matrices u and v, and a random matrix t,

    a seals for b  d = r_a + u      a keeps  t - u'e
    b seals for a  e = r_b + v      b keeps  d'r_b + (u'v - t)      together  r_a'r_b

modulo 2^64, dealt as in a counting (`silosynth.counting.protocol`): u, v and t from seeds and a nonce of the silo,
and u'v - t as words. One hidden share of a silo serves all its partners and figures. What silos send to be added up
is masked between each two of them, so that it says nothing by itself.

*Overflow.* A figure is at most (max |w_j| · rows + Σ|S|)²; those that could reach 2^63 are refused. The shares that
are multiplied have 64 bits, four times as many as counts of fewer than 65 536 rows take.

Messages in talking order: `PrepareFigures` → `FiguresPrepared`, `DealShares` → `FiguresDealt` if another party than
the coordinator deals (`silosynth.counting.dealing`), `HideShares` → `HiddenShares`, `TakeShares` → `FiguresOpened`.

Threat model: as in a counting. The dealer together with one silo reads the shares of those that have a table with
that one, and so the tables. An envelope opens where all silos were asked for the same figures of the same counting,
with the same nonces. **A dealer that deviates, and sees figures, chooses what they tell**: the counts that it makes
wrong are squared with the others, so that each figure may be 64 bits of its choice, such as the counts of two or
three cells. A silo counts once for a job, so that there are no more of them. A dealer that is not the coordinator
sees no figures, and gains nothing by that.

Shapes: C cells, J places on the last axis.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from silosynth.core.conversation import Conversation, Exchange, Roster, expect, expect_one
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import Message, NonNegative, Release, Struct
from silosynth.counting import plan as planning
from silosynth.counting.dealing import DealtWords, content
from silosynth.counting.plan import CountRequest, Plan
from silosynth.counting.products import AnyWords, product, random_words
from silosynth.counting.protocol import SEED, as_tensor, as_words, one_envelope
from silosynth.privacy.masks import add_mask
from silosynth.privacy.sealed import Envelope, Seat, derive, framed

MOST = 1 << 16  # figures at a time
_LABEL = "silosynth figures 1"


class Figure(Struct):
    """One squared distance of a counted table.

    Attributes:
        number: of the set.
        weights: one for each place on the table's last axis; or a single one, for all of its cells.
        reference: the public table, int64: of the set's shape, without its last axis if that has weights.
    """

    number: NonNegative[int]
    weights: tuple[int, ...]
    reference: Tensor


class PrepareFigures(Message):
    """Coordinator: open these figures of the last counting."""

    figures: tuple[Figure, ...]


class FiguresPrepared(Message):
    """Silo: a nonce of 32 bytes."""

    nonce: bytes


class DealShares(Message):
    """Coordinator, to the party that deals for the counting: deal for these figures, and these nonces of all silos."""

    figures: tuple[Figure, ...]
    nonces: tuple[bytes, ...]


class FiguresDealt(Message, release=Release.SEALED):
    """Dealer: for each silo a seed, and its shares of products of random matrices."""

    envelopes: tuple[Envelope, ...]


class HideShares(Message):
    """Coordinator: hide your shares; the seed (32 bytes) of your random matrices, and the nonces of all silos.

    If another party deals, what it sealed for you in place of the seed.
    """

    seed: bytes
    nonces: tuple[bytes, ...]
    envelope: Envelope | None = None


class HiddenShares(Message, release=Release.SEALED):
    """Silo: my shares plus random words, sealed for each silo that shares a set with me."""

    envelopes: tuple[Envelope, ...]


class TakeShares(Message, release=Release.SEALED):
    """Coordinator: what those silos hid; and your dealt shares of products of random matrices."""

    envelopes: tuple[Envelope, ...]
    dealt: tuple[Tensor, ...]


class FiguresOpened(Message, release=Release.FIGURES):
    """Silo: my part of each figure of a table that I hold a share of, masked: only all silos' sums can be read."""

    words: Tensor


# What follows from figures, for all parties.


@dataclass(frozen=True)
class FigurePlan:
    """Figures of a counting.

    Args:
        plan: what was counted.
        figures: what opens.

    Raises:
        ConfigError: a figure is of no set, of another shape, or may be too large; silos hold different rows; or shares
            have fewer than 64 bits.
    """

    plan: Plan
    figures: tuple[Figure, ...]

    def __post_init__(self) -> None:
        if not 0 < len(self.figures) <= MOST:
            raise ConfigError(f"Up to {MOST} figures open at a time", len(self.figures))
        if self.plan.request.bits != 64:
            raise ConfigError("Shares that are multiplied have 64 bits", self.plan.request.bits, "Count with more.")
        for figure in self.figures:
            self._check_figure(figure)

    def _check_figure(self, figure: Figure) -> None:
        request, number = self.plan.request, figure.number
        if not number < len(self.plan.parts) or "" in self.plan.parts[number]:
            raise ConfigError("Figures are of sets that were counted, in silos with the same rows", number)
        shape, places = request.shape(number), len(figure.weights)
        shape = shape if places == 1 else shape[:-1]
        fits = figure.reference.dtype == torch.int64 and tuple(figure.reference.shape) == shape
        if not fits or places not in (1, request.shape(number)[-1]) or places != self.places(number):
            got = f"{places} weights, {tuple(figure.reference.shape)} of {figure.reference.dtype}"
            rule = "A figure has one weight, or one for each place on the last axis; and a table of its shape, int64"
            raise ConfigError(rule, got, "All figures of a set have equally many weights.")
        most = max(map(abs, figure.weights)) * request.rows + sum(map(abs, figure.reference.flatten().tolist()))
        if most**2 >= 1 << 63:
            raise ConfigError("A figure stays below 2^63", f"up to {most}^2", "Scale weights and table down.")

    def places(self, number: int) -> int:
        """J: how many places of a set's last axis have a weight."""
        return next(len(figure.weights) for figure in self.figures if figure.number == number)

    def sets(self, *silos: str) -> tuple[int, ...]:
        """The sets with figures that these silos share."""
        numbers = sorted({figure.number for figure in self.figures})
        return tuple(number for number in numbers if all(silo in self.plan.parts[number] for silo in silos))

    def shape(self, number: int) -> tuple[int, int]:
        """Cells and places of a set."""
        return math.prod(self.plan.request.shape(number)) // self.places(number), self.places(number)

    def pairs(self) -> list[tuple[int, str, str]]:
        """Each set with each two of its silos, in the order of the roster."""
        return [(n, a, b) for n in self.sets() for a, b in itertools.combinations(self.plan.parts[n], 2)]

    def peers(self, silo: str) -> tuple[str, ...]:
        """The silos with which one shares a set with figures."""
        return tuple(other for other in self.plan.request.silos if other != silo and self.sets(silo, other))

    @property
    def silos(self) -> tuple[str, ...]:
        """All silos that are part of a set with figures."""
        return tuple(silo for silo in self.plan.request.silos if self.sets(silo))

    def of(self, *silos: str) -> tuple[int, ...]:
        """The figures of tables that these silos share, by their places."""
        held = self.sets(*silos)
        return tuple(place for place, figure in enumerate(self.figures) if figure.number in held)

    def context(self, nonces: Sequence[bytes]) -> str:
        """What envelopes are bound to."""
        parts: list[str | bytes] = [_LABEL, self.plan.request.digest(), *nonces]
        for figure in self.figures:
            parts += [repr(figure.number), repr(figure.weights), figure.reference.numpy().astype("<i8").tobytes()]
        return f"figures {hashlib.sha256(framed(*parts)).hexdigest()}"


def hiding_name(number: int) -> tuple[str, str]:
    """Of the random matrix that hides a silo's share of a set."""
    return "share", str(number)


def square_name(number: int, peer: str) -> tuple[str, str, str]:
    """Of the first silo's share of a product of two such matrices, the other being that of ``peer``."""
    return "square", str(number), peer


# The coordinator.


def open_distances(roster: Roster, request: CountRequest, figures: Sequence[Figure]) -> Conversation[tuple[int, ...]]:
    """The coordinator's side, after `count` with the same request, which had 64 bits.

    Args:
        roster: all silos.
        request: what was counted.
        figures: what opens.

    Returns:
        The figures.

    Raises:
        ConfigError: see `FigurePlan`.
        ProtocolError: a silo refuses, or replies with something else.
    """
    plan = FigurePlan(Plan(request), tuple(figures))
    ask = PrepareFigures(plan.figures)
    prepared = yield Exchange({silo: ask for silo in plan.silos})
    nonces = {silo: expect_one(silo, prepared[silo], FiguresPrepared).nonce for silo in plan.silos}
    told, dealt = tuple(nonces.values()), dict.fromkeys(plan.silos, tuple[Tensor, ...]())
    if by := request.dealer:
        sealed = expect_one(by, (yield Exchange({by: DealShares(plan.figures, told)}))[by], FiguresDealt).envelopes
        hides = {silo: HideShares(b"", told, one_envelope(sealed, silo)) for silo in plan.silos}
    else:
        dealer = ShareDealer(plan, nonces)
        dealt = {silo: dealer.dealt(silo) for silo in plan.silos}
        hides = {silo: HideShares(dealer.seeds[silo], told) for silo in plan.silos}
    hidden = yield Exchange(hides)
    sent = [envelope for reply in expect(hidden, HiddenShares) for envelope in reply.envelopes]
    asks = {silo: TakeShares(tuple(one for one in sent if one.receiver == silo), dealt[silo]) for silo in plan.silos}
    opened = yield Exchange(asks)
    sums = np.zeros((1, len(figures)), np.uint64)
    for silo in plan.silos:
        words = expect_one(silo, opened[silo], FiguresOpened).words
        sums[:, plan.of(silo)] += as_words(words, (1, len(plan.of(silo))), 64, silo)
    return tuple(sums[0].tolist())


class ShareDealer:
    """Random matrices that hide shares, and shares of their products.

    Args:
        plan: figures.
        nonces: of all silos of sets with figures.
        draw: draws so many secret bytes.

    Attributes:
        seeds: one for each silo.
    """

    def __init__(
        self, plan: FigurePlan, nonces: Mapping[str, bytes], draw: Callable[[int], bytes] = os.urandom
    ) -> None:
        self.plan, self._nonces = plan, dict(nonces)
        self.seeds = {silo: draw(SEED) for silo in plan.silos}

    def dealt(self, silo: str) -> tuple[Tensor, ...]:
        """What a silo is sent: its shares of products with the silos before it."""
        found = []
        for number, a, b in self.plan.pairs():
            if b == silo:
                cells, places = self.plan.shape(number)
                u, v = (self._drawn(one, hiding_name(number), cells, places) for one in (a, b))
                found.append(as_tensor(product(u, v) - self._drawn(a, square_name(number, b), places, places)))
        return tuple(found)

    def _drawn(self, silo: str, what: tuple[str, ...], rows: int, columns: int) -> AnyWords:
        return random_words(planning.dealt_key(self.seeds[silo], self._nonces[silo], *what), rows, columns, 64)


# A silo.


@dataclass
class _Opening:
    """What a silo holds of figures that are being opened; nothing of it is stored."""

    plan: FigurePlan
    nonce: bytes = field(default_factory=lambda: os.urandom(SEED), repr=False)
    seed: bytes = field(default=b"", repr=False)
    context: str = ""
    masks: dict[str, bytes] = field(default_factory=dict, repr=False)
    dealt: bytes = field(default=b"", repr=False)


class ShareMultiplier:
    """A silo's side of opening figures, for `TableCounter`.

    Args:
        seat: who this silo is.
    """

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._now: _Opening | None = None

    def answer(self, ask: Message, plan: Plan, shares: Sequence[AnyWords]) -> Message:
        """Answer one message. One that is refused ends the opening.

        Args:
            ask: the message.
            plan: what was counted.
            shares: this silo's, of all sets.

        Raises:
            ConfigError: see `FigurePlan`.
            ProtocolError: the message is out of turn, has other shapes than figures say, or cannot be opened.
        """
        now, self._now = self._now, None
        match ask:
            case DealShares() if plan.request.dealer == self._seat.name:
                return self._deal(ask, FigurePlan(plan, ask.figures))
            case PrepareFigures():
                now = _Opening(FigurePlan(plan, ask.figures))
                if self._seat.name not in now.plan.silos:
                    raise self._refusal("opens figures of tables that it holds shares of", "none")
                self._now = now
                return FiguresPrepared(now.nonce)
            case HideShares() if now is not None and not now.seed:
                reply: Message = self._hide(ask, now, shares)
                self._now = now
                return reply
            case TakeShares() if now is not None and now.seed:
                return self._take(ask, now, shares)
        raise self._refusal("prepares figures, hides its shares, and takes those of others, once", type(ask).__name__)

    def _deal(self, ask: DealShares, plan: FigurePlan) -> FiguresDealt:
        """Deal for others, as the request of the counting says."""
        if len(ask.nonces) != len(plan.silos):
            raise self._refusal("deals by a nonce of each silo", len(ask.nonces))
        dealer = ShareDealer(plan, dict(zip(plan.silos, ask.nonces, strict=True)))
        context = f"{plan.context(ask.nonces)} dealt"
        contents = {silo: dealer.seeds[silo] + content(dealer.dealt(silo)) for silo in plan.silos}
        return FiguresDealt(tuple(self._seat.seal(silo, context, text) for silo, text in contents.items()))

    def _take_seed(self, ask: HideShares, now: _Opening) -> None:
        """The seed of whoever the request says deals; and another party's shares with it."""
        by = now.plan.plan.request.dealer
        if (ask.envelope.sender if ask.envelope is not None else "") != by:
            raise self._refusal("is dealt by the party that the request names", "by another")
        now.context, now.seed = now.plan.context(ask.nonces), ask.seed
        if ask.envelope is not None:
            sealed = self._seat.open(ask.envelope, f"{now.context} dealt")
            now.seed, now.dealt = sealed[:SEED], sealed[SEED:]

    def _hide(self, ask: HideShares, now: _Opening, shares: Sequence[AnyWords]) -> HiddenShares:
        silos, name = now.plan.silos, self._seat.name
        self._take_seed(ask, now)
        if len(now.seed) != SEED or len(ask.nonces) != len(silos) or ask.nonces[silos.index(name)] != now.nonce:
            raise self._refusal("hides its shares by its own nonce, and a seed", "others")
        envelopes = []
        for peer in now.plan.peers(name):
            mask = b""
            if silos.index(name) < silos.index(peer):
                mask = now.masks[peer] = os.urandom(SEED)
            hidden = [self._share(now, n, shares) + self._hiding(now, n) for n in now.plan.sets(name, peer)]
            content = b"".join(words.astype("<u8").tobytes() for words in hidden)
            envelopes.append(self._seat.seal(peer, now.context, mask + content))
        return HiddenShares(tuple(envelopes))

    def _take(self, ask: TakeShares, now: _Opening, shares: Sequence[AnyWords]) -> FiguresOpened:
        plan, name = now.plan, self._seat.name
        if tuple(envelope.sender for envelope in ask.envelopes) != plan.peers(name):
            raise self._refusal("takes the shares of each silo that it has a table with", len(ask.envelopes))
        seen: dict[tuple[str, int], AnyWords] = {}
        for envelope in ask.envelopes:
            seen |= self._opened(now, envelope)
        squares = {number: self._square(now, number, shares) for number in plan.sets(name)}
        if ask.dealt and plan.plan.request.dealer:
            raise self._refusal("is dealt by the party that the request names", "by the coordinator")
        dealt = DealtWords(name, 64, ask.dealt, now.dealt)
        for number, a, b in plan.pairs():
            shape = plan.places(number), plan.places(number)
            if name == a:
                cross = self._drawn(now, square_name(number, b), *shape)
                cross = cross - product(self._hiding(now, number), seen[b, number])
            elif name == b:
                cross = product(seen[a, number], self._share(now, number, shares)) + dealt.take(shape)
            else:
                continue
            squares[number] = squares[number] + cross + cross.T
        dealt.check_end()
        return FiguresOpened(as_tensor(self._masked(now, self._parts(now, squares, shares))))

    def _parts(self, now: _Opening, squares: Mapping[int, AnyWords], shares: Sequence[AnyWords]) -> AnyWords:
        """This silo's part of each figure of its tables, (1, …): w'R'Rw - 2 w'R'S + S'S, the last from one silo."""
        parts = []
        for place in now.plan.of(self._seat.name):
            figure = now.plan.figures[place]
            weights = np.array(figure.weights, np.int64).view(np.uint64)[:, None]
            reference = figure.reference.reshape(-1, 1).numpy().view(np.uint64)
            linear = product(self._share(now, figure.number, shares), reference)
            part = product(weights, product(squares[figure.number], weights)) - np.uint64(2) * product(weights, linear)
            if next(iter(now.plan.plan.parts[figure.number])) == self._seat.name:
                part = part + product(reference, reference)
            parts.append(part)
        return np.concatenate(parts, axis=1)

    def _masked(self, now: _Opening, parts: AnyWords) -> AnyWords:
        name, order = self._seat.name, now.plan.silos
        own = now.plan.of(name)
        for peer in now.plan.peers(name):
            shared = now.plan.of(name, peer)
            mask, sign = np.zeros(len(shared), np.uint64), 1 if order.index(name) < order.index(peer) else -1
            add_mask(mask, derive(now.masks[peer], framed(_LABEL, "mask")), sign)
            parts[0, [own.index(place) for place in shared]] += mask
        return parts

    def _opened(self, now: _Opening, envelope: Envelope) -> dict[tuple[str, int], AnyWords]:
        """What another silo hid, by its name and set."""
        sender, order = envelope.sender, now.plan.silos
        content = self._seat.open(envelope, now.context)
        if order.index(sender) < order.index(self._seat.name):
            now.masks[sender], content = content[:SEED], content[SEED:]
        sets = now.plan.sets(self._seat.name, sender)
        sizes = [math.prod(now.plan.shape(number)) for number in sets]
        if len(content) != 8 * sum(sizes):
            raise self._refusal(f"takes {sum(sizes)} words of silo {sender!r}", f"{len(content)} bytes")
        words = np.split(np.frombuffer(content, "<u8").astype(np.uint64), np.cumsum(sizes)[:-1])
        return {(sender, n): own.reshape(now.plan.shape(n)) for n, own in zip(sets, words, strict=True)}

    def _share(self, now: _Opening, number: int, shares: Sequence[AnyWords]) -> AnyWords:
        """This silo's share of a set, (C, J)."""
        return shares[number].reshape(now.plan.shape(number))

    def _square(self, now: _Opening, number: int, shares: Sequence[AnyWords]) -> AnyWords:
        share = self._share(now, number, shares)
        return product(share, share)

    def _hiding(self, now: _Opening, number: int) -> AnyWords:
        return self._drawn(now, hiding_name(number), *now.plan.shape(number))

    def _drawn(self, now: _Opening, what: tuple[str, ...], rows: int, columns: int) -> AnyWords:
        return random_words(planning.dealt_key(now.seed, now.nonce, *what), rows, columns, 64)

    def _refusal(self, rule: str, value: object) -> ProtocolError:
        return ProtocolError(f"Silo {self._seat.name!r} {rule}", value, "Prepare the figures again.")
