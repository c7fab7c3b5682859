from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.optimize import brentq
from scipy.stats import binom, norm
from tests.oracles.discrete_gaussian import delta as discrete_delta, law as discrete_law
from tests.oracles.sampled_gaussian import gaussian_delta, gaussian_epsilon, renyi_epsilon

from silosynth.core.conversation import Conversation, Roster
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import Done
from silosynth.core.streams import Streams
from silosynth.privacy import accounting
from silosynth.privacy.accounting import (
    Account,
    Charge,
    Charged,
    EncodersLearnt,
    affords_adaptive,
    agree_and_charge,
    cost,
    joint_steps,
    mean_rows,
    noise_multiplier,
    rounded_up,
    spent,
    table_variance,
)
from silosynth.privacy.agreement import Group
from silosynth.privacy.events import (
    DISCRETE_GAUSSIAN,
    DISCRETE_LAPLACE,
    SAMPLED_GAUSSIAN,
    THRESHOLDED,
    Event,
    Target,
    gaussian_steps,
    gaussian_table,
    unsound,
)
from silosynth.privacy.mechanisms import LEAST_VARIANCE
from silosynth.privacy.sealed import seats

DELTA = 1e-6
epsilons = st.floats(0.01, 3)


def event(epsilon: float, delta: float = 0.0, what: str = "counts", mechanism: str = DISCRETE_LAPLACE) -> Event:
    return Event(mechanism, epsilon, delta, what)


def exact(epsilon: float, times: int, delta: float) -> float:
    """The slow and right twin: the loss of each release is epsilon or -epsilon, so their sum is binomial."""
    ups = np.arange(times + 1)
    chance, loss = binom.pmf(ups, times, 1 / (1 + math.exp(-epsilon))), (2 * ups - times) * epsilon

    def excess(at: float) -> float:
        return float(chance @ -np.expm1(np.minimum(0, at - loss))) - delta

    return float(brentq(excess, 0, times * epsilon, xtol=1e-12)) if excess(0) > 0 else 0.0


class TestTables:
    @pytest.mark.parametrize("noise", [4.0, 8.0, 20.0])
    def test_discrete_noise_costs_what_its_definition_says(self, noise: float) -> None:
        epsilon = spent([gaussian_table("a table", noise)], DELTA).epsilon
        assert discrete_delta(noise**2, epsilon) <= DELTA < 1.05 * discrete_delta(noise**2, 0.999 * epsilon)

    def test_continuous_noise_would_state_too_little(self) -> None:
        """Of few tables, where their losses lie far apart."""
        delta = discrete_delta(25.0, 1.0)
        assert gaussian_delta(5.0, 1.0) < 0.97 * delta
        assert spent([gaussian_table("a table", 5.0)], delta).epsilon >= 1.0
        assert spent([gaussian_steps("a step", 5.0, 1.0, 1)], delta).epsilon < 1.0

    def test_variances_are_the_least_that_keep_the_target(self) -> None:
        for target, tables in ((Target(0.5, DELTA), 56), (Target(0.5, DELTA), 1)):
            half = table_variance(target, tables)
            costs = [cost([gaussian_table("", math.sqrt(2 * of))] * tables, target) for of in (half, 0.97 * half)]
            assert costs[0] <= target.epsilon < costs[1]
        assert table_variance(Target(1000.0, 0.4), 1) == 8

    @pytest.mark.parametrize("epsilon", [0.5, 1.0])
    def test_56_tables_take_much_less_than_laplace_noise(self, epsilon: float) -> None:
        """Also than discrete Laplace noise whose losses are composed, which is at most what a target affords."""
        target = Target(epsilon, DELTA)
        each = brentq(lambda one: cost([event(one)] * 56, target) - epsilon, epsilon / 56, epsilon / 2, rtol=1e-3)
        gaussian = math.sqrt(2 * table_variance(target, 56))
        assert gaussian < 0.4 * math.sqrt(2) * 56 / epsilon
        assert gaussian < 0.75 * math.sqrt(2) / each


