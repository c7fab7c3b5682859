"""Secure sums in plain integers: slow and obvious.

The sum of fixed-point numbers without any mask, one silo's masked vector from all secrets, and Shamir's shares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from fractions import Fraction

from tests.oracles import sealed

ONE = 2**29
WORD = 2**64
PRIME = 2**256 + 297


def fixed(x: float) -> int:
    """The integer nearest to x·2²⁹, halves to the even one."""
    return round(Fraction(x) * ONE)


def total(updates: Mapping[str, Sequence[float]], weight_of: Mapping[str, float]) -> tuple[list[float], float]:
    """Σ weight · update and Σ weight. Products are floats, as a silo computes them; sums are in integers."""
    names = list(updates)
    columns = zip(*(updates[name] for name in names), strict=True)
    sums = [sum(fixed(x * weight_of[name]) for name, x in zip(names, column, strict=True)) / ONE for column in columns]
    return sums, sum(fixed(weight_of[name]) for name in names) / ONE


def framed(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def keystream(seed: bytes, words: int) -> list[int]:
    stream = b"".join(sealed.chacha20_block(seed, block, bytes(12)) for block in range(-(-words // 8)))
    return [int.from_bytes(stream[8 * i : 8 * i + 8], "little") for i in range(words)]


def about(number: int, threshold: int, silos: Sequence[str], keys: Sequence[bytes]) -> bytes:
    texts = (str(number), str(threshold), *silos)
    label = b"silosynth aggregation 1"
    return hashlib.sha256(framed(label, *(text.encode() for text in texts), *keys)).digest()


def pair_seed(private: bytes, public: bytes, of_round: bytes) -> bytes:
    return sealed.hkdf(sealed.x25519(private, public), framed(b"silosynth masks 2", b"pair", of_round))


def told_seed(pair: bytes, told: bytes) -> bytes:
    return sealed.hkdf(pair, framed(b"silosynth masks 2", b"told", told))


def masked(
    name: str, numbers: Sequence[float], weight: float, seed: bytes, private: bytes, table: tuple, told: bytes
) -> list[int]:
    """What a silo sends: modulo 2⁶⁴, as signed numbers. ``table`` is number, threshold, silos, keys."""
    *_, silos, keys = table
    words = [fixed(x * weight) for x in numbers] + [fixed(weight)]
    masks = [(1, seed)]
    for other, key in zip(silos, keys, strict=True):
        if other != name:
            sign = 1 if silos.index(name) < silos.index(other) else -1
            masks.append((sign, told_seed(pair_seed(private, key, about(*table)), told)))
    for sign, of in masks:
        words = [(word + sign * mask) % WORD for word, mask in zip(words, keystream(of, len(words)), strict=True)]
    return [word - WORD if word >= WORD // 2 else word for word in words]


def joined(shares: Mapping[int, bytes]) -> bytes:
    """Shamir: the value at zero of the one polynomial through all of these points, in fractions modulo the prime."""
    whole = Fraction(0)
    for one, share in shares.items():
        factor = Fraction(1)
        for other in shares:
            if other != one:
                factor *= Fraction(other, other - one)
        whole += factor * int.from_bytes(share, "big")
    return (whole.numerator * pow(whole.denominator, -1, PRIME) % PRIME).to_bytes(32, "big")
