"""The coordinator's end: one bidirectional gRPC stream per party, over mutual TLS. Parties dial in.

A party is whoever its certificate says. Its stream may break and come back: the frame that awaits an answer is sent
again, and the party, which remembers its last reply, does not compute twice.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc

from silosynth.core.errors import MessageError, ProtocolError, UnavailableError
from silosynth.core.roster import COORDINATOR
from silosynth.runtime.certificates import Certificates
from silosynth.runtime.frames import BYE, PIECE, WELCOME, Frame, Joiner
from silosynth.runtime.hub import Hub
from silosynth.runtime.seats import Seat, Stream

SERVICE, METHOD = "silosynth.v1.Stream", "Talk"
ATTEMPT = "silosynth-attempt"
"""Under this key parties say, when they dial, which attempt at a job they belong to."""
OPTIONS = (
    ("grpc.max_send_message_length", 2 * PIECE),
    ("grpc.max_receive_message_length", 2 * PIECE),
    ("grpc.so_reuseport", 0),
    ("grpc.enable_http_proxy", 0),
)


class StreamHub(Hub, grpc.GenericRpcHandler):
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

    def _talk(self, pieces: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        name = _identity(context)
        seat = self._seats.get(name)
        if seat is None:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{name!r} does not take part")
        if dict(context.invocation_metadata()).get(ATTEMPT, "") != self._attempt:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{name!r} is of another attempt, or another job")
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

    def _gone(self, seat: Seat, stream: Stream) -> None:
        stream.outbox.put(None)
        self._left(seat, stream)


def _identity(context: grpc.ServicerContext) -> str:
    """The common name in the certificate that the other side proved to own."""
    names: list[bytes] = list(context.auth_context().get("x509_common_name", []))  # type: ignore[arg-type]
    return names[0].decode("utf-8", "replace") if len(names) == 1 else ""
