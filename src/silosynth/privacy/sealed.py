"""Messages from silo to silo that the coordinator relays and cannot read.

Keys are agreed on as in the one-way pattern K of the Noise protocol framework (revision 34, section 7.4; not its wire
format): both sides know each other's long-lived X25519 key beforehand, and the sender adds a fresh one, the ephemeral
key, to each message::

    header = "silosynth sealed 1" and, each after its length, sender, receiver, context
    key    = HKDF-SHA256(DH(ephemeral, receiver) || DH(sender, receiver),
                         salt = ephemeral || sender || receiver (public keys), info = header)
    sealed = ChaCha20-Poly1305(key, nonce 0, plaintext, additional data = header)

A key seals one message, hence the constant nonce. What this guarantees, where silos pinned each other's true keys:

- only the receiver can read a message, and only the sender or the receiver can have written it;
- it opens for the context that it was sealed for, and for no other;
- a sender's key that is stolen later opens none of the messages that it had sealed; where a secret made the ephemeral
  key (``again``), not without that secret.

What it does not guarantee:

- That a message is new. A coordinator may deliver it again, late, or never: put into the context whatever tells
  messages apart (purpose, step), or confirm what was received, as `silosynth.privacy.agreement` does.
- Anything once a receiver's key is stolen: it opens all messages to that silo, old ones too, and forges new ones to it.
- Proof for third parties: the receiver could have written the message itself.
- That lengths, and who writes to whom when, stay hidden.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from silosynth.core.conversation import KEY_BYTES, Roster
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import Struct
from silosynth.core.streams import Streams

_LABEL = b"silosynth sealed 1"
_NONCE = bytes(12)  # constant, as no key seals twice


class Envelope(Struct):
    """A sealed message: from whom, to whom, the public key made for it (32 bytes), and what only the receiver reads."""

    sender: str
    receiver: str
    ephemeral: bytes
    ciphertext: bytes


@dataclass(frozen=True)
class Seat:
    """Who a silo is among silos. No struct, so that it cannot travel.

    Attributes:
        name: the silo's name.
        private: its long-lived X25519 key, 32 bytes; never shown.
        roster: all silos with their pinned public keys, from the silo's own configuration and not from the coordinator,
            which could otherwise put its own keys in their place.

    Raises:
        ConfigError: the roster pins no key for this silo, or one of another private key.
    """

    name: str
    private: bytes = field(repr=False)
    roster: Roster

    def __post_init__(self) -> None:
        pinned = self.roster.key(self.name)
        if len(self.private) != KEY_BYTES or _public(self.private) != pinned:
            raise ConfigError(
                "A silo's private key belongs to the public key that is pinned for it",
                self.name,
                "Put this silo's public key into every silo's roster.",
            )

    def seal(self, receiver: str, context: str, plaintext: bytes, again: bytes | None = None) -> Envelope:
        """Seal ``plaintext`` for another silo; it opens for the same ``context`` only.

        Args:
            receiver, context, plaintext: for whom, for what, and what.
            again: a secret, by which the same message becomes the same bytes when a silo is brought back to a
                checkpoint; without it, envelopes are never alike.

        Raises:
            ProtocolError: there is no such other silo, or its pinned key is not usable.
        """
        if again is None:
            return _seal(self, receiver, context, plaintext, os.urandom(KEY_BYTES))
        message = framed(_LABEL, "again", receiver, context, hashlib.sha256(plaintext).digest())
        return _seal(self, receiver, context, plaintext, derive(again, message))  # another message, another key

    def open(self, envelope: Envelope, context: str) -> bytes:
        """What another silo sealed for this one and ``context``.

        Raises:
            ProtocolError: it is for someone else, from a stranger or this silo itself, for another context, sealed with
                keys other than the pinned ones, or altered.
        """
        sender = envelope.sender
        if envelope.receiver != self.name:
            raise ProtocolError(
                f"An envelope that silo {self.name!r} opens is addressed to it", envelope.receiver, "Relay it there."
            )
        self._check_other(sender)
        theirs, header = self.roster.key(sender), _header(sender, self.name, context)
        shared = _agreed(self.private, envelope.ephemeral, sender) + _agreed(self.private, theirs, sender)
        cipher = _cipher(shared, envelope.ephemeral + theirs + self.roster.key(self.name), header)
        try:
            return cipher.decrypt(_NONCE, envelope.ciphertext, header)
        except InvalidTag:  # says nothing more; what it was raised from is kept out of logs
            raise ProtocolError(
                f"An envelope to silo {self.name!r} opens with the pinned keys, for the context that it was sealed for",
                f"one from {sender!r} that does not",
                "It was altered, is of another step, or the two silos do not pin each other's keys: compare them.",
            ) from None

    def _check_other(self, name: str) -> None:
        if name == self.name or name not in self.roster.parties:
            raise ProtocolError(
                f"Silo {self.name!r} exchanges envelopes with the other silos that its roster pins",
                name,
                "Compare the rosters of all silos.",
            )


def seats(parties: Iterable[str], streams: Streams) -> dict[str, Seat]:
    """Seats for a federation that is simulated on one machine, with keys that are a function of ``streams``.

    So a run repeats to the byte. Such keys are no secret to whoever knows the seed; silos of a real federation draw
    theirs from the operating system, once, and hand out the public halves.

    Raises:
        ConfigError: see `Roster`.
    """
    private = {name: _simulated_key(streams.child(name)) for name in parties}
    roster = Roster(tuple(private), tuple(_public(key) for key in private.values()))
    return {name: Seat(name, key, roster) for name, key in private.items()}


def framed(*parts: str | bytes) -> bytes:
    """Each part after its length in four big-endian bytes, so that no two lists of parts become the same bytes."""
    raw = (part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass") for part in parts)
    return b"".join(len(part).to_bytes(4, "big") + part for part in raw)


def derive(secret: bytes, info: bytes, salt: bytes | None = None) -> bytes:
    """32 bytes from a secret by HKDF-SHA256 (RFC 5869); other ``info``, independent bytes."""
    return HKDF(SHA256(), KEY_BYTES, salt, info).derive(secret)


def _seal(seat: Seat, receiver: str, context: str, plaintext: bytes, ephemeral: bytes) -> Envelope:
    """`Seat.seal` with the private half of the ephemeral key given. Never use one twice."""
    seat._check_other(receiver)
    theirs, header = seat.roster.key(receiver), _header(seat.name, receiver, context)
    shared, public = _agreed(ephemeral, theirs, receiver) + _agreed(seat.private, theirs, receiver), _public(ephemeral)
    cipher = _cipher(shared, public + seat.roster.key(seat.name) + theirs, header)
    return Envelope(seat.name, receiver, public, cipher.encrypt(_NONCE, plaintext, header))


def _header(sender: str, receiver: str, context: str) -> bytes:
    return _LABEL + framed(sender, receiver, context)


def _cipher(shared: bytes, publics: bytes, header: bytes) -> ChaCha20Poly1305:
    """The cipher of one message, from both Diffie-Hellman results and the public keys that they are of."""
    return ChaCha20Poly1305(derive(shared, header, salt=publics))


def _agreed(private: bytes, public: bytes, other: str) -> bytes:
    """X25519. A public key of low order would give a result that everybody knows: refused."""
    try:
        return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise ProtocolError(
            "Envelopes use public keys of 32 bytes that are not of low order",
            f"another, between this silo and {other!r}",
            "It was altered, or the pinned key is not one: compare it with the silo's own.",
        ) from None


def _public(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def _simulated_key(streams: Streams) -> bytes:
    words = (streams.child(number).integer().to_bytes(8, "big") for number in range(5))  # 63 bits each
    return hashlib.sha256(b"".join(words)).digest()
