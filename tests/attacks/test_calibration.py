"""Attacks find a generator that copies its rows, and find nothing in one that has never seen them."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
import pytest
from tests.attacks.makers import Blind, Copier, Remembering, table

from silosynth.attacks import membership, questions, rivals, study
from silosynth.attacks.findings import Finding
from silosynth.attacks.generators import Catalogued
from silosynth.attacks.membership import Trainings
from silosynth.attacks.study import Subject, audit
from silosynth.catalog import names
from silosynth.core.errors import ConfigError
from silosynth.core.streams import Streams
from silosynth.evaluation.coding import code_tables
from silosynth.evaluation.scores import EXACT

TRAIN, OTHERS, REFERENCE = (table(rows, seed) for rows, seed in ((50, 1), (50, 2), (1000, 3)))
MORE, MORE_OTHERS = table(300, 4), table(300, 5)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if "LOGAN" in name else ()) for name in rivals.ATTACKS]
)
def test_every_rival_finds_the_copier_and_not_the_blind(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "ATTACKS", {name: rivals.ATTACKS[name]})
    (caught,) = rivals.attack(TRAIN, OTHERS, Copier()(TRAIN, 1), REFERENCE)
    (nothing,) = rivals.attack(MORE, MORE_OTHERS, Blind()(MORE, 1), REFERENCE)
    assert caught.score.value >= 0.95
    assert nothing.score.low is not None and nothing.score.high is not None
    assert nothing.score.low <= 0.5 <= nothing.score.high
    assert caught.score.floor == 0.5 and caught.roc[0] == (0.0, 0.0) and caught.roc[-1] == (1.0, 1.0)


@pytest.mark.slow
def test_without_reference_rows_those_that_need_them_are_said_to_be_left_out() -> None:
    found = audit(Subject(TRAIN, synthetic=TRAIN, others=OTHERS), ["rivals"])
    assert {s.name for s in found.skipped} == {"LOGAN-D1", "GAN-leaks-cal", "DOMIAS"}
    assert {f.score.label for f in found.findings} == {"LOGAN-0", "MC", "GAN-leaks"}


@cache
def _copied() -> list[Finding]:
    return list(audit(Subject(TRAIN, Copier(4000)), ["assd"], Trainings(20)).findings)


@pytest.mark.slow
def test_assd_finds_the_copier() -> None:
    found = _copied()
    assert {f.score.name.split("_")[1] for f in found} == {"naive", "correlation", "nearness"}
    assert all(f.score.value >= 0.95 for f in found)


@pytest.mark.parametrize("blind", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_asif_finds_silos_whose_features_remember_rows_and_not_others(blind: bool) -> None:
    fit = Remembering("vflgan", silos={"a": ["age", "region"], "b": [f"x{i}" for i in range(1, 10)]}, blind=blind)
    scores = [f.score for f in audit(Subject(TRAIN, fit), ["asif"], Trainings(16)).findings]
    found = [score for score in scores if score.name.startswith("asif")]
    assert {score.name.split("_")[1] for score in found} == {"naive", "correlation"} and len(found) == 4
    if blind:
        assert all(score.low <= 0.5 <= score.high for score in found)
    else:
        assert all(score.value >= 0.95 for score in found)


@pytest.mark.slow
def test_nearness_finds_a_record_that_moments_do_not_show() -> None:
    found = audit(Subject(TRAIN, Copier(400)), ["assd"], Trainings(20))
    assert found.finding("assd_nearness_outlying_record").score.value >= 0.95
    assert found.finding("assd_nearness_isolated_record").score.value >= 0.95
    assert found.finding("assd_naive_isolated_record").score.value < 0.9


@pytest.mark.slow
def test_assd_finds_nothing_in_the_blind() -> None:
    for found in audit(Subject(TRAIN, Blind(300)), ["assd"], Trainings(20, seed=2)).findings:
        assert found.score.low is not None and found.score.high is not None and found.spread is not None
        assert found.score.low <= 0.5 <= found.score.high
        assert found.score.n == 40


def test_an_adversary_of_separate_features_is_sure_and_one_of_equal_ones_guesses() -> None:
    draw = np.random.default_rng(0)
    apart = membership.guess(draw.normal(0, 1, (40, 3)), draw.normal(9, 1, (40, 3)), Streams(0))
    alike = membership.guess(draw.normal(0, 1, (200, 3)), draw.normal(0, 1, (200, 3)), Streams(0))
    assert apart.area == 1 and apart.spread == 0
    assert abs(alike.area - 0.5) < 2 * alike.error


@cache
def _risks() -> tuple[dict[str, Finding], dict[str, Finding]]:
    """By name, of one who copies and of one who is blind."""
    copied, blind = questions.ask(TRAIN, OTHERS, TRAIN), questions.ask(MORE, MORE_OTHERS, Blind()(MORE, 1))
    return {found.score.name: found for found in copied}, {found.score.name: found for found in blind}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("singling_out_univariate", marks=pytest.mark.slow),
        pytest.param("singling_out_multivariate", marks=pytest.mark.slow),
        pytest.param("linkability", marks=pytest.mark.slow),
        "inference_age",
        "inference_region",
    ],
)
def test_giomi_s_attackers_find_the_copier_and_not_the_blind(name: str) -> None:
    caught, nothing = (risks[name] for risks in _risks())
    assert caught.score.low is not None and caught.score.low > 10
    assert nothing.score.low is not None and nothing.score.low <= 0.5
    assert caught.rates["attack"][0] > caught.rates["control"][0]
    assert set(caught.rates) == {"attack", "control", "guess"}


def test_what_an_attack_lacks_is_said_before_anything_is_trained() -> None:
    alone, with_others = Subject(TRAIN, synthetic=TRAIN), Subject(TRAIN, others=OTHERS)
    for subject, name in ((alone, "assd"), (alone, "rivals"), (with_others, "questions"), (alone, "asssd")):
        with pytest.raises(ConfigError):
            audit(subject, [name])
    with pytest.raises(ConfigError, match="intermediate features"):
        audit(Subject(TRAIN, Copier()), ["asif"], Trainings(10))


@pytest.mark.parametrize("name", [name for name in names("generator") if name not in ("vflgan", "vflgan-base")])
def test_asif_is_refused_before_training_where_silos_send_no_features(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Catalogued, "_trained", lambda *_: pytest.fail("trained"))
    fit = Catalogued(name, silos={"a": ["age", "region"], "b": [f"x{i}" for i in range(1, 10)]})
    for act in (
        lambda: audit(Subject(TRAIN, fit), ["asif"], Trainings(10)),
        lambda: membership.play(TRAIN, fit, {"record": 3}, Trainings(10), intermediate=True),
        lambda: fit.with_features([(TRAIN, 1)], TRAIN),
    ):
        with pytest.raises(ConfigError, match=f"intermediate features.*{name}.*asif"):
            act()


def test_a_perfect_attack_on_few_trainings_has_a_wide_interval() -> None:
    (found,) = (finding for finding in _copied() if finding.score.name == "assd_nearness_isolated_record")
    assert (found.score.value, found.score.high) == (1, 1)
    assert found.score.low == pytest.approx(0.025 ** (1 / 6))  # 6 of 20 on either side are guessed
    assert found.score.method == EXACT


def test_study_chooses_the_record_that_sticks_out() -> None:
    odd = pd.concat(
        [TRAIN, TRAIN.iloc[[0]].assign(age=500.0, **{f"x{i}": 99.0 for i in range(1, 10)})], ignore_index=True
    )
    chosen = study.vulnerable(code_tables({"training": odd})["training"])
    assert chosen["outlying record"] == 50
