"""Numbers whose bounds nobody has declared, under differential privacy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

import silosynth as ss
from silosynth.core.errors import DataError
from silosynth.privacy.statement import statement

ROWS = 6000
HALVES = {"north": slice(ROWS // 2), "south": slice(ROWS // 2, None)}
COLUMNS = {"clinic": ["age", "owns"], "fund": ["pay", "day"]}
OTHERS = {"hospital": ["age", "day"], "insurer": ["pay", "owns"]}
WAYS: dict[str, dict[str, Any]] = {
    "columns": {"silos": COLUMNS},
    "rows": {"rows": HALVES},
    "groups": {"rows": HALVES, "silos": {"north": COLUMNS, "south": OTHERS}},
}


def people(rows: int = ROWS) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    return pd.DataFrame(
        {
            "age": rng.normal(45, 12, rows).clip(18, 90).round().astype(int),
            "pay": np.where(rng.random(rows) < 0.1, np.nan, rng.normal(0, 2e4, rows).round(2)),
            "day": pd.Timestamp("2015-01-01") + pd.to_timedelta(rng.integers(0, 2000, rows), unit="D"),
            "owns": rng.random(rows) < 0.3,
        }
    )


def dp(epsilon: float, bounds: str = "noised") -> dict[str, Any]:
    return {"dp": {"epsilon": epsilon, "delta": 1e-6, "bounds": bounds}}


@pytest.mark.parametrize(("algorithm", "way"), [*(("aim", way) for way in WAYS), ("dplt", "columns")])
def test_numbers_lie_where_they_did_though_no_bounds_are_declared(algorithm: str, way: str) -> None:
    data, epsilon = people(), 100.0 if algorithm == "dplt" else 10.0
    federation = ss.simulate(data, **WAYS[way])
    with pytest.raises(DataError, match=r"need declared bounds[\s\S]*dp\.bounds = 'noised'"):
        ss.fit(algorithm, federation, "fast", options=dp(epsilon, "declared"), progress=False)
    model = ss.fit(algorithm, federation, "fast", options=dp(epsilon), seed=3, progress=False)
    assert 0 < statement(model.ledger, assume_secret=True)["release"]["epsilon"] <= epsilon
    drawn, shares = model.sample(ROWS, seed=1), [0.05, 0.5, 0.95]
    for name in ("age", "pay", "day"):
        numbers, made = (
            frame[name].dropna().astype("float64" if name != "day" else "int64") for frame in (data, drawn)
        )
        width = float(np.ptp(numbers.quantile([0.05, 0.95])))
        assert np.abs(numbers.quantile(shares) - made.quantile(shares)).max() < 0.1 * width
        wide = 3 * width if name == "day" else width  # cells of instants are quarters of the time since 1970
        assert numbers.min() - wide < made.min() <= made.max() < numbers.max() + wide
    assert math.isclose(drawn["pay"].isna().mean(), 0.1, abs_tol=0.03)


@pytest.mark.parametrize("way", WAYS)
def test_a_table_on_which_noise_hides_them_is_refused(way: str) -> None:
    federation = ss.simulate(people(), **WAYS[way])
    with pytest.raises(
        DataError, match=r"an end that is not declared, and noise hides where its values lie[\s\S]*Declare"
    ):
        ss.fit("mst", federation, "fast", options=dp(0.05), progress=False)
