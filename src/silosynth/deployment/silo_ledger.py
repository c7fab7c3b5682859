"""A silo's own ledger of a job: what it was asked, and what it replied. A hash chain, signed by the silo.

Lines are JSON. Each holds its number ``n``, the time ``at`` (UTC), and ``before``: BLAKE3 of the line before it. Lines
of messages have the fields of the coordinator's ledger as well (`silosynth.runtime.ledger`), the ``digest``
(BLAKE3) of the encoded message, and ``common`` where all silos are asked the same. The others have a ``kind``:

- "opened": a process of the silo begins to write. The first one names job, silo and the key of signatures.
- "refused": the ask before it was refused, with which class of error.
- "saved", "restored": a checkpoint, by its number. Lines after a checkpoint stay when it is restored.
- "signed": a signature (Ed25519) on job, silo, and number and hash of the line before. The key is derived from the
  silo's sealing key. There is one after `EVERY` lines at most, at every checkpoint, after a refusal and at the end.
- "decided": a person here has approved or refused that synthetic columns leave: verdict, reason, who and when.
- "conditions": those of a draw that has begun, and who asks for them, before they are allowed or refused.
- "sampled": which share of its rows a job takes up, and how many these are; if it does not take up all.
- "trained on": how many rows a job trains on that all silos have, and how many that only this one has; if it has any.
- "forgotten": the job's traces were removed here, and by whose wish. The ledger stays.
- "compared": what silos told each other of their ledgers (`Head`), and the verdict.

The lines of an ask and of its reply are written together, before the reply leaves: an ask that nothing answers, as the
process is killed, has none. An algorithm's messages that come again, and that charge nothing, are stored beside the
ledger before the reply leaves (`silosynth.deployment.pending`), and their lines written before any others, when a
signature is due, with the next message after a second, and when the coordinator has gone. They are the lines that they
would have been otherwise: see `whole_text`. Beside the ledger lies its newest signature as well (`HEAD`), which shows
that the tail was cut.

What nobody can show: that lines after the last signature are those that the silo wrote; and that both files were set
back together, unless another silo holds a later head.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from silosynth.core.conversation import COORDINATOR
from silosynth.core.errors import ProtocolError, StorageError
from silosynth.core.files import PRIVATE, close_to_others, flush, make_folder, read, storage_error
from silosynth.core.messages import Done, Message, Struct, wire_name
from silosynth.core.streams import Digest
from silosynth.deployment import pending
from silosynth.deployment.pending import AskAndReply, Pending, Place, read_pending
from silosynth.deployment.protocol import Begin
from silosynth.privacy.sealed import Seat, derive, framed
from silosynth.runtime import ledger

FILE, HEAD = "ledger.jsonl", "ledger.head"
ALIKE = "all were asked the same"
"""The verdict with which jobs end whose silos were asked alike."""
EVERY = 64  # lines, at most, between two signatures
_LONGEST = 10**9  # nanoseconds that an exchange waits while others come
_OFTEN = "algorithms.", wire_name(Done)  # messages that may wait
_LABEL = "silosynth silo ledger 2"
_KEY = "silosynth silo ledger 1"  # which stays, whatever a ledger's lines become: labels and receipts name the key
_NOTHING = "0" * 64  # the hash before the first line
_REMEDY = "Keep the file as evidence, and submit the job under another name."


class CommonAsk(NamedTuple):
    """An ask that all silos get alike: its step, type, and digest."""

    step: int
    type: str
    digest: str


class Head(Struct):
    """What a silo tells the others of its ledger, sealed.

    Attributes:
        lines: how many it has.
        hash: of the last one, in hexadecimal.
        key: of its signatures, 32 bytes; ``signature``: on the line after these.
        steps, types, digests: the asks of the present attempt that all silos get alike.
    """

    lines: int
    hash: str
    key: bytes
    signature: bytes
    steps: tuple[int, ...]
    types: tuple[str, ...]
    digests: tuple[str, ...]

    @property
    def asks(self) -> tuple[CommonAsk, ...]:
        """The asks that all silos get alike."""
        return tuple(map(CommonAsk, self.steps, self.types, self.digests))


def signing_key(seat: Seat) -> Ed25519PrivateKey:
    """The key of a silo's signatures."""
    return Ed25519PrivateKey.from_private_bytes(derive(seat.private, framed(_KEY, "key")))


