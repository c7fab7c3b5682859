"""GDTS driven by hand: weights, averages and gradients against slow versions, and who learns what."""

from __future__ import annotations

import math
import os
import signal
import time

import numpy as np
import pandas as pd
import pytest
import torch

import silosynth as ss
from silosynth.algorithms.gdts import protocol as gdts
from silosynth.algorithms.gdts.networks import figure_4, silo_weights, weights_of
from silosynth.algorithms.gdts.options import PRESETS
from silosynth.algorithms.gdts.silo import GDTSSilo
from silosynth.catalog import ALGORITHMS
from silosynth.core.conversation import Exchange
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import Message, Missing
from silosynth.core.streams import Streams
from silosynth.encoders.column import CategoricalEncoder
from silosynth.encoders.federated import Merged
from silosynth.models.gan import one_hot
from silosynth.models.training import flatten
from silosynth.privacy.aggregation import Masked
from silosynth.privacy.masker import Masker
from silosynth.privacy.sealed import seats
from silosynth.runtime.driver import PartyLostWarning
from silosynth.runtime.wire import decode, encode, pack
from silosynth.simulation import training
from silosynth.simulation.silos import spawn

CPU = torch.device("cpu")
SIZES = {
    "generator": "ctgan",
    "ctgan.generator": [10],
    "ctgan.critic": [10],
    "ctgan.noise": 5,
    "ctgan.batch": 16,
    "ctgan.epochs": 2,
    "ctgan.critic_steps": 2,
    "ctgan.least_rounds": 6,
    "ctgan.encoders.modes": 2,
    "diffusion.steps": 20,
    "diffusion.hidden": [16],
    "diffusion.latent.width": 16,
    "diffusion.latent.steps": 12,
    "diffusion.latent.sample_steps": 3,
    "rounds": 3,
    "epsilon": 50.0,
}
ROWS = {"a": range(50), "b": range(50, 110), "c": range(110, 140)}


def table(rows: int = 140) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    return pd.DataFrame(
        {
            "city": pd.Categorical(rng.choice(["Bern", "Oslo", "Rome"], rows, p=[0.5, 0.3, 0.2])),
            "income": rng.normal(50, 9, rows),
            "visits": rng.poisson(40, rows).astype("int32"),
            "ill": rng.random(rows) < 0.3,
            "since": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, rows), unit="D"),
        }
    )


class Play:
    """Silos and a coordinator, driven by hand; every message passes through the wire format, and is recorded."""

    def __init__(self, data: pd.DataFrame | None = None, rows=None, **options) -> None:
        self.federation = ss.simulate(table() if data is None else data, rows=ROWS if rows is None else rows)
        self.roster = self.federation.roster
        self.config = ALGORITHMS["gdts"].configure("fast", SIZES | options)
        self.streams = Streams(0).child("coordinator")
        seat = seats(self.roster, Streams(0).child("seats"))
        self.silos = {
            name: GDTSSilo(held, self.federation.schemas[name], seat[name], Streams(0).party(name), CPU, self.config)
            for name, held in self.federation.tables.items()
        }
        self.said: list[tuple[str, Message, Message]] = []
        self.lost = lambda name, ask: False  # whose replies never arrive

    def drive(self, talk):
        got = None
        while True:
            try:
                step = talk.send(got)
            except StopIteration as end:
                return end.value
            got = {}
            if isinstance(step, Exchange):
                for name, ask in step.asks.items():
                    reply = decode(encode(self.silos[name].answer(decode(encode(ask)))))
                    self.said.append((name, ask, reply))
                    assert step.missing or not self.lost(name, ask)
                    if not self.lost(name, ask):
                        got[name] = reply

    def begin(self) -> gdts.MergedColumns:
        return self.drive(gdts._begin(self.roster, self.config, self.streams))

    def train(self) -> dict:
        return self.drive(gdts.coordinate(self.roster, self.config, self.streams, CPU))

    def model(self, merged: gdts.MergedColumns):
        return merged.model(self.config, self.streams, CPU)

    def asked(self, kind: type) -> list[tuple[str, Message, Message]]:
        return [said for said in self.said if isinstance(said[1], kind)]

    def rounds(self) -> list[dict[str, torch.Tensor]]:
        """What each silo answered `Send` with, round by round."""
        found: list[dict[str, torch.Tensor]] = [{} for _ in range(self.config.rounds)]
        for name, ask, reply in self.asked(gdts.SendWeights):
            found[ask.part][name] = reply.weights_W
        return found


