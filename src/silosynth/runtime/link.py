"""What every runtime offers to `drive`: ask parties and get their answers. `Remote` is the link over a hub.

`Worker` is a thread in which a party computes and which can be interrupted. `concurrent.futures` cannot interrupt a
call: after Ctrl-C the interpreter would wait until every silo has finished.
"""

from __future__ import annotations

import ctypes
import json
import queue
import signal
import sys
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeAlias, TypeVar

import torch

from silosynth.core.conversation import COORDINATOR, Exchange, Roster
from silosynth.core.errors import CheckpointError, ConfigError, PartyLostError, ProtocolError, SilosynthError, nearest
from silosynth.core.messages import Message, wire_name
from silosynth.core.threads import computing_on
from silosynth.runtime.hub import ASK, CRASHED, DONE, REFUSED, REPLY, RESTORE, SAVE, Frame, Gathered, Hub, Lost
from silosynth.runtime.wire import decode, encode

L = TypeVar("L", bound="Link")

TellSlow: TypeAlias = "Callable[[Mapping[str, str]], None]"
"""Called with {party: reason} for parties that are waited for; with an empty mapping once none are."""

PARTY_THREADS = 1
"""Torch threads of each party on this machine: the same in every runtime, so that results are equal to the last bit.
Silos' networks are small: they train faster on one thread each than in turn on all threads."""


@dataclass(frozen=True, slots=True)
class Received:
    """A party's reply, with the lengths of the ask and of the reply in bytes on the wire."""

    reply: Message
    sent: int
    received: int


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Why there is no reply, and the ask's length in bytes; 0 if the party was already lost and not asked."""

    sent: int
    reason: str


@dataclass(frozen=True, slots=True)
class Late:
    """A reply that came after the conversation had gone on without it: its sender, step and length in bytes."""

    party: str
    step: int
    reply: Message
    received: int


@dataclass(frozen=True, slots=True)
class Reached:
    """The result of an exchange that goes on without lost parties.

    Attributes:
        received: replies, in the order of the asks.
        unanswered: parties that are lost, or already were when the others were asked.
        late: replies to earlier asks, for the ledger only.
    """

    received: Mapping[str, Received]
    unanswered: Mapping[str, Unanswered] = field(default_factory=dict)
    late: Sequence[Late] = ()


class Link(ABC):
    """The connection to the parties. Use it as a context manager; `drive` closes it only when something goes wrong.

    Attributes:
        far: whether an exchange has latency, so that joining two exchanges saves time.
    """

    far = False

    @abstractmethod
    def begin(self) -> None:
        """A new conversation starts: parties' memory of the last one's steps no longer applies."""

    @abstractmethod
    def exchange(self, step: int, asks: Mapping[str, Message]) -> Mapping[str, Received]:
        """Ask some parties and wait for all of them; replies come in the order of ``asks``.

        Raises:
            PartyLostError: a party died, failed or missed its time limit; names it, the step and the message type.
            SilosynthError: what a party itself raised; names the party, the step and the message type.
        """

    def reach(self, step: int, exchange: Exchange, tell: TellSlow = lambda slow: None) -> Reached:
        """Ask some parties and wait for them as the exchange says. In this class none is ever lost.

        If slow parties are waited for, ``tell`` is called with them once the others have answered.

        A party that died stays lost. One that was too slow is not asked again before its late answer, which is
        discarded, has come in.

        Raises:
            PartyLostError: a party failed, or got lost where it must not; names it, the step and the message type.
            SilosynthError: what a party itself raised; names the party, the step and the message type.
        """
        return Reached(self.exchange(step, exchange.asks))

    def lost(self) -> Collection[str]:
        """Parties that are lost now: they died, stayed away or were too slow, and owe an answer."""
        return ()

    @abstractmethod
    def save(self, number: int) -> None:
        """Make every party write its part of checkpoint ``number``.

        Raises:
            PartyLostError: a party is lost; the others have written theirs.
            StorageError: a party could not.
        """

    @abstractmethod
    def restore(self, number: int) -> None:
        """Make every party continue from its part of checkpoint ``number``.

        Raises:
            CheckpointError: a party has no such part, or it is damaged.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of the parties; may be called twice."""

    def __enter__(self: L) -> L:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def encode_asks(step: int, asks: Mapping[str, Message]) -> dict[str, bytes]:
    """Each ask as bytes; an ask that goes to several parties is encoded once.

    Raises:
        MessageError: an ask cannot be encoded.
    """
    blobs: dict[int, bytes] = {}
    for ask in asks.values():
        if id(ask) not in blobs:
            try:
                blobs[id(ask)] = encode(ask)
            except SilosynthError as error:
                raise with_location(
                    error, f"The coordinator, step {step}, on {type(ask).__name__}"
                ) from error.__cause__
    return {party: blobs[id(ask)] for party, ask in asks.items()}


