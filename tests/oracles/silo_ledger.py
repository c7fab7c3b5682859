"""The lines of a silo's ledger, each by itself when it comes: what every faster way must lead to, to the byte."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from blake3 import blake3

from silosynth.core.conversation import COORDINATOR
from silosynth.core.messages import Message, wire_name
from silosynth.deployment.silo_ledger import EVERY, signing_key
from silosynth.privacy.sealed import Seat, framed


class PlainLedger:
    """The text of a ledger, in memory.

    Args:
        job, seat: whose it is.
        at: nanoseconds since 1970, at which everything happens.
    """

    def __init__(self, job: str, seat: Seat, at: int) -> None:
        self.job, self.seat, self.at = job, seat, at
        self.lines: list[str] = []
        self.signed = 0
        key = signing_key(seat).public_key().public_bytes_raw().hex()
        self.add({"kind": "opened", "job": job, "silo": seat.name, "key": key})
        self.sign()

    @property
    def text(self) -> bytes:
        """All lines."""
        return "".join(line + "\n" for line in self.lines).encode()

    def exchange(self, step: int, ask: Message, reply: Message, ask_blob: bytes, reply_blob: bytes) -> None:
        """An ask and its reply."""
        self.message(step, COORDINATOR, self.seat.name, ask, ask_blob)
        self.message(step, self.seat.name, COORDINATOR, reply, reply_blob)
        self.sign_if_due()

    def message(self, step: int, sender: str, receiver: str, message: Message, blob: bytes) -> None:
        """One message."""
        record: dict[str, Any] = {
            "step": step, "from": sender, "to": receiver, "type": wire_name(type(message)), "bytes": len(blob),
            "privacy": message.release.value,
        }  # fmt: skip
        if events := getattr(message, "events", ()):
            record["events"] = [asdict(event) for event in events]
        record["digest"] = blake3(blob).hexdigest()
        if type(message).common and receiver == self.seat.name:
            record["common"] = True
        self.add(record)

    def sign(self) -> None:
        """A line that signs those before it."""
        signed = framed("silosynth silo ledger 2", self.job, self.seat.name, str(len(self.lines)), self._last())
        signature = base64.b64encode(signing_key(self.seat).sign(signed)).decode()
        self.add({"kind": "signed", "signature": signature})
        self.signed = len(self.lines)

    def sign_if_due(self) -> None:
        """There is a signature after so many lines."""
        if len(self.lines) - self.signed >= EVERY - 2:
            self.sign()

    def add(self, record: dict[str, Any]) -> None:
        """A line."""
        seconds, rest = divmod(self.at, 10**9)
        moment = datetime.fromtimestamp(seconds, timezone.utc).replace(microsecond=rest // 1000)
        at = moment.isoformat(timespec="microseconds")
        self.lines.append(json.dumps({"n": len(self.lines), "at": at, **record, "before": self._last()}))

    def _last(self) -> str:
        return blake3(self.lines[-1].encode()).hexdigest() if self.lines else "0" * 64
