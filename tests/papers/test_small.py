"""Every table and figure of the five papers that has a command runs at its small size, with the real algorithms."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from silosynth.cli import app
from silosynth.papers import experiment
from silosynth.papers.published import ENTRIES, Published

ONCE = {(entry.experiment, str(entry.given)): entry for entry in ENTRIES if entry.experiment}  # made of the same rows

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),  # minutes each; a machine may do other things as well
    pytest.mark.filterwarnings("ignore::silosynth.algorithms.vflgan.protocol.PrivacyWarning"),  # which users are to see
    pytest.mark.filterwarnings("ignore::silosynth.data.infer.ColumnWarning"),
    pytest.mark.skipif("SILOSYNTH_DATA" not in os.environ, reason="needs the data sets"),
]


@pytest.mark.parametrize("entry", ONCE.values(), ids=lambda entry: entry.name)
def test_the_small_size_runs(entry: Published, tmp_path: Path) -> None:
    page = tmp_path / "rows.md"
    result = CliRunner().invoke(app, ["papers", "run", entry.name, "--out", str(page), "--json"])
    assert result.exit_code == 0, result.stderr
    loaded = experiment.load(str(entry.experiment))
    wanted = [json.loads(json.dumps(job.identity)) for job in loaded.sized("small", entry.given)]
    rows = json.loads(page.with_suffix(".json").read_text())["rows"]
    assert len(rows) == len(wanted) and all(any(one.items() <= row.items() for row in rows) for one in wanted)
    assert loaded.title in page.read_text()
    if loaded.pictures is not None and "figure" in entry.number:
        assert list(tmp_path.glob("*.svg")) or list(tmp_path.glob("*.png"))
