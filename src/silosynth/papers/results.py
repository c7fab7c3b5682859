"""Rows of figures: kept in files, found again by their identity, averaged over seeds, and written as Markdown."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from silosynth.core import files
from silosynth.core.errors import ConfigError, StorageError
from silosynth.core.version import VERSION
from silosynth.papers import drawings
from silosynth.papers.experiment import PaperExperiment, Row, Section

FORM = "silosynth papers"
STAMP = ("silosynth", "commit", "machine", "python", "torch")
UNSEEN = (*STAMP, "version", "took")  # of rows, in tables
SUFFIXES = (".json", ".md")


class Results:
    """The rows of an experiment that are known, in memory and (with a path) in a file.

    The file is JSON, a row a line; for a path that ends in .md the rows lie in the JSON file beside the page. Several
    runs may write to one file at the same time.
    """

    def __init__(self, experiment: PaperExperiment, path: Path | None = None) -> None:
        self.experiment, self.path = experiment, path
        if path is not None and path.suffix.lower() not in SUFFIXES:
            raise ConfigError("The file of results must end in .json or .md", str(path))
        page = path is not None and path.suffix.lower() == ".md"
        if page and experiment.pictures is not None:
            drawings.library("figure")  # refused before hours of training
        self.rows = self._read()
        if page and path is not None and path.exists() and not path.with_suffix(".json").exists():
            rule = "A page of results is written over only where its rows lie beside it"
            raise StorageError(rule, str(path), "Name another file, or delete this one.")

    @property
    def kept(self) -> Path | None:
        """Where the rows lie."""
        return None if self.path is None else self.path.with_suffix(".json")

    def find(self, identity: Row) -> Row | None:
        """The row of that identity, if it is known."""
        return next((row for row in self.rows if _is(row, identity)), None)

    def check_place(self) -> None:
        """Make the folder, and try a file in it: before hours of training rather than after.

        Raises:
            StorageError: a file cannot be written there.
        """
        if self.kept is not None:
            trial = files.make_folder(self.kept.parent) / f".{self.kept.name}.trial"
            files.write_atomic(trial, b"")
            trial.unlink()

    def add(self, row: Row, identity: Row) -> None:
        """Stamp a row and keep it, in the place of an earlier one; a reader of the files never sees half of it.

        Raises:
            StorageError: a file cannot be written.
        """
        if self.kept is None:
            self.rows.append({**row, **stamp()})
            return
        self.kept.parent.mkdir(parents=True, exist_ok=True)
        with _locked(self.kept.parent):
            others = [known for known in self._read() if not _is(known, identity)]  # with those of runs beside this one
            self.rows = [*others, {**row, **stamp()}]
            head = json.dumps({"form": FORM, "experiment": self.experiment.name})[:-1]
            lines = ",\n".join(json.dumps(known, allow_nan=False) for known in self.rows)
            files.write_atomic(self.kept, f'{head}, "rows": [\n{lines}\n]}}\n'.encode())
            self.write_page(drawn=False)

    def write_page(self, drawn: bool = True) -> None:
        """Write the page, for a path that ends in .md; drawings take longer than a row of small sizes."""
        if self.path is None or self.path.suffix.lower() != ".md" or not self.rows:
            return
        experiment = self.experiment
        parts = experiment.pictures(self.rows, self.path) if drawn and experiment.pictures is not None else []
        sections = experiment.sections(experiment.means(self.rows))
        text = page(experiment.title, experiment.legend, sections, parts, self.rows)
        files.write_atomic(self.path, text.encode())

    def _read(self) -> list[Row]:
        """The rows that other runs have left.

        Raises:
            StorageError: the file is something else, or another experiment's.
        """
        if self.kept is None or not self.kept.exists():
            return []
        remedy = "Name another file, or delete this one."
        try:
            content = json.loads(files.read(self.kept))
            form, name, rows = content["form"], content["experiment"], list(content["rows"])
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(
                "This file does not hold results of `silosynth papers`", str(self.kept), remedy
            ) from error
        if (form, name) != (FORM, self.experiment.name):
            raise StorageError(f"This file holds results of another experiment, {name!r}", str(self.kept), remedy)
        return rows


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    if sys.platform == "win32":
        yield
        return
    import fcntl  # where there is one

    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _is(row: Row, identity: Row) -> bool:
    return all(row.get(key) == value for key, value in identity.items())


def stamp() -> Row:
    """Version and machine, and the commit where this is a checkout."""
    return {
        "silosynth": VERSION,
        "commit": _commit(Path(__file__).parents[3]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {_processor()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _commit(root: Path) -> str:
    if not (root / ".git").exists() or not (root / "pyproject.toml").exists():
        return ""
    git = ["git", "-C", str(root)]
    try:
        commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--porcelain", "src"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return commit.stdout.strip() + ("+changes" if changed.stdout else "")


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return names[0].partition(":")[2].strip() if names else platform.processor()


# Averages


def means(
    rows: Sequence[Row], figures: Sequence[str], apart: Sequence[str] = ("seed",), count: str = "repeats",
    gather: Sequence[str] = (),
) -> list[Row]:  # fmt: skip
    """Rows that agree in all but their figures, ``apart`` and the stamp, averaged; what is no figure is left out.

    A figure is averaged over the rows that have it; its standard deviation over these is under "spread", and how many
    lack it under "lacking", which `deviation` marks. ``count`` says how many rows there are; of what is to be
    ``gather``-ed, each mean has the list of all values.
    """
    groups: dict[str, tuple[Row, list[Row]]] = {}
    for row in rows:
        left_out = (*figures, *apart, *gather, *STAMP, "took", "spread", "lacking", count)
        key = {k: v for k, v in row.items() if k not in left_out}
        key = {k: v for k, v in key.items() if not isinstance(v, dict | list) or k in KEYS}
        groups.setdefault(json.dumps(key, sort_keys=True), (key, []))[1].append(row)
    present = [name for name in figures if any(name in row for row in rows)]
    return [
        {
            **key,
            count: sum(row.get(count, 1) for row in own),
            **{name: average([row.get(name) for row in own]) for name in present},
            **{name: [row[name] for row in own] for name in gather},
            "spread": {name: spread([row.get(name) for row in own]) for name in present},
            "lacking": {name: lacking for name in present if (lacking := _lacking(own, name))},
        }
        for key, own in groups.values()
    ]


def _lacking(rows: Sequence[Row], name: str) -> int:
    """How many rows lack a figure; of rows that are means, how many of those that they are of."""
    return sum(row.get("lacking", {}).get(name, row.get(name) is None) for row in rows)


KEYS = ("betas",)  # lists that identify a row


def average(values: Sequence[float | None]) -> float | None:
    """The mean of those that there are."""
    present = [value for value in values if value is not None]
    return float(np.mean(present)) if present else None


def spread(values: Sequence[float | None]) -> float | None:
    """The standard deviation of the law that these are drawn from, as estimated from them; None for a single one."""
    present = [value for value in values if value is not None]
    return float(np.std(present, ddof=1)) if len(present) > 1 else None


def in_order(rows: Sequence[Row], *columns: str, **places: Sequence[str]) -> list[Row]:
    """Sorted by these columns; those named with ``places`` by the place of their value in it."""
    index = {name: {value: i for i, value in enumerate(values)} for name, values in places.items()}
    return sorted(rows, key=lambda row: [index[c].get(row[c], -1) if c in index else row[c] for c in columns])


# Rows as people see them


def shown(key: str, value: Any) -> str:
    """One cell: bytes in megabytes, seconds to one digit after the point, other numbers to three."""
    if value is None:
        return "all" if key == "rows" else ""
    if key == "bytes":
        return f"{value / 1e6:,.1f}"
    if key in ("seconds", "side by side"):
        return f"{value:,.1f}"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def costs(row: Row) -> list[str]:
    """The cells of what a training took: seconds and megabytes."""
    return [shown(name, row[name]) for name in ("seconds", "bytes")]


def short(value: Any) -> str:
    """One cell, numbers to three digits."""
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def deviation(row: Row, name: str, digits: int = 3) -> str:
    """A figure's standard deviation over seeds, where it is known, and how many of these have no such figure."""
    if row.get(name) is None:
        return ""
    value, lacking = row.get("spread", {}).get(name), row.get("lacking", {}).get(name)
    without = f" ({lacking} row{'s' * (lacking > 1)} without)" if lacking else ""
    return ("" if value is None else f" ± {value:.{digits}f}") + without


