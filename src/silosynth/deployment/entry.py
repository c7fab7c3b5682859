"""What runs in the engine's job processes: `coordinate` at the coordinator, `answerer` at each silo.

The first frame opens the job: it names the job, so that a silo finds its own part of the checkpoints, and the stream's
address, if data travel beside the engine. Everything after that is the conversation.
"""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from silosynth.core.conversation import COORDINATOR, Roster
from silosynth.core.errors import PartyLostError, ProtocolError, SilosynthError, UnavailableError
from silosynth.core.files import close_to_others, make_folder, private_folder, sweep
from silosynth.deployment import coordinator, endings, protocol
from silosynth.deployment.forgetting import mark_running, set_aside, when_forgotten
from silosynth.deployment.kits import DISPATCHER, StartKit, read_kit
from silosynth.deployment.policy import Releases, SiloPolicy, read_policy, refusal
from silosynth.deployment.revoked import keep_list
from silosynth.deployment.rows import read_silo
from silosynth.deployment.silo import DeploymentSilo
from silosynth.deployment.silo_ledger import SiloLedger
from silosynth.deployment.snapshot import Snapshot
from silosynth.runtime import checkpoint, driver
from silosynth.runtime.endpoint import PartyEndpoint
from silosynth.runtime.hub import DONE, ENDED, OPEN, Frame, Hub, Lost, frame_from_bytes
from silosynth.runtime.link import PARTY_THREADS, Link, Remote, raise_if_failed, resolve_device
from silosynth.runtime.stream import StreamHub, serve_endpoint
from silosynth.runtime.tls import dialled_certificate, fingerprint, same_fingerprint

LOG = "log.txt"
_PATIENCE = 120.0  # seconds for which a stream may be disconnected
_CONNECT = 120.0  # seconds for silos to dial in
_POLL = 1.0  # seconds between checks for a stop file, or of a port in use
_GOODBYE = 5.0  # seconds for silos to hear how a job ended
_LAST = 2**53 - 1  # step of the frame that says it, which no conversation reaches
_STOPPED = 3  # exit code of a job's process that was told to stop
Say = Callable[[str], None]


def journal(folder: Path) -> Say:
    """A function that writes an event, with the time, to the log in ``folder``."""
    path = make_folder(folder) / LOG

    def say(line: str) -> None:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")

    return say


# The coordinator.


def coordinate(payload: bytes, hub: Hub, workspace: Path, job: str) -> None:
    """Run a submitted order; ``job`` is the engine's id of this attempt."""
    from silosynth.deployment.flare.site import this_site

    order, kit = coordinator.unpack_order(payload), read_kit(this_site().kit)
    folder = kit.jobs / order.job.name
    order.keep(folder)
    say = journal(folder)
    fresh = not (folder / coordinator.STATUS).exists() or not coordinator.read_status(folder).attempts
    threading.Thread(target=_stop_on_request, args=(folder, say), daemon=True, name="silosynth-stop").start()
    say(f"attempt {job}: {order.job.algorithm}, submitted by {order.job.submitter}, silos {', '.join(order.job.silos)}")
    with _warnings_logged(say), _link(order, kit, hub, job, say, fresh) as link:
        try:
            coordinator.run_order(order, link, folder, say)
        finally:
            _tell_end(order, hub, coordinator.read_status(folder).state)


def _tell_end(order: coordinator.Order, hub: Hub, state: str) -> None:
    """Tell silos that can be reached how the job ended, without waiting for long. It has ended all the same."""
    if state not in endings.IN_WORDS:
        return
    body = json.dumps({"state": state}).encode()
    frames = {silo: Frame(ENDED, order.job.name, _LAST, COORDINATOR, body) for silo in order.job.silos}
    with suppress(Lost, SilosynthError):
        hub.gather(frames, hub.dead, _GOODBYE, missing=True)


def _stop_on_request(folder: Path, say: Say) -> None:
    """Exit when told to stop, even during a computation. Files stay consistent, as after a power cut."""
    while not (folder / coordinator.STOP).exists():
        time.sleep(_POLL)
    say("stopped by the coordinator's operator")
    os._exit(_STOPPED)


@contextmanager
def _warnings_logged(say: Say) -> Iterator[None]:
    """Log warnings of lost silos and unusable checkpoints: the engine's processes show none."""
    with warnings.catch_warnings():
        for kind in (driver.PartyLostWarning, checkpoint.CheckpointWarning):
            warnings.simplefilter("always", kind)
        warnings.showwarning = lambda message, *_, **__: say(f"warning: {message}")
        yield


