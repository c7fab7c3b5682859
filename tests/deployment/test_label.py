"""Labels of published tables: whoever changes a field or a row afterwards is found out."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from tests.deployment.common import SMALL, job, seated
from tests.deployment.sites import ABSENT, COLUMNS, carry_out, more, same_rows, sides, trained_once
from typer.testing import CliRunner

from silosynth.cli import app
from silosynth.commands import outcomes
from silosynth.core import conversation
from silosynth.core.conversation import Roster, Turns
from silosynth.core.errors import DataError, ProtocolError, StorageError
from silosynth.deployment import label as labels
from silosynth.deployment.coordinator import Order
from silosynth.deployment.kept import guarantee_of
from silosynth.deployment.label import LABEL, faults, known_keys, read_label, table_faults
from silosynth.deployment.protocol import SignLabel
from silosynth.deployment.signed import sign
from silosynth.deployment.silo_ledger import public_key


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All sites, after a job and a draw from it; and files that were fetched."""
    folder = trained_once(tmp_path_factory.mktemp("here"))
    carry_out(more(folder, 20, 1, "late"), ABSENT, folder)
    return folder


@pytest.fixture
def place(here: Path) -> Path:
    return here / "coordinator" / "trial"


def chair(silo: str) -> Any:
    """A silo's seat."""
    return seated(ABSENT)[silo]


def fields(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each field of a label, to the last number and text."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not isinstance(value, dict | list) or not value:
        yield path
    for key, item in inner:
        yield from fields(item, (*path, key))


def changed(label: Any, path: tuple[Any, ...]) -> Any:
    """A copy with this field changed."""
    copy = json.loads(json.dumps(label))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    value = inner[path[-1]]
    inner[path[-1]] = (
        not value if isinstance(value, bool) else value + 1 if isinstance(value, int | float) else
        ("0" if value[:1] != "0" else "1") + value[1:] if isinstance(value, str) else ["x"]
    )  # fmt: skip
    return copy


def test_a_label_says_what_the_job_was_and_is_the_same_everywhere(here: Path, place: Path) -> None:
    label = read_label(place / LABEL)
    assert faults(label) == [] == table_faults(label, place / "synthetic.parquet")
    for silo in COLUMNS:
        assert read_label(here / silo / "trial" / LABEL) == label
    facts = label["facts"]
    assert (facts["algorithm"], facts["preset"], facts["job"], facts["drawn_from"]) == ("silofuse", "fast", "trial", "")
    assert (facts["guarantee"], facts["target"], facts["seed_of_training"]) == ("none", None, "public")
    assert facts["options"]["latent"]["steps"] == SMALL["latent.steps"] and facts["submitter"] == "alice"
    assert facts["columns"] == [name for held in COLUMNS.values() for name in held] and facts["rows"] == 50
    bank, shop = (label["silos"][silo]["statement"] for silo in ("bank", "shop"))
    assert shop["others"]["bank"] == {**bank["ledger"], "key": public_key(chair("bank")).hex()}
    late = read_label(here / "shop" / "late" / LABEL)["facts"]
    assert (late["drawn_from"], late["rows"]) == ("trial", 20)


def test_every_changed_field_is_noticed(place: Path) -> None:
    label = read_label(place / LABEL)
    every = list(fields(label))
    assert len(every) > 60
    for path in every:
        assert faults(changed(label, path)), path
    for silo in COLUMNS:  # a silo, or a part of it, that is left out or added
        left = {name: one for name, one in label["silos"].items() if name != silo}
        assert faults({**label, "silos": left})
        assert faults({**label, "silos": {**label["silos"], "mill": label["silos"][silo]}})
        assert faults({**label, "silos": {**label["silos"], silo: {**label["silos"][silo], "more": 1}}})
    for name in list(label["facts"]):
        assert faults({**label, "facts": {key: one for key, one in label["facts"].items() if key != name}})
    assert faults({**label, "facts": {**label["facts"], "more": 1}}) and faults({**label, "more": 1})
    assert faults({**label, "silos": {**label["silos"], "bank": 3}})


def test_every_changed_row_is_noticed(place: Path, tmp_path: Path) -> None:
    label, frame = read_label(place / LABEL), pd.read_parquet(place / "synthetic.parquet")
    frame.to_csv(tmp_path / "a.csv", index=False)
    assert table_faults(label, tmp_path / "a.csv") == []
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    assert table_faults(label, tmp_path / "a.csv.gz") == []
    text = (tmp_path / "a.csv").read_text()
    for row in range(len(frame)):
        lines = text.splitlines()
        lines[row + 1] = lines[row + 1].replace(lines[row + 1][0], "7" if lines[row + 1][0] != "7" else "8", 1)
        (tmp_path / "b.csv").write_text("\n".join(lines) + "\n")
        assert table_faults(label, tmp_path / "b.csv")
    for other in (
        frame[::-1], frame[:-1], frame.rename(columns={"age": "aged"}), frame[frame.columns[::-1]],
        frame.assign(age=frame["age"].where(frame.index != 3, 0)), pd.concat([frame, frame[:1]]),
    ):  # fmt: skip
        other.reset_index(drop=True).to_parquet(tmp_path / "b.parquet")
        assert table_faults(label, tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"\.parquet or \.arrow"):
        table_faults(label, tmp_path / "a.tsv")


def test_signatures_of_somebody_else_are_found_by_known_keys(here: Path, place: Path) -> None:
    """Whoever makes up a whole label, with keys of his own, is found by whoever knows one silo's key."""
    label = read_label(place / LABEL)
    false = json.loads(json.dumps(label).replace('"none"', '"epsilon at most 1"'))
    forger: Any = SimpleNamespace(name="bank", private=bytes(range(32)))
    for silo, one in false["silos"].items():
        for other in one["statement"]["others"].values():
            other["key"] = public_key(forger).hex()
        one |= sign(forger, "label", {"facts": false["facts"], "statement": one["statement"]})
        assert one["statement"]["silo"] == silo
    assert faults(false) == []
    known = known_keys(here / "shop", chair("shop"))
    assert known == {silo: public_key(chair(silo)).hex() for silo in COLUMNS}  # the other's too, as it told this one
    assert faults(label, known) == [] and len(faults(false, known)) == 2
    assert faults(false, {"bank": known["bank"]}) == ["bank: it has another key than is known of it"]


@pytest.mark.parametrize("others", [("shop",), ("bank", "shop")])
def test_a_silo_signs_what_it_was_sent_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: tuple[str, ...]
) -> None:
    """A coordinator that publishes another table to one silo, or keeps another for itself, gets no label."""
    signs = labels.sign_label

    def own(seat: Any, stated: Any, *rest: Any) -> Any:
        return signs(seat, {**stated, "sha256": "0" * 64} if seat.name in others else stated, *rest)

    monkeypatch.setattr(labels, "sign_label", own)
    with pytest.raises(ProtocolError, match=r"All sites say the same.*(bank|shop): its signature"):
        carry_out(Order(job(same_rows(), align=None)), same_rows(), tmp_path)


