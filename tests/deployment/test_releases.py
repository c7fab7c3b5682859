"""A silo's record of noised releases: what the command shows of it, and several processes that write into it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from silosynth.cli import app
from silosynth.commands import ledgers
from silosynth.deployment.policy import FILE, POLICY, Releases
from silosynth.privacy.events import DISCRETE_LAPLACE, Event, unsound

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


def silos_kit(folder: Path) -> Path:
    """A silo's kit with a policy, of which the command reads but the names."""
    (folder / "bank" / "work").mkdir(parents=True)
    (folder / "bank" / POLICY).write_text("largest_epsilon = 4.0\nlargest_delta = 1e-5\n")
    return folder / "bank"


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = silos_kit(tmp_path)
    known: Any = SimpleNamespace(name="bank", folder=folder, jobs=folder / "work" / "jobs", roster=("bank", "shop"))
    monkeypatch.setattr(ledgers, "open_kit", lambda path: known)
    return folder


def show(*words: str) -> Result:
    return CliRunner().invoke(app, ["ledger", "releases", *words], env={"COLUMNS": "200"})


def test_a_silo_without_releases_says_so(kit: Path) -> None:
    assert show().stdout == "bank has released nothing with noise yet.\n"
    facts = json.loads(show("--json").stdout)
    assert (facts["releases"], facts["jobs"], facts["budget"]["epsilon"]) == ([], [], 0.0)


def test_the_record_shows_when_what_and_for_which_epsilon(kit: Path) -> None:
    releases, counts = Releases(kit / "work"), Event(DISCRETE_LAPLACE, 0.5, 0.0, "counts of 'job'")
    releases.add("one", "a", [counts])
    releases.add("two", "b", [counts, Event(DISCRETE_LAPLACE, 0.25, 0.0, "the number of rows")])
    releases.add("one", "a", [counts])  # the first again
    facts = json.loads(show("--json").stdout)
    assert [(one["job"], one["epsilon"]) for one in facts["releases"]] == [("one", 0.5), ("two", 0.75)]
    assert facts["releases"][1]["what"] == ["counts of 'job'", "the number of rows"]
    assert all(datetime.fromisoformat(one["at"]).tzinfo for one in facts["releases"])
    assert facts["releases"][0]["events"] == [asdict(counts)]
    assert facts["jobs"] == [{"job": job, "releases": 1, "epsilon": e} for job, e in (("one", 0.5), ("two", 0.75))]
    assert (facts["budget"]["epsilon"], facts["budget"]["limit"], facts["budget"]["left"]) == (1.25, 4.0, 2.75)
    text = show().stdout
    assert "counts of 'job'; the number of rows" in text
    assert "All jobs together: epsilon 1.25 at delta 1e-05; the policy: 4 at most." in text


def test_the_record_of_one_job(kit: Path) -> None:
    releases = Releases(kit / "work")
    for number in range(5):
        releases.add("one", f"a{number}", [Event(DISCRETE_LAPLACE, 0.1, 0.0, f"{n} of {number}") for n in "abcde"])
    releases.add("two", "b", [unsound("gradients")])
    facts = json.loads(show("--job", "two", "--json").stdout)
    assert [one["job"] for one in (*facts["releases"], *facts["jobs"])] == ["two", "two"]
    assert facts["releases"][0]["epsilon"] is None and facts["budget"]["epsilon"] is None
    assert "gradients  none" in " ".join(show("--job", "two").stdout.split(" "))
    assert "a of 4; b of 4; c of 4; and 2 more" in show("--job", "one").stdout
    failed = show("--job", "tow")
    assert failed.exit_code == 2 and "two" in failed.stderr


def test_lines_of_earlier_versions_have_no_time(kit: Path) -> None:
    event = asdict(Event(DISCRETE_LAPLACE, 0.5, 0.0, "counts"))
    line = {"job": "one", "attempt": 1, "number": 2, "events": [event]}
    (kit / "work" / FILE).write_text(json.dumps(line) + "\n")
    (one,) = json.loads(show("--json").stdout)["releases"]
    assert (one["at"], one["epsilon"]) == ("", 0.5)
    (kit / "work" / FILE).write_text("{\n")
    assert "The record of a silo's releases can be read" in show().stderr


def test_only_silos_have_a_record(kit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "open_kit", lambda path: SimpleNamespace(name="coordinator", roster=("bank",)))
    failed = show()
    assert failed.exit_code == 2 and "Use a silo's kit" in failed.stderr
