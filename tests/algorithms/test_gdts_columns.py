"""What GDTS's silos tell of their columns: no more than the ledger says, and nothing that noise or units distort."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from tests.algorithms.test_gdts import Play, column_of, fit, table

from silosynth.algorithms.gdts import messages as gdts
from silosynth.algorithms.gdts.weights import weights
from silosynth.core.errors import ConfigError, DataError, ProtocolError
from silosynth.core.messages import Release


@pytest.mark.parametrize("generator", ["ctgan", "diffusion"])
def test_summaries_of_numbers_do_not_tell_how_many_rows_there_are(generator):
    play = Play(epsilon=1.0, generator=generator)
    play.begin()
    exact = [reply for _, _, reply in play.asked(gdts.Summarise) if isinstance(reply, gdts.ExactSummaries)]
    assert len(exact) == 3
    for reply in exact:
        for summary in reply.columns:
            assert abs(int(summary.counts.sum()) - 1000) <= len(summary.counts)  # each is rounded
            assert reply.rows == 0


@pytest.mark.parametrize("kind", ["sharp", "paper"])
def test_weights_do_not_depend_on_units_where_a_silo_has_no_value(kind):
    """Nor are they NaN: a distance of 1, of a silo without values, is not divided by the column's range."""
    found = []
    for unit in (1e-6, 1.0, 1e6):
        drawn = [unit * np.array([0.0, 1.0, 2.0]), unit * np.array([0.5, 1.0, 2.0]), np.array([])]
        found.append(weights(kind, [column_of(drawn=drawn)], [30, 30, 30]))
    assert found[0] == pytest.approx(found[1])
    assert found[0] == pytest.approx(found[2])
    assert np.isfinite(found).all() and found[0][2] < found[0][0]


def test_options_are_told_once():
    """A coordinator cannot have a silo mask its model, and then ask for the same without."""
    play = Play(secure=True)
    about = play.begin()
    silo, schema = play.silos["a"], play.asked(gdts.Summarise)[0][1].schema
    with pytest.raises(ProtocolError, match="Options are told once"):
        silo.answer(gdts.Summarise(replace(play.config, secure=False), schema, "categories"))
    assert silo.config.secure and about.rows


def small(silos: int, rows: int, **columns) -> Play:
    data = pd.DataFrame(columns)
    assert len(data) == silos * rows
    parts = {f"s{i}": range(i * rows, (i + 1) * rows) for i in range(silos)}
    return Play(data, parts, epsilon=1.0)


def test_truth_values_that_can_be_missing_need_no_threshold():
    rng = np.random.default_rng(0)
    well = pd.array(rng.random(60) < 0.4, dtype="boolean")
    encoders = {e.name: e for e in small(3, 20, well=well, x=rng.normal(size=60)).begin().encoders}
    assert encoders["well"].kept == (False, True)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3])
def test_missing_values_that_many_small_silos_hold_stay_missing(share):
    """In no silo are they more than its noise, nor enough to be told by name: in all silos together they are."""
    rng = np.random.default_rng(1)
    where = np.where(rng.random(800) < 0.5, "Bern", "Oslo").astype(object)
    where[rng.permutation(800)[: round(800 * share)]] = None
    about = small(20, 40, where=where, x=rng.normal(size=800)).begin()
    encoder = about.encoders[0]
    assert encoder.missing == (share > 0)
    counts = about.counts_PK[:, : encoder.width].sum(dim=0)
    assert float(counts[-1] / counts.sum()) == pytest.approx(share, abs=0.05) or not share


def test_numbers_as_categories_that_noise_hides_are_refused_with_what_helps():
    codes = np.random.default_rng(2).integers(0, 12, 60)
    data = pd.DataFrame({"code": codes, "x": np.arange(60.0)})
    rows = {name: range(20 * i, 20 * i + 20) for i, name in enumerate("abc")}
    with pytest.raises(DataError, match="Raise epsilon or delta"):
        fit(data, rows, {"code": {"kind": "categorical"}}, epsilon=0.5)


def test_the_ledger_says_of_every_message_what_it_carries():
    for kind, release in {
        gdts.Prepare: Release.MERGED,
        gdts.Train: Release.AVERAGE,
        gdts.Criticise: Release.SYNTHETIC,
    }.items():
        assert kind.release is release


def test_tables_without_numbers_are_not_asked_about_them():
    play = Play(table()[["city", "ill"]])
    about = play.begin()
    assert {ask.part for _, ask, _ in play.asked(gdts.Summarise)} == {"categories"}
    assert len(about.encoders) == 2
    assert torch.equal(about.counts_PK, about.counts_PK.clamp(min=0))


def test_mode_md_has_nobody_away():
    with pytest.raises(ConfigError, match="absence"):
        gdts.GDTSConfig(mode="md", absence=0.2)
