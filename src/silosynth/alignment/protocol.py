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
more from what they see (decisional Diffie-Hellman on P-256, in the random oracle model). A silo that makes up
identifiers learns whether all the others hold them; a leader, whether the second silo does. So each silo answers one
query of an alignment, tags its rows and puts them in order once, and compares itself with `QUERIES` times as many
identifiers as it has rows, at most; a deployed silo counts them over all attempts of a job. A
coordinator that alters, repeats or mixes up sealed messages is detected. With "keyed-hash" the coordinator must also
not collude with any silo: see `AlignConfig`. A coordinator that makes up results is detected there too, by a silo that
does not hold a row, or by the proofs; one that leaves out common rows is not, nor is a leader that does.

The order is secret but lasting: it is a function of the silos' private keys, the seed and the identifiers, so that a
run can be repeated. Rows that are common again in another run of the same silos and seed come in the same order again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial, reduce
from typing import Literal

import numpy as np
import numpy.typing as npt

from silosynth.core.conversation import Conversation, Exchange, Progress, Replies, Roster, expect, expect_one
from silosynth.core.errors import DataError, ProtocolError
from silosynth.core.messages import Done, Message, Positive, Release, Struct
from silosynth.privacy.agreement import agree
from silosynth.privacy.sealed import Envelope

TAG = 32  # bytes
QUERIES = 10.0  # identifiers of another silo that one compares itself with, as a multiple of its own rows
TAGS = "alignment: tags"  # purpose of the fresh secret, which keys the tags
ORDER = "alignment: order"  # purpose of the lasting secret, which keys the order of the common rows


class AlignConfig(Struct):
    """All options.

    ``method`` decides who is trusted with what. Both methods need silos that follow the protocol.

    * "psi": the coordinator learns row counts only. The first silo learns which of its rows the second silo holds as
      well, which of these the third holds, and so on.
    * "keyed-hash": much faster, and no silo learns more than the common rows. But **the coordinator is trusted not to
      collude with any silo**: it holds a pseudonym of every row of every silo and sees which silos share it; and anyone
      who knows the silos' secret, as each silo does, can compute the pseudonym of any identifier that can be guessed,
      and so learn which silos hold it. Do not choose it if a silo's organisation runs the coordinator.
    """

    method: Literal["psi", "keyed-hash"] = "psi"
    least: Positive[int] = 1  # fewest common rows; with fewer the alignment fails

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


class Matched(Struct):
    """One silo's counts: ``rows`` = ``duplicated`` + ``empty`` + ``unmatched`` + ``common``.

    Attributes:
        rows: all rows of its table.
        duplicated: rows whose identifier another row has too; all of them are left out.
        empty: rows whose identifier is missing, in whole or in part.
        unmatched: rows that some other silo does not hold, or has left out.
        common: rows that all silos hold.
    """

    rows: int
    duplicated: int
    empty: int
    unmatched: int
    common: int


# Messages, in talking order.


class TagRows(Message, common=True):
    """Tag your rows. The reply: `Pseudonyms`; or, with PSI, `Query` from the leader, `Encrypted` from the others."""


class TagGroupRows(TagRows, common=False):
    """The same, to a group of silos, beside other groups."""


class Pseudonyms(Message, release=Release.PSEUDONYMS):
    """The tags of my rows."""

    tags: bytes


class Encrypted(Message, release=Release.SEALED):
    """My tags, encrypted with my key, sealed for the leader."""

    envelope: Envelope


class Query(Message, release=Release.SEALED):
    """The leader: the tags that I still ask about, encrypted with my key, sealed for the next silo."""

    envelope: Envelope


class Answer(Message, release=Release.SEALED):
    """To the next silo: encrypt the leader's encrypted tags."""

    query: Envelope


class Answered(Message, release=Release.SEALED):
    """The leader's tags, encrypted with its key and mine, sealed for the leader."""

    envelope: Envelope


class Narrow(Message, release=Release.SEALED):
    """To the leader: find the rows in common, and ask the next silo about them, or send them to all."""

    encrypted: Envelope
    answered: Envelope


class Common(Message, release=Release.SEALED):
    """The leader: the tags of the rows that all hold, sealed for each other silo."""

    envelopes: tuple[Envelope, ...]


