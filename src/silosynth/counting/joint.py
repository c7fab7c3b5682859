"""Noise on tables of two silos that both draw together and neither knows, in shares.

Each of two silos a and b (a before b in the roster) draws secret bits s and t, as many for each cell as
`silosynth.privacy.joint` says. The exclusive or of two bits is s + t - 2 s t, so that shares of products are all it
takes. They come from random words that the coordinator deals, as those of flags do (`silosynth.counting.protocol`).
With random u and v for each bit and r for each cell, and sums over a cell's bits, weighted by g:

    a seals for b  d = s + u      a keeps  r - Σ g u e
    b seals for a  e = t + v      b keeps  Σ g d t + (Σ g u v - r)      together  Σ g s t

u, v and r are expanded from seeds and a nonce of each silo; Σ g u v - r is sent to b as words. Each silo adds what it
gets to its share of the table before that opens: the sum is the table, with noise. So that a share says nothing by
itself, to whoever deals either, one adds and the other subtracts a random mask whose seed a seals for b.

Messages in talking order: `HideBits` → `HiddenBits`, `TakeBits` → `Done`; then `counting.opening.OpenTables`.

Who could take the noise off:

* a silo knows its own bits. If these are as `privacy.joint` says, random or not, those of its partner make noise of
  the law, and it sees them under random words only: it faces all of the noise. So does everybody who is no party to it.
  Bits whose groups break the rule of exclusive ors leave noise of the same variance with lighter tails, which hides as
  much as if its deviation were a tenth less than is charged.
* the coordinator, which deals, knows u, v and r. Of bits it sees nothing: d and e are sealed, and shares are masked. It
  faces all of the noise. One that deals other words adds a number that it knows to each cell. One that delivers what a
  silo has hidden in an earlier attempt of the same job adds sums of silos' bits, weighted by numbers that it knows:
  given all these, what is left of each cell's noise is a sum of g s with signs that do not hang on s, of bits s that
  are new and that nobody else knows. That has the law of the noise.
* a silo that hides other words than bits weights its partner's bits by odd numbers: by three, say, so that all noise is
  a multiple of three, and a count's remainder of division by three is told. It can do as much to the counts
  themselves, by hiding other words than flags: noise hides rows from silos that follow the protocol.
* the coordinator and one of both silos read the partner's rows, as in every counting.

A silo's bits are a function of its secret and of all that it was asked, so that one that is brought back to a
checkpoint, and asked the same, hides the same bits by the same words; asked anything else, it draws others. Bits are
for the sets and variances that they were hidden for, and go into one opening.

Shapes: C cells, B bits of each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from silosynth.core.conversation import Conversation, Exchange, Roster, expect_one
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Done, Message, Release
from silosynth.core.streams import Keystream, Streams
from silosynth.counting import plan as planning
from silosynth.counting.dealing import DealtWords, content
from silosynth.counting.plan import Plan
from silosynth.counting.products import WIDTHS, AnyWords, random_words
from silosynth.counting.protocol import SEED, as_tensor
from silosynth.privacy.joint import draw, weights
from silosynth.privacy.masks import add_mask
from silosynth.privacy.mechanisms import MOST_VARIANCE
from silosynth.privacy.sealed import Envelope, Seat, derive, framed

_MASK = "silosynth joint noise mask 1"
_KEY = SEED // 8  # words of 64 bits


class HideBits(Message):
    """Coordinator: hide bits for noise of these variances on your tables of these sets; your seed (32 bytes)."""

    sets: tuple[int, ...]
    variances: tuple[int, ...]
    seed: bytes


class HiddenBits(Message, release=Release.SEALED):
    """Silo: my bits plus random words, sealed for each silo that I share one of the sets with; and my nonce (32)."""

    nonce: bytes
    envelopes: tuple[Envelope, ...]


class TakeBits(Message, release=Release.SEALED):
    """Coordinator: what those silos hid; and your dealt shares, of sets that you share with silos before you."""

    envelopes: tuple[Envelope, ...]
    dealt: tuple[Tensor, ...]


# The coordinator.


def draw_noise(roster: Roster, plan: Plan, variances: Mapping[int, int], rng: Keystream) -> Conversation[None]:
    """Have silos draw noise of these variances on tables of two silos, by set, for the opening that follows.

    Args:
        roster: all silos.
        plan: what was counted.
        variances: of each set.
        rng: what seeds are drawn from; a secret.
    """
    for sets in _together(plan, variances):
        held = {silo: tuple(number for number in sets if silo in plan.parts[number]) for silo in roster}
        seeds = {silo: rng.words(_KEY).tobytes() for silo, own in held.items() if own}
        asks = {silo: HideBits(held[silo], tuple(variances[n] for n in held[silo]), seeds[silo]) for silo in seeds}
        replies = yield Exchange(asks)
        hidden = {silo: expect_one(silo, replies[silo], HiddenBits) for silo in asks}
        sent = [envelope for silo, reply in hidden.items() for envelope in _sent(silo, reply, plan, held[silo])]
        keys = {silo: (seeds[silo], reply.nonce) for silo, reply in hidden.items()}
        dealt = {n: _dealt(plan, n, variances[n], *(keys[silo] for silo in plan.parts[n])) for n in sets}
        takes = {}
        for silo, own in held.items():
            later = tuple(as_tensor(dealt[number]) for number in own if tuple(plan.parts[number])[1] == silo)
            if own:
                takes[silo] = TakeBits(tuple(one for one in sent if one.receiver == silo), later)
        yield Exchange(takes, rides=True)


def _together(plan: Plan, variances: Mapping[int, int]) -> Iterator[tuple[int, ...]]:
    """Sets whose bits are hidden at a time: as many as are about `planning.WORDS` words."""
    sets, words = list[int](), 0
    for number, variance in variances.items():
        more = math.prod(plan.request.shape(number)) * len(weights(variance))
        if sets and words + more > planning.WORDS:
            yield tuple(sets)
            sets, words = [], 0
        sets.append(number)
        words += more
    if sets:
        yield tuple(sets)


def _sent(silo: str, reply: HiddenBits, plan: Plan, sets: Sequence[int]) -> tuple[Envelope, ...]:
    routes = tuple((envelope.sender, envelope.receiver) for envelope in reply.envelopes)
    if routes != tuple((silo, peer) for peer in _by_peer(plan, silo, sets)):
        rule = f"Silo {silo!r} seals its bits for each silo that it shares a set with"
        raise ProtocolError(rule, len(routes), "Both sides must run the same version of silosynth.")
    return reply.envelopes


def _dealt(plan: Plan, number: int, variance: int, first: tuple[bytes, bytes], second: tuple[bytes, bytes]) -> AnyWords:
    """The later silo's dealt words (1, C): each cell's Σ g u v - r."""
    pads = [_words(plan, number, variance, *key) for key in (first, second)]
    return _weighted(pads[0] * pads[1], variance) - _first_share(plan, number, *first)


def _words(plan: Plan, number: int, variance: int, seed: bytes, nonce: bytes) -> AnyWords:
    """What hides a silo's bits (C, B) of a set; the dealer knows it, too."""
    cells, bits = math.prod(plan.request.shape(number)), len(weights(variance))
    return random_words(planning.dealt_key(seed, nonce, "bits", str(number)), cells, bits, plan.request.bits)


