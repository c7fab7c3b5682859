"""Figures along a training: read off at equal times, as a table, and drawn as lines over rounds and over time.

A curve is a row's list of looks: round, seconds in both counts, JSD and WD (see `watching`). Lines are means over
seeds, whose looks come at the same rounds. No line relies on colour alone: each has dashes and a marker of its own.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silosynth.core import files
from silosynth.core.errors import UnavailableError
from silosynth.papers.experiment import Row
from silosynth.papers.results import average, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AXES = {"round": "round", "seconds": "s, silos in turn", "side by side": "s, silos side by side"}
CLOCKS = ("seconds", "side by side")
FIGURES = {"JSD": "Avg-JSD", "WD": "Avg-WD"}
DASHES = ("-", "--", ":", "-.", (0, (4, 2)), (0, (12, 4)), (0, (1, 4)), (0, (6, 2, 1, 2)))
MARKERS = "os^vDPX*"
SIZES = ("silos", "gan", "rate", "rows", "epochs", "version")


def library(part: str) -> Any:
    """A module of matplotlib.

    Raises:
        UnavailableError: it is not installed.
    """
    try:
        return importlib.import_module(f"matplotlib.{part}")
    except ImportError as error:
        remedy = "Install it: pip install 'silosynth[papers]'. Or name a .json file."
        raise UnavailableError("Pictures are drawn by matplotlib", "not installed", remedy) from error


def png(grey_HW: Any) -> bytes:
    """A PNG file of numbers between 0 (black) and 1 (white)."""
    target = io.BytesIO()
    library("image").imsave(target, grey_HW, cmap="gray", vmin=0.0, vmax=1.0, format="png")
    return target.getvalue()


def mean_curves(rows: Sequence[Row]) -> dict[str, dict[str, list[Row]]]:
    """Table -> setting -> looks, each the mean over the rows that have it."""
    curves: dict[str, dict[str, list[list[Row]]]] = {}
    for row in rows:
        if row.get("curve"):
            curves.setdefault(row["table"], {}).setdefault(_name(row, rows), []).append(row["curve"])
    return {
        table: {name: [_mean(looks) for looks in zip(*own, strict=False)] for name, own in settings.items()}
        for table, settings in curves.items()
    }


def at_equal_time(rows: Sequence[Row], until: str) -> list[list[str]]:
    """Per table and setting: JSD and WD of the last look until the setting ``until`` ends, by both counts of time."""
    ends = {_run(row): row for row in rows if row.get("curve") and row["setting"] == until}
    reads: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        end = ends.get(_run(row))
        if end is not None and row.get("curve"):
            read = {f"{clock} {k}": v for clock in CLOCKS for k, v in _until(row, clock, end[clock]).items()}
            reads.setdefault((row["table"], _name(row, rows)), []).append(read)
    keys = [f"{clock} {figure}" for clock in CLOCKS for figure in FIGURES]
    return [[*where, *(_shown(average([read[key] for read in own])) for key in keys)] for where, own in reads.items()]


def paragraphs(rows: Sequence[Row], page: Path, until: str) -> list[str]:
    """Draw the curves beside a page, and describe them for it; nothing where no row has a curve."""
    curves = mean_curves(rows)
    if not curves:
        return []
    image = page.with_suffix(".svg")
    files.write_atomic(image, svg(figure(curves)))
    heads = ["table", "setting", *(f"{label}, {AXES[clock]}" for clock in CLOCKS for label in FIGURES.values())]
    equal = at_equal_time(rows, until)
    at_end = [f"## When {until!r} ends", "As the paper reads its figures off; blank: no look until then."]
    along = [
        [name, setting, f"{look['round']:.1f}", *(_shown(look[key]) for key in (*CLOCKS, *FIGURES))]
        for name, settings in curves.items()
        for setting, looks in settings.items()
        for look in looks
    ]
    return [
        *([*at_end, table(heads, equal)] if equal else []),
        "## Along the training",
        "A round ends with an average of models; where nothing is averaged, a round is an epoch.",
        f"![Figures along the training]({image.name})",
        table(["table", "setting", *AXES.values(), *FIGURES.values()], along),
    ]


def figure(curves: dict[str, dict[str, list[Row]]]) -> Figure:
    """Below each other the tables' figures, beside each other rounds and both counts of time."""
    names = list(dict.fromkeys(name for settings in curves.values() for name in settings))
    panels = [(name, key) for name in curves for key in FIGURES]
    drawn: Figure = library("figure").Figure(
        (3.6 * len(AXES), 2.4 * len(panels) + 0.3 * len(names)), layout="constrained"
    )
    places = drawn.subplots(len(panels), len(AXES), squeeze=False)
    for line, (name, key) in zip(places, panels, strict=True):
        for place, (axis, unit) in zip(line, AXES.items(), strict=True):
            for setting, looks in curves[name].items():
                points = [(look[axis], look[key]) for look in looks if look[key] is not None]
                if points:
                    i = names.index(setting) % len(MARKERS)
                    style = {"color": f"C{i}", "linestyle": DASHES[i], "marker": MARKERS[i], "markevery": [-1]}
                    place.plot(*zip(*points, strict=True), label=setting.replace("$", r"\$"), **style)
            place.set(xlabel=unit, xlim=(0, None), ylim=(0, None))
        line[0].set_title(f"{name}: {FIGURES[key]}", loc="left")
    labelled = {
        text: handle for place in places.flat for handle, text in zip(*place.get_legend_handles_labels(), strict=True)
    }
    drawn.legend(labelled.values(), labelled.keys(), loc="outside upper left")
    return drawn


def svg(drawn: Figure) -> bytes:
    """The same bytes for the same figure."""
    target = io.BytesIO()
    with importlib.import_module("matplotlib").rc_context({"svg.hashsalt": "silosynth", "svg.fonttype": "none"}):
        drawn.savefig(target, format="svg", metadata={"Date": None})
    return target.getvalue()


def _run(row: Row) -> tuple[Any, ...]:
    """What rows of one table and seed have in common."""
    return tuple((key, row.get(key)) for key in ("table", "seed", *SIZES) if key not in ("gan", "rate"))


def _name(row: Row, rows: Sequence[Row]) -> str:
    """The setting, with the sizes that tell rows of it apart."""
    sizes = [key for key in SIZES if len({other.get(key) for other in rows}) > 1]
    return ", ".join([str(row["setting"]), *(f"{row.get(key)} {key}" for key in sizes)])


def _until(row: Row, clock: str, end: float) -> Row:
    looks = [look for look in row["curve"] if look[clock] <= end * (1 + 1e-9)]
    return {key: looks[-1][key] if looks else None for key in FIGURES}


def _mean(looks: Sequence[Row]) -> Row:
    return {key: average([look[key] for look in looks]) for key in looks[0]}


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if value < 10 else f"{value:,.1f}"
