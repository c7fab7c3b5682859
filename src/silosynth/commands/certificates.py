"""``silosynth certificate``: keys that sites draw, certificates that the authority issues, renews and revokes."""

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
    what = "Draw a site's keys, renew its certificate, and revoke certificates."
    group = typer.Typer(help=what, epilog="Example: silosynth certificate request --kit kits/bank")
    add_command(group, "show", show, "Example: silosynth certificate show --kit kits/bank")
    add_command(group, "request", request, "Example: silosynth certificate request --name bank --out bank.request")
    add_command(group, "sign", sign, "Example: silosynth certificate sign bank.request --authority kits/authority")
    add_command(group, "install", install, "Example: silosynth certificate install bank.crt --kit kits/bank")
    add_command(group, "list", list_, "Example: silosynth certificate list --authority kits/authority")
    add_command(group, "revoke", revoke, "Example: silosynth certificate revoke bank --authority kits/authority")
    app.add_typer(group, name="certificate", no_args_is_help=True)


Dispatcher = Annotated[
    bool, typer.Option("--dispatcher", help="At the coordinator: the certificate with which it starts jobs.")
]


def _holder(folder: Path, dispatcher: bool) -> StartKit:
    """Whose certificate it is."""
    site = open_kit(folder)
    return site.as_dispatcher() if dispatcher else site


AuthorityFolder = Annotated[Path, typer.Option("--authority", help="The folder of the authority's key.")]
_AUTHORITY = Path("kits/authority")


def show(ui: Session, kit: KitFolder = Path()) -> None:
    """Say until when this site's certificate, and the authority's, are valid, and which list of revoked ones it has."""
    from silosynth.deployment.certificates import validity
    from silosynth.deployment.facts import instant

    site, now = open_kit(kit), time.time()
    known, revoked = validity(site), site.revocations()
    ui.show(known.warning(now) or f"The certificate of {known.whose} ends on {instant(known.ends)[:10]}.")
    ui.show("No list of revoked certificates." if revoked is None else f"Revoked: {revoked.in_words(now)}.")
    ui.facts |= {"ends": instant(known.ends), "whose": known.whose, "days_left": int(known.days_left(now))}
    ui.facts["revoked"] = None if revoked is None else {"number": revoked.number, "made": revoked.made.isoformat()}


def request(
    ui: Session,
    kit: KitFolder = Path(),
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="For whoever provisions.", show_default="NAME.request")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="Of a site that has no kit yet: silo, operator, coordinator, dispatcher."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--key", help="Where its key is written, with --name.", show_default="NAME.key")
    ] = None,
    dispatcher: Dispatcher = False,
) -> None:
    """Draw this site's own key, and ask for a certificate of it: the first one with --name, else the next one.

    Keys and certificates in use stay so until `install`.
    """
    from silosynth.deployment import certificates

    if name is not None:
        place, own = out or Path(f"{name}.request"), key or Path(f"{name}.key")
        asked, digest = certificates.first_request(name, own)
        write_atomic(place, asked)
        ui.show(
            f"Send {place} to whoever provisions: it holds no secret. Keep {own}.\n"
            f"Tell them by another way that your key has SHA-256 {digest}\n"
            f"With the kit: silosynth certificate install {own} --kit KIT"
        )
        ui.facts |= {"request": place, "key": own, "sha256": digest}
        return
    place = out or Path("site.request")
    write_atomic(place, certificates.request(_holder(kit, dispatcher)))
    ui.show(f"Send {place} to whoever provisions: it holds no secret.\nThen: silosynth certificate install CERTIFICATE")
    ui.facts |= {"request": place}


def sign(
    ui: Session,
    asked: Annotated[Path, typer.Argument(metavar="REQUEST", help="What a site has asked for.")],
    authority: AuthorityFolder = _AUTHORITY,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The certificate.", show_default="NAME.crt")] = None,
) -> None:
    """Issue the certificate that a site asks for with the key of its valid one. First ones come with the kit."""
    from silosynth.deployment.flare.authority import renew

    name, pem = renew(read(asked), authority, time.time())
    place = out or Path(f"{name}.crt")
    write_atomic(place, pem)
    ui.show(f"A certificate for {name}: {place}. Send it back; it holds no secret.")
    ui.facts |= {"site": name, "certificate": place}


def install(
    ui: Session,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A certificate, a list of revoked ones, or this site's key.")
    ],
    kit: KitFolder = Path(),
    dispatcher: Dispatcher = False,
) -> None:
    """Put into the kit what belongs there: a new certificate, a list of revoked ones, or the key that this site drew.

    A new certificate counts from when the site is started anew, a list at once.
    """
    from silosynth.deployment import certificates
    from silosynth.deployment.facts import instant

    site, content = _holder(kit, dispatcher), read(file)
    if b"X509 CRL" in content:
        kept = certificates.put_list(site, content)
        ui.show("This site has a list as new." if kept is None else f"Kept: {kept.in_words(time.time())}.")
        ui.facts |= {"number": None if kept is None else kept.number}
        return
    if b"PRIVATE KEY" in content:
        digest = certificates.put_key(site, content)
        ui.show(f"The key is in the kit; its SHA-256 is {digest}")
        ui.facts |= {"sha256": digest}
        return
    known = certificates.install(site, content)
    ui.show(f"Valid until {instant(known.ends)[:10]}. Start this site anew for it to count.")
    if site.name == COORDINATOR:
        ui.show(f'Silos whose policy lists coordinators need: allow_coordinators = ["{site.fingerprint()}"]')
    ui.facts |= {"ends": instant(known.ends), "fingerprint": site.fingerprint()}


def list_(ui: Session, authority: AuthorityFolder = _AUTHORITY) -> None:
    """List the certificates that an authority has issued."""
    from silosynth.deployment.facts import instant
    from silosynth.deployment.flare.authority import issued_by

    now = time.time()
    found = [
        (
            one.name,
            f"{one.serial:x}",
            instant(one.ends)[:10],
            "revoked" if one.revoked else "expired" if one.ends < now else "",
        )
        for one in issued_by(authority)
    ]
    ui.table("Certificates", ("of", "number", "ends", ""), found)
    ui.facts["certificates"] = [dict(zip(("name", "number", "ends", "state"), one, strict=True)) for one in found]


def revoke(
    ui: Session,
    whose: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME|NUMBER]...",
            help="All certificates of a name, or one by its number in `list`.",
            show_default=False,
        ),
    ] = None,
    authority: AuthorityFolder = _AUTHORITY,
    out: Annotated[Path, typer.Option("--out", "-o", help="The list.")] = Path("revoked.crl"),
) -> None:
    """Sign a new list of certificates that count no more. Without a name it is only of a later date."""
    from silosynth.deployment.flare.authority import revoke as sign_list

    made = sign_list(authority, whose or [], time.time())
    write_atomic(out, made.pem)
    ui.show(
        f"{out}: {made.in_words(time.time())}. It holds no secret.\n"
        "It counts at each site where it is installed: silosynth certificate install revoked.crl --kit KIT\n"
        "The coordinator passes it on to silos with the next job. If it revokes the coordinator, give it to silos."
    )
    ui.facts |= {"list": out, "number": made.number, "revoked": len(made.serials)}
