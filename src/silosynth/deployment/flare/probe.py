"""Why a party cannot connect, in words: dial the coordinator with the kit's certificate and see what happens."""

from __future__ import annotations

import json
import socket
import ssl
from pathlib import Path

from silosynth.deployment.flare.site import ENGINE, Site

_SECONDS = 5.0


def why_not(place: Site) -> str:
    """A sentence on what is in the way, as far as it can be seen from here."""
    startup = place.kit / ENGINE / "startup"
    host, _, port = target(startup).rpartition(":")
    try:
        return _dial(host, int(port), startup)
    except ssl.SSLCertVerificationError as error:
        return f"the coordinator at {host}:{port} has a certificate of another provisioning ({error.verify_message})"
    except ssl.SSLError as error:
        return f"the coordinator at {host}:{port} does not accept this kit's certificate ({error.reason or error})"
    except ConnectionRefusedError:
        return f"nobody listens at {host}:{port}"
    except socket.gaierror:
        return f"the name {host!r} is not known here"
    except OSError as error:
        return f"{host}:{port} cannot be reached ({error.strerror or error})"


def target(startup: Path) -> str:
    """Where the coordinator is found, as ``host:port``."""
    config = json.loads((startup / "fed_client.json").read_text(encoding="utf-8"))
    return str(config["servers"][0]["service"]["target"])


def _dial(host: str, port: int, startup: Path) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # FLARE goes by the name in the certificate, not by the host's
    context.load_verify_locations(startup / "rootCA.pem")
    context.load_cert_chain(startup / "client.crt", startup / "client.key")
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((host, port), _SECONDS) as plain, context.wrap_socket(plain) as secure:
        secure.settimeout(1.0)
        try:
            if not secure.recv(1):  # whether our certificate is accepted shows with the first byte
                return f"the coordinator at {host}:{port} hangs up"
        except TimeoutError:
            pass
        return f"the coordinator at {host}:{port} is there and has not let us in yet"
