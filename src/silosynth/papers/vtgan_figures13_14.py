"""VT-GAN's figures 13 and 14 (section 4.3.4): a membership attack, and figures of utility, by the budget of privacy.

Two silos that hold the columns in file order, half each, without differential privacy and with epsilon 1, 5 and 10. The
paper says that columns are divided at random, as in section 4.3.1, where it keeps their order.
The paper trains one of its two best partitions. The copy of its text that we have reads D^2_0 G^2_0 here, but reads so
in places that mean D^2_0 G^0_2 as well; so both are trained. The attack is the full black-box one of GAN-leaks: how
near a record's nearest synthetic row is; training rows are told from as many held-out ones. Delta, which the paper does
not give, is 1e-5 here. Bounds of numbers and levels of categories are those found in the table, and count as public. A
training ends where its budget does, at the latest after its epochs.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from silosynth.attacks import rivals
from silosynth.papers import settings, tables
from silosynth.papers.experiment import Repeats, Row, Seed
from silosynth.papers.settings import Epochs, Partitions, RowCount, Setting, SettingJob, TableNames, Trained
from silosynth.papers.vtgan_figure7 import blocks, halves, partition
from silosynth.papers.vtgan_figures9_10 import PARTITIONS

DELTA = 1e-5
EPSILONS = (math.inf, 10.0, 5.0, 1.0)
LEGEND = (
    "Attack AUC: of GAN-leaks, the full black-box membership attack; 0.5 is guessing. Other columns: what is lost or "
    "differs, as in figure 7; 0 is best. Epsilon inf: without differential privacy."
)


def _setting(where: tuple[tuple[int, int], tuple[int, int]], epsilon: float) -> Setting:
    private: dict[str, Any] = {} if epsilon == math.inf else {"dp": {"epsilon": epsilon, "delta": DELTA}}
    return Setting({"partition": partition(*where), "epsilon": f"{epsilon:g}"}, halves, {**blocks(*where), **private})


SETTINGS = tuple(_setting(where, epsilon) for where in PARTITIONS for epsilon in EPSILONS)


def with_bounds(table: str, rows: int | None, seed: int) -> tables.TableSplit:
    """A table with the bounds of numbers, and the levels of categories, that are found in it."""
    data = tables.load(table, rows, seed)
    whole = pd.concat([data.train, data.holdout])
    numbers = [name for name in whole.select_dtypes("number") if data.kinds.get(str(name)) != "categorical"]
    bounds = {str(name): tables.bounded(whole[name], data.kinds.get(str(name))) for name in numbers}
    levels = {str(name): {"levels": sorted(whole[name].dropna().unique())} for name in whole if name not in numbers}
    return replace(data, kinds={**data.kinds, **bounds, **levels})


def jobs(
    tables: TableNames = ("cardio",), rows: RowCount = 1500, epochs: Epochs = 10, trained: Trained = "published",
    partition: Partitions = None, repeats: Repeats = 1, seed: Seed = 0,
) -> list[SettingJob]:  # fmt: skip
    """Every budget, table by table and repeat by repeat.

    Raises:
        ConfigError: a size is not positive, there is no table, or no such partition.
    """
    chosen = settings.jobs(SETTINGS, tables, rows, epochs, trained, partition, repeats, seed)
    return [replace(job, load=with_bounds) for job in chosen]


def attacked(job: SettingJob, data: tables.TableSplit, synthetic: pd.DataFrame) -> Row:
    """The attack's area under the ROC curve."""
    findings = rivals.attack(data.train, data.holdout, synthetic, None, job.seed)
    return {settings.ATTACK: next(one.score.value for one in findings if one.score.label == "GAN-leaks")}


EXPERIMENT = settings.comparison(
    "budgets", "A membership attack and utility by epsilon (VT-GAN, figures 13 and 14)", jobs, LEGEND,
    ({**settings.KEPT[0], "tables": ("cardio", "loan"), "rows": 6000, "epochs": 2},), also=attacked,
    pictures=partial(settings.pictures, x="epsilon", averaged=False),
)  # fmt: skip
