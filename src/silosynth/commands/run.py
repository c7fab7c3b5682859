"""``silosynth run``, ``demo``, ``sample``, ``impute`` and ``evaluate``: train, draw rows or cells, and measure."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import silosynth
from silosynth.commands.session import CsvOptions, Force, ReportOptions, Session, add_command, check_free
from silosynth.core.errors import ConfigError, DataError, StorageError, nearest

if TYPE_CHECKING:
    import pandas as pd

    from silosynth import Federation, Model, Report
    from silosynth.catalog import Algorithm
    from silosynth.commands.tables import Material
    from silosynth.core.conditions import Condition, Made
    from silosynth.core.schema import Schema
    from silosynth.experiment.grammar import Command, Experiment, SampleSection

MODEL = "model.silosynth"
LEDGER = "ledger.jsonl"
SCHEMA = "schema.toml"
EVALUATE = """Example: silosynth evaluate --train train.csv --holdout holdout.csv --synthetic synthetic.csv
--target income --report report.html

The table of a finished run, once more: silosynth evaluate experiment/"""
DEMO = """\
# Two organisations hold different columns on the same people, row by row.
# Change what you like and run it again: silosynth run {file}

[silos.insurer]
path = "insurer.csv"

[silos.clinic]
path = "clinic.csv"

[algorithm]
name = "silofuse"
preset = "fast" # better and slower: "balanced", "best"
seed = 7

[split]
holdout = 0.2 # the generator never sees these rows: the report needs them

[evaluate]
target = "{target}"

[output]
folder = "." # beside this file
"""


RawText = Annotated[bool, typer.Option("--raw-text", help="CSV: no apostrophe before what spreadsheets would run.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    add_command(app, "demo", demo, "Example: silosynth demo --out /tmp/demo")
    add_command(app, "run", run, "Example: silosynth run experiment.toml")
    add_command(app, "sample", sample, "Example: silosynth sample adult.silosynth -n 10000 -o synthetic.csv")
    add_command(app, "impute", impute, "Example: silosynth impute adult.silosynth patients.csv -o filled.csv")
    add_command(app, "evaluate", evaluate, EVALUATE)


def demo(
    ui: Session,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write to.")] = Path("silosynth-demo"),
    force: Force = False,
) -> None:
    """Train on two silos, sample and evaluate: takes under two minutes, needs no network and no configuration."""
    _check_free(out, [MODEL], resume=False, force=force)
    forget(out)  # left by an interrupted demonstration, perhaps of another version
    perform(ui, _prepare_demo(ui, out), force=force)


def _prepare_demo(ui: Session, out: Path) -> Path:
    """Write the silos' tables and the experiment file."""
    from silosynth.data import sources

    table = silosynth.datasets.demo()
    out.mkdir(parents=True, exist_ok=True)
    for silo, columns in table.silos.items():
        sources.write(table.frame[columns], out / f"{silo}.csv", raw_text=True)
    file = out / "experiment.toml"
    file.write_text(DEMO.format(file=file, target=table.target), encoding="utf-8")
    ui.note(f"{table.about}\nTwo silos, one experiment file: {file}\n")
    return file


def run(
    ui: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The experiment file.")],
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted run from its last checkpoint.")
    ] = False,
    force: Force = False,
    threads: Annotated[
        str,
        typer.Option(
            metavar="N|auto",
            help="Threads of the coordinator, whatever the file says; auto: the fastest number, with the results of 1.",
        ),
    ] = "",
) -> None:
    """Train, sample and evaluate as an experiment file says; results go to its output folder."""
    perform(ui, file, resume, force, threads)


