"""A silo's own files: where its rows live (``silo.toml``), what it allows (``policy.toml``), and what it has released.

The silo enforces its policy; no coordinator can change or skip it. A refusal is a `PolicyError` that names the rule, by
its key in the file, and what broke it. The record of releases is that of the policy's privacy budget.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Protocol

import pandas as pd
from pydantic import Field, PrivateAttr

from silosynth import catalog  # noqa: F401  # so that all messages are known
from silosynth.core import files
from silosynth.core.errors import ConfigError, PolicyError, StorageError, nearest
from silosynth.core.messages import Message, Release, all_structs, wire_name
from silosynth.data.sources import Source
from silosynth.experiment.grammar import ColumnRules, CsvKeys, FileSection, Text, read_toml
from silosynth.privacy.accounting import DELTA, rounded_up, spent
from silosynth.privacy.events import Event

_HARMLESS = (Release.NOTHING, Release.SCHEMA, Release.SEALED, Release.NOISED)  # beside a finite largest epsilon
_ASK = "Ask the silo to change its policy, or change the experiment."


class SiloPolicy(FileSection):
    """``policy.toml``. What is left out has the default shown here."""

    algorithms: list[Text] = Field(default=["silofuse", "vtgan", "gdts"])
    """Names of the algorithms that may run."""
    messages: list[Text] = Field(default=["*"])
    """Types of messages that may come and go, as patterns: "algorithms.silofuse.*"."""
    refused: list[Text] = Field(default=[])
    """Types that may not, although a pattern above allows them: "algorithms.gdts.ExactSummaries"."""
    least_rows: Annotated[int, Field(ge=1)] = 100
    """Fewest rows to train on, after alignment."""
    largest_epsilon: Annotated[float, Field(gt=0)] = float("inf")
    """Of all that this silo has released with noise, in all jobs. If finite, nothing un-noised about rows may leave,
    not even their number; names and kinds of columns still do."""
    share_synthetic: bool = True
    """Whether synthetic values of this silo's columns may leave it."""
    public_seed: bool = False
    """Whether a job may fix the seed of this silo's randomness: whoever knows it knows noise and row drop-outs."""
    submitters: list[Text] = Field(default=["*"])
    """Who may start jobs, as patterns."""

    def check_job(self, algorithm: str, submitter: str) -> None:
        """Refuse algorithms and submitters.

        Raises:
            PolicyError: names the rule.
        """
        if algorithm not in self.algorithms:
            raise _refusal("algorithms", f"allowed are {_listed(self.algorithms)}", algorithm)
        if not _matches(submitter, self.submitters):
            raise _refusal("submitters", f"jobs are started by {_listed(self.submitters)}", submitter)

    def check_options(self, seed: int | None, synthesis: str) -> None:
        """Refuse a fixed seed, and synthetic columns that would leave the silo.

        Raises:
            PolicyError: names the rule.
        """
        if seed is not None and not self.public_seed:
            raise _refusal("public_seed", "a silo draws its own secret seed", f"seed = {seed}", "Leave the seed out.")
        if synthesis == "shared" and not self.share_synthetic:
            raise _refusal(
                "share_synthetic", "synthetic columns stay in their silo", synthesis,
                'Set options = { synthesis = "partitioned" }, with an algorithm that has it.',
            )  # fmt: skip

    def check_rows(self, rows: int) -> None:
        """Refuse too few rows. The error names their number, which the coordinator's ledger shows anyway.

        Raises:
            PolicyError: names the rule.
        """
        if rows < self.least_rows:
            raise _refusal("least_rows", f"training takes at least {self.least_rows} rows", rows)

    def check_message(self, message: Message) -> None:
        """Refuse types of messages.

        Raises:
            PolicyError: names the rule.
        """
        name = wire_name(type(message))
        common = name.startswith("core.")  # synthetic columns among them: `share_synthetic` says whether they leave
        if name.startswith("deployment.") or (common and message.release is Release.NOTHING):
            return  # no job can begin without them, and they reveal no row
        if not (common or _matches(name, self.messages)):
            raise _refusal("messages", f"allowed are {_listed(self.messages)}", name)
        if _matches(name, self.refused):
            raise _refusal("refused", f"not allowed are {_listed(self.refused)}", name)

    def check_release(self, reply: Message, before: Iterable[Event]) -> None:
        """Refuse synthetic columns that must stay, and releases beyond the budget.

        ``before`` are the events of noised releases up to now.

        Raises:
            PolicyError: names the rule.
        """
        if reply.release is Release.SYNTHETIC and not self.share_synthetic:  # whatever the job's options said
            raise _refusal("share_synthetic", "synthetic columns stay in their silo", wire_name(type(reply)))
        if self.largest_epsilon == float("inf"):
            return
        if reply.release not in _HARMLESS:
            what = f"{wire_name(type(reply))}, which gives away {reply.release.value}"
            raise _refusal("largest_epsilon", "while it is set, nothing about rows leaves without noise", what)
        events = getattr(reply, "events", ())
        if reply.release is Release.NOISED and not events:  # such as names of levels that one row may hold (delta 0)
            raise _refusal(
                "largest_epsilon", "while it is set, all noise is charged", f"{wire_name(type(reply))} without events"
            )
        total = spent([*before, *events], DELTA).epsilon if events else 0.0
        if total > self.largest_epsilon:
            raise _refusal(
                "largest_epsilon", f"all releases together cost at most {self.largest_epsilon:g}", rounded_up(total)
            )


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _refusal(rule: str, meaning: str, value: Any, remedy: str = _ASK) -> PolicyError:
    return PolicyError(f"Policy rule {rule!r}: {meaning}", value, remedy)