def sectioned(rows: Sequence[Row], heads: Sequence[str], cells: Any, heading: Any) -> list[Section]:
    """A line of ``cells`` for each row, below the ``heading`` of its section."""
    parts: dict[str, list[list[str]]] = {}
    for row in rows:
        parts.setdefault(heading(row), []).append(cells(row))
    return [(name, heads, lines) for name, lines in parts.items()]


def beside_published(
    rows: Sequence[Row], figures: Sequence[str], published: Mapping[str, Sequence[float]], tables: Sequence[str]
) -> list[Section]:
    """A line for each of the tables, of its figures and those that were published of it; no section without rows."""
    heads = ["table", *(head for name in figures for head in (name, "published"))]
    lines = []
    for row in in_order(rows, "table", table=tables):
        pairs = zip((row[name] for name in figures), published[row["table"]], strict=True)
        cells = (f"{value:.2f}" if isinstance(value, float) else str(value) for pair in pairs for value in pair)
        lines.append([row["table"], *cells])
    return [("", heads, lines)] if rows else []


def plain(rows: Sequence[Mapping[str, Any]], hidden: Sequence[str] = UNSEEN) -> list[Section]:
    """One section with all values of all rows, which have the same keys."""
    keys = [key for key in rows[0] if key not in hidden] if rows else []
    return [("", keys, [[short(row.get(key)) for key in keys] for row in rows])]