def perform(ui: Session, file: Path, resume: bool = False, force: bool = False, threads: str = "") -> None:
    """Carry out an experiment file; with ``threads``, on as many instead of what it says."""
    from silosynth.commands import tables
    from silosynth.core.threads import check_threads
    from silosynth.experiment import grammar

    plan = grammar.read(file)
    note_unused(ui, plan, "run")
    if threads:
        number = check_threads(int(threads) if threads.isdecimal() else threads)
        plan = plan.model_copy(update={"algorithm": plan.algorithm.model_copy(update={"threads": number})})
    entry = _algorithm(file, plan)
    _check_free(plan.folder, [MODEL, plan.sample.path, plan.evaluate.report], resume, force)
    material = tables.gather(plan, entry.horizontal)
    federation = _federation(ui, plan, material, entry.central)
    _check_target(plan, federation)
    _check_sample(plan, federation, material.train)
    ui.on_interrupt = f"Continue with: silosynth run {file} --resume"
    model = _fit(ui, plan, federation, resume, force)
    _publish(ui, plan, material, federation, model)
    forget(plan.folder)  # there is nothing left to continue


def _check_free(folder: Path, results: Sequence[str], resume: bool, force: bool) -> None:
    """Refuse to overwrite a finished run's results, or the checkpoints of an interrupted one."""
    checkpoints = any(folder.glob("coordinator/*.ckpt"))
    if force or (checkpoints and resume):
        return
    if checkpoints:
        raise StorageError(
            "The output folder must not hold checkpoints of another run",
            str(folder),
            "Continue that run with --resume, start again with --force, or name another folder.",
        )
    for name in results:
        if (folder / name).exists():
            other = "The output folder must not hold the results of another run"
            rule = "Only a run that has not finished is resumed" if resume else other
            remedy = "Name another output folder, or overwrite them with --force."
            raise StorageError(rule, str(folder / name), remedy)


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
    from silosynth.commands import tables

    entry = catalog.algorithm(plan.algorithm.name)
    entry.configure(plan.algorithm.preset, plan.algorithm.options)
    entry = entry.divided(tables.hold_rows(plan, entry))
    for name, silo in plan.participants.items():
        if entry.horizontal and silo.share is None and silo.path is None and silo.group is None:
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
    """Refuse a target that cannot be predicted now, instead of after hours of training."""
    target, columns = plan.evaluate.target, federation.schema.modelled
    if target is not None and target not in columns:
        rule = f"{plan.source.name}: evaluate.target must be a column that is modelled"
        remedy = f"{nearest(target, columns)} Identifiers and pseudonyms are not modelled."
        raise ConfigError(rule, target, remedy)


def _check_sample(plan: Experiment, federation: Federation, train: pd.DataFrame) -> None:
    """Refuse what ``[sample]`` cannot ask for now, likewise."""
    from silosynth import catalog
    from silosynth.core.conditions import by_name, from_text, parse
    from silosynth.data.given import in_json

    asked, framed, columns, how = plan.sample, plan.given_rows(), federation.schema.modelled, plan.algorithm
    known, entry = _may_be_made(plan, federation.schema, train), catalog.algorithm(how.name)
    config = entry.configure(how.preset, how.options)
    least = entry.pools_below(config)
    for texts in framed or [in_json(asked.given) if isinstance(asked.given, dict) else ()]:
        by_name(texts, columns)
        given = {name: value for name, value in from_text(texts, known).items() if name in known}
        for condition in parse(given, known):
            _check_levels(condition, given[condition.column], train[condition.column], least)
    for name in (*([asked.balance] if asked.balance else []), *asked.shift):
        if name not in columns:
            raise ConfigError("Rows are grouped by one column that is modelled", name, nearest(name, columns))
    groups = [key for key, some in (("given", framed), ("balance", asked.balance), ("shift", asked.shift)) if some]
    if len(groups) > 1:
        raise ConfigError("Rows are grouped in one way", " and ".join(groups), "Leave one of them out of [sample].")
    if framed and asked.rows not in (None, len(framed)):
        rule = "A frame of conditions has one row for each synthetic row"
        raise ConfigError(rule, f"{len(framed)} rows for {asked.rows}", "Leave rows out of [sample].")
    if groups and catalog.partitioned(config):
        raise ConfigError("Columns that stay in their silos are drawn under the same conditions", groups[0], _SAME)
    if not framed:
        _check_shares(asked, given, known, train, least)


