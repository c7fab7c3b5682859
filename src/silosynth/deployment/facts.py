"""What is known at a site: its jobs, who is connected, what left, budget, policy, certificate.

`silosynth status --json`, the console's pages and the metrics are all made of these facts, so they cannot differ.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from silosynth.core.conversation import COORDINATOR
from silosynth.core.errors import SilosynthError, StorageError
from silosynth.core.files import read
from silosynth.deployment import approval, coordinator, endings, entry, exposure, kept, policy, presence
from silosynth.deployment.certificates import validity
from silosynth.deployment.forgetting import at_work
from silosynth.deployment.kits import StartKit
from silosynth.deployment.protocol import Job
from silosynth.deployment.silo_ledger import ALIKE
from silosynth.privacy.accounting import rounded_up
from silosynth.privacy.events import Event

Json = dict[str, Any]
UNFINISHED = ("submitted", "running", "interrupted", "suspended", "waiting for a person")
_TAIL = 65536  # bytes of a log that are looked at for its last lines
_EVENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ")  # as `silosynth.deployment.entry.journal` writes them
_FOOT = 64  # bytes by which a ledger's file is known to be the one that was read before
_STOPPED = "The coordinator is not running. Start it: silosynth coordinator start"


class LedgerTotals:
    """Sums over the lines of a ledger's file, of which each is read once although the file grows."""

    def __init__(self, path: Path, site: str) -> None:
        self._path, self._site = path, site
        self._begin()

    def _begin(self) -> None:
        self._offset, self._foot = 0, b""
        self.sent, self.received, self.messages = 0, 0, 0
        self.refusals, self.compared, self.last = 0, "", ""
        self.gives = Counter[tuple[str, str]]()  # bytes by sender and what they give away

    def update(self) -> None:
        """Read what has been written since."""
        try:
            with open(self._path, "rb") as file:
                self._catch_up(file)
        except FileNotFoundError:
            self._begin()
        except OSError as error:
            raise StorageError("A ledger can be read", str(self._path), "Look at its rights.") from error

    def _catch_up(self, file: Any) -> None:
        file.seek(max(0, self._offset - _FOOT))
        if file.read(min(_FOOT, self._offset)) != self._foot:  # the coordinator's is cut where a job resumes
            self._begin()
            file.seek(0)
        for line in file:
            if not line.endswith(b"\n"):
                break
            self._add(json.loads(line))  # a damaged one is met again, and said again
            self._offset += len(line)
            self._foot = (self._foot + line)[-_FOOT:]

    def _add(self, record: Json) -> None:
        self.last = str(record.get("at") or self.last)
        self.refusals += record.get("kind") == "refused"
        if record.get("kind") == "compared":
            self.compared = str(record.get("verdict"))
        if "type" not in record:
            return
        size, sender = int(record.get("bytes") or 0), str(record["from"])
        self.messages += 1
        if sender == self._site:
            self.sent += size
        else:
            self.received += size
        self.gives[sender, str(record.get("privacy") or "not stated")] += size


