"""A coordinator chooses a silo's terms: it tells silos different jobs, or asks for what their job does not have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from tests.attacked.driving import across, columns_of_the_same_rows, rows_of_the_same_columns, secret_job, sides, until

from silosynth.algorithms.dplt import protocol as dplt
from silosynth.algorithms.gdts import protocol as gdts
from silosynth.algorithms.gdts.options import GDTSConfig
from silosynth.algorithms.marginals import protocol as marginals
from silosynth.algorithms.silofuse import private, protocol as silofuse
from silosynth.algorithms.vflgan import protocol as vflgan
from silosynth.algorithms.vtgan import protocol as vtgan
from silosynth.alignment import AlignConfig
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import Message, all_structs, fields_of
from silosynth.counting import opening
from silosynth.counting.opening import CellNoise
from silosynth.deployment import protocol
from silosynth.deployment.protocol import Begin, Job, KeepPart, PrepareRows, PrepareSynthesis, Publish
from silosynth.deployment.silo import DeploymentSilo
from silosynth.privacy import accounting, agreement
from silosynth.privacy.events import Target
from silosynth.runtime.wire import decode, encode

DP = {"dp": {"epsilon": 1.0, "delta": 1e-5, "encoders": 0.5}}
CLOSED = "the first message that it refuses"


def told(jobs: dict[str, Job], silos: dict[str, DeploymentSilo], purposes: dict[str, str]) -> None:
    """Begin, and agree on the job, as a coordinator that tells silos different things would have it."""
    for name, silo in silos.items():
        across(silo, Begin(jobs[name]))
    shares = {name: across(silo, agreement.OfferShares(purposes[name], True)) for name, silo in silos.items()}
    sent = [one for reply in shares.values() for one in reply.envelopes]  # type: ignore[attr-defined]
    asks = {name: agreement.RelayedShares(tuple(one for one in sent if one.receiver == name)) for name in silos}
    tags = tuple(across(silo, asks[name]).tag for name, silo in silos.items())  # type: ignore[attr-defined]
    for silo in silos.values():
        across(silo, agreement.Confirmations(tags))


def test_a_silos_secret_has_256_bits(tmp_path: Path) -> None:
    """62 could be searched for, by what else followed from them."""
    rows = columns_of_the_same_rows()
    silo = sides(rows, tmp_path)["bank"]
    across(silo, Begin(secret_job(rows, "silofuse")))
    assert 200 < silo._secret.bit_length() <= 256


@pytest.mark.parametrize("asked", ["its own job", "the other's job"])
@pytest.mark.parametrize(
    "change",
    ["no differential privacy", "a level of one row is named", "another name", "another submitter", "other rows"],
)
def test_silos_that_were_told_different_jobs_prepare_nothing(change: str, asked: str, tmp_path: Path) -> None:
    rows = columns_of_the_same_rows()
    silos, one = sides(rows, tmp_path), secret_job(rows, "silofuse", **DP)
    coder = one.config.coder  # type: ignore[attr-defined]
    other = {
        "no differential privacy": replace(one, config=replace(one.config, dp=Target())),
        "a level of one row is named": replace(
            one, config=replace(one.config, coder=replace(coder, encoders=replace(coder.encoders, min_count=1)))
        ),
        "another name": replace(one, name="another"),
        "another submitter": replace(one, submitter="bob"),
        "other rows": replace(one, rows=51),
    }[change]
    jobs = {"bank": one, "shop": other}
    purposes = {name: protocol.purpose(jobs[name] if asked == "its own job" else one) for name in silos}
    with pytest.raises(ProtocolError, match=r"All silos of a job are told the same job|opens with the pinned keys"):
        told(jobs, silos, purposes)
    for silo in silos.values():
        with pytest.raises(ProtocolError, match=f"{CLOSED}|It awaits"):
            silo.answer(PrepareRows())


def test_silos_that_were_told_one_job_prepare_it(tmp_path: Path) -> None:
    rows = columns_of_the_same_rows()
    silos, one = sides(rows, tmp_path), secret_job(rows, "silofuse", **DP)
    told(dict.fromkeys(silos, one), silos, dict.fromkeys(silos, protocol.purpose(one)))
    assert isinstance(across(silos["bank"], PrepareRows()), protocol.PreparedSchema)


def test_an_earlier_agreement_does_not_confirm_a_job(tmp_path: Path) -> None:
    """What the shop sealed when it was told this job is sent again, now that it is told another."""
    rows = columns_of_the_same_rows()
    silos, one = sides(rows, tmp_path), secret_job(rows, "silofuse", **DP)
    offer = agreement.OfferShares(protocol.purpose(one), True)
    for silo in silos.values():
        across(silo, Begin(one))
    shares = {name: across(silo, offer).envelopes for name, silo in silos.items()}  # type: ignore[attr-defined]
    tags = [across(silos["shop"], agreement.RelayedShares(shares["bank"])).tag]  # type: ignore[attr-defined]
    across(silos["bank"], Begin(one))
    across(silos["bank"], offer)
    own = across(silos["bank"], agreement.RelayedShares(shares["shop"]))
    with pytest.raises(ProtocolError, match="All silos confirm the secret"):
        silos["bank"].answer(agreement.Confirmations((own.tag, tags[0])))  # type: ignore[attr-defined]


def test_options_of_another_algorithm_are_refused(tmp_path: Path) -> None:
    rows = columns_of_the_same_rows()
    one = replace(secret_job(rows, "silofuse"), config=GDTSConfig())
    with pytest.raises(ConfigError, match=r"options of its own \(got: GDTSConfig\)"):
        sides(rows, tmp_path)["bank"].answer(Begin(one))


def test_no_message_but_the_first_carries_options() -> None:
    """Of an algorithm, of an alignment, or of differential privacy; nor whether synthetic columns leave a silo."""

    def within(kind: Any) -> Iterator[Any]:
        yield kind
        for part in get_args(kind):
            yield from within(part)

    def options(kind: type) -> bool:
        return kind is Target or kind.__name__.endswith(("Config", "Options")) or kind is AlignConfig

    found = {
        (name, field)
        for name, struct in all_structs(Message).items()
        if struct.__module__.startswith("silosynth.")  # other tests make some
        for field, kind in fields_of(struct)
        for part in within(kind)
        if (isinstance(part, type) and options(part)) or field in ("config", "share", "dp", "delta", "clip")
    }
    assert found == set()


BATCH = torch.zeros(4, 4)
EXACT: dict[str, list[Message]] = {
    "silofuse": [silofuse.FitCoder(), silofuse.TrainAutoencoder(0), silofuse.AskLatents(),
                 private.AskChargedLatents(80, 4)],
    "vtgan": [vtgan.BuildBottoms(4, 4), vtgan.DrawConditions((0,), ()), vtgan.PushRows(0, BATCH, "shop"),
              vtgan.SampleConditions(5, "x"), vtgan.PushSampled(0, BATCH), vtgan.GenerateRows(0, BATCH, "bank")],
    "vflgan": [vflgan.CriticiseBatch(), vflgan.MeasureDistance(), vflgan.VFLGANSynthesise(5, "x")],
    "vertigan": [vflgan.BackboneRound(vflgan.NOTHING, True), vflgan.MeasureDistance()],
    "dplt": [dplt.GroupAttributes(1.0, 1.0), dplt.Hide(60, ()), dplt.Relate(1.0, ()),
             dplt.DPLTSynthesise(BATCH.long(), "x")],
    "mst": [opening.OpenTables((0,), (CellNoise(half_variance=8),)),
            opening.RevealTables((0,)), marginals.SynthesiseLevels(BATCH.long(), "x")],
    "gdts": [gdts.TakeEncoders((), 60), gdts.TrainPart(0, BATCH[0]), gdts.SendWeights(0, 1.0)],
}  # fmt: skip
FIRST: dict[str, Message] = {
    "silofuse": private.LearnCoder(), "vtgan": vtgan.EncodeRows(), "vflgan": vflgan.VFLGANPrepare(),
    "vertigan": vflgan.VFLGANPrepare(), "dplt": dplt.PrepareAttributes(), "gdts": gdts.Describe(),
    "mst": marginals.DescribeHeld(),
}  # fmt: skip


@pytest.mark.parametrize("algorithm", list(EXACT))
def test_a_job_with_an_epsilon_answers_nothing_that_it_is_not_charged_for(algorithm: str, tmp_path: Path) -> None:
    """Each ask first of all, and after the first one; each closes the job at the silo."""
    rows = rows_of_the_same_columns() if algorithm == "gdts" else columns_of_the_same_rows()
    options = {"epsilon": 1.0} if algorithm == "gdts" else DP
    early = [accounting.Charge(60, (), ()), *EXACT[algorithm]]
    for place, ask in enumerate(early):
        for begun in (False, True):
            folder = tmp_path / f"{place}{begun}"
            silos, name = sides(rows, folder), next(iter(rows))
            until(secret_job(rows, algorithm, **options), silos, lambda ask: isinstance(ask, type(FIRST[algorithm])))
            silo = silos[name]
            if begun:
                across(silo, FIRST[algorithm])
            with pytest.raises(ProtocolError, match=r"in their turn|than its target"):
                silo.answer(decode(encode(ask)))  # type: ignore[arg-type]
            with pytest.raises(ProtocolError, match=CLOSED):
                silo.answer(FIRST[algorithm])


@pytest.mark.parametrize("algorithm", list(EXACT))
def test_what_sets_up_is_answered_once(algorithm: str, tmp_path: Path) -> None:
    """A second answer would begin the account anew, and draw the same normals."""
    rows = rows_of_the_same_columns() if algorithm == "gdts" else columns_of_the_same_rows()
    options = {"epsilon": 1.0} if algorithm == "gdts" else DP
    silos, name = sides(rows, tmp_path), next(iter(rows))
    until(secret_job(rows, algorithm, **options), silos, lambda ask: isinstance(ask, type(FIRST[algorithm])))
    across(silos[name], FIRST[algorithm])
    with pytest.raises(ProtocolError, match="once"):
        silos[name].answer(FIRST[algorithm])


@pytest.mark.parametrize(
    "ask", [PrepareRows(), PrepareSynthesis(), KeepPart(), silofuse.FitCoder(), silofuse.AskLatents()]
)
def test_a_silo_that_has_kept_its_part_trains_no_more(ask: Message, tmp_path: Path) -> None:
    rows = columns_of_the_same_rows()
    silos = sides(rows, tmp_path)
    until(secret_job(rows, "silofuse"), silos, lambda ask: isinstance(ask, silofuse.FitCoder))
    silo = silos["bank"]
    across(silo, silofuse.FitCoder())
    across(silo, KeepPart())
    if isinstance(ask, PrepareSynthesis):
        across(silo, ask)
        ask = silofuse.AskLatents()
    with pytest.raises(ProtocolError):
        silo.answer(ask)
    with pytest.raises(ProtocolError, match=CLOSED):
        silo.answer(Publish(protocol.Schema(()), protocol.Table(()), 0, 5))
