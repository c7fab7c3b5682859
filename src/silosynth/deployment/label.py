"""The label of a published table: what made it, what that gives away, and who says so.

Its *facts* follow from the job and from the published table; every site computes them by itself, and none is told them
by another. Each silo signs them together with a *statement* of its own: the head of its ledger, what has left it, and
the heads and keys that the other silos have told it, sealed, when they compared ledgers; and which audits it has made.
So nobody can change a fact, a row, or a silo's statement afterwards; and whoever trusts one silo's key finds the
others' vouched for. What audits have found a silo may add later, signed (`silosynth.deployment.audits`).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silosynth.core import files
from silosynth.core.errors import DataError, ProtocolError, SilosynthError, StorageError
from silosynth.core.messages import to_state
from silosynth.data import sources
from silosynth.data.csvfiles import FormulaWarning
from silosynth.deployment import audits, silo_ledger
from silosynth.deployment.kept import guarantee_of
from silosynth.deployment.protocol import Job, LabelSigned, installed
from silosynth.deployment.signed import check, sign
from silosynth.privacy.events import Target
from silosynth.privacy.sealed import Seat

if TYPE_CHECKING:
    import pandas as pd

LABEL = "label.json"
_FORM = "silosynth label 1"
_WHAT = "label"
_NONE = "none"
_REMEDY = "Ask those who published it for the table and the label as they were."


def facts(job: Job, table: pd.DataFrame) -> dict[str, Any]:
    """What every site says of a table that a job has published."""
    target = getattr(job.config, "dp", Target())
    kept = {"rules": [rule.in_words for rule in job.rules]} if job.rules else {}
    given = {"conditions": list(job.asked)} if job.asked else {}
    sample = {"sample": job.sample} if job.sample < 1 else {}
    return {
        "form": _FORM, "job": job.name, "drawn_from": "" if job.drawing is None else job.drawing.job,
        "algorithm": job.algorithm, "preset": job.preset, "options": plain(to_state(job.config)["fields"]),
        "silos": list(job.silos), "submitter": job.submitter, "held_out": job.holdout,
        "linked_by": "nothing" if job.align is None else job.align.method,
        "seed_of_training": "secret" if job.training_seed is None else "public",
        "seed_of_rows": "secret" if job.seed is None else "public",
        "target": {"epsilon": target.epsilon, "delta": target.delta} if target.private else None,
        "guarantee": guarantee_of(job.algorithm, job.config, job.training_seed) or _NONE,
        "sources": installed()[1],
        **kept, **given, **sample, "rows": len(table), "columns": [str(name) for name in table.columns],
        "sha256": digest(table, raw_text=True), "sha256_escaped": digest(table, raw_text=False),
    }  # fmt: skip


def digest(table: pd.DataFrame, raw_text: bool) -> str:
    """SHA-256 of a table as a CSV file; without ``raw_text`` of one whose formulas are escaped."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", FormulaWarning)
        sources.write(table, path := Path(folder) / "table.csv", raw_text)
        return hashlib.sha256(path.read_bytes()).hexdigest()


