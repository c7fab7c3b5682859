"""Start kits, and the files that operators write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import silosynth
from silosynth.cli import app
from silosynth.core.errors import ConfigError, StorageError
from silosynth.deployment.coordinator import order, unpack_order
from silosynth.deployment.kits import draw_key, read_kit, read_plan, write_kits
from silosynth.deployment.policy import read_policy
from silosynth.deployment.rows import read_silo
from silosynth.experiment import grammar as experiment

FEDERATION = """
name = "riverbank"
operators = ["alice"]
[coordinator]
host = "127.0.0.1"
port = 8002
[silos.bank]
[silos.shop]
"""


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kits of two silos."""
    pytest.importorskip("nvflare")
    folder = tmp_path_factory.mktemp("federation")
    (folder / "federation.toml").write_text(FEDERATION)
    write_kits(read_plan(folder / "federation.toml"), folder / "kits")
    return folder / "kits"


def test_everybody_gets_a_kit_and_only_its_own_key(kits: Path) -> None:
    bank, shop = read_kit(kits / "bank"), read_kit(kits / "shop")
    assert bank.roster == shop.roster and bank.roster.parties == ("bank", "shop")
    envelope = bank.seat().seal("shop", "greeting", b"hello")
    assert shop.seat().open(envelope, "greeting") == b"hello"
    assert not (kits / "coordinator" / "sealing.key").exists() and not (kits / "alice" / "sealing.key").exists()
    assert (kits / "bank" / "sealing.key").stat().st_mode & 0o077 == 0
    for name in ("bank", "coordinator"):
        assert b"CERTIFICATE" in read_kit(kits / name).certificates().certificate
    assert (read_kit(kits / "coordinator").dispatcher / "engine").is_dir()


def test_templates_are_valid_and_state_the_defaults(kits: Path) -> None:
    policy = read_policy(kits / "bank")
    assert policy == type(policy)()
    assert read_silo(kits / "bank").source().path == kits / "bank" / "customers.csv"


def test_a_silo_is_added_and_keeps_everybodys_keys(kits: Path) -> None:
    before = read_kit(kits / "bank")
    (kits / "bank" / "policy.toml").write_text("least_rows = 7\n")
    more = kits.parent / "more.toml"
    more.write_text(FEDERATION + "[silos.tax]\n")
    write_kits(read_plan(more), kits)
    after = read_kit(kits / "bank")
    assert after.roster.parties == ("bank", "shop", "tax")
    assert after.roster.key("bank") == before.roster.key("bank") and after.seat().name == "bank"
    assert read_policy(kits / "bank").least_rows == 7


@pytest.mark.parametrize("key", ["messages", "refused"])
def test_a_policy_that_names_no_message_of_this_version_is_an_error(tmp_path: Path, key: str) -> None:
    (tmp_path / "policy.toml").write_text(f'{key} = ["core.*", "algorithms.gdts.messages.ExactSummaries"]\n')
    with pytest.raises(
        ConfigError, match=rf"{key} .*messages\.ExactSummaries.*mean 'algorithms\.gdts\.ExactSummaries'"
    ):
        read_policy(tmp_path)


def test_kits_that_were_handed_out_keep_their_keys(tmp_path: Path) -> None:
    pytest.importorskip("nvflare")
    (tmp_path / "federation.toml").write_text(FEDERATION)
    plan, out = read_plan(tmp_path / "federation.toml"), tmp_path / "kits"
    write_kits(plan, out)
    (out / "bank").rename(tmp_path / "at the bank")
    write_kits(plan, out)  # another silo was to be added, say
    assert read_kit(out / "shop").roster == read_kit(tmp_path / "at the bank").roster
    assert not (out / "bank" / "sealing.key").exists()


def test_a_silo_can_bring_its_own_key(tmp_path: Path, kits: Path) -> None:
    public = draw_key(tmp_path / "own.key")
    with pytest.raises(StorageError, match="created only once"):
        draw_key(tmp_path / "own.key")
    plan = tmp_path / "federation.toml"
    plan.write_text(FEDERATION.replace("[silos.bank]", f'[silos.bank]\nkey = "{public}"'))
    write_kits(read_plan(plan), tmp_path / "kits")
    assert not (tmp_path / "kits" / "bank" / "sealing.key").exists()
    (tmp_path / "own.key").rename(tmp_path / "kits" / "bank" / "sealing.key")
    assert read_kit(tmp_path / "kits" / "bank").seat().name == "bank"
    (tmp_path / "kits" / "bank" / "sealing.key").write_bytes((kits / "bank" / "sealing.key").read_bytes())
    with pytest.raises(ConfigError, match="belongs to the public key that is pinned"):
        read_kit(tmp_path / "kits" / "bank").seat()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (FEDERATION.replace("port = 8002", "prot = 8002"), "Did you mean 'port'"),
        (FEDERATION.replace("[silos.bank]\n[silos.shop]", ""), "silos"),
        (FEDERATION.replace("port = 8002", "port = 8002\nstream_port = 8002"), "must differ"),
        (FEDERATION.replace("[silos.shop]", '[silos."der Laden"]'), "der Laden"),
        (FEDERATION.replace("[silos.shop]", '[silos.shop]\nkey = "x"'), "sealing key"),
        (FEDERATION.replace("name =", "name"), "TOML"),
    ],
)
def test_mistakes_in_a_federation_file_are_said_in_words(tmp_path: Path, text: str, told: str) -> None:
    pytest.importorskip("nvflare")
    (tmp_path / "federation.toml").write_text(text)
    with pytest.raises(ConfigError, match=told):
        write_kits(read_plan(tmp_path / "federation.toml"), tmp_path / "kits")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[algorithm]\nname = "silofus"', "Did you mean 'silofuse'"),
        ('[algorithm]\nname = "ctgan"', "pools all data in one place"),
        ('[algorithm]\nname = "tabvfl"', "takes a generator; the algorithm is a representation"),
        ('[algorithm]\npreset = "fsat"', "Did you mean 'fast'"),
        ("[algorithm]\noptions = { latent.stesp = 3 }", "Did you mean 'steps'"),
        ('[run]\nsilos = ["bnak"]', "Did you mean 'bank'"),
        ('[run]\ntransport = "post"', "relay, stream"),
        ('[run]\nmissing = "omit"', 'Choose "fail" or "wait"'),
        ('[run]\nname = "a/b"', "A job's name"),
        ('[align]\nmethod = "guess"', "psi, keyed-hash, none"),
        ("[sample]\nrows = 0", "at least 1"),
        ('[data]\npath = "x.csv"\n[silos.bnak]\ncolumns = ["x"]', "Did you mean 'bank'"),
        ('[dta]\npath = "x.csv"', "dta is not a known key"),
    ],
)
def test_mistakes_in_an_experiment_are_said_before_it_is_submitted(
    tmp_path: Path, kits: Path, text: str, told: str
) -> None:
    (tmp_path / "experiment.toml").write_text(text)
    with pytest.raises(ConfigError, match=told):
        order(experiment.read(tmp_path / "experiment.toml"), read_kit(kits / "bank").roster, "alice")


