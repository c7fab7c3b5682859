"""``silosynth papers``: every table and figure of the five papers' evaluations: what is kept, and a run of each.

``run`` has a command per table or figure; its options are what the experiment's `jobs` takes.
"""

from __future__ import annotations

import inspect
import json
import secrets
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperGroup

from silosynth.commands.session import Debug, Json, Quiet, Session, add_command, session
from silosynth.core.errors import ConfigError, ReproductionError, SilosynthError, StorageError, nearest
from silosynth.papers import published

if TYPE_CHECKING:
    from silosynth.papers.check import ComputedAgain
    from silosynth.papers.experiment import PaperExperiment, Size
    from silosynth.papers.published import Published
    from silosynth.papers.results import Results

PaperName = Annotated[
    str | None, typer.Argument(help="silofuse, vtgan, vflgan, gdts, tabvfl, or beside for ours; all if not given.")
]
EntryName = Annotated[str, typer.Argument(metavar="NAME", help="Paper and number: silofuse/table-3.")]
CheckedName = Annotated[str | None, typer.Argument(metavar="NAME", help="Paper and number; all if not given.")]
Count = Annotated[int, typer.Option("--count", "-n", min=1, help="Rows to compute.")]
Draw = Annotated[
    int | None, typer.Option("--draw", min=0, help="The same rows for the same number. At random if not given.")
]
Longest = Annotated[float, typer.Option("--longest", min=0, help="Leave out rows that took more seconds than this.")]
PageFile = Annotated[Path, typer.Option("--out", "-o", help="The file to write.")]
COMMON: Mapping[str, Any] = {  # options of every run
    "size": Annotated[
        Literal["small", "kept", "published"],
        typer.Option("--size", help="small: minutes; kept: our results, or those named; published: the paper's."),
    ],
    "processes": Annotated[int, typer.Option("--jobs", "-j", min=1, help="Rows computed side by side, one core each.")],
    "again": Annotated[bool, typer.Option("--again", help="Compute rows that are in the file once more.")],
    "show": Annotated[bool, typer.Option("--show", help="Compute nothing; write and show what is in the file.")],
    "out": Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="File to write, .json or .md, row by row; the same command continues it. "
            f"Without it: {published.FOLDER}/EXPERIMENT-SIZE.md.",
        ),
    ],
    "as_json": Json, "quiet": Quiet, "debug": Debug,
}  # fmt: skip
DEFAULTS = {"size": "small", "processes": 1, "again": False, "show": False, "out": None}


class Runs(TyperGroup):
    """A command per entry with an experiment, which is loaded when the command runs, so that help is quick."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names."""
        return [entry.name for entry in published.ENTRIES if entry.experiment]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command that can be listed; see `resolve_command` for one that runs."""
        entry = _entry(cmd_name)
        return None if entry is None else _command(entry, lambda: None)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is called."""
        if args and _entry(args[0]) is None and not args[0].startswith("-"):
            ctx.fail(f"There is no such table or figure: {args[0]!r}. {nearest(args[0], self.list_commands(ctx))}")
        name, command, rest = super().resolve_command(ctx, args)
        entry = _entry(name or "")
        if entry is None or command is None:
            return name, command, rest
        from silosynth.papers.experiment import load

        experiment = load(str(entry.experiment))
        epilog = f"Example: silosynth papers run {name} {experiment.example}".rstrip()
        return name, _command(entry, _callback(entry, experiment), epilog), rest


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        help="The papers' tables and figures: what is kept of each, and a command that reruns it.",
        epilog="Example: silosynth papers list silofuse",
    )
    add_command(group, "list", list_entries, "Example: silosynth papers list silofuse")
    add_command(group, "show", show, "Example: silosynth papers show silofuse/table-3")
    add_command(group, "check", check, "Example: silosynth papers check silofuse/table-3 --count 1")
    add_command(group, "page", page, "Example: silosynth papers page --out docs/papers.md")
    runs = typer.Typer(
        cls=Runs, help="Rerun a table or figure, small by default.",
        epilog="Example: silosynth papers run silofuse/table-3 --size kept --jobs 2",
    )  # fmt: skip
    runs.callback()(lambda: None)
    group.add_typer(runs, name="run", no_args_is_help=True)
    app.add_typer(group, name="papers", no_args_is_help=True)


