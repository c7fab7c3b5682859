"""Files: what is read is what was written; what is wrong is named with its place; nothing is half-written."""

from __future__ import annotations

import datetime as dt
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from silosynth.core.errors import DataError, SilosynthError, StorageError, UnavailableError
from silosynth.core.files import replacing
from silosynth.data import sources
from silosynth.data.csvfiles import CsvFormat, EncodingWarning
from silosynth.data.sources import SUFFIXES, missing_texts, read, read_batches, write, write_batches

FRAME = pd.DataFrame({"n": [1, 2, 3], "x": [0.1, None, 1e-7], "s": ["a", 'b "q", c', "two\nlines"]})


def refused(kind: type[SilosynthError], path: Path, *words: str, **options: Any) -> None:
    with pytest.raises(kind) as caught:
        read(path, **options)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def text(folder: Path, contents: str | bytes, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
    return path


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_there_and_back(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t{suffix}"
    write(FRAME, path)
    pd.testing.assert_frame_equal(read(path), FRAME)
    assert list(read(path, columns=["s", "n"]).columns) == ["n", "s"]
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_columnar_files_keep_dtypes(tmp_path: Path, suffix: str) -> None:
    frame = pd.DataFrame(
        {
            "i": pd.Series([1, None], dtype="Int16"),
            "c": pd.Categorical(["a", "b"], ["b", "a"], ordered=True),
            "t": pd.to_datetime(["2020-01-01", None]).tz_localize("Europe/Berlin"),
            "d": pd.Series([dt.date(2020, 1, 1), None], dtype=object),
        }
    )
    write(frame, tmp_path / f"t{suffix}")
    pd.testing.assert_frame_equal(read(tmp_path / f"t{suffix}"), frame)


def test_files_of_other_libraries(tmp_path: Path) -> None:
    frame = pl.DataFrame({"i": [1, None], "b": [True, None], "s": ["a", "b"]})
    frame.write_parquet(tmp_path / "t.parquet")
    assert read(tmp_path / "t.parquet").dtypes.astype(str).tolist()[:2] == ["Int64", "boolean"]
    frame.write_ipc_stream(tmp_path / "t.arrow")
    assert len(read(tmp_path / "t.arrow")) == 2
    write(frame, tmp_path / "u.parquet")
    assert read(tmp_path / "u.parquet")["i"].dtype == "Int64"


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separators_are_found(tmp_path: Path, separator: str) -> None:
    path = text(tmp_path, f'a{separator}"b;,"\n1{separator}2\n')
    assert read(path).to_dict("list") == {"a": [1], "b;,": [2]}
    assert read(path, separator=separator).shape == (1, 2)


def test_decimal_comma_bom_and_windows_line_ends(tmp_path: Path) -> None:
    path = text(tmp_path, "\ufeffname;wert\r\nMüller;1,5\r\n\r\nMeier;2,25\r\n")
    assert read(path, decimal=",").to_dict("list") == {"name": ["Müller", "Meier"], "wert": [1.5, 2.25]}


def test_leading_zeros_are_codes_not_numbers(tmp_path: Path) -> None:
    path = text(tmp_path, "zip,n,f\n00123,10,0.5\n99999,20,0\n,30,1\n")
    frame = read(path)
    assert frame["zip"].tolist()[:2] == ["00123", "99999"]
    assert frame["zip"].isna().tolist() == [False, False, True]
    assert frame["n"].tolist() == [10, 20, 30]
    assert frame["f"].dtype == "float64"


def test_wrong_encoding(tmp_path: Path) -> None:
    path = text(tmp_path, "name\n" + "x" * 9000 + "\nM\u00fcller\n")
    path.write_bytes(path.read_bytes().decode().encode("latin-1"))
    refused(DataError, path, "utf-8", "byte offset 9007", 'encoding = "latin-1"', encoding="utf-8")
    assert read(path, encoding="latin-1")["name"].iloc[1] == "Müller"
    with pytest.warns(EncodingWarning, match="read as cp1252"):
        assert read(path)["name"].iloc[1] == "Müller"
    damaged = text(tmp_path, "name\nM\u00fcller\n".encode() + b"\xc3x\n")
    refused(DataError, damaged, "utf-8", "byte offset 13")
    refused(DataError, path, "encoding", "klingon", encoding="klingon")


def test_bad_csv_files(tmp_path: Path) -> None:
    refused(DataError, text(tmp_path, ""), "t.csv is empty", "cut off")
    refused(DataError, text(tmp_path, "a,b\n"), "header only")
    refused(DataError, text(tmp_path, "a,b,a\n1,2,3\n"), "a name of its own", "got: a", "Rename")
    refused(DataError, text(tmp_path, ",b\n1,2\n"), "column 1 has none", "index=False")
    refused(DataError, text(tmp_path, "a,b\n1,2\n3\n"), "header, 2", "line 3 has 1")
    refused(DataError, text(tmp_path, 'a,b\n"1\n2",2\n3,4,5\n'), "line 4 has 3", "quotes")
    refused(DataError, text(tmp_path, "a,b\n1,2\n3,4,\n"), "line 3 has 3")


def test_bad_files(tmp_path: Path) -> None:
    text(tmp_path, "a\n1\n", "patients.csv")
    refused(StorageError, tmp_path / "patient.csv", "must exist", "Did you mean 'patients.csv'")
    refused(StorageError, tmp_path / "nowhere" / "x.csv", "must exist", "Check the path")
    refused(StorageError, tmp_path, "this is a folder")
    refused(DataError, text(tmp_path, "a", "t.xls"), ".parquet", "t.xls")
    refused(StorageError, text(tmp_path, "a", "t.xlsx"), "whole Excel workbook", "cut off")
    refused(StorageError, text(tmp_path, "a", "t.csv.gz"), "whole gzip file", "cut off")
    refused(StorageError, text(tmp_path, "PAR1 but not really", "t.parquet"), "whole Parquet", "cut off")
    refused(StorageError, text(tmp_path, "ARROW1 no", "t.arrow"), "whole Parquet or Arrow")
    pq.write_table(pa.table({"a": [1] * 1000}), tmp_path / "cut.parquet")
    whole = (tmp_path / "cut.parquet").read_bytes()
    refused(StorageError, text(tmp_path, whole[: len(whole) // 2], "cut.parquet"), "cut off")
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), tmp_path / "twice.parquet")
    refused(DataError, tmp_path / "twice.parquet", "a name of its own")
    with pytest.raises(DataError, match="Did you mean 'a'"):
        read(tmp_path / "patients.csv", columns=["aa"])


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.arrow"])
def test_batches_are_written_below_one_another(tmp_path: Path, name: str) -> None:
    batches = [FRAME, FRAME.assign(s=None), FRAME.assign(x=1.5)]
    assert write_batches(iter(batches), tmp_path / name) == 9
    back = read(tmp_path / name)
    assert back["n"].tolist() == [1, 2, 3] * 3
    assert back["s"].isna().sum() == 3


def test_a_first_batch_without_values_does_not_fix_the_type(tmp_path: Path) -> None:
    empty = pd.DataFrame({"s": pd.Series([None], dtype=object)})
    assert write_batches([empty, pd.DataFrame({"s": ["text"]})], tmp_path / "t.parquet") == 2
    assert read(tmp_path / "t.parquet")["s"].tolist()[1] == "text"


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_nothing_is_left_when_a_batch_fails(tmp_path: Path, name: str) -> None:
    write(FRAME, tmp_path / name)
    before = (tmp_path / name).read_bytes()

    def broken() -> Iterator[pd.DataFrame]:
        yield FRAME
        raise RuntimeError("sampling failed")

    with pytest.raises(RuntimeError, match="sampling failed"):
        write_batches(broken(), tmp_path / name)
    with pytest.raises(DataError, match="same columns"):
        write_batches([FRAME, FRAME[["x", "n"]]], tmp_path / name)
    with pytest.raises(DataError, match="at least one row"):
        write_batches([], tmp_path / name)
    assert (tmp_path / name).read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_batches_of_another_type(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="one type"):
        write_batches([FRAME, FRAME.assign(n=["a", "b", "c"])], tmp_path / "t.parquet")


def test_writing_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="folder to write to must exist"):
        write(FRAME, tmp_path / "no" / "t.csv")
    with pytest.raises(DataError, match="file name ends in"):
        write(FRAME, tmp_path / "t.xlsx")
    (tmp_path / "t.csv").mkdir()
    with pytest.raises(StorageError, match="this is a folder"):
        write(FRAME, tmp_path / "t.csv")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EIO])