def with_location(error: SilosynthError, where: str) -> SilosynthError:
    """The same error, its text prefixed with who raised it and when."""
    error.prefix(where)
    return error


def location(party: str, step: int, ask: str) -> str:
    """How errors name a point in a conversation."""
    return f"Silo {party!r}, step {step}, on {ask}"


def party_failure(where: str, reason: str, details: str = "") -> PartyLostError:
    """The error for a party that raised an unforeseen exception."""
    remedy = " ".join(filter(None, ("Fix the cause, then resume from the checkpoint.", details)))
    return PartyLostError(f"{where}: a silo answers every message", reason, remedy)


def missing_folder(party: str) -> CheckpointError:
    """The error for a checkpoint without a folder to keep it in."""
    return CheckpointError(f"Silo {party!r} has a folder for its part of a checkpoint", "none", "Name a folder.")


_CONTROL = "control"


class Remote(Link):
    """Parties that talk to ``hub``.

    Args:
        roster: who takes part.
        hub: where they dial in.
        dead: why a party is known to be dead, or None.
        limit: seconds that parties have to answer, or to write their part of a checkpoint; None waits as long as
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
        """See `Link.exchange`. A party that is merely late is waited for up to the limit, and then asked."""
        return self._exchange(step, Exchange(asks)).received

    def reach(self, step: int, exchange: Exchange, tell: TellSlow = lambda slow: None) -> Reached:
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
        """What is known about a failed party's end, as a sentence to add to the error; empty in this class."""
        return ""

    def _exchange(self, step: int, exchange: Exchange, tell: TellSlow = lambda slow: None) -> Reached:
        asks = exchange.asks
        for party in asks:
            if party not in self._roster.parties:
                raise ProtocolError(f"Step {step} asks a silo that takes part", party, nearest(party, self._roster))
        blobs = encode_asks(step, asks)
        frames = {party: Frame(ASK, self._job, step, COORDINATOR, blob) for party, blob in blobs.items()}
        places = {party: location(party, step, wire_name(type(ask))) for party, ask in asks.items()}
        gathered = self._await(exchange, frames, places, tell)
        received = {
            party: Received(decode_reply(frame.body, places[party], frame.kind), len(blobs[party]), len(frame.body))
            for party, frame in gathered.replies.items()
        }
        unanswered = {
            party: Unanswered(
                len(blobs[party]) if party in gathered.lost else 0,
                ". ".join(filter(None, (why, self.last_words(party)))),
            )
            for party, why in (gathered.before | gathered.lost).items()
        }
        return Reached(received, unanswered)

    def _await(
        self, exchange: Exchange, frames: Mapping[str, Frame], places: Mapping[str, str], tell: TellSlow
    ) -> Gathered:
        """Gather answers as the exchange says. Gathering a second time resends nothing."""
        limit = None if self._limit is None else exchange.times * self._limit
        gathered = self._gather(frames, places, limit, exchange.missing or exchange.wait)
        if not exchange.wait:
            return gathered
        lost = gathered.before | gathered.lost
        tell({party: why for party, why in lost.items() if not (self._dead(party) or self._hub.dead(party))})
        return self._gather(frames, places, None, missing=False) if lost else gathered

    def _control(self, kind: str, number: int, limit: float | None = None) -> None:
        """If a party gets lost now, the others are still waited for: the conversation may go on with them."""
        frames = {party: Frame(kind, f"{_CONTROL} {kind}", number, COORDINATOR) for party in self._roster}
        places = {party: f"Silo {party!r}, {kind} checkpoint {number}" for party in self._roster}
        gathered = self._gather(frames, places, limit, missing=not self.lost())
        for party, reason in gathered.lost.items():
            raise self._loss(places[party], party, reason)
        for party, reply in gathered.replies.items():
            if reply.kind != DONE:
                raise ProtocolError(f"Silo {party!r} confirms that a checkpoint is done", reply.kind)

    def _gather(
        self, frames: Mapping[str, Frame], places: Mapping[str, str], limit: float | None, missing: bool
    ) -> Gathered:
        try:
            gathered = self._hub.gather(frames, self._dead, limit, missing)
        except Lost as lost:
            raise self._loss(places[lost.party], lost.party, lost.reason) from None
        for frame in gathered.late:
            self._take_late(frame)
        for party, reply in gathered.replies.items():
            self._check(party, reply, places[party])
        return gathered

    def _take_late(self, frame: Frame) -> None:
        """Note an answer that nobody waits for any more; an error that a silo raised is raised all the same."""
        where = f"Silo {frame.sender!r}, late, to step {frame.step}"
        self._check(frame.sender, frame, where)
        if frame.kind == REPLY and frame.job == self._job:
            self._late.append(Late(frame.sender, frame.step, decode_reply(frame.body, where), len(frame.body)))

    def _check(self, party: str, reply: Frame, where: str) -> None:
        if reply.kind in (REFUSED, CRASHED):  # last words are read from a file: not for every reply
            raise_if_failed(reply, where, self.last_words(party))

    def _loss(self, where: str, party: str, reason: str) -> PartyLostError:
        remedy = " ".join(filter(None, ("Resume from the checkpoint.", self.last_words(party))))
        error = PartyLostError(f"{where}: a silo is alive and answers", reason, remedy)
        error.gone = True
        return error


