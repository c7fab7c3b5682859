"""The processes that `exchanges.py` starts: a party that answers at once, the same over bare gRPC, a line with delay.

python benchmarks/exchange_sides.py party KIT
python benchmarks/exchange_sides.py bare FOLDER ADDRESS
python benchmarks/exchange_sides.py line ADDRESS SECONDS
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import torch

from silosynth.core.conversation import Party, State
from silosynth.core.messages import Message
from silosynth.runtime.tls import Certificates
from silosynth.simulation.silos import open_process_kit

METHOD = "/bare.Stream/Talk"
PIECE = 2 << 20  # bytes of one gRPC message
OPTIONS = (("grpc.max_send_message_length", 2 * PIECE), ("grpc.max_receive_message_length", 2 * PIECE))
ROWS, WIDTH = 500, 128
CHUNK = 1 << 18  # bytes that the line reads at once


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


def main() -> None:
    """Be what the command line says."""
    what, *given = sys.argv[1:]
    if what == "party":
        open_process_kit(given[0]).serve(Answering())
    elif what == "bare":
        bare(Path(given[0]), given[1])
    else:
        asyncio.run(line(given[0], float(given[1])))


def received(pieces: Iterator[bytes], inbox: queue.SimpleQueue[bytes]) -> None:
    """Everything that comes in on a stream, until it ends."""
    try:
        for piece in pieces:
            inbox.put(piece)
    except grpc.RpcError:
        pass


if __name__ == "__main__":
    from exchange_sides import main as begin  # so that messages have the name that the coordinator knows

    begin()
