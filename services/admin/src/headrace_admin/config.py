"""Settings of one admin process, checked once at its start."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_common.core.ids import Endpoint
from headrace_common.runtime.env import inline
from headrace_common.runtime.service import ServerConfig


def _server() -> ServerConfig:
    return ServerConfig(listen=Endpoint("127.0.0.1", 9490))


@dataclass(frozen=True)
class Limits:
    """What one request may take."""

    body_bytes_max: int = 4 << 20
    """Largest body of an HTTP request, in bytes."""
    records_max: int = 1_000
    """Most records in one request or answer."""
    read_bytes_max: int = 4 << 20
    """Most bytes of keys, values and headers in one answer; the first record comes whatever its size."""
    wait_ms_max: int = 30_000
    """Longest that a read waits for records, in ms."""
    reads_max: int = 16
    """Reads and writes of messages at one time; more are refused with OVERLOADED."""
    call_ms_max: int = 30_000
    """How long one call to the controller or a broker may take over all its tries, in ms."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"{name} takes 1 or more, not {value}")


@dataclass(frozen=True)
class AdminConfig:
    """Headrace admin: REST and gRPC administration. Stateless; run as many as you like, each with its own node id."""

    controllers: tuple[Endpoint, ...] = (Endpoint("127.0.0.1", 9390),)
    """Controllers to begin with, host:port with commas; the others are learned from them."""
    node_id: int = 1
    """Unique among admin processes; 0 to 2147483647."""
    http_listen: Endpoint = Endpoint("127.0.0.1", 9480)
    """Address of REST; port 0 takes a free one. Only this machine reaches 127.0.0.1."""
    server: ServerConfig = inline(_server)
    """Where gRPC listens, and how the process leaves."""
    limits: Limits = inline(Limits)
    """What one request may take."""

    def __post_init__(self) -> None:
        if not self.controllers:
            raise ValueError("controllers is empty; name at least one as host:port")
        if not 0 <= self.node_id <= 2**31 - 1:
            raise ValueError(f"node_id takes 0 to 2147483647, not {self.node_id}")
