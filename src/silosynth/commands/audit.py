"""``silosynth audit``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from silosynth.commands.session import CsvOptions, ReportOptions, Session, add_command
from silosynth.core.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from silosynth.attacks import canaries, findings, generators, study

EXAMPLE = """Example: silosynth audit experiment.toml --records 200 --shadows 100 --processes 2 --folder audit

Any other generator: silosynth audit --train train.csv --fit "mytool {train} {out} {seed}" """


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "audit", audit, EXAMPLE)


def audit(
    ui: Session,
    csv: CsvOptions,
    to: ReportOptions,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE.toml]", help="An experiment file: tables, silos and algorithm.")
    ] = None,
    train: Annotated[Path | None, typer.Option(help="The training records, if no experiment file is given.")] = None,
    fit: Annotated[
        str | None,
        typer.Option(help="A command that trains and writes a table, from {train}, {out}, {seed}, {rows}."),
    ] = None,
    synthetic: Annotated[
        Path | None, typer.Option(help="A synthetic table, for attacks that need no training.")
    ] = None,
    holdout: Annotated[Path | None, typer.Option(help="Records of the same kind, not trained on.")] = None,
    reference: Annotated[
        Path | None, typer.Option(help="More such records, which attackers know. Default: a part of --holdout.")
    ] = None,
    attack: Annotated[
        list[str] | None,
        typer.Option("--attack", "-a", help="assd, asif, rivals, questions, canaries, one-run; may be repeated."),
    ] = None,
    records: Annotated[
        int | None, typer.Option(min=3, help="Train on this many random records; hold out the others.")
    ] = None,
    shadows: Annotated[int, typer.Option(min=10, help="Trainings with a record, and as many without it.")] = 100,
    rows: Annotated[int | None, typer.Option(min=1, help="Rows of each synthetic table. Default: 1000.")] = None,
    canaries: Annotated[int, typer.Option(min=3, help="Made-up records for the attack one-run.")] = 100,
    epsilon: Annotated[float | None, typer.Option(min=0, help="The epsilon that the --fit command claims.")] = None,
    delta: Annotated[float, typer.Option(min=0, max=1, help="The delta that goes with --epsilon.")] = 0.0,
    processes: Annotated[
        int, typer.Option("--processes", "-p", min=1, help="Trainings in parallel, one core each.")
    ] = 1,
    together: Annotated[int, typer.Option(min=1, help="Trainings of VFLGAN that each process runs in lockstep.")] = 25,
    folder: Annotated[
        Path, typer.Option(help="Where finished trainings are kept; the same command continues from there.")
    ] = Path("audit"),
    schema: Annotated[
        Path | None, typer.Option(help="With --train: a model or a TOML file that declares columns.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The seed of trainings and attackers.")] = 0,
) -> None:
    """Attack a generator or a synthetic table, and report what it reveals about training records."""
    from silosynth.attacks import membership, study
    from silosynth.attacks.canaries import Claim

    to.check()
    if (file is None) == (train is None):
        raise ConfigError("Name an experiment file, or the training records (--train)", remedy="Give one of them.")
    if file is not None and schema is not None:
        raise ConfigError("An experiment file declares its own columns", str(schema), "Leave --schema out.")
    if file is not None and csv != CsvOptions() and not (holdout or reference):
        rule = "An experiment file says how its tables are written"
        raise ConfigError(rule, "--separator, --decimal, --encoding or --missing", "Write them into [data].")
    claim = None if epsilon is None else Claim(epsilon, delta)
    paths = {"others": holdout, "reference": reference, "synthetic": synthetic}
    subject = _subject(ui, file, train, fit, paths, records, rows, claim, seed, schema, csv)
    attacks = attack or (["assd"] if subject.fit is not None else ["rivals", "questions"])
    ui.on_interrupt = f"The trainings so far are in {folder}; the same command continues."
    with ui.progress("Auditing") as progress:
        how = membership.Trainings(shadows, seed, folder, processes, together, progress, _announcing(ui))
        result = study.audit(subject, attacks, how, canaries)
    to.write(ui, result)
    for doubt in result.doubts:
        ui.note(f"warning: {doubt} What rivals and questions find may be no trace of training.")
    if result.about["left_out"]:
        ui.note(f"Identifiers and pseudonyms are left out: {', '.join(result.about['left_out'])}.")
    _show(ui, result.findings)
    for skipped in result.skipped:
        ui.note(f"{skipped.name} was not carried out: {skipped.why}")


def _announcing(ui: Session) -> Any:
    def announce(left: int, seconds: float) -> None:
        from silosynth.runtime.progress import duration

        ui.facts.setdefault("forecasts", []).append({"trainings": left, "seconds": seconds})
        ui.note(f"{left} training{'' if left == 1 else 's'} will take about {duration(seconds)} on this machine.")

    return announce


def _subject(
    ui: Session, file: Path | None, train: Path | None, command: str | None, paths: dict[str, Path | None],
    records: int | None, rows: int | None, claim: canaries.Claim | None, seed: int, schema: Path | None,
    csv: CsvOptions,
) -> study.Subject:  # fmt: skip
    """The records, the generator and the tables that attacks work on."""
    from silosynth.attacks import generators, study
    from silosynth.commands import tables

    real = {"train": train} | {name: path for name, path in paths.items() if name != "synthetic"}
    inputs: dict[str, Any] = tables.read_real(real, csv.to_dict())
    table, synthetic = inputs.pop("train"), paths["synthetic"]
    inputs["synthetic"] = None if synthetic is None else tables.read(synthetic)
    generator: generators.Fit | None = None if command is None else generators.Command(command, rows or 1000)
    silos = None
    if file is None:
        assert table is not None  # one of the two is given
        kinds: Any = tables.declared(ui, schema, list(table.columns))
    else:
        table, held_out, catalogued = _planned(ui, file, rows)
        kinds = catalogued.kinds
        generator, silos = generator or catalogued, list((catalogued.silos or {}).values())
        inputs["others"] = held_out if inputs["others"] is None else inputs["others"]
        claim = claim or _claimed(catalogued)
    table, rest = _drawn(table, records, seed)
    inputs["others"] = _together(inputs["others"], rest)
    if inputs["others"] is not None and inputs["reference"] is None and len(inputs["others"]) > 2 * len(table):
        inputs["others"], inputs["reference"] = _drawn(inputs["others"], len(table), seed + 1)
    return study.Subject(table, generator, silos=silos, claim=claim, schema=kinds, **inputs)


def _planned(
    ui: Session, file: Path, rows: int | None
) -> tuple[pd.DataFrame, pd.DataFrame | None, generators.Catalogued]:
    """The training records, the held-out ones, and the generator of an experiment file."""
    from silosynth import catalog
    from silosynth.attacks import generators
    from silosynth.commands import tables
    from silosynth.experiment import grammar

    plan = grammar.read(file)
    how, entry = plan.algorithm, catalog.algorithm(plan.algorithm.name)
    if plan.shares or tables.hold_rows(plan, entry):
        raise ConfigError(
            "An audit leaves out a row of all silos' columns; these silos hold different rows", how.name,
            "Audit with --train and --fit.",
        )  # fmt: skip
    entry.configure(how.preset, how.options)
    if plan.rules:
        ui.note("The generator is attacked without [[rules]]: its many trainings do not keep them.")
    material = tables.gather(plan)
    federation = material.federation(plan.overrides())
    kinds = {column.name: column.kind for column in federation.schema.columns}
    names = [name for name in material.train.columns if name in federation.schema.modelled]
    left_out = [name for name in federation.schema.names if name not in names]
    if left_out:
        ui.note(f"Identifiers and pseudonyms are left out: {', '.join(left_out)}.")
    silos = {silo: [c for c in held if c in names] for silo, held in material.silos.items()}
    fit = generators.Catalogued(how.name, how.preset, how.options, silos, {n: kinds[n] for n in names}, rows or 1000)
    return material.train[names], None if material.holdout is None else material.holdout[names], fit


def _claimed(fit: generators.Catalogued) -> canaries.Claim | None:
    """The privacy budget that the algorithm is configured for; None without differential privacy."""
    from silosynth import catalog
    from silosynth.attacks import canaries

    target = getattr(catalog.algorithm(fit.name).configure(fit.preset, fit.options), "dp", None)
    return None if target is None or not target.private else canaries.Claim(target.epsilon, target.delta)


def _drawn(table: pd.DataFrame, records: int | None, seed: int) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """``records`` records drawn at random, and the others."""
    import numpy as np

    from silosynth.core.streams import Streams

    if records is None or records >= len(table):
        return table, None
    order = Streams(seed).child("audit", "records").numpy().permutation(len(table))
    chosen = (np.sort(order[:records]), np.sort(order[records:]))
    first, rest = (table.iloc[rows].reset_index(drop=True) for rows in chosen)
    return first, rest


def _together(first: pd.DataFrame | None, second: pd.DataFrame | None) -> pd.DataFrame | None:
    import pandas as pd

    tables = [table for table in (first, second) if table is not None]
    return pd.concat(tables, ignore_index=True) if tables else None


def _show(ui: Session, results: Sequence[findings.Finding]) -> None:
    from silosynth.attacks import study

    lines = []
    for finding in results:
        score = finding.score
        detail = "; ".join(text for text in (study.rates(finding), study.claim(finding)) if text)
        value = f"{study.number(score, score.value)} {score.unit}".removesuffix(" %")
        lines.append((score.label, value, study.interval(score), study.number(score, score.floor), score.n, detail))
    ui.table("What attacks found", ("attack", "figure", "95 % interval", "guessing", "n", ""), lines)
