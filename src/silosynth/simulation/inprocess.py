"""All parties in this process. Messages are encoded and decoded all the same, so nothing else can pass."""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Mapping
from pathlib import Path

import torch

from silosynth.catalog import Algorithm
from silosynth.core.conversation import Party
from silosynth.core.errors import ProtocolError, SilosynthError, nearest
from silosynth.core.messages import Message, wire_name
from silosynth.core.streams import Streams
from silosynth.privacy.sealed import seats
from silosynth.runtime.endpoint import PartyEndpoint, PartyFailure
from silosynth.runtime.link import Link, Received, encode_asks, location, party_failure, with_location
from silosynth.runtime.wire import decode
from silosynth.runtime.workers import PendingResult, Worker, run_here, stop_workers
from silosynth.simulation.federation import Federation


def make_parties(entry: Algorithm, federation: Federation, streams: Streams, device: torch.device) -> dict[str, Party]:
    """Each silo's side of an algorithm, with the silo's own table, seat and stream."""
    seated = seats(federation.roster, streams.child("seats"))
    return {
        silo: entry.party(table, federation.schemas[silo], seated[silo], streams.party(silo), device)
        for silo, table in federation.tables.items()
    }


class InProcess(Link):
    """Parties as objects in this process; those of one exchange answer in parallel.

    Each answers in a thread of its own, but for the last, which uses the caller's: the caller would only wait, and
    changing threads takes as long as a short answer (docs/decisions/0006).

    Args:
        parties: who takes part, by name.
        folder: below it each party keeps its parts of checkpoints (`CheckpointStore.parties`); None for none.
    """

    def __init__(self, parties: Mapping[str, Party], folder: Path | str | None = None) -> None:
        places = {name: None if folder is None else Path(folder) / name for name in parties}
        self._desks = {name: PartyEndpoint(name, party, places[name]) for name, party in parties.items()}
        # Torch fixes a thread's number of threads when the thread first computes, to what was last set anywhere:
        # fix the coordinator's before parties set theirs.
        torch.get_num_threads()
        self._workers = {name: Worker(name) for name in parties}
        weakref.finalize(self, stop_workers, list(self._workers.values()))
        self._job = ""
        self._closed = False

    def begin(self) -> None:
        """See `Link.begin`."""
        self._job = uuid.uuid4().hex

    def exchange(self, step: int, asks: Mapping[str, Message]) -> Mapping[str, Received]:
        """See `Link.exchange`."""
        endpoints = self._open()
        for party in asks:
            if party not in endpoints:
                raise ProtocolError(f"Step {step} asks a silo that takes part", party, nearest(party, endpoints))
        job, blobs = self._job, encode_asks(step, asks)
        own = next(reversed(blobs), None)
        pending = {
            party: (run_here if party == own else self._workers[party].do)(endpoints[party].answer, job, step, blob)
            for party, blob in blobs.items()
        }
        return {party: _received(party, step, ask, blobs[party], pending[party]) for party, ask in asks.items()}

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
        stop_workers(list(self._workers.values()))

    def _open(self) -> dict[str, PartyEndpoint]:
        if self._closed:
            raise ProtocolError("A closed link is not used again", "closed", "Make a new one.")
        return self._desks


def _received(party: str, step: int, ask: Message, blob: bytes, pending: PendingResult[bytes]) -> Received:
    where = location(party, step, wire_name(type(ask)))
    try:
        answer = pending.result()
        reply = decode(answer)
    except SilosynthError as error:
        raise with_location(error, where) from error.__cause__
    except PartyFailure as failure:
        cause = failure.__cause__
        raise party_failure(where, f"{type(cause).__name__}: {cause}") from cause
    assert isinstance(reply, Message)  # the endpoint has checked it
    return Received(reply, len(blob), len(answer))
