"""VT-GAN's figures 9 and 10 (section 4.3.2): how columns are divided, by their importance for predicting the target.

1090: one silo holds the 10 % most important features, the other the remaining 90 %; 5050 and 9010 likewise. The target
is with the silo that does NOT hold the most important features. Importance is Shapley's, see `shapley`; a share of the
features is rounded, and each silo holds at least one.
"""

from __future__ import annotations

from functools import lru_cache, partial

from silosynth.core.errors import DataError
from silosynth.papers.common import Experiment, Setting, Silos
from silosynth.papers.partitions import blocks, partition
from silosynth.papers.shapley import importance
from silosynth.papers.tables import Split

PARTITIONS = (((2, 0), (0, 2)), ((2, 0), (2, 0)))  # D^2_0 G^0_2 and D^2_0 G^2_0, the two best
SHARES = {"1090": 0.1, "5050": 0.5, "9010": 0.9}


def by_importance(share: float, data: Split, seed: int) -> Silos:
    """The most important features in one silo; the others, and the target, in the other.

    Raises:
        DataError: fewer than two features.
    """
    ranked = ranking(data, seed)
    if len(ranked) < 2:
        raise DataError("Two silos need two columns beside the target", ranked, "Choose a wider table.")
    most = min(max(1, round(share * len(ranked))), len(ranked) - 1)
    important = set(ranked[:most])
    return {
        "important": [name for name in data.columns if name in important],
        "target": [name for name in data.columns if name not in important],
    }


@lru_cache(maxsize=2)
def ranking(data: Split, seed: int) -> tuple[str, ...]:
    """All columns but the target, the most important one first."""
    found = importance(data.train, data.target, seed)
    return tuple(sorted(found, key=lambda name: -found[name]))


EXPERIMENT = Experiment(
    "importance",
    "Columns divided by importance (VT-GAN, figures 9 and 10)",
    tuple(
        Setting({"partition": partition(*p), "division": name}, partial(by_importance, share), blocks(*p))
        for p in PARTITIONS
        for name, share in SHARES.items()
    ),
)
