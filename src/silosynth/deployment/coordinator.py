"""The coordinator's jobs: the folder of each, how it is run in it, and the dispatcher, which starts and resumes them.

``jobs/NAME/``: ``order`` (what was submitted), ``status.json``, ``ledger.jsonl``, checkpoints, and the results: the
synthetic table, ``result.json``, the coordinator's part of the model (``coordinator.silosynth``), from which later jobs
draw, and ``model.silosynth`` if the coordinator holds the whole model.

The dispatcher runs beside the coordinator's daemon. A job is interrupted when a silo is lost that it cannot do without,
or when the coordinator itself stopped: then its status still says "running", and the engine says that it has failed, or
does not know it. Otherwise only an operator ends a job: the engine calls nothing else "aborted".
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, Literal

from silosynth import catalog
from silosynth.alignment import AlignConfig
from silosynth.core import files, messages
from silosynth.core.conditions import by_name
from silosynth.core.conversation import COORDINATOR, Progress, Roster
from silosynth.core.errors import (
    ConfigError,
    PartyLostError,
    SilosynthError,
    StoppedError,
    StorageError,
    VersionError,
    nearest,
)
from silosynth.core.schema import Schema
from silosynth.core.streams import Streams
from silosynth.core.version import VERSION
from silosynth.data import sources
from silosynth.data.rules import listed
from silosynth.deployment import endings, forgetting, label, upgrades
from silosynth.deployment.conducting import Counted, Outcome, conduct, have_considered, have_forgotten, redraw
from silosynth.deployment.counted import keep_counted
from silosynth.deployment.flare.console import ABORTED, ENDED, Console, JobInfo
from silosynth.deployment.kept import guarantee_of
from silosynth.deployment.protocol import (
    Drawing,
    GivenColumn,
    GivenRows,
    Job,
    OtherShares,
    check_name,
    digest,
    drawing_streams,
    job_streams,
    opening,
)  # fmt: skip
from silosynth.encoders.ruled import Ruled
from silosynth.experiment.grammar import Experiment
from silosynth.privacy.events import Target
from silosynth.runtime import checkpoint, driver, wire
from silosynth.runtime.ledger import Ledger
from silosynth.runtime.link import Link, resolve_device
from silosynth.simulation.model import Model, all_columns, check_identifiers_fit, to_synthetic_frame

ORDER, STATUS, LEDGER, RESULT, SCHEMAS = "order", "status.json", "ledger.jsonl", "result.json", "schemas.silosynth"
SYNTHETIC, MODEL, KEPT = "synthetic.parquet", "model.silosynth", "coordinator.silosynth"
_EVERY = 1.0  # seconds between two updates of the status


class Order(messages.Struct):
    """What an operator submits.

    Attributes:
        job: what silos are asked for.
        transport: "relay" through the engine, or "stream" beside it.
        limit: seconds for a silo to answer; None waits as long as it is connected.
        patience: seconds for a lost silo to come back before the job fails.
        device: where the coordinator computes.
        threads: on which it computes.
        missing: policy for silos that get lost; None for the algorithm's default.
        forget: in place of all that, the job that ``job``'s only silo is to forget.
        consider: or silos only say whether they would refuse ``job``.
    """

    job: Job
    transport: Literal["relay", "stream"] = "relay"
    limit: float | None = None
    patience: float = 3600.0
    device: str = "auto"
    threads: int | Literal["auto"] = "auto"
    missing: str | None = None
    forget: str = ""
    consider: bool = False

    def pack(self) -> bytes:
        """As bytes."""
        return wire.pack(messages.to_state(self))

    def keep(self, folder: Path) -> None:
        """Write it into the job's folder, from which the job is resumed.

        Raises:
            ConfigError: the folder holds a different job.
        """
        path = files.private_folder(folder) / ORDER
        if path.exists() and files.read(path) != self.pack():
            raise ConfigError("A job's name is used only once", self.job.name, "Submit it under another name.")
        files.write_atomic(path, self.pack())


def order(plan: Experiment, roster: Roster, submitter: str) -> Order:
    """What an experiment file asks of a federation of these silos.

    Raises:
        ConfigError: the algorithm is a representation or pools all data; a preset, an option or a silo is not known; or
            a rule would tell whether silos' rows keep it.
    """
    chosen, entry = plan.algorithm, catalog.algorithm(plan.algorithm.name)
    groups, options = tuple(map(tuple, plan.grouped.values())), chosen.options
    if groups:
        entry.divided(True).check(Roster(plan.taking_part), True, grouped=True)
        options = options | {"silo_groups": groups}
    config = entry.configure(chosen.preset, options)
    entry = entry.of(config)
    if entry.central:
        raise ConfigError(
            "A baseline that pools all data in one place cannot be submitted to a federation", chosen.name,
            f"Name another algorithm: {catalog.fitting(False)}, {catalog.fitting(True)}.",
        )  # fmt: skip
    silos = plan.taking_part or roster.parties
    for silo in silos:
        if silo not in roster.parties:
            where = "[silos]" if plan.run.silos is None else "run.silos"
            raise ConfigError(f"{where} names silos of the federation", silo, nearest(silo, roster.parties))
    align = None
    if plan.align.method != "none" and (groups or not entry.horizontal):
        align = AlignConfig(plan.align.method, plan.align.least)
    job = Job(
        plan.run.name or f"{plan.source.stem}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}",
        chosen.name, chosen.preset, config, silos, chosen.seed, align,
        plan.sample.rows, submitter, plan.split.holdout or 0.0, rules=tuple(map(listed, plan.ruled())),
        sample=plan.split.sample,
    )  # fmt: skip
    entry.under(plan.run.missing)  # refuses what is not supported
    run = plan.run
    return Order(job, run.transport, run.limit, run.patience, chosen.device, chosen.threads, run.missing)


def considering_order(order: Order) -> Order:
    """Whether silos would refuse a job, asked in one of another name, which leaves the job's own unused."""
    name = f"ask-{order.job.name[:60]}-{secrets.token_hex(2)}"
    return replace(order, job=replace(order.job, name=check_name(name)), consider=True)