def plain(value: Any) -> Any:
    """A config's state as JSON has it; tensors by their shapes."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.get("fields", value).items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if hasattr(value, "shape"):
        return f"tensor of shape {tuple(value.shape)}"
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def sign_label(
    seat: Seat, stated: Mapping[str, Any], head: silo_ledger.Head | None, others: Mapping[str, silo_ledger.Head],
    ledgers: Sequence[Path], made: Sequence[Mapping[str, Any]] = (),
) -> LabelSigned:  # fmt: skip
    """A silo's statement, and its signature on that and on the facts.

    Args:
        seat: the silo's.
        stated: the facts, as this silo has them.
        head: of its ledger, as it told the others; None if it keeps none.
        others: of the others, as they told it.
        ledgers: its ledgers of the job, and of the one that it has drawn from.
        made: its audits, as `silosynth.deployment.audits.mentioned` has them.
    """
    gave = {str(line["privacy"]) for path in ledgers for line in _lines(path) if line.get("from") == seat.name}
    statement = {
        "silo": seat.name, "version": installed()[0],
        "ledger": None if head is None else _told(head), "gave_away": sorted(gave), "audits": list(made),
        "others": {silo: {**_told(other), "key": other.key.hex()} for silo, other in others.items()},
    }  # fmt: skip
    signed = sign(seat, _WHAT, {"facts": stated, "statement": statement})
    return LabelSigned(json.dumps(statement), signed["key"], signed["signature"])


def _told(head: silo_ledger.Head) -> dict[str, Any]:
    return {"lines": head.lines, "hash": head.hash}


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in files.read(path).splitlines()] if path.exists() else []


def keep_label(folder: Path, stated: Mapping[str, Any], signed: Sequence[LabelSigned]) -> None:
    """Check what silos have signed against the facts as this site has them, and write the label into the job's folder.

    Raises:
        ProtocolError: a silo has signed something else.
    """
    silos = {}
    for one in signed:
        try:
            statement = json.loads(one.statement)
            silos[str(statement["silo"])] = {"statement": statement, "key": one.key, "signature": one.signature}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ProtocolError("A silo's statement can be read", type(error).__name__, "Compare versions.") from error
    label = {"facts": dict(stated), "silos": silos}
    if fault := next(iter(faults(label)), ""):
        raise ProtocolError("All sites say the same of a published table", fault, "Do not trust this coordinator.")
    files.write_atomic(folder / LABEL, json.dumps(label, indent=2).encode(), files.PRIVATE)


def read_label(path: Path) -> dict[str, Any]:
    """A label.

    Raises:
        StorageError: there is none, or it is something else.
    """
    try:
        label = json.loads(files.read(path))
        parts = label["silos"], label.get("audits", {})
        if label["facts"]["form"] == _FORM and all(isinstance(part, dict) for part in parts):
            return dict(label)
        found = str(label["facts"]["form"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        found = type(error).__name__
    raise StorageError(f"The label of a table is a {_FORM}", found, "Name the file that ends in .label.json.")


def faults(label: Mapping[str, Any], keys: Mapping[str, str] | None = None) -> list[str]:
    """What is wrong with a label by itself; nothing if it is as the silos have signed it.

    ``keys`` are those of silos' signatures, in hexadecimal, that are known from elsewhere.
    """
    found, silos = [], label["silos"]
    if set(label) - {"audits"} != {"facts", "silos"}:
        found.append("it has other parts than facts, silos and audits")
    for silo, signed in silos.items():
        try:
            found += _faults_of(silo, signed, label, (keys or {}).get(silo))
        except (KeyError, TypeError, AttributeError):
            found.append(f"{silo}: its part cannot be read")
    return found + audits.faults(label)


def _faults_of(silo: str, signed: Mapping[str, Any], label: Mapping[str, Any], key: str | None) -> list[str]:
    found, statement = [], signed["statement"]
    if set(signed) != {"statement", "key", "signature"} or statement["silo"] != silo:
        found.append(f"{silo}: its part is of another silo, or has more than it signed")
    others = statement["others"] if statement["ledger"] else label["facts"]["silos"]
    if {silo, *others} != set(label["silos"]):
        found.append(f"{silo}: it knows of other silos that took part to the end than have signed")
    if not audits.fit(statement.get("audits", ()), audits.MENTIONED):
        found.append(f"{silo}: what it says of its audits cannot be read")
    if key is not None and key != signed["key"]:
        found.append(f"{silo}: it has another key than is known of it")
    try:
        check(_WHAT, silo, {"facts": label["facts"], "statement": statement}, signed["key"], signed["signature"])
    except SilosynthError:
        found.append(f"{silo}: its signature is not of these facts and this statement")
    for name, told in statement["others"].items():
        other = label["silos"].get(name)
        if other is None or told != {**(other["statement"]["ledger"] or {}), "key": other["key"]}:
            found.append(f"{silo}: {name} told it of another ledger, or another key")
    return found


def joined(label: Mapping[str, Any], other: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A label with the audits that silos have added to another one of the same table, in a file of this ``name``.

    Raises:
        DataError: it is of another table, or was changed.
    """
    if other["facts"] != label["facts"] or other["silos"] != label["silos"]:
        raise DataError("Audits are added from a label of the same table", name, "Name a label of this very job.")
    if wrong := faults(other):
        raise DataError("A label is as silos have signed it", f"{name}: {wrong[0]}", "Ask the silo for it again.")
    return {**label, "audits": {**label.get("audits", {}), **other.get("audits", {})}}


def table_faults(label: Mapping[str, Any], table: Path) -> list[str]:
    """What is wrong with a table, by its label.

    Raises:
        DataError, StorageError: the table cannot be read.
    """
    stated, name = label["facts"], table.name.lower()
    if name.endswith((".csv", ".csv.gz")):
        content = files.read(table)
        found = hashlib.sha256(gzip.decompress(content) if name.endswith(".gz") else content).hexdigest()
    elif name.endswith((".tsv", ".tsv.gz", ".xlsx")):
        raise DataError("A table is checked as .csv, .parquet or .arrow", table.name, "Fetch it in such a file.")
    else:
        found = digest(sources.read(table), raw_text=True)
    return [] if found in (stated["sha256"], stated["sha256_escaped"]) else ["the table is not the one that was signed"]


def known_keys(jobs: Path, seat: Seat) -> dict[str, str]:
    """The keys of signatures that a silo knows: its own, and those that others told it in jobs, sealed.

    Raises:
        StorageError: a ledger cannot be read.
    """
    known = {seat.name: silo_ledger.public_key(seat).hex()}
    for path in sorted(jobs.glob(f"*/{silo_ledger.FILE}")):
        for line in _lines(path) if not silo_ledger.verify_file(path, silo=seat.name).faults else ():
            if line.get("kind") == "compared":
                known |= {silo: str(told["key"]) for silo, told in line["silos"].items() if silo not in known}
    return known
