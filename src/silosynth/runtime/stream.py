"""The coordinator's end: one bidirectional gRPC stream per party, over mutual TLS. Parties dial in.

A party is whoever its certificate says. Its stream may break and come back: the frame that awaits an answer is sent
again, and the party, which remembers its last reply, does not compute twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import grpc

from silosynth.core.errors import MessageError, ProtocolError, SilosynthError, UnavailableError
from silosynth.core.roster import COORDINATOR
from silosynth.runtime.certificates import Certificates
from silosynth.runtime.frames import BYE, CRASHED, PIECE, REFUSED, WELCOME, Frame, Joiner
from silosynth.runtime.seats import Gathered, Lost, Seat, Stream

SERVICE, METHOD = "silosynth.v1.Stream", "Talk"
OPTIONS = (
    ("grpc.max_send_message_length", 2 * PIECE),
    ("grpc.max_receive_message_length", 2 * PIECE),
    ("grpc.so_reuseport", 0),
    ("grpc.enable_http_proxy", 0),
)
_GLANCE = 0.1  # seconds between looks at whether a silent party still lives


class Hub(grpc.GenericRpcHandler):
    """Listens for the parties called ``names`` and talks with them.

    Args:
        names: who may connect.
        certificates: the coordinator's.
        address: where to listen; port 0 lets the system choose.
        patience: seconds for which a party may be without a stream.

    Raises:
        UnavailableError: the address cannot be listened on.
    """

    _awaited: frozenset[str] = frozenset()  # whose answers would change what `gather` does next only together

    def __init__(
        self,
        names: Iterable[str],
        certificates: Certificates,
        address: str = "127.0.0.1:0",
        patience: float = 10.0,
    ) -> None:
        self._seats = {name: Seat() for name in names}
        self._late: list[Frame] = []
        self._patience = patience
        self._changed = threading.Condition()
        # A stream keeps a thread for as long as it lasts; the others tell strangers that they are not welcome.
        self._pool = ThreadPoolExecutor(max_workers=len(self._seats) + 4, thread_name_prefix="silosynth-hub")
        self._server = grpc.server(self._pool, handlers=[self], options=OPTIONS)
        credentials = grpc.ssl_server_credentials(
            [(certificates.key, certificates.certificate)], certificates.authority, require_client_auth=True
        )
        try:
            port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            self._pool.shutdown()
            raise UnavailableError("The coordinator can listen", address, "Choose another port.") from error
        self.address = f"{address.rpartition(':')[0]}:{port}"
        self._server.start()

    def dead(self, name: str) -> str | None:
        """Why a party is known to have ended, or None. A stream does not know."""
        return None

    def wait_for_all(self, seconds: float, dead: Callable[[str], str | None]) -> None:
        """Wait until every party is connected.

        Args:
            seconds: at most so long.
            dead: says why a party cannot come any more, or None.

        Raises:
            Lost: a party is dead or late.
        """
        until = time.monotonic() + seconds
        with self._changed:
            while missing := [name for name, seat in self._seats.items() if seat.stream is None]:
                for name in missing:
                    if reason := dead(name):
                        raise Lost(name, reason)
                if time.monotonic() > until:
                    raise Lost(missing[0], f"it did not connect within {seconds:g} s")
                self._changed.wait(_GLANCE)

    def gather(
        self,
        frames: Mapping[str, Frame],
        dead: Callable[[str], str | None],
        limit: float | None = None,
        missing: bool = False,
    ) -> Gathered:
        """Send each party its frame and wait until all have answered, or one has refused.

        A party that still owes an answer to an earlier frame is sent the new one once that has come in.

        Args:
            frames: what to send, by party.
            dead: says why a party is known to be dead, or None.
            limit: seconds for all to answer; None waits as long as they live.
            missing: do without who gets lost, and send nothing to who is lost already.

        Raises:
            Lost: a party died, stayed away or was too slow; not if ``missing``.
            SilosynthError: a party broke the protocol.
        """
        begun = time.monotonic()
        with self._changed:
            self._check_faults(frames)
            before = {name: why for name in frames if missing and (why := self._seats[name].lost) is not None}
            asked = {name: frame for name, frame in frames.items() if name not in before}
            lost: dict[str, str] = {}
            quiet = False
            while True:
                replies = self._replies(asked)
                lost = {name: why for name, why in lost.items() if name not in replies}  # back in time after all
                refused = any(frame.kind in (REFUSED, CRASHED) for frame in (*replies.values(), *self._late))
                if refused or len(replies) + len(lost) == len(asked):
                    late, self._late = [one for one in self._late if one is not replies.get(one.sender)], []
                    return Gathered(replies, lost, before, late)
                waited = [name for name in asked if name not in replies and name not in lost]
                self._awaited = frozenset(name for name in waited if self._seats[name].asked is asked[name])
                gone = self._look_after(waited, dead, begun, limit, quiet)
                if gone and not missing:
                    raise Lost(*next(iter(gone.items())))
                lost |= gone
                quiet = not gone and not self._changed.wait(_GLANCE)

    def lost(self) -> tuple[str, ...]:
        """Who is lost: given up by `gather`, and has not answered since."""
        with self._changed:
            return tuple(name for name, seat in self._seats.items() if seat.lost is not None)

    def stop(self) -> None:
        """Say goodbye and stop listening; may be called twice."""
        with self._changed:
            for seat in self._seats.values():
                if seat.stream is not None:
                    seat.stream.outbox.put(Frame(BYE, "", 0, COORDINATOR))
                    seat.stream.outbox.put(None)
        self._server.stop(grace=1.0).wait()
        self._pool.shutdown(wait=True)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """Part of gRPC: which function serves a method."""
        if details.method != f"/{SERVICE}/{METHOD}":
            return None
        return grpc.stream_stream_rpc_method_handler(self._talk)

    def _replies(self, asked: Mapping[str, Frame]) -> dict[str, Frame]:
        """Answers so far. Who owes none to an earlier frame is sent the new one."""
        replies = {}
        for name, frame in asked.items():
            seat = self._seats[name]
            if seat.asked is not frame and not seat.owes:
                seat.send(frame)
            elif seat.asked is frame and seat.reply is not None:
                replies[name] = seat.reply
        return replies

    def _check_faults(self, names: Iterable[str]) -> None:
        for name in names:
            if (fault := self._seats[name].fault) is not None:
                raise fault

    def _look_after(
        self, names: list[str], dead: Callable[[str], str | None], begun: float, limit: float | None, quiet: bool
    ) -> dict[str, str]:
        """Which of them are lost by now, and why. Unless it has been quiet, those are well who have a stream."""
        self._check_faults(names)
        gone, waited = {}, time.monotonic() - begun
        for name in names:
            seat = self._seats[name]
            if seat.stream is not None and not quiet:
                continue
            if (why := dead(name) or seat.why_lost(self._patience, waited, limit)) is not None:
                gone[name] = seat.lost = why
        return gone

    def _talk(self, pieces: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        name = _identity(context)
        seat = self._seats.get(name)
        if seat is None:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{name!r} does not take part")
        assert seat is not None
        stream = Stream()
        stream.outbox.put(Frame(WELCOME, "", 0, COORDINATOR))
        with self._changed:
            taken = seat.stream is not None
            if not taken:
                seat.stream = stream
                if seat.owes and seat.asked is not None:
                    stream.outbox.put(seat.asked)
                self._changed.notify_all()
        if taken:
            context.abort(grpc.StatusCode.ALREADY_EXISTS, f"{name!r} is connected already")
        if not context.add_callback(lambda: self._gone(seat, stream)):
            self._gone(seat, stream)
            return
        threading.Thread(target=self._listen, args=(name, seat, stream, pieces), daemon=True).start()
        yield from stream.pieces()

    def _listen(self, name: str, seat: Seat, stream: Stream, pieces: Iterator[bytes]) -> None:
        joiner = Joiner()
        try:
            for piece in pieces:
                frame = joiner.add(piece)
                if frame is not None:
                    self._heard(name, seat, frame)
        except MessageError as error:
            self._blame(seat, error)
        except Exception as error:  # gRPC raises a bare RpcError, or whatever ended the stream: all mean that it ended
            if not isinstance(error, grpc.RpcError):
                self._blame(seat, ProtocolError(f"Silo {name!r} can be listened to", type(error).__name__))
        finally:
            self._gone(seat, stream)

    def _heard(self, name: str, seat: Seat, frame: Frame) -> None:
        if frame.sender != name:
            raise MessageError(f"Silo {name!r} signs its frames with its own name", frame.sender)
        with self._changed:
            if not seat.expects(frame):
                if seat.repeats(frame):
                    return
                raise MessageError(f"Silo {name!r} answers what it was asked", f"step {frame.step}")
            if seat.reply is None:
                seat.reply = frame
                if seat.lost is not None:
                    seat.lost = None
                    self._late.append(frame)
                if self._matters(name, frame):
                    self._changed.notify_all()

    def _matters(self, name: str, frame: Frame) -> bool:
        """Whether `gather` has something to do now; one that still waits for others is not woken for nothing."""
        if name not in self._awaited or frame.kind in (REFUSED, CRASHED):
            return True
        self._awaited -= {name}
        return not self._awaited

    def _blame(self, seat: Seat, error: SilosynthError) -> None:
        with self._changed:
            seat.fault = error
            self._changed.notify_all()

    def _gone(self, seat: Seat, stream: Stream) -> None:
        stream.outbox.put(None)
        with self._changed:
            if seat.stream is stream:
                seat.stream, seat.since = None, time.monotonic()
                self._changed.notify_all()


def _identity(context: grpc.ServicerContext) -> str:
    """The common name in the certificate that the other side proved to own."""
    names: list[bytes] = list(context.auth_context().get("x509_common_name", []))  # type: ignore[arg-type]
    return names[0].decode("utf-8", "replace") if len(names) == 1 else ""
