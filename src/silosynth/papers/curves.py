"""Figures along a training: read off at equal times, as a table, and drawn as lines over rounds and over time.

A curve is a row's list of looks: round, seconds in both counts, JSD and WD (see `watching`). Lines are means over
seeds, whose looks come at the same rounds. No line relies on colour alone: each has dashes and a mark of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from silosynth.evaluation.svg import round_domain

Row = dict[str, Any]
AXES = {"round": "round", "seconds": "s, silos in turn", "side by side": "s, silos side by side"}
CLOCKS = ("seconds", "side by side")
FIGURES = {"JSD": "Avg-JSD", "WD": "Avg-WD"}
WIDTH, HEIGHT, LEFT, ABOVE, GAP = 250, 150, 46, 24, 40
COLOURS = ("#2f86c8", "#d96f1a", "#3a9a5b", "#9a5bb5", "#c23b4b", "#7a7a2a", "#5f6b7a", "#b0813a")
DASHES = ("none", "7 3", "2 3", "9 3 2 3", "4 2", "12 4", "1 4", "6 2 1 2")
STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#333}.head{font-weight:600}.end{text-anchor:end}"
    ".middle{text-anchor:middle}.axis{stroke:#888;fill:none}path{fill:none;stroke-width:1.6}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}}"
)


def mean_curves(rows: Sequence[Row]) -> dict[str, dict[str, list[Row]]]:
    """Table -> setting -> looks, each the mean over the rows that have it."""
    found: dict[str, dict[str, list[list[Row]]]] = {}
    for row in rows:
        if row.get("curve"):
            found.setdefault(row["table"], {}).setdefault(_name(row, rows), []).append(row["curve"])
    return {
        table: {name: [_mean(looks) for looks in zip(*curves, strict=False)] for name, curves in settings.items()}
        for table, settings in found.items()
    }


def at_equal_time(rows: Sequence[Row], until: str) -> list[list[str]]:
    """Per table and setting: JSD and WD of the last look until the setting ``until`` ends, by both counts of time."""
    ends = {_run(row): row for row in rows if row.get("curve") and row["setting"] == until}
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        end = ends.get(_run(row))
        if end is not None and row.get("curve"):
            read = {f"{clock} {k}": v for clock in CLOCKS for k, v in _until(row, clock, end[clock]).items()}
            found.setdefault((row["table"], _name(row, rows)), []).append(read)
    keys = [f"{clock} {figure}" for clock in CLOCKS for figure in FIGURES]
    return [
        [*where, *(_shown(_average([read[key] for read in reads])) for key in keys)] for where, reads in found.items()
    ]


def markdown(rows: Sequence[Row], until: str, image: str, points: bool = True) -> list[str]:
    """Paragraphs; none where no row has a curve. Without ``points`` the looks are in the picture only."""
    curves = mean_curves(rows)
    if not curves:
        return []
    heads = ["table", "setting", *(f"{label}, {AXES[clock]}" for clock in CLOCKS for label in FIGURES.values())]
    equal = at_equal_time(rows, until)
    at_end = [f"## When {until!r} ends", "As the paper reads its figures off; blank: no look until then."]
    along = [
        [table, setting, f"{look['round']:.1f}", *(_shown(look[key]) for key in (*CLOCKS, *FIGURES))]
        for table, settings in curves.items()
        for setting, looks in settings.items()
        for look in looks
    ]
    return [
        *([*at_end, lined(heads, equal)] if equal else []),
        "## Along the training",
        "A round ends with an average of models; where nothing is averaged, a round is an epoch.",
        *([f"![Figures along the training]({image})"] if image else []),
        *([lined(["table", "setting", *AXES.values(), *FIGURES.values()], along)] if points else []),
    ]


def picture(rows: Sequence[Row]) -> str:
    """An SVG: below each other the tables' figures, beside each other rounds and both counts of time; "" for none."""
    curves = mean_curves(rows)
    if not curves:
        return ""
    names = list(dict.fromkeys(name for settings in curves.values() for name in settings))
    wide, tall = LEFT + len(AXES) * (WIDTH + GAP + LEFT), HEIGHT + ABOVE + GAP
    parts = [_key(i, name) for i, name in enumerate(names)]
    y = 24 + 16 * len(names)
    for table, settings in curves.items():
        for figure, label in FIGURES.items():
            for i, (axis, unit) in enumerate(AXES.items()):
                place = f"translate({LEFT + i * (WIDTH + GAP + LEFT)} {y + ABOVE})"
                head = f"{table}: {label}" if not i else ""
                parts.append(f'<g transform="{place}">{_panel(settings, names, axis, figure, head, unit)}</g>')
            y += tall
    size = f'viewBox="0 0 {wide} {y}" width="{wide}" height="{y}"'
    label = escape(f"Average JSD and WD along the training, by {', '.join(AXES.values())}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" {size}>'
        f"<style>{STYLE}</style>{''.join(parts)}</svg>\n"
    )