@contextmanager
def _link(order: coordinator.Order, kit: StartKit, hub: Hub, attempt: str, say: Say, fresh: bool) -> Iterator[Link]:
    """The link to the silos: the engine's relay, or a stream beside it. ``fresh``: of the job's first attempt."""
    roster = Roster(order.job.silos)
    if order.transport == "relay":
        _open(order, kit, hub, attempt, None, fresh)
        yield Remote(roster, hub, limit=order.limit)
        return
    if kit.stream_port is None:
        raise ProtocolError(
            "Transport 'stream' needs a second port of the coordinator", "none",
            'Set stream_port in federation.toml and hand out kits again, or transport = "relay".',
        )  # fmt: skip
    stream = _listen(roster, kit, attempt, say)
    try:
        _open(order, kit, hub, attempt, f"{kit.host}:{kit.stream_port}", fresh)
        _wait(stream, hub)
        say("all silos are connected to the stream")
        yield Remote(roster, stream, hub.dead, limit=order.limit)
    finally:
        stream.stop()


def _listen(roster: Roster, kit: StartKit, attempt: str, say: Say) -> Hub:
    """A hub on the stream's port. One job at a time uses it; others wait."""
    reported, address = False, f"0.0.0.0:{kit.stream_port}"
    while True:
        try:
            return StreamHub(roster, kit.certificates(), address, _PATIENCE, attempt, kit.revoked())
        except UnavailableError:
            if not reported:
                say(f"port {kit.stream_port} is in use: waiting for the job that uses it")
            reported = True
            time.sleep(_POLL)


def _open(order: coordinator.Order, kit: StartKit, hub: Hub, attempt: str, stream: str | None, fresh: bool) -> None:
    """Send all silos the job's name, the attempt, whether it is the first, the stream's address, and who is revoked."""
    known = kit.revocations()
    fields = {"job": order.job.name, "attempt": attempt, "stream": stream, "fresh": fresh}
    body = json.dumps(fields | {"revoked": None if known is None else known.pem.decode()}).encode()
    frames = {silo: Frame(OPEN, order.job.name, 0, COORDINATOR, body) for silo in order.job.silos}
    try:
        gathered = hub.gather(frames, lambda silo: None, _CONNECT)
    except Lost as lost:
        raise _lost(lost) from None
    for silo, reply in gathered.replies.items():
        raise_if_failed(reply, f"Silo {silo!r}, opening the job")


def _wait(stream: Hub, hub: Hub) -> None:
    try:
        stream.wait_for_all(_CONNECT, hub.dead)
    except Lost as lost:
        raise _lost(lost) from None


def _lost(lost: Lost) -> PartyLostError:
    error = PartyLostError(f"Silo {lost.party!r} opens the job", lost.reason, "The job resumes when it is back.")
    error.gone = True
    return error


# The silos.


def answerer(job: str, kit: Path, workspace: Path, submitter: str) -> Callable[[bytes], bytes]:
    """The function that answers a silo's frames. ``submitter`` signed the engine's job.

    Raises:
        StorageError, ConfigError: the kit, ``silo.toml`` or ``policy.toml`` cannot be used.
    """
    with _values_kept(journal(kit / "work")):
        start_kit = read_kit(kit)
        return JobAnswerer(start_kit, read_policy(start_kit.folder), submitter)


@contextmanager
def _values_kept(say: Say) -> Iterator[None]:
    """Errors go on without values, which might be paths, hosts or names of columns; the silo's log has them in full."""
    try:
        yield
    except SilosynthError as error:
        say(f"{type(error).__name__}: {error}")
        raise error.public() from error


