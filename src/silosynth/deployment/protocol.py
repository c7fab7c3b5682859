"""The protocol of a job: messages around an algorithm's own conversation. The coordinator's side is in `conducting`.

In talking order: `Greet` → `Greeted`, `Begin` → `Done`, (agreement on the job), `AskColumns` → `ColumnsTold` and
(alignment) if rows are linked, `PrepareRows` →
`PreparedSchema` or `PreparedRows`, (training), `KeepPart` → `Done`, `PrepareSynthesis` → `Done`, (sampling), `Publish`
→ `Done`, `AskNonce` → `DrawnNonce`, `SealHead` → `SealedHeads`, `RelayedHeads` → `Done`. If the table is shared, silos
then sign what they say of it: `SignLabel` → `LabelSigned`, `KeepLabel` → `Done` (`silosynth.deployment.label`).

Jobs that count (`silosynth.catalog`, kind "counting") train nothing, and leave no part of a model. In place of all from
`KeepPart` to `Publish` silos are passed on what opened: `CountedTables` or `NoisedTables` → `Done`.

One silo may deal for such a job. It needs no rows, and takes part in nothing but greeting, `Begin`, `PrepareRows` and
the counting: it is told neither the secret that silos agree on nor what opens.

Under rules, or conditions, rows are drawn until there are enough that all accept. After `PrepareSynthesis` silos read
the conditions on their columns: `AskConditions` → `ConditionsRead`. Where a column's levels are to have other shares,
or each row has conditions of its own, rows are drawn in groups, each after `PrepareGroup` → `Done`; of many kinds they
are first looked for among rows without conditions, each batch after `PreparePool` → `Done`. Where columns are shared
the coordinator compares what it gets. Where they stay, silos say of the rows of each batch which they accept:
`AcceptRows` → `RowsAccepted`; for each key that is to be unique, `AcceptKeys` → `RowsAccepted`; and keep those that all
accept: `TakeRows` → `Done`. With rules, silos that hold different rows reply `PreparedRuled` to `PrepareRows`.

Jobs that draw (`Drawing`) take up no rows: in place of all between the agreement and `PrepareSynthesis` silos load the
part of the model that they keep of another job.

In jobs of silos with different columns that hold out rows, or take up a sample (`silosynth.deployment.holdout`), also,
before the alignment, `AskHoldoutKey` → `SealedHoldoutKey`, `RelayedHoldoutKeys` → `Done`; and after `PrepareRows`,
`AskHoldoutTag` → `HoldoutTag`, `ShownHoldoutTags` → `Done`. Silos in groups do so within each, by a secret that its
silos agree on first.

Silos take all options from the job, and none from other messages. That all were told the same job they prove to each
other, past the coordinator: they agree on a secret (`silosynth.privacy.agreement`) whose purpose is a hash of the job.

By the last three, silos compare their ledgers past the coordinator: whether all were asked the same, by the messages
that are declared to be common (`silosynth.deployment.silo_ledger`). Nonces keep heads of earlier attempts out.

Checkpoints of the training carry what came before it, so that a resumed job does not align again.

What parties learn besides the algorithm's own messages: the coordinator learns the names, kinds and dtypes of each
silo's columns; from an alignment each silo's number of rows and how many of them all silos have in common, by `Placed`
and by the lengths of what silos seal for each other; without differential privacy the number of rows in any case.
Silos learn the synthetic table.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from silosynth import catalog
from silosynth.alignment import AlignConfig
from silosynth.core.conditions import Condition
from silosynth.core.errors import ConfigError, VersionError
from silosynth.core.messages import Message, Release, Rows, Struct
from silosynth.core.rules import Rule
from silosynth.core.schema import Schema, Table
from silosynth.core.streams import Streams
from silosynth.core.version import VERSION
from silosynth.encoders.ruled import Ruled
from silosynth.privacy.events import Event, draws_noise
from silosynth.privacy.sealed import Envelope, framed
from silosynth.runtime.wire import encode
from silosynth.simulation.model import sampling_streams

ROOMS = (
    "__init__.py", "algorithms", "alignment", "catalog.py", "core", "counting", "data", "deployment", "encoders",
    "experiment", "models", "privacy", "runtime", "simulation",
)  # fmt: skip
"""Files and folders of the package that `sources` covers: all from which a job's processes import, as a test checks."""
APART = (
    "core/version.py", "data/datasets.py", "data/splits.py", "deployment/appraising.py", "deployment/backup.py",
    "deployment/certificates.py", "deployment/console.py", "deployment/exposure.py", "deployment/facts.py",
    "deployment/flare/daemon.py", "deployment/judging.py", "deployment/label_page.py", "deployment/metrics.py",
    "deployment/preflight.py", "simulation/appraisal.py", "simulation/counting.py", "simulation/gaps.py",
    "simulation/judging.py", "simulation/representation.py", "simulation/training.py",
)  # fmt: skip
"""Files among these that no job's process imports, as a test checks as well; and the number of the version."""
SHARES = tuple(part / 20 for part in range(20))
"""What share of its rows a job may hold out."""
SAMPLES = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
"""What share of all rows a job may take up."""
MOST_KINDS = 10_000
"""Different rows of a frame of conditions."""
TOLD_KINDS = 20
"""How many of these ledgers and labels list one by one."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")


class GivenColumn(Struct):
    """A condition on a column, as ``--given`` takes it: "age=60..80", or a JSON object with one key."""

    column: str
    text: str


class OtherShares(Struct):
    """Other shares of a column's levels than were learnt, as in `Model.sample`.

    Attributes:
        column: its name.
        shift: a JSON object of levels and their shares, or the share of the second of two levels; empty for equally
            many rows of each level.
    """

    column: str
    shift: str = ""

    @property
    def in_words(self) -> str:
        """As a line of text."""
        return f"shares of {self.column}: {self.shift or 'equal'}"


class GivenRows(Struct):
    """A frame of conditions, one row for each row that is drawn.

    Attributes:
        kinds: the conditions of each row that is different from all before it.
        kind_of: for each row of the frame, the place of its own.
    """

    kinds: tuple[tuple[GivenColumn, ...], ...]
    kind_of: tuple[int, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that any row has a condition on."""
        return tuple(dict.fromkeys(one.column for kind in self.kinds for one in kind))

    @property
    def in_words(self) -> tuple[str, ...]:
        """As lines of text: every kind, if there are few; else columns, numbers, and a hash of all of it."""
        if len(self.kinds) <= TOLD_KINDS:
            rows = Counter(self.kind_of)
            told = (", ".join(one.text for one in kind) or "no condition" for kind in self.kinds)
            return tuple(f"{words} in {rows[number]:,} rows" for number, words in enumerate(told))
        columns, of = ", ".join(self.columns), f"{len(self.kind_of):,} rows of {len(self.kinds):,} kinds"
        return (f"{of} by {columns}; SHA-256 {hashlib.sha256(encode(self)).hexdigest()}",)

    def _check(self) -> None:
        if len(self.kinds) > MOST_KINDS:
            rule = f"A frame of conditions has at most {MOST_KINDS:,} different rows in a job"
            raise ConfigError(rule, f"{len(self.kinds):,}", "Draw in several jobs.")
        if set(self.kind_of) != {*range(len(self.kinds))}:
            raise ConfigError("Each row of a frame is of one of its kinds", "others", "Compare versions.")
        for kind in self.kinds:
            _check_once(tuple(one.column for one in kind))


