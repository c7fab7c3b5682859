"""``silosynth run``: carries out an experiment file; results go to one folder."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from silosynth.commands.session import Session, add_command
from silosynth.core.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from silosynth.catalog import Algorithm
    from silosynth.commands.tables import Material
    from silosynth.experiment.grammar import Command, Experiment
    from silosynth.simulation.federation import Federation
    from silosynth.simulation.model import Model

MODEL = "model.silosynth"
LEDGER = "ledger.jsonl"
SCHEMA = "schema.toml"

File = Annotated[Path, typer.Argument(metavar="FILE.toml", help="The experiment file.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue an interrupted run from its last checkpoint.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "run", run, "Example: silosynth run experiment.toml")


def run(ui: Session, file: File, resume: Resume = False) -> None:
    """Train, sample and evaluate as an experiment file says; results go to its output folder."""
    perform(ui, file, resume)


def perform(ui: Session, file: Path, resume: bool = False) -> None:
    """Carry out an experiment file."""
    from silosynth.commands import tables
    from silosynth.experiment import grammar as experiment

    plan = experiment.read(file)
    note_unused(ui, plan, "run")
    entry = _algorithm(file, plan)
    material = tables.gather(plan, entry.horizontal)
    federation = _federation(ui, plan, material, entry.central)
    _check_target(plan, federation)
    ui.on_interrupt = f"Continue with: silosynth run {file} --resume"
    model = _fit(ui, plan, federation, resume)
    _publish(ui, plan, material, federation, model)
    forget(plan.folder)  # there is nothing left to continue


def note_unused(ui: Session, plan: Experiment, command: Command) -> None:
    """Name what an experiment file says and a command does not use: as notes, and among the facts."""
    unused = plan.unused(command)
    for key, why in unused.items():
        ui.note(f"silosynth {command} does not use {key if '.' in key else f'[{key}]'}: {why}.")
    ui.facts["unused"] = list(unused)


def forget(folder: Path) -> None:
    """Remove the checkpoints of a run, and its secret seed."""
    from silosynth.runtime.checkpoint import SEED

    for name in ("coordinator", "parties"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / SEED).unlink(missing_ok=True)  # whoever has it knows the noise


def _algorithm(file: Path, plan: Experiment) -> Algorithm:
    """The experiment's algorithm, after checking its options and that it is for such silos."""
    from silosynth import catalog

    entry = catalog.algorithm(plan.algorithm.name)
    entry.configure(plan.algorithm.preset, plan.algorithm.options)
    for name, silo in plan.participants.items():
        if entry.horizontal and silo.share is None and silo.path is None:
            raise ConfigError(
                f"{file.name}: silos.{name}.columns deals out columns; algorithm {plan.algorithm.name!r} is for silos "
                "that hold different rows of the same columns",
                silo.columns,
                f"Give each silo a share or a path instead, or name another algorithm: {catalog.fitting(False)}.",
            )
        if silo.share is not None and not (entry.horizontal or entry.central):
            raise ConfigError(
                f"{file.name}: silos.{name}.share deals out rows; algorithm {plan.algorithm.name!r} is for silos that "
                "hold different columns of the same rows",
                silo.share,
                f"Give each silo columns instead, or name another algorithm: {catalog.fitting(True)}.",
            )
    return entry


def _federation(ui: Session, plan: Experiment, material: Material, central: bool) -> Federation:
    from silosynth.commands import tables

    federation = material.federation(plan.overrides())
    if central and (len(federation.silos) > 1 or federation.horizontal):
        what = "rows" if federation.horizontal else "columns"
        ui.note(f"{plan.algorithm.name} is a baseline that pools all {what} in one place.")
        federation = federation.central()
    tables.show_schema(ui, federation.schema, material.train)
    plan.folder.mkdir(parents=True, exist_ok=True)
    (plan.folder / SCHEMA).write_text(tables.schema_toml(federation.schema), encoding="utf-8")
    return federation


