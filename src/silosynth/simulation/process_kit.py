"""What a coordinator hands to a party's process on this machine: a folder with its name, its address and its keys."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch

from silosynth.core.conversation import Party
from silosynth.core.errors import StorageError
from silosynth.core.files import read
from silosynth.runtime.stream import serve_party
from silosynth.runtime.tls import Certificates

_FILE = "kit.json"


@dataclass(frozen=True, slots=True)
class Kit:
    """All that a party's process needs to take part.

    Attributes:
        name: the party's name.
        address: where the coordinator listens.
        folder: where the party keeps its parts of checkpoints; None for nowhere.
        threads: how many threads torch uses; equal to the coordinator's, so that numbers are equal too.
        certificates: who the party is.
    """

    name: str
    address: str
    folder: Path | None
    threads: int
    certificates: Certificates

    def write(self, place: Path) -> None:
        """Write the kit into the folder ``place``, which must exist."""
        folder = None if self.folder is None else str(self.folder)
        text = {"name": self.name, "address": self.address, "folder": folder, "threads": self.threads}
        (place / _FILE).write_text(json.dumps(text), encoding="utf-8")
        self.certificates.write(place)

    def serve(self, party: Party) -> None:
        """Answer the coordinator until it says goodbye; see `serve_party`."""
        serve_party(party, name=self.name, address=self.address, certs=self.certificates, folder=self.folder)


def open_kit(place: Path | str) -> Kit:
    """Read a kit and have torch use as many threads as it says. Call it before anything is computed.

    Raises:
        StorageError: there is no kit, or it is damaged.
    """
    place = Path(place)
    try:
        text = json.loads(read(place / _FILE))
        folder = None if text["folder"] is None else Path(text["folder"])
        kit = Kit(text["name"], text["address"], folder, text["threads"], Certificates.read(place))
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{str(place)!r} holds a party's kit", str(error)[:80], "Start the run again.") from error
    torch.set_num_threads(kit.threads)
    return kit
