"""FLARE's main process of a site: started by `daemon`, reports events to it one per line, and ends with it.

``python -m silosynth.deployment.flare.engine server|client``, in the environment that `daemon` sets.

FLARE builds `Notices` and the launchers from a site's ``resources.json``. The launchers start a job's process: FLARE's
modules under `child`'s watch. Nothing that a job brings is ever put on Python's path, and arguments are passed as they
are: FLARE's own launcher splits them at blanks.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, RunProcessKey
from nvflare.apis.fl_exception import NotAuthenticated
from nvflare.apis.job_launcher_spec import JobProcessArgs, JobReturnCode
from nvflare.app_common.job_launcher.process_launcher import ProcessHandle, ProcessJobLauncher
from nvflare.fuel.f3.mpm import MainProcessMonitor
from nvflare.utils.job_launcher_utils import get_client_job_args, get_credential_env, get_server_job_args
from nvflare.utils.process_utils import spawn_process

from silosynth.core.errors import SilosynthError
from silosynth.deployment import endings, presence
from silosynth.deployment.flare.child import leave_with_parent
from silosynth.deployment.flare.pinning import leave_revoked, pin, turn_away
from silosynth.deployment.flare.site import CONNECTED, NOTICES, REFUSED, revoked_at, this_site

CHILD = "silosynth.deployment.flare.child"


class _Launcher(ProcessJobLauncher):  # type: ignore[misc]  # FLARE has no type hints
    names: Any = None  # FLARE's function that names the process's arguments
    handle: Any = ProcessHandle

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: Any) -> Any:
        """Called by FLARE to start the job's process."""
        args = fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS)
        argv = [sys.executable, "-m", CHILD, args[JobProcessArgs.EXE_MODULE][1]]
        for name in type(self).names(include_exe_module=False, include_set_options=False):
            if name in args:
                argv += [str(part) for part in args[name]]
        option, values = args[JobProcessArgs.OPTIONS]
        argv += [option, *values.split()]
        return self.handle(process_adapter=spawn_process(argv, {**os.environ, **get_credential_env(args)}))

    def get_command(self, job_meta: dict[str, Any], fl_ctx: Any) -> str:
        """Required by FLARE, not used here."""
        return ""


class _QuietHandle(ProcessHandle):  # type: ignore[misc]
    """A party's job process whose death does not by itself fail the job: that is the conversation's decision."""

    def poll(self) -> Any:
        """Called by FLARE: how it ended."""
        code = super().poll()
        return JobReturnCode.UNKNOWN if code == JobReturnCode.EXECUTION_ERROR else code


class CoordinatorLauncher(_Launcher):
    """Launches the coordinator's job processes."""

    names = staticmethod(get_server_job_args)


class PartyLauncher(_Launcher):
    """Launches a party's job processes."""

    names = staticmethod(get_client_job_args)
    handle = _QuietHandle


_HEARTBEAT = 2.0  # seconds between a party's signs of life, and until a job's dead process is noticed
_ALIVE = 4.0  # seconds after its last sign of life for which a party keeps its place
_GOODBYE = 6.0  # seconds for a party to sign off from the coordinator
_site: list[Any] = []  # FLARE's engine of this process, once there is one
_watched: list[Callable[[], None]] = []  # what is looked at with each sign of life