def read_refusals(folder: Path) -> dict[str, list[str]]:
    """Why each silo would refuse, by what was written into the folder of `considering_order`'s job.

    Raises:
        StorageError: there is nothing.
    """
    return {silo: list(said) for silo, said in json.loads(files.read(folder / RESULT))["refusals"].items()}


def drawing_order(
    folder: Path, rows: int | None, seed: int | None, name: str | None, submitter: str, given: Sequence[str] = (),
    shares: OtherShares | None = None, frame: Sequence[Sequence[str]] = (),
) -> Order:  # fmt: skip
    """More rows of what the job in ``folder`` has trained.

    Args:
        folder: of the coordinator's.
        rows: how many; None for as many as a frame has.
        seed: of the rows, which then are those of `silosynth.Model.sample` with it; None for a secret one.
        name: of the job that draws; None for one of the trained job's, and the time.
        submitter: who starts it.
        given: conditions that all rows fulfil, as ``--given`` takes them.
        shares: other shares of a column's levels, if any.
        frame: conditions of each row, likewise.

    Raises:
        ConfigError: no number of rows; a condition, or another share, is on no column of the silos; the job has trained
            no generator, has not ended, or was of an earlier version; or so many rows cannot be numbered.
    """
    order = unpack_order(files.read(folder / ORDER))
    trained, state = order.job, read_status(folder).state
    if trained.drawing is not None:
        raise ConfigError("Rows are drawn from a job that has trained", folder.name, f"Name {trained.drawing.job}.")
    catalog.algorithm(trained.algorithm)
    if state != "done":
        raise ConfigError("Rows are drawn from a job that is done", f"{folder.name} is {state}")
    schemas = read_trained(folder).schemas
    columns = all_columns(schemas)
    if (rows := rows or len(frame)) < 1:
        raise ConfigError("A job that draws says how many rows", "none", "Give --rows, or rows in [sample].")
    check_identifiers_fit(columns, rows)
    if shares is not None and shares.column not in columns.modelled:
        rule, remedy = "Rows are grouped by one column that is modelled", nearest(shares.column, columns.modelled)
        raise ConfigError(rule, shares.column, remedy)
    named = f"{folder.name[:40]}-drawn-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    job = replace(
        trained, name=check_name(name or named), seed=seed, align=None, holdout=0.0, sample=1.0, rows=rows,
        submitter=submitter,
        drawing=Drawing(
            trained.name, trained.seed, given_columns(given, columns), shares, given_rows(frame, columns)
        ),
    )  # fmt: skip
    return replace(order, job=job)


