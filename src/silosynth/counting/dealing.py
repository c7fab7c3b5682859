"""A party that deals for a counting, in place of the coordinator: seeds and shares travel sealed from it to the silos.

So the coordinator knows none of the random matrices that rows are hidden by, and together with one silo it learns no
more than that one. What remains is that **the dealer together with one silo** reads the counted columns of all silos
that share a set with that one: who deals must be another organisation than either. It holds no column that is
counted, sees nothing that is hidden, no share, and nothing that opens.

A silo takes only what is sealed by the dealer that the request names, for this counting: a coordinator that deals
itself is refused.

Messages in talking order, each to the dealer: `PrepareDealing` → `SeedsDealt`; for each block `DealBlock` →
`BlockDealt`; `FinishDealing` → `RestDealt`; and of figures `DealShares` → `FiguresDealt`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np
from torch import Tensor

from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Message
from silosynth.counting.plan import Plan
from silosynth.counting.products import WIDTHS, AnyWords
from silosynth.counting.protocol import (
    BlockDealt,
    DealBlock,
    Dealer,
    FinishDealing,
    PrepareDealing,
    RestDealt,
    SeedsDealt,
    as_words,
)  # fmt: skip
from silosynth.privacy.sealed import Envelope, Seat


class DealtWords:
    """What a silo was dealt at a time, taken one matrix after the other.

    Args:
        silo: who it is, for errors.
        bits: of a word.
        tensors: from the coordinator.
        sealed: from a dealer: all of them in a row.
    """

    def __init__(self, silo: str, bits: int, tensors: Iterable[Tensor] = (), sealed: bytes = b"") -> None:
        self._silo, self._bits = silo, bits
        self._tensors, self._sealed = list(tensors), sealed

    def take(self, shape: tuple[int, int]) -> AnyWords:
        """The next matrix.

        Raises:
            ProtocolError: there is none, or of another shape.
        """
        if self._tensors:
            return as_words(self._tensors.pop(0), shape, self._bits, self._silo)
        dtype = WIDTHS[self._bits]
        size = shape[0] * shape[1] * dtype.itemsize
        if len(self._sealed) < size or not size:
            raise self._refusal("all shares at once", "too few")
        words: AnyWords = np.frombuffer(self._sealed[:size], dtype.newbyteorder("<")).astype(dtype)
        self._sealed = self._sealed[size:]
        return words.reshape(shape)

    def check_end(self) -> None:
        """Check that nothing is left.

        Raises:
            ProtocolError: there is.
        """
        if self._tensors or self._sealed:
            raise self._refusal("no more than its shares", "too many")

    def _refusal(self, what: str, value: str) -> ProtocolError:
        return ProtocolError(f"Silo {self._silo!r} is dealt {what}", value, "Start the counting again.")


def content(tensors: Iterable[Tensor]) -> bytes:
    """Matrices as `DealtWords` takes them apart."""
    arrays = (tensor.numpy() for tensor in tensors)
    return b"".join(words.astype(words.dtype.newbyteorder("<"), copy=False).tobytes() for words in arrays)


def seed_context(context: str, nonces: Iterable[bytes]) -> str:
    """What seeds are sealed for: one counting, with these nonces of all silos."""
    return f"{context} seed {hashlib.sha256(b''.join(nonces)).hexdigest()}"


def dealt_context(context: str, number: int) -> str:
    """What words are sealed for: the block of this number, or -1 for the rest."""
    return f"{context} dealt {number}"


class PartyDealer:
    """The dealer's side of one counting.

    Args:
        seat: who it is.
        plan: what is counted.
        context: that envelopes of this counting are bound to.
    """

    def __init__(self, seat: Seat, plan: Plan, context: str) -> None:
        self._seat, self._plan, self._context = seat, plan, context
        self._dealer: Dealer | None = None
        self._next = 0

    def answer(self, ask: Message) -> Message:
        """Answer one message; each comes once and in order.

        Raises:
            ProtocolError: it does not.
        """
        blocks, dealer = len(self._plan.blocks), self._dealer
        match ask:
            case PrepareDealing() if dealer is None and len(ask.nonces) == len(self._plan.factors):
                nonces = dict(zip(self._plan.factors, ask.nonces, strict=True))
                self._dealer = Dealer(self._plan, nonces)
                return SeedsDealt(self._sealed(self._dealer.seeds, seed_context(self._context, ask.nonces)))
            case DealBlock() if dealer is not None and ask.number == self._next < blocks:
                self._next += 1
                dealt = {silo: content(words) for silo, words in dealer.block(ask.number).items()}
                if not self._plan.triples:
                    return BlockDealt(())
                return BlockDealt(self._sealed(dealt, dealt_context(self._context, ask.number)))
            case FinishDealing() if dealer is not None and self._next == blocks:
                self._next += 1
                rest = {silo: content(dealer.rest(silo)) for silo in self._plan.factors}
                return RestDealt(self._sealed(rest, dealt_context(self._context, -1)))
        rule = f"Party {self._seat.name!r} deals seeds, all blocks and the rest, once and in order"
        raise ProtocolError(rule, type(ask).__name__, "Start the counting again.")

    def _sealed(self, contents: Mapping[str, bytes], context: str) -> tuple[Envelope, ...]:
        return tuple(self._seat.seal(silo, context, text) for silo, text in contents.items())
