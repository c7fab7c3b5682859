"""`evaluate`: every figure about a synthetic table, beside its floor, in one report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from silosynth.core.errors import ConfigError, DataError
from silosynth.core.schema import UNMODELLED, Schema
from silosynth.data.frames import to_pandas
from silosynth.data.infer import MUCH
from silosynth.encoders.column import RARE
from silosynth.evaluation import combinations, disclosure, fidelity, gan_papers, premises, silofuse_paper, utility
from silosynth.evaluation.about import AnyModel, about
from silosynth.evaluation.coding import Coded, Field, check_silos, check_target, code_tables, schema_of
from silosynth.evaluation.report import Report
from silosynth.evaluation.scores import NEEDS_HOLDOUT, OnProgress, Rows, Score, SiloScores, Skipped

MAX_ROWS = 100_000
GAN_CLASSIFIERS = {"gan": utility.VTGAN, "gdts": utility.GDTS}  # `figures` -> classifiers of that paper
QUICK_OUTPUTS = 150  # boosters per table that the paper's utility may train in a quick evaluation


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """The coded tables, and two disjoint real samples for the floors."""

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
    progress: OnProgress | None = None,
    max_rows: int = MAX_ROWS,
    figures: Literal["quick", "all", "gan", "gdts"] = "quick",
    schema: Schema | Mapping[str, Any] | None = None,
    rows: Mapping[str, Any] | None = None,
    model: AnyModel | None = None,
    data: str | None = None,
) -> Report:
    """Measure how faithful, useful and disclosive a synthetic table is.

    What the figures presuppose of the real rows is tested first (`premises`): where it fails, the report says so at the
    top, with the remedy, and draws no conclusions.

    Args:
        train: the real rows the generator was trained on (pandas, Polars or Arrow; so are the other tables); or
            ``{silo: table}``, if silos hold different rows of the same columns, and then ``holdout`` may be, too.
        holdout: real rows the generator has not seen, as `silosynth.split` draws them; without them, floors are
            computed from two halves of `train`, and figures that need unseen rows are skipped.
        synthetic: the synthetic rows.
        target: the column to predict, for the utility figures.
        silos: each silo's columns, to distinguish pairs within a silo from pairs across silos. Several silos with the
            same columns hold different rows: no pair is across silos, and all figures are the same as without silos.
        seed: of all subsamples, folds and models; the same seed gives the same report.
        ledger: the run's ledger entries, shown in the report.
        progress: called with the name of a stage and the share of the work done.
        max_rows: larger tables are evaluated on a random subset of this many rows (exact copies on all of them).
        figures: "quick" skips SiloFuse's utility where it takes long; "all" always computes it, and the
            figures of the VT-GAN paper; "gan" computes only these, column shapes and pair trends; "gdts" does the
            same with the four classifiers of the GDTS paper.
        schema: column kinds instead of the inferred ones, as for `silosynth.simulate`; or the `schema` of the model or
            of the federation. Identifiers and pseudonyms are left out, and the report lists them.
        rows: which training rows each silo holds, as for `silosynth.simulate`: the report then has figures per silo.
        model: what drew the synthetic rows. The head of the report describes it; silos, ledger and schema are the
            model's, unless given.
        data: the name of the data, for the head of the report.

    Raises:
        DataError: the tables cannot be compared; names the column, the table and the remedy.
        SchemaError: a declared kind does not fit its column.
        ConfigError: an option is invalid.
    """
    if figures not in ("quick", "all", *GAN_CLASSIFIERS):
        raise ConfigError("figures must be 'quick', 'all', 'gan' or 'gdts'", figures)
    if max_rows < 1:
        raise ConfigError("max_rows must be at least 1", max_rows)
    on_progress: OnProgress = progress or (lambda stage, share: None)
    on_progress("reading", 0.0)
    train, rows = _stacked(train, rows)
    holdout, _ = _stacked(holdout, None)
    if model is not None:
        ledger = model.ledger if ledger is None else ledger
        schema = model.schema if schema is None else schema
        silos = _silos_of(model, train) if silos is None else silos
    frames = {"training": train, "synthetic": synthetic} | ({} if holdout is None else {"hold-out": holdout})
    kinds = schema_of(frames["training"], schema)
    unmodelled = [column for column in kinds.columns if column.kind in UNMODELLED]
    left_out = {column.name: column.reason for column in unmodelled}
    coded = code_tables(frames, kinds)
    fields = coded["training"].fields
    if rows is not None and silos is None:
        silos = {silo: [field.name for field in fields] for silo in rows}
    holders, silos = silos, _column_silos(_without(left_out, silos), fields)
    owners: tuple[str | None, ...] = check_silos(silos, fields) if silos is not None else (None,) * len(fields)
    position = None if target is None else check_target(target, fields)
    streams = np.random.default_rng(seed).spawn(11)
    uncapped = (coded["training"], coded.get("hold-out"), coded["synthetic"])
    copies = [] if figures in GAN_CLASSIFIERS else disclosure.exact_copies(*uncapped, streams[0])
    tables = _tables({name: table.sample(max_rows, streams[1]) for name, table in coded.items()}, streams[2])

    on_progress("premises", 0.02)
    apart = premises.independent(frames, coded, kinds, streams[9])
    examined = premises.examine(coded["training"], coded.get("hold-out"), streams[9], apart)
    on_progress("fidelity", 0.05)
    compared = fidelity.compare(tables.train, tables.synthetic, streams[3])
    floor = _floor(tables, streams[3])
    results = [*fidelity.column_shape(compared, floor), *fidelity.pair_trend(compared, floor, owners)]
    if figures not in GAN_CLASSIFIERS:
        results += _general(tables, compared, floor, position, figures, streams, on_progress)
        results += [*copies, *disclosure.neighbours(tables.train, tables.holdout, tables.synthetic, streams[7])]
    if figures != "quick":
        on_progress("figures of GAN papers", 0.92 if figures == "all" else 0.4)
        results += _gan(
            tables, compared, floor, position, owners, GAN_CLASSIFIERS.get(figures, utility.VTGAN), streams[8]
        )
    report = Report(
        scores=tuple(r for r in results if isinstance(r, Score)),
        skipped=tuple(r for r in results if isinstance(r, Skipped)),
        columns=fidelity.column_scores(tables.train, tables.synthetic, compared, floor, owners),
        pairs=fidelity.pair_matrices(fields, compared, floor, owners),
        rows=Rows(len(coded["training"]), None if holdout is None else len(coded["hold-out"]), len(coded["synthetic"])),
        silos=None if silos is None else {name: tuple(columns) for name, columns in silos.items()},
        target=target,
        ledger=None if ledger is None else tuple(ledger),
        premises=examined,
        left_out=left_out,
        pooled=_pooled(coded["synthetic"]),
        about=about(coded["training"], coded["synthetic"], unmodelled, data, holders, model, ledger),
        by_silo=tuple(_silo(name, held, coded, max_rows, streams[10]) for name, held in (rows or {}).items()),
        combinations=combinations.find(tables.train, tables.holdout, tables.synthetic, owners),
    )
    on_progress("done", 1.0)
    return report


def _pooled(synthetic: Coded) -> dict[str, float]:
    """The columns much of which was pooled into "(rare)", and how much."""
    shares = {}
    for field, codes in zip(synthetic.fields, synthetic.values, strict=True):
        if field.categorical and RARE in field.levels:
            shares[field.name] = float((codes == field.levels.index(RARE)).mean())
    return {name: share for name, share in shares.items() if share > MUCH}


def _without(
    left_out: Mapping[str, str], silos: Mapping[str, Sequence[str]] | None
) -> Mapping[str, Sequence[str]] | None:
    """The columns of silos that are compared; silos that hold none of them are left out."""
    if silos is None or not left_out:
        return silos
    kept = {
        silo: columns if isinstance(columns, str) else [name for name in columns if name not in left_out]
        for silo, columns in silos.items()
    }
    return {silo: columns for silo, columns in kept.items() if columns}


def _stacked(table: Any, rows: Mapping[str, Any] | None) -> tuple[Any, Mapping[str, Any] | None]:
    """One frame of all silos' rows, and which of them each silo holds; another table as it is."""
    if not isinstance(table, Mapping):
        return table, rows
    if rows is not None or not table:
        raise ConfigError("Either each silo has a table of its own, or `rows` says which rows it holds", len(table))
    frames = {silo: to_pandas(frame) for silo, frame in table.items()}
    ends = np.cumsum([len(frame) for frame in frames.values()]).tolist()
    held = {silo: slice(end - len(frame), end) for (silo, frame), end in zip(frames.items(), ends, strict=True)}
    return pd.concat(list(frames.values()), ignore_index=True), held


