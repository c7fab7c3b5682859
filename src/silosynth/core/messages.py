"""What may cross a silo's border: frozen values whose leaves are on an allow-list, and nothing else.

A `Struct` is a frozen record of tensors, numbers, strings, bytes, ``None``, tuples of these and other structs. A
`Message` is a struct that travels. Frames, pickles, callables and dictionaries cannot be expressed: the annotations of
each class are checked once, when the class is first used, and each value is checked when it is made. `to_state` makes
a struct storable, for checkpoints and model files.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin

import torch
from typing_extensions import dataclass_transform

from silosynth.core.errors import ConfigError, MessageError, SilosynthError, StorageError

LEAVES: tuple[type, ...] = (torch.Tensor, bool, int, float, str, bytes, type(None))


class Release(Enum):
    """What a message reveals about training rows to its receiver; shown in the ledger."""

    NOTHING = "nothing about single rows"
    SCHEMA = "names and kinds of columns"
    COUNTS = "exact row counts"
    ROWS = "one un-noised value per training row"
    GRADIENTS = "un-noised gradients of training rows"
    SYNTHETIC = "synthetic rows; no formal guarantee"
    SEALED = "ciphertext for another silo; the coordinator cannot read it"
    PSEUDONYMS = "keyed hashes of identifiers, one per row"
    CONDITIONS = "levels that rows hold, by number"
    MADE = "what networks trained on the rows make: features of made rows, and gradients in what they were made from"
    PICKS = "which rows a batch holds, exactly or among others"
    PICKED_GRADIENTS = "un-noised gradients of training rows, and which rows they are"
    NOISED = "noised statistics, by the events listed"
    DERIVED = "what follows from noised statistics that earlier messages have listed"
    STATISTICS = "un-noised statistics of a column"
    TABLES = "exact tables of how many rows hold levels together"
    FIGURES = "exact figures of tables, such as a distance to a public one"
    MERGED = "what silos told of their columns, merged"
    AVERAGE = "an average of un-noised weights"
    WEIGHTS = "un-noised weights of a network trained on the rows"
    MASKED = "masked values; only their sum over silos can be opened"


@dataclass(frozen=True)
class Bound:
    """What the numbers of a field must satisfy, in words and as a check; of a tuple, all of them."""

    rule: str
    holds: Callable[[Any], bool]
    empty: bool = True  # whether a tuple may be empty


STRUCTS: dict[str, type[Struct]] = {}
"""Every struct class, by wire name."""
_NAMES: dict[type, str] = {}  # and the other way round
_FIELDS: dict[type, tuple[str, ...]] = {}
S = TypeVar("S", bound="Struct")
T = TypeVar("T")
Positive = Annotated[T, Bound("above zero", lambda number: number > 0, empty=False)]
NonNegative = Annotated[T, Bound("at least 0", lambda number: 0 <= number < math.inf)]
LARGEST = 2**20
AtMost = Annotated[T, Bound(f"at most {LARGEST:,}", lambda number: number <= LARGEST)]
"""Of numbers that memory is taken by: so that no message, and no file, makes anybody take any amount of it."""
Size = Annotated[AtMost[T], Bound("above zero", lambda number: number > 0, empty=False)]
Steps = Annotated[Positive[T], Bound("at most 10,000", lambda number: number <= 10_000)]
"""Of steps in which a row is drawn: so that no file makes anybody draw without end."""
Few = Annotated[T, Bound("from 1 to 64", lambda number: 1 <= number <= 64)]
"""Of copies that are kept of something large, such as all weights."""
Rows = Annotated[T, Bound("from 0 to 16,777,216", lambda number: 0 <= number <= 2**24)]
"""Of numbers of rows that an ask wants made."""
Fraction = Annotated[T, Bound("at least 0 and below 1", lambda number: 0 <= number < 1)]


def wire_name(kind: type[Struct]) -> str:
    """Name of a struct on the wire: its folder and class, "algorithms.gdts.Describe", whatever file the class is in."""
    if (name := _NAMES.get(kind)) is None:
        folder = kind.__module__.removeprefix("silosynth.").rpartition(".")[0]
        name = _NAMES[kind] = f"{folder}.{kind.__qualname__}"
    return name


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
@dataclass(frozen=True)
class Struct:
    """A frozen record of allow-listed leaves. Subclasses become frozen dataclasses without a decorator.

    Values are checked when they are made: their types (`MessageError`), and bounds such as ``rate: Positive[float]``.

    Raises:
        ConfigError: a number is out of its bounds; names the field and the value.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        dataclass(frozen=True)(cls)
        STRUCTS[wire_name(cls)] = cls

    def __post_init__(self) -> None:
        own: Any = type(self)  # mypy takes the hash of its instances for that of the class
        for name, hint, fits in _checks_of(own):
            if not fits(value := getattr(self, name)):
                raise MessageError(f"{own.__name__}.{name} must be {_label(hint)}", type(value).__name__)
        if shapes := _shapes_of(own):
            self._check_shapes(shapes)
        for name, bound in bounds_of(own):
            value = getattr(self, name)
            numbers = value if isinstance(value, tuple) else (value,)
            if not (numbers or bound.empty) or not all(map(bound.holds, numbers)):
                raise ConfigError(f"Option {name!r} must be {bound.rule}", value)
        self._check()

    def _check_shapes(self, shapes: tuple[tuple[str, str], ...]) -> None:
        """Names contain shapes: ``z_NL`` has two dimensions, and every N of a struct is the same."""
        sizes: dict[str, int] = {}
        for name, letters in shapes:
            if (tensor := getattr(self, name)) is None:
                continue
            fits = tensor.dim() == len(letters)
            if not fits or any(
                sizes.setdefault(letter, size) != size for letter, size in zip(letters, tensor.shape, strict=True)
            ):
                raise MessageError(
                    f"{type(self).__name__}.{name} has the shape ({', '.join(letters)})", tuple(tensor.shape)
                )

    def _check(self) -> None:
        """Check rules between fields; for subclasses to override."""


