"""Adult, four silos in column order: fidelity, utility, disclosure, time and memory of a preset.

    python benchmarks/adult.py                       # balanced, fast, and balanced in one silo (central)
    python benchmarks/adult.py --runs fast

Each run is a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

import common

import silosynth as ss
from silosynth.papers import tables

FIGURES = {
    "column_shape_error": "shape %",
    "pair_trend_error": "trend %",
    "pair_trend_error_within": "within %",
    "pair_trend_error_across": "across %",
    "two_sample_auc_xgboost": "XGB two-sample",
    "two_sample_auc_logistic": "logistic two-sample",
    "downstream_auc": "AUC",
    "nearest_neighbour_share": "nearer to train %",
    "exact_copy_rate": "copies %",
    "resemblance": "resemblance",
    "utility": "utility",
}


def run(preset: str, central: bool, seed: int) -> dict[str, Any]:
    """Train, sample as many rows as in training, evaluate."""
    train, holdout = tables.thirds(tables.modelled("adult"))
    federation = tables.in_silos(train, 4)
    with common.clock() as fitting:
        model = ss.fit("silofuse", federation.central() if central else federation, preset=preset, seed=seed)
    with common.clock() as sampling:
        synthetic = model.sample(len(train))
    peak = common.peak_gigabytes()
    report = ss.evaluate(train, holdout, synthetic, target="income", silos=federation.silos)
    row: dict[str, Any] = {"preset": preset, "silos": 1 if central else 4, "seed": seed}
    for name, title in FIGURES.items():
        score = report.score(name)
        row[title] = score.value
        row[f"{title} floor"] = score.floor
    return row | {"fit s": fitting["seconds"], "sample s": sampling["seconds"], "peak GB": peak}


def main() -> None:
    """Run what was asked for, one process each, and keep the table."""
    parser = common.parser(__doc__)
    parser.add_argument("--runs", nargs="+", default=["balanced", "fast", "central"], help="presets, or 'central'")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        central = options.one == "central"
        print(json.dumps(run("balanced" if central else options.one, central, options.seed)))
        return
    for name in options.runs:
        command = [sys.executable, __file__, "--one", name, "--seed", str(options.seed)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        common.keep(f"adult_{name}", [json.loads(done.stdout)])


if __name__ == "__main__":
    main()
