"""Judging a synthetic table by joint tables of counts (`joint`), of real rows that nobody holds side by side.

**Figures**, in %: shape error, the mean over columns of the total variation distance over the levels (a missing value
is one); pair-trend error, the mean over pairs of that of their tables. Numbers are levels, too: bins. So the figures
are not those of `evaluate`, which takes distribution functions and correlations of numbers; they are like them.
**Associations** are Theil's U of the tables, whatever the kinds; noise adds to them, as much as it adds to the
synthetic table's in the simulations below, which is taken off. **Utility**: see `predictors`.

**Floors**. Of exact tables with hold-out rows: the same figure between training and hold-out tables, scaled to the
sizes (`fidelity.size_scale`). Otherwise by simulation: what a perfect generator would score, that is, the mean of
`SIMULATED` draws of both tables from the synthetic one, with the same noise on the real one, made sound (`sound`).

**Intervals**. Value ± 1.96 standard errors of `DRAWS` redrawn pairs of tables: synthetic rows with replacement, and as
many rows as there are real ones from a tree of the real tables (`sound.made_rows`), with noise of the same size.

Where only squared distances open ("figures"), there are no tables: each pair has the distance between its real and
synthetic shares, the root of the sum of squares over its cells, with a floor of either kind; and how far shares are
from those of independent columns with the synthetic table's shares, which is as much as can be said of associations.

Shapes: d columns, N rows, K levels, T tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from silosynth.evaluation import predictors, premises, sound
from silosynth.evaluation.about import AnyModel, about_tables
from silosynth.evaluation.fidelity import FEW, MISSING, ONE_SILO, OTHER, PERCENT, PLOT_BINS, entropy, size_scale
from silosynth.evaluation.joint import JointTables, independent
from silosynth.evaluation.predictors import Predictor
from silosynth.evaluation.report import Report
from silosynth.evaluation.scores import (
    NEEDS_HOLDOUT,
    ColumnScore,
    Ends,
    Floats,
    Ints,
    Least,
    OnProgress,
    Pairs,
    Premise,
    Rows,
    Scale,
    Score,
    Skipped,
    normal_interval,
)  # fmt: skip
from silosynth.evaluation.sound import Pool, Proportions
from silosynth.privacy.accounting import rounded_up
from silosynth.privacy.statement import noise_is_known, rows_of, statement

DRAWS = 60
SIMULATED = 20


def judge_tables(
    real: JointTables,
    synthetic: Any,
    *,
    seed: int = 0,
    ledger: Sequence[Mapping[str, Any]] | None = None,
    progress: OnProgress | None = None,
    model: AnyModel | None = None,
    data: str | None = None,
) -> Report:
    """Measure how faithful and useful a synthetic table is, by joint tables of real rows.

    Args:
        real: the tables, as they were opened.
        synthetic: the synthetic table that they were planned from.
        seed: of the draws for floors and intervals; the same seed gives the same report.
        ledger: of the counting, shown in the report; its events are what the tables cost.
        progress: called with the name of a stage and the share of the work done.
        model: what drew the synthetic rows, for the head of the report.
        data: the name of the data, for the head of the report.

    Raises:
        DataError: the synthetic table is not the one that was planned from.
    """
    on_progress: OnProgress = progress or (lambda stage, share: None)
    on_progress("reading", 0.0)
    codes = real.plan.codes(synthetic)
    fake = sound.shares(sound.count_rows(codes, real.plan.sizes, real.plan.sets), real.plan.sets)
    judged = _Judged(real, fake, Pool(codes, real.plan.sizes, real.plan.sets), np.random.default_rng(seed))
    found = judged.by_distances() if real.distances else judged.by_tables(on_progress)
    rows = Rows(round(judged.rows), None if judged.held is None else round(judged.held), codes.shape[1])
    names, held = real.plan.names, {silo: tuple(own) for silo, own in _held(real).items()}
    report = Report(
        scores=tuple(one for one in found.figures if isinstance(one, Score)),
        skipped=(*(one for one in found.figures if isinstance(one, Skipped)), *NEED_ROWS),
        columns=found.columns,
        pairs=found.pairs,
        rows=rows,
        target=None if real.plan.target is None else names[real.plan.target],
        ledger=None if ledger is None else tuple(ledger),
        premises=judged.premises(),
        about=about_tables(data, held or None, model, _how(real, ledger)),
        predictors=found.predictors,
    )
    on_progress("done", 1.0)
    return report


_ROWS = "takes whole rows, and there are only tables; each silo can compute it for what it holds"
NEED_ROWS = (
    Skipped("two_sample_auc", _ROWS),
    Skipped("downstream", "how well a model of all columns predicts takes whole rows, and there are only tables"),
    Skipped("exact_copy_rate", _ROWS),
    Skipped("nearest_neighbour_share", _ROWS),
    Skipped("distance_to_closest_record", _ROWS),
)


def _held(real: JointTables) -> dict[str, list[str]]:
    """Each silo's columns."""
    held: dict[str, list[str]] = {silo: list(real.plan.names) for silo in real.rows_of}
    for name, silo in zip(real.plan.names, real.owners, strict=True):
        if silo is not None:
            held.setdefault(silo, []).append(name)
    return held


