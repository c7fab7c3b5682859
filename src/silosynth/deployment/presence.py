"""Signs of life of a site's engine, and at the coordinator of its silos: a small file, written every few seconds.

They come from the engine's own process, so they go on whether or not a job asks anything, and end with it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from silosynth.core import files

FILE = "presence.json"
EVERY = 3.0  # seconds between two signs
STALE = 15.0  # seconds after which an engine, or a silo, counts as gone


@dataclass(frozen=True)
class Presence:
    """What a site's engine has said last.

    Attributes:
        begun: when it started, in seconds since 1970; 0 if it has said nothing yet.
        at: when it said this.
        silos: at the coordinator, when each silo gave its last sign of life.
    """

    begun: float = 0.0
    at: float = 0.0
    silos: Mapping[str, float] = field(default_factory=dict)

    def running(self, now: float) -> bool:
        """Whether the engine is at work. After a crash this is true for some seconds more."""
        return abs(now - self.at) < STALE

    def connected(self, silo: str, now: float) -> bool:
        """Whether the coordinator has heard of a silo lately."""
        return self.running(now) and self.at - self.silos.get(silo, 0.0) < STALE

    def write(self, work: Path) -> None:
        """Replace the sign, without waiting for the disk: one that is lost is followed by another."""
        path = work / FILE
        new = path.with_suffix(".new")
        content = {"begun": self.begun, "at": self.at, "silos": dict(self.silos)}
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, files.PRIVATE)
        with os.fdopen(handle, "w") as file:
            json.dump(content, file)
        os.replace(new, path)


def read_presence(work: Path) -> Presence:
    """The last sign of life of the site that writes to this folder."""
    try:
        content: dict[str, Any] = json.loads((work / FILE).read_text("utf-8"))
        silos = {str(silo): float(at) for silo, at in content["silos"].items()}
        return Presence(float(content["begun"]), float(content["at"]), silos)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Presence()  # never started, or by an earlier version


def tell(work: Path, begun: float, silos: Mapping[str, float], clock: float | None = None) -> None:
    """Give a sign of life."""
    Presence(begun, time.time() if clock is None else clock, silos).write(work)


def silent(silos: Iterable[str], heard: Mapping[str, float], now: float) -> list[str]:
    """Which of the silos have given no sign of life lately, by when each was heard last."""
    return [silo for silo in sorted(silos) if silo in heard and now - heard[silo] >= STALE]