class KnownSite:
    """What is known at the site of a kit.

    Args:
        kit: the coordinator's or a silo's.
        clock: seconds since 1970.
    """

    def __init__(self, kit: StartKit, clock: Callable[[], float] = time.time) -> None:
        self.kit, self.clock = kit, clock
        self.here = kit.name == COORDINATOR
        self._totals: dict[str, LedgerTotals] = {}

    def basics(self) -> Json:
        """Who is there, and for how long yet: facts that need no look at jobs."""
        now = self.clock()
        alive = presence.read_presence(self.kit.folder / "work")
        return {
            "site": self.kit.name, "federation": self.kit.federation, "at": instant(now),
            "running": alive.running(now), "running_since": instant(alive.begun) if alive.running(now) else "",
            "silos": [
                {
                    "silo": silo, "connected": alive.connected(silo, now),
                    "last_sign": instant(alive.silos.get(silo, 0.0)),
                }
                for silo in self.kit.roster
            ] if self.here else [],
            "certificate": self._certificate(now),
        }  # fmt: skip

    def facts(self) -> Json:
        """All facts, as JSON has them. What cannot be read is told in its place, and hides nothing else."""
        found = self.basics()
        found["jobs"] = [self._told(folder, found["running"]) for folder in self.folders()]
        if not self.here:
            found |= {"policy": self._policy(), "budget": self._budget()}
        return found

    def folders(self) -> list[Path]:
        """The jobs' folders, the newest first."""
        found = [path for path in self.kit.jobs.glob("*") if path.is_dir() and self._known(path)]
        return sorted(found, key=lambda path: (-_begun(path), path.name))

    def job(self, name: str) -> Json | None:
        """The facts of one job; None if there is none."""
        alive = presence.read_presence(self.kit.folder / "work").running(self.clock())
        return next((self._told(folder, alive) for folder in self.folders() if folder.name == name), None)

    def _known(self, folder: Path) -> bool:
        names = (coordinator.STATUS,) if self.here else (entry.LOG, coordinator.LEDGER)
        return any((folder / name).exists() for name in names)

    def _told(self, folder: Path, running: bool) -> Json:
        try:
            facts = self._at_coordinator(folder, running) if self.here else self._at_silo(folder)
        except (SilosynthError, ValueError, TypeError, KeyError) as error:
            return {"job": folder.name, "state": "unreadable", "error": f"{type(error).__name__}: {error}"}
        return {"job": folder.name, **facts}

    def _at_coordinator(self, folder: Path, running: bool) -> Json:
        status = coordinator.read_status(folder)
        left = status.seconds_left if running else None
        state, error = status.state, status.error
        if state in ("submitted", "running") and not running:
            state, error = "submitted" if state == "submitted" else "interrupted", error or _STOPPED
        facts = {
            "state": state, "stage": status.stage, "done": status.done, "total": status.total,
            "seconds_left": None if left is None else round(left), "attempts": status.attempts, "error": error,
            "since": instant(status.since), "begun": instant(status.begun),
        }  # fmt: skip
        order = folder / coordinator.ORDER
        asked = coordinator.unpack_order(read(order)) if order.exists() else None
        facts |= _about(None if asked is None else asked.job, "" if asked is None else asked.forget)
        return facts | self._ledger(folder, status.since)

    def _at_silo(self, folder: Path) -> Json:
        ledger = self._ledger(folder, 0.0)
        facts: Json = {"state": self._state(folder, ledger["ended"]), "last": _last_event(folder / entry.LOG)}
        facts |= {"stage": "", "done": 0, "total": 0, "seconds_left": None}  # which the coordinator knows
        try:
            asked = approval.held(folder)
        except SilosynthError:
            asked = {}
        if asked:
            facts |= {"state": "waiting for a person"}
            what = "start" if "terms" in asked else "rows"
            facts["held"] = {
                "what": what,
                "rows": asked["rows"],
                "digest": asked["digest"],
                "since": instant(float(asked["since"])),
            }
        facts["error"] = "" if ledger["ended"] == ALIKE else ledger["ended"]
        begun = _begun(folder)
        return facts | {"begun": instant(begun)} | _about(kept.kept_job(folder), "") | ledger

    def _state(self, folder: Path, ended: str) -> str:
        if (folder / kept.FORGOTTEN).exists():
            return "forgotten"
        if (folder / kept.CLOSED).exists():
            return "refused"
        if ended:
            return "done" if ended == ALIKE else "failed"
        return "running" if at_work(folder) else endings.how_it_ended(folder) or "interrupted"

    def _ledger(self, folder: Path, since: float) -> Json:
        totals = self._totals.setdefault(folder.name, LedgerTotals(folder / coordinator.LEDGER, self.kit.name))
        totals.update()
        last = max((_changed(folder / name) for name in (coordinator.LEDGER, coordinator.STATUS)), default=0.0)
        given = [
            {"from": sender, "gives_away": what, "bytes": size}
            for (sender, what), size in sorted(totals.gives.items())
            if sender != COORDINATOR
        ]
        facts: Json = {"messages": totals.messages, "sent": totals.sent, "received": totals.received}
        facts |= {"refusals": totals.refusals, "last_exchange": instant(max(last, since)), "gave_away": given}
        return facts if self.here else facts | {"ended": totals.compared}

    def _certificate(self, now: float) -> Json:
        try:
            known = validity(self.kit)
        except (SilosynthError, ValueError) as error:
            return {"ends": "", "days_left": None, "warning": str(error)}
        days = math.floor(known.days_left(now))
        return {"ends": instant(known.ends), "days_left": days, "warning": known.warning(now)}

    def _policy(self) -> Json:
        try:
            rules = policy.read_policy(self.kit.folder)
        except SilosynthError as error:
            return {"error": str(error), "exposures": [], "rules": {}, "in_force": []}
        told = [asdict(one) for one in exposure.exposures(rules)]
        in_force = [asdict(one) for one in exposure.rules_in_force(rules)]
        return {"error": "", "exposures": told, "rules": _finite(rules.model_dump()), "in_force": in_force}

    def _budget(self) -> Json:
        """What all noised releases of this silo together have cost."""
        try:
            rules = policy.read_policy(self.kit.folder)
            events = policy.Releases(self.kit.folder / "work").without("")
            epsilon = policy.charged(events, rules.largest_delta)
        except SilosynthError as error:
            return {"error": str(error), "epsilon": None, "delta": None, "limit": None, "left": None, "releases": 0}
        limit = rules.largest_epsilon
        epsilon = epsilon if math.isinf(epsilon) else float(rounded_up(epsilon))
        left = max(0.0, limit - epsilon)
        shown = {"epsilon": epsilon, "delta": rules.largest_delta, "limit": limit, "left": left}
        return {"error": "", **_finite(shown), "releases": len(events)}

    def releases(self) -> Json:
        """Everything that this silo has recorded as released with noise, what each cost, each job, and all together.

        Raises:
            SilosynthError: the record or the policy cannot be read.
        """
        delta = policy.read_policy(self.kit.folder).largest_delta
        told = policy.Releases(self.kit.folder / "work").listed()
        of_jobs: dict[str, list[policy.Released]] = {}
        for one in told:
            of_jobs.setdefault(one.job, []).append(one)
        return {
            "releases": [
                {
                    "at": one.at, "job": one.job, "what": _what(one.events), "epsilon": _charged([one], delta),
                    "events": [asdict(event) for event in one.events],
                }
                for one in told
            ],
            "jobs": [
                {"job": job, "releases": len(of_job), "epsilon": _charged(of_job, delta)}
                for job, of_job in of_jobs.items()
            ],
            "budget": self._budget(),
        }  # fmt: skip