def fit(data=None, rows=None, schema=None, seed=None, **options) -> ss.Model:
    federation = ss.simulate(table() if data is None else data, rows=ROWS if rows is None else rows, schema=schema)
    return ss.fit("gdts", federation, preset="fast", options=SIZES | options, progress=False, seed=seed)


# Weights.


def column_of(counts=None, drawn=None) -> Merged:
    encoder = CategoricalEncoder("x", "str", ("u", "v"), True, False, False)
    if counts is not None:
        return Merged(encoder, torch.tensor(counts), None)
    return Merged(encoder, torch.zeros(len(drawn), 1), tuple(np.array(part, dtype=float) for part in drawn))


def test_the_papers_weights_are_those_computed_by_hand():
    """Three silos of 10, 10 and 20 rows; a category with counts, and a number that is 0 or 4."""
    columns = [column_of(counts=[[10, 0], [5, 5], [0, 20]]), column_of(drawn=[[0, 0], [0, 4], [4, 4, 4, 4]])]

    def jsd(p, q):
        m = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
        both = [sum(a * math.log2(a / c) for a, c in zip(x, m, strict=True) if a > 0) for x in (p, q)]
        return math.sqrt(sum(both) / 2)

    of_category = [jsd(p, (15 / 40, 25 / 40)) for p in ((1, 0), (0.5, 0.5), (0, 1))]
    of_number = [4 * 5 / 8, 4 * 1 / 8, 4 * 3 / 8]  # of all eight drawn, three are 0: |F - G| between 0 and 4, times 4
    step_1 = [[s / sum(column) for s in column] for column in (of_category, of_number)]
    step_2 = [step_1[0][i] + step_1[1][i] for i in range(3)]
    step_3 = [n / 40 * (1 - ss_i / sum(step_2)) for n, ss_i in zip((10, 10, 20), step_2, strict=True)]
    step_4 = [math.exp(sd) / sum(math.exp(x) for x in step_3) for sd in step_3]
    assert silo_weights("paper", columns, [10, 10, 20]) == pytest.approx(step_4, abs=1e-9)


def test_silos_that_do_not_differ_are_equally_distant():
    same = [column_of(counts=[[3, 7]] * 3), column_of(drawn=[[1, 1]] * 3), column_of(drawn=[[], [], []])]
    for kind in ("paper", "sharp", "rows", "equal"):
        assert silo_weights(kind, same, [5, 5, 5]) == pytest.approx([1 / 3] * 3)
    assert np.isfinite(figure_4(np.zeros((3, 2)), np.array([0.2, 0.3, 0.5]))).all()
    assert silo_weights("sharp", same, [10, 20, 70]) == pytest.approx([0.1, 0.2, 0.7])


@pytest.mark.parametrize("kind", ["paper", "sharp", "rows", "equal"])
def test_weights_of_one_silo_or_a_silo_without_rows_sum_to_one(kind):
    assert silo_weights(kind, [column_of(counts=[[3, 7]])], [10]) == [1.0]
    assert sum(silo_weights(kind, [column_of(counts=[[0, 0], [0, 9]])], [-3, 9])) == pytest.approx(1)


@pytest.mark.parametrize(("kind", "most", "least"), [("sharp", 0.2, 0.0), ("rows", 0.81, 0.79), ("paper", 0.4, 0.2)])
def test_a_silo_of_one_repeated_row_has_the_weight_of_the_rule(kind, most, least):
    """The paper's case: four silos with similar rows, and one that repeats a row."""
    rows = {name: range(150 * i, 150 * i + 150) for i, name in enumerate("abcd")} | {"odd": [7] * 2400}
    found = Play(table(600), rows, weights=kind, epsilon=math.inf).begin().weights
    assert least <= found[-1] <= most and sum(found) == pytest.approx(1)
    assert max(found[:-1]) < 1.5 * min(found[:-1])


