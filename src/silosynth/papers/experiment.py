"""What all reproductions share: an experiment, its sizes and jobs, and how their rows are computed."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from silosynth import catalog
from silosynth.core.conversation import Progress
from silosynth.core.errors import ConfigError, UnavailableError, nearest
from silosynth.core.version import VERSION
from silosynth.papers import EXPERIMENTS
from silosynth.simulation import training
from silosynth.simulation.federation import Federation

Row = dict[str, Any]
Tell = Callable[[str, float], None]  # called with the stage and the share of a row's work that is done
Size = Literal["small", "kept", "published"]
Section = tuple[str, Sequence[str], Sequence[Sequence[str]]]  # heading, heads of the columns, lines of cells
TRAINING = 0.85  # share of a row's work that training is assumed to take, in progress bars


@dataclass(frozen=True)
class Ask:
    """How a command asks for an argument of `PaperExperiment.jobs`; ``flags`` instead of the argument's own name."""

    help: str
    flags: tuple[str, ...] = ()
    least: int | None = None


Repeats = Annotated[int, Ask("Trainings of each setting, with a seed each.", ("--repeats", "--seeds"), 1)]
Seed = Annotated[int, Ask("Of the first repeat; others count up from it.", least=0)]
Options = Annotated[tuple[tuple[str, Any], ...], Ask("Of the algorithms: name=value, as JSON.", ("--option",))]


@dataclass(frozen=True)
class PaperJob:
    """One row that is to be computed. Fields that do not decide its figures are named in ``unidentified``."""

    unidentified: ClassVar[tuple[str, ...]] = ()

    @property
    def identity(self) -> Row:
        """Everything that decides the figures: a row with the same identity is not computed again."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in self.unidentified}
        if "options" in values:
            values["options"] = json.dumps(dict(values["options"]), sort_keys=True)
        return {**values, "version": VERSION}

    @property
    def title(self) -> str:
        """What progress calls it."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in self.unidentified}
        seed, options = (values.pop(name, None) for name in ("seed", "options"))
        told = [
            value if isinstance(value, str) else name if value is True else f"{name} {_plainly(value)}"
            for name, value in values.items() if value not in (None, False, "", ())
        ]  # fmt: skip
        told += [f"{name} {_plainly(value)}" for name, value in options or ()]
        return " · ".join([*told, *([] if seed is None else [f"seed {seed}"])])


