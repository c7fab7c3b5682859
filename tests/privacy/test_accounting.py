from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import binom

from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import Release
from silosynth.privacy.accounting import rounded_up, spent, statement
from silosynth.privacy.events import DISCRETE_LAPLACE, THRESHOLDED, Event

DELTA = 1e-6
epsilons = st.floats(0.01, 3)


def event(epsilon: float, delta: float = 0.0, what: str = "counts", mechanism: str = DISCRETE_LAPLACE) -> Event:
    return Event(mechanism, epsilon, delta, what)


def exact(epsilon: float, times: int, delta: float) -> float:
    """The slow and right twin: of each release, the loss is epsilon or -epsilon, so their sum is binomial."""
    ups = np.arange(times + 1)
    chance, loss = binom.pmf(ups, times, 1 / (1 + math.exp(-epsilon))), (2 * ups - times) * epsilon

    def excess(at: float) -> float:
        return float(chance @ -np.expm1(np.minimum(0, at - loss))) - delta

    return float(brentq(excess, 0, times * epsilon, xtol=1e-12)) if excess(0) > 0 else 0.0


class TestSpent:
    @given(epsilons, st.integers(1, 50))
    def test_without_delta_it_is_the_sum(self, epsilon: float, times: int) -> None:
        budget = spent([event(epsilon)] * times, 0.0)
        assert budget.epsilon == budget.pure_epsilon == pytest.approx(times * epsilon)
        assert budget.delta == budget.own_delta == 0

    @pytest.mark.parametrize(
        ("epsilon", "times"), [(1.0, 1), (0.1, 30), (1 / 3, 10), (0.01, 1000), (1.0, 20), (5.0, 3), (0.45, 40)]
    )
    def test_it_agrees_with_the_closed_form_of_equal_releases(self, epsilon: float, times: int) -> None:
        right = exact(epsilon, times, DELTA)
        assert right <= spent([event(epsilon)] * times, DELTA).epsilon <= right + 1e-3

    def test_it_agrees_with_enumeration_of_unequal_releases(self) -> None:
        parts = [0.5, 0.31, 0.2, 0.77, 0.123, 0.4, 0.611, 0.05, 0.25, 0.9]
        signs = 2 * ((np.arange(2 ** len(parts))[:, None] >> np.arange(len(parts))) & 1) - 1
        loss, chance = signs @ parts, np.prod(1 / (1 + np.exp(-signs * parts)), axis=1)
        right = brentq(lambda at: float(chance @ -np.expm1(np.minimum(0, at - loss))) - 1e-3, 0, sum(parts))
        assert right <= spent([event(part) for part in parts], 1e-3).epsilon <= right + 1e-3

    @settings(max_examples=25)
    @given(st.lists(epsilons, min_size=1, max_size=6), epsilons, st.sampled_from([1e-9, 1e-6, 1e-2]))
    def test_one_more_release_costs_more_and_never_more_than_the_sum(
        self, held: list[float], more: float, delta: float
    ) -> None:
        before = spent([event(each) for each in held], delta)
        after = spent([event(each) for each in (*held, more)], delta)
        assert before.epsilon <= after.epsilon + 1e-6
        assert after.epsilon <= after.pure_epsilon
        assert spent([event(each) for each in reversed(held)], delta).epsilon == pytest.approx(before.epsilon, abs=1e-5)

    @settings(max_examples=25)
    @given(st.lists(epsilons, min_size=1, max_size=6))
    def test_a_larger_delta_costs_no_more(self, held: list[float]) -> None:
        costs = [spent([event(each) for each in held], delta).epsilon for delta in (0.0, 1e-12, 1e-9, 1e-6, 1e-3)]
        assert costs == sorted(costs, reverse=True)

    def test_deltas_of_thresholds_add_up_beside_the_noise(self) -> None:
        names = [event(0.1, 1e-7, f"levels {i}", THRESHOLDED) for i in range(30)]
        budget = spent(names, DELTA)
        assert budget.epsilon == spent([event(0.1)] * 30, DELTA).epsilon
        assert budget.delta == pytest.approx(DELTA + 30e-7)
        assert (budget.pure_epsilon, budget.own_delta) == (pytest.approx(3.0), pytest.approx(30e-7))

    def test_it_counts_each_event(self) -> None:
        jobs, pay = event(1.0, what="jobs"), event(0.5, what="pay")
        assert spent([jobs, pay, jobs], 0.0).counts == {jobs: 2, pay: 1}

    def test_nothing_costs_nothing(self) -> None:
        assert spent([], DELTA).epsilon == 0
        assert spent([], 0.0).delta == 0

    @pytest.mark.parametrize("epsilon", [1e-9, 99.0, 150.0, 1e6])
    def test_extreme_epsilons(self, epsilon: float) -> None:
        assert exact(epsilon, 3, DELTA) <= spent([event(epsilon)] * 3, DELTA).epsilon <= 3 * epsilon

    def test_a_mechanism_that_is_not_known_is_refused(self) -> None:
        with pytest.raises(ProtocolError, match=r"known mechanisms.*Gaussian"):
            spent([event(1.0), event(1.0, mechanism="Gaussian")], DELTA)

    @pytest.mark.parametrize("delta", [-0.1, 1.0, math.nan])
    def test_the_delta_is_checked(self, delta: float) -> None:
        with pytest.raises(ConfigError, match="delta"):
            spent([event(1.0)], delta)