def _first_share(plan: Plan, number: int, seed: bytes, nonce: bytes) -> AnyWords:
    """The earlier silo's share (1, C) of the products of what hides both silos' bits."""
    key = planning.dealt_key(seed, nonce, "bits of two", str(number))
    return random_words(key, 1, math.prod(plan.request.shape(number)), plan.request.bits)


def _weighted(words_CB: AnyWords, variance: int) -> AnyWords:
    """Each cell's sum over its bits (1, C)."""
    sums: AnyWords = words_CB @ np.array(weights(variance)).astype(words_CB.dtype)
    return sums.reshape(1, -1)


def _by_peer(plan: Plan, silo: str, sets: Sequence[int]) -> dict[str, list[int]]:
    """Those of a silo's sets that it shares with each other silo, in the order of the roster."""
    found: dict[str, list[int]] = {}
    for number in sets:
        (peer,) = plan.parts[number].keys() - {silo}
        found.setdefault(peer, []).append(number)
    return {peer: found[peer] for peer in plan.request.silos if peer in found}


# A silo.


@dataclass
class _Hidden:
    """What a silo has hidden and not yet taken: its bits and what hides them, by set, and what masks are made of."""

    plan: Plan
    variances: dict[int, int]
    seed: bytes = field(repr=False)
    nonce: bytes = field(repr=False)
    bits: dict[int, AnyWords] = field(repr=False)
    mask: bytes = field(repr=False)


