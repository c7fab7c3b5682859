"""What a silo allows (``policy.toml``), and what it has released with noise.

The silo enforces its policy; no coordinator can change or skip it. A refusal is a `PolicyError` that names the rule, by
its key in the file, and what broke it. The record of releases is that of the policy's privacy budget.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import ConfigDict, Field

from silosynth import catalog
from silosynth.algorithms.gdts.options import GDTSConfig
from silosynth.core import files
from silosynth.core.errors import ConfigError, PolicyError, StorageError, nearest
from silosynth.core.messages import Message, Release, Struct, all_structs, wire_name
from silosynth.core.schema import Table
from silosynth.counting.judge import HOLDOUT
from silosynth.deployment.protocol import Job, dealer, horizontal, opening, shares_table, silo_groups
from silosynth.experiment.grammar import FileSection, Text, read_toml
from silosynth.privacy import agreement
from silosynth.privacy.accounting import DELTA, ROUNDING, rounded_up, spent
from silosynth.privacy.events import Event, Target

POLICY = "policy.toml"
Fingerprint = Annotated[str, Field(pattern=r"^(?:[0-9A-Fa-f]{2}:?){32}$")]
_TARGET = "Set algorithm.options.dp, such as { epsilon = 4.0, delta = 1e-5 }."
_NOISED = 'Have them open with noise: opening = "noised", with an epsilon.'
_PSI = 'Set align.method = "psi".'
_ASK = "Ask the silo to change its policy, or change the experiment."
UNDER_A_BUDGET = {
    "core.Done": "it only confirms",
    "deployment.Greeted": "the version of silosynth",
    "deployment.ColumnsTold": "names of its columns, which are taken as public",
    "deployment.PreparedSchema": "names, kinds and dtypes of columns, which are taken as public",
    "deployment.SealedHoldoutKey": "a key, or none, sealed for the other silos; of one length",
    "deployment.HoldoutTag": "a proof of holding out the same rows, which is random to all but silos",
    "deployment.DrawnNonce": "a random number",
    "deployment.PreparedRuled": "names, kinds and dtypes of columns, taken as public, and the job's own rules",
    "deployment.ConditionsRead": "the job's own conditions, in values of the column",
    "deployment.LabelSigned": "which kinds of messages have left, a hash of its ledger, which holds times; which"
    " reports were made, with salted hashes of what they found; a signature",
    "deployment.Considered": "which rule of its policy would refuse a job; no row was read",
    "deployment.Forgot": "names of files that a job left, and a hash of its ledger, whose lines hold times",
    "deployment.SealedHeads": "digests of what all silos were asked, sealed for the others",
    "privacy.Shares": "random numbers, sealed for the other silos",
    "privacy.Confirmation": "a proof of knowing them",
    "privacy.Offered": "a key for one sum over silos",
    "privacy.DealtShares": "shares of random numbers, sealed for the other silos",
    "privacy.ArrivalsConfirmed": "proofs, for the other silos, of which of them take part in a sum",
    "privacy.Revealed": "shares of random numbers that hide one sum, of which nothing but what is noised takes part",
    "algorithms.dplt.Hidden": "rows under random numbers, sealed for a silo that cannot subtract them",
    "algorithms.marginals.HeldDescribed": "how many columns it holds, and of how many values, as far as is public",
    "algorithms.marginals.RowsDescribed": "names, kinds and dtypes of columns, which are taken as public",
    "algorithms.marginals.NoisedNames": "names of levels whose noised counts the job has listed, in a sum over silos",
    "counting.ColumnsHeld": "which columns of the job it holds, whose names are taken as public",
    "counting.ColumnsDescribed": "names of its columns and which hold numbers, which are taken as public",
    "counting.CountPrepared": "a random number, and a proof of holding as many rows as others, random to all but silos",
    "counting.SeedsDealt": "random numbers, sealed for the silos that they are dealt to",
    "counting.BlockDealt": "the same",
    "counting.RestDealt": "the same",
    "counting.HiddenBlock": "rows under random numbers, sealed for silos that cannot subtract them; of a public length",
    "counting.HiddenBits": "random bits under random numbers, sealed for the other silos, for noise on tables",
}
"""Replies beside noised ones that may leave while an epsilon is limited, by type, and why."""
EXACT_ROWS = {
    "alignment.Encrypted": "sealed for the leader; its length tells how many rows can be linked",
    "alignment.Query": "the same, of the leader",
    "alignment.Answered": "the same",
    "alignment.Common": "sealed for the other silos; its length tells how many rows are common",
    "alignment.Placed": "how many rows there are, and are common",
}
"""Those that may leave only with ``exact_rows``: alignment cannot do without."""


_KEPT = "deployment.RowsAccepted", "deployment.RowCodes"
VERDICTS = (*_KEPT, "algorithms.silofuse.LatentWeights", "algorithms.marginals.LevelsWeighed")
"""What says of synthetic rows whether, or how probably, they fulfil conditions or keep rules: no value of theirs."""


DECODERS = ("algorithms.marginals.DecodersHandedOver",)
"""What synthetic values are drawn from."""


class SiloPolicy(FileSection):
    """``policy.toml``. What is left out has the default shown here.

    The line below each rule is shown to officers, by `meanings`.
    """

    model_config = ConfigDict(use_attribute_docstrings=True)

    algorithms: list[Text] = Field(default=["silofuse", "vtgan", "gdts"])
    """Names of the algorithms that may run."""
    messages: list[Text] = Field(default=["*"])
    """Types of messages that may come and go, as patterns: "algorithms.silofuse.*"."""
    refused: list[Text] = Field(default=[])
    """Types of messages that may not, although ``messages`` allows them: "algorithms.gdts.ExactSummaries"."""
    least_rows: Annotated[int, Field(ge=1)] = 100
    """Fewest rows to train on, after alignment."""
    min_count: Annotated[int, Field(ge=1)] = 5
    """Fewest rows behind a level that is published by name, and behind the end of a range."""
    require_alignment: bool = True
    """Whether silos with different columns must link their rows first, rather than train on all that this silo has."""
    own_rows: bool = False
    """Whether jobs may train autoencoders on rows too that only this silo has."""
    keyed_hash: bool = False
    """Whether rows may be linked by keyed hashes, which the coordinator sees, rather than by PSI."""
    psi_queries: Annotated[float, Field(ge=0)] = 10.0
    """Identifiers that this silo is asked about in a job, by private set intersection, as a multiple of its rows."""
    require_dp: bool = False
    """Whether jobs must have a target of differential privacy, whatever its epsilon."""
    largest_epsilon_per_job: Annotated[float, Field(gt=0)] = float("inf")
    """The largest epsilon of all that this silo releases with noise in one job."""
    largest_epsilon: Annotated[float, Field(gt=0)] = float("inf")
    """The largest epsilon of all that this silo has released with noise, in all jobs. With either limit nothing about
    rows leaves without noise, but for a short list; names and kinds of columns still do."""
    largest_delta: Annotated[float, Field(gt=0, lt=1)] = DELTA
    """The delta at which both are counted, the probability included with which names of rare levels are released."""
    exact_rows: bool = False
    """Whether, while an epsilon is limited, exact numbers of rows may leave all the same. Alignment needs it."""
    open_tables: Literal["no", "noised", "exact"] = "noised"
    """How tables of columns may open that silos count together, in jobs that count: with noise, by a target that is
    charged like all else; or exactly, small counts too."""
    open_figures: bool = False
    """Whether figures of such tables may open, exactly: how far each is from tables of the coordinator's choice. Where
    tables open exactly, figures do as well."""
    require_dealer: bool = False
    """Whether a silo without rows must deal in such jobs, rather than the coordinator, who together with another silo
    could read the rows that are counted."""
    share_synthetic: bool = True
    """Whether synthetic values of this silo's columns may leave it."""
    share_decoders: bool = False
    """Whether what such values are drawn from may leave it, made of noised counts: whoever has the model then draws
    rows, as many as they like and under any conditions, without asking this silo."""
    approval: Literal["none", "person"] = "none"
    """Whether synthetic values of this silo's columns leave it only once a person here has looked at them."""
    approve_start: bool = False
    """Whether a job begins here, and reads rows, only once a person here has said yes to its terms."""
    approval_hours: Annotated[float, Field(gt=0)] = 72.0
    """After how many hours without a decision the answer is no."""
    most_rows_drawn: Annotated[int, Field(ge=0)] = 1_000_000
    """Synthetic rows of the model of a job, over all times and all later jobs in which it is asked for some."""
    conditions: list[Text] = Field(default=[])
    """Columns of this silo, as patterns, under conditions on which rows may be drawn: "age"."""
    least_condition_rows: Annotated[int, Field(ge=1)] = 100
    """Fewest people who are expected behind the conditions of a draw together."""
    conditions_per_day: Annotated[int, Field(ge=0)] = 100
    """Different conditions behind which people are counted within 24 hours: of draws, levels, or rows of a frame."""
    rules: Literal["no", "shared", "all"] = "shared"
    """Which jobs may have rules that rows keep: none; those whose synthetic columns leave, so that nothing is answered
    about them; or also those in which they stay, and this silo says of each synthetic row whether it keeps rules, or
    sends codes by which that is found together with another silo."""
    public_seed: bool = False
    """Whether a job may fix the seed of this silo's randomness: whoever knows it knows noise and row drop-outs."""
    jobs_per_day: Annotated[int, Field(ge=0)] = 100
    """Jobs that begin at this silo within 24 hours; one that begins anew counts again."""
    submitters: list[Text] = Field(default=["*"])
    """Who may start jobs, as patterns."""
    allow_coordinators: list[Fingerprint] = Field(default=[])
    """SHA-256 of the certificates that the coordinator may have, in hexadecimal; empty for any of the federation's."""

    @classmethod
    def meanings(cls) -> dict[str, str]:
        """What each rule says, in words, by its key."""
        return {
            key: " ".join(str(field.description).replace("``", "").split()) for key, field in cls.model_fields.items()
        }

    @property
    def budgeted(self) -> bool:
        """Whether an epsilon is limited, so that all but a few types of messages must be noised."""
        return min(self.largest_epsilon, self.largest_epsilon_per_job) < math.inf

    def allows_condition(self, column: str) -> bool:
        """Whether rows may be drawn under a condition on this column."""
        return _matches(column, self.conditions)

    def check_greeting(self, algorithm: str, submitter: str) -> None:
        """Refuse algorithms and submitters.

        Raises:
            PolicyError: names the rule.
        """
        if algorithm not in self.algorithms:
            raise refusal("algorithms", f"allowed are {_listed(self.algorithms)}", algorithm)
        if not _matches(submitter, self.submitters):
            raise refusal("submitters", f"jobs are started by {_listed(self.submitters)}", submitter)

    def check_job(self, job: Job, submitter: str) -> None:
        """Refuse a job for what it says of itself.

        Raises:
            PolicyError: names the rule.
        """
        self.check_greeting(job.algorithm, submitter)
        if job.seed is not None and not self.public_seed:
            raise refusal(
                "public_seed", "a silo draws its own secret seed", f"seed = {job.seed}", "Leave the seed out."
            )
        if catalog.algorithm(job.algorithm, kind=None).kind == "counting":
            self._check_opening(job)
            self._check_dealer(job)
        elif not catalog.partitioned(job.config) and not self.share_synthetic:
            raise refusal(
                "share_synthetic", "synthetic columns stay in their silo", "shared",
                'Set options = { synthesis = "partitioned" }, with an algorithm that has it.',
            )  # fmt: skip
        entry = catalog.of_config(job.algorithm, job.config, kind=None)
        public = catalog.public(job.config)
        if public and not self.share_decoders:
            raise refusal(
                "share_decoders", "what columns are drawn from stays in their silo", "public",
                'Set options = { synthesis = "shared" }.',
            )  # fmt: skip
        if self.approval == "person" and entry.kind == "generator" and (public or not entry.parts):
            raise refusal(
                "approval", "a person approves of synthetic columns before they leave",
                f"{job.algorithm}, whose rows the coordinator draws itself",
                'Set options = { synthesis = "shared" }.' if public else "Choose another algorithm.",
            )  # fmt: skip
        if job.rules:
            self._check_rules(job)
        if catalog.algorithm(job.algorithm, kind=None).counts:
            self._check_counted(job)
        if getattr(job.config, "own_rows", False) and not self.own_rows:
            rule = "only rows that other silos have too are trained on"
            raise refusal("own_rows", rule, "own_rows = true", "Leave the option out.")
        self._check_links(job)
        self._check_target(getattr(job.config, "dp", Target()))
        self.check_levels(job)

    def _check_rules(self, job: Job) -> None:
        """Rules that all rows of a job keep."""
        if self.rules == "no":
            raise refusal("rules", "no job has rules", f"{len(job.rules)} rules", "Leave [[rules]] out.")
        if self.rules == "shared" and not shares_table(job):
            meaning = "no answer tells whether synthetic rows that stay here keep rules"
            raise refusal("rules", meaning, "partitioned", 'Leave [[rules]] out, or set synthesis = "shared".')

    def _check_opening(self, job: Job) -> None:
        """How the tables of a job that counts open."""
        config: Any = job.config
        how = opening(job)
        if how == "figures":
            if not self._opens_figures:
                raise refusal("open_figures", "no figure of tables across silos opens", how, _NOISED)
            if len({frozenset(places) for places in config.sets}) < len(config.sets):
                raise refusal("open_figures", "figures of a table open once in a job", "of one table again")
        elif self.open_tables == "no":
            raise refusal("open_tables", "no table across silos opens", how)
        elif how != "noised" and self.open_tables != "exact":
            raise refusal("open_tables", "tables across silos open with noise", how, _NOISED)
        elif how == "noised" and not getattr(config, "dp", Target()).private:
            raise refusal("open_tables", "tables open with noise of a target", "no dp", _TARGET)
        if getattr(config, "three", False):
            raise refusal("open_tables", "no table of three silos opens", "three", "Ask for sets in two silos.")

    def _check_dealer(self, job: Job) -> None:
        """Who deals the random numbers by which rows of a job that counts are hidden."""
        if self.require_dealer and not dealer(job) and (not horizontal(job) or silo_groups(job)):
            rule = "a silo without rows deals in jobs that count"
            remedy = "Name the silos of one group, and a dealer." if silo_groups(job) else 'Name one: dealer = "…".'
            raise refusal("require_dealer", rule, "the coordinator", remedy)

    def _check_counted(self, job: Job) -> None:
        """A training by tables that silos count together."""
        if self.require_dealer and (not horizontal(job) or silo_groups(job)):
            rule = "a silo without rows deals where silos count"
            raise refusal("require_dealer", rule, "the coordinator", "Choose another algorithm.")
        private = getattr(job.config, "dp", Target()).private
        if self.open_tables == "no" or not (private or self.open_tables == "exact"):
            what = "no table across silos opens" if private else "tables across silos open with noise, if at all"
            raise refusal("open_tables", what, job.algorithm if private else "no dp", _ASK if private else _TARGET)

    def check_counts(self, job: Job, table: Table) -> None:
        """Refuse tables that open without noise, if a level that this silo holds stands for too few rows there.

        Held-out rows are levels as well: their tables open beside the others.

        Raises:
            PolicyError: names the rule, and no level.
        """
        if opening(job) == "noised":
            return
        for column in getattr(job.config, "columns", ()):
            if column.name in table.names:
                held = np.bincount(column.codes(table[column.name]))
                if held.any() and held[held > 0].min() < self.min_count:
                    rule = f"a level of a table that opens without noise stands for at least {self.min_count} rows"
                    raise refusal("min_count", rule, f"fewer, in column {column.name!r}", _NOISED)
        held_out = int(table[HOLDOUT].values.sum()) if HOLDOUT in table.names else self.least_rows
        if held_out < self.least_rows:
            rule = f"a hold-out of which tables open without noise has at least {self.least_rows} rows"
            raise refusal("least_rows", rule, "fewer", _NOISED)

    def _check_links(self, job: Job) -> None:
        """How rows are linked."""
        if (horizontal(job) and not silo_groups(job)) or job.drawing is not None:
            return
        if job.align is None:
            if self.require_alignment:
                raise refusal("require_alignment", "rows are linked before training", "none", _PSI)
            return
        if job.align.method == "keyed-hash" and not self.keyed_hash:
            raise refusal("keyed_hash", "rows are linked by PSI", job.align.method, _PSI)
        if job.align.method == "psi" and not self.psi_queries:
            raise refusal("psi_queries", "no identifier is asked about", job.align.method)
        if self.budgeted and not self.exact_rows:
            raise refusal("exact_rows", "while an epsilon is limited, no exact number of rows leaves", job.align.method)

    def _check_target(self, target: Target) -> None:
        """Whether the job is private at all, and not by more than it may cost."""
        if not target.private and self.require_dp:
            raise refusal("require_dp", "jobs have a target", "none", _TARGET)
        if not target.private and self.budgeted:
            raise refusal(self._budget, "while it is set, nothing about rows leaves without noise", "no dp", _TARGET)
        most = min(self.largest_epsilon, self.largest_epsilon_per_job)
        if target.private and target.epsilon > most:
            raise refusal(self._budget, f"a job costs at most {most:g}", target.epsilon, _TARGET)

    @property
    def _opens_figures(self) -> bool:
        """Whether figures of tables open: they tell no more than the tables."""
        return self.open_figures or self.open_tables == "exact"

    @property
    def _budget(self) -> str:
        """The key that limits a job's epsilon most."""
        job = self.largest_epsilon_per_job < self.largest_epsilon
        return "largest_epsilon_per_job" if job else "largest_epsilon"

    def check_levels(self, job: Job) -> None:
        """Refuse options by which names and ranges would be published of fewer people.

        Raises:
            PolicyError: names the rule, and the option that keeps it.
        """

        def few(meaning: str, option: str, value: str, remedy: str) -> PolicyError:
            said = f'Set {option} {remedy} in [algorithm.options]; preset = "{job.preset}" may have it otherwise.'
            return refusal("min_count", meaning, f"{option} = {value}", said)

        for place, struct in _structs(job.config):
            least = getattr(struct, "min_count", self.min_count)
            if least < self.min_count:
                rule = f"a level's name stands for at least {self.min_count} rows"
                raise few(rule, f"{place}min_count", f"{least}", "to what this policy says")
            if self.min_count > 1 and not getattr(struct, "pool_rare", True):
                raise few("levels of few rows are pooled", f"{place}pool_rare", "false", "= true")
            if self.min_count > 1 and isinstance(struct, GDTSConfig) and struct.delta == 0:
                raise few("names of levels of few rows stay here", f"{place}delta", "0", "= 1e-5")

    def check_rows(self, rows: int) -> None:
        """Refuse too few rows. While an epsilon is limited the error does not name their number.

        Raises:
            PolicyError: names the rule.
        """
        if rows < self.least_rows:
            rule = f"training takes at least {self.least_rows} rows"
            raise refusal("least_rows", rule, "fewer" if self.budgeted else rows)

    def check_message(self, message: Message) -> None:
        """Refuse types of messages.

        Raises:
            PolicyError: names the rule.
        """
        name = wire_name(type(message))
        common = name.startswith("core.")  # synthetic columns among them: `share_synthetic` says whether they leave
        begins = name.startswith("deployment.") or isinstance(message, (*agreement.ASKS, *agreement.REPLIES))
        if begins or (common and message.release is Release.NOTHING):
            return  # no job can begin without them, and they reveal no row
        if not (common or _matches(name, self.messages)):
            raise refusal("messages", f"allowed are {_listed(self.messages)}", name)
        if _matches(name, self.refused):
            raise refusal("refused", f"not allowed are {_listed(self.refused)}", name)

    def check_reply(self, reply: Message, charged: bool) -> None:
        """Refuse synthetic columns, tables and figures that must stay; while an epsilon is limited, all that is neither
        noised nor listed.

        ``charged`` is whether the job has charged all that its model has from rows.

        Raises:
            PolicyError: names the rule.
        """
        name, events = wire_name(type(reply)), getattr(reply, "events", ())
        if reply.release is Release.FIGURES and not self._opens_figures:
            raise refusal("open_figures", "no figure of tables across silos opens", name)
        if reply.release is Release.TABLES and self.open_tables != "exact":
            raise refusal("open_tables", "tables across silos open with noise, if at all", name)
        verdict = name in VERDICTS and bool(self.conditions or (name in _KEPT and self.rules == "all"))
        if reply.release is Release.SYNTHETIC and not (self.share_synthetic or verdict):  # whatever the options said
            raise refusal("share_synthetic", "synthetic columns stay in their silo", name)
        if name in DECODERS and not self.share_decoders:
            raise refusal("share_decoders", "what columns are drawn from stays in their silo", name)
        if not self.budgeted or name in UNDER_A_BUDGET:
            return
        if name in EXACT_ROWS:
            if not self.exact_rows:
                raise refusal("exact_rows", "while an epsilon is limited, no exact number of rows leaves", name)
        elif reply.release is Release.NOISED:
            if not events:  # such as names of levels that one row may hold (delta 0)
                raise refusal(self._budget, "while it is set, all noise is charged", f"{name} without events")
        elif not (reply.release in (Release.SYNTHETIC, Release.DERIVED) and charged):
            what = f"{name}, which gives away {reply.release.value}"
            raise refusal(self._budget, "while it is set, nothing about rows leaves without noise", what)

    def check_spending(self, events: Sequence[Event], of_job: Iterable[Event], of_all: Iterable[Event]) -> None:
        """Refuse releases beyond a budget, given the events of releases up to now, of this job and of all jobs.

        Raises:
            PolicyError: names the rule.
        """
        for rule, most, before in (
            ("largest_epsilon_per_job", self.largest_epsilon_per_job, of_job),
            ("largest_epsilon", self.largest_epsilon, of_all),
        ):
            if most == math.inf:
                continue
            every = [*before, *events]
            if (own := own_delta(every)) >= self.largest_delta:
                meaning = f"all releases together have a delta below {self.largest_delta:g}"
                raise refusal("largest_delta", meaning, rounded_up(own))
            if (total := charged(every, self.largest_delta)) > most * (1 + ROUNDING):
                raise refusal(rule, f"all releases together cost at most {most:g}", rounded_up(total))


