"""Several draws of each training of a preset, beside those of another commit: code, seeds and draws apart.

    python benchmarks/draws.py --against 04939a79^ --tables churn   # before decision 0071

SiloFuse, four silos in column order, as in presets.py. One draw of a small table says little of a training: downstream
scores of two draws differ as much as those of two presets. Each training is a process of its own, with the source that
it is of; all are judged by this one. Rows of tables that were not asked for stay.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import common
import pandas as pd
from turns import source

import silosynth as ss
from silosynth.data import datasets
from silosynth.papers import results, tables

FIGURES = {
    "column_shape_error": "shape %", "pair_trend_error": "trend %", "two_sample_auc_xgboost": "XGB two-sample",
    "downstream_auc": "AUC",
}  # fmt: skip
WORKER = """
import sys
import pandas as pd
import silosynth as ss

folder, preset, seed, draws, *silos = sys.argv[1:]
train = pd.read_pickle(f"{folder}/train")
federation = ss.simulate(train, {f"silo{i}": names.split("|") for i, names in enumerate(silos)})
model = ss.fit("silofuse", federation, preset, seed=int(seed))
for draw in range(int(draws)):
    model.sample(len(train), seed=draw).to_pickle(f"{folder}/{draw}")
"""


def drawn(src: Path, train: pd.DataFrame, silos: list[list[str]], *what: Any) -> Iterator[pd.DataFrame]:
    """What a training by the source in a folder draws; ``what`` is preset, seed and draws."""
    with tempfile.TemporaryDirectory() as folder:
        train.to_pickle(f"{folder}/train")
        subprocess.run(
            [sys.executable, "-c", WORKER, folder, *map(str, what), *map("|".join, silos)], check=True,
            env=os.environ | {"PYTHONPATH": str(src)},
        )  # fmt: skip
        yield from (pd.read_pickle(f"{folder}/{draw}") for draw in range(what[-1]))


def judged(name: str, preset: str, seeds: list[int], draws: int, against: str | None) -> list[dict[str, Any]]:
    """A row for each draw."""
    _, info = datasets.load(name, return_info=True)
    train, holdout = tables.thirds(tables.modelled(name))
    silos = tables.in_silos(train, 4).silos
    rows = []
    with source(against) as src:
        for seed in seeds:
            for draw, synthetic in enumerate(drawn(src, train, list(silos.values()), preset, seed, draws)):
                report = ss.evaluate(train, holdout, synthetic, target=info.target, silos=silos)
                row = {"table": name, "preset": preset, "code": against or "now", "seed": seed, "draw": draw}
                rows.append(row | {title: report.score(figure).value for figure, title in FIGURES.items()})
    return rows


def means(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each table and code: means over all draws, and the standard error of each from its seeds' means."""
    shown = []
    for table, preset, code in dict.fromkeys((row["table"], row["preset"], row["code"]) for row in rows):
        alike = [row for row in rows if (row["table"], row["preset"], row["code"]) == (table, preset, code)]
        seeds = sorted({row["seed"] for row in alike})
        line: dict[str, Any] = {"table": table, "preset": preset, "code": code}
        line |= {"seeds": len(seeds), "draws": len(alike)}
        for title in FIGURES.values():
            of_seeds = [statistics.mean(row[title] for row in alike if row["seed"] == seed) for seed in seeds]
            line[title] = statistics.mean(of_seeds)
            line[f"± {title}"] = statistics.stdev(of_seeds) / len(seeds) ** 0.5 if len(seeds) > 1 else None
        shown.append(line)
    return shown


def main() -> None:
    """Train, draw and judge; keep the rows in place of earlier ones of the same table, preset and code."""
    parser = common.parser(__doc__)
    parser.add_argument("--against", help="a commit; left out: only the code as it is, beside rows that are kept")
    parser.add_argument("--tables", nargs="+", required=True)
    parser.add_argument("--preset", default="balanced", choices=["fast", "balanced", "best"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--draws", type=int, default=5)
    options = parser.parse_args()
    stamp = results.stamp()
    new = [
        row | stamp
        for name in options.tables
        for code in dict.fromkeys((options.against, None))
        for row in judged(name, options.preset, options.seeds, options.draws, code)
    ]
    done = {(row["table"], row["preset"], row["code"]) for row in new}
    rows = [row for row in common.kept("draws") if (row["table"], row["preset"], row["code"]) not in done] + new
    common.keep("draws", rows, shown=means(rows))


if __name__ == "__main__":
    main()
