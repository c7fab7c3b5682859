"""Shapley importance of features for predicting a target.

Permutation sampling: E. Štrumbelj and I. Kononenko, "Explaining prediction models and individual predictions with
feature contributions", Knowledge and Information Systems 41, 2014, algorithm 2. A feature's value for a row x is the
mean, over random orders and random background rows z, of what the prediction gains when the feature's value changes
from z's to x's after that of all features before it. All of a feature's one-hot columns change together.

Legend: n explained rows, b background rows, F encoded columns, G features, K outputs, P orders per row.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pandas as pd
from sklearn.exceptions import ConvergenceWarning

from silosynth.core.errors import DataError
from silosynth.evaluation.coding import Ints, check_target, code_tables
from silosynth.evaluation.scores import Floats
from silosynth.evaluation.utility import MLP, design

LEARNT = 10_000  # rows that the network is trained on at most
EXPLAINED = 100
ORDERS = 100


def importance(train: pd.DataFrame, target: str, seed: int) -> dict[str, float]:
    """Mean |Shapley value| of every column but the target, over sampled rows and over the classes' probabilities.

    The predictor is a network with one hidden layer of 100 neurons (VT-GAN, section 4.3.2).

    Raises:
        DataError: there is no such target, it is a number, or it has a single class.
    """
    table = code_tables({"training": train})["training"]
    place = check_target(target, table.fields)
    rng = np.random.default_rng(seed)
    table = table.take(~table.missing(place)).sample(LEARNT, rng)
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
    found = np.abs(phi_nGK).mean(axis=(0, 2))
    return {table.fields[j].name: float(value) for j, value in zip(features, found, strict=True)}


def shapley_values(
    predict: Callable[[Floats], Floats],
    x_nF: Floats,
    background_bF: Floats,
    group_F: Ints,
    orders: int,
    rng: np.random.Generator,
) -> Floats:
    """Shapley values (n, G, K) of every feature, from `orders` random orders and background rows for each row.

    `predict` maps (rows, F) to (rows, K); `group_F` says which feature (0..G-1) an encoded column belongs to.
    """
    features = int(group_F.max()) + 1
    return np.stack([_of_row(predict, x, background_bF, group_F, features, orders, rng) for x in x_nF])


def _of_row(
    predict: Callable[[Floats], Floats],
    x_F: Floats,
    background_bF: Floats,
    group_F: Ints,
    features: int,
    orders: int,
    rng: np.random.Generator,
) -> Floats:
    """Walk from a background row to x, feature by feature, along every order at once."""
    order_PG = rng.permuted(np.tile(np.arange(features), (orders, 1)), axis=1)
    turn_PG = np.argsort(order_PG, axis=1)  # when a feature changes
    z_PF = background_bF[rng.integers(len(background_bF), size=orders)]
    steps = np.arange(features + 1)[None, :, None]
    hybrids = np.where(turn_PG[:, group_F][:, None, :] < steps, x_F, z_PF[:, None, :])
    outputs = predict(hybrids.reshape(-1, len(x_F))).reshape(orders, features + 1, -1)
    gains = np.diff(outputs, axis=1)  # (P, G, K), in the order of the walk
    return np.asarray(np.take_along_axis(gains, turn_PG[:, :, None], axis=1).mean(axis=0))