_Ask = tuple[int, int, Message, int, Digest]
"""An ask: its step, when it came, and its bytes' number and digest."""


class SiloLedger:
    """A silo's ledger of one job, continued where another process left it.

    Args:
        folder: the silo's folder of the job.
        job: its name.
        seat: the silo's.
        clock: nanoseconds since 1970.

    Raises:
        StorageError: the file cannot be written; or it is not what this silo has written.
    """

    def __init__(self, folder: Path, job: str, seat: Seat, clock: Callable[[], int] = time.time_ns) -> None:
        self._job, self._seat, self._clock = job, seat, clock
        self._key = signing_key(seat)
        self._path, self._head = make_folder(folder) / FILE, folder / HEAD
        self._asks = CommonAsks()
        self._lines, self._last, self._signed = 0, _NOTHING, 0
        self._begun: list[tuple[int, str]] = []  # lines to be written with the next: when, and their fields
        self._ask: _Ask | None = None  # without a line
        self._pending = Pending(folder / pending.FILE)
        self._frames: dict[tuple[type[Message], type[Message]], bytes] = {}  # of what may wait, by types
        self._open()
        opened = {"kind": "opened", "job": job, "silo": seat.name, "key": _public(self._key).hex()}
        lost = _lines_of(read(self._head)) - self._lines  # by a power cut, or because the tail was cut
        self._add(opened | ({"lost": lost} if lost > 0 else {}))
        self.sign()

    @property
    def asks(self) -> tuple[CommonAsk, ...]:
        """The asks of this attempt that all silos get alike."""
        return self._asks.all

    def asked(self, step: int, ask: Message, blob: bytes) -> Digest:
        """Record an ask, as it came; returns its digest."""
        if self._ask is not None:
            self._begin_ask()
        digest = Digest(blob)
        self._ask = step, self._clock(), ask, len(blob), digest
        return digest

    def replied(self, step: int, reply: Message, blob: bytes) -> None:
        """Record the reply to the last ask, before it leaves."""
        ask, now = self._ask, self._clock()
        if ask is not None and ask[0] == step and not self._begun:
            frames = self._frames.get((type(ask[2]), type(reply)))
            if frames and self._wait(ask, now, blob, frames):
                return
        if ask is not None:
            self._begin_ask()
            self._learn(ask[2], reply)
        frame = _reply_frame(self._seat.name, reply)
        self._begun.append((now, _fields(step, frame, len(blob), blake3(blob).digest())))
        self._write()

    def settle(self) -> None:
        """Write what waits: nothing may come for long. What cannot be written goes on waiting."""
        with suppress(StorageError):
            if self._pending.exchanges:
                self._begun, self._ask = [], None  # which nothing answers
                self._lay_down()
            self._pending.drop()

    def refused(self, step: int, error: Exception) -> None:
        """Record that the last ask was refused; what was wrong with it stays in the silo's log."""
        self._add({"kind": "refused", "step": step, "error": type(error).__name__})
        self.sign()

    def saved(self, number: int) -> None:
        """Record that a checkpoint was written; all lines are on disk when this returns."""
        self._add({"kind": "saved", "number": number})
        self.sign()
        flush(self._path)

    def restored(self, number: int) -> None:
        """Record that a checkpoint was restored."""
        self._add({"kind": "restored", "number": number})

    def decided(self, decision: Mapping[str, Any]) -> None:
        """Record what a person has decided about columns that are held; it is on disk when this returns."""
        self._add({"kind": "decided", **decision})
        self.sign()
        flush(self._path)

    def conditioned(self, given: Sequence[str], by: str, verified: bool) -> None:
        """Record under which conditions somebody wants rows; ``verified`` if by a signature of that person."""
        self._add({"kind": "conditions", "given": list(given), "by": by, "verified": verified})
        self.sign()

    def trained_on(self, linked: int, own: int) -> None:
        """Record how many rows a job trains on that all silos have, and how many that only this one has."""
        self._add({"kind": "trained on", "linked": linked, "own": own})
        self.sign()

    def sampled(self, share: float, rows: int) -> None:
        """Record which share of its rows a job takes up, and how many these are."""
        self._add({"kind": "sampled", "share": share, "rows": rows})
        self.sign()

    def forgotten(self, by: str) -> Head:
        """Record that all else of the job was removed; returns what the receipt names."""
        self._add({"kind": "forgotten", "by": by})
        head = self.head()
        flush(self._path)
        return head

    def head(self) -> Head:
        """What other silos are told."""
        self.sign()
        asks = self._asks.all
        return Head(
            self._lines - 1, self._last_but_signature, _public(self._key), self._signature,
            tuple(a.step for a in asks), tuple(a.type for a in asks), tuple(a.digest for a in asks),
        )  # fmt: skip

    def compare(self, heads: Mapping[str, Head]) -> str:
        """Record other silos' heads, and whether all were asked the same; returns how they differ, or "".

        Raises:
            ProtocolError: a head's signature is not its silo's.
        """
        for silo, head in heads.items():
            check_signature(head.key, head.signature, self._job, silo, head.lines, head.hash)
        found = (difference(self.asks, head.asks, silo) for silo, head in heads.items())
        verdict = next(filter(None, found), "")
        told = {silo: {"lines": h.lines, "hash": h.hash, "key": h.key.hex()} for silo, h in heads.items()}
        self._add({"kind": "compared", "silos": told, "verdict": verdict or ALIKE})
        self.sign()
        self._pending.drop()
        return verdict

    def sign(self) -> None:
        """Sign what there is."""
        if self._begun or self._ask is not None or self._pending.exchanges:
            self._lay_down()
        self._last_but_signature = self._last
        self._signature = self._key.sign(_signed(self._job, self._seat.name, self._lines, self._last))
        self._begin(f'"kind": "signed", "signature": "{base64.b64encode(self._signature).decode()}"')
        self._lay_down()
        self._signed = self._lines
        self._write_head(f"{self._lines:012d} {self._last}\n".encode())

    def _add(self, content: dict[str, Any]) -> None:
        """Write a line of content."""
        self._asks.add(content)
        self._begin(json.dumps(content)[1:-1])
        self._write()

    def _begin(self, fields: str) -> None:
        """A line, to be written with the next."""
        if self._ask is not None:
            self._begin_ask()
        self._begun.append((self._clock(), fields))

    def _begin_ask(self) -> None:
        """The line of an ask."""
        assert self._ask is not None
        (step, at, ask, size, digest), self._ask = self._ask, None
        self._note_common(step, ask, digest)
        self._begun.append((at, _fields(step, _ask_frame(self._seat.name, ask), size, digest.value)))

    def _note_common(self, step: int, ask: Message, digest: Digest) -> None:
        if type(ask).common:
            self._asks.ask(CommonAsk(step, wire_name(type(ask)), digest.value.hex()))

    def _learn(self, ask: Message, reply: Message) -> None:
        """From now on messages of these types may wait, if they are an algorithm's and no type of theirs has events."""
        free = (wire_name(type(one)).startswith(_OFTEN) and not hasattr(one, "events") for one in (ask, reply))
        if all(free):
            frames = *_ask_frame(self._seat.name, ask), *_reply_frame(self._seat.name, reply)
            self._frames[type(ask), type(reply)] = json.dumps(frames).encode()

    def _wait(self, asked: _Ask, now: int, reply: bytes, frames: bytes) -> bool:
        """Have an exchange wait for the next; False if it cannot."""
        step, at, ask, size, digest = asked
        exchange = AskAndReply(step, at, size, digest.value, now, len(reply), blake3(reply).digest(), frames)
        if not self._pending.add(exchange, Place(self._size, self._last)):
            return False
        self._ask = None
        self._note_common(step, ask, digest)
        waiting = self._pending.exchanges
        due = self._lines + 2 * len(waiting) - self._signed >= EVERY - 2
        if due or exchange.replied - waiting[0].asked > _LONGEST:
            self._write()
        return True

    def _write(self) -> None:
        """Write the lines that have begun, and sign if it is time to."""
        self._lay_down()
        if self._lines - self._signed >= EVERY - 2:
            self.sign()

    def _lay_down(self) -> None:
        """Write the lines of what waits, and those that have begun."""
        if self._ask is not None:
            self._begin_ask()
        begun, self._begun = self._begun, []
        waiting = lines_of(self._pending.exchanges)
        text, last = chained([*waiting, *begun], self._lines, self._last)
        try:
            _write(self._file, text)
        except OSError as error:
            os.ftruncate(self._file, self._size)  # of lines that were cut nothing stays
            raise storage_error(error, "written", self._path) from error
        self._pending.written()
        self._size += len(text)
        self._lines, self._last = self._lines + len(waiting) + len(begun), last

    def _write_head(self, text: bytes) -> None:
        """In place, without waiting for the disk: it is of one length and in one sector, so whole or as it was."""
        try:
            os.lseek(self._head_file, 0, os.SEEK_SET)
            _write(self._head_file, text)
        except OSError as error:
            raise storage_error(error, "written", self._head) from error

    def _open(self) -> None:
        """Go on after the last whole line. An unfinished one, of a killed process, was followed by no reply."""
        try:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE)
            weakref.finalize(self, os.close, self._file)
            self._head_file = os.open(self._head, os.O_WRONLY | os.O_CREAT, PRIVATE)
            weakref.finalize(self, os.close, self._head_file)
            for path in (self._path, self._head):
                close_to_others(path)
            text = read(self._path)
            whole = text[: text.rfind(b"\n") + 1]
            self._size = len(whole)
            os.ftruncate(self._file, self._size)
            whole += self._take_up(whole)
        except OSError as error:
            raise storage_error(error, "written", self._path) from error
        if whole:
            self._continue(whole)

    def _take_up(self, whole: bytes) -> bytes:
        """Write the lines that a killed process has left beside the ledger; returns them."""
        missing, beside = _unwritten(self._path, whole), self._path.with_name(pending.FILE)
        if missing:
            _write(self._file, missing)
            self._size += len(missing)
        beside.unlink(missing_ok=True)
        return missing

    def _continue(self, text: bytes) -> None:
        verdict = verify_text(text, None, key=_public(self._key), job=self._job, silo=self._seat.name)
        if verdict.faults:
            raise StorageError(f"A silo's ledger is as the silo wrote it: {self._path}", verdict.faults[0], _REMEDY)
        for record in map(json.loads, text.splitlines()):
            self._asks.add(record)
        self._lines, self._last = verdict.lines, verdict.hash