FILE, LOCK = "releases.jsonl", "releases.lock"


class Releases:
    """Events by job, attempt and number. After a crash the same noise may be released again, which counts once.

    Args:
        folder: the silo's.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    def locked(self) -> AbstractContextManager[None]:
        """Make this silo's processes of other jobs wait, so that nothing comes between a check and an addition.

        Raises:
            StorageError: the folder cannot be written to.
        """
        return files.locked(self.path.parent / LOCK)

    def without(self, attempt: str, number: int) -> list[Event]:
        """All events except those of release ``number`` of an attempt.

        Raises:
            StorageError: the file cannot be read.
        """
        return [event for key, events in self._read().items() if key != (attempt, number) for event in events]

    def add(self, job: str, attempt: str, number: int, events: Sequence[Event]) -> None:
        """Record a release; it is on disk when this returns. Call it while `locked`.

        Raises:
            StorageError: the disk is full…
        """
        line = {"job": job, "attempt": attempt, "number": number, "events": [asdict(event) for event in events]}
        files.make_folder(self.path.parent)
        before = files.read(self.path) if self.path.exists() else b""
        files.write_atomic(self.path, before + json.dumps(line).encode() + b"\n", files.PRIVATE)

    def _read(self) -> dict[tuple[str, int], list[Event]]:
        if not self.path.exists():
            return {}
        releases: dict[tuple[str, int], list[Event]] = {}
        for line in files.read(self.path).splitlines():
            try:
                release = json.loads(line)
                events = [Event(**event) for event in release["events"]]
                releases[release["attempt"], release["number"]] = events
            except (ValueError, KeyError, TypeError) as error:
                raise StorageError(
                    "The record of a silo's releases can be read", str(self.path), "Restore it from a copy."
                ) from error
        return releases


SILO, POLICY = "silo.toml", "policy.toml"


class RowSource(Protocol):
    """The source of a silo's rows."""

    def read(self) -> pd.DataFrame:
        """All rows, with their identifier columns."""

    @property
    def identifiers(self) -> list[str]:
        """The columns that identify a row's subject."""

    @property
    def declared(self) -> Mapping[str, Any]:
        """What is declared about columns rather than inferred."""


class SiloData(CsvKeys):
    """``[data]``: one table, of a file or of a database; see `silosynth.data.sources.Source`."""

    path: Text | None = None
    database: Text | None = None
    table: Text | None = None
    query: Text | None = None
    columns: Annotated[list[Text], Field(min_length=1)] | None = None
    user: Text | None = None
    user_env: Text | None = None
    password_env: Text | None = None
    password_file: Text | None = None
    batch_rows: Annotated[int, Field(ge=1)] = 50_000
    identifiers: list[Text] = Field(default_factory=list)
    """Columns that identify a row's subject, the same in all silos: rows are linked by them; they are not modelled."""


class SiloFile(FileSection):
    """``silo.toml``."""

    data: SiloData
    columns: dict[str, ColumnRules] = Field(default_factory=dict, alias="schema")
    _source: Path = PrivateAttr(default=Path())

    def source(self) -> Source:
        """The rows' source; paths are relative to ``silo.toml``."""
        fields = self.data.model_dump(exclude={"identifiers"})
        for key in ("path", "password_file"):
            fields[key] = None if fields[key] is None else Path(fields[key]).expanduser()
        fields |= {key: tuple(fields[key]) for key in ("columns", "missing") if fields[key] is not None}
        fields["decimal"] = fields["decimal"] or "."
        return Source(**fields).within(self._source.parent)

    def read(self) -> pd.DataFrame:
        """All rows."""
        return self.source().load()

    @property
    def identifiers(self) -> list[str]:
        """The columns that identify a row's subject."""
        return list(self.data.identifiers)

    @property
    def declared(self) -> dict[str, dict[str, Any]]:
        """What is declared about columns, as schema inference takes it."""
        return {name: rules.model_dump(exclude_none=True) for name, rules in self.columns.items()}


def read_silo(folder: Path) -> SiloFile:
    """The silo's data settings.

    Raises:
        StorageError: no such file.
        ConfigError: a key or a value does not fit; names the file, the key and the remedy.
    """
    silo = read_toml(folder / SILO, SiloFile)
    silo._source = folder / SILO
    silo.source().check()
    return silo


def read_policy(folder: Path) -> SiloPolicy:
    """The silo's policy.

    Raises:
        StorageError: no such file.
        ConfigError: a key or a value does not fit; names the file, the key and the remedy. Also if a pattern matches no
            message of this version: a rule that was meant to protect would be passed over.
    """
    policy, known = read_toml(folder / POLICY, SiloPolicy), list(all_structs(Message))
    for key in ("messages", "refused"):
        for pattern in getattr(policy, key):
            if not any(fnmatchcase(name, pattern) for name in known):
                raise ConfigError(f"{POLICY}: {key} names types of messages", pattern, nearest(pattern, known))
    return policy
