"""A site's folders, and the constants that its processes share."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from silosynth.core.errors import StorageError
from silosynth.core.files import read, storage_error
from silosynth.deployment.revoked import Revoked

ENGINE = "engine"
"""The folder of FLARE's own start kit within an organisation's kit."""
LOG = "log.txt"
MAIL = "@operators.silosynth"
"""FLARE identifies operators by mail addresses; nothing is ever sent there."""
ROLE = "lead"

KIT, WORKSPACE, NOTICES = "SILOSYNTH_KIT", "SILOSYNTH_WORKSPACE", "SILOSYNTH_NOTICES"
"""Environment variables that a daemon sets for its processes: folders, and a file descriptor for one-line notices."""
ENTRY = "SILOSYNTH_ENTRY"
"""Environment variable of a site: the ``module:function`` that its job processes run instead of silosynth's."""
CONNECTED, REFUSED = "connected", "the coordinator refuses this party"
"""Notices that a party's daemon looks for."""
COORDINATE = "silosynth.deployment.entry:coordinate"
ANSWERER = "silosynth.deployment.entry:answerer"
_MOVED = {
    "silosynth.runtime.flare.launchers": "silosynth.deployment.flare.engine",
    "silosynth.runtime.flare": "silosynth.deployment.flare",
}
"""Modules that kits written by earlier releases name, and where they are now: nobody has to be handed a new kit."""


@dataclass(frozen=True, slots=True)
class Site:
    """An organisation's folders.

    Attributes:
        kit: its start kit; never written to.
        workspace: everything it writes: the engine's files below ``engine``, the rest is the caller's.
    """

    kit: Path
    workspace: Path

    @property
    def root(self) -> Path:
        """FLARE's working folder: a copy of its kit, its logs, its jobs."""
        return self.workspace / ENGINE

    @property
    def log(self) -> Path:
        """The log of FLARE's main process of this site."""
        return self.root / LOG

    def check(self) -> None:
        """Check that there is a kit.

        Raises:
            StorageError: there is none.
        """
        if not (self.kit / ENGINE / "startup").is_dir():
            raise StorageError("The folder holds a start kit", str(self.kit), "Write it with `silosynth provision`.")

    def prepare(self) -> None:
        """Copy FLARE's part of the kit to FLARE's working folder. Files of earlier jobs stay.

        Raises:
            StorageError: the workspace cannot be written.
        """
        try:
            self.root.chmod(0o700)
            for part in ("startup", "local"):
                shutil.rmtree(self.root / part, ignore_errors=True)
                shutil.copytree(self.kit / ENGINE / part, self.root / part)
            (self.root / "transfer").mkdir(exist_ok=True)
            for path in (self.root / "local").iterdir():
                text = path.read_text(encoding="utf-8").replace("{root}", json.dumps(str(self.root))[1:-1])
                for before, now in _MOVED.items():
                    text = text.replace(before, now)
                path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise storage_error(error, "written", self.root) from error


def site_of(kit: Path | str, workspace: Path | str | None = None) -> Site:
    """The site of a kit; its workspace is ``kit/work`` if none is given."""
    kit = Path(kit).absolute()
    return Site(kit, kit / "work" if workspace is None else Path(workspace).absolute())


def this_site() -> Site:
    """The site that this job process belongs to."""
    return Site(Path(os.environ[KIT]), Path(os.environ[WORKSPACE]))


def revoked_at(place: Site) -> Revoked:
    """Tells which certificates count no more, by the list that a site keeps."""
    return Revoked(place.workspace, lambda: read(place.kit / ENGINE / "startup" / "rootCA.pem"))


def target(startup: Path) -> str:
    """The coordinator's address, as ``host:port``."""
    config = json.loads((startup / "fed_client.json").read_text(encoding="utf-8"))
    return str(config["servers"][0]["service"]["target"])


def operator_mail(operator: str) -> str:
    """The name by which FLARE identifies an operator."""
    return operator if "@" in operator else operator + MAIL


def operator_name(mail: str) -> str:
    """The operator's name as it was provisioned."""
    return mail.removesuffix(MAIL)
