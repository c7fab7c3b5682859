"""The report's pictures: pure functions from numbers to inline SVG.

By hand, since plotting libraries emit either scripts or SVG with their own fonts, sizes and colours, where this page
needs pictures that follow its light and dark style and stretch to the width of a phone.

No picture relies on colour alone: real is a filled area or bar and synthetic a line or tick, negative cells are round,
floors are ticks and values are dots. Text never sits in a stretched viewBox, so it keeps its size on a phone. Colours
are classes that the page styles for light and dark; only the raster of `heatmap` carries its own, as opacity of two
hues, so that it suits both.
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from silosynth.core.files import write_atomic
from silosynth.evaluation.scores import ColumnKind, ColumnScore, Floats, Score

Groups = Sequence[tuple[str, int]]  # silo name ("" for none) and number of its columns, which are neighbours

POSITIVE, NEGATIVE, NEUTRAL = (0x2F, 0x86, 0xC8), (0xD9, 0x6F, 0x1A), (0x88, 0x90, 0x9A)
VECTOR_CELLS = 40  # columns up to which a heatmap is drawn cell by cell, with tooltips; beyond, as a raster
NAMED_CELLS = 20  # columns up to which rows have names
RASTER_CELLS = 400  # columns beyond which neighbours are merged, keeping the largest value
MAX_LEVELS = 8  # levels drawn by name, the most frequent ones
SPIKE = 12  # a histogram whose top exceeds this multiple of its mean has square-root heights
MISSING, OTHER = "(missing)", "(other)"
_SHADES = 63


def range_plot(score: Score, domain: tuple[float, float], label: str) -> str:
    """A dot for the value on its 95 % interval, a tick for the floor and a ring for the ideal, over ``domain``."""

    def x(number: float) -> str:
        return f"{2 + 96 * _unit((number - domain[0]) / (domain[1] - domain[0])):.2f}%"

    axis = _tag("line", "axis", x1="2%", x2="98%", y1=17, y2=17)
    marks = [axis, _tag("circle", "ideal", cx=x(score.ideal), cy=17, r=4.5)]
    if score.low is not None and score.high is not None and _finite(score.low, score.high):
        marks.append(_tag("line", "interval", x1=x(score.low), x2=x(score.high), y1=17, y2=17))
    if score.floor is not None and _finite(score.floor):
        marks.append(_tag("line", "floor", x1=x(score.floor), x2=x(score.floor), y1=5, y2=29))
    if _finite(score.value):
        marks.append(_tag("circle", "value", cx=x(score.value), cy=17, r=5.5))
    return _svg("range", label, "".join(marks), width="100%", height=34)


def column_overlay(column: ColumnScore) -> str:
    """The picture of one column; empty if there are no values to draw."""
    label = f"{column.name}: real and synthetic distribution, shape error {column.error:.2f} %"
    if column.levels is not None and column.real_shares is not None and column.synthetic_shares is not None:
        return level_overlay(*_folded(column.levels, column.real_shares, column.synthetic_shares), label)
    if column.edges is None or column.real_density is None or column.synthetic_density is None or len(column.edges) < 2:
        return ""
    return density_overlay(column.edges, column.real_density, column.synthetic_density, label, spiky(column))


@dataclass(frozen=True, repr=False, slots=True)
class Picture:
    """A picture with styles of its own: notebooks show it, `save` writes it to a file."""

    text: str
    svg: str

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write an SVG file. Returns the path."""
        write_atomic(Path(path), self.svg.encode("utf-8"))
        return Path(path)

    def __repr__(self) -> str:
        return f"Picture of {self.text}"

    def _repr_svg_(self) -> str:
        return self.svg