def _structs(value: object, place: str = "") -> Iterator[tuple[str, Struct]]:
    """Options, and all that they hold, each with what stands before its fields in a list of options."""
    if isinstance(value, Struct):
        yield place, value
        for field in fields(value):
            yield from _structs(getattr(value, field.name), f"{place}{field.name}.")
    elif isinstance(value, tuple):
        for part in value:
            yield from _structs(part, place)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def refusal(rule: str, meaning: str, value: Any, remedy: str = _ASK) -> PolicyError:
    """The error for what a rule forbids. Others are told the rule's key and the remedy, but no value of either side."""
    public = f"Policy rule {rule!r} forbids it. {remedy.rstrip('.')}"
    return PolicyError(f"Policy rule {rule!r}: {meaning}", value, remedy, public=public)


def own_delta(events: Iterable[Event]) -> float:
    """The deltas that events have themselves, whatever is allowed for composing them."""
    return math.fsum(event.delta * event.times for event in events)


def charged(events: Sequence[Event], delta: float) -> float:
    """The epsilon of events together at a delta, theirs included; infinity where these alone use it up."""
    own = own_delta(events)
    return math.inf if own >= delta else spent(events, delta - own).epsilon


FILE, LOCK = "releases.jsonl", "releases.lock"


@dataclass(frozen=True)
class Released:
    """What left a silo with noise after some asks.

    Attributes:
        job: in which; the name of a forgotten job that is used again ends with "~" and a number.
        events: what was released, and with which noise.
        at: when it was first recorded, in UTC; empty in lines of earlier versions.
    """

    job: str
    events: tuple[Event, ...]
    at: str = ""


