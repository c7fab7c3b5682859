"""Alignment: silos with different columns of the same people find the rows that all of them hold, in one common order.

Steps, and where they are:

1. The silos agree on two secrets that the coordinator cannot derive (`privacy.agreement`): a fresh one, which keys the
   rows' tags, and a lasting one for the order. A tag is the HMAC-SHA256 of an identifier, `TAG` bytes; several tags are
   concatenated, sorted.
2. They find the tags that all hold, by one of two methods (`AlignConfig.method`):

   * "psi": the first silo of the roster, the leader, runs private set intersection with one silo after the other
     (`_narrow_down`, `intersection`), each time on the rows that all silos so far hold. It then sends the result to
     all. Messages between silos are sealed.
   * "keyed-hash": each silo sends its tags, sorted; the coordinator compares them (`match`).

3. Each silo puts the common rows in the order of a second keyed hash of their identifiers (`Aligner`), and proves that
   order to all others; only then does `Aligner.rows` hold these rows.

Rows whose identifier is empty, or occurs twice in their silo, are left out and counted.

Who learns what:

* every silo: which of its rows all silos hold. That is the result, and no method hides it.
* the coordinator: the counts in `Matched` of each silo. With "psi" also, from the lengths of messages, how many rows
  the first two silos have in common, the first three, and so on. With "keyed-hash" also a pseudonym of each row with a
  unique identifier: which silos hold the same row, and how many rows any of them share; new pseudonyms in each
  alignment. It never learns the order.
* the leader, with "psi": which of its rows the second silo holds, which of these the third, and so on; and how many
  usable rows each silo has. It learns nothing else about rows that it does not hold.
* the other silos, with "psi": from the length of what they answer, how many rows the leader asks about.

Threat model: private set intersection is secure against semi-honest parties, which follow the protocol but try to infer
more from what they see (decisional Diffie-Hellman on P-256, in the random oracle model). Nothing keeps a silo from
making up identifiers to learn whether all the others hold them; or a leader, whether the second silo does. A
coordinator that alters, repeats or mixes up sealed messages is detected. With "keyed-hash" the coordinator must also
not collude with any silo: see `AlignConfig`. A coordinator that makes up results is detected there too, by a silo that
does not hold a row, or by the proofs; one that leaves out common rows is not, nor is a leader that does.

The order is secret but lasting: it is a function of the silos' private keys, the seed and the identifiers, so that a
run can be repeated. Rows that are common again in another run of the same silos and seed come in the same order again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar

from silosynth.core.conversation import Conversation, Exchange, Progress, Replies
from silosynth.core.errors import DataError, ProtocolError
from silosynth.core.messages import Message, Release, Struct, check_positive
from silosynth.core.roster import Roster
from silosynth.privacy.agreement import agree
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
class TagRows(Message):
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
class ConfirmOrder(Message):
    """The proofs of all silos, in roster order."""

    proofs: tuple[bytes, ...]


M = TypeVar("M", bound=Message)
STAGE = "aligning rows"
_VERSIONS = "Both must run the same version."


def align(roster: Roster, config: AlignConfig) -> Conversation[dict[str, Matched]]:
    """The coordinator's side; returns what is reported of each silo. See `Aligner` for the silos'.

    Raises:
        DataError: too few rows can be linked, or are common.
        ProtocolError: a silo gave an answer of another kind; or silos do not agree.
        UnavailableError: a silo needs openmined-psi, which it has not installed.
    """
    steps = 3 + (len(roster) - 1 if config.method == "psi" else 0)
    yield Progress(STAGE, 0, steps)
    yield from agree(roster, TAGS)
    yield from agree(roster, ORDER, fresh=False)
    yield Progress(STAGE, 1, steps)
    prepared = yield roster.everyone(TagRows(config))
    yield Progress(STAGE, 2, steps)
    if config.method == "psi":
        asks = yield from _narrow_down(roster, prepared, steps)
    else:
        common = match({silo: _said(silo, prepared[silo], Pseudonyms).tags for silo in roster})
        config.check(len(common) // TAG)
        asks = dict.fromkeys(roster, PlacePseudonyms(common))
    replies = yield roster.each(asks)
    placed = {silo: _said(silo, replies[silo], Placed) for silo in roster}
    yield roster.everyone(ConfirmOrder(tuple(placed[silo].proof for silo in roster)))
    yield Progress(STAGE, steps, steps)
    return {silo: one.matched for silo, one in placed.items()}


def match(pseudonyms: Mapping[str, bytes]) -> bytes:
    """The tags that all silos sent, sorted.

    Raises:
        ProtocolError: what a silo sent are not tags, or the same one twice.
    """
    sets = []
    for silo, tags in pseudonyms.items():
        held = {tags[at : at + TAG] for at in range(0, len(tags), TAG)}
        if len(held) * TAG != len(tags):
            raise ProtocolError(f"Silo {silo!r} sends tags of {TAG} bytes, each once", len(tags), _VERSIONS)
        sets.append(held)
    return b"".join(sorted(set.intersection(*sets)))


def _narrow_down(roster: Roster, prepared: Replies, steps: int) -> Conversation[dict[str, Message]]:
    """Relay between the leader and one silo after the other; then what each silo is to put in order."""
    leader, *others = roster
    said = prepared[leader]
    for number, other in enumerate(others):
        encrypted = _said(other, prepared[other], Encrypted).envelope
        answered = yield Exchange({other: Answer(_said(leader, said, Query).envelope)})
        envelope = _said(other, answered[other], Answered).envelope
        replies = yield Exchange({leader: Narrow(encrypted, envelope)})
        said = replies[leader]
        yield Progress(STAGE, 3 + number, steps)
    told: dict[str, Envelope] = {envelope.receiver: envelope for envelope in _said(leader, said, Common).envelopes}
    if told.keys() != set(others):
        raise ProtocolError(f"Silo {leader!r} tells the common rows to every other silo", len(told), _VERSIONS)
    return {leader: PlaceSealed(None), **{other: PlaceSealed(told[other]) for other in others}}


def _said(silo: str, reply: Message, kind: type[M]) -> M:
    if not isinstance(reply, kind):
        raise ProtocolError(f"Silo {silo!r} answers with {kind.__name__}", type(reply).__name__, _VERSIONS)
    return reply
