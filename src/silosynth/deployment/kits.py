"""Start kits: what each organisation receives to take part, and ``federation.toml``, from which kits are made.

A kit is a folder: ``kit.json`` (the federation's members and their public keys), ``sealing.key`` (a silo's own private
key), ``engine`` (certificates and settings of FLARE), and for silos ``silo.toml`` and ``policy.toml``, which they write
themselves. A daemon writes to ``work``, jobs to ``work/jobs``.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from pydantic import Field, PrivateAttr

from silosynth.core.conversation import COORDINATOR, KEY_BYTES, Roster
from silosynth.core.errors import ConfigError, StorageError, nearest
from silosynth.core.files import make_folder, read, write_atomic
from silosynth.deployment.flare.provisioning import AUTHORITY, Project, provision
from silosynth.deployment.policy import POLICY
from silosynth.deployment.revoked import RevocationList, Revoked, current_list
from silosynth.deployment.rows import SILO
from silosynth.experiment.grammar import FileSection, Text, read_toml
from silosynth.privacy.sealed import Seat
from silosynth.runtime.tls import Certificates, fingerprint

KIT, KEY, JOBS = "kit.json", "sealing.key", "jobs"
_KEYS = "sealing_keys.json"  # public ones, beside the authority
DISPATCHER = "dispatcher"
"""The operator in whose name the coordinator resumes interrupted jobs."""
Port = Annotated[int, Field(ge=1, le=65535)]


class CoordinatorPlan(FileSection):
    """``[coordinator]``: its address."""

    host: Text
    """Host name or IPv4 address by which silos reach it."""
    port: Port = 8002
    """The one port that it must open."""
    stream_port: Port | None = None
    """A second one, for jobs whose transport is "stream": many times faster than the relay."""
    more_hosts: list[Text] = Field(default_factory=list)
    """Other names and addresses of the same machine, for its certificate."""


class SiloPlan(FileSection):
    """``[silos.NAME]``: an organisation that takes part."""

    key: Text | None = None
    """Its public sealing key, if it made its own with ``silosynth party key``; otherwise provisioning draws one."""


class FederationPlan(FileSection):
    """``federation.toml``."""

    name: Text
    coordinator: CoordinatorPlan
    silos: Annotated[dict[str, SiloPlan], Field(min_length=1)]
    operators: list[Text] = Field(default_factory=list)
    """Operators who may start jobs from their own machines; the coordinator's operator always may."""
    _source: Path = PrivateAttr(default=Path())


@dataclass(frozen=True)
class StartKit:
    """The kit in ``folder``.

    Attributes:
        name: of the silo or operator, or "coordinator".
        federation, host, port, stream_port: as in ``federation.toml``.
        roster: all silos, with their pinned public keys.
    """

    folder: Path
    name: str
    federation: str
    host: str
    port: int
    stream_port: int | None
    roster: Roster

    @property
    def jobs(self) -> Path:
        """The folder of jobs, with one folder each."""
        return self.folder / "work" / JOBS

    @property
    def dispatcher(self) -> Path:
        """The kit with which commands on the coordinator's machine talk to the engine."""
        return self.folder / DISPATCHER if self.name == COORDINATOR else self.folder

    def as_dispatcher(self) -> StartKit:
        """The kit of the operator in whose name the coordinator starts jobs.

        Raises:
            ConfigError: this is not the coordinator's.
        """
        if self.name != COORDINATOR:
            raise ConfigError("The coordinator has a dispatcher", self.name, "Use the coordinator's kit.")
        return replace(self, folder=self.dispatcher, name=DISPATCHER)

    @property
    def key_file(self) -> Path:
        """The private key of this site's certificate, which lies beside it."""
        return self.folder / "engine" / "startup" / ("server.key" if self.name == COORDINATOR else "client.key")

    def check_private(self) -> None:
        """Refuse a kit without its private keys, or with some that everybody on this machine can read.

        Raises:
            ConfigError: names the file.
        """
        for kit in (self, self.as_dispatcher()) if self.name == COORDINATOR else (self,):
            if not kit.key_file.exists():
                raise ConfigError(
                    "A kit holds the key of its certificate", str(kit.key_file),
                    f"Put the one in that this site has drawn: silosynth certificate install {kit.name}.key",
                )  # fmt: skip
        for path in (self.folder / KEY, *sorted((self.folder / "engine" / "startup").glob("*.key"))):
            if os.name == "posix" and path.exists() and path.stat().st_mode & 0o007:
                raise ConfigError("Others cannot use a private key", str(path), f"Close it to them: chmod 600 {path}")

    def seat(self) -> Seat:
        """This silo's seat among the silos.

        Raises:
            StorageError: the private key is missing.
            ConfigError: it does not match the pinned public key.
        """
        return Seat(self.name, _decoded(read(self.folder / KEY).decode("ascii", "replace"), KEY), self.roster)

    def fingerprint(self) -> str:
        """SHA-256 of the certificate in this kit, in hexadecimal."""
        certificate = x509.load_pem_x509_certificate(self.certificate())
        return fingerprint(certificate.public_bytes(serialization.Encoding.DER))

    def revoked(self) -> Revoked:
        """Tells which certificates count no more, by the list that this site keeps."""
        return Revoked(self.folder / "work", self.authority)

    def revocations(self) -> RevocationList | None:
        """The list of revoked certificates that this site keeps.

        Raises:
            StorageError: it cannot be read, or is damaged.
        """
        return current_list(self.folder / "work", self.authority)

    def certificates(self) -> Certificates:
        """The engine's certificates, for the stream beside it."""
        return Certificates(self.authority(), self.certificate(), read(self.key_file))

    def certificate(self) -> bytes:
        """This site's certificate."""
        return read(self.key_file.with_suffix(".crt"))

    def authority(self) -> bytes:
        """The certificate of the federation's authority."""
        return read(self.key_file.with_name("rootCA.pem"))