def list_entries(ui: Session, paper: PaperName = None) -> None:
    """List every published table and figure: its sizes, what is kept of it, and how long that takes."""
    from silosynth.papers import registry

    found = [registry.facts(one) for one in registry.entries(paper)]
    rows = [
        (one["name"], one["shows"], "; ".join(filter(None, (one["published_sizes"], one["hours"]))),
         _kept(one["name"]), one["state"], one["seconds"])
        for one in found
    ]  # fmt: skip
    heads = ("name", "what it shows", "published", "kept", "state", "kept took, s")
    ui.table("Published tables and figures", heads, rows)
    counts = {state: sum(one["state"] == state for one in found) for state in registry.STATES}
    ui.show("\n".join(f"{counts[state]:3} {state}: {what}" for state, what in registry.STATES.items()))
    ui.facts |= {"entries": found, "counts": counts}


def _kept(name: str) -> str:
    from silosynth.papers import registry

    entry = registry.find(name)
    told = {file: registry.sizes(registry.own_rows(entry, file), brief=True) for file in entry.kept}
    return "; ".join(f"{file}: {sizes or 'the page only'}" for file, sizes in told.items())


def show(ui: Session, name: EntryName) -> None:
    """Show a table or figure: what is published, the command that reruns it, kept results, and what deviates."""
    from silosynth.papers import registry
    from silosynth.papers.results import plainly

    entry = registry.find(name)
    known = registry.facts(entry)
    ui.show(f"{known['paper']}, {entry.title}: {entry.shows}\n")
    told = {
        "tables" if entry.paper == "beside" else "published": entry.sizes,
        "takes": entry.hours and f"at size published {entry.hours}",
        "command": entry.command,
        "deviates": entry.deviates,
        "missing": entry.missing,
    }
    for head, text in told.items():
        if text:
            ui.show(f"{head + ':':<11}{text}")
    for kept in known["kept"]:
        ui.show(f"kept:      {kept['page']}" + (f" ({kept['sizes']})" if kept["sizes"] else ""))
    for kept in entry.kept:
        tables = registry.kept_tables(entry, kept)
        ui.show(f"\n{plainly(tables)}" if tables else "Results are in the repository; this installation has none.")
    ui.facts |= known


def check(
    ui: Session, name: CheckedName = None, count: Count = 3, draw: Draw = None, longest: Longest = 600.0
) -> None:  # fmt: skip
    """Compute kept rows again, drawn at random, and say whether they come out as they are kept.

    Each has its own seed again: it comes out the same or, on another machine or by another version, about as seeds do.
    """
    from silosynth.papers import check as kept, experiment, registry

    entries = registry.entries() if name is None else [registry.find(name)]
    draw = secrets.randbelow(10_000) if draw is None else draw
    chosen, among, longer = kept.draw(entries, count, draw, longest)
    left = f"; {longer} more took longer than {longest:g} s (--longest)" if longer else ""
    ui.note(f"{len(chosen)} of {among} kept rows (--draw {draw}){left}. They took {sum(r.took for r in chosen):.0f} s.")
    ui.on_interrupt = f"The same command with --draw {draw} starts again."
    rows: list[dict[str, Any]] = []
    bad: list[str] = []
    ui.beside_errors |= {"draw": draw, "rows": rows, "among": among, "longer": longer}
    for number, one in enumerate(chosen):
        rows.append({"entry": one.entry.name, "row": one.job.title})
        with ui.progress(f"{number + 1}/{len(chosen)}") as progress:
            try:
                ((again, _),) = experiment.compute(one.experiment, [one.job], progress)
            except SilosynthError as error:
                rows[-1]["failed"] = str(error)
                ui.show(f"{one.entry.name}: {one.job.title}\n  not computed: {error}")
                continue
        compared = kept.compare(one, again)
        rows[-1] |= {"figures": [{**asdict(each), "verdict": each.verdict} for each in compared], "again": again}
        bad += [f"{one.entry.name}: {each}" for each in compared if each.verdict in kept.BAD]
        _tell(ui, f"{one.entry.name}: {one.job.title}", compared)
    ui.facts |= ui.beside_errors
    _judge(bad, [f"{row['entry']}: {row['failed']}" for row in rows if "failed" in row], len(rows))


