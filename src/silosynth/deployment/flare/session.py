"""An operator's session with the coordinator, in a process of its own: FLARE's client prints, logs and leaves threads.

Reads one request per line, ``[command, arguments]`` as JSON, and answers each with ``{"ok": ...}`` or
``{"error": class, "text": ...}``. Started by `admin.Console`.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from silosynth.deployment.flare.child import leave_with_parent
from silosynth.deployment.flare.job import write_job
from silosynth.deployment.flare.site import ENGINE, operator_name


def main() -> None:
    """Serve the console on the other end of the standard streams."""
    leave_with_parent()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what FLARE prints is not an answer
    kit, seconds = Path(sys.argv[1]), float(sys.argv[2])
    with tempfile.TemporaryDirectory(prefix="silosynth-operator-") as place:
        root = Path(place) / ENGINE
        shutil.copytree(kit / ENGINE, root)
        try:
            commands = _Commands(_login(root, seconds), Path(place))
        except Exception as error:
            _say(answers, _failure(error))
            return
        _say(answers, {"ok": None})
        for line in sys.stdin:
            name, arguments = json.loads(line)
            try:
                _say(answers, {"ok": getattr(commands, name)(*arguments)})
            except Exception as error:
                _say(answers, _failure(error))


class _Commands:
    """What a console can ask for."""

    def __init__(self, session: Any, place: Path) -> None:
        self._session, self._place = session, place

    def parties(self) -> dict[str, float]:
        """When each connected party was last heard of, in seconds of the coordinator's clock."""
        return {one.name: float(one.last_connect_time or 0) for one in self._session.get_system_info().client_info}

    def submit(self, payload: str, parties: list[str], name: str) -> str:
        folder = write_job(self._place / "jobs", base64.b64decode(payload), parties, name)
        try:
            return str(self._session.submit_job(str(folder)))
        finally:
            shutil.rmtree(folder)

    def job(self, job: str) -> dict[str, Any]:
        return _told(self._session.get_job_meta(job))

    def jobs(self) -> list[dict[str, Any]]:
        return [_told(meta) for meta in self._session.list_jobs(detailed=True)]

    def abort(self, job: str) -> None:
        self._session.abort_job(job)


def _login(root: Path, seconds: float) -> Any:
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    user = json.loads((root / "startup" / "fed_admin.json").read_text(encoding="utf-8"))["admin"]["username"]
    return new_secure_session(user, str(root), timeout=seconds, command_timeout=seconds, auto_login_max_tries=1)


def _told(meta: dict[str, Any]) -> dict[str, Any]:
    """Of what FLARE knows about a job, what we tell."""
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


def _say(stream: Any, what: dict[str, Any]) -> None:
    stream.write(json.dumps(what) + "\n")
    stream.flush()


if __name__ == "__main__":
    main()
    os._exit(0)  # FLARE leaves threads behind
