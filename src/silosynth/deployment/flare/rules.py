"""What sites allow and how they run: the files in a start kit's ``local`` folder. FLARE reads them at every start.

The rights that FLARE ships let leading users push code and stop other sites. Here nobody may bring code, run shell
commands or stop a site; operators may submit, abort their own jobs, and look.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
_OURS = "silosynth.deployment.flare.components"
COORDINATOR_CLASS, PARTY_CLASS = f"{_OURS}.Coordinator", f"{_OURS}.Answerer"
CONTROLLER_CLASS = "nvflare.collab.runtime.controller.CollabController"
EXECUTOR_CLASS = "nvflare.collab.runtime.executor.CollabExecutor"
CLASSES = [COORDINATOR_CLASS, PARTY_CLASS, CONTROLLER_CLASS, EXECUTOR_CLASS]
"""What a job's configuration may name. Anything else is refused by the site itself."""

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
    """The coordinator's ``resources.json``. ``{root}`` stands for the folder in which it will work.

    Args:
        silent: seconds after which a party without a sign of life is taken off the list.
        jobs: how many may run at once.
    """
    store = "nvflare.app_common.storages.filesystem_storage.FilesystemStorage"
    return {
        **_POLICY,
        "servers": [
            {"admin_storage": "transfer", "max_num_clients": 1000, "heart_beat_timeout": silent, "admin_timeout": 10.0}
        ],
        "snapshot_persistor": _component(
            "nvflare.app_common.state_persistors.storage_state_persistor.StorageStatePersistor",
            uri_root="/",
            storage=_component(store, root_dir="{root}/snapshots", uri_root="/"),
        ),
        "components": [
            {
                "id": "job_scheduler",
                **_component(
                    "nvflare.app_common.job_schedulers.job_scheduler.DefaultJobScheduler",
                    max_jobs=jobs,
                    max_schedule_count=1_000_000,  # a silo may leave just when a job is to start: try again
                    min_schedule_interval=1.0,
                    max_schedule_interval=10.0,
                ),
            },
            {
                "id": "job_manager",
                **_component(
                    "nvflare.apis.impl.job_def_manager.SimpleJobDefManager",
                    uri_root="{root}/jobs",
                    job_store_id="job_store",
                ),
            },
            {"id": "job_store", **_component(store)},
            {"id": "process_launcher", **_component("silosynth.deployment.flare.launchers.CoordinatorLauncher")},
            {"id": "notices", **_component("silosynth.deployment.flare.engine.Notices")},
        ],
    }


def client_resources() -> Json:
    """A party's ``resources.json``. Its logs stay at home, and job processes are started by our launcher."""
    return {
        **_POLICY,
        "allow_log_streaming": False,
        "client": {"retry_timeout": 30, "compression": "Gzip"},
        "components": [
            {
                "id": "resource_manager",
                **_component(
                    "nvflare.app_common.resource_managers.passthrough_resource_manager.PassthroughResourceManager"
                ),
            },
            {
                "id": "resource_consumer",
                **_component(
                    "nvflare.app_common.resource_consumers.passthrough_resource_consumer.PassthroughResourceConsumer"
                ),
            },
            {"id": "process_launcher", **_component("silosynth.deployment.flare.launchers.PartyLauncher")},
            {"id": "notices", **_component("silosynth.deployment.flare.engine.Notices")},
        ],
    }


def log_config() -> Json:
    """Everything of note goes to ``log.txt``, 20 MB at most, kept twice; nothing to the screen.

    Collab and the transport tell of every call; of them only warnings are kept.
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


def _component(path: str, **args: Any) -> Json:
    return {"path": path, "args": args}