def _tell(ui: Session, row: str, figures: Sequence[ComputedAgain]) -> None:
    """How many figures of a row are the same, and those that are not."""
    same = sum(figure.verdict == "same" for figure in figures)
    ui.show(f"{row}\n  {same} of {len(figures)} figures are the same")
    for one in figures:
        if one.verdict != "same":
            ui.show(f"  {one.verdict:<8} {one}")


def _judge(bad: Sequence[str], failed: Sequence[str], count: int) -> None:
    """Say which figures do not come out again, and which rows failed.

    Raises:
        ReproductionError: there are any.
    """
    if bad or failed:
        first = "; ".join([*bad, *failed][:5]) + ("; …" if len(bad) + len(failed) > 5 else "")
        told = f"{len(bad)} figures do not; {len(failed)} of {count} rows could not be computed: {first}"
        remedy = "By which version rows are is on their page; `silosynth papers run … --size kept --again` renews them."
        raise ReproductionError("Rows come out as they are kept, or about as their seeds do", told, remedy)


def page(ui: Session, out: PageFile) -> None:
    """Write the page of the documentation. It reads the sizes of kept results, so it needs a clone."""
    from silosynth.core import files
    from silosynth.core.errors import ConfigError
    from silosynth.papers import registry

    if not registry.RESULTS.is_dir():
        remedy = "Install with `pip install --editable .` in a clone."
        raise ConfigError("The page needs the results in the repository", str(registry.RESULTS), remedy)
    files.write_atomic(out, registry.page().encode())
    ui.show(f"Written to {out}")
    ui.facts["path"] = out


# Running one


def _entry(name: str) -> Published | None:
    """The entry of that name, if something reruns it."""
    return next((entry for entry in published.ENTRIES if entry.name == name and entry.experiment), None)


def _command(entry: Published, callback: Any, epilog: str | None = None) -> Any:
    app = typer.Typer(
        add_completion=False, rich_markup_mode="rich", context_settings={"help_option_names": ["-h", "--help"]}
    )
    app.command(entry.name, help=entry.shows, epilog=epilog)(callback)
    return typer.main.get_command(app)


def _callback(entry: Published, experiment: PaperExperiment) -> Any:
    """A function whose parameters are those of the experiment's jobs, and the `COMMON` ones."""
    arguments = dict(inspect.signature(experiment.jobs, eval_str=True).parameters)
    arguments.pop("folder", None)

    def run(**options: Any) -> None:
        common = {name: options.pop(name) for name in COMMON}
        with session(common["as_json"], common["quiet"], common["debug"]) as ui:
            given = {n: value for n, value in options.items() if value is not False and value not in (None, [], ())}
            chosen = {n: _value(n, arguments[n], value) for n, value in given.items()}
            hours = "" if chosen else entry.hours
            _perform(ui, experiment, {**entry.given, **chosen}, hours, **{name: common[name] for name in DEFAULTS})

    small = {**experiment.small, **entry.given}
    own = [_parameter(n, parameter, small.get(n, parameter.default)) for n, parameter in arguments.items()]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=DEFAULTS.get(name, False), annotation=kind)
        for name, kind in COMMON.items()
    ]
    run.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in (*own, *shared)}
    return run


def _parameter(name: str, parameter: inspect.Parameter, small: Any) -> inspect.Parameter:
    """The option of an argument. Without it the value is None (false for flags), so that sizes can set it.

    Help tells what it is at size ``small``.
    """
    kind, ask = get_args(parameter.annotation)
    flags = ask.flags or (f"--{name.replace('_', '-')}",)
    text = ask.help + (" May be repeated." if _is_list(kind) else "") + (f" Small: {t}." if (t := _told(small)) else "")
    option = typer.Option(*flags, min=ask.least if _plain(kind) is int else None, help=text, show_default=False)
    if kind is bool:
        return _keyword(name, Annotated[bool, option], False)
    return _keyword(name, Annotated[(list[_plain(kind)] if _is_list(kind) else _plain(kind)) | None, option], None)  # type: ignore[misc]


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _told(value: Any) -> str:
    if value is None or value in ((), "", False):
        return ""
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _bare(kind: Any) -> Any:
    """The type without "or None"."""
    if get_origin(kind) in (types.UnionType, typing.Union):
        return next(part for part in get_args(kind) if part is not type(None))
    return kind


def _is_list(kind: Any) -> bool:
    return get_origin(_bare(kind)) in (Sequence, tuple, list)


