"""What GDTS's two experiments share: settings, sizes, and how they are read (section III-A).

"md" trains three tenths of the epochs, so that it takes about as long as the others (the paper: 150 of 500). "fl"
averages after every epoch. "central" is CTGAN with the same options and the whole table. "diffusion" is ours, with its
preset "best"; at fewer than 100 epochs its steps shrink alike. A batch is a tenth of the smallest silo, at most 500.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from silosynth.papers.common import BATCH, Rows, Setting, Silos, Sizes
from silosynth.papers.tables import Split

PAC = 10  # rows that CTGAN's critic judges together
COUNT = 5  # silos
MD_SHARE = 0.3  # 150 epochs of 500
CODER, FLOW, ROUNDS = (40, 1500), (80, 8000), (6, 60)  # ours: per epoch, and at most
PAPER = Sizes(
    ("adult", "covertype_50k", "creditcard_sample", "intrusion_nsl_kdd_20pct"), rows=50_000, epochs=500, repeats=3
)  # section III-A: 40 000 rows and 10 000 held out; the tables' own notes say how they differ from the paper's samples
LEGEND = (
    "F1: what four classifiers (decision tree, random forest, logistic regression, MLP) lose in macro F1 by learning "
    "from synthetic rows, on average. JSD: mean Jensen-Shannon distance of categorical columns. WD: mean Wasserstein "
    "distance of the others, scaled to 0 to 1. 0 is best. ± is the standard deviation over seeds. s: all work of the "
    "training added up, silos one after the other on this machine. s side by side: the coordinator's work and, of each "
    "exchange, the slowest silo's, as if every silo had a machine; messages take no time. MB: of all messages."
)

Divide = Callable[[Split, int], Rows]


def batch(rows: int) -> int:
    """A multiple of `PAC`."""
    return max(PAC, min(BATCH, rows // 10) // PAC * PAC)


def fl_sized(epochs: int, rows: int) -> dict[str, Any]:
    """Averages after every epoch."""
    return {"rounds": epochs, "ctgan.epochs": epochs, "ctgan.batch": batch(rows)}


def md_sized(epochs: int, rows: int) -> dict[str, Any]:
    """Fewer epochs, which take longer."""
    return {"ctgan.epochs": max(1, round(MD_SHARE * epochs)), "ctgan.batch": batch(rows)}


def central_sized(epochs: int, rows: int) -> dict[str, Any]:
    """CTGAN as the paper's silos train it."""
    return {"epochs": epochs, "batch": batch(rows), "critic_steps": 1, "pac": PAC}


def ours_sized(epochs: int, rows: int) -> dict[str, Any]:
    """The preset "best" from 100 epochs on."""
    coder, flow, rounds = (min(most, each * epochs) for each, most in (CODER, FLOW, ROUNDS))
    return {"rounds": max(8, rounds), "diffusion.steps": coder, "diffusion.latent.steps": flow}


def fl(name: str, count: int, divide: Divide, options: Mapping[str, Any] | None = None) -> Setting:
    """Averaged GANs; the paper's, but for ``options``."""
    return _setting(name, count, divide, options or {}, fl_sized)


def md(count: int, divide: Divide) -> Setting:
    """One generator and a critic in each silo."""
    return _setting("md", count, divide, {"mode": "md"}, md_sized)


def ours(count: int, divide: Divide) -> Setting:
    """Averaged diffusion."""
    return _setting("diffusion", count, divide, {}, ours_sized, "best")


def central(count: int) -> Setting:
    """CTGAN on the whole table, once."""
    labels: dict[str, str | int] = {"setting": "central", "silos": count}
    return Setting(labels, _whole, {}, "ctgan", sized=central_sized, watched=True)


def no_noise() -> dict[str, Any]:
    """The paper's "without Laplacian noise"."""
    return {"epsilon": math.inf}


def _setting(
    name: str, count: int, divide: Divide, options: Mapping[str, Any],
    sized: Callable[[int, int], Mapping[str, Any]], preset: str = "paper",
) -> Setting:  # fmt: skip
    labels: dict[str, str | int] = {"setting": name, "silos": count}
    return Setting(labels, divide, options, "gdts", preset, "rows", sized, watched=True)


def _whole(data: Split, seed: int) -> Silos:
    return {"central": data.columns}
