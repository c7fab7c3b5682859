"""`evaluate`: every figure about a synthetic table, beside its floor, in one report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from silosynth.core.errors import ConfigError, DataError
from silosynth.core.schema import UNMODELLED, ColumnSchema, Schema
from silosynth.data.frames import to_pandas
from silosynth.data.splits import stacked
from silosynth.evaluation import combinations, disclosure, fidelity, gan_papers, premises, silofuse_paper, utility
from silosynth.evaluation.about import AnyModel, about
from silosynth.evaluation.coding import Coded, Field, check_silos, check_target, code_tables, plain_table, schema_of
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
            same columns hold different rows: no pair is across silos, and all figures are the same as without silos;
            as they are of a model of groups of silos.
        seed: of all subsamples, folds and models; the same seed gives the same report.
        ledger: the run's ledger entries, shown in the report.
        progress: called with the name of a stage and the share of the work done.
        max_rows: larger tables are evaluated on a random subset of this many rows (exact copies, and combinations
            that training rows never hold, on all of them).
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
    if model is not None:
        ledger = model.ledger if ledger is None else ledger
        schema = model.schema if schema is None else schema
    subject = _coded(train, holdout, synthetic, schema, rows, silos, model, target)
    streams = np.random.default_rng(seed).spawn(11)
    coded, owners = subject.coded, subject.owners
    on_progress("premises", 0.02)
    apart = premises.independent(subject.frames, coded, subject.kinds, streams[9])
    examined = premises.examine(coded["training"], coded.get("hold-out"), streams[9], apart)
    tables = _tables({name: table.sample(max_rows, streams[1]) for name, table in coded.items()}, streams[2])
    found = _figures(subject, tables, figures, streams, on_progress)
    report = Report(
        scores=tuple(one for one in found.figures if isinstance(one, Score)),
        skipped=tuple(one for one in found.figures if isinstance(one, Skipped)),
        columns=fidelity.column_scores(tables.train, tables.synthetic, found.compared, found.floor, owners),
        pairs=fidelity.pair_matrices(subject.fields, found.compared, found.floor, owners),
        rows=Rows(len(coded["training"]), None if holdout is None else len(coded["hold-out"]), len(coded["synthetic"])),
        target=target,
        ledger=None if ledger is None else tuple(ledger),
        premises=examined,
        about=about(coded["training"], coded["synthetic"], subject.unmodelled, data, subject.silos, model, ledger),
        by_silo=tuple(_silo(name, held, coded, max_rows, streams[10]) for name, held in subject.rows.items()),
        combinations=combinations.find(
            coded["training"], coded.get("hold-out"), coded["synthetic"], owners, _ruled(subject, model)
        ),
    )
    on_progress("done", 1.0)
    return report


@dataclass(frozen=True, slots=True, eq=False)
class _Subject:
    """What is judged.

    Attributes:
        frames: "training", "synthetic" and perhaps "hold-out" rows; and how they are coded, alike.
        kinds: of all columns; those that are not compared are `unmodelled`.
        silos: each silo's columns; None if nothing is known of silos.
        owners: the silo of each compared column; None where it has none, or where silos hold rows.
        rows: which training rows each silo holds; none where silos hold columns.
        target: the position of the column to predict.
    """

    frames: Mapping[str, Any]
    coded: Mapping[str, Coded]
    kinds: Schema
    silos: Mapping[str, Sequence[str]] | None
    owners: tuple[str | None, ...]
    rows: Mapping[str, Any]
    target: int | None

    @property
    def fields(self) -> tuple[Field, ...]:
        """The columns that are compared."""
        return self.coded["training"].fields

    @property
    def unmodelled(self) -> list[ColumnSchema]:
        """Identifiers and pseudonyms."""
        return [column for column in self.kinds.columns if column.kind in UNMODELLED]


def _coded(
    train: Any, holdout: Any | None, synthetic: Any, schema: Schema | Mapping[str, Any] | None,
    rows: Mapping[str, Any] | None, silos: Mapping[str, Sequence[str]] | None, model: AnyModel | None,
    target: str | None,
) -> _Subject:  # fmt: skip
    """Code the tables alike, and find out who holds what."""
    train, rows = _one_table(train, rows)
    holdout, _ = _one_table(holdout, None)
    grouped = False
    if model is not None and silos is None:
        silos, grouped = _silos_of(model, train), model.describe()["partition"] == "mixed"
    frames = {"training": train, "synthetic": synthetic} | ({} if holdout is None else {"hold-out": holdout})
    kinds = schema_of(train, schema)
    coded = code_tables(frames, kinds)
    fields = coded["training"].fields
    if rows is not None and silos is None:
        silos = {silo: [field.name for field in fields] for silo in rows}
    owners = _owners(None if grouped else silos, kinds, fields)  # which pairs are across silos hangs on the group
    position = None if target is None else check_target(target, fields)
    return _Subject(frames, coded, kinds, silos, owners, rows or {}, position)


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """All figures; and the comparison of columns and pairs, which the report draws, with its floor."""

    figures: list[Score | Skipped]
    compared: fidelity.Comparison
    floor: fidelity.Floor | None


def _figures(
    subject: _Subject, tables: Tables, figures: str, streams: Sequence[np.random.Generator], on_progress: OnProgress
) -> _Found:
    """All figures that were asked for."""
    on_progress("fidelity", 0.05)
    owners, target, coded = subject.owners, subject.target, subject.coded
    compared = fidelity.compare(tables.train, tables.synthetic, streams[3])
    floor = _floor(tables, streams[3])
    found: list[Score | Skipped] = [*fidelity.column_shape(compared, floor)]
    found += fidelity.pair_trend(compared, floor, owners)
    if figures not in GAN_CLASSIFIERS:
        found += _general(tables, compared, floor, target, figures, streams, on_progress)
        found += disclosure.exact_copies(coded["training"], coded.get("hold-out"), coded["synthetic"], streams[0])
        found += disclosure.neighbours(tables.train, tables.holdout, tables.synthetic, streams[7])
    if figures != "quick":
        on_progress("figures of GAN papers", 0.92 if figures == "all" else 0.4)
        classifiers = GAN_CLASSIFIERS.get(figures, utility.VTGAN)
        found += _gan(tables, compared, floor, target, owners, classifiers, streams[8])
    return _Found(found, compared, floor)


def _ruled(subject: _Subject, model: AnyModel | None) -> combinations.RuledRows:
    """The model's rules and those that training rows keep, with the rows of all tables."""
    declared = getattr(getattr(model, "ruling", None), "rules", ())
    tables = [plain_table(frame, subject.kinds) for frame in subject.frames.values()]
    return combinations.ruled_rows(tables, declared)


