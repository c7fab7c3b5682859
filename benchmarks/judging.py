"""Figures by joint tables of counts beside those by rows, and what noise does to them.

    python benchmarks/judging.py                     # Adult in two silos, SiloFuse's preset "fast"; epsilon 10 and 1
    python benchmarks/judging.py --epsilon 3 --levels 5

Two synthetic tables: that of SiloFuse; and real rows (other ones than training and hold-out rows) in which the second
silo's columns are shuffled against the first's, which no silo could notice. "rows" is what `silosynth.evaluate`
compares, with all rows pooled; "counts" is `silosynth.judge`, exactly and with noise of an epsilon at delta 1e-6. Each
figure stands before its floor, in brackets.
"""

from __future__ import annotations

from typing import Any

import common
import numpy as np
import pandas as pd

import silosynth as ss
from silosynth.evaluation import Report, Score, fidelity
from silosynth.evaluation.coding import check_silos, code_tables
from silosynth.papers.tables import modelled

FIGURES = {
    "column_shape_error": "column-shape error, %",
    "pair_trend_error": "pair-trend error, %",
    "pair_trend_error_within": "within silos, %",
    "pair_trend_error_across": "across silos, %",
    "naive_bayes_bits": "naive Bayes, bits a row",
    "tree_bits": "with a tree, bits a row",
    "label_accuracy": "accuracy from one or two columns, %",
}
SEED = 0


def by_rows(tables: dict[str, pd.DataFrame], federation: ss.Federation) -> dict[str, Score]:
    """The figures of `silosynth.evaluate` that counts have, too."""
    coded, rng = code_tables(tables, federation.schema), np.random.default_rng(SEED)
    train, held, synthetic = coded["training"], coded["hold-out"], coded["synthetic"]
    scale = fidelity.size_scale(len(train), len(synthetic), len(train), len(held))
    floor = fidelity.Floor(fidelity.compare(train, held, rng, replicates=False), scale, "hold-out")
    compared = fidelity.compare(train, synthetic, rng)
    owners = check_silos(federation.silos, train.fields)
    found = [*fidelity.column_shape(compared, floor), *fidelity.pair_trend(compared, floor, owners)]
    return {one.name: one for one in found if isinstance(one, Score)}


def cell(score: Score | None) -> str:
    """A figure before its floor."""
    return "" if score is None else f"{score.value:.2f} ({score.floor:.2f})"


def main() -> None:
    """Train, judge, and write the table."""
    parser = common.parser(__doc__)
    parser.add_argument("--table", default="adult")
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--epsilon", type=float, nargs="*", default=[10.0, 1.0])
    parser.add_argument("--levels", type=int, help="most levels of a column; default: 20, and 8 with noise")
    options = parser.parse_args()
    frame = modelled(options.table)
    names, target = list(frame.columns), frame.columns[-1]
    silos = {"bank": names[: len(names) // 2], "clinic": names[len(names) // 2 :]}
    rest, others = ss.split(frame, holdout=0.3, seed=SEED)
    train, held = ss.split(rest, holdout=0.3, seed=SEED)
    federation = ss.simulate(train, silos)
    model = ss.fit("silofuse", federation, preset=options.preset, seed=SEED, progress=False)
    shuffled = others[silos["clinic"]].sample(frac=1.0, random_state=SEED).set_index(others.index)
    tables = {
        "SiloFuse": model.sample(len(train), seed=SEED),
        "clinic shuffled": pd.concat([others[silos["bank"]], shuffled], axis=1)[names],
    }
    rows: list[dict[str, Any]] = []
    for name, synthetic in tables.items():
        compared = {"training": train, "hold-out": held, "synthetic": synthetic}
        found: dict[str, dict[str, Score]] = {"rows": by_rows(compared, federation)}
        how = {"holdout": held, "target": target, "levels": options.levels}
        found["counts, exact"] = _scores(ss.judge(federation, synthetic, **how))
        for epsilon in options.epsilon:
            found[f"epsilon {epsilon:g}"] = _scores(ss.judge(federation, synthetic, epsilon=epsilon, **how))
        for figure, label in FIGURES.items():
            rows.append({"table": name, "figure": label} | {how: cell(own.get(figure)) for how, own in found.items()})
    sizes = f"{len(train):,} training and {len(held):,} hold-out rows of {options.table}; floors in brackets."
    common.keep("judging", rows, sizes)


def _scores(report: Report) -> dict[str, Score]:
    return {score.name: score for score in report.scores}


if __name__ == "__main__":
    main()
