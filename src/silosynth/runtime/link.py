"""What every runtime offers to `drive`: ask parties and get their answers. `Remote` is the link over a hub."""

from __future__ import annotations

import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TypeAlias, TypeVar

from silosynth.core.conversation import Exchange
from silosynth.core.errors import CheckpointError, PartyLostError, ProtocolError, SilosynthError, nearest
from silosynth.core.messages import Message, wire_name
from silosynth.core.roster import COORDINATOR, Roster
from silosynth.runtime.frames import ASK, CRASHED, DONE, REFUSED, REPLY, RESTORE, SAVE, Frame
from silosynth.runtime.hub import Gathered, Hub, Lost
from silosynth.runtime.wire import decode, encode

L = TypeVar("L", bound="Link")

Slow: TypeAlias = "Callable[[Mapping[str, str]], None]"
"""Is told who is slow, and why that is said of them; of nobody, if nobody is."""

PARTY_THREADS = 1
"""Torch threads of a party on this machine: the same in every runtime, so that numbers are equal to the last bit.
Silos' networks are small: side by side on one thread each they train faster than in turn on all."""


@dataclass(frozen=True, slots=True)
class Received:
    """A party's reply, with the length of the ask and of the reply in bytes on the wire."""

    reply: Message
    sent: int
    received: int


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Why there is no reply, and the ask's length in bytes on the wire; 0 if it was not sent to who was lost before."""

    sent: int
    reason: str


@dataclass(frozen=True, slots=True)
class Late:
    """A reply that came after the conversation had gone on without it: who sent it, to which step, and its length."""

    party: str
    step: int
    reply: Message
    received: int


@dataclass(frozen=True, slots=True)
class Reached:
    """What came of an exchange that goes on without those that are lost.

    Attributes:
        received: replies, in the order of the asks.
        unanswered: who is lost, or was when the others were asked.
        late: replies to earlier asks. Nobody reads them, but they were sent.
    """

    received: Mapping[str, Received]
    unanswered: Mapping[str, Unanswered] = field(default_factory=dict)
    late: Sequence[Late] = ()


class Link(ABC):
    """The way to the parties. Use it as a context manager; `drive` closes it only when something goes wrong.

    Attributes:
        far: whether an exchange costs time on the way, so that joining two of them saves some.
    """

    far = False

    @abstractmethod
    def begin(self) -> None:
        """A new conversation starts: what parties remember of the last one's steps does not matter any more."""

    @abstractmethod
    def exchange(self, step: int, asks: Mapping[str, Message]) -> Mapping[str, Received]:
        """Ask some parties and wait for all of them; replies come in the order of ``asks``.

        Raises:
            PartyLostError: a party died, failed or missed its time limit; names it, the step and the message type.
            SilosynthError: what a party itself raised, with the party, the step and the message type named.
        """

    def reach(self, step: int, exchange: Exchange, tell: Slow = lambda slow: None) -> Reached:
        """Ask some parties and wait for them as the exchange says. Here none is ever lost.

        Where it says that slow ones are waited for, ``tell`` is told who they are once the others are there.

        Who died stays lost. Who was too slow is not asked again before its answer has come in, which nobody reads.

        Raises:
            PartyLostError: a party failed, or got lost where that may not be; names it, the step and the message type.
            SilosynthError: what a party itself raised, with the party, the step and the message type named.
        """
        return Reached(self.exchange(step, exchange.asks))

    def lost(self) -> Collection[str]:
        """Who is lost now: they died, stayed away or were too slow, and owe an answer."""
        return ()

    @abstractmethod
    def save(self, number: int) -> None:
        """Have every party write its part of checkpoint ``number``.

        Raises:
            PartyLostError: a party is lost; the others have written theirs.
            StorageError: a party could not.
        """

    @abstractmethod
    def restore(self, number: int) -> None:
        """Have every party continue from its part of checkpoint ``number``.

        Raises:
            CheckpointError: a party has no such part, or a damaged one.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of the parties; may be called twice."""

    def __enter__(self: L) -> L:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def encoded(step: int, asks: Mapping[str, Message]) -> dict[str, bytes]:
    """Each ask as bytes; one that goes to everybody is encoded once.

    Raises:
        MessageError: an ask cannot travel.
    """
    done: dict[int, bytes] = {}
    for ask in asks.values():
        if id(ask) not in done:
            try:
                done[id(ask)] = encode(ask)
            except SilosynthError as error:
                raise named(error, f"The coordinator, step {step}, on {type(ask).__name__}") from error.__cause__
    return {party: done[id(ask)] for party, ask in asks.items()}


