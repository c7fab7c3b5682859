"""Central MST and AIM, which have all columns in one place: what `marginals.py` compares with.

Written from the papers: R. McKenna, G. Miklau, D. Sheldon: *Winning the NIST Contest* (2021), and R. McKenna,
B. Mullins, D. Sheldon, G. Miklau: *AIM: An Adaptive and Iterative Mechanism for Differentially Private Synthetic Data*
(VLDB 2022), with all pairs as workload. Both get attributes with few levels, which cost them nothing, and the whole
budget (zCDP). Inference is silosynth's own, or with ``mbi=True`` that of private-pgm (`pip install mbi`).

Shapes: N rows, A attributes.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from silosynth.models.graphical import Attributes, GraphicalModel, MeasuredTable, cells_of

Numbers = npt.NDArray[np.float64]
Levels = npt.NDArray[np.int64]
MOST_CELLS = 200_000  # of a model of AIM, as `aim` has; the paper's limit is 10 million
ITERATIONS = 1000  # of mirror descent at most, as in the papers' code
LEAST_GAIN = 1e-6  # of its loss, relative, over 50 iterations: where it ends before


def budget(epsilon: float, delta: float) -> float:
    """The largest rho of zCDP with which (epsilon, delta) hold (Canonne, Kamath, Steinke 2020, corollary 13)."""
    alphas = 1 + np.geomspace(1e-2, 1e5, 4000)

    def cost(rho: float) -> float:
        logs = (alphas - 1) * (alphas * rho - epsilon) - np.log(alphas - 1) + alphas * np.log1p(-1 / alphas)
        return float(logs.min())

    low, high = 0.0, epsilon
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if cost(middle) <= math.log(delta) else (low, middle)
    return low


def most_budget(epsilon: float, delta: float) -> float:
    """The largest rho that Gaussian noise with (epsilon, delta) may have: by its exact law (Balle, Wang 2018).

    More than `budget`, by which the papers charge. Choices by the exponential mechanism are taken for such noise, too.
    """
    normal = statistics.NormalDist().cdf

    def found(rho: float) -> float:
        apart = math.sqrt(2 * rho)
        return normal(apart / 2 - epsilon / apart) - math.exp(epsilon) * normal(-apart / 2 - epsilon / apart)

    low, high = 0.0, 2 * epsilon
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if found(middle) <= delta else (low, middle)
    return low


class Pooled:
    """A table of levels (N, A) that can be measured, with the models that are fitted to it."""

    def __init__(self, level_NA: Levels, sizes: Sequence[int], rng: np.random.Generator, mbi: bool = False) -> None:
        self.level_NA, self.sizes, self.rng, self.mbi = level_NA, tuple(sizes), rng, mbi
        self.rows, self.measured, self.begun = len(level_NA), list[MeasuredTable](), None
        self.pairs = list(itertools.combinations(range(len(sizes)), 2))
        self.tables = {one: self.count(one) for one in (*[(a,) for a in range(len(sizes))], *self.pairs)}

    def count(self, attributes: Attributes) -> Numbers:
        """Numbers of rows."""
        shape = [self.sizes[one] for one in attributes]
        cell_N = np.ravel_multi_index(tuple(self.level_NA[:, list(attributes)].T), shape)
        return np.bincount(cell_N, minlength=math.prod(shape)).reshape(shape).astype(np.float64)

    def measure(self, attributes: Attributes, deviation: float) -> None:
        """Add a noised table."""
        table = self.tables[attributes]
        self.measured.append(
            MeasuredTable(attributes, table + self.rng.normal(0, deviation, table.shape), deviation**2)
        )

    def fitted(self, start: GraphicalModel | None = None) -> GraphicalModel:
        """The model of what was measured."""
        if self.mbi:
            self.begun, model = fitted_by_mbi(self.sizes, self.measured, self.rows, self.begun)
            return model
        return GraphicalModel.fitted(self.sizes, self.measured, self.rows, start=start)

    def ranked(self, scores: Mapping[Attributes, float], epsilon: float, sensitivity: float) -> list[Attributes]:
        """Tables by noised score: the first of any subset is what the exponential mechanism chooses from it."""
        logs = 0.5 * epsilon * np.array(list(scores.values())) / sensitivity + self.rng.gumbel(size=len(scores))
        tables = list(scores)
        return [tables[place] for place in np.argsort(-logs)]


def fitted_by_mbi(
    sizes: Sequence[int], tables: Sequence[MeasuredTable], rows: float, start: Any = None
) -> tuple[Any, GraphicalModel]:
    """As `GraphicalModel.fitted`, by private-pgm's mirror descent: its own model, to start from, and ours."""
    import jax
    import mbi

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_enable_compilation_cache", False)  # mbi warns of it: many small programs
    names = [f"a{one}" for one in range(len(sizes))]
    measured = [
        mbi.LinearMeasurement(one.counts.ravel(), tuple(names[a] for a in one.attributes), stddev=one.variance**0.5)
        for one in tables
    ]
    estimator, domain = mbi.estimation.MirrorDescent(), mbi.Domain(names, tuple(sizes))
    found = estimator.estimate(
        domain, measured, known_total=float(rows), iters=ITERATIONS, warm_start=start, tol=LEAST_GAIN
    )
    terms = []
    for clique in found.potentials.cliques:
        numbers, places = np.asarray(found.potentials[clique].values), [names.index(one) for one in clique]
        terms.append((tuple(sorted(places)), numbers.transpose(np.argsort(places))))
    return found, GraphicalModel(tuple(sizes), tuple(terms))