def picture(column: ColumnScore) -> Picture:
    """The picture of one column by itself, with title, key and the ends of its axis."""
    floor = "" if column.floor is None else f", floor {column.floor:.2f} %"
    text = f"column {column.name!r}: shape error {column.error:.2f} %{floor}"
    overlay, ends = column_overlay(column), axis_ends(column) or ("", "")
    height = int(match[1]) if (match := re.search(r' height="(\d+)"', overlay)) else 0
    body = (
        f'<text class="head" x="0" y="14">{escape(text)}</text>{_KEY}'
        f'<svg y="48" width="{_WIDTH}" height="{height}">{overlay}</svg>'
        f'<text class="level" x="0" y="{height + 64}">{ends[0]}</text>'
        f'<text class="shares" x="{_WIDTH}" y="{height + 64}">{ends[1]}</text>'
    )
    size = f'width="{_WIDTH + 2 * _MARGIN}" height="{height + 70 + 2 * _MARGIN}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(text)}">'
    inner = f'<svg x="{_MARGIN}" y="{_MARGIN}" overflow="visible">{body}</svg>'
    return Picture(text, f"{head}<style>{_STYLE}</style>{inner}</svg>")


_WIDTH, _MARGIN = 420, 10
_KEY = (
    '<rect class="real" x="0" y="26" width="22" height="10"/><text x="28" y="35">real</text>'
    '<line class="synthetic" x1="90" x2="112" y1="31" y2="31"/><text x="118" y="35">synthetic</text>'
)
_STYLE = (  # on a background of its own: notebooks may be dark
    "svg{background:#fff}text{font:12px system-ui,sans-serif;fill:#1b2127}.head{font-weight:600}"
    ".shares{text-anchor:end;fill:#56606b}.track{fill:#f1f3f4}.axis{stroke:#dcdfe2}.real{fill:#b9cfe2;stroke:#3c6e9c}"
    ".synthetic{fill:none;stroke:#c24e00;stroke-width:2}.knob{fill:#fff;stroke:#c24e00;stroke-width:2}"
    "path{vector-effect:non-scaling-stroke}"
)


_LENGTHS = (("days", 86_400e9), ("h", 3_600e9), ("min", 60e9), ("s", 1e9))


def spiky(column: ColumnScore) -> bool:
    """Whether one bin is so high that the others would be invisible."""
    density = column.real_density
    return density is not None and len(density) > 0 and bool(density.max() > SPIKE * density.mean() > 0)


def axis_ends(column: ColumnScore) -> tuple[str, str] | None:
    """Labels of both ends of a numeric axis; for integers, without the half unit that bins reach beyond them."""
    if column.edges is None or len(column.edges) < 2:
        return None
    low, high = float(column.edges[0]), float(column.edges[-1])
    if low % 1 == high % 1 == 0.5 and high - low >= 1:
        low, high = low + 0.5, high - 0.5
    return end_labels(column.kind, low, high)


