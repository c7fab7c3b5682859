"""Codes of two silos' rows find which of them keep a rule across both: those that the rule says of the whole table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import silosynth as ss
from silosynth.core.rules import Rule, read_rules
from silosynth.core.schema import distinct_columns
from silosynth.data.rules import bind
from silosynth.deployment.silo_sampling import row_codes
from silosynth.privacy.simultaneous import go_together

KEY = bytes(32)
RULES: list[dict[str, Any]] = [
    {"kind": "inequality", "low": "a", "high": "b"},
    {"kind": "inequality", "low": "a", "high": "b", "strict": True},
    {"kind": "inequality", "low": "b", "high": "a", "strict": True},
    {"kind": "inequality", "low": "c", "high": "b"},
    {"kind": "inequality", "low": "came", "high": "went", "strict": True},
    {"kind": "combination", "columns": ["town", "land"], "allowed": [["x", "n"], ["y", "s"], ["y", "n"], [None, None]]},
    {"kind": "combination", "columns": ["land", "a", "town"], "allowed": [["n", 1, "x"], ["s", 2, "y"], ["s", 1, ""]]},
    {"kind": "null_together", "columns": ["a", "b"]},
    {"kind": "null_together", "columns": ["went"], "when": "town", "level": "y"},
    {"kind": "null_together", "columns": ["a", "went", "b"], "when": "land", "level": "s"},
]


def rows(n: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(0)

    def gaps(values: Any) -> pd.Series:
        return pd.Series(values).where(rng.random(n) < 0.8)

    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 6, 2 * n), "D")
    return pd.DataFrame(
        {
            "a": gaps(rng.integers(0, 4, n).astype(float)), "c": rng.integers(2**53, 2**53 + 4, n),
            "town": gaps(rng.choice(["x", "y"], n)), "came": days[:n],
            "b": gaps(np.where(rng.random(n) < 0.5, rng.integers(0, 4, n), 2.0**53 + 2)),
            "land": gaps(rng.choice(["n", "s"], n)), "went": gaps(days[n:]),
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def federation() -> Any:
    kinds = dict.fromkeys(("a", "b"), "continuous") | dict.fromkeys(("town", "land"), "categorical") | {"c": "integer"}
    silos = {"one": ["a", "c", "town", "came"], "other": ["b", "land", "went"]}
    return ss.simulate(rows(), silos=silos, schema=kinds)


@pytest.mark.parametrize("rule", read_rules(RULES), ids=lambda rule: str(rule.in_words))
def test_codes_find_the_rows_that_keep_a_rule(rule: Rule, federation: Any) -> None:
    whole = distinct_columns(federation.tables.values())
    (bound,) = bind([rule], federation.schema, whole)
    codes = []
    for silo, table in federation.tables.items():
        own = table.select([name for name in table.names if name in rule.named])
        codes.append(row_codes(rule, federation.schemas[silo], own, KEY))
    kept, broken = go_together(*codes), bound.broken(whole).numpy()
    exact = "c" not in rule.named  # whole numbers beyond 2^53 are rounded apart: more rows are taken to break the rule
    assert 0 < kept.sum() < len(kept) and not (kept & broken).any() and ((kept == ~broken).all() or not exact)
