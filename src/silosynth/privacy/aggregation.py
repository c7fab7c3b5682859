"""Sums over silos of which the coordinator sees nothing but the sum: how it works, and the coordinator's side.

After Bonawitz et al. (2017), "Practical Secure Aggregation for Privacy-Preserving Machine Learning". Every silo adds to
its update one mask from a seed of its own, and for each other silo a mask from a seed that only the two share, which
one adds and the other subtracts. In the sum, pairs' masks cancel. What is left to remove is revealed only after silos
have made sure of each other that they are told the same list of those whose updates arrived:

- of a silo on that list its own seed, never its key;
- of a silo that is not, its key of this round, from which its pairs' seeds follow, never its own seed.

Seeds and keys lie, in shares (`silosynth.privacy.shares`), with all silos of the round, so that those who get lost, at
any step, do not lose the round as long as a majority stays. A silo's side is `silosynth.privacy.masker`. Messages
(`silosynth.privacy.rounds`) in talking order, with the paper's names:

    Offer → Offered            0 AdvertiseKeys: a key for this round only
    Deal → Dealt               1 ShareKeys: shares, sealed for each other silo. If a silo is lost so far, both are
                                 repeated without it: there is nothing to lose yet
    Relay → Done               1 the sealed shares, delivered
    the algorithm's → Masked   2 MaskedInputCollection: compute an update, and `Masker.mask` it
    Confirm → Confirmed        3 ConsistencyCheck: who arrived, with a tag for each other silo
    Unmask → Revealed          4 Unmasking

Let n be the silos of a round, c = ``colluding`` (default 0) and t = ⌊(n + c) / 2⌋ + 1, the shares and tags it takes.
What is guaranteed:

- A coordinator that lies as it likes, with c silos, learns one sum of which a silo's update is part, over ``least`` or
  more silos. One only: a silo confirms one list, a list opens with t tags, and no two lists get them. So who was taken
  for lost and answers after all (it was late, or the coordinator lied) stays hidden.
- A coordinator that follows the protocol, with t - 1 silos, learns the sum of the others' updates.
- Silos without the coordinator learn nothing.
- A silo goes by the keys of its own roster (`Seat`). Each seals its shares for one list of the round's keys, so that
  envelopes do not open where the coordinator put a key of its own in place of another's.
- Nothing of a finished round is kept. It takes long-lived keys of t silos, and what they were sent, to open it later.

What is not:

- More than c silos with a lying coordinator can unmask any silo (two lists with t tags each); t silos can with any
  coordinator; and all silos but one, with the sum, always can.
- **Sums themselves are not private**: they have no noise, and no differential privacy. A coordinator that has the same
  model trained in two rounds, once without a silo, subtracts; so does one that has silos go back to a checkpoint and
  leaves one out. A silo masks once per number; that updates of two numbers differ is for the algorithm to see to.
- Who wants to spoil a sum can. It is noticed if the result is far out of range.

Differences from the paper: signatures of the consistency check are tags for each reader, with keys that are dealt with
the shares; shares are of seeds and keys as they are, modulo a prime; all silos mask with all; a weight is summed along.

Shapes: W numbers of an update. Why, and what it costs: docs/decisions/0012-secure-aggregation.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from silosynth.core.conversation import Conversation, Exchange, Replies
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Done, Message
from silosynth.privacy.masks import Words, add_mask, pair_seed, public_key, to_numbers
from silosynth.privacy.rounds import (
    LEAST,
    MOST,
    Confirm,
    Confirmed,
    Deal,
    Dealt,
    Masked,
    Offer,
    Offered,
    Relay,
    Revealed,
    Table,
    Unmask,
    check_policy,
    threshold,
)
from silosynth.privacy.sealed import Envelope
from silosynth.privacy.shares import SHARE, join, weights

TOGETHER = 8  # updates that are held at the same time
_NEXT = "This round is lost: go on with the next one, without those that do not answer."
M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Total:
    """What was summed: Σ weight · update as float64 (W,), Σ weight, and whose."""

    sum_W: Tensor
    weight: float
    silos: tuple[str, ...]

    def mean(self) -> Tensor:
        """The weighted mean of the updates, (W,) float64."""
        return self.sum_W / self.weight


def secure_sum(
    asks: Mapping[str, Message], number: int, width: int, least: int = LEAST, colluding: int = 0
) -> Conversation[Total]:
    """The weighted sum of the silos' updates; of replies that are missing at any step, the round goes on without.

    Args:
        asks: what makes each silo answer with what its `Masker.mask` returns of its update. A few silos are asked at a
            time: long work belongs into an exchange before.
        number: above that of all earlier rounds with these silos.
        width: W, how many numbers an update has.
        least: silos that a sum has, at least.
        colluding: silos that may work with the coordinator. Silos refuse both if below their own.

    Raises:
        ConfigError: see `check_policy`.
        ProtocolError: too few silos are left; or one answers something else.
    """
    check_policy(least, colluding)
    if len(asks) > MOST:
        raise ProtocolError(f"A sum is over at most {MOST} silos", len(asks), "Sum in groups.")
    table, ready = yield from _set_up(tuple(asks), number, least, colluding)
    words, delivered = yield from _gathered(asks, ready, width)
    arrived = _present(table.silos, delivered, max(least, table.threshold), "deliver an update")
    tags = yield from _confirmed(table, arrived)
    shares = yield from _revealed(table, arrived, tags)
    _unmask(words, table, arrived, shares)
    numbers = to_numbers(words, len(arrived))
    return Total(numbers[:-1], float(numbers[-1]), arrived)


def _set_up(
    silos: tuple[str, ...], number: int, least: int, colluding: int
) -> Conversation[tuple[Table, tuple[str, ...]]]:
    """Keys and shares of a round: from the start again, without whom was lost, until all at the table have dealt."""
    while True:
        offers = yield _ask({silo: Offer(number) for silo in silos})
        silos = _present(silos, offers, least, "offer a key")
        keys = tuple(_reply(offers, silo, Offered).key for silo in silos)
        table = Table(number, silos, keys, threshold(len(silos), colluding))
        deals = yield _ask({silo: Deal(number, silos, keys, table.threshold) for silo in silos})
        dealers = _present(silos, deals, least, "deal shares")
        if dealers == silos:
            break
        silos = dealers
    sealed = [envelope for silo in silos for envelope in _envelopes(deals, silo)]
    asks = {silo: Relay(number, tuple(one for one in sealed if one.receiver == silo)) for silo in silos}
    done = yield _ask(asks)
    for silo in done:
        _reply(done, silo, Done)
    return table, _present(silos, done, least, "receive shares")


def _confirmed(table: Table, arrived: tuple[str, ...]) -> Conversation[dict[str, tuple[bytes, ...]]]:
    """The tags of each silo that confirms who arrived, one for each that did."""
    replies = yield _ask({silo: Confirm(table.number, arrived) for silo in arrived})
    confirmed = _present(arrived, replies, table.threshold, "confirm who arrived")
    tags = {silo: _reply(replies, silo, Confirmed).tags for silo in confirmed}
    for silo in confirmed:
        if len(tags[silo]) != len(arrived):
            raise ProtocolError(f"Silo {silo!r} sends a tag for each silo that arrived", len(tags[silo]), _NEXT)
    return tags


def _revealed(
    table: Table, arrived: tuple[str, ...], tags: Mapping[str, tuple[bytes, ...]]
) -> Conversation[dict[int, tuple[bytes, ...]]]:
    """By place at the table, the shares of as many silos as it takes."""
    asks = {
        silo: Unmask(table.number, tuple(tags), tuple(of[arrived.index(silo)] for of in tags.values())) for silo in tags
    }
    replies = yield _ask(asks)
    enough = _present(tuple(tags), replies, table.threshold, "reveal shares")[: table.threshold]
    shares = {table.silos.index(silo) + 1: _reply(replies, silo, Revealed).shares for silo in enough}
    for place, of in shares.items():
        if [len(share) for share in of] != [SHARE] * len(table.silos):
            silo = table.silos[place - 1]
            raise ProtocolError(f"Silo {silo!r} reveals {SHARE} bytes for each silo of the round", len(of), _NEXT)
    return shares


def _unmask(words: Words, table: Table, arrived: Sequence[str], shares: Mapping[int, tuple[bytes, ...]]) -> None:
    """Take what masks are left out of the sum, in place: those of own seeds, and those with silos that are missing."""
    weight_of, about = weights(list(shares)), table.about()
    for place, (silo, key) in enumerate(zip(table.silos, table.keys, strict=True)):
        secret = join({holder: of[place] for holder, of in shares.items()}, weight_of)
        if silo in arrived:
            add_mask(words, secret, -1)
            continue
        if public_key(secret) != key:
            raise ProtocolError(f"Shares of the key of silo {silo!r} give that key", "another", _NEXT)
        for other in arrived:
            theirs = table.silos.index(other)
            add_mask(words, pair_seed(secret, table.keys[theirs], about), 1 if theirs > place else -1)


def _ask(asks: Mapping[str, Message]) -> Exchange:
    """Of which any reply may be missing: every step of a sum goes on without."""
    return Exchange(asks, missing=True)


def _gathered(asks: Mapping[str, Message], silos: Sequence[str], width: int) -> Conversation[tuple[Words, list[str]]]:
    """The sum of what silos mask, and whose arrived; updates are taken in a few at a time, and not kept."""
    words, arrived = np.zeros(width + 1, dtype=np.uint64), []
    for first in range(0, len(silos), TOGETHER):
        updates = yield _ask({silo: asks[silo] for silo in silos[first : first + TOGETHER]})
        for silo in updates:
            masked = _reply(updates, silo, Masked).words
            if masked.dtype != torch.int64 or masked.shape != (width + 1,):
                found = f"{tuple(masked.shape)} of {masked.dtype}"
                raise ProtocolError(f"Silo {silo!r} masks {width} numbers and their weight, as int64", found, _NEXT)
            words += masked.numpy().view(np.uint64)
            arrived.append(silo)
    return words, arrived


def _envelopes(deals: Replies, silo: str) -> tuple[Envelope, ...]:
    envelopes = _reply(deals, silo, Dealt).envelopes
    if strange := sorted({envelope.sender for envelope in envelopes} - {silo}):
        raise ProtocolError(f"Silo {silo!r} sends envelopes in its own name", strange, _NEXT)
    return envelopes


def _present(silos: Iterable[str], replies: Collection[str], least: int, what: str) -> tuple[str, ...]:
    present = tuple(silo for silo in silos if silo in replies)
    if len(present) < least:
        raise ProtocolError(f"At least {least} silos {what}", f"{len(present)}: {', '.join(present)}", _NEXT)
    return present


def _reply(replies: Replies, silo: str, kind: type[M]) -> M:
    reply = replies[silo]
    if not isinstance(reply, kind):
        raise ProtocolError(f"Silo {silo!r} answers with {kind.__name__}", type(reply).__name__, _NEXT)
    return reply
