"""A coordinator of GDTS's secure sums tells one silo of other columns, or of another model, than all others.

Then what the others send is known beforehand, and the sum is one silo's own statistics. Masks hang on all that a silo's
model depends on, so that what opens is random; the same attacks read the silo where masks do not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.algorithms.test_gdts import CPU, Play
from torch import Tensor

from silosynth.algorithms.gdts import networks, protocol as gdts
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Message
from silosynth.core.streams import Streams
from silosynth.encoders.column import CategoricalEncoder, Encoder
from silosynth.models.encoded import encoded_rows, no_codes
from silosynth.models.latent_table import LatentTable
from silosynth.privacy import aggregation
from silosynth.privacy.masker import Masker

PARTS = 3  # autoencoder, moments of latents, flow
Change = Callable[[str, Message], Message]


class Read(Exception):
    """The coordinator has what it wanted."""


class Deviant(Play):
    """Silos of secure sums, which hear what a coordinator makes of each ask."""

    def __init__(self, change: Change, **options: Any) -> None:
        super().__init__(**{"secure": True, "weights": "rows", "generator": "diffusion", "rounds": PARTS} | options)
        for name, silo in self.silos.items():
            silo.answer = lambda ask, name=name, answer=silo.answer: answer(change(name, ask))

    def weights(self) -> dict[str, float]:
        """What each silo counts in sums."""
        rows = {name: silo.rows for name, silo in self.silos.items()}
        return {name: own / sum(rows.values()) for name, own in rows.items()}

    def mean_of(self, part: int, patched: pytest.MonkeyPatch) -> Tensor:
        """Train as far as this part, and read its sum."""

        def secure_sum(asks: Any, number: int, *more: Any, **named: Any) -> Any:
            opened = yield from aggregation.secure_sum(asks, number, *more, **named)
            if number == part:
                raise Read(opened.mean())
            return opened

        patched.setattr(gdts, "secure_sum", secure_sum)
        with pytest.raises(Read) as read:
            self.train()
        mean_W: Tensor = read.value.args[0]
        return mean_W


def unbound(patched: pytest.MonkeyPatch) -> None:
    """As if masks did not mind what others were told."""
    real = Masker.mask_words
    patched.setattr(Masker, "mask_words", lambda masker, words, number, told: real(masker, words, number, b""))


# One silo's counts of a column's levels, from the mean of latents in which nothing else shows.


class Reader:
    """A coordinator that reads how many of silo a's rows are in each city. What others hear makes their latents known.

    Args:
        model, columns: whether others hear of another model, or of other columns.
    """

    def __init__(self, model: bool, columns: bool) -> None:
        self.other_model, self.other_columns = model, columns
        self.play = Deviant(self.told)
        self.encoders: tuple[Encoder, ...] = ()
        self.latents_KL = self.nothing_L = torch.zeros(0)  # of rows in each city, and where nothing shows

    def told(self, name: str, ask: Message) -> Message:
        if isinstance(ask, gdts.TakeEncoders):
            self.encoders = ask.encoders
            return replace(ask, encoders=elsewhere(ask.encoders)) if self.other_columns and name != "a" else ask
        if isinstance(ask, gdts.TrainPart) and ask.part == 1:
            return replace(ask, weights_W=self.crafted(ask.weights_W, blind=self.other_model and name != "a"))
        return ask

    def crafted(self, weights_W: Tensor, blind: bool) -> Tensor:
        """A model whose latents show the city and nothing else; or nothing at all."""
        rows = encoded_rows(self.encoders, no_codes(self.encoders), CPU)
        model = networks.make_model(self.play.config, rows, 140, Streams(0), CPU)
        assert isinstance(model, LatentTable)
        networks.put_weights(model.given(1, PARTS), weights_W)
        coder, place = model.coder.eval(), cities(self.encoders)
        seen = model.shape.column_of == (-1 if blind else place)
        levels_KC = torch.zeros(model.shape.widths[place], len(model.shape.widths), dtype=torch.int64)
        levels_KC[:, place] = torch.arange(len(levels_KC))
        with torch.no_grad():
            coder.of_scores.weight.zero_()
            coder.of_levels.weight *= seen[:, None]
            latents_KL = coder.encode(levels_KC, torch.zeros(len(levels_KC), model.shape.scores))[0].double()
        if blind:
            self.nothing_L = latents_KL[0]
        else:
            self.latents_KL = latents_KL
        return networks.weights_of(model.given(1, PARTS))

    def read(self, patched: pytest.MonkeyPatch) -> list[int]:
        mean_L = self.play.mean_of(1, patched)[: self.latents_KL.shape[1]]
        others_L = self.latents_KL[-1] if self.other_columns else self.nothing_L
        weight = self.play.weights()
        own_L = (mean_L - others_L * (1 - weight["a"])) / weight["a"]
        shares = torch.linalg.lstsq(self.latents_KL.T, own_L[:, None]).solution.flatten()
        return [round(float(share * len(self.play.federation.tables["a"]))) for share in shares]

    def truth(self) -> list[int]:
        encoder = next(one for one in self.encoders if one.name == "city")
        levels = encoder.encode(self.play.federation.tables["a"]["city"], np.random.default_rng(0)).levels
        assert levels is not None
        return torch.bincount(levels, minlength=encoder.width).tolist()


def cities(encoders: tuple[Encoder, ...]) -> int:
    """The place of the city among columns with levels."""
    return [one.name for one in encoders if one.width > 1].index("city")


def elsewhere(encoders: tuple[Encoder, ...]) -> tuple[Encoder, ...]:
    """All cities are the last one."""
    encoder = next(one for one in encoders if one.name == "city")
    assert isinstance(encoder, CategoricalEncoder)
    other = replace(encoder, kept=tuple(f"not {name}" for name in encoder.kept))
    return tuple(other if one is encoder else one for one in encoders)


@pytest.mark.parametrize("model", [True, False], ids=["model", "columns"])
def test_one_silos_counts_are_read_where_masks_do_not_mind(model: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack works: so it is what binding prevents that the next test sees."""
    unbound(monkeypatch)
    reader = Reader(model, not model)
    assert reader.read(monkeypatch) == reader.truth()


