"""What pydantic finds wrong with a file, said in our words: rule, value, remedy, and the nearest known key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from silosynth.core.errors import ConfigError, nearest


def explained(name: str, error: ValidationError, root: type[BaseModel]) -> ConfigError:
    """The first problem as the error itself, the others as lines of its remedy."""
    first, *others = [_problem(dict(found), root) for found in error.errors(include_url=False)]
    rule, shown, remedy = first
    more = "".join(f"\n{_config_error(*other)}" for other in others)
    return _config_error(f"{name}: {rule}", shown, remedy + more)


def _config_error(rule: str, shown: tuple[Any, ...], remedy: str) -> ConfigError:
    return ConfigError(rule, shown[0], remedy) if shown else ConfigError(rule, remedy=remedy)


def _problem(found: Mapping[str, Any], root: type[BaseModel]) -> tuple[str, tuple[Any, ...], str]:
    """Rule, value (where there is one) and remedy of one finding of pydantic."""
    where, kind, limits = found["loc"], found["type"], found.get("ctx", {})
    key, value = ".".join(map(str, where)), found["input"]
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
    found = root
    for step in where:
        found = next((kind for kind in _sections(_by_name(found).get(str(step)))), found)
    return found


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