def table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(line) + " |" for line in (heads, ["---"] * len(heads), *lines))


def text(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table as plain text: narrow terminals wrap its lines, but do not break numbers apart."""
    columns = list(zip(heads, *lines, strict=True))
    widths = [max(map(len, column)) for column in columns]
    words = [not any(cell[:1].isdigit() or cell[:1] == "-" for cell in column[1:]) for column in columns]
    return "\n".join(
        "  ".join(c.ljust(w) if word else c.rjust(w) for c, w, word in zip(line, widths, words, strict=True)).rstrip()
        for line in (heads, *lines)
    )


def plainly(page: str) -> str:
    """A page with its tables as plain text, and the names of drawings in their places."""
    parts = []
    for part in page.split("\n\n"):
        lines = [line.strip("|").split("|") for line in part.splitlines()]
        if part.startswith("|") and len({len(line) for line in lines}) == 1:
            heads, _, *rows = ([cell.strip() for cell in line] for line in lines)
            part = text(heads, rows)
        parts.append(re.sub(r"!\[([^]]*)\]\(([^)]*)\)", r"\1: benchmarks/results/\2", part))
    return "\n\n".join(parts)


def page(
    title: str, legend: str, sections: Sequence[Section], more: Sequence[str] = (), stamped: Sequence[Row] = ()
) -> str:
    """A Markdown page: a table for each section, further paragraphs, and the stamps of the rows."""
    parts = [title and f"# {title}", legend]
    for heading, heads, lines in sections:
        parts += [*([f"## {heading}"] if heading else []), table(heads, lines)]
    stamps = (", ".join(f"{key} {row[key]}" for key in STAMP if row.get(key)) for row in stamped)
    return "\n\n".join(part for part in [*parts, *more, *dict.fromkeys(stamps)] if part) + "\n"
