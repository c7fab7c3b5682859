"""Named random streams: the only source of randomness in silosynth.

A stream is a value: a path of names below a seed. Two streams with different paths are independent, and the same
path always gives the same numbers, whichever process asks and in whatever order. No global seed is read or set.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field

import numpy as np
import torch
from blake3 import blake3
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from torch import Tensor

_TOGETHER = 64  # links of a chain
_FINEST = 2.0**-53  # uniform numbers are multiples of it


class Digest:
    """BLAKE3 of bytes, found when it is first needed: several at once take less time than each by itself.

    Args:
        text: the bytes, which are held until then.
    """

    __slots__ = ("_text", "_value")

    def __init__(self, text: bytes) -> None:
        self._text, self._value = text, b""

    @property
    def value(self) -> bytes:
        """The digest, 32 bytes."""
        if not self._value:
            self._value, self._text = blake3(self._text).digest(), b""
        return self._value


class Chain:
    """A hash chain of all that somebody was asked so far. Other asks, or another order of them, give another hash."""

    def __init__(self, value: bytes) -> None:
        self._value, self._added = value, list[Digest]()

    def add(self, digest: Digest) -> None:
        """Go on by what is asked now."""
        self._added.append(digest)
        if len(self._added) == _TOGETHER:
            self._go_on()

    @property
    def value(self) -> bytes:
        """The present one, 32 bytes."""
        self._go_on()
        return self._value

    def _go_on(self) -> None:
        for digest in self._added:
            self._value = blake3(self._value + digest.value).digest()
        self._added.clear()


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

    def picks(self) -> np.random.Generator:
        """A fresh NumPy generator (Philox) with a key of 128 bits, for which rows a batch holds.

        PyTorch's would not do: on the CPU it starts from the lowest 32 bits of its seed, whatever their number.
        """
        return self.asked()._keyed()

    def asked(self) -> Streams:
        """The stream of this name for what is asked now; this one where no chain of asks is kept."""
        return self if self.chain is None else self.child("asked", self.chain.value.hex())

    def _keyed(self) -> np.random.Generator:
        return keyed(self._digest()[16:])  # none of the bytes of `integer`

    def noise(self) -> Keystream:
        """A fresh keystream, for noise that protects rows. It is as secret as the seed is."""
        return Keystream(hashlib.sha256(b"silosynth keystream 1" + self.asked()._digest()).digest())

    def again(self) -> bytes | None:
        """32 secret bytes for all that was asked so far, so that the same asks have the same; None without a chain."""
        return None if self.chain is None else self.noise().words(4).tobytes()

    def _digest(self) -> bytes:
        escaped = (name.replace("\x1e", "\x1e0").replace("\x1f", "\x1e1") for name in self.path)  # no two paths alike
        text = "\x1f".join((str(self.seed), *escaped))
        return hashlib.sha256(text.encode()).digest()


def keyed(key: bytes) -> np.random.Generator:
    """A NumPy generator that is a function of the first 16 bytes of ``key``.

    A seed sequence maps 128 bits to Philox's key one to one; Philox(key=...) would use them too, but could not spawn.
    """
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(int.from_bytes(key[:16], "big"))))


class Keystream:
    """Random numbers from ChaCha20 (RFC 8439), for whatever must stay secret: noise, and who is sampled.

    Nobody who knows some of them learns anything of the others, unlike with NumPy's and PyTorch's generators.

    Args:
        key: 32 bytes. The same key gives the same numbers: use it for one purpose.
    """

    def __init__(self, key: bytes) -> None:
        self._cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor()

    def words(self, count: int) -> np.ndarray:
        """``count`` words of 64 uniformly random bits, uint64."""
        return np.frombuffer(self._cipher.update(bytes(8 * count)), dtype="<u8")

    def below(self, bounds: np.ndarray) -> np.ndarray:
        """For each bound, int64 above zero, a number drawn uniformly from [0, bound), exactly: int64."""
        bound_n = bounds.astype(np.uint64)
        last_n = np.uint64(2**64 - 1) - (np.uint64(2**64 - 1) % bound_n + np.uint64(1)) % bound_n
        drawn_n = self.words(len(bound_n))
        while len(again := np.nonzero(drawn_n > last_n)[0]):  # beyond the last whole multiple of the bound
            drawn_n = drawn_n.copy()
            drawn_n[again] = self.words(len(again))
        return (drawn_n % bound_n).astype(np.int64)

    def uniforms(self, *shape: int) -> np.ndarray:
        """Numbers of this shape, float64, drawn uniformly from the multiples of 2⁻⁵³ in [0, 1)."""
        return ((self.words(math.prod(shape)) >> np.uint64(11)) * _FINEST).reshape(shape)

    def normals(self, *shape: int) -> np.ndarray:
        """Standard normal numbers of this shape, float64 (Box and Muller 1958). None lies beyond 8.6."""
        count = math.prod(shape)
        pairs = torch.from_numpy(self.uniforms(2, (count + 1) // 2))
        radius, angle = (-2 * torch.log1p(-pairs[0])).sqrt_(), pairs[1] * (2 * math.pi)
        drawn = torch.cat([radius * angle.cos(), radius * angle.sin()])
        return drawn[:count].reshape(shape).numpy()


Draw = torch.Generator | Keystream  # PyTorch's for speed; a keystream where draws must stay secret


def normals(draw: Draw, *shape: int, device: torch.device | str = "cpu") -> Tensor:
    """Standard normal numbers of this shape."""
    if isinstance(draw, torch.Generator):
        return torch.randn(shape, generator=draw, device=device)
    return torch.from_numpy(draw.normals(*shape)).float().to(device)


def uniforms(draw: Draw, *shape: int, device: torch.device | str = "cpu") -> Tensor:
    """Numbers of this shape, drawn uniformly from [0, 1)."""
    if isinstance(draw, torch.Generator):
        return torch.rand(shape, generator=draw, device=device)
    top = 1 - 2.0**-24  # the largest float32 below 1: rounding must not reach 1
    return torch.from_numpy(draw.uniforms(*shape)).clamp_(max=top).float().to(device)


def integers(draw: Draw, below: int, count: int, device: torch.device | str = "cpu") -> Tensor:
    """``count`` integers drawn uniformly from [0, below)."""
    if isinstance(draw, torch.Generator):
        return torch.randint(below, (count,), generator=draw, device=device)
    return torch.from_numpy(draw.below(np.full(count, below))).to(device)
