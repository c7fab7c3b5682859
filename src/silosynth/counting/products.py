"""Products of matrices of words modulo 2^k, exact, through float64 products, which are the fast ones.

NumPy's own products of integers run without BLAS. Here each word is cut into limbs of 16 bits, whose products are below
2^32; a sum of `ROWS` of them is below 2^45, and four such sums below 2^47: floats of 53 bits hold all of it exactly, in
whatever order it is added up. One product of floats for k = 16, three for 32, ten for 64, where limbs that only matter
beyond 2^k are left out. Measured alternatives: docs/decisions/0033-counting-across-silos.md.

Shapes: N rows, K and J columns.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse
import torch

from silosynth.privacy.masks import add_mask

AnyWords: TypeAlias = "npt.NDArray[np.unsignedinteger[Any]]"
"""Words of 16, 32 or 64 bits; arithmetic on them is modulo 2^16, 2^32 or 2^64."""

Levels: TypeAlias = npt.NDArray[np.int64]
WIDTHS: dict[int, np.dtype[Any]] = {bits: np.dtype(f"u{bits // 8}") for bits in (16, 32, 64)}
ROWS = 8192  # that are summed at a time
_LIMB = 16  # bits


def random_words(seed: bytes, rows: int, columns: int, bits: int) -> AnyWords:
    """A random matrix: the ChaCha20 keystream of 32 bytes. A seed is used once."""
    words: AnyWords = np.zeros(rows * columns, WIDTHS[bits])
    add_mask(words, seed, 1)
    return words.reshape(rows, columns)


def product(a_NK: AnyWords, b_NJ: AnyWords) -> AnyWords:
    """The transpose of the first times the second, (K, J), in words of the same width."""
    total_KJ = np.zeros((a_NK.shape[1], b_NJ.shape[1]), np.uint64)
    for start in range(0, len(a_NK), ROWS):
        left, right = _limbs(a_NK[start : start + ROWS]), _limbs(b_NJ[start : start + ROWS])
        for place in range(len(left)):  # of all pairs of limbs that are worth 2^(16 place) together
            part = np.sum([_exact(left[limb], right[place - limb]) for limb in range(place + 1)], axis=0)
            total_KJ += part.astype(np.uint64) << np.uint64(_LIMB * place)
    return total_KJ.astype(a_NK.dtype)


def level_sums(words_NK: AnyWords, levels_NF: Levels, count: int) -> AnyWords:
    """The transpose of words times flags, (K, ``count``): sums of the rows on each level.

    A sparse product, which is far cheaper than one with flags written out.

    Args:
        words_NK: words.
        levels_NF: F levels that each row is on, each below ``count``; rows beyond are on none.
        count: of levels.
    """
    rows, each = levels_NF.shape
    ends = np.arange(0, rows * each + 1, each) if each else np.zeros(rows + 1, np.int64)
    flags = scipy.sparse.csc_array(
        (np.ones(rows * each, words_NK.dtype), levels_NF.reshape(-1), ends), shape=(count, rows)
    )
    sums: AnyWords = flags @ words_NK[:rows]
    return np.ascontiguousarray(sums.T)


def row_products(a_NK: AnyWords, b_NJ: AnyWords) -> AnyWords:
    """Each row of the first times each of the second, (N, K J)."""
    products: AnyWords = a_NK[:, :, None] * b_NJ[:, None, :]
    return products.reshape(len(a_NK), a_NK.shape[1] * b_NJ.shape[1])


def _limbs(words: AnyWords) -> list[npt.NDArray[np.float64]]:
    """The words cut into limbs, the lowest first."""
    whole = np.ascontiguousarray(words, words.dtype.newbyteorder("<"))
    narrow = whole.view("<u2").reshape(*words.shape, words.itemsize // 2)
    return [narrow[..., place].astype(np.float64) for place in range(narrow.shape[-1])]


def _exact(a_NK: npt.NDArray[np.float64], b_NJ: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """By torch, whose number of threads the runtime sets."""
    product_KJ: npt.NDArray[np.float64] = (torch.from_numpy(a_NK).T @ torch.from_numpy(b_NJ)).numpy()
    return product_KJ
