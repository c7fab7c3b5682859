"""What a job that counts has opened, as coordinator and silos keep it in the job's folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from silosynth.core.conversation import State
from silosynth.core.errors import StorageError
from silosynth.core.files import PRIVATE, make_folder, read, write_atomic
from silosynth.core.messages import from_state, to_state
from silosynth.deployment.protocol import Job
from silosynth.runtime.wire import pack, unpack

COUNTED = "counted.silosynth"


@dataclass(frozen=True)
class CountedJob:
    """A job that counted.

    Attributes:
        job: what it was; without its seed.
        result: what opened, as it was passed on: what the algorithm's `coordinate` returns.
        common: how many rows all silos have in common, as linking has told this machine: exact, at no epsilon. None
            if rows were not linked.
    """

    job: Job
    result: State
    common: int | None = None


def keep_counted(folder: Path, job: Job, result: State, common: int | None) -> None:
    """Write what a job has opened into its folder, and how many rows were linked.

    Raises:
        StorageError: it cannot be written.
    """
    content = {"job": to_state(replace(job, seed=None)), "result": result, "common": common}
    write_atomic(make_folder(folder) / COUNTED, pack(content), PRIVATE)


def read_counted(folder: Path) -> CountedJob:
    """What `keep_counted` wrote.

    Raises:
        StorageError: there is none, or it is damaged.
    """
    path = folder / COUNTED
    if not path.exists():
        raise StorageError(
            "The job has counted, and left what it opened", folder.name, "Is it done? See: silosynth status."
        )
    content = unpack(read(path))
    return CountedJob(from_state(Job, content["job"]), content["result"], content.get("common"))
