"""A protocol is a conversation that does no I/O.

The coordinator's side of an algorithm is a generator: it yields an `Exchange` (what it asks the parties of a `Roster`)
and receives their replies; it yields a `Checkpoint` where it is safe to stop, and `Progress` while it computes. A party
is an object that answers messages. A runtime drives both; the algorithm never learns which one. Silos that get lost:
`silosynth.core.lost`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from silosynth.core.conditions import Condition
from silosynth.core.errors import ConfigError, ProtocolError, nearest
from silosynth.core.messages import Done, Message, Release
from silosynth.core.schema import Table, below
from silosynth.core.streams import Digest

State: TypeAlias = dict[str, Any]
"""What can be stored: nested dictionaries and lists whose leaves are tensors, numbers, strings, booleans and None."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """Ask some parties and wait for their replies; the generator receives ``{party: reply}`` in the order of the asks.

    A party is lost if it died or did not reply in time. An error that a party itself raises always ends the
    conversation.

    Attributes:
        asks: the message for each party.
        missing: whether the conversation continues without lost parties; their replies are then left out.
        wait: whether to wait, with a warning, for a party that is late as long as it is alive; it is then not missing.
        times: multiple of the run's time limit that parties have, since some asks take longer than others.
        rides: whether all replies are a mere `Done` that nobody waits for: the asks may then travel with those of the
            next exchange, and the generator receives nothing.
    """

    asks: Mapping[str, Message]
    missing: bool = False
    wait: bool = False
    times: float = 1.0
    rides: bool = False


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A safe point: calling the coordinator again with ``state`` continues from here, to the same bytes.

    Every party stores its own state with it. While a party is lost no checkpoint is written; the last one stays, and
    can be resumed from once all parties are back. One that comes soon after another is passed over, unless it is to be
    written ``always``: where parties could not do again what came before it.
    """

    state: State
    always: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """``done`` of ``total`` units of the stage called ``stage`` are done; with a ``note`` that is told once."""

    stage: str
    done: int
    total: int
    figures: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


class SyntheticColumns(Message, release=Release.SYNTHETIC):
    """Synthetic columns of a silo, on their way to the coordinator."""

    table: Table


R = TypeVar("R")
T = TypeVar("T")
M = TypeVar("M", bound=Message)
N = TypeVar("N", bound=Message)
Step: TypeAlias = "Exchange | Checkpoint | Progress"
Replies: TypeAlias = "Mapping[str, Message]"
Conversation: TypeAlias = Generator[Step, Replies, R]


def expect(replies: Replies, kind: type[M], other: type[N] | None = None) -> list[M | N]:
    """The replies in order, all of type ``kind`` (or ``other``, where two are valid).

    Raises:
        ProtocolError: a silo replied with something else.
    """
    return [expect_one(silo, reply, kind, other) for silo, reply in replies.items()]


def expect_one(silo: str, reply: Message, kind: type[M], other: type[N] | None = None) -> M | N:
    """The reply of one silo, which is of type ``kind`` (or ``other``).

    Raises:
        ProtocolError: it is something else.
    """
    if isinstance(reply, kind) or (other is not None and isinstance(reply, other)):
        return reply
    wanted = kind.__name__ if other is None else f"{kind.__name__} or {other.__name__}"
    raise ProtocolError(
        f"Silo {silo!r} replies with {wanted}",
        type(reply).__name__,
        "Both sides must run the same version of silosynth.",
    )


def check_same_rows(silos: Iterable[str], rows: Iterable[int | bytes]) -> None:
    """Check that silos hold equally many rows, by their counts or by tags that are equal where counts are.

    Raises:
        ProtocolError: they do not; names the counts, but no tags.
    """
    counts = dict(zip(silos, rows, strict=True))
    if len(set(counts.values())) > 1:
        tags = any(isinstance(count, bytes) for count in counts.values())
        raise ProtocolError(
            "Silos must hold the same rows in the same order",
            "different row counts" if tags else counts,
            "Align the silos by an identifier first.",
        )


