"""VFLGAN's table 1 at full size: five tables, five algorithms, with and without differential privacy.

    python benchmarks/vflgan_quality.py --jobs 16                          # all of it, preset "balanced"
    python benchmarks/vflgan_quality.py --tables adult --algorithms vflgan vertigan --seeds 0 1 2 --dp both --jobs 8
    python benchmarks/vflgan_quality.py --preset paper --target number     # appendix A.6: classes as numbers
    python benchmarks/vflgan_quality.py --option batch=16 --option generator=[16,32,64]   # values are JSON
    python benchmarks/vflgan_quality.py --halves 4                         # what halves of the real tables score
    python benchmarks/vflgan_quality.py --perfect 8 --tables wine_quality_white --preset fast  # and perfect generators
    python benchmarks/vflgan_quality.py --show                             # write the table of what is there

The rows are those of `silosynth bench total-difference`. Each is trained in a process of its own, on one thread, and
appended to ``results/vflgan_quality.jsonl`` when it is known, with commit and machine: a run that is interrupted goes
on where it was, and a row that is there is not computed again. ``results/vflgan_quality.md`` has means over seeds: of
what the presets are now, and of rows that were computed again the latest; in brackets mean and deviation of the totals
of single tables.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything starts threads

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import by_row
import common
import numpy as np

from silosynth.core.errors import ConfigError
from silosynth.papers import five_tables, kept
from silosynth.papers import total_difference as comparison
from silosynth.papers.vflgan_figures import figures

ROWS = common.RESULTS / "vflgan_quality.jsonl"
TABLE = common.RESULTS / "vflgan_quality.md"
FIGURES = [f"{which} {what}" for which in ("trtr", "tsts", "trts", "tstr") for what in ("accuracy", "f1")]
AVERAGED = (*FIGURES, "total difference", "FD", "seconds", "bytes")
STAMP = ("version", "side by side", "commit", "machine", "python", "torch")
APART = ("seed", "privacy", "curve", "totals", *STAMP, *AVERAGED)


def compute(job: comparison.Job) -> None:
    """Compute a row, and keep it."""
    row = comparison.measure(job)
    by_row.append(ROWS, row)
    print(f"{job.title}: total {row['total difference']:.3f}, FD {row['FD']:.3f}, {row['seconds']:.0f} s", flush=True)


def latest(known: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of rows, oldest first, that are alike up to their figures the last: one that was computed again replaces it."""
    return list({(_key(row), row["seed"]): row for row in known}.values())


