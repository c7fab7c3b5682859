"""Structs ⇄ storable state, for checkpoints and model files."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from silosynth.core.errors import StorageError
from silosynth.core.messages import Struct, all_structs, wire_name

T = TypeVar("T", bound=Struct)


def to_state(struct: Struct) -> dict[str, Any]:
    """A struct as nested dictionaries and lists of leaves."""
    fields = {field.name: _down(getattr(struct, field.name)) for field in dataclasses.fields(struct)}
    return {"struct": wire_name(type(struct)), "fields": fields}


def from_state(kind: type[T], state: Any) -> T:
    """The struct that `to_state` converted.

    Raises:
        StorageError: the state holds another struct, or one that this version does not know.
    """
    value = _up(state)
    if not isinstance(value, kind):
        raise StorageError(f"The stored state holds a {kind.__name__}", type(value).__name__, "Was it altered?")
    return value


def _down(value: Any) -> Any:
    if isinstance(value, Struct):
        return to_state(value)
    return [_down(item) for item in value] if isinstance(value, tuple) else value


def _up(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_up(item) for item in value)
    if not isinstance(value, dict):
        return value
    kind = all_structs().get(value.get("struct", ""))
    if kind is None or {field.name for field in dataclasses.fields(kind)} != set(value["fields"]):
        raise StorageError(
            "The stored state was written by another version of silosynth", value.get("struct"), "Fit the model again."
        )
    return kind(**{name: _up(item) for name, item in value["fields"].items()})