class Drawing(Struct):
    """What a job draws rows from, in place of training.

    Attributes:
        job: the job that trained.
        seed: that this one fixed, if any.
        given: conditions that all rows fulfil, one for each column that has any.
        shares: other shares of the levels of another column, if any.
        frame: or conditions of each row.
    """

    job: str
    seed: int | None
    given: tuple[GivenColumn, ...] = ()
    shares: OtherShares | None = None
    frame: GivenRows | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that rows are asked for by."""
        more = () if self.shares is None else (self.shares.column,)
        return (*(one.column for one in self.given), *more, *(() if self.frame is None else self.frame.columns))

    @property
    def in_words(self) -> tuple[str, ...]:
        """What rows are asked for, as lines of text."""
        more = () if self.shares is None else (self.shares.in_words,)
        return (*(one.text for one in self.given), *more, *(() if self.frame is None else self.frame.in_words))

    def _check(self) -> None:
        check_name(self.job)
        if self.frame is not None and (self.given or self.shares is not None):
            rule = "A frame of conditions comes alone"
            raise ConfigError(rule, "other conditions, or shares", "Give the frame columns for conditions on all rows.")
        _check_once(self.columns)


def _check_once(columns: tuple[str, ...]) -> None:
    if len(set(columns)) < len(columns):
        remedy = "List the values: health=poor,fair; shares may be of some levels only."
        raise ConfigError("Each column is named once, by a condition or by shares", list(columns), remedy)


class Job(Struct):
    """A training run and its synthetic table; or more rows of what another job has trained.

    Attributes:
        name: unique in the federation.
        algorithm, preset, config: the algorithm and all its options.
        silos: participants, in order.
        seed: of all randomness, silos' own included; None if each draws its own.
        align: how rows are linked, within each group if silos are in groups; None if silos hold different rows, or the
            same rows in the same order.
        rows: of the synthetic table; None for as many as there are to train on (with differential privacy, the noised
            number).
        submitter: the operator who started it.
        holdout: share of the rows that silos set aside before training, in whole twentieths: what two jobs with
            different shares tell apart is then no single person, but a twentieth of all.
        drawing: what rows are drawn from; None of a job that trains, or counts. ``seed`` is then that of the drawing.
        rules: what synthetic rows keep. No silo tells anybody whether its real rows do.
        sample: share of all rows that the job takes up, one of `SAMPLES`: what two jobs with different shares tell
            apart is then at least half of all that one of them takes up. Rows are held out of these.

    Raises:
        ConfigError: the name has other characters than `check_name` allows, or a share is another; or a job that
            draws does not say how many rows, links, holds out or samples any, or has the name of the one that trained;
            or a rule names a file, or would tell whether real rows keep it; or groups of silos are not of all silos; or
            a job that opens exact counts takes up a sample.
    """

    name: str
    algorithm: str
    preset: str
    config: Struct
    silos: tuple[str, ...]
    seed: int | None
    align: AlignConfig | None
    rows: int | None
    submitter: str
    holdout: float = 0.0
    drawing: Drawing | None = None
    rules: tuple[Rule, ...] = ()
    sample: float = 1.0

    @property
    def given(self) -> tuple[GivenColumn, ...]:
        """Conditions that all rows fulfil."""
        return () if self.drawing is None else self.drawing.given

    @property
    def shares(self) -> OtherShares | None:
        """Other shares of a column's levels."""
        return None if self.drawing is None else self.drawing.shares

    @property
    def frame(self) -> GivenRows | None:
        """Conditions of each row."""
        return None if self.drawing is None else self.drawing.frame

    @property
    def grouped(self) -> bool:
        """Whether rows are drawn in groups."""
        return self.shares is not None or self.frame is not None

    @property
    def asked(self) -> tuple[str, ...]:
        """What rows are asked for, as lines of text: conditions, other shares, or conditions of each row."""
        return () if self.drawing is None else self.drawing.in_words

    @property
    def asked_columns(self) -> tuple[str, ...]:
        """The columns that rows are asked for by."""
        return () if self.drawing is None else self.drawing.columns

    @property
    def accepting(self) -> bool:
        """Whether rows are drawn until enough are accepted."""
        return bool(self.asked or self.rules)

    @property
    def training_seed(self) -> int | None:
        """The seed that the training fixed from which rows are drawn; None of a secret one."""
        return self.seed if self.drawing is None else self.drawing.seed

    def _check(self) -> None:
        check_name(self.name)
        if self.drawing is not None and (not self.rows or self.align is not None or self.holdout or self.sample < 1):
            raise ConfigError("A job that draws says how many rows, and takes up none", self.rows, "Give --rows.")
        if self.grouped and catalog.partitioned(self.config):
            raise ConfigError(
                "Rows are drawn in other shares, or by a frame, where synthetic columns are shared", self.asked[0],
                "Draw rows under a condition for each level, or each kind of row.",
            )  # fmt: skip
        if self.frame is not None and self.rows != (rows := len(self.frame.kind_of)):
            said = f"{rows:,} rows for {self.rows or 0:,}"
            raise ConfigError("A frame of conditions has one row for each row that is drawn", said, "Leave out --rows.")
        if self.drawing is not None and self.drawing.job == self.name:
            raise ConfigError("A job that draws has another name than the one that trained", self.name, "Give --name.")
        if self.holdout not in SHARES:
            raise ConfigError(
                "A job holds out a share of the rows in whole twentieths: 0, 0.05, 0.1 … 0.95", self.holdout,
                "Write [split] holdout = 0.2, say.",
            )  # fmt: skip
        if self.sample not in SAMPLES:
            raise ConfigError(
                "A job takes up all rows, or a sample of them: a half, a fifth, a tenth and so on, down to 0.001",
                self.sample, "Write [split] sample = 0.1, say.",
            )  # fmt: skip
        counts = catalog.algorithm(self.algorithm, kind=None).kind == "counting"
        if self.sample < 1 and counts and opening(self) != "noised":
            raise ConfigError(
                "A job that opens exact counts takes up all rows", self.sample,
                "Open them with noise, or leave the sample out.",
            )  # fmt: skip
        if silo_groups(self):
            self._check_groups()
        for rule in self.rules:
            _check_rule(rule)

    def _check_groups(self) -> None:
        named = [silo for group in silo_groups(self) for silo in group]
        if sorted(named) != sorted(self.silos):
            rule = "Groups of silos name all silos of a job, each once"
            raise ConfigError(rule, named, f"Silos are {', '.join(self.silos)}.")


