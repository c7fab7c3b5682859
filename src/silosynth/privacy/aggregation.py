"""Secure aggregation: the coordinator learns a sum over silos and nothing else. Messages, and the coordinator's side.

After Bonawitz et al. (2017), "Practical Secure Aggregation for Privacy-Preserving Machine Learning". Every silo masks
its update twice: with a mask from a seed of its own, and with one mask per other silo from a seed that the pair shares,
which one of them adds and the other subtracts. In the sum the pairwise masks cancel. What opens the rest is revealed
only after the silos have checked with each other that the coordinator told all of them the same list of arrivals:

- for a silo whose update arrived, the seed of its own mask, never its key;
- for a silo whose update did not, its key of this round, from which its pairwise seeds follow, never its own seed.

Seeds and keys are secret-shared (`silosynth.privacy.masks`) among all silos of the round, so that losing silos at any
step does not lose the round as long as a majority stays. A silo's side is `silosynth.privacy.masker`. Messages in
talking order, with the paper's names:

    Offer → Offered                     0 AdvertiseKeys: a key for this round only
    Deal → DealtShares                  1 ShareKeys: shares, sealed for each other silo. If a silo has been lost so far,
                                          both steps are repeated without it: nothing is lost yet
    Relay → Done                        1 the sealed shares, delivered
    the algorithm's ask → Masked        2 MaskedInputCollection: compute an update and mask it (`Masker.mask`)
    ConfirmArrivals → ArrivalsConfirmed 3 ConsistencyCheck: who arrived, with a tag for each other silo
    Unmask → Revealed                   4 Unmasking

Let n be the silos of a round, c = ``colluding`` (default 0) and t = ⌊(n + c) / 2⌋ + 1, the number of shares and of tags
that are needed. What is guaranteed:

- A coordinator that deviates as it likes, together with c silos, learns one sum that a silo's update is part of, over
  ``least`` or more silos. Only one: a silo confirms one list, a list opens with t tags, and no two lists can get them.
  A silo that was taken for lost and replies after all (it was late, or the coordinator lied) keeps its update hidden.
- Masks of a pair of silos hang on what each was told, as the algorithm gives it to `Masker.mask`. So a sum opens only
  if all were told the same, and else gives random words: no silo's numbers can be made to mean something else.
- A coordinator that follows the protocol, together with t - 1 silos, learns the sum of the others' updates.
- Silos without the coordinator learn nothing.
- A silo uses the keys of its own roster (`Seat`). Shares are sealed for one list of the round's keys, so that envelopes
  do not open where the coordinator replaced a key.
- Nothing of a finished round is kept. Opening it later takes the long-lived keys of t silos and what they were sent.

What is not guaranteed:

- More than c silos with a coordinator that deviates can unmask any silo (two lists with t tags each); t silos can with
  any coordinator; and all silos but one always can, from the sum.
- **Sums themselves are not private**: they carry no noise and no differential privacy. A coordinator that has the same
  model trained in two rounds, once without a silo, subtracts; so does one that sends silos back to a checkpoint and
  leaves one out. A silo masks once per round number; that updates of two rounds differ is up to the algorithm.
- So are weights, and what all silos are told alike: a model can be made such that few rows change it.
- Anyone who takes part can spoil a sum. It is noticed if the result is far out of range.

Differences from the paper: signatures of the consistency check are tags for each reader, with keys that are dealt with
the shares; seeds and keys themselves are shared, modulo a prime; all silos mask with all; a weight is summed along.

Shapes: W numbers of an update. Why, and what it costs: docs/decisions/0012-secure-aggregation.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from silosynth.core.conversation import Conversation, Exchange, Replies, expect_one
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import Done, Message, Release
from silosynth.privacy.masks import SHARE, Words, add_mask, join, pair_seed, public_key, to_numbers, told_seed, weights
from silosynth.privacy.sealed import Envelope, framed

LEAST = 3
MOST = 10_000  # silos; what `silosynth.privacy.masks` has room for
_LABEL = "silosynth aggregation 1"


class Offer(Message):
    """Coordinator: a round begins. Numbers rise from round to round."""

    number: int


class Offered(Message):
    """Silo: my public key (32 bytes) for this round."""

    key: bytes


class Deal(Message):
    """Coordinator: who takes part, with which keys, and how many shares are to give back a secret."""

    number: int
    silos: tuple[str, ...]
    keys: tuple[bytes, ...]
    threshold: int


class DealtShares(Message, release=Release.SEALED):
    """Silo: shares of my seed and of my key, and a key for my tags, sealed for each other silo."""

    envelopes: tuple[Envelope, ...]


class Relay(Message, release=Release.SEALED):
    """Coordinator: what the other silos sealed for you."""

    number: int
    envelopes: tuple[Envelope, ...]


class Masked(Message, release=Release.MASKED):
    """Silo: weight · update and the weight, in fixed point and masked: (W + 1,) int64."""

    words: Tensor


class ConfirmArrivals(Message):
    """Coordinator: the updates of these silos arrived."""

    number: int
    arrived: tuple[str, ...]


class ArrivalsConfirmed(Message):
    """Silo: I received this list; a tag (32 bytes) for each silo on it, empty for myself."""

    tags: tuple[bytes, ...]


class Unmask(Message):
    """Coordinator: these silos confirmed, with these tags for you."""

    number: int
    confirmed: tuple[str, ...]
    tags: tuple[bytes, ...]


class Revealed(Message, release=Release.MASKED):
    """Silo: for each silo of the round my share of its seed if it arrived, else of its key."""

    shares: tuple[bytes, ...]


@dataclass(frozen=True)
class RoundMembers:
    """The silos of a round: names and keys in one order, and how many shares restore a secret."""

    number: int
    silos: tuple[str, ...]
    keys: tuple[bytes, ...]
    threshold: int

    def digest(self) -> bytes:
        """32 bytes that no other round has."""
        return hashlib.sha256(framed(_LABEL, str(self.number), str(self.threshold), *self.silos, *self.keys)).digest()


def threshold(silos: int, colluding: int) -> int:
    """How many of ``silos`` silos must confirm: two lists that get so many share a silo that does not collude."""
    return (silos + colluding) // 2 + 1


def check_policy(least: int, colluding: int) -> None:
    """Check the least number of silos in a sum, given how many may collude with the coordinator.

    Raises:
        ConfigError: fewer than two silos would be left that do not collude.
    """
    if colluding < 0 or least < colluding + 2:
        raise ConfigError(
            f"With {colluding} colluding silos a sum is over at least {max(colluding, 0) + 2}",
            least,
            "Raise least, or expect fewer to collude.",
        )


TOGETHER = 8  # updates that are held at the same time
_NEXT = "This round is lost: go on with the next one, without those that do not answer."


@dataclass(frozen=True)
class WeightedSum:
    """A sum over silos: Σ weight · update as float64 (W,), Σ weight, and the silos in it."""

    sum_W: Tensor
    weight: float
    silos: tuple[str, ...]

    def mean(self) -> Tensor:
        """The weighted mean of the updates, (W,) float64."""
        return self.sum_W / self.weight


def secure_sum(
    asks: Mapping[str, Message], number: int, width: int, least: int = LEAST, colluding: int = 0, told: bytes = b""
) -> Conversation[WeightedSum]:
    """The weighted sum of the silos' updates; silos that do not reply at some step are left out.

    Args:
        asks: asks that each silo replies to with `Masker.mask` of its update. A few silos are asked at a time, so long
            computations belong into an exchange before.
        number: above that of all earlier rounds with these silos.
        width: W, how many numbers an update has.
        least: fewest silos in a sum.
        colluding: silos that may collude with the coordinator. Silos refuse values below their own.
        told: what all silos mask with (`Masker.mask_words`), by which masks with lost silos are rebuilt. Sums over all
            silos need none.

    Raises:
        ConfigError: see `check_policy`.
        ProtocolError: too few silos are left; or one answers something else.
    """
    words, arrived = yield from secure_words(asks, number, width + 1, least, colluding, told)
    numbers = to_numbers(words, len(arrived))
    return WeightedSum(numbers[:-1], float(numbers[-1]), arrived)


def secure_words(
    asks: Mapping[str, Message], number: int, width: int, least: int = LEAST, colluding: int = 0, told: bytes = b""
) -> Conversation[tuple[Words, tuple[str, ...]]]:
    """The sum of the silos' words modulo 2⁶⁴, (W,), which they reply with by `Masker.mask_words`; and whose.

    See `secure_sum` for all else.
    """
    check_policy(least, colluding)
    if len(asks) > MOST:
        raise ProtocolError(f"A sum is over at most {MOST} silos", len(asks), "Sum in groups.")
    members, ready = yield from _set_up(tuple(asks), number, least, colluding)
    words, delivered = yield from _gathered(asks, ready, width)
    arrived = _present(members.silos, delivered, max(least, members.threshold), "deliver an update")
    tags = yield from _confirmed(members, arrived)
    shares = yield from _revealed(members, arrived, tags)
    _unmask(words, members, arrived, shares, told)
    return words, arrived


def _set_up(
    silos: tuple[str, ...], number: int, least: int, colluding: int
) -> Conversation[tuple[RoundMembers, tuple[str, ...]]]:
    """Keys and shares of a round; repeated without lost silos until all that remain have dealt."""
    while True:
        offers = yield _ask({silo: Offer(number) for silo in silos})
        silos = _present(silos, offers, least, "offer a key")
        keys = tuple(expect_one(silo, offers[silo], Offered).key for silo in silos)
        members = RoundMembers(number, silos, keys, threshold(len(silos), colluding))
        deals = yield _ask({silo: Deal(number, silos, keys, members.threshold) for silo in silos})
        dealers = _present(silos, deals, least, "deal shares")
        if dealers == silos:
            break
        silos = dealers
    sealed = [envelope for silo in silos for envelope in _envelopes(deals, silo)]
    asks = {silo: Relay(number, tuple(one for one in sealed if one.receiver == silo)) for silo in silos}
    done = yield _ask(asks)
    for silo in done:
        expect_one(silo, done[silo], Done)
    return members, _present(silos, done, least, "receive shares")


def _confirmed(members: RoundMembers, arrived: tuple[str, ...]) -> Conversation[dict[str, tuple[bytes, ...]]]:
    """For each silo that confirms, its tags: one for each silo whose update arrived."""
    replies = yield _ask({silo: ConfirmArrivals(members.number, arrived) for silo in arrived})
    confirmed = _present(arrived, replies, members.threshold, "confirm who arrived")
    tags = {silo: expect_one(silo, replies[silo], ArrivalsConfirmed).tags for silo in confirmed}
    for silo in confirmed:
        if len(tags[silo]) != len(arrived):
            raise ProtocolError(f"Silo {silo!r} sends a tag for each silo that arrived", len(tags[silo]), _NEXT)
    return tags


def _revealed(
    members: RoundMembers, arrived: tuple[str, ...], tags: Mapping[str, tuple[bytes, ...]]
) -> Conversation[dict[int, tuple[bytes, ...]]]:
    """By place at the members, the shares of as many silos as it takes."""
    asks = {
        silo: Unmask(members.number, tuple(tags), tuple(of[arrived.index(silo)] for of in tags.values()))
        for silo in tags
    }
    replies = yield _ask(asks)
    enough = _present(tuple(tags), replies, members.threshold, "reveal shares")[: members.threshold]
    shares = {members.silos.index(silo) + 1: expect_one(silo, replies[silo], Revealed).shares for silo in enough}
    for place, of in shares.items():
        if [len(share) for share in of] != [SHARE] * len(members.silos):
            silo = members.silos[place - 1]
            raise ProtocolError(f"Silo {silo!r} reveals {SHARE} bytes for each silo of the round", len(of), _NEXT)
    return shares


def _unmask(
    words: Words, members: RoundMembers, arrived: Sequence[str], shares: Mapping[int, tuple[bytes, ...]], told: bytes
) -> None:
    """Take what masks are left out of the sum, in place: those of own seeds, and those with silos that are missing."""
    weight_of, digest = weights(list(shares)), members.digest()
    for place, (silo, key) in enumerate(zip(members.silos, members.keys, strict=True)):
        secret = join({holder: of[place] for holder, of in shares.items()}, weight_of)
        if silo in arrived:
            add_mask(words, secret, -1)
            continue
        if public_key(secret) != key:
            raise ProtocolError(f"Shares of the key of silo {silo!r} give that key", "another", _NEXT)
        for other in arrived:
            theirs = members.silos.index(other)
            seed = told_seed(pair_seed(secret, members.keys[theirs], digest), told)
            add_mask(words, seed, 1 if theirs > place else -1)


def _ask(asks: Mapping[str, Message]) -> Exchange:
    """An exchange in which any reply may be missing."""
    return Exchange(asks, missing=True)


def _gathered(asks: Mapping[str, Message], silos: Sequence[str], width: int) -> Conversation[tuple[Words, list[str]]]:
    """The sum of the masked updates, and whose arrived; a few updates are held at a time."""
    words, arrived = np.zeros(width, dtype=np.uint64), []
    for first in range(0, len(silos), TOGETHER):
        updates = yield _ask({silo: asks[silo] for silo in silos[first : first + TOGETHER]})
        for silo in updates:
            masked = expect_one(silo, updates[silo], Masked).words
            if masked.dtype != torch.int64 or masked.shape != (width,):
                got = f"{tuple(masked.shape)} of {masked.dtype}"
                raise ProtocolError(f"Silo {silo!r} masks {width} words, as int64", got, _NEXT)
            words += masked.numpy().view(np.uint64)
            arrived.append(silo)
    return words, arrived


def _envelopes(deals: Replies, silo: str) -> tuple[Envelope, ...]:
    envelopes = expect_one(silo, deals[silo], DealtShares).envelopes
    if strange := sorted({envelope.sender for envelope in envelopes} - {silo}):
        raise ProtocolError(f"Silo {silo!r} sends envelopes in its own name", strange, _NEXT)
    return envelopes


def _present(silos: Iterable[str], replies: Collection[str], least: int, what: str) -> tuple[str, ...]:
    present = tuple(silo for silo in silos if silo in replies)
    if len(present) < least:
        raise ProtocolError(f"At least {least} silos {what}", f"{len(present)}: {', '.join(present)}", _NEXT)
    return present