def test_the_package_is_imported_without_the_accountant() -> None:
    code = "import sys, silosynth.model, silosynth.privacy.accounting; sys.exit('dp_accounting' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def record(sender: str, privacy: Release, *events: Event) -> dict[str, Any]:
    plain = {"step": 1, "from": sender, "to": "coordinator", "type": "Counts", "bytes": 9, "privacy": privacy.value}
    return plain | {"events": [asdict(each) for each in events]} if events else plain


class TestStatement:
    def test_without_events_there_is_no_guarantee(self) -> None:
        stated = statement([record("bank", Release.NOTHING), record("bank", Release.ROWS)])
        assert stated["summary"] == "none: no differential privacy was applied, no epsilon can be stated"
        assert (stated["silos"], stated["covers"], stated["rest"]) == ({}, "", "")
        assert stated["unnoised"] == [Release.ROWS.value]

    def test_budgets_are_per_silo_and_say_what_they_do_not_cover(self) -> None:
        jobs, pay = event(1.0, 1e-7, "levels of 'job'", THRESHOLDED), event(0.5, what="a histogram of 'pay'")
        ledger = [
            record("bank", Release.NOISED, jobs, pay),
            record("clinic", Release.NOISED, pay),
            record("clinic", Release.WEIGHTS),
            record("bank", Release.WEIGHTS),
            record("bank", Release.NOTHING),
        ]
        stated = statement(ledger)
        bank, clinic = stated["silos"]["bank"], stated["silos"]["clinic"]
        assert bank["epsilon"] == pytest.approx(1.5, abs=1e-4)
        assert bank["delta"] == pytest.approx(1.1e-6)
        assert (bank["pure_epsilon"], bank["own_delta"]) == (1.5, 1e-7)
        assert clinic["events"] == [asdict(pay) | {"count": 1}]
        assert stated["unnoised"] == [Release.WEIGHTS.value]
        assert stated["summary"].startswith("for 3 noised statistics only: epsilon at most 1.5 at delta 1.1e-06")
        assert stated["summary"].endswith("No epsilon holds for the model as a whole")
        assert "The rest of the training is un-noised (un-noised weights" in stated["rest"]
        assert "everybody who reads the messages" in stated["covers"]
        assert "rows in several silos, spends the sum" in stated["covers"]
        json.dumps(stated, allow_nan=False)

    def test_what_the_coordinator_repeats_does_not_count(self) -> None:
        pay = event(0.5)
        own = [record("bank", Release.NOISED, pay)]
        assert statement([*own, record("coordinator", Release.NOISED, pay)]) == statement(own)

    def test_even_where_all_is_noised_no_epsilon_is_stated_for_the_model(self) -> None:
        stated = statement([record("bank", Release.NOISED, event(0.5)), record("bank", Release.NOTHING)])
        assert stated["rest"].endswith("no epsilon is stated for the model as a whole.")


@given(st.floats(1e-12, 1e9))
def test_costs_are_shown_with_four_digits_and_never_as_less(number: float) -> None:
    shown = float(rounded_up(number))
    assert number * (1 - 1e-11) <= shown <= number * 1.0011


@pytest.mark.parametrize(("number", "text"), [(0.0, "0"), (1.0, "1"), (0.1 + 0.2, "0.3"), (1.23411, "1.235")])
def test_costs_in_text(number: float, text: str) -> None:
    assert rounded_up(number) == text
