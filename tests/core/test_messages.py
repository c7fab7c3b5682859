from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any, Literal

import pytest
import torch

import silosynth
from silosynth.core.errors import ConfigError, MessageError
from silosynth.core.messages import (
    LEAVES,
    STRUCTS,
    Done,
    Fraction,
    Message,
    NonNegative,
    Positive,
    Release,
    Struct,
    fields_of,
    wire_name,
)


def package_structs() -> dict[str, type[Struct]]:
    """Every struct of the package, after importing all of it but what starts a program."""
    for module in pkgutil.walk_packages(silosynth.__path__, "silosynth."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return {name: kind for name, kind in STRUCTS.items() if kind.__module__.startswith("silosynth.")}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of libraries, while they are imported
def test_every_struct_of_the_package_holds_allowed_leaves_only() -> None:
    structs = package_structs()
    assert len(structs) > 5
    for name, kind in structs.items():
        fields_of(kind)  # raises for an annotation that is not on the list
        assert dataclasses.is_dataclass(kind), name
        assert kind.__dataclass_params__.frozen, f"{name} is not frozen"
        assert "<locals>" not in name
        if issubclass(kind, Message):
            assert isinstance(kind.release, Release), name


def test_wire_names_are_unique_and_short() -> None:
    kinds = [kind for kind in package_structs().values()]
    assert len({wire_name(kind) for kind in kinds}) == len(set(kinds))
    assert wire_name(Done) == "core.Done"


class Leafy(Message, release=Release.COUNTS):
    flag: bool
    count: int
    rate: float
    text: str
    blob: bytes
    z: torch.Tensor
    nothing: None
    maybe: int | None
    pair: tuple[int, str]
    many: tuple[Done, ...]
    mode: Literal["a", 1]


GOOD: dict[str, Any] = {
    "flag": True,
    "count": 3,
    "rate": 0.5,
    "text": "x",
    "blob": b"x",
    "z": torch.ones(2),
    "nothing": None,
    "maybe": None,
    "pair": (1, "a"),
    "many": (Done(), Done()),
    "mode": "a",
}


def test_values_of_the_declared_kind_are_accepted() -> None:
    assert {name for name, _ in fields_of(Leafy)} == set(GOOD)
    for change in ({}, {"rate": 1}, {"maybe": 4}, {"many": ()}, {"mode": 1}):
        Leafy(**{**GOOD, **change})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("flag", 1),
        ("count", True),
        ("count", 1.0),
        ("rate", "0.5"),
        ("rate", True),
        ("text", b"x"),
        ("blob", bytearray(b"x")),
        ("z", [1.0]),
        ("nothing", 0),
        ("maybe", 0.5),
        ("pair", (1, "a", 2)),
        ("pair", [1, "a"]),
        ("pair", ("a", 1)),
        ("many", (Done(), None)),
        ("many", Done()),
        ("mode", "b"),
        ("mode", True),
    ],
)
def test_other_values_are_refused_with_the_fields_name(field: str, value: object) -> None:
    with pytest.raises(MessageError, match=rf"Leafy\.{field} must be"):
        Leafy(**{**GOOD, field: value})


@pytest.mark.parametrize(
    "hint",
    [
        dict,
        dict[str, int],
        Mapping[str, int],
        list[int],
        set[int],
        tuple,
        object,
        Any,
        Callable[[], int],
        type,
        complex,
        Release,
        dict[str, int] | None,
        tuple[dict[str, int], ...],
        torch.nn.Module,
        torch.Generator,
    ],
)
def test_annotations_that_are_not_leaves_are_refused(hint: Any) -> None:
    kind = type("Smuggler", (Message,), {"__annotations__": {"cargo": hint}})
    with pytest.raises(MessageError, match=r"Smuggler\.cargo may hold") as caught:
        fields_of(kind)
    assert "never cross a border" in caught.value.remedy
    with pytest.raises(MessageError):
        kind(cargo=None)


def test_a_frame_cannot_be_expressed() -> None:
    pandas = pytest.importorskip("pandas")
    kind = type("Rows", (Message,), {"__annotations__": {"frame": pandas.DataFrame}})
    with pytest.raises(MessageError, match="DataFrame"):
        kind(frame=pandas.DataFrame({"a": [1]}))


def test_messages_are_frozen() -> None:
    message = Leafy(**GOOD)
    with pytest.raises(dataclasses.FrozenInstanceError):
        message.count = 4  # type: ignore[misc]


def test_leaves_are_what_they_were() -> None:
    """Whoever adds a leaf must think of what it lets out, and of the wire."""
    assert set(LEAVES) == {torch.Tensor, bool, int, float, str, bytes, type(None)}


class Bounded(Struct):
    rate: Positive[float] = 0.5
    widths: Positive[tuple[int, ...]] = (4, 4)
    decay: NonNegative[float] = 0.0
    betas: Fraction[tuple[float, float]] = (0.0, 0.9)
    blocks: NonNegative[tuple[int, ...]] = ()


class Noisy(Message, release=Release.NOISED):
    rate: Positive[float]


def test_bounds_are_checked_and_named() -> None:
    assert Bounded(rate=1, widths=(1,), betas=(0.0, 0.0)).rate == 1
    assert (Noisy.release, Bounded().blocks) == (Release.NOISED, ())


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("rate", 0.0, "above zero"),
        ("rate", float("nan"), "above zero"),
        ("widths", (4, 0), "above zero"),
        ("widths", (), "above zero"),
        ("decay", -1e-9, "at least 0"),
        ("decay", float("inf"), "at least 0"),
        ("betas", (0.0, 1.0), "at least 0 and below 1"),
        ("blocks", (1, -1), "at least 0"),
    ],
)
def test_numbers_out_of_bounds_are_refused_with_the_options_name(field: str, value: object, rule: str) -> None:
    with pytest.raises(ConfigError, match=rf"Option '{field}' must be {rule} \(got"):
        Bounded(**{field: value})
    with pytest.raises(MessageError, match=r"Noisy\.rate must be float"):
        Noisy("much")