def raise_if_failed(reply: Frame, where: str, details: str = "") -> None:
    """Raise what a party has raised. ``where`` names it and the step; ``details`` say more about its end."""
    if reply.kind == REFUSED:
        raise with_location(_rebuilt(reply.body), where)
    if reply.kind == CRASHED:
        raise party_failure(where, reply.body.decode("utf-8", "replace"), details)


def decode_reply(blob: bytes, where: str, kind: str = REPLY) -> Message:
    """The message that a party replied with; ``where`` names the party, and ``kind`` is that of its frame.

    Raises:
        MessageError: it cannot be decoded.
        ProtocolError: it is not a message, or not a reply.
    """
    try:
        reply = decode(blob)
    except SilosynthError as error:
        raise with_location(error, where) from error.__cause__
    if not isinstance(reply, Message) or kind != REPLY:
        raise ProtocolError(f"{where}: a silo answers with a message", type(reply).__name__)
    return reply


def _rebuilt(body: bytes) -> SilosynthError:
    """The error that a party raised, from its description."""
    try:
        fields = json.loads(body)
        kind = {error.__name__: error for error in _subclasses(SilosynthError)}.get(fields["class"], ProtocolError)
        rule, value, remedy = fields["rule"], fields["value"], fields["remedy"]
        return kind(rule, remedy=remedy) if value is None else kind(rule, value, remedy)
    except (ValueError, KeyError, TypeError, RecursionError):
        return ProtocolError("A silo describes its errors", "something else", "Does it run the same version?")


def _subclasses(root: type[SilosynthError]) -> Iterator[type[SilosynthError]]:
    yield root
    for kind in root.__subclasses__():
        yield from _subclasses(kind)


T = TypeVar("T")
_WAIT = 0.5  # seconds; some systems deliver Ctrl-C only between two waits, and an interrupt may have to be repeated
_PATIENCE = 5.0  # seconds for a computation to notice that it was interrupted


