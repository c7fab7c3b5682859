"""The stream itself, with both ends in this process: identity, broken connections, large frames, malformed input."""

from __future__ import annotations

import contextlib
import socket
import ssl
import stat
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from silosynth.core.conversation import Exchange, Party, Roster, State
from silosynth.core.errors import DataError, MessageError, PartyLostError, ProtocolError, UnavailableError
from silosynth.core.messages import Done, Message
from silosynth.runtime.endpoint import PartyEndpoint
from silosynth.runtime.hub import HELLO, MAX_BODY, REPLY, WELCOME, Frame
from silosynth.runtime.link import Remote
from silosynth.runtime.stream import StreamHub, serve_endpoint
from silosynth.runtime.tls import Authority, Certificates, Connection, ssl_context

pytestmark = pytest.mark.live


class Block(Message):
    z_NL: torch.Tensor


class Echo(Party):
    """Replies with what it was asked, once released."""

    def __init__(self) -> None:
        self.answered = 0
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def answer(self, ask: Message) -> Message:
        self.answered += 1
        self.begun.set()
        assert self.go_on.wait(20)
        return ask

    def _state(self, training: bool) -> State:
        return {"answered": self.answered}

    def restore(self, state: State) -> None:
        self.answered = state["answered"]


class Guest(threading.Thread):
    """A party that is served in a thread, and its outcome."""

    def __init__(self, party: Party, *, name: str, folder: Path | None, **options: Any) -> None:
        super().__init__(daemon=True)
        self.endpoint, self.options = PartyEndpoint(name, party, folder), options
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            serve_endpoint(self.endpoint, **self.options)
        except Exception as error:
            self.error = error


AUTHORITY = Authority()


def alive(name: str) -> str | None:
    return None


@pytest.fixture
def hub() -> Iterator[StreamHub]:
    hub = StreamHub(["bank"], AUTHORITY.coordinator(), patience=3.0)
    yield hub
    hub.stop()


@pytest.fixture
def connect(hub: StreamHub, tmp_path: Path) -> Iterator[Callable[..., Guest]]:
    guests = []

    def connect(party: Party, certs: Certificates | None = None, name: str = "bank", patience: float = 2.0) -> Guest:
        guest = Guest(
            party,
            name=name,
            address=hub.address,
            certs=certs or AUTHORITY.party("bank"),
            folder=tmp_path,
            patience=patience,
        )
        guests.append(guest)
        return guest

    yield connect
    hub.stop()
    for guest in guests:
        guest.join(10)
        assert not guest.is_alive()


def plain(hub: StreamHub) -> socket.socket:
    """A connection without TLS, yet."""
    host, _, port = hub.address.rpartition(":")
    return socket.create_connection((host, int(port)))


def linked(hub: StreamHub, **options: Any) -> Remote:
    hub.wait_for_all(20, alive)
    link = Remote(Roster(("bank",)), hub, **options)
    link.begin()
    return link


def test_large_frames_travel(hub: StreamHub, connect: Callable[..., Guest]) -> None:
    connect(Echo())
    block = Block(torch.randn(400_000, 8, generator=torch.Generator().manual_seed(1)))
    got = linked(hub).exchange(1, {"bank": block})["bank"]
    assert got.sent == got.received > 12_000_000
    assert torch.equal(got.reply.z_NL, block.z_NL)  # type: ignore[attr-defined]


def test_a_broken_stream_comes_back_and_nothing_is_done_twice(hub: StreamHub, connect: Callable[..., Guest]) -> None:
    echo = Echo()
    connect(echo, patience=10.0)
    link = linked(hub)
    echo.go_on.clear()
    replies: list[Any] = []
    asking = threading.Thread(target=lambda: replies.append(link.exchange(1, {"bank": Block(torch.ones(3, 1))})))
    asking.start()
    assert echo.begun.wait(20)
    outbox = hub._slots["bank"].outbox
    assert outbox is not None
    outbox.put(None)  # the connection ends while the party computes
    until = time.monotonic() + 20
    while hub._slots["bank"].outbox in (None, outbox) and time.monotonic() < until:
        time.sleep(0.01)
    echo.go_on.set()
    asking.join(20)
    assert torch.equal(replies[0]["bank"].reply.z_NL, torch.ones(3, 1))
    link.exchange(2, {"bank": Done()})  # the repeated reply to step 1 does not answer step 2
    link.exchange(3, {"bank": Done()})
    assert echo.answered == 3