def _check_shares(
    asked: SampleSection, given: Mapping[str, Any], known: Mapping[str, Made], train: pd.DataFrame, least: int
) -> None:
    """Refuse a ``balance`` or ``shift`` that no model of these rows has."""
    from silosynth.core.streams import Streams
    from silosynth.simulation.groups import grouped

    names = [asked.balance] if asked.balance else [*asked.shift]
    named = all(isinstance(wanted, dict) for wanted in asked.shift.values())  # else one of two levels, one maybe (rare)
    if names and named and known.keys() >= set(names):
        grouped(1, given, asked.balance, asked.shift or None, known, Streams(0))
        for name, level in ((name, level) for name, wanted in asked.shift.items() for level in wanted):
            _check_levels(known[name].condition(level), level, train[name], least)


def _check_levels(condition: Condition, given: Any, column: pd.Series, least: int) -> None:
    """Refuse a condition that only levels of few rows fulfil: these are pooled, and no row is made with one by name."""
    from silosynth.encoders.column import RARE

    named = [value for value in condition.values if isinstance(value, str)]
    if not named or RARE in named or condition.missing:
        return
    if 0 < max(int((column == value).sum()) for value in named) < least:
        rule = f"Column {condition.column!r}: levels of fewer than {least} training rows are made as {RARE!r} only"
        raise ConfigError(rule, given, f"Ask for {RARE!r}, join such levels, or lower min_count of encoders.")


def _may_be_made(plan: Experiment, schema: Schema, train: pd.DataFrame) -> dict[str, Made]:
    """What a model may make of each column, levels that rows hold and numbers; without columns under rules."""
    from silosynth.core.conditions import Made
    from silosynth.core.schema import Kind
    from silosynth.data.infer import read_number
    from silosynth.encoders.column import RARE

    ruled, made = {name for rule in plan.ruled() for name in rule.named}, dict[str, Made]()
    for column in (schema[name] for name in schema.modelled if name not in ruled):
        levels = None if Kind(column.kind).numeric else tuple(train[column.name].dropna().unique().tolist())
        if levels and all(isinstance(level, str) for level in levels):
            levels = *levels, RARE
        whole = column.kind == Kind.INTEGER.value
        made[column.name] = Made(column.name, levels, None, None, True, partial(read_number, column), whole)
    return made


def _fit(ui: Session, plan: Experiment, federation: Federation, resume: bool, force: bool) -> Model:
    how = plan.algorithm
    limit = plan.run.limit if how.runtime == "processes" else None
    ui.note(f"Fitting {how.name} ({how.preset}) on {federation.rows:,} rows in {len(federation.silos)} silos …")
    model = silosynth.fit(
        how.name, federation, preset=how.preset, seed=how.seed, options=how.options, rules=plan.ruled(),
        runtime=how.runtime,
        limit=limit, missing=plan.run.missing, device=how.device, threads=how.threads, folder=plan.folder,
        resume=resume, overwrite=force, progress=ui.chatty,
    )  # fmt: skip
    model.save(plan.folder / MODEL)
    return model


def _publish(ui: Session, plan: Experiment, material: Material, federation: Federation, model: Model) -> None:
    from silosynth.commands import tables

    synthetic, written = _synthetic(plan, material, model)
    tables.keep_split(plan, material)
    report = _judged(ui, plan, material, synthetic, federation.schema, model)
    paths = {"model": MODEL, "report": plan.evaluate.report, "ledger": LEDGER, "schema": SCHEMA}
    places = {key: plan.folder / name for key, name in paths.items()}
    report.save(places["report"])
    totals = show_ledger(ui, model.ledger)
    show_acceptance(ui, model)
    privacy = model.describe()["privacy"]
    show_budget(ui, privacy)
    ui.show(f"Guarantee: {privacy['summary']}\n\n{report}\n")
    ui.show("\n".join(f"{key:<10} {path}" for key, path in [("synthetic", p) for p in written] + [*places.items()]))
    ui.facts |= {"folder": plan.folder, **places, "synthetic": written, "rows": len(synthetic)}
    ui.facts |= {key: report.to_dict()[key] for key in ("premises", "about", "scores")}
    ui.facts |= {"ledger_totals": totals}