class PlaceSealed(Message, release=Release.SEALED):
    """Put the common rows in order. The leader knows them, and gets no envelope."""

    envelope: Envelope | None


class PlacePseudonyms(Message, release=Release.PSEUDONYMS):
    """Put the rows with these tags in order."""

    tags: bytes


class Placed(Message, release=Release.COUNTS):
    """My counts, and a proof for the other silos of which rows I put in which order."""

    matched: Matched
    proof: bytes


class ConfirmOrder(Message, common=True):
    """The proofs of all silos, in roster order."""

    proofs: tuple[bytes, ...]


class ConfirmGroupOrder(ConfirmOrder, common=False):
    """The same, to a group of silos."""


STAGE = "aligning rows"
_VERSIONS = "Both must run the same version."


def align(roster: Roster, config: AlignConfig, apart: bool = False) -> Conversation[dict[str, Matched]]:
    """The coordinator's side; returns each silo's counts. See `Aligner` for the silos' side.

    ``apart`` says that the roster is one group of several, each of which links rows of its own.

    Raises:
        DataError: too few rows can be linked, or are common.
        ProtocolError: a silo replied with a message of another type; or silos do not agree.
        UnavailableError: a silo needs openmined-psi, and has not installed it.
    """
    steps = 3 + (len(roster) - 1 if config.method == "psi" else 0)
    yield Progress(STAGE, 0, steps)
    tag, confirm = (TagGroupRows, ConfirmGroupOrder) if apart else (TagRows, ConfirmOrder)
    yield from agree(roster, TAGS, apart=apart)
    yield from agree(roster, ORDER, fresh=False, apart=apart)
    yield Progress(STAGE, 1, steps)
    prepared = yield roster.everyone(tag())
    yield Progress(STAGE, 2, steps)
    if config.method == "psi":
        asks = yield from _narrow_down(roster, prepared, steps)
    else:
        common = match({silo: expect_one(silo, prepared[silo], Pseudonyms).tags for silo in roster})
        config.check(len(common) // TAG)
        asks = dict.fromkeys(roster, PlacePseudonyms(common))
    replies = yield roster.each(asks)
    placed = dict(zip(replies, expect(replies, Placed), strict=True))
    expect((yield roster.everyone(confirm(tuple(placed[silo].proof for silo in roster)))), Done)
    yield Progress(STAGE, steps, steps)
    return {silo: reply.matched for silo, reply in placed.items()}


def match(pseudonyms: Mapping[str, bytes]) -> bytes:
    """The tags that all silos sent, sorted.

    Raises:
        ProtocolError: a silo sent something other than tags, or one twice.
    """
    sets = []
    for silo, tags in pseudonyms.items():
        held = np.unique(split(tags))
        if len(held) * TAG != len(tags):
            raise ProtocolError(f"Silo {silo!r} sends tags of {TAG} bytes, each once", len(tags), _VERSIONS)
        sets.append(held)
    return reduce(partial(np.intersect1d, assume_unique=True), sets).tobytes()


def split(tags: bytes) -> npt.NDArray[np.bytes_]:
    """Tags (n,) of `TAG` bytes each, which lie one after the other, in the order of bytes; without what is left over.

    An array of them takes a third of what as many objects do.
    """
    return np.frombuffer(tags, f"S{TAG}", len(tags) // TAG)


def _narrow_down(roster: Roster, prepared: Replies, steps: int) -> Conversation[dict[str, Message]]:
    """Relay between the leader and one silo after the other; returns what each silo is to put in order."""
    leader, *others = roster
    reply = prepared[leader]
    for number, other in enumerate(others):
        encrypted = expect_one(other, prepared[other], Encrypted).envelope
        answered = yield Exchange({other: Answer(expect_one(leader, reply, Query).envelope)})
        envelope = expect_one(other, answered[other], Answered).envelope
        replies = yield Exchange({leader: Narrow(encrypted, envelope)})
        reply = replies[leader]
        yield Progress(STAGE, 3 + number, steps)
    common: dict[str, Envelope] = {
        envelope.receiver: envelope for envelope in expect_one(leader, reply, Common).envelopes
    }
    if common.keys() != set(others):
        raise ProtocolError(f"Silo {leader!r} sends the common rows to every other silo", len(common), _VERSIONS)
    return {leader: PlaceSealed(None), **{other: PlaceSealed(common[other]) for other in others}}
