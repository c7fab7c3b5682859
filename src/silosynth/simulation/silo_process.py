"""A silo of a simulated federation in a process of its own: what it is given, and how it starts.

The process gets its own silo's table and nothing of the others; everything else reaches it as messages.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from silosynth.catalog import party_of
from silosynth.core.files import read, write_atomic
from silosynth.core.roster import Roster
from silosynth.core.schema import Schema, Table
from silosynth.core.state import from_state, to_state
from silosynth.core.streams import Streams
from silosynth.privacy.sealed import Seat
from silosynth.runtime.wire import pack, unpack
from silosynth.simulation.federation import Federation
from silosynth.simulation.model import resolve_device
from silosynth.simulation.process_kit import open_kit
from silosynth.simulation.processes import Processes

_FILE = "silo"


def spawn(
    name: str, federation: Federation, seated: Mapping[str, Seat], seed: int, device: str, folder: Path,
    limit: float | None = None,
) -> Processes:  # fmt: skip
    """One process per silo, each answering for algorithm ``name``; ``folder`` is where they keep their parts.

    They have ``limit`` seconds for an answer; None waits as long as they live. Each is handed its own private key of
    ``seated``, and everybody's public ones.
    """

    def command(silo: str, place: Path) -> Sequence[str]:
        given = {
            "algorithm": name,
            "seed": seed,
            "device": device,
            "private": seated[silo].private,
            "silos": list(seated[silo].roster.parties),
            "keys": list(seated[silo].roster.keys),
            "table": to_state(federation.tables[silo]),
            "schema": to_state(federation.schemas[silo]),
        }
        write_atomic(place / _FILE, pack(given))
        return [sys.executable, "-m", "silosynth", "silo-process", str(place)]

    return Processes(federation.roster, command, folder, limit=limit)


def serve(place: Path) -> None:
    """Be the silo whose kit lies in ``place``, until the coordinator says goodbye."""
    kit = open_kit(place)
    given = unpack(read(place / _FILE))
    (place / _FILE).unlink()
    streams = Streams(given["seed"]).party(kit.name)
    table, schema = from_state(Table, given["table"]), from_state(Schema, given["schema"])
    seat = Seat(kit.name, given["private"], Roster(tuple(given["silos"]), tuple(given["keys"])))
    kit.serve(party_of(given["algorithm"])(table, schema, seat, streams, resolve_device(given["device"])))