def _silo(name: str, held: Any, coded: Mapping[str, Coded], max_rows: int, rng: np.random.Generator) -> SiloScores:
    """The figures of one silo's training rows."""
    places = _places(name, held, len(coded["training"]))
    real, synthetic, holdout = coded["training"].take(places), coded["synthetic"], coded.get("hold-out")
    real, floor, note = real.sample(max_rows, rng), None, NEEDS_HOLDOUT
    if holdout is not None:
        size = min(len(holdout), len(synthetic), max_rows)
        synthetic, note = synthetic.sample(size, rng), f"the silo's rows against {size:,} hold-out rows of all silos"
        floor = fidelity.Floor(fidelity.compare(real, holdout.sample(size, rng), rng, replicates=False), 1.0, note)
    compared = fidelity.compare(real, synthetic.sample(max_rows, rng), rng)
    found = [*fidelity.column_shape(compared, floor), *fidelity.pair_trend(compared, floor, (None,) * len(real.fields))]
    return SiloScores(name, len(places), tuple(replace(s, floor_note=note) for s in found if isinstance(s, Score)))


def _places(name: str, held: Any, n: int) -> NDArray[np.int64]:
    """Positions of a silo's rows among n; given as positions, a slice, or a mask."""
    try:
        places = np.arange(n)[held if isinstance(held, slice) else np.asarray(held)]
    except (IndexError, TypeError, ValueError) as error:
        raise DataError(f"The rows of silo {name!r} must be rows of the training table", f"{n:,} rows") from error
    if not len(places):
        raise DataError(f"Silo {name!r} holds no training row", f"0 of {n:,} rows", "Leave it out.")
    return np.atleast_1d(places)