def mst(pooled: Pooled, rho: float) -> GraphicalModel:
    """A third of the budget for columns, a third for choosing a tree, edge by edge, and a third for its tables."""
    attributes, part = len(pooled.sizes), rho / 3
    for one in range(attributes):
        pooled.measure((one,), math.sqrt(attributes / (2 * part)))
    model = pooled.fitted()
    scores = {
        pair: float(np.abs(pooled.tables[pair] - pooled.rows * model.marginal(pair)).sum()) for pair in pooled.pairs
    }
    trees = [{one} for one in range(attributes)]
    while len(trees) > 1:
        across = [pair for pair in pooled.pairs if not any(set(pair) <= tree for tree in trees)]
        epsilon = math.sqrt(8 * part / (attributes - 1))
        chosen = pooled.ranked({pair: scores[pair] for pair in across}, epsilon, 1.0)[0]
        pooled.measure(chosen, math.sqrt((attributes - 1) / (2 * part)))
        joined = [tree for tree in trees if tree & set(chosen)]
        trees = [tree for tree in trees if tree not in joined] + [set().union(*joined)]
    return pooled.fitted(model)


def aim(pooled: Pooled, rho: float) -> GraphicalModel:
    """Algorithm 2 of the paper: a table a round, with more budget once tables tell nothing new."""
    attributes = len(pooled.sizes)
    planned = 16 * attributes
    deviation, epsilon = math.sqrt(planned / (2 * 0.9 * rho)), math.sqrt(8 * 0.1 * rho / planned)
    used = attributes / (2 * deviation**2)
    for one in range(attributes):
        pooled.measure((one,), deviation)
    model = pooled.fitted()
    weights = {one: sum(len(set(one) & set(pair)) for pair in pooled.pairs) for one in pooled.tables}
    while used < rho:
        if rho - used < 2 * (1 / (2 * deviation**2) + epsilon**2 / 8):  # the last round takes what is left
            deviation, epsilon = math.sqrt(1 / (2 * 0.9 * (rho - used))), math.sqrt(8 * 0.1 * (rho - used))
        expected = {one: pooled.rows * model.marginal(one) for one in pooled.tables}
        noise = math.sqrt(2 / math.pi) * deviation
        scores = {
            one: weights[one] * (float(np.abs(pooled.tables[one] - share).sum()) - noise * share.size)
            for one, share in expected.items()
        }
        known, allowed = {one.attributes for one in pooled.measured}, MOST_CELLS * min(1.0, used / rho)
        ranked = pooled.ranked(scores, epsilon, max(weights.values()))
        chosen = next(one for one in ranked if len(one) == 1 or cells_of(pooled.sizes, [*known, one]) <= allowed)
        pooled.measure(chosen, deviation)
        used += 1 / (2 * deviation**2) + epsilon**2 / 8
        model = pooled.fitted(model)
        moved = float(np.abs(pooled.rows * model.marginal(chosen) - expected[chosen]).sum())
        if moved <= noise * expected[chosen].size:
            deviation, epsilon = deviation / 2, epsilon * 2
    return model
