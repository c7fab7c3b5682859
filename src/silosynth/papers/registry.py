"""Every table and figure that the five papers publish in their evaluations: what reruns it, and what is kept of it.

`published` has the entries themselves. Results lie in benchmarks/results of the repository; wheels do not hold them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from silosynth.core.errors import ConfigError, nearest
from silosynth.papers.published import ENTRIES, PAPERS, READINGS, Published
from silosynth.runtime.progress import duration

STATES: Mapping[str, str] = {
    "kept": "results are kept",
    "command": "a command reruns it, nothing is kept",
    "none yet": "no command",
}
TAKEN = ("took", "processor seconds", "seconds", "fit s")  # keys of rows
RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
SIZES: Mapping[str, tuple[str, str]] = {  # key of rows -> what one and what several are called
    "table": ("table", "tables"), "data": ("table", "tables"), "rows": ("rows", "rows"), "epochs": ("epochs", "epochs"),
    "iterations": ("iterations", "iterations"), "guests": ("guests", "guests"), "seed": ("seed", "seeds"),
}  # fmt: skip


def entries(paper: str | None = None) -> Sequence[Published]:
    """All of them, or those of a paper.

    Raises:
        ConfigError: there is no such paper; names the nearest.
    """
    if paper is None:
        return ENTRIES
    if paper not in PAPERS:
        raise ConfigError(f"A paper is one of {', '.join(PAPERS)}", paper, nearest(paper, PAPERS))
    return [entry for entry in ENTRIES if entry.paper == paper]


def find(name: str) -> Published:
    """An entry by its name.

    Raises:
        ConfigError: there is none; names the nearest.
    """
    named = {entry.name: entry for entry in entries()}
    if name not in named:
        raise ConfigError(
            "There is no such table or figure in the five papers' evaluations", name, nearest(name, named)
        )
    return named[name]


# What is kept


def facts(entry: Published) -> dict[str, Any]:
    """An entry, for programs."""
    return {
        "name": entry.name, "paper": PAPERS[entry.paper], "number": entry.title, "shows": entry.shows,
        "state": entry.state, "published_sizes": entry.sizes, "command": entry.command,
        "kept": [
            {"page": f"benchmarks/results/{name}.md", "sizes": sizes(own_rows(entry, name))} for name in entry.kept
        ],
        "seconds": kept_seconds(entry), "deviates": entry.deviates, "missing": entry.missing,
        "hours": entry.hours,
    }  # fmt: skip


def kept_rows(name: str, folder: Path | None = None) -> list[dict[str, Any]]:
    """The rows of a file of results; none where it is not here."""
    path = (folder or RESULTS) / f"{name}.json"
    return list(json.loads(path.read_text("utf-8"))["rows"]) if path.exists() else []


def kept_seconds(entry: Published) -> float | None:
    """Seconds that the kept rows took: of a processor where rows have these, else of their trainings."""
    rows = [row for name in entry.kept for row in own_rows(entry, name)]
    total = math.fsum(taken(row, math.nan) for row in rows)
    return None if not rows or math.isnan(total) else round(total)


def taken(row: Mapping[str, Any], unknown: float) -> float:
    """Seconds that a row took."""
    return float(next((row[key] for key in TAKEN if row.get(key) is not None), unknown))


def own_rows(entry: Published, name: str) -> list[dict[str, Any]]:
    """Those rows of a file of results that belong to the entry."""
    rows = kept_rows(name)
    if not rows or not entry.given or entry.experiment is None:
        return rows
    from silosynth.papers.experiment import identified, load

    wanted = [identified(job) for job in load(entry.experiment).sized("kept", entry.given)]
    return [row for row in rows if any(identity.items() <= row.items() for identity in wanted)]


def sizes(rows: Sequence[Mapping[str, Any]], brief: bool = False) -> str | None:
    """At which sizes rows were computed; None where there are none.

    If it is to be ``brief``, of more than two names it says how many, of more than two numbers from which to which.
    """
    if not rows:
        return None
    parts = (_size(rows, key, *names, brief) for key, names in SIZES.items())
    return ", ".join([f"{len(rows)} results", *(part for part in parts if part)])


def _size(rows: Sequence[Mapping[str, Any]], key: str, one: str, several: str, brief: bool) -> str:
    """The different values of a size."""
    values = sorted({row[key] for row in rows if row.get(key) is not None})
    apart = "," if brief else " "  # lines of `silosynth papers list` break at spaces
    shown = [f"{value:,}".replace(",", apart) if isinstance(value, int) else str(value) for value in values]
    if brief and len(shown) > 2:
        return f"{several} {shown[0]} to {shown[-1]}" if isinstance(values[0], int) else f"{len(shown)} {several}"
    return f"{one if len(shown) == 1 else several} {_listed(shown)}" if shown else ""


def _listed(values: Sequence[str]) -> str:
    """One, two and three."""
    return " and ".join(part for part in (", ".join(values[:-1]), values[-1]) if part)


def kept_page(name: str, folder: Path | None = None) -> str | None:
    """The page of a file of results; None where it is not here."""
    path = (folder or RESULTS) / f"{name}.md"
    return path.read_text("utf-8") if path.exists() else None


def kept_tables(entry: Published, name: str) -> str | None:
    """The page of a file of results, with the entry's rows alone where others stand beside them.

    Drawings are those of all rows.
    """
    rows, page = own_rows(entry, name), kept_page(name)
    if page is None or entry.experiment is None or len(rows) == len(kept_rows(name)):
        return page
    from silosynth.papers import experiment, results

    of = experiment.load(entry.experiment)
    pictures = [part for part in page.split("\n\n") if part.startswith("![")]
    return results.page(of.title, of.legend, of.sections(of.means(rows)), pictures, rows)


# The page of the documentation


def page() -> str:
    """docs/papers.md."""
    parts = [HEAD, _counts()]
    for paper, title in PAPERS.items():
        parts += [f"## {title}", "\n".join(_overview(paper)), *_readings(paper)]
        parts += [_paragraph(entry) for entry in entries(paper)]
    return "\n\n".join(parts) + "\n"


HEAD = """# The papers' tables and figures

