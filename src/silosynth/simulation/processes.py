"""One operating-system process per party on this machine, over the same streams that cross organisations."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from silosynth.core.errors import PartyLostError, UnavailableError
from silosynth.core.files import make_folder
from silosynth.core.roster import Roster
from silosynth.runtime.hub import Hub, Lost
from silosynth.runtime.link import PARTY_THREADS, Remote
from silosynth.runtime.stream import StreamHub
from silosynth.runtime.tls import Authority
from silosynth.simulation.process_kit import Kit

Command = Callable[[str, Path], Sequence[str]]
"""The command line that starts a party, from its name and the folder of its kit (`process_kit`)."""

_GOODBYE = 0.3  # seconds that children have to leave; Python with torch takes a second to clean up what nobody needs
_WORDS = 1500  # characters of a dead child's log that go into the error


class Processes(Remote):
    """Starts a process per party and waits until all have dialled in. Close it, or use it as a context manager.

    Keys lie in a temporary folder, readable by this user only, until every party has read its own.

    Args:
        roster: who takes part.
        command: the command line that starts a party.
        folder: below it each party keeps its parts of checkpoints (`CheckpointStore.parties`); None for none.
        limit: seconds that parties have for an answer, or to write their part of a checkpoint; None waits as long as
            they live.
        start_within: seconds that parties have to start.

    Raises:
        PartyLostError: a party did not start; its last words are in the error.
    """

    def __init__(
        self,
        roster: Roster,
        command: Command,
        folder: Path | str | None = None,
        *,
        limit: float | None = None,
        start_within: float = 120.0,
    ) -> None:
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._place = Path(tempfile.mkdtemp(prefix="silosynth-"))
        hub: StreamHub | None = None
        try:
            authority = Authority()
            hub = StreamHub(roster, authority.coordinator())
            super().__init__(roster, hub, self._dead, limit)
            for party in roster:
                self._start(party, command, hub.address, authority, folder)
            self._wait(hub, start_within)
        except BaseException:
            self._end(hub)
            raise

    def close(self) -> None:
        """Say goodbye to the parties and end those that do not leave; may be called twice."""
        self._end(self._hub)

    def last_words(self, party: str) -> str:
        """The end of the party's log."""
        try:
            words = (self._place / party / "log").read_text("utf-8", "replace")[-_WORDS:].strip()
        except OSError:
            return ""
        return f"Its last words: {words}" if words else ""

    def pids(self) -> dict[str, int]:
        """Process number of each party."""
        return {party: child.pid for party, child in self._children.items()}

    def _start(
        self, party: str, command: Command, address: str, authority: Authority, folder: Path | str | None
    ) -> None:
        place = self._place / party
        place.mkdir(mode=0o700)
        own = None if folder is None else make_folder(Path(folder).absolute() / party)
        Kit(party, address, own, PARTY_THREADS, authority.party(party)).write(place)
        argv = list(command(party, place))
        try:
            with open(place / "log", "wb") as log:
                self._children[party] = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, "OMP_NUM_THREADS": str(PARTY_THREADS), "MKL_NUM_THREADS": str(PARTY_THREADS)},
                    start_new_session=True,  # Ctrl-C is for the coordinator, which then ends its children in order
                )
        except OSError as error:
            raise UnavailableError(
                f"Silo {party!r} can be started", error.strerror or "", f"Check {argv[0]!r}."
            ) from error

    def _wait(self, hub: StreamHub, seconds: float) -> None:
        try:
            hub.wait_for_all(seconds, self._dead)
        except Lost as lost:
            raise PartyLostError(
                f"Silo {lost.party!r} starts and connects", lost.reason, self.last_words(lost.party)
            ) from None
        for party in self._children:
            for name in ("key.pem", "cert.pem", "ca.pem"):
                (self._place / party / name).unlink()

    def _dead(self, party: str) -> str | None:
        code = self._children[party].poll()
        if code is None:
            return None
        if code >= 0:
            return f"its process ended with exit code {code}"
        try:
            return f"its process was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"its process was ended by signal {-code}"

    def _end(self, hub: Hub | None) -> None:
        try:
            if hub is not None:
                hub.stop()
            until = time.monotonic() + _GOODBYE
            for child in self._children.values():
                try:
                    child.wait(max(0.0, until - time.monotonic()))
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
        finally:
            shutil.rmtree(self._place, ignore_errors=True)
