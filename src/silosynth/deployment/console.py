"""The console: a site's facts as web pages, for the people who run it, with the few things that they decide.

`Desk` answers requests and opens no socket; `serve` puts Python's own HTTP server before it. Who has the token of the
file `TOKEN`, which only the site's account can read, may come in. Pages hold no script or style of their own, load
nothing from elsewhere, and change something only by a form of this very console.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from silosynth.core.errors import ConfigError, SilosynthError, UnavailableError
from silosynth.core.files import PRIVATE, make_folder, read
from silosynth.data import sources
from silosynth.deployment import approval, coordinator, entry
from silosynth.deployment.facts import UNFINISHED, KnownSite, log_tail, search_ledger
from silosynth.deployment.label import LABEL, read_label
from silosynth.deployment.label_page import label_page
from silosynth.deployment.metrics import health, metrics
from silosynth.evaluation.pages import page, source
from silosynth.experiment import grammar

TOKEN, REPORTS = "console.token", "reports"
_COOKIE = "silosynth"
_SESSION = 12 * 3600.0  # seconds
_LINES, _ROWS = 200, 50  # of a ledger, and of a table, on a page
_LARGEST = 65536  # bytes of a form
_SLOWEST = 15.0  # seconds for a browser to say what it wants
_ONLY_OURS = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _ONLY_OURS,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Asked:
    """A request. Names of headers are in small letters."""

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def parts(self) -> tuple[str, ...]:
        """Of the path."""
        return tuple(part for part in urlsplit(self.target).path.split("/") if part)

    def query(self, key: str) -> str:
        """A value of the query, or an empty text."""
        return parse_qs(urlsplit(self.target).query).get(key, [""])[0]

    def form(self) -> dict[str, str]:
        """What a form has sent."""
        text = self.body.decode("utf-8", "replace")
        return {key: values[0] for key, values in parse_qs(text, keep_blank_values=True).items()}

    def cookie(self) -> str:
        """The session's cookie, or an empty text."""
        try:
            found = SimpleCookie(self.headers.get("cookie", "")).get(_COOKIE)
        except CookieError:
            return ""
        return "" if found is None else found.value


@dataclass(frozen=True)
class Shown:
    """An answer."""

    status: int
    body: bytes
    kind: str = "text/html; charset=utf-8"
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def headers(self) -> dict[str, str]:
        """All headers."""
        return {**_HEADERS, "Content-Type": self.kind, **self.more}


def site_token(work: Path) -> str:
    """The token of a site's console, from its file, which is made if there is none.

    Raises:
        ConfigError: others can read the file, or it is empty, so that anybody would have the token.
        StorageError: it cannot be read.
    """
    path = make_folder(work) / TOKEN
    if not path.exists():
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise ConfigError("Only its own account reads a console's token", str(path), f"Close it: chmod 600 {path}")
    token = read(path).decode("ascii", "replace").strip()
    if not token:
        raise ConfigError("A console's token is not empty", str(path), f"Remove it, and a new one is made: rm {path}")
    return token