def exit_name(code: int) -> str:
    """How a process ended: by an exit code, or by a signal."""
    try:
        return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def resolve_device(name: str) -> torch.device:
    """The device called ``name``; "auto" takes CUDA where there is one.

    Raises:
        ConfigError: no such device on this machine.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cpu" or (name.split(":")[0] == "cuda" and torch.cuda.is_available()):
        return torch.device(name)
    raise ConfigError("The device is auto, cpu or cuda, and must exist on this machine", name, "Use device='auto'.")


class Stopped(BaseException):
    """Raised in a computation that nobody waits for any more."""


class PendingResult(Generic[T]):
    """A call that a worker is to make, and later its outcome."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work: Callable[[], T] | None = work
        self._done = threading.Lock()  # held until there is an outcome; an Event is several times slower
        self._done.acquire()
        self._value: T | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Make the call."""
        work, self._work = self._work, None
        assert work is not None
        try:
            self._value = work()
        except BaseException as error:  # raised again by `result`
            self.error = error
            if isinstance(error, Stopped):
                raise
        finally:
            self._done.release()

    def result(self) -> T:
        """Wait for the outcome; raises what the call raised. To be called once."""
        while not self._done.acquire(timeout=_WAIT):
            pass
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[return-value]


def run_here(work: Callable[..., T], *args: Any) -> PendingResult[T]:
    """Run ``work`` in this thread, with a worker's settings for gradients and threads. Ctrl-C is raised at once."""
    pending = PendingResult(lambda: work(*args))
    with computing_on(PARTY_THREADS), torch.inference_mode(False), torch.enable_grad():
        pending.run()
    if pending.error is not None and not isinstance(pending.error, Exception):
        raise pending.error
    return pending


class Worker(threading.Thread):
    """One thread that makes one call after the other, with `PARTY_THREADS` torch threads. Starts when needed.

    It keeps no finished call: an error's traceback would keep all local variables alive.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name=f"silosynth-{name}", daemon=True)
        self._inbox: queue.SimpleQueue[PendingResult[Any] | None] = queue.SimpleQueue()
        self._busy = self._stopping = False

    def do(self, work: Callable[..., T], *args: Any) -> PendingResult[T]:
        """Run ``work`` in the thread; its outcome is in the returned `PendingResult`."""
        if self.ident is None:
            self.start()
        pending = PendingResult(lambda: work(*args))
        self._inbox.put(pending)
        return pending

    def run(self) -> None:
        """The thread's main loop."""
        try:
            torch.get_num_threads()  # or this thread would take its number from whichever thread set one last
            torch.set_num_threads(PARTY_THREADS)
            while (pending := self._inbox.get()) is not None and not self._stopping:
                self._busy = True
                pending.run()
                self._busy = False
                del pending
        except Stopped:
            pass

    def stop(self) -> None:
        """Interrupt the current call at its next step in Python; do not wait."""
        self._stopping = True
        self._inbox.put(None)
        if self._busy and self.is_alive():
            identity = ctypes.c_ulong(self.ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, ctypes.py_object(Stopped))


def stop_workers(workers: Iterable[Worker]) -> None:
    """Stop all workers; those that have stopped are left alone.

    Python swallows, and reports, what is raised in the finaliser of an object or of a weak reference: an interrupt
    that comes then is lost, which is no error, and the call is interrupted again.
    """
    waited_for = [worker for worker in workers if worker is not threading.current_thread()]
    end = time.monotonic() + _PATIENCE
    with _interrupts_unreported():
        while True:
            for worker in waited_for:
                worker.stop()
            for worker in waited_for:
                if worker.ident is not None:
                    worker.join(_WAIT)
            waited_for = [worker for worker in waited_for if worker.is_alive()]
            if not waited_for or time.monotonic() > end:
                return


@contextmanager
def _interrupts_unreported() -> Iterator[None]:
    """A `Stopped` that Python swallows is not reported."""
    before = sys.unraisablehook
    sys.unraisablehook = lambda ignored: None if ignored.exc_type is Stopped else before(ignored)
    try:
        yield
    finally:
        sys.unraisablehook = before