# Lines.


_Frame = tuple[str, str, str]
"""What a line of a message holds between step and size, after the size, and after the digest."""


def _ask_frame(silo: str, ask: Message) -> _Frame:
    more = ', "common": true' if type(ask).common else ""
    if isinstance(ask, Begin) and ask.job.seed is not None:
        more += ', "noise": "known"'  # as `silosynth.privacy.statement` reads it
    return *ledger.frame_of(COORDINATOR, silo, ask), more


def _reply_frame(silo: str, reply: Message) -> _Frame:
    return *ledger.frame_of(silo, COORDINATOR, reply), ""


def _fields(step: int, frame: _Frame, size: int, digest: bytes) -> str:
    """The fields of a message's line."""
    head, tail, more = frame
    return f'"step": {step}{head}{size}{tail}, "digest": "{digest.hex()}"{more}'


def lines_of(exchanges: Iterable[AskAndReply]) -> list[tuple[int, str]]:
    """The two lines of each exchange: when, and their fields."""
    lines = []
    for step, asked, ask_size, ask_digest, replied, reply_size, reply_digest, text in exchanges:
        ask, reply = _frames_in(text)
        lines.append((asked, _fields(step, ask, ask_size, ask_digest)))
        lines.append((replied, _fields(step, reply, reply_size, reply_digest)))
    return lines