def test_a_party_that_stays_away_is_lost(hub: StreamHub, connect: Callable[..., Guest]) -> None:
    connect(Echo())
    link = linked(hub)
    hub._patience = 0.2
    outbox = hub._slots["bank"].outbox
    assert outbox is not None
    hub._slots["bank"].outbox, hub._slots["bank"].since = None, 0.0
    with pytest.raises(PartyLostError, match=r"'bank', step 4, on core.Done.*did not come back"):
        link.exchange(4, {"bank": Done()})
    outbox.put(None)


def test_a_party_that_is_too_slow_is_lost(hub: StreamHub, connect: Callable[..., Guest]) -> None:
    echo = Echo()
    connect(echo)
    echo.go_on.clear()
    with pytest.raises(PartyLostError, match=r"did not answer within 0.3 s"):
        linked(hub, limit=0.3).exchange(1, {"bank": Done()})
    echo.go_on.set()


def test_an_unknown_name_is_refused(hub: StreamHub, connect: Callable[..., Guest]) -> None:
    guest = connect(Echo(), AUTHORITY.party("stranger"), patience=30.0)
    guest.join(20)
    assert isinstance(guest.error, ProtocolError)
    assert "'stranger' does not take part" in str(guest.error)


def test_a_certificate_of_another_authority_is_refused(hub: StreamHub, connect: Callable[..., Guest]) -> None:
    ours, theirs = AUTHORITY.party("bank"), Authority().party("bank")
    forged = Certificates(ours.authority, theirs.certificate, theirs.key)
    guest = connect(Echo(), forged)
    guest.join(20)
    assert isinstance(guest.error, ProtocolError)
    assert hub._slots["bank"].outbox is None


def test_a_coordinator_of_another_authority_is_refused(hub: StreamHub, connect: Callable[..., Guest]) -> None:
    guest = connect(Echo(), Authority().party("bank"))
    guest.join(20)
    assert isinstance(guest.error, ProtocolError)


def test_a_partys_certificate_does_not_make_a_coordinator(connect: Callable[..., Guest]) -> None:
    false = StreamHub(["bank"], AUTHORITY.party("clinic"))
    options = {"name": "bank", "certs": AUTHORITY.party("bank"), "folder": None, "patience": 0.3}
    guest = Guest(Echo(), address=false.address, **options)
    guest.join(20)
    assert isinstance(guest.error, ProtocolError)
    false.stop()


def test_no_certificate_no_stream(hub: StreamHub) -> None:
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname = False
    bare.load_verify_locations(cadata=AUTHORITY.party("bank").authority.decode())
    connection = Connection(plain(hub), bare, server=False, patience=3.0)
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
        connection.receive()
    connection.close()


def test_old_tls_is_refused(hub: StreamHub) -> None:
    old = ssl_context(AUTHORITY.party("bank"), server=False)
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
        Connection(plain(hub), old, server=False, patience=3.0)


def test_silent_clients_block_nobody(hub: StreamHub, connect: Callable[..., Guest]) -> None:
    silent = [plain(hub) for _ in range(40)]
    echo = Echo()
    connect(echo, patience=10.0)
    linked(hub).exchange(1, {"bank": Done()})
    assert echo.answered == 1
    for one in silent:
        one.close()


@pytest.mark.parametrize("word", [b"garbage!", b"", Frame(HELLO, "", 0, "bank", bytes(100_000)).to_bytes()])
def test_a_failed_greeting_ends_at_once(hub: StreamHub, word: bytes) -> None:
    tls = ssl_context(AUTHORITY.party("bank"), server=False).wrap_socket(plain(hub))
    if word:
        tls.sendall(word)
    else:
        tls.shutdown(socket.SHUT_WR)
    tls.settimeout(3.0)
    with contextlib.suppress(ConnectionError):
        assert tls.recv(100) == b""
    tls.close()