def _check_target(plan: Experiment, federation: Federation) -> None:
    """Refuse a target that does not exist now, instead of after hours of training."""
    target = plan.evaluate.target
    if target is not None:
        federation.schema[target]


def _fit(ui: Session, plan: Experiment, federation: Federation, resume: bool) -> Model:
    import silosynth

    how = plan.algorithm
    limit = plan.limit if how.runtime == "processes" else None
    ui.note(f"Fitting {how.name} ({how.preset}) on {federation.rows:,} rows in {len(federation.silos)} silos …")
    model = silosynth.fit(
        how.name, federation, preset=how.preset, seed=how.seed, options=how.options, runtime=how.runtime,
        limit=limit, missing=plan.missing, device=how.device, folder=plan.folder, resume=resume, progress=ui.chatty,
    )  # fmt: skip
    model.save(plan.folder / MODEL)
    return model


def _publish(ui: Session, plan: Experiment, material: Material, federation: Federation, model: Model) -> None:
    from silosynth.commands.evaluate import measure

    synthetic, written = _synthetic(plan, material, model)
    names = [name for name in material.train.columns if name in federation.schema.modelled]
    frames: dict[str, Any] = {"train": material.train[names], "synthetic": synthetic[names]}
    frames["holdout"] = None if material.holdout is None else material.holdout[names]
    silos = {silo: [c for c in held if c in names] for silo, held in material.silos.items()}
    report = measure(ui, frames, plan.evaluate.target, {s: held for s, held in silos.items() if held}, model.ledger)
    paths = {"model": MODEL, "report": plan.evaluate.report, "ledger": LEDGER, "schema": SCHEMA}
    places = {key: plan.folder / name for key, name in paths.items()}
    report.save(places["report"])
    show_ledger(ui, model.ledger)
    ui.show(f"Guarantee: {model.describe()['guarantee']}\n\n{report}\n")
    ui.show("\n".join(f"{key:<10} {path}" for key, path in [("synthetic", p) for p in written] + [*places.items()]))
    ui.facts |= {"folder": plan.folder, **places, "synthetic": written, "rows": len(synthetic)}
    ui.facts |= {"scores": report.to_dict()["scores"], "ledger_totals": totals(model.ledger)}


def _synthetic(plan: Experiment, material: Material, model: Model) -> tuple[pd.DataFrame, list[Path]]:
    """The synthetic table, for the evaluation, and the files it was written to."""
    import pandas as pd

    from silosynth.commands.sample import stays_in_silos, write_parts
    from silosynth.data import sources

    rows, out = plan.sample.rows or max(1, model.rows), plan.folder / plan.sample.path  # `rows` may be noised
    if stays_in_silos(model):
        parts = model.sample_parts(rows, seed=plan.sample_seed)
        return pd.concat(list(parts.values()), axis=1), write_parts(parts, out)
    table: pd.DataFrame = model.sample(rows, seed=plan.sample_seed)
    sources.write(table, out)
    return table, [out]


def totals(ledger: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages and bytes per sender, receiver and type, with what the type reveals."""
    sums: dict[tuple[str, ...], list[int]] = {}
    for record in ledger:
        route = (record["from"], record["to"], record["type"], record["privacy"])
        count = sums.setdefault(route, [0, 0])
        count[0] += 1
        count[1] += record["bytes"]
    keys = ("from", "to", "type", "privacy")
    return [dict(zip(keys, route, strict=True)) | {"messages": n, "bytes": b} for route, (n, b) in sums.items()]


def show_ledger(ui: Session, ledger: Sequence[Mapping[str, Any]], coordinator: str = "coordinator") -> None:
    """Show what left each silo."""
    outgoing = [line for line in totals(ledger) if line["from"] != coordinator]
    rows = [
        (line["from"], line["type"].rpartition(".")[2], line["messages"], line["bytes"], line["privacy"])
        for line in sorted(outgoing, key=lambda line: str(line["from"]))
    ]
    ui.table("What left each silo", ("silo", "message", "times", "bytes", "gives away"), rows)
