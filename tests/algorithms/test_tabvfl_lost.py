"""Silos lost while a representation is learnt: what replaces their values, and how they come back."""

from __future__ import annotations

import pytest
import torch
from tests.algorithms.tabvfl_play import Play

from silosynth.algorithms.tabvfl import protocol as tabvfl
from silosynth.algorithms.tabvfl.options import FINETUNING, PRETRAINING
from silosynth.algorithms.tabvfl.protocol import MIB, EmbeddingCache
from silosynth.core.conversation import Exchange
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.runtime.wire import unpack

going_on = pytest.mark.parametrize("missing", ["cache", "zeros"])
DESIGNS = ("tabvfl", "local_encoders", "local")


def flat(silo) -> torch.Tensor:
    return torch.cat([weight.detach().flatten().clone() for weight in silo.guest.trainee.network.parameters()])


def inputs_of(play: Play) -> list:
    """The inputs of the coordinator's networks in each step, recorded as `Host.take` returns them."""
    seen = []

    def note(training) -> None:
        take = training.host.take
        training.host.take = lambda sent: seen.append(take(sent)) or seen[-1]

    begun = play.prepared()
    note(begun)
    play.training = begun
    play.drive(begun.run())
    return seen


@going_on
@pytest.mark.parametrize(
    "design", [pytest.param(design, marks=() if design == "tabvfl" else pytest.mark.slow) for design in DESIGNS]
)
def test_training_with_simulated_absence_resumes_to_the_same_bytes(design, missing):
    options = {"design": design, "missing": missing, "absence": 0.5, "pretraining_epochs": 4, "finetuning_epochs": 4}
    straight = Play(2, **options)
    whole = straight.train()
    asked = {(silo, ask.phase, ask.step) for silo, ask, _ in straight.asked(tabvfl.Embed)}
    everything = 2 * 3 * (4 if design == "local" else 8)
    assert len(asked) < everything  # a silo was absent
    for point in straight.points:
        assert Play(2, **options).resume(point) == whole