@lru_cache(maxsize=1024)
def _frames_in(text: bytes) -> tuple[_Frame, _Frame]:
    """Those of an ask and its reply."""
    a, b, c, d, e, f = json.loads(text)
    return (a, b, c), (d, e, f)


def chained(begun: Iterable[tuple[int, str]], number: int, last: str) -> tuple[bytes, str]:
    """The text of lines, of which the first has this number and follows a line of this hash; the last one's hash."""
    lines = []
    for at, fields in begun:
        line = f'{{"n": {number}, "at": "{_moment(at)}", {fields}, "before": "{last}"}}'.encode()
        number, last = number + 1, blake3(line).hexdigest()
        lines.append(line + b"\n")
    return b"".join(lines), last


def _moment(at: int) -> str:
    """A time as it stands in a line; `datetime` would take longer than all else that writes it."""
    second, rest = divmod(at, 10**9)
    return f"{_second(second)}.{rest // 1000:06d}+00:00"


@lru_cache(maxsize=4)
def _second(since_1970: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(since_1970))


def whole_text(path: Path) -> bytes:
    """A ledger's text, with the lines of exchanges that wait beside it, as its process was killed or is at work.

    Raises:
        StorageError: the file cannot be read.
    """
    text = read(path)
    whole = text[: text.rfind(b"\n") + 1]
    missing = _unwritten(path, whole)
    return whole + missing if missing else text


