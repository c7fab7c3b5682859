"""The coordinator's end of the streams: one connection per party, over mutual TLS. Parties dial in.

A party is whoever its certificate says. Its connection may break and come back: the frame that awaits an answer is sent
again, and the party, which remembers its last reply, does not compute twice.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterable

from silosynth.core.errors import MessageError, ProtocolError, UnavailableError
from silosynth.core.roster import COORDINATOR
from silosynth.runtime.certificates import Certificates
from silosynth.runtime.frames import BUSY, BYE, HELLO, REFUSED, WELCOME, Frame
from silosynth.runtime.hub import Hub
from silosynth.runtime.seats import Seat, Stream
from silosynth.runtime.tls import Connection, context

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
        self._open: dict[Connection, Stream] = {}
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

    def _welcome(self, connection: Connection) -> Stream | None:
        """Give the party its seat; or say why not, and return None."""
        name, hello = connection.peer, connection.greeted()
        no = REFUSED
        if name not in self._seats:
            why = f"{name!r} does not take part"
        elif hello.kind != HELLO or hello.job != self._attempt:
            why = f"{name!r} is of another attempt, or another job"
        else:
            stream = Stream()
            stream.outbox.put(Frame(WELCOME, "", 0, COORDINATOR))
            if self._seated(connection, self._seats[name], stream):
                return stream
            no, why = BUSY, f"{name!r} is connected already"
        connection.send(Frame(no, "", 0, COORDINATOR, why.encode()))
        return None

    def _seated(self, connection: Connection, seat: Seat, stream: Stream) -> bool:
        with self._changed:
            if seat.stream is not None or self._stopped.is_set():
                return False
            seat.stream, self._open[connection] = stream, stream
            if seat.owes and seat.asked is not None:
                stream.outbox.put(seat.asked)
            self._changed.notify_all()
        return True

    def _talk(self, connection: Connection, stream: Stream) -> None:
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


def _speak(connection: Connection, stream: Stream) -> None:
    with contextlib.suppress(OSError):  # who listens notices as well
        while (frame := stream.outbox.get()) is not None:
            connection.send(frame)
    connection.end()
