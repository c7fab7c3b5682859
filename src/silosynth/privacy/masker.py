"""A silo's side of secure aggregation: see `silosynth.privacy.aggregation`."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from silosynth.core.conversation import KEY_BYTES, State
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Done, Message, Struct, wire_name
from silosynth.privacy import aggregation
from silosynth.privacy.masks import SECRET, SHARE, Words, add_mask, pair_seed, public_key, split, to_words, told_seed
from silosynth.privacy.sealed import Envelope, Seat, derive, framed

_LABEL = "silosynth masker 1"
_AGAIN = "Start a round with a higher number."
_COMPARE = "Compare the rosters and options of all silos."


ASKS = aggregation.Offer, aggregation.Deal, aggregation.Relay, aggregation.ConfirmArrivals, aggregation.Unmask


@dataclass
class _Round:
    """What a silo holds of the current round; nothing of it is stored. Each stage adds what the next one needs."""

    number: int
    stage: str = "offered"
    private: bytes = field(default_factory=lambda: os.urandom(KEY_BYTES), repr=False)
    seed: bytes = field(default_factory=lambda: os.urandom(SECRET), repr=False)
    tagging: bytes = field(default_factory=lambda: os.urandom(SECRET), repr=False)
    members: aggregation.RoundMembers | None = None
    shares: dict[str, tuple[bytes, bytes]] = field(default_factory=dict, repr=False)  # of seed and key, by whose
    tag_keys: dict[str, bytes] = field(default_factory=dict, repr=False)  # of the tags that others make for this silo
    pairs: dict[str, bytes] = field(default_factory=dict, repr=False)
    arrived: tuple[str, ...] = ()

    def members_now(self) -> aggregation.RoundMembers:
        assert self.members is not None  # from the stage "dealt" on
        return self.members


class Masker:
    """Masks a silo's updates, and reveals only what opens one sum over enough silos.

    A party passes every ask to `answer` first, and replies to the algorithm's own ask with the result of `mask`. It
    masks once per round number; asks out of order, repeated, or after the end of the round are refused.

    Args:
        seat: who this silo is.
        least: fewest silos in a sum that it takes part in. With two, each learns the other's update from the sum.
        colluding: how many silos may collude with the coordinator; with more, more must stay for a sum to open.

    Raises:
        ConfigError: fewer than two silos would remain that do not collude.
    """

    def __init__(self, seat: Seat, least: int = aggregation.LEAST, colluding: int = 0) -> None:
        aggregation.check_policy(least, colluding)
        self._seat, self._least, self._colluding = seat, least, colluding
        self._last = -1  # number of the round that this silo masked last
        self._round: _Round | None = None

    def answer(self, ask: Message) -> Message | None:
        """The reply to a message of secure aggregation; None if ``ask`` is not one.

        Raises:
            ProtocolError: it is out of order, or would weaken this silo's protection; says how.
        """
        match ask:
            case aggregation.Offer():
                return self._offer(ask)
            case aggregation.Deal():
                return self._deal(ask)
            case aggregation.Relay():
                return self._receive(ask)
            case aggregation.ConfirmArrivals():
                return self._confirm(ask)
            case aggregation.Unmask():
                return self._reveal(ask)
            case _:
                return None

    def mask(self, update_W: Tensor, weight: float, number: int, told: bytes) -> aggregation.Masked:
        """weight · update and the weight, masked for the round of this number.

        Args:
            update_W: floating-point numbers.
            weight: above zero, such as the silo's share of rows.
            number: the round's, as the algorithm's own ask has it.
            told: see `mask_words`.

        Raises:
            ProtocolError: the round is not at this point, or this silo masked for it already; the weight or a number is
                not finite or too large, see `silosynth.privacy.masks.to_words`.
        """
        self._at(number, "ready")
        return self.mask_words(to_words(update_W, weight, self._seat.name), number, told)

    def mask_words(self, words: Words, number: int, told: bytes) -> aggregation.Masked:
        """Words of 64 bits, (W,), masked for the round of this number; they change in place.

        ``told`` is a hash of all that decides what a word means (`told`): masks depend on it, and cancel only between
        silos that were told the same.

        Raises:
            ProtocolError: the round is not at this point, or this silo masked for it already.
        """
        now = self._at(number, "ready")
        self._last, now.stage = number, "masked"
        add_mask(words, now.seed, 1)
        silos = now.members_now().silos
        for other, pair in now.pairs.items():
            add_mask(words, told_seed(pair, told), 1 if silos.index(self._seat.name) < silos.index(other) else -1)
        return aggregation.Masked(torch.from_numpy(words.view("int64")))

    def state(self) -> State:
        """The number of the round that was masked last. A round that is under way is not stored, and ends with it."""
        return {"last": self._last}

    def restore(self, state: State) -> None:
        """Continue from what `state` returned, at the start of a round."""
        self._last, self._round = state["last"], None

    def _offer(self, ask: aggregation.Offer) -> aggregation.Offered:
        if ask.number <= self._last:
            raise self._refusal("masks once per round; rounds' numbers rise", f"{ask.number} after {self._last}")
        self._round = _Round(ask.number)
        return aggregation.Offered(public_key(self._round.private))

    def _deal(self, ask: aggregation.Deal) -> aggregation.DealtShares:
        now = self._at(ask.number, "offered")
        self._check_members(ask, public_key(now.private))
        now.stage, now.members = "dealt", aggregation.RoundMembers(ask.number, ask.silos, ask.keys, ask.threshold)
        parts = [split(secret, len(ask.silos), ask.threshold) for secret in (now.seed, now.private)]
        shares = dict(zip(ask.silos, zip(*parts, strict=True), strict=True))
        now.shares = {self._seat.name: shares.pop(self._seat.name)}
        context = _sealed_for(now.members)
        return aggregation.DealtShares(
            tuple(
                self._seat.seal(silo, context, of_seed + of_key + _tag_key(now, silo))
                for silo, (of_seed, of_key) in shares.items()
            )
        )

    def _check_members(self, ask: aggregation.Deal, own: bytes) -> None:
        name, silos, least = self._seat.name, ask.silos, aggregation.threshold(len(ask.silos), self._colluding)
        if strange := sorted(set(silos) - set(self._seat.roster)):
            raise self._refusal("sums with silos of its roster", strange, _COMPARE)
        if len(set(silos)) < len(silos) or len(ask.keys) != len(silos) or len(set(ask.keys)) < len(silos):
            raise self._refusal("sums with silos that have a key each", f"{len(silos)} names, {len(ask.keys)} keys")
        if (name, own) not in zip(silos, ask.keys, strict=True):
            raise self._refusal("sums where it takes part, with its key of this round", "a list without")
        if not self._least <= len(silos) <= aggregation.MOST:
            raise self._refusal(f"sums over {self._least} to {aggregation.MOST} silos", len(silos), "Ask more silos.")
        if not least <= ask.threshold <= len(silos):
            raise self._refusal(
                f"deals shares of which {least} or more of {len(silos)} are needed", ask.threshold, _COMPARE
            )

    def _receive(self, ask: aggregation.Relay) -> Done:
        now = self._at(ask.number, "dealt")
        members, name = now.members_now(), self._seat.name
        if sorted(one.sender for one in ask.envelopes) != sorted(set(members.silos) - {name}):
            senders = tuple(one.sender for one in ask.envelopes)
            raise self._refusal("receives shares once from each other silo of the round", senders)
        opened = {one.sender: self._opened(one, members) for one in ask.envelopes}
        digest, keys = members.digest(), dict(zip(members.silos, members.keys, strict=True))
        now.pairs = {silo: pair_seed(now.private, keys[silo], digest) for silo in opened}
        now.shares |= {silo: (text[:SHARE], text[SHARE : 2 * SHARE]) for silo, text in opened.items()}
        now.tag_keys = {silo: text[2 * SHARE :] for silo, text in opened.items()}
        now.stage, now.private = "ready", b""
        return Done()

    def _opened(self, envelope: Envelope, members: aggregation.RoundMembers) -> bytes:
        text = self._seat.open(envelope, _sealed_for(members))
        if len(text) != 2 * SHARE + SECRET:
            raise self._refusal(
                f"receives {2 * SHARE + SECRET} bytes from each other silo", f"{len(text)} from {envelope.sender!r}"
            )
        return text

    def _confirm(self, ask: aggregation.ConfirmArrivals) -> aggregation.ArrivalsConfirmed:
        now = self._at(ask.number, "masked")
        members, name = now.members_now(), self._seat.name
        least = max(self._least, members.threshold)
        if ask.arrived != tuple(silo for silo in members.silos if silo in ask.arrived):
            raise self._refusal("confirms silos of the round, once each and in its order", ask.arrived)
        if name not in ask.arrived:
            raise self._refusal("confirms lists that it is on", ask.arrived)
        if len(ask.arrived) < least:
            raise self._refusal(f"confirms sums over {least} silos or more", len(ask.arrived))
        now.stage, now.arrived = "confirmed", ask.arrived
        return aggregation.ArrivalsConfirmed(
            tuple(b"" if silo == name else _tag(_tag_key(now, silo), ask.arrived) for silo in ask.arrived)
        )

    def _reveal(self, ask: aggregation.Unmask) -> aggregation.Revealed:
        now = self._at(ask.number, "confirmed")
        self._check_tags(ask, now)
        self._round = None  # nothing more can be asked of it
        return aggregation.Revealed(
            tuple(now.shares[silo][silo not in now.arrived] for silo in now.members_now().silos)
        )

    def _check_tags(self, ask: aggregation.Unmask, now: _Round) -> None:
        """Check that enough silos received the same list of arrivals, and so will reveal for no other list."""
        name, least = self._seat.name, now.members_now().threshold
        if len(set(ask.confirmed)) != len(ask.tags) or len(ask.confirmed) != len(ask.tags):
            raise self._refusal("checks one tag of each silo that confirmed", f"{len(ask.tags)} tags")
        others = {silo: tag for silo, tag in zip(ask.confirmed, ask.tags, strict=True) if silo != name}
        if len(others) + 1 < least:
            raise self._refusal(f"reveals once {least} silos confirmed the same list", len(others) + 1)
        wrong = [silo for silo, tag in others.items() if not self._is_tag(now, silo, tag)]
        if wrong:
            raise self._refusal(
                "reveals once silos confirmed the same list of arrivals as it did",
                f"{', '.join(wrong)} did not",
                "They were told other lists, or tags were altered: do not trust this coordinator.",
            )

    def _is_tag(self, now: _Round, silo: str, tag: bytes) -> bool:
        return silo in now.arrived and hmac.compare_digest(tag, _tag(now.tag_keys[silo], now.arrived))

    def _at(self, number: int, stage: str) -> _Round:
        """The current round if it has this number and stage, so that steps are taken once and in order."""
        now = self._round
        if now is None or (now.number, now.stage) != (number, stage):
            current = "none under way" if now is None else f"round {now.number}, {now.stage!r}"
            raise self._refusal(f"takes this step in round {number} where it is {stage!r}, once", current)
        return now

    def _refusal(self, rule: str, value: object, remedy: str = _AGAIN) -> ProtocolError:
        return ProtocolError(f"Silo {self._seat.name!r} {rule}", value, remedy)


def told(*what: Struct | bytes) -> bytes:
    """A hash of all that a silo was told, 32 bytes: the same wherever it is taken."""
    return hashlib.sha256(framed(*map(_raw, what))).digest()


def _raw(value: Any) -> bytes:
    """A value's type and content; whatever else there is has other bytes."""
    match value:
        case Struct():
            fields = (getattr(value, one.name) for one in dataclasses.fields(value))
            return framed("struct", wire_name(type(value)), *map(_raw, fields))
        case tuple():
            return framed("tuple", *map(_raw, value))
        case Tensor():
            raw = value.detach().cpu().contiguous().numpy()
            return framed("tensor", str(value.dtype), repr(tuple(value.shape)), raw.tobytes())
        case bytes():
            return framed("bytes", value)
        case float():
            return framed("float", float(value).hex())
        case _:  # texts, whole numbers, truth values, none
            return framed(type(value).__name__, repr(value))


def _sealed_for(members: aggregation.RoundMembers) -> str:
    return f"{_LABEL} shares {members.digest().hex()}"


def _tag_key(now: _Round, reader: str) -> bytes:
    """The key of this silo's tags for ``reader``, who received it sealed."""
    return derive(now.tagging, framed(_LABEL, "tag", reader))


def _tag(key: bytes, arrived: Sequence[str]) -> bytes:
    return hmac.digest(key, framed(*arrived), "sha256")