def _unwritten(path: Path, whole: bytes) -> bytes:
    """The lines that belong at the end of a ledger: those that wait beside it, as far as they are not in it."""
    place, exchanges = read_pending(path.with_name(pending.FILE))
    before, since = whole[: place.size], whole[place.size :]
    if not exchanges or len(before) < place.size or _hash(before[:-1].rpartition(b"\n")[2]) != place.last:
        return b""
    try:
        lines, _ = chained(lines_of(exchanges), before.count(b"\n"), place.last)
    except (ValueError, TypeError, OverflowError, OSError, RecursionError):
        return b""  # damaged
    return lines[len(since) :] if lines.startswith(since) else b""


class CommonAsks:
    """The asks of the present attempt that all silos get alike: of a step that is asked again, the last time."""

    def __init__(self) -> None:
        self._asks: list[CommonAsk] = []
        self._at_checkpoint: dict[int, int] = {}  # how many there were, by its number

    @property
    def all(self) -> tuple[CommonAsk, ...]:
        """By step."""
        return tuple(self._asks)

    def ask(self, ask: CommonAsk) -> None:
        """Go on by an ask."""
        while self._asks and self._asks[-1].step >= ask.step:
            self._asks.pop()
        self._asks.append(ask)

    def add(self, record: Mapping[str, Any]) -> None:
        """Go on by a line of the ledger."""
        if record.get("common"):
            self.ask(CommonAsk(record["step"], record["type"], record["digest"]))
        elif record.get("kind") == "saved":
            self._at_checkpoint[record["number"]] = len(self._asks)
        elif record.get("kind") == "restored":
            del self._asks[self._at_checkpoint.get(record["number"], 0) :]


def difference(own: Iterable[CommonAsk], theirs: Iterable[CommonAsk], silo: str) -> str:
    """How what this silo was asked first differs from what ``silo`` was asked; "" if it does not."""
    mine, other = ({ask.step: ask for ask in asks} for asks in (own, theirs))
    for step in sorted(mine.keys() | other.keys()):
        here, there = mine.get(step), other.get(step)
        if here != there:
            kinds = ", ".join(f"{ask.type if ask else 'nothing'} {who}" for ask, who in ((here, "here"), (there, silo)))
            return f"silos were asked different things at message {step}: {kinds}"
    return ""


# Verification.