def other_shares(balance: str | None, shift: Mapping[str, Any]) -> OtherShares | None:
    """The shares that are asked for, as `silosynth.Model.sample` takes them; None where levels are as they were learnt.

    Raises:
        ConfigError: both are given, or shares of several columns.
    """
    if balance is not None and shift:
        raise ConfigError("Rows are grouped in one way: by balance or shift", "both", "Give one of them.")
    if balance is not None:
        return OtherShares(balance)
    if len(shift) > 1:
        raise ConfigError("The shares of one column can be shifted", list(shift), "Name one.")
    return next((OtherShares(column, json.dumps(shares)) for column, shares in shift.items()), None)


def given_columns(texts: Sequence[str], columns: Schema) -> tuple[GivenColumn, ...]:
    """Conditions by column, for their silos to read.

    Raises:
        ConfigError: a text is no condition, or names no column that silos model, or a column twice.
    """
    made = []
    for text in texts:
        for name, value in by_name([text], columns.modelled).items():
            own = json.dumps({name: value}) if text.lstrip().startswith("{") else text
            made.append(GivenColumn(name, own))
    return tuple(made)


def given_rows(frame: Sequence[Sequence[str]], columns: Schema) -> GivenRows | None:
    """A frame of conditions, for silos to read; None if it has no row.

    Raises:
        ConfigError: as `given_columns`; or too many rows are different.
    """
    places = {row: place for place, row in enumerate(dict.fromkeys(map(tuple, frame)))}
    kinds = tuple(given_columns(row, columns) for row in places)
    return GivenRows(kinds, tuple(places[tuple(row)] for row in frame)) if places else None


def forget_here(jobs: Path, name: str, by: str) -> list[dict[str, Any]]:
    """Remove what a job has left at the coordinator, and what was drawn from it; returns what went and what stays.

    Raises:
        ConfigError: it has not ended.
        StorageError: a file cannot be removed.
    """
    if (state := read_status(jobs / name).state) in _UNFINISHED:
        raise ConfigError("A job that has not ended is not forgotten", f"{name} is {state}", "Stop it first.")
    receipts = forgetting.forget(jobs, name, by, None)
    for receipt in receipts:
        folder = jobs / receipt["job"]
        replace(read_status(folder), state="forgotten", since=time.time()).write(folder)
    return receipts


def forget_requests(folder: Path, submitter: str) -> list[Order]:
    """What each silo of a job is asked: to forget it. One that is away does not keep the others from it.

    Raises:
        StorageError: the order of the job cannot be read.
    """
    order, made = unpack_order(files.read(folder / ORDER)), []
    for silo in order.job.silos:
        name = f"forget-{folder.name[:40]}-{silo[:24]}-{secrets.token_hex(2)}"
        job = replace(order.job, name=check_name(name), silos=(silo,), submitter=submitter)
        made.append(replace(order, job=job, forget=folder.name))
    return made


