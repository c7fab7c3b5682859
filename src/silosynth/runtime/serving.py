"""A party's end of the stream: dial out, answer, and leave when the coordinator is gone."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import grpc

from silosynth.core.conversation import Party
from silosynth.core.errors import MessageError, ProtocolError, SilosynthError
from silosynth.runtime.certificates import Certificates
from silosynth.runtime.desk import Desk, PartyFailure
from silosynth.runtime.frames import (
    ASK,
    BYE,
    CRASHED,
    DONE,
    REFUSED,
    REPLY,
    RESTORE,
    SAVE,
    WELCOME,
    Frame,
    Joiner,
    described,
)
from silosynth.runtime.stream import ATTEMPT, METHOD, OPTIONS, SERVICE

EXIT_LOST = 75  # what a process that gave up waiting for its coordinator exits with ("temporary failure")
_FINAL = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED)
_PAUSE = 0.2  # seconds between two attempts to dial
_LINGER = 2.0  # seconds that a computation has to come back by itself once the coordinator is lost


def serve_party(
    party: Party,
    *,
    name: str,
    address: str,
    certs: Certificates | Path,
    folder: Path | None,
    patience: float = 10.0,
) -> None:
    """Answer the coordinator at ``address`` until it says goodbye. Meant to be all that its process does.

    When the coordinator is lost in the middle of a long computation the process exits with `EXIT_LOST`; nobody would
    read the answer, and the run goes on from its checkpoint.

    Args:
        party: who answers.
        name: the party's name; its certificate must say the same.
        address: host and port to dial.
        certs: the party's certificates, or the folder where they lie; read once.
        folder: where the party keeps its parts of checkpoints; None for nowhere.
        patience: seconds for which the coordinator may be out of reach.

    Raises:
        ProtocolError: the coordinator cannot be reached, refuses this party, or breaks the protocol.
    """
    serve_desk(Desk(name, party, folder), address=address, certs=certs, patience=patience)


def serve_desk(desk: Desk, *, address: str, certs: Certificates | Path, patience: float, attempt: str = "") -> None:
    """The same for a desk; ``attempt`` as in `StreamHub`."""
    certificates = certs if isinstance(certs, Certificates) else Certificates.read(certs)
    line = _Line(address, certificates, patience, attempt)
    try:
        while (frame := line.receive()).kind != BYE:
            if frame.kind != WELCOME:
                line.send(handle(desk, frame))
    finally:
        line.close()


def handle(desk: Desk, frame: Frame) -> Frame:
    """What the party says to one frame. Nothing that goes wrong may leave the coordinator without an answer."""

    def say(kind: str, body: bytes = b"") -> Frame:
        return Frame(kind, frame.job, frame.step, desk.name, body)

    try:
        if frame.kind == ASK:
            return say(REPLY, desk.answer(frame.job, frame.step, frame.body))
        if frame.kind == SAVE:
            desk.save(frame.step)
        elif frame.kind == RESTORE:
            desk.restore(frame.step)
        else:
            raise ProtocolError("A coordinator asks, saves, restores or says goodbye", frame.kind)
    except SilosynthError as error:
        return say(REFUSED, described(error))
    except Exception as error:
        cause = error.__cause__ if isinstance(error, PartyFailure) and error.__cause__ else error
        # The text of a foreign error may quote the data, so it stays in this silo's own log.
        traceback.print_exception(cause, file=sys.stderr)
        return say(CRASHED, _place(cause).encode())
    return say(DONE)


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    return type(error).__name__ + where


class _Line:
    """The connection, redialled when it breaks; reads in a thread of its own."""

    def __init__(self, address: str, certificates: Certificates, patience: float, attempt: str) -> None:
        self._address, self._patience, self._attempt = address, patience, attempt
        self._credentials = grpc.ssl_channel_credentials(
            certificates.authority, certificates.key, certificates.certificate
        )
        self._parent = os.getppid()
        self._inbox: queue.SimpleQueue[Frame | SilosynthError] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._channel: grpc.Channel | None = None
        self._closed = threading.Event()
        self._contact = time.monotonic()
        self._thread = threading.Thread(target=self._run, daemon=True, name="silosynth-line")
        self._thread.start()

    def receive(self) -> Frame:
        """The coordinator's next frame.

        Raises:
            ProtocolError: it is out of reach, or refuses this party.
        """
        got = self._inbox.get()
        if isinstance(got, SilosynthError):
            self._closed.set()
            raise got
        return got

    def send(self, frame: Frame) -> None:
        """Send a frame on the connection of the moment; if that is broken, the coordinator will ask again."""
        for piece in frame.pieces():
            self._outbox.put(piece)

    def close(self) -> None:
        """Hang up."""
        self._closed.set()
        self._outbox.put(None)
        self._thread.join(timeout=_LINGER)
        if self._channel is not None:
            self._channel.close()
        self._thread.join(timeout=_LINGER)

    def _run(self) -> None:
        reason = self._talk()
        while reason is not None and not self._closed.is_set():
            if isinstance(reason, SilosynthError) or self._hopeless():
                self._give_up(reason)
                return
            self._closed.wait(_PAUSE)
            reason = self._talk()

    def _hopeless(self) -> bool:
        orphaned = os.getppid() != self._parent
        return orphaned or time.monotonic() - self._contact > self._patience

    def _talk(self) -> SilosynthError | str | None:
        """Dial and listen until the stream ends: None after a goodbye, an error when dialling again is useless."""
        outbox = self._outbox = queue.SimpleQueue()
        joiner, connected = Joiner(), False
        with grpc.secure_channel(self._address, self._credentials, OPTIONS) as channel:
            self._channel = channel
            call: Any = channel.stream_stream(f"/{SERVICE}/{METHOD}")
            try:
                for piece in call(iter(outbox.get, None), metadata=((ATTEMPT, self._attempt),)):
                    connected = True
                    frame = joiner.add(piece)
                    if frame is not None:
                        self._inbox.put(frame)
                        if frame.kind == BYE:
                            return None
                return "the stream ended"
            except grpc.RpcError as error:
                return _meaning(error, self._address)
            except MessageError as error:
                return error
            finally:
                if connected:
                    self._contact = time.monotonic()  # patience begins when the stream breaks
                outbox.put(None)

    def _give_up(self, reason: SilosynthError | str) -> None:
        if isinstance(reason, str):
            reason = ProtocolError(f"The coordinator at {self._address} is there", reason, "Start the run again.")
        self._inbox.put(reason)
        if not self._closed.wait(_LINGER):  # computing: nobody will read the answer
            print(reason, file=sys.stderr, flush=True)
            os._exit(EXIT_LOST)


def _meaning(error: grpc.RpcError, address: str) -> ProtocolError | str:
    state: Any = error  # what a stream raises is a call as well, which the stubs do not know
    details = str(state.details() or state.code())
    if state.code() in _FINAL:
        return ProtocolError(f"The coordinator at {address} accepts this party", details, "Check its certificate.")
    return details.splitlines()[0][:200]
