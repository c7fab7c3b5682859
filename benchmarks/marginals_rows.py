"""Adult in silos that hold different rows: MST and AIM by sums, beside the same on the pooled rows.

    python benchmarks/marginals_rows.py                           # about 40 trainings
    python benchmarks/marginals_rows.py --algorithms mst --silos 5 --epsilons 1

How rows are divided: "even" at random; "column" in the order of ages, so that no two silos have the same; "dirichlet":
each income's rows by shares drawn from Dirichlet(0.5). One silo: all rows in one place, without sums. Figures are those
of `marginals.py`, which see.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import common
import marginals
import numpy as np
import pandas as pd

import silosynth as ss
from silosynth.papers import tables

TARGET = "income"


def divided(train: pd.DataFrame, silos: int, how: str, seed: int = 0) -> dict[str, list[int]]:
    """Positions of each silo's rows."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(train))
    if how == "column":
        order = order[np.argsort(train["age"].to_numpy()[order], kind="stable")]
    parts = np.array_split(order, silos)
    if how == "dirichlet":
        ends = {level: np.cumsum(rng.dirichlet([0.5] * silos)) for level in sorted(train[TARGET].unique())}
        shares = rng.random(len(train))
        of_row = train[TARGET].to_numpy()
        owner = np.array([np.searchsorted(ends[level], share) for level, share in zip(of_row, shares, strict=True)])
        parts = [np.flatnonzero(owner.clip(max=silos - 1) == silo) for silo in range(silos)]
    return {f"silo{number}": part.tolist() for number, part in enumerate(parts) if len(part)}


def run(algorithm: str, silos: int, how: str, epsilon: float, seed: int) -> Mapping[str, Any]:
    """Train, sample as many rows as in training, compare."""
    train, holdout = tables.thirds(tables.modelled("adult"))
    bounds = marginals.bounds("adult", train)
    rows = None if silos == 1 else divided(train, silos, how)
    federation = ss.simulate(train, rows=rows, schema=bounds)
    dp = {"epsilon": epsilon, "delta": marginals.DELTA}
    with marginals.counted() as sizes:
        model = ss.fit(algorithm, federation, options={"dp": dp}, seed=seed, progress=False)
    synthetic = model.sample(len(train))
    found = marginals.figures(train, holdout, synthetic, {name: [name] for name in train.columns}, TARGET)
    row = {"algorithm": algorithm, "silos": silos, "rows": "pooled" if silos == 1 else how, "epsilon": epsilon}
    kept = {name: found[name] for name in ("shape %", "trend %", "AUC")}
    return row | kept | {"MB": sum(sizes) / 1e6}


def main() -> None:
    """Run all, one after the other, and keep the table."""
    parser = common.parser(__doc__)
    parser.add_argument("--algorithms", nargs="+", default=["mst", "aim"])
    parser.add_argument("--silos", nargs="+", type=int, default=[2, 5, 20])
    parser.add_argument("--how", nargs="+", default=["even", "column", "dirichlet"])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 10.0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="marginals_rows", help="of the results")
    parser.add_argument("--try", action="store_true", dest="trial", help="print, and keep nothing")
    options = parser.parse_args()
    found = []
    for algorithm, epsilon in itertools.product(options.algorithms, options.epsilons):
        ways = [(1, ""), *itertools.product(options.silos, options.how)]
        for silos, how in ways:
            found.append(run(algorithm, silos, how, epsilon, options.seed))
            print(found[-1], flush=True)
    if not options.trial:
        common.keep(options.name, found)


if __name__ == "__main__":
    main()
