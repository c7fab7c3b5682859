"""Organisations that may not pool their tables train one generator of synthetic tables together.

>>> import silosynth as ss
>>> train, holdout = ss.split(frame, holdout=0.2, seed=0)  # doctest: +SKIP
>>> federation = ss.simulate(train, silos={"bank": ["income"], "clinic": ["age"]})  # doctest: +SKIP
>>> model = ss.fit("silofuse", federation, preset="fast", seed=7)  # doctest: +SKIP
>>> table = model.sample(1000)  # doctest: +SKIP

Importing the package loads nothing else: public names are resolved when they are first used. It sets the environment
variable MKL_CBWR, unless it is set, so that Intel's MKL gives products that do not depend on memory addresses.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from silosynth.core.version import VERSION as __version__

if TYPE_CHECKING:
    from silosynth.core import rules
    from silosynth.core.errors import SilosynthError
    from silosynth.data import datasets
    from silosynth.data.sources import read
    from silosynth.data.splits import split
    from silosynth.evaluation import Report, evaluate
    from silosynth.evaluation.appraisal import Appraisal
    from silosynth.simulation.appraisal import appraise
    from silosynth.simulation.counting import count
    from silosynth.simulation.federation import Federation, simulate
    from silosynth.simulation.gaps import impute
    from silosynth.simulation.judging import judge
    from silosynth.simulation.model import Model, load
    from silosynth.simulation.representation import Representation
    from silosynth.simulation.training import fit, represent

os.environ.setdefault("MKL_CBWR", "AUTO")  # same seed, same bytes; read when MKL is first used (docs/decisions/0006)

__all__ = [
    "Appraisal",
    "Federation",
    "Model",
    "Report",
    "Representation",
    "SilosynthError",
    "__version__",
    "appraise",
    "count",
    "datasets",
    "evaluate",
    "fit",
    "impute",
    "judge",
    "load",
    "read",
    "represent",
    "rules",
    "simulate",
    "split",
]

_HOMES = {
    "Appraisal": "silosynth.evaluation.appraisal",
    "Federation": "silosynth.simulation.federation",
    "Model": "silosynth.simulation.model",
    "Report": "silosynth.evaluation",
    "Representation": "silosynth.simulation.representation",
    "SilosynthError": "silosynth.core.errors",
    "appraise": "silosynth.simulation.appraisal",
    "count": "silosynth.simulation.counting",
    "evaluate": "silosynth.evaluation",
    "fit": "silosynth.simulation.training",
    "impute": "silosynth.simulation.gaps",
    "judge": "silosynth.simulation.judging",
    "load": "silosynth.simulation.model",
    "read": "silosynth.data.sources",
    "represent": "silosynth.simulation.training",
    "simulate": "silosynth.simulation.federation",
    "split": "silosynth.data.splits",
}
_MODULES = {"datasets": "silosynth.data.datasets", "rules": "silosynth.core.rules"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