def test_operating_system_errors_become_storage_errors(tmp_path: Path, code: int) -> None:
    words = {errno.ENOSPC: "disk is full", errno.EACCES: "no permission"}.get(code, os.strerror(code))

    def fail() -> None:
        with replacing(tmp_path / "f") as part:
            part.write_text("half")
            raise OSError(code, os.strerror(code))

    with pytest.raises(StorageError, match=words):
        fail()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_full_disk(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str, *args: object) -> int:
        os.symlink("/dev/full", path)
        return os.open("/dev/null", os.O_RDONLY)

    from silosynth.core import files

    monkeypatch.setattr(files, "os", _Os(full))
    with pytest.raises(StorageError, match="disk is full"):
        write(pd.concat([FRAME] * 5_000), tmp_path / f"t{suffix}")
    assert list(tmp_path.iterdir()) == []


class _Os:
    """The module os, but for ``open``: the temporary file is a full device."""

    def __init__(self, opener: object) -> None:
        self.open = opener

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)


def test_links_and_permissions_are_respected(tmp_path: Path) -> None:
    (tmp_path / "real.csv").write_text("old\n1\n")
    (tmp_path / "link.csv").symlink_to(tmp_path / "real.csv")
    write(FRAME, tmp_path / "link.csv")
    assert (tmp_path / "link.csv").is_symlink()
    assert len(read(tmp_path / "real.csv")) == 3


