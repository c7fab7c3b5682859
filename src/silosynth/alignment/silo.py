"""A silo's side of an alignment: its identifiers, and how it answers. See `protocol` for the steps.

`canonical` writes identifiers as bytes, the same in every silo, whatever an identifier's dtype there:

* Integers are written as digits: 7, 7.0 and the text "7" are equal. Other numbers are written as Python writes floats,
  7.5; they match if silos store them with the same precision.
* Text is normalised to Unicode NFC and stripped of white space at both ends. Otherwise it is compared exactly: upper
  and lower case differ, and so do "007" and 7, or "7.0" and 7.0.
* Dates and times are in ISO form: 2020-01-31 for midnight, else 2020-01-31T08:30:00, with as many decimals
  as needed. Those with a time zone are in UTC, always with a time, and end in Z. Text that holds a date in a known
  format counts as a date if the column is declared as one.
* Booleans are true and false.
* Several columns are framed one after the other, so that ("ab", "c") is not ("a", "bc"). Their order matters, their
  names do not.
* If any part is missing or empty, the row has no identifier.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from silosynth.alignment import intersection, protocol
from silosynth.core.conversation import Party, State
from silosynth.core.errors import DataError, ProtocolError
from silosynth.core.messages import Done, Message
from silosynth.core.schema import DURATIONS, Column
from silosynth.core.streams import Streams
from silosynth.privacy.agreement import Agreements, Group, OfferShares
from silosynth.privacy.sealed import Envelope, Seat, framed

_AGAIN = "Start the alignment again."
_AT_ONCE = 2**16  # rows whose identifiers are spelled at once


class Aligner(Party):
    """A silo's side of an alignment.

    Args:
        identifiers: one per row of the silo's table, as `canonical` writes them; None for an empty one.
        seat: who this silo is.
        streams: its streams; the seed, which must be the same in all silos, decides the common order.
        config: all options.
        queries: how many identifiers of another silo it compares itself with, as a multiple of its own rows.
        asked: how many it was asked about before, in earlier attempts of the same job.

    Attributes:
        asked: how many identifiers it has been asked about, or was told that others hold.
        rows: (n,) int64 positions of this silo's rows in the common order, once all silos have confirmed it; empty
            before.
    """

    def __init__(
        self, identifiers: Sequence[bytes | None], seat: Seat, streams: Streams, config: protocol.AlignConfig,
        queries: float = protocol.QUERIES, asked: int = 0,
    ) -> None:  # fmt: skip
        self.rows = torch.zeros(0, dtype=torch.int64)
        self._n_rows, self._usable = len(identifiers), usable(identifiers)
        self._seat, self._seed = seat, streams.seed
        self._tagging, self._ordering = Group(seat), Group(seat)
        rule = "A secret is fresh for tags, and lasting for the order of rows"
        self._agreements = Agreements(rule, self._group_for, self._tagging)
        self._config = config
        self.asked, self._most = asked, math.ceil(queries * len(self._usable.rows))
        self._answered = False  # whether a query was
        self._tags = b""  # of usable rows, one after the other
        self._key = b""  # for private set intersection
        self._asking: list[int] = []  # the leader's: indices of usable rows that all silos asked so far hold
        self._asked = 0  # how many silos have been asked
        self._placed: Tensor | None = None  # rows in the common order, not yet confirmed
        self._digest = b""  # of that order

    def answer(self, ask: Message) -> Message:
        """Answer one message of the coordinator.

        Raises:
            DataError: too few rows can be linked, or are common.
            ProtocolError: the message comes too early, cannot be opened or names rows that are not here; or silos did
                not all put the same rows in the same order.
            UnavailableError: openmined-psi is needed and not installed.
        """
        if (reply := self._agreements.answer(ask)) is not None:
            return reply
        match ask:
            case protocol.TagRows():
                return self._prepare()
            case protocol.Answer():
                return self._answer(ask)
            case protocol.Narrow():
                return self._narrow(ask)
            case protocol.PlaceSealed():
                return self._place(self._common_tags(ask.envelope))
            case protocol.PlacePseudonyms():
                return self._place(ask.tags)
            case protocol.ConfirmOrder():
                return self._confirm(ask)
            case _:
                raise ProtocolError("A silo that is being aligned does not understand this message", type(ask).__name__)

    def _group_for(self, ask: OfferShares) -> Group | None:
        """A fresh secret for tags, the lasting one for the order."""
        if ask.purpose != (protocol.TAGS if ask.fresh else protocol.ORDER):
            return None
        return self._tagging if ask.fresh else self._ordering

    # Tags.

    def _prepare(self) -> Message:
        if self._tags:
            raise ProtocolError("A silo tags its rows once in an alignment", "a second request", _AGAIN)
        if not len(self._usable.rows):
            raise DataError(
                "A silo holds at least one row with a unique identifier",
                f"{self._n_rows} rows, {self._usable.empty} without one, {self._usable.duplicated} with a shared one",
                "Name other identifier columns, or more of them.",
            )
        self._tag_rows()
        if self._config.method == "keyed-hash":
            return protocol.Pseudonyms(np.sort(protocol.split(self._tags)).tobytes())
        if self._leads:
            self._asking = list(range(len(self._usable.rows)))
            return self._query_or_finish()
        self._key = intersection.new_key()
        encrypted = intersection.encrypt(self._key, self._tags_of(range(len(self._usable.rows))))
        return protocol.Encrypted(self._seal(self._silos[0], "encrypted", encrypted))

    def _tag_rows(self) -> None:
        key = self._tagging.key("tags")
        self._tags = _digests(key, self._usable.identifiers)

    def _tags_of(self, numbers: Iterable[int]) -> list[bytes]:
        return [self._tags[number * protocol.TAG :][: protocol.TAG] for number in numbers]

    # Private set intersection.

    def _query_or_finish(self) -> protocol.Query | protocol.Common:
        """The leader: ask the next silo; or, once all have answered, send the common tags to all."""
        tags = self._tags_of(self._asking)
        others = self._silos[1:]
        if self._asked < len(others):
            self._key = intersection.new_key()
            return protocol.Query(self._seal(others[self._asked], "query", intersection.query(self._key, tags)))
        self._started().check(len(tags))
        common = b"".join(sorted(tags))  # sorted, so that the leader's own order of rows is not revealed
        return protocol.Common(tuple(self._seal(other, "common", common) for other in others))

    def _answer(self, ask: protocol.Answer) -> protocol.Answered:
        self._started()
        if self._leads or not self._key:
            raise ProtocolError("All silos except the first answer queries", "the first was asked to", _AGAIN)
        if self._answered:
            raise ProtocolError("A silo answers one query of an alignment", "another one", _AGAIN)
        leader = self._silos[0]
        query = self._open(ask.query, leader, "query")
        self._count(intersection.n_asked(query))
        self._answered = True
        return protocol.Answered(self._seal(leader, "answer", intersection.answer(self._key, query)))

    def _narrow(self, ask: protocol.Narrow) -> protocol.Query | protocol.Common:
        self._started()
        others = self._silos[1:]
        if not self._leads or not self._key or self._asked >= len(others):
            raise ProtocolError("The first silo compares, once with each other silo", type(ask).__name__, _AGAIN)
        other = others[self._asked]
        encrypted, answered = self._open(ask.encrypted, other, "encrypted"), self._open(ask.answered, other, "answer")
        self._count(intersection.n_held(encrypted))
        matches = intersection.matches(self._key, encrypted, answered, len(self._asking))
        self._asking = [self._asking[match] for match in matches]
        self._asked += 1
        return self._query_or_finish()

    def _count(self, identifiers: int) -> None:
        """Count identifiers of another silo that this one is compared with: somebody may have made them up."""
        self.asked += identifiers
        if self.asked > self._most * (len(self._silos) - 1 if self._leads else 1):
            raise ProtocolError(
                "A silo is compared with no more identifiers of another than a multiple of its own rows",
                "more, in all attempts of the job together",
                "Made-up ones would find out whom it holds. If the other silo is that large, raise psi_queries.",
            )

    def _common_tags(self, envelope: Envelope | None) -> bytes:
        """The tags of the common rows: sent by the leader, or this silo's own if it is the leader."""
        if self._started().method != "psi" or (envelope is None) != self._leads:
            raise ProtocolError(
                "All silos except the first get a list of the common rows, in PSI", self._seat.name, _AGAIN
            )
        if envelope is not None:
            return self._open(envelope, self._silos[0], "common")
        if self._asked < len(self._silos) - 1:
            raise ProtocolError("Rows are put in order after all silos were asked", self._asked, _AGAIN)
        return b"".join(self._tags_of(self._asking))

    # The common order.

    def _place(self, tags: bytes) -> protocol.Placed:
        """Put the common rows in the order of another keyed hash of their identifiers."""
        config, own = self._started(), protocol.split(self._tags)
        if self._placed is not None:
            raise ProtocolError("A silo puts its rows in order once in an alignment", "a second request", _AGAIN)
        config.check(len(tags) // protocol.TAG)
        order = np.argsort(own)
        found = order[np.searchsorted(own, asked := protocol.split(tags), sorter=order).clip(max=len(own) - 1)]
        if len(tags) % protocol.TAG or (own[found] != asked).any() or len(np.unique(asked)) < len(asked):
            raise ProtocolError("Common rows are rows of this silo, each named once", "others", _AGAIN)
        key, names = self._ordering.key(f"order {self._seed}"), self._usable.identifiers
        places = protocol.split(_digests(key, (names[index] for index in found.tolist())))
        order = np.argsort(places)
        self._placed = torch.from_numpy(self._usable.rows[found[order]])
        self._digest = hashlib.sha256(places[order].tobytes()).digest()
        return protocol.Placed(self._matched(len(found)), self._proof(self._seat.name))

    def _matched(self, common: int) -> protocol.Matched:
        usable = self._usable
        return protocol.Matched(self._n_rows, usable.duplicated, usable.empty, len(usable.rows) - common, common)

    def _proof(self, silo: str) -> bytes:
        """What ``silo`` sends if it has the same order. Nobody without the secret can forge it."""
        return hmac.digest(self._tagging.key("proof"), framed(silo, self._digest), "sha256")

    def _confirm(self, ask: protocol.ConfirmOrder) -> Done:
        """Check that all silos have the same rows in the same order; otherwise unrelated rows would be linked."""
        if self._placed is None:
            raise ProtocolError("An order is confirmed after rows were put in order", type(ask).__name__, _AGAIN)
        proofs = dict(zip(self._silos, ask.proofs, strict=False))
        wrong = [silo for silo in self._silos if not hmac.compare_digest(proofs.get(silo, b""), self._proof(silo))]
        if wrong or len(ask.proofs) != len(self._silos):
            raise ProtocolError(
                "All silos put the same rows in the same order",
                f"silos {', '.join(wrong)} did not" if wrong else f"{len(ask.proofs)} proofs",
                "They were sent different rows, or have different seeds: compare seeds and start the alignment again.",
            )
        self.rows = self._placed
        return Done()

    # State.

    def _state(self, training: bool) -> State:
        """Secrets, progress and selected rows; not the identifiers. Nothing once aligned: sampling needs none of it."""
        if not training:
            return {}
        return {
            "tagging": self._tagging.state(),
            "ordering": self._ordering.state(),
            "fresh": self._agreements.current is self._tagging,
            "tagged": bool(self._tags),
            "key": self._key,
            "asking": _positions(self._asking),
            "asked": self._asked,
            "answered": self._answered,
            "counted": self.asked,
            "placed": self._placed,
            "digest": self._digest,
            "rows": self.rows,
        }

    def restore(self, state: State) -> None:
        """Continue from a result of `state`, with the same identifiers."""
        if not state:
            return
        self._tagging.restore(state["tagging"])
        self._ordering.restore(state["ordering"])
        self._agreements.current = self._tagging if state["fresh"] else self._ordering
        self._key, self._asking, self._asked = state["key"], state["asking"].tolist(), state["asked"]
        self._placed, self._digest, self.rows = state["placed"], state["digest"], state["rows"]
        self._answered, self.asked = state["answered"], max(self.asked, state["counted"])
        self._tags = b""
        if state["tagged"]:
            self._tag_rows()

    # Between silos.

    @property
    def _silos(self) -> tuple[str, ...]:
        return self._seat.roster.parties

    @property
    def _leads(self) -> bool:
        return self._seat.name == self._silos[0]

    def _started(self) -> protocol.AlignConfig:
        if not self._tags:
            raise ProtocolError("An alignment begins with tagging rows", "something else", _AGAIN)
        return self._config

    def _seal(self, silo: str, what: str, content: bytes) -> Envelope:
        return self._seat.seal(silo, self._context(what), content)

    def _open(self, envelope: Envelope, sender: str, what: str) -> bytes:
        if envelope.sender != sender:
            raise ProtocolError(f"This envelope is from silo {sender!r}", envelope.sender, _AGAIN)
        return self._seat.open(envelope, self._context(what))

    def _context(self, what: str) -> str:
        """Specific to this alignment: envelopes of an earlier one do not open."""
        return f"alignment {what} {self._tagging.key('envelopes').hex()}"


def _positions(numbers: Sequence[int]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


_EPOCH = datetime(1970, 1, 1)
_INSTANTS = ("datetime64", "timestamp", "date32", "date64")
_DETAILS = ("date", "datetime")  # of dtypes, after "|"
_FLOATS = ("float", "halffloat", "double", "decimal")
_PRECISE = {"float16": 11, "halffloat": 11, "float32": 24, "float[": 24}  # bits; of other floats 53


@dataclass(frozen=True)
class Usable:
    """The rows of a silo that can be aligned.

    Attributes:
        rows: positions (n,) int64 of rows whose identifier no other row has.
        identifiers: of these rows.
        duplicated: number of rows that share their identifier with another row.
        empty: number of rows without an identifier.
    """

    rows: npt.NDArray[np.int64]
    identifiers: Sequence[bytes]
    duplicated: int
    empty: int


def usable(identifiers: Sequence[bytes | None]) -> Usable:
    """Leave out rows without an identifier, and all rows with a duplicated one, which is ambiguous."""
    present = np.fromiter((name is not None for name in identifiers), bool, len(identifiers))
    hashes = np.fromiter(map(hash, identifiers), np.int64, len(identifiers))  # of few bytes: a dictionary takes 100
    empty = len(identifiers) - int(present.sum())
    distinct, counts = np.unique(hashes[present], return_counts=True)
    doubtful = np.flatnonzero(present & np.isin(hashes, distinct[counts > 1]))
    names = Counter(identifiers[row] for row in doubtful.tolist())
    present[[row for row in doubtful.tolist() if names[identifiers[row]] > 1]] = False
    rows = np.flatnonzero(present)
    kept = [name for name, use in zip(identifiers, present, strict=True) if use and name is not None]
    return Usable(rows, kept, len(identifiers) - empty - len(rows), empty)


def _digests(key: bytes, names: Iterable[bytes]) -> bytes:
    """Keyed hashes of `protocol.TAG` bytes, one after the other."""
    digests, parts = (hmac.digest(key, name, "sha256") for name in names), list[bytes]()
    while part := b"".join(itertools.islice(digests, _AT_ONCE)):
        parts.append(part)
    return b"".join(parts)


def canonical(columns: Sequence[Column]) -> list[bytes | None]:
    """The identifiers of a table's rows, from one column or several; None for an empty one.

    Raises:
        DataError: there is no column; or one holds durations, or floats so large that neighbouring integers are the
            same float. Names the column, but none of its values.
    """
    if not columns:
        raise DataError("Rows are linked by at least one identifier column", "none", "Name one that all silos hold.")
    names: list[bytes | None] = []
    for start in range(0, len(columns[0]), _AT_ONCE):  # texts of all rows would take several times what names do
        parts = [_texts(column.take(slice(start, start + _AT_ONCE))) for column in columns]
        names += [_framed(row) for row in zip(*parts, strict=True)]
    return names


def _framed(parts: tuple[str | None, ...]) -> bytes | None:
    present = [part for part in parts if part]
    return framed(*present) if len(present) == len(parts) else None


def _texts(column: Column) -> list[str | None]:
    """Each value of a column as text; None where it is missing."""
    spell = _speller(column)
    values, missing = column.values.tolist(), column.missing.tolist()
    if column.levels is None:
        return [None if absent else spell(value) for value, absent in zip(values, missing, strict=True)]
    levels = [spell(level) for level in column.levels]
    return [None if absent else levels[code] for code, absent in zip(values, missing, strict=True)]


def _speller(column: Column) -> Callable[[str | int | float | bool], str]:
    base, _, detail = column.dtype.partition("|")
    if base.startswith(DURATIONS):
        raise DataError("Durations cannot identify rows", column.name, "Name another column, or convert it to numbers.")
    is_time = base.startswith(_INSTANTS) or detail in _DETAILS or detail.startswith("%")
    if is_time:
        return partial(_spell_instant, aware="," in base)
    return partial(_spell, column)


def _spell(column: Column, value: str | int | float | bool) -> str:
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value).strip()
    if isinstance(value, bool):
        return "true" if value else "false"
    if abs(value) >= _largest(column.dtype, value):
        raise DataError(
            f"Identifiers in column {column.name!r} must be stored exactly; some this large are the same float",
            column.dtype,
            "Read the column as text, or as integers (Int64 allows missing values).",
        )
    return str(int(value)) if value == int(value) else repr(value)


def _largest(dtype: str, value: int | float) -> float:
    """Integers below this are stored exactly. Integers in tensors may have been floats."""
    name = (dtype.partition("|")[2] or dtype).lower()
    if isinstance(value, int) and not name.startswith(_FLOATS):
        return math.inf
    return 2.0 ** next((bits for start, bits in _PRECISE.items() if name.startswith(start)), 53)


def _spell_instant(nanoseconds: str | int | float | bool, aware: bool) -> str:
    assert isinstance(nanoseconds, int)
    seconds, fraction = divmod(nanoseconds, 10**9)
    text = (_EPOCH + timedelta(seconds=seconds)).isoformat()
    if fraction:
        text += f".{fraction:09d}".rstrip("0")
    return text + "Z" if aware else text.removesuffix("T00:00:00")
