"""Jobs whose processes are killed with -9 at points that a seed draws, until they are done: results must be the same.

``python -m tests.deployment.kills --points 100 --seed 0`` makes 100 runs, each with one to three points; ``--jobs``
says of which jobs. Prints what was killed where; exits with 1 if a run led to anything else than the one that nobody
cut.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: forks have no threads

import argparse
import contextlib
import importlib
import json
import math
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from tests.deployment.kill_jobs import ABORTED, BEFORE, ORDERS, TABLES, prepare
from tests.deployment.kill_points import Point, read_points
from tests.deployment.kill_runs import Plan, Run

from silosynth.core.conversation import COORDINATOR
from silosynth.deployment.protocol import sources

OUTSIDE = 0.15  # of the points, so many are times: killed from outside
UNSAVED = 0.15  # of the runs, so many are done before there is a checkpoint
LEFT = 0.3  # of coordinators that die, so many leave silos behind that still live when the next attempt begins
OF_CHECKPOINTS = ("save", "saved", "half checkpoint", "whole checkpoint", "renamed checkpoint", "half ledger.jsonl")


@dataclass(frozen=True)
class Uncut:
    """A run that nobody cut: where kits lie, what it led to, the points that it passed, and seconds that it took."""

    name: str
    kits: Path
    hash: str
    points: dict[str, list[Point]]
    seconds: float


def uncut(name: str, folder: Path) -> Uncut:
    """Make the run that all others must agree with."""
    kits = folder / name / "kits"
    prepare(name, kits)
    if name in BEFORE:
        Run(kits, BEFORE[name]).to_the_end([])
    more, place = True, folder / name / "uncut"
    while more:  # once more, where forks no longer import anything
        shutil.rmtree(place, ignore_errors=True)
        run, begun = _run(name, kits, place), time.monotonic()
        run.to_the_end([])
        seconds = time.monotonic() - begun
        seen = {who: place / "logs" / f"1.{who}.json" for who in (COORDINATOR, *TABLES[name])}
        more = any([_load(json.loads(path.read_text())["modules"]) for path in seen.values()])
    return Uncut(name, kits, run.hash(), {who: read_points(path) for who, path in seen.items()}, seconds)


def _load(modules: list[str]) -> bool:
    """Import what a job needs only later: forks then have it, instead of each importing it for a second."""
    before = len(sys.modules)
    for module in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    return len(sys.modules) > before


def _run(name: str, kits: Path, place: Path) -> Run:
    shutil.copytree(kits, place)
    return Run(place, ORDERS[name])


def plans(about: Uncut, dice: random.Random, saved: bool) -> list[Plan]:
    """One to three attempts that are cut. The first is at a point that the uncut run passed."""
    drawn = [_plan(about, dice, saved, first=number == 0) for number in range(dice.choice((1, 1, 2, 3)))]
    lingers = [dice.uniform(0, about.seconds) if dice.random() < LEFT else 0.0 for _ in drawn]
    orderly = [about.name not in ABORTED and dice.random() < 0.5 for _ in drawn]
    return [replace(plan, orderly=o, linger=s) for plan, o, s in zip(drawn, orderly, lingers, strict=True)]


def _plan(about: Uncut, dice: random.Random, saved: bool, first: bool) -> Plan:
    who = dice.choice(list(about.points))
    if dice.random() < OUTSIDE:
        return Plan(later=(who, dice.uniform(0, about.seconds)))
    if first:
        return Plan(_point([one for one in about.points[who] if saved or one.label not in OF_CHECKPOINTS], dice))
    # How much is left to do depends on the last checkpoint: any point, and more likely an early one.
    return Plan(Point(who, "", math.ceil(len(about.points[who]) ** dice.random())))


def _point(passed: list[Point], dice: random.Random) -> Point:
    """First what kind of point, then at what, then which time: training's many messages are not everything."""
    kind = dice.choice(sorted({point.label.partition(" ")[0] for point in passed}))
    label = dice.choice(sorted({point.label for point in passed if point.label.partition(" ")[0] == kind}))
    return dice.choice([point for point in passed if point.label == label])


def cut(about: Uncut, number: int, seed: int, folder: Path) -> Run:
    """The run of this number, to its end; it was killed at least once."""
    dice = random.Random(f"{seed} {number}")
    saved = dice.random() >= UNSAVED
    drawn, place = plans(about, dice, saved), folder / about.name / f"run {number}"
    while True:
        run = _run(about.name, about.kits, place)
        run.every, begun = 0.0 if saved else math.inf, time.monotonic()
        try:
            run.to_the_end(drawn)
        except RuntimeError as error:
            raise RuntimeError(f"run {number}, {drawn}: {error}") from None
        if run.kills:
            return run
        if drawn[0].point:
            raise RuntimeError(f"run {number} never comes to {drawn[0].point}")
        shutil.rmtree(place)  # all was done by then: sooner
        soon = dice.uniform(0, 0.8) * (time.monotonic() - begun)
        drawn = [replace(plan, later=plan.later and (plan.later[0], soon)) for plan in drawn]


def check(number: int, about: Uncut, run: Run) -> bool:
    """Say what became of a run; whether it led to the same."""
    same = run.hash() == about.hash
    where = "; ".join(f"{kill['process']} at {kill['at']} after {kill['after']}" for kill in run.kills)
    print(f"{number} {about.name}: {'same' if same else f'OTHER RESULTS, see {run.place}'}, {where}", flush=True)
    return same


def main() -> int:
    """Make the runs, and say what they led to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", nargs="+", default=list(ORDERS), choices=list(ORDERS))
    parser.add_argument("--only", type=int, help="the one run of this number")
    parser.add_argument("--folder", type=Path, help="where runs lie; those that differ are kept there")
    given = parser.parse_args()
    sources()  # read once, before anybody edits them
    folder, begun, kills, bad = given.folder or Path(tempfile.mkdtemp(prefix="kills-")), time.monotonic(), Counter(), 0
    whole = {name: uncut(name, folder) for name in given.jobs}
    for number in range(given.points) if given.only is None else [given.only]:
        about = whole[given.jobs[number % len(given.jobs)]]
        run = cut(about, number, given.seed, folder)
        same = check(number, about, run)
        bad += not same
        kills.update((kill["process"], kill["at"].partition(" ")[0]) for kill in run.kills)
        if same:
            shutil.rmtree(run.place)
    print(f"{sum(kills.values())} kills, {bad} other results, {time.monotonic() - begun:.0f} s")
    print("\n".join(f"{count:4} {who} at {kind}" for (who, kind), count in sorted(kills.items())))
    if not bad and given.folder is None:
        shutil.rmtree(folder)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
