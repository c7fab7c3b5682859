from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest


def make_people(n: int, seed: int, gaps: bool = True) -> pd.DataFrame:
    """Rows of a small mixed table: numbers, an atom, levels, dates, missing values, all dependent."""
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 80, n)
    job = np.where(rng.random(n) < age / 100, "clerk", rng.choice(["smith", "baker"], n))
    wage = np.exp(rng.normal(0, 0.5, n)) * age * np.where(job == "clerk", 60.0, 30.0)
    frame = pd.DataFrame(
        {
            "age": age,
            "wage": wage,
            "gain": np.where(rng.random(n) < 0.7, 0.0, wage * rng.random(n)),
            "job": job,
            "children": rng.integers(0, 4, n),
            "rich": wage > 2500,
            "born": pd.Timestamp("2024-01-01") - pd.to_timedelta(age * 365, unit="D"),
        }
    )
    if gaps:
        frame.loc[rng.random(n) < 0.1, "wage"] = np.nan
        frame.loc[rng.random(n) < 0.05, "job"] = None
    return frame


@pytest.fixture(scope="session")
def people() -> Callable[..., pd.DataFrame]:
    return make_people