def keep_receipts(jobs: Path, name: str, silo: str, receipts: list[dict[str, Any]]) -> None:
    """Check a silo's receipts, and keep each with the job that it is of: this one, or one that has drawn from it.

    Raises:
        ProtocolError: one is not of this silo, or of another job.
    """
    known = {name, *(folder.name for folder in forgetting.drawn_from(jobs, name))}
    for receipt in receipts:
        job = str(receipt.get("job"))
        forgetting.check_receipt(receipt, job if job in known else name, silo)
        path = files.private_folder(jobs / job) / f"{forgetting.RECEIPT}-{silo}.json"
        files.write_atomic(path, json.dumps(receipt, indent=2).encode(), files.PRIVATE)


def read_trained(folder: Path) -> Outcome:
    """What the coordinator keeps of a model, without its table.

    Raises:
        ConfigError: it keeps none.
        StorageError: the file is damaged, or of another version.
    """
    if not (folder / KEPT).exists():
        raise ConfigError("Rows are drawn from a job of which the coordinator keeps its part", folder.name, _NONE_KEPT)
    kept = wire.unpack(files.read(folder / KEPT))
    schemas = {silo: messages.from_state(Schema, schema) for silo, schema in kept["schemas"].items()}
    form = None if kept["form"] is None else messages.from_state(Ruled, kept["form"])
    return Outcome(kept["coordinator"], schemas, kept["rows"], {}, None, form=form)


_NONE_KEPT = "Jobs of earlier versions left none: train again."


def unpack_order(blob: bytes) -> Order:
    """The order that `Order.pack` wrote.

    Raises:
        StorageError, MessageError: it is damaged, or from another version.
    """
    return messages.from_state(Order, wire.unpack(blob))


@dataclass(frozen=True)
class Status:
    """A job's progress, as `silosynth status` shows it.

    Attributes:
        state: "submitted", "running", "interrupted" (resumes when all silos are connected), "suspended" (resumes when
            somebody has mended what ``error`` says, and says so), "failed", "done", or "forgotten" later.
        stage, done, total: as in `Progress`.
        attempts: number of starts.
        error: why it was interrupted or failed.
        since: when this state began, in seconds since 1970; while it runs, of the last progress.
        begun: when it was submitted, likewise; 0 of jobs of earlier versions.
        stage_since, stage_from: when this stage began, likewise, and what was done of it then.
    """

    state: str = "submitted"
    stage: str = ""
    done: int = 0
    total: int = 0
    attempts: int = 0
    error: str = ""
    since: float = 0.0
    begun: float = 0.0
    stage_since: float = 0.0
    stage_from: int = 0

    @property
    def seconds_left(self) -> float | None:
        """Of this stage, if it goes on as it has; None if nothing is known."""
        steps = self.done - self.stage_from
        if self.state != "running" or steps <= 0 or self.since <= self.stage_since:
            return None
        return (self.since - self.stage_since) * max(0, self.total - self.done) / steps

    def write(self, folder: Path) -> None:
        """Replace the job's status."""
        files.write_atomic(folder / STATUS, json.dumps(asdict(self)).encode())


def read_status(folder: Path) -> Status:
    """The status of the job in ``folder``.

    Raises:
        StorageError: there is none.
    """
    return Status(**json.loads(files.read(folder / STATUS)))


