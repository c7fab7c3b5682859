"""A secret that all silos of a federation share and the coordinator, who relays every message, cannot derive.

Part of any conversation: the coordinator runs ``yield from agree(roster, purpose)``, and a silo's party passes every
ask to its `Agreements` first. Each silo sends each other silo a share of 32 bytes in a sealed envelope; the secret is a
hash of all shares. Then each silo sends a confirmation tag, a function of the secret and its own name, and checks the
tags of all silos.

Why tags: an envelope does not prove that it is new, so a coordinator could deliver one from an earlier agreement, and
silos would work with different secrets. But every silo uses its own current share, so a replayed share leaves its owner
with another secret, and another tag, than those who received it. A silo uses the secret only after it has checked all
tags, and otherwise names the silos whose tags differ.

Messages in talking order: `OfferShares` → `Shares`, `RelayedShares` → `Confirmation`, `Confirmations` → `Done`.

Purpose and freshness are the coordinator's word. The secret binds all silos to the same ones, and another purpose gives
another secret; a party for which they matter checks them before it passes an ask on. Any silo of the group can pass the
secret on: this protects against the coordinator and outsiders, not against members.
"""

from __future__ import annotations

import hmac
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, aead, algorithms

from silosynth.core.conversation import Conversation, Roster, State, expect
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Done, Message, Release
from silosynth.core.streams import Streams
from silosynth.privacy.sealed import Envelope, Seat, derive, framed

SHARE = 32  # bytes
_LABEL = "silosynth group 1"
_NONCE = 12  # bytes
_AGAIN = "Start the agreement again."


class OfferShares(Message, common=True):
    """Coordinator: make a share for ``purpose``, a new one if ``fresh``, else the one this purpose always has."""

    purpose: str
    fresh: bool


class OfferGroupShares(OfferShares, common=False):
    """Coordinator: the same, to a group of silos, beside other groups."""


class Shares(Message, release=Release.SEALED):
    """Silo: my share, sealed for each other silo."""

    envelopes: tuple[Envelope, ...]


class RelayedShares(Message, release=Release.SEALED):
    """Coordinator: what the other silos sent you."""

    envelopes: tuple[Envelope, ...]


class Confirmation(Message):
    """Silo: my tag (32 bytes), which proves that I hold the secret without revealing it."""

    tag: bytes


class Confirmations(Message, common=True):
    """Coordinator: the tags of all silos, in the roster's order."""

    tags: tuple[bytes, ...]


class GroupConfirmations(Confirmations, common=False):
    """Coordinator: the same, to a group of silos."""


ASKS = (OfferShares, RelayedShares, Confirmations)
"""What the coordinator asks, in talking order."""
REPLIES = (Shares, Confirmation)
"""What silos reply to the first two."""


def agree(roster: Roster, purpose: str, fresh: bool = True, apart: bool = False) -> Conversation[None]:
    """The coordinator's side: relay envelopes, then show all tags to all silos.

    ``fresh`` makes a new secret; otherwise the same silos always get the same one for a purpose. ``apart`` says that
    the roster is one group of several, whose members are asked what others are not.

    Raises:
        ProtocolError: a silo replied with another type, or with an envelope in another silo's name.
    """
    offer, show = (OfferGroupShares, GroupConfirmations) if apart else (OfferShares, Confirmations)
    offered = expect((yield roster.everyone(offer(purpose, fresh))), Shares)
    sent = [envelope for silo, reply in zip(roster, offered, strict=True) for envelope in _sent(silo, reply)]
    asks = {silo: RelayedShares(tuple(one for one in sent if one.receiver == silo)) for silo in roster}
    confirmed = expect((yield roster.each(asks)), Confirmation)
    expect((yield roster.everyone(show(tuple(reply.tag for reply in confirmed)))), Done)


