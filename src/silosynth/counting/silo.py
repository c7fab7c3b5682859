"""A silo's side of counting: see `silosynth.counting.protocol`, which also has the names of matrices.

Shapes: N rows, of the table or of a block; K and J flags of two silos.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from silosynth.core.conversation import Party, State
from silosynth.core.errors import DataError, ProtocolError, SilosynthError
from silosynth.core.messages import Done, Message, from_state, to_state
from silosynth.core.schema import Schema, Table, modelled_columns
from silosynth.core.streams import Keystream, Streams
from silosynth.counting import dealing, distances, joint, opening, plan as planning, protocol
from silosynth.counting.dealing import DealtWords
from silosynth.counting.levels import Codes, crossed
from silosynth.counting.plan import Factor, Plan
from silosynth.counting.products import WIDTHS, AnyWords, level_sums, product, random_words, row_products
from silosynth.privacy import masker
from silosynth.privacy.accounting import affords
from silosynth.privacy.agreement import Agreements, Group
from silosynth.privacy.events import Event, Scope, Target
from silosynth.privacy.masks import add_mask
from silosynth.privacy.sealed import Envelope, Seat, derive, framed

_AGAIN = "Start the counting again."
_MASK = "silosynth counting mask 1"
T = TypeVar("T")


@dataclass
class _Count:
    """What a silo holds of the counting under way; nothing of it is stored.

    Attributes:
        plan: what is counted.
        blocks: the rows that are hidden together, one block after the other; none if this silo hides nothing.
        context: that envelopes of this counting, and of this request, are bound to.
        codes: of the factors of sets across silos: each row's level.
        nonce: of the keys of random matrices.
        masks: the seeds of the masks that this silo shares with each other one.
        seed: the dealer's.
        dealer: what it deals, if this silo does.
        hidden, taken: how many blocks were.
        pad_NK: the random matrix of the block that is hidden and not yet taken.
        pairs, triples: shares so far, of products with each peer's flags, and of sets of three silos.
    """

    plan: Plan
    blocks: tuple[slice, ...]
    context: str
    codes: Mapping[Factor, Codes] = field(repr=False)
    nonce: bytes = field(repr=False)
    masks: dict[str, bytes] = field(default_factory=dict, repr=False)
    seed: bytes = field(default=b"", repr=False)
    dealer: dealing.PartyDealer | None = None
    hidden: int = 0
    taken: int = 0
    pad_NK: AnyWords = field(default_factory=lambda: np.zeros((0, 0), np.uint16), repr=False)
    pairs: dict[str, AnyWords] = field(default_factory=dict, repr=False)
    triples: dict[int, AnyWords] = field(default_factory=dict, repr=False)


class TableCounter(Party):
    """A silo's side of countings, one after the other.

    Args:
        table: its columns; rows in the same order in all silos, if they hold different columns of the same rows.
        schema: of these columns. Identifiers and pseudonyms are never counted.
        seat: who this silo is.
        target: what all tables that this silo opens may cost together; None opens none.
        streams: of the noise of opened tables, whose seed is a secret; None for the operating system's randomness.
        exact: whether it opens tables exactly.
        figures: whether it opens exact figures of tables.
        scope: of the events of tables: "all" where they are all that a model has from rows.
        everyone: who it is among all silos, where ``seat`` is among a group of them, and sums over all groups open.
        told: a hash of what levels are, as far as silos with different rows were told: sums open only if all were told
            the same.

    Attributes:
        events: of all tables that were opened.
        shares: of the tables of the last counting that ended, one for each set, in words of k bits: modulo 2^k the sum
            over all silos is the table. Axes are the set's columns.
    """

    def __init__(
        self, table: Table, schema: Schema, seat: Seat, target: Target | None = None,
        streams: Streams | None = None, exact: bool = False, figures: bool = False, scope: Scope = "readers",
        everyone: Seat | None = None, told: bytes = b"",
    ) -> None:  # fmt: skip
        self.shares: tuple[AnyWords, ...] = ()
        self.events: list[Event] = []
        self._target, self._exact, self._figures, self._scope, self._told = target, exact, figures, scope, told
        self._multiplier = distances.ShareMultiplier(seat)
        self._grouped, self._silos = everyone is not None, len((everyone or seat).roster)
        self._masker = masker.Masker(everyone or seat, max(2, self._silos))  # of sums over all silos
        self._streams = Streams(secrets.randbits(256)) if streams is None else streams
        self._joint = joint.JointNoise(seat, self._streams)
        self._ended: Plan | None = None  # of the counting that left the shares
        self._table, self._seat = modelled_columns(table, schema), seat
        group = self._group = Group(seat)
        rule = "The secret of a counting is fresh, and for nothing else"
        self._agreements = Agreements(
            rule, lambda ask: group if ask.fresh and ask.purpose == protocol.PURPOSE else None, group
        )
        self._used = b""  # of the secret that the last counting was prepared with
        self._now: _Count | None = None

    @property
    def request(self) -> planning.CountRequest | None:
        """What the last counting counted, if it has ended."""
        return None if self._ended is None else self._ended.request

    def answer(self, ask: Message) -> Message:
        """Answer one message of the coordinator. One that is refused ends the counting: nothing half done goes on.

        Raises:
            DataError: a column is not there, or not as declared.
            ProtocolError: the message comes too early or again, has other shapes than the request says, or cannot be
                opened; or this silo holds more rows than the request says.
        """
        if (reply := self._agreements.answer(ask) or self._masker.answer(ask)) is not None:
            return reply
        try:
            return self._step(ask)
        except SilosynthError:
            self._now = None
            raise

    def _step(self, ask: Message) -> Message:
        match ask:
            case protocol.PrepareCount():
                return self._prepare(ask)
            case protocol.DealSeed() | protocol.TakeSeed():
                return self._take_seed(ask)
            case protocol.PrepareDealing() | protocol.DealBlock() | protocol.FinishDealing():
                return self._deal(ask)
            case protocol.HideBlock():
                return self._hide(ask)
            case protocol.TakeBlock():
                return self._take(ask)
            case protocol.FinishCount():
                return self._finish(ask)
            case joint.HideBits() | joint.TakeBits():
                return self._draw_together(ask)
            case opening.OpenTables():
                return self._open(ask)
            case opening.RevealTables():
                return self._reveal(ask)
            case opening.OpenSums():
                return self._sum(ask)
            case distances.PrepareFigures() | distances.DealShares() | distances.HideShares() | distances.TakeShares():
                return self._open_figures(ask)
            case _:
                raise ProtocolError("A silo that counts does not understand this message", type(ask).__name__)

    # Before the first block.

    def _prepare(self, ask: protocol.PrepareCount) -> protocol.CountPrepared:
        request, rows = ask.request, len(self._table)
        self._now, self._ended, self.shares = None, None, ()
        if request.silos != self._seat.roster.parties:
            raise self._refusal("counts with the silos of its roster", request.silos)
        if rows > request.rows:
            rule = f"Silo {self._seat.name!r} holds no more rows than the request says"
            raise ProtocolError(
                rule, f"more than {request.rows}", "Start it with a larger bound: --rows, or rows in [judge]."
            )
        if not self._table.columns and request.dealer != self._seat.name:
            raise DataError(
                "A silo that takes part in a counting has a column that can be counted", "identifiers at most",
                'Leave it out; or declare what a column is, such as schema={"city": "categorical"}.',
            )  # fmt: skip
        secret = self._group.key("one counting")
        if secret == self._used:
            raise self._refusal("counts once with each secret", "the same again")
        plan, name = Plan(request), self._seat.name
        codes = {factor: self._codes(plan, factor) for factor in plan.factors.get(name, ())}
        blocks = plan.blocks if codes else ()
        context = f"counting {secret.hex()} {request.digest()}"
        self._used, self._now = secret, _Count(plan, blocks, context, codes, os.urandom(protocol.SEED))
        tag = b"" if request.horizontal else self._group.key(f"{rows} rows")
        return protocol.CountPrepared(self._now.nonce, tag)

    def _codes(self, plan: Plan, factor: Factor) -> Codes:
        """Each row's level of a factor, (N,)."""
        columns = [plan.request.columns[place] for place in factor]
        own = [column.codes(self._table[column.name]) for column in columns]
        return crossed(own, [column.size for column in columns])

    def _take_seed(self, ask: protocol.DealSeed | protocol.TakeSeed) -> Done:
        """The seed of whoever the request says deals."""
        now = self._at(0)
        if isinstance(ask, protocol.TakeSeed):
            seed = self._from_dealer(now, ask.envelope, dealing.seed_context(now.context, ask.nonces))
        elif now.plan.request.dealer:
            raise self._refusal("is dealt by the party that the request names", "by the coordinator")
        else:
            seed = ask.seed
        if now.seed or not now.blocks or len(seed) != protocol.SEED:
            raise self._refusal(f"is dealt one seed of {protocol.SEED} bytes, if it hides anything", "another")
        now.seed = seed
        later = [silo for silo in now.plan.peers(self._seat.name) if self._before(silo)]
        now.masks = {silo: os.urandom(protocol.SEED) for silo in later}
        return Done()

    def _from_dealer(self, now: _Count, envelope: Envelope, context: str) -> bytes:
        """What the party that deals has sealed."""
        if not now.plan.request.dealer or envelope.sender != now.plan.request.dealer:
            raise self._refusal("is dealt by the party that the request names", "by another")
        return self._seat.open(envelope, context)

    def _deal(self, ask: Message) -> Message:
        """Deal for the counting under way, as the request says."""
        now = self._at(0)
        if now.plan.request.dealer != self._seat.name:
            raise self._refusal("deals for countings whose requests name it", "another")
        if now.dealer is None:
            now.dealer = dealing.PartyDealer(self._seat, now.plan, now.context)
        return now.dealer.answer(ask)

    # Blocks.

    def _hide(self, ask: protocol.HideBlock) -> protocol.HiddenBlock:
        """Seal this block's flags plus random words; with the first block also the seeds of masks."""
        now, name = self._at(ask.number), self._seat.name
        if now.hidden != now.taken or not now.seed or now.taken == len(now.blocks):
            raise self._refusal("hides each block once, after it has taken the one before", ask.number)
        block = now.blocks[ask.number]
        now.pad_NK = self._drawn(now, planning.pad_name(ask.number), _rows(block), now.plan.width(name))
        hidden_NK, one = now.pad_NK.copy(), now.pad_NK.dtype.type(1)
        levels_NF = self._levels(now)
        hidden_NK[np.arange(len(levels_NF))[:, None], levels_NF] += one
        now.hidden += 1
        content = hidden_NK.astype(hidden_NK.dtype.newbyteorder("<"), copy=False).tobytes()
        envelopes = []
        for peer in now.plan.peers(name):
            mask = now.masks[peer] if ask.number == 0 and self._before(peer) else b""
            envelopes.append(self._seat.seal(peer, _block_context(now, ask.number), mask + content))
        return protocol.HiddenBlock(tuple(envelopes))

    def _take(self, ask: protocol.TakeBlock) -> Done:
        """Add a block to this silo's shares."""
        now, name = self._at(ask.number), self._seat.name
        if now.hidden != now.taken + 1:
            raise self._refusal("takes a block after it has hidden its own", ask.number)
        peers, envelopes, sealed = now.plan.peers(name), ask.envelopes, b""
        if now.plan.request.dealer and now.plan.triples:
            if not envelopes:
                raise self._refusal("is dealt shares of each block", "none")
            sealed = self._from_dealer(now, envelopes[-1], dealing.dealt_context(now.context, ask.number))
            envelopes = envelopes[:-1]
        if tuple(envelope.sender for envelope in envelopes) != peers:
            raise self._refusal("takes a block of each silo that shares a set with it", len(envelopes))
        seen = {one.sender: self._opened(now, one) for one in envelopes}
        levels_NF, width = self._levels(now), now.plan.width(name)
        for a, b in now.plan.pairs:
            if name == a:
                _add(now.pairs, b, -product(now.pad_NK, seen[b]))
            elif name == b:
                _add(now.pairs, a, level_sums(seen[a], levels_NF, width))
        dealt = self._dealt(now, ask.dealt, sealed)
        for number in now.plan.triples:
            if name in now.plan.parts[number]:
                _add(now.triples, number, self._triple(now, number, seen, dealt))
        dealt.check_end()
        now.taken += 1
        return Done()

    def _opened(self, now: _Count, envelope: Envelope) -> AnyWords:
        """What another silo hid of this block, (N, J)."""
        sender, dtype = envelope.sender, WIDTHS[now.plan.request.bits]
        content = self._seat.open(envelope, _block_context(now, now.taken))
        if now.taken == 0 and not self._before(sender):
            now.masks[sender], content = content[: protocol.SEED], content[protocol.SEED :]
        shape = _rows(now.blocks[now.taken]), now.plan.width(sender)
        if len(content) != shape[0] * shape[1] * dtype.itemsize:
            raise self._refusal(f"takes {shape} words of silo {sender!r}", f"{len(content)} bytes")
        return _from_bytes(content, dtype).reshape(shape)

    def _levels(self, now: _Count) -> Codes:
        """The flags (N, F) of this block's rows that are set, by place: one for each factor."""
        block, starts = now.blocks[now.taken], [now.plan.place(self._seat.name, factor).start for factor in now.codes]
        return np.stack([codes[block] + start for codes, start in zip(now.codes.values(), starts, strict=True)], axis=1)

    def _triple(self, now: _Count, number: int, seen: Mapping[str, AnyWords], dealt: DealtWords) -> AnyWords:
        """This silo's share of a set of three silos, from one block: all cells, in the silos' order."""
        parts, name, plan = now.plan.parts[number], self._seat.name, now.plan
        sizes = {silo: plan.request.size(factor) for silo, factor in parts.items()}
        known = {silo: seen.get(silo, now.pad_NK)[:, plan.place(silo, factor)] for silo, factor in parts.items()}
        shares = {}  # of products, row by row, of this silo's random matrix and another's
        for earlier, later in protocol.ordered_pairs(parts):
            shape = _rows(now.blocks[now.taken]), sizes[earlier] * sizes[later]
            if name == earlier:
                shares[earlier, later] = self._drawn(now, planning.rows_name(number, later, now.taken), *shape)
            elif name == later:
                shares[earlier, later] = dealt.take(shape)
        a, b, c = parts
        both = row_products(known[a], known[b])
        if name == c:
            own_N = now.codes[parts[c]][now.blocks[now.taken]]
            cells = level_sums(both, own_N[:, None], sizes[c]).reshape(-1)
        else:
            cells = product(shares[a, b] - both, known[c]).reshape(-1)
        for (earlier, later), share in shares.items():
            if later == c:
                other = b if earlier == a else a
                cells = cells + _ordered(product(share, known[other]), (earlier, later, other), sizes)
        return cells

    # After the last block.

    def _finish(self, ask: protocol.FinishCount) -> Done:
        now, name, sealed = self._at(), self._seat.name, b""
        if ask.envelope is not None:
            sealed = self._from_dealer(now, ask.envelope, dealing.dealt_context(now.context, -1))
        dealt = self._dealt(now, ask.dealt, sealed)
        for a, b in now.plan.pairs:
            shape = now.plan.width(a), now.plan.width(b)
            if name == a:
                now.pairs[b] += self._drawn(now, planning.pair_name(b), *shape)
            elif name == b:
                now.pairs[a] += dealt.take(shape)
        for number in now.plan.triples:
            first, second, third = now.plan.parts[number].items()
            shape = now.plan.request.size(first[1]) * now.plan.request.size(second[1]), now.plan.request.size(third[1])
            if name == first[0]:
                now.triples[number] += self._drawn(now, planning.triple_name(number), *shape).reshape(-1)
            elif name == third[0]:
                now.triples[number] += dealt.take(shape).reshape(-1)
        dealt.check_end()
        self.shares = tuple(self._share(now, number) for number in range(len(now.plan.parts)))
        self._now, self._ended = None, now.plan
        return Done()

    def _share(self, now: _Count, number: int) -> AnyWords:
        """This silo's share of a set's table."""
        plan, parts, name = now.plan, now.plan.parts[number], self._seat.name
        if name not in parts and "" not in parts:
            return plan.arranged(number, plan.zeros(1, math.prod(plan.request.shape(number))))
        if len(parts) == 1:
            (factor,) = parts.values()
            counts = np.bincount(self._codes(plan, factor), minlength=plan.request.size(factor))
            return plan.arranged(number, counts.astype(WIDTHS[plan.request.bits]))
        if len(parts) == 3:
            cells = now.triples[number].copy()
        else:
            (a, left), (b, right) = parts.items()
            cells = now.pairs[b if name == a else a][plan.place(a, left), plan.place(b, right)].flatten()
        for peer in parts:
            if peer != name:
                seed = derive(now.masks[peer], framed(_MASK, str(number)))
                add_mask(cells, seed, 1 if self._before(peer) else -1)
        return plan.arranged(number, cells)

    # Opening.

    def _draw_together(self, ask: joint.HideBits | joint.TakeBits) -> Message:
        """Draw noise with other silos, for tables that open next."""
        plan = self._ended
        if plan is None or plan.request.horizontal or plan.request.dealer:
            raise self._refusal("draws noise for tables of a counting that the coordinator dealt for", "another")
        return self._joint.answer(ask, plan, len(self.events))

    def _open(self, ask: opening.OpenTables) -> opening.SharesOpened:
        """Shares with noise, if the target affords the tables with all that were opened before."""
        plan, events, draws = self._charged(ask.sets, ask.noises, summed=False)
        shares = [self._noised(plan, n, noise, rng) for n, noise, rng in zip(ask.sets, ask.noises, draws, strict=True)]
        return opening.SharesOpened(tuple(map(protocol.as_tensor, shares)), events)

    def _charged(
        self, sets: Sequence[int], noises: Sequence[opening.CellNoise], summed: bool
    ) -> tuple[Plan, tuple[Event, ...], list[Keystream]]:
        """What was counted, the events that opening sets is charged by, and what the noise of each is drawn from."""
        if len(sets) != len(noises):
            raise self._refusal("opens each set with a noise of its own", sets)
        plan, target = self._checked(sets, noises, summed), self._target
        if target is None or not target.private:
            raise self._refusal("opens tables with noise if it was given a target for them", "it was given none")
        alone = [summed or len(plan.parts[number]) < 2 for number in sets]
        events = [self._event(plan, *one, target) for one in zip(sets, noises, alone, strict=True)]
        if not affords(target, [*self.events, *events]):
            raise self._refusal("opens no tables beyond its target, with all that it has opened", len(sets))
        streams = self._streams.child("opening", len(self.events))  # no table ever gets another's noise, or part of it
        draws = [streams.child(n, repr(noise)).noise() for n, noise in zip(sets, noises, strict=True)]
        self.events += events
        return plan, tuple(events), draws

    def _reveal(self, ask: opening.RevealTables) -> opening.SharesRevealed:
        """Shares as they are."""
        self._check_exact()
        self._checked(ask.sets, [opening.EXACT] * len(ask.sets), summed=False)
        return opening.SharesRevealed(tuple(protocol.as_tensor(self.shares[n].reshape(1, -1)) for n in ask.sets))

    def _check_exact(self) -> None:
        if not self._exact:
            raise self._refusal("opens tables exactly if it was made to", "it was not")

    def _sum(self, ask: opening.OpenSums) -> opening.ExactSum | opening.NoisedSum:
        """Shares, masked; with one of n - 1 parts of the noise, of n silos, so that n - 1 are enough."""
        if not ask.noises:
            self._check_exact()
            plan = self._checked(ask.sets, [opening.EXACT] * len(ask.sets), summed=True)
            return opening.ExactSum(self._masked(plan, [self._own(n) for n in ask.sets], ask))
        plan, events, draws = self._charged(ask.sets, ask.noises, summed=True)
        tables = opening.with_parts(map(self._own, ask.sets), ask.noises, self._silos - 1, draws)
        return opening.NoisedSum(self._masked(plan, tables, ask), events)

    def _own(self, number: int) -> opening.Counts:
        """This silo's share of a set, cells in a row."""
        return self.shares[number].reshape(-1).astype(np.int64)

    def _masked(self, plan: Plan, tables: Sequence[opening.Counts], ask: opening.OpenSums) -> Tensor:
        request = plan.request  # of groups, each has its own, of the same shapes and bits
        shape = repr((request.bits, [request.shape(number) for number in ask.sets])).encode()
        told = masker.told(ask, self._told, shape)
        return self._masker.mask_words(opening.for_sum(tables, plan.request), ask.number, told).words

    def _open_figures(self, ask: Message) -> Message:
        if not self._figures or self._ended is None:
            raise self._refusal("opens figures of a counting that has ended, if it was made to", "it was not")
        return self._multiplier.answer(ask, self._ended, self.shares)

    def _checked(self, sets: Sequence[int], noises: Sequence[opening.CellNoise | None], summed: bool) -> Plan:
        """What was counted, if these sets of it can open, once each, and this silo is part of them."""
        if (plan := self._ended) is None:
            raise self._refusal("opens tables of a counting that has ended", "there is none")
        if len(set(sets)) < len(sets):
            raise self._refusal("opens each set once", sets)
        if (plan.request.horizontal or self._grouped) is not summed:
            raise self._refusal("opens sums over silos if these hold different rows, else shares", "the other")
        for number, noise in zip(sets, noises, strict=True):
            opening.check_opening(plan, number, noise)
            if not summed and self._seat.name not in plan.parts[number]:
                raise self._refusal("opens its shares of sets that it is part of", number)
        return plan

    def _event(self, plan: Plan, number: int, noise: opening.CellNoise, alone: bool, target: Target) -> Event:
        names = ", ".join(plan.request.columns[place].name for place in plan.request.sets[number])
        event = noise.event(f"a table of {names}", not alone, target.delta)
        return replace(event, scope=self._scope)

    def _noised(self, plan: Plan, number: int, noise: opening.CellNoise, rng: Keystream) -> AnyWords:
        """A share (1, cells) with this silo's noise: of what two have drawn, or half, where another adds the rest."""
        share = self.shares[number].reshape(1, -1)
        if len(plan.parts[number]) < 2:
            return share + noise.whole(share.shape, rng).astype(share.dtype)
        if noise.joint:
            return share + self._joint.share(number, 2 * noise.half_variance)
        return share + noise.part(2, share.shape, rng).astype(share.dtype)

    # State.

    def _state(self, training: bool) -> State:
        """What was opened, and the shares of the last counting. One under way is not stored: it starts again."""
        events = [to_state(event) for event in self.events]
        if not training:
            return {"events": events}
        shares = [protocol.as_tensor(share) for share in self.shares]
        request = None if self.request is None else to_state(self.request)
        return {"events": events, "request": request, "shares": shares, "masker": self._masker.state()}

    def restore(self, state: State) -> None:
        """Continue from a result of `state`."""
        self._now, request = None, state.get("request")
        self._joint = joint.JointNoise(self._seat, self._streams)
        self._ended = None if request is None else Plan(from_state(planning.CountRequest, request))
        if "masker" in state:
            self._masker.restore(state["masker"])
        self.events = [from_state(Event, event) for event in state.get("events", [])]
        self.shares = tuple(share.numpy().view(f"u{share.itemsize}") for share in state.get("shares", []))

    # What all steps use.

    def _at(self, taken: int | None = None) -> _Count:
        """The counting under way, if so many blocks were taken; None for all."""
        now = self._now
        if now is None:
            raise self._refusal("prepares a counting first", "none is under way")
        if now.taken != (len(now.blocks) if taken is None else taken):
            raise self._refusal("takes all blocks, once and in order", f"{now.taken} of {len(now.blocks)} so far")
        return now

    def _drawn(self, now: _Count, what: tuple[str, ...], rows: int, columns: int) -> AnyWords:
        """A random matrix that this silo and the dealer know."""
        key = planning.dealt_key(now.seed, now.nonce, *what)
        return random_words(key, rows, columns, now.plan.request.bits)

    def _dealt(self, now: _Count, tensors: Sequence[Tensor], sealed: bytes) -> DealtWords:
        """What this silo is dealt, by whoever the request says."""
        if tensors and now.plan.request.dealer:
            raise self._refusal("is dealt by the party that the request names", "by the coordinator")
        return DealtWords(self._seat.name, now.plan.request.bits, tensors, sealed)

    def _before(self, silo: str) -> bool:
        """Whether this silo comes before another one in the roster."""
        order = self._seat.roster.parties
        return order.index(self._seat.name) < order.index(silo)

    def _refusal(self, rule: str, value: object) -> ProtocolError:
        return ProtocolError(f"Silo {self._seat.name!r} {rule}", value, _AGAIN)


def _rows(block: slice) -> int:
    return int(block.stop - block.start)


def _from_bytes(content: bytes, dtype: np.dtype[Any]) -> AnyWords:
    words: AnyWords = np.frombuffer(content, dtype.newbyteorder("<")).astype(dtype, copy=False)
    return words


def _block_context(now: _Count, number: int) -> str:
    return f"{now.context} block {number}"


def _add(sums: dict[T, AnyWords], key: T, words: AnyWords) -> None:
    sums[key] = sums[key] + words if key in sums else words


def _ordered(cells: AnyWords, silos: Sequence[str], sizes: Mapping[str, int]) -> AnyWords:
    """Cells whose axes are of ``silos``, in a row, with axes in the order of ``sizes``."""
    table = cells.reshape([sizes[silo] for silo in silos])
    return table.transpose([silos.index(silo) for silo in sizes]).reshape(-1)
