"""The two classes that a job names, one per side. FLARE builds them in its job processes; nothing else imports this.

A job's configuration passes the coordinator its payload. It passes the parties nothing: what they run is fixed here and
in their own environment (`site`).
"""

from __future__ import annotations

import base64
import importlib
import os
import threading
import time
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.collab import collab
from nvflare.lighter.utils import verify_folder_signature_and_get_signers

from silosynth.core.errors import ProtocolError
from silosynth.deployment.flare.relay import HOLD, Answer, FlareHub, Inbox
from silosynth.deployment.flare.site import ANSWERER, COORDINATE, ENTRY, operator_name, this_site

_TIMEOUT = HOLD + 8.0  # seconds without a byte after which a call has failed and is made again
_POLL = 0.3  # seconds between checks whether the engine ends the job


class Coordinator(FLComponent):  # type: ignore[misc]  # FLARE has no type hints
    """The coordinator's side of a job.

    Args:
        payload: the submitted order, in base64.
    """

    def __init__(self, payload: str) -> None:
        super().__init__()
        self._payload = payload
        self._hub: FlareHub | None = None

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Called by FLARE with events of the job."""
        if event_type == EventType.START_RUN:
            # All must be connected for a job to start. From here on the conversation decides whom it needs.
            meta = fl_ctx.get_prop(FLContextKey.JOB_META)
            meta["min_clients"], meta["mandatory_clients"] = 1, []
        elif event_type == EventType.CLIENT_DISCONNECTED and self._hub is not None:
            self._hub.gone(fl_ctx.get_prop(FLContextKey.DISCONNECTED_CLIENT_NAME), "its part of the job has ended")

    @collab.main  # type: ignore[untyped-decorator]
    def run(self) -> None:
        """Called by Collab: runs the job."""
        context = collab.context
        job = collab.fl_ctx.get_job_id()
        self._hub = hub = FlareHub({proxy.name: _Relay(proxy) for proxy in collab.clients})
        threading.Thread(target=_watch, args=(context, hub), daemon=True).start()
        try:
            _entry(COORDINATE)(base64.b64decode(self._payload), hub, this_site().workspace, job)
        finally:
            hub.stop()


class Answerer(FLComponent):  # type: ignore[misc]
    """A party's side of a job."""

    def __init__(self) -> None:
        super().__init__()
        self._inbox: Inbox | None = None

    @collab.init  # type: ignore[untyped-decorator]
    def open(self) -> None:
        """Called by Collab when the job begins."""
        job, folder = collab.fl_ctx.get_job_id(), collab.workspace
        app = folder.get_app_dir(job), folder.get_file_path_in_startup("rootCA.pem")

        def begin() -> Answer:
            site = this_site()
            return _entry(ANSWERER)(job, site.kit, site.workspace, _submitter(*app))  # type: ignore[no-any-return]

        self._inbox = Inbox(collab.site_name, begin)

    @collab.publish  # type: ignore[untyped-decorator]
    def answer(self, number: int, frame: bytes) -> bytes | None:
        """See `relay.Line.answer`."""
        assert self._inbox is not None
        return self._inbox.answer(number, frame)

    @collab.publish  # type: ignore[untyped-decorator]
    def collect(self, number: int) -> bytes | None:
        """See `relay.Line.collect`."""
        assert self._inbox is not None
        return self._inbox.collect(number)


class _Relay:
    """A party behind FLARE's relay."""

    def __init__(self, proxy: Any) -> None:
        self._proxy = proxy

    def answer(self, number: int, frame: bytes) -> bytes | None:
        return self._proxy(timeout=_TIMEOUT).answer(number=number, frame=frame)  # type: ignore[no-any-return]

    def collect(self, number: int) -> bytes | None:
        return self._proxy(timeout=_TIMEOUT).collect(number=number)  # type: ignore[no-any-return]


def _watch(context: Any, hub: FlareHub) -> None:
    while not context.is_aborted():
        time.sleep(_POLL)
    hub.abort("it was aborted, by an operator or because no party is left")


def _entry(default: str) -> Any:
    """The function that this site runs: ours, or the one that the site's own environment names instead."""
    module, _, name = os.environ.get(ENTRY, default).partition(":")
    return getattr(importlib.import_module(module), name)


def _submitter(app: str, authority: str) -> str:
    """The name of the operator who signed this job's files.

    Raises:
        ProtocolError: the files are unsigned, or have several signers.
    """
    verified, signers = verify_folder_signature_and_get_signers(app, authority)
    if not verified or len(signers) != 1:
        raise ProtocolError("A job's files are signed by one operator", f"{len(signers)} signatures")
    return operator_name(signers[0][0])