def _plain(kind: Any) -> Any:
    """The type of one value on the command line: a list's items; text for choices and pairs."""
    kind = _bare(kind)
    if get_origin(kind) in (Sequence, tuple, list):
        return _plain(get_args(kind)[0])
    return str if get_origin(kind) is Literal or get_origin(kind) is tuple else kind


def _value(name: str, parameter: inspect.Parameter, value: Any) -> Any:
    """The argument for an option's value.

    Raises:
        ConfigError: it is none of the argument's choices, or no pair.
    """
    kind = get_args(parameter.annotation)[0]
    if name == "options":
        return tuple(_pair(text) for text in value)
    if get_origin(_bare(kind)) is Literal and value not in get_args(_bare(kind)):
        known = get_args(_bare(kind))
        raise ConfigError(f"--{name} is one of {', '.join(known)}", value, nearest(value, known))
    return tuple(value) if isinstance(value, list) else value


def _pair(text: str) -> tuple[str, Any]:
    """``name=value``, the value as JSON or else as text."""
    name, sign, value = text.partition("=")
    if not sign:
        raise ConfigError("An option is name=value", text)
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = value
    return name, tuple(parsed) if isinstance(parsed, list) else parsed


def _perform(
    ui: Session, experiment: PaperExperiment, options: dict[str, Any], hours: str, size: Size, processes: int,
    again: bool, show: bool, out: Path | None,
) -> None:  # fmt: skip
    """Compute the rows that are not in the file yet, and show all that these options ask for.

    ``hours`` are of the published size, for experiments without a forecast.
    """
    from silosynth.papers.results import Results

    out = out or Path(published.FOLDER) / f"{experiment.name}-{size}.md"
    if experiment.folder:
        options = {**options, "folder": out.parent}
    results = Results(experiment, out)
    wanted = [] if show else experiment.sized(size, options)
    pending = [job for job in wanted if again or results.find(job.identity) is None]
    if len(pending) < len(wanted):
        ui.note(f"{len(wanted) - len(pending)} of {len(wanted)} rows are in {results.kept} already.")
    if pending:
        ui.note(f"Rows to compute: {len(pending)}.")
    if size != "small" and pending and experiment.forecast is not None:
        _announce(ui, experiment.forecast, pending)
    elif size == "published" and pending and hours:
        ui.note(f"All of it takes {hours}.")
    continues = "the same command without --again" if again else "the same command"
    ui.on_interrupt = f"The rows so far are in {results.kept}; {continues} continues."
    if pending:
        results.check_place()
    try:
        _compute(ui, results, pending, processes)
    finally:  # whatever ends it, what was computed is shown
        _show(ui, results, results.rows if show else [row for job in wanted if (row := results.find(job.identity))])
        _write(ui, results, needed=not show)


def _write(ui: Session, results: Results, needed: bool) -> None:
    """Write the page, or else, unless that is what was asked for, only say that it could not be."""
    if not results.rows:
        ui.note(f"There are no rows in {results.kept} yet.")
        return
    try:
        results.write_page()
    except StorageError as error:
        if needed:
            raise
        ui.note(f"The page was not written: {error}")
    else:
        ui.note(f"Written to {results.path}")


def _announce(ui: Session, forecast: Any, pending: Sequence[Any]) -> None:
    from silosynth.runtime import progress as pace

    ui.note("Measuring the pace …")
    seconds = forecast(pending)
    ui.facts["expected_seconds"] = seconds
    ui.note(f"{len(pending)} trainings will take about {pace.duration(seconds)} on this machine.")


def _compute(ui: Session, results: Results, pending: Sequence[Any], processes: int) -> None:
    from silosynth.papers.experiment import compute

    with ui.progress(results.experiment.name) as progress:
        for row, identity in compute(results.experiment, pending, progress, processes):
            results.add(row, identity)
            ui.note(results.experiment.brief(row))


def _show(ui: Session, results: Results, rows: Sequence[dict[str, Any]]) -> None:
    from silosynth.papers.results import stamp, text

    experiment = results.experiment
    means = experiment.means(rows)
    ui.facts |= {"experiment": experiment.name, "rows": rows, "means": means, "stamp": stamp()}
    ui.facts["path"] = results.path
    for heading, heads, lines in experiment.sections(means) if rows else ():
        ui.show(f"{experiment.title}{heading and f': {heading}'}\n\n{text(heads, lines)}\n")
    if rows:
        ui.note(experiment.legend)
