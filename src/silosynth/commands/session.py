"""What all commands share: where output goes, how errors look, and the exit codes.

Results go to stdout, everything else to stderr. With ``--json`` stdout carries one JSON value and nothing else, also
when the command fails. Exit codes: 0 done · 1 internal error · 2 wrong data, option or file content · 3 protocol ·
4 files and disks · 5 an optional dependency is missing · 6 kept results do not come out again · 130 interrupted.
"""

from __future__ import annotations

import inspect
import json
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from silosynth.core.errors import SilosynthError, StorageError
from silosynth.core.files import REPORTS, check_suffix, storage_error

if TYPE_CHECKING:
    from rich.console import Console

Json = Annotated[bool, typer.Option("--json", help="Print one JSON value on stdout; everything else goes to stderr.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show only errors (and the JSON value, with --json).")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

INTERRUPTED = 130
PLAIN_WIDTH = 120  # columns, where output is not a terminal


@dataclass
class Session:
    """One run of a command."""

    as_json: bool = False
    quiet: bool = False
    debug: bool = False
    on_interrupt: str = ""
    """What to show after Ctrl-C: how to continue."""
    facts: dict[str, Any] = field(default_factory=dict)
    """The JSON value."""
    beside_errors: dict[str, Any] = field(default_factory=dict)
    """What the JSON value has beside an error: what was found until then."""

    @property
    def chatty(self) -> bool:
        """Whether progress may be shown."""
        return not self.quiet

    def note(self, text: str) -> None:
        """Show what is happening, on stderr."""
        if self.chatty:
            _console(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, result: Any = "") -> None:
        """Show a result to people: text, or something that rich can draw."""
        if self.chatty:
            plain = isinstance(result, str)
            _console(stderr=self.as_json).print(result, markup=False, highlight=False, soft_wrap=plain)

    def table(self, title: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Show a table; columns with numbers are right-aligned."""
        if not self.chatty:
            return
        from rich.table import Table
        from rich.text import Text

        drawn = Table(title=title, title_justify="left", title_style="bold", header_style="", box=None, pad_edge=False)
        for i, head in enumerate(heads):
            numeric = any(_is_number(row[i]) for row in rows)
            drawn.add_column(head, justify="right" if numeric else "left", overflow="fold")
        for row in rows:
            drawn.add_row(*(Text(_cell(value)) for value in row))
        self.show(drawn)

    @contextmanager
    def progress(self, title: str) -> Iterator[Callable[[str, float], None]]:
        """A progress bar on stderr; yields a function to call with the stage and the share of the work that is done."""
        if not self.chatty:
            yield lambda stage, share: None
            return
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

        console = _console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task(title, total=1.0)
            yield lambda stage, share: bar.update(task, completed=share, description=f"{title}: {stage}")

    def warn(self, message: Warning | str, *_: Any, **__: Any) -> None:
        """Show a warning as one line (with the signature of `warnings.showwarning`)."""
        self.note(f"warning: {message}")

    def fail(self, error: SilosynthError) -> None:
        """Show an error as one block: rule and value, then the remedy."""
        kind, text = type(error).__name__, str(error)
        head = text.removesuffix(f". {error.remedy}") if error.remedy else text
        block = [f"error: {head}", *(f"       {line}" for line in error.remedy.splitlines())]
        print("\n".join(block), file=sys.stderr)
        told = {"kind": kind, "rule": error.rule, "message": text, "remedy": error.remedy}
        self.facts = {"error": told, **self.beside_errors}
        self.facts["error"]["exit_code"] = error.exit_code

    def close(self) -> None:
        """Print the JSON value, with --json."""
        if self.as_json:
            print(json.dumps(_plain(self.facts), indent=2, allow_nan=False, ensure_ascii=False))


Force = Annotated[bool, typer.Option("--force", help="Overwrite results and checkpoints that are there.")]


@dataclass(frozen=True)
class CsvOptions:
    """How CSV files of real rows are written, for commands that read some. A field is an option."""

    separator: Annotated[str | None, typer.Option(help="Of CSV files of real rows: between fields.")] = None
    decimal: Annotated[str, typer.Option(help="Of CSV files of real rows: the decimal mark.")] = "."
    encoding: Annotated[str | None, typer.Option(help="Of CSV files of real rows: utf-8, latin-1, …")] = None
    missing: Annotated[
        list[str] | None,
        typer.Option(help="Of CSV files of real rows: a text that stands for missing values; repeatable."),
    ] = None

    def to_dict(self) -> dict[str, Any]:
        """As `silosynth.data.sources.read` takes them."""
        return asdict(self) | {"missing": self.missing or None}


@dataclass(frozen=True)
class ReportOptions:
    """Where a report goes, for commands that write one. A field is an option."""

    report: Annotated[Path | None, typer.Option(help="File to write: .html, or .json.")] = None
    force: Force = False

    def check(self) -> None:
        """Refuse a name of another ending, or a file that is there, before anything is computed.

        Raises:
            StorageError: names the remedy.
        """
        if self.report is not None:
            check_suffix(self.report, REPORTS)
            check_free([self.report], self.force)

    def write(self, ui: Session, result: Any) -> None:
        """Write a report, if one is asked for, and add it to the facts."""
        if self.report is not None:
            result.save(self.report)
            ui.note(f"Report: {self.report}")
        ui.facts |= result.to_dict() | ({} if self.report is None else {"path": str(self.report)})


def check_free(paths: Iterable[Path], force: bool) -> None:
    """Refuse to overwrite files unless that is asked for.

    Raises:
        StorageError: names the first one that is there.
    """
    for path in paths:
        if not force and path.exists():
            rule = "A file that is there is not overwritten"
            raise StorageError(rule, str(path), "Name another file, or overwrite it with --force.")


def add_command(group: typer.Typer, name: str, body: Callable[..., None], epilog: str, *, as_json: bool = True) -> None:
    """Add a command whose ``body`` takes the `Session` first, and its own options after that.

    An argument that is a dataclass, such as `CsvOptions`, stands for an option for each of its fields. The options of
    all commands are added here: --json (unless ``as_json`` is false), --quiet and --debug.
    """
    own, groups = _options(body)

    def command(as_json: bool = False, quiet: bool = False, debug: bool = False, **options: Any) -> None:
        with session(as_json, quiet, debug) as ui:
            made = {name: kind(**{one: options.pop(one) for one in held}) for name, (kind, held) in groups.items()}
            body(ui, **options, **made)

    shared = {"as_json": Json, "quiet": Quiet, "debug": Debug} if as_json else {"quiet": Quiet, "debug": Debug}
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [*own, *(inspect.Parameter(key, keyword, default=False, annotation=shared[key]) for key in shared)]
    command.__doc__ = body.__doc__
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    group.command(name, epilog=epilog)(command)


def _options(body: Callable[..., None]) -> tuple[list[inspect.Parameter], dict[str, tuple[Any, list[str]]]]:
    """The options of a command's body, and by argument the dataclasses that stand for several of them, which are last.

    A dataclass is given with the names of its fields.
    """
    own: list[inspect.Parameter] = []
    shared: list[inspect.Parameter] = []
    groups: dict[str, tuple[Any, list[str]]] = {}
    for parameter in list(inspect.signature(body, eval_str=True).parameters.values())[1:]:
        kind = parameter.annotation
        if not is_dataclass(kind):
            own.append(parameter)
            continue
        hints = get_type_hints(kind, include_extras=True)
        groups[parameter.name] = (kind, [one.name for one in fields(kind)])
        shared += [
            inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=hints[one.name])
            for one in fields(kind)
        ]
    return [*own, *shared], groups


@contextmanager
def session(as_json: bool, quiet: bool, debug: bool) -> Iterator[Session]:
    """Run a command's body; errors are shown as one block and become an exit code."""
    current = Session(as_json, quiet, debug)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = current.warn
            yield current
    except KeyboardInterrupt:
        print(f"\nInterrupted. {current.on_interrupt}".rstrip(), file=sys.stderr)
        told = {"kind": "Interrupted", "remedy": current.on_interrupt, "exit_code": INTERRUPTED}
        current.facts = {"error": told, **current.beside_errors}
        current.close()
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        raise
    except (SilosynthError, OSError) as error:
        if debug:
            traceback.print_exc()
        known = error if isinstance(error, SilosynthError) else _of_the_system(error)
        current.fail(known)
        current.close()
        raise typer.Exit(known.exit_code) from error
    current.close()


def _of_the_system(error: OSError) -> SilosynthError:
    return storage_error(error, "read or written", Path(error.filename or "unnamed"))


def _console(stderr: bool) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else PLAIN_WIDTH)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    """Values as JSON has them; numbers that JSON cannot express become null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if value - value == 0 else None
    if value is None or isinstance(value, (str, bool, int)):
        return value
    return str(value)
