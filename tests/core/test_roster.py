from __future__ import annotations

import pytest

from silosynth.core.conversation import COORDINATOR, Roster
from silosynth.core.errors import ConfigError
from silosynth.core.messages import Done


def test_order_is_kept() -> None:
    roster = Roster(("clinic", "bank"))
    assert list(roster) == ["clinic", "bank"]
    assert len(roster) == 2
    assert list(roster.everyone(Done()).asks) == ["clinic", "bank"]
    assert list(roster.each({"bank": Done(), "clinic": Done()}).asks) == ["clinic", "bank"]
    with pytest.raises(KeyError):
        roster.each({"bank": Done()})


@pytest.mark.parametrize("names", [(), ("a", "a"), (COORDINATOR,), ("a b",), ("",), ("../x",), ("x" * 64,), (".a",)])
def test_names_that_would_confuse_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError):
        Roster(names)


def test_keys_are_pinned_in_the_order_of_the_parties() -> None:
    roster = Roster(("clinic", "bank"), (bytes(32), b"k" * 32))
    assert (roster.key("bank"), roster.key("clinic")) == (b"k" * 32, bytes(32))
    assert Roster(("clinic", "bank")).keys == ()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ((bytes(32),), "every silo's key is pinned or none"),
        ((bytes(32), b"k" * 32, b"l" * 32), "every silo's key is pinned or none"),
        ((bytes(32), b"k" * 31), r"is 32 bytes \(got: bank\)"),
        ((bytes(32), b""), r"is 32 bytes \(got: bank\)"),
        (("k" * 32, bytes(32)), r"is 32 bytes \(got: clinic\)"),
        ((bytes(32), bytes(32)), "a key of its own"),
    ],
)
def test_keys_that_are_not_one_for_each_are_refused(keys: tuple[bytes, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Roster(("clinic", "bank"), keys)


def test_a_key_that_is_not_pinned_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="pin each other's keys"):
        Roster(("clinic", "bank")).key("bank")
    with pytest.raises(ConfigError, match=r"no such silo.*Did you mean 'bank'"):
        Roster(("clinic", "bank"), (bytes(32), b"k" * 32)).key("bang")
