"""Settings of one admin process, checked once at its start."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_common.core.ids import Endpoint
from headrace_common.runtime.env import inline
from headrace_common.runtime.listeners import ExternalListener
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
    http_connections_max: int = 1_000
    """Open HTTP connections, and at most a quarter of the descriptors that the process may have."""
    http_connections_per_address_max: int = 64
    """Open HTTP connections of one address, for IPv6 of one /64; 0 behind a proxy: only the sum is bounded then."""
    http_head_ms_max: int = 5_000
    """How long the head of an HTTP request may take to arrive, in ms."""
    http_body_ms_max: int = 30_000
    """How long the body of an HTTP request may take to arrive, in ms."""
    call_ms_max: int = 30_000
    """How long one call to the controller or a broker may take over all its tries, in ms."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = 0 if name == "http_connections_per_address_max" else 1
            if value < least:
                raise ValueError(f"{name} takes {least} or more, not {value}")


@dataclass(frozen=True)
class TransactionLimits:
    """When a transaction is called long, too long, or hanging. As the coordinators have it, where they have it too."""

    transaction_max_timeout_ms: int = 900_000
    """Longest that a transaction may be open, in ms: transaction.max.timeout.ms of the coordinators."""
    transaction_prepared_max_ms: int = 86_400_000
    """Prepared for longer than this and decided by nobody: the status is degraded and says so; in ms."""
    transaction_notice_ms: int = 10_000
    """Open for longer than this: the status names it, because readers of read_committed wait for it; in ms."""
    transaction_hanging_margin_ms: int = 60_000
    """Beyond its longest time a transaction hangs after this; for clocks that differ and ends on their way; in ms."""
    transaction_look_interval_ms: int = 30_000
    """How often this process looks at open transactions for its metrics and its log, in ms; 0: never."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 0:
                raise ValueError(f"{name} takes 0 or more, not {value}")

    @property
    def hanging_after_ms(self) -> int:
        """Open for so long a transaction has been ended by its coordinator, or has none."""
        return self.transaction_max_timeout_ms + self.transaction_hanging_margin_ms


@dataclass(frozen=True)
class AdminConfig:
    """Headrace admin: REST and gRPC administration. Stateless; run as many as you like, each with its own node id."""

    controllers: tuple[Endpoint, ...] = (Endpoint("127.0.0.1", 9390),)
    """Controllers to begin with, host:port with commas; the others are learned from them."""
    node_id: int = 1
    """Unique among admin processes; 0 to 2147483647."""
    http_listen: Endpoint = Endpoint("127.0.0.1", 9480)
    """Address of REST; port 0 takes a free one. Only this machine reaches 127.0.0.1."""
    hosts: tuple[str, ...] = ()
    """Further names by which people reach REST, with commas, without ports; its own, localhost and addresses are known.
    *: any, which lets a web page reach it by a name of its own."""
    server: ServerConfig = inline(_server)
    """Where gRPC listens, and how the process leaves."""
    external: ExternalListener = inline(ExternalListener)
    """Where clients from outside reach it."""
    limits: Limits = inline(Limits)
    """What one request may take."""
    transactions: TransactionLimits = inline(TransactionLimits)
    """When a transaction is called long, too long, or hanging."""

    def __post_init__(self) -> None:
        if not self.controllers:
            raise ValueError("controllers is empty; name at least one as host:port")
        for name in self.hosts:
            if not name or any(c in name for c in "/:@ "):
                raise ValueError(f"hosts takes names such as headrace.example, without scheme and port, not {name!r}")
        if not 0 <= self.node_id <= 2**31 - 1:
            raise ValueError(f"node_id takes 0 to 2147483647, not {self.node_id}")
