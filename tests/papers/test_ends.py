"""``silosynth papers run beside/ends``: hours of a published training, from the pace of a few steps."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from silosynth.core.errors import ConfigError
from silosynth.papers import ends


def test_the_pace_is_what_more_steps_take_without_what_comes_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, warm = [0.0], 1000.0

    def train(steps: int, tell: object) -> None:
        nonlocal warm
        clock[0] += warm + 100 + 0.5 * steps
        warm = 0.0  # of a process's first training

    monkeypatch.setattr(ends, "time", SimpleNamespace(process_time=lambda: clock[0]))
    monkeypatch.setitem(ends.ENDS, "gdts", replace(ends.ENDS["gdts"], timed=(2, 6), steps=7200, train=train))
    (job,) = ends.jobs(["gdts"])
    row = ends.measure(job)
    assert row["seconds a step"] == pytest.approx(0.5) and row["hours"] == pytest.approx(1)
    assert row.items() >= job.identity.items()
    ((_, heads, (cells,)),) = ends.sections([row])
    assert dict(zip(heads, cells, strict=True)).items() >= {"algorithm": "gdts", "steps": "7 200", "hours": "1"}.items()


def test_each_algorithm_of_the_papers_has_an_end() -> None:
    assert [job.algorithm for job in ends.jobs()] == ["silofuse", "vtgan", "vflgan", "gdts", "tabvfl"]
    with pytest.raises(ConfigError, match="gtds"):
        ends.jobs(["gtds"])
