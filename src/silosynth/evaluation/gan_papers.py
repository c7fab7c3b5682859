"""The figures of the VT-GAN paper (Zhao et al., section 4.2), which other papers on tabular GANs share.

*Machine-learning utility* (4.2.1): classifiers are trained on the real and on the synthetic training rows and scored on
the real hold-out; the figure is real minus synthetic, averaged over the classifiers. Accuracy, F1 and ROC area; F1 and
area are means over the classes in the hold-out (macro, one against the rest), which the paper leaves open. At most
`AT_MOST` rows of each training table are used. Rows without a target are left out.

*Statistical similarity* (4.2.2), as we read it:

- Average JSD over categorical columns: SciPy's `jensenshannon`, the square root of the divergence with logarithms to
  base 2, which is between 0 and 1 as the divergence is. Missing values are a level.
- Average Wasserstein distance over all other columns, scaled so that the real training rows span 0 to 1. Missing
  values take no part. A column that is constant in the real rows counts by its share of other values; one without any
  present synthetic value counts as 1; one without any present real value is left out.
- Diff. Corr.: Frobenius norm of the difference of the two association matrices over all ordered pairs: Pearson,
  correlation ratio, Theil's U (dython's measures; see `fidelity`). It grows with the number of columns.
- Avg-client is the mean over silos of the norm of each silo's own block, Across-client the norm of everything outside
  these blocks: the squares of all blocks' norms and of Across-client add up to the square of Diff. Corr.

Legend: h hold-out rows, K classes, R jackknife replicates, U distinct values of both tables in rising order.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from silosynth.evaluation import scores as figures
from silosynth.evaluation.coding import Coded
from silosynth.evaluation.fidelity import ONE_SILO, Comparison, Dealt, Floor, distance
from silosynth.evaluation.scores import NEEDS_HOLDOUT, Floats, Ints, Scale, Score, Skipped
from silosynth.evaluation.utility import DRAWS, VTGAN, Classifier, Judgement, f1_macro, features, judge, unfit

AT_MOST = 10_000
MOST_CLASSES = 100
UTILITY = {
    "gan_accuracy_difference": "Accuracy lost (VT-GAN)",
    "gan_f1_difference": "Macro F1 lost (VT-GAN)",
    "gan_auc_difference": "AUC lost (VT-GAN)",
}
BOOTSTRAP = f"95 % percentile interval, bootstrap over hold-out rows ({DRAWS} draws); fits are not repeated"
SCALE = Scale("fidelity", "score", "lower", 0.0)
PAIRED = "95 % normal interval, DeLong's variance of the paired difference; fits are not repeated"


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """Predictions for the hold-out rows by one classifier, trained on the real and on the synthetic table."""

    real: Judgement
    other: Judgement


def classifier_differences(
    train: Coded,
    holdout: Coded | None,
    synthetic: Coded,
    target: int | None,
    rng: np.random.Generator,
    classifiers: Sequence[Classifier] = VTGAN,
) -> list[Score | Skipped]:
    """Accuracy, macro F1 and ROC area of classifiers trained on real rows, minus those of synthetic-trained ones."""
    why = _unfit(train, holdout, synthetic, target)
    if why or holdout is None or target is None:
        return [Skipped(name, why or NEEDS_HOLDOUT) for name in UTILITY]
    train, holdout, synthetic = (t.take(~t.missing(target)) for t in (train, holdout, synthetic))
    train, synthetic = train.sample(AT_MOST, rng), synthetic.sample(AT_MOST, rng)
    trials = _trials(train, holdout, synthetic, target, classifiers, int(rng.integers(2**31)))
    truth = holdout.values[target]
    names = [c.name for c in classifiers]
    note = _limits(names, trials)
    intervals_lost = [*_shares_lost(truth, trials, rng), _area_lost(truth, trials)]
    text = (
        "How much worse models predict real rows when they learn from synthetic instead of real ones, "
        f"averaged over {', '.join(names)}; 0 is no loss."
    )
    floor = 0.0, "0 by definition: models trained on the real table, minus themselves"
    scores: list[Score | Skipped] = []
    for (slug, label), (value, *ends) in zip(UTILITY.items(), intervals_lost, strict=True):
        method = (PAIRED if slug == "gan_auc_difference" else BOOTSTRAP) + note
        on = SCALE._replace(group="utility")
        scores.append(on.score(slug, label, value, floor, (ends[0], ends[1]), len(truth), text, method))
    return scores


def _unfit(train: Coded, holdout: Coded | None, synthetic: Coded, target: int | None) -> str | None:
    if target is None:
        return "no target column was given"
    if holdout is None:
        return NEEDS_HOLDOUT
    field = train.fields[target]
    if not field.categorical:
        return "classifiers need a target that is a category"
    if len(field.levels) > MOST_CLASSES:
        return f"the target has more than {MOST_CLASSES} classes"
    train, holdout, synthetic = (t.take(~t.missing(target)) for t in (train, holdout, synthetic))
    return unfit(train, holdout, synthetic, target)


def _trials(
    train: Coded, holdout: Coded, synthetic: Coded, target: int, classifiers: Sequence[Classifier], seed: int
) -> list[Trial]:
    """Each classifier trained on both tables; two fits run at a time, one core each."""
    size = len(train.fields[target].levels)
    test = features(train, holdout, target)
    designs = [(features(train, t, target), t.values[target]) for t in (train, synthetic)]
    with warnings.catch_warnings(), ThreadPoolExecutor(2) as pool:
        warnings.simplefilter("ignore", ConvergenceWarning)  # the figure names the classifiers that did not converge
        fits = [pool.submit(judge, c, x, y, test, size, seed) for c in classifiers for x, y in designs]
        judgements = [fit.result() for fit in fits]
    return [Trial(*pair) for pair in zip(judgements[::2], judgements[1::2], strict=True)]


def _limits(names: Sequence[str], trials: Sequence[Trial]) -> str:
    """The part of the method that names classifiers stopped before convergence."""
    parts = [
        f"{name} ({which})"
        for name, trial in zip(names, trials, strict=True)
        for which, judged in (("real", trial.real), ("synthetic", trial.other))
        if not judged.converged
    ]
    return f"; stopped at the iteration limit: {', '.join(parts)}" if parts else ""


def _shares_lost(truth: Ints, trials: Sequence[Trial], rng: np.random.Generator) -> list[tuple[float, float, float]]:
    """Value, low and high of the accuracy lost and of the macro F1 lost."""
    size = trials[0].real.scores_hK.shape[1]
    cells = [[truth * size + judged.predicted_h for judged in (t.real, t.other)] for t in trials]

    def lost(rows: Ints) -> Floats:
        pairs = [[_accuracy_f1(np.bincount(c[rows], minlength=size * size)) for c in pair] for pair in cells]
        return np.asarray(np.mean([np.subtract(*pair) for pair in pairs], axis=0))

    h = len(truth)
    value = lost(np.arange(h))
    draws = np.stack([lost(rng.integers(h, size=h)) for _ in range(DRAWS)])
    low, high = np.percentile(draws, [2.5, 97.5], axis=0)
    return [(float(value[i]), float(low[i]), float(high[i])) for i in range(2)]


def _accuracy_f1(counted: Ints) -> Floats:
    """Accuracy, and F1 averaged over the classes that occur, from counts of (true, predicted)."""
    size = math.isqrt(len(counted))
    table = counted.reshape(size, size)
    classes = np.flatnonzero(table.sum(axis=1))
    return np.array([np.trace(table) / table.sum(), f1_macro(table[classes], classes)])


def _area_lost(truth: Ints, trials: Sequence[Trial]) -> tuple[float, float, float]:
    """Value, low and high of the area lost; rows influence both areas, so their influences are subtracted."""
    parts = [(_area(truth, t.real), _area(truth, t.other)) for t in trials]
    value = float(np.mean([real[0] - other[0] for real, other in parts]))
    influence = np.mean([real[1] - other[1] for real, other in parts], axis=0)
    low, high = figures.normal_interval(value, float(np.sqrt((influence**2).sum())), -1.0, 1.0)
    return value, low, high


def _area(truth: Ints, judged: Judgement) -> tuple[float, Floats]:
    """Mean one-against-rest area over the classes that occur, and the influence of each row on it."""
    parts = [figures.auc_with_influence(truth == k, judged.scores_hK[:, k]) for k in np.unique(truth)]
    return float(np.mean([area for area, _ in parts])), np.asarray(np.mean([own for _, own in parts], axis=0))


def similarity(
    compared: Comparison,
    floor: Floor | None,
    tables: tuple[Coded, Coded],
    samples: tuple[Coded, Coded],
    silos: Sequence[str | None],
    rng: np.random.Generator,
) -> list[Score | Skipped]:
    """Average JSD and Wasserstein distance, and the three norms of correlation differences.

    `tables` are the training and the synthetic table, `samples` the two real ones of the floor.
    """
    return [
        _divergence(compared, floor, tables[0]),
        _wasserstein_score(compared, floor, tables, samples, rng),
        *_correlations(compared, floor, silos),
    ]


def _divergence(compared: Comparison, floor: Floor | None, table: Coded) -> Score | Skipped:
    places = [j for j, f in enumerate(table.fields) if f.categorical]
    if not places:
        return Skipped("gan_jsd", "no column is categorical")
    least = None if floor is None else float(floor.comparison.marginals.js[0, places].mean())
    text = "How far the shares of single categories are off, averaged over categorical columns; 0 is a perfect match."
    values = compared.marginals.js[:, places].mean(axis=1)
    return distance(SCALE, "gan_jsd", "Average JSD (VT-GAN)", text, values, least, floor, compared, 1.0)


def _wasserstein_score(
    compared: Comparison, floor: Floor | None, tables: tuple[Coded, Coded], samples: tuple[Coded, Coded],
    rng: np.random.Generator,
) -> Score | Skipped:  # fmt: skip
    train = tables[0]
    places = [j for j, f in enumerate(train.fields) if not f.categorical and not train.missing(j).all()]
    if not places:
        return Skipped("gan_wasserstein", "no column is numeric")
    groups = figures.groups_for(*map(len, tables))
    real, other = (Dealt(t, figures.deal(len(t), groups, rng), groups) for t in tables)
    values = np.mean([wasserstein(real, other, train.values[j], j) for j in places], axis=0)
    least = None
    if floor is not None:
        a, b = (Dealt(t, np.zeros(len(t), np.int64), 1) for t in samples)
        least = float(np.mean([wasserstein(a, b, train.values[j], j)[0] for j in places]))
    text = "How far numbers must be moved, as a share of their real range, averaged over numeric columns; 0 is best."
    return distance(SCALE, "gan_wasserstein", "Average WD (VT-GAN)", text, values, least, floor, compared, np.inf)


def wasserstein(real: Dealt, other: Dealt, reference: Floats, j: int) -> Floats:
    """Wasserstein distance (R,) of column j in units of the range of `reference`, over present values."""
    present = reference[~np.isnan(reference)]
    low, reach = float(present.min()), float(np.ptp(present))
    columns = [np.asarray(t.table.values[j], np.float64) for t in (real, other)]
    kept = [~np.isnan(values) for values in columns]
    if not reach > 0:  # constant: the distance of indicators of any other value
        scaled = [(values != low).astype(np.float64) for values in columns]
    else:
        scaled = [(values - low) / reach for values in columns]
    values_U, place = np.unique(np.concatenate([s[k] for s, k in zip(scaled, kept, strict=True)]), return_inverse=True)
    first_rows = int(kept[0].sum())
    p_RU, q_RU = (
        figures.shares(figures.counts(at, len(values_U), t.group[k], t.groups))
        for at, t, k in ((place[:first_rows], real, kept[0]), (place[first_rows:], other, kept[1]))
    )
    gaps = np.abs(np.cumsum(p_RU - q_RU, axis=1)[:, :-1])
    empty = (p_RU.sum(axis=1) == 0) | (q_RU.sum(axis=1) == 0)
    return np.where(empty, 1.0, gaps @ np.diff(values_U))


def _correlations(compared: Comparison, floor: Floor | None, silos: Sequence[str | None]) -> list[Score | Skipped]:
    d = len(silos)
    everything = np.ones((d, d), bool)
    same = np.array([[a == b for b in silos] for a in silos])
    blocks = [np.outer(own, own) for own in ([s == name for s in silos] for name in dict.fromkeys(silos))]
    parts = [
        ("gan_correlation", "Diff. Corr. (VT-GAN)", [everything], "of all columns"),
        ("gan_correlation_avg_client", "Diff. Corr., Avg-client (VT-GAN)", blocks, "inside one silo (mean over silos)"),
        ("gan_correlation_across_client", "Diff. Corr., Across-client (VT-GAN)", [~same], "of different silos"),
    ]
    scores: list[Score | Skipped] = []
    for name, label, masks, which in parts:
        if name != "gan_correlation" and len(blocks) < 2:
            scores.append(Skipped(name, ONE_SILO))
            continue
        least = None if floor is None else float(_norms(floor.comparison, masks)[0])
        text = (
            f"How far the pairwise associations {which} are off in sum (a norm); it grows with the columns, 0 is best."
        )
        scores.append(distance(SCALE, name, label, text, _norms(compared, masks), least, floor, compared, np.inf))
    return scores


def _norms(compared: Comparison, masks: Sequence[NDArray[np.bool_]]) -> Floats:
    """Norm of the difference of associations inside a mask, mean over the masks: (R,)."""
    difference = compared.dependence.real - compared.dependence.other
    return np.asarray(np.mean([np.sqrt((difference[:, mask] ** 2).sum(axis=1)) for mask in masks], axis=0))
