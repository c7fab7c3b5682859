"""An operator's console: who is connected, submit a job, follow it, abort it.

FLARE's client prints, logs and leaves threads behind, so the session with the coordinator runs in a process of its own:
this module run as a program. It reads one request per line, ``[command, arguments]`` as JSON, and answers each with
``{"ok": ...}`` or ``{"error": class, "text": ...}``. What it submits is a few lines of configuration that name our own
classes, written by hand so that no code travels with a job.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from silosynth.core.errors import ConfigError, ProtocolError, SilosynthError, StorageError, UnavailableError
from silosynth.deployment.flare import provisioning, require_flare
from silosynth.deployment.flare.child import leave_with_parent
from silosynth.deployment.flare.site import ENGINE, operator_name

_GRACE = 1.0  # seconds from the report that a party's process has ended until the conversation is told
_TAKE_UP = 120.0  # seconds for parties to start their part of a job


def write_job(folder: Path, payload: bytes, parties: Sequence[str], name: str) -> Path:
    """Write a job into ``folder/name``, and return that folder."""
    job = folder / name
    meta = {
        "name": name,
        "resource_spec": {},
        "min_clients": len(parties),
        "mandatory_clients": list(parties),
        "deploy_map": {"coordinator": ["server"], "party": list(parties)},
    }
    encoded = base64.b64encode(payload).decode()
    taken_up = {"server_obj_id": "_server", "sync_task_timeout": _TAKE_UP}
    server = {
        "format_version": 2,
        "dead_client_grace_period": _GRACE,
        "components": [provisioning.component("_server", provisioning.COORDINATOR_CLASS, payload=encoded)],
        "workflows": [provisioning.component("controller", provisioning.CONTROLLER_CLASS, **taken_up)],
    }
    executor = provisioning.component("executor", provisioning.EXECUTOR_CLASS, client_obj_id="_client")
    client = {
        "format_version": 2,
        "components": [provisioning.component("_client", provisioning.PARTY_CLASS)],
        "executors": [{"tasks": ["*"], "executor": executor}],
    }
    server_file, client_file = "coordinator/config/config_fed_server.json", "party/config/config_fed_client.json"
    for path, content in (("meta.json", meta), (server_file, server), (client_file, client)):
        (job / path).parent.mkdir(parents=True, exist_ok=True)
        (job / path).write_text(json.dumps(content, indent=1), encoding="utf-8")
    return job


def main() -> None:
    """Serve the console at the other end of the standard streams."""
    leave_with_parent()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # FLARE's prints must not end up among the answers
    kit, seconds = Path(sys.argv[1]), float(sys.argv[2])
    with tempfile.TemporaryDirectory(prefix="silosynth-operator-") as scratch:
        root = Path(scratch) / ENGINE
        shutil.copytree(kit / ENGINE, root)
        try:
            commands = _Commands(_login(root, seconds), Path(scratch))
        except Exception as error:
            _send(answers, _failure(error))
            return
        _send(answers, {"ok": None})
        for line in sys.stdin:
            name, arguments = json.loads(line)
            try:
                _send(answers, {"ok": getattr(commands, name)(*arguments)})
            except Exception as error:
                _send(answers, _failure(error))


class _Commands:
    """The commands of a console."""

    def __init__(self, session: Any, scratch: Path) -> None:
        self._session, self._scratch = session, scratch

    def parties(self) -> dict[str, float]:
        """When each connected party last gave a sign of life, in seconds of the coordinator's clock."""
        clients = self._session.get_system_info().client_info
        return {client.name: float(client.last_connect_time or 0) for client in clients}

    def submit(self, payload: str, parties: list[str], name: str) -> str:
        folder = write_job(self._scratch / "jobs", base64.b64decode(payload), parties, name)
        try:
            return str(self._session.submit_job(str(folder)))
        finally:
            shutil.rmtree(folder)

    def job(self, job: str) -> dict[str, Any]:
        return _summary(self._session.get_job_meta(job))

    def jobs(self) -> list[dict[str, Any]]:
        return [_summary(meta) for meta in self._session.list_jobs(detailed=True)]

    def abort(self, job: str) -> None:
        self._session.abort_job(job)


def _login(root: Path, seconds: float) -> Any:
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    user = json.loads((root / "startup" / "fed_admin.json").read_text(encoding="utf-8"))["admin"]["username"]
    return new_secure_session(user, str(root), timeout=seconds, command_timeout=seconds, auto_login_max_tries=1)


def _summary(meta: dict[str, Any]) -> dict[str, Any]:
    """The fields of FLARE's job metadata that the console gets."""
    details = meta.get("job_deploy_detail") or ()
    return {
        "job": meta.get("job_id") or "",
        "name": meta.get("name") or meta.get("job_name") or "",
        "status": meta.get("status") or "",
        "operator": operator_name(meta.get("submitter_name") or ""),
        "submitted": meta.get("submit_time_iso") or "",
        "details": [str(line) for line in details if not str(line).endswith(": OK")],
    }


def _failure(error: Exception) -> dict[str, str]:
    return {"error": type(error).__name__, "text": str(error)[:300]}


