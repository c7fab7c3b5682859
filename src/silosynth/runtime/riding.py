"""Exchanges whose replies nobody reads travel with the next one: fewer round trips, the same messages.

A party answers one message after the other, as it would have; ledgers record each at its own step.
"""

from __future__ import annotations

from dataclasses import replace

from silosynth.core.conversation import Exchange
from silosynth.core.errors import ProtocolError, SilosynthError
from silosynth.core.messages import Done, Message, Several
from silosynth.runtime.link import Reached, Received, named
from silosynth.runtime.wire import decode, encode

Numbered = tuple[int, Exchange]
"""An exchange and its step."""


def together(rider: Numbered, other: Numbered) -> Exchange:
    """Both exchanges at once, within the time of both."""
    (_, first), (_, then) = rider, other
    asks: dict[str, Message] = {party: ask for party, ask in then.asks.items() if party not in first.asks}
    for party in first.asks:
        parts = [(step, encode(exchange.asks[party])) for step, exchange in (rider, other) if party in exchange.asks]
        asks[party] = Several(*zip(*parts, strict=True))
    return replace(then, asks=asks, wait=first.wait or then.wait, times=first.times + then.times)


def apart(rider: Numbered, other: Numbered, joined: Exchange, reached: Reached) -> tuple[Reached, Reached]:
    """What came of each exchange.

    Raises:
        ProtocolError: a party did not answer each ask.
    """
    found: dict[int, dict[str, Received]] = {rider[0]: {}, other[0]: {}}
    for party, came in reached.received.items():
        ask = joined.asks[party]
        if not isinstance(ask, Several):
            found[other[0]][party] = came
            continue
        if not isinstance(came.reply, Several) or came.reply.steps != ask.steps:
            raise ProtocolError(f"Silo {party!r} answers all that it was asked, in turn", type(came.reply).__name__)
        for step, sent, blob in zip(ask.steps, ask.messages, came.reply.messages, strict=True):
            found[step][party] = Received(_message(party, blob), len(sent), len(blob))
    ordered = {party: found[other[0]][party] for party in other[1].asks}
    return Reached(found[rider[0]]), replace(reached, received=ordered)


def check_done(step: int, reached: Reached) -> None:
    """See to it that nobody had more to say to a rider than that it is done.

    Raises:
        ProtocolError: somebody had.
    """
    for party, came in reached.received.items():
        if not isinstance(came.reply, Done):
            raise ProtocolError(f"Silo {party!r} only says that step {step} is done", type(came.reply).__name__)


def _message(party: str, blob: bytes) -> Message:
    try:
        reply = decode(blob)
    except SilosynthError as error:
        raise named(error, f"Silo {party!r}") from error.__cause__
    if not isinstance(reply, Message):
        raise ProtocolError(f"Silo {party!r} answers with a message", type(reply).__name__)
    return reply
