"""Presets of SiloFuse, four silos in column order: fidelity, utility, disclosure, time and memory.

    python benchmarks/presets.py                       # balanced and fast on five tables, three seeds: an hour
    python benchmarks/presets.py --tables adult --presets fast central --seeds 0
    python benchmarks/presets.py --tables adult --presets fast --avx2  # kept as presets_avx2

"central" is balanced with all columns in one silo. Each run is a process of its own, so that its peak memory is its
own; seconds are those of a processor, all parties together. With --folder, what has ended is kept there, so that a
benchmark that was stopped goes on; rows name their own commit and processor for that. With --avx2 the processor is held
to AVX2 instructions, as most laptops have, and networks compute in float32.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import common
import torch

import silosynth as ss
from silosynth.data import datasets
from silosynth.papers import results, tables

TABLES = ("adult", "bank_marketing", "heloc", "churn", "loan")
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


def run(table: str, preset: str, seed: int, avx2: bool) -> dict[str, Any]:
    """Train, sample as many rows as in training, evaluate."""
    _, info = datasets.load(table, return_info=True)
    train, holdout = tables.thirds(tables.modelled(table))
    federation = tables.in_silos(train, 4)
    central, start = preset == "central", time.process_time()
    model = ss.fit(
        "silofuse", federation.central() if central else federation, "balanced" if central else preset, seed=seed,
        threads=1, options={"latent.precision": "float32"} if avx2 else {},
    )  # fmt: skip
    fitted = time.process_time()
    synthetic = model.sample(len(train))
    drawn, peak = time.process_time(), common.peak_gigabytes()
    report = ss.evaluate(train, holdout, synthetic, target=info.target, silos=federation.silos)
    row: dict[str, Any] = {"table": table, "preset": preset, "seed": seed, "rows": len(train)}
    for name, title in FIGURES.items():
        score = report.score(name)
        row[title] = score.value
        row[f"{title} floor"] = score.floor
    row |= {"fit, processor s": fitted - start, "sample, processor s": drawn - fitted, "peak GB": peak}
    return row | {"CPU": torch.backends.cpu.get_cpu_capability(), "at": results.stamp()["commit"]}


def measured(table: str, preset: str, seed: int, avx2: bool) -> dict[str, Any]:
    """`run` in a process of its own."""
    command = [sys.executable, __file__, "--one", table, preset, str(seed), *(["--avx2"] if avx2 else [])]
    environment = os.environ | (common.AVX2 if avx2 else {})
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, env=environment)
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def main() -> None:
    """Run what was asked for, one process each, and keep the table."""
    parser = common.parser(__doc__)
    parser.add_argument("--tables", nargs="+", default=TABLES)
    parser.add_argument("--presets", nargs="+", default=["balanced", "fast"], help="presets, or 'central'")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--avx2", action="store_true", help="hold the processor to AVX2 instructions, in float32")
    parser.add_argument("--folder", type=Path, help="where runs that have ended are kept")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        table, preset, seed = options.one
        print(json.dumps(run(table, preset, int(seed), options.avx2)))
        return
    common.keep("presets_avx2" if options.avx2 else "presets", [
        common.once(options.folder, measured, table, preset, seed, options.avx2)
        for seed in options.seeds for table in options.tables for preset in options.presets
    ])  # fmt: skip


if __name__ == "__main__":
    main()
