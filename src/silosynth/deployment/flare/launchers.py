"""How FLARE's main process of a site starts a job's process: ours runs FLARE's modules under `child`'s watch.

Built by FLARE from a site's ``resources.json``. Nothing that a job brings is ever put on Python's path, and arguments
are handed over as they are: FLARE's own launcher cuts them at blanks.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.job_launcher_spec import JobProcessArgs, JobReturnCode
from nvflare.app_common.job_launcher.process_launcher import ProcessHandle, ProcessJobLauncher
from nvflare.utils.job_launcher_utils import get_client_job_args, get_credential_env, get_server_job_args
from nvflare.utils.process_utils import spawn_process

CHILD = "silosynth.deployment.flare.child"


class _Launcher(ProcessJobLauncher):  # type: ignore[misc]  # FLARE has no type hints
    names: Any = None
    handle: Any = ProcessHandle

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: Any) -> Any:
        """Part of FLARE: start the job's process."""
        given = fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS)
        argv = [sys.executable, "-m", CHILD, given[JobProcessArgs.EXE_MODULE][1]]
        for name in type(self).names(include_exe_module=False, include_set_options=False):
            if name in given:
                argv += [str(part) for part in given[name]]
        option, values = given[JobProcessArgs.OPTIONS]
        argv += [option, *values.split()]
        return self.handle(process_adapter=spawn_process(argv, {**os.environ, **get_credential_env(given)}))

    def get_command(self, job_meta: dict[str, Any], fl_ctx: Any) -> str:
        """Part of FLARE, and not used here."""
        return ""


class _Untold(ProcessHandle):  # type: ignore[misc]
    """A party's job process whose death does not by itself fail the job: the conversation decides."""

    def poll(self) -> Any:
        """Part of FLARE: how it ended."""
        code = super().poll()
        return JobReturnCode.UNKNOWN if code == JobReturnCode.EXECUTION_ERROR else code


class CoordinatorLauncher(_Launcher):
    """For the coordinator's jobs."""

    names = staticmethod(get_server_job_args)


class PartyLauncher(_Launcher):
    """For a party's jobs."""

    names = staticmethod(get_client_job_args)
    handle = _Untold
