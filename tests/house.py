"""The house in figures: lines, imports, rooms, floors, circles, and names that stand for several classes.

``python -m tests.house`` measures this tree, ``--at REV`` another commit beside it, ``--suite`` also the processor time
of the quick tests. A *room* is a folder or a module directly below ``silosynth``, or ``benchmarks``; a *floor* is a
step of the longest chain of imports between rooms; a *circle* is a set of files that import each other. Imports count
wherever they stand: in functions and for type checkers as well.
"""

from __future__ import annotations

import argparse
import ast
import io
import resource
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
Graph = Mapping[str, set[str]]


@dataclass(frozen=True)
class House:
    """The sources below ``root``, parsed once."""

    root: Path

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        """Syntax trees by module name; benchmarks are modules of a package of that name."""
        files = {path: path.relative_to(self.root / "src") for path in (self.root / "src").rglob("*.py")}
        files |= {path: path.relative_to(self.root) for path in (self.root / "benchmarks").glob("*.py")}
        names = {path: ".".join(short.with_suffix("").parts).removesuffix(".__init__") for path, short in files.items()}
        return {names[path]: ast.parse(path.read_text("utf-8")) for path in sorted(files)}

    @cached_property
    def lines(self) -> int:
        """Lines of source, benchmarks included."""
        folders = [(self.root / "src").rglob("*.py"), (self.root / "benchmarks").glob("*.py")]
        return sum(path.read_text("utf-8").count("\n") for paths in folders for path in paths)

    @cached_property
    def import_lines(self) -> int:
        """Lines that import statements take."""
        return sum(node.end_lineno - node.lineno + 1 for tree in self.trees.values() for node in imports_in(tree))

    @cached_property
    def files(self) -> Graph:
        """Which modules each module imports."""
        return {name: set(imported(tree, self.trees)) - {name} for name, tree in self.trees.items()}

    @cached_property
    def rooms(self) -> Graph:
        """Which rooms each room imports."""
        rooms: dict[str, set[str]] = {room_of(name): set() for name in self.trees}
        for name, used in self.files.items():
            rooms[room_of(name)] |= {room_of(other) for other in used} - {room_of(name)}
        return rooms

    @cached_property
    def floors(self) -> dict[str, int]:
        """The floor of each room: 1 for those that import none; rooms in a circle share what they stand on."""
        circle_of = {room: circle[0] for circle in circles(self.rooms) for room in circle}
        floors: dict[str, int] = {}
        merged: dict[str, set[str]] = {}
        for room, used in self.rooms.items():
            own = circle_of.get(room, room)
            merged.setdefault(own, set()).update(circle_of.get(other, other) for other in used)
            merged[own].discard(own)
        for room in TopologicalSorter(merged).static_order():
            floors[room] = 1 + max((floors[other] for other in merged[room]), default=0)
        return {room: floors[circle_of.get(room, room)] for room in self.rooms}

    @cached_property
    def repeated(self) -> dict[str, list[str]]:
        """Names of several classes, with the modules that define them."""
        homes: dict[str, list[str]] = {}
        for name, tree in self.trees.items():
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and name.startswith("silosynth"):
                    homes.setdefault(node.name, []).append(name)
        return {name: modules for name, modules in sorted(homes.items()) if len(modules) > 1}

    def figures(self) -> dict[str, str]:
        """What `main` prints."""
        functions = [n for tree in self.trees.values() for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
        sizes = sorted(node.end_lineno - node.lineno + 1 for node in functions)
        return {
            "lines of src and benchmarks": f"{self.lines:,}",
            "files": f"{len(self.trees):,}",
            "import lines": f"{self.import_lines:,} ({100 * self.import_lines / self.lines:.1f} %)",
            "lines of a function: median, nine in ten": f"{sizes[len(sizes) // 2]}, {sizes[len(sizes) * 9 // 10]}",
            "rooms": str(len(self.rooms)),
            "floors": str(max(self.floors.values())),
            "circles of files": str(len(circles(self.files))),
            "circles of rooms": str(len(circles(self.rooms))),
            "class names used more than once": str(len(self.repeated)),
        }


def imports_in(tree: ast.Module) -> list[ast.Import | ast.ImportFrom]:
    """Import statements, wherever they stand."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def imported(tree: ast.Module, known: Iterable[str]) -> Iterable[str]:
    """Names of the ``known`` modules that a module imports."""
    known = set(known)
    for node in imports_in(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
            continue
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            if inner in known or node.module in known:
                yield inner if inner in known else str(node.module)


def room_of(module: str) -> str:
    """The room of a module: "core" of "silosynth.core.errors"."""
    parts = module.split(".")
    return ".".join(parts[:1]) if parts[0] == "benchmarks" else ".".join(parts[:2])


def circles(graph: Graph) -> list[list[str]]:
    """Sets of nodes that reach each other (strongly connected components of two or more)."""
    reach = {node: _reachable(graph, node) for node in graph}
    groups = {frozenset(o for o in reach[n] if n in reach.get(o, ())) for n in graph if n in reach[n]}
    return sorted(sorted(group) for group in groups if len(group) > 1)


def _reachable(graph: Graph, start: str) -> set[str]:
    seen: set[str] = set()
    ahead = [start]
    while ahead:
        for other in graph.get(ahead.pop(), ()):
            if other not in seen:
                seen.add(other)
                ahead.append(other)
    return seen


def at(revision: str, folder: Path) -> House:
    """The house of another commit, unpacked into a folder."""
    archive = subprocess.run(
        ["git", "archive", revision, "src", "benchmarks"], cwd=ROOT, check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    return House(folder)


def suite_seconds() -> float:
    """Processor time of ``make test``: of pytest and all its processes."""
    subprocess.run(["make", "test"], cwd=ROOT, check=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--at", metavar="REV", help="a commit to compare with")
    parser.add_argument("--suite", action="store_true", help="also time the quick tests")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        houses = [House(ROOT)] if asked.at is None else [at(asked.at, Path(folder)), House(ROOT)]
        for row in zip(*(house.figures().items() for house in houses), strict=True):
            print(f"{row[0][0]:<42}", *(f"{value:>18}" for _, value in row))
    here = houses[-1]
    for floor in range(max(here.floors.values()), 0, -1):
        print(f"floor {floor:>2}:", ", ".join(sorted(room for room, own in here.floors.items() if own == floor)))
    for circle in circles(here.files):
        print("circle:", ", ".join(circle))
    for name, counts in Counter({name: len(homes) for name, homes in here.repeated.items()}).most_common():
        print(f"{counts} classes are called {name}:", ", ".join(here.repeated[name]))
    if asked.suite:
        print(f"processor time of the quick tests: {suite_seconds():.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
