"""Membership inference from a synthetic table alone: the attacks that VFLGAN's table 3 compares with ASSD.

Each ranks candidates, half of which are training records, by how likely they are to be one; none sees the generator.
GAN-leaks is also the full black-box attack of VT-GAN's section 4.3.4.

===========  =============================================================  =========================================
LOGAN-0      the critic of a GAN trained on the synthetic table             Hayes et al. 2019, black-box
LOGAN-D1     a classifier of synthetic against reference rows               Hayes et al. 2019, with auxiliary data
MC           the number of synthetic rows nearby                            Hilprecht et al. 2019, median heuristic
GAN-leaks    the distance to the nearest synthetic row                      Chen et al. 2020, full black-box
GAN-leaks-c  that distance, compared with the nearest reference row         Chen et al. 2020, calibrated
DOMIAS       the density of synthetic rows over that of reference rows      van Breugel et al. 2023, with kernels
===========  =============================================================  =========================================

Interpretations: we calibrate GAN-leaks with reference rows, where its paper trains a reference generator on them; for
DOMIAS we use kernel densities only, where its paper also uses flows. Rows become points by `features.embed`, which
leaves out columns with many levels.

Legend: Q candidates, S synthetic and R reference rows, D numbers of a row.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from scipy.spatial import cKDTree
from scipy.stats import gaussian_kde
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from silosynth.attacks.features import embed
from silosynth.attacks.findings import Finding, auc_score, curve
from silosynth.core.errors import DataError
from silosynth.core.schema import Schema
from silosynth.core.streams import Streams
from silosynth.evaluation.coding import code_tables
from silosynth.evaluation.scores import Floats, auc_with_influence
from silosynth.models.gan import CriticPart, make_critic

Attack = Callable[
    [Floats, Floats, Floats, Streams], Floats
]  # (candidates, synthetic, reference, streams) -> scores (Q)

DENSE = 5000  # most rows that a density is fitted to
NOISE = 16  # width of the noise that LOGAN-0's generator takes
STEPS, BATCH, WIDTHS, RATE = 2000, 64, (256, 256), 5e-4  # LOGAN-0's training


def gan_leaks(candidates_QD: Floats, synthetic_SD: Floats, reference_RD: Floats, streams: Streams) -> Floats:
    """Minus the distance to the nearest synthetic row."""
    return -_nearest(candidates_QD, synthetic_SD)


def gan_leaks_calibrated(candidates_QD: Floats, synthetic_SD: Floats, reference_RD: Floats, streams: Streams) -> Floats:
    """The distance to the nearest reference row less that to the nearest synthetic row."""
    return _nearest(candidates_QD, reference_RD) - _nearest(candidates_QD, synthetic_SD)


def monte_carlo(candidates_QD: Floats, synthetic_SD: Floats, reference_RD: Floats, streams: Streams) -> Floats:
    """The share of synthetic rows within the median of candidates' distances to their nearest synthetic row."""
    radius = float(np.median(_nearest(candidates_QD, synthetic_SD)))
    near = cKDTree(synthetic_SD).query_ball_point(candidates_QD, radius * (1 + 1e-9), return_length=True)
    return np.asarray(near, np.float64) / len(synthetic_SD)


def domias(candidates_QD: Floats, synthetic_SD: Floats, reference_RD: Floats, streams: Streams) -> Floats:
    """The logarithm of the ratio of densities, in the directions in which the two tables vary."""
    draw = streams.numpy()
    both = np.concatenate([synthetic_SD, reference_RD])
    _, lengths, axes = np.linalg.svd(both - both.mean(axis=0), full_matrices=False)
    axes_DK = axes[lengths > 1e-6 * lengths[0]].T
    jitter = 1e-3 * lengths[0] / np.sqrt(len(both))  # without it, a table of few distinct rows has no density

    def density(rows_D: Floats) -> Floats:
        chosen = draw.permutation(len(rows_D))[:DENSE]
        points = rows_D[chosen] @ axes_DK
        points = points + jitter * draw.standard_normal(points.shape)
        return np.asarray(gaussian_kde(points.T).logpdf((candidates_QD @ axes_DK).T))

    return density(synthetic_SD) - density(reference_RD)


def logan_d1(candidates_QD: Floats, synthetic_SD: Floats, reference_RD: Floats, streams: Streams) -> Floats:
    """A classifier's probability that a row is synthetic."""
    model = MLPClassifier((256, 128), max_iter=100, random_state=streams.integer() % 2**31)
    rows = np.concatenate([synthetic_SD, reference_RD])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it need not have converged
        model.fit(rows, np.repeat([1, 0], [len(synthetic_SD), len(reference_RD)]))
    return np.asarray(model.predict_proba(candidates_QD)[:, 1])


