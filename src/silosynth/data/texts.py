"""Numbers and dates that are written as text: how they are written is recognised, read, and written again.

A *form* says how. Dates have the codes of `strftime`, such as ``%d.%m.%Y``; ``%-d`` leaves out leading zeros, ``%^b``
is a month in capitals, ``%3f`` is milliseconds, and ``%z`` stands for offsets that change within a column: such
instants are written in UTC. Numbers
have the forms of spreadsheets: ``#,##0.00`` has commas between thousands and two decimal places, ``0,##`` a decimal
comma and up to two places; a unit may stand before or after, as in ``0.0 %`` and ``€ #'##0``.

Texts are (n,) objects here, mostly the distinct ones of a column. Of a column of numbers or dates, those in `MARKS`
stand for missing values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

MARKS = frozenset(
    {"", "?", "-", "--", ".", "–", "—", "NA", "N/A", "#N/A", "n/a", "na", "n.a.", "NaN", "nan", "NULL", "Null", "null"}
    | {"None", "none", "NIL", "nil", "missing", "Missing", "unknown", "Unknown"}
)
_FEW = 200  # texts on which a form is tried first
_CURRENCIES = r"[$€£¥₹]|(?:CHF|EUR|USD|GBP|JPY|SEK|NOK|DKK|PLN|CZK|AUD|CAD|Fr\.)(?=\s|\d|$)"
_UNITS = rf"\s*(?:[%‰]|{_CURRENCIES})|\s+[A-Za-zµμ°/²³%]{{1,6}}"
_MEASURE = re.compile(
    rf"[+−-]?(?P<before>(?:{_CURRENCIES})?\s*)[+−-]?(?P<digits>\d[\d.,'’\s]*\d|\d)(?P<after>(?:{_UNITS})?)"
)
_FORM = re.compile(
    r"(?P<before>[^\d#+-]*)(?:#(?P<group>[,.'’\s])##)?0(?:(?P<mark>[.,])(?P<places>0+|#+))?(?P<after>[^\d#]*)"
)
_DATE = re.compile(
    r"(?:(?P<first>\d{4})(?P<dash>[-/.])(?P<month>\d\d?)(?P=dash)(?P<day>\d\d?)"
    r"|(?P<one>\d\d?)(?P<sep>[./-])(?P<two>\d\d?)(?P=sep)(?P<last>\d{4}|\d\d)"
    r"|(?P<named>\d\d?)(?P<gap>[ -])(?P<name>[A-Z][a-z]{2}|[A-Z]{3})(?P=gap)(?P<year>\d{4}|\d\d)"
    r"|(?P<packed>(?:19|20)\d{6}))"
    r"(?:(?P<between>[ T])(?P<hour>\d\d?):\d\d(?P<seconds>:\d\d)?(?P<fraction>\.\d{1,9})?(?P<half> ?[AP]M)?"
    r"(?P<zone>Z|[+-]\d\d:?\d\d)?)?"
)
_CODE = re.compile(r"%([-^]?)(\d?)([A-Za-z%])")
_LEADS = {"d": "day", "m": "month", "y": "year"}  # by the code that a form of dates begins with


class Written(NamedTuple):
    """A form, and what the reader should know about how it was found; empty if nothing."""

    form: str
    note: str = ""


def is_date_form(form: str) -> bool:
    """Whether a form is of dates."""
    return re.search(r"%[-^]?\d?[A-Za-z]", form) is not None


def is_number_form(form: str) -> bool:
    """Whether a form is of numbers."""
    return not is_date_form(form) and _FORM.fullmatch(form) is not None


# Dates.


def date_form(texts: Sequence[str]) -> Written | None:
    """The form in which all texts are dates; None if there is none. Of several, pandas' choice for dates with slashes
    (the month first), and the day first for others.
    """
    first = _DATE.fullmatch(texts[0]) if len(texts) else None
    if first is None:
        return None
    all_texts = np.array(texts, dtype=object)
    fits = [form for form in _candidates(first, texts) if _fits(all_texts, form)]
    if not fits:
        return None
    notes = ["offsets from UTC differ between rows: synthetic values are in UTC"] if "%z" in fits[0] else []
    for other in fits[1:]:
        leads = _LEADS[other.lstrip("%-")[0]]
        notes.append(f'{other} fits as well: declare format = "{other}" if the {leads} comes first')
    if "%y" in fits[0]:
        notes.append("years of two digits are taken for 1969 to 2068")
    return Written(fits[0], "; ".join(notes))


def _fits(texts: np.ndarray, form: str) -> bool:
    return all(parse_dates(part, form) is not None for part in (texts[:_FEW], texts))


def _candidates(first: re.Match[str], texts: Iterable[str]) -> list[str]:
    """The forms in which the first text may be written, with what the others say about leading zeros and offsets."""
    matches = [match for match in map(_DATE.fullmatch, texts) if match is not None]

    def short(*groups: str) -> str:
        return "-" if any(len(match[group] or "00") == 1 for match in matches for group in groups) else ""

    if first["first"]:
        pad, dash = short("month", "day"), first["dash"]
        dates = [f"%Y{dash}%{pad}m{dash}%{pad}d"]
    elif first["packed"]:
        dates = ["%Y%m%d"]
    elif first["name"]:
        month, year = "^b" if first["name"].isupper() else "b", "Y" if len(first["year"]) == 4 else "y"
        dates = [f"%{short('named')}d{first['gap']}%{month}{first['gap']}%{year}"]
    else:
        pad, sep = short("one", "two"), first["sep"]
        day, month, year = f"%{pad}d", f"%{pad}m", "%Y" if len(first["last"]) == 4 else "%y"
        if year == "%y" and sep != "/" and pad:
            return []  # 1.2.10 is a version, or a section
        dates = [sep.join((*pair, year)) for pair in ((day, month), (month, day))]
        dates = dates[::-1] if sep == "/" else dates
        if year == "%y" and sep != ".":
            dates.append(sep.join((year, month, day)))
    return [date + _time_form(first, short("hour"), {match["zone"] for match in matches}) for date in dates]


def _time_form(first: re.Match[str], pad: str, zones: set[str | None]) -> str:
    if not first["between"]:
        return ""
    hour, half = ("I", first["half"].replace("AM", "%p").replace("PM", "%p")) if first["half"] else ("H", "")
    places = len(first["fraction"] or ".") - 1
    fraction = "" if not places else ".%f" if places == 6 else f".%{places}f"
    zone = first["zone"] or ""
    return f"{first['between']}%{pad}{hour}:%M{':%S' if first['seconds'] else ''}{fraction}{half}" + (
        "%z" if len(zones) > 1 and None not in zones else zone
    )


def parse_dates(texts: np.ndarray, form: str) -> np.ndarray | None:
    """(n,) int64 nanoseconds since 1970 of texts; None if not all are dates that are written in exactly this form."""
    plain = _CODE.sub(lambda code: f"%{code[3]}", form)
    given = pd.Series(texts, dtype=object)
    parsed = pd.to_datetime(given, format=plain, errors="coerce", utc="%z" in form)
    if parsed.isna().any() or (parsed.dt.year < 1678).any() or (parsed.dt.year > 2261).any():
        return None
    naive = parsed.dt.tz_localize(None) if "%z" in form else parsed
    values = naive.to_numpy("datetime64[ns]").astype(np.int64)
    return values if "%z" in form or (write_dates(values, form) == texts).all() else None


def write_dates(values: np.ndarray, form: str) -> np.ndarray:
    """(n,) texts of nanoseconds (n,) since 1970."""
    instants = pd.Series(values.astype("datetime64[ns]"))
    own = [code for code in _CODE.finditer(form) if code[1] or code[2] or code[3] == "z"]
    if not own:
        return np.array(instants.dt.strftime(form), dtype=object)
    texts, at = np.full(len(values), "", dtype=object), 0
    for code in own:
        texts = texts + np.array(instants.dt.strftime(form[at : code.start()]), dtype=object) + _piece(instants, code)
        at = code.end()
    return np.asarray(texts + np.array(instants.dt.strftime(form[at:]), dtype=object))


def _piece(instants: pd.Series, code: re.Match[str]) -> np.ndarray:
    """What stands for a code that `strftime` lacks."""
    if code[3] == "z":
        return np.full(len(instants), "+00:00", dtype=object)
    if code[3] == "f":
        digits = [f"{nanoseconds % 10**9:09d}" for nanoseconds in instants.astype("int64").tolist()]
        return np.array([text[: int(code[2] or 6)] for text in digits], dtype=object)
    texts = instants.dt.strftime(f"%{code[3]}").tolist()
    if code[1] == "^":
        return np.array([text.upper() for text in texts], dtype=object)
    return np.array([text.lstrip("0") or "0" for text in texts], dtype=object)


# Numbers.


def number_form(texts: Sequence[str], decimal: str | None = None, plain: bool = False) -> Written | None:
    """The form in which all texts are numbers; None if there is none.

    ``decimal`` declares the decimal mark. Whole numbers without any mark or unit only count if ``plain``: they may be
    codes. So do those with leading zeros, which never count.
    """
    matches = [_MEASURE.fullmatch(text.strip()) for text in texts]
    found = [match for match in matches if match is not None]
    if len(found) < len(matches) or not found:
        return None
    if len({(match["before"].strip(), match["after"].strip()) for match in found}) > 1:
        return None
    digits = [match["digits"] for match in found]
    marks = {mark for text in digits for mark in text if not mark.isdigit()}
    chosen = _marks(digits, marks, decimal)
    if chosen is None or any(re.match(r"0\d", text) for text in digits):
        return None
    group, point, note = chosen
    before, after = found[0]["before"], found[0]["after"]
    if not (marks or before or after or plain):
        return None
    places = {len(text.partition(point)[2]) for text in digits} if point else {0}
    digit = "0" if len(places) == 1 else "#"
    fraction = f"{point}{digit * max(places)}" if max(places) else ""
    return Written(f"{before}{f'#{group}##' if group else ''}0{fraction}{after}", note)


def _marks(digits: Sequence[str], marks: set[str], decimal: str | None) -> tuple[str, str, str] | None:
    """The marks between thousands and before decimals ("" for none), and a note; None if they contradict each other."""
    spaces = marks - {".", ","}
    dots = marks & {".", ","}
    if len(spaces) > 1 or (spaces and len(dots) > 1):
        return None
    if len(dots) == 2:
        last = {max(dots, key=text.rfind) for text in digits if dots <= set(text)}
        point = decimal or (last.pop() if len(last) == 1 else "")
        return _checked(digits, "".join(dots - {point}), point, "") if point else None
    mark, space = "".join(dots), "".join(spaces)
    if not mark:
        return _checked(digits, space, "", "")
    grouped = not space and _checked(digits, mark, "", "") is not None
    thousands, decimals = (any(text.count(mark) > 1 for text in digits), any(re.match(r"0\D", text) for text in digits))
    likely = not decimal and not decimals and (thousands or mark == ",")
    if grouped and (likely or decimal not in (None, mark)):
        note = f'declare decimal = "{mark}" if the {_NAMES[mark]} stands before decimal places'
        return mark, "", "" if thousands or decimal else note
    chosen = _checked(digits, space, mark, "") if decimal in (None, mark) else None
    if chosen and grouped and not decimal and not decimals:
        other = "." if mark == "," else ","
        return (*chosen[:2], f'declare decimal = "{other}" if the {_NAMES[mark]} stands between thousands')
    return chosen


_NAMES = {",": "comma", ".": "point"}


def _checked(digits: Sequence[str], group: str, point: str, note: str) -> tuple[str, str, str] | None:
    """The marks, if all numbers are written with them."""
    whole = rf"(?:\d{{1,3}}(?:{re.escape(group)}\d{{3}})+|\d+)" if group else r"\d+"
    shape = re.compile(whole + (rf"(?:{re.escape(point)}\d+)?" if point else ""))
    return (group, point, note) if all(shape.fullmatch(text) for text in digits) else None


def parse_numbers(texts: np.ndarray, form: str) -> np.ndarray | None:
    """(n,) numbers of texts, int64 if the form has no decimal places, else float64; None if one is in another form.

    Thousands need no marks; signs and spaces may stand on either side of the unit.
    """
    parts = _FORM.fullmatch(form)
    assert parts is not None  # a form of numbers
    group, point, before, after = parts["group"] or "", parts["mark"] or "", parts["before"], parts["after"]
    whole = rf"\d{{1,3}}(?:{re.escape(group)}\d{{3}})+|\d+" if group else r"\d+"
    fraction = rf"(?:{re.escape(point)}(?P<fraction>\d*))?" if point else "(?P<fraction>)"
    shape = re.compile(
        rf"\s*(?P<a>[+−-]?)\s*(?:{re.escape(before.strip())})?\s*(?P<b>[+−-]?)\s*(?P<whole>{whole}){fraction}"
        rf"\s*(?:{re.escape(after.strip())})?\s*"
    )
    kind = int if not point else float
    numbers = []
    for text in texts:
        match = shape.fullmatch(text)
        if match is None or (match["a"] and match["b"]):
            return None
        sign = "-" if (match["a"] or match["b"]) in ("-", "−") else ""
        digits = match["whole"].replace(group, "") if group else match["whole"]
        numbers.append(kind(f"{sign}{digits}" + (f".{match['fraction'] or 0}" if point else "")))
    if kind is int and any(abs(number) >= 2**63 for number in numbers):
        return None
    return np.array(numbers, dtype=np.int64 if kind is int else np.float64)


def write_numbers(values: np.ndarray, form: str) -> np.ndarray:
    """(n,) texts of numbers (n,)."""
    parts = _FORM.fullmatch(form)
    assert parts is not None  # a form of numbers
    before, group, point, after = parts["before"], parts["group"], parts["mark"] or "", parts["after"]
    places = len(parts["places"] or "")
    texts = np.empty(len(values), dtype=object)
    for i, value in enumerate(values.tolist()):
        whole, _, fraction = f"{abs(value):,.{places}f}".partition(".")
        fraction = fraction if (parts["places"] or "0")[0] == "0" else fraction.rstrip("0")
        number = whole.replace(",", group or "") + (point + fraction if fraction else "")
        sign = "-" if value < 0 and re.search(r"[1-9]", number) else ""
        texts[i] = f"{before}{sign}{number}{after}"
    return texts