def _check_rule(rule: Rule) -> None:
    """Refuse a rule that would have silos read files, or tell of their rows by an error."""
    if getattr(rule, "file", ""):
        raise ConfigError("A job lists combinations itself", "a file", "Both sides must run the same version.")
    if getattr(rule, "on_break", "") == "error":
        raise ConfigError(
            "In a federation nobody is told whether a silo's real rows keep a rule", f"on_break of {rule.in_words!r}",
            "Leave on_break out: each silo's own log says how many rows break it.",
        )  # fmt: skip


def digest(job: Job, *more: str) -> bytes:
    """A hash of the sources that are installed here, of all of the job, and of ``more``: 32 bytes."""
    return hashlib.sha256(framed(sources(), encode(job), *more)).digest()


def purpose(job: Job) -> str:
    """What silos agree on a secret for before anything else: two that were told different jobs cannot."""
    return f"deployment: job {digest(job).hex()}"


def comparing(job: Job) -> bool:
    """Whether silos of a job agree on a secret by which columns that stay in them are compared."""
    return not shares_table(job) and any(len(rule.named) > 1 for rule in job.rules)


def rows_purpose(job: Job) -> str:
    """What silos agree on that secret for."""
    return f"deployment: rows of job {digest(job).hex()}"


def job_streams(job: Job) -> Streams:
    """The streams that all of a job share: those of its seed; without one, of its name, which is no secret."""
    name = int.from_bytes(hashlib.sha256(job.name.encode()).digest()[:7], "big")
    return Streams(name if job.seed is None else job.seed)


