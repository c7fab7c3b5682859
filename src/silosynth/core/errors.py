"""The error tree: every error states the rule that was broken, the value that broke it and the remedy.

``exit_code`` is what the command line returns for each branch, so that scripts can tell them apart.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable
from typing import Any, ClassVar

_ABSENT = object()
_HIDDEN = "What this silo was asked for does not fit its rows, files or settings"
_ELSEWHERE = "Ask the silo's operator: its log.txt of the job says more."


class SilosynthError(Exception):
    """Root of all errors that silosynth raises on purpose.

    Args:
        rule: what must hold, in one sentence.
        value: the offending value, shown in short form. Never pass private data here: errors end up in logs.
        remedy: what the reader can do about it.
        public: what readers in other organisations may know; the rule and the remedy, if not given, where they stand
            as they are in the code that raises the error: such a text holds no value, as one with blanks filled in may.

    Attributes:
        events: of noised releases (`silosynth.privacy.events`) that decided that it is raised, which is to be charged.
    """

    exit_code: ClassVar[int] = 1
    events: tuple[Any, ...] = ()

    def __init__(self, rule: str, value: object = _ABSENT, remedy: str = "", *, public: str = "") -> None:
        self.rule, self.remedy = rule, remedy
        constants = sys._getframe(1).f_code.co_consts
        self._public = [public or (rule if rule in constants else _HIDDEN), remedy if remedy in constants else ""]
        self.value = None if value is _ABSENT else _short(value)
        shown = "" if self.value is None else f" (got: {self.value})"
        super().__init__(f"{rule}{shown}" + (f". {remedy}" if remedy else ""))

    def public(self) -> SilosynthError:
        """The same error as other organisations may read it: without values, which stay in this machine's own log."""
        rule, remedy = self._public
        return type(self)(rule, remedy=f"{remedy} {_ELSEWHERE}".strip())

    def prefix(self, where: str) -> None:
        """Say first who raised it and when: names of silos and of messages, which everybody knows."""
        self.rule, self._public[0] = f"{where}: {self.rule}", f"{where}: {self._public[0]}"
        self.args = (f"{where}: {self}",)


class DataError(SilosynthError):
    """A table or a column cannot be used as given."""

    exit_code = 2


class SchemaError(DataError):
    """A declared column kind does not fit the column, or two silos disagree about columns."""


class ConfigError(SilosynthError):
    """An option, a preset, an algorithm or an experiment file is not valid."""

    exit_code = 2


class MessageError(SilosynthError):
    """A message carries something that may not cross a border, or a frame cannot be decoded."""

    exit_code = 3


class ProtocolError(SilosynthError):
    """A party or the coordinator sent a message that the protocol does not allow at this point."""

    exit_code = 3


class VersionError(ProtocolError):
    """Two sites run different versions of silosynth."""


class PolicyError(ProtocolError):
    """A silo's own policy does not allow what the silo was asked for; names the rule."""


class StoppedError(ProtocolError):
    """The engine ended a job early: somebody stopped it, or the coordinator is shutting down."""


class PartyLostError(ProtocolError):
    """A party died, refused, or missed its time limit; names the party and the step.

    Attributes:
        gone: whether it died, stayed away or was too slow, rather than failed.
    """

    gone = False


class StorageError(SilosynthError):
    """A file cannot be read or written: missing, damaged, of another version, or the disk is full."""

    exit_code = 4


class CheckpointError(StorageError):
    """A checkpoint is unreadable or belongs to another experiment."""


class ReproductionError(SilosynthError):
    """Results that are kept do not come out again."""

    exit_code = 6


class UnavailableError(SilosynthError):
    """Something optional is absent: a public data set while offline, or an extra that is not installed."""

    exit_code = 5


def nearest(word: str, known: Iterable[str]) -> str:
    """Remedy sentence that names the known word closest to ``word``, or all of them when none is close."""
    known = [str(k) for k in known]
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(sorted(known)) or 'none'}."


def _short(value: object, limit: int = 200) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
