"""What a silo is told in training does not depend on other silos' rows, where the documents say so."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.contracts import settings

import silosynth as ss
from silosynth.core.conversation import Party, State
from silosynth.core.messages import Message
from silosynth.core.streams import Streams
from silosynth.privacy.sealed import seats
from silosynth.runtime.driver import drive
from silosynth.runtime.ledger import Ledger
from silosynth.runtime.wire import encode
from silosynth.simulation.silos import InProcess

CPU = torch.device("cpu")
TOLD = ("silofuse-joint", "e2edistr", "vtgan", "vflgan", "vflgan-base", "vertigan")


class Listening(Party):
    """A silo that keeps what it is asked."""

    def __init__(self, party: Party, asked: list[bytes]) -> None:
        self.party, self.asked = party, asked

    def answer(self, ask: Message) -> Message:
        self.asked.append(encode(ask))
        return self.party.answer(ask)

    def _state(self, training: bool) -> State:
        return self.party.state() if training else self.party.trained()

    def restore(self, state: State) -> None:
        self.party.restore(state)


def asked_of_the_bank(name: str, seed: int) -> list[bytes]:
    """All asks of the training but what is sealed; the shop's rows are in another order for each seed."""
    rows = settings.frame()
    theirs = ["member", "since", "note"]
    rows[theirs] = rows[theirs].iloc[np.random.default_rng(seed).permutation(len(rows))].reset_index(drop=True)
    divided = ss.simulate(rows, silos={"bank": ["age", "spent", "city"], "shop": theirs})
    entry, streams, asked = settings.entry_of(name), Streams(0), list[bytes]()
    config, seated = entry.configure("fast", settings.TINY[name]), seats(divided.roster, streams.child("seats"))
    parties = {
        silo: entry.party(table, divided.schemas[silo], seated[silo], streams.party(silo), CPU, config)
        for silo, table in divided.tables.items()
    }
    with InProcess(parties | {"bank": Listening(parties["bank"], asked)}) as link:
        drive(lambda _: entry.coordinate(divided.roster, config, streams.child("c"), CPU), link, Ledger())
    return [ask for ask in asked if b"privacy.Envelope" not in ask]


def test_silofuse_tells_a_silo_nothing_about_others_rows() -> None:
    assert asked_of_the_bank("silofuse", 1) == asked_of_the_bank("silofuse", 2)


CHOICE, RANDOM = (
    (b"tables are still to open in full", b"counting.RevealTables"),
    (b"privacy.Confirmations", b"counting.DealSeed"),
)


@pytest.mark.parametrize("name", ["mst", "aim"])
def test_marginals_tell_a_silo_which_tables_open_in_full_and_nothing_else(name: str) -> None:
    asked, again, other = (asked_of_the_bank(name, seed) for seed in (1, 1, 2))
    for one, same, changed in zip(asked, again, other, strict=True):
        assert one == same or any(kind in one for kind in RANDOM)  # new ones each time
        assert one == changed or any(kind in one for kind in (*CHOICE, *RANDOM))


@pytest.mark.slow
@pytest.mark.parametrize("name", TOLD)
def test_a_silo_is_told_something_about_others_rows(name: str) -> None:
    """Where the documents do not promise it."""
    assert asked_of_the_bank(name, 1) != asked_of_the_bank(name, 2)