def test_a_handshake_byte_by_byte_ends_in_time(hub: StreamHub) -> None:
    stranger, begun = plain(hub), time.monotonic()
    stranger.sendall(b"\x16\x03\x01\x02\x00")  # a record of 512 bytes is to follow
    with contextlib.suppress(OSError):
        while time.monotonic() - begun < 20:
            stranger.sendall(b"\x01")
            time.sleep(0.1)
    stranger.close()
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("address", ["nowhere", "a..b:5000", f"{'x' * 70}:5000"])
def test_an_invalid_address_is_an_error(address: str) -> None:
    guest = Guest(Echo(), name="bank", address=address, certs=AUTHORITY.party("bank"), folder=None, patience=0.3)
    guest.join(20)
    assert isinstance(guest.error, ProtocolError) and address in str(guest.error)


def test_a_second_party_of_the_same_name_is_refused(hub: StreamHub, connect: Callable[..., Guest]) -> None:
    first = Echo()
    connect(first)
    link = linked(hub)
    second = connect(Echo())
    second.join(20)
    assert isinstance(second.error, ProtocolError)
    assert "connected already" in str(second.error)
    link.exchange(1, {"bank": Done()})
    assert first.answered == 1


def test_frames_are_signed_with_the_name_in_the_certificate(hub: StreamHub, connect: Callable[..., Guest]) -> None:
    connect(Echo(), name="clinic")
    with pytest.raises(MessageError, match=r"own name.*clinic"):
        linked(hub).exchange(1, {"bank": Done()})


@pytest.mark.parametrize("said", [b"garbage!", Frame(REPLY, "other", 1, "bank").to_bytes()])
def test_garbage_and_unrequested_replies_are_errors(hub: StreamHub, said: bytes) -> None:
    tls = ssl_context(AUTHORITY.party("bank"), server=False).wrap_socket(plain(hub))
    tls.sendall(Frame(HELLO, "", 0, "bank").to_bytes())
    assert WELCOME.encode() in tls.recv(100)
    tls.sendall(said)
    with pytest.raises(MessageError):
        Remote(Roster(("bank",)), hub).exchange(1, {"bank": Done()})
    tls.close()


def test_memory_grows_with_received_bytes_not_with_announced_ones(hub: StreamHub) -> None:
    tls = ssl_context(AUTHORITY.party("bank"), server=False).wrap_socket(plain(hub))
    tls.sendall(Frame(HELLO, "", 0, "bank").to_bytes())
    assert WELCOME.encode() in tls.recv(100)
    head = Frame(REPLY, "", 1, "bank").header()[5:].replace(b'"size":0', b'"size":%d' % MAX_BODY)
    tracemalloc.start()
    tls.sendall(b"\x01" + len(head).to_bytes(4, "little") + head)
    tls.sendall(bytes(1_000_000))
    end = time.monotonic() + 20
    while (held := tracemalloc.get_traced_memory()[1]) < 1_000_000 and time.monotonic() < end:
        time.sleep(0.05)
    tracemalloc.stop()
    assert hub._slots["bank"].fault is None and 1_000_000 <= held < 8_000_000
    tls.close()


def test_checkpoints_go_beside_the_messages(hub: StreamHub, connect: Callable[..., Guest], tmp_path: Path) -> None:
    echo = Echo()
    connect(echo)
    link = linked(hub)
    link.exchange(1, {"bank": Done()})
    link.save(1)
    link.exchange(2, {"bank": Done()})
    link.restore(1)
    assert echo.answered == 1
    assert [path.name for path in tmp_path.iterdir()] == ["000001.ckpt"]


def test_an_unreachable_coordinator_is_an_error() -> None:
    guest = Guest(Echo(), name="bank", address="127.0.0.1:1", certs=AUTHORITY.party("bank"), folder=None, patience=0.3)
    guest.join(20)
    assert isinstance(guest.error, ProtocolError)
    assert "127.0.0.1:1" in str(guest.error)


def test_an_occupied_port_is_an_error(hub: StreamHub) -> None:
    with pytest.raises(UnavailableError, match="Choose another port"):
        StreamHub(["bank"], AUTHORITY.coordinator(), hub.address)


