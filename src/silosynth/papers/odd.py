"""GDTS's table II and figure 6: one silo has as many rows as all others together, and they are all the same one.

The others have shares of the table, dealt out at random; of these silos the paper has four of 10 000 rows, beside the
odd one's 40 000. Figures are compared with the table that was dealt out. The paper reads them off when "md" ends.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from silosynth.core.errors import DataError
from silosynth.papers.common import Experiment, Rows
from silosynth.papers.horizontal import COUNT, LEGEND, PAPER, fl, md, ours
from silosynth.papers.tables import Split


def one_row(count: int, data: Split, seed: int) -> Rows:
    """Shares of the rows to all silos but the last, which has a random one of them, as often as there are rows.

    Raises:
        DataError: fewer than two rows for each silo.
    """
    rng, n = np.random.default_rng([seed, count]), len(data.train)
    if n < 2 * (count - 1):
        raise DataError("Every silo needs two rows", f"{n} rows, {count} silos", "Ask for more rows.")
    shares = np.array_split(rng.permutation(n), count - 1)
    dealt = {f"silo{k + 1}": share.tolist() for k, share in enumerate(shares)}
    return {**dealt, "odd": [int(rng.integers(n))] * n}


def experiment(count: int = COUNT) -> Experiment:
    """With so many silos, the odd one included."""
    divide = partial(one_row, count)
    settings = (
        fl("fl", count, divide),
        fl("fl, weights by rows", count, divide, {"weights": "rows"}),
        fl("fl, sharp weights", count, divide, {"weights": "sharp"}),
        md(count, divide),
        ours(count, divide),
    )
    title = "One silo repeats a row (GDTS, table II and figure 6)"
    return Experiment("odd", title, settings, "gdts", PAPER, LEGEND, until="md")


EXPERIMENT = experiment()
