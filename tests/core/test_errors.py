from __future__ import annotations

from collections.abc import Iterator

import pytest

from silosynth.core import errors
from silosynth.core.errors import PartyLostError, ProtocolError, SilosynthError, StorageError, nearest


def tree(root: type[SilosynthError] = SilosynthError) -> Iterator[type[SilosynthError]]:
    yield root
    for kind in root.__subclasses__():
        if kind.__module__ == errors.__name__:
            yield from tree(kind)


@pytest.mark.parametrize("kind", list(tree()), ids=lambda kind: kind.__name__)
def test_every_error_states_rule_value_and_remedy(kind: type[SilosynthError]) -> None:
    error = kind("Silos have names", 3, "Name it.")
    assert (error.rule, error.value, error.remedy) == ("Silos have names", "3", "Name it.")
    assert str(error) == "Silos have names (got: 3). Name it."
    assert str(kind("Silos have names")) == "Silos have names"
    assert str(kind("Silos have names", None)) == "Silos have names (got: None)"
    assert kind.__doc__
    assert kind.__name__.endswith("Error")


def test_exit_codes_tell_the_branches_apart() -> None:
    codes = {kind.__name__: kind.exit_code for kind in tree()}
    assert codes == {
        "SilosynthError": 1,
        "DataError": 2,
        "SchemaError": 2,
        "ConfigError": 2,
        "MessageError": 3,
        "ProtocolError": 3,
        "PartyLostError": 3,
        "PolicyError": 3,
        "StoppedError": 3,
        "VersionError": 3,
        "StorageError": 4,
        "CheckpointError": 4,
        "UnavailableError": 5,
        "ReproductionError": 6,
    }


def test_a_lost_party_is_a_broken_protocol() -> None:
    assert issubclass(PartyLostError, ProtocolError)


def test_long_values_are_cut() -> None:
    error = StorageError("Short", "x" * 1000)
    assert error.value is not None
    assert len(error.value) == 200
    assert error.value.endswith("…")


@pytest.mark.parametrize(
    ("word", "says"),
    [("silofus", "Did you mean 'silofuse'?"), ("xyz", "Known: gdts, silofuse."), ("", "Known: gdts, silofuse.")],
)
def test_the_nearest_known_word_is_named(word: str, says: str) -> None:
    assert nearest(word, ["silofuse", "gdts"]) == says


def test_nothing_known_is_told() -> None:
    assert nearest("x", []) == "Known: none."