@dataclass(frozen=True)
class PaperExperiment:
    """What one or several published tables or figures are made of.

    Attributes:
        name: what files of results call it.
        legend: what its figures mean.
        jobs: all rows, for tables, sizes and seeds.
        measure: (job, tell) -> the row. It can be sent to other processes.
        sections: averaged rows -> what is shown of them.
        means: rows of several seeds -> averaged ones.
        small: arguments of ``jobs`` with which it takes minutes.
        kept: those of the results in the repository.
        published: those that the paper has.
        line: a row in a few words, for those who wait.
        pictures: (rows, page's path) -> paragraphs for the page; writes image files beside it.
        forecast: (jobs) -> seconds that they will take.
        alone: whether each row needs a process of its own.
        folder: whether ``jobs`` is passed the folder of the results, for pictures and networks.
        figures: row -> what its figures are, by which a row that is computed again is compared with the kept one.
        example: options of a command.
    """

    name: str
    title: str
    legend: str
    jobs: Callable[..., Sequence[Any]]
    measure: Callable[[Any, Tell], Row]
    sections: Callable[[Sequence[Row]], Sequence[Section]]
    means: Callable[[Sequence[Row]], list[Row]] = list
    small: Mapping[str, Any] = field(default_factory=dict)
    kept: Sequence[Mapping[str, Any]] = ()
    published: Mapping[str, Any] | None = None
    line: Callable[[Row], str] | None = None
    pictures: Callable[[Sequence[Row], Path], list[str]] | None = None
    forecast: Callable[[Sequence[Any]], float] | None = None
    alone: bool = False
    folder: bool = False
    example: str = ""
    figures: Callable[[Row], Mapping[str, float | None]] = lambda row: {}

    def sized(self, size: Size, given: Mapping[str, Any]) -> list[Any]:
        """All rows of a size, with arguments that are ``given``; of size "kept" those of its rows that have these.

        Raises:
            ConfigError: it has no such size, an argument is wrong, or no kept row has those that are given.
        """
        known = {"small": (self.small,), "kept": self.kept, "published": (self.published,)}
        arguments = known[size]
        if not arguments or arguments[0] is None:
            others = " or ".join(name for name, own in known.items() if own and own[0] is not None)
            raise ConfigError(f"{self.title}: there is no size of that name", size, f"Take --size {others}.")
        if size == "kept":
            return self._kept(given)
        return list(_by_identity(job for one in arguments for job in self.jobs(**{**one, **given})).values())  # type: ignore[dict-item]

    def _kept(self, given: Mapping[str, Any]) -> list[Any]:
        """The kept rows that come of these arguments."""
        folder = {name: value for name, value in given.items() if name == "folder"}
        every = _by_identity(job for one in self.kept for job in self.jobs(**{**one, **folder}))
        found: list[Any] = []
        refused: list[ConfigError] = []
        for one in self.kept:
            try:
                found += self.jobs(**{**one, **given})
            except ConfigError as error:  # of arguments that are for others
                refused.append(error)
        if len(refused) == len(self.kept):
            raise refused[0]
        chosen = [job for identity, job in _by_identity(found).items() if identity in every]
        if not chosen:
            told = "; ".join(f"{name} {_plainly(value)}" for name, value in given.items() if name not in folder)
            remedy = "Sizes small and published take anything."
            raise ConfigError(f"{self.title}: nothing is kept of that", told, remedy)
        return chosen

    def brief(self, row: Row) -> str:
        """A row in one line, its numbers with their heads."""
        if self.line is not None:
            return self.line(row)
        ((_, heads, (cells, *_)), *_) = self.sections(self.means([row]))
        named = (f"{head} {cell}" if cell[0].isdigit() or cell[0] == "-" else cell
                 for head, cell in zip(heads, cells, strict=True) if cell)  # fmt: skip
        return " · ".join(named)


def identified(job: Any) -> Row:
    """What identifies a job's row, of whatever version."""
    return {key: value for key, value in job.identity.items() if key != "version"}


def _plainly(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def named(*names: str) -> Callable[[Row], Mapping[str, float | None]]:
    """A row's values of these names, for `PaperExperiment.figures`."""
    return lambda row: {name: row.get(name) for name in names}


def _by_identity(jobs: Iterable[Any]) -> dict[str, Any]:
    return {json.dumps(job.identity, default=str): job for job in jobs}


def load(name: str) -> PaperExperiment:
    """An experiment by name.

    Raises:
        ConfigError: there is none; names the nearest.
    """
    if name not in EXPERIMENTS:
        raise ConfigError("There is no such experiment", name, nearest(name, EXPERIMENTS))
    module = importlib.import_module(f"silosynth.papers.{EXPERIMENTS[name]}")
    return next(one for one in vars(module).values() if isinstance(one, PaperExperiment) and one.name == name)


def compute(
    experiment: PaperExperiment, pending: Sequence[Any], tell: Tell = lambda stage, share: None, processes: int = 1
) -> Iterator[tuple[Row, Row]]:
    """Rows and their identities as they come: in this process one after the other, or each in one of its own.

    Raises:
        UnavailableError: processes failed; raised when all others have ended.
    """
    if processes > 1 or experiment.alone:
        yield from _in_processes(experiment.measure, pending, tell, processes)
        return
    for number, job in enumerate(pending):
        tell(job.title, number / len(pending))

        def inner(stage: str, share: float, title: str = job.title, number: int = number) -> None:
            tell(f"{title}: {stage}", (number + share) / len(pending))

        yield _timed(experiment.measure, job, inner), job.identity


def _timed(measure: Callable[[Any, Tell], Row], job: Any, tell: Tell) -> Row:
    """The row, and under "took" the seconds of this process's processor that it needed."""
    start = time.process_time()
    return {**measure(job, tell), "took": time.process_time() - start}


def _in_processes(
    measure: Callable[[Any, Tell], Row], pending: Sequence[Any], tell: Tell, processes: int
) -> Iterator[tuple[Row, Row]]:
    if processes > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes, which take it over when they start
    failed: list[BaseException] = []
    pool = ThreadPoolExecutor(processes)
    try:
        rows = {pool.submit(_in_fresh_process, measure, job): job.identity for job in pending}
        for number, row in enumerate(as_completed(rows)):
            tell(f"{number + 1}/{len(pending)} rows", (number + 1) / len(pending))
            if (error := row.exception()) is not None:
                failed.append(error)
            else:
                yield row.result(), rows[row]
    finally:
        pool.shutdown(cancel_futures=True)
    if failed:
        rule = f"{len(failed)} of {len(pending)} rows could not be computed"
        remedy = "The others are kept; the same command tries again."
        raise UnavailableError(rule, str(failed[0]), remedy) from failed[0]


def _in_fresh_process(measure: Callable[[Any, Tell], Row], job: Any) -> Row:
    _interrupts(held_back=True)  # inherited, until `_end_quietly`: a process that is starting would print a traceback
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _end_quietly) as fresh:
        return fresh.submit(_timed, measure, job, _untold).result()