def end_labels(kind: ColumnKind, low: float, high: float) -> tuple[str, str]:
    """Both ends of a range of numbers, of durations in nanoseconds, or of instants in nanoseconds since 1970."""
    if kind == "duration":
        name, unit = next((one for one in _LENGTHS if max(abs(low), abs(high)) >= 2 * one[1]), _LENGTHS[-1])
        return f"{low / unit:.4g} {name}", f"{high / unit:.4g} {name}"
    if kind != "datetime":
        return _number(low), _number(high)
    kept = 10 if high - low > 2 * 86_400e9 else 16  # characters of an ISO date, and of one with minutes
    low_text, high_text = (str(np.datetime64(int(end) // 1000, "us")) for end in (low, high))
    return low_text[:kept].replace("T", " "), high_text[:kept].replace("T", " ")


def value_label(kind: ColumnKind, value: float) -> str:
    """A number, a duration or an instant, in as many digits as tell it from others."""
    if kind == "datetime":
        return str(np.datetime64(int(value) // 10**9, "s")).replace("T", " ").removesuffix(" 00:00:00")
    return end_labels(kind, value, value)[0] if kind == "duration" else f"{value:.12g}"


def density_overlay(edges: Floats, real: Floats, synthetic: Floats, label: str, root: bool = False) -> str:
    """Two histograms over the same bins: a filled area and a stepped line. ``root``: square-root heights."""
    heights = [np.nan_to_num(np.sqrt(d) if root else d) for d in (real, synthetic)]
    top = max(float(heights[0].max(initial=0)), float(heights[1].max(initial=0))) or 1.0
    x = 1000 * (edges - edges[0]) / (float(edges[-1] - edges[0]) or 1.0)
    area, line = (_steps(x, 100 - 96 * h / top) for h in heights)
    axis = _tag("line", "axis", x1=0, x2=1000, y1=100, y2=100)
    body = f'<path class="real" d="{area}"/><path class="synthetic" d="{line}"/>{axis}'
    return _svg("overlay", label, body, width="100%", height=110, viewBox="0 0 1000 100", preserveAspectRatio="none")


def level_overlay(levels: Sequence[str], real: Floats, synthetic: Floats, label: str) -> str:
    """One row per level: a bar for the real share, a tick with a knob for the synthetic one, and both in figures."""
    top = max(float(np.nan_to_num(real).max(initial=0)), float(np.nan_to_num(synthetic).max(initial=0))) or 1.0
    rows = [_level(i, *row, top) for i, row in enumerate(zip(levels, real.tolist(), synthetic.tolist(), strict=True))]
    return _svg("overlay levels", label, "".join(rows), width="100%", height=32 * len(rows) + 2)


def heatmap(
    matrix: Floats, names: Sequence[str], groups: Groups, scale: float, label: str, tip: Callable[[int, int], str]
) -> str:
    """A square matrix from -scale to +scale, with a border line between silos and their names on the margins.

    ``tip(i, j)`` is a cell's tooltip. A raster says what a script needs to make tooltips: names and scale.
    """
    d, side, above = len(names), 240, 20
    left, cell = 18 + (94 if d <= NAMED_CELLS else 0), side / max(d, 1)
    draw = _vector(matrix, cell, scale, tip) if d <= VECTOR_CELLS else _raster(matrix, side, scale)
    body = f'<g transform="translate({left} {above})">{draw}<rect class="frame" width="{side}" height="{side}"/>'
    body += _borders(groups, cell, side) + _silo_names(groups, cell, left) + "</g>"
    for i, name in enumerate(names if d <= NAMED_CELLS else ()):
        body += f'<text class="name" x="{left - 5}" y="{above + (i + 0.5) * cell + 4:.1f}">{_fit(name, 88)}</text>'
    cells = {} if d <= VECTOR_CELLS else {"data-cells": json.dumps({"names": list(names), "scale": scale})}
    return _svg("heat", label, body, viewBox=f"0 0 {left + side + 2} {above + side + 2}", **cells)


def by_silo(silos: Sequence[str | None], order: Sequence[str]) -> tuple[list[int], list[tuple[str, int]]]:
    """Columns ordered by silo (those without one last), and their `Groups`."""
    known = [*order, *dict.fromkeys(s for s in silos if s is not None and s not in order)]
    members = {silo: [i for i, own in enumerate(silos) if own == silo] for silo in [*known, None]}
    groups = [(silo or "", len(own)) for silo, own in members.items() if own]
    return [i for own in members.values() for i in own], groups


def round_domain(numbers: Iterable[float]) -> tuple[float, float]:
    """Round ends of a scale that covers all numbers."""
    finite = [x for x in numbers if _finite(x)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    step = round_up((high - low) / 4 or 1.0)
    start = math.floor(low / step + 1e-9) * step
    return start, max(math.ceil(high / step - 1e-9) * step, start + step)


def round_up(number: float) -> float:
    """The next of 1, 2, 2.5, 5, 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(number))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= number * (1 - 1e-9))


def share_bar(share: float) -> str:
    """A small bar for a share of the largest entry; decoration beside a figure, hence hidden from screen readers."""
    bar = _tag("rect", "bar", width=f"{100 * _unit(share):.2f}%", height=6, rx=1)
    return f'<svg class="share" aria-hidden="true" width="100%" height="6">{bar}</svg>'


def _svg(kind: str, label: str, body: str, **attributes: object) -> str:
    return f'<svg class="{kind}" role="img" aria-label="{escape(label)}"{_attributes(attributes)}>{body}</svg>'


def _tag(tag: str, kind: str, **attributes: object) -> str:
    return f'<{tag} class="{kind}"{_attributes(attributes)}/>'


def _attributes(attributes: dict[str, object]) -> str:
    return "".join(f' {name}="{escape(str(value))}"' for name, value in attributes.items())


def _steps(x: Floats, y: Floats) -> str:
    """A stepped path that starts and ends on the base line."""
    parts = [f"M{x[0]:.0f},100"]
    parts += [f"V{height:.1f}H{right:.0f}" for height, right in zip(y.tolist(), x[1:].tolist(), strict=True)]
    return "".join(parts) + "V100"


def _folded(levels: Sequence[str], real: Floats, synthetic: Floats) -> tuple[list[str], Floats, Floats]:
    """The `MAX_LEVELS` most frequent levels and the missing ones, in their order; all others are summed into one."""
    if len(levels) <= MAX_LEVELS + 2:
        return list(levels), real, synthetic
    named = [i for i, level in enumerate(levels) if level not in (MISSING, OTHER)]
    frequent = sorted(named, key=lambda i: -real[i])[:MAX_LEVELS]
    keep = sorted(frequent) + [i for i, level in enumerate(levels) if level == MISSING]
    rest = np.setdiff1d(np.arange(len(levels)), keep)
    a, b = (np.append(shares[keep], shares[rest].sum()) for shares in (real, synthetic))
    return [*(levels[i] for i in keep), OTHER], a, b


def _level(i: int, level: str, real: float, synthetic: float, top: float) -> str:
    y = 32 * i
    at = f"{99 * _unit(synthetic / top):.2f}%"
    return (
        f'<text class="level" x="0" y="{y + 12}">{_fit(level, 125)}</text>'
        f'<text class="shares" x="100%" y="{y + 12}">{_percent(real)} · {_percent(synthetic)}</text>'
        f'<rect class="track" x="0" y="{y + 18}" width="100%" height="9"/>'
        f'<rect class="real" x="0" y="{y + 18}" width="{99 * _unit(real / top):.2f}%" height="9"/>'
        + _tag("line", "synthetic", x1=at, x2=at, y1=y + 16, y2=y + 29)
        + f'<circle class="knob" cx="{at}" cy="{y + 22.5}" r="3.5"/>'
    )


def _vector(matrix: Floats, cell: float, scale: float, tip: Callable[[int, int], str]) -> str:
    shapes = []
    for i, row in enumerate(matrix.tolist()):
        for j, value in enumerate(row):
            shapes.append(_cell(i, j, value, cell, scale, f"<title>{escape(tip(i, j))}</title>"))
    return "".join(shapes)


def _cell(i: int, j: int, value: float, cell: float, scale: float, title: str) -> str:
    x, y, size = j * cell, i * cell, cell * 0.94
    box = f'x="{x:.1f}" y="{y:.1f}" width="{size:.1f}" height="{size:.1f}"'
    if i == j:
        return f'<rect class="self" {box}>{title}</rect>'
    if not _finite(value):
        return f'<path class="gap" d="M{x + size * 0.3:.1f},{y + size / 2:.1f}h{size * 0.4:.1f}">{title}</path>'
    shade = f' fill-opacity="{_unit(abs(value) / scale):.2f}"'
    if value < 0:
        return f'<rect class="neg" {box} rx="{size / 2:.1f}"{shade}>{title}</rect>'
    return f'<rect class="pos" {box}{shade}>{title}</rect>'


def _borders(groups: Groups, cell: float, side: float) -> str:
    lines, at = [], 0
    for _, count in groups[:-1]:
        at += count
        where = f"{at * cell - 0.03 * cell:.2f}"
        lines.append(_tag("line", "border", x1=where, x2=where, y1=-6, y2=side))
        lines.append(_tag("line", "border", x1=-6, x2=side, y1=where, y2=where))
    return "".join(lines)


def _silo_names(groups: Groups, cell: float, left: float) -> str:
    if not any(name for name, _ in groups):
        return ""
    texts, at = [], 0
    for name, count in groups:
        middle, room = (at + count / 2) * cell, count * cell - 4
        texts.append(f'<text class="silo" x="{middle:.1f}" y="-8">{_fit(name, room)}</text>')
        texts.append(
            f'<text class="silo" transform="translate({10 - left} {middle:.1f}) rotate(-90)">{_fit(name, room)}</text>'
        )
        at += count
    return "".join(texts)


def _raster(matrix: Floats, side: float, scale: float) -> str:
    data = base64.b64encode(_png(_pooled(matrix), scale)).decode()
    href = f"data:image/png;base64,{data}"
    return _tag("image", "raster", width=side, height=side, preserveAspectRatio="none", href=href)


def _pooled(matrix: Floats) -> Floats:
    """The matrix without its diagonal, pooled to `RASTER_CELLS` by the largest absolute value."""
    off = np.where(np.eye(len(matrix), dtype=bool), np.nan, matrix)
    step = math.ceil(len(matrix) / RASTER_CELLS)
    if step == 1:
        return off
    starts = np.arange(0, len(matrix), step)
    above = np.fmax.reduceat(np.fmax.reduceat(off, starts, axis=0), starts, axis=1)
    below = np.fmin.reduceat(np.fmin.reduceat(off, starts, axis=0), starts, axis=1)
    return np.where(np.abs(below) > np.abs(above), below, above)


def _png(matrix: Floats, scale: float) -> bytes:
    """An indexed PNG: two hues with the absolute value as opacity, so that zero is transparent."""
    size = np.rint(np.clip(np.abs(matrix) / scale, 0, 1) * _SHADES)
    index = np.where(np.isfinite(matrix), np.where(matrix < 0, size + _SHADES + 1, size), 2 * _SHADES + 2).astype(
        np.uint8
    )
    palette = bytes(POSITIVE) * (_SHADES + 1) + bytes(NEGATIVE) * (_SHADES + 1) + bytes(NEUTRAL)
    alphas = bytes(round(255 * i / _SHADES) for i in range(_SHADES + 1)) * 2 + b"\x40"
    pixels = b"".join(b"\0" + row.tobytes() for row in index)
    header = struct.pack(">IIBBBBB", index.shape[1], index.shape[0], 8, 3, 0, 0, 0)
    chunks = (
        (b"IHDR", header),
        (b"PLTE", palette),
        (b"tRNS", alphas),
        (b"IDAT", zlib.compress(pixels, 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _fit(text: str, pixels: float) -> str:
    """``text``, escaped and cut to about ``pixels`` of 11-pixel type; the full text is the tooltip of what was cut."""
    room = max(int(pixels / 6.6), 0)
    if len(text) <= room:
        return escape(text)
    return (
        f"{escape(text[: room - 1])}…<title>{escape(text)}</title>" if room >= 2 else f"<title>{escape(text)}</title>"
    )


def _number(number: float) -> str:
    return f"{number:,.0f}" if (number.is_integer() or abs(number) >= 1000) and abs(number) < 1e9 else f"{number:.4g}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if _finite(share) else "–"


def _unit(number: float) -> float:
    return min(max(number, 0.0), 1.0) if _finite(number) else 0.0


def _finite(*numbers: float) -> bool:
    return all(math.isfinite(number) for number in numbers)