def _judged(
    ui: Session, plan: Experiment, material: Material, synthetic: pd.DataFrame, schema: Schema, model: Model,
    target: str | None = None, seed: int = 0,
) -> Report:  # fmt: skip
    """The report on a synthetic table of a run; it takes columns as the run did."""
    names = [name for name in material.train.columns if name in schema.names]
    holdout = None if material.holdout is None else material.holdout[names]
    frames = {"train": material.train[names], "holdout": holdout, "synthetic": synthetic}
    about: dict[str, Any] = {"schema": schema, "model": model, "data": _data_name(plan), "rows": material.held_rows()}
    silos = None if material.groups else material.silos  # a model of groups says which there are
    return measure(ui, frames, target or plan.evaluate.target, silos, seed, **about)


def _data_name(plan: Experiment) -> str:
    """What the tables of an experiment are called: a data set, or files."""
    shared = [] if plan.data is None else [plan.data.dataset or plan.data.path]
    sources = [*shared, *(silo.path for silo in plan.participants.values())]
    return ", ".join(Path(source).name for source in sources if source is not None)


def _synthetic(plan: Experiment, material: Material, model: Model) -> tuple[pd.DataFrame, list[Path]]:
    """The synthetic table, for the evaluation, and the files it was written to."""
    import pandas as pd

    from silosynth.core import conditions
    from silosynth.data import sources

    asked, framed, out = plan.sample, plan.given_rows(), plan.folder / plan.sample.path
    rows = asked.rows or len(framed) or max(1, model.rows)  # which may be noised
    given: Any = asked.given or None
    if stays_in_silos(model):
        parts = model.sample_parts(rows, seed=asked.seed, given=given)
        return pd.concat(list(parts.values()), axis=1), write_parts(parts, out, asked.raw_text)
    if framed:
        given = [conditions.from_text(row, model.makes()) for row in framed]
    table: pd.DataFrame = model.sample(
        rows, seed=asked.seed, given=given, balance=asked.balance, shift=asked.shift or None
    )
    sources.write(table, out, asked.raw_text)
    return table, [out]


def read_ledger(path: Path) -> list[dict[str, Any]]:
    """A ledger's records of messages, without a last line that a killed process has left incomplete."""
    return records_in(path.read_text(encoding="utf-8"))


def records_in(text: str) -> list[dict[str, Any]]:
    """The records of messages in a ledger's text, without an incomplete last line."""
    records = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [record for record in records if "type" in record]  # a silo's own ledger has others as well


