"""A name server that a test rules: names that come, move to another address, and go, as pods' names do."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, cast

_HEADER_BYTES: Final = 12
_TYPE_A: Final = 1
_NAME_ERROR: Final = 3


class FakeNames(asyncio.DatagramProtocol):
    """Answers questions over UDP from ``addresses``; a name that is not there does not exist. Made by ``serve``."""

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}
        """Name to IPv4 address, to be changed at any time."""
        self.asked: list[str] = []
        self.port = 0
        self._transport: asyncio.DatagramTransport | None = None
        self._heard = asyncio.Event()

    @staticmethod
    @asynccontextmanager
    async def serve() -> AsyncIterator[FakeNames]:
        """Answer on a port of this machine until the block ends."""
        loop = asyncio.get_running_loop()
        transport, names = await loop.create_datagram_endpoint(FakeNames, local_addr=("127.0.0.1", 0))
        names.port = transport.get_extra_info("sockname")[1]
        try:
            yield names
        finally:
            transport.close()

    def target(self, endpoint: object) -> str:
        """What gRPC has to be given to ask here for the host of ``endpoint``."""
        return f"dns://127.0.0.1:{self.port}/{endpoint}"

    async def until_asked(self, times: int) -> None:
        """Return once this many questions came, counted from the start."""
        while len(self.asked) < times:
            self._heard.clear()
            await self._heard.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: object) -> None:
        """One question; the answer has the same question, and the address if there is one."""
        labels, at = [], _HEADER_BYTES
        while length := data[at]:
            labels.append(data[at + 1 : at + 1 + length].decode())
            at += length + 1
        (kind,) = struct.unpack_from(">H", data, at + 1)
        question = data[_HEADER_BYTES : at + 5]
        name = ".".join(labels)
        self.asked.append(name)
        self._heard.set()
        address = self.addresses.get(name)
        answer = b""
        if address is not None and kind == _TYPE_A:
            answer = b"\xc0\x0c" + struct.pack(">HHIH4B", _TYPE_A, 1, 1, 4, *map(int, address.split(".")))
        flags = 0x8180 | (0 if address else _NAME_ERROR)
        header = data[:2] + struct.pack(">HHHHH", flags, 1, bool(answer), 0, 0)
        assert self._transport is not None, "nobody asks before it is open"
        self._transport.sendto(header + question + answer, addr)  # type: ignore[arg-type]  # what asyncio handed in
