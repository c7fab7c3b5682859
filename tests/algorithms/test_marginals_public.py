"""Models that are public: silos hand over, once, what noised counts have made, and rows are drawn without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.algorithms.released import talk
from tests.algorithms.test_marginals import BOUNDS, CPU, DP, SILOS, SMALL, Play, people

import silosynth as ss
from silosynth.algorithms.marginals import protocol as marginals
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import Release
from silosynth.core.streams import Streams

PUBLIC = {"synthesis": "public"}


def fitted(**options: Any) -> ss.Model:
    federation = ss.simulate(people(), silos=SILOS, schema=BOUNDS)
    return ss.fit("mst", federation, "fast", 7, options=SMALL | {"dp": DP} | options, progress=False)


def test_rows_are_those_that_silos_draw_for_the_same_seed(tmp_path: Path) -> None:
    held, public = fitted(), fitted(**PUBLIC)
    public.save(tmp_path / "m.silosynth")
    alone = ss.load(tmp_path / "m.silosynth")
    assert not any("encoders" in state for state in (held.coordinator, public.coordinator))
    assert set(public.parts["tax"]) == {"encoders", "attributes"} < set(held.parts["tax"])
    given = {"job": ["nurse", "smith"], "age": (30, 50)}
    for wanted in (None, given):
        expected = held.sample(80, seed=3, given=wanted)
        pd.testing.assert_frame_equal(public.sample(80, seed=3, given=wanted), expected)
        pd.testing.assert_frame_equal(alone.sample(80, seed=3, given=wanted), expected)
    gaps = people(40).assign(pay=lambda table: table["pay"].where(table.index % 3 > 0))
    pd.testing.assert_frame_equal(alone.impute(gaps, 2, seed=1).table, held.impute(gaps, 2, seed=1).table)
    parts, expected_parts = alone.sample_parts(20, seed=4), held.sample_parts(20, seed=4)
    pd.testing.assert_frame_equal(parts["tax"], expected_parts["tax"])


def test_decoders_cost_nothing_more_and_are_told_once() -> None:
    plays = [Play(dp=DP), Play(dp=DP, **PUBLIC)]
    for play in plays:
        play.drive()
    assert plays[0].events() == plays[1].events()
    told = plays[1].replies(marginals.DecodersHandedOver)
    assert len(told) == 2 and {one.release for one in told} == {Release.DERIVED}
    assert not plays[0].replies(marginals.DecodersHandedOver)
    asked = [name for name, ask, _ in plays[1].said if isinstance(ask, marginals.HandOverDecoders)]
    assert asked == list(SILOS)
    with pytest.raises(ProtocolError, match="in their turn"):
        plays[1].silos["tax"].answer(marginals.HandOverDecoders())


def test_the_guarantee_holds_against_whoever_has_the_model() -> None:
    federation = ss.simulate(people(), silos=SILOS, schema=BOUNDS)
    model = ss.fit("mst", federation, "fast", None, options=SMALL | {"dp": DP} | PUBLIC, progress=False)
    privacy = model.describe()["privacy"]
    assert privacy["release"]["epsilon"] <= 1.0 * (1 + 1e-9) and "as well, as long as" in privacy["rest"]
    assert Release.DERIVED.value not in privacy["unnoised"]
    assert Release.DERIVED.value in {record["privacy"] for record in model.ledger}


@pytest.mark.parametrize("options", [{"dp": DP}, {"dp": DP, "synthesis": "partitioned"}, {}])
def test_a_silo_hands_over_nothing_that_its_options_do_not_say(options: dict[str, Any]) -> None:
    play = Play(**options)
    talk(marginals.coordinate(play.roster, play.config, Streams(6), CPU), play.silos)
    with pytest.raises(ProtocolError, match="keeps what it draws values from"):
        play.silos["tax"].answer(marginals.HandOverDecoders())


def test_decoders_come_after_the_tables() -> None:
    play = Play(dp=DP, **PUBLIC)
    with pytest.raises(ProtocolError, match="in their turn"):
        play.silos["tax"].answer(marginals.HandOverDecoders())


def test_exact_decoders_do_not_leave_and_those_of_different_rows_are_the_coordinators() -> None:
    with pytest.raises(ConfigError, match=r"only where it is made of noised counts.*Give dp\.epsilon"):
        fitted(dp={}, **PUBLIC)
    rows = {"north": range(0, 100), "south": range(100, 200)}
    federation = ss.simulate(people(), rows=rows, schema=BOUNDS)
    with pytest.raises(ConfigError, match=r"the coordinator has the model.*Set synthesis = 'shared'"):
        ss.fit("mst", federation, "fast", options={"dp": DP} | PUBLIC, progress=False)


def test_rules_are_kept_without_silos(tmp_path: Path) -> None:
    ages = {"nurse": 30, "smith": 40, "judge": 50}
    rules = [
        {"kind": "combination", "columns": ["job", "age"], "allowed": [[job, str(age)] for job, age in ages.items()]},
        {"kind": "inequality", "low": "age", "high": "pay", "on_break": "ignore"},
    ]
    frame = people().assign(age=lambda table: table["job"].map(ages).astype(np.int64))
    federation, made = ss.simulate(frame, silos=SILOS, schema=BOUNDS), []
    for synthesis in ("shared", "public"):
        options = SMALL | {"dp": DP, "synthesis": synthesis}
        model = ss.fit("mst", federation, "fast", 7, options=options, rules=rules, progress=False)
        model.save(tmp_path / f"{synthesis}.silosynth")
        made.append(ss.load(tmp_path / f"{synthesis}.silosynth").sample(60, seed=2))
    pd.testing.assert_frame_equal(made[0], made[1])
    assert (made[1]["age"] == made[1]["job"].map(ages)).all() and (made[1]["age"] <= made[1]["pay"]).all()
