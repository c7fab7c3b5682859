"""A coordinator tells silos, or groups of them, that hold different rows to count by other cells, or wider words.

Then the table of one of them would stand by itself in the sum of all. Masks hang on what silos are told, so that what
opens is random; the same attacks read the table where masks do not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.algorithms.rows_play import DP, RowsPlay, with_small_sketches
from tests.contracts.settings import BOUNDS, frame, grouped

import silosynth as ss
from silosynth.algorithms.marginals import networks, protocol as marginals
from silosynth.algorithms.marginals.silo import RowsSilo
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Done, Message
from silosynth.core.streams import Streams
from silosynth.counting import opening
from silosynth.encoders import summed
from silosynth.privacy.aggregation import secure_words
from silosynth.privacy.masker import Masker
from silosynth.privacy.sealed import seats
from silosynth.simulation.federation import Federation

SALT = bytes(32)
Change = Callable[[str, Message], Message]


class Read(Exception):
    """The coordinator has what it wanted."""


def silos_with_rows() -> Federation:
    return ss.simulate(frame(), rows={"bank": range(40), "club": range(40, 65), "gym": range(65, 90)})


FEDERATIONS = {"rows": silos_with_rows, "groups": lambda: grouped(None, frame())}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    with_small_sketches(monkeypatch)
    return monkeypatch


def unbound(patched: pytest.MonkeyPatch) -> None:
    """As if masks, and silos, did not mind what others were told."""
    real = Masker.mask_words
    patched.setattr(Masker, "mask_words", lambda masker, words, number, told: real(masker, words, number, b""))
    patched.setattr(RowsSilo, "_checked_cells", lambda silo, ask: b"")


def members(federation: Federation, silo: str) -> list[int]:
    """How many rows of the silo's group are no members, and how many are."""
    group = next((group for group in federation.groups if silo in group), (silo,))
    column = next(federation.tables[s]["member"] for s in group if "member" in federation.tables[s].names)
    return np.bincount(column.values.numpy(), minlength=2).tolist()


# Cells.


def read_members(federation: Federation, change: Change, patched: pytest.MonkeyPatch) -> list[int]:
    """What stands in the levels of members that are meant for one silo's rows, in the first sum of tables."""
    made = networks.make_attribute

    def with_a_level_for_others(encoder: Any, *more: Any) -> networks.Attribute:
        found = made(encoder, *more)
        if encoder.name != "member":
            return found
        return networks.Attribute(found.level_F + 1, torch.arange(found.size + 1), found.share_F)

    patched.setattr(networks, "make_attribute", with_a_level_for_others)

    def or_read(name: str, ask: Message) -> Message:
        if play.opened:
            raise Read
        return change(name, ask)

    play = RowsPlay(federation, change=or_read)
    with pytest.raises(Read):
        play.drive(patched)
    ((request, found),) = play.opened
    place = [column.name for column in request.columns].index("groups of member")
    number = next(number for number in found if place in request.sets[number])
    axis = request.sets[number].index(place)
    return found[number].sum(axis=1 - axis)[1:].tolist()


def other_cells(chosen: tuple[str, ...], committed: bool) -> Change:
    """Tell all silos but the chosen ones that members and others are in the level that nobody is in.

    ``committed``: groups are told of commitments that fit what they are told.
    """

    def change(name: str, ask: Message) -> Message:
        if not isinstance(ask, marginals.TakeAttributes):
            return ask
        names, attributes = [one.name for one in ask.encoders], list(ask.attributes)
        if "member" in names and name not in chosen:
            old = attributes[names.index("member")]
            attributes[names.index("member")] = replace(old, level_F=torch.zeros_like(old.level_F))
        ask = replace(ask, attributes=tuple(attributes))
        if not committed or not isinstance(ask, marginals.TakeOwnAttributes):
            return ask
        place = list(frame().columns).index("member")
        commitments, salts = list(ask.commitments), list(ask.salts)
        commitments[place] = b"chosen" if name in chosen else b"others"
        if "member" in names:
            mine = names.index("member")
            salts[mine] = SALT
            commitments[place] = marginals.committed(SALT, ask.encoders[mine], attributes[mine])
        return replace(ask, commitments=tuple(commitments), salts=tuple(salts))

    return change


