"""What is said in an alignment, in talking order, and its options. What each part means: see `conversation`.

Tags are HMAC-SHA256 of identifiers, `TAG` bytes each; several of them are written one after the other, sorted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from silosynth.core.errors import DataError
from silosynth.core.messages import Message, Release, Struct, check_positive
from silosynth.privacy.sealed import Envelope

TAG = 32  # bytes
TAGS = "alignment: tags"  # what silos agree on a fresh secret for: rows are compared by tags under it
ORDER = "alignment: order"  # and a lasting one: the order of the common rows


@dataclass(frozen=True, slots=True)
class AlignConfig(Struct):
    """All options.

    ``method`` says who is trusted with what. Both want silos that follow the protocol.

    * "psi": the coordinator learns numbers of rows only. The first silo learns which of its rows the second silo holds
      as well, which of these the third, and so on.
    * "keyed-hash": much faster, and no silo learns more than the common rows. But **the coordinator is trusted not to
      work together with any silo**: it holds a pseudonym of every row of every silo, and sees which silos share it; and
      whoever knows the silos' secret, as each silo does, computes the pseudonym of any identifier that can be guessed,
      and so learns which silos hold it. Do not choose it where a silo's organisation runs the coordinator.
    """

    method: Literal["psi", "keyed-hash"] = "psi"
    least: int = 1  # fewest common rows; with fewer there is no alignment

    def __post_init__(self) -> None:
        Struct.__post_init__(self)
        check_positive(self, "least")

    def check(self, common: int) -> None:
        """Refuse too few common rows.

        Raises:
            DataError: says how many there are, and nothing else about them.
        """
        if common < self.least:
            raise DataError(
                f"An alignment finds at least {self.least} rows that all silos hold",
                common,
                "Do all silos name the same identifier columns, in the same order, and write identifiers alike?",
            )


@dataclass(frozen=True, slots=True)
class Matched(Struct):
    """What is reported of one silo: ``rows`` = ``duplicated`` + ``empty`` + ``unmatched`` + ``common``.

    Attributes:
        rows: all rows of its table.
        duplicated: rows whose identifier is that of another row too; all of them are left out.
        empty: rows without an identifier, or with a part of it missing.
        unmatched: rows that some other silo does not hold, or has left out.
        common: rows that all silos hold.
    """

    rows: int
    duplicated: int
    empty: int
    unmatched: int
    common: int


# What is said, in talking order.


@dataclass(frozen=True, slots=True)
class Prepare(Message):
    """Tag your rows. The answer is `Pseudonyms`; or, with PSI, `Query` from the leader, `Encrypted` from the others."""

    config: AlignConfig


@dataclass(frozen=True, slots=True)
class Pseudonyms(Message):
    """The tags of my rows."""

    release: ClassVar[Release] = Release.PSEUDONYMS
    tags: bytes


@dataclass(frozen=True, slots=True)
class Encrypted(Message):
    """My tags, encrypted with my key, sealed for the leader."""

    release: ClassVar[Release] = Release.SEALED
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class Query(Message):
    """The leader: those of my tags that I still ask about, encrypted with my key, sealed for the next silo."""

    release: ClassVar[Release] = Release.SEALED
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class Answer(Message):
    """To the next silo: encrypt what the leader has encrypted."""

    release: ClassVar[Release] = Release.SEALED
    query: Envelope


@dataclass(frozen=True, slots=True)
class Answered(Message):
    """The leader's tags, encrypted with its key and mine, sealed for the leader."""

    release: ClassVar[Release] = Release.SEALED
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class Narrow(Message):
    """To the leader: find what you have in common, and ask the next silo about it, or tell all."""

    release: ClassVar[Release] = Release.SEALED
    encrypted: Envelope
    answered: Envelope


@dataclass(frozen=True, slots=True)
class Common(Message):
    """The leader: the tags of the rows that all hold, sealed for each other silo."""

    release: ClassVar[Release] = Release.SEALED
    envelopes: tuple[Envelope, ...]


@dataclass(frozen=True, slots=True)
class PlaceSealed(Message):
    """Put the common rows in order. The leader knows them, and gets no envelope."""

    release: ClassVar[Release] = Release.SEALED
    envelope: Envelope | None


@dataclass(frozen=True, slots=True)
class PlacePseudonyms(Message):
    """Put the rows with these tags in order."""

    release: ClassVar[Release] = Release.PSEUDONYMS
    tags: bytes


@dataclass(frozen=True, slots=True)
class Placed(Message):
    """How many rows of which sort there are, and a proof, for the other silos, of what I have put in which order."""

    release: ClassVar[Release] = Release.COUNTS
    matched: Matched
    proof: bytes


@dataclass(frozen=True, slots=True)
class Confirm(Message):
    """The proofs of all silos, in roster order."""

    proofs: tuple[bytes, ...]