@pytest.mark.parametrize("kind", ["paper", "sharp", "rows"])
def test_copies_of_one_table_weigh_the_same(kind):
    found = Play(rows={name: range(140) for name in "abcde"}, weights=kind, epsilon=math.inf).begin().weights
    assert found == pytest.approx([0.2] * 5, rel=0.1)


# Mode "fl".


def test_all_silos_start_from_one_model_that_is_the_coordinators():
    play = Play()
    merged = play.begin()
    fresh = play.model(merged)
    play = Play()
    play.train()
    first = [ask.weights_W for _, ask, _ in play.asked(gdts.TrainPart) if ask.part == 0]
    assert len(first) == 3
    assert all(torch.equal(start, weights_of(fresh.given(0, 3))) for start in first)


@pytest.mark.parametrize("generator", ["ctgan", "diffusion"])
def test_the_average_is_the_weighted_mean_of_the_silos_weights(generator):
    play = Play(generator=generator)
    state = play.train()
    merged = gdts.MergedColumns.restored(state)
    model, weight = play.model(merged), dict(zip(play.roster, state["weights"], strict=True))
    model.restore(state["model"])
    for number, said in enumerate(play.rounds()):
        mean = sum(weight[name] * said[name].double() for name in said) / sum(weight[name] for name in said)
        later = [ask.weights_W for _, ask, _ in play.asked(gdts.TrainPart) if ask.part == number + 1]
        after = later[0] if later else weights_of(model.given(number, 3))
        start = len(weights_of(model.given(number, 3))) - len(mean)  # what was trained before stands in front
        kept = len(mean)
        if generator == "ctgan" and not later:  # of the last average, the generator is the part that is kept
            kept = len(weights_of({"generator": model.generator.network}))
        torch.testing.assert_close(after[start : start + kept], mean[:kept].float(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("generator", ["ctgan", "diffusion"])
def test_averaging_one_silo_is_training_in_one_place(generator):
    play = Play(rows={"a": range(140)}, generator=generator)
    state = play.train()
    silo, alone = play.silos["a"], Play(rows={"a": range(140)}, generator=generator)
    merged = alone.begin()
    central, first = alone.silos["a"].model, alone.model(merged)
    for name in ("generator", "critic") if generator == "ctgan" else ("coder", "moments", "flow"):
        networks = [getattr(model, name) for model in (central, first)]
        central_network, first_network = (getattr(network, "network", network) for network in networks)
        central_network.load_state_dict(first_network.state_dict())
    for part in range(3):
        central.train(part, 3)
    assert all(torch.equal(weights_of(central.given(p, 3)), weights_of(silo.model.given(p, 3))) for p in range(3))
    trained = play.model(merged)
    trained.restore(state["model"])
    for one, other in zip(central.sample(9, Streams(1)), silo.model.sample(9, Streams(1)), strict=True):
        assert torch.equal(one, other)
    if generator == "ctgan":
        assert torch.equal(
            flatten(trained.generator.network.state_dict()), flatten(central.generator.network.state_dict())
        )


def test_moments_of_the_optimiser_stay_in_their_silo():
    play = Play(rounds=2)
    state = play.train()
    moments = [silo.state()["model"]["generator"]["moments"]["0"]["exp_avg"] for silo in play.silos.values()]
    assert not torch.equal(moments[0], moments[1]) and not torch.equal(moments[1], moments[2])
    assert state["model"]["generator"]["moments"] is None
    sent = {len(reply.weights_W) for *_, reply in play.asked(gdts.SendWeights)}
    model = play.silos["a"].model
    assert sent == {sum(len(flatten(network.state_dict())) for network in model.networks(0, 2).values())}


@pytest.mark.parametrize("generator", ["ctgan", "diffusion"])
def test_an_absent_silo_comes_back_to_the_current_average(generator):
    play = Play(generator=generator, rounds=8, participation=0.67, absence=0.3)
    state = play.train()
    weight, told = dict(zip(play.roster, state["weights"], strict=True)), {}
    for name, ask, _ in play.asked(gdts.TrainPart):
        told.setdefault(ask.part, {})[name] = ask.weights_W
    attended = [set(told[number]) for number in range(8)]
    assert all(1 <= len(there) <= 2 for there in attended)
    returns = [
        (n, name) for n in range(1, 8) for name in attended[n] - attended[n - 1] if any(name in a for a in attended[:n])
    ]
    assert returns
    for number, said in enumerate(play.rounds()):
        assert set(said) == attended[number]
        assert len({start.numpy().tobytes() for start in told[number].values()}) == 1
        if number < 7:
            mean = sum(weight[name] * said[name].double() for name in said) / sum(weight[name] for name in said)
            model = play.silos["a"].model
            first = len(weights_of(model.given(number, 8))) - len(mean)
            (start, *_) = told[number + 1].values()
            torch.testing.assert_close(start[first : first + len(mean)], mean.float(), rtol=1e-6, atol=1e-7)


def test_the_flow_is_learnt_on_latents_of_the_averaged_autoencoder_whoever_was_absent():
    """Otherwise latents would mean something different to each silo, and to the coordinator's decoder."""
    play = Play(generator="diffusion", rounds=8, absence=0.4)
    state = play.train()
    flows = {name for name, ask, _ in play.asked(gdts.TrainPart) if ask.part > 3}
    assert len(flows) >= 2
    final = flatten(state["model"]["coder"])
    for name in flows:
        model = play.silos[name].model
        assert torch.equal(flatten(model.coder.state_dict()), final)
        assert torch.equal(model.moments.mean, state["model"]["moments"]["mean"])
        assert torch.equal(model.flow.mean, state["model"]["moments"]["mean"])


@pytest.mark.parametrize("generator", ["ctgan", "diffusion"])
def test_secure_sums_give_the_same_model_and_nobodys_own(generator):
    options = {"generator": generator, "rounds": 3 if generator == "diffusion" else 1}
    plain, secure = Play(**options), Play(secure=True, **options)
    one, other = plain.train(), secure.train()
    name = "generator" if generator == "ctgan" else "coder"
    weights = [
        flatten(state["model"][name]["network"] if name == "generator" else state["model"][name])
        for state in (one, other)
    ]
    torch.testing.assert_close(*weights, rtol=0, atol=1e-6)
    replies = [type(reply) for *_, reply in secure.said]
    assert gdts.LocalWeights not in replies and replies.count(Masked) == 3 * options["rounds"]


def test_secure_sums_of_two_are_refused():
    with pytest.raises(ConfigError, match=r"at least 3 \(got: 2\)"):
        fit(rows={"a": range(70), "b": range(70, 140)}, secure=True)


def test_rounds_of_secure_sums_have_enough_silos_whoever_is_absent():
    rows = {name: range(30 * i, 30 * i + 30) for i, name in enumerate("abcd")}
    play = Play(rows=rows, secure=True, participation=0.25, absence=0.9, rounds=4)
    play.train()
    for number in range(4):
        assert len([ask for _, ask, _ in play.asked(gdts.TrainPart) if ask.part == number]) == 3


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"mode": "md"}, marks=pytest.mark.slow),  # as resumed by the contracts
        {"secure": True, "participation": 0.5, "absence": 0.3},
        pytest.param({"secure": True}, marks=pytest.mark.slow),
        pytest.param({"participation": 0.5, "absence": 0.3}, marks=pytest.mark.slow),
        pytest.param({"generator": "diffusion", "rounds": 5}, marks=pytest.mark.slow),
    ],
    ids=["md", "secure with absence", "secure", "absence", "diffusion"],
)
def test_training_resumes_to_the_same_bytes_after_ctrl_c(tmp_path, options):
    def stop(progress):
        if progress.done >= 2:
            raise KeyboardInterrupt

    federation = ss.simulate(table(), rows=ROWS)
    more = {"preset": "fast", "options": SIZES | options, "folder": tmp_path, "checkpoint_every": 0, "seed": 0}
    with pytest.raises(KeyboardInterrupt):
        ss.fit("gdts", federation, progress=stop, **more)
    again = ss.fit("gdts", federation, progress=False, resume=True, **more)
    whole = fit(seed=0, **options)
    assert pack(again.coordinator) == pack(whole.coordinator)
    assert again.sample(20).equals(whole.sample(20))


