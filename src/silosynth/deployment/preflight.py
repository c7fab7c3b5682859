"""What would keep a site from its jobs, found before there is one: `silosynth check`.

Each check is a function that returns findings. They change nothing, and tell nobody else; what they say may name
columns, paths and hosts of this site.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from silosynth.core.conversation import COORDINATOR
from silosynth.core.errors import SilosynthError, nearest
from silosynth.deployment import upgrades
from silosynth.deployment.exposure import exposures
from silosynth.deployment.kits import SILO_TEMPLATE, StartKit
from silosynth.deployment.policy import SiloPolicy, read_policy
from silosynth.deployment.protocol import installed
from silosynth.deployment.rows import SILO, SiloFile, check_rows, read_silo, repeated_identifiers
from silosynth.runtime.tls import dialled_certificate, fingerprint, same_fingerprint
from silosynth.simulation.federation import read_table

if TYPE_CHECKING:
    import pandas as pd

Verdict = Literal["fine", "warning", "fault"]
_DAYS = 30  # that a certificate should be valid for
_DISK = 2 << 30  # bytes: checkpoints of several jobs of the largest preset
_COPIES = 12  # times the size of a table in memory that a training takes, at most of what was seen
_DIAL = 5.0  # seconds


@dataclass(frozen=True)
class SiteFinding:
    """What a check has found.

    Attributes:
        what: was looked at.
        verdict: "fault" keeps the site from its jobs.
        said: about it.
    """

    what: str
    verdict: Verdict
    said: str


def findings(kit: StartKit) -> Iterator[SiteFinding]:
    """All that can be found at a site, in order; what a failed check needs to go on is left out."""
    yield from _checked("clock", lambda: _clock(kit))
    yield from _checked("certificate", lambda: _certificate(kit))
    yield from _checked("private keys", lambda: _keys(kit))
    yield from _checked("disk", lambda: _disk(kit))
    yield from _checked("silosynth", lambda: _silosynth(kit))
    if kit.name == COORDINATOR:
        yield from _checked("ports", lambda: _own_ports(kit))
        return
    yield from _checked("coordinator", lambda: _coordinator(kit))
    if kit.name in kit.roster:
        yield from _checked("policy", lambda: _policy(read_policy(kit.folder)))
        yield from _silo(kit)


def _checked(what: str, check: Callable[[], Iterator[tuple[Verdict, str]]]) -> Iterator[SiteFinding]:
    """Findings of a check; its error is one."""
    try:
        for verdict, said in check():
            yield SiteFinding(what, verdict, said)
    except (SilosynthError, OSError, ValueError) as error:
        yield SiteFinding(what, "fault", str(error))


def _pem(kit: StartKit) -> tuple[x509.Certificate, x509.Certificate]:
    """The certificates of this site and of the authority."""
    own = kit.certificates()
    return x509.load_pem_x509_certificate(own.certificate), x509.load_pem_x509_certificate(own.authority)


def _clock(kit: StartKit) -> Iterator[tuple[Verdict, str]]:
    now, begin = datetime.now(timezone.utc), _pem(kit)[0].not_valid_before_utc
    if now < begin:
        yield "fault", f"it says {now:%Y-%m-%d %H:%M} UTC, before the kit was made ({begin:%Y-%m-%d %H:%M}): set it"
    else:
        yield "fine", f"{now:%Y-%m-%d %H:%M:%S} UTC; all sites' should agree to within a minute"


def _certificate(kit: StartKit) -> Iterator[tuple[Verdict, str]]:
    for who, certificate in zip(("this site's", "the authority's"), _pem(kit), strict=True):
        left = (certificate.not_valid_after_utc - datetime.now(timezone.utc)).days
        verdict: Verdict = "fault" if left < 0 else "warning" if left < _DAYS else "fine"
        yield verdict, f"{who} is valid until {certificate.not_valid_after_utc:%Y-%m-%d}, {left} days"
    own, form = _pem(kit)[0].public_key(), serialization.PublicFormat.SubjectPublicKeyInfo
    key = serialization.load_pem_private_key(kit.certificates().key, None).public_key()
    if own.public_bytes(serialization.Encoding.DER, form) != key.public_bytes(serialization.Encoding.DER, form):
        yield "fault", "the certificate and the private key beside it do not belong together: unpack the kit again"


def _keys(kit: StartKit) -> Iterator[tuple[Verdict, str]]:
    kit.check_private()
    if kit.name in kit.roster:
        kit.seat()
        yield "fine", "closed to others; the sealing key is the one that all kits have pinned"
    else:
        yield "fine", "closed to others"


def _disk(kit: StartKit) -> Iterator[tuple[Verdict, str]]:
    place = kit.folder / "work"
    place = place if place.exists() else kit.folder
    free = shutil.disk_usage(place).free
    if not os.access(place, os.W_OK):
        yield "fault", f"this account cannot write to {place}"
    elif free < _DISK:
        yield "warning", f"{free / 2**30:.1f} GiB free at {place}; {_DISK >> 30} GiB keep checkpoints of large jobs"
    else:
        yield "fine", f"{free / 2**30:.0f} GiB free"


def _silosynth(kit: StartKit) -> Iterator[tuple[Verdict, str]]:
    version, sources = installed()
    yield "fine", f"{version}; its jobs run with sites whose sources are the same: SHA-256 {sources}"
    for said in upgrades.left_behind(kit.jobs):
        yield "warning", said


def _own_ports(kit: StartKit) -> Iterator[tuple[Verdict, str]]:
    for port in filter(None, (kit.port, kit.stream_port)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("0.0.0.0", port))
                yield "fine", f"{port} is free"
            except OSError:
                yield "warning", f"{port} is taken: by the coordinator, if it runs; else by somebody else"
    address = socket.gethostbyname(kit.host)
    yield "fine", f"{kit.host} is {address} here"


def _coordinator(kit: StartKit) -> Iterator[tuple[Verdict, str]]:
    found = fingerprint(dialled_certificate(kit.host, kit.port, kit.certificates()))
    yield "fine", f"{kit.host}:{kit.port} answers, with a certificate of this federation"
    allowed = read_policy(kit.folder).allow_coordinators if kit.name in kit.roster else []
    if allowed and not any(same_fingerprint(found, one) for one in allowed):
        yield "fault", f"its certificate is none that allow_coordinators in policy.toml lists: {found}"
    if kit.stream_port is not None:
        try:
            socket.create_connection((kit.host, kit.stream_port), _DIAL).close()
            yield "fine", f'port {kit.stream_port} answers, for transport = "stream"'
        except ConnectionRefusedError:
            yield "fine", f"port {kit.stream_port} can be reached; it is open while a job uses it"
        except OSError as error:
            yield "warning", f"port {kit.stream_port} cannot be reached ({error}): jobs have to use the relay"


def _policy(policy: SiloPolicy) -> Iterator[tuple[Verdict, str]]:
    worst = exposures(policy)[0]
    yield "fine", f"allowed are {', '.join(policy.algorithms) or 'no algorithms'}; at least {policy.least_rows} rows"
    closed = f" (closed by {worst.key})" if worst.key else ""
    yield "fine", f"the worst coordinator learns, first of all: {worst.learns}{closed}. All: silosynth policy check"


def _silo(kit: StartKit) -> Iterator[SiteFinding]:
    """What can be said of a silo's rows."""
    if (kit.folder / SILO).exists() and (kit.folder / SILO).read_text("utf-8") == SILO_TEMPLATE:
        yield SiteFinding("rows", "fault", f"{SILO} is the template, unchanged: say where this silo's rows are")
        return
    try:
        rows = read_silo(kit.folder)
        if rows.data is None:
            yield SiteFinding("rows", "fine", "none: this silo only deals")
            return
        check_rows(rows)
        frame = rows.read()
        least = read_policy(kit.folder).least_rows
    except (SilosynthError, OSError) as error:
        yield SiteFinding("rows", "fault", str(error))
        return
    for what, check in (("rows", _read_rows), ("columns", _columns), ("memory", _memory)):
        yield from _checked(what, partial(check, rows, frame, least))


