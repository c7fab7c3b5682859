"""A coordinator that sends a silo the latents of its own training rows back, to read the rows off what it decodes."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
import torch
from tests.attacked.patients import TINY, Attacked, attacked, found

from silosynth.algorithms.silofuse.options import CoderConfig
from silosynth.core.errors import ProtocolError
from silosynth.runtime.wire import pack, unpack

HONEST = CoderConfig().sigma  # the noise that honest draws have at least
REFUSED = "far too many lie near training rows"


@pytest.fixture(scope="module")
def trained() -> Attacked:
    return attacked()


@pytest.fixture
def victim(trained: Attacked) -> Attacked:
    """Nothing was asked yet."""
    trained.silo.judge_by(trained.reference)
    return trained


def through(z_NL: torch.Tensor, noise: float, rows: int = 600, seed: int = 0) -> torch.Tensor:
    """Latents of some rows, through noise."""
    chosen = torch.randint(len(z_NL), (rows,), generator=torch.Generator().manual_seed(seed))
    return through_all(z_NL[chosen], noise, seed)


def through_all(z_NL: torch.Tensor, noise: float, seed: int) -> torch.Tensor:
    """Latents of all rows, through noise."""
    return z_NL + noise * torch.randn(z_NL.shape, generator=torch.Generator().manual_seed(seed))


def median(draws: list[pd.DataFrame]) -> pd.DataFrame:
    """Each row's median income, and commonest diagnosis."""
    income = pd.concat([drawn["income"] for drawn in draws], axis=1).median(axis=1)
    diagnosis = pd.concat([drawn["diagnosis"].astype(str) for drawn in draws], axis=1).mode(axis=1)[0]
    return pd.DataFrame({"income": income, "diagnosis": diagnosis})


def test_latents_of_training_rows_are_refused(victim: Attacked) -> None:
    with pytest.raises(ProtocolError, match=REFUSED):
        victim.decoded(victim.z_NL)


@pytest.mark.parametrize("share", [0.001, 0.07, 0.33, 0.53])
def test_with_little_noise_too(share: float, victim: Attacked) -> None:
    with pytest.raises(ProtocolError, match=REFUSED):
        victim.decoded(through(victim.z_NL, share * HONEST))


def test_as_noisy_as_honest_draws_they_are_decoded(victim: Attacked) -> None:
    assert len(victim.decoded(through(victim.z_NL, HONEST))) == 600


def test_a_few_among_honest_ones_are_refused(victim: Attacked) -> None:
    with pytest.raises(ProtocolError, match=REFUSED):
        victim.decoded(torch.cat([victim.z_NL[:4], through(victim.z_NL, HONEST)]))


def test_what_is_only_sent_to_match_marginals_does_not_hide_them(victim: Attacked) -> None:
    with pytest.raises(ProtocolError, match=REFUSED):
        victim.decoded(torch.cat([victim.z_NL[:4], through(victim.z_NL, HONEST, 5000)]), rows=4)


def test_one_at_a_time_they_are_refused_after_the_first(victim: Attacked) -> None:
    assert len(victim.decoded(victim.z_NL[:1])) == 1
    with pytest.raises(ProtocolError, match=REFUSED):
        victim.decoded(victim.z_NL[1:2])


def test_what_is_counted_is_kept(victim: Attacked) -> None:
    victim.decoded(torch.cat([victim.z_NL[:1], through(victim.z_NL, HONEST)]))
    victim.silo.judge_by(unpack(pack(victim.silo.reference())))
    assert victim.silo.nearness is not None and victim.silo.nearness.state()["near"][0] == 1
    with pytest.raises(ProtocolError, match=REFUSED):
        victim.decoded(victim.z_NL)


def test_a_part_of_a_model_has_no_latents_of_rows(victim: Attacked) -> None:
    with pytest.raises(ProtocolError):
        victim.decoded(victim.z_NL)
    assert not {"nearness", "rows"} & victim.silo.trained().keys()


@pytest.mark.slow
def test_the_attack_works_without_the_rule_and_with_it_gets_what_honest_noise_leaves() -> None:
    """The figures of docs/algorithms/silofuse.md and docs/decisions/0085: the autoencoder of `balanced`."""
    victim = attacked(3000, CoderConfig())
    victim.silo.judge_by(victim.reference)
    before = found(victim.rows, victim.oracle(victim.z_NL))
    assert before["income"] > 0.6 and before["diagnosis"] > 0.99
    with pytest.raises(ProtocolError, match=REFUSED):
        victim.decoded(victim.z_NL)
    sigmas = [share * HONEST for share in (0.13, 0.33, 0.67, 1.0)]
    curve = [found(victim.rows, victim.oracle(through_all(victim.z_NL, sigma, 100))) for sigma in sigmas]
    draws = [victim.oracle(through_all(victim.z_NL, HONEST, seed)) for seed in range(30)]
    medians = [found(victim.rows, median(draws[:n])) for n in (10, 30)]
    print(before, curve, medians)
    assert curve[3]["income"] < medians[1]["income"] < before["income"]
    assert curve[2]["income"] < before["income"] / 3


def test_options_without_noise_have_the_rule_too() -> None:
    victim = attacked(config=replace(TINY, form="plain", steps=5))
    victim.silo.judge_by(victim.reference)
    with pytest.raises(ProtocolError, match=REFUSED):
        victim.decoded(victim.z_NL)