class TestAdaptive:
    """Noise that hangs on what earlier noise has released."""

    @pytest.mark.parametrize("variance", [LEAST_VARIANCE, 11, 16, 17, 24, 81, 1000, 20_000])
    def test_no_threshold_tells_neighbours_apart_better_than_with_gaussian_noise(self, variance: int) -> None:
        """Tests call X ≥ k the row's, of discrete noise X or X + 1; mixtures lie on chords of a convex curve."""
        k = np.arange(1, int(9 * math.sqrt(variance)))
        tail = np.cumsum(discrete_law(variance, np.arange(1, int(14 * math.sqrt(variance))))[::-1])[::-1][: len(k)]
        z = norm.isf(tail)  # of P(X ≥ k); by symmetry that of P(X ≥ 1 - k) is its negative
        mu = np.diff([-z[0], *z])  # of Gaussian noise with these rates: from P(X + 1 ≥ k) to P(X ≥ k)
        assert 1 < mu.max() * math.sqrt(variance) <= 1 + 1 / (23 * variance)

    @pytest.mark.parametrize("seed", range(6))
    def test_the_filter_is_no_less_than_what_an_adaptive_pair_costs(self, seed: int) -> None:
        """The second variance by the first outcome, at random; the cost by its definition, outcome by outcome."""
        rng = np.random.default_rng(seed)
        first, others = int(rng.integers(16, 60)), (16, int(rng.integers(17, 80)))
        k = np.arange(-160, 161)
        laws = [[discrete_law(v, k - row) for v in (first, *others)] for row in (0, 1)]
        which_K = rng.random(len(k)) < rng.random()
        one, other = (own[:, None] * np.where(which_K[:, None], a, b) for own, a, b in laws)
        events = [gaussian_table("first", math.sqrt(first)), gaussian_table("second", 4.0)]
        for epsilon in (0.2, 0.5, 1.0):
            deltas = [float(np.maximum(0, a - math.exp(epsilon) * b).sum()) for a, b in ((one, other), (other, one))]
            assert not affords_adaptive(Target(epsilon, max(deltas) * (1 - 1e-9)), events)

    def test_a_single_release_costs_next_to_what_gaussian_noise_does(self) -> None:
        events = [gaussian_table("", 20.0)] * 9
        epsilon = gaussian_epsilon(20.0, 9, DELTA)
        assert affords_adaptive(Target(epsilon * 1.001, DELTA), events)
        assert not affords_adaptive(Target(epsilon * 0.9999, DELTA), events)
        assert not affords_adaptive(Target(epsilon * 1.001, DELTA), [*events, replace(events[0], delta=DELTA / 2)])

    def test_it_is_for_discrete_gaussian_noise(self) -> None:
        with pytest.raises(ConfigError, match="discrete Gaussian"):
            affords_adaptive(Target(1.0, DELTA), [event(0.1)])


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

    def test_beside_gaussian_steps_a_count_of_next_to_no_noise_is_added(self) -> None:
        steps = gaussian_steps("", 2.0, 0.1, 40)
        found = spent([steps, event(150.0)], DELTA).epsilon
        assert found == pytest.approx(spent([steps], DELTA).epsilon + 150)

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


