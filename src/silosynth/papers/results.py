"""Rows of figures in files: written one by one, found again by their identity, averaged, and shown as a table."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from silosynth.core import files
from silosynth.core.errors import ConfigError, StorageError
from silosynth.core.version import VERSION
from silosynth.papers import curves
from silosynth.papers.common import FIGURES, Experiment, Job, Row

FORM = "silosynth bench"
DETAIL = ("scores", "skipped", "curve")  # in files only
COSTS = ("seconds", "side by side", "bytes")
HEADS = {
    "diff. corr.": "Diff.Corr",
    "avg-client": "Avg-cl.",
    "across-client": "Across-cl.",
    "seconds": "s",
    "side by side": "s side by side",
    "bytes": "MB",
}
SUFFIXES = (".json", ".md")


class Results:
    """The rows of an experiment that are known, in memory and (with a path) in a file.

    The file is JSON; for a path that ends in .md the rows lie in the JSON file beside it.
    """

    def __init__(self, experiment: Experiment, path: Path | None = None) -> None:
        self.experiment, self.path = experiment, path
        if path is not None and path.suffix.lower() not in SUFFIXES:
            raise ConfigError("The file of results must end in .json or .md", str(path))
        self.rows: list[Row] = [] if self.kept is None or not self.kept.exists() else _read(self.kept, experiment)

    @property
    def kept(self) -> Path | None:
        """Where the rows lie."""
        return None if self.path is None else self.path.with_suffix(".json")

    def find(self, job: Job) -> Row | None:
        """The row of that job, if it is known."""
        identity = job.identity
        return next((row for row in self.rows if all(row.get(k) == v for k, v in identity.items())), None)

    def add(self, row: Row) -> None:
        """Keep a row; a reader of the files never sees half of it.

        Raises:
            StorageError: a file cannot be written.
        """
        self.rows.append(row)
        if self.path is None or self.kept is None:
            return
        content = {"form": FORM, "experiment": self.experiment.name, "stamp": stamp(), "rows": self.rows}
        files.write_atomic(self.kept, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
        if self.path != self.kept:
            drawn = curves.picture(self.rows)
            if drawn:
                files.write_atomic(self.path.with_suffix(".svg"), drawn.encode())
            files.write_atomic(self.path, self.markdown().encode())

    def markdown(self) -> str:
        """The means as a Markdown table, with a stamp; then the figures along the trainings, where they were taken."""
        rows = means(self.rows)
        about = ", ".join([sizes(rows), *(f"{key} {value}" for key, value in stamp().items())])
        image = "" if self.path is None else self.path.with_suffix(".svg").name
        along = curves.markdown(self.rows, self.experiment.until, image)
        parts = [f"# {self.experiment.title}", self.experiment.legend, curves.lined(*table(rows)), about, *along]
        return "\n\n".join(parts) + "\n"


def means(rows: Sequence[Row]) -> list[Row]:
    """The mean over repeats of each setting and table; with several tables also the mean over these.

    The standard deviations of figures over repeats, where there are several, are under "spread". Tables are averaged
    over only for settings that every table has, in the same sizes. A figure is averaged over the rows that have it.
    """
    by_table = _grouped([{**row, "repeats": 1} for row in rows], ("seed",))
    tables = {row["table"] for row in by_table}
    if len(tables) < 2:
        return by_table
    complete = [row for row in _grouped([{**row, "of": 1} for row in by_table], ("table",)) if row["of"] == len(tables)]
    return by_table + [{"table": "mean", **{k: v for k, v in row.items() if k != "of"}} for row in complete]


def _grouped(rows: Sequence[Row], over: tuple[str, ...]) -> list[Row]:
    """Rows that agree in all but the figures and `over`, averaged; counts are added up."""
    counts = ("repeats",) if over == ("seed",) else ("of",)
    figures = [name for name in (*FIGURES, *COSTS) if any(name in row for row in rows)]
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = {k: v for k, v in row.items() if k not in (*figures, *DETAIL, "spread", *over, *counts)}
        groups.setdefault(tuple(key.items()), []).append(row)
    return [
        {
            **dict(key), **{c: sum(row[c] for row in own) for c in counts}, **{f: _mean(own, f) for f in figures},
            "spread": {f: _spread(own, f) for f in figures if f in FIGURES and over == ("seed",)},
        }
        for key, own in groups.items()
    ]  # fmt: skip


def _mean(rows: Sequence[Row], figure: str) -> float | None:
    values = [row[figure] for row in rows if row[figure] is not None]
    return float(np.mean(values)) if values else None


def _spread(rows: Sequence[Row], figure: str) -> float | None:
    """Standard deviation of the law that the repeats are drawn from, as estimated from them."""
    values = [row[figure] for row in rows if row[figure] is not None]
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of averaged rows, for people; sizes that all rows share are left to the title."""
    same = [key for key in ("rows", "epochs", "repeats", "version") if len({row.get(key) for row in rows}) == 1]
    keys = [key for key in rows[0] if key not in (*same, "spread")]
    return [HEADS.get(key, key) for key in keys], [[_cell(row, key) for key in keys] for row in rows]


def _cell(row: Row, key: str) -> str:
    """A value, with its spread where that is known."""
    spread = row.get("spread", {}).get(key)
    return shown(key, row.get(key)) + ("" if spread is None else f" ± {spread:.3f}")


def text(rows: Sequence[Row]) -> str:
    """The table as lines of plain text: narrow terminals wrap lines, but do not break numbers apart."""
    heads, cells = table(rows)
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    words = [isinstance(rows[0].get(key), str) for key in rows[0] if HEADS.get(key, key) in heads]
    return "\n".join(
        "  ".join(c.ljust(w) if word else c.rjust(w) for c, w, word in zip(line, widths, words, strict=True)).rstrip()
        for line in (heads, *cells)
    )


def shown(key: str, value: Any) -> str:
    """One cell: bytes in megabytes, all else to three digits after the point."""
    if value is None:
        return "all" if key == "rows" else ""
    if key == "bytes":
        return f"{value / 1e6:,.1f}"
    if key in ("seconds", "side by side"):
        return f"{value:,.1f}"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def sizes(rows: Sequence[Row]) -> str:
    """The sizes that all rows share, as a phrase."""
    names = [("rows", "rows"), ("epochs", "epochs"), ("repeats", "repeats")]
    found = [({row.get(key) for row in rows}, word) for key, word in names]
    words = [f"{shown(word, values.pop())} {word}" for values, word in found if len(values) == 1]
    return ", ".join(words).replace("1 repeats", "one repeat")


def stamp() -> dict[str, Any]:
    """Version and machine, and the commit where this is a checkout."""
    root = Path(__file__).parents[3]
    commit = _commit(root) if (root / ".git").exists() and (root / "pyproject.toml").exists() else None
    return {
        "silosynth": VERSION,
        **({} if commit is None else {"commit": commit}),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _commit(root: Path) -> str | None:
    git = ["git", "-C", str(root)]
    try:
        commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--porcelain", "src"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit.stdout.strip() + ("+changes" if changed.stdout else "")


def _read(path: Path, experiment: Experiment) -> list[Row]:
    """The rows that another run has left.

    Raises:
        StorageError: the file is something else, or another experiment's.
    """
    remedy = "Name another file, or delete this one."
    try:
        content = json.loads(files.read(path))
        form, name, rows = content["form"], content["experiment"], list(content["rows"])
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError("This file does not hold results of `silosynth bench`", str(path), remedy) from error
    if (form, name) != (FORM, experiment.name):
        raise StorageError(f"This file holds results of another experiment, {name!r}", str(path), remedy)
    return rows
