"""Numbers and dates in text: how they are written is found, they are read, and written in the same way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from silosynth.data.texts import date_form, number_form, parse_dates, parse_numbers, write_dates, write_numbers


@pytest.mark.parametrize(
    ("texts", "form", "note"),
    [
        (["31.01.2020", "01.12.2021"], "%d.%m.%Y", ""),
        (["31-01-2020"], "%d-%m-%Y", ""),
        (["01/31/2020"], "%m/%d/%Y", ""),
        (["31/01/2020"], "%d/%m/%Y", ""),
        (["1/2/2020", "11/12/2020"], "%-m/%-d/%Y", 'declare format = "%-d/%-m/%Y" if the day comes first'),
        (["01.02.2020"], "%d.%m.%Y", 'declare format = "%m.%d.%Y" if the month comes first'),
        (["2020/01/31"], "%Y/%m/%d", ""),
        (["3 Feb 2020", "13 Mar 2021"], "%-d %b %Y", ""),
        (["1/31/2020 9:05"], "%-m/%-d/%Y %-H:%M", ""),
        (["01/31/2020 9:05 PM", "01/30/2020 12:05 AM"], "%m/%d/%Y %-I:%M %p", ""),
        (["2020-01-31T10:00:00.125Z"], "%Y-%m-%dT%H:%M:%S.%3fZ", ""),
        (["2020-01-31 10:00:00.0000001"], "%Y-%m-%d %H:%M:%S.%7f", ""),
        (["2020-01-31T10:00:00+01:00"] * 2, "%Y-%m-%dT%H:%M:%S+01:00", ""),
        (["2020-01-31T10:00+01:00", "2020-07-31T10:00+0200"], "%Y-%m-%dT%H:%M%z", "offsets from UTC differ"),
        (["2020-01-31T10:00Z", "2020-07-31T10:00"], None, ""),
        (["01.02.2020", "2020-02-01"], None, ""),
        (["31.02.2020"], None, ""),
        (["1.2.20"], None, ""),
        (["15.02.21", "01.12.99"], "%d.%m.%y", "years of two digits are taken for 1969 to 2068"),
        (["2/15/21", "12/1/99"], "%-m/%-d/%y", "1969 to 2068"),
        (["15-02-21", "31-12-99"], "%d-%m-%y", "1969 to 2068"),
        (["99-12-31", "21-02-05"], "%y-%m-%d", "1969 to 2068"),
        (["03-02-01"], "%d-%m-%y", 'declare format = "%y-%m-%d" if the year comes first'),
        (["1-2-20"], None, ""),
        (["15-Feb-21", "01-Dec-99"], "%d-%b-%y", "1969 to 2068"),
        (["15-FEB-21", "01-DEC-99"], "%d-%^b-%y", "1969 to 2068"),
        (["15-FEB-2021"], "%d-%^b-%Y", ""),
        (["20200131", "19991201"], "%Y%m%d", ""),
        (["20200131 10:30"], "%Y%m%d %H:%M", ""),
        (["20201301"], None, ""),
        (["12345678"], None, ""),
    ],
)
def test_forms_of_dates(texts: list[str], form: str | None, note: str) -> None:
    found = date_form(texts)
    assert (found.form if found else None) == form
    assert note in (found.note if found else "")
    if form and "%z" not in form:
        values = parse_dates(np.array(texts, dtype=object), form)
        assert values is not None
        assert write_dates(values, form).tolist() == texts


def test_instants_with_offsets_are_those_of_utc() -> None:
    values = parse_dates(np.array(["2020-01-31T10:00+01:00"], dtype=object), "%Y-%m-%dT%H:%M%z")
    assert values is not None
    assert write_dates(values, "%Y-%m-%dT%H:%M%z").tolist() == ["2020-01-31T09:00+00:00"]


@pytest.mark.parametrize(
    ("texts", "form", "values"),
    [
        (["1,234.50", "999.25"], "#,##0.00", [1234.5, 999.25]),
        (["1.234.567,5", "-2,25"], "#.##0,##", [1234567.5, -2.25]),
        (["12,5", "3,25"], "0,##", [12.5, 3.25]),
        (["CHF 1'234.50", "CHF -3.00"], "CHF #'##0.00", [1234.5, -3.0]),
        (["1 234,5 €", "17,0 €"], "# ##0,0 €", [1234.5, 17.0]),
        (["12 %", "3 %"], "0 %", [12, 3]),
        (["12%", "3.5%"], "0.#%", [12.0, 3.5]),
        (["$5", "-$7", "$-8"], "$0", [5, -7, -8]),
        (["5 kg", "7 kg"], "0 kg", [5, 7]),
        (["1,234", "5,678"], "#,##0", [1234, 5678]),
        (["1.5", "2"], "0.#", [1.5, 2.0]),
    ],
)
def test_forms_of_numbers(texts: list[str], form: str, values: list[float]) -> None:
    found = number_form(texts)
    assert found is not None
    assert found.form == form
    parsed = parse_numbers(np.array(texts, dtype=object), form)
    assert parsed is not None
    assert parsed.tolist() == values
    again = parse_numbers(write_numbers(parsed, form), form)
    assert again is not None
    assert again.tolist() == values


@pytest.mark.parametrize(
    "texts",
    [
        ["12", "13"],  # codes, perhaps
        ["00123", "00456"],
        ["01,5"],
        ["1.2.3", "1.2.4"],
        ["12 %", "12 €"],
        ["12 a", "14 b"],
        ["A12", "A13"],
        ["1,23,456", "1,5"],
        ["(1,234)"],
        ["12", "twelve"],
        [],
    ],
)
def test_texts_that_are_no_numbers(texts: list[str]) -> None:
    assert number_form(texts) is None


def test_one_comma_before_three_digits_may_be_either() -> None:
    both = ["1,234", "5,678"]
    assert 'declare decimal = ","' in number_form(both).note  # type: ignore[union-attr]
    assert number_form(both, decimal=",").form == "0,000"  # type: ignore[union-attr]
    assert number_form(["1.234"], decimal=",").form == "#.##0"  # type: ignore[union-attr]
    assert 'declare decimal = ","' in number_form(["€ 1.234", "€ 5.678"]).note  # type: ignore[union-attr]
    assert number_form(["0,234", "5,678"]).form == "0,000"  # type: ignore[union-attr]
    assert number_form(["12", "13"], plain=True).form == "0"  # type: ignore[union-attr]


@given(
    st.lists(st.integers(-(10**11), 10**11), min_size=1, max_size=20),
    st.sampled_from(["#,##0.00", "#.##0,00", "0,00", "#'##0.00", "0.00 %", "€ # ##0,00"]),
)
def test_written_numbers_are_read_again(cents: list[int], form: str) -> None:
    values = np.array(cents) / 100
    texts = write_numbers(values, form)
    again = parse_numbers(texts, form)
    assert again is not None
    assert again.tolist() == values.tolist()
    found = number_form(texts.tolist())
    assert found is not None
    parsed = parse_numbers(texts, found.form)
    assert parsed is not None
    assert parsed.tolist() == values.tolist()


def test_whole_numbers_keep_all_digits() -> None:
    texts = np.array([str(2**62 + 1), "7"], dtype=object)
    assert parse_numbers(texts, "0").tolist() == [2**62 + 1, 7]  # type: ignore[union-attr]
    assert parse_numbers(np.array([str(2**63)], dtype=object), "0") is None
