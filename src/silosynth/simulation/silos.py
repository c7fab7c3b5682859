"""Silos on this machine: as objects in this process, or each in a process of its own (`Processes`).

Messages are encoded and decoded either way, so nothing else can pass. A silo's process uses the same streams that cross
organisations. It starts with a folder that holds its name, the coordinator's address and its keys (`ProcessKit`), and
the table of its own silo.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from silosynth.catalog import Algorithm, of_config
from silosynth.core import files
from silosynth.core.conversation import Party, Roster
from silosynth.core.errors import PartyLostError, ProtocolError, SilosynthError, StorageError, UnavailableError, nearest
from silosynth.core.messages import Message, Struct, from_state, to_state, wire_name
from silosynth.core.schema import Schema, Table
from silosynth.core.streams import Streams
from silosynth.privacy.sealed import Seat, seats
from silosynth.runtime import link, stream, tls, wire
from silosynth.runtime.endpoint import PartyEndpoint, PartyFailure
from silosynth.runtime.hub import Hub, Lost
from silosynth.simulation.federation import Federation


def make_parties(
    entry: Algorithm, config: Any, federation: Federation, streams: Streams, device: torch.device
) -> dict[str, Party]:
    """Each silo's side of an algorithm, with the silo's own table, seat and stream, and the options of all."""
    seated = seats(federation.roster, streams.child("seats"))
    return {
        silo: _with_own(
            entry.party(table, federation.schemas[silo], seated[silo], streams.party(silo), device, config),
            config, federation.own.get(silo),
        )
        for silo, table in federation.tables.items()
    }  # fmt: skip


def _with_own(party: Party, config: Any, own: Table | None) -> Party:
    """The party, with the rows that only it has if the options say so."""
    if getattr(config, "own_rows", False) and own is not None and len(own):
        party.also(own)
    return party


class _Pace:
    """Whether parties answer one kind of ask side by side or in turn: whichever took less time when it was last tried.

    Answers of a few milliseconds are faster in turn: threads that compute them mostly wait for Python's lock, and for
    each other (docs/decisions/0084). They are the same either way.
    """

    def __init__(self, parties: int) -> None:
        self._parties, self._exchanges = parties, 0
        self._seconds = {side_by_side: deque([math.inf], maxlen=3) for side_by_side in (True, False)}

    def side_by_side(self) -> bool:
        """How the next exchange is to be answered: at first each way, and later now and then the slower one."""
        self._exchanges += 1
        together, in_turn = (min(self._seconds[way]) for way in (True, False))
        tried = 1 if _LONG <= together < math.inf else _TRIED
        if self._exchanges <= tried or together * self._parties > _LONGEST:
            return True
        if self._exchanges <= 2 * tried:
            return False
        return (together <= in_turn) != (self._exchanges % _AGAIN == 0)

    def took(self, side_by_side: bool, seconds: float) -> None:
        """How long an exchange took."""
        self._seconds[side_by_side].append(seconds)


_TRIED, _AGAIN = 2, 100  # exchanges of a kind that try each way; every which one tries the slower way again
_LONG = 0.2  # seconds side by side from which on only one tries each way
_LONGEST = 4.0  # seconds of all parties together, as if each took as long as all, from which on none is


class InProcess(link.Link):
    """Parties as objects in this process; those of one exchange answer side by side, or in turn where that is faster.

    Side by side each answers in a thread of its own, but for the last, which uses the caller's: the caller would only
    wait, and changing threads takes as long as a short answer (docs/decisions/0006).

    Args:
        parties: who takes part, by name.
        folder: below it each party keeps its parts of checkpoints (`CheckpointStore.parties`); None for none.
        clock: seconds, to compare how long exchanges take.
    """

    def __init__(
        self, parties: Mapping[str, Party], folder: Path | str | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        places = {name: None if folder is None else Path(folder) / name for name in parties}
        self._desks = {name: PartyEndpoint(name, party, places[name]) for name, party in parties.items()}
        # Torch fixes a thread's number of threads when the thread first computes, to what was last set anywhere:
        # fix the coordinator's before parties set theirs.
        torch.get_num_threads()
        self._workers = {name: link.Worker(name) for name in parties}
        self._paces: dict[tuple[object, ...], _Pace] = {}
        weakref.finalize(self, link.stop_workers, list(self._workers.values()))
        self._job = ""
        self._clock = clock
        self._closed = False

    def begin(self) -> None:
        """See `Link.begin`."""
        self._job = uuid.uuid4().hex

    def exchange(self, step: int, asks: Mapping[str, Message]) -> Mapping[str, link.Received]:
        """See `Link.exchange`."""
        endpoints = self._open()
        for party in asks:
            if party not in endpoints:
                raise ProtocolError(f"Step {step} asks a silo that takes part", party, nearest(party, endpoints))
        job, blobs = self._job, link.encode_asks(step, asks)
        pace = self._paces.setdefault(_kinds(asks), _Pace(len(asks)))
        side_by_side, start = pace.side_by_side(), self._clock()
        own = next(reversed(blobs), None)
        pending = {
            party: (self._workers[party].do if side_by_side and party != own else link.run_here)(
                endpoints[party].answer, job, step, blob
            )
            for party, blob in blobs.items()
        }
        received = {party: _received(party, step, ask, blobs[party], pending[party]) for party, ask in asks.items()}
        pace.took(side_by_side, self._clock() - start)
        return received

    def save(self, number: int) -> None:
        """See `Link.save`."""
        for endpoint in self._open().values():
            endpoint.save(number)

    def restore(self, number: int) -> None:
        """See `Link.restore`."""
        for endpoint in self._open().values():
            endpoint.restore(number)

    def close(self) -> None:
        """See `Link.close`. Parties that are still computing are stopped."""
        self._closed = True
        link.stop_workers(list(self._workers.values()))

    def _open(self) -> dict[str, PartyEndpoint]:
        if self._closed:
            raise ProtocolError("A closed link is not used again", "closed", "Make a new one.")
        return self._desks


def _kinds(asks: Mapping[str, Message]) -> tuple[object, ...]:
    """Who is asked, and with what class of message."""
    return tuple((party, type(ask)) for party, ask in asks.items())


def _received(party: str, step: int, ask: Message, blob: bytes, pending: link.PendingResult[bytes]) -> link.Received:
    where = link.location(party, step, wire_name(type(ask)))
    try:
        answer = pending.result()
        reply = wire.decode(answer)
    except SilosynthError as error:
        raise link.with_location(error, where) from error.__cause__
    except PartyFailure as failure:
        cause = failure.__cause__
        raise link.party_failure(where, f"{type(cause).__name__}: {cause}") from cause
    assert isinstance(reply, Message)  # the endpoint has checked it
    return link.Received(reply, len(blob), len(answer))


Command = Callable[[str, Path], Sequence[str]]
"""The command line that starts a party, from its name and the folder of its `ProcessKit`."""

_KIT, _SILO = "kit.json", "silo"  # files in a process's folder
_GOODBYE = 0.3  # seconds that processes have to exit; Python with torch takes a second to clean up, which is not needed
_WORDS = 1500  # characters of a dead process's log that go into the error


@dataclass(frozen=True, slots=True)
class ProcessKit:
    """What a party's process needs to take part.

    Attributes:
        name: the party's name.
        address: where the coordinator listens.
        folder: where the party keeps its parts of checkpoints; None for nowhere.
        threads: how many threads torch uses; as many as the coordinator, so that results are the same.
        certificates: who the party is.
    """

    name: str
    address: str
    folder: Path | None
    threads: int
    certificates: tls.Certificates

    def write(self, place: Path) -> None:
        """Write the kit into the folder ``place``, which must exist."""
        folder = None if self.folder is None else str(self.folder)
        text = {"name": self.name, "address": self.address, "folder": folder, "threads": self.threads}
        (place / _KIT).write_text(json.dumps(text), encoding="utf-8")
        self.certificates.write(place)

    def serve(self, party: Party) -> None:
        """Answer the coordinator until it says goodbye; see `stream.serve_endpoint`."""
        endpoint = PartyEndpoint(self.name, party, self.folder)
        stream.serve_endpoint(endpoint, address=self.address, certs=self.certificates)


def open_process_kit(place: Path | str) -> ProcessKit:
    """Read a kit, and set torch's number of threads to the kit's. Call it before anything is computed.

    Raises:
        StorageError: there is no kit, or it is damaged.
    """
    place = Path(place)
    try:
        text = json.loads(files.read(place / _KIT))
        folder = None if text["folder"] is None else Path(text["folder"])
        kit = ProcessKit(text["name"], text["address"], folder, text["threads"], tls.Certificates.read(place))
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{str(place)!r} holds a party's kit", str(error)[:80], "Start the run again.") from error
    torch.set_num_threads(kit.threads)
    return kit


class Processes(link.Remote):
    """Starts a process per party and waits until all are connected. Close it, or use it as a context manager.

    Keys lie in a temporary folder, readable by this user only, until every party has read its own.

    Args:
        roster: who takes part.
        command: the command line that starts a party.
        folder: below it each party keeps its parts of checkpoints (`CheckpointStore.parties`); None for none.
        limit: seconds that parties have for an answer, or to write their part of a checkpoint; None waits as long as
            they live.
        start_within: seconds that parties have to start.

    Raises:
        PartyLostError: a party did not start; the error quotes the end of its log.
    """

    def __init__(
        self,
        roster: Roster,
        command: Command,
        folder: Path | str | None = None,
        *,
        limit: float | None = None,
        start_within: float = 120.0,
    ) -> None:
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._place = Path(tempfile.mkdtemp(prefix="silosynth-"))
        hub: stream.StreamHub | None = None
        try:
            authority = tls.Authority()
            hub = stream.StreamHub(roster, authority.coordinator())
            super().__init__(roster, hub, self._dead, limit)
            for party in roster:
                self._start(party, command, hub.address, authority, folder)
            self._wait(hub, start_within)
        except BaseException:
            self._end(hub)
            raise

    def close(self) -> None:
        """Tell the parties to exit, and kill those that do not; may be called twice."""
        self._end(self._hub)

    def last_words(self, party: str) -> str:
        """The end of the party's log."""
        try:
            words = (self._place / party / "log").read_text("utf-8", "replace")[-_WORDS:].strip()
        except OSError:
            return ""
        return f"Its last words: {words}" if words else ""

    def pids(self) -> dict[str, int]:
        """Process number of each party."""
        return {party: child.pid for party, child in self._children.items()}

    def _start(
        self, party: str, command: Command, address: str, authority: tls.Authority, folder: Path | str | None
    ) -> None:
        place = self._place / party
        place.mkdir(mode=0o700)
        own = None if folder is None else files.make_folder(Path(folder).absolute() / party)
        ProcessKit(party, address, own, link.PARTY_THREADS, authority.party(party)).write(place)
        argv = list(command(party, place))
        try:
            with open(place / "log", "wb") as log:
                self._children[party] = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={
                        **os.environ,
                        "OMP_NUM_THREADS": str(link.PARTY_THREADS),
                        "MKL_NUM_THREADS": str(link.PARTY_THREADS),
                    },
                    start_new_session=True,  # Ctrl-C goes to the coordinator, which then ends its processes in order
                )
        except OSError as error:
            raise UnavailableError(
                f"Silo {party!r} can be started", error.strerror or "", f"Check {argv[0]!r}."
            ) from error

    def _wait(self, hub: stream.StreamHub, seconds: float) -> None:
        try:
            hub.wait_for_all(seconds, self._dead)
        except Lost as lost:
            raise PartyLostError(
                f"Silo {lost.party!r} starts and connects", lost.reason, self.last_words(lost.party)
            ) from None
        for party in self._children:
            for name in ("key.pem", "cert.pem", "ca.pem"):
                (self._place / party / name).unlink()

    def _dead(self, party: str) -> str | None:
        code = self._children[party].poll()
        if code is None:
            return None
        return f"its process {'ended with' if code >= 0 else 'was ended by'} {link.exit_name(code)}"

    def _end(self, hub: Hub | None) -> None:
        try:
            if hub is not None:
                hub.stop()
            until = time.monotonic() + _GOODBYE
            for child in self._children.values():
                try:
                    child.wait(max(0.0, until - time.monotonic()))
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
        finally:
            shutil.rmtree(self._place, ignore_errors=True)