class JobAnswerer:
    """Opens one job, and passes all other frames to its endpoint. The coordinator reads errors without their values.

    Args:
        kit: the silo's.
        policy: its rules.
        submitter: the operator who signed the engine's job.
    """

    def __init__(self, kit: StartKit, policy: SiloPolicy, submitter: str) -> None:
        self._kit, self._policy, self._submitter = kit, policy, submitter
        self._endpoint: PartyEndpoint | None = None
        self._job, self._attempt = "", ""

    def __call__(self, blob: bytes) -> bytes:
        """The reply frame to a frame."""
        frame = frame_from_bytes(blob)
        if frame.kind == OPEN:
            with _values_kept(journal(self._kit.folder / "work")):
                self._open(frame)
            return Frame(DONE, frame.job, frame.step, self._kit.name).to_bytes()
        if self._endpoint is None:
            raise ProtocolError("A job must be opened first", frame.kind, "Compare versions.")
        if frame.kind == ENDED:
            self._end(frame)
            return Frame(DONE, frame.job, frame.step, self._kit.name).to_bytes()
        return self._endpoint.handle(frame).to_bytes()

    def _end(self, frame: Frame) -> None:
        """Say how the coordinator says that the job ended."""
        try:
            state = str(json.loads(bytes(frame.body))["state"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ProtocolError("A job ends in a state", type(error).__name__, "Compare versions.") from error
        folder = self._kit.jobs / self._job
        said = endings.note_end(folder, self._attempt, state)
        if state in endings.FOR_GOOD:
            endings.drop_checkpoints(folder)
        journal(folder)(f"the coordinator says: the job {said}")

    def _open(self, frame: Frame) -> None:
        try:
            fields = json.loads(bytes(frame.body))
            job, attempt, stream = fields["job"], str(fields["attempt"]), fields["stream"]
            fresh, revoked = fields.get("fresh") is True, fields.get("revoked")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ProtocolError("A job is opened by name", type(error).__name__, "Compare versions.") from error
        name = protocol.check_name(str(job))
        if stream not in (None, own := f"{self._kit.host}:{self._kit.stream_port}"):
            raise ProtocolError(
                "A silo dials the coordinator's address in its own kit, and no other", f"{stream}, not {own}",
                "Hand out kits again if it has changed.",
            )  # fmt: skip
        if revoked is not None:
            self._keep_list(str(revoked))
        check_coordinator(self._kit, self._policy)
        if self._endpoint is not None:
            self._endpoint.retire()  # its stream may be alive, and it would not know what the new one refuses
        self._endpoint = endpoint = open_endpoint(self._kit, self._policy, name, self._submitter, fresh)
        self._job, self._attempt = name, attempt
        endings.note_attempt(self._kit.jobs / name, attempt)
        if stream is not None:
            args = (endpoint, own, attempt)
            threading.Thread(target=self._stream, args=args, daemon=True, name="silosynth-stream").start()

    def _keep_list(self, pem: str) -> None:
        """Keep the list of revoked certificates that the coordinator passes on, if it is newer."""
        work = self._kit.folder / "work"
        if (kept := keep_list(work, pem.encode(), self._kit.certificates().authority)) is not None:
            journal(work)(f"the coordinator has passed on revoked certificates: {kept.in_words(time.time())}")

    def _stream(self, endpoint: PartyEndpoint, address: str, attempt: str) -> None:
        """Answer over a stream, until the coordinator says goodbye."""
        torch.set_num_threads(PARTY_THREADS)
        certs, allowed = self._kit.certificates(), self._policy.allow_coordinators
        serve_endpoint(
            endpoint, address=address, certs=certs, patience=_PATIENCE, attempt=attempt, allowed=allowed,
            revoked=self._kit.revoked(),
        )  # fmt: skip


def check_coordinator(kit: StartKit, policy: SiloPolicy) -> None:
    """Dial the coordinator, and refuse to work with one whose certificate is revoked, or not named by the policy.

    Raises:
        PolicyError: it has another certificate.
        ProtocolError: it cannot be reached, or its certificate is revoked.
    """
    revoked = kit.revoked()
    if policy.allow_coordinators or revoked.any():
        shown = dialled_certificate(kit.host, kit.port, kit.certificates())
        if revoked(shown):
            raise revoked.refusal("the coordinator", shown)
        found = fingerprint(shown)
        if policy.allow_coordinators and not any(
            same_fingerprint(found, allowed) for allowed in policy.allow_coordinators
        ):
            raise refusal("allow_coordinators", "the coordinator has a certificate that is listed", found)


def open_endpoint(
    kit: StartKit, policy: SiloPolicy, job: str, submitter: str | None, fresh: bool = False
) -> PartyEndpoint:
    """A silo's endpoint for the job of this name, with the silo's rows, policy, ledger and log.

    No other process opens the job until the endpoint has retired or is gone. ``fresh``: of a job's first attempt, which
    may have the name of a forgotten one.

    Raises:
        ProtocolError: another process of the silo is at work on the job.
    """
    folder = kit.jobs / job
    opened = folder.exists() and close_to_others(folder)
    running = mark_running(private_folder(folder))
    if fresh and when_forgotten(folder) is not None:
        set_aside(folder)  # with the lock
        running.close()
        running = mark_running(private_folder(folder))
    say = journal(folder)
    if opened:
        say(f"warning: others on this machine could enter {folder}; it is closed to them now")
    sweep(folder)
    verified = None if submitter in (None, DISPATCHER) else submitter
    book = SiloLedger(folder, job, kit.seat())
    seat, rows = kit.seat(), read_silo(kit.folder)
    snapshot = Snapshot(folder, seat) if rows.data is not None and rows.data.snapshot else None
    silo = DeploymentSilo(
        seat, rows, policy, folder, Releases(kit.folder / "work"), resolve_device("auto"), verified, say, book, snapshot
    )
    endpoint = PartyEndpoint(kit.name, silo, folder / "checkpoints", book, say, running.close)
    weakref.finalize(endpoint, running.close)
    return endpoint
