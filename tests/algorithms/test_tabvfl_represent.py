"""`represent` and its results: predictions, files, folders, processes, and what crosses borders."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings

import numpy as np
import pandas as pd
import psutil
import pytest
import torch
from tests.algorithms.tabvfl_play import SIZES, SPLITS, configured, table
from tests.contracts.transcripts import Heard, Tap, federation as secret_federation, frame, leaks, secrets

import silosynth as ss
from silosynth.algorithms.tabvfl.networks import Labels
from silosynth.algorithms.tabvfl.protocol import coordinate
from silosynth.algorithms.tabvfl.silo import TabVFLSilo
from silosynth.core.errors import ConfigError, DataError, PartyLostError, SchemaError, StorageError
from silosynth.core.messages import Release
from silosynth.core.streams import Streams
from silosynth.privacy.sealed import seats
from silosynth.runtime.driver import PartyLostWarning, drive
from silosynth.runtime.ledger import Ledger
from silosynth.runtime.wire import pack
from silosynth.simulation.silos import InProcess

SILOS = {"a": ["city", "income"], "b": ["debt", "sex", "visits", "good"]}
DESIGNS = ("tabvfl", "local_encoders", "local")


def represent(federation=None, label="good", **more) -> ss.Representation:
    federation = ss.simulate(table(), SILOS) if federation is None else federation
    options = {**SIZES, **more.pop("options", {})}
    how = {"preset": "fast", "options": options, "progress": False, "checkpoint_every": 0, **more}
    return ss.represent("tabvfl", federation, label, **how)


def whole_of(made: ss.Representation) -> bytes:
    return pack({"coordinator": made.coordinator, "parts": dict(made.parts)})


@pytest.mark.slow
def test_new_rows_are_embedded_and_predicted():
    data = table(400)
    made = represent(
        ss.simulate(data.head(300), SILOS),
        options={"pretraining_epochs": 3, "finetuning_epochs": 15, "batch": 30, "rate": 0.01},
    )
    new = made.federation(data.tail(100))
    assert repr(made) == "Representation of 'tabvfl' (fast): 2 silos, label 'good', 300 rows"
    with pytest.raises(ConfigError, match=r"takes a federation.*Pass representation\.federation\(frame\)"):
        made.transform(data.tail(100))
    latents, sure = made.transform(new), made.predict_proba(new)
    assert latents.shape == (100, 6) and list(latents.columns) == [f"latent_{i}" for i in range(6)]
    assert list(sure.columns) == ["no", "yes"]
    np.testing.assert_allclose(sure.sum(axis=1), 1)
    predicted = made.predict(new)
    assert (predicted.to_numpy() == sure.idxmax(axis=1).to_numpy()).all()
    scores = made.score(new)
    truth = data.tail(100)["good"].reset_index(drop=True)
    assert scores["accuracy"] == pytest.approx((predicted == truth).mean()) and scores["accuracy"] > 0.8
    assert scores["macro_f1"] > 0.8 and scores["roc_auc"] > 0.85
    assert scores == made.score(made.federation(data.tail(100).drop(columns="good")), truth)


def test_training_rows_are_embedded_as_if_they_were_new():
    made = represent()
    assert np.isfinite(made.transform()).all(axis=None)
    pd.testing.assert_frame_equal(made.transform(made.federation(table())), made.transform())


def test_a_label_by_itself_is_the_same_as_one_that_is_taken_from_a_silo():
    data = table()
    apart = represent(ss.simulate(data.drop(columns="good"), SPLITS[2]), data["good"])
    assert whole_of(apart) == whole_of(represent())
    assert "good" not in [name for schema in represent().schemas.values() for name in schema.names]


def test_a_number_is_predicted():
    made = represent(label="debt", options={"finetuning_epochs": 3})
    fed = made.federation(table())
    assert set(made.score(fed)) == {"r2", "mean_absolute_error"}
    assert made.predict(fed).between(-50, 50).all()
    few = made.federation(table().head(3).assign(debt=[1.0, 0.0, 1.0]))
    assert made.score(few) == made.score(few, [1, 0, 1])  # read as categories
    with pytest.raises(SchemaError, match="is a number, as in training"):
        made.score(few, ["a", "b", "a"])
    with pytest.raises(ConfigError, match="Probabilities are for classes"):
        made.predict_proba(fed)


def test_whole_numbers_of_few_values_are_classes():
    made = represent(label="visits")
    assert made.label is not None and made.label.classes == tuple(sorted(set(table()["visits"])))
    assert made.predict(made.federation(table())).isin(made.label.classes).all()


def test_a_class_that_training_did_not_know_is_never_right():
    made = represent()
    data = table().assign(good=["maybe"] * 10 + ["yes", "no"] * 15)
    scores = made.score(made.federation(data))
    assert scores["accuracy"] <= 0.75 and 0 <= scores["roc_auc"] <= 1


def test_without_fine_tuning_nothing_is_predicted_and_no_label_is_needed():
    made = represent(ss.simulate(table(), SILOS), None, options={"finetune": False})
    assert made.transform().shape == (40, 6)
    with pytest.raises(ConfigError, match="needs a trained label"):
        made.predict(made.federation(table()))
    with pytest.raises(ConfigError, match="Fine-tuning needs a label"):
        represent(ss.simulate(table(), SILOS), None)


@pytest.mark.parametrize("design", DESIGNS)
def test_a_saved_representation_is_the_same(tmp_path, design):
    made = represent(options={"design": design})
    new = made.federation(table(30))
    made.save(tmp_path / "r")
    again = ss.Representation.load(tmp_path / "r")
    pd.testing.assert_frame_equal(again.transform(new), made.transform(new))
    pd.testing.assert_frame_equal(again.transform(), made.transform())
    pd.testing.assert_series_equal(again.predict(again.federation(table(30))), made.predict(new))
    assert (again.label, again.config, again.schemas) == (made.label, made.config, made.schemas)
    (tmp_path / "r").write_bytes(pack({"form": "something else"}))
    with pytest.raises(StorageError, match="not a silosynth representation"):
        ss.Representation.load(tmp_path / "r")


@pytest.mark.parametrize("silos", [1, 2, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("design", DESIGNS)
def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(design, silos):
    data = table(24)
    fed = ss.simulate(data.drop(columns="good"), SPLITS[silos])
    options = {"design": design, "pretraining_epochs": 1, "finetuning_epochs": 1}
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    first, second, other = (represent(fed, data["good"], seed=seed, options=options) for seed in (1, 1, 2))
    assert whole_of(first) == whole_of(second) != whole_of(other)
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])


def test_an_interrupted_run_resumes_to_the_same_bytes_and_recognises_its_labels(tmp_path):
    def interrupt(progress) -> None:
        if (progress.stage, progress.done) == ("finetuning", 1):
            raise KeyboardInterrupt

    whole = represent()
    with pytest.raises(KeyboardInterrupt):
        represent(folder=tmp_path, progress=interrupt)
    with pytest.raises(StorageError, match="another"):
        represent(ss.simulate(table().assign(good=["no", "yes"] * 20), SILOS), folder=tmp_path, resume=True)
    again = represent(folder=tmp_path, resume=True)
    assert whole_of(again) == whole_of(whole)
    assert again.ledger == whole.ledger


def test_the_ledger_says_what_leaves_silos_and_labels_never_do():
    ledger = represent(options={"validation": 0.3}).ledger
    said = {record["type"].rpartition(".")[2]: record["privacy"] for record in ledger if record["to"] == "coordinator"}
    assert said["Embedded"] == Release.ROWS.value and said["Reconstructed"] == Release.GRADIENTS.value
    assert said["GuestPrepared"] == Release.COUNTS.value and said["ReconstructionLoss"] == Release.STATISTICS.value
    asked = {record["type"].rpartition(".")[2] for record in ledger if record["from"] == "coordinator"}
    training = {"PrepareGuest", "Embed", "Reconstruct", "ApplyGradient"}
    assert asked == training | {"EmbedRows", "EvaluateRows", "StoreWeights", "EndPhase"}


@pytest.mark.parametrize("design", DESIGNS)
def test_no_raw_value_is_sent(design):
    divided, heard = secret_federation(horizontal=False), []
    streams, config = Streams(0), configured(design=design, validation=0.2)
    taps: dict[str, Tap] = {}
    for silo, seat in seats(divided.roster, streams.child("seats")).items():
        own = divided.tables[silo], divided.schemas[silo], seat, streams.child(silo), torch.device("cpu")
        party = TabVFLSilo(*own, config)
        taps[silo] = Tap(silo, party, heard)
    labels = Labels(torch.arange(divided.rows) % 2, 2)
    with InProcess(taps) as link:
        talk = lambda _: coordinate(divided.roster, config, labels, streams, torch.device("cpu"))  # noqa: E731
        drive(talk, link, Ledger())
    assert {one.silo for one in heard if isinstance(one, Heard)} == {"bank", "clinic"}
    assert leaks(heard, secrets(frame())) == {}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"label": "goood"}, "Did you mean 'good'"),
        ({"preset": "best"}, "no such preset"),
        ({"options": {"net.latents": 3}}, "Did you mean 'latent'"),
        ({"runtime": "process"}, "no such runtime"),
        ({"limit": 5.0}, "time limit"),
        ({"options": {"missing": "omit"}}, "missing must be one of 'cache', 'zeros', 'wait', 'fail'"),
    ],
)
def test_wrong_arguments_are_refused_by_name(options, words):
    with pytest.raises(ConfigError, match=words):
        represent(**options)


def test_labels_and_rows_that_cannot_be_learnt_from_are_refused():
    data = table()
    with pytest.raises(DataError, match="missing in 2"):
        represent(ss.simulate(data.assign(good=[None, None, *data["good"][2:]]), SILOS))
    with pytest.raises(DataError, match="at least two values"):
        represent(ss.simulate(data.assign(good="yes"), SILOS))
    with pytest.raises(SchemaError, match="a category or a number"):
        represent(label=pd.Series(pd.Timestamp("2024-01-01") + pd.to_timedelta(range(40), unit="D")))
    with pytest.raises(DataError, match="39 for 40 rows"):
        represent(label=data["good"].head(39))
    with pytest.raises(ConfigError, match="besides the label"):
        represent(ss.simulate(data, {"a": ["city"], "b": ["good"]}))
    with pytest.raises(ConfigError, match="different columns of the same rows"):
        represent(ss.simulate(data, rows={"a": range(20), "b": range(20, 40)}))
    with pytest.raises(ConfigError, match="no such representation"):
        ss.represent("tabvlf", ss.simulate(data, SILOS), "good")


def test_rows_that_do_not_fit_are_refused():
    made, data = represent(), table()
    with pytest.raises(SchemaError, match="'b' is not there"):
        made.transform(ss.simulate(data, {"a": SILOS["a"]}))
    with pytest.raises(SchemaError, match="lacks a column"):
        made.transform(ss.simulate(data, {"a": ["city"], "b": SILOS["b"]}))
    with pytest.raises(SchemaError, match="as in training"):
        made.transform(ss.simulate(data, SILOS, {"visits": "categorical"}))
    with pytest.raises(ConfigError, match="Scores need labels"):
        made.score(made.federation(data.drop(columns="good")))


@pytest.mark.parametrize(
    "columns",
    [
        {"x": [1, 2, 1], "y": ["a", "b", "a"]},
        {"x": [5] * 30, "y": [None] * 30},
        {"x": [1.5] * 29 + [2.5], "y": ["a"] * 30},
        {"x": pd.Series([None] * 25 + [3.25] * 5, dtype="Float64"), "y": [0.25, 0.5, 4.0] * 10},
    ],
    ids=["three rows", "constant and all missing", "one odd value", "mostly missing"],
)
@pytest.mark.filterwarnings("ignore::silosynth.data.infer.ColumnWarning")
def test_poor_tables_are_embedded(columns):
    data = pd.DataFrame(columns)
    labels = [i % 2 for i in range(len(data))]
    made = represent(ss.simulate(data, {"a": ["x"], "b": ["y"]}), pd.Series(labels, name="odd"))
    assert np.isfinite(made.transform()).all(axis=None)


@pytest.mark.slow
@pytest.mark.parametrize("design", DESIGNS)
def test_one_process_per_silo_gives_the_same_bytes(design):
    options = {"design": design, "validation": 0.3, "absence": 0.4}
    here, apart = represent(options=options), represent(options=options, runtime="processes")
    assert whole_of(apart) == whole_of(here)
    assert apart.ledger == here.ledger


def children() -> list[psutil.Process]:
    found = [one for one in psutil.Process().children() if "silo-process" in one.cmdline()]
    return sorted(found, key=lambda child: child.pid)


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["cache", "zeros"])
def test_training_continues_without_a_stopped_silo_which_comes_back(missing):
    """Training continues; the silo rejoins at the current batch, and takes part to the end."""

    def watch(progress) -> None:
        if progress.stage == "finetuning" and progress.done == 2:
            os.kill(children()[-1].pid, signal.SIGSTOP)
        if progress.stage == "finetuning" and progress.done == 6:
            os.kill(children()[-1].pid, signal.SIGCONT)
        if progress.stage == "finetuning" and progress.done > 6 and len(told) < 2:
            time.sleep(0.5)  # until its late reply is in

    options = {"finetuning_epochs": 60, "pretraining_epochs": 1, "missing": missing, "validation": 0.3, "patience": 99}
    with pytest.warns(PartyLostWarning) as told:
        made = represent(options=options, runtime="processes", limit=20.0, progress=watch)
    texts = [str(one.message) for one in told]
    assert len(texts) == 2
    assert "'b'" in texts[0] and "did not answer within 20 s" in texts[0] and "takes part again" in texts[1]
    assert np.isfinite(made.transform()).all(axis=None)
    told_by = {silo: [r["step"] for r in made.ledger if r["from"] == silo] for silo in "ab"}
    assert len(told_by["a"]) > len(told_by["b"]) and told_by["a"][-1] == told_by["b"][-1]


@pytest.mark.slow
def test_a_silo_that_is_stopped_is_waited_for_to_the_same_bytes():
    def watch(progress) -> None:
        if (progress.stage, progress.done) == ("finetuning", 1):
            silo = children()[-1]
            silo.suspend()
            timers.append(threading.Timer(15.0, silo.resume))
            timers[0].start()

    timers: list[threading.Timer] = []
    options = {"missing": "wait"}
    with pytest.warns(PartyLostWarning, match=r"'b'.*did not answer within 6 s\. The run waits for it"):
        made = represent(options=options, runtime="processes", limit=6.0, progress=watch, checkpoint_every=999)
    assert whole_of(made) == whole_of(represent(options=options))


@pytest.mark.slow
def test_a_silo_that_is_stopped_ends_a_run_that_needs_all():
    def watch(progress) -> None:
        if (progress.stage, progress.done) == ("finetuning", 1):
            os.kill(children()[-1].pid, signal.SIGSTOP)

    with pytest.raises(PartyLostError, match="did not answer within 20 s"):
        represent(options={"missing": "fail"}, runtime="processes", limit=20.0, progress=watch)


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["fail", "cache"])
def test_a_silo_that_is_killed_is_named_and_the_run_resumes_to_the_same_bytes(tmp_path, missing):
    """With the cache training continues to the end of the phase, where all silos are needed."""

    def kill(progress) -> None:
        seen.append((progress.stage, progress.done))
        if seen[-1] == ("finetuning", 1):
            children()[-1].kill()

    seen: list[tuple[str, int]] = []
    options = {"missing": missing, "finetuning_epochs": 4}
    whole = represent(options=options)
    how = {"options": options, "runtime": "processes", "folder": tmp_path}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PartyLostWarning)
        with pytest.raises(PartyLostError, match="Silo 'b'"):
            represent(progress=kill, **how)
    assert seen[-1] == ("finetuning", 4 if missing == "cache" else 1)
    again = represent(resume=True, **how)
    assert whole_of(again) == whole_of(whole)
    assert again.ledger == whole.ledger
