"""
Decides when what one node sends reaches another: delays, cuts and resets between the nodes of one loop.

A ``Connection`` is what TCP is: both ways keep their order, nothing is lost while it stands, and it breaks at most
once. Between two nodes there is a ``Way`` in each direction. While it is cut, what is sent waits; who has heard nothing
for ``SILENCE_S`` gives the connection up, as gRPC's keepalive does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from headrace_lab.loop import NODE, LabLoop, Node

SILENCE_S: Final = 10.0
"""A connection with something unanswered on it is given up after so long."""


@dataclass(slots=True)
class Way:
    """From one node to another."""

    delay_s: tuple[float, float] = (0.0001, 0.0005)
    """Least and most that a message takes, in seconds; drawn for each."""
    cut: bool = False


class Server(Protocol):
    """Whom connections lead to."""

    node: Node
    bytes_max: int
    """Largest request."""

    def serve(self, call: Any) -> asyncio.Task[None]:
        """Begin to handle a call."""
        ...


class Carried(Protocol):
    """What lives on a connection and ends with it."""

    def broken(self, why: str) -> None:
        """The connection is gone; called on the client's node."""
        ...

    def abandon(self) -> None:
        """The client is gone; called on the server's node."""
        ...


class Network:
    """All servers and connections of one loop."""

    def __init__(self, loop: LabLoop) -> None:
        self.loop = loop
        self.servers: dict[str, Server] = {}
        """By ``host:port``."""
        self.connections: dict[Connection, None] = {}
        self.interceptors: list[Any] = []
        """Of all servers that are made from now on, asked behind those of the services; see ``grpc.aio.Server``."""
        self.messages = 0
        """How many were sent."""
        self.delay_s = Way().delay_s
        """Of ways for which nothing else was said, when they are first gone."""
        self.hiccup = (0.0, 0.0)
        """Which part of the messages, with all behind them, is held up, and for how long at most, in seconds."""
        self._ways: dict[tuple[str, str], Way] = {}
        self._port = 20_000
        loop.connect = self._connect

    def new_port(self) -> int:
        """One that nobody has."""
        self._port += 1
        return self._port

    def way(self, source: Node, target: Node) -> Way:
        """That messages of ``source`` to ``target`` go; see ``between``."""
        return self.between(source.name, target.name)

    def between(self, source: str, target: str) -> Way:
        """By the nodes' names, so that it stays when they are started again; a node reaches itself at once."""
        way = self._ways.get((source, target))
        if way is None:
            way = self._ways[source, target] = Way((0.0, 0.0) if source == target else self.delay_s)
        return way

    def cut(self, source: str, target: str) -> None:
        """Nothing gets from ``source`` to ``target`` until ``heal``; the other direction is a way of its own."""
        self.between(source, target).cut = True

    def mend(self, source: str, target: str) -> None:
        """What ``source`` sends to ``target`` arrives again, what waited first."""
        self.between(source, target).cut = False
        for connection in list(self.connections):
            connection.go_on()

    def heal(self) -> None:
        """No way is cut any more, and what waited goes on."""
        for way in self._ways.values():
            way.cut = False
        for connection in list(self.connections):
            connection.go_on()

    def reset(self, one: str, other: str) -> None:
        """All connections between the two break."""
        for connection in list(self.connections):
            if {connection.client.name, connection.server.node.name} == {one, other}:
                connection.reset("Connection reset by peer")

    async def _connect(self, host: str, port: int) -> None:
        """There and back. Raises: ConnectionRefusedError: nobody listens."""
        source, server = NODE.get(self.loop.test), self.servers.get(f"{host}:{port}")
        if server is not None:
            for way in (self.way(source, server.node), self.way(server.node, source)):
                if way.cut:
                    await asyncio.sleep(SILENCE_S)
                    raise TimeoutError(f"{host}:{port} does not answer")
                await asyncio.sleep(way.delay_s[1])
        if self.servers.get(f"{host}:{port}") is None:
            raise ConnectionRefusedError(f"nobody listens at {host}:{port}")

    def kill(self, node: Node) -> None:
        """The node stops in its midst; its connections break and nobody listens where it did."""
        self.loop.kill(node)
        self.servers = {at: server for at, server in self.servers.items() if server.node is not node}
        for connection in list(self.connections):
            if node in (connection.client, connection.server.node):
                connection.reset("Socket closed")


class Connection:
    """See the module's text; from a node to a server."""

    def __init__(self, network: Network, client: Node, server: Server) -> None:
        self.network, self.client, self.server = network, client, server
        self.peer = f"ipv4:127.0.0.1:{network.new_port()}"
        self.alive = True
        self.calls: dict[Carried, None] = {}
        self._arrivals = {client: 0.0, server.node: 0.0}
        """When the last that went to each end arrives."""
        self._held: list[tuple[Node, Callable[..., object], tuple[Any, ...]]] = []
        network.connections[self] = None

    def to_server(self, deliver: Callable[..., object], *args: Any) -> None:
        """Have ``deliver(*args)`` called on the server's node, after all that went there before it."""
        self._carry(self.client, self.server.node, deliver, args)

    def to_client(self, deliver: Callable[..., object], *args: Any) -> None:
        """Have ``deliver(*args)`` called on the client's node, after all that went there before it."""
        self._carry(self.server.node, self.client, deliver, args)

    def _carry(self, source: Node, target: Node, deliver: Callable[..., object], args: tuple[Any, ...]) -> None:
        if not self.alive:
            return
        network, loop = self.network, self.network.loop
        way = network.way(source, target)
        if way.cut or any(node is target for node, _, _ in self._held):
            if not self._held:
                loop.call_later(SILENCE_S, self._give_up, context=self.client.context)
            self._held.append((target, deliver, args))
            return
        network.messages += 1
        least, most = way.delay_s
        arrives = max(self._arrivals[target], loop.time() + least + (most - least) * loop.random.random())
        share, held_s = network.hiccup
        if share and loop.random.random() < share:
            arrives += held_s * loop.random.random()
        self._arrivals[target] = arrives
        loop.call_at(arrives, self._arrive, deliver, args, context=target.context)

    def _arrive(self, deliver: Callable[..., object], args: tuple[Any, ...]) -> None:
        if self.alive:
            deliver(*args)

    def stall_answers(self, seconds: float) -> None:
        """Nothing that the server sends arrives for so long: a packet of this connection was lost."""
        self._arrivals[self.client] = max(self._arrivals[self.client], self.network.loop.time() + seconds)

    def go_on(self) -> None:
        """A way was healed: send what was held, as far as it goes."""
        held, self._held = self._held, []
        for target, deliver, args in held:
            source = self.server.node if target is self.client else self.client
            self._carry(source, target, deliver, args)

    def _give_up(self) -> None:
        if self._held:
            self.reset("ping timeout")

    def reset(self, why: str) -> None:
        """Both ends hear that it is gone; what is on its way is lost."""
        if not self.alive:
            return
        self.alive = False
        del self.network.connections[self]
        for call in list(self.calls):
            self.network.loop.call_soon(call.broken, why, context=self.client.context)
            self.network.loop.call_soon(call.abandon, context=self.server.node.context)