def current(known: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that today's presets would give; those of what a preset was before stay in the file."""
    return [row for row in known if row["settings"] == _settings(row)]


def _settings(row: dict[str, Any]) -> str | None:
    """Of a row's preset and options, as they are now; None if there are none such any longer."""
    told = {name: row[name] for name in comparison.Job.__dataclass_fields__ if name not in ("options", "curve")}
    options = {name: tuple(v) if isinstance(v, list) else v for name, v in json.loads(row["options"]).items()}
    try:
        return comparison.Job(**told, options=tuple(options.items())).settings
    except ConfigError:
        return None


def means(known: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that differ in the seed alone as one; with mean and deviation of the totals of single tables."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in known:
        groups.setdefault(_key(row), []).append(row)
    return [_mean(json.loads(key), own) for key, own in groups.items()]


def _key(row: dict[str, Any]) -> str:
    return json.dumps({name: value for name, value in row.items() if name not in APART}, sort_keys=True)


def _mean(key: dict[str, Any], own: Sequence[dict[str, Any]]) -> dict[str, Any]:
    figures = {name: _average([row[name] for row in own]) for name in AVERAGED}
    totals = [total for row in own for total in row["totals"]]
    return {**key, **figures, "seeds": len(own), "of one": (float(np.mean(totals)), float(np.std(totals)))}


def _average(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return float(np.mean(there)) if there else None


def show() -> None:
    """Write and print the table: one part for each way to train, a row for each table and algorithm."""
    places = {name: i for i, name in enumerate((*comparison.DELTAS, *comparison.ALGORITHMS))}
    known = latest(current(by_row.known(ROWS)))
    found = sorted(means(known), key=lambda r: (places[r["table"]], r["epsilon"], places[r["algorithm"]]))
    parts: dict[str, list[list[str]]] = {}
    for row in found:
        more = "" if row["options"] == "{}" else f", {row['options']}"
        size = f"{row['rows'] or 'all'} rows, {row['epochs'] or 'its own'} epochs, {row['protocol']}"
        judged = f"target as {row['target']}; bounds {row['bounds']}; tables drawn of each generator: {row['draws']}"
        how = f"Preset {row['preset']}{more}; {size}; {judged}"
        cells = comparison.cells({**row, "seed": row["seeds"]})
        cells[8] += f" ({row['of one'][0]:.2f} ± {row['of one'][1]:.2f})" if row["draws"] > 1 else ""
        parts.setdefault(how, []).append(cells)
    heads = ["seeds" if head == "seed" else head for head in comparison.HEADS]
    text = by_row.document(comparison.TITLE, comparison.LEGEND, heads, parts, known)
    TABLE.write_text(text, encoding="utf-8")
    print(text, flush=True)


def halves(table: str, count: int) -> None:
    """Print total differences between ``count`` random halves of a table and the rest: real samples' own."""
    task, totals = five_tables.load(table), []
    for seed in range(count):
        order = np.random.default_rng(seed).permutation(len(task.frame))
        one, other = (task.frame.iloc[part].reset_index(drop=True) for part in np.array_split(order, 2))
        totals.append(figures(one, other, task.target, task.categories, "splits")["total difference"])
    print(f"{table}: {', '.join(f'{total:.3f}' for total in totals)}", flush=True)


def perfect(table: str, preset: str, count: int) -> None:
    """Print total differences between tables of one generator: what one scores that is the truth itself."""
    task = five_tables.load(table)
    model = comparison.train(comparison.Job(table, "vflgan", preset=preset), task, lambda stage, share: None)
    totals = []
    for i in range(count):
        one, other = (model.sample(len(task.frame), seed=2 * i + side) for side in (0, 1))
        totals.append(figures(one, other, task.target, task.categories, "splits")["total difference"])
    print(f"{table}: {', '.join(f'{total:.3f}' for total in totals)}; mean {np.mean(totals):.3f}", flush=True)


def main() -> None:
    """Compute what was asked for, and show all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=list(comparison.DELTAS), choices=list(comparison.DELTAS))
    parser.add_argument(
        "--algorithms", nargs="+", default=list(comparison.ALGORITHMS), choices=list(comparison.ALGORITHMS)
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--dp", default="both", choices=["off", "on", "both"])
    parser.add_argument("--epsilon", type=float, default=comparison.EPSILON)
    parser.add_argument("--preset", default="balanced")
    parser.add_argument("--target", default="classes", choices=["classes", "number"])
    parser.add_argument("--bounds", default="public", choices=["public", "found"])
    parser.add_argument("--protocol", default="splits", choices=["splits", "folds"])
    parser.add_argument("--rows", type=int, help="of each table, instead of all")
    parser.add_argument("--epochs", type=int, help="instead of the preset's")
    parser.add_argument(
        "--option", type=by_row.option, action="append", default=[], help="of the algorithms that have it"
    )
    parser.add_argument("--draws", type=int, default=5, help="tables of each generator, averaged over")
    parser.add_argument("--curve", action="store_true", help="take the Fréchet distance along trainings, too")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    parser.add_argument("--again", action="store_true", help="compute rows that are there once more")
    parser.add_argument("--show", action="store_true", help="compute nothing")
    parser.add_argument("--halves", type=int, default=0, metavar="N", help="only print totals of N real halves")
    parser.add_argument("--perfect", type=int, default=0, metavar="N", help="only print totals of N perfect tables")
    asked = parser.parse_args()
    if asked.perfect:
        for table in asked.tables:
            perfect(table, asked.preset, asked.perfect)
        return
    if asked.halves:
        for table in asked.tables:
            halves(table, asked.halves)
        return
    common.RESULTS.mkdir(exist_ok=True)
    failed = 0
    if not asked.show:
        wanted = [
            job
            for seed in asked.seeds
            for job in comparison.jobs(
                asked.tables, asked.algorithms, asked.dp, 1, asked.epsilon, seed=seed, preset=asked.preset,
                target=asked.target, bounds=asked.bounds, protocol=asked.protocol, rows=asked.rows,
                epochs=asked.epochs, options=tuple(asked.option), draws=asked.draws, curve=asked.curve,
            )
        ]  # fmt: skip
        known = [] if asked.again else by_row.known(ROWS)
        pending = [job for job in wanted if kept.find(known, job.identity) is None]
        print(f"{len(wanted) - len(pending)} of {len(wanted)} rows are there", flush=True)
        failed = by_row.run(compute, pending, asked.jobs)
    if ROWS.exists():
        show()
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