def named(error: SilosynthError, where: str) -> SilosynthError:
    """The same error, its text led by who raised it and when."""
    error.rule = f"{where}: {error.rule}"
    error.args = (f"{where}: {error}",)
    return error


def at(party: str, step: int, ask: str) -> str:
    """How errors name a place in a conversation."""
    return f"Silo {party!r}, step {step}, on {ask}"


def failed(where: str, reason: str, more: str = "") -> PartyLostError:
    """The error for a party that raised something silosynth did not foresee."""
    remedy = " ".join(filter(None, ("Mend the cause, then resume from the checkpoint.", more)))
    return PartyLostError(f"{where}: a silo answers every message", reason, remedy)


def no_folder(party: str) -> CheckpointError:
    """The error for a checkpoint without a place to keep it."""
    return CheckpointError(f"Silo {party!r} has a folder for its part of a checkpoint", "none", "Name a folder.")


_CONTROL = "control"


class Remote(Link):
    """Parties that talk to ``hub``.

    Args:
        roster: who takes part.
        hub: where they dial in.
        dead: says why a party is known to be dead, or None; what else is known about a lost party's end.
        limit: seconds that parties have for an answer, or to write their part of a checkpoint; None waits as long as
            they live.
    """

    far = True

    def __init__(
        self,
        roster: Roster,
        hub: Hub,
        dead: Callable[[str], str | None] = lambda name: None,
        limit: float | None = None,
    ) -> None:
        self._roster, self._hub, self._dead, self._limit = roster, hub, dead, limit
        self._late: list[Late] = []
        self._job = ""

    def begin(self) -> None:
        """See `Link.begin`."""
        self._job = uuid.uuid4().hex

    def exchange(self, step: int, asks: Mapping[str, Message]) -> Mapping[str, Received]:
        """See `Link.exchange`. One that is merely late is waited for up to the limit, and then asked."""
        return self._exchange(step, Exchange(asks)).received

    def reach(self, step: int, exchange: Exchange, tell: Slow = lambda slow: None) -> Reached:
        """See `Link.reach`."""
        reached = self._exchange(step, exchange, tell)
        late, self._late = self._late, []
        return replace(reached, late=late)

    def lost(self) -> Collection[str]:
        """See `Link.lost`."""
        return self._hub.lost()

    def save(self, number: int) -> None:
        """See `Link.save`."""
        self._control(SAVE, number, self._limit)

    def restore(self, number: int) -> None:
        """See `Link.restore`."""
        self._control(RESTORE, number)

    def close(self) -> None:
        """See `Link.close`."""
        self._hub.stop()

    def last_words(self, party: str) -> str:
        """What is known about a party that failed, as a sentence to add to the error; empty here."""
        return ""

    def _exchange(self, step: int, exchange: Exchange, tell: Slow = lambda slow: None) -> Reached:
        asks = exchange.asks
        for party in asks:
            if party not in self._roster.parties:
                raise ProtocolError(f"Step {step} asks a silo that takes part", party, nearest(party, self._roster))
        blobs = encoded(step, asks)
        frames = {party: Frame(ASK, self._job, step, COORDINATOR, blob) for party, blob in blobs.items()}
        places = {party: at(party, step, wire_name(type(ask))) for party, ask in asks.items()}
        got = self._await(exchange, frames, places, tell)
        received = {
            party: Received(_message(frame, places[party]), len(blobs[party]), len(frame.body))
            for party, frame in got.replies.items()
        }
        unanswered = {
            party: Unanswered(
                len(blobs[party]) if party in got.lost else 0, ". ".join(filter(None, (why, self.last_words(party))))
            )
            for party, why in (got.before | got.lost).items()
        }
        return Reached(received, unanswered)

    def _await(
        self, exchange: Exchange, frames: Mapping[str, Frame], places: Mapping[str, str], tell: Slow
    ) -> Gathered:
        """Gather answers as the exchange says. Gathering again sends nothing again that was sent."""
        limit = None if self._limit is None else exchange.times * self._limit
        got = self._gather(frames, places, limit, exchange.missing or exchange.wait)
        if not exchange.wait:
            return got
        lost = got.before | got.lost
        tell({party: why for party, why in lost.items() if not (self._dead(party) or self._hub.dead(party))})
        return self._gather(frames, places, None, missing=False) if lost else got

    def _control(self, kind: str, number: int, limit: float | None = None) -> None:
        """If one gets lost now, the others are waited for: the conversation may go on with them."""
        frames = {party: Frame(kind, f"{_CONTROL} {kind}", number, COORDINATOR) for party in self._roster}
        places = {party: f"Silo {party!r}, {kind} checkpoint {number}" for party in self._roster}
        got = self._gather(frames, places, limit, missing=not self.lost())
        for party, reason in got.lost.items():
            raise self._loss(places[party], party, reason)
        for party, reply in got.replies.items():
            if reply.kind != DONE:
                raise ProtocolError(f"Silo {party!r} says when a checkpoint is done", reply.kind)

    def _gather(
        self, frames: Mapping[str, Frame], places: Mapping[str, str], limit: float | None, missing: bool
    ) -> Gathered:
        try:
            got = self._hub.gather(frames, self._dead, limit, missing)
        except Lost as lost:
            raise self._loss(places[lost.party], lost.party, lost.reason) from None
        for frame in got.late:
            self._take_late(frame)
        for party, reply in got.replies.items():
            self._check(party, reply, places[party])
        return got

    def _take_late(self, frame: Frame) -> None:
        """Note an answer that nobody waits for any more; what a silo raised is raised all the same."""
        where = f"Silo {frame.sender!r}, late, to step {frame.step}"
        self._check(frame.sender, frame, where)
        if frame.kind == REPLY and frame.job == self._job:
            self._late.append(Late(frame.sender, frame.step, _message(frame, where), len(frame.body)))

    def _check(self, party: str, reply: Frame, where: str) -> None:
        if reply.kind in (REFUSED, CRASHED):  # last words are in a file: it is not read for every reply
            raise_refusal(reply, where, self.last_words(party))

    def _loss(self, where: str, party: str, reason: str) -> PartyLostError:
        remedy = " ".join(filter(None, ("Resume from the checkpoint.", self.last_words(party))))
        error = PartyLostError(f"{where}: a silo lives and answers", reason, remedy)
        error.gone = True
        return error


