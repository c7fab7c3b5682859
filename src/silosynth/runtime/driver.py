"""Drive a conversation over a link: exchanges, ledger, checkpoints, progress, and what to do when something breaks.

Exchanges whose replies nobody reads travel with the next one (`join_exchanges`, `split_result`): fewer round trips, the
same messages. A party answers them in turn as it would have; ledgers record each at its own step.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from silosynth.core.conversation import COORDINATOR, Checkpoint, Conversation, Exchange, Progress, Replies, State, Step
from silosynth.core.errors import CheckpointError, ConfigError, PartyLostError, ProtocolError, StorageError
from silosynth.core.messages import Done, Message, Missing, Several
from silosynth.core.threads import Threads, computing_on
from silosynth.runtime.checkpoint import CheckpointStore, Saved, warn_skipped
from silosynth.runtime.ledger import Ledger, Position
from silosynth.runtime.link import Link, Reached, Received, decode_reply
from silosynth.runtime.wire import encode

R = TypeVar("R")
Start = Callable[["State | None"], Conversation[R]]


def drive(
    start: Start[R],
    link: Link,
    ledger: Ledger,
    store: CheckpointStore | None = None,
    watch: Callable[[Progress], None] | None = None,
    resume: bool = False,
    *,
    seconds: float = 15.0,
    clock: Callable[[], float] = time.monotonic,
    threads: Threads = 1,
) -> R:
    """Drive the conversation that ``start`` begins to its end, and return its result.

    Args:
        start: begins the conversation, from a checkpoint's state or from the beginning (None).
        link: the connection to the parties. Left open on success, so that they can be asked again; closed on error.
        ledger: records every message; closed at the end.
        store: where checkpoints go; None for none. Without ``resume``, checkpoints of an earlier run of the same
            experiment are removed first.
        watch: called with progress.
        resume: continue from the newest usable checkpoint; start over if there is none.
        seconds: minimum time between two checkpoints; 0 stores every one, as those are that say so themselves.
            Resuming from any gives the same bytes.
        clock: a monotonic clock in seconds.
        threads: on which the coordinator computes; with a number other than 1 last bits of results may differ
            (docs/decisions/0006, 0087).

    Raises:
        PartyLostError: a party failed; or it died or was too slow, and the conversation cannot go on without it. The
            last checkpoint stays.
        ConfigError: asked to resume without a store.
        CheckpointError: asked to resume, but checkpoints are damaged or belong to another experiment.
        StorageError: the ledger or a checkpoint cannot be written.
    """
    try:
        if resume and store is None:
            raise ConfigError("Resuming needs a store of checkpoints", None, "Name the folder of the run.")
        link.begin()
        saved = _restore(link, ledger, store) if resume and store is not None else None
        if saved is None:
            if store is not None:
                store.clear()
            ledger.start()
        run = _DrivenRun(link, ledger, store, watch, seconds, clock, saved)
        with computing_on(threads):
            result = run.through(start(saved.state if saved else None))
        ledger.close()
        return result
    except BaseException:  # KeyboardInterrupt as well: children must not outlive the run
        link.close()
        with contextlib.suppress(StorageError):  # the disk is full, which is what is being raised
            ledger.close()
        raise


def _restore(link: Link, ledger: Ledger, store: CheckpointStore) -> Saved | None:
    """Bring parties and ledger back to the newest checkpoint of which every part is usable."""
    failure: CheckpointError | None = None
    for saved in store.committed():
        if failure is not None:
            warn_skipped(failure)
        try:
            link.restore(saved.number)
            ledger.resume(saved.ledger)
        except CheckpointError as error:
            failure = error
        else:
            return saved
    if failure is not None:
        raise failure
    return None


class PartyLostWarning(UserWarning):
    """A silo got lost, is being waited for, or is back; the run goes on."""


def _warn(party: str, step: int, what: str) -> None:
    warnings.warn(f"Silo {party!r}, step {step}: {what}.", PartyLostWarning, stacklevel=4)


class _DrivenRun:
    """One conversation in progress."""

    def __init__(
        self, link: Link, ledger: Ledger, store: CheckpointStore | None, watch: Callable[[Progress], None] | None,
        seconds: float, clock: Callable[[], float], saved: Saved | None,
    ) -> None:  # fmt: skip
        self._link, self._ledger, self._store, self._watch = link, ledger, store, watch
        self._seconds, self._clock, self._stored = seconds, clock, clock()
        self._step, self._number = (saved.step, saved.number) if saved else (0, 0)
        self._away: set[str] = set()  # lost parties that the user was warned about
        self._slow: set[str] = set()  # slow parties that the user was warned about
        self._rider: Numbered | None = None  # an exchange that waits to travel with the next one
        self._forgiving = False  # whether the conversation goes on without lost parties, or waits for slow ones

    def through(self, conversation: Conversation[R]) -> R:
        """Drive the conversation to its end."""
        try:
            step = next(conversation)
            while True:
                step = conversation.send(self._do(step))
        except StopIteration as end:
            self._send_rider()
            result: R = end.value
            return result
        finally:
            conversation.close()  # runs the conversation's cleanup if it did not reach its end

    def _do(self, step: Step) -> Replies:
        if isinstance(step, Exchange):
            return self._exchange(step)
        if isinstance(step, Checkpoint):
            self._checkpoint(step)
        elif isinstance(step, Progress):
            if self._watch is not None:
                self._watch(step)
        else:
            raise ProtocolError("A conversation yields Exchange, Checkpoint or Progress", type(step).__name__)
        return {}

    def _exchange(self, exchange: Exchange) -> Replies:
        self._step += 1
        self._forgiving = self._forgiving or exchange.missing or exchange.wait
        if exchange.rides or exchange.missing:
            self._send_rider()
        if exchange.rides:
            self._rider = self._step, exchange
            if not self._link.far or exchange.missing:
                self._send_rider()
            return {}
        if self._rider is None:
            return self._replies(self._step, exchange, self._link.reach(self._step, exchange, self._warn_slow))
        rider, other, self._rider = self._rider, (self._step, exchange), None
        joined = join_exchanges(rider, other)
        reached = self._link.reach(self._step, joined, self._warn_slow)
        first, then = split_result(rider, other, joined, reached)
        _check_done(rider[0], first)
        self._record(*rider, first)
        return self._replies(self._step, exchange, then)

    def _send_rider(self) -> None:
        """Send the waiting exchange on its own."""
        if self._rider is not None:
            (step, exchange), self._rider = self._rider, None
            reached = self._link.reach(step, exchange, self._warn_slow)
            _check_done(step, reached)
            self._replies(step, exchange, reached)

    def _replies(self, step: int, exchange: Exchange, reached: Reached) -> Replies:
        self._record(step, exchange, reached)
        self._warn_lost(reached)
        return {party: received.reply for party, received in reached.received.items()}

    def _record(self, step: int, exchange: Exchange, reached: Reached) -> None:
        """Record each message that was sent; `Missing` in place of a reply that did not come."""
        for late in reached.late:
            self._ledger.add(late.step, late.party, COORDINATOR, late.reply, late.received)
        for party, ask in exchange.asks.items():
            if party in reached.received:
                received = reached.received[party]
                self._ledger.add(step, COORDINATOR, party, ask, received.sent)
                self._ledger.add(step, party, COORDINATOR, received.reply, received.received)
            elif sent := reached.unanswered[party].sent:
                self._ledger.add(step, COORDINATOR, party, ask, sent)
                self._ledger.add(step, party, COORDINATOR, Missing(), 0)

    def _warn_lost(self, reached: Reached) -> None:
        """Warn the user, once each, of parties that are lost and that take part again."""
        for party, unanswered in reached.unanswered.items():
            if party not in self._away:
                without = "The run goes on without it, and writes no checkpoint meanwhile"
                _warn(party, self._step, f"{unanswered.reason}. {without}")
        for party in self._away & reached.received.keys():
            _warn(party, self._step, "it is back, and takes part again")
        self._away = (self._away - reached.received.keys()) | reached.unanswered.keys()

    def _warn_slow(self, slow: Mapping[str, str]) -> None:
        """Warn the user of slow parties that are waited for: once each, until they answer in time."""
        for party in slow.keys() - self._slow:
            _warn(party, self._step, f"{slow[party]}. The run waits for it as long as it lives")
        self._slow = set(slow)

    def _checkpoint(self, checkpoint: Checkpoint) -> None:
        if self._store is None or self._link.lost():
            return
        if self._clock() - self._stored < self._seconds and not checkpoint.always:
            return
        self._send_rider()
        position: Position = self._ledger.flush()
        try:
            self._link.save(self._number + 1)
        except PartyLostError as error:
            if not (error.gone and self._forgiving):
                raise  # rather than compute on, perhaps for hours, towards an exchange that cannot be
            return  # the next exchange shows whether the conversation can go on without it
        self._store.commit(Saved(self._number + 1, self._step, position, checkpoint.state))
        self._number += 1
        self._stored = self._clock()


# Exchanges that travel together.

Numbered = tuple[int, Exchange]
"""An exchange and its step."""


def join_exchanges(rider: Numbered, other: Numbered) -> Exchange:
    """Both exchanges as one, with the time limits of both added."""
    (_, first), (_, then) = rider, other
    asks: dict[str, Message] = {party: ask for party, ask in then.asks.items() if party not in first.asks}
    for party in first.asks:
        parts = [(step, encode(exchange.asks[party])) for step, exchange in (rider, other) if party in exchange.asks]
        asks[party] = Several(*zip(*parts, strict=True))
    return replace(then, asks=asks, wait=first.wait or then.wait, times=first.times + then.times)


def split_result(rider: Numbered, other: Numbered, joined: Exchange, reached: Reached) -> tuple[Reached, Reached]:
    """The result of each exchange.

    Raises:
        ProtocolError: a party did not answer every ask.
    """
    replies: dict[int, dict[str, Received]] = {rider[0]: {}, other[0]: {}}
    for party, received in reached.received.items():
        ask = joined.asks[party]
        if not isinstance(ask, Several):
            replies[other[0]][party] = received
            continue
        if not isinstance(received.reply, Several) or received.reply.steps != ask.steps:
            raise ProtocolError(f"Silo {party!r} answers every ask, in turn", type(received.reply).__name__)
        for step, sent, blob in zip(ask.steps, ask.messages, received.reply.messages, strict=True):
            replies[step][party] = Received(decode_reply(blob, f"Silo {party!r}"), len(sent), len(blob))
    ordered = {party: replies[other[0]][party] for party in other[1].asks}
    return Reached(replies[rider[0]]), replace(reached, received=ordered)


def _check_done(step: int, reached: Reached) -> None:
    """Check that every reply to a rider is `Done`.

    Raises:
        ProtocolError: one is not.
    """
    for party, received in reached.received.items():
        if not isinstance(received.reply, Done):
            raise ProtocolError(f"Silo {party!r} answers step {step} with Done", type(received.reply).__name__)
