"""TabVFL against the same networks in one piece; its phases, designs, and checkpoints."""

from __future__ import annotations

import pytest
import torch
from tests.algorithms.tabvfl_play import Oracle, Play, configured

from silosynth.algorithms.tabvfl import protocol as tabvfl
from silosynth.algorithms.tabvfl.networks import Batches
from silosynth.algorithms.tabvfl.options import FINETUNING, PRESETS, PRETRAINING
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import Done
from silosynth.runtime.wire import unpack

together = pytest.mark.parametrize("silos", [2, 5])
DESIGNS = ("tabvfl", "local_encoders", "local")


def gradients_of_a_step(play: Play, phase: str):
    """Drive one epoch of one step; gradients are left in place."""
    training = play.prepared()
    oracle = Oracle(play, training)
    training.cache = training._cache(phase)
    assert training.batches.count == 1
    if phase == PRETRAINING:
        oracle.whole.pretraining_loss(oracle.rows(0), oracle.masks(0)).backward()
    else:
        labels = play.labels.values[training.batches.of(0)]
        oracle.whole.finetuning_loss(oracle.rows(0), labels, play.labels.classes).backward()
    play.drive(training._together(phase, list(play.roster)))
    return oracle


@pytest.mark.parametrize("phase", [PRETRAINING, FINETUNING])
@pytest.mark.parametrize("design", ["tabvfl", "local_encoders"])
@together
def test_gradients_of_a_step_are_those_of_the_network_in_one_piece(silos, design, phase):
    gradients_of_a_step(Play(silos, rows=20, missing="fail", design=design, sparsity=0.1), phase).check()


@together
def test_gradients_of_local_tabnets_are_those_of_the_networks_in_one_piece(silos):
    gradients_of_a_step(Play(silos, rows=20, missing="fail", design="local", sparsity=0.1), FINETUNING).check()
    play = Play(silos, rows=20, missing="fail", design="local")
    training = play.prepared()
    oracle = Oracle(play, training)
    x, mask = oracle.rows(0), oracle.masks(0)
    for silo, part in zip(play.roster, training.host.partitions, strict=True):
        oracle.whole.alone(silo, x[silo], mask[silo], part).backward()
        play.silos[silo].answer(tabvfl.TrainAlone(0))
    oracle.check()


@pytest.mark.parametrize("design", DESIGNS)
def test_a_number_is_predicted_by_squared_error(design):
    gradients_of_a_step(Play(2, rows=20, missing="fail", design=design, number=True), FINETUNING).check()