def test_workbooks(tmp_path: Path) -> None:
    path = tmp_path / "t.xlsx"
    frame = FRAME.assign(d=pd.to_datetime(["2020-01-01", None, "2020-03-01"]))
    frame.to_excel(path, index=False)
    back = read(path)
    assert list(back.columns) == list(frame.columns)
    assert back["n"].tolist() == [1, 2, 3]
    assert back["d"].tolist()[0] == pd.Timestamp("2020-01-01")
    with pd.ExcelWriter(path) as book:
        frame.to_excel(book, sheet_name="one", index=False)
        frame.to_excel(book, sheet_name="two", index=False)
    refused(DataError, path, "one of its sheets", "one, two", "CSV")
    frame.to_excel(path, header=["n", "n", "s", "d"], index=False)
    refused(DataError, path, "a name of its own")
    refused(DataError, path, "CSV files", "Leave them out", encoding="utf-8")


def test_without_openpyxl_an_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(sources, "import_module", absent)
    refused(UnavailableError, text(tmp_path, "", "t.xlsx"), "silosynth[excel]")


def test_folders_of_parquet_files(tmp_path: Path) -> None:
    folder = tmp_path / "t.parquet"
    for year in (2020, 2021):
        (folder / f"year={year}").mkdir(parents=True)
        write(FRAME, folder / f"year={year}" / "part-0.parquet")
    assert read(folder)["n"].tolist() == [1, 2, 3] * 2
    assert read(folder)["year"].astype(int).tolist() == [2020] * 3 + [2021] * 3
    batches = list(read_batches(folder, 4, columns=["n"]))
    assert [batch["n"].tolist() for batch in batches] == [[1, 2, 3, 1], [2, 3]]


def test_compressed_files_are_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.csv.gz", "b.csv.gz"):
        write(FRAME, tmp_path / name)
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()
    refused(DataError, text(tmp_path, "a", "t.json.gz"), "t.json.gz")


def test_missing_texts_are_counted_and_can_be_chosen(tmp_path: Path) -> None:
    path = text(tmp_path, "a,b\nNA,1\nNone,?\n,2\nx,3\n")
    assert missing_texts(path, CsvFormat()) == {"a": {"NA": 1, "None": 1, "": 1}}
    assert read(path)["a"].isna().tolist() == [True, True, True, False]
    assert read(path, missing=["?"])["a"].tolist()[:2] == ["NA", "None"]
    assert read(path, missing=["?"])["b"].isna().tolist() == [False, True, False, False]
    assert missing_texts(path, CsvFormat(missing=["?"])) == {"a": {"": 1}, "b": {"?": 1}}
    refused(DataError, path, "missing is a list", missing="?")
    refused(DataError, path, "one character", separator="ab")
    refused(DataError, path, "point or a comma", decimal=";")


def test_leading_zeros_are_kept_in_every_encoding(tmp_path: Path) -> None:
    path = text(tmp_path, "zip,n\n00123,1\n".encode("utf-16"))
    assert read(path)["zip"].tolist() == ["00123"]
