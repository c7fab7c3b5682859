"""VT-GAN's figures 9 and 10 (section 4.3.2): how columns are divided, by their importance for predicting the target.

1090: one silo holds the 10 % most important features, the other the remaining 90 %; 5050 and 9010 likewise. The target
is with the silo that does NOT hold the most important features. Importance is Shapley's; a share of the features is
rounded, and each silo holds at least one.

Permutation sampling: E. Štrumbelj and I. Kononenko, "Explaining prediction models and individual predictions with
feature contributions", Knowledge and Information Systems 41, 2014, algorithm 2. A feature's value for a row x is the
mean, over random orders and random background rows z, of what the prediction gains when the feature's value changes
from z's to x's after that of all features before it. All of a feature's one-hot columns change together.

Legend: n explained rows, b background rows, F encoded columns, G features, K outputs, P orders per row.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np
import pandas as pd
from sklearn.exceptions import ConvergenceWarning

from silosynth.core.errors import DataError
from silosynth.evaluation.coding import check_target, code_tables
from silosynth.evaluation.scores import Floats, Ints
from silosynth.evaluation.utility import MLP, design
from silosynth.papers.settings import Columns, Setting, comparison, jobs, pictures
from silosynth.papers.tables import TableSplit
from silosynth.papers.vtgan_figure7 import blocks, partition

PARTITIONS = (((2, 0), (0, 2)), ((2, 0), (2, 0)))  # D^2_0 G^0_2 and D^2_0 G^2_0, the two best
SHARES = {"1090": 0.1, "5050": 0.5, "9010": 0.9}
TRAINED = 10_000  # rows that the network is trained on at most
EXPLAINED = 100
ORDERS = 100


def by_importance(share: float, data: TableSplit, seed: int) -> Columns:
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
def ranking(data: TableSplit, seed: int) -> tuple[str, ...]:
    """All columns but the target, the most important one first."""
    by_name = importance(data.train, data.target, seed)
    return tuple(sorted(by_name, key=lambda name: -by_name[name]))


def importance(train: pd.DataFrame, target: str, seed: int) -> dict[str, float]:
    """Mean |Shapley value| of every column but the target, over sampled rows and over the classes' probabilities.

    The predictor is a network with one hidden layer of 100 neurons (VT-GAN, section 4.3.2).

    Raises:
        DataError: there is no such target, it is a number, or it has a single class.
    """
    table = code_tables({"training": train})["training"]
    place = check_target(target, table.fields)
    rng = np.random.default_rng(seed)
    table = table.take(~table.missing(place)).sample(TRAINED, rng)
    classes = table.values[place]
    if not table.fields[place].categorical or len(np.unique(classes)) < 2:
        raise DataError("Importance needs a target with two classes or more", target)
    x_nF, origin_F = design(table, table, place)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a good predictor is wanted, not a last digit
        network = MLP.make(seed).fit(x_nF, classes)
    features, group_F = np.unique(origin_F, return_inverse=True)
    explained = x_nF[rng.choice(len(x_nF), min(EXPLAINED, len(x_nF)), replace=False)]
    phi_nGK = shapley_values(network.predict_proba, explained, x_nF, group_F, ORDERS, rng)
    mean_G = np.abs(phi_nGK).mean(axis=(0, 2))
    return {table.fields[j].name: float(value) for j, value in zip(features, mean_G, strict=True)}


def shapley_values(
    predict: Callable[[Floats], Floats], x_nF: Floats, background_bF: Floats, group_F: Ints, orders: int,
    rng: np.random.Generator,
) -> Floats:  # fmt: skip
    """Shapley values (n, G, K) of every feature, from `orders` random orders and background rows for each row.

    `predict` maps (rows, F) to (rows, K); `group_F` says which feature (0..G-1) an encoded column belongs to.
    """
    features = int(group_F.max()) + 1
    return np.stack([_of_row(predict, x, background_bF, group_F, features, orders, rng) for x in x_nF])


def _of_row(
    predict: Callable[[Floats], Floats], x_F: Floats, background_bF: Floats, group_F: Ints, features: int, orders: int,
    rng: np.random.Generator,
) -> Floats:  # fmt: skip
    """Walk from a background row to x, feature by feature, along every order at once."""
    order_PG = rng.permuted(np.tile(np.arange(features), (orders, 1)), axis=1)
    turn_PG = np.argsort(order_PG, axis=1)  # when a feature changes
    z_PF = background_bF[rng.integers(len(background_bF), size=orders)]
    steps = np.arange(features + 1)[None, :, None]
    hybrids = np.where(turn_PG[:, group_F][:, None, :] < steps, x_F, z_PF[:, None, :])
    outputs = predict(hybrids.reshape(-1, len(x_F))).reshape(orders, features + 1, -1)
    gains = np.diff(outputs, axis=1)  # (P, G, K), in the order of the walk
    return np.asarray(np.take_along_axis(gains, turn_PG[:, :, None], axis=1).mean(axis=0))


SETTINGS = [
    Setting({"partition": partition(*p), "division": name}, partial(by_importance, share), blocks(*p))
    for p in PARTITIONS
    for name, share in SHARES.items()
]
EXPERIMENT = comparison(
    "importance", "Columns divided by importance (VT-GAN, figures 9 and 10)", partial(jobs, SETTINGS),
    pictures=partial(pictures, x="division", averaged=False),
)  # fmt: skip