def check_tensor(what: str, tensor: Tensor, *shape: int | None, below: int | None = None) -> None:
    """Check a tensor that an ask brings: a deviating coordinator may send any.

    Args:
        what: what it is, for the error.
        tensor: what came.
        shape: the length of each dimension; None for any.
        below: that its numbers are whole, at least 0, and below this; None for float32, which is then finite.

    Raises:
        ProtocolError: it is not so; names shape and dtype, and no number.
    """
    sizes = len(tensor.shape) == len(shape) and all(
        size == length or length is None for size, length in zip(tensor.shape, shape, strict=True)
    )
    if below is None:
        fits = sizes and tensor.dtype is torch.float32 and bool(tensor.isfinite().all())
        numbers = "finite float32 numbers"
    else:
        whole = sizes and tensor.dtype in (torch.int32, torch.int64)
        fits = whole and bool(((tensor >= 0) & (tensor < below)).all())
        numbers = f"whole numbers, at least 0 and below {below}"
    if not fits:
        wanted = ", ".join("any" if length is None else str(length) for length in shape)
        raise ProtocolError(f"{what}: {numbers}, of shape ({wanted})", f"{tuple(tensor.shape)}, {tensor.dtype}")


def check_place(what: str, place: int, places: int) -> None:
    """Check a number from an ask: at least 0, and below ``places``.

    Raises:
        ProtocolError: it is not so.
    """
    if not 0 <= place < places:
        raise ProtocolError(f"{what} is at least 0 and below {places}", place)


def side_by_side(talks: Sequence[Conversation[R]]) -> Conversation[list[R]]:
    """Hold several conversations at the same time, each with parties of its own and without checkpoints; their results.

    Progress is that of the first that has not ended.
    """
    results: dict[int, R] = {}
    heard: dict[int, Replies | None] = dict.fromkeys(range(len(talks)))
    while heard:
        asked = dict[int, Exchange]()
        for place, replies in heard.items():
            try:
                step = talks[place].send(replies)  # type: ignore[arg-type]  # at first, and after what rides, none
                while isinstance(step, Progress):
                    if place == min(heard):
                        yield step
                    step = next(talks[place])
                assert isinstance(step, Exchange)
                asked[place] = step
            except StopIteration as end:
                results[place] = end.value
        heard = yield from _together(asked)
    return [results[place] for place in range(len(talks))]


def _together(asked: Mapping[int, Exchange]) -> Conversation[dict[int, Replies | None]]:
    """The replies to several exchanges, of which those of one kind are made at once."""
    kinds: dict[tuple[bool, bool, float, bool], list[int]] = {}
    found: dict[int, Replies | None] = {}
    for place, one in asked.items():
        kinds.setdefault((one.missing, one.wait, one.times, one.rides), []).append(place)
    for places in kinds.values():
        every = {party: ask for place in places for party, ask in asked[place].asks.items()}
        replies = yield replace(asked[places[0]], asks=every)
        for place in places:
            own = asked[place]
            found[place] = None if own.rides else {party: replies[party] for party in own.asks if party in replies}
    return {place: found[place] for place in asked}


def shared_columns(replies: Replies) -> dict[str, Table]:
    """Each silo's synthetic columns; none of a silo that keeps them.

    Raises:
        ProtocolError: a silo replied with something else.
    """
    tables = zip(replies, expect(replies, SyntheticColumns, Done), strict=True)
    return {silo: reply.table for silo, reply in tables if isinstance(reply, SyntheticColumns)}


@dataclass(frozen=True, slots=True)
class Turn:
    """A place in a party's `Turns`: an ask of one of these types.

    Attributes:
        asks: the types.
        optional: whether it may be passed over.
        often: whether it takes any number of asks.
        by: of types with a field of this name, each ask has a higher number there than the last of its type.
    """

    asks: tuple[type[Message], ...]
    optional: bool = False
    often: bool = False
    by: str = ""


