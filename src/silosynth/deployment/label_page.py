"""A label for people: as a page, and what it says of audits in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from silosynth.deployment import audits
from silosynth.evaluation.pages import page, source


def audits_in_words(label: Mapping[str, Any]) -> list[str]:
    """What a label says of audits, a line for each, and for each silo that has made none."""
    lines = []
    for silo, known in audits.told(label).items():
        if not known:
            lines.append(f"{silo}: {'it says nothing of any' if known is None else 'none was made before it signed'}")
        lines += [f"{silo}: {_in_words(one)}" for one in known or ()]
    return lines


def _in_words(audit: Mapping[str, Any]) -> str:
    said = "before it signed" if audit["before"] else "after it signed, so that this label could leave it out"
    rows = "" if audit.get("published", True) else ", of other rows than the published ones, or of a part of them"
    if "figures" not in audit:
        return f"a report on {audit['of']}, {audit['at']}, {said}{rows}; what it found stays at the silo"
    count = len(audit["figures"])
    return f"a report on {audit['of']}, beside {audit['beside']}, {audit['at']}, {said}{rows}: {count} figures"


def label_page(label: Mapping[str, Any]) -> str:
    """The label as a page for reading."""
    known = {"known": audits.told(label), "in_words": _in_words, "number": _number}
    return page("label.html.j2", style=source("report.css"), **known, **label)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
