"""Columns that look like names, addresses, telephone or account numbers of people, and substitutes of the same form.

Such columns are of kind *pseudonym*: they are not modelled, and none of their values is published, however frequent. A
synthetic table holds substitutes, drawn at random in one of the column's forms. In a *form* ``A`` is a capital letter,
``a`` a small one, ``0`` a digit, and everything else is itself: "Aaaa Aaaaa", "+00 00 000 00 00", and "aaaa.aaaaa@" for
an e-mail address, which gets a domain that RFC 2606 reserves for examples.

A substitute depends on a key and on the number of its synthetic row alone: silos that share a key give the same person
the same substitute. Nothing of real values goes into it except which forms enough rows have.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Any

import numpy as np

from silosynth.core.errors import SchemaError, UnavailableError, nearest
from silosynth.data.texts import MARKS

_MOST = 0.9  # of distinct values that look alike
_SURE_MOST = 0.3  # of distinct values of a form that nothing else has: the rest may say that there is none
_FIRST_NAMES_MOST = 0.3  # of distinct values that hold a first name
_FULL_NAMES_MOST = 0.4  # of distinct values that are a first name and others, each with a capital
_FEW = 3  # values, to judge them by first names
_SOME = 5  # values, to judge them by the column's name where it only says that it is of people
_GENERIC = "Aaaaaa"
_MOST_FORMS, _LONGEST = 50, 64
_LETTERS = 5  # in a form whose letters are not counted
_SEPARATORS = frozenset(" !\"#$%&'()*+,-./:;<=>?@[\\]^_{|}~`")
_DOMAINS = ("example.org", "example.com", "example.net")

_NAMED = {
    "a person's name": {
        "name", "names", "fullname", "firstname", "lastname", "surname", "forename", "givenname", "familyname",
        "middlename", "maidenname", "vorname", "nachname", "familienname", "nom", "prenom", "cognome", "nome",
        "patient", "patientname", "customername", "clientname", "employeename", "username",
    },
    "a telephone number": {
        "phone", "telephone", "tel", "mobile", "cell", "fax", "phonenumber", "telefon", "telephonenumber",
        "mobilenumber", "handy", "telefonnummer",
    },
    "an account or insurance number": {
        "iban", "ssn", "ahv", "accountnumber", "accountno", "bankaccount", "cardnumber", "creditcard", "kontonummer",
        "socialsecuritynumber", "passport", "passportnumber",
    },
    "an address": {"address", "street", "streetaddress", "homeaddress", "strasse", "adresse", "addressline1"},
}  # fmt: skip
_PARTS = {
    "a person's name": {
        "fullname", "firstname", "lastname", "surname", "forename", "givenname", "familyname", "middlename",
        "maidenname", "vorname", "nachname", "familienname", "prenom", "cognome", "username",
    },
    "a telephone number": {"phone", "telephone", "tel", "fax", "telefon", "telefonnummer"},
    "an account or insurance number": {"iban", "ssn", "ahv", "passport", "kontonummer"},
    "an address": {"strasse", "adresse"},
}  # fmt: skip
"""Words of which one is enough among others of a column's name; the rest of `_NAMED` only where two or more follow."""
_MEASURED = {
    "amount", "bill", "calls", "charges", "city", "code", "cost", "count", "country", "date", "duration",
    "expiry", "income", "issued", "length", "limit", "minutes", "price", "revenue", "sales", "seconds", "state",
    "status", "sum", "total", "type", "usage", "year",
}  # fmt: skip
"""Words of names of columns that say something about a telephone, a card…, and not its number."""
_PEOPLE = {"physician", "doctor", "nurse", "surgeon", "therapist", "dentist", "midwife", "arzt", "hausarzt"}
_ROLES = {
    "advisor", "agent", "applicant", "assignee", "author", "autor", "client", "contact", "customer", "driver",
    "employee", "examiner", "guest", "inspector", "klient", "kunde", "kundin", "lehrer", "manager", "mitarbeiter",
    "operator", "owner", "passenger", "patient", "person", "pilot", "professor", "rep", "representative", "reviewer",
    "salesperson", "staff", "student", "supervisor", "teacher", "tenant", "tutor",
}  # fmt: skip
"""Words of names of columns that often hold something else than people's names: see `_FULL`."""
_NOT_PEOPLE = {
    "artist", "avenue", "award", "brand", "breed", "city", "club", "company", "country", "county", "department",
    "district", "drug", "employer", "firm", "genre", "hospital", "job", "manufacturer", "model", "movie",
    "neighborhood", "neighbourhood", "occupation", "organisation", "organization", "ort", "place", "product",
    "profession", "publisher", "region", "road", "school", "shop", "song", "stadt", "state", "station", "store",
    "team", "town", "university", "vendor", "venue", "village",
}  # fmt: skip
"""Words of names of columns of places and firms, which are often called after people, and of public works."""
_CAPITALS = re.compile(r"(?=.*[^\W\d_]{2})[A-Z\u00c0-\u00de][^\W\d_]*\.?(?:[-'’ .,]+[^\W\d_]+)*\.?")
EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_CAPITAL = r"[A-Z\u00c0-\u00de\u0100-\u017f\u0386-\u03ab\u0400-\u042f\u0531-\u0556]"  # Latin, Greek, Cyrillic, Armenian
_NAME_WORD = rf"{_CAPITAL}[^\W\d_]*(?:['’-][^\W\d_]+)*"
_PARTICLE = "v[ao]n|zu[mr]?|d[aeiou]|de[lnr]|della|do?s|l[ae]|bin|al|el|te[nr]|y"
_FULL = re.compile(rf"{_NAME_WORD}(?:,? (?:{_NAME_WORD}\.?|{_PARTICLE})){{1,4}}")
"""Two to five words with capitals, of which some may be particles: full names, and much else."""
_SURE = {
    "a person's name": re.compile(
        r"(?:(?:Dr|Prof|Mr|Mrs|Ms|PD|Hr|Mag|Rev|Dott|Sig|Mme|Mlle)\.|Herr|Frau|Mme|Mlle|Schwester|Pfleger)"
        rf"(?: (?:\w+\.)+)* {_NAME_WORD}.*"
    ),
    "an e-mail address": EMAIL,
    "an account or insurance number": re.compile(r"[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?"),
}
_LOOKS = {
    "a telephone number": re.compile(
        r"(?:\+|00)\d[\d ()/.-]{6,}\d|\(0\d{1,4}\)[ /-]?\d[\d -]{4,}\d|0\d{1,4}[ /-]\d[\d -]{4,}\d"
        r"|\(?\d{3}\)?[ .-]\d{3}[ .-]\d{4}"
    ),
    "an account or insurance number": re.compile(
        _SURE["an account or insurance number"].pattern + r"|\d{4}([ -])\d{4}\1\d{4}\1\d{4}"
        r"|\d{3}-\d{2}-\d{4}|756\.\d{4}\.\d{4}\.\d{2}"
    ),
    "a person's name": re.compile(
        r"(?:Mr|Mrs|Ms|Miss|Dr|Herr|Frau|Mme|M)\.? \w.*|[^\W\d_]+, (?:Mr|Mrs|Ms|Miss|Dr|Master)\b.*"
    ),
}
_WORDS = re.compile(r"[^\W\d_]+(?:[-'’ .]+[^\W\d_]+)*\.?")
_DIGITS = re.compile(r"(?=(?:.*\d){6}).*")
_STREET = re.compile(r"(?=.*[^\W\d_]{2}).*[\d ].*")
_COMMON_FIRST_NAMES = frozenset(
    re.findall(
        r"\w+",
        """
    adam ahmed alexander ali alice amelia ana anders andrea andreas andrew anna anne antonio barbara beatrice benjamin
    brigitte carlos caroline catherine charles chiara christian christine christopher claudia daniel daniela david
    deborah diana dimitri dorothy edward elena elizabeth emily emma eric eva fatima felix fernando francesca francesco
    frank franz fritz gabriel george giovanni giulia giuseppe gregory hannah hans heidi helen henry ibrahim ines
    ingrid isabella ivan jacob jakob james jan jane jean jennifer jessica johan johann johannes john jonas jose joseph
    josef juan julia karen karl katharina katherine kevin klaus laura lea leon linda lisa louis lucas lukas luca
    magdalena marc marco margaret maria marie mark markus martin mary matthew matthias maximilian mehmet michael
    michelle miguel mohamed mohammed monika nadia natalie nathan nicholas nicolas nicole noah nora olga oliver olivia
    omar oscar pablo patricia patrick paul paula pedro peter petra philip pierre priya rachel ralf rebecca richard
    robert roberto ruth samuel sandra sara sarah sebastian simon sofia sophia sophie stefan stefanie stephanie stephen
    steven susan susanne thomas timothy tobias tom ursula valentina veronica victor walter werner wilhelm william
    wolfgang yusuf yuki
    """,
    )
)


