"""Shamir's secret sharing (1979): of n shares of 32 secret bytes any t give them back; fewer say nothing at all.

A secret is the value at zero of a random polynomial with t coefficients modulo the prime 2²⁵⁶ + 297, the smallest above
all secrets; share i is its value at i, for i = 1 … n. A false share is not noticed here: it gives another secret.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from silosynth.core.errors import ProtocolError

PRIME = 2**256 + 297
SECRET, SHARE = 32, 33  # bytes


def split(secret: bytes, count: int, threshold: int) -> list[bytes]:
    """``count`` shares of ``secret``, for the places 1 to ``count``; ``threshold`` of them are needed."""
    coefficients = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return [_value(coefficients, place).to_bytes(SHARE, "big") for place in range(1, count + 1)]


def weights(places: list[int]) -> dict[int, int]:
    """What the share of each place counts for when these places join theirs: Lagrange's polynomials at zero.

    The same for every secret that was split for these places, and slower than using them.
    """
    found = {}
    for one in places:
        above, below = 1, 1
        for other in places:
            if other != one:
                above, below = above * other % PRIME, below * (other - one) % PRIME
        found[one] = above * pow(below, -1, PRIME) % PRIME
    return found


def join(shares: Mapping[int, bytes], weight_of: Mapping[int, int]) -> bytes:
    """The secret whose shares, by place, these are.

    Args:
        shares: at least as many as the secret was split for, of the places in ``weight_of``.
        weight_of: from `weights`.

    Raises:
        ProtocolError: they are not shares of one secret, as far as that shows.
    """
    whole = sum(weight * int.from_bytes(shares[place], "big") for place, weight in weight_of.items()) % PRIME
    if whole >= 1 << 8 * SECRET:
        raise ProtocolError("Shares that are joined are of one secret", "others", "Start again with the next round.")
    return whole.to_bytes(SECRET, "big")


def _value(coefficients: list[int], place: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):  # Horner
        value = (value * place + coefficient) % PRIME
    return value
