"""`evaluate`: every figure about a synthetic table, beside its floor, in one report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from silosynth.core.errors import ConfigError
from silosynth.evaluation.classifiers import GDTS, VTGAN, Classifier
from silosynth.evaluation.coding import Coded, Field, check_silos, check_target, code_tables
from silosynth.evaluation.disclosure import exact_copies, neighbours
from silosynth.evaluation.downstream import HOLDOUT_NEEDED, downstream
from silosynth.evaluation.fidelity import Comparison, Floor, column_shape, compare, pair_trend, size_scale
from silosynth.evaluation.gan_similarity import similarity
from silosynth.evaluation.overlays import column_scores, pair_matrices
from silosynth.evaluation.paper_gan import classifier_differences
from silosynth.evaluation.paper_utility import outputs, silofuse_utility
from silosynth.evaluation.resemblance import resemblance
from silosynth.evaluation.scores import Progress, Report, Rows, Score, Skipped
from silosynth.evaluation.two_sample import Separation, separate, two_sample_auc

MAX_ROWS = 100_000
GAN = {"gan": VTGAN, "gdts": GDTS}  # figures of one paper -> its classifiers
QUICK_OUTPUTS = 150  # boosters per table that the paper's utility may train in a quick evaluation


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """The coded tables, and the two disjoint real samples from which floors come."""

    train: Coded
    holdout: Coded | None
    synthetic: Coded
    real_a: Coded
    real_b: Coded
    note: str  # what real_a and real_b are


def evaluate(
    train: Any,
    holdout: Any | None,
    synthetic: Any,
    target: str | None = None,
    silos: Mapping[str, Sequence[str]] | None = None,
    seed: int = 0,
    ledger: Sequence[Mapping[str, Any]] | None = None,
    progress: Progress | None = None,
    max_rows: int = MAX_ROWS,
    figures: Literal["quick", "all", "gan", "gdts"] = "quick",
) -> Report:
    """Measure how faithful, useful and disclosive a synthetic table is.

    Args:
        train: the real rows the generator was trained on (pandas, Polars or Arrow; so are the other tables).
        holdout: real rows it has not seen; without them, floors come from two halves of `train` and figures that need
            unseen rows are skipped.
        synthetic: the synthetic rows.
        target: the column to predict, for the utility figures.
        silos: each silo's columns, to tell pairs within a silo from pairs across silos. Several silos that all hold the
            same columns hold different rows: no pair lies across silos, and the report is that without silos.
        seed: of all subsamples, folds and models; the same seed gives the same report.
        ledger: the run's ledger entries, handed through to the report.
        progress: called with the name of a stage and the share of the work done.
        max_rows: larger tables are evaluated on a random subset of this many rows (exact copies on all of them).
        figures: "quick" leaves SiloFuse's utility out where it takes long; "all" computes it in any case, and the
            figures of the VT-GAN paper; "gan" computes only these, beside column shapes and pair trends; "gdts" the
            same with the four classifiers of the GDTS paper.

    Raises:
        DataError: the tables cannot be compared; the message names the column, the table and the remedy.
        ConfigError: an option is not valid.
    """
    if figures not in ("quick", "all", *GAN):
        raise ConfigError("figures must be 'quick', 'all', 'gan' or 'gdts'", figures)
    if max_rows < 1:
        raise ConfigError("max_rows must be at least 1", max_rows)
    tell: Progress = progress or (lambda stage, share: None)
    tell("reading", 0.0)
    frames = {"training": train, "synthetic": synthetic} | ({} if holdout is None else {"hold-out": holdout})
    coded = code_tables(frames)
    fields = coded["training"].fields
    silos = _without_rows(silos, fields)
    owners: tuple[str | None, ...] = check_silos(silos, fields) if silos is not None else (None,) * len(fields)
    position = None if target is None else check_target(target, fields)
    streams = np.random.default_rng(seed).spawn(9)
    holdouts = coded.get("hold-out")
    copies = [] if figures in GAN else exact_copies(coded["training"], holdouts, coded["synthetic"], streams[0])
    tables = _tables({name: table.sample(max_rows, streams[1]) for name, table in coded.items()}, streams[2])

    tell("fidelity", 0.05)
    compared = compare(tables.train, tables.synthetic, streams[3])
    floor = _floor(tables, streams[3])
    results = [*column_shape(compared, floor), *pair_trend(compared, floor, owners)]
    if figures not in GAN:
        results += _general(tables, compared, floor, position, figures, streams, tell)
        results += [*copies, *neighbours(tables.train, tables.holdout, tables.synthetic, streams[7])]
    if figures != "quick":
        tell("figures of GAN papers", 0.92 if figures == "all" else 0.4)
        results += _gan(tables, compared, floor, position, owners, GAN.get(figures, VTGAN), streams[8])
    report = Report(
        scores=tuple(r for r in results if isinstance(r, Score)),
        skipped=tuple(r for r in results if isinstance(r, Skipped)),
        columns=column_scores(tables.train, tables.synthetic, compared, floor, owners),
        pairs=pair_matrices(fields, compared, floor, owners),
        rows=Rows(len(coded["training"]), None if holdout is None else len(coded["hold-out"]), len(coded["synthetic"])),
        silos=None if silos is None else {name: tuple(columns) for name, columns in silos.items()},
        target=target,
        ledger=None if ledger is None else tuple(ledger),
    )
    tell("done", 1.0)
    return report


def _without_rows(
    silos: Mapping[str, Sequence[str]] | None, fields: Sequence[Field]
) -> Mapping[str, Sequence[str]] | None:
    """None where several silos hold different rows of the same columns, which must be those of the tables."""
    if silos is None or len(silos) < 2 or len({frozenset(columns) for columns in silos.values()}) > 1:
        return silos
    for name, columns in silos.items():
        check_silos({name: columns}, fields)
    return None


def _general(
    tables: Tables,
    compared: Comparison,
    floor: Floor | None,
    target: int | None,
    figures: str,
    streams: Sequence[np.random.Generator],
    tell: Progress,
) -> list[Score | Skipped]:
    """Telling apart, resemblance and utility."""
    tell("two-sample", 0.35)
    trees, lines = (_separations(tables, kind, streams[4]) for kind in ("xgboost", "logistic"))
    results = [two_sample_auc("xgboost", *trees, tables.note), two_sample_auc("logistic", *lines, tables.note)]
    tell("resemblance", 0.6)
    results += resemblance(compared, floor, *trees)
    tell("utility", 0.62)
    results += _downstream(tables, target, streams[5])
    results.append(_paper_utility(tables, figures, streams[6], tell))
    tell("disclosure", 0.9)
    return results


def _gan(
    tables: Tables,
    compared: Comparison,
    floor: Floor | None,
    target: int | None,
    owners: Sequence[str | None],
    classifiers: Sequence[Classifier],
    rng: np.random.Generator,
) -> list[Score | Skipped]:
    """The figures of the papers on tabular GANs."""
    found = classifier_differences(tables.train, tables.holdout, tables.synthetic, target, rng, classifiers)
    pair, samples = (tables.train, tables.synthetic), (tables.real_a, tables.real_b)
    return [*found, *similarity(compared, floor, pair, samples, owners, rng)]


def _tables(coded: Mapping[str, Coded], rng: np.random.Generator) -> Tables:
    train, holdout, synthetic = coded["training"], coded.get("hold-out"), coded["synthetic"]
    if holdout is not None:
        return Tables(train, holdout, synthetic, train, holdout, "training against hold-out rows")
    order = rng.permutation(len(train))
    a, b = (train.take(np.sort(half)) for half in (order[: len(train) // 2], order[len(train) // 2 :]))
    return Tables(train, None, synthetic, a, b, "two random halves of the training rows")


def _floor(tables: Tables, rng: np.random.Generator) -> Floor | None:
    a, b = tables.real_a, tables.real_b
    if min(len(a), len(b)) == 0:
        return None
    scale = size_scale(len(tables.train), len(tables.synthetic), len(a), len(b))
    return Floor(compare(a, b, rng, replicates=False), scale, tables.note)


def _separations(tables: Tables, kind: str, rng: np.random.Generator) -> tuple[Separation | str, Separation | str]:
    """Of real from synthetic rows, and of two real samples no bigger than these."""
    found = separate(tables.train, tables.synthetic, kind, rng)
    if isinstance(found, str):
        return found, found
    return found, separate(tables.real_a.sample(found.k, rng), tables.real_b, kind, rng)


def _downstream(tables: Tables, target: int | None, rng: np.random.Generator) -> list[Score | Skipped]:
    if target is None:
        return [Skipped("downstream", "no target column was given")]
    if tables.holdout is None:
        return [Skipped("downstream", HOLDOUT_NEEDED)]
    return downstream(tables.train, tables.holdout, tables.synthetic, target, rng)


def _paper_utility(tables: Tables, figures: str, rng: np.random.Generator, tell: Progress) -> Score | Skipped:
    if tables.holdout is None:
        return Skipped("utility", HOLDOUT_NEEDED)
    if figures == "quick" and outputs(tables.train.fields) > QUICK_OUTPUTS:
        return Skipped(
            "utility", 'predicts every column of a wide table, which takes minutes; ask for it by figures="all"'
        )
    return silofuse_utility(
        tables.train, tables.holdout, tables.synthetic, rng, lambda share: tell("utility", 0.7 + 0.2 * share)
    )
