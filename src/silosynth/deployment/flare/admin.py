"""An operator's console: who is connected, submit a job, see how it does, abort it."""

from __future__ import annotations

import base64
import json
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from silosynth.core.errors import ConfigError, ProtocolError, SilosynthError, StorageError, UnavailableError
from silosynth.deployment.flare import require_flare
from silosynth.deployment.flare.site import ENGINE

WAITING, RUNNING, FINISHED, ABORTED, FAILED = "waiting", "running", "finished", "aborted", "failed"
ENDED = (FINISHED, ABORTED, FAILED)
_STATES = {
    "SUBMITTED": WAITING,
    "APPROVED": WAITING,
    "DISPATCHED": RUNNING,
    "RUNNING": RUNNING,
    "FINISHED:COMPLETED": FINISHED,
    "FINISHED:ABORTED": ABORTED,
}
_START = 30.0  # seconds that the session's process has to start, on top of the limit for its connection
_FRESH = 10.0  # seconds since its last sign of life for which a party counts as connected; signs come every two
_LOOK = 1.0


@dataclass(frozen=True, slots=True)
class JobInfo:
    """What is known about a job.

    Attributes:
        job: its number.
        name: as submitted.
        state: one of `WAITING`, `RUNNING`, `FINISHED`, `ABORTED`, `FAILED`.
        operator: who submitted it.
        submitted: when, as text.
        details: what sites said when they were given the job, if they did not take it.
    """

    job: str
    name: str
    state: str
    operator: str
    submitted: str
    details: tuple[str, ...]


class Console:
    """A session with the coordinator; close it, or use it as a context manager.

    Args:
        kit: an operator's kit.
        limit: seconds for each command.

    Raises:
        UnavailableError: FLARE is not installed, or the coordinator cannot be reached.
        ProtocolError: the coordinator refuses this operator.
        StorageError: the folder holds no operator's kit.
    """

    def __init__(self, kit: Path | str, limit: float = 30.0) -> None:
        require_flare()
        kit = Path(kit)
        startup = kit / ENGINE / "startup"
        if not (startup / "fed_admin.json").is_file():
            raise StorageError("The folder holds an operator's start kit", str(kit), "Name the operator's folder.")
        place = json.loads((startup / "fed_admin.json").read_text(encoding="utf-8"))["admin"]
        self._address, self._limit = f"{place['host']}:{place['port']}", limit
        self._child = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "silosynth.deployment.flare.session", str(kit), str(limit)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            self._answer(limit + _START)
        except BaseException:
            self.close()
            raise

    def parties(self) -> dict[str, bool]:
        """The parties that the coordinator has on its list, and whether each was heard of just now."""
        heard: dict[str, float] = self._ask("parties")
        latest = max(heard.values(), default=0.0)
        return {party: latest - when < _FRESH for party, when in sorted(heard.items())}

    def submit(self, payload: bytes, parties: Sequence[str], name: str) -> str:
        """Submit a job that starts once all of ``parties`` are there; its number.

        Args:
            payload: what the coordinator's side is given.
            parties: who takes part.
            name: letters, digits, '.', '_' and '-'.
        """
        if not name or not all(letter.isalnum() or letter in "._-" for letter in name) or not name.isascii():
            raise ConfigError("A job's name is letters, digits, '.', '_' and '-'", name, "Rename it.")
        return str(self._ask("submit", base64.b64encode(payload).decode(), list(parties), name))

    def status(self, job: str) -> str:
        """One of `WAITING`, `RUNNING`, `FINISHED`, `ABORTED`, `FAILED`."""
        return self.describe(job).state

    def describe(self, job: str) -> JobInfo:
        """All that is known about a job.

        Raises:
            ConfigError: there is no such job.
        """
        return _info(self._ask("job", job))

    def jobs(self) -> list[JobInfo]:
        """All jobs that the coordinator knows."""
        return [_info(told) for told in self._ask("jobs")]

    def abort(self, job: str) -> None:
        """Have a job end, now; nothing if it has ended."""
        if self.status(job) not in ENDED:
            self._ask("abort", job)

    def wait(self, job: str, seconds: float, watch: Callable[[str], None] | None = None) -> str:
        """Wait until a job has ended; its state.

        Args:
            job: its number.
            seconds: at most so long.
            watch: told each new state.

        Raises:
            ProtocolError: it has not ended in time.
        """
        return self._until(lambda: self.status(job), lambda state: state in ENDED, seconds, f"Job {job} ends", watch)

    def wait_for_parties(
        self, parties: Sequence[str], seconds: float, watch: Callable[[str], None] | None = None
    ) -> None:
        """Wait until all of them are connected.

        Args:
            parties: their names.
            seconds: at most so long.
            watch: told who is missing, whenever that changes.

        Raises:
            ProtocolError: somebody does not come.
        """

        def missing() -> str:
            there = self.parties()
            return ", ".join(party for party in parties if not there.get(party))

        self._until(missing, lambda names: not names, seconds, "Every party connects", watch)

    def close(self) -> None:
        """End the session; may be called twice."""
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                stream.close()
        self._child.kill()
        self._child.wait()

    def __enter__(self) -> Console:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, command: str, *arguments: Any) -> Any:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps([command, arguments]).encode() + b"\n")
            self._child.stdin.flush()
        except (OSError, ValueError):
            raise self._silent("the session has ended") from None
        return self._answer(2 * self._limit)

    def _answer(self, seconds: float) -> Any:
        assert self._child.stdout is not None
        if not select.select([self._child.stdout], [], [], seconds)[0]:
            self._child.kill()
            raise self._silent(f"no answer within {seconds:g} s")
        line = self._child.stdout.readline()
        if not line:
            raise self._silent("the session has ended")
        answer = json.loads(line)
        if "ok" not in answer:
            raise self._meaning(answer["error"], answer["text"])
        return answer["ok"]

    def _silent(self, why: str) -> UnavailableError:
        return UnavailableError(f"The coordinator at {self._address} answers", why, "Is it started, and reachable?")

    def _meaning(self, kind: str, text: str) -> SilosynthError:
        if kind in ("NoConnection", "SessionClosed", "SessionExpired", "FLCommunicationError"):
            return self._silent(text)
        if kind in ("AuthenticationError", "AuthorizationError"):
            return ProtocolError("The coordinator lets this operator do that", text, "Ask who provisioned.")
        if kind in ("JobNotFound", "InvalidJobDefinition"):
            return ConfigError("The coordinator knows the job", text, "See `silosynth status`.")
        return ProtocolError("The coordinator does what an operator asks", f"{kind}: {text}")

    @staticmethod
    def _until(
        look: Callable[[], str], enough: Callable[[str], bool], seconds: float, rule: str,
        watch: Callable[[str], None] | None,
    ) -> str:  # fmt: skip
        until, seen = time.monotonic() + seconds, None
        while not enough(now := look()):
            if watch is not None and now != seen:
                watch(now)
            seen = now
            if time.monotonic() > until:
                raise ProtocolError(rule, f"{now} after {seconds:g} s")
            time.sleep(_LOOK)
        if watch is not None and now != seen:
            watch(now)
        return now


def _info(told: dict[str, Any]) -> JobInfo:
    state = _STATES.get(told["status"], FAILED)
    return JobInfo(told["job"], told["name"], state, told["operator"], told["submitted"], tuple(told["details"]))
