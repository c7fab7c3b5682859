"""Tensors as bytes in safetensors' format: 8 bytes little-endian length of a header, the header (JSON), the numbers.

They are written and read here rather than by the safetensors library, which makes an extra copy each way and takes
longer to write than the rest of a message. Only what this module writes is read: the ten dtypes of `DTYPES`, without
gaps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

LENGTH = 8
DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}
"""Dtypes that a tensor may have, and their safetensors names."""
compact_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_NAMED = {name: dtype for dtype, name in DTYPES.items()}
_ENTRY = {"dtype", "shape", "data_offsets"}
_DIMENSIONS = 64


class Span(NamedTuple):
    """Where a tensor's numbers lie among those of all: from byte ``start`` to before ``end``."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int

    def read(self, numbers: memoryview) -> torch.Tensor:
        """The tensor, in memory of its own.

        Raises:
            ValueError: it is of bools, and a byte is neither 0 nor 1.
            RuntimeError: an empty shape that torch cannot allocate.
        """
        if self.start == self.end:
            return torch.empty(self.shape, dtype=self.dtype)
        own = bytearray(numbers[self.start : self.end])
        if self.dtype is torch.bool and int(torch.frombuffer(own, dtype=torch.uint8).max()) > 1:
            raise ValueError("a bool is a byte of 0 or 1")  # torch would count it twice
        return torch.frombuffer(own, dtype=self.dtype).view(self.shape)


def spans_of(tensors: Mapping[str, torch.Tensor]) -> list[Span]:
    """Where tensors are written: widest numbers first, so that all are aligned."""
    at, spans = 0, []
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].itemsize):
        spans.append(Span(name, tensor.dtype, tuple(tensor.shape), at, at + tensor.nbytes))
        at += tensor.nbytes
    return spans


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor on the CPU, contiguous and without gradients."""
    return tensor.detach().cpu().contiguous()


def buffer_of(tensor: torch.Tensor) -> Any:
    """The numbers of a dense tensor that is `plain`."""
    own = tensor.resolve_neg()
    return (own.reshape(-1).view(torch.uint8) if own.dtype is torch.bfloat16 else own).numpy()


def to_buffers(tensors: Mapping[str, torch.Tensor]) -> list[Any]:
    """Dense tensors that are `plain` as buffers to be joined."""
    spans = spans_of(tensors)
    text = compact_json({
        span.name: {"dtype": DTYPES[span.dtype], "shape": span.shape, "data_offsets": [span.start, span.end]}
        for span in spans
    }).encode("ascii")  # fmt: skip
    text += b" " * (-len(text) % 8)
    numbers = [buffer_of(tensors[span.name]) for span in spans if span.end > span.start]
    return [len(text).to_bytes(LENGTH, "little"), text, *numbers]


def read_spans(blob: memoryview) -> tuple[list[Span], memoryview]:
    """What the header of `to_buffers` says, and the numbers that follow it.

    Raises:
        ValueError: the bytes were not written by it.
    """
    start = LENGTH + int.from_bytes(blob[:LENGTH], "little")
    if start > len(blob):
        raise ValueError(f"the tensors' header ends at byte {start} of {len(blob)}")
    header, numbers, at = json.loads(str(blob[LENGTH:start], "ascii")), blob[start:], 0
    if not isinstance(header, dict):
        raise ValueError("the tensors' header is not a dictionary")
    spans = []
    for name, entry in header.items():
        dtype, shape = _dtype_and_shape(entry)
        end = at + _size(shape, dtype.itemsize, len(blob))
        if entry["data_offsets"] != [at, end] or end > len(numbers):
            raise ValueError("tensors follow each other, each as long as its shape says")
        spans.append(Span(name, dtype, tuple(shape), at, end))
        at = end
    if at != len(numbers):
        raise ValueError(f"the tensors end at byte {at} of {len(numbers)}")
    return spans, numbers


def _dtype_and_shape(entry: Any) -> tuple[torch.dtype, list[int]]:
    if not (isinstance(entry, dict) and entry.keys() == _ENTRY and isinstance(entry["shape"], list)):
        raise ValueError("a tensor is described by dtype, shape and offsets")
    kind, shape = entry["dtype"], entry["shape"]
    dtype = _NAMED.get(kind) if isinstance(kind, str) else None
    if dtype is None:
        raise ValueError("tensors hold bool, 8- to 64-bit integers or 16- to 64-bit floats")
    if len(shape) > _DIMENSIONS or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"a shape has at most {_DIMENSIONS} dimensions, none negative")
    return dtype, shape


def _size(shape: list[int], itemsize: int, most: int) -> int:
    """Bytes of a tensor; if that exceeds ``most``, some number above it."""
    if 0 in shape:
        return 0
    size = itemsize
    for length in shape:
        size = min(size * length, most + 1)
    return size