def raise_refusal(reply: Frame, where: str, more: str = "") -> None:
    """Raise what a party has raised; ``where`` names it and the step, ``more`` is known about its end."""
    if reply.kind == REFUSED:
        raise named(_rebuilt(reply.body), where)
    if reply.kind == CRASHED:
        raise failed(where, reply.body.decode("utf-8", "replace"), more)


def _message(frame: Frame, where: str) -> Message:
    try:
        reply = decode(frame.body)
    except SilosynthError as error:
        raise named(error, where) from error.__cause__
    if not isinstance(reply, Message) or frame.kind != REPLY:
        raise ProtocolError(f"{where}: a silo answers with a message", type(reply).__name__)
    return reply


def _rebuilt(body: bytes) -> SilosynthError:
    """The error that a party raised, from its description."""
    try:
        told = json.loads(body)
        kind = {error.__name__: error for error in _tree(SilosynthError)}.get(told["class"], ProtocolError)
        rule, value, remedy = told["rule"], told["value"], told["remedy"]
        return kind(rule, remedy=remedy) if value is None else kind(rule, value, remedy)
    except (ValueError, KeyError, TypeError, RecursionError):
        return ProtocolError("A silo describes its errors", "something else", "Does it run the same version?")


def _tree(root: type[SilosynthError]) -> Iterator[type[SilosynthError]]:
    yield root
    for kind in root.__subclasses__():
        yield from _tree(kind)
