from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from silosynth.core.messages import Release
from silosynth.privacy.accounting import spent
from silosynth.privacy.events import DISCRETE_LAPLACE, THRESHOLDED, Event, gaussian_steps, unsound
from silosynth.privacy.statement import budget_rows, known_noise, mechanism, statement, totals


def event(
    epsilon: float, delta: float = 0.0, what: str = "counts", mechanism: str = DISCRETE_LAPLACE, **more: Any
) -> Event:
    return Event(mechanism, epsilon, delta, what, **more)


def record(sender: str, privacy: Release, *events: Event) -> dict[str, Any]:
    plain = {"step": 1, "from": sender, "to": "coordinator", "type": "Counts", "bytes": 9, "privacy": privacy.value}
    return plain | {"events": [asdict(each) for each in events]} if events else plain


def test_messages_are_summed_by_who_sent_what_to_whom() -> None:
    ledger = [record("bank", Release.NOTHING), record("clinic", Release.NOTHING), record("bank", Release.NOTHING)]
    line = {"from": "bank", "to": "coordinator", "type": "Counts", "privacy": Release.NOTHING.value}
    assert totals(ledger) == [
        line | {"messages": 2, "bytes": 18}, line | {"from": "clinic", "messages": 1, "bytes": 9}
    ]  # fmt: skip
    assert totals([*ledger, {"bytes": 1}], by=["type"]) == [
        {"type": "Counts", "messages": 3, "bytes": 27}, {"type": "not stated", "messages": 1, "bytes": 1}
    ]  # fmt: skip


class TestStatement:
    def test_without_events_there_is_no_guarantee(self) -> None:
        stated = statement([record("bank", Release.NOTHING), record("bank", Release.ROWS)])
        assert stated["summary"] == "none: no differential privacy was applied, no epsilon can be stated"
        assert (stated["silos"], stated["covers"], stated["rest"]) == ({}, "", "")
        assert stated["unnoised"] == [Release.ROWS.value]

    def test_budgets_are_per_silo_and_say_what_they_do_not_cover(self) -> None:
        jobs, pay = event(1.0, 1e-7, "levels of 'job'", THRESHOLDED), event(0.5, what="a histogram of 'pay'")
        ledger = [
            record("bank", Release.NOISED, jobs, pay),
            record("clinic", Release.NOISED, pay),
            record("clinic", Release.WEIGHTS),
            record("bank", Release.WEIGHTS),
            record("bank", Release.NOTHING),
        ]
        stated = statement(ledger)
        bank, clinic = stated["silos"]["bank"], stated["silos"]["clinic"]
        assert bank["epsilon"] == pytest.approx(1.5, abs=1e-4)
        assert bank["delta"] == pytest.approx(1.01e-5)
        assert (bank["pure_epsilon"], bank["own_delta"]) == (1.5, 1e-7)
        (line,) = clinic["events"]
        assert (line["what"], line["count"], line["epsilon"]) == ("a histogram of 'pay'", 1, 0.5)
        assert line["leaves_out"] == "the model and its synthetic tables"
        assert stated["release"] is None
        assert stated["unnoised"] == [Release.WEIGHTS.value]
        assert stated["summary"].startswith("for 3 noised statistics only: epsilon at most 1.5 at delta 1.01e-05")
        assert stated["summary"].endswith("No epsilon holds for the model as a whole")
        assert "The rest of the training is un-noised (un-noised weights" in stated["rest"]
        assert "everybody who reads the messages" in stated["covers"]
        assert "rows in several silos, spends the sum" in stated["covers"]
        json.dumps(stated, allow_nan=False)

    def test_what_the_coordinator_repeats_does_not_count(self) -> None:
        pay = event(0.5)
        own = [record("bank", Release.NOISED, pay)]
        assert statement([*own, record("coordinator", Release.NOISED, pay)]) == statement(own)

    def test_even_where_all_is_noised_no_epsilon_is_stated_for_the_model(self) -> None:
        stated = statement([record("bank", Release.NOISED, event(0.5)), record("bank", Release.NOTHING)])
        assert stated["rest"].endswith("no epsilon is stated for the model as a whole.")


