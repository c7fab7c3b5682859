from __future__ import annotations

import pytest

from silosynth.core.errors import ConfigError
from silosynth.core.messages import Done
from silosynth.core.roster import COORDINATOR, Roster


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