# Lost silos, in separate processes.


FOUR = {"a": range(40), "b": range(40, 70), "c": range(70, 110), "d": range(110, 140)}


def fit_apart(monkeypatch, happens, **options) -> ss.Model:
    """``happens`` is called with the link before each round."""
    links = []
    monkeypatch.setattr(training, "spawn", lambda *given: links.append(spawn(*given)) or links[0])
    return ss.fit(
        "gdts", ss.simulate(table(), rows=FOUR), preset="fast", options=SIZES | options, runtime="processes",
        progress=lambda progress: happens(links[0], progress.done),
    )  # fmt: skip


def replies_of(model: ss.Model, kind: type[Message]) -> dict[str, int]:
    said = [record["from"] for record in model.ledger if record["type"].endswith(f".{kind.__name__}")]
    return {silo: said.count(silo) for silo in FOUR}


@pytest.mark.slow
def test_training_continues_without_lost_silos_and_with_those_that_come_back(monkeypatch, tmp_path):
    """Silo d is killed before round 1. Silo c is stopped in round 2, and continues before round 4."""

    def happens(link, number):
        if number == 1:
            os.kill(link.pids()["d"], signal.SIGKILL)
        if number == 2:
            os.kill(link.pids()["c"], signal.SIGSTOP)
            link._limit = 3.0
        if number == 3:
            link._limit = None
            assert sorted(link.lost()) == ["c", "d"]
        if number == 4:
            os.kill(link.pids()["c"], signal.SIGCONT)
            while "c" in link.lost():
                time.sleep(0.02)

    with pytest.warns(PartyLostWarning) as told:
        model = fit_apart(monkeypatch, happens, rounds=6)
    texts = [str(warning.message) for warning in told]
    assert len(texts) == 3
    assert "'d'" in texts[0] and "SIGKILL" in texts[0]
    assert "'c'" in texts[1] and "within 3 s" in texts[1]
    assert "'c'" in texts[2] and "takes part again" in texts[2]
    assert replies_of(model, gdts.LocalWeights) == {"a": 6, "b": 6, "c": 4, "d": 1}
    assert replies_of(model, Missing) == {"a": 0, "b": 0, "c": 1, "d": 1}
    model.save(tmp_path / "model")
    again = ss.load(tmp_path / "model")
    assert again.parts == {silo: {} for silo in FOUR}
    assert again.sample(9).equals(model.sample(9))
    assert "Missing" in str(again.describe()["sent"])


