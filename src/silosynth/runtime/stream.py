"""Both ends of the streams: one connection per party, over mutual TLS. Parties dial in to the coordinator.

A party is whoever its certificate says. Its connection may break and come back: the frame that awaits an answer is sent
again, and the party, which remembers its last reply, does not compute twice. A party leaves when the coordinator is
gone.
"""

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
from collections.abc import Iterable
from pathlib import Path

from silosynth.core.conversation import Party
from silosynth.core.errors import MessageError, ProtocolError, SilosynthError, UnavailableError
from silosynth.core.roster import COORDINATOR
from silosynth.runtime.endpoint import PartyEndpoint, PartyFailure
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
from silosynth.runtime.hub import Hub, Outbox, PartySlot
from silosynth.runtime.tls import Certificates, Connection, context, moment

_GRACE = 1.0  # seconds that parties have to take a goodbye
_GLANCE = 0.2  # seconds between looks at whether to go on listening
_STRANGERS = 16  # who may be at the door, not known yet; for one more, the first is turned away


class StreamHub(Hub):
    """Listens for the parties called ``names`` and talks with them.

    Args:
        names: who may connect.
        certificates: the coordinator's.
        address: where to listen; port 0 lets the system choose.
        patience: seconds for which a party may be without a stream.
        attempt: of a job, by any name. A process that is left of another attempt, or of another job at the same
            address, would answer without knowing what was said before: it is refused.

    Raises:
        UnavailableError: the address cannot be listened on.
    """

    def __init__(
        self,
        names: Iterable[str],
        certificates: Certificates,
        address: str = "127.0.0.1:0",
        patience: float = 10.0,
        attempt: str = "",
    ) -> None:
        super().__init__(names, patience)
        self._attempt = attempt
        self._demands = context(certificates, server=True)
        self._strangers: dict[socket.socket, None] = {}  # in the order in which they came
        self._open: dict[Connection, Outbox] = {}
        self._stopped = threading.Event()
        host, _, port = address.rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._door = socket.create_server((host.strip("[]"), int(port)), family=family)
        except OSError as error:
            raise UnavailableError("The coordinator can listen", address, "Choose another port.") from error
        self._door.settimeout(_GLANCE)
        self.address = f"{host}:{self._door.getsockname()[1]}"
        self._porter = threading.Thread(target=self._listen, daemon=True, name="silosynth-hub")
        self._porter.start()

    def stop(self) -> None:
        """Say goodbye and stop listening; may be called twice."""
        self._stopped.set()
        self._porter.join()
        with self._changed:
            for stream in self._open.values():
                stream.outbox.put(Frame(BYE, "", 0, COORDINATOR))
                stream.outbox.put(None)
            until = time.monotonic() + _GRACE
            while self._open and self._changed.wait(until - time.monotonic()):
                pass
            left = list(self._open)
            for came in self._strangers:
                with contextlib.suppress(OSError):
                    came.shutdown(socket.SHUT_RDWR)
        for connection in left:
            connection.cut()

    def _listen(self) -> None:
        with self._door:
            while not self._stopped.is_set():
                try:
                    came, _ = self._door.accept()
                except TimeoutError:
                    continue
                except OSError:  # such as too many open files
                    self._stopped.wait(_GLANCE)
                    continue
                with self._changed:
                    if len(self._strangers) >= _STRANGERS:
                        with contextlib.suppress(OSError):
                            next(iter(self._strangers)).shutdown(socket.SHUT_RDWR)
                    self._strangers[came] = None
                threading.Thread(target=self._admit, args=(came,), daemon=True, name="silosynth-hub").start()
                del came  # an open socket would be kept from its end

    def _admit(self, came: socket.socket) -> None:
        """Find out who has come, and talk with a party until its connection ends."""
        connection = stream = None
        try:
            connection = Connection(came, self._demands, server=True, patience=self._patience)
            stream = self._welcome(connection)
        except (OSError, MessageError):  # no party of ours: there is nobody to blame
            pass
        finally:
            with self._changed:
                self._strangers.pop(came)
        if connection is not None and stream is not None:
            self._talk(connection, stream)
        elif connection is not None:
            connection.finish()

    def _welcome(self, connection: Connection) -> Outbox | None:
        """Give the party its seat; or say why not, and return None."""
        name, hello = connection.peer, connection.greeted()
        no = REFUSED
        if name not in self._seats:
            why = f"{name!r} does not take part"
        elif hello.kind != HELLO or hello.job != self._attempt:
            why = f"{name!r} is of another attempt, or another job"
        else:
            stream = Outbox()
            stream.outbox.put(Frame(WELCOME, "", 0, COORDINATOR))
            if self._seated(connection, self._seats[name], stream):
                return stream
            no, why = BUSY, f"{name!r} is connected already"
        connection.send(Frame(no, "", 0, COORDINATOR, why.encode()))
        return None

    def _seated(self, connection: Connection, seat: PartySlot, stream: Outbox) -> bool:
        with self._changed:
            if seat.stream is not None or self._stopped.is_set():
                return False
            seat.stream, self._open[connection] = stream, stream
            if seat.owes and seat.asked is not None:
                stream.outbox.put(seat.asked)
            self._changed.notify_all()
        return True

    def _talk(self, connection: Connection, stream: Outbox) -> None:
        name = connection.peer
        seat = self._seats[name]
        speaking = threading.Thread(target=_speak, args=(connection, stream), daemon=True, name="silosynth-hub")
        try:
            speaking.start()
            while True:
                self._heard(name, seat, connection.receive())
        except OSError:
            pass
        except MessageError as error:
            self._blame(seat, error)
        except Exception as error:
            self._blame(seat, ProtocolError(f"Silo {name!r} can be listened to", type(error).__name__))
        finally:
            stream.outbox.put(None)
            connection.close()
            self._left(seat, stream)
            with self._changed:
                del self._open[connection]
                self._changed.notify_all()


def _speak(connection: Connection, stream: Outbox) -> None:
    with contextlib.suppress(OSError):  # who listens notices as well
        while (frame := stream.outbox.get()) is not None:
            connection.send(frame)
    connection.end()


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
    serve_endpoint(PartyEndpoint(name, party, folder), address=address, certs=certs, patience=patience)


def serve_endpoint(
    desk: PartyEndpoint, *, address: str, certs: Certificates | Path, patience: float, attempt: str = ""
) -> None:
    """The same for a desk; ``attempt`` as in `StreamHub`."""
    certificates = certs if isinstance(certs, Certificates) else Certificates.read(certs)
    line = _Line(desk.name, address, certificates, patience, attempt)
    try:
        while (frame := line.receive()).kind != BYE:
            line.send(handle(desk, frame))
    finally:
        line.close()


def handle(desk: PartyEndpoint, frame: Frame) -> Frame:
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