def drawing_streams(job: Job, streams: Streams) -> Streams:
    """The streams of a job's synthetic table, given its own: as of the first `Model.sample`, or one with a seed."""
    if job.drawing is None or job.seed is None:
        return sampling_streams(streams)
    hidden = job.drawing.seed is None or draws_noise(job.config)  # as `silosynth.Model.seed` is then
    return sampling_streams(Streams(-1 if hidden or job.drawing.seed is None else job.drawing.seed), seed=job.seed)


def opening(job: Job) -> str:
    """How the tables of a job that counts open: "noised", unless its options say otherwise."""
    return str(getattr(job.config, "opening", "noised"))


def divided(algorithm: str, config: Any) -> tuple[bool, bool]:
    """Whether silos hold different rows of the same columns, and not other columns of the same rows; and in groups."""
    alike = catalog.algorithm(algorithm, kind=None).horizontal or bool(getattr(config, "horizontal", False))
    return alike, bool(getattr(config, "silo_groups", ()))


def horizontal(job: Job) -> bool:
    """Whether silos of a job, or groups of them, hold different rows of the same columns."""
    return divided(job.algorithm, job.config)[0]


def by_key(job: Job) -> bool:
    """Whether silos with other columns of the same rows agree on which of these a job takes up, or holds out."""
    return bool(job.holdout or job.sample < 1) and (bool(silo_groups(job)) or not horizontal(job))


