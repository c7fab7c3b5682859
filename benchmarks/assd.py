"""VFLGAN's table 3: ASSD on a few hundred wines, beside rival attacks and a private training of the same rows.

    python benchmarks/assd.py --processes 2                        # 100 and 200 red wines: hours
    python benchmarks/assd.py --rows 200 --parts assd --record isolated --processes 2 --folder assd
    python benchmarks/assd.py --show                               # write the table of what is there

``assd``: trainings with and without one record, told apart by their synthetic tables: the record that is outlying in
most attributes, or the one farthest from its nearest neighbour (appendix A.7). ``rivals``: attacks on all training
records by one synthetic table, means over several. ``private``: ASSD where trainings keep epsilon, in fewer steps.
Each row is appended to ``results/assd.jsonl`` when it is known. With ``--folder`` trainings are kept, and taken up.

The setting is for a GAN that has learnt its few rows well: the less two trainings on the same rows differ, the more one
row shows. The batch gives an epoch as many steps with the record as without it (docs/guide/audits.md).
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything starts threads

import argparse
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import by_row
import common
import numpy as np
import pandas as pd

from silosynth.attacks import membership, rivals
from silosynth.attacks.generators import Catalogued
from silosynth.attacks.membership import Trainings
from silosynth.core.streams import Streams
from silosynth.evaluation.coding import Coded, code_tables
from silosynth.papers import five_tables

ROWS, TABLE = (common.RESULTS / f"assd.{suffix}" for suffix in ("jsonl", "md"))
TABLES = ("wine_quality_red", "wine_quality_white")
REFERENCE = {"wine_quality_red": 1000, "wine_quality_white": 2000}
PAPER = {("wine_quality_red", 100): 0.98, ("wine_quality_red", 200): 0.95,
         ("wine_quality_white", 100): 0.87, ("wine_quality_white", 200): 0.92}  # fmt: skip
PARTS = ("assd", "rivals", "private")
RECORDS: dict[str, Callable[[Coded], int]] = {
    "outlying": membership.most_outlying,
    "isolated": lambda table: int(membership.nearest_distances(table).argmax()),
}
STEPS, PRIVATE_STEPS = 3000, 300  # of critics
SETTING: dict[str, Any] = {
    "batch": 33, "noise": 10, "generator": [64, 64], "critic": [64, 64], "shared": [64], "norm_epsilon": 0.0,
    "slopes": "orthonormal", "penalty": 10.0, "rate": 1e-3, "betas": [0.0, 0.99], "tau": 0.2, "average": 0.999,
    "select": "last", "encoders.pool_rare": False, "encoders.min_count": 1,
}  # fmt: skip
EPSILON, DELTA = 10.0, 5e-4  # section 5.3.2
MADE = 20_000  # rows of a synthetic table: what one record adds to a mean is lost in the noise of a few
RELEASED = 5  # synthetic tables that rivals attack


def fit(table: str, rows: int, private: bool) -> Catalogued:
    """The generator under audit."""
    task = five_tables.load(table, bounds=private)  # which count as public
    steps = PRIVATE_STEPS if private else STEPS
    options = SETTING | {"epochs": -(-steps // (rows // SETTING["batch"]))}
    if private:
        options |= {"dp": {"epsilon": EPSILON, "delta": DELTA}, "numbers": "quantile", "average": 0.9}
    return Catalogued("vflgan", "paper", options, task.silos, task.kinds, MADE)


def records(table: str, rows: int) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Training records, as many others, and reference rows."""
    frame = five_tables.load(table).frame
    frame = frame.iloc[np.random.default_rng(0).permutation(len(frame))].reset_index(drop=True)
    cuts = np.cumsum([rows, rows, REFERENCE[table]])
    cuts = np.minimum(cuts, len(frame))
    return tuple(frame.iloc[a:b].reset_index(drop=True) for a, b in zip([0, *cuts[:-1]], cuts, strict=True))


def shadows(table: str, rows: int, private: bool, record: str, how: Trainings) -> dict[str, Any]:
    """ASSD's figures by kind of features."""
    train, _, _ = records(table, rows)
    chosen = RECORDS[record](code_tables({"training": train})["training"])
    found = membership.play(train, fit(table, rows, private), {f"{record} record": chosen}, how)
    names = [one.score.name.split("_")[1] for one in found]
    return {
        "auc": {name: one.score.value for name, one in zip(names, found, strict=True)},
        "low": {name: one.score.low for name, one in zip(names, found, strict=True)},
        "high": {name: one.score.high for name, one in zip(names, found, strict=True)},
        "spread": {name: one.spread for name, one in zip(names, found, strict=True)},
        "a side": how.count,
        "record": record,
    }