@pytest.mark.parametrize("held", FEDERATIONS)
def test_rows_of_one_are_laid_into_cells_of_their_own_where_masks_do_not_mind(
    held: str, small: pytest.MonkeyPatch
) -> None:
    """The attack works: so it is what binding prevents that the next tests see."""
    unbound(small)
    federation = FEDERATIONS[held]()
    chosen = next((group for group in federation.groups if "club" in group), ("club",))
    assert read_members(federation, other_cells(chosen, False), small) == members(federation, "club")


def test_a_silo_that_was_told_of_other_cells_opens_random_words(small: pytest.MonkeyPatch) -> None:
    federation = silos_with_rows()
    found = read_members(federation, other_cells(("club",), False), small)
    assert found != members(federation, "club") and max(map(abs, found)) > 2**40


def test_groups_that_were_told_of_other_cells_open_nothing(small: pytest.MonkeyPatch) -> None:
    federation = grouped(None, frame())
    chosen = next(group for group in federation.groups if "club" in group)
    with pytest.raises(ProtocolError, match="committed to, alike in all groups"):
        read_members(federation, other_cells(chosen, False), small)


def test_groups_that_were_told_of_other_commitments_open_random_words(small: pytest.MonkeyPatch) -> None:
    federation = grouped(None, frame())
    chosen = next(group for group in federation.groups if "club" in group)
    found = read_members(federation, other_cells(chosen, True), small)
    assert found != members(federation, "club") and max(map(abs, found)) > 90


def test_commitments_tell_nothing_to_who_lacks_the_salt(small: pytest.MonkeyPatch) -> None:
    """Encoders of few levels could be guessed: each column of each training has a salt, which its holders get."""
    lists, salts = [], []
    for _ in range(2):
        noted = dict[str, Any]()

        def change(name: str, ask: Message, noted: Any = noted) -> Message:
            if len(noted) == 6:
                raise Read
            if isinstance(ask, marginals.TakeOwnAttributes):
                noted[name] = ask
            return ask

        with pytest.raises(Read):
            RowsPlay(grouped(None, frame()), change=change).drive(small)
        lists.append({one.commitments for one in noted.values()})
        salts.append({salt for one in noted.values() for salt in one.salts})
        assert all(len(one.salts) == len(one.encoders) < 6 for name, one in noted.items() if name != "mill")
    (first,), (second,) = lists  # one list for all silos
    assert len(set(first) | set(second)) == 12 and {len(salt) for salt in salts[0] | salts[1]} == {32}
    assert len(salts[0]) == len(salts[1]) == 6 and not salts[0] & salts[1]


# Ranges, buckets, words.


def other_cells_first(ask: Any) -> Message:
    """Another range, bucket or column of what is summed before tables."""
    match ask:
        case marginals.SumBins():
            return replace(ask, grids=(replace(ask.grids[0], high=2 * ask.grids[0].high), *ask.grids[1:]))
        case marginals.SumNames():
            first = ask.places[0].clone()
            first[-1] += 1 if first[-1] < summed.BUCKETS - 1 else -1
            return replace(ask, places=(first, *ask.places[1:]))
        case _:
            columns = [replace(one, decimals=3) if one.name == "spent" else one for one in ask.schema.columns]
            return replace(ask, schema=replace(ask.schema, columns=tuple(columns)))