@cache
def _first_names() -> frozenset[str]:
    """First names that locales of the library faker (MIT licence) have, without words like "summer"."""
    return frozenset((files("silosynth.data") / "first_names.txt").read_text(encoding="utf-8").split())


FAKED = (
    "address", "city", "company", "email", "first_name", "iban", "last_name", "name", "phone_number", "postcode", "ssn",
    "street_address", "user_name",
)  # fmt: skip
"""What the library faker makes: formats of pseudonyms, such as "name" or, of another country, "name:de_CH"."""


def looks_personal(name: str, texts: Sequence[str]) -> str | None:
    """What of a person a column's distinct values look like, with the reason; None if like nothing of the kind.

    What stands for missing values (`MARKS`) is not looked at.
    """
    texts = [text for text in texts if text not in MARKS]
    if not texts:
        return None
    for shapes, most in ((_SURE, _SURE_MOST), (_LOOKS, _MOST)):
        for what, shape in shapes.items():
            if _share(shape.fullmatch(text) is not None for text in texts) >= most:
                return f"values look like {what}"
    hinted = _hinted(name)
    shape = _WORDS if hinted == "a person's name" else _STREET if hinted == "an address" else _DIGITS
    if hinted is None and not _PEOPLE.isdisjoint(words_of(name)[-1:]) and len(texts) >= _FEW:
        hinted, shape = "a person's name", _CAPITALS
    if hinted and _share(shape.fullmatch(text) is not None for text in texts) >= _MOST:
        return f"the column's name says that it is {hinted}"
    of_what = [word for word in words_of(name) if word not in ("name", "names")][-1:]
    if len(texts) < _FEW or not _NOT_PEOPLE.isdisjoint(of_what):
        return None
    of_people = len(texts) >= _SOME and not _ROLES.isdisjoint(of_what)
    if of_people and _share(_FULL.fullmatch(text) is not None for text in texts) >= _MOST:
        return "the column's name and its values look like a person's name"
    named = _share(map(_holds_first_name, texts)) >= _FIRST_NAMES_MOST
    full = named or _share(map(_is_full_name, texts)) >= _FULL_NAMES_MOST
    return "values look like a person's name" if full else None