class Group:
    """A silo's side: agrees on the group secret, and derives keys from it.

    Everything is bound to the purpose of the agreement and to a ``context`` that names the use.

    Args:
        seat: who this silo is.
        again: a stream by which a silo that is brought back to a checkpoint, and asked the same, offers the same to the
            byte. Only for a secret that hides nothing, and by which silos merely confirm what they were told.

    Attributes:
        purpose: of the last agreement.
    """

    def __init__(self, seat: Seat, again: Streams | None = None) -> None:
        self._seat, self._streams = seat, again
        self.purpose, self._fresh = "", True
        self._share: bytes | None = None  # this silo's own, until the agreement ends
        self._secret: bytes | None = None
        self._ready = False

    @property
    def ready(self) -> bool:
        """Whether all silos have confirmed the secret."""
        return self._ready

    def answer(self, ask: Message) -> Message | None:
        """The reply to a message of the agreement; None if ``ask`` is not one.

        Raises:
            ProtocolError: it comes too early; a share is missing, duplicated, from a stranger, or cannot be opened; or
                a silo's tag does not match the secret.
        """
        match ask:
            case OfferShares():
                return self._offer(ask)
            case RelayedShares():
                return self._combine(ask)
            case Confirmations():
                return self._confirm(ask)
            case _:
                return None

    def key(self, context: str) -> bytes:
        """32 bytes that only the group knows.

        Raises:
            ProtocolError: nothing is agreed yet.
        """
        return self._key("key", context)

    def permutation(self, n: int, context: str) -> torch.Tensor:
        """A uniformly random order of ``range(n)`` that only the group knows, as int64.

        The order that sorts the 64-bit words of a ChaCha20 keystream; two words are equal with probability below
        n²/2⁶⁵ (and then keep their order). Another ``n`` or ``context`` gives an independent order.

        Raises:
            ProtocolError: nothing is agreed yet.
        """
        stream = Cipher(algorithms.ChaCha20(self._key("permutation", context, str(n)), bytes(16)), None).encryptor()
        words = np.frombuffer(stream.update(bytes(8 * n)), dtype="<i8")
        return torch.from_numpy(np.argsort(words, kind="stable"))

    def seal(self, context: str, plaintext: bytes) -> bytes:
        """Seal ``plaintext`` for the whole group. The result reveals neither the author nor the time.

        The nonce is drawn from the operating system, so the same call gives other bytes each time; seal at most 2³²
        texts per context.

        Raises:
            ProtocolError: nothing is agreed yet.
        """
        nonce = os.urandom(_NONCE)
        return nonce + aead.ChaCha20Poly1305(self._key("seal", context)).encrypt(nonce, plaintext, None)

    def open(self, context: str, blob: bytes) -> bytes:
        """What a silo of the group sealed for ``context``.

        Raises:
            ProtocolError: nothing is agreed yet; or it was altered, or sealed by others or for another context.
        """
        cipher = aead.ChaCha20Poly1305(self._key("seal", context))
        try:
            return cipher.decrypt(blob[:_NONCE], blob[_NONCE:], None)
        except (InvalidTag, ValueError):  # ValueError: shorter than a nonce
            raise ProtocolError(
                "What a group sealed opens with its secret, for the context that it was sealed for",
                context,
                "It was altered, is of another step, or of another agreement.",
            ) from None

    def state(self) -> State:
        """All that is needed to continue. It holds the secret: it stays in the silo's own checkpoint."""
        return {
            "purpose": self.purpose,
            "fresh": self._fresh,
            "share": self._share,
            "secret": self._secret,
            "ready": self._ready,
        }

    def restore(self, state: State) -> None:
        """Continue from what `state` returned."""
        self.purpose, self._fresh, self._share = state["purpose"], state["fresh"], state["share"]
        self._secret, self._ready = state["secret"], state["ready"]

    def _offer(self, ask: OfferShares) -> Shares:
        self.purpose, self._fresh, self._secret, self._ready = ask.purpose, ask.fresh, None, False
        again = self._again()
        share = self._share = self._fresh_share(again) if ask.fresh else self._lasting_share()
        context = self._envelope_context()
        return Shares(tuple(self._seat.seal(silo, context, share, again) for silo in self._others()))

    def _again(self) -> bytes | None:
        """A secret of this silo for all that it was asked so far; None where it keeps no chain of that."""
        return None if self._streams is None else self._streams.child("agreement", self.purpose).again()

    def _fresh_share(self, again: bytes | None) -> bytes:
        return os.urandom(SHARE) if again is None else derive(again, framed(_LABEL, "fresh share", *self._members()))

    def _lasting_share(self) -> bytes:
        """The share that depends on this silo's private key, the purpose and the group alone.

        The group is included because members of another group see that group's share: otherwise a silo that joins a
        later run would learn the shares of an earlier run without it.
        """
        return derive(self._seat.private, framed(_LABEL, "share", self.purpose, *self._members()))

    def _combine(self, ask: RelayedShares) -> Confirmation:
        if self._share is None:
            raise ProtocolError("Shares are relayed after they were offered", type(ask).__name__, _AGAIN)
        self._secret, self._ready = None, False
        shares = {**self._opened(ask.envelopes), self._seat.name: self._share}
        freshness = "fresh" if self._fresh else "lasting"
        info = framed(_LABEL, "secret", self.purpose, freshness, *self._members())
        self._secret = derive(b"".join(shares[silo] for silo in self._seat.roster), info)
        return Confirmation(self._tag(self._secret, self._seat.name))

    def _opened(self, envelopes: Sequence[Envelope]) -> dict[str, bytes]:
        _check_senders([envelope.sender for envelope in envelopes], self._others())
        shares = {one.sender: self._seat.open(one, self._envelope_context()) for one in envelopes}
        for silo, share in shares.items():
            if len(share) != SHARE:
                raise ProtocolError(f"A share is {SHARE} bytes; that of silo {silo!r} is not", len(share), _AGAIN)
        return shares

    def _confirm(self, ask: Confirmations) -> Done:
        self._ready, secret, silos = False, self._secret, self._seat.roster.parties
        if secret is None:
            raise ProtocolError("Tags are shown after shares were relayed", type(ask).__name__, _AGAIN)
        tags = dict(zip(silos, ask.tags, strict=False))
        wrong = [silo for silo in silos if not hmac.compare_digest(tags.get(silo, b""), self._tag(secret, silo))]
        if wrong or len(ask.tags) != len(silos):
            self._share = self._secret = None
            raise ProtocolError(
                "All silos confirm the secret that this one holds",
                f"silos {', '.join(wrong)} do not" if wrong else f"{len(ask.tags)} tags for {len(silos)} silos",
                "Old or altered shares were relayed, or rosters differ: compare them and start the agreement again.",
            )
        self._share, self._ready = None, True
        return Done()

    def _tag(self, secret: bytes, silo: str) -> bytes:
        return hmac.digest(derive(secret, framed(_LABEL, "confirmation", self.purpose)), silo.encode(), "sha256")

    def _key(self, use: str, *context: str) -> bytes:
        if not self._ready or self._secret is None:
            raise ProtocolError("A group secret is used once all silos have confirmed it", use, "Agree on one first.")
        return derive(self._secret, framed(_LABEL, use, self.purpose, *context))

    def _envelope_context(self) -> str:
        return f"share {'fresh' if self._fresh else 'lasting'} {self.purpose}"

    def _others(self) -> list[str]:
        return [silo for silo in self._seat.roster if silo != self._seat.name]

    def _members(self) -> list[str | bytes]:
        return [*self._seat.roster.parties, *self._seat.roster.keys]


