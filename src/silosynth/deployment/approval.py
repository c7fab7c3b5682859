"""What a silo does only once somebody at that silo has said yes: begin a job, and let synthetic columns leave.

Columns that are held lie in the job's folder (`HELD`), as a table for a person to look at, with a digest of the very
message. A decision is about that message, and no other: if the coordinator has other rows drawn meanwhile, these are
held again. A yes to further ones is to those of the very job. A yes to the start of a job is to its very terms.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pandas as pd

from silosynth.core.conversation import SyntheticColumns
from silosynth.core.errors import ConfigError, StorageError
from silosynth.core.files import PRIVATE, locked, make_folder, read, write_atomic
from silosynth.core.messages import to_state
from silosynth.data import sources
from silosynth.deployment.policy import SiloPolicy, refusal
from silosynth.deployment.protocol import Job
from silosynth.deployment.silo_ledger import SiloLedger
from silosynth.runtime.wire import encode

HELD = "held.parquet"
_ASKED, _DECIDED, _LOCK = "held.json", "decisions.jsonl", "decisions.lock"
_LOOK = 2.0  # seconds between two looks for a decision
_HOUR = 3600.0


def wait() -> None:
    """Pause until the next look for a decision."""
    time.sleep(_LOOK)


class Approvals:
    """Holds synthetic columns of one job.

    Args:
        folder: the job's.
        policy: the silo's rules.
        say: called with one line per event.
        book: the silo's ledger of the job, which decisions go into.
        clock: seconds since 1970.
    """

    def __init__(
        self, folder: Path, policy: SiloPolicy, say: Callable[[str], None], book: SiloLedger | None,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._folder, self._policy, self._say, self._book, self._clock = folder, policy, say, book, clock

    def hold(self, reply: SyntheticColumns, table: Callable[[], pd.DataFrame], job: Job, most: int) -> None:
        """Return once a person has approved of these columns.

        Args:
            reply: the message.
            table: its columns, for people.
            job: in which they leave: a yes to further ones is to those of a job of the same terms.
            most: its rows, beyond which no such yes reaches.

        Raises:
            PolicyError: a person has refused, or nobody has said anything in time.
        """
        if self._policy.approval != "person":
            return
        digest, rows = hashlib.sha256(encode(reply)).hexdigest(), len(reply.table)
        asked = {"digest": digest, "rows": rows, "job": hashlib.sha256(encode(job)).hexdigest()}
        if self._verdict(asked, most):
            return
        sources.write(table(), self._folder / HELD)
        self._wait(asked, most, "approval", f"{rows:,} synthetic rows are")

    def begin(self, job: Job, by: str) -> None:
        """Return once a person has approved that a job of these terms begins, which ``by`` has submitted.

        Raises:
            PolicyError: a person has refused, or nobody has said anything in time.
        """
        if not self._policy.approve_start:
            return
        terms = [f"submitted by = {by}", *_lines_of(to_state(job))]
        digest = hashlib.sha256("\n".join(["start", *terms]).encode()).hexdigest()
        asked = {"digest": digest, "rows": 0, "terms": terms}
        if not self._verdict(asked, 0, "approve_start"):
            self._wait(asked, 0, "approve_start", "the job is")

    def _wait(self, asked: dict[str, Any], most: int, rule: str, what: str) -> None:
        """Ask a person, and wait for a yes."""
        since = self._ask(asked, what)
        while not self._verdict(asked, most, rule):
            if self._clock() > since + self._policy.approval_hours * _HOUR:
                self._clear()
                late = {"verdict": "refused", "reason": "nobody has decided in time", "by": ""}
                self._note(late | {"digest": asked["digest"]})
                raise refusal(rule, f"a person approves within {self._policy.approval_hours:g} hours", "nobody")
            wait()
        self._clear()
        self._say(f"{what} approved")

    def _ask(self, asked: dict[str, Any], what: str) -> float:
        """Lay out what is held; since when it is."""
        before = _read(self._folder / _ASKED)
        asked = before if before.get("digest") == asked["digest"] else {**asked, "since": self._clock()}
        write_atomic(make_folder(self._folder) / _ASKED, json.dumps(asked).encode(), PRIVATE)
        self._say(
            f"{what} held until a person approves: silosynth fetch {self._folder.name} --held, "
            f"then silosynth approve {self._folder.name}"
        )
        return float(asked["since"])

    def _clear(self) -> None:
        """Nothing is held any more."""
        (self._folder / HELD).unlink(missing_ok=True)
        if "terms" in _read(self._folder / _ASKED):
            (self._folder / _ASKED).unlink()

    def _verdict(self, asked: dict[str, Any], most: int, rule: str = "approval") -> bool:
        """Whether a person has approved. What is approved as one of further ones is put down, and counts."""
        digest, rows = asked["digest"], asked["rows"]
        with locked(make_folder(self._folder) / _LOCK):
            decided = _lines(self._folder / _DECIDED)
            if no := next((line for line in decided if line["verdict"] == "refused"), None):
                self._clear()
                self._note(no)
                raise refusal(rule, "a person at this silo has refused", no["reason"] or "no")
            if yes := next((line for line in decided if line["digest"] == digest), None):
                self._note(yes)
                return True
            further = next((line for line in decided if line["further"] and line.get("job") == asked.get("job")), None)
            if further is None or not rows or sum(int(line["rows"]) for line in decided) + rows > most:
                return False
            line = {**further, "digest": digest, "rows": rows}
            _append(self._folder / _DECIDED, [*decided, line])
        self._note(line)
        return True

    def _note(self, line: dict[str, Any]) -> None:
        """Put a decision into the signed ledger."""
        if self._book is not None:
            self._book.decided(
                {key: line.get(key) for key in ("verdict", "what", "digest", "rows", "by", "at", "reason")}
            )


def _lines_of(value: Any, key: str = "") -> Iterator[str]:
    """A message's fields, one a line, with those of the structures in it."""
    fields = value.get("fields", value) if isinstance(value, dict) else None
    if fields:
        for name, one in fields.items():
            yield from _lines_of(one, f"{key}.{name}" if key else str(name))
    else:
        yield f"{key} = {json.dumps(value, default=str)}"