def _panel(settings: dict[str, list[Row]], names: Sequence[str], axis: str, figure: str, head: str, unit: str) -> str:
    points = {
        name: [(look[axis], look[figure]) for look in looks if look[figure] is not None]
        for name, looks in settings.items()
    }
    least, most = round_domain([0.0, *(x for line in points.values() for x, _ in line)])
    low, high = round_domain([0.0, *(y for line in points.values() for _, y in line)])

    def at(x: float, y: float) -> tuple[float, float]:
        return WIDTH * (x - least) / (most - least), HEIGHT * (1 - (y - low) / (high - low))

    drawn = [_line(names.index(name), [at(*point) for point in line]) for name, line in points.items()]
    texts = [
        f'<text class="head" x="0" y="-8">{escape(head)}</text>',
        f'<text class="end" x="-5" y="9">{high:g}</text><text class="end" x="-5" y="{HEIGHT}">{low:g}</text>',
        f'<text y="{HEIGHT + 14}">{least:g}</text><text class="end" x="{WIDTH}" y="{HEIGHT + 14}">{most:g}</text>',
        f'<text class="middle" x="{WIDTH / 2}" y="{HEIGHT + 14}">{escape(unit)}</text>',
    ]
    return f'<path class="axis" d="M0,0V{HEIGHT}H{WIDTH}"/>{"".join(texts)}{"".join(drawn)}'


def _line(i: int, points: Sequence[tuple[float, float]]) -> str:
    """A line with a mark at its end."""
    if not points:
        return ""
    path = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<path d="{path}" {_stroke(i)}/>{_mark(i, *points[-1])}'


def _key(i: int, name: str) -> str:
    y = 16 + 16 * i
    return f'<path d="M8,{y}H38" {_stroke(i)}/>{_mark(i, 38, y)}<text x="{LEFT + 4}" y="{y + 4}">{escape(name)}</text>'


def _stroke(i: int) -> str:
    return f'stroke="{COLOURS[i % len(COLOURS)]}" stroke-dasharray="{DASHES[i % len(DASHES)]}"'


def _mark(i: int, x: float, y: float) -> str:
    """A circle, a square, or a triangle on either side."""
    fill = f'fill="{COLOURS[i % len(COLOURS)]}"'
    shapes = (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" {fill}/>',
        f'<rect x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6" {fill}/>',
        f'<polygon points="{x - 4:.1f},{y + 3:.1f} {x + 4:.1f},{y + 3:.1f} {x:.1f},{y - 4:.1f}" {fill}/>',
        f'<polygon points="{x - 4:.1f},{y - 3:.1f} {x + 4:.1f},{y - 3:.1f} {x:.1f},{y + 4:.1f}" {fill}/>',
    )
    return shapes[i % len(shapes)]


def _run(row: Row) -> tuple[Any, ...]:
    """What rows of one table and seed have in common."""
    return tuple((key, row.get(key)) for key in ("table", "silos", "rows", "epochs", "seed", "version"))


def _name(row: Row, rows: Sequence[Row]) -> str:
    """The setting, with the sizes that tell rows of it apart."""
    sizes = [key for key in ("silos", "rows", "epochs", "version") if len({other.get(key) for other in rows}) > 1]
    return ", ".join([str(row["setting"]), *(f"{row.get(key)} {key}" for key in sizes)])


def _until(row: Row, clock: str, end: float) -> Row:
    looks = [look for look in row["curve"] if look[clock] <= end * (1 + 1e-9)]
    return {figure: looks[-1][figure] if looks else None for figure in FIGURES}


def _mean(looks: Sequence[Row]) -> Row:
    return {key: _average([look[key] for look in looks]) for key in looks[0]}


def _average(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return float(np.mean(present)) if present else None


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if value < 10 else f"{value:,.1f}"


def lined(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(line) + " |" for line in (heads, ["---"] * len(heads), *cells))
