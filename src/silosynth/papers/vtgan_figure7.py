"""VT-GAN's figure 7 (section 4.3.1): nine partitions of critic and generator between coordinator and silos.

``D^a_b G^c_d``: a blocks of the critic at the coordinator and b in each silo, c blocks of the generator at the
coordinator and d in each silo. Two silos hold the columns in file order, half each (the second one more if their number
is odd). The central GAN, which sees all columns, is the baseline; its figures by silo are those of the same division.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from silosynth.papers import settings
from silosynth.papers.settings import Columns, Setting
from silosynth.papers.tables import TableSplit
from silosynth.simulation.federation import in_order

BLOCKS = ((2, 0), (1, 1), (0, 2))  # at the coordinator, in each silo


def partition(critic: tuple[int, int], generator: tuple[int, int]) -> str:
    """The paper's notation."""
    return f"D^{critic[0]}_{critic[1]} G^{generator[0]}_{generator[1]}"


def blocks(critic: tuple[int, int], generator: tuple[int, int]) -> dict[str, Any]:
    """The algorithm's options for a partition."""
    return {"critic_blocks": list(critic), "generator_blocks": list(generator)}


def halves(data: TableSplit, seed: int) -> Columns:
    """Two silos in file order."""
    return in_order(data.columns, 2)


SETTINGS = (
    *(Setting({"partition": partition(d, g)}, halves, blocks(d, g)) for d in BLOCKS for g in BLOCKS[::-1]),
    Setting({"partition": "central GAN"}, halves, algorithm="ctgan"),
)


KEPT = (
    *settings.KEPT,
    {"tables": ("loan",), "rows": None, "epochs": 300,
     "partition": (partition((2, 0), (0, 2)), partition((2, 0), (2, 0)), "central GAN")},
)  # fmt: skip
EXPERIMENT = settings.comparison(
    "partitions", "Neural network partitions (VT-GAN, figure 7)", partial(settings.jobs, SETTINGS), kept=KEPT,
    pictures=partial(settings.pictures, x="partition", averaged=True),
)  # fmt: skip
