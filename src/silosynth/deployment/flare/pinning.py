"""Which coordinator a silo's engine connects to, where the silo's policy names certificates (`allow_coordinators`).

FLARE trusts every certificate of the federation's authority that was issued for the coordinator's address. It asks one
function for the credentials of a connection. `pin` puts another in its place: at each attempt to connect, that one
fetches the certificate which the coordinator shows, compares its fingerprint, and trusts that certificate alone, in
place of the authority. Whoever passes this check on to the true coordinator, and then shows a certificate of his own,
fails the handshake. So nothing arrives from him, in a site's main process or in those of jobs.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from ssl import DER_cert_to_PEM_cert
from typing import Any

from silosynth.core.errors import ProtocolError
from silosynth.core.files import read
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


def pin(kit: Path, say: Callable[[str], None] = lambda line: None) -> None:
    """Have this process's engine connect to allowed coordinators alone; ``say`` is told once of each other."""
    if not (allowed := allowed_coordinators(kit)):
        return
    from nvflare.fuel.f3.drivers import aio_grpc_driver, grpc_driver

    trusted, refused = grpc_driver.get_grpc_client_credentials, set[str]()

    def credentials(params: dict[str, Any]) -> Any:
        try:
            shown = _allowed(params, allowed)
        except ProtocolError as error:
            if str(error) not in refused:
                refused.add(str(error))
                say(str(error))
            raise
        with tempfile.TemporaryDirectory(prefix="silosynth-") as folder:  # FLARE reads certificates from files
            path = Path(folder) / "coordinator.pem"
            path.write_text(DER_cert_to_PEM_cert(shown), encoding="ascii")
            return trusted({**params, "ca_cert": str(path)})

    for driver in (grpc_driver, aio_grpc_driver):
        driver.get_grpc_client_credentials = credentials


def _allowed(params: dict[str, Any], allowed: Sequence[str]) -> bytes:
    """The certificate that the coordinator shows, in DER form.

    Raises:
        ProtocolError: the policy does not name it; or there is none.
    """
    own = Certificates(*(read(params[name]) for name in ("ca_cert", "client_cert", "client_key")))
    shown = dialled_certificate(str(params["host"]), int(params["port"]), own)
    if not any(same_fingerprint(fingerprint(shown), one) for one in allowed):
        raise ProtocolError(
            f"The coordinator has a certificate that {POLICY} lists under {KEY}", fingerprint(shown),
            "Do not trust it; or add its fingerprint, if whoever runs the coordinator confirms it.",
        )  # fmt: skip
    return shown
