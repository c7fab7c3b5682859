"""What is submitted: a few lines of configuration that name our classes, written by hand so that no code goes along."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path

from silosynth.deployment.flare.rules import CONTROLLER_CLASS, COORDINATOR_CLASS, EXECUTOR_CLASS, PARTY_CLASS

_GRACE = 1.0  # seconds between the news that a party's process has ended and the conversation's being told
_START = 120.0  # seconds that parties have to start their part of a job


def write_job(folder: Path, payload: bytes, parties: Sequence[str], name: str) -> Path:
    """Write a job into ``folder/name``, and return that."""
    place = folder / name
    _write(
        place / "meta.json",
        {
            "name": name,
            "resource_spec": {},
            "min_clients": len(parties),
            "mandatory_clients": list(parties),
            "deploy_map": {"coordinator": ["server"], "party": list(parties)},
        },
    )
    server = {
        "format_version": 2,
        "dead_client_grace_period": _GRACE,
        "components": [
            {"id": "_server", "path": COORDINATOR_CLASS, "args": {"payload": base64.b64encode(payload).decode()}}
        ],
        "workflows": [
            {
                "id": "controller",
                "path": CONTROLLER_CLASS,
                "args": {"server_obj_id": "_server", "sync_task_timeout": _START},
            }
        ],
    }
    executor = {"id": "executor", "path": EXECUTOR_CLASS, "args": {"client_obj_id": "_client"}}
    client = {
        "format_version": 2,
        "components": [{"id": "_client", "path": PARTY_CLASS, "args": {}}],
        "executors": [{"tasks": ["*"], "executor": executor}],
    }
    _write(place / "coordinator" / "config" / "config_fed_server.json", server)
    _write(place / "party" / "config" / "config_fed_client.json", client)
    return place


def _write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
