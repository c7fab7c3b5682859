"""``silosynth audit``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from silosynth.commands.session import Debug, Json, Quiet, Session, session
from silosynth.core.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from silosynth.attacks.canaries import Claim
    from silosynth.attacks.findings import Finding
    from silosynth.attacks.generators import Catalogued, Fit
    from silosynth.attacks.study import Subject

EXAMPLE = """Example: silosynth audit experiment.toml --records 200 --shadows 100 --processes 2 --folder audit

Any other generator: silosynth audit --train train.csv --fit "mytool {train} {out} {seed}" """

File = Annotated[
    Path | None, typer.Argument(metavar="[FILE.toml]", help="An experiment file: tables, silos and algorithm.")
]
Train = Annotated[Path | None, typer.Option("--train", help="The training records, where there is no file.")]
FitCommand = Annotated[
    str | None,
    typer.Option("--fit", help="A command that trains and makes a table: {train}, {out}, {seed}, {rows} stand in it."),
]
Synthetic = Annotated[
    Path | None, typer.Option("--synthetic", help="A synthetic table, for attacks that train nothing.")
]
Holdout = Annotated[Path | None, typer.Option("--holdout", help="Records of the same kind that were not trained on.")]
Reference = Annotated[
    Path | None, typer.Option("--reference", help="Further such records, which attackers know; else the rest of those.")
]
Attacks = Annotated[
    list[str] | None,
    typer.Option("--attack", "-a", help="assd, asif, rivals, questions, canaries, one-run; may be repeated."),
]
Records = Annotated[
    int | None, typer.Option("--records", min=3, help="Train on so many records, drawn at random; others are held out.")
]
Shadows = Annotated[int, typer.Option("--shadows", min=10, help="Trainings with a record, and as many without.")]
Rows = Annotated[int | None, typer.Option("--rows", min=1, help="Rows of each synthetic table. Default: 1000.")]
Canaries = Annotated[int, typer.Option("--canaries", min=3, help="Made-up records of the attack one-run.")]
Epsilon = Annotated[
    float | None,
    typer.Option("--epsilon", min=0, help="The epsilon that a --fit command states."),
]
Delta = Annotated[float, typer.Option("--delta", min=0, max=1, help="Its delta.")]
Processes = Annotated[int, typer.Option("--processes", "-p", min=1, help="Trainings side by side, one core each.")]
Together = Annotated[
    int, typer.Option("--together", min=1, help="Trainings of VFLGAN that a process carries out in lockstep.")
]
Folder = Annotated[
    Path, typer.Option("--folder", help="Where trainings are kept as they come; the same command goes on from there.")
]
Out = Annotated[Path | None, typer.Option("--report", help="File to write: .html with curves, or .json.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of trainings and attackers.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("audit", epilog=EXAMPLE)(audit)


def audit(
    file: File = None,
    train: Train = None,
    fit: FitCommand = None,
    synthetic: Synthetic = None,
    holdout: Holdout = None,
    reference: Reference = None,
    attack: Attacks = None,
    records: Records = None,
    shadows: Shadows = 100,
    rows: Rows = None,
    canaries: Canaries = 100,
    epsilon: Epsilon = None,
    delta: Delta = 0.0,
    processes: Processes = 1,
    together: Together = 25,
    folder: Folder = Path("audit"),
    report: Out = None,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Attack a generator, or a synthetic table, and say what that gives away about training records."""
    with session(as_json, quiet, debug) as say:
        from silosynth.attacks import study
        from silosynth.attacks.canaries import Claim
        from silosynth.attacks.membership import Trainings

        if (file is None) == (train is None):
            raise ConfigError("Name an experiment file, or the training records (--train)", remedy="Give one of them.")
        given = None if epsilon is None else Claim(epsilon, delta)
        paths = {"others": holdout, "reference": reference, "synthetic": synthetic}
        subject = _subject(file, train, fit, paths, records, rows, given, seed)
        attacks = attack or (["assd"] if subject.fit is not None else ["rivals", "questions"])
        say.on_interrupt = f"The trainings so far are in {folder}; the same command goes on."
        with say.progress("Auditing") as tell:
            how = Trainings(shadows, seed, folder, processes, together, tell, _announcing(say))
            found = study.audit(subject, attacks, how, canaries)
        if report is not None:
            found.save(report)
            say.note(f"Report: {report}")
        _show(say, found.findings)
        for absent in found.skipped:
            say.note(f"{absent.name} was not carried out: {absent.why}")
        say.facts |= found.to_dict() | ({} if report is None else {"path": str(report)})