def _how(real: JointTables, ledger: Sequence[Mapping[str, Any]] | None) -> dict[str, str]:
    """How tables were counted and opened, for the head of the report."""
    made, sizes, noise = real.plan, [len(places) for places in real.plan.sets], max(real.noises, default=0.0)
    words = [f"{sizes.count(size):,} of {word}" for size, word in _WORDS.items() if size in sizes]
    whose = "training and hold-out rows" if real.holdout is not None else "training rows"
    opened = {
        "exact": "as exact counts, also where few rows are in a cell",
        "noised": f"with noise of deviation {noise:.3g} on each cell; then made sound, without cells below zero",
        "figures": "not at all: each as one figure, its squared distance to the synthetic table's",
    }[real.opening]
    seen = "whatever stands on this page" if real.opening == "figures" else "all tables"
    of_groups = {"groups": "; ".join(" and ".join(group) for group in real.groups)} if real.groups else {}
    facts = of_groups | {
        "counted": f"tables: {' and '.join(words)}; {made.cells:,} cells, of {whose}, by the synthetic table's levels",
        "opened": opened,
        "seen by": f"the coordinator, all silos that took part, and whoever they show it: {seen}",
        "cost of judging": _cost(real, ledger),
    }
    return facts | ({"dealer": real.dealer} if real.dealer else {})


_WORDS = {1: "one column", 2: "two columns", 3: "three columns"}


def _cost(real: JointTables, ledger: Sequence[Mapping[str, Any]] | None) -> str:
    if real.opening != "noised":
        return "no epsilon holds for what was opened: it has no noise"
    if ledger is not None and noise_is_known(ledger):
        return str(statement(ledger)["summary"])
    if not real.dp.private:
        return "unknown"
    epsilon, delta = rounded_up(real.dp.epsilon), rounded_up(real.dp.delta)
    row = rows_of(bool(real.rows_of), bool(real.groups))
    return f"epsilon at most {epsilon} at delta {delta}, for each row of {row}"


@dataclass(frozen=True, eq=False)
class _Findings:
    figures: list[Score | Skipped]
    columns: tuple[ColumnScore, ...]
    pairs: Pairs
    predictors: tuple[Predictor, ...] = ()


@dataclass(frozen=True, eq=False)
class _Errors:
    """Of columns (…, d) and of tables (…, T), 0..1; where there are replicates, these come first."""

    columns: Floats
    tables: Floats


