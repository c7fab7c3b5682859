"""A site's facts, its console's answers without a socket, and its metrics."""

from __future__ import annotations

import html
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.house import ROOT
from typer.testing import CliRunner

from silosynth.cli import app
from silosynth.commands import startkit
from silosynth.commands.session import Session
from silosynth.core.conversation import COORDINATOR, Progress
from silosynth.core.errors import ConfigError, SilosynthError
from silosynth.deployment import approval, presence
from silosynth.deployment.certificates import validity
from silosynth.deployment.console import Asked, Desk, Shown, known_hosts, site_token
from silosynth.deployment.coordinator import STOP, Status, StatusWriter, unpack_order
from silosynth.deployment.facts import KnownSite, LedgerTotals, instant, log_tail, search_ledger
from silosynth.deployment.forgetting import mark_running
from silosynth.deployment.kits import KIT, POLICY_TEMPLATE, read_kit
from silosynth.deployment.metrics import FAMILIES, health, metrics

TOKEN, HOST = "a-token-of-this-console", "127.0.0.1:8710"
NASTY = "<img src=x onerror=alert(1)>"


def certify(startup: Path, own: str, days: float) -> None:
    """A certificate that signs itself, for the site and as the authority."""
    startup.mkdir(parents=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "trial")])
    now = datetime.now(timezone.utc)
    for file, ends in ((f"{own}.crt", days), ("rootCA.pem", 3650)):
        made = (
            x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
            .serial_number(1).not_valid_before(now - timedelta(days=400)).not_valid_after(now + timedelta(days=ends))
            .sign(key, hashes.SHA256())
        )  # fmt: skip
        (startup / file).write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (startup / f"{own}.key").write_bytes(b"")


def kit(folder: Path, name: str, days: float = 200.5) -> Path:
    """A kit, and the folder of its jobs."""
    certify(folder / "engine" / "startup", "server" if name == COORDINATOR else "client", days)
    keys = dict.fromkeys(("bank", "shop"), "A" * 43 + "=")
    keys["shop"] = "B" * 43 + "="
    fields = {"name": name, "federation": "river", "host": "x", "port": 1, "stream_port": None, "silos": keys}
    (folder / KIT).write_text(json.dumps(fields))
    (folder / "policy.toml").write_text(POLICY_TEMPLATE)
    (folder / "work" / "jobs").mkdir(parents=True)
    return folder


def message(step: int, sender: str, size: int, **more: Any) -> dict[str, Any]:
    to = COORDINATOR if sender != COORDINATOR else "bank"
    at = instant(1e9 + step)
    return {"at": at, "step": step, "from": sender, "to": to, "type": "core.Done", "bytes": size, **more}


