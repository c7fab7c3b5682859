"""A party's end of the stream: dial out, answer, and leave when the coordinator is gone."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import ssl
import sys
import threading
import time
import traceback
from pathlib import Path

from silosynth.core.conversation import Party
from silosynth.core.errors import ProtocolError, SilosynthError
from silosynth.core.roster import COORDINATOR
from silosynth.runtime.certificates import Certificates
from silosynth.runtime.desk import Desk, PartyFailure
from silosynth.runtime.frames import (
    ASK,
    BUSY,
    BYE,
    CRASHED,
    DONE,
    HELLO,
    REFUSED,
    REPLY,
    RESTORE,
    SAVE,
    WELCOME,
    Frame,
    described,
)
from silosynth.runtime.tls import Connection, context, moment

EXIT_LOST = 75  # what a process that gave up waiting for its coordinator exits with ("temporary failure")
_REMEDY = "Check this party's certificate, and which job it is for."
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
    line = _Line(desk.name, address, certificates, patience, attempt)
    try:
        while (frame := line.receive()).kind != BYE:
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
    """The way to the coordinator, dialled again when it breaks; listens in a thread of its own."""

    def __init__(self, name: str, address: str, certificates: Certificates, patience: float, attempt: str) -> None:
        self._address, self._patience = address, patience
        self._hello = Frame(HELLO, attempt, 0, name)
        self._demands = context(certificates, server=False)
        self._parent = os.getppid()
        self._inbox: queue.SimpleQueue[Frame | SilosynthError] = queue.SimpleQueue()
        self._connection: Connection | None = None
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
        if (connection := self._connection) is not None:
            with contextlib.suppress(OSError):
                connection.send(frame)

    def close(self) -> None:
        """Hang up."""
        self._closed.set()
        if (connection := self._connection) is not None:
            connection.cut()
        self._thread.join(timeout=_LINGER)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._talk()
                return
            except SilosynthError as error:
                self._give_up(error)
                return
            except OSError as error:
                if self._hopeless():
                    rule = f"The coordinator at {self._address} is there"
                    self._give_up(ProtocolError(rule, str(error)[:200], "Start the run again."))
                    return
            except Exception as error:  # a port that is no number, a name that is none
                rule = f"The coordinator at {self._address} can be dialled"
                self._give_up(ProtocolError(rule, type(error).__name__, "Check the address."))
                return
            self._closed.wait(_PAUSE)

    def _hopeless(self) -> bool:
        orphaned = os.getppid() != self._parent
        return orphaned or time.monotonic() - self._contact > self._patience

    def _talk(self) -> None:
        """Dial, and listen until the coordinator says goodbye.

        Raises:
            OSError: it is out of reach for now.
            SilosynthError: dialling again is useless.
        """
        with contextlib.closing(self._dial()) as connection:
            connection.send(self._hello)
            self._admitted(connection)
            self._connection = connection
            try:
                while (frame := connection.receive()).kind != BYE:
                    self._inbox.put(frame)
                self._inbox.put(frame)
            finally:
                self._connection, self._contact = None, time.monotonic()  # patience begins when the stream breaks

    def _dial(self) -> Connection:
        host, _, port = self._address.rpartition(":")
        dialled = socket.create_connection((host.strip("[]"), int(port)), moment(self._patience))
        try:
            connection = Connection(dialled, self._demands, server=False, patience=self._patience)
        except ssl.SSLCertVerificationError as error:
            raise self._foreign(error.verify_message) from error
        if connection.peer != COORDINATOR:
            connection.close()
            raise self._foreign(f"one for {connection.peer!r}")
        return connection

    def _admitted(self, connection: Connection) -> None:
        try:
            first = connection.greeted()
            kind, why = first.kind, bytes(first.body).decode("utf-8", "replace")
        except ssl.SSLError as error:  # under TLS 1.3 a certificate is refused after the handshake
            if "ALERT" not in str(error.reason):
                raise
            kind, why = REFUSED, str(error.reason)
        if kind == BUSY:
            raise ConnectionError(why)
        if kind != WELCOME:
            raise ProtocolError(f"The coordinator at {self._address} accepts this party", why or kind, _REMEDY)

    def _foreign(self, found: str) -> ProtocolError:
        rule = f"The coordinator at {self._address} has the coordinator's certificate of the same authority"
        return ProtocolError(rule, found, "Check the address, and where this party's certificates are from.")

    def _give_up(self, reason: SilosynthError) -> None:
        self._inbox.put(reason)
        if not self._closed.wait(_LINGER):  # computing: nobody will read the answer
            print(reason, file=sys.stderr, flush=True)
            os._exit(EXIT_LOST)