class Message(Struct):
    """A struct that crosses a border.

    ``release`` says what it reveals: ``class Latents(Message, release=…)``. ``common`` says that an honest coordinator
    asks all silos the same with it, to the byte: at the end silos compare what they were asked.
    """

    release: ClassVar[Release] = Release.NOTHING
    common: ClassVar[bool] = False

    def __init_subclass__(cls, release: Release | None = None, common: bool | None = None) -> None:
        super().__init_subclass__()
        if release is not None:
            cls.release = release
        if common is not None:
            cls.common = common


def check_part(part: int, parts: int) -> None:
    """Check the number of a part, from 0, of ``parts`` equal ones.

    Raises:
        MessageError: there is no such part.
    """
    if not 0 <= part < parts:
        raise MessageError("Parts are numbered from 0, and there is at least one", f"part {part} of {parts}")


class Done(Message):
    """The reply that only confirms."""


class Missing(Message):
    """Recorded in the ledger in place of a reply that did not arrive; never sent."""


class Several(Message):
    """Encoded messages of several steps that travel together, or the replies to them. Ledgers record each by itself."""

    steps: tuple[int, ...]
    messages: tuple[bytes, ...]

    def _check(self) -> None:
        rising = len(self.steps) > 0 and list(self.steps) == sorted(set(self.steps))
        if not rising or len(self.steps) != len(self.messages):
            raise MessageError("Messages that travel together belong to increasing steps", self.steps)


def all_structs(root: type[Struct]) -> dict[str, type[Struct]]:
    """The struct classes derived from ``root``, by wire name."""
    return {name: kind for name, kind in STRUCTS.items() if issubclass(kind, root) and kind is not root}


def field_names(kind: type[Struct]) -> tuple[str, ...]:
    """Field names of a struct class, in order."""
    if (names := _FIELDS.get(kind)) is None:
        names = _FIELDS[kind] = tuple(field.name for field in dataclasses.fields(kind))
    return names


@cache
def fields_of(kind: type[Struct]) -> tuple[tuple[str, Any], ...]:
    """Field names and resolved annotations of a struct class.

    Raises:
        MessageError: an annotation is not made of allow-listed leaves.
    """
    hints = typing.get_type_hints(kind)
    fields = tuple((field.name, hints[field.name]) for field in dataclasses.fields(kind))
    for name, hint in fields:
        _check_annotation(f"{kind.__name__}.{name}", hint)
    return fields