def _read_rows(rows: SiloFile, frame: pd.DataFrame, least: int) -> Iterator[tuple[Verdict, str]]:
    verdict: Verdict = "fine" if len(frame) >= least else "fault"
    fewer = "" if len(frame) >= least else f", fewer than the policy's least_rows = {least}"
    yield verdict, f"{len(frame):,} from {rows.source().describe()}{fewer}"
    if not rows.identifiers:
        yield "warning", "no identifiers: rows cannot be linked with those of silos that hold other columns"
    elif repeated := repeated_identifiers(frame, rows.identifiers):
        yield "warning", repeated


def _columns(rows: SiloFile, frame: pd.DataFrame, least: int) -> Iterator[tuple[Verdict, str]]:
    names = [str(name) for name in frame.columns]
    for name in rows.declared:
        if name not in names:
            yield "fault", f"[schema.{name}] declares a column that the table lacks. {nearest(name, names)}"
    plain = frame.drop(columns=rows.identifiers)
    schema, _ = read_table(plain, {name: rule for name, rule in rows.declared.items() if name in plain.columns})
    yield "fine", ", ".join(f"{column.name} ({column.kind})" for column in schema.columns)


def _memory(rows: SiloFile, frame: pd.DataFrame, least: int) -> Iterator[tuple[Verdict, str]]:
    needed = int(frame.memory_usage(deep=True).sum()) * _COPIES + (1 << 30)
    free = _available()
    verdict: Verdict = "warning" if free is not None and free < needed else "fine"
    have = "" if free is None else f"; {free / 2**30:.1f} GiB are free"
    yield verdict, f"a job takes about {needed / 2**30:.1f} GiB{have}"


def _available() -> int | None:
    """Bytes of memory that are free, as far as the system tells."""
    try:
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
    except OSError:
        return None
    free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return free[0] if free else None