def show_ledger(ui: Session, ledger: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Show what left each silo; returns the ledger's totals, of the coordinator's messages as well."""
    from silosynth.core.conversation import COORDINATOR
    from silosynth.privacy.statement import totals

    lines = totals(ledger)
    outgoing = [line for line in lines if line["from"] != COORDINATOR]
    rows = [
        (line["from"], line["type"].rpartition(".")[2], line["messages"], line["bytes"], line["privacy"])
        for line in sorted(outgoing, key=lambda line: str(line["from"]))
    ]
    ui.table("What left each silo", ("silo", "message", "times", "bytes", "gives away"), rows)
    return lines


def show_budget(ui: Session, stated: Mapping[str, Any]) -> None:
    """The table of a privacy statement: what each silo noised, and the total, which is the guarantee's."""
    from silosynth.privacy.statement import PROTECTS, budget_rows, cell, mechanism

    rows = [
        (row["silo"], row["what"], row["count"], mechanism(row), cell(row["epsilon"]), cell(row["delta"]),
         PROTECTS.get(row["scope"], ""))
        for row in budget_rows(stated)
    ]  # fmt: skip
    if rows:
        ui.table("Privacy budget", ("silo", "event", "times", "mechanism", "epsilon", "delta", "protects"), rows)
    read = [
        f"{s} epsilon {cell(b['epsilon'])} at delta {cell(b['delta'])}"
        for s, b in stated["silos"].items()
        if b["epsilon"]
    ]
    if stated["release"] and read:
        ui.show(f"\nFor readers of each silo's messages: {'; '.join(read)}")


Balance = Annotated[str | None, typer.Option("--balance", help="A column of whose levels there are equally many rows.")]
Shift = Annotated[
    str | None,
    typer.Option(
        "--shift",
        help='Another share of a level, the rest as learnt: smoker=yes:0.4; or JSON: \'{"smoker": {"yes": 0.4}}\'.',
    ),
]


_SAME = "Give conditions that all rows fulfil: neither balance, shift nor conditions of each row."
GivenFrame = Annotated[
    Path | None,
    typer.Option(
        "--given-rows",
        help="A file of conditions, a row for each synthetic row, in its order: CSV, Parquet, …, or JSON. Cells are "
        "written as after COLUMN= of --given; empty ones are no conditions.",
    ),
]


def sample(
    ui: Session,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model file, written by a run or by model.save.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write: .csv, .csv.gz, .parquet, …")],
    rows: Annotated[int | None, typer.Option("--rows", "-n", min=1, help="How many rows to draw.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The same seed draws the same rows again.")] = None,
    given: Annotated[
        list[str] | None,
        typer.Option(
            help="A condition that all rows fulfil: health=poor, health=poor,fair, age=60..80, age=60.. or income= for "
            'no value; or JSON: \'{"age": {"low": 60}}\'. Repeat it for several columns.'
        ),
    ] = None,
    given_rows: GivenFrame = None,
    balance: Balance = None,
    shift: Shift = None,
    raw_text: RawText = False,
    force: Force = False,
) -> None:
    """Draw synthetic rows from a model file, batch by batch; a file per silo, if columns stay in their silos.

    Example: silosynth sample model.silosynth --rows 1000 --out made.csv --given health=poor --given age=60..80
    """
    from silosynth.core import conditions
    from silosynth.data import sources
    from silosynth.data.given import rows_in

    loaded = silosynth.load(model)
    if given and given_rows:
        rule = "Conditions are the same for all rows, or a row for each"
        raise ConfigError(rule, "--given and --given-rows", "Add a column to the file for conditions on all rows.")
    asked: Any = conditions.from_text(given, loaded.makes()) if given else None
    if given_rows is not None:
        asked = [conditions.from_text(row, loaded.makes()) for row in rows_in(given_rows)]
        rows = len(asked) if rows is None else rows
    if rows is None:
        raise ConfigError("A sample has a number of rows", "none", "Give --rows, or --given-rows.")
    how: dict[str, Any] = {"given": asked, "progress": ui.chatty and bool(asked or balance or shift)}
    apart, grouped = stays_in_silos(loaded), balance or shift or given_rows
    written = part_paths(list(loaded.roster), out) if apart else [out]
    check_free(written, force)
    if apart:
        if grouped:
            raise ConfigError("Columns that stay in their silos are drawn under the same conditions", grouped, _SAME)
        write_parts(loaded.sample_parts(rows, seed=seed, **how), out, raw_text)
    elif grouped:
        made = loaded.sample(rows, seed=seed, balance=balance, shift=read_shift(shift), **how)
        sources.write(made, out, raw_text)
    else:
        sources.write_batches(loaded.sample_batches(rows, seed=seed, **how), out, raw_text)
    ui.facts |= {"rows": rows, "columns": len(loaded.columns), "synthetic": [str(path) for path in written]}
    ui.show(f"{rows:,} synthetic rows of {len(loaded.columns)} columns: {', '.join(map(str, written))}")
    show_acceptance(ui, loaded)


def impute(
    ui: Session,
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="A model file; or a table of synthetic rows, as silosynth fetch writes it."
        ),
    ],
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="Rows with missing cells, of columns of the model.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write: .csv, .csv.gz, .parquet, …")],
    draws: Annotated[int, typer.Option(min=1, help="How many times each cell is drawn.")] = 5,
    each: Annotated[
        bool, typer.Option("--each", help="Write each draw too, to files of its own: filled-1.csv, …")
    ] = False,
    intervals: Annotated[
        Path | None, typer.Option(help="A file for the interval of each number, and the share of each level.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The same seed fills in the same values again.")] = None,
    raw_text: RawText = False,
    force: Force = False,
) -> None:
    """Fill in the missing cells of rows from what a model has learnt: by the median, or most frequent level, of draws.

    With a table of synthetic rows in its place nobody is asked for anything: at a silo, after silosynth fetch.

    Example: silosynth impute model.silosynth patients.csv -o filled.csv --intervals intervals.csv
    """
    from silosynth.commands import tables
    from silosynth.data import sources

    own = part_paths([str(number) for number in range(1, draws + 1)], out) if each else []
    written = [out, *own, *([intervals] if intervals else [])]
    check_free(written, force)
    rows = tables.read(table)
    if model.name.endswith(sources.SUFFIXES):
        found = silosynth.impute(rows, tables.read(model), draws, seed, progress=ui.chatty)
    else:
        found = silosynth.load(model).impute(rows, draws, seed, progress=ui.chatty)
    for path, frame in zip(written, [found.table, *found.draws[: len(own)], found.intervals], strict=False):
        sources.write(frame, path, raw_text)
    cells, names = len(found.intervals), [str(path) for path in written]
    ui.facts |= {"rows": len(rows), "cells": cells, "draws": draws, "filled": names}
    ui.show(f"{cells:,} missing cells of {len(rows):,} rows filled in, {draws} draws each: {', '.join(names)}")


