"""Start kits: keys, certificates and rights of the coordinator, the parties and the operators.

FLARE's own provisioning issues the certificates; what it says about rights, classes and storage, the files in a kit's
``local`` folder, is replaced. FLARE's defaults let lead users push code and stop other sites. Here nobody may bring
code, run shell commands or stop a site; operators may submit, abort their own jobs, and look. Whoever holds the
authority's key can issue certificates: it stays with whoever provisions.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from silosynth.core.conversation import COORDINATOR, Roster
from silosynth.core.errors import ConfigError, StorageError
from silosynth.core.files import make_folder, storage_error
from silosynth.deployment.flare import require_flare
from silosynth.deployment.flare.authority import first_certificate, forget_keys, issued_by, record_issued, record_known
from silosynth.deployment.flare.site import ENGINE, ROLE, operator_mail

Json = dict[str, Any]
_OURS = "silosynth.deployment.flare.components"
COORDINATOR_CLASS, PARTY_CLASS = f"{_OURS}.Coordinator", f"{_OURS}.Answerer"
CONTROLLER_CLASS = "nvflare.collab.runtime.controller.CollabController"
EXECUTOR_CLASS = "nvflare.collab.runtime.executor.CollabExecutor"
CLASSES = [COORDINATOR_CLASS, PARTY_CLASS, CONTROLLER_CLASS, EXECUTOR_CLASS]
"""Classes that a job's configuration may name. The site itself refuses all others."""

_RIGHTS = {
    "submit_job": "any",
    "clone_job": "none",
    "manage_job": "n:submitter",
    "download_job": "none",
    "view": "any",
    "operate": "none",
    "shell_commands": "none",
    "byoc": "none",
    "server-predeployed-flwr": "none",
}
_NOTHING = dict.fromkeys(_RIGHTS, "none")
AUTHORIZATION: Json = {
    "format_version": "1.0",
    "permissions": {"project_admin": _NOTHING, "org_admin": _NOTHING, "lead": _RIGHTS, "member": _NOTHING},
}
_POLICY: Json = {"format_version": 2, "class_list_enforcement_mode": "enforce", "class_allow_list": CLASSES}


def server_resources(silent: float, jobs: int) -> Json:
    """The coordinator's ``resources.json``. ``{root}`` stands for its working folder.

    Args:
        silent: seconds without a sign of life after which a party is taken off the list.
        jobs: maximum number of jobs that run at once.
    """
    apps, store = "nvflare.app_common", "nvflare.app_common.storages.filesystem_storage.FilesystemStorage"
    scheduling = {"max_jobs": jobs, "min_schedule_interval": 1.0, "max_schedule_interval": 10.0}
    scheduling["max_schedule_count"] = 1_000_000  # a silo may leave just as a job is to start: try again
    scheduler = f"{apps}.job_schedulers.job_scheduler.DefaultJobScheduler"
    manager = "nvflare.apis.impl.job_def_manager.SimpleJobDefManager"
    return {
        **_POLICY,
        "servers": [
            {"admin_storage": "transfer", "max_num_clients": 1000, "heart_beat_timeout": silent, "admin_timeout": 10.0}
        ],
        "snapshot_persistor": _plain(
            f"{apps}.state_persistors.storage_state_persistor.StorageStatePersistor",
            uri_root="/",
            storage=_plain(store, root_dir="{root}/snapshots", uri_root="/"),
        ),
        "components": [
            component("job_scheduler", scheduler, **scheduling),
            component("job_manager", manager, uri_root="{root}/jobs", job_store_id="job_store"),
            component("job_store", store),
            component("process_launcher", "silosynth.deployment.flare.engine.CoordinatorLauncher"),
            component("notices", "silosynth.deployment.flare.engine.Notices"),
        ],
    }


def client_resources() -> Json:
    """A party's ``resources.json``. Its logs stay local, and our launcher starts job processes."""
    manager, consumer = "passthrough_resource_manager.PassthroughResourceManager", "passthrough_resource_consumer"
    return {
        **_POLICY,
        "allow_log_streaming": False,
        "client": {"retry_timeout": 30, "compression": "Gzip"},
        "components": [
            component("resource_manager", f"nvflare.app_common.resource_managers.{manager}"),
            component(
                "resource_consumer", f"nvflare.app_common.resource_consumers.{consumer}.PassthroughResourceConsumer"
            ),
            component("process_launcher", "silosynth.deployment.flare.engine.PartyLauncher"),
            component("notices", "silosynth.deployment.flare.engine.Notices"),
        ],
    }


