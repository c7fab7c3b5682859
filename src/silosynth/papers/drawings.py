"""Drawings of figures, by matplotlib: points of several settings in panels, joined where they follow each other.

No setting relies on colour alone: each has dashes and a marker of its own.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from silosynth.core import files
from silosynth.core.errors import UnavailableError
from silosynth.papers.experiment import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DASHES = ("-", "--", ":", "-.", (0, (4, 2)), (0, (12, 4)), (0, (1, 4)), (0, (6, 2, 1, 2)))
MARKERS = "os^vDPX*"
TICKED = 5  # places of points on an axis, each with a tick
FEW = 10  # points of a line, each with a marker and a bar; the deviations of more points are a band
APART, TOGETHER = 0.12, 0.6  # of the space between two words: between settings above a word, and most for all of them
Point = tuple[Any, float, float]  # x, y and y's standard deviation, 0 where that is not known


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        settings: setting -> its points; x are all numbers, or all words that stand for themselves.
        joined: whether points of a setting are joined by a line; where there are many, with a marker at its end only.
        log: whether both axes are logarithmic.
        zero: whether y starts at 0, where axes are not.
    """

    title: str
    x: str
    settings: Mapping[str, Sequence[Point]] = field(default_factory=dict)
    joined: bool = True
    log: bool = False
    zero: bool = True


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


def drawn(lines: Sequence[Sequence[Panel]]) -> Figure:
    """Lines of panels below each other, as many in each, and the settings' names above them."""
    names = list(dict.fromkeys(name for line in lines for panel in line for name in panel.settings))
    every = [x for line in lines for panel in line for points in panel.settings.values() for x, *_ in points]
    longest = max((len(x) for x in every if isinstance(x, str)), default=0)  # words stand upright below a panel
    size = (3.6 * len(lines[0]), (2.4 + 0.08 * max(0, longest - 12)) * len(lines) + 0.3 * len(names))
    figure: Figure = library("figure").Figure(size, layout="constrained")
    places = figure.subplots(len(lines), len(lines[0]), squeeze=False)
    for line, own in zip(lines, places, strict=True):
        for panel, place in zip(line, own, strict=True):
            _draw(panel, place, names)
    labelled = {
        text: handle for place in places.flat for handle, text in zip(*place.get_legend_handles_labels(), strict=True)
    }
    figure.legend(labelled.values(), labelled.keys(), loc="outside upper left")
    return figure


def _draw(panel: Panel, place: Any, names: Sequence[str]) -> None:
    shown = {name: points for name, points in panel.settings.items() if points}
    words = list(dict.fromkeys(x for points in shown.values() for x, *_ in points if isinstance(x, str)))
    for number, (name, points) in enumerate(shown.items()):
        if words:
            points = _around(words, points, number, len(shown))
        _draw_setting(panel, place, name, points, names.index(name))
    if panel.log:
        place.set(xscale="log", yscale="log")
    elif panel.zero:  # with room above the highest point, and none of those below zero cut off
        low, high = place.get_ylim()
        place.set_ylim(low if _lowest(panel) < 0 else 0, high + 0.05 * (high - min(low, 0)))
    if words:
        place.set_xticks(range(len(words)), words, rotation=90)
    elif not panel.log:
        every = sorted({x for points in shown.values() for x, *_ in points})
        place.set(**({"xticks": every} if len(every) <= TICKED else {"xlim": (0, None)}))
    if not panel.settings:
        place.set_axis_off()
    place.set(xlabel=panel.x)
    place.set_title(panel.title, loc="left")


def _around(words: Sequence[str], points: Sequence[Point], number: int, count: int) -> list[Point]:
    """The points of one of ``count`` settings, with numbers for words: beside those of the others."""
    aside = (number - (count - 1) / 2) * min(APART, TOGETHER / count)
    return [(words.index(x) + aside, y, deviation) for x, y, deviation in points]


def _draw_setting(panel: Panel, place: Any, name: str, points: Sequence[Point], i: int) -> None:
    if panel.joined:
        points = sorted(points)  # rows that were added later may lie between others
    banded = panel.joined and len(points) > FEW
    x, y, deviations = zip(*points, strict=True)
    style = {
        "color": f"C{i % 10}", "marker": MARKERS[i % len(MARKERS)], "markevery": [-1] if banded else None,
        "linestyle": DASHES[i % len(DASHES)] if panel.joined else "none",
    }  # fmt: skip
    bars = deviations if any(deviations) and not banded else None
    place.errorbar(x, y, bars, label=name.replace("$", r"\$"), **style)
    if banded and any(deviations):
        low, high = ([v + sign * d for v, d in zip(y, deviations, strict=True)] for sign in (-1, 1))
        place.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)


def _lowest(panel: Panel) -> float:
    """The lowest point, or end of a deviation, of a panel."""
    return min((y - deviation for points in panel.settings.values() for _, y, deviation in points), default=0.0)


def panels(
    rows: Sequence[Row], figures: Mapping[str, str], x: Callable[[Row], Any], setting: Callable[[Row], str],
    axis: str, title: str = "", joined: bool = False, log: bool = False, zero: bool = True,
) -> list[Panel]:  # fmt: skip
    """Of averaged rows, a panel for each of the ``figures`` (key of rows -> what it is called) that any row has."""
    found = []
    for key, name in figures.items():
        points: dict[str, list[Point]] = {}
        for row in rows:
            if row.get(key) is not None:
                deviation = row.get("spread", {}).get(key) or 0.0
                points.setdefault(setting(row), []).append((x(row), row[key], deviation))
        if points:
            found.append(Panel(f"{title}: {name}" if title else name, axis, points, joined, log, zero))
    return found


def along(curves: Sequence[Sequence[Mapping[str, Any]]], x: str, y: str) -> list[Point]:
    """The points of one setting, at each look that all trainings have: mean ``x``, and mean and deviation of ``y``.

    Looks of private trainings come at slightly different rounds, for the number of rows that makes an epoch is noised.
    """
    points = []
    for looks in zip(*curves, strict=False):
        own = [look[y] for look in looks]
        points.append((fmean(look[x] for look in looks), fmean(own), stdev(own) if len(own) > 1 else 0.0))
    return points


def wrapped(found: Sequence[Panel], width: int = 3) -> list[list[Panel]]:
    """In lines of at most ``width``, the last one filled with empty panels."""
    width = min(width, len(found))
    empty = [Panel("", "")] * (-len(found) % width if width else 0)
    every = [*found, *empty]
    return [every[i : i + width] for i in range(0, len(every), width)] if width else []


def beside(page: Path, lines: Sequence[Sequence[Panel]], what: str) -> list[str]:
    """Draw these beside a page, and the paragraph that shows it; nothing where there are no panels."""
    return written(page, drawn(lines), what) if lines else []


def written(page: Path, figure: Figure, what: str) -> list[str]:
    """The same of a finished figure."""
    image = page.with_suffix(".svg")
    files.write_atomic(image, svg(figure))
    return [f"![{what}]({image.name})"]


def svg(figure: Figure) -> bytes:
    """The same bytes for the same figure."""
    target = io.BytesIO()
    with importlib.import_module("matplotlib").rc_context({"svg.hashsalt": "silosynth", "svg.fonttype": "none"}):
        figure.savefig(target, format="svg", metadata={"Date": None})
    return target.getvalue()


def png(grey_HW: Any) -> bytes:
    """A PNG file of numbers between 0 (black) and 1 (white)."""
    target = io.BytesIO()
    library("image").imsave(target, grey_HW, cmap="gray", vmin=0.0, vmax=1.0, format="png")
    return target.getvalue()