class Agreements:
    """A silo's side of several agreements, one at a time, each on the secret of the group that its purpose is for.

    Args:
        rule: which purposes are valid, for errors.
        group_for: the group that an offer is for; None where its purpose is not valid.
        current: the group whose agreement is under way.
    """

    def __init__(self, rule: str, group_for: Callable[[OfferShares], Group | None], current: Group) -> None:
        self._rule, self._group_for, self.current = rule, group_for, current

    def answer(self, ask: Message) -> Message | None:
        """The reply to a message of an agreement; None if ``ask`` is not one.

        Raises:
            ProtocolError: its purpose is not valid; or see `Group.answer`.
        """
        if isinstance(ask, OfferShares):
            group = self._group_for(ask)
            if group is None:
                raise ProtocolError(self._rule, ask.purpose, "Both sides must run the same version of silosynth.")
            self.current = group
        return self.current.answer(ask)


def new_purpose(what: str, nonces: Iterable[str]) -> str:
    """A purpose that no agreement had before, as it contains a nonce of every silo: a lasting secret is new with it."""
    return " ".join([what, *nonces])


def is_new(ask: OfferShares, what: str, nonce: str) -> bool:
    """Whether this offer is for `new_purpose`, with this silo's nonce among the others'."""
    return not ask.fresh and ask.purpose.startswith(what) and nonce in ask.purpose.split()


def _check_senders(senders: Sequence[str], others: Sequence[str]) -> None:
    counts = Counter(senders)
    faults = {
        "missing": [silo for silo in others if silo not in counts],
        "more than one": [silo for silo in others if counts[silo] > 1],
        "not of this group": sorted(set(counts) - set(others)),
    }
    shown = "; ".join(f"{fault}: {', '.join(silos)}" for fault, silos in faults.items() if silos)
    if shown:
        raise ProtocolError("Every silo receives one share from each other silo", shown, _AGAIN)


def _sent(silo: str, reply: Shares) -> tuple[Envelope, ...]:
    if strange := sorted({envelope.sender for envelope in reply.envelopes} - {silo}):
        raise ProtocolError(f"Silo {silo!r} sends envelopes in its own name", strange, _AGAIN)
    return reply.envelopes
