"""
Who may listen on a port: agreed between processes before any of them listens, and proven before a port is shared.

A claim is a UDP socket on the loopback's port of that number, which nobody sends to: a process of ours listens by TCP,
so the claim is not in its way. It ends with the process that holds it, however that ends, and holds for exactly those
who share its ports.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from headrace_common.core.ids import Endpoint
from headrace_common.runtime.held_ports import shared


def claim_port(port: int) -> socket.socket | None:
    """The claim, which lasts until it is closed; None: somebody else has it. Says nothing of who listens there."""
    claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        claim.bind(("127.0.0.1", port))
    except OSError:
        claim.close()
        return None
    return claim


@contextmanager
def prove_port(listen: Endpoint, wildcards: frozenset[str]) -> Iterator[int]:
    """
    Show that nobody listens there; the port, a free one for 0. In the block servers of this user, and of nobody else,
    can listen there with SO_REUSEPORT; one has to before it ends. A port that is held for this process stays held.

    A server that shares its port finds no mistake in one that is taken: it would get some of the other's connections.
    So sockets listen first that share theirs with nobody, and allow it only then. Who connects to them meanwhile is
    refused in the end, like anybody who comes before the server.

    Args:
        wildcards: hosts that mean every address of this machine.

    Raises:
        OSError: the address is taken, or not of this machine.
    """
    with ExitStack() as held:
        port = listen.port
        if held.enter_context(shared(listen)):
            yield port
            return
        for family, address in _addresses(listen.host, wildcards):
            listening = held.enter_context(_bound(family, address, port))
            listening.listen(0)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            port = listening.getsockname()[1]
        yield port


def listen_alone(listen: Endpoint, wildcards: frozenset[str]) -> list[socket.socket]:
    """
    Sockets that listen there, for a server that accepts by itself, on one port, a free one for 0. A port that is held
    for this process stays held.

    Raises:
        OSError: the address is taken, or not of this machine.
    """
    with ExitStack() as opened, shared(listen) as is_shared:
        port, sockets = listen.port, []
        for family, address in _addresses(listen.host, wildcards):
            bound = opened.enter_context(_bound(family, address, port, share=is_shared))
            bound.listen()
            port = bound.getsockname()[1]
            sockets.append(bound)
        opened.pop_all()
    return sockets


def _bound(family: int, address: str, port: int, *, share: bool = False) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # or connections of before would be in the way
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address != "::"))
        if share:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((address, port))
    except OSError:
        bound.close()
        raise
    return bound


def _addresses(host: str, wildcards: frozenset[str]) -> list[tuple[Any, str]]:
    """What gRPC listens on for ``host``: all addresses of a name; both families for every address."""
    if host in wildcards:
        return [(socket.AF_INET6, "::") if socket.has_dualstack_ipv6() else (socket.AF_INET, "0.0.0.0")]
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((family, str(at[0])) for family, _, _, _, at in found))
