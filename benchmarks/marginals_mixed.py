"""Adult in groups of silos, each divided by columns and of other rows: MST and AIM, beside the same rows elsewhere.

    python benchmarks/marginals_mixed.py                          # Adult, AIM at epsilon 1, three seeds: 15 trainings
    python benchmarks/marginals_mixed.py --algorithms mst --seeds 0 --try

"vertical": all rows in two silos with different columns. "mixed": two groups of two silos; the first divides columns in
their order, the second in another. Rows are dealt to groups "even", at random, or by "column", in the order of ages.
"horizontal": the same rows as those of the groups, in two silos with all columns. "pooled": all in one silo.

Pairs: the mean distance in total variation of all two-way tables, in percent; levels are those of the real rows, of
numbers 24 parts with equally many rows, whatever bins a model has. All else is as in `marginals.py`; figures are means
over the seeds.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

import common
import marginals
import numpy as np
import pandas as pd
from central_marginals import Pooled
from marginals_rows import TARGET, divided

import silosynth as ss
from silosynth.core.files import make_folder
from silosynth.papers import tables
from silosynth.simulation.federation import Federation, in_order, permuted

PARTS = 24  # of numbers, with equally many rows
WAYS = ("vertical", "mixed even", "mixed column", "horizontal even", "pooled")


def federation(train: pd.DataFrame, way: str) -> Federation:
    """Who holds what of the training rows."""
    kind, _, how = way.partition(" ")
    bounds, columns = marginals.bounds("adult", train), list(train.columns)
    if kind == "vertical":
        return ss.simulate(train, in_order(columns, 2), schema=bounds)
    if kind == "pooled":
        return ss.simulate(train, schema=bounds)
    rows = divided(train, 2, how)
    if kind == "horizontal":
        return ss.simulate(train, rows=rows, schema=bounds)
    held = zip(rows, (in_order(columns, 2), permuted(columns, 2)), strict=True)
    silos = {group: {f"{group}-{silo}": own for silo, own in held_by.items()} for group, held_by in held}
    return ss.simulate(train, silos, bounds, rows)


def levels(frame: pd.DataFrame, train: pd.DataFrame) -> tuple[Any, tuple[int, ...]]:
    """The level (N, A) of each row's columns, by those of the training rows; and how many there are."""
    coded, sizes = [], []
    for name in train.columns:
        real, own = train[name], frame[name]
        if pd.api.types.is_numeric_dtype(real) and not pd.api.types.is_bool_dtype(real):
            edges = np.unique(np.nanquantile(real.astype(float), np.arange(1, PARTS) / PARTS))
            codes, size = np.searchsorted(edges, own.astype(float), side="right"), len(edges) + 1
        else:
            known = pd.Index(real.astype(str).unique())
            codes, size = known.get_indexer(own.astype(str)), len(known)
            codes = np.where(codes < 0, size, codes)  # such as rare levels that were pooled
        coded.append(np.where(own.isna(), size + 1, codes))
        sizes.append(size + 2)
    return np.stack(coded, axis=1), tuple(sizes)


def pair_error(train: pd.DataFrame, synthetic: pd.DataFrame) -> float:
    """The mean distance of all two-way tables, in percent."""
    (real_NA, sizes), (made_RA, _) = levels(train, train), levels(synthetic, train)
    ours, theirs = (Pooled(one, sizes, np.random.default_rng(0)) for one in (real_NA, made_RA))
    gaps = [np.abs(ours.tables[pair] / ours.rows - theirs.tables[pair] / theirs.rows).sum() / 2 for pair in ours.pairs]
    return float(100 * np.mean(gaps))


def run(algorithm: str, way: str, epsilon: float, seed: int) -> dict[str, Any]:
    """Train, sample as many rows as in training, compare."""
    train, holdout = tables.thirds(tables.modelled("adult"))
    options = {"dp": {"epsilon": epsilon, "delta": marginals.DELTA}}
    begun = time.process_time()
    with marginals.counted() as sizes:
        model = ss.fit(algorithm, federation(train, way), options=options, seed=seed, progress=False)
    taken, synthetic = time.process_time() - begun, model.sample(len(train))
    found = marginals.figures(train, holdout, synthetic, {name: [name] for name in train.columns}, TARGET)
    row = {"algorithm": algorithm, "rows": way, "epsilon": epsilon, "seed": seed}
    row |= {"pairs %": pair_error(train, synthetic)} | {name: found[name] for name in ("shape %", "trend %", "AUC")}
    return row | {"MB": sum(sizes) / 1e6, "processor s": taken}


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds, and half of the range of pairs."""
    first = {key: rows[0][key] for key in ("algorithm", "rows", "epsilon")} | {"seeds": len(rows)}
    means = {key: float(np.mean([row[key] for row in rows])) for key in rows[0] if key not in (*first, "seed")}
    return first | means | {"± pairs": float(np.ptp([row["pairs %"] for row in rows])) / 2}


def main() -> None:
    """Run all, one after the other, and keep the table."""
    parser = common.parser(__doc__)
    parser.add_argument("--algorithms", nargs="+", default=["aim"])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--folder", type=make_folder, help="where figures of each training are kept for another run")
    parser.add_argument("--name", default="marginals_mixed", help="of the results")
    parser.add_argument("--try", action="store_true", dest="trial", help="print, and keep nothing")
    options = parser.parse_args()
    found = []
    for algorithm, epsilon, way in itertools.product(options.algorithms, options.epsilons, options.ways):
        rows = [common.once(options.folder, run, algorithm, way, epsilon, seed) for seed in options.seeds]
        found.append(summary(rows))
        print(found[-1], flush=True)
    if not options.trial:
        common.keep(options.name, found)


if __name__ == "__main__":
    main()
