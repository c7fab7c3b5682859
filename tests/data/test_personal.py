"""Personal data are recognised, and their substitutes have their form and nothing else of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from silosynth.core.errors import DataError, SchemaError, UnavailableError
from silosynth.core.streams import Streams
from silosynth.data import personal
from silosynth.data.frames import to_pandas
from silosynth.data.infer import cautions, infer
from silosynth.data.personal import common_forms, form_of, looks_personal, substitutes
from silosynth.simulation.federation import simulate
from silosynth.simulation.model import to_synthetic_frame


@pytest.mark.parametrize(
    ("name", "texts", "what"),
    [
        ("contact", ["anna@uni.ch", "b.c@x.org"], "e-mail"),
        ("x", ["+41 79 123 45 67", "+49 30 1234567"], "telephone"),
        ("x", ["(212) 555-0147", "212-555-0199"], "telephone"),
        ("x", ["044 123 45 67", "079 123 45 68"], "telephone"),
        ("phone", ["41791234567", "41791234568"], "telephone"),
        ("x", ["CH93 0076 2011 6238 5295 7", "DE89370400440532013000"], "account"),
        ("x", ["4111 1111 1111 1111", "5500-0000-0000-0004"], "account"),
        ("x", ["123-45-6789", "987-65-4321"], "account"),
        ("First Name", ["Zoltan", "Ayşe"], "name"),
        ("lastName", ["O'Neill", "Müller-Meier"], "name"),
        ("kunde", ["Anna Müller", "Peter Meier", "Xaver Huber"], "name"),
        ("passenger", ["Braund, Mr. Owen", "Heikkinen, Miss. Laina"], "name"),
        ("street_address", ["Hauptstr. 5", "12 Main Street"], "address"),
        ("contact", ["anna@uni.ch", "keine", "auf Anfrage"], "e-mail"),
        ("contact", ["anna@uni.ch", "unknown", "n/a", "-"], "e-mail"),
        ("x", ["CH93 0076 2011 6238 5295 7", "keine"], "account"),
        ("x", ["044 123 45 67", "unknown"], "telephone"),
        ("tel_home", ["0441234567", "0791234568"], "telephone"),
        ("homePhone2", ["441234567", "791234568"], "telephone"),
        ("Patient Name (full)", ["Zoltan Szabo", "Ayşe Demir"], "name"),
        ("treating_physician", ["Szabo", "Demir", "Kovács-Nagy"], "name"),
        ("bank account number 1", ["12345678", "87654321"], "account"),
        ("seen by", ["Dr. Szabo", "Prof. Dr. med. Demir", "on leave", "Sr. Kim"], "name"),
        ("x", ["Frau Szabo", "Herr Demir"], "name"),
        ("x", ["Kwame Mensah", "Aino Kallio", "Rhys Pritchard"], "name"),
        ("x", ["Pritchard, Rhys", "van den Berg, Sanne", "Szabo, Zoltan"], "name"),
        ("x", ["Eryıldız Durdu", "Başay Eraslan", "Emin Soylu"], "name"),
        ("x", ["Всеволод Сорокин", "Таисия Гусева", "Ираклий Фролов"], "name"),
        ("x", ["Ζαφείρης Μπαλτατζής", "Φρειδερίκη Γκατζογιάννη", "Ορφέας Καπατσώρης"], "name"),
        ("author", ["Xolani Dlamini", "Adesoji Oladipupo", "Li Wei", "Krish Bhatnagar", "Budi Rajasa"], "name"),
    ],
)
def test_what_looks_personal(name: str, texts: list[str], what: str) -> None:
    assert what in str(looks_personal(name, texts))


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("city", ["New York", "Los Angeles", "Paris"]),
        ("name", ["3-door", "5-door"]),
        ("country_name", ["Austria", "Chad"]),
        ("mail", ["0", "1"]),
        ("mobile", ["12", "30"]),
        ("date", ["2020-01-31", "2021-12-01"]),
        ("code", ["A12", "B13"]),
        ("amount", ["1,234.50", "999.25"]),
        ("occupation", ["Tech-support", "Sales", "Exec-managerial"]),
        ("kunde", ["Anna", "Peter"]),
        ("remark", ["ok", "late", "see anna@uni.ch", "b.c@x.org"]),
        ("product_name", ["Chair", "Table", "Lamp"]),
        ("phone_revenue", ["1234567", "2345678"]),
        ("cell_viability", ["1234567", "2345678"]),
        ("credit_card_limit", ["1000000", "2000000"]),
        ("doctor", ["A", "B", "C"]),
        ("rank", ["Assistant Professor", "Associate Professor", "Professor Emeritus"]),
        ("job", ["Software Engineer", "Sr. Data Scientist", "Marine Biologist", "Charity Fundraiser"]),
        ("store_city", ["Saint Martin", "San Jose", "Port Adam"]),
        ("maker", ["Ford Focus", "Toyota Corolla", "Honda Civic"]),
        ("student", ["Full Time", "Part Time"]),
        ("country", ["United States", "New Zealand", "Costa Rica", "El Salvador", "South Africa"]),
        ("season", ["Early Summer", "Late Summer", "Deep Winter"]),
        ("seen_by_physician", ["Yes", "No", "unknown"]),
        ("physician_specialty", ["Cardiology", "Surgery", "Urology"]),
        ("x", ["unknown", "-"]),
        ("x", []),
    ],
)
def test_what_does_not(name: str, texts: list[str]) -> None:
    assert looks_personal(name, texts) is None


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("Anna Müller", "Aaaa Aaaaaa"),
        ("+41 79 123", "+00 00 000"),
        ("a.b-C@uni.ch", "a.a-A@"),
        ("日本 ½٣🙂", "aa 00a"),
    ],
)
def test_forms(text: str, form: str) -> None:
    assert form_of(text) == form


def test_only_common_forms_are_kept() -> None:
    texts = ["Anna", "Kurt", "Jo", "K2-77"]
    assert common_forms(texts, [3, 2, 4, 1], least=5) == ("Aaaa",)
    assert common_forms(["Anna B", "Al", "Kunigunde-D"], [2, 2, 2], least=5) == ()
    assert common_forms(["Anna Bi", "Al Cid", "Kunigunde D"], [2, 2, 2], least=5) == ("Aaaaa Aaaaa",)


def test_substitutes_depend_on_the_row_alone() -> None:
    forms = ("Aaaa 00", "aa-aaa@")
    whole = substitutes(forms, 1, 50, key=7)
    assert whole == substitutes(forms, 1, 20, 7) + substitutes(forms, 21, 30, 7)
    assert whole != substitutes(forms, 1, 50, key=8)
    assert all(re.fullmatch(r"[A-Z][a-z]{3} \d\d|[a-z]{2}-[a-z]{3}@example\.(org|com|net)", text) for text in whole)
    assert len(set(whole)) > 45
    assert re.fullmatch("[A-Z][a-z]{5}", substitutes((), 1, 1, 7)[0])


@pytest.mark.slow
def test_faker_makes_names_by_row() -> None:
    whole = substitutes(("name:de_CH",), 1, 6, key=7)
    assert whole == substitutes(("name:de_CH",), 1, 2, 7) + substitutes(("name:de_CH",), 3, 4, 7)
    assert len(set(whole)) > 3


def test_without_faker_an_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(personal, "import_module", absent)
    with pytest.raises(UnavailableError, match=r"silosynth\[names\]"):
        infer(pd.DataFrame({"a": ["x", "y"]}), {"a": {"kind": "pseudonym", "format": "name"}})


PEOPLE = pd.DataFrame(
    {
        "name": ["Anna Müller", "Peter Meier"] * 20,
        "phone": [41791234567, 41791234568] * 20,
        "tel": [41791234567.0, np.nan] * 20,
        "income": np.arange(40.0) ** 1.5,
    }
)


def test_personal_data_are_not_modelled_and_this_is_said() -> None:
    federation = simulate(PEOPLE)
    kinds = {column.name: column.kind for column in federation.schema.columns}
    assert kinds == {"name": "pseudonym", "phone": "pseudonym", "tel": "identifier", "income": "continuous"}
    assert federation.schema["name"].forms == ("Aaaa Aaaaaa", "Aaaaa Aaaaa")
    said = cautions(federation.schema, federation.tables["silo1"])
    assert [text.partition(" is not published")[0] for text in said] == [
        f"Column {name!r}" for name in ("name", "phone", "tel")
    ]
    assert all("declare another kind" in text for text in said)


DRAWN = np.arange(40.0) ** 1.5
EMAILS = ["anna@uni.ch", "b.c@x.org"]
OF_CATEGORIES: dict[str, Callable[[list[str]], Any]] = {
    "pandas": lambda texts: pd.DataFrame({"contact": pd.Categorical(texts), "y": DRAWN}),
    "ordered": lambda texts: pd.DataFrame({"contact": pd.Categorical(texts, ordered=True), "y": DRAWN}),
    "polars": lambda texts: pl.DataFrame({"contact": pl.Series(texts, dtype=pl.Categorical), "y": DRAWN}),
    "enum": lambda texts: pl.DataFrame({"contact": pl.Series(texts, dtype=pl.Enum(EMAILS)), "y": DRAWN}),
    "arrow": lambda texts: pa.table({"contact": pa.array(texts).dictionary_encode(), "y": DRAWN}),
}


@pytest.mark.parametrize("library", OF_CATEGORIES)
def test_personal_categories_are_not_published(library: str) -> None:
    federation = simulate(OF_CATEGORIES[library](EMAILS * 20))
    column = federation.schema["contact"]
    assert (column.kind, column.forms) == ("pseudonym", ("a.a@", "aaaa@"))
    assert not any(text.encode() in federation.types for text in EMAILS)
    modelled = [federation.tables["silo1"].select(["y"])]
    made = to_synthetic_frame(modelled, federation.schema, Streams(1), 1, federation.flavour, federation.types)
    texts = to_pandas(made)["contact"]
    assert isinstance(texts.dtype, pd.CategoricalDtype)
    assert texts.dtype.ordered is (library == "ordered")
    assert texts.str.fullmatch(r"[a-z.]+@example\.(org|com|net)").all()
    assert not set(EMAILS) & set(texts.cat.categories)


def test_only_levels_that_occur_count() -> None:
    words = pd.Categorical(["red", "blue"] * 20, categories=["red", "blue", *EMAILS])
    assert infer(pd.DataFrame({"colour": words})).columns[0].kind == "categorical"
    numbers = pd.Categorical([41791234567, 41791234568] * 20)
    assert infer(pd.DataFrame({"phone": numbers})).columns[0].kind == "pseudonym"
    assert infer(pd.DataFrame({"phone": numbers}), {"phone": "categorical"}).columns[0].kind == "categorical"


def test_who_declares_a_kind_publishes() -> None:
    schema = infer(PEOPLE, {"name": "categorical", "phone": "categorical"})
    assert [column.kind for column in schema.columns[:2]] == ["categorical", "categorical"]


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"name": {"kind": "pseudonym", "format": "--"}}, ["nothing", "Aaaa-0000"]),
        ({"name": {"kind": "pseudonym", "format": "name:xx_YY"}}, ["locale", "xx_YY"]),
        ({"income": "pseudonym"}, ["'income'", "identifier"]),
        ({"phone": {"kind": "pseudonym", "format": "00"}}, ["'phone'", "format"]),
        ({"name": {"format": "name"}}, ["'name'", "a form of dates or of numbers"]),
        ({"name": {"kind": "categorical", "format": "%d.%m.%Y"}}, ["'name'", "no format of kind"]),
        ({"income": {"decimal": ","}}, ["'income'", "text"]),
        ({"name": {"decimal": ";"}}, ["'name'", "point or a comma"]),
        ({"name": {"missing": "?"}}, ["'name'", "list"]),
    ],
)
def test_declarations_that_cannot_be(rules: dict[str, Any], words: list[str]) -> None:
    words = [word for word in words if word != "nothing"]
    with pytest.raises(SchemaError) as caught:
        infer(PEOPLE, rules)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_pseudonym_may_be_in_several_silos_and_nothing_else() -> None:
    silos = {"bank": ["name", "income"], "clinic": ["name", "phone"]}
    with pytest.raises(DataError, match=r"declare it pseudonym"):
        simulate(PEOPLE, silos)
    federation = simulate(PEOPLE, silos, schema={"name": "pseudonym", "phone": "categorical"})
    assert federation.silos == silos
    assert federation.columns == ("name", "phone", "income")
    assert federation.central().tables["central"].names == federation.columns