def show_acceptance(ui: Session, model: Model) -> None:
    """Which share of the rows that were drawn kept all rules."""
    if model.acceptance is not None:
        ui.facts["acceptance"] = model.acceptance
        ui.show(f"Of the rows that were drawn, {model.acceptance:.2%} kept all {len(model.ruling.rules)} rules")


def read_shift(text: str | None) -> dict[str, Any] | None:
    """What ``--shift`` says: smoker=yes:0.4, smoker=0.4, or a JSON object."""
    if text is None:
        return None
    from silosynth.core import conditions

    if text.lstrip().startswith("{"):
        return conditions.from_text([text], {})
    name, _, rest = text.partition("=")
    level, colon, share = rest.rpartition(":")
    try:
        return {name: {level: float(share)}} if colon else {name: float(rest)}
    except ValueError as error:
        raise ConfigError("A shift is written COLUMN=LEVEL:SHARE", text, "Such as smoker=yes:0.4.") from error


def stays_in_silos(model: Model) -> bool:
    """Whether the model was trained so that synthetic columns stay where they are decoded."""
    from silosynth.catalog import partitioned

    return partitioned(model.config)


def write_parts(parts: Mapping[str, Any], out: Path, raw_text: bool = False) -> list[Path]:
    """Write each silo's synthetic columns to a file of its own: ``synthetic.csv`` becomes ``synthetic-bank.csv``."""
    from silosynth.data import sources

    written = part_paths(list(parts), out)
    for path, frame in zip(written, parts.values(), strict=True):
        sources.write(frame, path, raw_text)
    return written


def part_paths(silos: Sequence[str], out: Path) -> list[Path]:
    """Where `write_parts` writes each silo's columns."""
    ending = "".join(out.suffixes[-2:] if out.suffix.lower() == ".gz" else [out.suffix])
    return [out.with_name(f"{out.name.removesuffix(ending)}-{name}{ending}") for name in silos]


