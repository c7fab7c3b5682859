"""``silosynth inspect`` (a table, a model, an experiment file, a run's folder) and ``silosynth datasets``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import silosynth
from silosynth.commands import run
from silosynth.commands.session import CsvOptions, Force, Session, add_command, check_free
from silosynth.core.errors import DataError
from silosynth.core.files import existing

if TYPE_CHECKING:
    from silosynth.core.schema import Schema, Table
    from silosynth.deployment.protocol import Job

EXAMPLE = """Example: silosynth inspect table.csv

Model files, experiment files and the output folders of runs can be inspected the same way."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    add_command(app, "inspect", inspect, EXAMPLE)
    group = typer.Typer(help="Public data sets to experiment with.", epilog="Example: silosynth datasets list")
    add_command(group, "list", list_, "Example: silosynth datasets list --json")
    add_command(group, "fetch", fetch, "Example: silosynth datasets fetch adult -o adult.csv")
    app.add_typer(group, name="datasets", no_args_is_help=True)


def inspect(
    ui: Session,
    csv: CsvOptions,
    path: Annotated[Path, typer.Argument(help="A table, a model, an experiment file, or a run's output folder.")],
) -> None:
    """Show what a table, a model, an experiment file or a run's folder holds."""
    if path.is_dir() and not _is_parquet(path):
        _folder(ui, path)
    elif path.is_dir():
        _table(ui, path, csv.to_dict())
    elif path.suffix.lower() == ".toml":
        _experiment(ui, path)
    elif _is_model(path):
        _model(ui, path)
    else:
        _table(ui, path, csv.to_dict())


def _is_parquet(folder: Path) -> bool:
    """Whether a folder is a table of Parquet files, rather than a run's."""
    from silosynth.data import sources

    held = any((folder / name).exists() for name in (run.MODEL, run.LEDGER))
    return sources.holds_parquet(folder) and not held


def _is_model(path: Path) -> bool:
    with existing(path).open("rb") as file:
        return path.suffix.lower() == ".silosynth" or file.read(9) == b"silosynth"


def _table(ui: Session, path: Path, csv: Mapping[str, Any]) -> None:
    from silosynth.commands import tables
    from silosynth.data import sources
    from silosynth.data.csvfiles import CsvFormat
    from silosynth.data.frames import to_table
    from silosynth.data.infer import cautions, infer

    frame = tables.read(path, **csv)
    ui.facts |= {"kind": "table", "path": str(path), "rows": len(frame)}
    ui.show(f"{path}: {len(frame):,} rows, {len(frame.columns)} columns\n")
    schema = infer(frame)
    tables.show_schema(ui, schema, frame)
    ui.facts["missing"] = sources.missing_texts(path, CsvFormat(**csv))
    named = {name: marks for name, marks in ui.facts["missing"].items() if set(marks) != {""}}
    if named:
        ui.show()
        lines = [(name, mark or "(empty field)", n) for name, marks in named.items() for mark, n in marks.items()]
        ui.table("Read as missing values", ("column", "text", "rows"), lines)
    held = to_table(frame, schema)
    ui.facts["cautions"] = cautions(schema, held)
    for text in ui.facts["cautions"]:
        ui.show(f"\n{text}.")
    _propose(ui, held, schema)


def _propose(ui: Session, table: Table, schema: Schema) -> None:
    """The rules that all rows keep, as a block to be judged, and put into an experiment file."""
    from silosynth.core.rules import to_mapping
    from silosynth.evaluation.proposals import propose, to_toml

    found = propose(table, schema)
    ui.facts["rules"] = [to_mapping(rule) for rule in found]
    if found:
        ui.show(
            "\nAll rows keep these rules, more than chance explains. Put those that are true, and may be public, into "
            "an experiment file: every synthetic row then keeps them.\n"
        )
        ui.show(to_toml(found, schema))


def _experiment(ui: Session, path: Path) -> None:
    from silosynth.experiment import grammar

    content = grammar.read(path).to_dict()
    ui.facts |= {"kind": "experiment", "path": str(path), "experiment": content}
    ui.show(f"{path} is a valid experiment file. With all defaults filled in:\n")
    for line in _lines(content):
        ui.show(line)


def _lines(content: Mapping[str, Any], path: str = "") -> list[str]:
    """Settings as ``section.key = value``."""
    lines = []
    for name, value in content.items():
        key = f"{path}.{name}" if path else name
        lines += _lines(value, key) if isinstance(value, Mapping) else [f"{key} = {_toml(value)}"]
    return lines


def _toml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _model(ui: Session, path: Path) -> None:
    from silosynth.simulation.model import seed_in_words

    model = silosynth.load(path)
    facts = model.describe()
    ui.facts |= {"kind": "model", "path": str(path), **facts, "ledger_totals": facts["sent"]}
    seed = seed_in_words(facts["seed"], facts["seeded"])
    ui.show(f"{path}: {facts['algorithm']}, preset {facts['preset']}, {seed}, {facts['rows']:,} rows\n")
    ui.table("Silos", ("silo", "columns"), [(name, ", ".join(held)) for name, held in facts["silos"].items()])
    ui.show()
    run.show_ledger(ui, model.ledger)
    if facts["pooled"]:
        ui.show(f"\nRare levels are pooled in: {', '.join(facts['pooled'])}")
    _privacy(ui, facts["privacy"])


def _privacy(ui: Session, stated: Mapping[str, Any]) -> None:
    """Which releases are noised, what they cost and what they protect."""
    from silosynth.privacy.statement import COVERS, LEAVES_OUT, PROTECTS

    if stated["silos"]:
        ui.show()
        run.show_budget(ui, stated)
        ui.show()
        scopes = dict.fromkeys(event["scope"] for budget in stated["silos"].values() for event in budget["events"])
        scopes_shown = [(PROTECTS[scope], COVERS[scope], LEAVES_OUT[scope]) for scope in scopes]
        ui.table("What noise protects", ("protects", "covers", "does not cover"), scopes_shown)
    for text in filter(None, (f"Guarantee: {stated['summary']}", stated["covers"], stated["rest"])):
        ui.show(f"\n{text}")


