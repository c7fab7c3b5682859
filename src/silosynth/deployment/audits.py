"""Audits of a table: the reports that a silo has made of it, with the attacks in them, for the table's label.

What was found lies in the job's folder (`AUDITS`). A silo that signs a label says of each audit what was looked at,
when, and a hash of the findings, no more: these are of real rows, and not noised. A salt among them keeps anybody from
guessing them by the hash. A person at the silo may add findings to a label later (`opened`); then everybody can tell
which the silo had made before the table was published.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from silosynth.core.errors import SilosynthError, StorageError
from silosynth.core.files import PRIVATE, locked, make_folder, read, write_atomic
from silosynth.deployment.policy import SiloPolicy
from silosynth.deployment.signed import canonical, check, sign
from silosynth.privacy.sealed import Seat

AUDITS = "audits.jsonl"
HELD = "its own columns, before they left"
OWN = "its own columns, once published"
ACROSS = "all columns, by tables that silos have counted together"
_LOCK, _WHAT, _SALT = "audits.lock", "audits", 16  # bytes
MENTIONED = {"of", "at", "published", "hash"}
_KEPT = {"of", "at", "beside", "rows", "columns", "sha256", "withheld", "figures", "not_computed", "salt"}
_FIGURE = {"name", "label", "group", "value", "low", "high", "floor", "unit"}


def keep_audit(
    folder: Path, of: str, beside: str, columns: Sequence[str], sha256: str, report: Mapping[str, Any], withheld: str
) -> None:  # fmt: skip
    """Keep what a report has found.

    Args:
        folder: the job's.
        of: what was looked at: `HELD`, `OWN` or `ACROSS`.
        beside: the real rows that it was compared with, in words.
        columns, sha256: what was looked at: its columns, and their hash (`silosynth.deployment.label.digest`).
        report: what was found, as `silosynth.evaluation.report.Report.to_dict` has it.
        withheld: why no verdict is given; empty if one is.
    """
    audit = {
        "of": of, "beside": beside, "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "rows": report["rows"]["n_synthetic"], "columns": list(columns), "sha256": sha256, "withheld": withheld,
        "figures": [{key: one[key] for key in sorted(_FIGURE)} for one in report["scores"]],
        "not_computed": {one["name"]: one["why"] for one in report["skipped"]}, "salt": secrets.token_hex(_SALT),
    }  # fmt: skip
    with locked(make_folder(folder) / _LOCK):
        lines = [*read_audits(folder), audit]
        write_atomic(folder / AUDITS, "".join(canonical(one) + "\n" for one in lines).encode(), PRIVATE)


def read_audits(folder: Path) -> list[dict[str, Any]]:
    """All audits of a job that this silo has made, the first one first.

    Raises:
        StorageError: the file is damaged.
    """
    path = folder / AUDITS
    try:
        return [json.loads(line) for line in read(path).splitlines()] if path.exists() else []
    except ValueError as error:
        raise StorageError("Audits of a job can be read", str(path), "Restore the file from a copy.") from error


def mentioned(folder: Path, digest: Callable[[list[str]], str]) -> list[dict[str, Any]]:
    """What a silo says of its audits when it signs a label: not what they found.

    ``digest`` hashes some columns of the published table: other rows may have been looked at than were published, as
    when they leave in several parts, or the coordinator has others drawn.
    """
    return [
        {"of": one["of"], "at": one["at"], "published": digest(one["columns"]) == one["sha256"], "hash": _hash(one)}
        for one in read_audits(folder)
    ]


def opened(seat: Seat, folder: Path, policy: SiloPolicy, label: Mapping[str, Any]) -> dict[str, Any]:
    """What this silo's audits have found, signed for the label of the job's table.

    Where its policy limits an epsilon only those by counted tables are among them: these have left under that policy.
    """
    found = [one for one in read_audits(folder) if one["of"] == ACROSS or not policy.budgeted]
    stated = {"silo": seat.name, "label": _of(label), "audits": found}
    return {"statement": stated, **sign(seat, _WHAT, stated)}


def faults(label: Mapping[str, Any]) -> list[str]:
    """What is wrong with the audits that were added to a label; nothing if silos that signed it have added them."""
    found = []
    for silo, added in label.get("audits", {}).items():
        try:
            stated, signed = added["statement"], label["silos"][silo]
            whole = set(added) == {"statement", "key", "signature"} and added["key"] == signed["key"]
            if not whole or stated["silo"] != silo or stated["label"] != _of(label):
                found.append(f"{silo}: its audits are of another silo, or of another table")
            check(_WHAT, silo, stated, added["key"], added["signature"])
            if not fit(stated["audits"], _KEPT) or not all(fit(one["figures"], _FIGURE) for one in stated["audits"]):
                found.append(f"{silo}: what its audits have found cannot be read")
        except (KeyError, TypeError, AttributeError):
            found.append(f"{silo}: its audits cannot be read, or it has not signed the label")
        except SilosynthError:
            found.append(f"{silo}: its signature is not of these audits")
    return found


def fit(records: Any, fields: set[str]) -> bool:
    """Whether these are records with such fields."""
    return isinstance(records, list | tuple) and all(isinstance(one, dict) and set(one) == fields for one in records)


def told(label: Mapping[str, Any]) -> dict[str, list[dict[str, Any]] | None]:
    """All audits that a label knows of, by silo; None of a silo whose version said nothing of any.

    Of each what was looked at and when; whether it was made before the silo signed (``before``); and its findings, if
    they were added.
    """
    return {silo: _told(signed["statement"], label, silo) for silo, signed in label["silos"].items()}


def _told(statement: Mapping[str, Any], label: Mapping[str, Any], silo: str) -> list[dict[str, Any]] | None:
    added: Sequence[dict[str, Any]] = label.get("audits", {}).get(silo, {}).get("statement", {}).get("audits", ())
    if "audits" not in statement and not added:
        return None
    found = {_hash(one): one for one in added}
    before = {one["hash"]: {**one, "before": True} for one in statement.get("audits", ())}
    return [{"before": False, **before.get(key, {}), **found.get(key, {})} for key in {**before, **found}]


def _of(label: Mapping[str, Any]) -> str:
    """A hash of all of a label that silos have signed together."""
    return _hash({"facts": label["facts"], "silos": label["silos"]})


def _hash(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(facts).encode()).hexdigest()