STEPS = gaussian_steps("critic steps", 2.0, 0.05, 300, scope="release", joint=True, target=1e-5)


def names(silo: str) -> Event:
    return event(0.2, 1e-7, f"names of {silo}", THRESHOLDED, scope="all", target=1e-5)


class TestRelease:
    def ledger(self) -> list[dict[str, Any]]:
        return [
            record("bank", Release.NOISED, names("bank"), STEPS),
            record("clinic", Release.NOISED, names("clinic"), STEPS),
            record("bank", Release.ROWS),
            record("coordinator", Release.GRADIENTS) | {"to": "bank"},
            record("bank", Release.SYNTHETIC),
        ]

    def test_joint_steps_count_once_and_the_encoders_of_all_silos_do(self) -> None:
        release = statement(self.ledger())["release"]
        right = spent([names("bank"), names("clinic"), STEPS], 1e-5 - 2e-7).epsilon
        assert release["epsilon"] == right
        assert release["delta"] == pytest.approx(1e-5)

    def test_what_is_not_joint_is_summed_over_silos(self) -> None:
        own = gaussian_steps("autoencoder", 2.0, 0.05, 300, target=1e-5)
        both = [record("bank", Release.NOISED, own), record("clinic", Release.NOISED, own)]
        assert statement(both)["release"]["epsilon"] == spent([own, own], 1e-5).epsilon
        assert statement(both, horizontal=True)["release"]["epsilon"] == spent([own], 1e-5).epsilon

    def test_it_says_for_whom_it_holds_and_who_has_read_what(self) -> None:
        stated = statement(self.ledger())
        assert stated["summary"].startswith(f"epsilon at most {stated['release']['epsilon']:.2f}"[:18])
        assert "at delta 1e-05 for the released model and its synthetic tables" in stated["summary"]
        assert "per row of the aligned table, all silos together" in stated["summary"]
        assert "outsiders" in stated["covers"] and "know neither the noise" in stated["covers"]
        assert "of training rows, after hold-out rows were split off" in stated["covers"]
        assert "The report, schema.toml and the ledger are not covered" in stated["covers"]
        assert stated["rest"] == (
            "It does not hold against silos, which read un-noised gradients of training rows, "
            "nor against the coordinator, which read one un-noised value per training row."
        )

    def test_readers_budgets_hold_what_hides_from_readers_only(self) -> None:
        bank = statement(self.ledger())["silos"]["bank"]
        assert bank["epsilon"] == pytest.approx(0.2, abs=1e-4)
        assert [line["count"] for line in bank["events"]] == [1, 300]
        critic = bank["events"][1]
        assert (critic["noise"], critic["rate"], critic["joint"]) == (2.0, 0.05, True)
        assert critic["epsilon"] == spent([STEPS], 1e-5).epsilon
        assert critic["leaves_out"] == "whatever the coordinator and silos read"
        only = statement([record("bank", Release.NOISED, STEPS)])["silos"]["bank"]
        assert (only["epsilon"], only["pure_epsilon"]) == (None, None)

    def test_where_all_that_is_read_is_noised_it_holds_against_everybody(self) -> None:
        upload = gaussian_steps("latents", 9.0, 1.0, 1, scope="all", joint=True, target=1e-5)
        stated = statement([record("bank", Release.NOISED, upload), record("bank", Release.SYNTHETIC)])
        assert "holds against the coordinator and the other silos as well" in stated["rest"]
        assert "as long as the coordinator colludes with no silo" in stated["rest"]
        open_one = statement([record("bank", Release.NOISED, upload), record("bank", Release.COUNTS)])
        assert open_one["rest"] == "It does not hold against the coordinator, which read exact row counts."
        hidden = statement([record("bank", Release.NOISED, STEPS)])
        assert hidden["rest"] == "It does not hold against the coordinator and silos."

    def test_an_unsound_mechanism_earns_no_epsilon(self) -> None:
        stated = statement([*self.ledger(), record("bank", Release.NOISED, unsound("first layers"))])
        assert stated["summary"].startswith("none: the published mechanism") and "no epsilon holds" in stated["summary"]
        assert (stated["release"], stated["covers"], stated["rest"]) == (None, "", "")
        line = stated["silos"]["bank"]["events"][-1]
        assert (line["epsilon"], line["covers"], line["leaves_out"]) == (None, "nothing", "everything")

    def test_noise_that_follows_from_a_given_seed_earns_no_epsilon(self) -> None:
        known = known_noise(self.ledger())
        stated = statement(known)
        assert stated["summary"].startswith("none: the noise follows from the seed that the run was given")
        assert (stated["release"], stated["covers"], stated["rest"]) == (None, "", "")
        assert all(budget["epsilon"] is budget["delta"] is None for budget in stated["silos"].values())
        assert {row["epsilon"] for row in budget_rows(stated)} == {None}
        assert statement(known, assume_secret=True) == statement(self.ledger())
        assert statement(known_noise([record("bank", Release.ROWS)]))["summary"].startswith("none: no differential")

    def test_next_to_no_noise_earns_none_either(self) -> None:
        weak = gaussian_steps("steps", 0.1, 1.0, 1, target=1e-5)
        stated = statement([record("bank", Release.NOISED, weak)])
        assert stated["summary"].startswith("none: there is too little noise")
        json.dumps(stated, allow_nan=False)