@pytest.mark.slow
def test_secure_sums_continue_without_a_killed_silo(monkeypatch):
    def happens(link, number):
        if number == 1:
            os.kill(link.pids()["d"], signal.SIGKILL)

    with pytest.warns(PartyLostWarning, match=r"'d'.*SIGKILL"):
        model = fit_apart(monkeypatch, happens, secure=True)
    assert replies_of(model, Masked) == {"a": 3, "b": 3, "c": 3, "d": 1}
    assert len(model.sample(9)) == 9


def test_silos_keep_no_part_of_the_model():
    assert not ALGORITHMS["gdts"].parts
    play = Play()
    play.train()
    assert all(silo.trained() == {} for silo in play.silos.values())


@pytest.mark.parametrize("policy", ["omit", "wait", "fail"])
def test_each_exchange_states_what_happens_to_lost_silos(policy):
    """All silos are needed before the first round; afterwards none, if the policy continues without them."""
    play, steps = Play(generator="ctgan"), []
    led = ALGORITHMS["gdts"].under(policy)(play.roster, play.config, play.streams, CPU)

    def noted():
        got = None
        while True:
            try:
                step = led.send(got)
            except StopIteration as end:
                return end.value
            steps.extend([step] if isinstance(step, Exchange) else [])
            got = yield step

    assert pack(play.drive(noted())) == pack(Play(generator="ctgan").train())
    rounds = [isinstance(next(iter(step.asks.values())), gdts.TrainPart | gdts.SendWeights) for step in steps]
    assert rounds[0] is False and rounds.count(True) == 2 * play.config.rounds
    assert [step.missing for step in steps] == [policy == "omit" and one for one in rounds]
    assert [step.wait for step in steps] == [policy != "fail" and not step.missing for step in steps]