def rivalled(table: str, rows: int) -> dict[str, Any]:
    """Mean areas of rival attacks over released tables."""
    train, others, reference = records(table, rows)
    seeds = [Streams(0).child("released", i).integer() % 2**31 for i in range(RELEASED)]
    made = fit(table, rows, private=False).together([(train, seed) for seed in seeds])
    areas: dict[str, list[float]] = {}
    for synthetic in made:
        for one in rivals.attack(train, others, synthetic, reference):
            areas.setdefault(one.score.label, []).append(one.score.value)
    return {"auc": {name: float(np.mean(own)) for name, own in areas.items()},
            "spread": {name: float(np.std(own)) for name, own in areas.items()}, "tables": RELEASED}  # fmt: skip


def compute(table: str, rows: int, part: str, record: str, how: Trainings) -> None:
    """Compute a row, and append it."""
    before = _processor_seconds()
    with common.clock() as taken:
        found = rivalled(table, rows) if part == "rivals" else shadows(table, rows, part == "private", record, how)
    row = {
        "table": table, "rows": rows, "part": part, **found, **taken, "processes": how.processes,
        "processor seconds": _processor_seconds() - before, "load": os.getloadavg()[1],
        "epsilon": EPSILON if part == "private" else 0.0, "options": fit(table, rows, part == "private").options,
        "made": MADE,
    }  # fmt: skip
    by_row.append(ROWS, row)
    print(f"{table}, {rows} rows, {part}: {row['auc']}, {row['seconds']:.0f} s", flush=True)


def _processor_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def show() -> None:
    """Write and print the table of the last of equal rows."""
    known = by_row.known(ROWS)
    last = {(row["table"], row["rows"], row["part"], row.get("record", "")): row for row in known}
    lines = []
    for (table, rows, part, record), row in sorted(last.items()):
        for name, area in row["auc"].items():
            interval = f"{row['low'][name]:.2f} to {row['high'][name]:.2f}" if "low" in row else ""
            paper = PAPER.get((table, rows)) if part == "assd" else None
            lines.append({
                "table": table, "rows": rows, "attack": f"{'ASSD, ' if part != 'rivals' else ''}{name}",
                "record": record,
                "epsilon": row["epsilon"] or "", "AUC": f"{area:.2f}", "95 %": interval,
                "spread": f"{row['spread'][name]:.2f}", "paper": paper or "",
                "trainings": 2 * row["a side"] if "a side" in row else row["tables"], "s": round(row["seconds"]),
                "processor s": round(row["processor seconds"]), "load": f"{row['load']:.1f}", "commit": row["commit"],
            })  # fmt: skip
    heading = "# ASSD beside rival attacks (VFLGAN, table 3)\n\nAUC: 0.5 is guessing. Load: of the machine, at the end."
    text = f"{heading}\n\n{common.markdown(lines)}\n\n{known[-1]['machine']}, torch {known[-1]['torch']}\n"
    TABLE.write_text(text, encoding="utf-8")
    print(text, flush=True)


def main() -> None:
    """Compute what was asked for, and show all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", default=TABLES[0], choices=TABLES)
    parser.add_argument("--rows", nargs="+", type=int, default=[100, 200])
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--record", default="outlying", choices=RECORDS)
    parser.add_argument("--shadows", type=int, default=100, help="trainings with the record, and as many without")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--together", type=int, default=25, help="trainings that go in lockstep")
    parser.add_argument("--folder", type=Path, help="where trainings are kept")
    parser.add_argument("--show", action="store_true", help="compute nothing")
    asked = parser.parse_args()
    common.RESULTS.mkdir(exist_ok=True)
    for rows in () if asked.show else asked.rows:
        for part in asked.parts:
            folder = None if asked.folder is None else asked.folder / f"{asked.table}-{rows}-{part}-{asked.record}"
            how = Trainings(asked.shadows, 0, folder, asked.processes, asked.together)
            compute(asked.table, rows, part, asked.record, how)
    show()


if __name__ == "__main__":
    main()
