"""TabNet's blocks against `pytorch-tabnet`, from the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from silosynth.core.errors import ConfigError
from silosynth.core.streams import Streams
from silosynth.models.tabnet import (
    FeatureTransformer,
    GhostNorm,
    TabNetConfig,
    TabNetDecoder,
    TabNetEncoder,
    latent,
    obfuscate,
    plain_layer,
    reconstruction_loss,
    sparsemax,
)

SIZES = [
    TabNetConfig(),
    TabNetConfig(latent=8, attention=6, steps=2, shared=2, independent=2, decoder_shared=2, ghost=8),
    TabNetConfig(shared=0, independent=2, decoder_shared=0, decoder_independent=2),
    TabNetConfig(shared=2, independent=0, decoder_independent=0, gamma=1.0, steps=1),
]
FEATURES = 7
Pairs = list[tuple[nn.Module, nn.Module]]


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def draw(name: str) -> torch.Generator:
    return Streams(1).child(name).torch()


def of_transformer(ours: FeatureTransformer, theirs: Any, shared: nn.ModuleList) -> Pairs:
    """Which module of ours is which of theirs."""
    pairs: Pairs = []
    layers = [] if isinstance(theirs.shared, nn.Identity) else list(theirs.shared.glu_layers)
    pairs += [(mine, other.fc) for mine, other in zip(shared, layers, strict=True)]
    own = [] if isinstance(theirs.specifics, nn.Identity) else list(theirs.specifics.glu_layers)
    pairs += [(mine, other.fc) for mine, other in zip(ours.own, own, strict=True)]
    return pairs + [(mine, other.bn.bn) for mine, other in zip(ours.norms, layers + own, strict=True)]


def of_encoder(ours: TabNetEncoder, theirs: Any) -> Pairs:
    pairs = of_transformer(ours.first, theirs.initial_splitter, ours.shared)
    for mine, other in zip(ours.transformers, theirs.feat_transformers, strict=True):
        pairs += of_transformer(mine, other, ours.shared)
    for mine, other in zip(ours.attention, theirs.att_transformers, strict=True):
        pairs += [(mine.layer, other.fc), (mine.norm, other.bn.bn)]
    return pairs


def of_decoder(ours: TabNetDecoder, theirs: Any) -> Pairs:
    pairs: Pairs = []
    for mine, other in zip(ours.transformers, theirs.feat_transformers, strict=True):
        pairs += of_transformer(mine, other, ours.shared)
    return pairs


def hand_over(pairs: Pairs) -> None:
    """Their weights and running statistics become ours."""
    for mine, other in pairs:
        mine.load_state_dict(other.state_dict())


def check(pairs: Pairs) -> None:
    """Gradients and running statistics are equal."""
    for mine, other in pairs:
        for (name, weight), same in zip(mine.named_parameters(), other.parameters(), strict=True):
            assert (weight.grad is None) == (same.grad is None), name
            if weight.grad is not None and same.grad is not None:
                close(weight.grad, same.grad)
        for buffer, same in zip(mine.buffers(), other.buffers(), strict=True):
            close(buffer, same)


def reference(config: TabNetConfig, outputs: int | None = None) -> Any:
    """Their network: of pre-training, or with so many outputs."""
    network = pytest.importorskip("pytorch_tabnet.tab_network")
    sizes = {
        "n_d": config.latent, "n_a": config.attention, "n_steps": config.steps, "gamma": config.gamma,
        "n_independent": config.independent, "n_shared": config.shared, "virtual_batch_size": config.ghost,
        "momentum": config.momentum, "group_attention_matrix": torch.eye(FEATURES),
    }  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)  # theirs draw from it
        if outputs is not None:
            return network.TabNet(FEATURES, outputs, cat_dims=[], cat_idxs=[], cat_emb_dim=[], **sizes)
        decoder = {"n_shared_decoder": config.decoder_shared, "n_indep_decoder": config.decoder_independent}
        return network.TabNetPretraining(
            FEATURES, pretraining_ratio=0.5, cat_dims=[], cat_idxs=[], cat_emb_dim=[], **sizes, **decoder
        )


class Whole(nn.Module):
    """Our blocks, put together as a network in one place has them."""

    def __init__(self, config: TabNetConfig) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(FEATURES, momentum=0.01)
        self.encoder = TabNetEncoder(FEATURES, config, draw("encoder"))
        self.decoder = TabNetDecoder(config, draw("decoder"))
        self.last = plain_layer(config.latent, FEATURES, draw("last"))


@pytest.mark.parametrize("rows", [16, 21])
@pytest.mark.parametrize("config", SIZES)
def test_pretraining_agrees_with_the_usual_implementation(config: TabNetConfig, rows: int) -> None:
    theirs, ours = reference(config), Whole(config)
    metrics = pytest.importorskip("pytorch_tabnet.metrics")
    pairs = [
        *of_encoder(ours.encoder, theirs.encoder), *of_decoder(ours.decoder, theirs.decoder),
        (ours.norm, theirs.encoder.initial_bn), (ours.last, theirs.decoder.reconstruction_layer),
    ]  # fmt: skip
    hand_over(pairs)
    for _ in range(2):  # the second time running statistics are no longer those of the start
        x = torch.randn(rows, FEATURES, generator=draw("x")) * 3 + 1
        x[:, 2] = 4.0  # a feature without spread
        masked, mask = obfuscate(x, 0.5, draw("mask"))
        decisions, _ = ours.encoder(ours.norm(masked), 1 - mask)
        made = ours.last(ours.decoder(decisions))
        theirs.masker.forward = lambda x, masked=masked, mask=mask: (masked, mask, mask)
        expected, _, _ = theirs(x)
        close(made, expected)
        loss, other = reconstruction_loss(made, x, mask), metrics.UnsupervisedLoss(expected, x, mask)
        close(loss, other)
        loss.backward()
        other.backward()
        check(pairs)
    ours.eval(), theirs.eval()
    x = torch.randn(3, FEATURES, generator=draw("new"))
    close(ours.last(ours.decoder(ours.encoder(ours.norm(x))[0])), theirs(x)[0])


@pytest.mark.parametrize("config", SIZES)
def test_finetuning_agrees_with_the_usual_implementation(config: TabNetConfig) -> None:
    theirs, ours, last = reference(config, 3), Whole(config), plain_layer(config.latent, 3, draw("last"))
    pairs = [
        *of_encoder(ours.encoder, theirs.tabnet.encoder), (ours.norm, theirs.tabnet.encoder.initial_bn),
        (last, theirs.tabnet.final_mapping),
    ]  # fmt: skip
    hand_over(pairs)
    x, labels = torch.randn(20, FEATURES, generator=draw("x")), torch.arange(20) % 3
    decisions, entropy = ours.encoder(ours.norm(x))
    out, (expected, negative) = last(latent(decisions)), theirs(x)
    close(out, expected)
    close(entropy, -negative)
    (nn.functional.cross_entropy(out, labels) + 0.1 * entropy).backward()
    (nn.functional.cross_entropy(expected, labels) - 0.1 * negative).backward()
    check(pairs)


def test_first_weights_follow_the_same_laws() -> None:
    """Deviations of many weights, within a few per cent."""
    config = TabNetConfig(latent=40, attention=40, steps=1, shared=2, independent=2, decoder_shared=2)
    ours, theirs = Whole(config), reference(config)
    pairs = [*of_encoder(ours.encoder, theirs.encoder), *of_decoder(ours.decoder, theirs.decoder)]
    pairs.append((ours.last, theirs.decoder.reconstruction_layer))
    for mine, other in pairs:
        if isinstance(mine, nn.Linear):
            assert mine.weight.std().item() == pytest.approx(other.weight.std().item(), rel=0.15)
        for same in mine, other:
            assert isinstance(same, nn.Linear) or torch.equal(same.weight, torch.ones_like(same.weight))


def test_making_networks_leaves_the_ambient_random_numbers_alone() -> None:
    before = torch.random.get_rng_state()
    Whole(TabNetConfig())
    assert torch.equal(before, torch.random.get_rng_state())


def slow_sparsemax(row: list[float]) -> list[float]:
    """The threshold found by halving: the masses above it add up to 1."""
    low, high = min(row) - 1, max(row)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(max(0.0, x - middle) for x in row) > 1 else (low, middle)
    return [max(0.0, x - low) for x in row]


@settings(max_examples=60)
@given(st.lists(st.floats(-20, 20), min_size=1, max_size=8))
def test_sparsemax_is_the_nearest_point_of_the_simplex(row: list[float]) -> None:
    found = sparsemax(torch.tensor([row], dtype=torch.float64))[0]
    torch.testing.assert_close(found, torch.tensor(slow_sparsemax(row), dtype=torch.float64), rtol=0, atol=1e-9)


def test_sparsemax_has_the_gradient_of_finite_differences() -> None:
    x = torch.randn(5, 6, generator=draw("x"), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(sparsemax, (x,))


def test_a_row_that_is_left_over_is_normalised_with_those_before_it() -> None:
    norm, x = GhostNorm(2, 2, 0.1), torch.randn(5, 2, generator=draw("x"))
    out = norm(x)
    for part in (out[:2], out[2:]):
        torch.testing.assert_close(part.mean(0), torch.zeros(2), rtol=0, atol=1e-6)


def test_a_constant_negative_feature_costs_what_a_positive_one_does() -> None:
    x, mask = torch.full((4, 1), -3.0), torch.ones(4, 1)
    assert reconstruction_loss(x + 1, x, mask) == reconstruction_loss(1 - x, -x, mask) > 0


def test_the_asked_share_is_masked() -> None:
    x = torch.ones(200, 50)
    masked, mask = obfuscate(x, 0.3, draw("mask"))
    assert torch.equal(masked, 1 - mask)
    assert mask.mean().item() == pytest.approx(0.3, abs=0.02)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"gamma": 0.9}, "gamma"), ({"latent": 0}, "latent"), ({"shared": 0, "independent": 0}, "not both 0")],
)
def test_wrong_sizes_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        TabNetConfig(**options)
