"""The coordinator's settings, checked once at start."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_common.core.bounds import ID_MAX, check, setting
from headrace_common.core.ids import Endpoint
from headrace_common.runtime.env import inline
from headrace_common.runtime.listeners import ExternalListener, InternalListener
from headrace_common.runtime.service import ServerConfig
from headrace_coordinator.core.settings import SERVER_ASSIGNORS, GroupSettings
from headrace_coordinator.core.transactions.settings import TransactionSettings

_HOUR_MS = 3_600_000


def _server() -> ServerConfig:
    return ServerConfig(
        listen=Endpoint("127.0.0.1", 9492),
        concurrent_rpcs_max=50_000,
        calls_per_address_max=10_000,
        request_bytes_max=16 << 20,
    )


@dataclass(frozen=True)
class CoordinatorConfig:
    """Headrace coordinator: keeps consumer groups, their committed offsets, and transactions."""

    node_id: int = setting(1, low=0, high=ID_MAX)
    """Number of this coordinator, unique among coordinators."""
    controllers: tuple[Endpoint, ...] = (Endpoint("127.0.0.1", 9390),)
    """Controllers to begin with; others are learned from them."""
    group_min_session_timeout_ms: int = setting(6_000, low=100, high=24 * _HOUR_MS)
    """Shortest session timeout that members of the classic protocol may ask for, in ms."""
    group_max_session_timeout_ms: int = setting(1_800_000, low=100, high=24 * _HOUR_MS)
    """Longest session timeout that members of the classic protocol may ask for, in ms."""
    group_initial_rebalance_delay_ms: int = setting(3_000, low=0, high=_HOUR_MS)
    """Classic protocol: how long a group that was empty gathers members before its first assignment, in ms."""
    group_max_size: int = setting(10_000, low=1, high=100_000)
    """Members of one group."""
    group_consumer_session_timeout_ms: int = setting(45_000, low=100, high=24 * _HOUR_MS)
    """Server-side protocol: silence after which a member is out, in ms."""
    group_consumer_heartbeat_interval_ms: int = setting(3_000, low=1)
    """Server-side protocol: how often members heartbeat, in ms; below the session timeout."""
    group_consumer_assignors: tuple[str, ...] = SERVER_ASSIGNORS
    """Server-side protocol: assignors that members may ask for; the first is the default."""
    group_rejoin_grace_ms: int = setting(3_000, low=0, high=_HOUR_MS)
    """How long a dynamic member may be without its stream before it is out, in ms."""
    offset_metadata_max_bytes: int = setting(4_096, low=0, high=65_536)
    """Longest text beside a committed offset, in bytes of UTF-8."""
    offsets_retention_minutes: int = setting(10_080, low=1, high=10 * 365 * 24 * 60)
    """How long committed offsets are kept once their group is empty, in minutes."""
    offsets_retention_check_interval_ms: int = setting(600_000, low=100, high=24 * _HOUR_MS)
    """How often offsets are looked over for expiry, in ms."""
    transaction_max_timeout_ms: int = setting(900_000, low=1, high=2**31 - 1)
    """Longest transaction timeout that producers may ask for, in ms."""
    transactional_id_expiration_ms: int = setting(604_800_000, low=1_000, high=10 * 365 * 24 * _HOUR_MS)
    """A transactional id that has done nothing for so long is forgotten, in ms; never one with an open or prepared
    transaction."""
    transactional_id_check_interval_ms: int = setting(600_000, low=100, high=24 * _HOUR_MS)
    """How often transactional ids are looked over for expiry, in ms."""
    transaction_prepared_max_ms: int = setting(86_400_000, low=1_000, high=365 * 24 * _HOUR_MS)
    """A prepared transaction that is undecided for longer is overdue: the log and a metric tell, in ms."""
    unit_prepared_timeout_ms: int = setting(3_600_000, low=1_000, high=365 * 24 * _HOUR_MS)
    """A prepared transaction of an owner (owner/suffix) that is undecided for so long is aborted, in ms."""
    unit_claim_ahead_max_ms: int = setting(7_200_000, low=0, high=365 * 24 * _HOUR_MS)
    """How far the time in an owner's claim may be ahead of the coordinator's clock, in ms; more is refused."""
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
    otlp_endpoint: str | None = None
    """Where traces go (OTLP over gRPC); without it there are none."""

    def __post_init__(self) -> None:
        low, high = self.group_min_session_timeout_ms, self.group_max_session_timeout_ms
        assignors = self.group_consumer_assignors
        beat, session = self.group_consumer_heartbeat_interval_ms, self.group_consumer_session_timeout_ms
        check(
            self,
            (bool(self.controllers), "controllers needs at least one address, such as 127.0.0.1:9390"),
            (low <= high, f"group_min_session_timeout_ms ({low}) is above group_max_session_timeout_ms ({high})"),
            (
                bool(assignors) and set(assignors) <= set(SERVER_ASSIGNORS),
                f"group_consumer_assignors takes {', '.join(SERVER_ASSIGNORS)}, not {','.join(assignors)!r}",
            ),
            (
                beat < session,
                f"group_consumer_heartbeat_interval_ms ({beat}) must be below"
                f" group_consumer_session_timeout_ms ({session})",
            ),
        )

    def groups(self) -> GroupSettings:
        """What the state machines are ruled by."""
        return GroupSettings(
            group_min_session_timeout_ms=self.group_min_session_timeout_ms,
            group_max_session_timeout_ms=self.group_max_session_timeout_ms,
            group_initial_rebalance_delay_ms=self.group_initial_rebalance_delay_ms,
            group_max_size=self.group_max_size,
            group_consumer_session_timeout_ms=self.group_consumer_session_timeout_ms,
            group_consumer_heartbeat_interval_ms=self.group_consumer_heartbeat_interval_ms,
            group_consumer_assignors=self.group_consumer_assignors,
            group_rejoin_grace_ms=self.group_rejoin_grace_ms,
            offset_metadata_max_bytes=self.offset_metadata_max_bytes,
            offsets_retention_ms=self.offsets_retention_minutes * 60_000,
            offsets_retention_check_interval_ms=self.offsets_retention_check_interval_ms,
        )

    def transactions(self) -> TransactionSettings:
        """What the state machines of transactions are ruled by."""
        return TransactionSettings(
            transaction_max_timeout_ms=self.transaction_max_timeout_ms,
            transactional_id_expiration_ms=self.transactional_id_expiration_ms,
            unit_owner_expiration_ms=self.transactional_id_expiration_ms,
            transactional_id_check_interval_ms=self.transactional_id_check_interval_ms,
            unit_prepared_timeout_ms=self.unit_prepared_timeout_ms,
            unit_claim_ahead_max_ms=self.unit_claim_ahead_max_ms,
        )