@cache
def _checks_of(kind: Any) -> tuple[tuple[str, Any, Callable[[Any], bool]], ...]:
    """Name and annotation of each field of a struct class, and whether a value fits it."""
    return tuple((name, hint, _fits(hint)) for name, hint in fields_of(kind))


@cache
def _shapes_of(kind: Any) -> tuple[tuple[str, str], ...]:
    """The fields of a struct class that hold one tensor, or none, and a letter for each of its dimensions."""
    tensors = (name for name, hint in fields_of(kind) if torch.Tensor in (hint, *get_args(hint)))
    named = ((name, name.rpartition("_")[2]) for name in tensors if "_" in name)
    return tuple((name, letters) for name, letters in named if letters.isalpha() and letters.isupper())


@cache
def bounds_of(kind: type[Struct]) -> tuple[tuple[str, Bound], ...]:
    """Bounds of a struct's fields."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return tuple(
        (field.name, bound)
        for field in dataclasses.fields(kind)
        for bound in getattr(hints[field.name], "__metadata__", ())
    )


def _check_annotation(where: str, hint: Any) -> None:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        for arg in args:
            _check_annotation(where, arg)
    elif origin is tuple:
        for arg in args:
            if arg is not Ellipsis:
                _check_annotation(where, arg)
    elif origin is typing.Literal:
        for arg in args:
            _check_annotation(where, type(arg))
    elif not (isinstance(hint, type) and (hint in LEAVES or issubclass(hint, Struct))):
        raise MessageError(
            f"{where} may hold tensors, numbers, strings, bytes, tuples and structs only",
            str(hint),
            "Split the value into such leaves; frames, dictionaries and callables never cross a border.",
        )


def _fits(hint: Any) -> Callable[[Any], bool]:
    """What a value of a field must hold; made once for each annotation, as every message is checked."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        ways = [_fits(arg) for arg in args]
        return lambda value: any(way(value) for way in ways)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        each = _fits(args[0])
        return lambda value: isinstance(value, tuple) and all(map(each, value))
    if origin is tuple:
        items = [_fits(arg) for arg in args]
        return lambda value: (
            isinstance(value, tuple)
            and len(value) == len(items)
            and all(fits(item) for fits, item in zip(items, value, strict=True))
        )
    if origin is typing.Literal:
        return lambda value: any(type(value) is type(arg) and value == arg for arg in args)
    if hint is float:
        return lambda value: type(value) in (float, int)
    if hint is torch.Tensor or issubclass(hint, Struct):
        return lambda value: isinstance(value, hint)
    return lambda value: type(value) is hint


def _label(hint: Any) -> str:
    if get_origin(hint) is typing.Literal:
        return "one of " + ", ".join(map(repr, get_args(hint)))
    return getattr(hint, "__name__", None) or str(hint)


def to_state(struct: Struct) -> dict[str, Any]:
    """A struct as nested dictionaries and lists of leaves."""
    fields = {field.name: _down(getattr(struct, field.name)) for field in dataclasses.fields(struct)}
    return {"struct": wire_name(type(struct)), "fields": fields}


def from_state(kind: type[S], state: Any) -> S:
    """The struct that `to_state` converted.

    Raises:
        StorageError: the state holds another struct, one that this version does not know, or values that do not fit.
    """
    try:
        value = _up(state)
    except StorageError:
        raise
    except (SilosynthError, TypeError, AttributeError, KeyError, RecursionError) as error:
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        raise StorageError(f"The stored state holds a {kind.__name__}", what, "Was it altered?") from error
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
    kind: Any = STRUCTS.get(value.get("struct", ""))
    if kind is None or {name for name, _ in fields_of(kind)} != set(value["fields"]):
        raise StorageError(
            "The stored state was written by another version of silosynth", value.get("struct"), "Fit the model again."
        )
    return kind(**{name: _up(item) for name, item in value["fields"].items()})
