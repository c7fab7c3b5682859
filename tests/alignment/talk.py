"""Alignments driven by hand, through the form that messages have on the wire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from silosynth.alignment import AlignConfig, Aligner, Matched, align
from silosynth.core.conversation import Exchange, Progress, Roster
from silosynth.core.messages import Message
from silosynth.core.streams import Streams
from silosynth.privacy.sealed import seats
from silosynth.runtime.wire import decode, encode

NAMES = ("bank", "clinic", "shop", "school", "town")
Held = Sequence["bytes | None"]
PSI = AlignConfig()
Meddle = Callable[[str, Message], Message]


def untouched(silo: str, message: Message) -> Message:
    return message


def aligners(held: Sequence[Held], seed: int = 7, keys: int = 7, config: AlignConfig = PSI) -> dict[str, Aligner]:
    """Silos with these identifiers; ``keys`` is what their private keys are made from."""
    made = seats(NAMES[: len(held)], Streams(keys).child("seats"))
    streams = Streams(seed)
    return {name: Aligner(held[i], seat, streams.party(name), config) for i, (name, seat) in enumerate(made.items())}


@dataclass
class Talk:
    """An alignment that has ended: its silos, what is reported, and all that the coordinator sent and received."""

    silos: dict[str, Aligner]
    matched: dict[str, Matched] = field(default_factory=dict)
    asked: list[tuple[str, Message, bytes]] = field(default_factory=list)
    answered: list[tuple[str, Message, bytes]] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)

    def seen(self) -> bytes:
        return b"".join(blob for *_, blob in (*self.asked, *self.answered))

    def received(self, kind: type[Message]) -> list[tuple[str, Message, bytes]]:
        return [one for one in self.answered if type(one[1]) is kind]


def run(silos: dict[str, Aligner], config: AlignConfig, asks: Meddle = untouched, replies: Meddle = untouched) -> Talk:
    """Drive it; ``asks`` and ``replies`` may change what goes each way. Everything crosses borders as bytes."""
    talk = Talk(silos)

    def across(silo: str, message: Message, kept: list[tuple[str, Message, bytes]]) -> Message:
        blob = encode(message)
        kept.append((silo, message, blob))
        return decode(blob)  # type: ignore[return-value]

    conversation, answers = align(Roster(tuple(silos)), config), None
    while True:
        try:
            step = conversation.send(answers)  # type: ignore[arg-type]
        except StopIteration as end:
            talk.matched = end.value
            return talk
        answers = {}
        if isinstance(step, Progress):
            talk.progress.append(step)
            continue
        assert isinstance(step, Exchange)
        for silo, ask in step.asks.items():
            heard = across(silo, asks(silo, ask), talk.asked)
            answers[silo] = replies(silo, across(silo, silos[silo].answer(heard), talk.answered))


def aligned(held: Sequence[Held], method: str = "psi", seed: int = 7, keys: int = 7, least: int = 1) -> Talk:
    config = AlignConfig(method, least)  # type: ignore[arg-type]
    return run(aligners(held, seed, keys, config), config)


def expected(held: Sequence[Held]) -> tuple[set[bytes], list[Matched]]:
    """The oracle: a plain intersection of sets, and the counts of each silo."""
    alone = [{one for one, times in Counter(silo).items() if one is not None and times == 1} for silo in held]
    common = set.intersection(*alone)  # type: ignore[arg-type]
    counts = []
    for silo, single in zip(held, alone, strict=True):
        empty = sum(one is None for one in silo)
        duplicated = sum(one is not None and one not in single for one in silo)
        counts.append(Matched(len(silo), duplicated, empty, len(single) - len(common), len(common)))
    return common, counts  # type: ignore[return-value]


def in_order(silos: Mapping[str, Aligner], held: Sequence[Held]) -> list[list[bytes | None]]:
    """Each silo's identifiers in the common order."""
    return [[own[row] for row in silo.rows.tolist()] for silo, own in zip(silos.values(), held, strict=True)]


def people(numbers: Sequence[int]) -> list[bytes | None]:
    return [b"person number %d" % number for number in numbers]
