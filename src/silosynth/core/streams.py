"""Named random streams: the only source of randomness in silosynth.

A stream is a value: a path of names below a seed. Two streams with different paths are independent, and the same
path always gives the same numbers, whichever process asks and in whatever order. No global seed is read or set.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

Draw = torch.Generator | np.random.Generator  # PyTorch's for speed; NumPy's where draws must stay secret


class Chain:
    """A hash chain of all that somebody was asked so far. Other asks, or another order of them, give another hash.

    Attributes:
        value: the present one, 32 bytes.
    """

    def __init__(self, value: bytes) -> None:
        self.value = value

    def add(self, ask: bytes) -> None:
        """Go on by what is asked now."""
        self.value = hashlib.sha256(self.value + hashlib.sha256(ask).digest()).digest()


@dataclass(frozen=True, slots=True)
class Streams:
    """A node in the tree of random streams.

    With a ``chain``, noise depends on all that was asked as well: a silo that is brought back to a checkpoint, and then
    asked something else, draws other noise. Seeds of such streams are secret, and NumPy's keys have 128 bits.

    >>> a = Streams(7).party("bank").child("weights")
    >>> b = Streams(7).child("party", "bank", "weights")
    >>> a == b and a.integer() == b.integer()
    True
    """

    seed: int
    path: tuple[str, ...] = ()
    chain: Chain | None = field(default=None, compare=False, repr=False)

    def child(self, *names: str | int) -> Streams:
        """The stream called ``names`` below this one."""
        return Streams(self.seed, (*self.path, *(str(name) for name in names)), self.chain)

    def party(self, name: str) -> Streams:
        """The stream from which the party called ``name`` draws everything."""
        return self.child("party", name)

    def integer(self) -> int:
        """A 63-bit integer that depends on seed and path alone."""
        return int.from_bytes(self._digest()[:8], "big") >> 1

    def numpy(self) -> np.random.Generator:
        """A fresh NumPy generator at the start of this stream."""
        return np.random.default_rng(self.integer()) if self.chain is None else self._keyed()

    def torch(self, device: torch.device | str = "cpu") -> torch.Generator:
        """A fresh PyTorch generator at the start of this stream. Different devices give different numbers."""
        generator = torch.Generator(device=device)
        generator.manual_seed(self.integer())
        return generator

    def noise(self) -> np.random.Generator:
        """A fresh NumPy generator for noise that protects rows, with a key of 128 bits.

        PyTorch's would not do: on the CPU it starts from the lowest 32 bits of its seed, whatever their number.
        """
        return self.asked()._keyed()

    def asked(self) -> Streams:
        """The stream of this name for what is asked now; this one where no chain of asks is kept."""
        return self if self.chain is None else self.child("asked", self.chain.value.hex())

    def _keyed(self) -> np.random.Generator:
        return keyed(self._digest()[16:])  # none of the bytes of `integer`

    def _digest(self) -> bytes:
        escaped = (name.replace("\x1e", "\x1e0").replace("\x1f", "\x1e1") for name in self.path)  # no two paths alike
        text = "\x1f".join((str(self.seed), *escaped))
        return hashlib.sha256(text.encode()).digest()


def keyed(key: bytes) -> np.random.Generator:
    """A NumPy generator that is a function of the first 16 bytes of ``key``.

    A seed sequence maps 128 bits to Philox's key one to one; Philox(key=...) would use them too, but could not spawn.
    """
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(int.from_bytes(key[:16], "big"))))


def normals(draw: Draw, *shape: int, device: torch.device | str = "cpu") -> Tensor:
    """Standard normal numbers of this shape."""
    if isinstance(draw, torch.Generator):
        return torch.randn(shape, generator=draw, device=device)
    return torch.from_numpy(draw.standard_normal(shape, dtype=np.float32)).to(device)


def uniforms(draw: Draw, *shape: int, device: torch.device | str = "cpu") -> Tensor:
    """Numbers of this shape, drawn uniformly from [0, 1)."""
    if isinstance(draw, torch.Generator):
        return torch.rand(shape, generator=draw, device=device)
    return torch.from_numpy(draw.random(shape, dtype=np.float32)).to(device)


def integers(draw: Draw, below: int, count: int, device: torch.device | str = "cpu") -> Tensor:
    """``count`` integers drawn uniformly from [0, below)."""
    if isinstance(draw, torch.Generator):
        return torch.randint(below, (count,), generator=draw, device=device)
    return torch.from_numpy(draw.integers(below, size=count)).to(device)
