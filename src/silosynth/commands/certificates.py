"""``silosynth certificate``: how long a site's certificate lasts, and a new one without a new kit."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from silosynth.commands.session import Session, add_command
from silosynth.commands.startkit import COORDINATOR, KitFolder, open_kit
from silosynth.core.files import read, write_atomic

if TYPE_CHECKING:
    from silosynth.deployment.kits import StartKit


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        help="Renew a site's certificate.", epilog="Example: silosynth certificate request --kit kits/bank"
    )
    add_command(group, "show", show, "Example: silosynth certificate show --kit kits/bank")
    add_command(group, "request", request, "Example: silosynth certificate request --kit kits/bank")
    add_command(group, "sign", sign, "Example: silosynth certificate sign bank.request --authority kits/authority")
    add_command(group, "install", install, "Example: silosynth certificate install bank.crt --kit kits/bank")
    app.add_typer(group, name="certificate", no_args_is_help=True)


Dispatcher = Annotated[
    bool, typer.Option("--dispatcher", help="At the coordinator: the certificate with which it starts jobs.")
]


def _holder(folder: Path, dispatcher: bool) -> StartKit:
    """Whose certificate it is."""
    site = open_kit(folder)
    return site.as_dispatcher() if dispatcher else site


def show(ui: Session, kit: KitFolder = Path()) -> None:
    """Say until when this site's certificate, and the authority's, are valid."""
    from silosynth.deployment.certificates import validity
    from silosynth.deployment.facts import instant

    known, now = validity(open_kit(kit)), time.time()
    ui.show(known.warning(now) or f"The certificate of {known.whose} ends on {instant(known.ends)[:10]}.")
    ui.facts |= {"ends": instant(known.ends), "whose": known.whose, "days_left": int(known.days_left(now))}


def request(
    ui: Session,
    kit: KitFolder = Path(),
    out: Annotated[Path, typer.Option("--out", "-o", help="The file for whoever provisions.")] = Path("site.request"),
    dispatcher: Dispatcher = False,
) -> None:
    """Draw a new key in this site's kit, and ask for a certificate of it. The old ones stay in use until `install`."""
    from silosynth.deployment import certificates

    write_atomic(out, certificates.request(_holder(kit, dispatcher)))
    ui.show(f"Send {out} to whoever provisions: it holds no secret.\nThen: silosynth certificate install CERTIFICATE")
    ui.facts |= {"request": out}


def sign(
    ui: Session,
    asked: Annotated[Path, typer.Argument(metavar="REQUEST", help="What a site has asked for.")],
    authority: Annotated[Path, typer.Option("--authority", help="The folder of the authority's key.")] = Path(
        "kits/authority"
    ),
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The certificate.", show_default="NAME.crt")] = None,
) -> None:
    """Issue the certificate that a site asks for with the key of its valid one."""
    from silosynth.deployment import certificates

    name, pem = certificates.issue(read(asked), authority, time.time())
    place = out or Path(f"{name}.crt")
    write_atomic(place, pem)
    ui.show(f"A certificate for {name}: {place}. Send it back; it holds no secret.")
    ui.facts |= {"site": name, "certificate": place}


def install(
    ui: Session,
    certificate: Annotated[Path, typer.Argument(metavar="CERTIFICATE", help="What whoever provisions sent back.")],
    kit: KitFolder = Path(),
    dispatcher: Dispatcher = False,
) -> None:
    """Put the new certificate and its key in place of those in use; then start the site anew."""
    from silosynth.deployment import certificates
    from silosynth.deployment.facts import instant

    site = _holder(kit, dispatcher)
    known = certificates.install(site, read(certificate))
    ui.show(f"Valid until {instant(known.ends)[:10]}. Start this site anew for it to count.")
    if site.name == COORDINATOR:
        ui.show(f'Silos whose policy lists coordinators need: allow_coordinators = ["{site.fingerprint()}"]')
    ui.facts |= {"ends": instant(known.ends), "fingerprint": site.fingerprint()}