def test_threads_end_by_themselves(connect: Callable[..., Guest], request: pytest.FixtureRequest) -> None:
    before = set(threading.enumerate())  # other tests' threads may wait for the end of the process
    hub: StreamHub = request.getfixturevalue("hub")
    guest = connect(Echo())
    linked(hub).exchange(1, {"bank": Done()})
    hub.stop()
    guest.join(10)
    assert guest.error is None
    until = time.monotonic() + 10
    while left := [t.name for t in set(threading.enumerate()) - before if "silosynth" in t.name]:
        assert time.monotonic() < until, left
        time.sleep(0.01)


def test_keys_are_their_owners_only(tmp_path: Path) -> None:
    AUTHORITY.party("bank").write(tmp_path)
    assert stat.S_IMODE((tmp_path / "key.pem").stat().st_mode) == 0o600
    assert Certificates.read(tmp_path).key.startswith(b"-----BEGIN PRIVATE KEY")


def stalled(hub: StreamHub, connect: Callable[..., Guest], party: Echo | None = None) -> tuple[Echo, Remote]:
    """A party that does not reply to the first ask within the limit, and still owes its reply."""
    echo = party or Echo()
    connect(echo, patience=10.0)
    link = linked(hub, limit=0.3)
    echo.go_on.clear()
    reached = link.reach(1, Exchange({"bank": Block(torch.ones(3, 1))}, missing=True))
    assert not reached.received
    assert reached.unanswered["bank"].reason == "it did not answer within 0.3 s"
    assert reached.unanswered["bank"].sent > 0
    assert list(link.lost()) == ["bank"]
    link._limit = 20.0
    return echo, link


def until_back(link: Remote) -> None:
    until = time.monotonic() + 20
    while link.lost() and time.monotonic() < until:
        time.sleep(0.01)
    assert not link.lost()


def test_a_late_party_is_not_asked_before_its_reply_arrives(hub: StreamHub, connect: Callable[..., Guest]) -> None:
    echo, link = stalled(hub, connect)
    for step in (2, 3):
        reached = link.reach(step, Exchange({"bank": Done()}, missing=True))
        assert not reached.received and reached.unanswered["bank"].sent == 0
    echo.go_on.set()
    until_back(link)
    reached = link.reach(4, Exchange({"bank": Done()}, missing=True))
    assert isinstance(reached.received["bank"].reply, Done) and not reached.unanswered
    (late,) = reached.late
    assert (late.party, late.step) == ("bank", 1) and torch.equal(late.reply.z_NL, torch.ones(3, 1))  # type: ignore[attr-defined]
    assert late.received == link.exchange(5, {"bank": late.reply})["bank"].received
    assert not link.reach(6, Exchange({"bank": Done()}, missing=True)).late
    assert echo.answered == 4


def test_an_exchange_that_needs_a_late_party_waits_and_then_asks(hub: StreamHub, connect: Callable[..., Guest]) -> None:
    echo, link = stalled(hub, connect)
    threading.Timer(0.3, echo.go_on.set).start()
    assert isinstance(link.exchange(2, {"bank": Done()})["bank"].reply, Done)
    assert echo.answered == 2
    assert [late.step for late in link.reach(3, Exchange({"bank": Done()}, missing=True)).late] == [1]


def test_a_late_party_is_waited_for_beyond_the_limit_if_requested(
    hub: StreamHub, connect: Callable[..., Guest]
) -> None:
    """It is asked only once, and its reply belongs to the exchange: it is not late."""
    echo = Echo()
    connect(echo, patience=10.0)
    link, told = linked(hub, limit=0.2), []
    echo.go_on.clear()
    timer = threading.Timer(0.8, echo.go_on.set)
    timer.start()
    reached = link.reach(1, Exchange({"bank": Block(torch.ones(3, 1))}, wait=True), told.append)
    assert told == [{"bank": "it did not answer within 0.2 s"}]
    assert torch.equal(reached.received["bank"].reply.z_NL, torch.ones(3, 1))  # type: ignore[attr-defined]
    assert not reached.unanswered and not reached.late and not link.lost()
    link._limit = 20.0
    assert not link.reach(2, Exchange({"bank": Done()}, wait=True), told.append).late
    assert told[1:] == [{}] and echo.answered == 2


