"""Updates as integers modulo 2⁶⁴, the masks that hide them, and Shamir's secret sharing of seeds and keys.

Fixed point: a number x is the whole number nearest to x·2²⁹. Numbers stay within ±2²⁰, so that a sum of 10 000 of them
stays below 2⁶³ and never wraps around; each is off by at most 2⁻³⁰, about 10⁻⁹, and a sum over n silos by n times that.
Sums are exact otherwise: they depend on neither order nor masks.

A mask is the ChaCha20 keystream of a seed of 32 bytes (nonce and counter zero), as little-endian words of 64 bits. A
vector plus a mask, modulo 2⁶⁴, is any vector equally likely, to whoever cannot derive the seed. A seed is used once.

Secret sharing (Shamir 1979): any t of n shares of a secret of 32 bytes restore it, fewer reveal nothing. A secret is
the value at zero of a random polynomial with t coefficients modulo the prime 2²⁵⁶ + 297, the smallest above all
secrets; share i is its value at i, for i = 1 … n. A wrong share is not noticed here: it gives another secret.

Shapes: W numbers of an update, M masked words.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from torch import Tensor

from silosynth.core.errors import ProtocolError
from silosynth.privacy.sealed import derive, framed

Words = npt.NDArray[np.uint64]

FRACTION = 29  # bits behind the point
BOUND = 2.0**20
_LABEL = "silosynth masks 2"
_STEP = 1 << 15  # words at a time: what fits into a processor's cache
_ZEROS = memoryview(bytes(8 * _STEP))


def to_words(update_W: Tensor, weight: float, owner: str) -> Words:
    """weight · update, and after it the weight itself, as words (W + 1,).

    Args:
        update_W: floating-point numbers.
        weight: above zero.
        owner: whose update it is, for errors.

    Raises:
        ProtocolError: something is not finite, the weight is not above zero, or a product is beyond ±2²⁰.
    """
    if update_W.dim() != 1 or not update_W.is_floating_point():
        got = f"{tuple(update_W.shape)} of {update_W.dtype}"
        raise ProtocolError(f"Silo {owner!r} masks a vector of numbers", got, "Flatten it.")
    if not (math.isfinite(weight) and 0 < weight <= BOUND):
        raise ProtocolError(f"Silo {owner!r} has a weight above 0 and up to {BOUND:.0f}", "another", "Scale weights.")
    numbers = np.empty(len(update_W) + 1)
    np.multiply(update_W.detach().cpu().double().numpy(), weight, out=numbers[:-1])
    numbers[-1] = weight
    if not (numbers.min() >= -BOUND and numbers.max() <= BOUND):  # also if something is not a number
        raise ProtocolError(
            f"Silo {owner!r} masks finite numbers within ±{BOUND:.0f}, weight included",
            "one that is not",
            "Training diverged there, or weights are too large: lower its learning rate, or scale all weights.",
        )
    numbers *= 2.0**FRACTION
    return np.rint(numbers, out=numbers).astype(np.int64).view(np.uint64)


def to_numbers(words: Words, silos: int) -> Tensor:
    """The numbers (M,), as float64, that unmasked words of a sum over ``silos`` silos stand for.

    Raises:
        ProtocolError: they are beyond what such a sum can be, so masks are left.
    """
    numbers = words.view(np.int64).astype(np.float64) / 2.0**FRACTION
    if len(numbers) and float(np.abs(numbers).max()) > silos * BOUND:
        raise ProtocolError(
            f"Without masks a sum over {silos} silos is within ±{silos * BOUND:.0f}",
            "one that is not",
            "A silo sent a wrong vector or wrong shares: start again with the next round.",
        )
    return torch.from_numpy(numbers)


def add_mask(words: npt.NDArray[np.unsignedinteger[Any]], seed: bytes, sign: int) -> None:
    """Add the mask of ``seed`` to ``words`` in place, or subtract it if ``sign`` is below zero.

    Words of another width than 64 bits take the same keystream in words of theirs.
    """
    stream = Cipher(algorithms.ChaCha20(seed, bytes(16)), None).encryptor()
    change = np.add if sign > 0 else np.subtract
    for start in range(0, len(words), _STEP):
        part = words[start : start + _STEP]
        change(part, np.frombuffer(stream.update(_ZEROS[: part.nbytes]), words.dtype.newbyteorder("<")), out=part)


def public_key(private: bytes) -> bytes:
    """The X25519 public key of a private one, 32 bytes each."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def pair_seed(private: bytes, public: bytes, digest: bytes) -> bytes:
    """The seed (32 bytes) that two silos share: either's private key with the other's public key gives the same.

    Args:
        private: X25519, made for this round only.
        public: the other silo's, likewise.
        digest: binds the seed to a round.

    Raises:
        ProtocolError: the public key is not one, or of low order: everybody would know the seed.
    """
    try:
        shared = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise ProtocolError(
            "Keys of a round are 32 bytes and not of low order", "another", "It was altered: start the round again."
        ) from None
    return derive(shared, framed(_LABEL, "pair", digest))


def told_seed(pair: bytes, told: bytes) -> bytes:
    """What a pair's masks are made of where the silo was told this (`silosynth.privacy.masker.told`)."""
    return derive(pair, framed(_LABEL, "told", told))


PRIME = 2**256 + 297
SECRET, SHARE = 32, 33  # bytes


def split(secret: bytes, count: int, threshold: int) -> list[bytes]:
    """``count`` shares of ``secret``, for the places 1 to ``count``; ``threshold`` of them are needed."""
    coefficients = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return [_value(coefficients, place).to_bytes(SHARE, "big") for place in range(1, count + 1)]


def weights(places: list[int]) -> dict[int, int]:
    """The weight of each place's share when these places join theirs: Lagrange polynomials at zero.

    The same for every secret that was split for these places; compute them once.
    """
    weight_of = {}
    for one in places:
        above, below = 1, 1
        for other in places:
            if other != one:
                above, below = above * other % PRIME, below * (other - one) % PRIME
        weight_of[one] = above * pow(below, -1, PRIME) % PRIME
    return weight_of


def join(shares: Mapping[int, bytes], weight_of: Mapping[int, int]) -> bytes:
    """The secret of which these are shares, by place.

    Args:
        shares: at least as many as the secret was split for, of the places in ``weight_of``.
        weight_of: from `weights`.

    Raises:
        ProtocolError: they are visibly not shares of one secret.
    """
    secret = sum(weight * int.from_bytes(shares[place], "big") for place, weight in weight_of.items()) % PRIME
    if secret >= 1 << 8 * SECRET:
        raise ProtocolError("Shares that are joined are of one secret", "others", "Start again with the next round.")
    return secret.to_bytes(SECRET, "big")


def _value(coefficients: list[int], place: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):  # Horner
        value = (value * place + coefficient) % PRIME
    return value
