"""A link over streams: parties are wherever they dialled in from."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping

from silosynth.core.errors import PartyLostError, ProtocolError, SilosynthError, nearest
from silosynth.core.messages import Message, wire_name
from silosynth.core.roster import COORDINATOR, Roster
from silosynth.runtime.frames import ASK, CRASHED, DONE, REFUSED, REPLY, RESTORE, SAVE, Frame
from silosynth.runtime.link import Link, Received, at, encoded, failed, named
from silosynth.runtime.stream import Hub, Lost
from silosynth.runtime.wire import decode

_CONTROL = "control"


class Remote(Link):
    """Parties that talk to ``hub``.

    Args:
        roster: who takes part.
        hub: where they dial in.
        dead: says why a party is known to be dead, or None; what else is known about a lost party's end.
        limit: seconds that parties have for an answer; None waits as long as they live.
    """

    def __init__(
        self,
        roster: Roster,
        hub: Hub,
        dead: Callable[[str], str | None] = lambda name: None,
        limit: float | None = None,
    ) -> None:
        self._roster, self._hub, self._dead, self._limit = roster, hub, dead, limit
        self._job = ""

    def begin(self) -> None:
        """See `Link.begin`."""
        self._job = uuid.uuid4().hex

    def exchange(self, step: int, asks: Mapping[str, Message]) -> Mapping[str, Received]:
        """See `Link.exchange`."""
        for party in asks:
            if party not in self._roster.parties:
                raise ProtocolError(f"Step {step} asks a silo that takes part", party, nearest(party, self._roster))
        blobs = encoded(step, asks)
        frames = {party: Frame(ASK, self._job, step, COORDINATOR, blob) for party, blob in blobs.items()}
        places = {party: at(party, step, wire_name(type(ask))) for party, ask in asks.items()}
        replies = self._gather(frames, places, self._limit)
        received = {}
        for party in asks:
            try:
                reply = decode(replies[party].body)
            except SilosynthError as error:
                raise named(error, places[party]) from error.__cause__
            if not isinstance(reply, Message) or replies[party].kind != REPLY:
                raise ProtocolError(f"{places[party]}: a silo answers with a message", type(reply).__name__)
            received[party] = Received(reply, len(blobs[party]), len(replies[party].body))
        return received

    def save(self, number: int) -> None:
        """See `Link.save`."""
        self._control(SAVE, number)

    def restore(self, number: int) -> None:
        """See `Link.restore`."""
        self._control(RESTORE, number)

    def close(self) -> None:
        """See `Link.close`."""
        self._hub.stop()

    def last_words(self, party: str) -> str:
        """What is known about a party that failed, as a sentence to add to the error; empty here."""
        return ""

    def _control(self, kind: str, number: int) -> None:
        frames = {party: Frame(kind, f"{_CONTROL} {kind}", number, COORDINATOR) for party in self._roster}
        replies = self._gather(frames, {p: f"Silo {p!r}, {kind} checkpoint {number}" for p in self._roster}, None)
        for party, reply in replies.items():
            if reply.kind != DONE:
                raise ProtocolError(f"Silo {party!r} says when a checkpoint is done", reply.kind)

    def _gather(
        self, frames: Mapping[str, Frame], places: Mapping[str, str], limit: float | None
    ) -> Mapping[str, Frame]:
        try:
            replies = self._hub.gather(frames, self._dead, limit)
        except Lost as lost:
            remedy = " ".join(filter(None, ("Resume from the checkpoint.", self.last_words(lost.party))))
            raise PartyLostError(f"{places[lost.party]}: a silo lives and answers", lost.reason, remedy) from None
        for party, reply in replies.items():
            if reply.kind == REFUSED:
                raise named(_rebuilt(reply.body), places[party])
            if reply.kind == CRASHED:
                raise failed(places[party], reply.body.decode("utf-8", "replace"), self.last_words(party))
        return replies


def _rebuilt(body: bytes) -> SilosynthError:
    """The error that a party raised, from its description."""
    try:
        told = json.loads(body)
        kind = {error.__name__: error for error in _tree(SilosynthError)}.get(told["class"], ProtocolError)
        rule, value, remedy = told["rule"], told["value"], told["remedy"]
        return kind(rule, remedy=remedy) if value is None else kind(rule, value, remedy)
    except (ValueError, KeyError, TypeError):
        return ProtocolError("A silo describes its errors", "something else", "Does it run the same version?")


def _tree(root: type[SilosynthError]) -> Iterator[type[SilosynthError]]:
    yield root
    for kind in root.__subclasses__():
        yield from _tree(kind)