def held(folder: Path) -> dict[str, Any]:
    """What is held in a job's folder: digest, rows, since when, and which digest was looked at last; of the start of a
    job also its ``terms``.

    Raises:
        ConfigError: nothing is.
    """
    asked = _read(folder / _ASKED)
    if not asked or not ("terms" in asked or (folder / HELD).exists()):
        raise ConfigError("A person decides about what is held", f"{folder.name} holds none", "See: silosynth status.")
    return asked


def looked_at(folder: Path) -> dict[str, Any]:
    """Note that somebody looks at what is held; returns what that is, as `held` does.

    A coordinator may have something else held at any moment: what is shown is what this returns, and the table that is
    read after it.

    Raises:
        ConfigError: nothing is held.
    """
    asked = held(folder)
    write_atomic(folder / _ASKED, json.dumps({**asked, "seen": asked["digest"]}).encode(), PRIVATE)
    return asked


def decide(folder: Path, approved: bool, reason: str, further: bool = False, by: str = "") -> dict[str, Any]:
    """Put down what a person has decided about what is held.

    Args:
        folder: the job's.
        approved: yes or no. A no is the last word in this job.
        reason: why.
        further: whether a yes is also to what the job draws after this, as many rows as it has said.
        by: who, beside the account under which this runs.

    Raises:
        ConfigError: nothing is held; or what is held is not what somebody has looked at.
    """
    asked = held(folder)
    if approved and asked.get("seen") != asked["digest"]:
        raise ConfigError(
            "What is approved was looked at", "nobody has, or it has changed since",
            f"First: silosynth fetch {folder.name} --held --out held.csv --report held.html",
        )  # fmt: skip
    at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    line = {
        "verdict": "approved" if approved else "refused", "digest": asked["digest"], "rows": asked["rows"],
        "job": asked.get("job"),
        "by": getpass.getuser() + (f" ({by})" if by else ""), "at": at, "reason": reason,
        "further": further and "terms" not in asked, "what": "start" if "terms" in asked else "rows",
    }  # fmt: skip
    with locked(folder / _LOCK):
        _append(folder / _DECIDED, [*_lines(folder / _DECIDED), line])
    return line


def _append(path: Path, lines: list[dict[str, Any]]) -> None:
    write_atomic(path, "".join(json.dumps(line) + "\n" for line in lines).encode(), PRIVATE)


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        return [json.loads(line) for line in read(path).splitlines()]
    except ValueError as error:
        raise StorageError("Decisions about a job can be read", str(path), "Restore the file from a copy.") from error


def _read(path: Path) -> dict[str, Any]:
    found = _lines(path)
    return found[0] if found else {}
