"""What each party can infer from the messages of a VT-GAN training: its paper's figures 4 and 5, and what these omit.

Seven settings of row numbers, lists, gradients and renumbering are trained on the same two silos (columns in file
order, half each), and attacked (`silosynth.attacks.inference`) with what each party was sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from silosynth.algorithms.vtgan.options import PRESETS, VTGANConfig
from silosynth.attacks.findings import PartyFinding
from silosynth.attacks.inference import attack
from silosynth.attacks.listening import Ear, overhear
from silosynth.core import files
from silosynth.core.conversation import Progress
from silosynth.core.errors import ConfigError
from silosynth.data.partition import in_order
from silosynth.papers.common import BATCH, Row, Sizes, Tell
from silosynth.papers.results import SUFFIXES, stamp
from silosynth.papers.tables import load
from silosynth.simulation.federation import Federation, simulate

_PAPER, _OURS = PRESETS["paper"], replace(PRESETS["balanced"], least_rounds=0)
SETTINGS: Mapping[str, VTGANConfig] = {
    "paper, shuffling off": replace(_PAPER, shuffle="off"),
    "paper": _PAPER,
    "full, step": _OURS,
    "full, contributor's gradients": replace(_OURS, bottom_gradients="contributor"),
    "decoys 4": replace(_OURS, index_privacy="decoys", decoys=4),
    "decoys 16": replace(_OURS, index_privacy="decoys", decoys=16),
    "none": replace(_OURS, index_privacy="none"),
}
FORM = "silosynth bench reconstruction"
TITLE = "What parties can infer from the messages of VT-GAN"
LEGEND = (
    "Each attack uses what its party is sent, and nothing else. A figure stands with its 95 % interval; chance is what "
    "guessing gives. Features are of the critic's bottom parts."
)


def run(
    federation: Federation,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    settings: Mapping[str, VTGANConfig] = SETTINGS,
    progress: Tell = lambda stage, share: None,
) -> Iterator[Row]:
    """Train each setting and attack it; a row per attack, with the setting's name and the attack's `PartyFinding`.

    ``options`` are VTGANConfig's, for all settings. The secret that silos shuffle by comes from the operating system:
    figures that depend on it differ from run to run, within what their intervals say.
    """
    for number, (name, config) in enumerate(settings.items()):

        def tell(done: Progress, name: str = name, number: int = number) -> None:
            progress(name, (number + done.done / max(1, done.total)) / len(settings))

        for finding in measure(federation, replace(config, **(options or {})), seed, tell):
            yield {"setting": name, **asdict(finding), "at_chance": finding.at_chance}


def measure(
    federation: Federation, config: VTGANConfig, seed: int,
    watch: Callable[[Progress], None] | None = None, also: Ear | None = None,
) -> list[PartyFinding]:  # fmt: skip
    """Train one setting and attack it; ``also`` is one more ear on the link."""
    return attack(overhear(federation, config, seed, watch, also), np.random.default_rng(seed))


def rows(sizes: Sizes, progress: Tell = lambda stage, share: None) -> Iterator[Row]:
    """The rows of all tables and repeats.

    Raises:
        ConfigError: a size is not positive, or there is no table.
        DataError, UnavailableError: a table is not known, or not on this machine.
    """
    for name in ("rows", "epochs", "repeats"):
        value = getattr(sizes, name)
        if value is not None and value < 1:
            raise ConfigError(f"The number of {name} must be at least 1", value)
    jobs = [(table, sizes.seed + repeat) for table in sizes.tables for repeat in range(sizes.repeats)]
    if not jobs:
        raise ConfigError("There must be a table to reconstruct", sizes.tables)
    for number, (table, seed) in enumerate(jobs):
        data = load(table, sizes.rows, seed)
        federation = simulate(data.train, in_order(data.columns, 2), data.kinds)
        options = {"epochs": sizes.epochs, "batch": min(BATCH, federation.rows)}

        def tell(stage: str, share: float, table: str = table, number: int = number) -> None:
            progress(f"{table} · {stage}", (number + share) / len(jobs))

        about = {"table": table, "rows": federation.rows, "epochs": sizes.epochs, "seed": seed}
        for row in run(federation, options, seed, SETTINGS, tell):
            yield {**about, **row}


def heads() -> list[str]:
    """Heads of the table that people see."""
    return ["table", "setting", "attacker", "attack", "value", "95 %", "chance", "meaning"]


def cells(row: Row) -> list[str]:
    """A row as people see it."""
    interval = "" if row["low"] is None else f"{row['low']:.3f}–{row['high']:.3f}"
    chance = "" if row["chance"] is None else f"{row['chance']:.4f}"
    if row["chance_low"] is not None:
        chance += f" ({row['chance_low']:.3f}–{row['chance_high']:.3f})"
    value = "nothing given" if row["value"] is None else f"{row['value']:.3f}"
    return [row["table"], row["setting"], row["attacker"], row["attack"], value, interval, chance, row["meaning"]]


def markdown(found: list[Row]) -> str:
    """A Markdown table, with a stamp."""
    lines = [heads(), ["---"] * len(heads()), *map(cells, found)]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    sizes = sorted({f"{row['table']}: {row['rows']:,} rows, {row['epochs']} epochs" for row in found})
    about = ", ".join([*sizes, *(f"{key} {value}" for key, value in stamp().items())])
    return f"# {TITLE}\n\n{LEGEND}\n\n{table}\n\n{about}\n"


def check(path: Path) -> None:
    """Refuse a file of results with another ending.

    Raises:
        ConfigError: it ends neither in .json nor in .md.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError("The file of results must end in .json or .md", str(path))


def save(path: Path, found: list[Row]) -> None:
    """Write the rows, as Markdown or JSON.

    Raises:
        ConfigError: the path ends otherwise.
        StorageError: it cannot be written.
    """
    check(path)
    content = {"form": FORM, "stamp": stamp(), "rows": found}
    text = markdown(found) if path.suffix.lower() == ".md" else json.dumps(content, indent=1, allow_nan=False) + "\n"
    files.write_atomic(path, text.encode())
