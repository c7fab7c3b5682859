"""Statistical similarity of the VT-GAN paper (section 4.2.2): average JSD, average WD and correlation differences.

Readings: see `paper_gan`. Legend: R jackknife replicates, U distinct values of both tables in rising order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from silosynth.evaluation.coding import Coded
from silosynth.evaluation.fidelity import NO_FLOOR, ONE_SILO, Comparison, Floor
from silosynth.evaluation.marginals import Dealt
from silosynth.evaluation.resampling import counts, deal, groups_for, jackknife, shares
from silosynth.evaluation.scores import Floats, Score, Skipped


def similarity(
    compared: Comparison,
    floor: Floor | None,
    tables: tuple[Coded, Coded],
    samples: tuple[Coded, Coded],
    silos: Sequence[str | None],
    rng: np.random.Generator,
) -> list[Score | Skipped]:
    """Average JSD and Wasserstein distance, and the three norms of correlation differences.

    `tables` are the training and the synthetic table that were compared, `samples` the two real ones of the floor.
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
    return _distance("gan_jsd", "Average JSD (VT-GAN)", values, least, floor, compared, text, 1.0)


def _wasserstein_score(
    compared: Comparison,
    floor: Floor | None,
    tables: tuple[Coded, Coded],
    samples: tuple[Coded, Coded],
    rng: np.random.Generator,
) -> Score | Skipped:
    train = tables[0]
    places = [j for j, f in enumerate(train.fields) if not f.categorical and not train.missing(j).all()]
    if not places:
        return Skipped("gan_wasserstein", "no column is numeric")
    groups = groups_for(*map(len, tables))
    real, other = (Dealt(t, deal(len(t), groups, rng), groups) for t in tables)
    values = np.mean([wasserstein(real, other, train.values[j], j) for j in places], axis=0)
    least = None
    if floor is not None:
        a, b = (Dealt(t, np.zeros(len(t), np.int64), 1) for t in samples)
        least = float(np.mean([wasserstein(a, b, train.values[j], j)[0] for j in places]))
    text = "How far numbers must be moved, as a share of their real range, averaged over numeric columns; 0 is best."
    return _distance("gan_wasserstein", "Average WD (VT-GAN)", values, least, floor, compared, text, np.inf)


def wasserstein(real: Dealt, other: Dealt, reference: Floats, j: int) -> Floats:
    """Wasserstein distance (R,) of column j in units of the range of `reference`, over present values."""
    present = reference[~np.isnan(reference)]
    low, reach = float(present.min()), float(np.ptp(present))
    columns = [np.asarray(t.table.values[j], np.float64) for t in (real, other)]
    kept = [~np.isnan(values) for values in columns]
    if not reach > 0:  # the distance of the indicators of having another value
        scaled = [(values != low).astype(np.float64) for values in columns]
    else:
        scaled = [(values - low) / reach for values in columns]
    values_U, place = np.unique(np.concatenate([s[k] for s, k in zip(scaled, kept, strict=True)]), return_inverse=True)
    cut = int(kept[0].sum())
    p_RU, q_RU = (
        shares(counts(at, len(values_U), t.group[k], t.groups))
        for at, t, k in ((place[:cut], real, kept[0]), (place[cut:], other, kept[1]))
    )
    gaps = np.abs(np.cumsum(p_RU - q_RU, axis=1)[:, :-1])
    empty = (p_RU.sum(axis=1) == 0) | (q_RU.sum(axis=1) == 0)
    return np.where(empty, 1.0, gaps @ np.diff(values_U))


def _correlations(compared: Comparison, floor: Floor | None, silos: Sequence[str | None]) -> list[Score | Skipped]:
    d = len(silos)
    whole = np.ones((d, d), bool)
    same = np.array([[a == b for b in silos] for a in silos])
    blocks = [np.outer(own, own) for own in ([s == name for s in silos] for name in dict.fromkeys(silos))]
    parts = [
        ("gan_correlation", "Diff. Corr. (VT-GAN)", [whole], "of all columns"),
        ("gan_correlation_avg_client", "Diff. Corr., Avg-client (VT-GAN)", blocks, "inside one silo (mean over silos)"),
        ("gan_correlation_across_client", "Diff. Corr., Across-client (VT-GAN)", [~same], "of different silos"),
    ]
    found: list[Score | Skipped] = []
    for name, label, masks, which in parts:
        if name != "gan_correlation" and len(blocks) < 2:
            found.append(Skipped(name, ONE_SILO))
            continue
        least = None if floor is None else float(_norms(floor.comparison, masks)[0])
        text = (
            f"How far the pairwise associations {which} are off in sum (a norm); it grows with the columns, 0 is best."
        )
        found.append(_distance(name, label, _norms(compared, masks), least, floor, compared, text, np.inf))
    return found


def _norms(compared: Comparison, masks: Sequence[NDArray[np.bool_]]) -> Floats:
    """Mean over the masks of the norm of the difference of associations inside each, (R,)."""
    difference = compared.dependence.real - compared.dependence.other
    return np.asarray(np.mean([np.sqrt((difference[:, mask] ** 2).sum(axis=1)) for mask in masks], axis=0))


def _distance(
    name: str,
    label: str,
    values_R: Floats,
    least: float | None,
    floor: Floor | None,
    compared: Comparison,
    text: str,
    most: float,
) -> Score:
    value, low, high, method = jackknife(values_R, 0.0, most)
    return Score(
        name=name,
        label=label,
        group="fidelity",
        value=value,
        floor=None if least is None or floor is None else min(most, least * floor.scale),
        floor_note=NO_FLOOR if floor is None else f"{floor.note}, scaled by {floor.scale:.3f} to the sizes compared",
        low=low,
        high=high,
        unit="score",
        better="lower",
        ideal=0.0,
        n=min(compared.n, compared.m),
        explanation=text,
        method=method,
    )
