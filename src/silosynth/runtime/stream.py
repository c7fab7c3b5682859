"""Both ends of the streams: one connection per party, over mutual TLS. Parties dial in to the coordinator.

A party is identified by its certificate. Its connection may break and come back: the frame that awaits an answer is
sent again, and the party, which remembers its last reply, does not compute twice. A party leaves when the coordinator
is gone.
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
from collections.abc import Callable, Iterable, Sequence

from silosynth.core.conversation import COORDINATOR
from silosynth.core.errors import MessageError, ProtocolError, SilosynthError, UnavailableError
from silosynth.runtime.endpoint import PartyEndpoint
from silosynth.runtime.hub import BUSY, BYE, HELLO, REFUSED, WELCOME, Frame, Hub, Outbox, PartySlot
from silosynth.runtime.tls import Certificates, Connection, handshake_seconds, same_fingerprint, ssl_context

_GRACE = 1.0  # seconds for parties to receive the goodbye
_POLL = 0.2  # seconds between checks whether to go on listening
_STRANGERS = 16  # connections not yet authenticated; for one more, the oldest is closed
EXIT_LOST = 75  # exit code of a process that gave up waiting for its coordinator ("temporary failure")
_REMEDY = "Check this party's certificate, and which job it is for."
_PAUSE = 0.2  # seconds between attempts to dial
_LINGER = 2.0  # seconds for a computation to return by itself after the coordinator is lost
Revoked = Callable[[bytes], bool]
"""Whether a certificate, in DER form, counts no more."""


def none_revoked(certificate: bytes) -> bool:
    """Where nobody revokes certificates."""
    return False


class StreamHub(Hub):
    """Listens for the parties called ``names`` and exchanges frames with them.

    Args:
        names: who may connect.
        certificates: the coordinator's.
        address: where to listen; port 0 lets the system choose.
        patience: seconds for which a party may be disconnected.
        revoked: parties with such certificates are refused, and cut off if they are connected already.
        attempt: any name for this attempt at a job. A process left over from another attempt, or from another job at
            the same address, has not seen the messages before: it is refused.

    Raises:
        UnavailableError: the address cannot be bound.
    """

    def __init__(
        self,
        names: Iterable[str],
        certificates: Certificates,
        address: str = "127.0.0.1:0",
        patience: float = 10.0,
        attempt: str = "",
        revoked: Revoked = none_revoked,
    ) -> None:
        super().__init__(names, patience)
        self._attempt, self._revoked = attempt, revoked
        self._context = ssl_context(certificates, server=True)
        self._strangers: dict[socket.socket, None] = {}  # in the order of arrival
        self._open: dict[Connection, Outbox] = {}
        self._stopped = threading.Event()
        host, _, port = address.rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listener = socket.create_server((host.strip("[]"), int(port)), family=family)
        except OSError as error:
            raise UnavailableError(
                "The coordinator's address can be listened on", address, "Choose another port."
            ) from error
        self._listener.settimeout(_POLL)
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        self._accepting = threading.Thread(target=self._listen, daemon=True, name="silosynth-hub")
        self._accepting.start()

    def stop(self) -> None:
        """Say goodbye and stop listening; may be called twice."""
        self._stopped.set()
        self._accepting.join()
        with self._changed:
            for outbox in self._open.values():
                outbox.put(Frame(BYE, "", 0, COORDINATOR))
                outbox.put(None)
            until = time.monotonic() + _GRACE
            while self._open and self._changed.wait(until - time.monotonic()):
                pass
            left = list(self._open)
            for arrived in self._strangers:
                with contextlib.suppress(OSError):
                    arrived.shutdown(socket.SHUT_RDWR)
        for connection in left:
            connection.cut()

    def _listen(self) -> None:
        with self._listener:
            while not self._stopped.is_set():
                self._cut_revoked()
                try:
                    arrived, _ = self._listener.accept()
                except TimeoutError:
                    continue
                except OSError:  # such as too many open files
                    self._stopped.wait(_POLL)
                    continue
                with self._changed:
                    if len(self._strangers) >= _STRANGERS:
                        with contextlib.suppress(OSError):
                            next(iter(self._strangers)).shutdown(socket.SHUT_RDWR)
                    self._strangers[arrived] = None
                threading.Thread(target=self._admit, args=(arrived,), daemon=True, name="silosynth-hub").start()
                del arrived  # a reference would keep the socket from being closed

    def _cut_revoked(self) -> None:
        with self._changed:
            connected = list(self._open)
        with contextlib.suppress(SilosynthError):  # a damaged list: nobody is let in any more
            for connection in connected:
                if self._revoked(connection.certificate):
                    connection.cut()

    def _admit(self, arrived: socket.socket) -> None:
        """Authenticate a connection, and serve a party until its connection ends."""
        connection = outbox = None
        try:
            connection = Connection(arrived, self._context, server=True, patience=self._patience)
            outbox = self._welcome(connection)
        except (OSError, SilosynthError):  # not one of our parties: there is nobody to report this to
            pass
        finally:
            with self._changed:
                self._strangers.pop(arrived)
        if connection is not None and outbox is not None:
            self._serve(connection, outbox)
        elif connection is not None:
            connection.finish()

    def _welcome(self, connection: Connection) -> Outbox | None:
        """Connect the party to its slot; or refuse it with the reason, and return None."""
        name, hello = connection.peer, connection.receive_greeting()
        kind = REFUSED
        if self._revoked(connection.certificate):
            why = f"the certificate of {name!r} is revoked"
        elif name not in self._slots:
            why = f"{name!r} does not take part"
        elif hello.kind != HELLO or hello.job != self._attempt:
            why = f"{name!r} belongs to another attempt, or another job"
        else:
            outbox = Outbox()
            outbox.put(Frame(WELCOME, "", 0, COORDINATOR))
            if self._take_slot(connection, self._slots[name], outbox):
                return outbox
            kind, why = BUSY, f"{name!r} is connected already"
        connection.send(Frame(kind, "", 0, COORDINATOR, why.encode()))
        return None

    def _take_slot(self, connection: Connection, slot: PartySlot, outbox: Outbox) -> bool:
        with self._changed:
            if slot.outbox is not None or self._stopped.is_set():
                return False
            slot.outbox, self._open[connection] = outbox, outbox
            if slot.owes and slot.asked is not None:
                outbox.put(slot.asked)
            self._changed.notify_all()
        return True

    def _serve(self, connection: Connection, outbox: Outbox) -> None:
        name = connection.peer
        slot = self._slots[name]
        sending = threading.Thread(target=_send_all, args=(connection, outbox), daemon=True, name="silosynth-hub")
        try:
            sending.start()
            while True:
                self._received(name, slot, connection.receive())
        except OSError:
            pass
        except MessageError as error:
            self._set_fault(slot, error)
        except Exception as error:
            self._set_fault(slot, ProtocolError(f"Silo {name!r} can be received from", type(error).__name__))
        finally:
            outbox.put(None)
            connection.close()
            self._disconnected(slot, outbox)
            with self._changed:
                del self._open[connection]
                self._changed.notify_all()


def _send_all(connection: Connection, outbox: Outbox) -> None:
    with contextlib.suppress(OSError):  # the receiving thread notices as well
        while (frame := outbox.get()) is not None:
            connection.send(frame)
    connection.end()


def serve_endpoint(
    endpoint: PartyEndpoint, *, address: str, certs: Certificates, patience: float = 10.0, attempt: str = "",
    allowed: Sequence[str] = (), revoked: Revoked = none_revoked,
) -> None:  # fmt: skip
    """Answer the coordinator at ``address`` until it says goodbye. Meant to be the only thing that its process does.

    If the coordinator is lost during a long computation the process exits with `EXIT_LOST`: nobody would read the
    answer, and the run continues from its checkpoint.

    Args:
        endpoint: the party's; its certificate must have the same name.
        address: host and port to dial.
        certs: the party's certificates.
        patience: seconds for which the coordinator may be unreachable.
        attempt: as in `StreamHub`.
        allowed: fingerprints that the coordinator's certificate may have; empty for any of the authority's.
        revoked: whether it counts no more.

    Raises:
        ProtocolError: the coordinator cannot be reached, refuses this party, or breaks the protocol.
    """
    uplink = _Uplink(endpoint.name, address, certs, patience, attempt, allowed, revoked)
    try:
        while (frame := uplink.receive()).kind != BYE:
            uplink.send(endpoint.handle(frame))
    finally:
        uplink.close()
        endpoint.settle()


class _Uplink:
    """The connection to the coordinator, dialled again when it breaks; receives in its own thread."""

    def __init__(
        self, name: str, address: str, certificates: Certificates, patience: float, attempt: str,
        allowed: Sequence[str], revoked: Revoked,
    ) -> None:  # fmt: skip
        self._address, self._patience, self._allowed, self._revoked = address, patience, allowed, revoked
        self._hello = Frame(HELLO, attempt, 0, name)
        self._context = ssl_context(certificates, server=False)
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
            ProtocolError: it is unreachable, or refuses this party.
        """
        received = self._inbox.get()
        if isinstance(received, SilosynthError):
            self._closed.set()
            raise received
        return received

    def send(self, frame: Frame) -> None:
        """Send a frame on the current connection; if that is broken, the coordinator will ask again."""
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
                if self._out_of_patience():
                    rule = f"The coordinator at {self._address} can be reached"
                    self._give_up(ProtocolError(rule, str(error)[:200], "Start the run again."))
                    return
            except Exception as error:  # a port that is not a number, an invalid host name
                rule = f"The coordinator at {self._address} can be dialled"
                self._give_up(ProtocolError(rule, type(error).__name__, "Check the address."))
                return
            self._closed.wait(_PAUSE)

    def _out_of_patience(self) -> bool:
        orphaned = os.getppid() != self._parent
        return orphaned or time.monotonic() - self._contact > self._patience

    def _talk(self) -> None:
        """Dial, and receive until the coordinator says goodbye.

        Raises:
            OSError: it is unreachable for now.
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
                self._connection, self._contact = None, time.monotonic()  # patience begins when the connection breaks

    def _dial(self) -> Connection:
        host, _, port = self._address.rpartition(":")
        dialled = socket.create_connection((host.strip("[]"), int(port)), handshake_seconds(self._patience))
        try:
            connection = Connection(dialled, self._context, server=False, patience=self._patience)
        except ssl.SSLCertVerificationError as error:
            raise self._foreign(error.verify_message) from error
        if connection.peer != COORDINATOR:
            connection.close()
            raise self._foreign(f"one for {connection.peer!r}")
        if self._allowed and not any(same_fingerprint(connection.shown, one) for one in self._allowed):
            connection.close()
            raise self._foreign(f"{connection.shown}, which this silo's policy does not allow")
        if self._revoked(connection.certificate):
            connection.close()
            raise self._foreign(f"{connection.shown}, which is revoked")
        return connection

    def _admitted(self, connection: Connection) -> None:
        try:
            first = connection.receive_greeting()
            kind, why = first.kind, bytes(first.body).decode("utf-8", "replace")
        except ssl.SSLError as error:  # under TLS 1.3 a certificate is refused after the handshake
            if "ALERT" not in str(error.reason):
                raise
            kind, why = REFUSED, str(error.reason)
        if kind == BUSY:
            raise ConnectionError(why)
        if kind != WELCOME:
            raise ProtocolError(f"The coordinator at {self._address} accepts this party", why or kind, _REMEDY)

    def _foreign(self, certificate: str) -> ProtocolError:
        rule = f"The coordinator at {self._address} has the coordinator's certificate from the same authority"
        return ProtocolError(rule, certificate, "Check the address, and where this party's certificates come from.")

    def _give_up(self, reason: SilosynthError) -> None:
        self._inbox.put(reason)
        if not self._closed.wait(_LINGER):  # computing: nobody will read the answer
            print(reason, file=sys.stderr, flush=True)
            os._exit(EXIT_LOST)