def log_config() -> Json:
    """Log to ``log.txt``, at most 20 MB with one backup, and nothing to the screen.

    Collab and the transport log every call; of theirs only warnings are kept.
    """
    chatty = ["nvflare.collab", "nvflare.fuel.f3"]
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "plain": {
                "()": "nvflare.fuel.utils.log_utils.BaseFormatter",
                "fmt": "%(asctime)s %(levelname)s %(name)s: %(message)s",
            }
        },
        "handlers": {
            "file": {
                "class": "logging.handlers.RotatingFileHandler",
                "level": "INFO",
                "formatter": "plain",
                "filename": "log.txt",
                "mode": "a",
                "maxBytes": 20_000_000,
                "backupCount": 1,
            }
        },
        "loggers": {"root": {"level": "INFO", "handlers": ["file"]}, **{name: {"level": "WARNING"} for name in chatty}},
    }


def _plain(path: str, **args: Any) -> Json:
    return {"path": path, "args": args}


def component(name: str, path: str, **args: Any) -> Json:
    """How FLARE's configuration files describe an object: its id, class and arguments."""
    return {"id": name, **_plain(path, **args)}


AUTHORITY = "authority"
"""The folder with the authority's key, beside the kits. Needed only to add parties later."""
SCHEMES = ("grpc", "tcp", "http")
_ORG = "silosynth"
_SILENT = 60.0  # seconds without a sign of life after which the coordinator takes a party off its list
_ANSWER = 8.0  # seconds for the coordinator to answer a sign of life
_JOBS = 4  # that run at once
_ROOT_DAYS = 3650  # of the authority's own certificate; those of sites last 360


@dataclass(frozen=True, slots=True)
class Project:
    """Who takes part, and the coordinator's address.

    Attributes:
        name: of the federation: letters, digits, '_', '-'.
        host: name or IPv4 address by which parties and operators reach the coordinator.
        port: the one port that the coordinator opens.
        parties: names of the silos: letters, digits, '_', '-'.
        operators: who may start jobs: such names, or mail addresses.
        more_hosts: further names and addresses of the coordinator, for its certificate.
        scheme: the transport, always with mutual TLS; one of `SCHEMES`.

    Raises:
        ConfigError: a name that the engine does not accept, or that is used twice.
    """

    name: str
    host: str
    port: int
    parties: Sequence[str]
    operators: Sequence[str]
    more_hosts: Sequence[str] = ()
    scheme: str = "grpc"

    def __post_init__(self) -> None:
        Roster(tuple(self.parties))
        people = [COORDINATOR, *self.parties, *self.operators]
        for word in (self.name, *self.parties, *(name.partition("@")[0].replace(".", "_") for name in self.operators)):
            if not word.replace("-", "_").replace("_", "a").isalnum() or not word.isascii():
                raise ConfigError("Names in a federation are letters, digits, '_' and '-'", word, "Rename it.")
        if len(set(people)) < len(people):
            raise ConfigError("Every party and every operator needs a name of its own", people, "Rename one of them.")
        if not self.operators:
            raise ConfigError("A federation has at least one operator, who starts jobs", "none", "Name one.")
        if not 0 < self.port < 65536:
            raise ConfigError("A port is a number from 1 to 65535", self.port)
        if self.scheme not in SCHEMES:
            raise ConfigError(f"A federation's transport is one of {', '.join(SCHEMES)}", self.scheme)


def provision(
    project: Project, folder: Path, requests: Mapping[str, bytes] | None = None, again: Sequence[str] = ()
) -> None:
    """Write ``folder/<name>/engine`` for the coordinator, each party and each operator, and ``folder/authority``.

    Called again with more parties or operators it adds their kits, issued by the same authority; existing kits are left
    unchanged, and those that were handed out are not written again. Give each organisation its own folder, over a
    channel it trusts: a kit holds a private key, but for those who have asked with keys of their own.

    Args:
        project: who takes part.
        folder: of all kits.
        requests: by name, of those who have drawn their own keys.
        again: who gets a new certificate, whether or not there is a kit.

    Raises:
        UnavailableError: FLARE is not installed.
        ConfigError: a request is none, or of somebody else.
        StorageError: there are kits but not the authority that issued them, or the folder cannot be written.
    """
    require_flare()
    authority = folder / AUTHORITY
    names = {COORDINATOR: COORDINATOR, **{party: party for party in project.parties}}
    names |= {operator: operator_mail(operator) for operator in project.operators}
    existing = [name for name in names if name not in again and (folder / name / ENGINE).exists()]
    if existing and not authority.exists():
        raise StorageError(
            "Kits are added by the authority that issued the others",
            str(authority),
            "Restore that folder, or use a new one.",
        )
    make_folder(authority)
    try:
        authority.chmod(0o700)
        record_known(authority)
        left = {one.name for one in issued_by(authority)} - set(again)
        issued = _issue(project, authority)
        forget_keys(authority)
        for name, mail in names.items():
            if name not in existing and name not in left:
                _certify(issued / mail / "startup", name, (requests or {}).get(name), authority)
                _hand_over(issued / mail, make_folder(folder / name) / ENGINE)
        shutil.rmtree(issued)
    except OSError as error:
        raise storage_error(error, "written", folder) from error