def words_of(name: str) -> list[str]:
    """The words of a column's name, in small letters: of "patientName (full)", patient, name and full."""
    parted = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()
    return [word for word in re.split(r"[^a-z0-9]+", parted) if word]


def _hinted(name: str) -> str | None:
    """What of a person the name of a column says that it holds: as a whole, or by some of its words."""
    whole = re.sub(r"[^a-z0-9]", "", name.lower())
    words = [word.rstrip("0123456789") for word in words_of(name)]
    runs = {"".join(words[start:end]) for end in range(2, len(words) + 1) for start in range(end - 1)}
    for what, known in _NAMED.items():
        if whole in known:
            return what
        if _MEASURED.isdisjoint(words) and not (_PARTS[what].isdisjoint(words) and known.isdisjoint(runs)):
            return what
    return None


def _share(found: Iterable[bool]) -> float:
    return float(np.mean(list(found)))


def _holds_first_name(text: str) -> bool:
    words = re.split(r"[\s,]+", text.strip())
    return len(words) <= 4 and _WORDS.fullmatch(text.replace(",", " ").strip()) is not None and any(
        word.lower() in _COMMON_FIRST_NAMES for word in words
    )  # fmt: skip


def _is_full_name(text: str) -> bool:
    """Whether a text is written like a full name, and the word at an end or after a comma is a first name."""
    if _FULL.fullmatch(text.strip()) is None:
        return False
    words = text.lower().split()
    after = words[1:2] if "," in words[0] else []
    return any(re.split("['’-]", word.strip(",."))[0] in _first_names() for word in (words[0], *after, words[-1]))


