"""Whether values of two silos go together, row by row: a referee learns yes or no of each row, and nothing else.

A protocol of private simultaneous messages (Feige, Kilian and Naor 1994): two silos share a secret, each sends one
message to a referee who does not have it. A message holds codes of eight bytes for each row and place. A place is one
way in which a row's values can go together, and both silos send the same code where they agree with it: at one place
at most. All other codes look random, and places are shuffled anew for each row. So the messages can be made up from the
answer alone (`tests/privacy/test_simultaneous.py` does so).

- *Levels*: a place for each combination that is allowed; a silo agrees with those that its values are part of.
- *Order*: a number is below another exactly if there is a binary digit that is 0 in the first and 1 in the second, and
  all higher digits are equal (Lin and Tzeng 2005). A place for each digit; its code depends on the higher ones.

What looks random is made by a block cipher under a key that the referee lacks, of blocks that differ. **A key is for
one message of each silo**: under a second one the referee would see which digits are as before. A referee that works
together with a silo has its key, and reads the other's values.

Shapes: N rows, P places.
"""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from silosynth.privacy.sealed import derive

Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]

DIGITS = 64
LEAST, MOST = 0, 2**64 - 2
"""Numbers below and above all of `ordered`."""
_LABEL = b"silosynth simultaneous 1 "
_ONE = np.uint64(1)


def level_codes(agrees_NP: Flags, key: bytes) -> Words:
    """A silo's codes (N, P), given with which places its values agree.

    Of each row both silos may agree with one place at most. ``key``: 32 bytes that only they know, never used before.
    """
    return _hidden(_words(key, b"levels", *_grid(*agrees_NP.shape)), agrees_NP, key)


def order_codes(number_N: Words, upper: bool, key: bytes) -> Words:
    """A silo's codes (N, 64) of its numbers, by which is found where one silo's are below the (``upper``) other's."""
    row_N1, digit_1P = _grid(len(number_N), DIGITS)
    from_digit_NP = number_N[:, None] >> digit_1P
    agrees_NP = (from_digit_NP & _ONE) == np.uint64(upper)
    return _hidden(_words(key, b"digits", row_N1, digit_1P, from_digit_NP >> _ONE), agrees_NP, key)


def go_together(one_NP: Words, other_NP: Words) -> Flags:
    """The referee's answer: which rows (N,) go together, by both silos' codes."""
    found_N: Flags = (one_NP == other_NP).any(axis=1)
    return found_N


def ordered(value_N: npt.NDArray[np.int64] | npt.NDArray[np.float64]) -> Words:
    """Numbers (N,), none of them NaN, as integers from 2 to 2^64 - 3 in the same order."""
    bits_N = (value_N + 0.0).view(np.int64) if value_N.dtype == np.float64 else value_N  # -0.0 becomes 0.0
    least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    if value_N.dtype == np.float64:
        bits_N = np.where(bits_N < 0, least - bits_N, bits_N)
    words: Words = bits_N.clip(least + 2, most - 2).view(np.uint64) ^ np.uint64(1 << 63)
    return words


def _hidden(codes_NP: Words, agrees_NP: Flags, key: bytes) -> Words:
    """Codes where a silo agrees and random ones elsewhere, with places in an order of each row that both silos know."""
    random_NP = np.frombuffer(os.urandom(codes_NP.nbytes), dtype="<u8").reshape(codes_NP.shape)
    order_NP = np.argsort(_words(key, b"order", *_grid(*codes_NP.shape)), axis=1, kind="stable")
    return np.take_along_axis(np.where(agrees_NP, codes_NP, random_NP), order_NP, axis=1)


def _grid(rows: int, places: int) -> tuple[Words, Words]:
    return np.arange(rows, dtype=np.uint64)[:, None], np.arange(places, dtype=np.uint64)[None, :]


def _words(key: bytes, use: bytes, row_N1: Words, place_1P: Words, more_NP: Words | None = None) -> Words:
    """Eight bytes (N, P) that look random, of each row and place and a further number."""
    blocks = np.zeros((len(row_N1), place_1P.shape[1], 2), dtype="<u8")
    blocks[..., 0] = row_N1 << np.uint64(32) | place_1P
    blocks[..., 1] = 0 if more_NP is None else more_NP
    cipher = Cipher(algorithms.AES(derive(key, _LABEL + use)), modes.ECB())  # as a function of blocks that differ
    made = cipher.encryptor().update(blocks.tobytes())
    return np.frombuffer(made, dtype="<u8").reshape(blocks.shape)[..., 0]
