"""Coordinators that deviate at random from a job that one real silo takes part in, behind its desk and its policy.

An honest coordinator conducts a tiny job with two silos. Before the message at which a deviating one parts from it,
this process is copied; in the copy the silo is sent, in any order, the job's next messages, earlier ones again, any of
them with changed fields, messages of any type with random contents, and is restored from any of its checkpoints. The
copy writes into folders of its own, may take so much memory and no more, and says what it saw through a pipe.
"""

from __future__ import annotations

import itertools
import os
import random
import resource
import shutil
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from tests.attacked.asks import changed, shown
from tests.contracts import settings
from tests.deployment.common import Rows, job, seated
from tests.fuzz.damage import KINDS, example

from silosynth.core import conversation
from silosynth.core.conversation import Checkpoint, Exchange
from silosynth.core.errors import SilosynthError
from silosynth.core.messages import Message, Release, wire_name
from silosynth.core.rules import Rule, read_rules
from silosynth.core.streams import Streams
from silosynth.counting import CountedColumn
from silosynth.deployment import conducting, protocol
from silosynth.deployment.policy import Releases, SiloPolicy
from silosynth.deployment.silo import DeploymentSilo
from silosynth.privacy.accounting import DELTA, spent
from silosynth.privacy.events import Event
from silosynth.runtime.wire import decode, encode, pack, unpack
from silosynth.simulation.training import with_groups

TARGET = "bank"
SETS = ((0, 1), (0, 2), (1, 2), (3, 2), (0,))
COUNTED = (
    CountedColumn("", "age", edges=(30, 50)), CountedColumn("", "city", ("Delft", "Bern"), others=True),
    CountedColumn("", "member", (False, True)), CountedColumn("", "spent", edges=(100.0,)),
)  # fmt: skip
JUDGE = {
    "judge": {"columns": COUNTED, "sets": SETS, "opening": "exact"},
    "judge figures": {
        "columns": COUNTED,
        "sets": SETS,
        "opening": "figures",
        "references": tuple(torch.ones([COUNTED[k].size for k in places], dtype=torch.int64) for places in SETS),
    },
    "appraise": {"dp": {"epsilon": 4.0, "delta": 1e-5}, "most_rows": 200},
    "judge private": {"columns": COUNTED, "sets": SETS, "dp": {"epsilon": 4.0, "delta": 1e-5}, "most_rows": 200},
}
OPTIONS: dict[str, dict[str, Any]] = settings.TINY | JUDGE | {"dplt private": settings.TINY["dplt"] | settings.PRIVATE}
MOST_MESSAGES, SPARE = 16, 3 << 29  # messages after the first deviation; bytes of memory beyond what is in use
SUMMED = ("privacy.Revealed", "algorithms.marginals.NoisedNames")  # of sums, whose cells are noised and listed
HARMLESS = (Release.NOTHING, Release.SCHEMA, Release.SEALED, Release.NOISED)


OPEN = SiloPolicy(least_rows=10, require_alignment=False, min_count=1, share_decoders=True, rules="all")
CPU = torch.device("cpu")
R = TypeVar("R")