class _Judged:
    """All that is computed of one federation's tables.

    Attributes:
        rows: of the training table, an estimate where there is noise; ``held`` of the hold-out table, if there is one.
        training: its shares; None where only distances opened.
        holdout: those of hold-out rows, if there are some.
    """

    def __init__(self, real: JointTables, fake: Proportions, pool: Pool, rng: np.random.Generator) -> None:
        made = self._plan = real.plan
        self._real, self._fake, self._pool = real, fake, pool
        self._streams = rng.spawn(4)
        self.training = sound.shares(real.training, made.sets, real.noises) if real.training else None
        self.holdout = sound.shares(real.holdout, made.sets, real.noises) if real.holdout else None
        self.rows = float(real.numbers[0]) if self.training is None else self.training.rows
        held = real.numbers[1] if self.holdout is None else self.holdout.rows
        self.held = float(held) or None
        self._d = len(made.columns)
        self._bias: Floats | float = 0.0  # of associations, by noise

    # Figures of tables.

    def by_tables(self, on_progress: OnProgress) -> _Findings:
        """Columns, pairs, and what a label can be predicted by."""
        assert self.training is not None
        on_progress("floors", 0.1)
        errors, floor = self._errors(self.training, self._fake), self._floor()
        on_progress("intervals", 0.3)
        rows = sound.made_rows(self.training, self._plan.sizes, self._streams[1])
        made = Pool(rows, self._plan.sizes, self._plan.sets)
        spread = self._spread(self.training, made)
        on_progress("utility", 0.9)
        utility, predicted = self._utility(made)
        columns = errors.columns, floor[0].columns, spread.columns
        figures: list[Score | Skipped] = [
            self._average("column_shape_error", "Column-shape error", _SHAPE, *columns, floor[1]),
            *self._pair_scores("pair_trend_error", "Pair-trend error", _TREND, errors, floor, spread.tables),
        ]
        drawn = tuple(self._column(k, errors, floor[0], spread) for k in range(self._d))
        real, other = self._associations(self.training) - self._bias, self._associations(self._fake)
        pairs = self._pairs(np.clip(real, 0.0, 1.0), other, errors.tables, floor[0].tables)
        return _Findings(figures + utility, drawn, pairs, predicted)

    def _errors(self, real: Proportions, other: Proportions) -> _Errors:
        """Total variation distances of all columns and tables."""
        columns = [np.abs(real.of(k) - other.of(k)).sum() / 2 for k in range(self._d)]
        tables = [np.abs(a - b).sum() / 2 for a, b in zip(real.tables, other.tables, strict=True)]
        return _Errors(np.array(columns), np.array(tables))

    def _floor(self) -> tuple[_Errors, str]:
        """What real samples of these sizes, or a perfect generator, would score; and how that is known."""
        assert self.training is not None
        if self.holdout is not None and self._real.opening == "exact":
            n, m, held = self.training.rows, self._fake.rows, self.holdout.rows
            scale = size_scale(n, m, n, max(held, 1.0))
            apart = self._errors(self.training, self.holdout)
            least = _Errors(np.minimum(1, scale * apart.columns), np.minimum(1, scale * apart.tables))
            return least, _HELD.format(scale)
        drawn = [self._perfect(self._streams[0]) for _ in range(SIMULATED)]
        noise = ""
        if self._real.opening == "noised":
            noise = ", with the same noise"
            found = np.mean([self._associations(real) for real, _ in drawn], axis=0)
            self._bias = found - self._associations(self._fake)
        return _mean([self._errors(*one) for one in drawn]), _PERFECT + noise

    def _perfect(self, rng: np.random.Generator) -> tuple[Proportions, Proportions]:
        """Real and synthetic tables as they would be if both were drawn from the synthetic table."""
        real = self._drawn(self._fake.tables, self._pool, self.rows, self._real.noises, rng)
        return real, self._drawn(self._fake.tables, self._pool, self._fake.rows, (), rng)

    def _drawn(
        self, tables: Sequence[Floats], pool: Pool, rows: float, noises: Sequence[float], rng: np.random.Generator
    ) -> Proportions:
        """A sample of so many rows, as it would be opened."""
        found = [own + off for own, off in zip(tables, pool.deviations(rows, rng), strict=True)]
        if not any(noises):
            return Proportions(self._plan.sets, tuple(found), rows)
        noised = [own * rows + rng.normal(0, by, own.shape) for own, by in zip(found, noises, strict=True)]
        return sound.shares(noised, self._plan.sets, noises)

    def _spread(self, real: Proportions, made: Pool) -> _Errors:
        """Redrawn errors."""
        rng, drawn = self._streams[2], []
        for _ in range(DRAWS):
            again = self._drawn(real.tables, made, real.rows, self._real.noises, rng)
            drawn.append(self._errors(again, self._drawn(self._fake.tables, self._pool, self._fake.rows, (), rng)))
        return _Errors(np.stack([one.columns for one in drawn]), np.stack([one.tables for one in drawn]))

    # Figures of distances.

    def by_distances(self) -> _Findings:
        """Pairs."""
        distances, nothing = np.sqrt(np.array(self._real.distances)), np.zeros(self._d)
        floor, note = self._distance_floor(distances)
        smallest = 1 / max(self.rows, 1.0) + 1 / self._fake.rows
        reach = np.sqrt([smallest * _most_variance(table) for table in self._fake.tables])
        errors, least = _Errors(nothing, distances[:, 0]), (_Errors(nothing, floor), note)
        figures = self._pair_scores("pair_distance", "Distance of pairs", _DISTANCE, errors, least, reach)
        names = ["column_shape_error", "pair_trend_error", "naive_bayes_bits", "tree_bits", "label_accuracy"]
        own = np.array([_distance(table, independent(table)) for table in self._fake.tables])
        real, other = (self._by_pair(found, np.ones(self._d)) for found in (distances[:, 1], own))
        pairs = self._pairs(real, other, distances[:, 0], floor)
        skipped = [Skipped(name, "no table was opened, only distances") for name in names]
        return _Findings([*figures, *skipped], (), pairs)

    def _distance_floor(self, distances: Floats) -> tuple[Floats, str]:
        """What hold-out rows, or a perfect generator, would be apart; and how that is known."""
        if self.held is not None:
            scale = size_scale(self.rows, self._fake.rows, self.rows, self.held)
            return scale * distances[:, -1], _HELD.format(scale)
        drawn = [self._perfect(self._streams[0]) for _ in range(SIMULATED)]
        return np.mean([list(map(_distance, a.tables, b.tables)) for a, b in drawn], axis=0), _PERFECT

    # Scores.

    def _pair_scores(
        self, name: str, label: str, text: str, errors: _Errors, floor: tuple[_Errors, str], spread: Floats
    ) -> list[Score | Skipped]:
        """Of all pairs, pairs within a silo, and pairs across silos."""
        places = [n for n, places in enumerate(self._plan.sets) if len(places) == 2]
        owners = self._real.owners
        inside = [n for n in places if len({owners[place] for place in self._plan.sets[n]}) == 1]
        across = [n for n in places if n not in set(inside)]
        parts = [
            ("", label, places, "all pairs of columns", "a table of one column has no pairs"),
            ("_within", f"{label} within silos", inside, "pairs held by one silo", FEW),
            ("_across", f"{label} across silos", across, "pairs held by two silos", ONE_SILO),
        ]
        scores: list[Score | Skipped] = []
        for suffix, title, own, which, why in parts:
            if (suffix and len(set(owners)) < 2) or not own:
                scores.append(Skipped(name + suffix, ONE_SILO if suffix and len(set(owners)) < 2 else why))
                continue
            chosen = errors.tables[own], floor[0].tables[own], spread[..., own]
            scores.append(self._average(name + suffix, title, text.format(which), *chosen, floor[1]))
        return scores

    def _average(
        self, name: str, label: str, text: str, errors: Floats, floor: Floats, spread: Floats, note: str
    ) -> Score:
        """The mean of errors, in %. ``spread`` are replicates (R, …); or bounds of their standard errors (…,)."""
        value = 100 * float(errors.mean())
        many = spread.ndim == 2
        error = 100 * float(spread.mean(axis=1).std(ddof=1) if many else spread.mean())
        ends: Ends = normal_interval(value, error, 0.0, 100.0)
        least: Least = 100 * float(floor.mean()), note
        return PERCENT.score(name, label, value, least, ends, self._least_rows(), text, REDRAWN if many else BOUND)

    def _least_rows(self) -> int:
        return round(min(self.rows, self._fake.rows))

    # What is drawn.

    def _column(self, place: int, errors: _Errors, floor: _Errors, spread: _Errors) -> ColumnScore:
        assert self.training is not None
        own, kind = self._plan.columns[place], self._plan.kind(place)
        real, other = self.training.of(place), self._fake.of(place)
        error = 100 * float(errors.columns[place])
        low, high = normal_interval(error, 100 * float(spread.columns[:, place].std(ddof=1)), 0.0, 100.0)
        missing = float(real[-1]), float(other[-1])
        who = own.name, self._real.owners[place], kind
        head = *who, error, 100 * float(floor.columns[place]), low, high, *missing
        if own.edges:
            whole = kind == "numeric" and all(isinstance(edge, int) for edge in own.edges)
            edges = _bounds(own.edges, self._plan.ends[place], whole, 86_400e9 if kind == "datetime" else 1.0)
            return ColumnScore(*head, *_densities(edges, real, other, whole))
        labels = [str(level) for level in own.levels] + [OTHER] * own.others + [MISSING]
        kept = [k for k, label in enumerate(labels) if label not in (OTHER, MISSING) or real[k] + other[k] > 0]
        levels = tuple(labels[k] for k in kept)
        return ColumnScore(*head, levels=levels, real_shares=real[kept], synthetic_shares=other[kept])

    def _associations(self, rows: Proportions) -> Floats:
        """Theil's U(row | column): the share of a column's entropy that the other one explains; diagonal 1."""
        table_dd = np.eye(self._d)
        for places, table in zip(rows.sets, rows.tables, strict=True):
            if len(places) == 2:
                i, j = places
                whole = [float(entropy(table.sum(axis=axis))) for axis in (1, 0)]
                mutual = max(0.0, sum(whole) - float(entropy(table.ravel())))
                table_dd[i, j], table_dd[j, i] = (min(1.0, mutual / h) if h > 1e-12 else 0.0 for h in whole)
        return table_dd

    def _pairs(self, real: Floats, other: Floats, errors: Floats, floor: Floats) -> Pairs:
        found = (self._by_pair(100 * own, np.zeros(self._d)) for own in (errors, floor))
        return Pairs(self._plan.names, self._real.owners, real, other, *found)

    def _by_pair(self, found: Floats, diagonal: Floats) -> Floats:
        """Of tables (T,) those of pairs, as a matrix."""
        table_dd = np.diag(diagonal)
        for n, places in enumerate(self._plan.sets):
            if len(places) == 2:
                table_dd[places] = table_dd[places[::-1]] = found[n]
        return table_dd

    # Premises.

    def premises(self) -> tuple[Premise, ...]:
        """What can be known of hold-out rows by tables."""
        if self._real.opening != "exact" or self.training is None or self.holdout is None:
            rows = round(self.rows), None if self.held is None else round(self.held)
            why = {
                "noised": "tables have noise",
                "figures": "no table was opened",
                "exact": "there are no hold-out rows",
            }
            return premises.of_tables(*rows, (), why[self._real.opening])
        names, n, h = self._plan.names, self.training.rows, self.holdout.rows
        counts = [np.rint([self.training.of(k) * n, self.holdout.of(k) * h]).astype(np.int64) for k in range(self._d)]
        return premises.of_tables(round(n), round(h), tuple(zip(names, counts, strict=True)))

    # What a label can be predicted by.

    def _utility(self, made: Pool) -> tuple[list[Score | Skipped], tuple[Predictor, ...]]:
        target, parents = self._plan.target, self._plan.parents
        names = ["naive_bayes_bits", *(["tree_bits"] if any(p is not None for p in parents) else []), "label_accuracy"]
        if target is None or self.holdout is None or self._d < 2 or self.training is None:
            why = "no target column was given" if target is None else NEEDS_HOLDOUT
            return [Skipped(name, why if self._d > 1 else "nothing to predict from") for name in names], ()
        held, rng = self._as_opened(self.holdout), self._streams[3]
        again = [self._as_drawn(self.holdout, made, rng) for _ in range(DRAWS)]
        models = {"naive_bayes_bits": (None,) * self._d, "tree_bits": parents}
        scores: list[Score | Skipped] = [self._bits(name, models[name], target, held, again) for name in names[:-1]]
        columns: list[tuple[int, ...]] = [(), *((k,) for k in range(self._d) if k != target)]
        columns += [(child, parent) for child, parent in enumerate(parents) if parent is not None]
        exact = self._real.opening == "exact"
        single = [own for own in columns if exact or len(own) < 2]  # noise drowns tables of three columns
        scores.append(self._label_accuracy(single, target, held, again))
        found = [self._predictor(own, target, held) for own in columns]
        ranked = sorted(found[1:], key=lambda one: (-one.accuracy, one.columns))
        return scores, (found[0], *ranked)

    def _as_opened(self, sound: Proportions) -> Proportions:
        """Hold-out tables as they opened: in what is linear in them noise does not add up to anything, as it would if
        they were made sound.
        """
        assert self._real.holdout is not None
        return Proportions(sound.sets, tuple(table / max(sound.rows, 1.0) for table in self._real.holdout), sound.rows)

    def _as_drawn(self, held: Proportions, made: Pool, rng: np.random.Generator) -> Proportions:
        """Hold-out tables drawn anew, as they would open."""
        found = self._drawn(held.tables, made, held.rows, (), rng)
        if self._real.opening == "exact":
            return found
        by = zip(found.tables, self._real.noises, strict=True)
        noised = tuple(own + rng.normal(0, noise / held.rows, own.shape) for own, noise in by)
        return Proportions(found.sets, noised, held.rows)

    def _bits(
        self, name: str, parents: Sequence[int | None], target: int, held: Proportions, again: Sequence[Proportions]
    ) -> Score:
        assert self.training is not None
        learnt, real = (predictors.bayes(one, target, parents) for one in (self._fake, self.training))
        value, floor = predictors.bits(learnt, held), predictors.bits(real, held)
        error = float(np.std([predictors.bits(learnt, one) for one in again], ddof=1))
        exact = self._real.opening == "exact"
        on = Scale("utility", "bits", "lower", predictors.least_bits(learnt, held) if exact else 0.0)
        ends, least = normal_interval(value, error, 0.0, math.inf), (floor, _TRAINED)
        label, text = _BITS[name]
        return on.score(name, label, value, least, ends, round(held.rows), text, REDRAWN)

    def _label_accuracy(
        self, columns: Sequence[tuple[int, ...]], target: int, held: Proportions, again: Sequence[Proportions]
    ) -> Score:
        """Of the predictor that is best where it was learnt."""
        assert self.training is not None

        def best(learnt: Proportions) -> tuple[Ints, tuple[int, ...]]:
            rules = [predictors.rule(learnt, own, target) for own in columns]
            right = [predictors.accuracy(own, at, target, learnt) for own, at in zip(rules, columns, strict=True)]
            place = int(np.argmax(right))
            return rules[place], columns[place]

        chosen, real = best(self._fake), best(self.training)
        value, floor = (_percent(predictors.accuracy(*one, target, held)) for one in (chosen, real))
        error = 100 * float(np.std([predictors.accuracy(*chosen, target, one) for one in again], ddof=1))
        names = " and ".join(self._plan.names[k] for k in chosen[1]) or "no column"
        text = (
            f"How often the label is predicted rightly from one column, or from two that the tree joins: those that do "
            f"best in the synthetic table ({names}). Models of all columns can do better, which tables cannot show."
        )
        on, label = Scale("utility", "%", "higher", 100.0), "Accuracy from one or two columns"
        ends, rows = normal_interval(value, error, 0.0, 100.0), round(held.rows)
        return on.score("label_accuracy", label, value, (floor, _TRAINED), ends, rows, text, REDRAWN)

    def _predictor(self, columns: tuple[int, ...], target: int, held: Proportions) -> Predictor:
        assert self.training is not None
        found = [
            _percent(predictors.accuracy(predictors.rule(learnt, columns, target), columns, target, held))
            for learnt in (self._fake, self.training)
        ]
        return Predictor(tuple(self._plan.names[k] for k in columns), *found)


