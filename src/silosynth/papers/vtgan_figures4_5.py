"""What each party can infer from the messages of a VT-GAN training: its paper's figures 4 and 5, and what these omit.

Seven settings of row numbers, lists, gradients and renumbering are trained on the same two silos (columns in file
order, half each), and attacked (`silosynth.attacks.inference`) with what each party was sent. The secret that silos
shuffle by comes from the operating system: figures that depend on it differ from run to run, within their intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from silosynth.algorithms.vtgan.options import PRESETS, VTGANConfig
from silosynth.attacks.findings import PartyFinding
from silosynth.attacks.inference import attack
from silosynth.attacks.listening import Ear, overhear
from silosynth.core.conversation import Progress
from silosynth.papers import drawings, experiment, settings, tables
from silosynth.papers.experiment import Ask, PaperExperiment, PaperJob, Repeats, Row, Section, Seed, Tell
from silosynth.papers.settings import BATCH, Epochs, RowCount, TableNames
from silosynth.simulation.federation import Federation

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
HEADS = ("table", "setting", "attacker", "attack", "value", "95 %", "chance")


@dataclass(frozen=True)
class ReconstructionJob(PaperJob):
    """A training in one of the `SETTINGS`, attacked."""

    table: str
    setting: str
    rows: int | None
    epochs: int
    seed: int


def jobs(
    tables: TableNames = ("loan",), rows: RowCount = 1500, epochs: Epochs = 10,
    setting: Annotated[Sequence[str], Ask("; ".join(SETTINGS), ("--setting",))] = tuple(SETTINGS),
    repeats: Repeats = 1, seed: Seed = 0,
) -> list[ReconstructionJob]:  # fmt: skip
    """Every setting that is named, table by table.

    Raises:
        ConfigError: a size is not positive, or there is no table, or no such setting.
    """
    experiment.check_known("setting", setting, tuple(SETTINGS))
    experiment.check_positive(rows=rows, epochs=epochs, repeats=repeats, tables=len(tables))
    return [
        ReconstructionJob(table, name, rows, epochs, seed + repeat)
        for table in dict.fromkeys(tables)
        for repeat in range(repeats)
        for name in setting
    ]


def measure(job: ReconstructionJob, tell: Tell = lambda stage, share: None) -> Row:
    """Train the setting and attack it: a row with all findings.

    Raises:
        DataError, UnavailableError: the table is not known, or not on this machine.
    """
    data = tables.load(job.table, job.rows, job.seed)
    federation = tables.in_silos(data.train, 2, data.kinds)
    config = replace(SETTINGS[job.setting], epochs=job.epochs, batch=min(BATCH, federation.rows))
    findings = attacked(federation, config, job.seed, experiment.watch(tell))
    return {**job.identity, "findings": [{**asdict(f), "at_chance": f.at_chance} for f in findings]}


def attacked(
    federation: Federation, config: VTGANConfig, seed: int, progress: Callable[[Progress], None] | None = None,
    also: Ear | None = None,
) -> list[PartyFinding]:  # fmt: skip
    """Train and attack; ``also`` is one more ear on the link."""
    return attack(overhear(federation, config, seed, progress, also), np.random.default_rng(seed))


def sections(rows: Sequence[Row]) -> list[Section]:
    """Findings by table and sizes; and what they mean."""
    parts: dict[str, list[list[str]]] = {}
    meanings: dict[str, str] = {}
    for row in rows:
        lines = parts.setdefault(f"{row['rows'] or 'all'} rows, {row['epochs']} epochs, seed {row['seed']}", [])
        lines += [[row["table"], row["setting"], *_cells(finding)] for finding in row["findings"]]
        meanings |= {finding["attack"]: finding["meaning"] for finding in row["findings"]}
    legend = ("Attacks", ("attack", "meaning"), [list(item) for item in meanings.items()])
    return [*((heading, HEADS, lines) for heading, lines in parts.items()), legend]


def _cells(finding: Mapping[str, Any]) -> list[str]:
    interval = "" if finding["low"] is None else f"{finding['low']:.3f}–{finding['high']:.3f}"
    chance = "" if finding["chance"] is None else f"{finding['chance']:.4f}"
    if finding["chance_low"] is not None:
        chance += f" ({finding['chance_low']:.3f}–{finding['chance_high']:.3f})"
    value = "nothing sent" if finding["value"] is None else f"{finding['value']:.3f}"
    return [finding["attacker"], finding["attack"], value, interval, chance]


def line(row: Row) -> str:
    """The values of a setting's attacks."""
    values = [f"{f['attack']} {f['value']:.3f}" for f in row["findings"] if f["value"] is not None]
    return f"{row['table']} · {row['setting']}: {'; '.join(values)}"


def pictures(rows: Sequence[Row], page: Path) -> list[str]:
    """The values of all attacks by setting, a panel for each attack."""
    flat = [
        {"table": row["table"], "setting": row["setting"], f"{one['attacker']}: {one['attack']}": one["value"]}
        for row in rows
        for one in row["findings"]
    ]
    attacks = dict.fromkeys(key for row in flat for key in row if key not in ("table", "setting"))
    found = drawings.panels(
        flat, {attack: attack for attack in attacks}, lambda row: row["setting"], lambda row: str(row["table"]), ""
    )
    return drawings.beside(page, drawings.wrapped(found), "What attacks find by setting")


EXPERIMENT = PaperExperiment(
    "reconstruction",
    "What parties can infer from the messages of VT-GAN",
    "Each attack uses what its party is sent, and nothing else. A figure stands with its 95 % interval; chance is what "
    "guessing gives. Features are of the critic's bottom parts.",
    jobs, measure, sections, kept=({"tables": ("loan", "adult"), "rows": 5000, "epochs": 15},),
    published=settings.PAPER, line=line, pictures=pictures, example="--table adult --rows 5000 --epochs 50",
    figures=lambda row: {f"{one['attacker']}, {one['attack']}": one["value"] for one in row["findings"]},
)  # fmt: skip