class Notices(FLComponent):  # type: ignore[misc]  # FLARE has no type hints
    """Reports FLARE's events to the daemon. Built from ``resources.json`` in job processes as well."""

    def __init__(self) -> None:
        super().__init__()
        self._parties: set[str] = set()

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Called by FLARE with each event."""
        if NOTICES not in os.environ:
            return
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            _site[:] = [fl_ctx.get_engine()]
            threading.Thread(target=self._stay_present, args=(fl_ctx.get_engine(),), daemon=True).start()
            self._give_up_unfinished(fl_ctx)
        report = {
            EventType.AFTER_CLIENT_REGISTER: self._registered,
            EventType.CLIENT_REGISTER_RECEIVED: self._twice,
            EventType.CLIENT_REGISTER_PROCESSED: self._joined,
            EventType.CLIENT_HEARTBEAT_PROCESSED: self._alive,
            EventType.CLIENT_QUIT: self._left,
            EventType.JOB_STARTED: self._started,
            EventType.JOB_COMPLETED: self._ended,
        }.get(event_type)
        if report is not None:
            report(fl_ctx)

    def _give_up_unfinished(self, fl_ctx: Any) -> None:
        """Mark jobs that ran when the coordinator was killed as ended, which FLARE does not do by itself."""
        runner = getattr(fl_ctx.get_engine(), "job_runner", None)
        if runner is not None:
            runner.update_unfinished_jobs(fl_ctx)

    def _registered(self, fl_ctx: Any) -> None:
        notice(CONNECTED if fl_ctx.get_prop(FLContextKey.CLIENT_TOKEN) else REFUSED)

    def _twice(self, fl_ctx: Any) -> None:
        """Refuse a second site for a party: FLARE would let it replace the first one, and both would fail."""
        name, now = _peer(fl_ctx), time.time()
        for client in fl_ctx.get_engine().client_manager.get_clients().values():
            if client.name == name and now - client.last_connect_time < _ALIVE:
                notice(f"party {name} is connected already: refused a second one")
                raise NotAuthenticated(f"party {name} is connected already")

    def _joined(self, fl_ctx: Any) -> None:
        """A party that joins again has left its jobs: FLARE would notice only after a minute."""
        engine, name = fl_ctx.get_engine(), _peer(fl_ctx)
        for job, process in list(engine.run_processes.items()):
            if any(client.name == name for client in process.get(RunProcessKey.PARTICIPANTS, {}).values()):
                engine.notify_dead_job(job, name, "joined again")
        self._note_party(fl_ctx, "joined")

    def _alive(self, fl_ctx: Any) -> None:
        name = _peer(fl_ctx)
        if name and name not in self._parties:
            self._note_party(fl_ctx, "is back")

    def _left(self, fl_ctx: Any) -> None:
        if name := _peer(fl_ctx):
            self._parties.discard(name)
            notice(f"party {name} left")

    def _note_party(self, fl_ctx: Any, what: str) -> None:
        if name := _peer(fl_ctx):
            self._parties.add(name)
            notice(f"party {name} {what}")

    def _started(self, fl_ctx: Any) -> None:
        notice(f"job {_name(fl_ctx)} started (attempt {_job(fl_ctx)})")

    def _ended(self, fl_ctx: Any) -> None:
        if sys.argv[1] == "client":
            notice(endings.said_of(this_site().workspace / "jobs", _job(fl_ctx)))
        else:
            notice(f"job {_name(fl_ctx)} ended (attempt {_job(fl_ctx)})")

    def _stay_present(self, engine: Any) -> None:
        """Give signs of life of this site, and at the coordinator those of its silos, until the process ends."""
        begun, place = time.time(), this_site().workspace
        while True:
            clients = getattr(engine, "client_manager", None)
            known = [] if clients is None else list(clients.get_clients().values())
            heard = {client.name: float(client.last_connect_time or 0) for client in known}
            with contextlib.suppress(OSError):  # a full disk; the next sign may succeed
                presence.tell(place, begun, heard)
            with contextlib.suppress(SilosynthError):  # a damaged list: whoever connects is refused, and told why
                for look in _watched:
                    look()
            self._note_silent(presence.silent(self._parties, heard, time.time()))
            time.sleep(presence.EVERY)

    def _note_silent(self, silent: Iterable[str]) -> None:
        """Report parties that have gone without a word, once; they are back with their next sign of life."""
        for name in silent:
            self._parties.discard(name)
            notice(f"party {name} has given no sign of life for {presence.STALE:g} s")


def notice(line: str) -> None:
    """Report one line to the daemon."""
    with contextlib.suppress(OSError):  # it is gone, and this process is about to end too
        os.write(int(os.environ[NOTICES]), (line + "\n").encode())


def main() -> None:
    """Run the site that the environment describes."""
    leave_with_parent()
    os.set_inheritable(int(os.environ[NOTICES]), False)
    role = sys.argv[1]
    signal.signal(signal.SIGTERM, _leave)
    root = str(this_site().root)
    settings = ["secure_train=true", "org=silosynth", "config_folder=config"]
    if role == "client":
        from nvflare.private.fed.app.client import client_train as program

        revoked = revoked_at(this_site())
        pin(this_site().kit, revoked, notice)
        _watched.append(leave_revoked(this_site().kit, revoked, notice))
        name = sys.argv[2]
        settings += [f"uid={name}", f"heart_beat_interval={_HEARTBEAT}"]
    else:
        from nvflare.private.fed.app.server import server_train as program

        _watched.append(turn_away(revoked_at(this_site()), notice))
    args = argparse.Namespace(workspace=root, set=settings, local_rank=0)
    setattr(args, f"fed_{role}", f"fed_{role}.json")
    sys.exit(MainProcessMonitor.run(main_func=program.main, run_dir=root, args=args, shutdown_grace_time=0))


def _leave(number: int, frame: FrameType | None) -> None:
    """A party signs off from the coordinator; the coordinator just ends; job processes end with either."""
    if _site and sys.argv[1] == "client":
        threading.Timer(_GOODBYE, os._exit, (0,)).start()
        threading.Thread(target=_site[0].shutdown, daemon=True).start()
    else:
        os._exit(0)


def _peer(fl_ctx: Any) -> str:
    """The party that an event concerns; empty for an operator."""
    peer = fl_ctx.get_peer_context()
    name = str(peer.get_identity_name() or "") if peer else ""
    return "" if "@" in name else name


def _name(fl_ctx: Any) -> str:
    """The name under which a job was submitted; its number if the engine has forgotten it."""
    number, manager = _job(fl_ctx), getattr(fl_ctx.get_engine(), "job_def_manager", None)
    found = None if manager is None else manager.get_job(number, fl_ctx)
    return str(found.meta.get("name") or number) if found is not None else number


def _job(fl_ctx: Any) -> str:
    data = fl_ctx.get_prop(FLContextKey.EVENT_DATA)
    job = data.get("job_id") if isinstance(data, dict) else None
    return str(job or fl_ctx.get_prop(FLContextKey.CURRENT_JOB_ID) or fl_ctx.get_job_id())


if __name__ == "__main__":
    # FLARE imports this module by name to build `Notices`: both must be the same module object.
    from silosynth.deployment.flare import engine

    engine.main()
