"""A coordinator that sends one real silo asks of any type, shape and content, between those that it owes.

Asks are those of the conversation and random ones, with fields changed: tensors of other shapes and dtypes, not
finite, out of range; numbers that are huge, negative or zero; other words; nothing.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import torch
from tests.contracts import settings
from tests.contracts.transcripts import CPU, Tap
from tests.fuzz.damage import KINDS, example

from silosynth.core.conversation import Party
from silosynth.core.errors import SilosynthError
from silosynth.core.messages import Message, Struct
from silosynth.core.streams import Streams
from silosynth.privacy.sealed import seats
from silosynth.runtime.driver import drive
from silosynth.runtime.ledger import Ledger
from silosynth.simulation.silos import InProcess

NUMBERS = (-1, 0, 1, 2, 7, 2**20, 2**31, 2**40, 2**62, -(2**62))
WORDS = ("", "bank", "shop", "nobody", "é" * 50)


class Meddled(Tap):
    """A silo that is sent up to ``extra`` other asks before each; ``foreign`` holds every error that is not ours."""

    def __init__(self, name: str, party: Party, rng: random.Random, extra: int, foreign: list[str]) -> None:
        super().__init__(name, party, [])
        self.rng, self.extra, self.foreign = rng, extra, foreign
        self.seen: list[Message] = []
        self.answered = self.refused = 0

    def answer(self, ask: Message) -> Message:
        room = type(ask).__module__
        for _ in range(self.rng.randrange(self.extra + 1)):
            other = changed(self.rng.choice([ask, ask, *self.seen]), self.rng)
            if self.rng.random() < 0.1:
                kinds = [kind for kind in KINDS.values() if kind.__module__ == room and issubclass(kind, Message)]
                other = example(self.rng.choice(kinds or [type(ask)]), self.rng)
            if isinstance(other, Message):
                self._try(other)
        self.seen = [*self.seen[-20:], ask]
        return self.party.answer(ask)

    def _try(self, ask: Message) -> None:
        try:
            reply = self.party.answer(ask)
            assert isinstance(reply, Message)
            self.answered += 1
        except SilosynthError:
            self.refused += 1
        except Exception as error:
            self.foreign.append(f"{type(ask).__name__}: {type(error).__name__}: {str(error)[:120]} for {shown(ask)}")


def shown(ask: Message) -> str:
    """Fields, with shapes in place of tensors."""
    return ", ".join(f"{f.name}={_shown(getattr(ask, f.name))}" for f in dataclasses.fields(ask))[:300]


def _shown(value: Any) -> str:
    return f"{tuple(value.shape)} {value.dtype}" if isinstance(value, torch.Tensor) else repr(value)[:60]


def changed(struct: Any, rng: random.Random) -> Any:
    """The struct with one to two fields changed, or None where it refuses to be made so."""
    if not dataclasses.fields(struct):
        return struct
    fields = {field.name: getattr(struct, field.name) for field in dataclasses.fields(struct)}
    for name in rng.sample(list(fields), min(len(fields), rng.choice((1, 1, 2)))):
        fields[name] = _other(fields[name], rng)
    try:
        return type(struct)(**fields)
    except (SilosynthError, TypeError):  # on the wire any error of a struct's own checks is a refusal
        return None


def _other(value: Any, rng: random.Random) -> Any:
    if isinstance(value, torch.Tensor):
        return _other_tensor(value, rng)
    if isinstance(value, Struct):
        return value if (other := changed(value, rng)) is None else other
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((*NUMBERS, value + 1, value - 1))
    if isinstance(value, float):
        return rng.choice((-1.0, 0.0, 1e-300, 1e300, float("inf"), float("nan"), value / 2))
    if isinstance(value, str):
        return rng.choice((*WORDS, value + "x"))
    if isinstance(value, bytes):
        return rng.choice((b"", value[:-1], value + b"\0", bytes(len(value))))
    if isinstance(value, tuple):
        parts = [_other(part, rng) if rng.random() < 0.5 else part for part in value]
        return rng.choice((tuple(parts), value[:-1], value + value[:1], ()))
    return value


def _other_tensor(value: torch.Tensor, rng: random.Random) -> torch.Tensor:
    ways = [
        lambda: value[:0], lambda: value[:1], lambda: value[:-1], lambda: torch.cat([value, value]),
        lambda: value.flatten(), lambda: value[None], lambda: value.sum(), lambda: value.to(torch.float64),
        lambda: value.to(torch.int64), lambda: value.to(torch.bool), lambda: value.half(),
        lambda: torch.full_like(value, float("nan")) if value.is_floating_point() else value - 1000,
        lambda: value * float("inf") if value.is_floating_point() else value + 2**20,
        lambda: value.movedim(0, -1), lambda: torch.zeros(0), lambda: torch.zeros(3, 2, 1),
        lambda: value * 1e30 if value.is_floating_point() else -value, lambda: value[..., :-1],
    ]  # fmt: skip
    try:
        return rng.choice(ways)()
    except (RuntimeError, IndexError, TypeError):  # a scalar has no rows
        return torch.zeros(0)


def meddle(name: str, seed: int, extra: int = 3) -> tuple[list[str], int, int]:
    """Train and synthesise by a setting of `tests.contracts`, with asks thrown in.

    Returns: errors that are not ours, and how many of the asks that were thrown in were answered, and refused.
    """
    rng, entry, divided = random.Random(seed), settings.entry_of(name), settings.federation(name)
    config = entry.configure("fast", settings.TINY[name])
    roster, streams, foreign = divided.roster, Streams(seed), list[str]()
    seated = seats(roster, streams.child("seats"))
    taps = {}
    for silo, table in divided.tables.items():
        party = entry.party(table, divided.schemas[silo], seated[silo], streams.child(silo), CPU, config)
        taps[silo] = Meddled(silo, party, rng, extra, foreign)
    try:
        with InProcess(taps) as link:
            trained = drive(lambda _: entry.coordinate(roster, config, streams.child("c"), CPU), link, Ledger())
            if entry.parts:
                sample = streams.child("sample")
                drive(lambda _: entry.synthesise(roster, config, trained, 40, sample, CPU), link, Ledger())
    except (SilosynthError, RuntimeError):
        pass  # what was thrown in has led a silo astray, and the honest coordinator's arithmetic with it
    return foreign, sum(tap.answered for tap in taps.values()), sum(tap.refused for tap in taps.values())
