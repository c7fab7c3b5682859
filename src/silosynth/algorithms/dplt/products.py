"""Tables of two silos' latent attributes, that neither silo and not the coordinator sees without noise.

Silo a's latent attributes are a matrix of flags A (N, K), silo b's B (N, J); the tables of all pairs are A'B. All
sums are modulo 2^64. The coordinator deals (Du and Atallah 2001; Beaver 1991): from seeds it gives a the random matrix
U, b the random matrix V, and to each a share of U'V, of which W is random and U'V - W the rest. Sealed, a sends b the
matrix D = A - U, and b sends a the matrix E = B - V. Then ::

    a tells  A'E + W + M          b tells  D'V + (U'V - W) - M          the sum is A'B

M is random, and known to a and b only: without it the coordinator, who knows V and W, would learn A'V. Each silo adds
its own noise to what it tells, so that noise is left for whoever knows the other's.

Who learns what: b sees D, which is any matrix equally likely to whoever does not know U; likewise a. The coordinator
sees the noised sum. This holds where all follow the protocol, and the coordinator shares with no silo what it has
dealt: with U or V, D or E are the rows' latent attributes.

Shapes: N rows, K columns of the own matrix, J of the other silo's.
"""

from __future__ import annotations

import numpy as np

from silosynth.core.streams import Streams
from silosynth.privacy.masks import Words, add_mask
from silosynth.privacy.sealed import derive

WORDS = 5  # of 63 bits, for a seed of 32 bytes


def seed_of(streams: Streams) -> bytes:
    """32 bytes that are a function of a stream."""
    words = (streams.child(number).integer().to_bytes(8, "big") for number in range(WORDS))
    return derive(b"".join(words), b"silosynth dplt seed 1")


def random_words(seed: bytes, rows: int, columns: int) -> Words:
    """A random matrix. A seed is used once."""
    words = np.zeros(rows * columns, np.uint64)
    add_mask(words, seed, 1)
    return words.reshape(rows, columns)


def product(a_NK: Words, b_NJ: Words) -> Words:
    """The transpose of the first times the second, modulo 2^64."""
    return np.asarray(a_NK.T @ b_NJ)


def told(left_NK: Words, right_NJ: Words, correction_KJ: Words, mask: bytes, sign: int) -> Words:
    """What a silo tells (K, J): A and E are on the left and right of silo a, D and V of silo b; M has another sign."""
    share = np.ascontiguousarray(product(left_NK, right_NJ) + correction_KJ).reshape(-1)
    add_mask(share, mask, sign)
    return share.reshape(correction_KJ.shape)