def _one_table(table: Any, rows: Mapping[str, Any] | None) -> tuple[Any, Mapping[str, Any] | None]:
    """One frame of all silos' rows, and which of them each silo holds; another table as it is."""
    if not isinstance(table, Mapping):
        return table, rows
    if rows is not None or not table:
        raise ConfigError("Either each silo has a table of its own, or `rows` says which rows it holds", len(table))
    return stacked({silo: to_pandas(frame) for silo, frame in table.items()})


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


def _owners(
    silos: Mapping[str, Sequence[str]] | None, kinds: Schema, fields: Sequence[Field]
) -> tuple[str | None, ...]:
    """Each compared column's silo; None for all if several silos hold different rows of the same columns.

    Raises DataError as `check_silos`.
    """
    if silos is None:
        return (None,) * len(fields)
    uncompared = set(kinds.names) - {field.name for field in fields}
    compared = {
        silo: columns if isinstance(columns, str) else [name for name in columns if name not in uncompared]
        for silo, columns in silos.items()
    }
    held = {silo: columns for silo, columns in compared.items() if columns or not uncompared}
    if len(held) < 2 or len({frozenset(columns) for columns in held.values()}) > 1:
        return check_silos(held, fields)
    for name, columns in held.items():
        check_silos({name: columns}, fields)
    return (None,) * len(fields)


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
