"""GDTS's table I and figure 5: every silo has a copy of the whole table, which is as good as it gets.

Noise on counts is the only thing that tells "fl" and "fl, no noise" apart. Figures are compared with one copy. The
paper reads them off when the central GAN ends.
"""

from __future__ import annotations

from functools import partial

from silosynth.papers.common import Experiment, Rows
from silosynth.papers.horizontal import COUNT, LEGEND, PAPER, central, fl, md, no_noise, ours
from silosynth.papers.tables import Split


def copied(count: int, data: Split, seed: int) -> Rows:
    """All rows to each of ``count`` silos."""
    return {f"silo{k + 1}": list(range(len(data.train))) for k in range(count)}


def experiment(count: int = COUNT) -> Experiment:
    """With so many silos."""
    divide = partial(copied, count)
    settings = (
        fl("fl", count, divide),
        fl("fl, no noise", count, divide, no_noise()),
        md(count, divide),
        central(count),
        ours(count, divide),
    )
    title = "A full copy in every silo (GDTS, table I and figure 5)"
    return Experiment("copies", title, settings, "gdts", PAPER, LEGEND, until="central")


EXPERIMENT = experiment()
