"""The nine tables of the SiloFuse paper with one untuned preset: resemblance and utility beside the published row.

    python benchmarks/nine_tables.py                 # all nine, preset balanced
    python benchmarks/nine_tables.py --tables loan abalone --preset fast

Intrusion is NSL-KDD's 20 % training part and Cover a 50 000-row sample: see the data sets' own notes.
"""

from __future__ import annotations

import argparse
from typing import Any

import common

import silosynth as ss
from silosynth.data.partition import in_order

PAPER = {  # Table III and Table IV, row SiloFuse: resemblance, utility
    "loan": (81.2, 90.0),
    "abalone": (91.0, 97.2),
    "diabetes_pima": (84.0, 95.2),
    "churn": (87.0, 90.4),
    "heloc": (79.0, 74.8),
    "cardio": (71.0, 93.2),
    "intrusion_nsl_kdd_20pct": (67.0, 64.2),
    "covertype_50k": (89.0, 96.4),
    "adult": (73.0, 96.6),
}


def run(name: str, preset: str, seed: int) -> dict[str, Any]:
    """Train on two thirds in four silos in column order, sample as many rows, evaluate on the rest."""
    train, holdout = common.split(common.table(name))
    silos = in_order(list(train.columns), 4)
    with common.clock() as fitting:
        model = ss.fit("silofuse", ss.simulate(train, silos=silos), preset=preset, seed=seed)
    report = ss.evaluate(train, holdout, model.sample(len(train)), silos=silos, figures="all")
    published = PAPER[name]
    return {
        "table": name,
        "rows": len(train),
        "columns": len(train.columns),
        "resemblance": report.score("resemblance").value,
        "paper's": published[0],
        "utility": report.score("utility").value,
        "paper's utility": published[1],
        "shape %": report.score("column_shape_error").value,
        "shape floor": report.score("column_shape_error").floor,
        "trend %": report.score("pair_trend_error").value,
        "trend floor": report.score("pair_trend_error").floor,
        "XGB two-sample": report.score("two_sample_auc_xgboost").value,
        "nearer to train %": report.score("nearest_neighbour_share").value,
        "fit s": fitting["seconds"],
        "commit": common.stamp()["commit"],
    }


def main() -> None:
    """Run the tables that were asked for; each replaces its own row of what was kept before."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=list(PAPER), choices=list(PAPER))
    parser.add_argument("--preset", default="balanced")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    kept = f"nine_tables_{options.preset}"
    for name in options.tables:
        row = run(name, options.preset, options.seed)
        rows = {**{old["table"]: old for old in common.kept(kept)}, name: row}
        common.keep(kept, [rows[table] for table in PAPER if table in rows])


if __name__ == "__main__":
    main()