def holdout_purpose(job: Job) -> str:
    """What silos of a group agree on a secret for, before they tell each other by which key they hold out rows."""
    return f"deployment: hold-out of job {digest(job).hex()}"


def silo_groups(job: Job) -> tuple[tuple[str, ...], ...]:
    """The silos of each group, of which each divides all columns and holds other rows; none of other jobs."""
    return tuple(getattr(job.config, "silo_groups", ()))


def own_group(job: Job, silo: str) -> tuple[str, ...]:
    """The silos with which one has its rows in common: its group, or all that hold rows."""
    return next((group for group in silo_groups(job) if silo in group), holders(job))


def links(job: Job, silo: str) -> bool:
    """Whether a silo links its rows with those of others; one that is a group by itself does not."""
    return job.align is not None and not (silo_groups(job) and len(own_group(job, silo)) < 2)


def dealer(job: Job) -> str:
    """The silo that deals for a job that counts, and holds no rows of it; empty if the coordinator deals."""
    return str(getattr(job.config, "dealer", ""))


def holders(job: Job) -> tuple[str, ...]:
    """The silos of a job that hold rows: all but one that deals."""
    return tuple(silo for silo in job.silos if silo != dealer(job))


def check_name(name: str) -> str:
    """The name of a job, which is also a folder name.

    Raises:
        ConfigError: it is too long, or has other characters.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            "A job's name is 1 to 80 letters, digits, '_', '.' or '-', and starts with a letter or digit", name
        )
    return name


@cache
def sources() -> str:
    """SHA-256 of the sources that a job's processes import: silos with equal digests run the same algorithms.

    What never runs in a job is left out, as are papers, attacks, evaluation, commands and the console; and the number
    of the version. So releases that differ in nothing else work together.
    """
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    rooms, apart = (root / room for room in ROOMS), {root / path for path in APART}
    found = {path for room in rooms for path in ([room] if room.is_file() else room.rglob("*.py"))}
    for path in sorted(found - apart):
        text = path.read_bytes().replace(b"\r\n", b"\n")
        digest.update(f"{path.relative_to(root).as_posix()} {len(text)}\n".encode() + text)
    return digest.hexdigest()


def installed() -> tuple[str, str]:
    """Version and `sources` of the silosynth that is installed here."""
    return VERSION, sources()


class Greet(Message, common=True):
    """Coordinator: my version of silosynth, the algorithm I want to run, and who submitted it."""

    algorithm: str
    submitter: str
    version: str
    sources: str


class Greeted(Message):
    """Silo: agreed; my version of silosynth."""

    version: str
    sources: str


class Begin(Message, common=True):
    """Coordinator: open your table and get ready for this job."""

    job: Job


class AskHoldoutKey(Message, common=True):
    """Coordinator: seal for the silos that hold the same rows the key by which you hold out rows, if you keep one."""


class SealedHoldoutKey(Message, release=Release.SEALED):
    """Silo: the key that I keep, or that I keep none, sealed for these silos."""

    sealed: bytes


class RelayedHoldoutKeys(Message, release=Release.SEALED, common=True):
    """Coordinator: what all silos sealed, in the job's order."""

    sealed: tuple[bytes, ...]


class RelayedGroupKeys(RelayedHoldoutKeys, common=False):
    """Coordinator: what the silos of your group sealed."""


class AskHoldoutTag(Message, common=True):
    """Coordinator: prove to the other silos which rows you hold out."""


