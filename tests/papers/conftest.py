from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from silosynth.core.conversation import Progress
from silosynth.data.frames import to_frame
from silosynth.papers import results, settings
from silosynth.papers.experiment import PaperExperiment
from silosynth.papers.settings import Setting
from silosynth.papers.vtgan_figure7 import halves


@dataclass
class Copier:
    """Stands in for a model: draws training rows."""

    frame: pd.DataFrame
    ledger: list[dict[str, Any]] = field(default_factory=lambda: [{"bytes": 40}, {"bytes": 2}])

    def sample(self, n: int, seed: int) -> pd.DataFrame:
        return self.frame.sample(n, replace=True, random_state=seed)


@dataclass
class Fits:
    """Stands in for `silosynth.fit`, and remembers what it was asked for; may be interrupted at one of the calls."""

    interrupt_at: int | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, name: str, federation: Any, *, progress: Callable[[Progress], None], **asked: Any) -> Copier:
        if len(self.calls) == self.interrupt_at:
            raise KeyboardInterrupt
        self.calls.append({"name": name, "silos": federation.silos, **asked})
        for done in range(3):
            progress(Progress("training", done, 2))
        return Copier(to_frame(federation.central().tables["central"]))


@pytest.fixture(autouse=True)
def no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stamps without the commit, for which a process is started."""
    monkeypatch.setattr(results, "_commit", lambda root: "")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where results go if nobody says where."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def fits() -> Fits:
    return Fits()


@pytest.fixture(scope="session")
def reports() -> dict[Any, Any]:
    return {}


@pytest.fixture
def figures_once(reports: dict[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows of a table's size have the first one's figures, which take longest and are not what is tested."""
    evaluate = settings.evaluate

    def once(train: pd.DataFrame, *tables: Any, figures: str, **more: Any) -> Any:
        size = len(train), figures
        if size not in reports:
            reports[size] = evaluate(train, *tables, figures=figures, **more)  # type: ignore[arg-type]
        return reports[size]

    monkeypatch.setattr(settings, "evaluate", once)


@pytest.fixture
def experiment() -> PaperExperiment:
    """A split GAN and the central one."""
    split = Setting({"partition": "split"}, halves, {"critic_blocks": [2, 0]})
    central = Setting({"partition": "central"}, halves, {}, "ctgan")
    return settings.comparison("partitions", "An experiment", partial(settings.jobs, (split, central)))
