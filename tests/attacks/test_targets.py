"""Vulnerable records, against the equations taken literally."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st

from silosynth.attacks import membership
from silosynth.core.errors import DataError
from silosynth.evaluation.coding import Coded, code_tables


def coded(frame: pd.DataFrame) -> Coded:
    return code_tables({"t": frame})["t"]


def _distances(frame: pd.DataFrame) -> list[float]:
    """Equation (32), one pair at a time: one-hot vectors, and numbers between 0 and 1."""
    words, numbers = frame[["a", "b"]], frame[["x", "y"]]
    hot = pd.get_dummies(words.astype("category")).to_numpy(float)
    scaled = ((numbers - numbers.min()) / (numbers.max() - numbers.min())).to_numpy()
    found = []
    for i in range(len(frame)):
        nearest = np.inf
        for j in range(len(frame)):
            if i != j:
                parts = 0.0
                for vectors in (hot, scaled):
                    length = np.linalg.norm(vectors[i]) * np.linalg.norm(vectors[j])
                    parts += 0.5 * (vectors[i] @ vectors[j] / length if length else 0.0)
                nearest = min(nearest, 1 - parts)
        found.append(nearest)
    return found


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(2, 25))
def test_neighbours_are_those_of_the_equation(seed: int, rows: int) -> None:
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame({"a": draw.choice(list("pq"), rows), "b": draw.choice(list("rst"), rows)})
    frame = frame.assign(x=draw.normal(size=rows), y=draw.normal(size=rows))
    assert membership.nearest_distances(coded(frame)) == pytest.approx(_distances(frame), abs=1e-9)


def test_outliers_are_those_of_the_equations() -> None:
    frame = pd.DataFrame({"x": [*range(1, 102), 151.9, 153, -52, -48.0], "y": [0.5 * i for i in range(104)] + [500.0]})
    first, third = np.percentile(frame["x"], [25, 75])
    expected = ((first - frame["x"]) > (third - first)) | ((frame["x"] - third) > (third - first))
    counts = membership.outlier_counts(coded(frame))
    assert (counts[:104] == expected[:104]).all() and counts[104] == expected[104] + 1


def test_of_equally_outlying_records_the_furthest_is_taken() -> None:
    frame = pd.DataFrame({"x": [*np.linspace(0, 1, 50), 5.0, 9.0, 7.0], "y": np.linspace(0, 1, 53)})
    assert membership.most_outlying(coded(frame)) == 51


def test_the_threshold_decides_what_an_outlier_is() -> None:
    near, far = {"x": 2.4, "y": 2.4}, {"x": 9.0, "y": 0.5}
    frame = pd.DataFrame([{"x": value, "y": value} for value in np.linspace(0, 1, 50)] + [near, far])
    assert membership.most_outlying(coded(frame)) == 50 and membership.most_outlying(coded(frame), 5.0) == 51


def test_without_numbers_there_are_no_outliers() -> None:
    with pytest.raises(DataError, match="numeric"):
        membership.outlier_counts(coded(pd.DataFrame({"a": ["x", "y"]})))
