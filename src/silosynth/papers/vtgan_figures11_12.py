"""VT-GAN's figures 11 and 12 (section 4.3.3): two to five silos, with the default and the enlarged generator.

Columns are dealt out at random and evenly, anew for each number of silos and each repeat; all settings of a repeat see
the same division. The enlarged generator's blocks are 768 wide instead of 256, over all silos together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated

import numpy as np

from silosynth.core.errors import DataError
from silosynth.papers import results, settings
from silosynth.papers.experiment import Ask, Repeats, Row, Seed, check_known
from silosynth.papers.settings import Columns, Epochs, Partitions, RowCount, Setting, SettingJob, TableNames, Trained
from silosynth.papers.tables import TableSplit
from silosynth.papers.vtgan_figure7 import blocks, partition
from silosynth.papers.vtgan_figures9_10 import PARTITIONS

COUNTS = (2, 3, 4, 5)
WIDTHS = {"default": 256, "enlarged": 768}


def at_random(count: int, data: TableSplit, seed: int) -> Columns:
    """``count`` silos whose sizes differ by at most one column; columns stay in file order within a silo.

    Raises:
        DataError: fewer columns than silos.
    """
    columns = data.columns
    if len(columns) < count:
        raise DataError("Every silo needs a column", f"{len(columns)} columns, {count} silos", "Choose a wider table.")
    dealt = np.random.default_rng([seed, count]).permutation(np.arange(len(columns)) % count)
    return {f"silo{k + 1}": [c for c, silo in zip(columns, dealt, strict=True) if silo == k] for k in range(count)}


SETTINGS = [
    Setting(
        {"partition": partition(*p), "generator": name, "silos": count},
        partial(at_random, count),
        {**blocks(*p), "generator_width": width},
    )
    for p in PARTITIONS
    for name, width in WIDTHS.items()
    for count in COUNTS
]


def jobs(
    tables: TableNames = ("loan",),
    rows: RowCount = 1500,
    epochs: Epochs = 10,
    silos: Annotated[Sequence[int], Ask("How many; the paper has 2 to 5.", least=2)] = COUNTS,
    trained: Trained = "published",
    partition: Partitions = None,
    repeats: Repeats = 1,
    seed: Seed = 0,
) -> list[SettingJob]:
    """Both partitions and generators in each number of silos, table by table and repeat by repeat.

    Raises:
        ConfigError: a size is not positive, there is no table, no such partition or number of silos.
    """
    check_known("number of silos", [str(count) for count in silos], [str(count) for count in COUNTS])
    chosen = [setting for setting in SETTINGS if setting.labels["silos"] in silos]
    return settings.jobs(chosen, tables, rows, epochs, trained, partition, repeats, seed)


def means(rows: Sequence[Row]) -> list[Row]:
    """Over repeats, by the number of silos."""
    return results.in_order(settings.means(rows), "table", "partition", "generator", "trained", "silos")


EXPERIMENT = replace(
    settings.comparison(
        "silos", "Two to five silos (VT-GAN, figures 11 and 12)", jobs,
        pictures=partial(settings.pictures, x="silos", averaged=True, joined=True),
    ),
    means=means,
)  # fmt: skip
