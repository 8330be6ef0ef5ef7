"""
Where a call comes from, also through a port that answers plain text and TLS and passes connections on.

gRPC tells the address of the last connection alone. Whoever passes one on says here whose it is, before its first byte.
"""

from __future__ import annotations

import ipaddress
from typing import Any, Final

import grpc.aio

PEERS: Final[dict[str, str]] = {}
"""gRPC's text for the address that a connection within this process comes from, and that of whose it is."""


def peer_of(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """gRPC's text for where a call comes from: ``ipv4:HOST:PORT``, ``ipv6:[HOST]:PORT``, or that of a unix socket."""
    peer = context.peer()
    return PEERS.get(peer, peer) if PEERS else peer


def text_of(host: str, port: int) -> str:
    """gRPC's text for an address, as ``peer`` has it; an IPv4 address inside of IPv6 is the IPv4 address."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.version == 6:
        if address.ipv4_mapped is None:
            return f"ipv6:[{host}]:{port}"
        address = address.ipv4_mapped
    return f"ipv4:{address}:{port}"
