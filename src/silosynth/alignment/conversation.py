"""Alignment: silos with different columns of the same people find the rows that all hold, and one order for them.

Steps, and where they are:

1. The silos agree on two secrets that the coordinator cannot derive (`privacy.agreement`): a fresh one, under which
   rows get tags, and a lasting one for the order. A tag is HMAC-SHA256 of an identifier.
2. They find the tags that all hold, by one of two methods (`AlignConfig.method`):

   * "psi": the first silo of the roster, the leader, compares with one silo after the other by private set intersection
     (`_narrow_down`, `intersection`), each time only what all before hold. It tells the result to all. What silos say
     to each other is sealed.
   * "keyed-hash": each silo sends its tags, sorted; the coordinator compares them (`match`).

3. Each silo puts the common rows in the order of another keyed hash of their identifiers (`Aligner`). Each shows a
   proof of that order to all others; only then `Aligner.rows` says which rows these are.

Rows whose identifier is empty, or occurs twice in their silo, are left out and counted.

Who learns what:

* every silo: which of its rows all silos hold. That is the result, and no method hides it.
* the coordinator: of each silo the numbers in `Matched`. By "psi" besides, from the lengths of messages, how many rows
  the first two silos have in common, the first three, and so on. By "keyed-hash" the pseudonyms of all rows with an
  identifier of their own: which silos hold the same, and how many rows any of them share; new ones in each alignment.
  It never learns the order.
* the leader, by "psi": which of its rows the second silo holds, which of these the third, and so on; and how many
  usable rows each silo has. Of rows that it does not hold itself: nothing else.
* the other silos, by "psi": from the length of what they answer, how many rows the leader asks about.

Against whom: private set intersection is secure against semi-honest parties, those who follow the protocol and think
about what they saw (decisional Diffie-Hellman on P-256, in the random oracle model). Nothing keeps a silo from making
up identifiers and learning whether all the others hold them; or a leader, whether the second does. A coordinator that
alters, repeats or mixes up sealed messages is noticed. By "keyed-hash" the coordinator must also not work together with
any silo: see `AlignConfig`. A coordinator that makes up results is noticed there too, by a silo that does not hold a
row, or by the proofs; one that leaves common rows out is not, nor is a leader that does.

The order is secret but lasting: it is a function of the silos' private keys, the seed and the identifiers, so that a
run repeats. Rows that are common again in another run of the same silos and seed come in the same order again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from silosynth.alignment.messages import (
    ORDER,
    TAG,
    TAGS,
    AlignConfig,
    Answer,
    Answered,
    Common,
    Confirm,
    Encrypted,
    Matched,
    Narrow,
    Placed,
    PlacePseudonyms,
    PlaceSealed,
    Prepare,
    Pseudonyms,
    Query,
)
from silosynth.core.conversation import Conversation, Exchange, Progress, Replies
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Message
from silosynth.core.roster import Roster
from silosynth.privacy.agreement import agree
from silosynth.privacy.sealed import Envelope

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
    prepared = yield roster.everyone(Prepare(config))
    yield Progress(STAGE, 2, steps)
    if config.method == "psi":
        asks = yield from _narrow_down(roster, prepared, steps)
    else:
        common = match({silo: _said(silo, prepared[silo], Pseudonyms).tags for silo in roster})
        config.check(len(common) // TAG)
        asks = dict.fromkeys(roster, PlacePseudonyms(common))
    replies = yield roster.each(asks)
    placed = {silo: _said(silo, replies[silo], Placed) for silo in roster}
    yield roster.everyone(Confirm(tuple(placed[silo].proof for silo in roster)))
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