class Attacked:
    """The silo under attack, with all that the coordinator has sent it and got from it."""

    def __init__(self, silo: DeploymentSilo, policy: SiloPolicy) -> None:
        self.silo, self.policy = silo, policy
        self.asked: list[Message] = []
        self.replies: dict[bytes, Message] = {}
        self.stored: list[bytes] = []
        self._before = self._recorded  # in earlier jobs, by an earlier policy

    def send(self, ask: Message) -> Message:
        """Send an ask as it crosses the border, and look at the reply and at what is charged for it."""
        self.asked.append(ask)
        reply = self.silo.answer(across(ask))
        self.replies[encode(reply)] = reply
        self._look(reply)
        return across(reply)

    def store(self) -> None:
        """What the silo stores with a checkpoint."""
        self.stored.append(pack(self.silo.state()))

    def restore(self, which: int) -> None:
        """Start the silo's process anew from one of its checkpoints."""
        old = self.silo
        releases = Releases(old.releases.path.parent)
        self.silo = DeploymentSilo(old.seat, old.rows, old.policy, old.folder, releases, old.device)
        self.silo.restore(unpack(self.stored[which]))

    def move(self, folder: Path) -> None:
        """Go on in a copy of the silo's folders."""
        here = self.silo.folder
        if here.parent.exists():
            shutil.copytree(here.parent, folder)
        self.silo.folder, self.silo.releases = folder / here.name, Releases(folder)

    @property
    def _recorded(self) -> Counter[Event]:
        return Counter(event for released in self.silo.releases.listed() for event in released.events)

    def _look(self, reply: Message) -> None:
        recorded = self._recorded
        owed: Counter[Event] = Counter()
        for other in self.replies.values():
            owed.update(getattr(other, "events", ()))
        assert not owed - (recorded - self._before), f"{type(reply).__name__} is not charged: {owed - recorded}"
        if self.policy.largest_epsilon == float("inf"):
            return
        charged = any(event.scope != "readers" for event in recorded)
        follows = reply.release in (Release.SYNTHETIC, Release.DERIVED) and charged
        summed = wire_name(type(reply)) in SUMMED
        given = f"{type(reply).__name__} gives away {reply.release.value}"
        assert follows or summed or reply.release in HARMLESS, given
        if recorded == self._before:
            return
        own = sum(event.delta * count for event, count in recorded.items())
        total = spent(recorded.elements(), DELTA - own).epsilon if recorded else 0.0
        assert total <= self.policy.largest_epsilon * 1.000001, f"epsilon {total} is spent"


At = Callable[[int, Attacked, Message], None]
"""Called with the number of a message, the silo under attack, and the message."""


def across(message: Message) -> Message:
    """The message as the other side reads it."""
    return decode(encode(message))  # type: ignore[return-value]


def tables(name: str) -> dict[str, Rows]:
    """The silos' rows, with an identifier where they hold the same people."""
    divided = settings.federation(name)
    declared = settings.BOUNDS if "dp" in OPTIONS[name] else {}
    whole, silos = settings.frame(), {}
    for silo in divided.roster:
        if divided.groups:
            number = next(number for number, group in enumerate(divided.groups) if silo in group)
            rows = np.array_split(np.arange(len(whole)), len(divided.groups))[number]
            frame = whole.iloc[rows][list(divided.schemas[silo].names)]
        elif settings.entry_of(name).horizontal:
            frame = whole[:50] if silo == TARGET else whole[50:]
        else:
            frame = whole[list(divided.schemas[silo].names)]
        frame = frame.reset_index(drop=True).assign(number=[f"N-{row}" for row in frame.index])
        bounds = {column: value for column, value in declared.items() if column in frame}
        silos[silo] = Rows(frame, ["number"], bounds)
    return silos


def conversations(name: str, policy: SiloPolicy, folder: Path, at: At) -> int:
    """Conduct an honest job up to its end or first refusal, calling ``at`` before each message to the silo.

    Returns: the number of these messages.
    """
    silos = tables(name)
    sides = sites(name, silos, folder, "trial", policy)
    talk = conducting.conduct(a_job(name, silos), Streams(1), CPU)
    return talked(talk, sides, Attacked(sides[TARGET], policy), at)[0]