def evaluate(
    ui: Session,
    csv: CsvOptions,
    to: ReportOptions,
    folder: Annotated[
        Path | None, typer.Argument(metavar="[FOLDER]", help="The output folder of a run: its tables and columns.")
    ] = None,
    train: Annotated[Path | None, typer.Option(help="The real rows that the generator was trained on.")] = None,
    synthetic: Annotated[
        Path | None, typer.Option(help="The synthetic rows; with a folder, instead of those of the run.")
    ] = None,
    holdout: Annotated[Path | None, typer.Option(help="Real rows not trained on; some figures need them.")] = None,
    target: Annotated[str | None, typer.Option(help="The column that models learn to predict.")] = None,
    silos: Annotated[
        Path | None, typer.Option(help="An experiment file, to tell column pairs within a silo from others.")
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(help="What declares columns: a model, a run's schema.toml, or (default) the file of --silos."),
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="The model file that drew the rows: the report's head describes it.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The seed of subsamples and models.")] = 0,
) -> None:
    """Measure how useful a synthetic table is, and what it reveals."""
    from silosynth.commands import tables

    to.check()
    if folder is not None:
        given = csv.to_dict() | {"decimal": None if csv.decimal == "." else csv.decimal}
        _refuse_beside_a_run(train=train, holdout=holdout, silos=silos, schema=schema, model=model, **given)
        result = _of_run(ui, folder, synthetic, target, seed)
    elif train is None or synthetic is None:
        raise ConfigError(
            "An evaluation needs real and synthetic rows", remedy="Name a run's folder, or --train and --synthetic."
        )
    else:
        real = tables.read_real({"train": train, "holdout": holdout}, csv.to_dict())
        frames: dict[str, Any] = {**real, "synthetic": tables.read(synthetic)}
        columns = list(frames["train"].columns)
        about: dict[str, Any] = {"schema": tables.declared(ui, schema or silos, columns), "data": train.name}
        about["model"] = None if model is None else silosynth.load(model)
        result = measure(ui, frames, target, _silos(silos, columns), seed, **about)
    to.write(ui, result)
    ui.show(str(result))


def _refuse_beside_a_run(**options: Any) -> None:
    given = [f"--{name}" for name, value in options.items() if value is not None]
    if given:
        raise ConfigError(
            "A run's folder says what it was trained on", ", ".join(given), "Leave these out, or the folder."
        )


def _of_run(ui: Session, folder: Path, synthetic: Path | None, target: str | None, seed: int) -> Report:
    """The report on a finished run's synthetic table, or on another one, from the rows that the run was trained on."""
    import pandas as pd

    from silosynth import catalog
    from silosynth.commands import tables

    plan, held, digest = tables.kept_split(folder)
    material = tables.gather(plan, tables.hold_rows(plan, catalog.algorithm(plan.algorithm.name)), held)
    if material.digest() != digest:
        raise DataError(
            "The tables must be those that the run was trained on", f"{plan.source.name}: they have changed",
            "Restore them, or run again.",
        )  # fmt: skip
    model = silosynth.load(folder / MODEL)
    out = folder / plan.sample.path
    paths = [synthetic or out]
    if synthetic is None and stays_in_silos(model):
        paths = part_paths(list(model.roster), out)
    drawn = pd.concat([tables.read(path) for path in paths], axis=1)
    return _judged(ui, plan, material, drawn, model.schema, model, target, seed)


def measure(
    ui: Session,
    frames: Mapping[str, Any],
    target: str | None,
    silos: Mapping[str, Sequence[str]] | None,
    seed: int = 0,
    **about: Any,
) -> Report:
    """Evaluate, with a progress bar; ``about`` are arguments of `silosynth.evaluate` that describe the tables."""
    with ui.progress("Evaluating") as progress:
        return silosynth.evaluate(**frames, target=target, silos=silos, seed=seed, progress=progress, **about)


def _silos(file: Path | None, columns: Sequence[str]) -> dict[str, list[str]] | None:
    """The columns that each silo of an experiment file lists; None if silos hold rows."""
    if file is None:
        return None
    from silosynth import catalog
    from silosynth.commands import tables
    from silosynth.experiment import grammar

    plan = grammar.read(file)
    if plan.shares or tables.hold_rows(plan, catalog.algorithm(plan.algorithm.name)):
        return None
    silos = plan.participants
    bare = [name for name, silo in silos.items() if silo.columns is None]
    if bare:
        raise ConfigError(f"Silo {bare[0]!r} of {file.name} must list its columns", remedy="Add columns = […].")
    return {name: [c for c in silo.columns or () if c in columns] for name, silo in silos.items()}