def _charged(releases: Iterable[policy.Released], delta: float) -> float | None:
    """The epsilon of releases together, rounded up; None where no noise gives one."""
    epsilon = policy.charged([event for one in releases for event in one.events], delta)
    return float(rounded_up(epsilon)) if math.isfinite(epsilon) else None


def _what(events: Iterable[Event]) -> list[str]:
    """What was released, in words, each once."""
    return list(dict.fromkeys(event.what for event in events))


def instant(seconds: float) -> str:
    """A time in UTC, as text; empty for 0."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds") if seconds else ""


def moment(text: str) -> float:
    """The inverse of `instant`."""
    return datetime.fromisoformat(text).timestamp() if text else 0.0


def log_tail(path: Path, lines: int = 200) -> list[str]:
    """The last lines of a log."""
    if not path.exists():
        return []
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL))
        return file.read().decode("utf-8", "replace").splitlines()[-lines:]


def search_ledger(path: Path, wanted: str) -> Iterator[Json]:
    """The lines of a ledger's file that hold a text, wherever, in small or capital letters."""
    wanted = wanted.casefold()
    if not path.exists():
        return
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.endswith("\n") and wanted in line.casefold():
                yield json.loads(line)


def _about(job: Job | None, forget: str) -> Json:
    """What a job is for."""
    if job is None:
        return {"kind": "", "algorithm": "", "silos": [], "submitter": ""}
    kind = f"forget {forget}" if forget else "train" if job.drawing is None else f"draw from {job.drawing.job}"
    if not forget and job.algorithm in ("judge", "appraise"):
        kind = job.algorithm
    return {"kind": kind, "algorithm": job.algorithm, "silos": list(job.silos), "submitter": job.submitter}


def _begun(folder: Path) -> float:
    """When a job came here: submitted, or first opened."""
    status, ledger = folder / coordinator.STATUS, folder / coordinator.LEDGER
    try:
        if status.exists():
            return coordinator.read_status(folder).begun
        with open(ledger if ledger.exists() else os.devnull, encoding="utf-8") as file:
            return moment(str(json.loads(file.readline())["at"]))
    except (ValueError, TypeError, KeyError):
        return _changed(folder)  # damaged, which is told elsewhere; or without a ledger


def _changed(path: Path) -> float:
    return path.stat().st_mtime if path.exists() else 0.0


def _last_event(path: Path) -> str:
    """The line that begins the last event of a log: what an error wants filled in follows below it."""
    return next((line for line in reversed(log_tail(path)) if _EVENT.match(line)), "")


def _finite(values: Json) -> Json:
    """Without infinities, which JSON does not have: no limit is null."""
    return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in values.items()}