def read_kit(folder: Path | str) -> StartKit:
    """The kit in a folder.

    Raises:
        StorageError: there is none, or it is damaged.
    """
    folder = Path(folder).absolute()
    if not (folder / KIT).is_file():
        raise StorageError(
            "The folder holds a start kit", str(folder), "Name the folder that `silosynth provision` made: --kit."
        )
    try:
        fields = json.loads(read(folder / KIT))
        keys = tuple(_decoded(key, KIT) for key in fields["silos"].values())
        return StartKit(
            folder, fields["name"], fields["federation"], fields["host"], fields["port"], fields["stream_port"],
            Roster(tuple(fields["silos"]), keys),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError("A kit's description can be read", str(folder / KIT), "Hand it out again.") from error


def read_plan(path: str | Path) -> FederationPlan:
    """Read and check ``federation.toml``.

    Raises:
        StorageError: no such file.
        ConfigError: a key or a value is invalid; names it.
    """
    path = Path(path)
    plan = read_toml(path, FederationPlan)
    plan._source = path
    _project(plan)
    return plan


def write_kits(
    plan: FederationPlan, folder: Path, requests: Mapping[str, bytes] | None = None, again: Sequence[str] = ()
) -> list[Path]:
    """Write a kit for every member, and return their folders. Existing kits keep their keys and their own files.

    When silos are added, every kit's ``kit.json`` changes; those need it that have jobs with the new silo. Of members
    whose kit was handed out, and is not in the folder any more, only ``kit.json`` is written.

    Args:
        plan: who takes part.
        folder: of all kits.
        requests: what sites have asked for with keys of their own, by name; for others keys are drawn.
        again: who gets a new certificate, such as for a kit that was lost.

    Raises:
        UnavailableError: FLARE is not installed.
        ConfigError: a request is of nobody who takes part, or no request.
        StorageError: the folder holds kits of another federation, or cannot be written.
    """
    make_folder(folder)
    known = [COORDINATOR, DISPATCHER, *plan.silos, *plan.operators]
    for name in (*(requests or {}), *again):
        if name not in known:
            raise ConfigError("Certificates are of who takes part", name, nearest(name, known))
    if (folder / COORDINATOR / DISPATCHER).exists():
        shutil.move(folder / COORDINATOR / DISPATCHER, folder / DISPATCHER)
    provision(_project(plan), folder, requests or {}, again)
    if (folder / DISPATCHER).exists():
        shutil.rmtree(folder / COORDINATOR / DISPATCHER, ignore_errors=True)
        shutil.move(folder / DISPATCHER, folder / COORDINATOR / DISPATCHER)
    keys = _public_keys(plan, folder)
    Roster(tuple(keys), tuple(_decoded(key, f"silos.{silo}.key") for silo, key in keys.items()))
    names = [COORDINATOR, *plan.silos, *plan.operators]
    for name in names:
        fields = {"name": name, "federation": plan.name, "silos": keys, **plan.coordinator.model_dump()}
        write_atomic(make_folder(folder / name) / KIT, json.dumps(fields, indent=2).encode() + b"\n")
    for silo in plan.silos:
        for file, text in ((SILO, SILO_TEMPLATE), (POLICY, POLICY_TEMPLATE)):
            if (folder / silo / "engine").exists() and not (folder / silo / file).exists():
                write_atomic(folder / silo / file, text.encode())
    return [folder / name for name in names]


def draw_key(path: Path) -> str:
    """Create a private sealing key in a file that only its owner can read; returns the public key.

    Raises:
        StorageError: the file exists, or cannot be written.
    """
    if path.exists():
        raise StorageError("A sealing key is created only once", str(path), "Move the old one away first.")
    key = X25519PrivateKey.generate()
    make_folder(path.parent)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(base64.b64encode(key.private_bytes_raw()) + b"\n")
    return _encoded(key)


def _public_keys(plan: FederationPlan, folder: Path) -> dict[str, str]:
    """Each silo's public key: its own, that of the key in its kit, the one it received before, or a new one.

    Public keys handed out are kept with the authority: the private key is only in the silo's kit.
    """
    path = folder / AUTHORITY / _KEYS
    handed: dict[str, str] = json.loads(read(path)) if path.exists() else {}
    keys = {}
    for silo, section in plan.silos.items():
        private = folder / silo / KEY
        if section.key is not None:
            keys[silo] = section.key
        elif private.exists():
            raw = _decoded(read(private).decode("ascii", "replace"), KEY)
            keys[silo] = _encoded(X25519PrivateKey.from_private_bytes(raw))
        else:
            keys[silo] = handed.get(silo) or draw_key(private)
    write_atomic(path, json.dumps({**handed, **keys}, indent=2).encode())
    return keys


def _encoded(key: X25519PrivateKey) -> str:
    """The public half, in base64."""
    return base64.b64encode(key.public_key().public_bytes_raw()).decode()


def _decoded(text: str, where: str) -> bytes:
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(f"{where}: a sealing key is {KEY_BYTES} bytes in base64", "something else", "Copy it again.")
    return key


def _project(plan: FederationPlan) -> Project:
    """The engine's description of the federation; checks names."""
    coordinator = plan.coordinator
    if coordinator.stream_port == coordinator.port:
        raise ConfigError("coordinator.stream_port and coordinator.port must differ", coordinator.port)
    operators: Sequence[str] = [*plan.operators, DISPATCHER]
    return Project(plan.name, coordinator.host, coordinator.port, list(plan.silos), operators, coordinator.more_hosts)


SILO_TEMPLATE = """\
# Where this silo's rows live. Nothing of this file leaves the silo. All keys: docs/guide/data-sources.md
# retention_days = 90               # after how many days without use models, tables and checkpoints of a job go

[data]
path = "customers.csv"              # CSV, Parquet or Arrow, beside this file; or a database:
# database = "postgresql://db.internal:5432/crm"
# table = "public.customers"
# user = "silosynth_reader"
# password_file = "/run/secrets/crm"
# columns = ["customer_id", "age", "income"]
identifiers = []                    # columns that link this silo's rows to those of others: ["customer_id"]

# [schema.age]                      # what is declared about a column instead of inferred
# kind = "integer"
# low = 18
# high = 120
"""

POLICY_TEMPLATE = """\
# What this silo allows. The silo enforces it; nobody else can change it. These are the defaults.
# What they let the worst coordinator learn, in plain words: silosynth policy check
algorithms = ["silofuse", "vtgan", "gdts"]
messages = ["*"]                    # types of messages that may come and go, as patterns
refused = []                        # types that may not: ["algorithms.gdts.ExactSummaries"]

# People
least_rows = 100                    # fewest rows to train on
min_count = 5                       # fewest people behind a level's name, and behind the end of a range
require_alignment = true            # rows must be linked first, unless silos hold the same columns
own_rows = false                    # whether autoencoders may learn from rows too that no other silo has
keyed_hash = false                  # whether they may be linked by hashes that the coordinator sees, rather than by PSI
psi_queries = 10.0                  # identifiers that this silo is asked about in a job, in multiples of its rows

# Noise: with an epsilon below, nothing un-noised about rows may leave
require_dp = false                  # whether jobs must have a target dp
# largest_epsilon_per_job = 1.0     # of all noised releases of a job
# largest_epsilon = 4.0             # of all noised releases, in all jobs
largest_delta = 1e-5                # at which both are counted
exact_rows = false                  # whether exact numbers of rows may leave all the same: alignment needs it

# Tables that silos count together, to judge a synthetic table ("judge" in algorithms) or what partners are worth
open_tables = "noised"              # how they open: "no", "noised" or "exact"
open_figures = false                # whether figures of them open, exactly: how far they are from other tables
require_dealer = false              # whether a silo without rows must deal in these jobs, in place of the coordinator

# Synthetic rows
share_synthetic = true              # whether synthetic values of this silo's columns may leave it
share_decoders = false              # whether what they are drawn from may: others then draw without this silo
approval = "none"                   # "person": held until somebody here says `silosynth approve JOB`
approve_start = false               # whether each job's start waits for such a word, too
approval_hours = 72.0               # after how many hours without a word the answer is no
most_rows_drawn = 1_000_000         # synthetic rows of a job's model, in it and in all jobs that draw later
conditions = []                     # columns under conditions on which rows may be drawn, as patterns: ["age"]
least_condition_rows = 100          # fewest people who are expected behind the conditions of a draw
conditions_per_day = 100            # different conditions behind which people are counted within 24 hours
rules = "shared"                    # which jobs may have rules: "no", "all", or those whose synthetic columns leave
public_seed = false                 # whether a job may fix this silo's randomness (for tests: it makes noise known)

# Who, and how often
jobs_per_day = 100                  # jobs that begin within 24 hours
submitters = ["*"]                  # who may start jobs
allow_coordinators = []             # SHA-256 of the coordinator's certificate, as `silosynth provision` prints it
"""
