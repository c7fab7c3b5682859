"""SiloFuse's resemblance (Shankar et al., "SiloFuse", section V-B): the mean of five similarities, 0 to 100.

The paper's wording leaves much open. The readings taken here:

1. *Column similarity* ("correlation between the values in each real and synthetic column", Pearson or Theil's U).
   Rows are not paired, so both columns are sorted first: Pearson's correlation of the two quantile functions, or
   Theil's U(real | synthetic) of the level codes laid side by side in rising order. Mean over columns.
2. *Correlation similarity*: Pearson's correlation, cut at 0, between the real and the synthetic association
   coefficients of all ordered pairs: Pearson (numeric), Theil's U (categorical),
   correlation ratio (mixed; the paper names none).
3. *Jensen-Shannon similarity*: 1 - distance (square root of the divergence, base 2), numeric columns in 20
   equal-width bins of the real range, missing values in a cell of their own. Mean over columns.
4. *Kolmogorov-Smirnov similarity*: 1 - distance, on level codes in rising order for categorical columns. Mean over
   columns.
5. *Propensity similarity*: 1 - mean absolute error, where the error of one row is 2 |p - 1/2| and p the out-of-fold
   probability of the XGBoost classifier of the two-sample AUC. It is 0 where the classifier cannot distinguish, as
   the paper asks, and 1 where it is sure.

Floors: 1 minus the similarity between two real samples, brought to the sizes compared: distances (3, 4) fall with the
root of the sizes, correlations (1, 2) linearly; propensity is taken at equal sizes without scaling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from silosynth.evaluation.fidelity import NO_FLOOR, Comparison, Floor
from silosynth.evaluation.resampling import JACKKNIFE, TOO_FEW, interval, standard_error
from silosynth.evaluation.scores import Floats, Score, Skipped
from silosynth.evaluation.two_sample import Separation

PARTS: Mapping[str, tuple[str, str, int]] = {  # slug -> label, sentence, power of the size scale
    "column_similarity": ("Column similarity", "How well sorted real and synthetic columns line up.", 2),
    "correlation_similarity": ("Correlation similarity", "How alike the strengths of all pairwise relations are.", 2),
    "jensen_shannon": ("Jensen-Shannon similarity", "How much the distributions of single columns overlap.", 1),
    "kolmogorov_smirnov": (
        "Kolmogorov-Smirnov similarity",
        "How close the cumulative distributions of single columns are.",
        1,
    ),
    "propensity": ("Propensity similarity", "How unsure a classifier is whether a row is real or synthetic.", 0),
}
SUM_METHOD = "95 % normal interval from the jackknife of the first four parts and the rows' spread of the fifth"


def resemblance(
    compared: Comparison, floor: Floor | None, found: Separation | str, floor_found: Separation | str
) -> list[Score | Skipped]:
    """The five parts and their mean; the mean is left out if one part is."""
    parts = similarities(compared)
    floors = _floors(floor, floor_found)
    results: list[Score | Skipped] = [
        _part(slug, value, floors.get(slug), floor, compared) for slug, value in parts.items()
    ]
    results.append(_propensity(found, floors.get("propensity"), floor_found))
    absent = [r.name for r in results if isinstance(r, Skipped)]
    if absent:
        return [Skipped("resemblance", f"needs all five parts, without {', '.join(absent)}"), *results]
    return [_mean([r for r in results if isinstance(r, Score)], parts, found), *results]


def similarities(compared: Comparison) -> dict[str, Floats | str]:
    """The first four parts as replicates (R,) in 0..100, or the reason why there is none."""
    m = compared.marginals
    return {
        "column_similarity": 100 * m.similarity.mean(axis=1),
        "correlation_similarity": _correlation_similarity(compared),
        "jensen_shannon": 100 * (1 - m.js.mean(axis=1)),
        "kolmogorov_smirnov": 100 * (1 - m.ks.mean(axis=1)),
    }


def _correlation_similarity(compared: Comparison) -> Floats | str:
    real, other = compared.dependence.real, compared.dependence.other
    d = real.shape[1]
    if d < 3:
        return "needs three columns: fewer give no list of pairs to correlate"
    off = ~np.eye(d, dtype=bool)
    a, b = real[:, off], other[:, off]
    if (a.std(axis=1) < 1e-12).any():
        return "all real pairs are equally associated, so there is nothing to correlate"
    a, b = a - a.mean(axis=1, keepdims=True), b - b.mean(axis=1, keepdims=True)
    scale = np.sqrt((a * a).sum(axis=1) * (b * b).sum(axis=1))
    r = np.divide((a * b).sum(axis=1), scale, out=np.zeros_like(scale), where=scale > 0)
    return np.asarray(100 * np.clip(r, 0, 1))


def propensity_similarity(found: Separation) -> tuple[float, float]:
    """Part 5 in 0..100 and the standard error of its mean over rows."""
    errors = 2 * np.abs(found.probability - 0.5)
    return 100 * float(1 - errors.mean()), 100 * float(errors.std(ddof=1) / math.sqrt(len(errors)))


def _floors(floor: Floor | None, floor_found: Separation | str) -> dict[str, float]:
    values: dict[str, float] = {}
    if floor is not None:
        for slug, replicates in similarities(floor.comparison).items():
            if not isinstance(replicates, str):
                loss = (100 - float(replicates[0])) * floor.scale ** PARTS[slug][2]
                values[slug] = max(0.0, 100 - loss)
    if isinstance(floor_found, Separation):
        values["propensity"] = propensity_similarity(floor_found)[0]
    return values


def _part(
    slug: str, replicates: Floats | str, least: float | None, floor: Floor | None, compared: Comparison
) -> Score | Skipped:
    if isinstance(replicates, str):
        return Skipped(f"resemblance_{slug}", replicates)
    error = standard_error(replicates)
    value = float(replicates[0])
    low, high = interval(value, error, len(replicates) - 1, 0.0, 100.0)
    note = NO_FLOOR if floor is None or least is None else f"{floor.note}, brought to the sizes compared"
    return _score(
        slug, value, least, note, low, high, min(compared.n, compared.m), JACKKNIFE if error is not None else TOO_FEW
    )


def _propensity(found: Separation | str, least: float | None, floor_found: Separation | str) -> Score | Skipped:
    if isinstance(found, str):
        return Skipped("resemblance_propensity", found)
    value, error = propensity_similarity(found)
    note = (
        f"no floor: {floor_found}"
        if isinstance(floor_found, str)
        else f"two real samples of {floor_found.k:,} rows each"
    )
    low, high = max(0.0, value - 1.96 * error), min(100.0, value + 1.96 * error)
    return _score("propensity", value, least, note, low, high, found.k, "95 % normal interval of a mean over rows")


def _mean(parts: list[Score], replicates: Mapping[str, Floats | str], found: Separation | str) -> Score:
    value = float(np.mean([s.value for s in parts]))
    floors = [s.floor for s in parts if s.floor is not None]
    summed = np.sum([r for r in replicates.values() if not isinstance(r, str)], axis=0)
    error = standard_error(summed)
    low: float | None = None
    high: float | None = None
    if error is not None and isinstance(found, Separation):
        both = math.hypot(error, propensity_similarity(found)[1]) / len(parts)
        low, high = max(0.0, value - 1.96 * both), min(100.0, value + 1.96 * both)
    whole = len(floors) == len(parts)
    return Score(
        name="resemblance",
        label="Resemblance (SiloFuse)",
        group="resemblance",
        value=value,
        floor=float(np.mean(floors)) if whole else None,
        floor_note="mean of the five floors" if whole else "no floor: a part has none",
        low=low,
        high=high,
        unit="score",
        better="higher",
        ideal=100.0,
        n=min(s.n for s in parts),
        explanation="How close the synthetic table is to the real one over five statistics; 100 is best.",
        method=SUM_METHOD if low is not None else TOO_FEW,
    )


def _score(
    slug: str, value: float, least: float | None, note: str, low: float | None, high: float | None, n: int, method: str
) -> Score:
    label, sentence, _ = PARTS[slug]
    return Score(
        name=f"resemblance_{slug}",
        label=label,
        group="resemblance",
        value=value,
        floor=least,
        floor_note=note,
        low=low,
        high=high,
        unit="score",
        better="higher",
        ideal=100.0,
        n=n,
        explanation=f"{sentence} 100 is best.",
        method=method,
    )