class JointNoise:
    """A silo's side, for `TableCounter`. Nothing of it is stored.

    Args:
        seat: who this silo is.
        streams: of its bits, whose seed is a secret.
    """

    def __init__(self, seat: Seat, streams: Streams) -> None:
        self._seat, self._streams = seat, streams
        self._now: _Hidden | None = None
        self._drawn: dict[int, tuple[int, AnyWords]] = {}

    def share(self, number: int, variance: int) -> AnyWords:
        """This silo's share (1, C) of the noise on a set's table, which is given once.

        Raises:
            ProtocolError: none was drawn, or of another variance.
        """
        drawn, share = self._drawn.pop(number, (0, None))
        if share is None or drawn != variance:
            raise self._refusal("opens a table of two silos with the noise that both have drawn for it", "another")
        return share

    def answer(self, ask: HideBits | TakeBits, plan: Plan, opened: int) -> Message:
        """Answer one message.

        Args:
            ask: the message.
            plan: what was counted.
            opened: how many tables have opened, so that none gets the bits of another.

        Raises:
            ProtocolError: the message is out of turn, or has other shapes than the plan says; or an envelope was sealed
                for other sets or variances.
        """
        now, self._now = self._now, None
        if isinstance(ask, HideBits):
            return self._hide(ask, plan, opened)
        if now is None:
            raise self._refusal("takes the bits of others after it has hidden its own", "before")
        self._take(ask, now)
        return Done()

    def _hide(self, ask: HideBits, plan: Plan, opened: int) -> HiddenBits:
        name, variances = self._seat.name, dict(zip(ask.sets, ask.variances, strict=False))
        shared = all(0 <= n < len(plan.parts) and len(plan.parts[n]) == 2 and name in plan.parts[n] for n in ask.sets)
        valid = shared and all(0 < variance <= MOST_VARIANCE for variance in ask.variances) and len(ask.seed) == SEED
        if not (valid and len(variances) == len(ask.sets) == len(ask.variances)):
            raise self._refusal("hides bits for sets of it and another silo, with a variance and a seed", ask.sets)
        streams = self._streams.child("bits", opened, repr(variances))
        nonce, mask = (streams.child(what).noise().words(_KEY).tobytes() for what in ("nonce", "mask"))
        bits, width = dict[int, AnyWords](), WIDTHS[plan.request.bits]
        for number, variance in variances.items():
            cells, rng = math.prod(plan.request.shape(number)), streams.child("set", number).noise()
            bits[number] = draw(cells, len(weights(variance)), rng).astype(width)
        now = self._now = _Hidden(plan, variances, ask.seed, nonce, bits, mask)
        envelopes = []
        for peer, sets in _by_peer(plan, name, ask.sets).items():
            hidden = [as_tensor(bits[number] + self._pad(now, number)) for number in sets]
            text = (mask if self._before(peer) else b"") + content(hidden)
            envelopes.append(self._seat.seal(peer, _context(now, sets), text, streams.again()))
        return HiddenBits(nonce, tuple(envelopes))

    def _take(self, ask: TakeBits, now: _Hidden) -> None:
        by_peer = _by_peer(now.plan, self._seat.name, tuple(now.variances))
        if tuple(envelope.sender for envelope in ask.envelopes) != tuple(by_peer):
            raise self._refusal("takes the bits of each silo that it shares a set with", len(ask.envelopes))
        width, seen, masks = now.plan.request.bits, dict[int, AnyWords](), dict[int, bytes]()
        for envelope, sets in zip(ask.envelopes, by_peer.values(), strict=True):
            text, mask = self._seat.open(envelope, _context(now, sets)), now.mask
            if not self._before(envelope.sender):
                mask, text = text[:SEED], text[SEED:]
            words = DealtWords(self._seat.name, width, sealed=text)
            seen |= {number: words.take(now.bits[number].shape) for number in sets}
            masks |= dict.fromkeys(sets, mask)
            words.check_end()
        dealt = DealtWords(self._seat.name, width, ask.dealt)
        for number, variance in now.variances.items():
            share = self._share(now, number, seen[number], dealt)
            add_mask(share[0], derive(masks[number], framed(_MASK, str(number))), 1 if self._first(now, number) else -1)
            self._drawn[number] = variance, share
        dealt.check_end()

    def _share(self, now: _Hidden, number: int, seen_CB: AnyWords, dealt: DealtWords) -> AnyWords:
        """Of Σ g (s + t - 2 s t), less its middle."""
        variance, own_CB = now.variances[number], now.bits[number]
        if self._first(now, number):
            products = _first_share(now.plan, number, now.seed, now.nonce)
            products = products - _weighted(self._pad(now, number) * seen_CB, variance)
            middle = sum(weights(variance)) // 2
        else:
            products = _weighted(seen_CB * own_CB, variance) + dealt.take((1, len(own_CB)))
            middle = 0
        share: AnyWords = _weighted(own_CB, variance) - products - products - own_CB.dtype.type(middle)
        return share

    def _pad(self, now: _Hidden, number: int) -> AnyWords:
        return _words(now.plan, number, now.variances[number], now.seed, now.nonce)

    def _first(self, now: _Hidden, number: int) -> bool:
        return next(iter(now.plan.parts[number])) == self._seat.name

    def _before(self, silo: str) -> bool:
        order = self._seat.roster.parties
        return order.index(self._seat.name) < order.index(silo)

    def _refusal(self, rule: str, value: object) -> ProtocolError:
        return ProtocolError(f"Silo {self._seat.name!r} {rule}", value, "Open the tables again.")


def _context(now: _Hidden, sets: Sequence[int]) -> str:
    """What an envelope is bound to: what was counted, and the noise on the sets that two silos share."""
    noise = " ".join(f"{number}:{now.variances[number]}" for number in sets)
    return f"bits {now.plan.request.digest()} {noise}"
