"""Settings of one admin process, checked once at its start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace_common.core.bounds import ID_MAX, check, setting
from headrace_common.core.ids import Endpoint
from headrace_common.runtime.env import inline
from headrace_common.runtime.listeners import ExternalListener, MtlsListener
from headrace_common.runtime.service import ServerConfig


def _server() -> ServerConfig:
    return ServerConfig(listen=Endpoint("127.0.0.1", 9490))


@dataclass(frozen=True)
class Limits:
    """What one request may take."""

    body_bytes_max: int = setting(4 << 20, low=1)
    """Largest body of an HTTP request, in bytes."""
    records_max: int = setting(1_000, low=1)
    """Most records in one request or answer."""
    read_bytes_max: int = setting(4 << 20, low=1)
    """Most bytes of keys, values and headers in one answer; the first record comes whatever its size."""
    wait_ms_max: int = setting(30_000, low=1)
    """Longest that a read waits for records, in ms."""
    reads_max: int = setting(16, low=1)
    """Reads and writes of messages at one time; more are refused with OVERLOADED."""
    http_connections_max: int = setting(1_000, low=1)
    """Open HTTP connections, and at most a quarter of the descriptors that the process may have."""
    http_connections_per_address_max: int = setting(64, low=0)
    """Open HTTP connections of one address, for IPv6 of one /64; 0 behind a proxy: only the sum is bounded then."""
    http_head_ms_max: int = setting(5_000, low=1)
    """How long the head of an HTTP request may take to arrive, in ms."""
    http_body_ms_max: int = setting(30_000, low=1)
    """How long the body of an HTTP request may take to arrive, in ms."""
    http_requests_per_second: int = setting(100, low=0)
    """Requests of one principal a second, over 11 s, in a closed cluster; more are answered 429. 0: as many as come."""
    http_strangers_per_second: int = setting(10, low=0)
    """The same of one address without a credential that is valid, logins too; 0 behind a proxy."""
    http_reads_per_second: int = setting(20, low=0)
    """The same of one principal that reads records."""
    http_reads_per_principal_max: int = setting(4, low=0)
    """Reads of records of one principal at one time, in a closed cluster; 0: as reads_max."""
    call_ms_max: int = setting(30_000, low=1)
    """How long one call to the controller or a broker may take over all its tries, in ms."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class TransactionLimits:
    """When a transaction is called long, too long, or hanging. As the coordinators have it, where they have it too."""

    transaction_max_timeout_ms: int = setting(900_000, low=0)
    """Longest that a transaction may be open, in ms: transaction.max.timeout.ms of the coordinators."""
    transaction_prepared_max_ms: int = setting(86_400_000, low=0)
    """Prepared for longer than this and decided by nobody: the status is degraded and says so; in ms."""
    transaction_notice_ms: int = setting(10_000, low=0)
    """Open for longer than this: the status names it, because readers of read_committed wait for it; in ms."""
    transaction_hanging_margin_ms: int = setting(60_000, low=0)
    """Beyond its longest time a transaction hangs after this; for clocks that differ and ends on their way; in ms."""
    transaction_look_interval_ms: int = setting(30_000, low=0)
    """How often this process looks at open transactions for its metrics and its log, in ms; 0: never."""

    def __post_init__(self) -> None:
        check(self)

    @property
    def hanging_after_ms(self) -> int:
        """Open for so long a transaction has been ended by its coordinator, or has none."""
        return self.transaction_max_timeout_ms + self.transaction_hanging_margin_ms


@dataclass(frozen=True)
class AdminConfig:
    """Headrace admin: REST and gRPC administration. Stateless; run as many as you like, each with its own node id."""

    controllers: tuple[Endpoint, ...] = (Endpoint("127.0.0.1", 9390),)
    """Controllers to begin with, host:port with commas; the others are learned from them."""
    access_stale_ms_max: int = setting(0, low=0)
    """So long after it last heard a controller, in ms, this process of a closed cluster lets nobody in anew: it does
    not learn which keys are deleted. Streams that run go on. 0: it always lets them in."""
    node_id: int = setting(1, low=0, high=ID_MAX)
    """Unique among admin processes."""
    http_listen: Endpoint = Endpoint("127.0.0.1", 9480)
    """Address of REST; port 0 takes a free one. Only this machine reaches 127.0.0.1."""
    hosts: tuple[str, ...] = ()
    """Further names by which people reach REST, with commas, without ports; its own, localhost and addresses are known.
    *: any, which lets a web page reach it by a name of its own."""
    cookie_key_file: Path | None = None
    """File with the key of the cookies of browsers that have logged in, the same for all admin processes; or two, a
    line each, while it is changed. In the form of a node token. Without it the node token is the key, and without that
    one that ends with the process."""
    server: ServerConfig = inline(_server)
    """Where gRPC listens, and how the process leaves."""
    external: ExternalListener = inline(ExternalListener)
    """Where clients from outside reach it."""
    mtls: MtlsListener = inline(MtlsListener)
    """Where clients with certificates reach it."""
    limits: Limits = inline(Limits)
    """What one request may take."""
    transactions: TransactionLimits = inline(TransactionLimits)
    """When a transaction is called long, too long, or hanging."""

    def __post_init__(self) -> None:
        bad = [name for name in self.hosts if not name or any(c in name for c in "/:@ ")]
        check(
            self,
            (bool(self.controllers), "controllers is empty; name at least one as host:port"),
            self.mtls.check_beside(self.server),
            (
                not bad,
                f"hosts takes names such as headrace.example, without scheme and port, not {bad}",
            ),
        )
