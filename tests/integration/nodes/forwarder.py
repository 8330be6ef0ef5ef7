"""A plain TCP forwarder: what a load balancer, a node port or a gateway does, and nothing more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class Forwarder:
    """Listens on a port of its own and passes bytes on to another."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def forward_to(self, port: int) -> None:
        """New connections go there, as a service's do when its pods have changed; those there are stay."""
        self._to_port = port

    async def start(self) -> None:
        """Listen; whom it forwards to need not be there yet."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def close(self) -> None:
        """Break everything."""
        assert self._server is not None
        self._server.close()
        for pump in list(self._pumps):
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._to_port)
        except OSError:
            writer.close()
            return
        for one, other in ((reader, back), (there, writer)):
            pump = asyncio.create_task(_pump(one, other))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def forwarding(*to_ports: int) -> AsyncIterator[list[Forwarder]]:
    """A forwarder for each port."""
    forwarders = [Forwarder(port) for port in to_ports]
    try:
        for one in forwarders:
            await one.start()
        yield forwarders
    finally:
        for one in forwarders:
            await one.close()