class HoldoutTag(Message):
    """Silo: a tag (32 bytes) that only silos of the job can make, of the rows that I hold out."""

    tag: bytes


class ShownHoldoutTags(Message, common=True):
    """Coordinator: the tags of all silos, in the job's order."""

    tags: tuple[bytes, ...]


class ShownGroupTags(ShownHoldoutTags, common=False):
    """Coordinator: the tags of the silos of your group."""


class AskColumns(Message, common=True):
    """Coordinator: name your columns, before any row is linked."""


class ColumnsTold(Message, release=Release.SCHEMA):
    """Silo: the columns that I model or replace; ``linking`` are those that several silos may have."""

    names: tuple[str, ...]
    linking: tuple[str, ...]


class PrepareRows(Message, common=True):
    """Coordinator: keep the common rows, in the common order, and describe your columns."""


class PreparedSchema(Message, release=Release.SCHEMA):
    """Silo: my columns, without the reasons for inferred kinds and what stands for missing values.

    The reply of silos with different rows; and, without ranges, of all that train with differential privacy.
    """

    schema: Schema


class PreparedRuled(Message, release=Release.SCHEMA):
    """Silo: my columns, and how I describe rows of them under the job's rules.

    The reply of silos with different rows; and, without ranges, of those that hand over what columns are drawn from.
    """

    schema: Schema
    form: Ruled


class PreparedRows(Message, release=Release.COUNTS):
    """Silo: my columns, without ranges, reasons and marks of missing values; and my row count, the same in all silos.

    Of pseudonyms the forms that at least five rows have are named, unless the training is differentially private.
    """

    schema: Schema
    rows: int


class KeepPart(Message, common=True):
    """Coordinator: training has ended; keep your part of the model."""


class PrepareSynthesis(Message, common=True):
    """Coordinator: load your part of the model to synthesise rows from it."""


class AskConditions(Message, common=True):
    """Coordinator: read the job's conditions on your columns, as far as you allow them."""


class LevelRows(Struct):
    """A group of the rows that are drawn: the condition on the column whose shares are others, and how many rows."""

    condition: Condition
    rows: int


class ConditionsRead(Message):
    """Silo: what they say, in values of the columns; and the groups of rows, if other shares are of my column.

    Of a frame, ``kinds`` are what each of its different rows says of my columns.
    """

    conditions: tuple[Condition, ...]
    groups: tuple[LevelRows, ...] = ()
    kinds: tuple[tuple[Condition, ...], ...] = ()


class PreparePool(Message, common=True):
    """Coordinator: rows from now on are of no group. Those of many groups are looked for among them, in batches."""

    number: int


class PrepareGroup(Message, common=True):
    """Coordinator: rows from now on are of group ``number``."""

    number: int


class AcceptRows(Message, common=True):
    """Coordinator: which rows of batch ``number`` fulfil your conditions, and keep your rules but for unique keys?"""

    number: int


class AcceptKeys(Message, release=Release.SYNTHETIC):
    """Coordinator: of the rows of batch ``number`` that are accepted so far (N,), which have a new key?

    ``rule`` is the key's place among the job's rules.
    """

    number: int
    rule: int
    accepted_N: Tensor


class RowsAccepted(Message, release=Release.SYNTHETIC):
    """Silo: these synthetic rows (N,), bool."""

    accepted_N: Tensor


class AskCodes(Message, release=Release.SYNTHETIC):
    """Coordinator: send codes of the rows of batch ``number`` that are accepted so far (N,), for a rule across silos.

    ``rule`` is its place among the job's rules.
    """

    number: int
    rule: int
    accepted_N: Tensor


class RowCodes(Message, release=Release.SYNTHETIC):
    """Silo: codes (rows, places) of these rows, int64; see `silosynth.privacy.simultaneous`."""

    codes: Tensor


class TakeRows(Message, release=Release.SYNTHETIC, common=True):
    """Coordinator: all accept these rows (N,) of batch ``number``; of them keep the first ``rows``."""

    number: int
    accepted_N: Tensor
    rows: Rows[int]


