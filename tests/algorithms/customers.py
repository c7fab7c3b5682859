"""A table for plays of VT-GAN and VFLGAN: text, numbers, and a column that depends on another silo's."""

from __future__ import annotations

import numpy as np
import pandas as pd


def table(rows: int = 70) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    city = rng.choice(["Bern", "Oslo", "Rome"], rows, p=[0.6, 0.3, 0.1])
    return pd.DataFrame(
        {
            "city": city,
            "income": rng.normal(50, 9, rows) + 20 * (city == "Oslo"),
            "debt": rng.gamma(2.0, 3.0, rows).round(1),
            "sex": rng.choice(["f", "m"], rows),
            "visits": rng.poisson(4, rows),
        }
    )