def test_a_few_steps_end_at_the_weights_of_the_network_in_one_piece():
    play = Play(2, rows=40, missing="fail", shuffle=False)
    training = play.prepared()
    oracle = Oracle(play, training)
    groups = [*oracle.whole.guests.values(), oracle.whole.host]
    config = play.config
    weights = [weight for group in groups for weight in group.values()]
    adam = torch.optim.Adam(weights, lr=config.rate, betas=config.betas, weight_decay=config.decay)
    for epoch in range(2):
        for step in training.batches.steps(epoch):
            adam.zero_grad()
            oracle.whole.pretraining_loss(oracle.rows(step), oracle.masks(step)).backward()
            adam.step()
    training.cache = training._cache(PRETRAINING)
    for training.epoch in range(2):
        play.drive(training._together(PRETRAINING, list(play.roster)))
    for name, silo in play.silos.items():
        for key, weight in silo.guest.trainee.network.named_parameters():
            torch.testing.assert_close(weight, oracle.whole.guests[name][key], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize(
    "more", [pytest.param({}, marks=pytest.mark.slow), {"validation": 0.3, "patience": 1}], ids=["last", "best"]
)
def test_resuming_from_any_checkpoint_gives_the_same_bytes(design, more):
    straight = Play(design=design, **more)
    whole = straight.train()
    assert len(straight.points) >= 3
    for point in straight.points:
        assert Play(design=design, **more).resume(point) == whole


def test_progress_of_each_phase_ends_at_its_total():
    play = Play(validation=0.3, patience=1, pretraining_epochs=6, finetuning_epochs=6)
    play.train()
    last = {p.stage: p for p in play.progress}
    assert list(last) == ["pretraining", "finetuning", "embedding"]
    assert all(p.done == p.total for p in last.values())


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("kept", ["pretrain", "finetune"])
def test_either_phase_can_be_left_out(design, kept):
    options = {"pretrain": False, "finetune": False, kept: True}
    play = Play(design=design, **options)
    model = unpack(play.train())["model"]
    assert model["latents"].shape == (40, 6)
    phases = {ask.phase for _, ask, _ in play.asked(tabvfl.Embed)}
    alone = design == "local" and kept == "pretrain"
    assert phases == (set() if alone else {PRETRAINING if kept == "pretrain" else FINETUNING})


@pytest.mark.parametrize("design", DESIGNS)
def test_without_label_gradients_only_the_coordinator_learns_the_label(design):
    """Silos get no gradient, are told when weights were best, and end with their pre-trained weights."""
    options = {"missing": "fail", "design": design, "validation": 0.25, "patience": 50}
    play = Play(**options, label_gradients=False)
    whole = unpack(play.train())["model"]["host"]["network"]
    pretrained = Play(**options, finetune=False)
    start = unpack(pretrained.train())["model"]["host"]["network"]
    for name, silo in play.silos.items():
        weights = dict(silo.guest.trainee.network.named_parameters())
        for key, weight in pretrained.silos[name].guest.trainee.network.named_parameters():
            assert torch.equal(weights[key], weight), key
    asks = [ask for _, ask, _ in play.said]
    tuning = asks[[getattr(ask, "phase", "") for ask in asks].index(FINETUNING) :]
    assert {type(ask) for ask in tuning} == {tabvfl.Embed, tabvfl.EndPhase, tabvfl.EmbedRows, tabvfl.StoreWeights}
    assert all(ask.grad_BW is None for ask in tuning if isinstance(ask, tabvfl.Embed))
    assert not torch.equal(whole["mapping.weight"], start["mapping.weight"])


def test_a_step_takes_two_exchanges_and_one():
    """And one for each epoch's last gradients; besides preparation, both phases' ends, and embedding all rows."""
    play = Play(pretraining_epochs=2, finetuning_epochs=3)
    play.train()
    steps = 3
    assert play.exchanges == 1 + 2 * (2 * steps + 1) + 3 * (steps + 1) + 2 + 1


def test_the_weights_best_on_held_out_rows_are_kept():
    play = Play(validation=0.3, patience=2, finetuning_epochs=30, pretrain=False, rate=0.1)
    model = unpack(play.train())["model"]
    kept = [ask.number for _, ask, _ in play.asked(tabvfl.StoreWeights)]
    settled = [ask.number for _, ask, _ in play.asked(tabvfl.EndPhase)]
    assert settled == [kept[-1]] * 2
    epochs = len({ask.step for _, ask, _ in play.asked(tabvfl.Embed)}) // 2
    assert epochs == kept[-1] + 3 < 30  # two evaluations without improvement
    assert torch.isfinite(model["latents"]).all()


def test_every_row_is_in_one_batch_of_an_epoch_and_none_that_is_held_out():
    for config in (configured(shuffle=True, validation=0.2), configured(shuffle=False)):
        batches = Batches(41, config, 7)
        epochs = [[batches.of(step) for step in batches.steps(epoch)] for epoch in range(2)]
        for epoch in epochs:
            rows = torch.cat([*epoch, batches.held_out])
            assert sorted(rows.tolist()) == list(range(41))
            assert all(len(rows) >= config.batch for rows in epoch)
        same = all(torch.equal(a, b) for a, b in zip(*epochs, strict=True))
        assert same is not config.shuffle


def test_the_papers_settings():
    paper = PRESETS["paper"]
    net = paper.net
    assert (net.latent, net.attention, net.steps, net.gamma, net.shared, net.independent) == (5, 2, 4, 1.5, 1, 1)
    assert (paper.mask, paper.rate, paper.decay, paper.batch, paper.shuffle) == (0.5, 1e-3, 1e-4, 64, False)
    assert (paper.pretraining_epochs, paper.finetuning_epochs, paper.missing) == (300, 300, "cache")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch": 1}, "batch"),
        ({"mask": 1.0}, "mask"),
        ({"absence": -0.1}, "absence"),
        ({"absence": 0.2, "missing": "fail"}, "goes on without silos"),
        ({"sparsity": -1.0}, "sparsity"),
        ({"pretrain": False, "finetune": False}, "At least one"),
        ({"design": "local", "pretrain": False, "label_gradients": False}, "Encoders in silos learn"),
        ({"net": {"latent": 0}}, "latent"),
        ({"cache_limit": 0.0}, "cache_limit"),
    ],
)
def test_wrong_options_are_refused_by_name(options, words):
    with pytest.raises(ConfigError, match=words):
        configured(**options)


def test_fewer_latents_than_silos_are_refused():
    with pytest.raises(ConfigError, match="4 for 5 silos"):
        Play(5, net={"latent": 4}).train()


def test_a_cache_beyond_its_limit_is_refused_before_training():
    with pytest.raises(ConfigError, match=r"cache_limit = 0.0001 MiB"):
        Play(cache_limit=1e-4).train()


def test_unequal_rows_are_refused():
    play = Play()
    play.silos["b"].columns.table = play.silos["b"].columns.table.take(slice(0, 30))
    with pytest.raises(ProtocolError, match="same rows"):
        play.train()


ASKS = (tabvfl.PrepareGuest, tabvfl.Embed, tabvfl.Reconstruct, tabvfl.ApplyGradient, tabvfl.EmbedRows,
        tabvfl.EvaluateRows, tabvfl.StoreWeights, tabvfl.EndPhase)  # fmt: skip


@pytest.mark.parametrize("kind", ASKS)
def test_a_reply_of_a_wrong_type_ends_the_training_and_names_its_silo(kind):
    play = Play(validation=0.3, pretraining_epochs=1, finetuning_epochs=1)
    silo, wrong = play.silos["b"], tabvfl.EndPhase(0)
    answer = silo.answer
    silo.answer = lambda ask: wrong if isinstance(ask, kind) else answer(ask)
    with pytest.raises(ProtocolError, match="Silo 'b' replies"):
        play.train()


def test_early_or_unknown_messages_are_refused():
    silo = Play().silos["a"]
    with pytest.raises(ProtocolError, match="It awaits PrepareGuest"):
        silo.answer(tabvfl.Embed(PRETRAINING, 0))
    with pytest.raises(ProtocolError, match="comes too early"):
        silo._answer(tabvfl.Embed(PRETRAINING, 0))
    with pytest.raises(ProtocolError, match="Done"):
        silo.answer(Done())
    play = Play()
    play.prepared()
    with pytest.raises(ProtocolError, match="embedded before"):
        play.silos["a"].answer(tabvfl.Reconstruct(3, torch.zeros(12, 3)))
