"""Whose certificates a site's engine works with: none that is revoked (`silosynth.deployment.revoked`), and at a silo
whose policy names some (`allow_coordinators`) only these.

FLARE trusts every certificate of the federation's authority that was issued for the coordinator's address. It asks one
function for the credentials of a connection. `pin` puts another in its place: at each attempt to connect, that one
fetches the certificate which the coordinator shows, compares its fingerprint, and trusts that certificate alone, in
place of the authority. Whoever passes this check on to the true coordinator, and then shows a certificate of his own,
fails the handshake. So nothing arrives from him, in a site's main process or in those of jobs.

At the coordinator `turn_away` looks at the certificate of each connection before FLARE does, and closes those that are
open when their certificate is revoked.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from ssl import DER_cert_to_PEM_cert
from typing import Any
from weakref import WeakKeyDictionary

from cryptography import x509
from cryptography.x509.oid import NameOID

from silosynth.core.errors import ProtocolError, StorageError
from silosynth.core.files import read
from silosynth.deployment.flare.site import ENGINE, operator_name, target
from silosynth.deployment.revoked import Revoked, der
from silosynth.runtime.tls import Certificates, dialled_certificate, fingerprint, same_fingerprint

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

POLICY, KEY = "policy.toml", "allow_coordinators"


def allowed_coordinators(kit: Path) -> list[str]:
    """The fingerprints in a kit's policy; the policy as a whole is read, and checked, when a job opens."""
    policy = kit / POLICY
    return list(tomllib.loads(policy.read_text(encoding="utf-8-sig")).get(KEY, [])) if policy.exists() else []


def pin(kit: Path, revoked: Revoked, say: Callable[[str], None] = lambda line: None) -> None:
    """Have this process's engine connect to allowed coordinators alone; ``say`` is told once of each other."""
    allowed = allowed_coordinators(kit)
    from nvflare.fuel.f3.drivers import aio_grpc_driver, grpc_driver

    trusted, tell = grpc_driver.get_grpc_client_credentials, partial(_say_once, set[str](), say)

    def credentials(params: dict[str, Any]) -> Any:
        if not allowed and not revoked.any():
            return trusted(params)
        try:
            shown = _allowed(params, allowed, revoked)
        except ProtocolError as error:
            tell(str(error))
            raise
        with tempfile.TemporaryDirectory(prefix="silosynth-") as folder:  # FLARE reads certificates from files
            path = Path(folder) / "coordinator.pem"
            path.write_text(DER_cert_to_PEM_cert(shown), encoding="ascii")
            return trusted({**params, "ca_cert": str(path)})

    for driver in (grpc_driver, aio_grpc_driver):
        driver.get_grpc_client_credentials = credentials


def leave_revoked(kit: Path, revoked: Revoked, say: Callable[[str], None]) -> Callable[[], None]:
    """A function that ends this process, so that its site starts another, once the coordinator is revoked."""
    startup = kit / ENGINE / "startup"
    own = Certificates(*(read(startup / name) for name in ("rootCA.pem", "client.crt", "client.key")))
    host, _, port = target(startup).rpartition(":")
    with suppress(StorageError):
        revoked.any()
    compared = revoked.number  # this process connects by it: only a later list can concern its connections

    def look() -> None:
        nonlocal compared
        if not revoked.any() or revoked.number == compared:
            return
        with suppress(ProtocolError):  # it is away: compared later
            shown = dialled_certificate(host, int(port), own)
            compared = revoked.number
            if revoked(shown):
                say(str(revoked.refusal("the coordinator", shown)))
                os._exit(1)

    return look


def _say_once(said: set[str], say: Callable[[str], None], line: str) -> None:
    if line not in said:
        said.add(line)
        say(line)


def _allowed(params: dict[str, Any], allowed: Sequence[str], revoked: Revoked) -> bytes:
    """The certificate that the coordinator shows, in DER form.

    Raises:
        ProtocolError: it is revoked, or the policy does not name it; or there is none.
    """
    own = Certificates(*(read(params[name]) for name in ("ca_cert", "client_cert", "client_key")))
    shown = dialled_certificate(str(params["host"]), int(params["port"]), own)
    if revoked(shown):
        raise revoked.refusal("the coordinator", shown)
    if allowed and not any(same_fingerprint(fingerprint(shown), one) for one in allowed):
        raise ProtocolError(
            f"The coordinator has a certificate that {POLICY} lists under {KEY}", fingerprint(shown),
            "Do not trust it; or add its fingerprint, if whoever runs the coordinator confirms it.",
        )  # fmt: skip
    return shown


def turn_away(revoked: Revoked, say: Callable[[str], None]) -> Callable[[], None]:
    """Have this process's engine refuse connections of revoked certificates; ``say`` is told once of each.

    Returns a function that closes those that are open already.
    """
    from nvflare.fuel.f3.drivers.base_driver import BaseDriver

    add, opened, tell = BaseDriver.add_connection, WeakKeyDictionary[Any, bytes](), partial(_say_once, set[str](), say)

    def add_connection(driver: Any, connection: Any) -> None:
        shown = _shown_by(connection)
        if shown is not None and revoked(shown):
            error = revoked.refusal(_owner(shown), shown)
            tell(f"refused a connection: {error}")
            raise error
        if shown is not None:
            opened[connection] = shown
        add(driver, connection)

    def close_revoked() -> None:
        for connection, shown in list(opened.items()):
            if revoked(shown):
                tell(f"closed a connection: {revoked.refusal(_owner(shown), shown)}")
                connection.close()

    BaseDriver.add_connection = add_connection
    return close_revoked


def _shown_by(connection: Any) -> bytes | None:
    """The certificate of the other side of a connection that it has opened to us, in DER form; None of any other."""
    context = getattr(connection, "context", None)
    shown = None if context is None else context.auth_context().get("x509_pem_cert")
    return der(bytes(shown[0])) if shown else None


def _owner(certificate: bytes) -> str:
    """The name in a certificate."""
    found = x509.load_der_x509_certificate(certificate).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return operator_name(str(found[0].value)) if found else "somebody"