@pytest.mark.parametrize("generator", ["ctgan", "diffusion"])
def test_the_remaining_silos_are_averaged_whoever_is_lost_and_whenever(generator):
    """A silo lost while it trains is not asked to send; one lost while it sends is left out of the average."""
    play = Play(generator=generator)
    lost = {("a", gdts.TrainPart, 0), ("c", gdts.SendWeights, 1)}
    play.lost = lambda name, ask: (name, type(ask), getattr(ask, "part", None)) in lost
    state = play.train()
    assert [set(said) for said in play.rounds()] == [{"b", "c"}, {"a", "b", "c"}, {"a", "b", "c"}]
    weight = dict(zip(play.roster, state["weights"], strict=True))
    said = play.rounds()[1]
    mean = (weight["a"] * said["a"].double() + weight["b"] * said["b"].double()) / (weight["a"] + weight["b"])
    start = next(ask.weights_W for _, ask, _ in play.asked(gdts.TrainPart) if ask.part == 2)
    first = len(weights_of(play.silos["b"].model.given(1, 3))) - len(mean)  # what was trained before stands in front
    torch.testing.assert_close(start[first : first + len(mean)], mean.float(), rtol=1e-6, atol=1e-7)


def test_secure_sums_open_whoever_is_lost_and_begin_anew_with_who_comes_back(monkeypatch):
    """A silo that missed a part is asked whether it is back; then none keeps more of earlier parts than weights."""
    play, masked, real = Play(generator="ctgan", rows=FOUR, secure=True, rounds=4), [], Masker.mask
    lost = {("a", gdts.TrainPart, 0), ("a", gdts.AskBack, 1), ("c", gdts.SendWeights, 2)}
    play.lost = lambda name, ask: (name, type(ask), getattr(ask, "part", None)) in lost

    def mask(masker, update_W, weight, number, told):
        masked.append((number, masker._seat.name, update_W.double(), weight))
        return real(masker, update_W, weight, number, told)

    monkeypatch.setattr(Masker, "mask", mask)
    play.train()
    asks = [ask for name, ask, _ in play.asked(gdts.TrainPart) if name == "b"]
    assert [ask.anew for ask in asks] == [False, False, True, False]
    assert [(name, ask.part) for name, ask, _ in play.asked(gdts.AskBack)] == [("a", 1), ("a", 2)]
    for ask, arrived in zip(asks[1:], ("bcd", "bcd", "abd"), strict=True):
        own = {name: (w, of_W) for number, name, of_W, w in masked if number == ask.part - 1 and name in arrived}
        mean_W = sum(w * of_W for w, of_W in own.values()) / sum(w for w, _ in own.values())
        torch.testing.assert_close(ask.weights_W, mean_W.float(), rtol=0, atol=1e-6)
    moments = [silo.model.generator.optimizer.state_dict()["state"] for silo in play.silos.values()]
    assert len({float(of[0]["step"]) for of in moments}) == 1  # of the last two parts


@pytest.mark.parametrize(("secure", "says"), [(False, "at least one silo.*Resume"), (True, "At least 3 silos")])
def test_a_round_without_silos_is_an_error(secure, says):
    play = Play(secure=secure)
    play.lost = lambda name, ask: isinstance(ask, gdts.TrainPart) and ask.part == 1
    with pytest.raises(ProtocolError, match=says):
        play.train()


# Mode "md".


def test_frequencies_are_weighted_as_models_are():
    counts = torch.tensor([[10, 0, 4], [0, 30, 0]])
    assert gdts.MergedColumns((), counts, [10, 30], [0.25, 0.75]).counts().tolist() == [
        10,
        30,
        4,
    ]  # by rows: their frequency
    assert gdts.MergedColumns((), counts, [10, 30], [0.9, 0.1]).counts().tolist() == [
        36,
        4,
        15,
    ]  # of 40 rows, 9 in 10 as here


def critics(play: Play) -> dict[str, torch.Tensor]:
    return {name: flatten(silo.model.critic.network.state_dict()).clone() for name, silo in play.silos.items()}


