"""``silosynth bench``: rerun the experiments of papers. A command per experiment; its options are what `jobs` takes."""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperGroup

from silosynth.commands.session import Debug, Json, Quiet, Session, session
from silosynth.core.errors import ConfigError, nearest
from silosynth.papers import EXPERIMENTS

if TYPE_CHECKING:
    from silosynth.papers.experiment import PaperExperiment
    from silosynth.papers.results import Results

COMMON: Mapping[str, Any] = {  # options of every command
    "paper": Annotated[bool, typer.Option("--paper", help="The paper's sizes, where options do not say otherwise.")],
    "processes": Annotated[int, typer.Option("--processes", min=1, help="Rows computed side by side, one core each.")],
    "again": Annotated[bool, typer.Option("--again", help="Compute rows that are in the file once more.")],
    "show": Annotated[bool, typer.Option("--show", help="Compute nothing; write and show what is in the file.")],
    "out": Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File to write, .json or .md, row by row; the same command continues it."),
    ],
    "as_json": Json, "quiet": Quiet, "debug": Debug,
}  # fmt: skip
DEFAULTS = {"paper": False, "processes": 1, "again": False, "show": False, "out": None}
OUT_FOLDER = Annotated[Path | None, typer.Option("--out", "-o", help="Folder for figures, pictures, and what is kept.")]


class Experiments(TyperGroup):
    """The commands of `EXPERIMENTS`, whose modules are loaded when they run, so that help is quick."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names."""
        return list(EXPERIMENTS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command that can be listed; see `resolve_command` for one that runs."""
        if cmd_name not in EXPERIMENTS:
            return None
        return _command(cmd_name, EXPERIMENTS[cmd_name][1], lambda: None)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is called."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is None or command is None:
            return name, command, rest
        from silosynth.papers.experiment import load

        experiment = load(name)
        epilog = f"Example: silosynth bench {name} {experiment.example}".rstrip()
        return name, _command(name, EXPERIMENTS[name][1], _callback(experiment), epilog), rest


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        cls=Experiments, help="Rerun the experiments of papers, small by default.",
        epilog="Example: silosynth bench partitions",
    )  # fmt: skip
    group.callback()(lambda: None)
    app.add_typer(group, name="bench", no_args_is_help=True)


def _command(name: str, summary: str, callback: Any, epilog: str | None = None) -> Any:
    app = typer.Typer(
        add_completion=False, rich_markup_mode="rich", context_settings={"help_option_names": ["-h", "--help"]}
    )
    app.command(name, help=summary, epilog=epilog)(callback)
    return typer.main.get_command(app)


def _callback(experiment: PaperExperiment) -> Any:
    """A function whose parameters are those of the experiment's jobs, and the `COMMON` ones."""
    arguments = dict(inspect.signature(experiment.jobs, eval_str=True).parameters)
    arguments.pop("folder", None)

    def bench(**options: Any) -> None:
        common = {name: options.pop(name) for name in COMMON if name in options}
        with session(common["as_json"], common["quiet"], common["debug"]) as ui:
            chosen = {n: _value(n, arguments[n], value) for n, value in options.items() if value not in (None, [], ())}
            _perform(ui, experiment, chosen, **{name: common[name] for name in DEFAULTS if name in common})

    types_ = dict(COMMON) | ({"out": OUT_FOLDER} if experiment.folder else {})
    if not experiment.paper:
        types_.pop("paper")
    own = [_parameter(name, parameter) for name, parameter in arguments.items()]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=DEFAULTS.get(name, False), annotation=kind)
        for name, kind in types_.items()
    ]
    bench.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    bench.__annotations__ = {p.name: p.annotation for p in (*own, *shared)}
    return bench


def _parameter(name: str, parameter: inspect.Parameter) -> inspect.Parameter:
    """The option of an argument. Without it the value is None (false for flags), so that `--paper` can set it."""
    kind, ask = get_args(parameter.annotation)
    flags = ask.flags or (f"--{name.replace('_', '-')}",)
    default = _default(parameter.default)
    text = ask.help + (" May be repeated." if _is_list(kind) else "") + (f" Default: {default}." if default else "")
    option = typer.Option(*flags, min=ask.least if _plain(kind) is int else None, help=text, show_default=False)
    if kind is bool:
        return _keyword(name, Annotated[bool, option], False)
    return _keyword(name, Annotated[(list[_plain(kind)] if _is_list(kind) else _plain(kind)) | None, option], None)  # type: ignore[misc]


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _default(value: Any) -> str | None:
    if value is None or value in ((), "", False):
        return None
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
    ui: Session, experiment: PaperExperiment, options: dict[str, Any], processes: int, again: bool, show: bool,
    out: Path | None, paper: bool = False,
) -> None:  # fmt: skip
    """Compute the rows that are not in the file yet, and show all that these options ask for."""
    from silosynth.papers.results import Results

    if experiment.folder and out is not None:
        options, out = {**options, "folder": out}, out / f"{experiment.name}.md"
    results = Results(experiment, out)
    wanted = [] if show else experiment.jobs(**{**(experiment.paper if paper else {}), **options})
    pending = [job for job in wanted if again or results.find(job.identity) is None]
    if len(pending) < len(wanted):
        ui.note(f"{len(wanted) - len(pending)} of {len(wanted)} rows are in {results.kept} already.")
    if paper and pending and experiment.forecast is not None:
        _announce(ui, experiment.forecast, pending)
    ui.on_interrupt = (
        "Without --out nothing is kept."
        if out is None
        else f"The rows so far are in {results.kept}; the same command continues."
    )
    try:
        _compute(ui, results, pending, processes)
    finally:  # whatever ends it, what was computed is shown
        results.write_page()
        _show(ui, results, results.rows if show else [row for job in wanted if (row := results.find(job.identity))])


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
    if results.path is not None:
        ui.facts["path"] = results.path
    for heading, heads, lines in experiment.sections(means) if rows else ():
        ui.show(f"{experiment.title}{heading and f': {heading}'}\n\n{text(heads, lines)}\n")
    if rows:
        ui.note(experiment.legend)
        if results.path is not None:
            ui.note(f"Written to {results.path}")
