"""A wire between hosts that are network namespaces, on which frames take time and get lost; and a gate that passes TCP.

    python wire.py carry SECONDS SHARE INTERFACE…   carries frames between these interfaces, until it is ended
    python wire.py plain INTERFACE                  has an interface send whole frames, each with its checksum
    python wire.py gate ADDRESS PORT…               passes connections to these ports on to those of another host

It does what the kernel's `netem` does, where the kernel has none: each frame is received from one interface, kept for
so many seconds, and sent by the interface behind which its receiver was seen, unless it belongs to the share that is
lost. TCP sees delay, gaps and late order as on a long line. Linux, as root.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import heapq
import random
import select
import socket
import struct
import sys
import time
from collections.abc import Awaitable, Callable

ALL = 3  # ETH_P_ALL
LARGEST = 65536
ETHTOOL = 0x8946  # SIOCETHTOOL
OFF = (0x17, 0x1F, 0x24, 0x2C)  # checksums on sending; segmenting TCP, segmenting anything, joining what came


def carry(delay: float, loss: float, names: list[str]) -> None:
    """Carry frames for ever."""
    ends = {one: opened(one) for one in names}
    behind: dict[bytes, str] = {}
    waiting: list[tuple[float, int, str, bytes]] = []
    chance, count = random.Random(7), 0
    while True:
        left = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 1.0
        for end in select.select(list(ends.values()), [], [], left)[0]:
            try:
                frame, (name, _, kind, *_) = end.recvfrom(LARGEST)
            except OSError:  # the plug is pulled
                continue
            if kind == socket.PACKET_OUTGOING:
                continue
            to, sender = frame[:6], frame[6:12]
            behind[sender] = name
            if chance.random() >= loss:
                for other in [behind[to]] if to in behind else [one for one in names if one != name]:
                    count += 1
                    heapq.heappush(waiting, (time.monotonic() + delay, count, other, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, other, frame = heapq.heappop(waiting)
            with contextlib.suppress(OSError):
                ends[other].send(frame)


def opened(name: str) -> socket.socket:
    """A socket that hears and sends all frames of an interface."""
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL))
    end.bind((name, 0))
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    return end


def plain(name: str) -> None:
    """Leave nothing to a device that is none: no frame longer than the wire takes, none without its checksum."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for what in OFF:
            value = array.array("B", struct.pack("II", what, 0))
            asked = struct.pack("16sP", name.encode(), value.buffer_info()[0])
            fcntl.ioctl(any_socket, ETHTOOL, asked)


async def gate(address: str, ports: list[int]) -> None:
    """Pass on connections, byte by byte, as a proxy does that knows nothing of TLS."""

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(LARGEST):
                target.write(data)
                await target.drain()
            target.write_eof()

    def passing_to(port: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def passing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                back, to = await asyncio.open_connection(address, port)
                await asyncio.gather(copy(reader, to), copy(back, writer))
                to.close()
            writer.close()

        return passing

    for port in ports:
        await asyncio.start_server(passing_to(port), "0.0.0.0", port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    if what == "plain":
        plain(words[0])
    elif what == "gate":
        asyncio.run(gate(words[0], [int(port) for port in words[1:]]))
    else:
        carry(float(words[0]), float(words[1]), words[2:])