def _distance(shares: Floats, others: Floats) -> float:
    return float(np.sqrt(((shares - others) ** 2).sum()))


def _mean(drawn: Sequence[_Errors]) -> _Errors:
    return _Errors(np.mean([one.columns for one in drawn], axis=0), np.mean([one.tables for one in drawn], axis=0))


def _percent(share: float) -> float:
    """Noise may take it beyond its ends."""
    return 100 * min(max(share, 0.0), 1.0)


def _most_variance(shares: Floats) -> float:
    """Bounds the variance of one row along any direction: no distance of shares has more (Gershgorin's circles)."""
    return float(min(shares.max(), 2 * (shares * (1 - shares)).max()))


def _bounds(edges: Sequence[int | float], ends: tuple[float, float], whole: bool, least: float) -> Floats:
    """Where bins begin and end in a picture: those without an end where most synthetic values end.

    Whole numbers lie in the middle of bins. ``least`` is how wide a bin is drawn where nothing else tells.
    """
    inner, (low, high) = np.array(edges, np.float64), ends
    if whole:
        inner, low, high = inner - 0.5, low - 0.5, high + 0.5
    wide = float(np.median(np.diff(inner))) if len(inner) > 1 else 0.0
    wide = wide if wide > 1e-9 * max(1.0, abs(inner[0])) else least
    first = low if low < inner[0] else inner[0] - wide
    return np.array([first, *inner, high if high > inner[-1] else inner[-1] + wide])


