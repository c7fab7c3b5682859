"""Adult under differential privacy: MST beside DPLT, in two silos and in four.

    python benchmarks/marginals.py                                # 24 trainings, and two of MST without noise
    python benchmarks/marginals.py --silos 2 --epsilons 1 --seeds 0

Bounds of numbers are public: round numbers about those of the census. Synthetic rows are as many as were trained on.
Shape, trend: errors of columns and of pairs; across: of pairs of two silos, all in percent. AUC: of XGBoost trained on
synthetic rows, for the income of rows held out. MB: of all messages of the training, the relay's second copy of
sealed ones included. Figures are means over the seeds; "± AUC" is half of the range over them.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import common
import numpy as np
import pandas as pd

import silosynth as ss
from silosynth.evaluation import fidelity, utility
from silosynth.evaluation.coding import code_tables, schema_of
from silosynth.evaluation.scores import Score
from silosynth.papers import tables
from silosynth.runtime.ledger import Ledger
from silosynth.simulation.federation import in_order

BOUNDS = {"age": (17, 90), "fnlwgt": (0, 1_500_000), "education_num": (1, 16), "capital_gain": (0, 99_999),
          "capital_loss": (0, 5_000), "hours_per_week": (1, 99)}  # fmt: skip
DELTA, TARGET = 1e-5, "income"


@contextmanager
def counted() -> Iterator[list[int]]:
    """Sizes of all messages: a ledger that is kept leaves out those that tell how many rows there are."""
    sizes, add = list[int](), Ledger.add

    def adding(self: Ledger, *args: Any) -> None:
        sizes.append(args[-1])
        add(self, *args)

    Ledger.add = adding  # type: ignore[method-assign]
    try:
        yield sizes
    finally:
        Ledger.add = add  # type: ignore[method-assign]


def run(algorithm: str, silos: int, epsilon: float, seed: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Train, sample as many rows as in training, compare. An epsilon of 0: no noise."""
    train, holdout = tables.thirds(tables.modelled("adult"))
    bounds = {name: {"low": low, "high": high} for name, (low, high) in BOUNDS.items()}
    federation = ss.simulate(train, in_order(list(train.columns), silos), schema=bounds)
    dp = {"dp": {"epsilon": epsilon, "delta": DELTA}} if epsilon else {}
    with common.clock() as fitting, counted() as sizes:
        model = ss.fit(algorithm, federation, options=dp | dict(options), seed=seed, progress=False)
    with common.clock() as sampling:
        synthetic = model.sample(len(train))
    row = {"algorithm": algorithm, "silos": silos, "epsilon": epsilon, "seed": seed}
    row |= figures(train, holdout, synthetic, federation.silos)
    return row | {"MB": sum(sizes) / 1e6, "fit s": fitting["seconds"], "sample s": sampling["seconds"]}


def figures(
    train: pd.DataFrame, holdout: pd.DataFrame, synthetic: pd.DataFrame, silos: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Shape, trend and AUC, as in `silosynth.evaluate` of all rows."""
    frames, rng = {"training": train, "hold-out": holdout, "synthetic": synthetic}, np.random.default_rng(0)
    coded = code_tables(frames, schema_of(train))
    real, held_out, made = coded["training"], coded["hold-out"], coded["synthetic"]
    owner = {name: silo for silo, names in silos.items() for name in names}
    compared = fidelity.compare(real, made, rng, replicates=False)
    scores = fidelity.column_shape(compared, None)
    scores += fidelity.pair_trend(compared, None, [owner[field.name] for field in real.fields])
    position = [field.name for field in real.fields].index(TARGET)
    scores += utility.downstream(real, held_out, made, position, rng)
    found = {one.name: one.value for one in scores if isinstance(one, Score)}
    return {
        "shape %": found["column_shape_error"], "trend %": found["pair_trend_error"],
        "across %": found["pair_trend_error_across"], "AUC": found["downstream_auc"],
    }  # fmt: skip


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds."""
    first = {key: rows[0][key] for key in ("algorithm", "silos", "epsilon")} | {"seeds": len(rows)}
    means = {key: float(np.mean([row[key] for row in rows])) for key in rows[0] if key not in (*first, "seed")}
    return first | means | {"± AUC": float(np.ptp([row["AUC"] for row in rows])) / 2}


def main() -> None:
    """Run all, one after the other, and keep the table."""
    parser = common.parser(__doc__)
    parser.add_argument("--algorithms", nargs="+", default=["mst", "dplt"])
    parser.add_argument("--silos", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 10.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--options", type=json.loads, default={}, help="of all trainings, as JSON")
    parser.add_argument("--try", action="store_true", dest="trial", help="print, and keep nothing")
    options = parser.parse_args()
    found = []
    for algorithm, silos, epsilon in itertools.product(options.algorithms, options.silos, options.epsilons):
        rows = [run(algorithm, silos, epsilon, seed, options.options) for seed in options.seeds]
        found.append(summary(rows))
        print(found[-1], flush=True)
    if not options.trial:
        for silos in options.silos:
            found.append(summary([run("mst", silos, 0.0, options.seeds[0], options.options)]))
        common.keep("marginals", found)


if __name__ == "__main__":
    main()