class Releases:
    """Events by what was asked up to their release. The same asks get the same noise again, which counts once.

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

    def without(self, asked: str, job: str | None = None) -> list[Event]:
        """All events, or a job's, except those of the release after these asks.

        Raises:
            StorageError: the file cannot be read.
        """
        kept = [release for key, release in self._read().items() if key != asked]
        return [event for release in kept if job in (None, release.job) for event in release.events]

    def listed(self) -> list[Released]:
        """All releases, as they were recorded.

        Raises:
            StorageError: the file cannot be read.
        """
        return list(self._read().values())

    def add(self, job: str, asked: str, events: Sequence[Event]) -> None:
        """Record the release after these asks, given by their hash; it is on disk when this returns.

        Call it while `locked`.

        Raises:
            StorageError: the disk is full…
        """
        at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        line = {"at": at, "job": job, "asked": asked, "events": [asdict(event) for event in events]}
        files.make_folder(self.path.parent)
        before = files.read(self.path) if self.path.exists() else b""
        files.write_atomic(self.path, before + json.dumps(line).encode() + b"\n", files.PRIVATE)

    def _read(self) -> dict[str, Released]:
        """Releases by what was asked."""
        if not self.path.exists():
            return {}
        releases: dict[str, Released] = {}
        for line in files.read(self.path).splitlines():
            try:
                release = json.loads(line)
                events = tuple(Event(**event) for event in release["events"])
                # Older lines count the releases of an attempt.
                asked = release["asked"] if "asked" in release else f"{release['attempt']} {release['number']}"
                first = releases[asked].at if asked in releases else str(release.get("at", ""))
                releases[asked] = Released(release["job"], events, first)
            except (ValueError, KeyError, TypeError) as error:
                raise StorageError(
                    "The record of a silo's releases can be read", str(self.path), "Restore it from a copy."
                ) from error
        return releases


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
