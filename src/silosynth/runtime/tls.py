"""Mutual TLS 1.3: certificates, and one connection over which frames travel between two sides that proved their names.

A party's identity is the common name of its certificate. For a run on one machine an `Authority` issues throw-away
certificates; its own key is never written and dies with the run.

TLS works on memory here and the socket carries what it produces: one thread can then send while another waits to
receive (two threads must not use one TLS object at the same time), and a frame takes a few system calls instead of two
per 16 KB.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import ipaddress
import os
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from silosynth.core.conversation import COORDINATOR
from silosynth.core.errors import ProtocolError
from silosynth.core.files import read
from silosynth.runtime.hub import Frame, read_frame

_LIFE = datetime.timedelta(days=30)
_SKEW = datetime.timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Certificates:
    """What one side needs to prove its identity and check the other's: three PEM texts."""

    authority: bytes
    certificate: bytes
    key: bytes

    def write(self, folder: Path) -> None:
        """Write the three files; only the owner can read the key."""
        (folder / "ca.pem").write_bytes(self.authority)
        (folder / "cert.pem").write_bytes(self.certificate)
        with os.fdopen(os.open(folder / "key.pem", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(self.key)

    @classmethod
    def read(cls, folder: Path) -> Certificates:
        """The certificates that `write` wrote.

        Raises:
            StorageError: a file is missing.
        """
        return cls(read(folder / "ca.pem"), read(folder / "cert.pem"), read(folder / "key.pem"))


class Authority:
    """Signs certificates for one run. Keys come from the operating system's random source."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("silosynth run")
        self._certificate = (
            _builder(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def coordinator(self) -> Certificates:
        """For the side that listens, on this machine only."""
        hosts = x509.SubjectAlternativeName(
            [x509.DNSName("localhost"), x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))]
        )
        return self._issue(COORDINATOR, ExtendedKeyUsageOID.SERVER_AUTH, hosts)

    def party(self, name: str) -> Certificates:
        """For the party called ``name``, which dials out."""
        return self._issue(name, ExtendedKeyUsageOID.CLIENT_AUTH, None)

    def _issue(
        self, name: str, usage: x509.ObjectIdentifier, hosts: x509.SubjectAlternativeName | None
    ) -> Certificates:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(_name(name), self._name, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
        )
        if hosts is not None:
            builder = builder.add_extension(hosts, critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        return Certificates(_pem(self._certificate), _pem(signed), _private(key))


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _LIFE)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def fingerprint(certificate: bytes) -> str:
    """SHA-256 of a certificate in DER form, in hexadecimal."""
    return hashlib.sha256(certificate).hexdigest()


def same_fingerprint(one: str, other: str) -> bool:
    """Whether two fingerprints are equal, however they are written: "AB:CD…", as openssl does, or "abcd…"."""
    return one.replace(":", "").lower() == other.replace(":", "").lower()


def dialled_certificate(host: str, port: int, certificates: Certificates) -> bytes:
    """The certificate that a server shows, in DER form; it must be from the same authority.

    Raises:
        ProtocolError: the server cannot be reached, or its certificate is from another authority.
    """
    context = ssl_context(certificates, server=False)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # the engine's port, whose settings are not ours
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection((host, port), _DIAL) as plain, context.wrap_socket(plain) as secure:
            return secure.getpeercert(binary_form=True) or b""
    except ssl.SSLError as error:
        raise ProtocolError(
            "The coordinator shows a certificate of this federation", f"{host}:{port}, {error.reason}",
            "It comes from another provisioning, or somebody else answers there.",
        ) from error  # fmt: skip
    except OSError as error:
        raise ProtocolError(
            "The coordinator can be reached", f"{host}:{port}, {type(error).__name__}",
            "Start it, or open the way to its port: this site calls it, and it calls nobody.",
        ) from error  # fmt: skip


_DIAL = 5.0  # seconds
_GREETING = 1 << 16  # maximum bytes of a first frame
_LINGER = 1.0  # seconds for the other side to read the last frame
_IN, _OUT = 1 << 18, 1 << 16  # bytes read, and sent, at once
_RECORD = 1 << 14  # bytes of a TLS record: the most that one call reads or writes


def handshake_seconds(patience: float) -> float:
    """Seconds for each of connecting, the TLS handshake and the first frame: together they fit the patience."""
    return min(10.0, max(1.0, patience / 3))


def ssl_context(certificates: Certificates, server: bool) -> ssl.SSLContext:
    """TLS settings of both ends: TLS 1.3, and a certificate from the same authority, issued for its side's use.

    Names are checked by the connection's user: an address does not identify a silo.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificates.authority.decode("ascii"))
    if server:
        context.num_tickets = 0  # sessions are never resumed
    with tempfile.TemporaryDirectory(prefix="silosynth-") as folder:  # OpenSSL reads keys from files only
        certificates.write(Path(folder))
        context.load_cert_chain(Path(folder) / "cert.pem", Path(folder) / "key.pem")
    return context


class Connection:
    """A connected socket under TLS. One thread may send while another receives; any may close.

    Args:
        sock: connected; owned by the connection from now on, and closed if this fails.
        context: see `ssl_context`.
        server: whether this side accepted the connection.
        patience: seconds without anything arriving after which the connection counts as broken, where the system can
            tell. The other side has a third of it for the handshake, and as much for its first frame.

    Attributes:
        peer: the common name in the other side's verified certificate; empty if there are several.
        certificate: that certificate, in DER form.
        shown: its fingerprint.

    Raises:
        OSError: the other side is gone, silent, or fails authentication (`ssl.SSLError`).
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, server: bool, patience: float) -> None:
        self._socket = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server)
        self._tls_lock, self._sending = threading.Lock(), threading.Lock()  # for the TLS object; for sending
        self._buffer = bytearray(_IN)
        self._timeout, self._deadline = handshake_seconds(patience), 0.0  # seconds; deadline
        try:
            _set_options(sock, patience)
            self._handshake()
            self.peer = _common_name(self._tls.getpeercert())
            self.certificate = self._tls.getpeercert(binary_form=True) or b""
            self.shown = fingerprint(self.certificate)
        except BaseException:
            self.finish()
            raise

    def send(self, frame: Frame) -> None:
        """Send a frame; waits while the other side does not read it.

        Raises:
            OSError: the connection is broken.
        """
        with self._sending:
            for part in (frame.header(), frame.body):
                view = memoryview(part)
                for start in range(0, len(view), _OUT):
                    self._socket.sendall(self._encrypted(view[start : start + _OUT]))

    def receive_greeting(self) -> Frame:
        """The first frame, which is small and comes soon; nobody may send meanwhile.

        Raises:
            OSError: it does not come.
            MessageError: the bytes are not a frame, or a large one.
        """
        with self._time_limit():
            return read_frame(self._take, _GREETING)

    def receive(self) -> Frame:
        """The next frame.

        Raises:
            OSError: the connection has ended, or is broken.
            MessageError: the bytes are not a frame.
        """
        return read_frame(self._take)

    def end(self) -> None:
        """Send nothing more. The other side does the same once it has read everything."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def finish(self) -> None:
        """Send nothing more, and close once the other side has read everything, or after a moment."""
        self.end()
        until = time.monotonic() + _LINGER
        with contextlib.suppress(OSError):
            self._socket.settimeout(_LINGER)
            while self._socket.recv_into(self._buffer) and time.monotonic() < until:
                pass
        self.close()

    def cut(self) -> None:
        """End the connection at once; threads that are sending or receiving get an error."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Cut the connection, and close the socket once no thread is sending."""
        self.cut()
        with self._sending:
            self._socket.close()

    @contextlib.contextmanager
    def _time_limit(self) -> Iterator[None]:
        self._deadline = time.monotonic() + self._timeout
        yield
        self._deadline = 0.0
        self._socket.settimeout(None)

    def _handshake(self) -> None:
        with self._time_limit():
            while True:
                try:
                    self._tls.do_handshake()
                except ssl.SSLWantReadError:
                    self._flush()
                    self._receive_more()
                except ssl.SSLError:
                    with contextlib.suppress(OSError):
                        self._flush()  # sends the alert that says why
                    raise
                else:
                    return self._flush()

    def _encrypted(self, view: memoryview) -> bytes:
        with self._tls_lock:
            for start in range(0, len(view), _RECORD):
                self._tls.write(view[start : start + _RECORD])
            return self._outgoing.read()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._socket.sendall(self._outgoing.read())

    def _take(self, size: int) -> bytearray:
        """Exactly ``size`` bytes. Memory grows with what has arrived, whatever length was announced."""
        taken, filled = bytearray(min(size, _IN)), 0
        while filled < size:
            if filled == len(taken):
                taken.extend(bytes(min(size - filled, filled)))
            with memoryview(taken) as view:
                filled += self._read(view[filled:])
        return taken

    def _read(self, view: memoryview) -> int:
        """Fill as much as possible; at least one byte."""
        filled = 0
        while True:
            try:
                with self._tls_lock:
                    while filled < len(view):
                        got = self._tls.read(len(view) - filled, view[filled:])
                        if not got:
                            raise ConnectionError("the stream ended")
                        filled += cast("int", got)  # the number of bytes now in the view
                return filled
            except ssl.SSLWantReadError:
                if filled:
                    return filled
                self._receive_more()

    def _receive_more(self) -> None:
        if self._deadline:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("the other side takes too long")
            self._socket.settimeout(left)
        got = self._socket.recv_into(self._buffer)
        if not got:
            raise ConnectionError("the stream ended")
        with self._tls_lock:
            self._incoming.write(memoryview(self._buffer)[:got])


def _set_options(sock: socket.socket, patience: float) -> None:
    """Send small frames at once, and notice a cut connection within ``patience``, not within hours."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if ipaddress.ip_address(sock.getpeername()[0].partition("%")[0]).is_loopback:
        return  # cannot be cut; and a process that is suspended for a while is not a broken connection
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    every = max(1, round(patience / 4))
    settings = {
        "TCP_KEEPIDLE": every, "TCP_KEEPALIVE": every,  # the same option on different systems
        "TCP_KEEPINTVL": every, "TCP_KEEPCNT": 2, "TCP_USER_TIMEOUT": 3000 * every,
    }  # fmt: skip
    for name, value in settings.items():
        if hasattr(socket, name):
            with contextlib.suppress(OSError):  # a system may know the name but not the option
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _common_name(certificate: Mapping[str, Any] | None) -> str:
    subject = (certificate or {}).get("subject", ())
    names = [value for part in subject for key, value in part if key == "commonName"]
    return names[0] if len(names) == 1 else ""