def _silos_of(model: AnyModel, train: Any) -> dict[str, list[str]]:
    """Each silo's columns, without those that the training table lacks."""
    columns = set(to_pandas(train).columns)
    held = {silo: [name for name in names if name in columns] for silo, names in model.describe()["silos"].items()}
    return {silo: names for silo, names in held.items() if names}


def _column_silos(
    silos: Mapping[str, Sequence[str]] | None, fields: Sequence[Field]
) -> Mapping[str, Sequence[str]] | None:
    """`silos`, or None if several silos hold different rows of the same columns. Raises DataError as `check_silos`."""
    if silos is None or len(silos) < 2 or len({frozenset(columns) for columns in silos.values()}) > 1:
        return silos
    for name, columns in silos.items():
        check_silos({name: columns}, fields)
    return None


def _general(
    tables: Tables, compared: fidelity.Comparison, floor: fidelity.Floor | None, target: int | None, figures: str,
    streams: Sequence[np.random.Generator], on_progress: OnProgress,
) -> list[Score | Skipped]:  # fmt: skip
    """Two-sample tests, resemblance and utility."""
    on_progress("two-sample", 0.35)
    trees, lines = (_separations(tables, kind, streams[4]) for kind in ("xgboost", "logistic"))
    separations = {"xgboost": trees, "logistic": lines}
    results = [utility.two_sample_auc(kind, *pair, tables.note) for kind, pair in separations.items()]
    on_progress("resemblance", 0.6)
    results += silofuse_paper.resemblance(compared, floor, *trees)
    on_progress("utility", 0.62)
    results += _downstream(tables, target, streams[5])
    results.append(_paper_utility(tables, figures, streams[6], on_progress))
    on_progress("disclosure", 0.9)
    return results


def _gan(
    tables: Tables, compared: fidelity.Comparison, floor: fidelity.Floor | None, target: int | None,
    owners: Sequence[str | None], classifiers: Sequence[utility.Classifier], rng: np.random.Generator,
) -> list[Score | Skipped]:  # fmt: skip
    """The figures of the papers on tabular GANs."""
    lost = gan_papers.classifier_differences(tables.train, tables.holdout, tables.synthetic, target, rng, classifiers)
    pair, samples = (tables.train, tables.synthetic), (tables.real_a, tables.real_b)
    return [*lost, *gan_papers.similarity(compared, floor, pair, samples, owners, rng)]


def _tables(coded: Mapping[str, Coded], rng: np.random.Generator) -> Tables:
    train, holdout, synthetic = coded["training"], coded.get("hold-out"), coded["synthetic"]
    if holdout is not None:
        return Tables(train, holdout, synthetic, train, holdout, "training against hold-out rows")
    order = rng.permutation(len(train))
    a, b = (train.take(np.sort(half)) for half in (order[: len(train) // 2], order[len(train) // 2 :]))
    return Tables(train, None, synthetic, a, b, "two random halves of the training rows")


def _floor(tables: Tables, rng: np.random.Generator) -> fidelity.Floor | None:
    a, b = tables.real_a, tables.real_b
    if min(len(a), len(b)) == 0:
        return None
    scale = fidelity.size_scale(len(tables.train), len(tables.synthetic), len(a), len(b))
    return fidelity.Floor(fidelity.compare(a, b, rng, replicates=False), scale, tables.note)


def _separations(
    tables: Tables, kind: str, rng: np.random.Generator
) -> tuple[utility.Separation | str, utility.Separation | str]:
    """Of real from synthetic rows; and, as its floor, of two real samples of at most that size."""
    separation = utility.separate(tables.train, tables.synthetic, kind, rng)
    if isinstance(separation, str):
        return separation, separation
    return separation, utility.separate(tables.real_a.sample(separation.k, rng), tables.real_b, kind, rng)


def _downstream(tables: Tables, target: int | None, rng: np.random.Generator) -> list[Score | Skipped]:
    if target is None:
        return [Skipped("downstream", "no target column was given")]
    if tables.holdout is None:
        return [Skipped("downstream", NEEDS_HOLDOUT)]
    return utility.downstream(tables.train, tables.holdout, tables.synthetic, target, rng)


def _paper_utility(tables: Tables, figures: str, rng: np.random.Generator, on_progress: OnProgress) -> Score | Skipped:
    if tables.holdout is None:
        return Skipped("utility", NEEDS_HOLDOUT)
    if figures == "quick" and silofuse_paper.outputs(tables.train.fields) > QUICK_OUTPUTS:
        return Skipped(
            "utility", 'predicts every column of a wide table, which takes minutes; ask for it by figures="all"'
        )
    return silofuse_paper.silofuse_utility(
        tables.train, tables.holdout, tables.synthetic, rng, lambda share: on_progress("utility", 0.7 + 0.2 * share)
    )