def once(*asks: type[Message]) -> tuple[Turn, ...]:
    """Turns of one ask each, one after the other."""
    return tuple(Turn((kind,)) for kind in asks)


def maybe(ask: type[Message]) -> tuple[Turn, ...]:
    """A turn of one ask, or none."""
    return (Turn((ask,), optional=True),)


def often(*asks: type[Message], by: str = "") -> tuple[Turn, ...]:
    """A turn of any number of asks of these types; see `Turn` for ``by``."""
    return (Turn(asks, optional=True, often=True, by=by),)


class Turns:
    """The order in which a party takes asks. What it sets up, fits or charges has a turn of its own, and so comes once.

    Args:
        turns: all of them, in order.
    """

    def __init__(self, *turns: Turn) -> None:
        self._turns, self._at = turns, 0
        self._last: dict[str, int] = {}  # numbers of asks, by type

    @contextmanager
    def taken(self, ask: Message) -> Iterator[None]:
        """Answer an ask within this: its turn is over unless answering fails.

        Raises:
            ProtocolError: it was answered before, or comes before what it needs, or is not an ask of this party's.
        """
        place = self._place(ask)
        turn, name = self._turns[place], type(ask).__name__
        number = getattr(ask, turn.by, None) if turn.by else None
        if number is not None and number <= self._last.get(name, -1):
            rule = "Numbers of messages of one type rise, as each step is taken once"
            raise ProtocolError(rule, f"{name} {number} after {self._last.get(name, 'none')}")
        yield
        self._at = place if turn.often else place + 1
        if number is not None:
            self._last[name] = number

    def _place(self, ask: Message) -> int:
        """The turn that this ask takes: the present one, or one after optional ones."""
        for place in range(self._at, len(self._turns)):
            if isinstance(ask, self._turns[place].asks):
                return place
            if not self._turns[place].optional:
                break
        awaited = [kind.__name__ for turn in self._turns[self._at : self._at + 1] for kind in turn.asks]
        raise ProtocolError(
            "A silo answers messages in their turn, and those that set up, fit or charge once",
            type(ask).__name__, f"It awaits {', '.join(awaited) or 'none'}. Start a new run.",
        )  # fmt: skip

    def state(self) -> State:
        """In storable form."""
        return {"at": self._at, "last": dict(self._last)}

    def restore(self, state: State) -> None:
        """Continue from what `state` returned."""
        self._at, self._last = state["at"], dict(state["last"])


class Party(ABC):
    """A silo's side of an algorithm: answers messages, and can save and restore its state.

    A party never sees another party's messages. `answer` must be a function of the party's state and the ask, so that
    repeating an ask after `restore` gives the same reply.
    """

    _kept: tuple[Table, ...] = ()

    @abstractmethod
    def answer(self, ask: Message) -> Message:
        """Answer one message.

        Raises:
            ProtocolError: the message is not one this party understands, or comes too early.
        """

    def state(self) -> State:
        """Everything needed to continue, in storable form. Stays inside the silo."""
        return self._state(training=True)

    def trained(self) -> State:
        """The silo's part of the model: what sampling needs after `restore`, without what only training needs."""
        return self._state(training=False)

    @abstractmethod
    def _state(self, training: bool) -> State:
        """What `state` (``training``) and `trained` return."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Continue from what `state` or `trained` returned."""

    def also(self, own: Table) -> None:
        """Train, as far as no other silo takes part, on rows too that only this silo has; called before all else.

        Raises:
            ConfigError: the algorithm cannot.
        """
        raise ConfigError("Rows of one silo alone are for algorithms with the option own_rows", type(self).__name__)

    def reference(self) -> State:
        """What the silo keeps of its rows, apart from its part of the model, to judge asks for synthetic rows by."""
        return {}

    def judge_by(self, reference: State) -> None:  # noqa: B027  # most algorithms send no asks that need it
        """Judge asks for synthetic rows by what `reference` returned, here or before training ended."""

    def restrict(self, conditions: Sequence[Condition]) -> None:  # noqa: B027  # others draw rows that are thrown away
        """Make no synthetic rows but those that fulfil these conditions on its columns, as far as the algorithm can."""

    def hear(self, digest: Digest) -> None:  # noqa: B027  # most parties need none
        """The next ask came in bytes with this digest, which a silo of another organisation keeps a chain of."""

    def refuse(self, error: Exception) -> None:  # noqa: B027  # most parties go on
        """An ask was refused, here or before it could be read: a silo of another organisation ends the job."""

    def publish(self, table: Table, share: bool) -> Message:
        """The reply to a request for synthetic columns: the columns, or `Done` where they stay in the silo."""
        if share:
            return SyntheticColumns(table)
        self._kept = (*self._kept, table)
        return Done()

    def take_kept(self) -> Table:
        """The synthetic rows that `publish` has kept in the silo since this was last called.

        Raises:
            ProtocolError: there are none.
        """
        kept, self._kept = self._kept, ()
        if not kept:
            raise ProtocolError("Synthetic columns are kept before they are taken", "none", "Synthesise rows first.")
        return below(kept)


