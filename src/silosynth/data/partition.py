"""Dealing a table's columns out to silos, to simulate a federation from one table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from silosynth.core.errors import DataError

PAPER_SEED = 12343
"""Seed of the permuted partition in the SiloFuse paper (which does not name its generator)."""


def in_order(columns: Sequence[str], parts: int) -> dict[str, list[str]]:
    """Neighbouring columns to each of ``silo1`` … ``siloM``: d // M of d each, and the last takes the remainder.

    Raises:
        DataError: fewer columns than silos, or no silo.
    """
    names = list(columns)
    if not 1 <= parts <= len(names):
        raise DataError(
            f"{len(names)} columns can be dealt out to 1 to {len(names)} silos", parts, "Ask for fewer silos."
        )
    share = len(names) // parts
    edges = [*(share * part for part in range(parts)), len(names)]
    return {f"silo{part + 1}": names[edges[part] : edges[part + 1]] for part in range(parts)}


def permuted(columns: Sequence[str], parts: int, seed: int = PAPER_SEED) -> dict[str, list[str]]:
    """As `in_order`, after the columns were shuffled by ``numpy.random.default_rng(seed)``.

    Raises:
        DataError: as `in_order`.
    """
    order = np.random.default_rng(seed).permutation(len(columns))
    return in_order([columns[place] for place in order.tolist()], parts)