@dataclass(frozen=True)
class Verdict:
    """What a verification found.

    Attributes:
        lines, hash: how many lines there are, and the hash of the last.
        signed: how many of them the last signature covers.
        job, silo: whose ledger it says to be.
        faults: what is wrong, and where; empty if nothing is.
        notes: what cannot be told.
        heads: of other silos, as they told this one: lines and hash, by name.
    """

    lines: int
    hash: str
    signed: int
    job: str
    silo: str
    faults: tuple[str, ...]
    notes: tuple[str, ...]
    heads: Mapping[str, tuple[int, str]]


def verify_file(path: Path, *, key: bytes | None = None, job: str | None = None, silo: str | None = None) -> Verdict:
    """Check a ledger, and the newest signature that lies beside it; see `verify_text`.

    Raises:
        StorageError: the file cannot be read.
    """
    beside = path.with_name(HEAD)
    return verify_text(whole_text(path), read(beside) if beside.exists() else None, key=key, job=job, silo=silo)


def verify_text(
    text: bytes, head: bytes | None, *, key: bytes | None = None, job: str | None = None, silo: str | None = None
) -> Verdict:
    """Check that no line of a ledger was changed, dropped, moved or added, as far as signatures reach.

    Args:
        text: the ledger.
        head: what lies beside it; None to do without.
        key: that must have signed it; None for the one that it names itself.
        job, silo: whose it must be; None for any.
    """
    check = _Checking(key, job, silo)
    *whole, rest = text.split(b"\n")
    for line in whole:
        check.line(line)
    if rest:
        check.notes.append("the last line is unfinished: the process was killed while it wrote, before any reply left")
    check.end(head)
    return check.verdict()


class _Checking:
    def __init__(self, key: bytes | None, job: str | None, silo: str | None) -> None:
        self._key, self._job, self._silo = key, job, silo
        self._hash, self._number, self._signed, self._hashes = _NOTHING, 0, 0, list[str]()
        self._heads: dict[str, tuple[int, str]] = {}
        self.faults: list[str] = []
        self.notes: list[str] = []

    def line(self, text: bytes) -> None:
        try:
            record = json.loads(text)
            number, before, kind = int(record["n"]), str(record["before"]), record.get("kind")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self.faults.append(f"line {len(self._hashes)}: it is not a line of a ledger")
            number, before, kind, record = self._number, self._hash, None, {}
        self._follows(number, before)
        if kind == "opened":
            self._opened(number, record)
        elif kind == "signed":
            self._signature(number, record)
        elif kind == "compared":
            self._compared(number, record)
        self._hash, self._number = _hash(text), number + 1
        self._hashes.append(self._hash)

    def end(self, head: bytes | None) -> None:
        if not self._hashes:
            self.faults.append("the ledger is empty")
        if self._signed < len(self._hashes) - 1:
            self.notes.append(f"lines {self._signed + 1} to {len(self._hashes) - 1} come after the last signature")
        if head is None:
            self.notes.append(f"no {HEAD} lies beside it, by which a cut tail shows")
            return
        count, digest = _lines_of(head), head.decode("ascii", "replace").strip().partition(" ")[2]
        if count > len(self._hashes):
            self.faults.append(f"line {len(self._hashes)}: the tail was cut; there were {count} lines")
        elif not count or self._hashes[count - 1] != digest:
            self.faults.append(f"line {max(count - 1, 0)}: it is not the one that {HEAD} tells of")

    def verdict(self) -> Verdict:
        return Verdict(
            len(self._hashes), self._hash, self._signed + 1 if self._signed else 0, self._job or "", self._silo or "",
            tuple(self.faults), tuple(self.notes), dict(self._heads),
        )  # fmt: skip

    def _follows(self, number: int, before: str) -> None:
        if number == self._number and before == self._hash:
            return
        if number > self._number:
            what = f"line {self._number}" if number == self._number + 1 else f"lines {self._number} to {number - 1}"
            self.faults.append(f"{what}: dropped")
        elif number < self._number:
            self.faults.append(f"line {number}: it stands after line {self._number - 1}, moved or repeated")
        else:
            self.faults.append(f"line {max(number - 1, 0)}: it was changed, or line {number} was")

    def _opened(self, number: int, record: Mapping[str, Any]) -> None:
        if self._key is None:
            self._key = _key_of(record)
            self.notes.append("no kit was named: that the key is this silo's is the ledger's own word")
        for name, wanted in (("key", self._key.hex()), ("job", self._job), ("silo", self._silo)):
            if wanted not in (None, found := str(record.get(name))):
                self.faults.append(f"line {number}: it is of another {name}: {found}")
        if record.get("lost"):
            self.faults.append(f"line {number}: {record['lost']} lines before it were lost, or cut")
        self._job, self._silo = self._job or str(record.get("job")), self._silo or str(record.get("silo"))

    def _signature(self, number: int, record: Mapping[str, Any]) -> None:
        try:
            signature = base64.b64decode(str(record.get("signature")), validate=True)
            check_signature(self._key or b"", signature, self._job or "", self._silo or "", number, self._hash)
            self._signed = number
        except (ProtocolError, ValueError):
            self.faults.append(f"line {number}: its signature is not of this silo, or not of the lines before")

    def _compared(self, number: int, record: Mapping[str, Any]) -> None:
        silos = record.get("silos")
        for silo, head in silos.items() if isinstance(silos, dict) else ():
            self._heads[silo] = int(head["lines"]), str(head["hash"])
        if str(record.get("verdict")) != ALIKE:
            self.faults.append(f"line {number}: {record.get('verdict')}")