class Desk:
    """Answers requests to a site's console.

    Args:
        site: whose facts are shown.
        token: lets in who knows it.
        hosts: names and ports by which browsers may call the console. Others are refused: a page from elsewhere whose
            name leads here (DNS rebinding) has one of them.
        clock: seconds since 1970.
    """

    def __init__(
        self, site: KnownSite, token: str, hosts: frozenset[str], clock: Callable[[], float] = time.time
    ) -> None:
        self._site, self._token, self._hosts, self._clock = site, token, hosts, clock
        self._one = threading.Lock()  # requests come in threads
        self._sessions: dict[str, tuple[float, str]] = {}  # until when, and what forms hold

    def answer(self, asked: Asked) -> Shown:
        """The answer to a request."""
        if asked.headers.get("host", "").lower() not in self._hosts:
            return _plain(421, "This console is called by another name. Name it with --host-name.")
        if asked.method not in ("GET", "HEAD", "POST"):
            return _plain(405, "Not here.")
        try:
            with self._one:
                return self._answer(asked)
        except SilosynthError as error:
            return self._page(asked, "error", 409, message=str(error))
        except (ValueError, OSError) as error:
            text = f"A file of this site cannot be read: {type(error).__name__}. For ledgers: silosynth ledger verify."
            return self._page(asked, "error", 500, message=text)

    def _answer(self, asked: Asked) -> Shown:
        posts, parts = asked.method == "POST", asked.parts
        if posts and not self._of_ours(asked):
            return _plain(403, "Forms of other pages change nothing here.")
        if not posts and len(parts) == 1 and parts[0] in ("console.css", "console.js"):
            return _file(parts[0])
        if not posts and parts == ("health",):
            well, text = health(self._site.basics())
            return _plain(200 if well else 503, text)
        if parts == ("login",):
            return self._login(asked) if posts else self._page(asked, "login", 200, wrong=False)
        if self._bearer(asked) and not posts:
            return self._for_programs(parts)
        if (session := self._session(asked)) is None:
            return self._page(asked, "login", 401, wrong=False)
        if not posts:
            return self._for_programs(parts) if parts[:1] in (("api",), ("metrics",)) else self._show(asked)
        if not _same(asked.form().get("form", ""), session):
            return _plain(403, "This form is of another session. Go back, and load the page again.")
        return self._do(asked)

    def _for_programs(self, parts: tuple[str, ...]) -> Shown:
        facts = self._site.facts()
        if parts == ("api", "facts.json"):
            return Shown(200, json.dumps(facts, indent=1, allow_nan=False).encode(), "application/json")
        if parts == ("metrics",):
            text = metrics(facts, self._clock())
            return Shown(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")
        return _plain(404, "Programs read /api/facts.json and /metrics.")

    # Who may come in.

    def _of_ours(self, asked: Asked) -> bool:
        """Whether a form was sent by a page of this console, by what the browser says."""
        origin = asked.headers.get("origin", "")
        return urlsplit(origin).netloc.lower() == asked.headers["host"].lower() and origin.startswith("http")

    def _bearer(self, asked: Asked) -> bool:
        kind, _, token = asked.headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and _same(token.strip(), self._token)

    def _session(self, asked: Asked) -> str | None:
        """What the session's forms hold; None of nobody."""
        until, form = self._sessions.get(asked.cookie(), (0.0, ""))
        return form if self._clock() < until else None

    def _login(self, asked: Asked) -> Shown:
        if not _same(asked.form().get("token", "").strip(), self._token):
            return self._page(asked, "login", 403, wrong=True)
        now = self._clock()
        self._sessions = {key: kept for key, kept in self._sessions.items() if kept[0] > now}
        cookie = secrets.token_urlsafe(32)
        self._sessions[cookie] = now + _SESSION, secrets.token_urlsafe(32)
        return _to("/", {"Set-Cookie": f"{_COOKIE}={cookie}; Path=/; HttpOnly; SameSite=Strict"})

    # What is shown.

    def _show(self, asked: Asked) -> Shown:
        parts = asked.parts
        if not parts:
            return self._page(asked, "jobs", 200, facts=self._site.facts(), reports=self._reports())
        if parts == ("policy",) and not self._site.here:
            return self._page(asked, "policy", 200, facts=self._site.facts())
        if parts == ("submit",) and self._site.here:
            return self._page(asked, "submit", 200, experiment="", wrong="")
        if parts[0] == "report" and len(parts) == 2:
            return self._report(parts[1])
        name = parts[1] if parts[0] == "job" and len(parts) in (2, 3) else ""
        job = self._site.job(name) if name else None
        if job is None:
            return self._page(asked, "error", 404, message="There is no such page, or no such job.")
        show = {"": self._job, "ledger": self._ledger, "held": self._held, "label": self._label}
        view = show.get("".join(parts[2:]))
        if view is None:
            return self._page(asked, "error", 404, message="There is no such page.")
        return view(asked, job, self._site.kit.jobs / name)

    def _job(self, asked: Asked, job: dict[str, Any], folder: Path) -> Shown:
        stop = self._site.here and job["state"] in UNFINISHED
        label = (folder / LABEL).exists()
        return self._page(asked, "job", 200, job=job, log=log_tail(folder / entry.LOG), stop=stop, label=label)

    def _ledger(self, asked: Asked, job: dict[str, Any], folder: Path) -> Shown:
        wanted, begin = asked.query("q"), asked.query("from")
        first = int(begin) if begin.isdecimal() and len(begin) < 12 else 0
        lines = list(islice(search_ledger(folder / coordinator.LEDGER, wanted), first, first + _LINES + 1))
        after = f"?q={quote(wanted)}&from={first + _LINES}" if len(lines) > _LINES else ""
        return self._page(
            asked, "ledger", 200, job=job, lines=lines[:_LINES], wanted=wanted, first=first, after=after,
            fields=("step", "at", "from", "to", "type", "bytes", "privacy"),
        )  # fmt: skip

    def _held(self, asked: Asked, job: dict[str, Any], folder: Path) -> Shown:
        """What waits for a decision, rows or a job's terms; from now on somebody has looked at it."""
        seen = approval.looked_at(folder)
        if terms := seen.get("terms"):
            return self._page(
                asked, "held", 200, job=job, heads=[], rows=[], columns=[], total=0, terms=terms, digest=seen["digest"]
            )
        table = sources.read(folder / approval.HELD)
        head = table.head(_ROWS)
        rows = [["" if value != value else str(value) for value in row] for row in head.itertuples(index=False)]
        ranges = [
            (str(name), str(table[name].dtype), int(table[name].isna().sum()), int(table[name].nunique()))
            for name in table.columns
        ]
        return self._page(
            asked, "held", 200, job=job, heads=[str(name) for name in table.columns], rows=rows, columns=ranges,
            total=len(table), terms=[], digest=seen["digest"],
        )  # fmt: skip

    def _label(self, asked: Asked, job: dict[str, Any], folder: Path) -> Shown:
        text = label_page(read_label(folder / LABEL))
        return Shown(200, text.encode(), more={"Content-Security-Policy": "sandbox"})

    def _reports(self) -> list[str]:
        return sorted(path.name for path in self._place().glob("*.html"))

    def _place(self) -> Path:
        return self._site.kit.folder / "work" / REPORTS

    def _report(self, name: str) -> Shown:
        """A report, which has scripts: it is shown without access to anything of the console's."""
        if name not in self._reports():
            return _plain(404, "There is no such report.")
        return Shown(200, read(self._place() / name), more={"Content-Security-Policy": "sandbox allow-scripts"})

    # What is done.

    def _do(self, asked: Asked) -> Shown:
        parts, form = asked.parts, asked.form()
        if parts == ("logout",):
            self._sessions.pop(asked.cookie(), None)
            return _to("/login")
        if parts == ("submit",) and self._site.here:
            return self._submit(asked, form.get("experiment", ""))
        folder = next((one for one in self._site.folders() if parts[:2] == ("job", one.name)), None)
        if folder is None or len(parts) != 3:
            return _plain(404, "There is no such job.")
        if parts[2] == "stop" and self._site.here:
            coordinator.request_stop(folder)
        elif parts[2] == "decide" and not self._site.here:
            self._decide(folder, form)
        else:
            return _plain(404, "Nothing is done here.")
        return _to(f"/job/{quote(folder.name)}")

    def _submit(self, asked: Asked, experiment: str) -> Shown:
        """Put the job of an experiment into the queue, as `silosynth submit` does; or say what is wrong with it."""
        try:
            order = self._order(experiment)
            coordinator.enqueue(order, self._site.kit.jobs / order.job.name)
        except SilosynthError as error:
            return self._page(asked, "submit", 409, experiment=experiment, wrong=str(error))
        return _to(f"/job/{quote(order.job.name)}")

    def _order(self, experiment: str) -> coordinator.Order:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "experiment.toml"
            path.write_text(experiment, encoding="utf-8")
            plan = grammar.read(path)
            if plan.judge is not None or any("file" in rule for rule in plan.rules):
                raise ConfigError(
                    "What is written here has neither [judge] nor files of rules", "one of them",
                    "Submit it with: silosynth submit. Tables are judged later, too: silosynth judge --job JOB",
                )  # fmt: skip
            return coordinator.order(plan, self._site.kit.roster, self._site.kit.name)

    def _decide(self, folder: Path, form: Mapping[str, str]) -> None:
        """Put down a yes or a no to the very rows that were shown."""
        who, reason, verdict = (form.get(key, "").strip() for key in ("who", "reason", "verdict"))
        if verdict not in ("yes", "no") or not who or not reason:
            raise ConfigError("A decision is yes or no, with a name and a reason", "something is missing", "Go back.")
        if not _same(form.get("digest", ""), approval.held(folder)["digest"]):
            raise ConfigError("What is decided was looked at", "other rows are held now", "Look at them first.")
        approval.decide(folder, verdict == "yes", reason, verdict == "yes" and "further" in form, by=f"console: {who}")

    def _page(self, asked: Asked, view: str, status: int, **values: Any) -> Shown:
        session = self._session(asked)
        shared = {"site": self._site.kit.name, "federation": self._site.kit.federation, "here": self._site.here}
        text = page("console.html.j2", view=view, form=session, **shared, **values)
        return Shown(status, text.encode())


def _same(given: str, right: str) -> bool:
    return hmac.compare_digest(given.encode(), right.encode())


def _file(name: str) -> Shown:
    if name.endswith(".js"):
        return Shown(200, source(name).encode(), "text/javascript; charset=utf-8")
    return Shown(200, f"{source('report.css')}\n{source(name)}".encode(), "text/css; charset=utf-8")


def _plain(status: int, text: str) -> Shown:
    return Shown(status, f"{text}\n".encode(), "text/plain; charset=utf-8")


def _to(place: str, more: Mapping[str, str] | None = None) -> Shown:
    return Shown(303, b"", more={"Location": place, **(more or {})})


def known_hosts(address: str, port: int, names: Iterator[str] | tuple[str, ...] = ()) -> frozenset[str]:
    """The names by which a console at this address may be called."""
    shown = f"[{address}]" if ":" in address else address
    local = ("localhost", "127.0.0.1", "[::1]") if address in ("127.0.0.1", "::1", "localhost") else ()
    own = {f"{name}:{port}".lower() for name in (shown, *local)}
    return frozenset(own | {name.lower() for name in names} | {f"{name}:{port}".lower() for name in names})


def listen(desk: Desk, address: str, port: int) -> ThreadingHTTPServer:
    """A server of a console, which listens; nothing of what is asked is logged, which might hold secrets.

    Raises:
        UnavailableError: the port is in use, or the address is not of this machine.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = _SLOWEST
        server_version, sys_version = "silosynth", ""

        def _respond(self) -> None:
            length = self.headers.get("Content-Length") or "0"
            if not length.isdecimal() or int(length) > _LARGEST or self.headers.get("Transfer-Encoding"):
                self._send(_plain(413, "That is too long."))
                return
            headers = {name.lower(): value for name, value in self.headers.items()}
            self._send(desk.answer(Asked(self.command, self.path, headers, self.rfile.read(int(length)))))

        def _send(self, shown: Shown) -> None:
            self.send_response(shown.status)
            for name, value in {**shown.headers, "Content-Length": str(len(shown.body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(shown.body)

        do_GET = do_HEAD = do_POST = _respond

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A browser that hangs up is no news."""

    try:
        return Server((address, port), Handler)
    except OSError as error:
        where = f"{address}:{port}"
        rule = "A console listens at an address of this machine, on a free port"
        raise UnavailableError(rule, f"{where}: {error.strerror}", "Name another --port.") from error
