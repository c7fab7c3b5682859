"""Exchanges per second between a coordinator and two silos, over our stream, bare gRPC, and in process.

    python benchmarks/exchanges.py                 # all: about four minutes
    python benchmarks/exchanges.py --quick --dry   # a first look; keeps no results

One exchange: the coordinator sends 500 × 128 float32 (256 KB) to both silos and gets as much from each. "stream" is
what `runtime="processes"` uses: messages, encoded and decoded, over mTLS, each silo a process. "bare gRPC"
carries bytes of the same size over a bidirectional stream with mTLS and nothing of ours: what is left to gain. All take
turns, in one run; read ratios. "latents" is a silo's one reply of 50 MB.

With delay, connections pass a line that hands bytes on 10 ms later, each way; any number of bytes may be under way.
VT-GAN's steps per second are those of real training on Adult over such streams, with and without joining exchanges
whose answers nobody reads to the next ones.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import common
import grpc
import torch

import silosynth as ss
from silosynth.core.conversation import Party, Roster, State
from silosynth.core.messages import Message
from silosynth.papers import tables
from silosynth.runtime.link import Link, Remote
from silosynth.runtime.tls import Authority, Certificates
from silosynth.simulation.silos import InProcess, Processes, open_process_kit

ROSTER = Roster(("bank", "clinic"))
LATENTS = 97_657  # rows of 128 float32: 50 MB
DELAY = 0.01  # seconds, each way
METHOD = "/bare.Stream/Talk"
PIECE = 2 << 20  # bytes of one gRPC message
OPTIONS = (("grpc.max_send_message_length", 2 * PIECE), ("grpc.max_receive_message_length", 2 * PIECE))
ROWS, WIDTH = 500, 128
CHUNK = 1 << 18  # bytes that the line reads at once


# What this script runs in processes of their own


class Block(Message):
    """B rows of a batch, W wide."""

    x_BW: torch.Tensor


class Ask(Message):
    """Send so many rows."""

    rows: int


class Answering(Party):
    """Answers a block with a block of its own, at once."""

    def __init__(self) -> None:
        self.block = Block(torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1)))

    def answer(self, ask: Message) -> Message:
        return Block(torch.ones(ask.rows, WIDTH)) if isinstance(ask, Ask) else self.block

    def state(self) -> State:
        return {}

    def trained(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        pass


def bare(folder: Path, address: str) -> None:
    """Bytes over a gRPC stream with mTLS: 256 KB for whatever comes, or as many bytes as eight bytes ask for."""
    keys, payload = Certificates.read(folder), bytes(ROWS * WIDTH * 4)
    credentials = grpc.ssl_channel_credentials(keys.authority, keys.key, keys.certificate)
    outbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    outbox.put(b"here")
    with grpc.secure_channel(address, credentials, OPTIONS) as channel:
        call: Any = channel.stream_stream(METHOD)
        for got in call(iter(outbox.get, b"")):
            if not got:
                outbox.put(b"")
            elif len(got) == 8:
                size = int.from_bytes(got, "little")
                for start in range(0, size, PIECE):
                    outbox.put(bytes(min(PIECE, size - start)))
            else:
                outbox.put(payload)


async def line(address: str, seconds: float) -> None:
    """Pass bytes on to ``address`` and back, each ``seconds`` later; tells its own address on a line of its own."""
    host, _, port = address.rpartition(":")

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(_pass_on(reader, far_writer, seconds), _pass_on(far_reader, writer, seconds))

    server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=CHUNK)
    print(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    """Bytes wait as they would on a wire: any number may be under way."""
    under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        while (item := await under_way.get())[1]:
            await asyncio.sleep(item[0] - time.monotonic())
            writer.write(item[1])
            await writer.drain()
        writer.close()

    delivering = asyncio.create_task(deliver())
    try:
        while chunk := await reader.read(CHUNK):
            under_way.put_nowait((time.monotonic() + seconds, chunk))
    except ConnectionError:
        pass  # the other side is gone, which the far side is told as well
    under_way.put_nowait((0.0, b""))
    with contextlib.suppress(ConnectionError):
        await delivering


def serve(what: str, *given: str) -> None:
    """Be a party that answers at once, the same over bare gRPC, or a line with delay."""
    if what == "party":
        open_process_kit(given[0]).serve(Answering())
    elif what == "bare":
        bare(Path(given[0]), given[1])
    else:
        asyncio.run(line(given[0], float(given[1])))


def own_process(what: str, *given: str) -> list[str]:
    """The command of a process that does `serve`."""
    return [sys.executable, __file__, "--serve", what, *given]


# The coordinator's side


class Line:
    """A process through which connections to ``address`` pass, with delay."""

    def __init__(self, address: str, seconds: float) -> None:
        command = own_process("line", address, str(seconds))
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class Counted(Processes):
    """Processes, and when exchanges were begun."""

    at: ClassVar[list[float]] = []

    def _exchange(self, *exchange: Any, **how: Any) -> Any:
        self.at.append(time.perf_counter())
        return super()._exchange(*exchange, **how)


class Delayed(Counted):
    """Those whose connections pass a line with delay."""

    line: Line | None = None

    def _start(self, party: str, command: Any, address: str, *rest: Any) -> None:
        self.line = self.line or Line(address, DELAY)
        super()._start(party, command, self.line.address, *rest)

    def close(self) -> None:
        super().close()
        if self.line is not None:
            self.line.close()


class Ours:
    """Exchanges over a link."""

    def __init__(self, link: Link) -> None:
        self.link, self.step = link, 0
        self.asks = {name: Block(torch.randn(ROWS, WIDTH)) for name in ROSTER}
        link.begin()

    def exchange(self) -> None:
        self.step += 1
        self.link.exchange(self.step, self.asks)

    def latents(self) -> None:
        self.step += 1
        self.link.exchange(self.step, {"bank": Ask(LATENTS)})

    def close(self) -> None:
        self.link.close()


class Bare(grpc.GenericRpcHandler):
    """Bytes over gRPC streams with mTLS, one per silo; no frames, no messages."""

    def __init__(self, delay: float = 0.0) -> None:
        authority, self.place = Authority(), tempfile.TemporaryDirectory()
        own = authority.coordinator()
        self.payload = bytes(ROWS * WIDTH * 4)
        self.lines: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.server = grpc.server(ThreadPoolExecutor(4), handlers=[self], options=OPTIONS)
        credentials = grpc.ssl_server_credentials([(own.key, own.certificate)], own.authority, True)
        address = f"127.0.0.1:{self.server.add_secure_port('127.0.0.1:0', credentials)}"
        self.server.start()
        self.line = Line(address, delay) if delay else None
        self.children = []
        for name in ROSTER:
            folder = Path(self.place.name) / name
            folder.mkdir()
            authority.party(name).write(folder)
            command = own_process("bare", str(folder), self.line.address if self.line else address)
            self.children.append(subprocess.Popen(command))
        self.ends = [self.lines.get(timeout=120) for _ in ROSTER]
        for _, inbox in self.ends:
            inbox.get()

    def service(self, details: Any) -> Any:
        return grpc.stream_stream_rpc_method_handler(self._talk) if details.method == METHOD else None

    def _talk(self, pieces: Iterator[bytes], context: Any) -> Iterator[bytes]:
        outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=received, args=(pieces, inbox), daemon=True).start()
        self.lines.put((outbox, inbox))
        yield from iter(outbox.get, None)

    def exchange(self) -> None:
        for outbox, _ in self.ends:
            outbox.put(self.payload)
        for _, inbox in self.ends:
            inbox.get()

    def latents(self) -> None:
        size = LATENTS * WIDTH * 4
        outbox, inbox = self.ends[0]
        outbox.put(size.to_bytes(8, "little"))
        b"".join(inbox.get() for _ in range(-(-size // PIECE)))

    def close(self) -> None:
        for outbox, _ in self.ends:
            outbox.put(b"")
            outbox.put(None)
        for child in self.children:
            child.wait(10)
        self.server.stop(None).wait()
        if self.line is not None:
            self.line.close()
        self.place.cleanup()


def received(pieces: Iterator[bytes], inbox: queue.SimpleQueue[bytes]) -> None:
    """Everything that comes in on a stream, until it ends."""
    try:
        for piece in pieces:
            inbox.put(piece)
    except grpc.RpcError:
        pass


def party(name: str, place: Path) -> list[str]:
    return own_process("party", str(place))


WAYS: dict[str, Callable[[], Any]] = {
    "in process": lambda: Ours(InProcess({name: Answering() for name in ROSTER})),
    "bare gRPC, mTLS": Bare,
    "stream, mTLS": lambda: Ours(Processes(ROSTER, party)),
}
FAR: dict[str, Callable[[], Any]] = {
    "bare gRPC, mTLS, 20 ms": lambda: Bare(DELAY),
    "stream, mTLS, 20 ms": lambda: Ours(Delayed(ROSTER, party)),
}


def measure(ways: dict[str, Callable[[], Any]], turns: int, exchanges: int, floor: str) -> list[dict[str, Any]]:
    """All ways in turn; each turn's exchanges one after the other. What is shared by all disturbs all."""
    made = {name: make() for name, make in ways.items()}
    took: dict[str, list[list[float]]] = {name: [] for name in made}
    latents: dict[str, list[float]] = {name: [] for name in made}
    try:
        for turn in range(turns + 1):
            for name, way in made.items():
                times = [common.seconds(way.exchange) for _ in range(exchanges)]
                if turn:  # the first warms up
                    took[name].append(times)
                    latents[name].append(common.seconds(way.latents))
    finally:
        for way in made.values():
            way.close()
    rates = {name: [exchanges / sum(times) for times in turns] for name, turns in took.items()}
    rows = []
    for name, turns_took in took.items():
        every = sorted(1000 * one for times in turns_took for one in times)
        against = [mine / bare for mine, bare in zip(rates[name], rates[floor], strict=True)]
        rows.append(
            {
                "way": name,
                "exchanges per second": statistics.median(rates[name]),
                "against bare gRPC": statistics.median(against),
                "p50 ms": every[len(every) // 2],
                "p95 ms": every[len(every) * 95 // 100],
                "50 MB of latents, s": statistics.median(latents[name]),
            }
        )
    return rows


SETTINGS = {"decoys": {"index_privacy": "decoys"}, "full": {"index_privacy": "full"}}


def train(setting: str, way: str, joined: bool, rounds: int) -> dict[str, Any]:
    """VT-GAN on 5 000 rows of Adult in two silos, batch 500: exchanges per step, and steps per second."""
    federation = tables.in_silos(tables.modelled("adult").head(5000), 2)
    options = {**SETTINGS[setting], "epochs": 1, "least_rounds": rounds}
    at: list[float] = []
    seen = lambda progress: at.append(time.perf_counter())  # noqa: E731
    fit = {"options": options, "progress": seen, "checkpoint_every": 1e9}
    runtime, kind = ("inprocess", Processes) if way == "in process" else ("processes", WAY[way])
    Counted.at.clear()
    with patch("silosynth.simulation.silos.Processes", kind), patch.object(Remote, "far", joined):
        ledger = ss.fit("vtgan", federation, "balanced", runtime=runtime, **fit).ledger
    rounds = len(at) - 1
    first = next(record["step"] for record in ledger if record["type"].endswith("DrawConditions"))
    steps = rounds * 6  # five of the critic and one of the generator
    trips = sum(at[0] < one < at[-1] for one in Counted.at)
    return {
        "index privacy": setting,
        "way": way,
        "joined": "" if way == "in process" else "yes" if joined else "no",
        "round trips per step": trips / steps,
        "steps per second": 6 / statistics.median(b - a for a, b in itertools.pairwise(at[2:])),  # warm-up apart
        "MB per step": sum(record["bytes"] for record in ledger if record["step"] >= first) / steps / 1e6,
    }


WAY = {"loopback": Counted, "20 ms": Delayed}


def main() -> None:
    """Measure and keep."""
    parser = common.parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer turns, no delay, no training")
    parser.add_argument("--training", action="store_true", help="training only")
    parser.add_argument("--dry", action="store_true", help="print only")
    parser.add_argument("--serve", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(*given.serve)
        return
    keep = (lambda name, rows, **_: print(common.markdown(rows), flush=True)) if given.dry else common.keep
    torch.set_num_threads(1)
    if given.quick:
        keep("exchanges", measure(WAYS, 3, 150, "bare gRPC, mTLS"))
        return
    if not given.training:
        near = measure(WAYS, 9, 300, "bare gRPC, mTLS")
        far = measure(FAR, 3, 60, "bare gRPC, mTLS, 20 ms")
        keep("exchanges", near + far)
    training = [train(setting, "in process", True, 24) for setting in SETTINGS]
    training += [train(*each, 24) for each in itertools.product(SETTINGS, WAY, (False, True))]
    keep("exchanges_vtgan", training)


if __name__ == "__main__":
    main()