def test_all_are_present_in_the_first_epoch_of_each_phase_and_absent_for_whole_epochs():
    play = Play(5, absence=0.6, pretraining_epochs=5, finetuning_epochs=5)
    play.train()
    for phase in (PRETRAINING, FINETUNING):
        there = {}
        for silo, ask, _ in play.asked(tabvfl.Embed):
            if ask.phase == phase:
                there.setdefault(ask.step // 3, {}).setdefault(ask.step % 3, set()).add(silo)
        assert set(there[0][0]) == set(play.roster)
        assert all(len({frozenset(silos) for silos in steps.values()}) == 1 for steps in there.values())
        assert any(len(steps[0]) < 5 for steps in there.values())


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_cache_holds_what_a_silo_sent_last_of_each_row(shuffle):
    """b is lost for all of the second epoch of either phase."""

    def away(silo, ask) -> bool:
        return silo == "b" and getattr(ask, "step", getattr(ask, "of", -1)) in range(3, 6)

    play = Play(2, lost=away, shuffle=shuffle, pretraining_epochs=3, finetuning_epochs=3)
    seen = inputs_of(play)
    assert len(seen) == 18
    batches, b = play.training.batches, 1
    for first in (0, 9):
        sent = {}
        for step in range(3):
            for row, z in zip(batches.of(step).tolist(), range(len(batches.of(step))), strict=True):
                known = seen[first + step]
                sent[row] = (known.z[b][z].detach(), known.masks[b][z] if known.masks else None)
        for step in range(3, 6):
            found = seen[first + step]
            assert found.present == [True, False]
            assert found.z[b].grad is None and found.z[0].grad is not None
            for i, row in enumerate(batches.of(step).tolist()):
                assert torch.equal(found.z[b][i], sent[row][0])
                assert (sent[row][1] is None) is not found.masks or torch.equal(found.masks[b][i], sent[row][1])
        assert seen[first + 6].present == [True, True]


def test_zeros_replace_values_and_masks():
    play = Play(2, lost=lambda silo, ask: silo == "b" and getattr(ask, "step", -1) == 4, missing="zeros")
    seen = inputs_of(play)
    assert not seen[4].z[1].any() and not seen[4].masks[1].any()
    assert seen[4].z[0].any() and seen[4].masks[0].any()


@going_on
def test_no_gradient_flows_to_an_absent_silo(missing):
    """b does not reply for an epoch: its weights stay, the other's change, and it continues with the right batch."""
    play = Play(2, missing=missing, pretrain=False, finetuning_epochs=3)
    weights = {"a": [], "b": []}

    def lost(silo, ask) -> bool:
        if isinstance(ask, tabvfl.Embed) and ask.step in (3, 6):
            weights[silo].append(flat(play.silos[silo]))
        return silo == "b" and getattr(ask, "step", getattr(ask, "of", -1)) in (3, 4, 5)

    play.lost = lost
    play.drive(play.prepared().run())
    assert torch.equal(*weights["b"]) and not torch.equal(*weights["a"])
    asked = [ask for silo, ask, _ in play.asked(tabvfl.Embed) if silo == "b"]
    assert [ask.step for ask in asked] == [0, 1, 2, 6, 7, 8]
    assert [ask.of for ask in asked] == [-1, 0, 1, -1, 6, 7]


def test_a_silo_that_is_late_forgets_what_never_got_a_gradient():
    """It computes a batch that nobody waits for any more, then is asked for another."""
    play = Play(2, pretrain=False)
    play.prepared()
    silo = play.silos["a"]
    silo.answer(tabvfl.Embed(FINETUNING, 0))
    first = silo.answer(tabvfl.Embed(FINETUNING, 1, 7, torch.ones(12, 4)))  # of a step that is not pending
    before = flat(silo)
    silo.answer(tabvfl.ApplyGradient(0, torch.ones_like(first.z_BW)))
    assert torch.equal(flat(silo), before)
    silo.answer(tabvfl.Embed(FINETUNING, 2))
    rows = len(silo.guest.batches.of(2))
    silo.answer(tabvfl.ApplyGradient(2, torch.ones(rows, 4)))
    assert not torch.equal(flat(silo), before)


def test_a_silo_lost_between_the_exchanges_of_a_step_gives_no_gradient_and_still_gets_its_own():
    play = Play(2, lost=lambda silo, ask: silo == "b" and isinstance(ask, tabvfl.Reconstruct) and ask.step == 3)
    model = unpack(play.train())["model"]
    assert torch.isfinite(model["latents"]).all()
    after = [ask for silo, ask, _ in play.asked(tabvfl.Embed) if silo == "b" and ask.step == 4]
    assert after[0].of == 3


def test_weights_are_kept_only_if_all_silos_confirm():
    """Unless all silos confirm that they keep their weights, all go back to the ones kept before."""

    def away(silo, ask) -> bool:
        return silo == "b" and isinstance(ask, tabvfl.StoreWeights) and ask.number == 2

    play = Play(2, lost=away, validation=0.3, pretrain=False, finetuning_epochs=3, patience=10)
    play.train()
    kept = {silo: [ask.number for name, ask, _ in play.asked(tabvfl.StoreWeights) if name == silo] for silo in "ab"}
    assert kept["a"] == [0, 1, 2] and kept["b"] == [0, 1]
    assert all(ask.number == 1 for _, ask, _ in play.asked(tabvfl.EndPhase))


def test_nobody_left_ends_the_run():
    play = Play(2, lost=lambda silo, ask: getattr(ask, "step", -1) == 4)
    with pytest.raises(ProtocolError, match="At least one silo"):
        play.train()


@pytest.mark.parametrize("missing", ["wait", "fail"])
def test_policies_that_need_all_never_continue_without_one(missing):
    play = Play(2, missing=missing, validation=0.3)
    talk, got, steps = play.coordinate(), None, []
    while True:
        try:
            step = talk.send(got)
        except StopIteration:
            break
        steps += [step] if isinstance(step, Exchange) else []
        got = play.take(step)
    assert steps and not any(step.missing for step in steps)
    assert all(step.wait is (missing == "wait") for step in steps)


@going_on
@pytest.mark.parametrize("design", DESIGNS)
def test_where_all_are_needed_they_are_waited_for(design, missing):
    """Without "wait", work that takes longer than the time limit would be lost."""
    play = Play(2, missing=missing, design=design, validation=0.3)
    steps, take = [], play.take
    play.take = lambda step: steps.append(step) or take(step)
    play.train()
    steps = [step for step in steps if isinstance(step, Exchange)]
    assert any(step.missing for step in steps)
    assert all(step.wait is not step.missing for step in steps)
    alone = [step for step in steps if isinstance(step.asks["a"], tabvfl.TrainAlone)]
    assert bool(alone) is (design == "local")
    assert all(step.times == (2 if step in alone else 1) for step in steps)  # batches of an epoch


def test_another_policy_is_refused_by_name():
    with pytest.raises(ConfigError, match="missing must be one of 'cache', 'zeros', 'wait', 'fail'"):
        Play(2, missing="omit")


def test_the_cache_has_the_stated_size():
    play = Play(2)
    widths, rows = {"a": 50, "b": 30}, 1000
    memory = EmbeddingCache(widths, rows, PRETRAINING, play.config)
    assert nbytes(memory) == 5 * rows * 80 < play.config.cache_limit * MIB
    assert nbytes(EmbeddingCache(widths, rows, FINETUNING, play.config)) == 4 * rows * 80
    with pytest.raises(ConfigError, match=r"cache_limit = 0.1 MiB \(got: 0 MiB\)"):
        EmbeddingCache(widths, rows, PRETRAINING, Play(2, cache_limit=0.1).config)
    assert not nbytes(EmbeddingCache(widths, rows, PRETRAINING, Play(2, missing="zeros", cache_limit=0.1).config))


def nbytes(memory: EmbeddingCache) -> int:
    return sum(part.nbytes for parts in memory.state().values() for part in parts.values())