def lines(*records: dict[str, Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[KnownSite]:
    """A silo with a job that is done, one that waits for a person, one that it refused, and one that is at work."""
    place = kit(tmp_path / "bank", "bank")
    for job in ("old", "held", "no", "busy"):
        (place / "work" / "jobs" / job).mkdir()
        (place / "work" / "jobs" / job / "log.txt").write_text(f"2026-01-01 00:00:00 {NASTY}\n")
        text = lines(message(0, COORDINATOR, 10), message(1, "bank", 30, privacy="nothing about rows"))
        (place / "work" / "jobs" / job / "ledger.jsonl").write_text(text)
    jobs = place / "work" / "jobs"
    with open(jobs / "old" / "ledger.jsonl", "a") as file:
        file.write(lines({"kind": "compared", "verdict": "all were asked the same"}))
    with open(jobs / "no" / "ledger.jsonl", "a") as file:
        file.write(lines({"kind": "refused", "error": "PolicyError"}))
    (jobs / "no" / "closed").write_text("PolicyError\n")
    hold(jobs / "held", "ab")
    with mark_running(jobs / "busy"):
        yield KnownSite(read_kit(place))


def hold(folder: Path, digest: str) -> None:
    pd.DataFrame({"age": [1, 2], "note": [NASTY, None]}).to_parquet(folder / "held.parquet")
    (folder / "held.json").write_text(json.dumps({"digest": digest, "rows": 2, "since": 1e9}))


@pytest.fixture
def coordinator(tmp_path: Path) -> KnownSite:
    """A coordinator with a job that runs, and one that has failed."""
    place = kit(tmp_path / "coordinator", COORDINATOR)
    now = time.time()
    for name, status in {
        "runs": Status("running", "training", 30, 100, 1, "", now, now - 100, now - 60, 10),
        "lost": Status("failed", error=NASTY, since=now - 9000, begun=now - 9999),
    }.items():
        (place / "work" / "jobs" / name).mkdir()
        status.write(place / "work" / "jobs" / name)
        (place / "work" / "jobs" / name / "ledger.jsonl").write_text(lines(message(1, "shop", 500)))
    presence.tell(place / "work", now - 500, {"bank": now, "shop": now - 99})
    return KnownSite(read_kit(place))


def desk(site: KnownSite, clock: Callable[[], float] = time.time) -> Desk:
    return Desk(site, TOKEN, known_hosts("127.0.0.1", 8710), clock)


def get(at: Desk, target: str, **headers: str) -> Shown:
    return at.answer(Asked("GET", target, {"host": HOST, **headers}))


def post(at: Desk, target: str, cookie: str = "", origin: str = f"http://{HOST}", **form: str) -> Shown:
    body = "&".join(f"{key}={quote(value)}" for key, value in form.items()).encode()
    return at.answer(Asked("POST", target, {"host": HOST, "origin": origin, "cookie": cookie}, body))


def enter(at: Desk) -> str:
    """The cookie of a session."""
    shown = post(at, "/login", token=TOKEN)
    assert shown.status == 303
    return str(shown.more["Set-Cookie"]).partition(";")[0]


def held_in(shown: Shown, name: str) -> str:
    """The value of a hidden field."""
    (value,) = re.findall(f'name="{name}" value="([^"]+)"', shown.body.decode())[:1]
    return str(value)


def test_a_silo_knows_its_jobs(bank: KnownSite) -> None:
    facts = bank.facts()
    jobs = {job["job"]: job for job in facts["jobs"]}
    assert {name: job["state"] for name, job in jobs.items()} == {
        "old": "done", "held": "waiting for a person", "no": "refused", "busy": "running",
    }  # fmt: skip
    assert (jobs["old"]["sent"], jobs["old"]["received"], jobs["no"]["refusals"]) == (30, 10, 1)
    assert jobs["held"]["held"] == {"what": "rows", "rows": 2, "digest": "ab", "since": instant(1e9)}
    assert jobs["old"]["gave_away"] == [{"from": "bank", "gives_away": "nothing about rows", "bytes": 30}]
    assert facts["certificate"]["days_left"] == 200 and facts["certificate"]["warning"] == ""
    assert (facts["budget"]["epsilon"], facts["budget"]["left"], facts["running"]) == (0.0, None, False)
    assert facts["policy"]["exposures"][0]["weight"] == 3
    json.dumps(facts, allow_nan=False)


def test_a_coordinator_knows_who_is_there_and_how_long_it_takes(coordinator: KnownSite) -> None:
    facts = coordinator.facts()
    assert {one["silo"]: one["connected"] for one in facts["silos"]} == {"bank": True, "shop": False}
    runs, lost = facts["jobs"]
    assert (runs["state"], runs["seconds_left"], lost["state"]) == ("running", 210, "failed")
    assert runs["received"] == 500


def test_a_coordinator_that_is_dead_runs_nothing(coordinator: KnownSite) -> None:
    coordinator.clock = lambda: time.time() + 60
    facts = coordinator.facts()
    assert facts["running"] is False and not any(one["connected"] for one in facts["silos"])
    runs = facts["jobs"][0]
    assert runs["state"] == "interrupted" and "not running" in runs["error"] and runs["seconds_left"] is None


def test_a_file_that_cannot_be_read_hides_no_other(coordinator: KnownSite) -> None:
    (coordinator.kit.jobs / "lost" / "status.json").write_text("{")
    jobs = {job["job"]: job["state"] for job in coordinator.facts()["jobs"]}
    assert jobs == {"runs": "running", "lost": "unreadable"}
    at = desk(coordinator)
    assert "unreadable" in get(at, "/", cookie=enter(at)).body.decode()


def test_a_ledger_is_read_on_and_anew_where_it_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    totals = LedgerTotals(path, "bank")
    totals.update()
    path.write_text(lines(message(0, "bank", 7)) + '{"unfinished')
    totals.update()
    path.write_text(lines(message(0, "bank", 7), message(1, COORDINATOR, 5)))
    totals.update()
    assert (totals.sent, totals.received, totals.messages) == (7, 5, 2)
    path.write_text(lines(message(0, "bank", 7), message(9, "bank", 100), message(10, "bank", 100)))
    totals.update()
    assert (totals.sent, totals.received, totals.messages) == (207, 0, 3)


def test_a_stage_tells_how_long_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    said: list[str] = []
    writer = StatusWriter(tmp_path, said.append, clock=lambda: now[0])
    writer.watch(Progress("training", 40, 100, note="half of the steps"))
    now[0] += 10
    writer.watch(Progress("training", 60, 100, note="half of the steps"))
    assert said == ["training … half of the steps"]
    status = Status(**json.loads((tmp_path / "status.json").read_text()))
    assert status.seconds_left == 20
    assert replace(status, state="done").seconds_left is None and replace(status, done=40).seconds_left is None


def test_certificates_are_warned_of_in_time(tmp_path: Path) -> None:
    now = time.time()
    assert validity(read_kit(kit(tmp_path / "a", "bank", 31))).warning(now) == ""
    assert "expires in 29 days" in validity(read_kit(kit(tmp_path / "b", "bank", 29))).warning(now)
    over = validity(read_kit(kit(tmp_path / "c", COORDINATOR, -2)))
    assert "has expired" in over.warning(now) and -3 < over.days_left(now) < -1


def test_the_tail_of_a_log_and_lines_of_a_ledger(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    assert log_tail(log) == [] and list(search_ledger(log, "")) == []
    log.write_text("".join(f"{n}\n" for n in range(500)))
    assert log_tail(log, 2) == ["498", "499"]
    log.write_text(lines(message(0, "bank", 7), message(1, "shop", 8)) + "{cut")
    assert [line["bytes"] for line in search_ledger(log, "SHOP")] == [8]


# Who may come in.


def test_nobody_comes_in_without_the_token(bank: KnownSite) -> None:
    at = desk(bank)
    for target in ("/", "/policy", "/job/held", "/job/held/held", "/metrics", "/api/facts.json", "/report/x.html"):
        shown = get(at, target)
        assert shown.status == 401 and b"old" not in shown.body and b'id="login"' in shown.body
    assert post(at, "/login", token="guess").status == 403
    assert post(at, "/job/held/decide", verdict="yes").status == 401
    assert get(at, "/metrics", authorization="Bearer guess").status == 401
    assert get(at, "/health").body == b"the engine is not running\n"


def test_a_page_from_elsewhere_changes_nothing(bank: KnownSite, coordinator: KnownSite) -> None:
    at = desk(bank)
    cookie = enter(at)
    form = held_in(get(at, "/job/held/held", cookie=cookie), "form")
    yes = {"verdict": "yes", "who": "a", "reason": "b", "digest": "ab"}
    elsewhere = ("http://evil.example", f"http://{HOST}.evil.example", "null", "")
    assert {post(at, "/job/held/decide", cookie, o, form=form, **yes).status for o in elsewhere} == {403}
    assert {post(at, "/login", origin=o, token=TOKEN).status for o in elsewhere} == {403}
    assert post(at, "/job/held/decide", cookie, form="guess", **yes).status == 403
    assert get(at, f"/job/held/decide?form={form}&verdict=yes", cookie=cookie).status == 404
    assert not (bank.kit.jobs / "held" / "decisions.jsonl").exists()
    at.answer(Asked("DELETE", "/job/held", {"host": HOST, "cookie": cookie}))
    assert at.answer(Asked("DELETE", "/job/held", {"host": HOST, "cookie": cookie})).status == 405
    there = desk(coordinator)
    assert post(there, "/job/runs/stop", enter(there)).status == 403
    assert not (coordinator.kit.jobs / "runs" / STOP).exists()


@pytest.mark.parametrize("host", ["evil.example:8710", "127.0.0.1", "127.0.0.1:80", ""])
def test_a_name_from_elsewhere_that_leads_here_is_refused(bank: KnownSite, host: str) -> None:
    shown = desk(bank).answer(Asked("GET", "/health", {"host": host}))
    assert shown.status == 421
    assert {"localhost:8710", "[::1]:8710"} <= known_hosts("127.0.0.1", 8710)
    assert known_hosts("10.0.0.5", 1, ("Box.example",)) == {"10.0.0.5:1", "box.example", "box.example:1"}


def test_a_session_ends(bank: KnownSite) -> None:
    now = [0.0]
    at = desk(bank, lambda: now[0])
    cookie = enter(at)
    page = get(at, "/", cookie=cookie)
    assert page.status == 200
    now[0] = 13 * 3600.0
    assert get(at, "/", cookie=cookie).status == 401
    now[0] = 1.0
    assert post(at, "/logout", cookie, form=held_in(page, "form")).status == 303
    assert get(at, "/", cookie=cookie).status == 401


def test_the_token_is_its_accounts_alone(tmp_path: Path) -> None:
    token = site_token(tmp_path)
    assert len(token) > 40 and site_token(tmp_path) == token
    assert (tmp_path / "console.token").stat().st_mode & 0o077 == 0
    (tmp_path / "console.token").write_text("\n")
    with pytest.raises(ConfigError, match="not empty"):
        site_token(tmp_path)
    (tmp_path / "console.token").chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        site_token(tmp_path)


# What it shows and does.


class Seen(HTMLParser):
    """Names, and what is loaded."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.bad: list[str] = []
        self.labelled, self.fields, self.ids = set[str](), list[str](), list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.bad += [key for key in given if key == "style" or key.startswith("on")]
        self.loads += [str(given[key]) for key in ("src", "href", "action") if key in given]
        self.ids += [str(given["id"])] if "id" in given else []
        if tag == "label" and "for" in given:
            self.labelled.add(str(given["for"]))
        if tag == "input" and given.get("type") not in ("hidden", "checkbox"):
            self.fields.append(str(given.get("id")))


@pytest.mark.parametrize("target", [
    "/", "/policy", "/job/held", "/job/held/held", "/job/old/ledger?q=done", "/job/no", "/job/busy", "/job/none",
    "/job/old/none",
])  # fmt: skip
def test_every_page_is_whole_and_loads_nothing_from_elsewhere(bank: KnownSite, target: str) -> None:
    at = desk(bank)
    shown = get(at, target, cookie=enter(at))
    text = shown.body.decode()
    seen = Seen(text)
    assert shown.status == (404 if "none" in target else 200)
    assert all(load.startswith("/") or load in ("#main", "data:,") for load in seen.loads) and not seen.bad
    assert len(seen.ids) == len(set(seen.ids)) and set(seen.fields) <= seen.labelled
    assert NASTY not in text and "<main" in text and "<h1>" in text and 'lang="en"' in text
    policy = shown.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy


def test_a_damaged_ledger_is_an_error_page(bank: KnownSite) -> None:
    at = desk(bank)
    cookie = enter(at)
    with open(bank.kit.jobs / "old" / "ledger.jsonl", "a") as file:
        file.write("{damaged\n")
    shown = get(at, "/job/old/ledger", cookie=cookie)
    assert shown.status == 500 and b"ledger verify" in shown.body
    assert b"unreadable" in get(at, "/", cookie=cookie).body and get(at, "/job/old", cookie=cookie).status == 200


def test_an_officer_decides_about_what_she_was_shown(bank: KnownSite) -> None:
    at, folder = desk(bank), bank.kit.jobs / "held"
    cookie = enter(at)
    page = get(at, "/job/held/held", cookie=cookie)
    fields = {"form": held_in(page, "form"), "digest": held_in(page, "digest"), "who": "Ada", "reason": "looked"}
    assert post(at, "/job/held/decide", cookie, **(fields | {"reason": " "}), verdict="yes").status == 409
    hold(folder, "cd")  # the coordinator has had others drawn
    assert post(at, "/job/held/decide", cookie, **fields, verdict="yes").status == 409
    with pytest.raises(SilosynthError, match="looked at"):
        approval.decide(folder, True, "unseen")
    fields["digest"] = held_in(get(at, "/job/held/held", cookie=cookie), "digest")
    assert post(at, "/job/held/decide", cookie, **fields, verdict="yes").status == 303
    (line,) = map(json.loads, (folder / "decisions.jsonl").read_text().splitlines())
    assert (line["verdict"], line["digest"], line["reason"], line["further"]) == ("approved", "cd", "looked", False)
    assert line["by"].endswith("(console: Ada)")


def test_a_yes_is_to_the_terms_that_were_shown_whatever_is_held_meanwhile(
    bank: KnownSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that begins another job under the same name while the page with the terms is made."""
    at, folder = desk(bank), bank.kit.jobs / "held"
    cookie = enter(at)
    fields = {"rows": 0, "since": 1e9}
    asked, other = ({"digest": digest, "terms": [f"epsilon = {digest}"], **fields} for digest in ("aa", "bb"))
    (folder / "held.json").write_text(json.dumps(asked))
    held = approval.held

    def swapped(place: Path) -> dict[str, Any]:
        found = held(place)
        if sys._getframe(1).f_code.co_name not in ("_held", "looked_at"):  # the list of jobs
            return found
        (place / "held.json").write_text(json.dumps({**other, "seen": found.get("seen")}))
        return found

    monkeypatch.setattr(approval, "held", swapped)
    page = get(at, "/job/held/held", cookie=cookie)
    assert b"epsilon = aa" in page.body
    monkeypatch.undo()
    given = {"form": held_in(page, "form"), "digest": held_in(page, "digest"), "who": "Ada", "reason": "looked"}
    post(at, "/job/held/decide", cookie, **given, verdict="yes")
    path = folder / "decisions.jsonl"
    approved = [json.loads(line)["digest"] for line in path.read_text().splitlines()] if path.exists() else []
    assert "bb" not in approved


def test_a_coordinator_stops_a_job_and_decides_nothing(coordinator: KnownSite) -> None:
    at = desk(coordinator)
    cookie = enter(at)
    page = get(at, "/job/runs", cookie=cookie)
    form = held_in(page, "form")
    assert b"about 4 min" in page.body and post(at, "/job/runs/decide", cookie, form=form).status == 404
    assert post(at, "/job/runs/stop", cookie, form=form).status == 303
    assert (coordinator.kit.jobs / "runs" / STOP).exists()
    assert post(at, "/job/lost/stop", cookie, form=form).status == 409
    assert post(at, "/job/..%2Flost/stop", cookie, form=form).status == 404


EXPERIMENT = '[algorithm]\nname = "silofuse"\npreset = "fast"\n[run]\nname = "mine"\n'


def test_a_job_is_submitted_at_the_coordinator_alone(coordinator: KnownSite, bank: KnownSite) -> None:
    at = desk(coordinator)
    cookie = enter(at)
    page = get(at, "/submit", cookie=cookie)
    form = held_in(page, "form")
    assert page.status == 200 and b'href="/submit"' in page.body
    for wrong, said in (
        (EXPERIMENT.replace("silofuse", "silofus"), "Did you mean"),
        (EXPERIMENT + "[judge]\n", "neither [judge] nor files"),
        (
            EXPERIMENT + '[[rules]]\nkind = "combination"\ncolumns = ["a", "b"]\nfile = "/etc/passwd"\n',
            "neither [judge] nor files",
        ),
        (EXPERIMENT + f'# </textarea>{NASTY}\nname = "x" y', "valid TOML"),
        (EXPERIMENT.replace("mine", "runs"), "used only once"),
    ):
        shown = post(at, "/submit", cookie, form=form, experiment=wrong)
        text = html.unescape(shown.body.decode())
        assert shown.status == 409 and said in text and wrong in text and NASTY not in shown.body.decode(), said
    assert post(at, "/submit", cookie, form="x", experiment=EXPERIMENT).status == 403
    assert not (coordinator.kit.jobs / "mine").exists()
    done = post(at, "/submit", cookie, form=form, experiment=EXPERIMENT.replace("\n", "\r\n"))
    assert (done.status, done.more["Location"]) == (303, "/job/mine")
    order = unpack_order((coordinator.kit.jobs / "mine" / "order").read_bytes())
    assert (order.job.algorithm, order.job.silos, order.job.submitter) == ("silofuse", ("bank", "shop"), COORDINATOR)
    assert b"submitted" in get(at, "/job/mine", cookie=cookie).body
    silo = desk(bank)
    cookie = enter(silo)
    form = held_in(get(silo, "/job/held/held", cookie=cookie), "form")
    assert get(silo, "/submit", cookie=cookie).status == 404
    assert post(silo, "/submit", cookie, form=form, experiment=EXPERIMENT).status == 404


def test_a_report_has_no_access_to_the_console(bank: KnownSite) -> None:
    at = desk(bank)
    cookie = enter(at)
    (bank.kit.folder / "work" / "reports").mkdir()
    (bank.kit.folder / "work" / "reports" / "r.html").write_text("<p>figures")
    assert b"/report/r.html" in get(at, "/", cookie=cookie).body
    shown = get(at, "/report/r.html", cookie=cookie)
    assert shown.body == b"<p>figures" and shown.headers["Content-Security-Policy"] == "sandbox allow-scripts"
    for other in ("/report/..%2Fconsole.token", "/report/console.token", "/report/../console.token"):
        assert get(at, other, cookie=cookie).status == 404


# The same for programs.


def test_page_and_command_tell_the_same(bank: KnownSite, coordinator: KnownSite) -> None:
    for site in (bank, coordinator):
        done = CliRunner().invoke(app, ["status", "--kit", str(site.kit.folder), "--json"])
        told = json.loads(done.stdout)
        shown = json.loads(get(desk(site), "/api/facts.json", authorization=f"Bearer {TOKEN}").body)
        told.pop("at"), shown.pop("at")
        assert told == shown and done.exit_code == 0
        plain = CliRunner().invoke(app, ["status", "--kit", str(site.kit.folder)], env={"COLUMNS": "200"}).stdout
        assert all(job["job"] in plain and job["state"] in plain for job in told["jobs"])
    assert "shop is away" in plain and "bank is connected" in plain


def test_metrics_are_what_prometheus_reads(bank: KnownSite, coordinator: KnownSite) -> None:
    text = get(desk(bank), "/metrics", authorization=f"Bearer {TOKEN}").body.decode()
    text += metrics(coordinator.facts(), time.time())
    sample = re.compile(r'(silosynth_[a-z_]+)(\{[a-z]+="[^"]*"\})? (-?[0-9.e+]+)')
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels, value = sample.fullmatch(line).groups()  # type: ignore[union-attr]
            found[name + (labels or "")] = float(value)
    assert found['silosynth_jobs{state="done"}'] == 0 and found['silosynth_jobs{state="failed"}'] == 1
    assert found['silosynth_job_progress{job="runs"}'] == 0.3
    assert found['silosynth_silo_connected{silo="shop"}'] == 0 and found["silosynth_up"] == 1
    assert found["silosynth_certificate_days_left"] == 200
    assert found["silosynth_held_rows"] == 0 and "silosynth_held_rows 2" in text
    assert {name.partition("{")[0] for name in found} == set(FAMILIES) - {"silosynth_epsilon_left"}


def test_health_says_why_not(coordinator: KnownSite, bank: KnownSite, tmp_path: Path) -> None:
    assert health(coordinator.basics()) == (True, "ok")
    assert health(bank.basics()) == (False, "the engine is not running")
    late = KnownSite(read_kit(kit(tmp_path / "late", "shop", -1)))
    presence.tell(late.kit.folder / "work", 1.0, {})
    assert health(late.basics()) == (False, "the certificate has expired")


def test_a_log_is_lines_of_json(bank: KnownSite, capsys: pytest.CaptureFixture[str]) -> None:
    startkit.timed(Session(), bank.kit, startkit.LogFormat.JSON)('warning: "so"')
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["site"], line["federation"]) == ("warning", "bank", "river")
    assert line["message"] == 'warning: "so"' and datetime.fromisoformat(line["at"]).tzinfo is not None


@pytest.mark.parametrize("file", ["alerts.yaml", "dashboard.json"])
def test_alerts_and_dashboard_ask_for_metrics_that_there_are(file: str) -> None:
    text = (ROOT / "deploy" / "monitoring" / file).read_text("utf-8")
    named = set(re.findall(r"silosynth_[a-z_]+", text))
    assert named and named <= set(FAMILIES)
