"""What commands with a start kit share: the kit, the folders of its jobs, and lines with the time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from silosynth.commands.session import Session
from silosynth.core.errors import ConfigError, nearest

if TYPE_CHECKING:
    from silosynth.deployment import kits

COORDINATOR = "coordinator"  # `silosynth.core.conversation` would load PyTorch
KitFolder = Annotated[
    Path,
    typer.Option("--kit", "-k", help="This machine's start kit, from `silosynth provision`.", show_default="here"),
]


class LogFormat(str, Enum):
    """How a site that runs shows what happens."""

    TEXT = "text"
    JSON = "json"


Log = Annotated[LogFormat, typer.Option("--log", help="How events are shown, one line each.")]
JobName = Annotated[str, typer.Argument(metavar="JOB", help="A name that `silosynth status` shows.")]


def open_kit(folder: Path, coordinator: bool = False) -> kits.StartKit:
    """The start kit in a folder; ``coordinator``: only the coordinator's."""
    from silosynth.deployment.kits import read_kit

    site = read_kit(folder)
    if coordinator and site.name != COORDINATOR:
        raise ConfigError("The coordinator is started with its own kit", site.name, "Use: silosynth party start")
    return site


def job_folder(kit: kits.StartKit, name: str) -> Path:
    """The folder of a job on this machine.

    Raises:
        ConfigError: there is no such job.
    """
    known = sorted(path.name for path in kit.jobs.glob("*") if path.is_dir())
    if name not in known:
        raise ConfigError(f"There is no such job at {kit.name}", name, nearest(name, known))
    return kit.jobs / name


def local_time(text: str | None) -> str:
    """A time in this machine's zone."""
    return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S") if text else ""


def timed(ui: Session, kit: kits.StartKit | None = None, form: LogFormat = LogFormat.TEXT) -> Callable[[str], None]:
    """A function that shows lines with the time, as in a log; as JSON, one object a line, with the site."""
    if kit is None or form is LogFormat.TEXT:
        return lambda line: ui.note(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}")
    site, federation = kit.name, kit.federation

    def say(line: str) -> None:
        at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        level = "warning" if line.startswith("warning: ") else "info"
        record = {"at": at, "level": level, "site": site, "federation": federation, "message": line}
        ui.note(json.dumps(record, ensure_ascii=False))

    return say


def warn_of_site(kit: kits.StartKit, say: Callable[[str], None]) -> None:
    """Say that a certificate ends soon, and with which jobs the installed silosynth does not go on."""
    from silosynth.deployment import upgrades
    from silosynth.deployment.certificates import validity

    for warning in filter(None, (validity(kit).warning(time.time()), *upgrades.left_behind(kit.jobs))):
        say(f"warning: {warning}")
