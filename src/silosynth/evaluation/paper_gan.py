"""The figures of the VT-GAN paper (Zhao et al., section 4.2), which the papers on tabular GANs around it share.

*Machine-learning utility* (4.2.1): classifiers are trained on the real and on the synthetic training rows and scored on
the real hold-out; the figure is real minus synthetic, averaged over the classifiers. Accuracy, F1 and ROC area; F1 and
area are means over the classes that the hold-out has (macro, one against the rest), which the paper leaves open. At
most `AT_MOST` rows of each training table are learnt from. Rows without a target are left out.

*Statistical similarity* (4.2.2; `gan_similarity` computes it), with these readings:

- Average JSD over categorical columns: SciPy's `jensenshannon`, the square root of the divergence with logarithms to
  base 2, which is between 0 and 1 as the divergence is. Missing values are a level.
- Average Wasserstein distance over all other columns, scaled so that the real training rows span 0 to 1. Missing
  values take no part. A column that is constant in the real rows counts by its share of other values; one without any
  present synthetic value counts as 1; one without any present real value is left out.
- Diff. Corr.: Frobenius norm of the difference of the two association matrices over all ordered pairs: Pearson,
  correlation ratio, Theil's U (dython's measures; see `dependence`). It grows with the number of columns.
- Avg-client is the mean over silos of the norm of each silo's own block, Across-client the norm of everything outside
  these blocks: the squares of all blocks' norms and of Across-client add up to the square of Diff. Corr.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from silosynth.evaluation.auc import auc_with_influence, normal_interval
from silosynth.evaluation.classifiers import VTGAN, Classifier, Judgement, features, judge
from silosynth.evaluation.coding import Coded, Ints
from silosynth.evaluation.downstream import DRAWS, HOLDOUT_NEEDED, f1_macro
from silosynth.evaluation.scores import Floats, Score, Skipped

AT_MOST = 10_000
MOST_CLASSES = 100
UTILITY = {
    "gan_accuracy_difference": "Accuracy lost (VT-GAN)",
    "gan_f1_difference": "Macro F1 lost (VT-GAN)",
    "gan_auc_difference": "AUC lost (VT-GAN)",
}
BOOTSTRAP = f"95 % percentile interval, bootstrap over hold-out rows ({DRAWS} draws); fits are not repeated"
PAIRED = "95 % normal interval, DeLong's variance of the paired difference; fits are not repeated"


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """What one classifier says about the hold-out rows, trained on the real and on the synthetic table."""

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
    """Accuracy, macro F1 and area of classifiers trained on real rows, minus those of synthetic-trained ones."""
    why = _unfit(train, holdout, synthetic, target)
    if why or holdout is None or target is None:
        return [Skipped(name, why or HOLDOUT_NEEDED) for name in UTILITY]
    train, holdout, synthetic = (t.take(~t.missing(target)) for t in (train, holdout, synthetic))
    train, synthetic = train.sample(AT_MOST, rng), synthetic.sample(AT_MOST, rng)
    trials = _trials(train, holdout, synthetic, target, classifiers, int(rng.integers(2**31)))
    truth = holdout.values[target]
    names = [c.name for c in classifiers]
    note = _limits(names, trials)
    found = [*_shares_lost(truth, trials, rng), _area_lost(truth, trials)]
    return [
        _lost(slug, *ends, names, len(truth), (PAIRED if slug == "gan_auc_difference" else BOOTSTRAP) + note)
        for slug, ends in zip(UTILITY, found, strict=True)
    ]


def _unfit(train: Coded, holdout: Coded | None, synthetic: Coded, target: int | None) -> str | None:
    if target is None:
        return "no target column was given"
    if holdout is None:
        return HOLDOUT_NEEDED
    field = train.fields[target]
    if not field.categorical:
        return "classifiers need a target that is a category"
    if len(field.levels) > MOST_CLASSES:
        return f"the target has more than {MOST_CLASSES} classes"
    if len(train.fields) < 2:
        return "needs a column beside the target"
    for name, table in (("training", train), ("hold-out", holdout), ("synthetic", synthetic)):
        if (~table.missing(target)).sum() < 2:
            return f"the {name} table has fewer than two rows with a target"
    if len(np.unique(holdout.values[target][~holdout.missing(target)])) < 2:
        return "the target is constant in the hold-out"
    return None


def _trials(
    train: Coded, holdout: Coded, synthetic: Coded, target: int, classifiers: Sequence[Classifier], seed: int
) -> list[Trial]:
    """Each classifier trained on both tables; two fits run at a time, one core each."""
    size = len(train.fields[target].levels)
    test = features(train, holdout, target)
    designs = [(features(train, t, target), t.values[target]) for t in (train, synthetic)]
    with warnings.catch_warnings(), ThreadPoolExecutor(2) as pool:
        warnings.simplefilter("ignore", ConvergenceWarning)  # what did not converge is said beside the figure
        fits = [pool.submit(judge, c, x, y, test, size, seed) for c in classifiers for x, y in designs]
        found = [fit.result() for fit in fits]
    return [Trial(*pair) for pair in zip(found[::2], found[1::2], strict=True)]


def _limits(names: Sequence[str], trials: Sequence[Trial]) -> str:
    """Which classifiers were stopped before they had converged."""
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
    """Accuracy, and F1 averaged over the classes that are there, from counts of (true, predicted)."""
    size = math.isqrt(len(counted))
    table = counted.reshape(size, size)
    classes = np.flatnonzero(table.sum(axis=1))
    return np.array([np.trace(table) / table.sum(), f1_macro(table[classes], classes)])


def _area_lost(truth: Ints, trials: Sequence[Trial]) -> tuple[float, float, float]:
    """Value, low and high of the area lost; rows influence both areas, so influences are subtracted."""
    parts = [(_area(truth, t.real), _area(truth, t.other)) for t in trials]
    value = float(np.mean([real[0] - other[0] for real, other in parts]))
    influence = np.mean([real[1] - other[1] for real, other in parts], axis=0)
    low, high = normal_interval(value, float(np.sqrt((influence**2).sum())), -1.0, 1.0)
    return value, low, high


def _area(truth: Ints, judged: Judgement) -> tuple[float, Floats]:
    """Mean one-against-rest area over the classes that are there, and the rows' influences on it."""
    parts = [auc_with_influence(truth == k, judged.scores_hK[:, k]) for k in np.unique(truth)]
    return float(np.mean([area for area, _ in parts])), np.asarray(np.mean([own for _, own in parts], axis=0))


def _lost(slug: str, value: float, low: float, high: float, names: Sequence[str], n: int, method: str) -> Score:
    return Score(
        name=slug,
        label=UTILITY[slug],
        group="utility",
        value=value,
        floor=0.0,
        floor_note="0 by definition: models trained on the real table, minus themselves",
        low=low,
        high=high,
        unit="score",
        better="lower",
        ideal=0.0,
        n=n,
        explanation="How much worse models predict real rows when they learn from synthetic instead of real ones, "
        f"averaged over {', '.join(names)}; 0 is no loss.",
        method=method,
    )
