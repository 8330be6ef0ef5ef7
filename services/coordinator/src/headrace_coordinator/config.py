"""The coordinator's settings, checked once at start."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_common.core.bounds import ID_MAX, check, setting
from headrace_common.core.ids import Endpoint
from headrace_common.runtime.env import inline
from headrace_common.runtime.listeners import ExternalListener, InternalListener, MtlsListener
from headrace_common.runtime.service import ServerConfig
from headrace_coordinator.core.settings import GroupSettings
from headrace_coordinator.core.transactions.settings import TransactionSettings

_HOUR_MS = 3_600_000


def _server() -> ServerConfig:
    return ServerConfig(
        listen=Endpoint("127.0.0.1", 9492),
        concurrent_rpcs_max=50_000,
        calls_per_address_max=10_000,
        calls_per_principal_max=10_000,
        request_bytes_max=16 << 20,
    )


@dataclass(frozen=True)
class CoordinatorConfig:
    """Headrace coordinator: keeps consumer groups, their committed offsets, and transactions."""

    node_id: int = setting(1, low=0, high=ID_MAX)
    """Number of this coordinator, unique among coordinators."""
    controllers: tuple[Endpoint, ...] = (Endpoint("127.0.0.1", 9390),)
    """Controllers to begin with; others are learned from them."""
    access_stale_ms_max: int = setting(0, low=0)
    """So long after it last heard a controller, in ms, this process of a closed cluster lets nobody in anew: it does
    not learn which keys are deleted. Streams that run go on. 0: it always lets them in."""
    groups: GroupSettings = inline(GroupSettings)
    """What rules groups."""
    transactions: TransactionSettings = inline(TransactionSettings)
    """What rules transactions."""
    transaction_prepared_max_ms: int = setting(86_400_000, low=1_000, high=365 * 24 * _HOUR_MS)
    """A prepared transaction that is undecided for longer is overdue: the log and a metric tell, in ms."""
    transactional_ids_max: int = setting(100_000, low=1, high=10_000_000)
    """Transactional ids and owners of the cluster; each coordinator refuses new ones beyond its shards' part of it."""
    groups_max: int = setting(100_000, low=1, high=10_000_000)
    """Groups of the cluster; each coordinator refuses new ones beyond its shards' part of it."""
    coordinator_append_timeout_ms: int = setting(5_000, low=100, high=_HOUR_MS)
    """How long a call waits for its shard's log before it gets COORDINATOR_NOT_AVAILABLE, in ms."""
    group_lag_interval_ms: int = setting(10_000, low=100, high=_HOUR_MS)
    """How often group lag is measured, in ms."""
    group_lag_partitions_max: int = setting(10_000, low=0, high=1_000_000)
    """Partitions of all groups together whose lag is measured; 0: none."""
    shutdown_ms_max: int = setting(10_000, low=0, high=600_000)
    """How long to wait at shutdown for shards to move away, in ms."""
    server: ServerConfig = inline(_server)
    """Where it listens."""
    internal: InternalListener = inline(InternalListener)
    """Where the other nodes of the cluster reach it."""
    external: ExternalListener = inline(ExternalListener)
    """Where clients from outside reach it."""
    mtls: MtlsListener = inline(MtlsListener)
    """Where clients with certificates reach it."""
    otlp_endpoint: str | None = None
    """Where traces go (OTLP over gRPC); without it there are none."""

    def __post_init__(self) -> None:
        check(
            self,
            (bool(self.controllers), "controllers needs at least one address, such as 127.0.0.1:9390"),
            self.internal.check_beside(self.server),
            self.mtls.check_beside(self.server),
        )