def test_an_experiment_becomes_an_order(tmp_path: Path, kits: Path) -> None:
    (tmp_path / "trial.toml").write_text('[algorithm]\npreset = "fast"\n[run]\nsilos = ["shop", "bank"]\n')
    job = order(experiment.read(tmp_path / "trial.toml"), read_kit(kits / "bank").roster, "alice").job
    assert job.silos == ("shop", "bank") and job.seed is None and job.submitter == "alice"
    assert job.align is not None and job.align.method == "psi" and job.name.startswith("trial-")
    (tmp_path / "rows.toml").write_text('[algorithm]\nname = "gdts"\n')
    job = order(experiment.read(tmp_path / "rows.toml"), read_kit(kits / "bank").roster, "alice").job
    assert job.align is None  # silos hold different rows
    (tmp_path / "both.csv").write_text("age,paid\n20,card\n")
    (tmp_path / "ruled.toml").write_text(
        '[[rules]]\nkind = "combination"\ncolumns = ["age", "paid"]\nfile = "both.csv"\n'
    )
    (rule,) = order(experiment.read(tmp_path / "ruled.toml"), read_kit(kits / "bank").roster, "alice").job.rules
    assert rule.in_words == "combinations of age, paid: 1 allowed"


def test_commands_say_what_is_wrong(tmp_path: Path, kits: Path) -> None:
    def call(*arguments: object) -> tuple[int, dict[str, str]]:
        result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
        return result.exit_code, json.loads(result.stdout)["error"]

    code, error = call("status", "--kit", tmp_path)
    assert code == 4 and "holds a start kit" in error["rule"]
    code, error = call("ledger", "unknown", "--kit", kits / "bank")
    assert code == 2 and "no such job at bank" in error["rule"]
    result = CliRunner().invoke(app, ["coordinator", "start", "--kit", str(kits / "bank")])
    assert result.exit_code == 2 and "silosynth party start" in result.output


BOTH = """
[data]
path = "rows.csv"
[silos.bank]
columns = ["age"]
[silos.shop]
columns = ["spent"]
[algorithm]
preset = "fast"
options = { coder.steps = 2, coder.hidden = [4], latent.width = 4, latent.steps = 2, latent.batch = 8, least_rows = 8 }
[align]
method = "keyed-hash"
[run]
name = "both"
silos = ["shop", "bank"]
[split]
holdout = 0.0
"""


def test_one_file_is_taken_by_run_and_by_submit_which_say_what_they_do_not_use(tmp_path: Path, kits: Path) -> None:
    rows = "".join(f"{i % 7},{i % 9 * 0.5}\n" for i in range(40))
    (tmp_path / "rows.csv").write_text(f"age,spent\n{rows}")
    (tmp_path / "both.toml").write_text(BOTH)
    submitted, done = (
        CliRunner().invoke(app, [*words, "--json"])
        for words in (
            ["submit", str(tmp_path / "both.toml"), "--kit", str(kits / "coordinator"), "--no-wait"],
            ["run", str(tmp_path / "both.toml")],
        )
    )
    assert submitted.exit_code == done.exit_code == 0, done.stderr
    assert json.loads(submitted.stdout) == {"unused": ["data", "silos"], "job": "both"}
    assert "silosynth submit does not use [data]: each silo reads its own table" in submitted.stderr
    assert json.loads(done.stdout)["unused"] == ["align", "run.name"]
    assert "silosynth run does not use run.name: results go to the output folder." in done.stderr
    job = unpack_order((kits / "coordinator" / "work" / "jobs" / "both" / "order").read_bytes()).job
    assert job.silos == ("shop", "bank") == tuple(silosynth.load(tmp_path / "both" / "model.silosynth").roster)
    assert job.holdout == 0.0