class Publish(Message, release=Release.SYNTHETIC, common=True):
    """Coordinator: the synthetic table, or a batch of its rows, for you to keep.

    ``first`` is the batch's first row, ``total`` the rows of the table. ``table`` is empty if columns stay in silos.
    """

    columns: Schema
    table: Table
    first: int
    total: int


class CountedTables(Message, release=Release.TABLES, common=True):
    """Coordinator: the tables that opened exactly, for you to keep. ``content`` is a packed state."""

    content: bytes


class CountedFigures(Message, release=Release.FIGURES, common=True):
    """Coordinator: the figures that opened, for you to keep. ``content`` is a packed state."""

    content: bytes


class NoisedTables(Message, release=Release.NOISED, common=True):
    """Coordinator: what opened with noise, for you to keep: a packed state; and the events that all silos listed."""

    content: bytes
    events: tuple[Event, ...]


PASSED_ON: Mapping[str, type[Message]] = {
    "exact": CountedTables, "figures": CountedFigures, "noised": NoisedTables,
}  # fmt: skip
"""What silos are passed on, by how a job's tables open."""


class Consider(Message):
    """Coordinator: would you refuse this job? The first and last ask; no row is read. My version, as in `Greet`."""

    job: Job
    version: str
    sources: str


class Considered(Message):
    """Silo: why I would refuse, as others may read it; nothing if I would take part."""

    refusals: tuple[str, ...]


class Forget(Message):
    """Coordinator: remove what a job has left with you, and what was drawn from it. The first and last ask of a job."""

    job: str

    def _check(self) -> None:
        check_name(self.job)


class Forgot(Message):
    """Silo: done, with signed receipts, as JSON: names of files, and which ledger stays."""

    receipts: str


class AskNonce(Message, common=True):
    """Coordinator: draw a number for the comparison of ledgers."""


class DrawnNonce(Message):
    """Silo: 32 random bytes."""

    nonce: bytes


class SealHead(Message, common=True):
    """Coordinator: seal for each other of these silos what your ledger says. ``nonces`` are theirs, in their order."""

    silos: tuple[str, ...]
    nonces: tuple[bytes, ...]


def heads_purpose(job: str, ask: SealHead) -> str:
    """What heads are sealed for: this comparison, and no other."""
    numbers = hashlib.sha256(framed(*ask.silos, *ask.nonces)).hexdigest()
    return f"silosynth: ledgers of job {job}, {numbers}"


class SealedHeads(Message, release=Release.SEALED):
    """Silo: my ledger's head, sealed for each other silo."""

    envelopes: tuple[Envelope, ...]


class RelayedHeads(Message, release=Release.SEALED):
    """Coordinator: the other silos' heads."""

    envelopes: tuple[Envelope, ...]


class SignLabel(Message, common=True):
    """Coordinator: sign what you say of the table that you were sent."""


class LabelSigned(Message):
    """Silo: my statement, as JSON, the key of my signatures in hexadecimal, and my signature on it and on the facts."""

    statement: str
    key: str
    signature: str


class KeepLabel(Message, common=True):
    """Coordinator: what all silos have signed, for you to check and keep."""

    signed: tuple[LabelSigned, ...]


def check_same(who: str, theirs: tuple[str, str], whom: str, mine: tuple[str, str]) -> None:
    """Refuse to work with other sources of silosynth; versions may differ where sources do not.

    ``theirs`` and ``mine`` are as from `installed`.

    Raises:
        VersionError: names versions and digests.
    """
    if theirs[1] != mine[1]:
        rule = f"All of a job run the same sources; those of {who}, silosynth {theirs[0]}, have SHA-256 {theirs[1]}"
        found = f"{mine[1]} at {whom}, silosynth {mine[0]}"
        remedy = "Install the same release everywhere, or one whose sources are equal: `silosynth check` shows them."
        raise VersionError(rule, found, remedy, public=f"{rule}, {found}")


def shares_table(job: Job) -> bool:
    """Whether a job of a generator publishes its table, rather than leaving columns in their silos."""
    return not catalog.partitioned(job.config)
