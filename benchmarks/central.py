"""The central baselines beside each other: how faithful their tables are, and what they take.

    python benchmarks/central.py                                            # all four, fast preset, Loan and Adult
    python benchmarks/central.py --tables loan --algorithms ctabgan --preset balanced

Each result replaces its own row of what was kept before.
"""

from __future__ import annotations

import argparse
from typing import Any

import common

import silosynth as ss
from silosynth.algorithms.central.options import PRESETS

FIGURES = {
    "column_shape_error": "shape %",
    "pair_trend_error": "trend %",
    "two_sample_auc_logistic": "logistic two-sample",
    "two_sample_auc_xgboost": "XGB two-sample",
    "downstream_auc": "AUC",
}
TABLES = {"loan": "personal_loan", "adult": "income"}


def run(table: str, algorithm: str, preset: str, seed: int) -> dict[str, Any]:
    """Train on two thirds, sample as many rows, evaluate on the rest."""
    train, holdout = common.split(common.table(table))
    with common.clock() as fitting:
        model = ss.fit(algorithm, ss.simulate(train), preset, seed, progress=False)
    with common.clock() as sampling:
        synthetic = model.sample(len(train))
    report = ss.evaluate(train, holdout, synthetic, target=TABLES[table])
    row: dict[str, Any] = {"table": table, "algorithm": algorithm, "preset": preset, "seed": seed}
    row |= {title: report.score(name).value for name, title in FIGURES.items()}
    row |= {f"{title} floor": report.score(name).floor for name, title in list(FIGURES.items())[:2]}
    times = {"fit s": fitting["seconds"], "sample s": sampling["seconds"]}
    return row | times | {"commit": common.stamp()["commit"]}


def main() -> None:
    """Run what was asked for, and keep the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--algorithms", nargs="+", default=list(PRESETS), choices=list(PRESETS))
    parser.add_argument("--preset", default="fast", choices=["fast", "balanced", "best", "paper"])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for table in options.tables:
        for algorithm in options.algorithms:
            row = run(table, algorithm, options.preset, options.seed)
            old = {_key(kept): kept for kept in common.kept("central")}
            common.keep("central", list((old | {_key(row): row}).values()))


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["table"], row["algorithm"], row["preset"], row["seed"]


if __name__ == "__main__":
    main()