def _densities(bounds: Floats, real: Floats, other: Floats, whole: bool) -> tuple[Floats, Floats, Floats]:
    """Edges and both densities of a picture's equal bins; values are taken to lie evenly in counted bins."""
    low, high = float(bounds[0]), float(bounds[-1])
    if whole:
        width = max(1.0, math.ceil((high - low) / PLOT_BINS))
        edges = low + width * np.arange(math.ceil((high - low) / width - 1e-9) + 1)
    else:
        edges = np.linspace(low, high, PLOT_BINS + 1)
    found = []
    for shares in (real, other):
        present = shares[:-1]
        upto = np.concatenate([[0.0], np.cumsum(present)]) / max(float(present.sum()), 1e-300)
        found.append(np.diff(np.interp(edges, bounds, upto)) / np.diff(edges))
    return np.asarray(edges), np.asarray(found[0]), np.asarray(found[1])


_SHAPE = (
    "How far the shares of a single column's levels are off, averaged over the columns; numbers and dates are counted "
    "in bins. 0 % is a perfect match."
)
_TREND = "How far the table of two columns' levels is off, averaged over {}; 0 % is a perfect match."
_DISTANCE = (
    "The distance between the shares of two columns' levels, the root of the sum of squares over their table, averaged "
    "over {}; 0 % is a perfect match."
)
_BITS = {
    "naive_bayes_bits": (
        "Naive Bayes, bits for each row",
        "How many bits a model takes to tell what a hold-out row holds, label and all, if columns are independent "
        "given the label and it is learnt from synthetic rows; fewer is better.",
    ),
    "tree_bits": (
        "Tree-augmented naive Bayes, bits for each row",
        "The same of a model in which each column also depends on another one, by a tree.",
    ),
}
_PERFECT = f"mean of {SIMULATED} simulations of a perfect generator: both tables drawn from the synthetic one"
_HELD = "training against hold-out tables, scaled by {:.3f} to the sizes compared"
_TRAINED = "the same, learnt from the real training tables"
REDRAWN = f"value ± 1.96 standard errors of {DRAWS} redrawn tables: as many rows as there are, and noise where there is"
BOUND = "value ± 1.96 standard errors, of which only an upper bound is known without tables"