class TestSampledGaussian:
    """Steps of DP-SGD against formulas, another library, and enumeration."""

    @pytest.mark.parametrize(("noise", "times", "delta"), [(1.0, 1, 1e-5), (4.0, 30, 1e-6), (20.0, 1000, 1e-5)])
    def test_without_sampling_it_agrees_with_the_closed_form(self, noise: float, times: int, delta: float) -> None:
        right = gaussian_epsilon(noise, times, delta)
        assert right <= spent([gaussian_steps("", noise, 1.0, times)], delta).epsilon <= 1.001 * right

    @pytest.mark.parametrize(
        ("noise", "rate", "times", "delta", "low", "high"),
        # prv-accountant 0.2.0 (Gopi, Lee and Wutschitz 2021): PoissonSubsampledGaussianMechanism, eps_error 0.01
        [
            (1.0, 0.01, 1000, 1e-5, 1.8181, 1.8384),
            (0.8, 0.004, 20000, 1e-5, 5.1105, 5.1312),
            (2.0, 0.05, 3000, 1e-6, 7.6784, 7.6992),
            (5.0, 0.2, 500, 1e-5, 3.9290, 3.9496),
        ],
    )
    def test_with_sampling_it_agrees_with_another_library_and_stays_below_renyi_bounds(
        self, noise: float, rate: float, times: int, delta: float, low: float, high: float
    ) -> None:
        found = spent([gaussian_steps("", noise, rate, times)], delta).epsilon
        assert low <= found <= high
        assert found <= renyi_epsilon(noise, rate, times, delta)

    def test_counts_and_gaussian_steps_are_composed_together(self) -> None:
        def excess(at: float) -> float:  # three counts, whose losses are ±0.4 each, beside one Gaussian release
            ups = np.arange(4)
            chance = binom.pmf(ups, 3, 1 / (1 + math.exp(-0.4)))
            parts = [gaussian_delta(2.0, at - (2 * up - 3) * 0.4) for up in ups]
            return float(chance @ parts) - DELTA

        right = float(brentq(excess, 0, 20))
        found = spent([event(0.4)] * 3 + [gaussian_steps("", 2.0, 1.0, 1)], DELTA).epsilon
        assert right <= found <= 1.002 * right

    def test_times_are_as_many_events(self) -> None:
        once = gaussian_steps("", 2.0, 0.1, 1)
        many = spent([gaussian_steps("", 2.0, 0.1, 40)], DELTA).epsilon
        assert many == pytest.approx(spent([once] * 40, DELTA).epsilon, rel=1e-6)

    def test_without_a_delta_or_with_next_to_no_noise_there_is_no_bound(self) -> None:
        assert spent([gaussian_steps("", 2.0, 0.1, 1)], 0.0).epsilon == math.inf
        assert spent([gaussian_steps("", 0.1, 0.1, 1)], DELTA).epsilon == math.inf
        assert spent([gaussian_steps("", 1.0, 1.0, 10**6)], DELTA).epsilon == math.inf
        assert spent([gaussian_steps("", 2.0, 0.1, 1)], DELTA).pure_epsilon == math.inf

    def test_a_count_that_decides_on_the_noise_of_others_is_added(self) -> None:
        steps = gaussian_steps("", 2.0, 0.1, 40)
        rows = Event(DISCRETE_LAPLACE, 0.3, 0.0, "rows", added=True)
        alone = spent([steps], DELTA).epsilon
        assert spent([steps, rows], DELTA).epsilon == pytest.approx(alone + 0.3)
        assert alone < spent([steps, event(0.3)], DELTA).epsilon < alone + 0.3
        assert spent([rows], DELTA).epsilon == spent([rows], 0.0).epsilon == 0.3

    def test_an_unsound_mechanism_costs_infinity(self) -> None:
        assert spent([event(0.1), unsound("")], DELTA).epsilon == math.inf

    def test_numbers_are_checked(self) -> None:
        for noise, rate, times in ((0.0, 0.1, 1), (math.inf, 0.1, 1), (1.0, 0.0, 1), (1.0, 1.1, 1), (1.0, 0.1, 0)):
            with pytest.raises(ConfigError):
                gaussian_steps("", noise, rate, times)


class TestNoiseMultiplier:
    @pytest.mark.parametrize(
        ("epsilon", "rate", "steps", "counts"),
        [
            (1.0, 0.01, 500, 0),
            (2.0, 0.1, 1000, 30),
            pytest.param(10.0, 0.1, 1000, 30, marks=pytest.mark.slow),
            (4.0, 1.0, 1, 0),
            (0.5, 0.002, 10_000, 0),
            pytest.param(20.0, 0.05, 300, 3, marks=pytest.mark.slow),
        ],
    )
    def test_it_costs_the_target_almost_and_never_more(
        self, epsilon: float, rate: float, steps: int, counts: int
    ) -> None:
        before, target = [event(0.03, 1e-9, mechanism=THRESHOLDED)] * counts, Target(epsilon=epsilon, delta=1e-5)
        noise = noise_multiplier(target, before, rate, steps)
        budget = spent([*before, gaussian_steps("", noise, rate, steps)], 1e-5 - counts * 1e-9)
        assert 0.99 * epsilon <= budget.epsilon <= epsilon
        assert budget.delta == pytest.approx(1e-5)

    def test_of_one_release_it_is_the_closed_form(self) -> None:
        noise = noise_multiplier(Target(epsilon=2, delta=1e-5), [], 1.0, 1)
        right = float(brentq(lambda s: gaussian_delta(s, 2.0) - 1e-5, 0.5, 50))
        assert right <= noise <= 1.005 * right

    def test_more_noise_than_some_least_is_always_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(accounting, "_GRID", 1e-2)  # a coarse one is enough, and fast
        assert noise_multiplier(Target(epsilon=5000, delta=1e-5), [], 0.01, 10) == 0.3

    def test_events_that_cost_the_target_alone_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="leave a part of the target"):
            noise_multiplier(Target(epsilon=1, delta=1e-5), [event(0.6)] * 2, 0.1, 10)
        with pytest.raises(ConfigError, match="leave a part of the target"):
            noise_multiplier(Target(epsilon=1, delta=1e-5), [event(0.1, 1e-5, mechanism=THRESHOLDED)], 0.1, 10)

    def test_a_search_is_made_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ask = Target(epsilon=3, delta=1e-5), [event(0.2)], 0.37, 7
        first = noise_multiplier(*ask)
        monkeypatch.setattr(accounting, "Losses", None)
        assert noise_multiplier(*ask) == first


