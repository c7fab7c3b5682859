"""Tensors as bytes, in safetensors' format: 8 bytes little-endian length of a header, the header (JSON), the numbers.

Written and read here, not by the library, which copies once more either way, and writes more slowly than all the rest
of a message. Only what is written here is read: the ten types of `DTYPES`, one tensor after the other without gaps.
"""

from __future__ import annotations

import json
from typing import Any

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
"""What a tensor may hold, and what safetensors calls it."""
_NAMED = {name: dtype for dtype, name in DTYPES.items()}
_ENTRY = {"dtype", "shape", "data_offsets"}
_DIMENSIONS = 64
_ENCODE = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def to_buffers(tensors: dict[str, torch.Tensor]) -> list[Any]:
    """Dense tensors, each contiguous and on the CPU, as buffers to be joined."""
    offset, header, buffers = 0, {}, []
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].itemsize):  # wide ones first: all aligned
        size = tensor.nbytes
        entry = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, offset + size]}
        header[name] = entry
        offset += size
        if size:
            flat = tensor.reshape(-1).resolve_neg()
            buffers.append((flat.view(torch.uint8) if tensor.dtype is torch.bfloat16 else flat).numpy())
    text = _ENCODE(header).encode("ascii")
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(LENGTH, "little"), text, *buffers]


def from_buffer(blob: memoryview) -> dict[str, torch.Tensor]:
    """The tensors that `to_buffers` wrote, each in memory of its own.

    Raises:
        ValueError: the bytes are not what it writes.
        RuntimeError: a shape of no elements that torch cannot make.
    """
    start = LENGTH + int.from_bytes(blob[:LENGTH], "little")
    if start > len(blob):
        raise ValueError(f"the tensors' header ends at byte {start} of {len(blob)}")
    header, at = json.loads(str(blob[LENGTH:start], "ascii")), start
    if not isinstance(header, dict):
        raise ValueError("the tensors' header is no dictionary")
    tensors = {}
    for name, entry in header.items():
        dtype, shape = _described(entry)
        end = at + _size(shape, dtype.itemsize, len(blob))
        if entry["data_offsets"] != [at - start, end - start] or end > len(blob):
            raise ValueError("tensors follow each other, each as long as its shape says")
        tensors[name] = _tensor(blob[at:end], dtype, shape)
        at = end
    if at != len(blob):
        raise ValueError(f"the tensors end at byte {at} of {len(blob)}")
    return tensors


def _described(entry: Any) -> tuple[torch.dtype, list[int]]:
    if not (isinstance(entry, dict) and entry.keys() == _ENTRY and isinstance(entry["shape"], list)):
        raise ValueError("a tensor is described by type, shape and place")
    kind, shape = entry["dtype"], entry["shape"]
    dtype = _NAMED.get(kind) if isinstance(kind, str) else None
    if dtype is None:
        raise ValueError("tensors hold bool, 8- to 64-bit integers or 16- to 64-bit floats")
    if len(shape) > _DIMENSIONS or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"a shape is up to {_DIMENSIONS} sizes, none below zero")
    return dtype, shape


def _size(shape: list[int], itemsize: int, most: int) -> int:
    """Bytes of a tensor; some number above ``most`` if there are more than that."""
    if 0 in shape:
        return 0
    size = itemsize
    for length in shape:
        size = min(size * length, most + 1)
    return size


def _tensor(part: memoryview, dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    if not part:
        return torch.empty(shape, dtype=dtype)
    own = torch.frombuffer(bytearray(part), dtype=torch.uint8)
    if dtype is torch.bool and int(own.max()) > 1:  # torch would count such a value as several
        raise ValueError("a truth value is a byte of 0 or 1")
    return own.view(dtype).reshape(shape)