def test_the_generators_gradient_is_that_of_the_mean_loss_in_one_graph():
    play = Play(mode="md", **{"ctgan.pac": 2})
    merged = play.begin()
    split, whole = play.model(merged), play.model(merged)
    laws = [split.law_of(counts) for counts in merged.counts_PK]
    masks = {name: [] for name in play.roster}
    for name, silo in play.silos.items():
        network = silo.model.critic.network
        network.masks = lambda *x, _m=network.masks, _n=name: masks[_n].append(_m(*x)) or masks[_n][-1]
    for gan in (split, whole):
        gan.generator.network.train()
    streams = Streams(5)
    play.drive(gdts._md_step(play.roster, play.config, split, laws, 0, streams))

    draw, pick = streams.child("noise").torch(), streams.child("conditions").torch()
    losses = []
    for name, law in zip(play.roster, laws, strict=True):
        *before, given = [law.draw(16, pick) for _ in range(play.config.ctgan.critic_steps + 1)]
        for earlier in before:
            whole.made(earlier, draw)
        out, made = whole.made(given, draw)
        critic = play.silos[
            name
        ].model.critic.network  # as its steps left it; `masks` are those of its last forward pass
        judged = critic(torch.cat([made, one_hot(given, whole.width)], dim=1).reshape(8, -1), masks[name][-1])
        named = [out[i, : whole.shape.levels] for i in range(16)]
        widths = list(whole.shape.widths)
        unmet = []
        for logits, position in zip(named, whole.level_of_P[given].tolist(), strict=True):
            laws_of_row = torch.cat([part.log_softmax(dim=0) for part in logits.split(widths)])
            unmet.append(-laws_of_row[position])
        losses.append(-judged.mean() + torch.stack(unmet).mean())
    torch.stack(losses).mean().backward()
    for (name, one), other in zip(
        split.generator.network.named_parameters(), whole.generator.network.parameters(), strict=True
    ):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
    asks = [ask for _, ask, _ in play.asked(gdts.TeachCritic)]
    assert all(ask.fake_EBW.shape == (2, 16, whole.shape.size) for ask in asks)


@pytest.mark.parametrize("silos", [2, 3, 5])
def test_critics_move_around_the_circle_and_never_stay(silos):
    play = Play(rows={f"s{i}": range(20 * i, 20 * i + 20) for i in range(silos)}, mode="md")
    play.begin()
    seen = set()
    for number in range(3):
        before, streams = critics(play), Streams(2).child("swap", number)
        order = [play.roster.parties[i] for i in streams.numpy().permutation(silos)]
        play.drive(gdts._swap(play.roster, number, streams))
        after = critics(play)
        for here, there in zip(order, [*order[1:], order[0]], strict=True):
            assert here != there and torch.equal(after[there], before[here])
        seen.add(tuple(order))
    assert len(seen) > 1 or silos == 2


def test_the_coordinator_cannot_read_the_critics_that_it_relays():
    play = Play(mode="md")
    play.begin()
    own, said = critics(play), len(play.said)
    play.drive(gdts._swap(play.roster, 0, Streams(2)))
    relayed = [encode(message) for said in play.said[said:] for message in said[1:]]
    assert len(relayed) == 12
    for weights_W in own.values():
        assert not any(weights_W[i : i + 4].numpy().tobytes() in blob for blob in relayed for i in range(0, 80, 4))


def test_a_swap_takes_weights_and_leaves_the_moments():
    play = Play(mode="md")
    state = play.train()
    assert state["model"]["critic"] is None
    before = {name: silo.state()["model"]["critic"]["moments"] for name, silo in play.silos.items()}
    before = {name: pack(moments) for name, moments in before.items()}
    play.drive(gdts._swap(play.roster, 99, Streams(2)))
    for name, silo in play.silos.items():
        assert pack(silo.state()["model"]["critic"]["moments"]) == before[name]


@pytest.mark.parametrize(("every", "swaps"), [(1, 6), (2, 3), (4, 1)])
def test_critics_change_places_as_often_as_asked(every, swaps):
    play = Play(rows={"a": range(20), "b": range(20, 40)}, mode="md", swap_every=every)
    play.train()  # an epoch has one step here; six steps in all
    assert len({ask.swap for _, ask, _ in play.asked(gdts.SealCritic)}) == swaps


