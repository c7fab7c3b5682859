"""TOML files that people write: their sections, and errors that name the rule, the value and the remedy.

Experiments, federations and silos' settings are such files. pydantic checks them; what it finds is put into our words.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from silosynth.core.errors import ConfigError, nearest
from silosynth.core.files import existing

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Text = Annotated[str, Field(min_length=1)]
M = TypeVar("M", bound=BaseModel)


class FileSection(BaseModel):
    """A table of a TOML file: frozen, no unknown keys, no conversions between types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def read_toml(path: Path, model: type[M]) -> M:
    """Read and check a TOML file.

    Raises:
        StorageError: no such file.
        ConfigError: it is not TOML (names the line) or not UTF-8; it has an unknown key (names the nearest known one),
            lacks a key, or a value does not fit (names key, value and remedy).
    """
    source = existing(path)
    try:
        return model.model_validate(tomllib.loads(source.read_text(encoding="utf-8-sig")))
    except ValidationError as error:
        raise _explained(source.name, error, model) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source.name} must be valid TOML: {error}", remedy="See https://toml.io/en.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{source.name} must be a text file in UTF-8", remedy="Save it as UTF-8.") from None


def missing_key(file: str, key: str) -> ConfigError:
    """The error that a file lacks a key."""
    return ConfigError(f"{file}: {key} is missing", remedy=_EXAMPLES.get(key, f"Add {key!r}."))


def _explained(name: str, error: ValidationError, root: type[BaseModel]) -> ConfigError:
    """The first problem as the error itself, the others as lines of its remedy."""
    first, *others = [_problem(dict(details), root) for details in error.errors(include_url=False)]
    rule, value, remedy = first
    more = "".join(f"\n{_config_error(*other)}" for other in others)
    return _config_error(f"{name}: {rule}", value, remedy + more)


def _config_error(rule: str, value: tuple[Any, ...], remedy: str) -> ConfigError:
    return ConfigError(rule, value[0], remedy) if value else ConfigError(rule, remedy=remedy)


def _problem(details: Mapping[str, Any], root: type[BaseModel]) -> tuple[str, tuple[Any, ...], str]:
    """Rule, value (if there is one) and remedy of one of pydantic's findings."""
    where, kind, limits = details["loc"], details["type"], details.get("ctx", {})
    key, value = ".".join(map(str, where)), details["input"]
    if kind == "extra_forbidden":
        return f"{key} is not a known key", (where[-1],), nearest(str(where[-1]), _by_name(_section(root, where[:-1])))
    if kind == "missing" or (key == "silos" and value == {}):
        return f"{key} is missing", (), _EXAMPLES.get(key, f"Add {where[-1]!r}.")
    if kind == "literal_error":
        words = get_args(_field(root, where))
        return f"{key} must be one of {', '.join(words)}", (value,), nearest(str(value), words)
    if kind == "value_error":
        shown = () if isinstance(value, dict) else (value,)
        return (f"{key}: " if key else "") + str(limits["error"]), shown, _EXAMPLES.get(key.partition(".")[0], "")
    return f"{key} must be {_wanted(kind, limits)}", (value,), _REMEDIES.get(kind, "")


_EXAMPLES = {
    "data": 'Write for instance path = "table.csv".',
    "silos": 'Add one section per silo, such as [silos.bank] with columns = ["age", "income"], or share = 0.2.',
    "split": "Keep the one that you mean.",
}

_KINDS = {
    "bool_type": "true or false",
    "dict_type": "a section",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "list_type": "a list",
    "model_type": "a section",
    "string_type": "text",
    "finite_number": "a finite number",
    "string_too_short": "a text that is not empty",
}

_REMEDIES = {
    "bool_type": "Write true or false, without quotes.",
    "dict_type": "Write it as a section: its name in brackets, then one key = value per line.",
    "float_type": "Write a number such as 0.2, without quotes.",
    "int_from_float": "Write a number without a decimal point.",
    "int_type": "Write a whole number, without quotes or decimal point.",
    "list_type": 'Write a list such as ["age", "income"].',
    "model_type": "Write it as a section: its name in brackets, then one key = value per line.",
    "string_type": 'Put it in quotes: "…".',
}

_LIMITS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than", "min_length": "at least of length"}


def _wanted(kind: str, limits: Mapping[str, Any]) -> str:
    bounds = [f"{words} {limits[name]}" for name, words in _LIMITS.items() if name in limits]
    return _KINDS.get(kind) or " and ".join(bounds) or kind.replace("_", " ")


def _section(root: type[BaseModel], where: Sequence[str | int]) -> type[BaseModel]:
    """The section class at a key path; names of silos and columns are passed over."""
    section = root
    for step in where:
        section = next(iter(_sections(_by_name(section).get(str(step)))), section)
    return section


def _sections(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [kind for arg in get_args(annotation) for kind in _sections(arg)]


def _field(root: type[BaseModel], where: Sequence[str | int]) -> Any:
    """The literal type of the field at a key path, without ``None``."""
    annotation = _by_name(_section(root, where[:-1]))[str(where[-1])]
    return next((arg for arg in (annotation, *get_args(annotation)) if get_args(arg) and _all_words(arg)), annotation)


def _all_words(annotation: Any) -> bool:
    return all(isinstance(arg, str) for arg in get_args(annotation))


def _by_name(section: type[BaseModel]) -> dict[str, Any]:
    return {info.alias or name: info.annotation for name, info in section.model_fields.items()}