def _folder(ui: Session, path: Path) -> None:
    from silosynth.deployment.coordinator import ORDER
    from silosynth.deployment.kept import statement_of
    from silosynth.privacy.statement import known_noise, statement
    from silosynth.runtime.checkpoint import SEED

    job = _job_of(path)
    ui.facts |= {"kind": "run", "path": str(path), **(_state(path) if job is None else _job_state(path, job))}
    ui.show(f"{path}: {ui.facts['state']}")
    for name in ui.facts["files"]:
        ui.show(f"  {name}")
    if "options" in ui.facts:
        told = {key: ui.facts[key] for key in ("algorithm", "preset", "silos", "submitter", "seed", "rows", "options")}
        ui.show("\n" + "\n".join(_lines(told)))
    records = run.read_ledger(path / run.LEDGER) if run.LEDGER in ui.facts["files"] else []
    ui.facts["ledger_totals"] = []
    if records:
        ui.show()
        ui.facts["ledger_totals"] = run.show_ledger(ui, records)
        if run.MODEL in ui.facts["files"]:
            ui.facts["privacy"] = silosynth.load(path / run.MODEL).describe()["privacy"]
        elif job is not None:
            ui.facts["privacy"] = statement_of(job, records, own=not (path / ORDER).exists())
        else:  # a run with a secret seed keeps it until it has ended
            ui.facts["privacy"] = statement(records if (path / SEED).exists() else known_noise(records))
        _privacy(ui, ui.facts["privacy"])


def _job_of(folder: Path) -> Job | None:
    """The federation's job whose folder this is, as the coordinator or a silo keeps it; None of other folders."""
    from silosynth.deployment import coordinator, kept

    order = folder / coordinator.ORDER
    return coordinator.unpack_order(order.read_bytes()).job if order.exists() else kept.kept_job(folder)


def _job_state(folder: Path, job: Job) -> dict[str, Any]:
    """What the job of a folder was, and what became of it."""
    from silosynth.core import messages
    from silosynth.deployment import coordinator, kept, label
    from silosynth.deployment.forgetting import when_forgotten

    gone = when_forgotten(folder)
    if gone is not None:
        state = f"forgotten, {gone}"
    elif (folder / coordinator.STATUS).exists():
        state = coordinator.read_status(folder).state
    else:
        state = "trained" if (folder / kept.PART).exists() else "not trained here, or not yet"
    options = messages.to_state(job.config)["fields"]
    about: dict[str, Any] = {
        "job": job.name,
        "algorithm": job.algorithm,
        "preset": job.preset,
        "silos": list(job.silos),
    }
    about |= {"submitter": job.submitter, "rows": job.rows, "options": label.plain(options)}
    about["seed"] = "secret" if job.training_seed is None else "public"
    if job.drawing is not None:
        state, about["drawn_from"] = state.replace("not trained here, or not yet", "drawn"), job.drawing.job
    files = sorted(entry.name for entry in folder.iterdir() if entry.is_file() and not entry.name.startswith("."))
    checkpoints = len([*folder.glob("coordinator/*.ckpt"), *folder.glob("checkpoints/*.ckpt")])
    return {"state": f"job {job.name}, {state}", "files": files, "checkpoints": checkpoints, **about}


def _state(folder: Path) -> dict[str, Any]:
    files = sorted(entry.name for entry in folder.iterdir() if entry.is_file() and not entry.name.startswith("."))
    checkpoints = [path.stat().st_mtime for path in folder.glob("**/coordinator/*.ckpt")]
    if run.MODEL in files and (folder / run.MODEL).stat().st_mtime >= max(checkpoints, default=0.0):
        state = "finished"
    elif checkpoints:
        state = "interrupted; `silosynth run FILE.toml --resume` continues it"
    elif run.LEDGER in files:
        state = "started; no checkpoint yet"
    else:
        raise DataError(
            "A run's folder holds a model, checkpoints or a ledger", str(folder), "Name the output folder of a run."
        )
    return {"state": state, "files": files, "checkpoints": len(checkpoints)}


def list_(ui: Session) -> None:
    """List all known data sets."""
    known = [silosynth.datasets.info(name) for name in silosynth.datasets.names()]
    rows = [(info.name, info.rows, len(info.columns), info.target, info.licence) for info in known]
    heads = ("name", "rows", "columns", "target", "licence")
    ui.table("Data sets", heads, rows)
    ui.facts["datasets"] = [
        dict(zip(heads, row, strict=True)) | {"source": info.source, "citation": info.citation}
        for row, info in zip(rows, known, strict=True)
    ]


def fetch(
    ui: Session,
    name: Annotated[str, typer.Argument(help="A name that `silosynth datasets list` shows.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Also write it to this file, .csv or .parquet.")
    ] = None,
    force: Force = False,
) -> None:
    """Download a data set from its publisher, check it, and keep it."""
    from silosynth.data import sources

    check_free([] if out is None else [out], force)
    frame, info = silosynth.datasets.load(name, return_info=True)
    if out is not None:
        sources.write(frame, out, raw_text=True)
    ui.facts |= {"name": name, "rows": len(frame), "columns": list(frame.columns), "path": out}
    ui.show(f"{name}: {len(frame):,} rows, {len(frame.columns)} columns. {info.source}; licence: {info.licence}.")
    ui.show(f"Written to {out}" if out else f'Use it with: [data] dataset = "{name}"')