def test_an_already_late_party_is_waited_for_and_then_asked(hub: StreamHub, connect: Callable[..., Guest]) -> None:
    echo, link = stalled(hub, connect)
    timer = threading.Timer(0.3, echo.go_on.set)
    timer.start()
    reached = link.reach(2, Exchange({"bank": Done()}, wait=True))
    assert isinstance(reached.received["bank"].reply, Done)
    assert [late.step for late in reached.late] == [1]
    assert echo.answered == 2


def test_an_exchange_may_have_more_time_than_others(hub: StreamHub, connect: Callable[..., Guest]) -> None:
    echo = Echo()
    connect(echo, patience=10.0)
    link = linked(hub, limit=0.05)
    echo.go_on.clear()
    timer = threading.Timer(0.5, echo.go_on.set)
    timer.start()
    assert link.reach(1, Exchange({"bank": Done()}, times=400)).received
    echo.go_on.clear()
    with pytest.raises(PartyLostError, match=r"did not answer within 0.1 s"):
        link.reach(2, Exchange({"bank": Done()}, times=2))
    echo.go_on.set()


def test_an_exchange_that_needs_a_party_that_stays_late_fails(hub: StreamHub, connect: Callable[..., Guest]) -> None:
    echo, link = stalled(hub, connect)
    link._limit = 0.2
    with pytest.raises(PartyLostError, match=r"'bank', step 2.*did not answer within 0.2 s"):
        link.exchange(2, {"bank": Done()})
    echo.go_on.set()


def test_a_late_party_may_lose_its_stream_and_come_back(hub: StreamHub, connect: Callable[..., Guest]) -> None:
    echo, link = stalled(hub, connect)
    outbox = hub._slots["bank"].outbox
    assert outbox is not None
    outbox.put(None)
    until = time.monotonic() + 20
    while hub._slots["bank"].outbox in (None, outbox) and time.monotonic() < until:
        time.sleep(0.01)  # the ask that is owed is sent again
    echo.go_on.set()
    until_back(link)
    assert [late.step for late in link.reach(2, Exchange({"bank": Done()}, missing=True)).late] == [1]
    link.exchange(3, {"bank": Done()})  # the repeated reply to step 1 answers no other step
    assert echo.answered == 3


def test_an_error_of_a_late_party_is_raised(hub: StreamHub, connect: Callable[..., Guest]) -> None:
    class Refusing(Echo):
        def answer(self, ask: Message) -> Message:
            super().answer(ask)
            raise DataError("A toy has columns", "none", "Add one.")

    echo, link = stalled(hub, connect, Refusing())
    echo.go_on.set()
    until_back(link)
    with pytest.raises(DataError, match=r"'bank', late, to step 1: A toy has columns"):
        link.reach(2, Exchange({"bank": Done()}, missing=True))


def test_answers_to_older_steps_are_dropped(hub: StreamHub, connect: Callable[..., Guest]) -> None:
    connect(Echo())
    link = linked(hub)
    for step in (1, 2, 3):
        link.exchange(step, {"bank": Done()})
    for step in (1, 2, 3):
        hub._received("bank", hub._slots["bank"], Frame(REPLY, link._job, step, "bank"))
    link.exchange(4, {"bank": Done()})
    for job, step in (("other", 1), (link._job, 5)):
        with pytest.raises(MessageError, match="answers what it was asked"):
            hub._received("bank", hub._slots["bank"], Frame(REPLY, job, step, "bank"))


def test_a_late_checkpoint_keeps_nobody_else_waiting(hub: StreamHub, connect: Callable[..., Guest]) -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Writing(Echo):
        def _state(self, training: bool) -> State:
            begun.set()
            assert go_on.wait(20)
            return {}

    connect(Writing())
    link = linked(hub, limit=0.3)
    with pytest.raises(PartyLostError, match=r"'bank', save checkpoint 1.*did not answer within 0.3 s") as caught:
        link.save(1)
    assert caught.value.gone
    assert list(link.lost()) == ["bank"]
    go_on.set()
    until_back(link)
    reached = link.reach(1, Exchange({"bank": Done()}, missing=True))
    assert reached.received and not reached.late  # the late reply was no message