def cross_check(ledgers: Sequence[tuple[Verdict, bytes]]) -> Iterator[str]:
    """What silos told each other of their ledgers, against the ledgers themselves, given with their text."""
    by_silo = {verdict.silo: text.split(b"\n") for verdict, text in ledgers}
    for verdict, _ in ledgers:
        for silo, (lines, digest) in verdict.heads.items():
            held = by_silo.get(silo)
            if held is not None and (
                len(held) <= lines or _hash(held[lines - 1]) != digest
            ):  # the last part of a split text is empty
                yield f"{silo}, line {lines - 1}: it is not the one that {silo} told {verdict.silo} of"


def check_signature(key: bytes, signature: bytes, job: str, silo: str, lines: int, digest: str) -> None:
    """Check a signature on the first ``lines`` lines of a ledger.

    Raises:
        ProtocolError: it is not of this key, or of another ledger.
    """
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, _signed(job, silo, lines, digest))
    except (InvalidSignature, ValueError):
        raise ProtocolError(
            f"Silo {silo!r} signs its ledger of job {job!r} with its own key", "another signature",
            "It was altered, or is of another job.",
        ) from None  # fmt: skip


def _signed(job: str, silo: str, lines: int, digest: str) -> bytes:
    return framed(_LABEL, job, silo, str(lines), digest)


def _key_of(record: Mapping[str, Any]) -> bytes:
    try:
        return bytes.fromhex(str(record.get("key")))
    except ValueError:
        return b""


def _hash(line: bytes) -> str:
    return blake3(line).hexdigest()


def _lines_of(head: bytes | None) -> int:
    """How many lines the newest signature covers, of the file beside a ledger."""
    lines = (head or b"").decode("ascii", "replace").partition(" ")[0]
    return int(lines) if lines.isdecimal() else 0


def _public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def public_key(seat: Seat) -> bytes:
    """The public half of `signing_key`, 32 bytes."""
    return _public(signing_key(seat))


def _write(file: int, text: bytes) -> None:
    """Write all of a text.

    Raises:
        OSError: the disk is full…
    """
    if os.write(file, text) != len(text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def asked_conditions(path: Path) -> list[dict[str, Any]]:
    """Under which conditions rows were asked for in a silo's ledger, and by whom.

    Raises:
        StorageError: it cannot be read.
    """
    lines = read(path).splitlines(keepends=True)
    records = [json.loads(line) for line in lines if line.endswith(b"\n")]
    keys = ("by", "verified", "given", "at")
    return [{key: one[key] for key in keys} for one in records if one.get("kind") == "conditions"]