@pytest.mark.parametrize("kind", [marginals.SumCells, marginals.SumNames, marginals.SumBins])
def test_what_is_summed_before_tables_is_the_same_for_all(kind: Any, small: pytest.MonkeyPatch) -> None:
    """Else masks are others: of the silo that was told something else nothing is read, nor of the rest."""
    bound, real = dict[int, dict[str, bytes]](), Masker.mask_words

    def mask_words(masker: Masker, words: Any, number: int, told: bytes) -> Any:
        bound.setdefault(number, {})[masker._seat.name] = told
        return real(masker, words, number, told)

    def change(name: str, ask: Message) -> Message:
        if len(bound) > number + 1:
            raise Read
        return other_cells_first(ask) if isinstance(ask, kind) and name == "club" else ask

    number = [marginals.SumCells, marginals.SumNames, marginals.SumBins].index(kind)
    small.setattr(Masker, "mask_words", mask_words)
    with pytest.raises((Read, ProtocolError, ValueError, OverflowError)):  # what follows from random words
        RowsPlay(silos_with_rows(), change=change).drive(small)
    assert all(len(set(bound[before].values())) == 1 and all(bound[before].values()) for before in range(number))
    assert bound[number]["bank"] == bound[number]["gym"] != bound[number]["club"]


def test_other_columns_in_the_first_sum_change_masks_of_all_later_ones(small: pytest.MonkeyPatch) -> None:
    """A coordinator needs no first sum to go on: what a silo takes columns for in later ones is from its ask."""
    bound, real = dict[int, dict[str, bytes]](), Masker.mask_words

    def mask_words(masker: Masker, words: Any, number: int, told: bytes) -> Any:
        bound.setdefault(number, {})[masker._seat.name] = told
        return real(masker, words, number, b"")

    def change(name: str, ask: Message) -> Message:
        return other_cells_first(ask) if isinstance(ask, marginals.SumCells) and name == "club" else ask

    small.setattr(Masker, "mask_words", mask_words)
    RowsPlay(silos_with_rows(), change=change).drive(small)
    assert len(bound) > 3
    assert all(of["bank"] == of["gym"] != of["club"] for of in bound.values())


def test_masks_cancel_between_silos_that_were_told_the_same() -> None:
    seated = seats(["a", "b"], Streams(3))
    for same in (True, False):
        maskers = {name: Masker(seat, 2) for name, seat in seated.items()}

        talk, got, words = secure_words(dict.fromkeys("ab", Done()), 7, 4, 2), None, None
        while words is None:
            try:
                step = talk.send(got)
            except StopIteration as end:
                words, _ = end.value
                break
            got = {}
            for name, ask in step.asks.items():
                hears, own = b"cells" if same or name == "a" else b"others", np.arange(4, dtype=np.uint64)
                got[name] = maskers[name].answer(ask) or maskers[name].mask_words(own, 7, hears)
        assert (words.tolist() == [0, 2, 4, 6]) is same


WIDE = 70_656  # rows, whose words have 32 bits


def test_no_group_counts_by_wider_words_than_others(small: pytest.MonkeyPatch) -> None:
    """Its table would stand in bits that those of others do not reach, and under the noise of its own silos alone."""
    read, requested, sums = list[np.ndarray](), marginals._request, opening.secure_words
    federation = grouped(BOUNDS, frame(), ("north", "south"))

    def request(roster: Any, config: Any, state: Any, group: int = 0) -> Any:
        return requested(roster, config, state | {"most": WIDE} if group else state, group)

    def secure_words(*given: Any) -> Any:
        found = yield from sums(*given)
        read.append(found[0])
        raise Read

    def change(name: str, ask: Message) -> Message:
        wide = isinstance(ask, marginals.TakeAttributes) and name in federation.groups[1]
        return replace(ask, most=WIDE) if wide else ask

    def low_bits(patched: pytest.MonkeyPatch) -> np.ndarray:
        """Of all tables, what lies below the upper 16 bits."""
        patched.setattr(marginals, "_request", request)
        patched.setattr(opening, "secure_words", secure_words)
        with pytest.raises(Read):
            RowsPlay(federation, {"dp": DP}, change=change).drive(patched)
        return (read.pop() >> np.uint64(32)).astype(np.uint16).view(np.int16).astype(int)

    rows = len(federation.tables[federation.groups[1][0]])
    with small.context() as patched:
        unbound(patched)
        found = low_bits(patched)
        assert np.abs(found).max() < 1000 and abs(found.sum() / 15 - rows) < 40  # the group's tables, in little noise
    with small.context() as patched:
        found = low_bits(patched)
        assert np.abs(found).max() > 10_000
