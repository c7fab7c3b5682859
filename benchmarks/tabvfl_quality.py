"""TabVFL's figures 5, 6 and 6.4 and table 6.1: latents of six methods, and trainings in which guests fail.

    python benchmarks/tabvfl_quality.py latents --jobs 16 --guests 5 2 --seeds 0 1 2 --rows 50000   # the paper's sizes
    python benchmarks/tabvfl_quality.py latents --rows 12000 --option batch=256 --option rate=0.02  # hours less
    python benchmarks/tabvfl_quality.py failures --tables bank_marketing --epochs 60 --option batch=128
    python benchmarks/tabvfl_quality.py show                               # write the tables of what is there

The rows are those of `silosynth bench latents` and `failures`; options are those of `represent`, as JSON. Each is
trained in a process of its own, on one thread, and appended to ``results/tabvfl_latents.jsonl`` or
``tabvfl_failures.jsonl`` when it is known, with commit and machine: a run that is interrupted goes on where it was, and
a row that is there is not computed again. The ``.md`` files beside them have means over seeds.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything starts threads

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import by_row
import common
import numpy as np

from silosynth.papers import failures, kept, latents

FIGURES = [f"{how} {name}" for how in latents.EVALUATIONS for name in latents.learners.FIGURES]
SETTING = ("preset", "rows", "epochs", "options")


def place(experiment: str) -> Path:
    return common.RESULTS / f"tabvfl_{experiment}.jsonl"


def compute(experiment: str, job: latents.Job) -> None:
    """Compute a row, and keep it."""
    row = latents.measure(job)
    by_row.append(place(experiment), row)
    print(f"{job.title}: F1 {row['clean F1']:.3f} {row['paper F1']:.3f}, {row['seconds']:.0f} s", flush=True)


# Tables.


def show_latents(known: Sequence[dict[str, Any]]) -> str:
    """A part for each setting, a line for each table and method."""
    parts: dict[str, list[list[str]]] = {}
    order = {name: i for i, name in enumerate((*latents.TABLES, *latents.METHODS))}
    groups = grouped(known, (*SETTING, "table", "guests", "method"))
    for own in sorted(groups, key=lambda g: (order[g[0]["table"]], g[0]["guests"], order[g[0]["method"]])):
        cells = latents.cells({**own[0], "seed": len(own), **mean(own, (*FIGURES, "seconds")), "epochs run": span(own)})
        cells[5] += spread(own, "clean F1")
        cells[9] += spread(own, "paper F1")
        parts.setdefault(setting(own[0]), []).append(cells)
    heads = ["seeds" if head == "seed" else head for head in latents.HEADS]
    return by_row.document(latents.TITLE, latents.LEGEND, heads, parts, known)


def show_failures(known: Sequence[dict[str, Any]]) -> str:
    """A part for each setting, a line for each table, probability and what stands in."""
    parts: dict[str, list[list[str]]] = {}
    order = {name: i for i, name in enumerate((*latents.TABLES, "", *failures.IN_PLACE))}
    found = failures.losses(known)
    for row in found:
        options = json.loads(row["options"])
        row["options"] = json.dumps({k: v for k, v in options.items() if k not in ("absence", "missing")})
    groups = grouped(found, (*SETTING, "table", "p", "in place"))
    for own in sorted(groups, key=lambda g: (order[g[0]["table"]], g[0]["p"], order[g[0]["in place"]])):
        figures = [f"{how} {name}" for how in latents.EVALUATIONS for name in ("F1", "loss")]
        cells = failures.one({**own[0], "seed": len(own), **mean(own, (*figures, "seconds"))})
        for column, name in ((5, "clean loss"), (7, "paper loss")):
            cells[column] += spread(own, name) if own[0]["p"] else ""
        parts.setdefault(setting(own[0]), []).append(cells)
    heads = ["seeds" if head == "seed" else head for head in failures.HEADS]
    return by_row.document(failures.TITLE, failures.LEGEND, heads, parts, known)


def grouped(known: Sequence[dict[str, Any]], names: Sequence[str]) -> list[list[dict[str, Any]]]:
    """Rows that agree in these, together."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in known:
        groups.setdefault(json.dumps([row[name] for name in names]), []).append(row)
    return list(groups.values())


def mean(own: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, float | None]:
    return {n: None if any(row[n] is None for row in own) else float(np.mean([row[n] for row in own])) for n in names}


def spread(own: Sequence[dict[str, Any]], name: str) -> str:
    """The standard deviation over seeds, where there are several."""
    values = [row[name] for row in own if row[name] is not None]
    return f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""


def span(own: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Epochs of each phase: the fewest and the most over seeds."""
    counts = {phase: [row["epochs run"][phase] for row in own] for phase in own[0]["epochs run"]}
    return {p: str(min(n)) if min(n) == max(n) else f"{min(n)}-{max(n)}" for p, n in counts.items()}


def setting(row: dict[str, Any]) -> str:
    options = ", ".join(f"{name} {value}" for name, value in json.loads(row["options"]).items())
    size = f"{row['rows'] or 'all'} rows, {row['epochs'] or 'its own'} epochs of each phase"
    return f"Preset {row['preset']}; {size}" + (f"; {options}" if options else "")


def show() -> None:
    """Write and print the tables."""
    for experiment, made in (("latents", show_latents), ("failures", show_failures)):
        if known := by_row.known(place(experiment)):
            text = made(known)
            place(experiment).with_suffix(".md").write_text(text, encoding="utf-8")
            print(text, flush=True)


# Which rows.


def wanted(asked: argparse.Namespace) -> list[latents.Job]:
    """All rows that are asked for, seed by seed."""
    each = {"preset": asked.preset, "rows": asked.rows, "epochs": asked.epochs, "options": tuple(asked.option)}
    found: list[latents.Job] = []
    for seed in asked.seeds:
        if asked.experiment == "latents":
            found += latents.jobs(asked.tables, asked.methods, asked.guests, seed=seed, **each)
        else:
            found += failures.jobs(asked.tables, asked.probabilities, seed=seed, **each)
    return found


def main() -> None:
    """Compute what was asked for, and show all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=["latents", "failures", "show"])
    parser.add_argument("--tables", nargs="+", default=list(latents.TABLES), choices=list(latents.TABLES))
    parser.add_argument("--methods", nargs="+", default=list(latents.METHODS), choices=list(latents.METHODS))
    parser.add_argument("--guests", nargs="+", type=int, default=[5], help="of latents; failures have two")
    parser.add_argument("--probabilities", nargs="+", type=float, default=list(failures.PROBABILITIES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--rows", type=int, help="of each table, instead of all")
    parser.add_argument("--epochs", type=int, help="of each phase at most, instead of the preset's")
    parser.add_argument("--option", type=by_row.option, action="append", default=[], help="of represent")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    parser.add_argument("--again", action="store_true", help="compute rows that are there once more")
    asked = parser.parse_args()
    common.RESULTS.mkdir(exist_ok=True)
    failed = 0
    if asked.experiment != "show":
        jobs = wanted(asked)
        known = [] if asked.again else by_row.known(place(asked.experiment))
        pending = [job for job in jobs if kept.find(known, job.identity) is None]
        print(f"{len(jobs) - len(pending)} of {len(jobs)} rows are there", flush=True)
        failed = by_row.run(partial(compute, asked.experiment), pending, asked.jobs)
    show()
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