class StatusWriter:
    """Keeps a job's status up to date while it runs."""

    def __init__(self, folder: Path, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._say, self._clock = folder, say, clock
        before = read_status(folder) if (folder / STATUS).exists() else Status(begun=time.time())
        self._attempts, self.begun = before.attempts + 1, before.begun
        self._written, self._stage = float("-inf"), ""
        self._began: dict[str, Any] = {}  # the stage
        self._set("running")

    def watch(self, progress: Progress) -> None:
        """Record progress; report a new stage."""
        if progress.stage != self._stage:
            self._stage = progress.stage
            self._began = {"stage_since": time.time(), "stage_from": progress.done}
            self._say(f"{progress.stage} … {progress.note}".rstrip())
        elif self._clock() - self._written < _EVERY:
            return
        self._set("running", stage=progress.stage, done=progress.done, total=progress.total, **self._began)

    def end(self, error: BaseException | None) -> str:
        """Record and report how it ended; returns the state."""
        if error is None:
            self._set("done")
            return "done"
        known = isinstance(error, SilosynthError)
        reason = str(error) if known else f"{type(error).__name__}: see the coordinator's log"
        state = "interrupted" if resumable(error) else "suspended" if self._mendable(error) else "failed"
        self._set(state, error=reason)
        self._say(reason)
        return state

    def _mendable(self, error: BaseException) -> bool:
        """Whether the job goes on from a good checkpoint once somebody has mended the cause."""
        return isinstance(error, _MENDABLE) and has_checkpoint(self._folder)

    def _set(self, state: str, **fields: Any) -> None:
        self._written = self._clock()
        now = time.time()
        Status(state, attempts=self._attempts, since=now, begun=self.begun, **fields).write(self._folder)


_MENDABLE = (StorageError, VersionError, OSError, MemoryError)
"""A full disk; a table that is not the one that the job began with; a site with another version."""


def has_checkpoint(folder: Path) -> bool:
    """Whether a job has one at the coordinator."""
    return any((folder / COORDINATOR).glob("*.ckpt"))


def resume(folder: Path) -> None:
    """Have a suspended job go on, as soon as its silos are connected.

    Raises:
        ConfigError: it is not suspended.
    """
    if (status := read_status(folder)).state != "suspended":
        raise ConfigError(
            "A job is resumed that is suspended", f"{folder.name} is {status.state}",
            "An interrupted one goes on by itself; one that has failed is submitted again, under another name.",
        )  # fmt: skip
    replace(status, state="interrupted", since=time.time()).write(folder)


def resumable(error: BaseException) -> bool:
    """Whether a job that ended with this error can be resumed; otherwise it has failed."""
    if isinstance(error, PartyLostError):
        return error.gone
    return isinstance(error, StoppedError) or not isinstance(error, Exception)  # Ctrl-C and the like


def run_order(
    order: Order, link: Link, folder: Path, say: Callable[[str], None] = lambda line: None, every: float = 15.0
) -> None:
    """Run a job, or resume it from its last checkpoint, and write the results into its folder.

    ``every`` is the minimum time between two checkpoints, in seconds.

    Raises:
        PartyLostError: a silo is lost; the job can be resumed.
        SilosynthError: a silo refuses, or something else fails.
    """
    job, status = order.job, StatusWriter(files.private_folder(folder), say)
    files.sweep(folder)
    store, ledger = checkpoint.CheckpointStore(folder, digest(job).hex()), Ledger(folder / LEDGER)
    begun = any((folder / "coordinator").glob("*.ckpt"))  # if not, silos' rows may have changed, and need fresh noise
    streams = Streams(checkpoint.secret_seed(folder, again=begun) if job.seed is None else job.seed)
    device = resolve_device(order.device)
    try:
        if begun:
            upgrades.check(folder, "this coordinator")
        else:
            upgrades.note(folder)
        if order.consider:
            refusals = driver.drive(lambda _: have_considered(job), link, ledger)
            files.write_atomic(folder / RESULT, json.dumps({"refusals": refusals}, indent=2).encode())
            status.end(None)
            return
        if order.forget:
            receipts = driver.drive(lambda _: have_forgotten(job.silos[0], order.forget), link, ledger)
            keep_receipts(folder.parent, order.forget, job.silos[0], json.loads(receipts))
            status.end(None)
            return
        start: driver.Start[Outcome | Counted] = partial(conduct, job, streams, device, missing=order.missing)
        if job.drawing is not None:
            start = partial(redraw, job, read_trained(folder.parent / job.drawing.job), streams, device)
            every = 0.0  # its one checkpoint keeps what makes the rows that it draws again the same
        outcome = driver.drive(start, link, ledger, store, status.watch, True, seconds=every, threads=order.threads)
        _write(job, outcome, ledger, folder)
    except BaseException as error:
        if status.end(error) in endings.FOR_GOOD:
            endings.drop_checkpoints(folder)
        raise
    status.end(None)
    endings.drop_checkpoints(folder)
    say(f"done: {folder}")


def _write(job: Job, outcome: Outcome | Counted, ledger: Ledger, folder: Path) -> None:
    if isinstance(outcome, Counted):
        _write_counted(job, outcome, folder)
        return
    entry = catalog.of_config(job.algorithm, job.config)
    schema, coordinator = all_columns(outcome.schemas), dict(outcome.coordinator)
    parts = coordinator.pop("parts", {silo: {} for silo in job.silos})  # where silos have handed them over
    model = Model(
        algorithm=job.algorithm, preset=job.preset, seed=-1 if job.seed is None else job.seed, config=job.config,
        roster=Roster(job.silos), columns=schema.names, schemas=outcome.schemas, flavour="pandas",
        coordinator=coordinator, parts=parts, rows=outcome.rows, ledger=ledger.entries(), ruling=outcome.ruling,
    )  # fmt: skip
    if outcome.table is not None:
        streams = drawing_streams(job, job_streams(job))
        sources.write(to_synthetic_frame([outcome.table], schema, streams), folder / SYNTHETIC)
        label.keep_label(folder, label.facts(job, sources.read(folder / SYNTHETIC)), outcome.signed)
    result = {key: value for key, value in model.describe().items() if key != "config"}
    if job.drawing is None:
        _keep(outcome, folder)
        if not entry.parts or catalog.public(job.config):
            model.ruling = replace(outcome.ruling, forms={**outcome.ruling.forms, **outcome.forms})
            model.save(folder / MODEL)
    else:
        said = guarantee_of(job.algorithm, job.config, job.training_seed)
        result |= {"drawn_from": job.drawing.job} | ({} if said is None else {"guarantee": said})
    _write_result(job, outcome, result, folder)


def _keep(outcome: Outcome, folder: Path) -> None:
    """What rows are drawn from again."""
    schemas = {silo: messages.to_state(schema) for silo, schema in outcome.schemas.items()}
    form = None if outcome.form is None else messages.to_state(outcome.form)
    content = {"coordinator": outcome.coordinator, "schemas": schemas, "rows": outcome.rows, "form": form}
    files.write_atomic(folder / KEPT, wire.pack(content), files.PRIVATE)


def _write_counted(job: Job, outcome: Counted, folder: Path) -> None:
    """What a job that counts has opened; and in words what it was."""
    keep_counted(folder, job, outcome.result, min((told.common for told in outcome.matched.values()), default=None))
    columns = {silo: list(schema.names) for silo, schema in outcome.schemas.items()}
    result = {"algorithm": job.algorithm, "opening": opening(job), "silos": columns}
    _write_result(job, outcome, result, folder)


def _write_result(job: Job, outcome: Outcome | Counted, result: dict[str, Any], folder: Path) -> None:
    """Facts for people, as JSON; and the silos' columns."""
    began = read_status(folder).begun
    about = {"name": job.name, "submitter": job.submitter, "version": VERSION, "preset": job.preset}
    about |= {"begun": _instant(began) if began else "", "ended": _instant(time.time())}
    result = {**about, **result, "options": label.plain(messages.to_state(job.config)["fields"])}
    if not getattr(job.config, "dp", Target()).private:  # they are exact
        result["matched"] = {silo: asdict(counts) for silo, counts in outcome.matched.items()}
    files.write_atomic(folder / RESULT, json.dumps(result, indent=2).encode())
    schemas = {silo: messages.to_state(schema) for silo, schema in outcome.schemas.items()}
    files.write_atomic(folder / SCHEMAS, wire.pack({"schemas": schemas}))


def _instant(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")


def read_schemas(folder: Path) -> dict[str, Schema]:
    """The columns of a job's silos, as the coordinator knows them.

    Raises:
        StorageError: there are none, or the file is damaged.
    """
    stored = wire.unpack(files.read(folder / SCHEMAS))["schemas"]
    return {silo: messages.from_state(Schema, schema) for silo, schema in stored.items()}


STOP = "stop"
"""The file in a job's folder by which the coordinator's operator stops it."""
_CHECK_EVERY = 2.0  # seconds
_SLOWEST = 60.0  # longest pause in seconds between attempts that make no progress
_TRIES = 3  # how often a job is offered to silos that do not accept it
_UNFINISHED = ("submitted", "running", "interrupted")


class Dispatcher:
    """Supervises the jobs in a folder.

    Args:
        jobs: their folder.
        console: opens a session with the engine; called again when the session breaks.
        say: called with one line per event.
        clock: seconds since 1970.
    """

    def __init__(
        self, jobs: Path, console: Callable[[], Console], say: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._jobs, self._open, self._say, self._clock = jobs, console, say, clock
        self._begun = clock()
        self._console: Console | None = None
        self._last_line: dict[str, str] = {}  # by job
        self._open_jobs: set[str] = set()  # which had not ended when this looked last
        self._tried: dict[str, tuple[str, int, float]] = {}  # newest checkpoint, attempts since it, when the last was

    def run(self, stop: threading.Event) -> None:
        """Check the jobs periodically until ``stop`` is set."""
        self._tidy()
        while not stop.wait(_CHECK_EVERY):
            try:
                self.check()
            except SilosynthError:  # the engine has not started yet, or has ended: the daemon reports that
                self.close()
        self.close()

    def _tidy(self) -> None:
        """Remove checkpoints that a killed process, or an earlier version, has left of jobs that have ended."""
        for path in self._jobs.glob(f"*/{STATUS}"):
            if read_status(path.parent).state in endings.FOR_GOOD:
                endings.drop_checkpoints(path.parent)

    def check(self) -> None:
        """Submit jobs that can run; give up those that waited too long or that an operator stopped."""
        unfinished = list(self._unfinished())
        self._report_ended({folder.name for folder, _ in unfinished})
        if not unfinished:
            return
        self._console = console = self._console or self._open()
        last = {info.name: info for info in sorted(console.jobs(), key=lambda info: info.submitted)}
        connected = console.parties()
        for folder, status in unfinished:
            info = last.get(folder.name)
            if info is not None and info.state not in ENDED:
                continue
            if (why := self._why_not(folder, status, info)) is not None:
                self._give_up(folder, status, why)
            else:
                self._submit_when_ready(folder, status, console, connected)

    def _report_ended(self, unfinished: set[str]) -> None:
        """Say how jobs ended that had not when this looked last."""
        ended, self._open_jobs = sorted(self._open_jobs - unfinished), unfinished
        for name in ended:
            if (self._jobs / name / STATUS).exists():
                self._say_end(name, read_status(self._jobs / name))

    def _say_end(self, name: str, status: Status) -> None:
        said = {"failed": "has failed", "suspended": "is suspended"}.get(status.state)
        self._say_once(name, f"job {name} is {status.state}" if said is None else f"job {name} {said}: {status.error}")

    def close(self) -> None:
        """End the session with the engine."""
        if self._console is not None:
            self._console.close()
        self._console = None

    def _unfinished(self) -> Iterator[tuple[Path, Status]]:
        for path in sorted(self._jobs.glob(f"*/{STATUS}")):
            status = read_status(path.parent)
            if (path.parent / ORDER).exists() and status.state in _UNFINISHED:
                yield path.parent, status

    def _why_not(self, folder: Path, status: Status, info: JobInfo | None) -> str | None:
        """Why a job that the engine has ended is not to be submitted again, or None."""
        if (folder / STOP).exists():
            return "The coordinator's operator has stopped it."
        tries = self._tried.get(folder.name, ("", 0, 0.0))[1]
        other = forgetting.uses_before(folder) > 0 and not status.attempts and not tries  # of a forgotten job
        if info is not None and info.state == ABORTED and not other:
            return f"An operator has stopped it ({info.operator} had started this attempt)."
        if info is not None and info.details and not status.attempts and tries >= _TRIES:
            return f"Silos have not accepted it: {'; '.join(info.details)}"
        return None

    def _submit_when_ready(self, folder: Path, status: Status, console: Console, connected: Mapping[str, bool]) -> None:
        order = unpack_order(files.read(folder / ORDER))
        away = ", ".join(silo for silo in order.job.silos if not connected.get(silo))
        since = max(status.since, self._begun)  # silos could not connect while the coordinator was down
        if away and status.attempts and self._clock() - since > order.patience:
            why = f"{away} did not come back within {order.patience:g} s. {status.error}"
            self._give_up(folder, status, why, "suspended" if has_checkpoint(folder) else "failed")
        elif away:
            if status.stage != (stage := f"waiting for {away}"):
                replace(status, stage=stage).write(folder)
            self._say_once(folder.name, f"job {folder.name} waits for {away}. {status.error}".rstrip())
        elif self._due(folder):
            action = f"resumes, attempt {status.attempts + 1}" if status.attempts else "begins"
            self._say_once(folder.name, f"job {folder.name} {action}")
            submit(console, order)

    def _due(self, folder: Path) -> bool:
        """Whether it is time for the next attempt: pauses double while attempts make no progress."""
        newest = max((path.name for path in (folder / "coordinator").glob("*.ckpt")), default="")
        before, count, at = self._tried.get(folder.name, (newest, 0, float("-inf")))
        count = count if before == newest else 0
        if self._clock() < at + min(2.0 ** min(count, 10), _SLOWEST):
            return False
        self._tried[folder.name] = newest, count + 1, self._clock()
        return True

    def _give_up(self, folder: Path, status: Status, why: str, state: str = "failed") -> None:
        ended = replace(status, state=state, error=why, since=self._clock())
        ended.write(folder)
        if state in endings.FOR_GOOD:
            endings.drop_checkpoints(folder)
        self._say_end(folder.name, ended)

    def _say_once(self, job: str, line: str) -> None:
        """Report a line once."""
        if self._last_line.get(job) != line:
            self._last_line[job] = line
            self._say(line)


def submit(console: Console, order: Order) -> str:
    """Submit an order to the engine; returns the engine's id of this attempt."""
    return console.submit(order.pack(), order.job.silos, order.job.name)


def enqueue(order: Order, folder: Path) -> None:
    """Put an order into the job's folder on the coordinator's machine, for the dispatcher to find.

    Raises:
        ConfigError: a job of this name exists.
        StorageError: the folder cannot be written.
    """
    if (folder / STATUS).exists():
        if read_status(folder).state != "forgotten":
            raise ConfigError(
                "A job's name is used only once, unless the job was forgotten", order.job.name,
                "Submit it under another name.",
            )  # fmt: skip
        forgetting.set_aside(folder)
    order.keep(folder)
    Status(since=time.time(), begun=time.time()).write(folder)


def request_stop(folder: Path) -> None:
    """Stop a job of the coordinator's: its process does that, or the dispatcher if the job is not running.

    Raises:
        ConfigError: it has ended.
    """
    if (status := read_status(folder)).state == "suspended":
        replace(status, state="failed", error="The coordinator's operator has stopped it.").write(folder)
        endings.drop_checkpoints(folder)
        return
    if (state := status.state) not in _UNFINISHED:
        raise ConfigError("Only a job that has not ended can be stopped", f"{folder.name} is {state}")
    files.write_atomic(folder / STOP, b"")
