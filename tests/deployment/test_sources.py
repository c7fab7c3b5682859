"""The digest that silos compare covers exactly the rooms from which a job's processes import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import silosynth
from silosynth.deployment.protocol import APART, ROOMS

ROOT = Path(silosynth.__file__).parent
PROCESSES = ("deployment.entry", "deployment.flare.components", "deployment.flare.engine", "deployment.flare.child")


def source(module: str) -> Path | None:
    """The file of a module, named without the leading "silosynth."; None if there is no such module."""
    path = ROOT.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def imported(file: Path) -> Iterator[str]:
    """Modules that a file imports, wherever in it: a function's imports run in the job as well."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


@cache
def reachable(modules: tuple[str, ...]) -> set[str]:
    reached: set[str] = set()
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        file = source(module)
        if file is None or module in reached:
            continue
        reached.add(module)
        waiting += [name.removeprefix("silosynth.") for name in imported(file) if name.startswith("silosynth.")]
        if "." in module:
            waiting.append(module.rpartition(".")[0])
    return reached


def test_the_digest_covers_the_rooms_that_a_jobs_processes_import_and_no_others() -> None:
    rooms = {module.partition(".")[0] for module in reachable(PROCESSES)}
    assert {room.removesuffix(".py") for room in ROOMS} == rooms | {"__init__"}
    assert {"algorithms", "core", "simulation"} < rooms
    assert not rooms & {"attacks", "cli", "commands", "evaluation", "papers"}


def test_what_is_left_out_of_it_runs_in_no_job() -> None:
    files = {
        path for room in ROOMS for path in ([ROOT / room] if (ROOT / room).is_file() else (ROOT / room).rglob("*.py"))
    }
    run = {source(module) for module in reachable(PROCESSES)} | {ROOT / "__init__.py"}
    assert {ROOT / path for path in APART} == files - run | {ROOT / "core" / "version.py"}


def test_every_room_of_the_digest_is_there() -> None:
    assert all((ROOT / room).exists() for room in ROOMS)
