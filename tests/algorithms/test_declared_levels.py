"""Tables of few rows at a small epsilon: categories are learnt if their levels are declared, and refused if not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.algorithms.rows_play import RowsPlay

import silosynth as ss
from silosynth.algorithms.marginals.protocol import RowsDescribed
from silosynth.core.errors import DataError, ProtocolError, SchemaError
from silosynth.core.schema import ColumnSchema, Schema, agreed, check_agreed

DP = {"dp": {"epsilon": 0.5, "delta": 1e-6}}
LEVELS = {"code": {"levels": [1, 2, 3, 4, 5, 6, 7, 8]}, "answer": {"levels": ["no", "perhaps", "yes"]}}
HALVES = {"north": slice(200), "south": slice(200, None)}
COLUMNS = {"clinic": ["code"], "fund": ["answer"]}
WAYS: dict[str, dict[str, Any]] = {
    "columns": {"silos": COLUMNS},
    "rows": {"rows": HALVES},
    "groups": {"rows": HALVES, "silos": {"north": COLUMNS, "south": {"hospital": ["code"], "insurer": ["answer"]}}},
}


def people() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({"code": rng.integers(1, 8, 400), "answer": rng.choice(["no", "yes"], 400)})


@pytest.mark.parametrize(("algorithm", "way"), [*(("aim", way) for way in WAYS), ("dplt", "columns")])
def test_declared_levels_are_learnt_where_no_name_would_be_released(algorithm: str, way: str) -> None:
    federation = ss.simulate(people(), schema={"code": "categorical"}, **WAYS[way])
    with pytest.raises(DataError, match="Declare its levels"):
        ss.fit(algorithm, federation, "fast", options=DP, progress=False)
    federation = ss.simulate(people(), schema=LEVELS, **WAYS[way])
    model = ss.fit(algorithm, federation, "fast", options=DP, seed=3, progress=False)
    drawn = model.sample(300, seed=1)
    assert set(drawn["code"]) <= {*range(1, 9)} and set(drawn["answer"]) <= {"no", "perhaps", "yes"}
    assert drawn["code"].value_counts(normalize=True).max() < 0.6 and drawn["code"].nunique() > 3


@pytest.mark.parametrize("other", [(1, 2, 3), (4, 3, 2, 1), ()])
def test_silos_with_different_rows_declare_the_same_levels(other: tuple[int, ...]) -> None:
    own = Schema((ColumnSchema("code", "categorical", "int64", levels=(1, 2, 3, 4)),))
    theirs = Schema((ColumnSchema("code", "categorical", "int64", levels=other),))
    assert agreed({"north": own, "south": own})["code"].levels == (1, 2, 3, 4)
    with pytest.raises(SchemaError, match="same declared levels in every silo"):
        agreed({"north": own, "south": theirs})
    with pytest.raises(ProtocolError, match="covers each silo's own columns"):
        check_agreed(own, theirs)


@pytest.mark.parametrize("options", [{}, DP])
def test_small_counts_of_a_declared_level_open_with_noise_alone(options: dict[str, Any]) -> None:
    """Where sums open exactly, levels are none to the coordinator but by hashes, as if they were not declared."""
    rows = {"north": slice(150), "south": slice(150, 300), "west": slice(300, None)}
    federation = ss.simulate(people(), rows=rows, schema=LEVELS)
    with pytest.MonkeyPatch.context() as patched:
        play = RowsPlay(federation, options).drive(patched)
    described = [reply for _, _, reply in play.said if isinstance(reply, RowsDescribed)]
    assert {len(one.levels) > 0 for reply in described for one in reply.schema.columns} == {bool(options)}