@pytest.mark.live
def test_the_package_is_imported_without_the_accountant() -> None:
    code = (
        "import sys, silosynth.simulation.model, silosynth.privacy.statement; sys.exit('dp_accounting' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@given(st.floats(1e-12, 1e9))
def test_costs_are_shown_with_four_digits_and_never_as_less(number: float) -> None:
    shown = float(rounded_up(number))
    assert number * (1 - 1e-11) <= shown <= number * 1.0011


@pytest.mark.parametrize(("number", "text"), [(0.0, "0"), (1.0, "1"), (0.1 + 0.2, "0.3"), (1.23411, "1.235")])
def test_costs_in_text(number: float, text: str) -> None:
    assert rounded_up(number) == text


# How a training is charged.

TARGET = Target(epsilon=2.0, delta=1e-5)
ENCODERS = Event(DISCRETE_LAPLACE, 0.05, 0.0, "counts", scope="all", target=1e-5)
LEARNT = (ENCODERS, replace(ENCODERS, what="other counts"))
ROSTER = Roster(("a", "b"))


def steps(learnt: tuple[Event, ...], times: int = 20) -> tuple[Event, ...]:
    return joint_steps("steps", TARGET, 0.1, times, learnt)


def charging() -> tuple[Conversation[Charge], Charge]:
    """The conversation, once silos have agreed on their secret, and what they are charged."""
    silos = {name: Group(seat) for name, seat in seats(ROSTER, Streams(7)).items()}
    learnt = [EncodersLearnt(rows, f"nonce{rows}", (event,)) for rows, event in zip((99, 101), LEARNT, strict=True)]
    conversation = agree_and_charge(ROSTER, "steps", learnt, lambda rows, events: steps(events))
    step = next(conversation)
    while not isinstance(step.asks["a"], Charge):
        step = conversation.send({name: silos[name].answer(ask) for name, ask in step.asks.items()})
    assert all(silo.purpose == "steps nonce99 nonce101" for silo in silos.values())
    return conversation, step.asks["a"]


def account(*learnt: Event) -> Account:
    opened = Account()
    opened.begin(TARGET, learnt or LEARNT[:1])
    return opened


def test_what_the_coordinator_solves_for_every_silo_accepts_once():
    conversation, ask = charging()
    assert (ask.rows, ask.learnt) == (100, LEARNT)
    assert cost([*LEARNT, *ask.events], TARGET) == pytest.approx(TARGET.epsilon, rel=0.01)
    silo = account()
    replies = {name: (silo if name == "a" else account(LEARNT[1])).charge(ask, 2, b"tag") for name in ROSTER}
    with pytest.raises(StopIteration) as end:
        conversation.send(replies)
    assert end.value.value == ask == silo.charged
    with pytest.raises(ProtocolError, match="at most the target, once"):
        silo.charge(ask, 2, b"tag")


@pytest.mark.parametrize(
    "change",
    [
        lambda ask: replace(ask, learnt=LEARNT[1:]),  # omits what this silo has charged
        lambda ask: replace(ask, events=(replace(ask.events[0], noise=0.8 * ask.events[0].noise),)),
        lambda ask: replace(ask, events=(replace(ask.events[0], times=2 * ask.events[0].times),)),
        lambda ask: replace(ask, events=(replace(ask.events[0], joint=False),)),  # then each silo's adds up
    ],
)
def test_a_charge_above_the_target_is_refused_and_nothing_is_charged(change):
    ask, silo = Charge(100, LEARNT, steps(LEARNT)), account()
    with pytest.raises(ProtocolError, match=r"epsilon .* of 2"):
        silo.charge(change(ask), 2, b"tag")
    with pytest.raises(ProtocolError, match="not charged"):
        silo.take_step()
    assert silo.charge(ask, 2, b"tag").events == ask.events


def test_nothing_is_charged_before_encoders_were_learnt():
    with pytest.raises(ProtocolError, match="charged before"):
        Account().charge(Charge(100, (), steps(LEARNT)), 2, b"tag")


def test_steps_end_where_the_charge_ends_also_after_a_restart():
    silo = account()
    silo.charge(Charge(100, LEARNT, steps(LEARNT, times=3)), 2, b"tag")
    assert [silo.take_step(), silo.take_step()] == [0, 1]
    again = Account()
    again.restore(silo.state())
    assert again.take_step() == 2
    with pytest.raises(ProtocolError, match="no more private steps"):
        again.take_step()


@pytest.mark.parametrize(
    "change", [{"what": "other steps"}, {"joint": False}, {"mechanism": DISCRETE_LAPLACE, "epsilon": 0.1}]
)
def test_a_charge_for_joint_steps_is_for_them_alone(change):
    ask = Charge(100, LEARNT, steps(LEARNT))
    for wrong in ((replace(ask.events[0], **change),), (), ask.events * 2):
        with pytest.raises(ProtocolError, match="one event for all steps"):
            account().charge_joint(replace(ask, events=wrong), 2, b"tag", "steps")
    assert account().charge_joint(ask, 2, b"tag", "steps").events == ask.events


def test_events_of_later_messages_are_not_listed_with_the_charge():
    ask = Charge(100, LEARNT, (*steps(LEARNT),))
    assert account().charge(ask, 2, b"tag", later=1).events == ()


@pytest.mark.parametrize("second", [Charged(b"other", ()), Done()])
def test_silos_with_other_rows_or_another_protocol_end_the_training(second):
    conversation, _ = charging()
    with pytest.raises(ProtocolError, match=r"same rows in the same order|replies with Charged"):
        conversation.send({"a": Charged(b"tag", ()), "b": second})


def test_the_mean_of_noised_counts_is_a_row_count():
    assert (mean_rows([10, 11, 13]), mean_rows([-3, 1])) == (11, 2)


@pytest.mark.parametrize("kind", [DISCRETE_LAPLACE, SAMPLED_GAUSSIAN])
def test_releases_without_end_are_refused(kind):
    """The library raises the size of a grid to the power of the times: no machine has the memory."""
    with pytest.raises(ConfigError, match="from 1 to 4,194,304 times"):
        Event(kind, 0.5, 0.0, "steps", noise=1.0, times=2**40)


def test_many_events_cost_as_much_as_can_be_said_without_a_huge_grid():
    lists = [Event(DISCRETE_LAPLACE, 0.001, 0.0, f"table {k}", times=2**22) for k in range(2)]
    assert spent(lists, 1e-5).epsilon == pytest.approx(2**23 / 1000)
    steps = [Event(SAMPLED_GAUSSIAN, 0.0, 0.0, f"steps {k}", noise=40.0 + k, times=2**22) for k in range(9)]
    assert spent(steps, 1e-5).epsilon == math.inf
    beside = Event(SAMPLED_GAUSSIAN, 0.0, 0.0, "steps", noise=40.0)
    assert 2**23 / 1000 < spent([*lists, beside], 1e-5).epsilon < 2**23 / 1000 + 1


@pytest.mark.slow
def test_discrete_noise_of_any_width_has_a_cost():
    assert spent([Event(DISCRETE_GAUSSIAN, 0.0, 0.0, "a table", noise=1e300)], 1e-5).epsilon < 1e-3
