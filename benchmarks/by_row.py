"""Results that are kept row by row, as each is known: what comparisons that take hours share.

Rows are JSON lines with commit and machine. A run that is interrupted goes on where it was; several may append at once.
"""

from __future__ import annotations

import fcntl
import json
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import common


def known(path: Path) -> list[dict[str, Any]]:
    """The rows so far, oldest first."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Keep a row, stamped, in one write: no two processes' rows are mixed."""
    line = (json.dumps({**row, **common.stamp()}, allow_nan=False) + "\n").encode()
    with path.open("ab", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(line)


def run(compute: Callable[[Any], None], pending: Sequence[Any], processes: int) -> int:
    """Compute all jobs, each in a fresh process, so many at a time; returns how many failed, each of which says why."""
    fresh = multiprocessing.get_context("spawn")

    def alone(job: Any) -> bool:
        process = fresh.Process(target=compute, args=(job,))
        process.start()
        process.join()
        if process.exitcode:
            print(f"{job.title}: failed", flush=True)
        return bool(process.exitcode)

    with ThreadPoolExecutor(processes) as pool:
        return sum(pool.map(alone, pending))


def document(
    title: str, legend: str, heads: Sequence[str], parts: Mapping[str, Sequence[Sequence[str]]],
    rows: Sequence[Mapping[str, Any]],
) -> str:  # fmt: skip
    """A page with a table for each part, and the stamps of the rows."""
    lines = [f"# {title}", legend]
    for how, own in parts.items():
        table = [heads, ["---"] * len(heads), *own]
        lines += [f"## {how}", "\n".join("| " + " | ".join(line) + " |" for line in table)]
    lines += sorted({f"commit {row['commit']}, {row['machine']}, torch {row['torch']}" for row in rows})
    return "\n\n".join(lines) + "\n"


def option(text: str) -> tuple[str, Any]:
    """``name=value``, the value as JSON or else as text."""
    name, _, value = text.partition("=")
    try:
        found = json.loads(value)
    except ValueError:
        found = value
    return name, tuple(found) if isinstance(found, list) else found
