"""A silo's record of noised releases, when several of its processes write into it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from silosynth.deployment.policy import Releases

WRITER = """
import sys
from pathlib import Path

from silosynth.deployment.policy import Releases
from silosynth.privacy.events import {kind}

releases = Releases(Path(sys.argv[1]))
for number in range(40):
    with releases.locked():
        before = len(releases.without(""))
        releases.add("trial", f"{{sys.argv[2]}} {{number}}", [{event!r}])
        assert len(releases.without("")) == before + 1
"""


@pytest.mark.live
def test_jobs_at_the_same_time_lose_no_release(tmp_path: Path) -> None:
    import torch

    from silosynth.core.streams import Streams
    from silosynth.privacy.mechanisms import noised_counts

    _, event = noised_counts(torch.tensor([5]), 1.0, "counts", Streams(0).noise())
    assert event is not None
    script = WRITER.format(kind=type(event).__name__, event=event)
    argv = [sys.executable, "-c", script, str(tmp_path)]
    writers = [subprocess.Popen([*argv, name]) for name in ("a", "b")]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert len(Releases(tmp_path).without("")) == 80