def form_of(text: str) -> str:
    """How a text is written. Every letter and digit of it is replaced, whatever its alphabet."""
    local, at, _ = text[:_LONGEST].partition("@")
    return "".join(map(_class, local)) + at


def _class(character: str) -> str:
    if character.isnumeric():
        return "0"
    if character in _SEPARATORS:
        return character
    return "A" if character.isupper() else "a"


def common_forms(texts: Sequence[str], counts: Sequence[int], least: int) -> tuple[str, ...]:
    """Forms that at least ``least`` rows have, sorted; if there are none, with the letters of words uncounted."""
    for form in (form_of, lambda text: re.sub("([Aa])a*", rf"\1{'a' * (_LETTERS - 1)}", form_of(text))):
        rows: Counter[str] = Counter()
        for text, count in zip(texts, counts, strict=True):
            rows[form(text)] += count
        common = [form for form, count in rows.most_common(_MOST_FORMS) if count >= least]
        if common:
            return tuple(sorted(common))
    return ()


def check_form(name: str, form: str) -> None:
    """Refuse a declared form of a pseudonym in which nothing could vary.

    Raises:
        SchemaError: it has neither letters nor digits to draw, and is none of `FAKED`.
        UnavailableError: it needs faker, which is not installed.
    """
    what, _, locale = form.partition(":")
    if what in FAKED:
        _faker(locale)
    elif not set(form) & set("Aa0"):
        rule = f"The format of pseudonym {name!r} is a form in which A, a and 0 are drawn, or a word that faker knows"
        raise SchemaError(rule, form, f'Write "Aaaa-0000", say. {nearest(what, FAKED)}')


def substitutes(forms: Sequence[str], start: int, count: int, key: int) -> list[str]:
    """Substitutes for ``count`` synthetic rows from number ``start``, by a key that silos share."""
    forms = list(forms) or [_GENERIC]
    what, _, locale = forms[0].partition(":")
    if what in FAKED:
        return _faked(what, locale, start, count, key)
    width = 2 + max(map(len, forms))
    width += -width % 4  # words that Philox makes at a time
    source = np.random.Philox(key=key % 2**128)
    source.advance(start * width // 4)
    words = source.random_raw(count * width).reshape(count, width).tolist()
    return [_drawn(forms[row[0] % len(forms)], row[1:]) for row in words]


def _drawn(form: str, words: Sequence[int]) -> str:
    letters = "abcdefghijklmnopqrstuvwxyz"
    text = []
    for at, character in enumerate(form):
        letter = letters[words[at] % 26]
        digit = str(words[at] % 10) if at else str(1 + words[at] % 9)  # a leading zero would be lost in numbers
        text.append({"A": letter.upper(), "a": letter, "0": digit}.get(character, character))
    return "".join(text) + (_DOMAINS[words[-1] % 3] if form.endswith("@") else "")


def _faked(what: str, locale: str, start: int, count: int, key: int) -> list[str]:
    faker, made = _faker(locale), []
    for row in range(start, start + count):
        faker.seed_instance(f"{key} {row}")
        made.append(str(getattr(faker, what)()).replace("\n", ", "))
    return made


def _faker(locale: str) -> Any:
    try:
        faker = import_module("faker").Faker
    except ImportError as error:
        raise UnavailableError(
            "Made-up names and addresses need the library faker", "not installed", "pip install 'silosynth[names]'"
        ) from error
    try:
        return faker(locale or "en_US")
    except AttributeError as error:
        raise SchemaError(
            "The locale of a pseudonym is one that faker knows", locale, 'Write "name:de_CH", say.'
        ) from error