def draws(
    name: str, policy: SiloPolicy, folder: Path, at: At, shares: protocol.OtherShares | None = None,
    rules: tuple[Rule, ...] = (), frame: protocol.GivenRows | None = None,
) -> int:  # fmt: skip
    """The same of a job that draws rows under a condition, by this policy, from what a job trained by an open one.

    With ``shares`` groups of rows are drawn, or by ``frame`` in place of the condition. Columns of rows that keep
    ``rules`` stay in their silos.
    """
    silos = tables(name)
    asked, allowed = a_job(name, silos), {"conditions": ["*"], "least_condition_rows": 10, "rules": "all"}
    if rules:
        asked = replace(asked, config=replace(asked.config, synthesis="partitioned"), rules=rules)  # type: ignore[call-arg]
    for turn in range(5):  # tiny models learn rows by heart at times, which silos refuse to decode
        folder = folder / f"trained {turn}"
        sides = sites(name, silos, folder, "trial", OPEN.model_copy(update={**_open(name), **allowed}))
        attacked = Attacked(sides[TARGET], sides[TARGET].policy)
        _, trained = talked(conducting.conduct(asked, Streams(1), CPU), sides, attacked, lambda *_: None)
        if trained is not None:
            break
    assert isinstance(trained, conducting.Outcome)
    policy = policy.model_copy(update=allowed)
    sides = sites(name, silos, folder, "drawn", policy)
    given = () if frame else (protocol.GivenColumn("age", "age=20..75"),)
    asked = replace(asked, name="drawn", drawing=protocol.Drawing("trial", None, given, shares, frame))
    talk = conducting.redraw(asked, trained, Streams(2), CPU)
    return talked(talk, sides, Attacked(sides[TARGET], policy), at)[0]


PAIRS = [[city, member] for city in ("Delft", "Bern", "Oslo") for member in (False, True)]
APART = ({"kind": "combination", "columns": ["city", "member"], "allowed": PAIRS[1:]},)
KINDS_OF_ROWS = tuple((protocol.GivenColumn("age", f"age=20..{60 + 5 * number}"),) for number in range(4))
WAYS: dict[str, Callable[[str, SiloPolicy, Path, At], int]] = {
    "condition": draws,
    "groups": partial(draws, shares=protocol.OtherShares("city")),
    "framed": partial(draws, frame=protocol.GivenRows(KINDS_OF_ROWS, (0, 1, 2, 3) * 5)),
    "compared": partial(draws, rules=read_rules(APART)),
}
"""Of drawing: with each, the silo is sent messages of other kinds."""


def a_job(name: str, silos: Mapping[str, Rows]) -> protocol.Job:
    """A tiny one."""
    preset = "balanced" if name in JUDGE else "fast"
    options = OPTIONS[name] | ({"horizontal": True} if settings.across_rows(name) else {})
    if name in settings.TINY:
        options = with_groups(options, settings.federation(name))
    algorithm = settings.algorithm_of(name)
    return job(silos, algorithm=algorithm, seed=None, align=None, rows=20, preset=preset, options=options)


def sites(
    name: str, silos: Mapping[str, Rows], folder: Path, job_name: str, policy: SiloPolicy
) -> dict[str, DeploymentSilo]:
    """All silos' sides of a job, of which the one under attack has this policy."""
    chairs, others = seated(silos), OPEN.model_copy(update=_open(name))
    return {
        silo: DeploymentSilo(
            chairs[silo], rows, policy if silo == TARGET else others, folder / silo / job_name, Releases(folder / silo),
            CPU,
        )
        for silo, rows in silos.items()
    }  # fmt: skip


def _open(name: str) -> dict[str, Any]:
    return {"algorithms": [settings.algorithm_of(name)], "open_tables": "exact"}


def talked(
    talk: conversation.Conversation[R], sides: Mapping[str, DeploymentSilo], attacked: Attacked, at: At
) -> tuple[int, R | None]:
    """How many messages the silo under attack is sent, up to the end or the first refusal; and the result, if any."""
    number, replies = 0, None
    try:
        while True:
            step = talk.send(replies)  # type: ignore[arg-type]
            replies = None
            if isinstance(step, Checkpoint):
                attacked.store()
            if isinstance(step, Exchange):
                if TARGET in step.asks:
                    at(number, attacked, step.asks[TARGET])
                    number += 1
                replies = {
                    silo: attacked.send(ask) if silo == TARGET else across(sides[silo].answer(across(ask)))
                    for silo, ask in step.asks.items()
                }
    except StopIteration as end:
        return number, end.value
    except SilosynthError:
        return number, None