def test_nothing_is_signed_before_it_is_published(here: Path, tmp_path: Path) -> None:
    silo = sides(ABSENT, here, "later")["bank"]
    silo.job = more(here, 20, 1, "later").job
    silo._turns = Turns(*conversation.once(SignLabel))
    with pytest.raises(ProtocolError, match="signed once it is published"):
        silo.answer(SignLabel())


def test_partitioned_tables_have_no_label(tmp_path: Path) -> None:
    asked = Order(job(same_rows(), align=None, options={**SMALL, "synthesis": "partitioned"}))
    place = carry_out(asked, same_rows(), tmp_path)
    assert not (place / LABEL).exists() and not (tmp_path / "bank" / "trial" / LABEL).exists()


def test_the_guarantee_is_that_of_the_training() -> None:
    private = job(same_rows(), seed=None, options={**SMALL, "dp": {"epsilon": 3.0, "delta": 1e-5}})
    frame = pd.DataFrame({"a": [1, 2]})
    stated = labels.facts(private, frame)
    assert stated["guarantee"] == guarantee_of("silofuse", private.config, None) != "none"
    assert stated["target"] == {"epsilon": 3.0, "delta": 1e-5}
    assert labels.facts(replace(private, seed=3), frame)["guarantee"] == "none"
    risky = labels.facts(private, pd.DataFrame({"a": ["=1+1"]}))
    assert risky["sha256"] != risky["sha256_escaped"]


# The commands.


@pytest.fixture
def kits(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Kits whose jobs are these."""
    shutil.copytree(here, tmp_path / "kits")

    def kit(folder: Path, coordinator: bool = False) -> Any:
        roster, name = Roster(("bank", "shop")), folder.name
        return SimpleNamespace(name=name, folder=folder, jobs=folder, roster=roster, seat=lambda: chair(name))

    monkeypatch.setattr(outcomes, "open_kit", kit)
    return tmp_path / "kits"


def call(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_fetch_writes_a_label_that_verify_takes(kits: Path, ending: str) -> None:
    out, label = kits / f"made{ending}", kits / "made.label.json"
    assert call("fetch", "trial", "--kit", kits / "coordinator", "--out", out).exit_code == 0
    page = (kits / "made.label.html").read_text()
    assert (
        "silofuse" in page
        and read_label(label)["facts"]["sha256"] in page
        and "http:" not in page
        and "https:" not in page
    )
    done = call("verify", out, label)
    assert done.exit_code == 0 and "by the label's own word" in done.stdout.replace("\n", " ")
    known = call("verify", out, label, "--kit", kits / "shop", "--json")
    assert known.exit_code == 0 and json.loads(known.stdout)["faults"] == []
    keys = json.loads(known.stdout)["keys"]
    pinned = call("verify", out, label, "--key", f"bank={keys['bank']}")
    assert pinned.exit_code == 0 and "known to be its own" in pinned.stdout
    assert call("verify", out, label, "--key", f"bank={keys['shop']}").exit_code == 2
    assert call("verify", out, label, "--key", "bank").exit_code == 2
    assert call("verify", out, label, "--kit", kits / "coordinator").exit_code == 2
    label.write_text(json.dumps(changed(read_label(label), ("facts", "rows"))))
    wrong = call("verify", out, label)
    assert wrong.exit_code == 2 and "not of these facts" in wrong.stdout
    label.write_text("{}")
    assert call("verify", out, label).exit_code == 4
    with pytest.raises(StorageError, match="The label of a table"):
        read_label(label)


def test_label_is_written_by_itself(kits: Path) -> None:
    out = kits / "x.label.json"
    done = call("label", "late", "--kit", kits / "bank", "--out", out, "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["key"] == public_key(chair("bank")).hex()
    assert (kits / "x.label.html").exists() and read_label(out)["facts"]["job"] == "late"
    assert call("label", "late", "--kit", kits / "bank", "--out", out).exit_code == 4  # it is there
    (kits / "shop" / "late" / LABEL).unlink()
    none = call("label", "late", "--kit", kits / "shop", "--out", kits / "y.label.json")
    assert none.exit_code == 2 and "no label" in none.stderr