@pytest.mark.parametrize("model", [True, False], ids=["model", "columns"])
def test_a_silo_that_was_told_something_else_opens_random_words(model: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProtocolError, match="Without masks"):
        Reader(model, not model).read(monkeypatch)


# One silo's weights, where Adam does not move those of others.


def read_critic(asked: bool) -> tuple[Tensor, Tensor]:
    """Where others' weights stay in part 1, those of silo a as read from the sum, and as they are.

    Gradients in part 0 were so large that squares are infinite, by which Adam divides what follows. Silo a was not
    asked to train then, or (``asked``) was told of a model like any other.
    """
    play = Deviant(lambda name, ask: ask, generator="ctgan")
    merged = play.begin()
    model = play.model(merged)
    start_W = networks.weights_of(model.given(0, PARTS))
    for name, silo in play.silos.items():
        if name != "a" or asked:
            silo.answer(gdts.TrainPart(0, start_W * (1 if name == "a" else 1e9)))
    for silo in play.silos.values():
        silo.answer(gdts.TrainPart(1, start_W))
    weight = play.weights()
    asks = {name: gdts.SendWeights(1, weight[name]) for name in play.silos}
    mean_W = play.drive(aggregation.secure_sum(asks, 1, len(start_W))).mean()
    trained = {name: networks.weights_of(silo.model.networks(1, PARTS)) for name, silo in play.silos.items()}
    still_W = (trained["b"] == start_W) & (trained["c"] == start_W)
    read_W = (mean_W - (1 - weight["a"]) * start_W) / weight["a"]
    return read_W[still_W].float(), trained["a"][still_W]


@pytest.mark.parametrize("asked", [True, False])
def test_one_silos_weights_are_read_where_masks_do_not_mind(asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    unbound(monkeypatch)
    read_W, own_W = read_critic(asked)
    assert len(own_W) >= 200
    torch.testing.assert_close(read_W, own_W, rtol=0, atol=1e-6)


@pytest.mark.parametrize("asked", [True, False])
def test_a_silo_that_missed_what_others_heard_opens_random_words(asked: bool) -> None:
    with pytest.raises(ProtocolError, match="Without masks"):
        read_critic(asked)


# Weights of silos.


@pytest.mark.parametrize("rule", ["rows", "equal", "paper"])
def test_no_silo_counts_for_more_or_less_than_the_rule_says(rule: str) -> None:
    """Else a sum in which others count for nothing is one silo's model."""
    Deviant(lambda name, ask: ask, weights=rule, generator="ctgan", rounds=1).train()
    for name, times in [("a", 3.0), ("b", 1e-6)]:

        def change(silo: str, ask: Message, name: str = name, times: float = times) -> Message:
            known = isinstance(ask, gdts.SendWeights) and silo == name
            return replace(ask, weight=ask.weight * times) if known else ask

        with pytest.raises(ProtocolError, match=f"By weights = {rule!r} a silo counts from"):
            Deviant(change, weights=rule, generator="ctgan").train()