def _end_quietly() -> None:
    """On Ctrl-C, which reaches these processes as well, end without a word: the first process says what there is."""
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))
    _interrupts(held_back=False)


def _interrupts(held_back: bool) -> None:
    """Whether Ctrl-C waits in this thread, and in processes that it starts; not on Windows."""
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_BLOCK if held_back else signal.SIG_UNBLOCK, {signal.SIGINT})


def _untold(stage: str, share: float) -> None:
    """Progress of other processes is not shown."""


def watch(tell: Tell) -> Callable[[Progress], None]:
    """Progress of a training, as its share of the work on a row."""
    return lambda progress: tell(progress.stage, TRAINING * progress.done / max(1, progress.total))


def train(
    name: str, federation: Federation, preset: str, seed: int, options: Mapping[str, Any], tell: Tell,
    fit: Callable[..., Any] | None = None,
) -> tuple[Any, Row]:  # fmt: skip
    """The model of ``fit`` (`silosynth.fit` if None) and what its training took; nothing of it stays on disk.

    Central baselines pool all columns. Bytes are those of all messages of the training: baselines have none.
    """
    central = catalog.algorithm(name, kind=None).central
    federation = federation.central() if central and len(federation.silos) > 1 else federation
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="silosynth-bench-") as folder:
        model = (fit or partial(training.fit, threads=1))(
            name, federation, preset=preset, seed=seed, options=options, folder=folder, progress=watch(tell)
        )
    seconds = time.perf_counter() - start
    tell("evaluating", TRAINING)
    return model, {"seconds": seconds, "bytes": None if central else sent(model)}


def sent(model: Any) -> int:
    """Bytes of all messages of its training."""
    return sum(record["bytes"] for record in model.ledger)


def options_of(row: Row) -> dict[str, Any]:
    """The options that identify a row."""
    return dict(json.loads(row["options"]))


def check_known(what: str, values: Sequence[str], known: Sequence[str]) -> None:
    """Refuse unknown names, and none at all.

    Raises:
        ConfigError: names the nearest that there is.
    """
    if not values:
        raise ConfigError(f"A comparison needs at least one {what}", tuple(values))
    for value in values:
        if value not in known:
            raise ConfigError(f"There is no such {what} in this comparison", value, nearest(value, known))


def check_positive(**sizes: float | None) -> None:
    """Refuse sizes below 1; None is no size.

    Raises:
        ConfigError: names the size.
    """
    for name, value in sizes.items():
        if value is not None and value < 1:
            raise ConfigError(f"The number of {name} must be at least 1", value)
