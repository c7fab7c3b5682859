"""What silos are asked to take part in, and the words for it around an algorithm's own conversation.

In talking order: `Greet` → `Greeted`, `Begin` → `Done`, (alignment), `Prepare` → `Prepared` or `PreparedRows`,
(training), `Keep` → `Done`, `Draw` → `Done`, (sampling), `Publish` → `Done`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

from silosynth.alignment import AlignConfig
from silosynth.core.errors import ConfigError
from silosynth.core.messages import Message, Release, Struct
from silosynth.core.schema import Schema, Table

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")


@dataclass(frozen=True, slots=True)
class Job(Struct):
    """A training and its synthetic table.

    Attributes:
        name: of the job; no other job of the federation has it.
        algorithm, preset, config: what is fitted, and all its options.
        silos: who takes part, in order.
        seed: of all randomness, silos' own included; None where each draws its own.
        align: how rows are linked; None where silos hold different rows, or the same in the same order.
        rows: of the synthetic table; None for as many as there are to train on, with differential privacy a noised
            number.
        submitter: who started it.

    Raises:
        ConfigError: the name is no plain word.
    """

    name: str
    algorithm: str
    preset: str
    config: Struct
    silos: tuple[str, ...]
    seed: int | None
    align: AlignConfig | None
    rows: int | None
    submitter: str

    def __post_init__(self) -> None:
        Struct.__post_init__(self)
        check_name(self.name)


def check_name(name: str) -> str:
    """The name of a job, by which folders are called.

    Raises:
        ConfigError: it is no plain word.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            "A job's name is 1 to 80 letters, digits, '_', '.' or '-', and starts with a letter or digit", name
        )
    return name


@cache
def sources() -> str:
    """SHA-256 of all sources of the silosynth that is installed here: two that agree run the same algorithms."""
    root, seen = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        text = path.read_bytes().replace(b"\r\n", b"\n")
        seen.update(f"{path.relative_to(root).as_posix()} {len(text)}\n".encode() + text)
    return seen.hexdigest()


@dataclass(frozen=True, slots=True)
class Greet(Message):
    """Coordinator: this is my silosynth, and what I want to start on whose behalf. Is yours the same, and may I?"""

    algorithm: str
    submitter: str
    version: str
    sources: str


@dataclass(frozen=True, slots=True)
class Greeted(Message):
    """Silo: yes. This is mine."""

    version: str
    sources: str


@dataclass(frozen=True, slots=True)
class Begin(Message):
    """Coordinator: open your table, and get ready for this job."""

    job: Job


@dataclass(frozen=True, slots=True)
class Prepare(Message):
    """Coordinator: rows are linked. Keep those in common, in the common order, and tell what your columns are."""


@dataclass(frozen=True, slots=True)
class Prepared(Message):
    """Silo: my columns; neither their ranges nor why a kind was inferred."""

    release: ClassVar[Release] = Release.SCHEMA
    schema: Schema


@dataclass(frozen=True, slots=True)
class PreparedRows(Message):
    """The same of a silo whose rows are those of the others: and so many rows."""

    release: ClassVar[Release] = Release.COUNTS
    schema: Schema
    rows: int


@dataclass(frozen=True, slots=True)
class Keep(Message):
    """Coordinator: training has ended. Keep your part of the model."""


@dataclass(frozen=True, slots=True)
class Draw(Message):
    """Coordinator: get ready to draw synthetic rows from your part of the model."""


@dataclass(frozen=True, slots=True)
class Publish(Message):
    """Coordinator: the synthetic table, or some rows of it, to keep beside your own."""

    release: ClassVar[Release] = Release.SYNTHETIC
    columns: Schema
    table: Table
    first: int
    total: int