def spawn(
    name: str, config: Struct, federation: Federation, seated: Mapping[str, Seat], seed: int, device: str,
    folder: Path, limit: float | None = None,
) -> Processes:  # fmt: skip
    """Start a process per silo, with its side of algorithm ``name`` with these options; checkpoints go to ``folder``.

    A silo has ``limit`` seconds for an answer; None waits as long as it lives. It is given its own private key of
    ``seated`` and all public ones.
    """

    def command(silo: str, place: Path) -> Sequence[str]:
        content = {
            "algorithm": name,
            "config": to_state(config),
            "seed": seed,
            "device": device,
            "private": seated[silo].private,
            "silos": list(seated[silo].roster.parties),
            "keys": list(seated[silo].roster.keys),
            "table": to_state(federation.tables[silo]),
            "schema": to_state(federation.schemas[silo]),
            "own": None if silo not in federation.own else to_state(federation.own[silo]),
        }
        files.write_atomic(place / _SILO, wire.pack(content))
        return [sys.executable, "-m", "silosynth", "silo-process", str(place)]

    return Processes(federation.roster, command, folder, limit=limit)


def serve(place: Path) -> None:
    """Answer as the silo whose kit lies in ``place`` until the coordinator ends."""
    kit = open_process_kit(place)
    content = wire.unpack(files.read(place / _SILO))
    (place / _SILO).unlink()
    streams = Streams(content["seed"]).party(kit.name)
    table, schema = from_state(Table, content["table"]), from_state(Schema, content["schema"])
    seat = Seat(kit.name, content["private"], Roster(tuple(content["silos"]), tuple(content["keys"])))
    config, device = from_state(Struct, content["config"]), link.resolve_device(content["device"])
    party = of_config(content["algorithm"], config, None).party(table, schema, seat, streams, device, config)
    own = None if content["own"] is None else from_state(Table, content["own"])
    kit.serve(_with_own(party, config, own))
