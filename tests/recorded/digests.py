"""SHA-256 digests of what a setting trains and samples, which no change of names and no move of code changes.

Digests of one setting, its facets:

- ``samples``: the tables that the model makes: column names, dtypes, and values.
- ``tensors``: all tensors in the coordinator's and the silos' parts: dtype, shape and bytes of each.
- ``numbers``: all other numbers in there; a list of nothing but numbers counts as one value, in its order.
- ``ledger``: every message's step, sender, receiver, privacy and events.
- ``privacy``: the numbers of the model's privacy statement.

Names of classes, modules, dictionary keys and messages may change: tensors, numbers and messages are therefore hashed
one by one, and the sorted digests of all of them are hashed again, so that it does not matter under which name, and
hence in which order, they are kept. Texts of a model are left out: they name classes and messages, or repeat options,
or are columns and levels, which samples show. The ledger's message types are left out for the same reason, and
their bytes, since names are part of them.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from tests.recorded.settings import fitted

FACETS = ("samples", "tensors", "numbers", "ledger", "privacy")


def digests(name: str, runtime: str) -> dict[str, str]:
    """The digests of the setting ``name``, trained in ``runtime``, by facet."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as that the paper's mechanism protects nobody
        model, tables = fitted(name, runtime)
    content = [model.coordinator, dict(model.parts)]
    statement = model.describe()["privacy"] if hasattr(model, "describe") else {}  # a representation has none
    return {
        "samples": _of(_table(key, table) for key, table in tables.items()),
        "tensors": _of(_tensor(leaf) for leaf in _leaves(content) if isinstance(leaf, torch.Tensor)),
        "numbers": _of(repr(leaf).encode() for leaf in _leaves(content) if not isinstance(leaf, torch.Tensor)),
        "ledger": _of(_message(record) for record in model.ledger),
        "privacy": _of(repr(leaf).encode() for leaf in _leaves(statement)),
    }


def _of(leaves: Iterable[bytes]) -> str:
    """A digest of the multiset of leaves."""
    return hashlib.sha256(b"".join(sorted(hashlib.sha256(leaf).digest() for leaf in leaves))).hexdigest()


def _leaves(value: Any) -> Iterator[Any]:
    """All tensors and numbers, and lists of nothing but numbers, whatever they are called."""
    if isinstance(value, np.ndarray):
        yield torch.as_tensor(value)
    elif isinstance(value, torch.Tensor | bytes):
        yield value
    elif isinstance(value, int | float):
        yield _plain(value)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list | tuple) and value and all(isinstance(item, int | float) for item in value):
        yield [_plain(item) for item in value]
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    elif not (value is None or isinstance(value, str)):
        raise TypeError(f"No digest is defined for a {type(value).__name__} in a model")


def _plain(number: float) -> float:
    """Without NumPy's type, which `repr` would show."""
    return number.item() if isinstance(number, np.generic) else number


def _tensor(tensor: torch.Tensor) -> bytes:
    head = f"{tensor.dtype} {tuple(tensor.shape)} ".encode()
    if tensor.dtype == torch.bfloat16:  # which NumPy does not have
        tensor = tensor.view(torch.int16)
    return head + tensor.detach().cpu().numpy().tobytes()


def _table(key: str, table: pd.DataFrame) -> bytes:
    """Column names, dtypes, categories in their order, and the exact values."""
    columns = [(str(name), str(dtype), list(getattr(dtype, "categories", ()))) for name, dtype in table.dtypes.items()]
    values = [table[name].astype(object).where(table[name].notna(), None).tolist() for name in table]
    return repr((key, columns, values)).encode()


def _message(record: Mapping[str, Any]) -> bytes:
    kept = [record["step"], record["from"], record["to"], record["privacy"], record.get("events", [])]
    return json.dumps(kept, sort_keys=True).encode()
