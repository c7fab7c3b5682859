"""What a coordinator receives, as bytes, and whether any raw value of a silo's table is in there.

A table of values that cannot be there by chance, the forms in which each could be, a link that keeps every reply as it
crosses the border, and the search.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

import silosynth as ss
from silosynth.catalog import Algorithm
from silosynth.core.conversation import Party, State
from silosynth.core.messages import Message, Release, all_structs, wire_name
from silosynth.core.streams import Streams
from silosynth.privacy.sealed import seats
from silosynth.runtime.driver import drive
from silosynth.runtime.ledger import Ledger, Record
from silosynth.runtime.wire import encode
from silosynth.simulation.silos import InProcess

CPU = torch.device("cpu")
NAMES, RARE, IDENTIFIERS = "category names", "rare names", "identifiers"
NUMBERS, COMMON, DATES = "numbers", "common numbers", "dates"
CITIES = ("Zürich-Oerlikon", "Neuchâtel-Serrières", "Lützelflüh")
TRADES = ("Orgelbauer", "Kaminfegerin", "Sattlerin")
ALONE = ("Hôpital Saint-Éloi 4", "Weingut Ötlishausen")  # two rows each: fewer than any encoder names
HEAP = 51423815.8173  # a balance that most rows have, as a special code is: a level of its own to encoders
ROWS = 90
RANDOM, SEVERAL = {Release.SEALED, Release.MASKED, Release.PSEUDONYMS}, 4


def frame(rows: int = ROWS) -> pd.DataFrame:
    """Rows whose numbers have more than five random bytes as float64 and int64, and four as float32.

    Their size, about 5e7 and 3e14, is that of no weight, gradient or latent.
    """
    rng = np.random.default_rng(11)
    city = rng.choice(CITIES, rows).astype(object)
    city[[3, 60]], city[[8, 70]] = ALONE
    balance = np.where(rng.random(rows) < 0.75, HEAP, np.round(rng.uniform(4.8e7, 5.6e7, rows), 4))
    instants = pd.Timestamp("2021-03-17") + pd.to_timedelta(rng.integers(1, 3 * 10**16, rows) * 3, unit="ns")
    return pd.DataFrame(
        {
            "balance": balance,
            "turnover": rng.uniform(4.8e7, 5.6e7, rows).astype("float32"),
            "city": city,
            "account": [f"CH93-0076-{number}" for number in rng.integers(10**11, 10**12, rows)],
            "units": rng.integers(2 * 10**14, 4 * 10**14, rows),
            "opened": instants,
            "trade": rng.choice(TRADES, rows),
        }
    )


def federation(horizontal: bool, bounds: Mapping[str, tuple[Any, Any]] | None = None) -> ss.Federation:
    """Two silos with columns of the table, or three with rows. ``bounds`` are declared: noised histograms want them."""
    kinds = {"account": "identifier", "units": "integer", "opened": "datetime"}
    declared = {
        column: {"kind": kinds.get(column, "continuous"), "low": low, "high": high}
        for column, (low, high) in (bounds or {}).items()
    }
    schema = {**kinds, "city": "categorical", "trade": "categorical", **declared}
    if horizontal:
        thirds = {"bank": range(30), "clinic": range(30, 60), "depot": range(60, ROWS)}
        return ss.simulate(frame(), rows=thirds, schema=schema)
    silos = {"bank": ["balance", "city", "account"], "clinic": ["turnover", "units", "opened", "trade"]}
    return ss.simulate(frame(), silos=silos, schema=schema)


@dataclass(frozen=True)
class Heard:
    """A reply as the coordinator received it."""

    silo: str
    type: str
    blob: bytes


class Tap(Party):
    """A silo, and every reply of it as it is encoded for the border: the same message gives the same bytes."""

    def __init__(self, name: str, party: Party, heard: list[Heard]) -> None:
        self.name, self.party, self.heard = name, party, heard

    def answer(self, ask: Message) -> Message:
        reply = self.party.answer(ask)
        self.heard.append(Heard(self.name, wire_name(type(reply)), encode(reply)))
        return reply

    def _state(self, training: bool) -> State:
        return self.party.state() if training else self.party.trained()

    def restore(self, state: State) -> None:
        self.party.restore(state)


def transcript(
    entry: Algorithm, config: object, divided: ss.Federation, rows: int = 40, party: type[Tap] = Tap
) -> tuple[list[Heard], list[Record]]:
    """All that the coordinator hears of training and, where silos take part in it, of synthesis; and the ledgers."""
    roster, streams, heard, ledgers = divided.roster, Streams(0), [], (Ledger(), Ledger())
    seated = seats(roster, streams.child("seats"))
    taps = {}
    for silo, table in divided.tables.items():
        own = table, divided.schemas[silo], seated[silo], streams.child(silo), CPU
        taps[silo] = party(silo, entry.party(*own, config), heard)
    with InProcess(taps) as link:
        trained = drive(lambda _: entry.coordinate(roster, config, streams.child("coordinator"), CPU), link, ledgers[0])
        if entry.parts:
            sample = streams.child("sample")
            for tap in taps.values():
                tap.restore(tap.trained())
            drive(lambda _: entry.synthesise(roster, config, trained, rows, sample, CPU), link, ledgers[1])
    return heard, [record for ledger in ledgers for record in ledger.records]


# What is sought, and in which forms.


def secrets(table: pd.DataFrame) -> dict[bytes, str]:
    """Every form of every value that must not be heard, and of which group the value is."""
    found: dict[bytes, str] = {}
    for names, group in ((CITIES + TRADES, NAMES), (ALONE, RARE), (tuple(table["account"]), IDENTIFIERS)):
        found |= {form: group for name in names for form in text_forms(name)}
    for column in ("balance", "turnover", "units"):
        found |= {form: NUMBERS for value in table[column] for form in number_forms(value)}
    found |= dict.fromkeys(number_forms(HEAP), COMMON)
    found |= {form: DATES for value in table["opened"] for form in date_forms(value)}
    return found


def text_forms(text: str) -> Iterator[bytes]:
    """UTF-8, UTF-16 either way round, one byte per letter, and as JSON escapes it."""
    yield from (text.encode(coding) for coding in ("utf-8", "utf-16-le", "utf-16-be", "latin-1", "unicode_escape"))
    yield "".join(letter if letter < "\x7f" else f"\\u{ord(letter):04x}" for letter in text).encode()


def number_forms(value: float | int | np.generic) -> Iterator[bytes]:
    """As float64 and int64, either way round, as float32, and as text."""
    plain = value.item() if isinstance(value, np.generic) else value
    yield from _floats(float(plain))
    texts = {repr(plain), str(value), repr(float(plain))}
    if isinstance(plain, int):
        yield from _wholes(plain)
    yield from (text.encode() for text in texts)


def date_forms(value: pd.Timestamp) -> Iterator[bytes]:
    """Nanoseconds and microseconds as numbers, and as text to the second."""
    for number in (value.value, value.value // 1000):
        yield from _wholes(number)
        yield from _floats(float(number))
        yield str(number).encode()
    for layout in ("%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S"):
        yield value.strftime(layout).encode()


def _floats(value: float) -> Iterator[bytes]:
    yield from (struct.pack(layout, value) for layout in ("<d", ">d", "<f"))


def _wholes(value: int) -> Iterator[bytes]:
    yield from (struct.pack(layout, value) for layout in ("<q", ">q"))


def leaks(heard: list[Heard], sought: Mapping[bytes, str]) -> dict[str, set[str]]:
    """By message type, which groups of values were in messages of that type.

    What is random by design holds any four bytes once in 2³² words: there several values of a group must be found.
    """
    found: dict[str, set[str]] = {}
    random = {name for name, kind in all_structs(Message).items() if kind.release in RANDOM}
    singles = {form: group for form, group in sought.items() if len(form) == 4}
    for one in heard:
        groups = {group for form, group in sought.items() if len(form) > 4 and form in one.blob}
        words = Counter(singles[form] for form in _words(one.blob) & singles.keys())
        groups |= {group for group, count in words.items() if count >= (SEVERAL if one.type in random else 1)}
        if groups:
            found.setdefault(one.type, set()).update(groups)
    return found


def _words(blob: bytes) -> set[bytes]:
    """The tensors of a message, four bytes at a time: elsewhere so few bytes are found by chance."""
    text = 8 + int.from_bytes(blob[:8], "little")
    body = text + 8 + int.from_bytes(blob[text : text + 8], "little")
    return {blob[at : at + 4] for at in range(body, len(blob) - 3, 4)}