<!-- Written by `silosynth papers page --out docs/papers.md`. Change src/silosynth/papers/published.py instead. -->

What the five papers publish in their evaluations, and what there is of it here. *Kept*: results are in the repository.
*Command*: a command reruns it, and nothing is kept. *None yet*: there is no command. Diagrams and notations are left
out. `silosynth papers list` and `silosynth papers show silofuse/table-3` tell the same.

A command as it stands here takes minutes. With `--size kept` it computes the kept results again, with `--size
published` it takes the paper's sizes. `silosynth papers check` computes kept rows again that it draws at random, and
says whether they come out as they are kept.

Kept sizes are read from the rows of results: not every setting has all of them, and how many seeds each has is on the
results' page. What they took is time of one processor, or (older rows) of trainings on a busy machine. *Ours as
published* has nothing of ours switched on. Hours are of one thread, from the pace of measured steps: by two or three
times more or fewer on other machines (`beside/ends` measures them), and fewer where a training stops early. Where there
is a GPU, the same command uses it, and how much that saves was not measured."""


def _counts() -> str:
    """How many entries are in each state, by paper."""
    lines = [f"| {title} | " + " | ".join(str(_count(paper, state)) for state in STATES) + " |"
             for paper, title in PAPERS.items()]  # fmt: skip
    return "\n".join(
        [f"| paper | {' | '.join(STATES)} |", "| --- | " + " | ".join("---" for _ in STATES) + " |", *lines]
    )


def _count(paper: str, state: str) -> int:
    return sum(entry.state == state for entry in entries(paper))


def _overview(paper: str) -> Iterator[str]:
    yield "| | what it shows | state |"
    yield "| --- | --- | --- |"
    for entry in entries(paper):
        yield f"| {entry.title} | {entry.shows} | {entry.state} |"


def _readings(paper: str) -> Iterator[str]:
    """A table of which kept rows are read how; none of ours beside the papers."""
    if paper in READINGS:
        lines = zip(("ours", "ours as published", "published"), READINGS[paper], strict=True)
        yield "\n".join(["| rows | which |", "| --- | --- |", *(f"| {name} | {which} |" for name, which in lines)])


def _paragraph(entry: Published) -> str:
    """All that is known of an entry."""
    head = "Tables" if entry.paper == "beside" else "Published"
    lines = [f"**{entry.title}** (`{entry.name}`). {entry.shows}", f"- {head}: {entry.sizes}."]
    if entry.command:
        lines.append(f"- Command: `{entry.command}`")
    if entry.hours and not entry.kept:
        lines.append(f"- Nothing is kept. {_published(entry)}")
    for name in entry.kept:
        rows = own_rows(entry, name)
        told = sizes(rows) or "the page only, without its rows"
        lines.append(f"- Kept: [{name}]({_link(name)}), {told}{_took(rows)}.")
    if entry.deviates:
        lines.append(f"- Deviates: {entry.deviates}")
    if entry.hours and entry.kept:
        lines.append(f"- {_published(entry)}")
    return "\n".join([lines[0], "", *lines[1:], *([f"- Missing: {entry.missing}"] if entry.missing else [])])


def _published(entry: Published) -> str:
    return f"The published size takes {entry.hours}: `{entry.command} --size published`."


def _took(rows: Sequence[Mapping[str, Any]]) -> str:
    """How long rows took, where all of them say so."""
    seconds = math.fsum(taken(row, math.nan) for row in rows)
    return "" if math.isnan(seconds) or seconds < 1 else f"; they took {duration(seconds)}"


def _link(name: str) -> str:
    return f"../benchmarks/results/{name}.md"