class TestBudgetRows:
    def test_nothing_noised_is_no_table(self) -> None:
        assert budget_rows(statement([record("bank", Release.ROWS)])) == []

    def test_without_a_release_the_total_is_of_the_silo_that_spends_most(self) -> None:
        jobs, pay = event(1.0, 1e-7, "levels of 'job'", THRESHOLDED), event(0.5, what="a histogram of 'pay'")
        rows = budget_rows(
            statement([record("bank", Release.NOISED, jobs, pay), record("clinic", Release.NOISED, pay)])
        )
        assert [(row["silo"], row["what"]) for row in rows] == [
            ("bank", "levels of 'job'"), ("bank", "a histogram of 'pay'"), ("clinic", "a histogram of 'pay'"),
            ("", "total of the silo that spends most"),
        ]  # fmt: skip
        assert rows[-1]["epsilon"] == pytest.approx(1.5, abs=1e-4) and rows[-1]["delta"] == pytest.approx(1.01e-5)

    def test_joint_events_stand_once_and_the_total_is_the_release(self) -> None:
        own = gaussian_steps("own steps", 2.0, 0.1, 10, scope="all", target=1e-5)
        joint = gaussian_steps("joint steps", 2.0, 0.1, 10, scope="release", joint=True, target=1e-5)
        stated = statement([record(silo, Release.NOISED, own, joint) for silo in ("bank", "clinic")])
        rows = budget_rows(stated)
        assert [row["silo"] for row in rows] == ["bank", "clinic", "all", ""]
        assert (rows[-1]["epsilon"], rows[-1]["delta"]) == (stated["release"]["epsilon"], stated["release"]["delta"])

    def test_many_events_that_are_alike_stand_as_one(self) -> None:
        tables = [event(0.5, what=f"a table of {k}") for k in range(12)]
        rows = budget_rows(statement([record("bank", Release.NOISED, *tables, event(0.25, what="a count"))]))
        assert [(row["what"], row["count"], row["epsilon"]) for row in rows[:-1]] == [
            ("each of 12, from a table of 0 to a table of 11", 12, 0.5), ("a count", 1, 0.25),
        ]  # fmt: skip
        assert rows[-1]["epsilon"] == pytest.approx(6.25, rel=0.01)

    def test_noise_that_earns_nothing_totals_nothing(self) -> None:
        rows = budget_rows(statement([record("bank", Release.NOISED, unsound("features"), event(0.5))]))
        assert (rows[-1]["what"], rows[-1]["epsilon"], rows[-1]["covers"]) == ("total", None, "nothing")

    @pytest.mark.parametrize(
        ("noise", "rate", "shown"),
        [(None, None, "n"), (4.0, None, "n, noise 4"), (2.0, 0.1, "n, noise 2, rate 0.1")],
    )
    def test_a_mechanism_has_what_it_has(self, noise: float | None, rate: float | None, shown: str) -> None:
        assert mechanism({"mechanism": "n", "noise": noise, "rate": rate}) == shown
