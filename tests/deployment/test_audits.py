"""Audits in labels: what silos' reports have found, signed; whoever changes a field of it is found out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.deployment.common import OPEN, job, seated
from tests.deployment.sites import ABSENT, carry_out, same_rows
from tests.deployment.test_label import changed, fields
from typer.testing import CliRunner

from silosynth.cli import app
from silosynth.commands import outcomes
from silosynth.core.conversation import Roster
from silosynth.core.errors import DataError, StorageError
from silosynth.deployment import approval, audits
from silosynth.deployment.approval import HELD, decide
from silosynth.deployment.audits import AUDITS, mentioned, read_audits, told
from silosynth.deployment.coordinator import Order
from silosynth.deployment.label import LABEL, faults, joined, read_label
from silosynth.deployment.label_page import audits_in_words, label_page
from silosynth.deployment.signed import sign

ROWS = same_rows(90)
PERSON = OPEN.model_copy(update={"approval": "person"})


def kit(folder: Path, coordinator: bool = False) -> Any:
    """A kit whose jobs lie in its own folder."""
    chair = lambda: seated(ABSENT)[folder.name]  # noqa: E731
    return SimpleNamespace(name=folder.name, folder=folder, jobs=folder, roster=Roster(("bank", "shop")), seat=chair)


def call(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All sites, after a job whose rows the shop's officer has had a report made of, and only then approved."""
    here = tmp_path_factory.mktemp("here")
    for silo, rows in ROWS.items():
        (here / silo).mkdir()
        rows.frame.to_csv(here / silo / "rows.csv", index=False)
        (here / silo / "silo.toml").write_text('[data]\npath = "rows.csv"\n')
        (here / silo / "policy.toml").write_text('algorithms = ["silofuse"]\n')

    def officer() -> None:
        place = here / "shop" / "trial"
        assert (place / HELD).exists()
        words = ("fetch", "trial", "--held", "--kit", here / "shop", "--out", here / "held.csv")
        done = call(*words, "--report", here / "held.html")
        assert done.exit_code == 0, done.output
        decide(place, True, "no close copies")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outcomes, "open_kit", kit)
        patch.setattr(approval, "wait", officer)
        carry_out(Order(job(ROWS, align=None)), ROWS, here, shop=PERSON)
        words = ("fetch", "trial", "--kit", here / "bank", "--out", here / "made.csv", "--report", here / "bank.html")
        assert (done := call(*words)).exit_code == 0, done.output
    return here


