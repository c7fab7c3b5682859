"""Which federations an algorithm takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from tests import toy_rows

import silosynth as ss
from silosynth.catalog import ALGORITHMS, algorithm, fitting, names
from silosynth.core.errors import ConfigError

FRAME = pd.DataFrame({"a": range(4), "b": list("xyxy")})
ONE = ss.simulate(FRAME)
COLUMNS = ss.simulate(FRAME, silos={"one": ["a"], "two": ["b"]})
ROWS = ss.simulate(FRAME, rows={"one": [0, 1], "two": [2, 3]})
ONE_OF_ROWS = ss.simulate(FRAME, rows={"one": slice(None)})


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch) -> None:
    toy_rows.register(monkeypatch)


@pytest.mark.parametrize(
    ("name", "federation"),
    [
        ("silofuse", ONE),
        ("silofuse", COLUMNS),
        ("silofuse", ROWS.central()),
        ("ctgan", ONE),
        ("ctgan", COLUMNS.central()),
        ("ctgan", ROWS.central()),
        (toy_rows.NAME, ROWS),
        (toy_rows.NAME, ONE_OF_ROWS),
    ],
)
def test_federations_that_fit_are_taken(name: str, federation: ss.Federation) -> None:
    algorithm(name).check(federation.roster, federation.horizontal)


@pytest.mark.parametrize(
    ("name", "federation", "says"),
    [
        ("silofuse", ROWS, rf"different columns of the same rows \(got: rows in one, two\).*silos=.*{toy_rows.NAME}"),
        ("silofuse", ONE_OF_ROWS, r"different columns of the same rows"),
        (toy_rows.NAME, COLUMNS, r"rows of the same columns.*rows=\{…\}.*: silofuse, silofuse-joint, e2edistr, vtgan"),
        (toy_rows.NAME, ONE, r"got: columns in silo1\).*simulate\(frame, rows="),
        ("ctgan", COLUMNS, r"federation\.central\(\)"),
        ("ctgan", ROWS, r"federation\.central\(\)"),
        ("ctgan", ONE_OF_ROWS, r"federation\.central\(\)"),
    ],
)
def test_federations_that_do_not_fit_are_refused(name: str, federation: ss.Federation, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        algorithm(name).check(federation.roster, federation.horizontal)
    with pytest.raises(ConfigError, match=says):
        ss.fit(name, federation, preset="fast", progress=False)


def test_fitting_names_every_algorithm_of_several_silos_once() -> None:
    several = {name for name in names("generator") if not ALGORITHMS[name].central}
    assert {*fitting(True).split(", "), *fitting(False).split(", ")} == several


@pytest.mark.parametrize("name", names("generator"))
def test_what_may_become_of_lost_silos_is_said_and_anything_else_is_refused(name: str) -> None:
    """The first policy is the default; GDTS alone averages what is there."""
    entry = algorithm(name)
    assert entry.policies == (("omit", "wait", "fail") if name == "gdts" else ("fail", "wait"))
    for policy in (None, *entry.policies):
        entry.under(policy)
    supported = " or ".join(f'"{policy}"' for policy in entry.policies)
    for policy in ("cache", "zeros", "nonsense"):
        with pytest.raises(ConfigError, match=rf"got: {policy}\)\. Choose {supported}"):
            entry.under(policy)


def test_whole_numbers_are_floats_where_the_option_is_one() -> None:
    config = algorithm("vflgan").configure("fast", {"betas": [0, 0.9], "rate": 1, "critic": [4, 5], "batch": 8})
    assert (repr(config.betas), repr(config.rate), config.critic, repr(config.batch)) == (
        "(0.0, 0.9)",
        "1.0",
        (4, 5),
        "8",
    )


def test_shares_are_below_one() -> None:
    for name in ("latent.held_out", "coder.held_out", "latent.dropout"):
        with pytest.raises(ConfigError, match="must be at least 0 and below 1"):
            algorithm("silofuse").configure("fast", {name: 1.0})


def test_an_algorithm_of_the_other_kind_is_refused_with_the_function_to_use() -> None:
    assert names("representation") == ["tabvfl"]
    assert {*names("generator"), *names("counting"), "tabvfl"} == {*names()}
    with pytest.raises(ConfigError, match=r"takes a generator; the algorithm is a counting \(got: judge\).*command"):
        ss.fit("judge", COLUMNS, progress=False)
    with pytest.raises(ConfigError, match=r"first argument, by name.*\(got: dict\)"):
        algorithm({})
    with pytest.raises(ConfigError, match=r"takes a generator.*\(got: tabvfl\)\. Use silosynth\.represent"):
        ss.fit("tabvfl", COLUMNS, progress=False)
    with pytest.raises(ConfigError, match=r"takes a representation.*\(got: silofuse\)\. Use silosynth\.fit"):
        ss.represent("silofuse", COLUMNS, "a", progress=False)
    assert algorithm("tabvfl", kind=None) is algorithm("tabvfl", "representation")


@pytest.mark.parametrize("name", ["silofuse", "latentdiff", "vtgan", "vflgan", "vflgan-base", "vertigan", "wgan-gp"])
def test_with_a_target_of_privacy_presets_have_sizes_of_their_own(name: str) -> None:
    entry, dp = algorithm(name), {"epsilon": 10, "delta": 1e-5}
    for preset, private in entry.private.items():
        plain, sized = entry.configure(preset), entry.configure(preset, {"dp": dp})
        assert plain == entry.presets[preset]
        assert sized == replace(private, dp=sized.dp) and sized.dp.epsilon == 10 and sized.dp.delta == 1e-5
        assert entry.configure(preset, {"dp.epsilon": 10, "dp.delta": 1e-5}) == sized
        assert entry.configure(preset, {"dp": sized.dp}) == sized
        assert replace(sized, dp=plain.dp) != plain
    unlike = {"silofuse": "dp_training", "latentdiff": "dp_training"}.get(name, "batch")
    assert getattr(entry.configure("fast", {"dp": dp}), unlike) != getattr(entry.presets["paper"], unlike)


def test_options_change_private_sizes_too() -> None:
    config = algorithm("vflgan").configure("fast", {"dp": {"epsilon": 10, "delta": 1e-5, "clip": 2.0}, "batch": 32})
    assert (config.batch, config.dp.clip, config.dp.encoders, config.critic) == (32, 2.0, 0.25, (32, 16))
    unsound = algorithm("vflgan").configure("fast", {"dp": {"mechanism": "paper-unsound", "noise": 5.0}})
    assert unsound.critic == algorithm("vflgan").presets["fast"].critic


@pytest.mark.parametrize("name", names())
def test_published_settings_model_every_column(name: str) -> None:
    entry = algorithm(name, None)
    if "paper" not in entry.presets:
        return
    config = entry.presets["paper"]
    config = getattr(config, "coder", getattr(config, "model", config))
    assert config.encoders.dependencies == "ignore"


def test_silos_with_other_rows_keep_what_they_find_to_themselves() -> None:
    with pytest.raises(ConfigError, match="do not tell each other"):
        algorithm("gdts").configure("fast", {"diffusion.encoders.dependencies": "keep"})


@pytest.mark.parametrize("name", names("generator"))
@pytest.mark.parametrize("preset", ["fast", "balanced", "best"])
def test_dependencies_within_a_silo_are_kept_by_all_but_those_whose_silos_hold_rows(name: str, preset: str) -> None:
    entry = algorithm(name)
    if preset not in entry.presets:
        return
    config = entry.configure(preset)
    config = getattr(config, "coder", getattr(config, "model", config))
    assert config.encoders.dependencies == ("ignore" if entry.horizontal else "keep")


def test_where_dependencies_are_not_kept_their_owner_is_told() -> None:
    town = np.arange(200) % 7
    frame = pd.DataFrame({"town": town, "land": np.where(town < 3, "n", "s"), "free": np.arange(200) % 2})
    federation = ss.simulate(frame)
    table, schema = federation.tables["silo1"], federation.schema

    def told(name: str, **options: object) -> list[str]:
        entry = algorithm(name)
        return entry.cautions(entry.configure("fast", options), schema, table)

    assert told("silofuse") == []
    (rows,) = told("gdts")
    assert "town → land" in rows and "with silos that hold different rows" in rows and "under [[rules]]" in rows
    (private,) = told("silofuse", dp={"epsilon": 5.0, "delta": 1e-5})
    assert "town → land" in private and "under differential privacy" in private
