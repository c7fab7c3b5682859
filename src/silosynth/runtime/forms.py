"""Forms of messages that were written or read before.

All of a message but the numbers of its tensors is its *head*: names, plain values, dtypes and shapes. A training sends
thousands of messages whose heads are equal to the byte. What a head says is found out and checked once; from then on
only numbers are copied, for a third of the time. What messages say, and what they are refused for, is the same.

A form is kept of structs whose fields are tensors and plain values, and that have no checks of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, get_args

import torch

from silosynth.core.messages import Struct, bounds_of, field_names, fields_of, wire_name
from silosynth.runtime.tensors import LENGTH, Span, buffer_of, plain, spans_of

K = TypeVar("K")
V = TypeVar("V")
PLAIN = frozenset({str, bool, int, type(None)})
"""Types of values that are written as they are."""
_LONGEST = 2048  # bytes of a head of which a form is kept
_MOST = 256  # forms for reading, and as many for writing; beyond, all are forgotten, and those in use found out again


@dataclass(frozen=True, slots=True)
class Form:
    """What a head says: the class, values of fields that are no tensors, and where each tensor's numbers lie."""

    kind: type[Struct]
    values: Mapping[str, Any]
    spans: tuple[Span, ...]

    def read(self, numbers: memoryview) -> Struct:
        """The message of these numbers; its values need no check, as those of the first one had it."""
        message = object.__new__(self.kind)
        message.__dict__.update(self.values)
        for span in self.spans:
            message.__dict__[span.name] = span.read(numbers)
        return message


_read: dict[bytes, Form] = {}
_written: dict[tuple[object, ...], tuple[bytes, tuple[Span, ...]]] = {}  # heads, by all that decides on them


def read(blob: memoryview, allowed: Mapping[str, type[Struct]]) -> Struct | None:
    """The message in these bytes, if a form with this head was kept, of a class that is allowed; None: parse it."""
    start = LENGTH + int.from_bytes(blob[:LENGTH], "little")
    end = start + LENGTH + int.from_bytes(blob[start : start + LENGTH], "little") if start < len(blob) else start
    if end > min(_LONGEST, len(blob)) or (form := _read.get(bytes(blob[:end]))) is None:
        return None
    if allowed.get(wire_name(form.kind)) is not form.kind or len(blob) - end != _length(form.spans):
        return None
    return form.read(blob[end:])


def keep_read(blob: memoryview, message: Struct, tensors: Iterable[tuple[torch.Tensor, Span]]) -> None:
    """Keep the form of a message that was parsed from these bytes, with its tensors in their order there."""
    if _signature(message) is None:
        return
    fields = {name: getattr(message, name) for name in field_names(type(message))}
    names = {id(value): name for name, value in fields.items()}
    spans = tuple(span._replace(name=names[id(tensor)]) for tensor, span in tensors)
    values = {name: fields[name] for name in fields.keys() - {span.name for span in spans}}
    head = bytes(blob[: len(blob) - _length(spans)])
    _keep(_read, head, Form(type(message), values, spans), len(head))


def write(message: Struct) -> bytes | None:
    """The message as bytes, if one of this form was kept; None: dump it."""
    signature = _signature(message)
    if signature is None or (kept := _written.get(signature)) is None:
        return None
    head, spans = kept
    numbers = (buffer_of(plain(getattr(message, span.name))) for span in spans if span.end > span.start)
    return b"".join((head, *numbers))


def keep_written(message: Struct, blob: bytes) -> None:
    """Keep the form of a message that was dumped as these bytes. It is one for writing: a reader checks by itself."""
    if (signature := _signature(message)) is None:
        return
    fields = ((name, getattr(message, name)) for name in field_names(type(message)))
    spans = tuple(spans_of({name: value for name, value in fields if isinstance(value, torch.Tensor)}))
    head = blob[: len(blob) - _length(spans)]
    _keep(_written, signature, (head, spans), len(head))


def _keep(forms: dict[K, V], key: K, form: V, length: int) -> None:
    if length > _LONGEST:
        return
    if len(forms) >= _MOST:
        forms.clear()
    forms[key] = form


@cache
def _by_head(kind: Any) -> bool:
    """Whether the head of a message of this class decides on all its checks."""
    own = kind._check, kind._check_shapes, kind.__post_init__
    tensors = {name for name, hint in fields_of(kind) if torch.Tensor in (hint, *get_args(hint))}
    return own == (Struct._check, Struct._check_shapes, Struct.__post_init__) and not any(
        name in tensors for name, _ in bounds_of(kind)
    )


def _signature(message: Struct) -> tuple[object, ...] | None:
    """What decides on a message's head; None: it has no form, or does not show here that it has one."""
    kind: Any = type(message)
    if not _by_head(kind):
        return None
    signature: list[object] = [kind]
    for name in field_names(kind):
        value = getattr(message, name)
        of = type(value)
        if of is torch.Tensor:
            if value.layout is not torch.strided or value.is_meta or value.dtype is torch.bool:
                return None  # bools: a byte may be neither 0 nor 1
            signature += (value.dtype, value.shape)
        elif of in PLAIN:
            signature += (of, value)
        elif of is float and math.isfinite(value):
            signature += (of, value.hex())  # 0.0 and -0.0 are equal
        else:
            return None
    return tuple(signature)


def _length(spans: tuple[Span, ...]) -> int:
    return spans[-1].end if spans else 0