def test_an_envelope_of_another_swap_is_refused():
    play = Play(mode="md")
    play.begin()
    sealed = play.silos["a"].answer(gdts.SealCritic(3, "b"))
    with pytest.raises(ProtocolError, match="for the context that it was sealed for"):
        play.silos["b"].answer(gdts.TakeCritic(4, sealed.envelope))
    with pytest.raises(ProtocolError, match="addressed to it"):
        play.silos["c"].answer(gdts.TakeCritic(3, sealed.envelope))


# Options, and messages out of order.


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "md", "generator": "diffusion"}, "trains a GAN"),
        ({"mode": "md", "generator": "ctgan", "secure": True}, "mode = 'fl'"),
        ({"mode": "md", "generator": "ctgan", "participation": 0.5}, "participation"),
        ({"generator": "diffusion", "rounds": 2}, "3 rounds"),
        ({"participation": 1.5}, "participation"),
        ({"absence": 1.0}, "absence"),
        ({"delta": 0.5}, "delta"),
        ({"delta": -1e-9}, "delta"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"numbers": "noised", "epsilon": math.inf}, "finite epsilon"),
        ({"rounds": 0}, "rounds"),
        ({"swap_every": 0}, "swap_every"),
        ({"weights": "fair"}, "weights"),
        ({"ctgan.batch": 1}, "batch"),
    ],
)
def test_wrong_options_are_refused_by_name(options, words):
    with pytest.raises(ConfigError, match=words):
        ALGORITHMS["gdts"].configure("fast", options)


def test_the_papers_preset_is_the_papers():
    paper = PRESETS["paper"]
    assert (paper.mode, paper.generator, paper.weights, paper.numbers) == ("fl", "ctgan", "paper", "exact")
    assert (paper.rounds, paper.ctgan.epochs, paper.ctgan.batch, paper.ctgan.pac) == (500, 500, 500, 10)
    assert (paper.epsilon, paper.delta, paper.secure, paper.participation) == (1.0, 0.0, False, 1.0)
    assert paper.ctgan.encoders.modes == 10 and paper.ctgan.encoders.least_weight == 0.005
    assert not paper.ctgan.encoders.pool_rare


def test_what_comes_too_early_or_out_of_turn_is_refused():
    silo = Play().silos["a"]
    nothing = torch.zeros(0)
    for ask in (gdts.TrainPart(0, nothing), gdts.SendWeights(0, 1.0), gdts.SealCritic(0, "b")):
        with pytest.raises(ProtocolError, match="It awaits Describe"):
            silo.answer(ask)
        with pytest.raises(ProtocolError, match="comes too early"):
            silo._answer(ask)
    play = Play(generator="diffusion")
    play.begin()
    with pytest.raises(ProtocolError, match="It awaits TrainPart"):
        play.silos["a"].answer(gdts.SealCritic(0, "b"))
    with pytest.raises(ProtocolError, match="Only a GAN has a critic"):
        play.silos["a"]._answer(gdts.SealCritic(0, "b"))
    with pytest.raises(ProtocolError, match="A vector for this network"):
        play.silos["a"].answer(gdts.TrainPart(0, nothing))


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("fl", gdts.TakeEncoders), ("fl", gdts.TrainPart), ("fl", gdts.SendWeights), ("md", gdts.TakeCritic)],
)
def test_a_reply_of_a_wrong_type_ends_the_training_and_names_its_silo(mode, kind):
    play = Play(mode=mode)
    silo, wrong = play.silos["b"], gdts.Describe()
    answer = silo.answer
    silo.answer = lambda ask: wrong if isinstance(ask, kind) else answer(ask)
    with pytest.raises(ProtocolError, match="Silo 'b' replies"):
        play.train()


def test_columns_are_dealt_with_by_other_algorithms():
    with pytest.raises(ConfigError, match="rows of the same columns"):
        ss.fit("gdts", ss.simulate(table(), silos={"a": ["city"], "b": ["income"]}), progress=False)