def _certify(startup: Path, name: str, request: bytes | None, authority: Path) -> None:
    """Put the certificate of a site's own key in place of FLARE's, and keep a copy of what it gets."""
    (certificate,) = startup.glob("*.crt")
    if request is not None:
        pem = first_certificate(request, name, certificate.read_bytes(), authority, time.time())
        certificate.write_bytes(pem)
        certificate.with_suffix(".key").unlink()
    record_issued(authority, certificate.read_bytes())


def _hand_over(kit: Path, target: Path) -> None:
    """Keep the files of a kit that FLARE reads: its scripts and notes are not needed."""
    shutil.rmtree(target, ignore_errors=True)
    for path in (kit / "startup").iterdir():
        if path.suffix in (".sh", ".ipynb", ".txt"):
            path.unlink()
    for part in ("startup", "local"):
        shutil.copytree(kit / part, target / part)
    target.chmod(0o700)


def _issue(project: Project, authority: Path) -> Path:
    """The folder in which FLARE has written all kits."""
    from nvflare.lighter.ctx import CtxKey
    from nvflare.lighter.entity import Project as FlareProject
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.signature import SignatureBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner

    flare_project = FlareProject(project.name, project.name, props={"api_version": 3})
    hosts = [host for host in project.more_hosts if host != project.host]
    server = {"fed_learn_port": project.port, "default_host": project.host, **({"host_names": hosts} if hosts else {})}
    flare_project.set_server(COORDINATOR, _ORG, server)
    for party in project.parties:
        flare_project.add_client(party, _ORG, {})
    for operator in project.operators:
        flare_project.add_admin(operator_mail(operator), _ORG, {"role": ROLE})
    static = StaticFileBuilder(config_folder="config", scheme=project.scheme, require_signed_jobs=True)
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        certificates = CertBuilder(root_valid_days=_ROOT_DAYS)
        builders = [WorkspaceBuilder(), static, certificates, _rules_builder(project), SignatureBuilder()]
        done = Provisioner(str(authority), builders).provision(flare_project)
    kits = done.get(CtxKey.CURRENT_PROD_DIR)
    if done.get(CtxKey.BUILD_ERROR) or kits is None:
        raise StorageError("FLARE writes the start kits", output.getvalue().strip().splitlines()[-1:])
    return Path(kits)


def _rules_builder(project: Project) -> Any:
    """A builder that FLARE calls between writing its files and packing them."""
    from nvflare.lighter.spec import Builder

    class Rules(Builder):  # type: ignore[misc]  # FLARE has no type hints
        def build(self, project_: Any, ctx: Any) -> None:
            server = project_.get_server()
            _edit(Path(ctx.get_kit_dir(server)) / "fed_server.json", lambda config: _listen(config, project))
            _rules(Path(ctx.get_local_dir(server)), server_resources(_SILENT, _JOBS))
            for client in project_.get_clients():
                _edit(Path(ctx.get_kit_dir(client)) / "fed_client.json", _shorten_timeout)
                _rules(Path(ctx.get_local_dir(client)), client_resources())

    return Rules()


def _edit(path: Path, change: Callable[[Json], None]) -> None:
    config = json.loads(path.read_text(encoding="utf-8"))
    change(config)
    path.write_text(json.dumps(config, indent=1), encoding="utf-8")


def _listen(config: Json, project: Project) -> None:
    """Listen on loopback only if that is the coordinator's address; otherwise on all interfaces."""
    config["servers"][0]["service"]["target"] = f"{project.host}:{project.port}"


def _shorten_timeout(config: Json) -> None:
    """Resend a sign of life soon if it is not answered."""
    config["client"]["maint_msg_timeout"] = _ANSWER


def _rules(local: Path, resources: Json) -> None:
    for path in local.iterdir():
        path.unlink()
    contents = {"resources.json": resources, "authorization.json": AUTHORIZATION, "log_config.json": log_config()}
    for name, content in contents.items():
        (local / name).write_text(json.dumps(content, indent=1), encoding="utf-8")