COORDINATOR = "coordinator"
KEY_BYTES = 32  # an X25519 public key (RFC 7748)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


@dataclass(frozen=True, slots=True)
class Roster:
    """The parties of a conversation, in the order in which their columns and latents are concatenated.

    Attributes:
        parties: their names.
        keys: the public key pinned for each, in the same order; empty where silos do not talk to each other.

    Raises:
        ConfigError: no party, a name used twice, or a name that is not a plain word; keys that are not one of 32 bytes
            for each party, or two parties with the same.
    """

    parties: tuple[str, ...]
    keys: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        if not self.parties:
            raise ConfigError("A federation needs at least one silo", self.parties)
        for name in self.parties:
            if not _NAME.fullmatch(name) or name == COORDINATOR:
                raise ConfigError(
                    "A silo's name is 1 to 63 letters, digits, '_', '.' or '-', starts with a letter or digit, "
                    f"and is not {COORDINATOR!r}",
                    name,
                    "Rename the silo.",
                )
        if len(set(self.parties)) < len(self.parties):
            raise ConfigError("Every silo needs a name of its own", self.parties, "Rename one of them.")
        if self.keys:
            self._check_keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self.parties)

    def __len__(self) -> int:
        return len(self.parties)

    def key(self, name: str) -> bytes:
        """The public key pinned for the party called ``name``: 32 bytes.

        Raises:
            ConfigError: there is no such party, or keys are not pinned.
        """
        if name not in self.parties:
            raise ConfigError("There is no such silo", name, nearest(name, self.parties))
        if not self.keys:
            raise ConfigError("Silos that talk to each other pin each other's keys", name, "Put keys into the roster.")
        return self.keys[self.parties.index(name)]

    def only(self, parties: Sequence[str]) -> Roster:
        """The roster of some of the parties, in this order, with the same keys."""
        return Roster(tuple(parties), tuple(map(self.key, parties)) if self.keys else ())

    def everyone(self, ask: Message) -> Exchange:
        """Ask every party the same."""
        return Exchange({party: ask for party in self.parties})

    def each(self, asks: Mapping[str, Message]) -> Exchange:
        """Ask each party something of its own; ``asks`` must name every party."""
        return Exchange({party: asks[party] for party in self.parties})

    def _check_keys(self) -> None:
        if len(self.keys) != len(self.parties):
            counts = f"{len(self.keys)} for {len(self.parties)} silos"
            raise ConfigError("Either every silo's key is pinned or none", counts, "Give one key for each silo.")
        for name, key in zip(self.parties, self.keys, strict=True):
            if not isinstance(key, bytes) or len(key) != KEY_BYTES:
                raise ConfigError(f"A silo's public key is {KEY_BYTES} bytes", name, "Copy it again.")
        if len(set(self.keys)) < len(self.keys):
            raise ConfigError("Every silo needs a key of its own", self.parties, "Draw a new one for one of them.")
