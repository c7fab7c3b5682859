"""No text of a table is a formula in somebody's spreadsheet, and none is lost."""

from __future__ import annotations

import csv
from pathlib import Path

import pandas as pd
import pytest

from silosynth.data.csvfiles import FormulaWarning
from silosynth.data.sources import read, write

FORMULAS = ["=1+2", "+cmd|' /C calc'!A0", "-2+3+cmd", "@SUM(A1)", "\t=1+2", "\r=1+2", "＝1+2", "'=1+2", "''@x", "-5 kg"]
PLAIN = ["-", "--", "+", "-5", "+1.5e3", "-3,5", "'s Gravenhage", "a=b", "x", "- ", "-7 %"]


def cells(path: Path) -> list[str]:
    """The first cell of each line."""
    with path.open(encoding="utf-8", newline="") as lines:
        return [record[0] for record in csv.reader(lines)]


@pytest.mark.parametrize("dtype", ["object", "str", "category"])
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".csv.gz"])
def test_formulas_are_written_as_text_and_read_as_they_were(dtype: str, suffix: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"=level": [*FORMULAS, *PLAIN], "n": range(len(FORMULAS) + len(PLAIN))})
    frame["=level"] = frame["=level"].astype(dtype)
    with pytest.warns(FormulaWarning, match="Texts in '=level'"):
        write(frame, tmp_path / f"made{suffix}")
    if suffix == ".csv":
        assert not {*FORMULAS[:7], "-5 kg", "=level"} & {*cells(tmp_path / "made.csv")}
    again = read(tmp_path / f"made{suffix}")
    assert list(again["=level"]) == [*FORMULAS, *PLAIN]


def test_other_tables_are_written_as_before(tmp_path: Path) -> None:
    frame = pd.DataFrame({"level": PLAIN, "n": -1.5})
    write(frame, tmp_path / "safe.csv")
    write(frame, tmp_path / "raw.csv", raw_text=True)
    assert (tmp_path / "safe.csv").read_bytes() == (tmp_path / "raw.csv").read_bytes()


def test_texts_can_be_written_as_they_are(tmp_path: Path) -> None:
    write(pd.DataFrame({"level": ["=1+2"]}), tmp_path / "raw.csv", raw_text=True)
    assert cells(tmp_path / "raw.csv") == ["level", "=1+2"]