def _announcing(say: Session) -> Any:
    def announce(left: int, seconds: float) -> None:
        from silosynth.simulation.pace import duration

        say.facts.setdefault("forecasts", []).append({"trainings": left, "seconds": seconds})
        say.note(f"{left} training{'' if left == 1 else 's'} will take about {duration(seconds)} on this machine.")

    return announce


def _subject(
    file: Path | None, train: Path | None, command: str | None, paths: dict[str, Path | None], records: int | None,
    rows: int | None, claim: Claim | None, seed: int,
) -> Subject:  # fmt: skip
    """What is attacked."""
    from silosynth.attacks.generators import Command
    from silosynth.attacks.study import Subject
    from silosynth.commands import tables

    given: dict[str, Any] = {name: None if path is None else tables.read(path) for name, path in paths.items()}
    generator: Fit | None = None if command is None else Command(command, rows or 1000)
    silos = None
    if file is None:
        assert train is not None  # one of the two is given
        table = tables.read(train)
    else:
        table, held_out, catalogued = _planned(file, rows)
        generator, silos = generator or catalogued, list((catalogued.silos or {}).values())
        given["others"] = held_out if given["others"] is None else given["others"]
        claim = claim or _claimed(catalogued)
    table, rest = _drawn(table, records, seed)
    given["others"] = _together(given["others"], rest)
    if given["others"] is not None and given["reference"] is None and len(given["others"]) > 2 * len(table):
        given["others"], given["reference"] = _drawn(given["others"], len(table), seed + 1)
    return Subject(table, generator, silos=silos, claim=claim, **given)


def _planned(file: Path, rows: int | None) -> tuple[pd.DataFrame, pd.DataFrame | None, Catalogued]:
    """The training records, those held out, and the generator that an experiment file names."""
    from silosynth import catalog
    from silosynth.attacks.generators import Catalogued
    from silosynth.commands import tables
    from silosynth.experiment import grammar as experiment

    plan = experiment.read(file)
    how, entry = plan.algorithm, catalog.algorithm(plan.algorithm.name)
    if entry.horizontal or plan.shares:
        raise ConfigError(
            "An audit leaves out a row of all silos' columns; these silos hold different rows", how.name,
            "Audit with --train and --fit.",
        )  # fmt: skip
    entry.configure(how.preset, how.options)
    material = tables.gather(plan)
    federation = material.federation(plan.overrides())
    kinds = {column.name: column.kind for column in federation.schema.columns}
    names = [name for name in material.train.columns if name in federation.schema.modelled]
    silos = {silo: [c for c in held if c in names] for silo, held in material.silos.items()}
    fit = Catalogued(how.name, how.preset, how.options, silos, {n: kinds[n] for n in names}, rows or 1000)
    return material.train[names], None if material.holdout is None else material.holdout[names], fit


def _claimed(fit: Catalogued) -> Claim | None:
    """The budget that the algorithm is asked to keep."""
    from silosynth import catalog
    from silosynth.attacks.canaries import Claim

    target = getattr(catalog.algorithm(fit.name).configure(fit.preset, fit.options), "dp", None)
    return None if target is None or not target.private else Claim(target.epsilon, target.delta)


def _drawn(table: pd.DataFrame, records: int | None, seed: int) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """So many records at random, and the others."""
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

    there = [table for table in (first, second) if table is not None]
    return pd.concat(there, ignore_index=True) if there else None


def _show(say: Session, findings: Sequence[Finding]) -> None:
    from silosynth.attacks import page

    lines = []
    for found in findings:
        score = found.score
        detail = "; ".join(text for text in (page.rates(found), page.claim(found)) if text)
        value = f"{page.number(score, score.value)} {score.unit}".removesuffix(" %")
        lines.append((score.label, value, page.interval(score), page.number(score, score.floor), score.n, detail))
    say.table("What attacks found", ("attack", "figure", "95 % interval", "guessing", "n", ""), lines)