def _send(stream: Any, answer: dict[str, Any]) -> None:
    stream.write(json.dumps(answer) + "\n")
    stream.flush()


if __name__ == "__main__":
    main()
    os._exit(0)  # FLARE leaves threads behind


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
_START = 30.0  # seconds for the session's process to start, on top of the limit for its connection
_FRESH = 10.0  # seconds after its last sign of life for which a party counts as connected; one comes every 2 s
_POLL = 1.0  # seconds between checks


@dataclass(frozen=True, slots=True)
class JobInfo:
    """A job as the engine sees it.

    Attributes:
        job: its id.
        name: as submitted.
        state: one of `WAITING`, `RUNNING`, `FINISHED`, `ABORTED`, `FAILED`.
        operator: who submitted it.
        submitted: when, as text.
        details: reasons of sites that did not accept the job.
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
        StorageError: the folder is not an operator's kit.
    """

    def __init__(self, kit: Path | str, limit: float = 30.0) -> None:
        require_flare()
        kit = Path(kit)
        startup = kit / ENGINE / "startup"
        if not (startup / "fed_admin.json").is_file():
            raise StorageError("The folder holds an operator's start kit", str(kit), "Name the operator's folder.")
        admin = json.loads((startup / "fed_admin.json").read_text(encoding="utf-8"))["admin"]
        self._address, self._limit = f"{admin['host']}:{admin['port']}", limit
        self._child = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "silosynth.deployment.flare.console", str(kit), str(limit)],
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
        """The parties on the coordinator's list, and whether each is connected now."""
        times: dict[str, float] = self._ask("parties")
        latest = max(times.values(), default=0.0)
        return {party: latest - moment < _FRESH for party, moment in sorted(times.items())}

    def submit(self, payload: bytes, parties: Sequence[str], name: str) -> str:
        """Submit a job that starts once all of ``parties`` are connected; returns its id.

        Args:
            payload: passed to the coordinator's side.
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
        """Everything that the engine knows about a job.

        Raises:
            ConfigError: there is no such job.
        """
        return _info(self._ask("job", job))

    def jobs(self) -> list[JobInfo]:
        """All jobs that the coordinator knows."""
        return [_info(job) for job in self._ask("jobs")]

    def abort(self, job: str) -> None:
        """End a job now; does nothing if it has ended."""
        if self.status(job) not in ENDED:
            self._ask("abort", job)

    def wait(self, job: str, seconds: float, watch: Callable[[str], None] | None = None) -> str:
        """Wait until a job has ended; returns its state.

        Args:
            job: its id.
            seconds: the longest to wait.
            watch: called with each new state.

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
            seconds: the longest to wait.
            watch: called with the missing parties whenever they change.

        Raises:
            ProtocolError: a party does not come in time.
        """

        def missing() -> str:
            connected = self.parties()
            return ", ".join(party for party in parties if not connected.get(party))

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

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, command: str, *arguments: Any) -> Any:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps([command, arguments]).encode() + b"\n")
            self._child.stdin.flush()
        except (OSError, ValueError):
            raise self._unreachable("the session has ended") from None
        return self._answer(2 * self._limit)

    def _answer(self, seconds: float) -> Any:
        assert self._child.stdout is not None
        if not select.select([self._child.stdout], [], [], seconds)[0]:
            self._child.kill()
            raise self._unreachable(f"no answer within {seconds:g} s")
        line = self._child.stdout.readline()
        if not line:
            raise self._unreachable("the session has ended")
        answer = json.loads(line)
        if "ok" not in answer:
            raise self._translated(answer["error"], answer["text"])
        return answer["ok"]

    def _unreachable(self, why: str) -> UnavailableError:
        return UnavailableError(f"The coordinator at {self._address} answers", why, "Is it started, and reachable?")

    def _translated(self, kind: str, text: str) -> SilosynthError:
        if kind in ("NoConnection", "SessionClosed", "SessionExpired", "FLCommunicationError"):
            return self._unreachable(text)
        if kind in ("AuthenticationError", "AuthorizationError"):
            return ProtocolError("The coordinator allows this operator to do that", text, "Ask who provisioned.")
        if kind in ("JobNotFound", "InvalidJobDefinition"):
            return ConfigError("The coordinator knows the job", text, "See `silosynth status`.")
        return ProtocolError("The coordinator carries out an operator's command", f"{kind}: {text}")

    @staticmethod
    def _until(
        look: Callable[[], str], done: Callable[[str], bool], seconds: float, rule: str,
        watch: Callable[[str], None] | None,
    ) -> str:  # fmt: skip
        until, before = time.monotonic() + seconds, None
        while True:
            now = look()
            if watch is not None and now != before:
                watch(now)
            if done(now):
                return now
            if time.monotonic() > until:
                raise ProtocolError(rule, f"{now} after {seconds:g} s")
            before = now
            time.sleep(_POLL)


def _info(job: dict[str, Any]) -> JobInfo:
    state = _STATES.get(job["status"], FAILED)
    return JobInfo(job["job"], job["name"], state, job["operator"], job["submitted"], tuple(job["details"]))
