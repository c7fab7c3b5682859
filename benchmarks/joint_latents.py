"""SiloFuse with autoencoders of their own in the silos, beside the same with one joint representation across silos.

    python benchmarks/joint_latents.py --seeds 0 1 2                     # all tables
    python benchmarks/joint_latents.py --tables adult --rows 6000

"silofuse" has independent autoencoders, "silofuse-joint" latents of all silos together (TabVFL's split), "latentdiff"
all columns in one place. All have as many latents; two silos, columns in their order. The figure to look at is the
trend error of pairs of columns that lie in different silos; its floor is that of a second sample of real rows. Rows are
appended to ``results/joint_latents.jsonl`` when they are known; one that is there is not computed again.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything starts threads

import argparse
from collections.abc import Sequence
from typing import Any, NamedTuple

import by_row
import common
import numpy as np

import silosynth as ss
from silosynth.data.partition import in_order

TABLES = ("airline_satisfaction", "bank_marketing", "adult", "covertype_50k")
METHODS = ("silofuse", "silofuse-joint", "latentdiff")
FIGURES = {
    "column_shape_error": "shape",
    "pair_trend_error_within": "trend within",
    "pair_trend_error_across": "trend across",
}
PLACE = common.RESULTS / "joint_latents.jsonl"
HEADS = ("table", "rows", "seeds", "method", "shape %", "trend within %", "trend across %", "floor", "fit s", "MB")


class Job(NamedTuple):
    """One training."""

    table: str
    method: str
    rows: int
    preset: str
    latents: int  # per column
    seed: int

    @property
    def title(self) -> str:
        return ", ".join(map(str, self))


def compute(job: Job) -> None:
    """Train on half of the rows that were asked for, sample as many, compare with the other half."""
    frame = common.table(job.table).sample(frac=1.0, random_state=job.seed).head(2 * job.rows).reset_index(drop=True)
    train, holdout = frame.head(len(frame) // 2), frame.tail(len(frame) // 2).reset_index(drop=True)
    silos = in_order(list(train.columns), 2)
    federation = ss.simulate(train, silos=silos)
    if job.method == "latentdiff":
        federation = federation.central()
    with common.clock() as fitting:
        options = {"coder.latents_per_column": job.latents}
        model = ss.fit(job.method, federation, job.preset, seed=job.seed, options=options, progress=False)
    report = ss.evaluate(train, holdout, model.sample(len(train)), silos=silos)
    scores = {name: report.score(score) for score, name in FIGURES.items()}
    row = {
        **job._asdict(),
        **{name: score.value for name, score in scores.items()},
        "floor": scores["trend across"].floor,
        "seconds": fitting["seconds"],
        "bytes": sum(record["bytes"] for record in model.ledger),
    }
    by_row.append(PLACE, row)
    print(f"{job.title}: across silos {row['trend across']:.2f} %, {row['seconds']:.0f} s", flush=True)


def show(known: Sequence[dict[str, Any]]) -> str:
    """A part for each preset, a line for each table, size and method."""
    parts: dict[str, list[list[str]]] = {}
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in known:
        key = row["preset"], row["latents"], TABLES.index(row["table"]), row["rows"], METHODS.index(row["method"])
        groups.setdefault(key, []).append(row)
    for (preset, latents, table, rows, method), own in sorted(groups.items()):
        cells = [TABLES[table], str(rows), str(len(own)), METHODS[method]]
        cells += [_mean(own, name) for name in (*FIGURES.values(), "floor")]
        cells += [
            f"{np.mean([row['seconds'] for row in own]):.0f}",
            f"{np.mean([row['bytes'] for row in own]) / 1e6:.1f}",
        ]
        parts.setdefault(f"Preset {preset}, {latents} latents per column", []).append(cells)
    legend = "Means over seeds, with standard deviations. Seconds are of a machine that does other things as well."
    return by_row.document("Joint and independent latents", legend, HEADS, parts, known)


def _mean(own: Sequence[dict[str, Any]], name: str) -> str:
    values = [row[name] for row in own]
    return f"{np.mean(values):.2f}" + (f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else "")


def main() -> None:
    """Compute what is not there yet, and show all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=TABLES, choices=TABLES)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--rows", type=int, default=6000)
    parser.add_argument("--preset", default="balanced")
    parser.add_argument("--latents", type=int, nargs="+", default=[1, 2], help="per column")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    done = {tuple(row[name] for name in Job._fields) for row in by_row.known(PLACE)}
    jobs = [
        Job(table, method, given.rows, given.preset, latents, seed)
        for seed in given.seeds
        for latents in given.latents
        for table in given.tables
        for method in given.methods
    ]
    failed = by_row.run(compute, [job for job in jobs if tuple(job) not in done], given.processes)
    text = show(by_row.known(PLACE))
    PLACE.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
