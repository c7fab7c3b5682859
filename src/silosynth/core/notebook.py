"""HTML for notebooks: plain tables in the notebook's own style. Everything that is shown is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def table(head: Sequence[object], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """A table; the first cell of each row names it. Numbers are written with thousands separators."""
    top = "".join(f'<th scope="col">{_text(name)}</th>' for name in head)
    body = "".join(_row(row) for row in rows)
    title = f'<caption style="text-align:left;font-weight:bold">{escape(caption)}</caption>' if caption else ""
    return f"<table>{title}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def paragraph(text: str) -> str:
    """A line of text."""
    return f"<p>{escape(text)}</p>"


def _row(cells: Sequence[object]) -> str:
    first, *others = (_text(cell) for cell in cells)
    rest = "".join(f'<td style="text-align:left">{text}</td>' for text in others)
    return f'<tr><th scope="row" style="text-align:left">{first}</th>{rest}</tr>'


def _text(cell: object) -> str:
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else escape(str(cell))