@pytest.fixture
def here(once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(outcomes, "open_kit", kit)
    return Path(shutil.copytree(once, tmp_path / "sites"))


@pytest.fixture
def both(here: Path) -> dict[str, Any]:
    """A label with what both silos have found, of which one has named the other's."""
    assert call("label", "trial", "--kit", here / "bank", "--audits", "--out", here / "a.json").exit_code == 0
    done = call(
        "label", "trial", "--kit", here / "shop", "--audits", "--add", here / "a.json", "--out", here / "b.json"
    )
    assert done.exit_code == 0 and "What 1 of 1 audits found" in done.stdout, done.output
    return read_label(here / "b.json")


def test_a_silo_signs_that_it_has_looked_and_not_what_it_found(here: Path) -> None:
    label = read_label(here / "coordinator" / "trial" / LABEL)
    (looked,) = label["silos"]["shop"]["statement"]["audits"]
    assert set(looked) == {"of", "at", "published", "hash"} and looked["of"] == audits.HELD and looked["published"]
    assert label["silos"]["bank"]["statement"]["audits"] == [] and faults(label) == []
    (made,) = read_audits(here / "shop" / "trial")
    assert made["rows"] == 50 and made["columns"] == ["visits", "paid"] and len(made["salt"]) == 32
    assert "column_shape_error" in {one["name"] for one in made["figures"]}
    assert "disclosure" in {one["group"] for one in made["figures"]}  # attacks
    page, words = label_page(label), audits_in_words(label)
    assert "stays at the silo" in page and "None was made before it signed." in page
    assert words[0] == "bank: none was made before it signed" and words[1].endswith("what it found stays at the silo")


def test_findings_are_added_by_the_silos_that_made_them(both: dict[str, Any]) -> None:
    assert faults(both) == [] and set(both["audits"]) == {"bank", "shop"}
    known = told(both)
    assert known["bank"] is not None and known["shop"] is not None
    (after,), (before,) = known["bank"], known["shop"]
    assert before["before"] and before["of"] == audits.HELD and before["beside"] == "rows trained on"
    assert not after["before"] and after["of"] == audits.OWN
    page = label_page(both)
    for one in (*before["figures"], *after["figures"]):
        assert f">{one['label']}</th>" in page
    assert "could leave it out" in page and "None was made" not in page


def test_every_changed_field_of_an_audit_is_noticed(both: dict[str, Any]) -> None:
    every = [path for path in fields(both) if path[0] == "audits"]
    assert len(every) > 100
    for path in every:
        assert faults(changed(both, path)), path
    for silo, other in (("bank", "shop"), ("shop", "bank")):
        added = both["audits"][silo]
        assert faults({**both, "audits": {other: added}})  # another's
        assert faults({**both, "audits": {"mill": added}}) and faults({**both, "audits": {silo: 3}})
        assert faults({**both, "audits": {silo: {**added, "more": 1}}})
        for name in added["statement"]:
            less = {key: one for key, one in added["statement"].items() if key != name}
            assert faults({**both, "audits": {silo: {**added, "statement": less}}}), name
    looked = both["silos"]["shop"]["statement"]["audits"][0]
    for name in looked:  # what the silo said of it before the table was published
        assert faults(changed(both, ("silos", "shop", "statement", "audits", 0, name))), name
    none = json.loads(json.dumps(both))
    none["silos"]["shop"]["statement"]["audits"] = []
    assert faults(none)


def test_findings_are_of_one_table_and_signed_by_the_key_of_the_label(both: dict[str, Any]) -> None:
    """Not even the silo can have made what it finds tomorrow before it signed."""
    stranger: Any = SimpleNamespace(name="shop", private=bytes(range(32)))
    stated = both["audits"]["shop"]["statement"]
    assert faults({**both, "audits": {"shop": {"statement": stated, **sign(stranger, "audits", stated)}}})
    chair = seated(ABSENT)["shop"]
    better = json.loads(json.dumps(stated).replace('"of": "its own columns, before they left"', '"of": "all of it"'))
    late = {**both, "audits": {"shop": {"statement": better, **sign(chair, "audits", better)}}}
    assert faults(late) == [] and [one["before"] for one in told(late)["shop"] or ()] == [True, False]
    elsewhere = {**stated, "label": "0" * 64}
    assert faults({**both, "audits": {"shop": {"statement": elsewhere, **sign(chair, "audits", elsewhere)}}})
    other = changed(both, ("facts", "rows"))
    with pytest.raises(DataError, match="same table"):
        joined(both, other, "b.json")
    with pytest.raises(DataError, match="as silos have signed it"):
        joined(both, changed(both, ("audits", "shop", "statement", "audits", 0, "beside")), "b.json")


@pytest.mark.parametrize("garbage", [3, "x", [3], [{"of": "x"}], [{"figures": [1]}], {}])
def test_what_a_silo_signs_that_cannot_be_shown_is_a_fault(both: dict[str, Any], garbage: Any) -> None:
    chair = seated(ABSENT)["shop"]
    stated = {**both["audits"]["shop"]["statement"], "audits": garbage}
    assert faults({**both, "audits": {"shop": {"statement": stated, **sign(chair, "audits", stated)}}})
    signed = json.loads(json.dumps(both["silos"]["shop"]))
    signed["statement"]["audits"] = garbage
    signed |= sign(chair, "label", {"facts": both["facts"], "statement": signed["statement"]})
    assert faults({"facts": both["facts"], "silos": {**both["silos"], "shop": signed}})


def test_verify_tells_of_audits(here: Path, both: dict[str, Any]) -> None:
    done = call("verify", here / "made.csv", here / "b.json")
    assert done.exit_code == 0 and "figures" in done.stdout and "rows trained on" in done.stdout.replace("\n", " ")
    plain = call("verify", here / "made.csv", here / "made.label.json")
    assert plain.exit_code == 0 and "bank: none was made before it signed" in plain.stdout
    (here / "b.json").write_text(json.dumps(changed(both, ("audits", "bank", "statement", "audits", 0, "rows"))))
    wrong = call("verify", here / "made.csv", here / "b.json")
    assert wrong.exit_code == 2 and "bank: its signature is not of these audits" in wrong.stdout


def test_other_rows_than_those_published_are_said_to_be_others(here: Path) -> None:
    place = here / "shop" / "trial"
    assert [one["published"] for one in mentioned(place, lambda columns: "0" * 64)] == [False]
    label = read_label(place / LABEL)
    label["silos"]["shop"]["statement"]["audits"][0]["published"] = False
    assert "of other rows than the published ones" in label_page(label)


def test_under_a_budget_nothing_that_has_no_noise_is_added(here: Path) -> None:
    with (here / "shop" / "policy.toml").open("a") as file:
        file.write("largest_epsilon = 1.0\n")
    done = call("label", "trial", "--kit", here / "shop", "--audits", "--out", here / "c.json")
    assert done.exit_code == 0 and "its policy limits an epsilon" in done.stderr.replace("\n", " ")
    label = read_label(here / "c.json")
    assert label["audits"]["shop"]["statement"]["audits"] == [] and faults(label) == []
    assert "figures" not in (told(label)["shop"] or [{}])[0]


def test_what_cannot_be_added_is_said(here: Path) -> None:
    wrong = call("label", "trial", "--kit", here / "coordinator", "--audits", "--out", here / "d.json")
    assert wrong.exit_code == 2 and "Silos sign what their audits have found" in wrong.stderr
    (here / "shop" / "trial" / AUDITS).unlink()
    none = call("label", "trial", "--kit", here / "shop", "--audits", "--out", here / "d.json")
    assert none.exit_code == 2 and "--report report.html" in none.stderr.replace("\n", " ")
    (here / "shop" / "trial" / AUDITS).write_text("{")
    with pytest.raises(StorageError, match="Audits of a job can be read"):
        read_audits(here / "shop" / "trial")


def test_labels_of_earlier_versions_say_nothing_of_audits(here: Path) -> None:
    label = read_label(here / "bank" / "trial" / LABEL)
    for silo, signed in label["silos"].items():
        del signed["statement"]["audits"]
        signed |= sign(seated(ABSENT)[silo], "label", {"facts": label["facts"], "statement": signed["statement"]})
    assert faults(label) == [] and told(label) == {"bank": None, "shop": None}
    assert "says nothing of any" in label_page(label) and "None was made</strong>" in label_page(label)