def logan_0(candidates_QD: Floats, synthetic_SD: Floats, reference_RD: Floats, streams: Streams) -> Floats:
    """The score by the critic of a GAN that was trained on the synthetic rows as if they were real."""
    rows_SD = torch.from_numpy(synthetic_SD).float()
    weights, draw = streams.child("weights").torch(), streams.child("draws").torch()
    generator = make_critic(NOISE, WIDTHS, rows_SD.shape[1], 0.0, weights)
    critic = make_critic(rows_SD.shape[1], WIDTHS, 1, 0.0, weights)
    makes, judges = (torch.optim.Adam(part.parameters(), RATE, (0.5, 0.9)) for part in (generator, critic))
    for _ in range(STEPS):
        real = rows_SD[torch.randint(len(rows_SD), (BATCH,), generator=draw)]
        fake = generator(torch.randn(BATCH, NOISE, generator=draw), [])
        _step(judges, F.softplus(-critic(real, [])).mean() + F.softplus(critic(fake.detach(), [])).mean())
        _step(makes, F.softplus(-critic(fake, [])).mean())
    return _critic_scores(critic, candidates_QD)


def _step(optimiser: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


@torch.no_grad()
def _critic_scores(critic: CriticPart, rows_QD: Floats) -> Floats:
    scores: Floats = critic(torch.from_numpy(rows_QD).float(), []).squeeze(1).double().numpy()
    return scores


ATTACKS: Mapping[str, tuple[Attack, bool, str]] = {  # name -> attack, whether it needs reference rows, what it says
    "LOGAN-0": (logan_0, False, "How well a GAN's critic, trained on synthetic rows, tells training records."),
    "LOGAN-D1": (logan_d1, True, "How well a classifier of synthetic against real rows tells training records."),
    "MC": (monte_carlo, False, "How well the number of synthetic rows nearby tells training records."),
    "GAN-leaks": (gan_leaks, False, "How well the distance to the nearest synthetic row tells training records."),
    "GAN-leaks-cal": (gan_leaks_calibrated, True, "The same, compared with the distance to other real rows."),
    "DOMIAS": (domias, True, "How well the density of synthetic over that of real rows tells training records."),
}


def attack(
    members: pd.DataFrame, others: pd.DataFrame, synthetic: pd.DataFrame, reference: pd.DataFrame | None,
    seed: int = 0, schema: Schema | None = None,
) -> list[Finding]:  # fmt: skip
    """Every attack's area under the ROC curve, with DeLong's interval.

    Args:
        members: training records.
        others: records of the same population that were not trained on. The larger of the two tables is subsampled.
        synthetic: the synthetic table.
        reference: further records of the population; without them, attacks that need them are left out.
        seed: of all random draws.
        schema: of the members; None infers it.

    Raises:
        DataError: there are no members or no others, or tables' columns differ.
    """
    if not len(members) or not len(others):
        raise DataError("Members and others must have rows", f"{len(members)} and {len(others)}", "Hold rows out.")
    streams = Streams(seed).child("rivals")
    size = min(len(members), len(others))
    members, others = (_subsample(frame, size, streams) for frame in (members, others))
    frames = {"members": members, "others": others, "synthetic": synthetic}
    points = embed(code_tables(frames if reference is None else frames | {"reference": reference}, schema))
    candidates = np.concatenate([points["members"], points["others"]])
    truth = np.repeat([True, False], [len(members), len(others)])
    findings = []
    for name, (act, compares, text) in ATTACKS.items():
        if reference is None and compares:
            continue
        known = points.get("reference", points["synthetic"])
        score = act(candidates, points["synthetic"], known, streams.child(name))
        area, influence = auc_with_influence(truth, score)
        error = float(np.sqrt((influence**2).sum()))
        score_ = auc_score(_slug(name), name, area, error, len(truth), size, text)
        findings.append(Finding(score_, roc=curve(truth, score)))
    return findings


def _subsample(frame: pd.DataFrame, most: int, streams: Streams) -> pd.DataFrame:
    return frame.iloc[np.sort(streams.numpy().permutation(len(frame))[:most])]


def _nearest(candidates_QD: Floats, rows_D: Floats) -> Floats:
    return np.asarray(cKDTree(rows_D).query(candidates_QD)[0])


def _slug(name: str) -> str:
    return name.lower().replace("-", "_")