def deviate(attacked: Attacked, honest: Message, rng: random.Random) -> str:
    """Send the silo messages until it refuses one, and then some more; the last refusal's class, or "none"."""
    pending, refusal = [honest], "none"
    for _ in range(rng.randint(1, MOST_MESSAGES)):
        try:
            _once(attacked, pending, rng)
        except SilosynthError as error:
            refusal = type(error).__name__
            break
    if refusal != "none":
        _closed(attacked, honest, rng)
    return refusal


def _once(attacked: Attacked, pending: list[Message], rng: random.Random) -> None:
    way, known = rng.random(), [*attacked.asked, *pending]
    if way < 0.25 and attacked.stored:
        attacked.restore(rng.randrange(len(attacked.stored)))
    elif way < 0.4:
        attacked.send(rng.choice(known))
    elif way < 0.6 and (other := changed(rng.choice([*pending, *known]), rng)) is not None:
        attacked.send(other)
    elif way < 0.7:
        kinds = [kind for kind in KINDS.values() if issubclass(kind, Message)]
        if isinstance(other := example(rng.choice(kinds), rng), Message):
            attacked.send(other)
    elif pending:
        attacked.send(pending.pop())


def _closed(attacked: Attacked, honest: Message, rng: random.Random) -> None:
    """Whatever comes after a refusal is refused."""
    for ask in (honest, rng.choice([*attacked.asked, honest]), protocol.KeepPart()):
        try:
            reply = attacked.silo.answer(across(ask))
        except SilosynthError:
            continue
        raise AssertionError(f"after a refusal {type(ask).__name__} is answered by {type(reply).__name__}")


def in_a_copy(work: Callable[[], str]) -> str:
    """What ``work`` returns, or its error with a traceback, in a copy of this process with little memory to spare."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        os.close(reader)
        _carry_out(work, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return said if status == 0 else f"DIED with {status}: {said}"


def _carry_out(work: Callable[[], str], writer: int) -> NoReturn:
    try:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + SPARE, used + SPARE))
        said = work()
    except BaseException:
        said = "BROKEN: " + traceback.format_exc()
    os.write(writer, said[-60_000:].encode())
    os._exit(0)


def attack(
    name: str,
    policy: SiloPolicy,
    count: int,
    folder: Path,
    talks: Callable[[str, SiloPolicy, Path, At], int] = conversations,
) -> Iterator[tuple[int, str, Any]]:
    """``count`` deviating coordinators: for each its seed, and how the silo refused or what broke.

    Each deviates at a place of its own. How long a conversation is may hang on noise, so that a place may not be
    reached: whoever waits for it deviates in another conversation.
    """
    length = talks(name, policy, folder / "before", lambda *_: None)
    heard: dict[int, tuple[int, str, Any]] = {}
    places = {seed: random.Random(f"{name} {seed}") for seed in range(count)}
    for turn in itertools.count():
        if not (left := [seed for seed in places if seed not in heard]):
            break
        seeds: dict[int, list[int]] = {}
        for seed in left:
            seeds.setdefault(places[seed].randrange(length), []).append(seed)

        def at(number: int, attacked: Attacked, honest: Message, seeds: dict[int, list[int]] = seeds) -> None:
            for seed in seeds.get(number, ()):

                def work(seed: int = seed) -> str:
                    attacked.move(folder / f"{seed}")
                    return deviate(attacked, honest, random.Random(f"deviating {name} {seed}"))

                heard[seed] = seed, in_a_copy(work), shown(honest)

        length = talks(name, policy, folder / f"here {turn}", at)
    yield from heard.values()
