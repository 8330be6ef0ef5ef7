"""The coordinator's settings, checked once at start."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_common.core.errors import InvalidConfig
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

    node_id: int = 1
    """Number of this coordinator, unique among coordinators; 0 to 2147483647."""
    controllers: tuple[Endpoint, ...] = (Endpoint("127.0.0.1", 9390),)
    """Controllers to begin with; others are learned from them."""
    group_min_session_timeout_ms: int = 6_000
    """Shortest session timeout that members of the classic protocol may ask for, in ms; 100 or more."""
    group_max_session_timeout_ms: int = 1_800_000
    """Longest session timeout that members of the classic protocol may ask for, in ms."""
    group_initial_rebalance_delay_ms: int = 3_000
    """Classic protocol: how long a group that was empty gathers members before its first assignment, in ms."""
    group_max_size: int = 10_000
    """Members of one group; 1 to 100000."""
    group_consumer_session_timeout_ms: int = 45_000
    """Server-side protocol: silence after which a member is out, in ms."""
    group_consumer_heartbeat_interval_ms: int = 3_000
    """Server-side protocol: how often members heartbeat, in ms; below the session timeout."""
    group_consumer_assignors: tuple[str, ...] = SERVER_ASSIGNORS
    """Server-side protocol: assignors that members may ask for; the first is the default."""
    group_rejoin_grace_ms: int = 3_000
    """How long a dynamic member may be without its stream before it is out, in ms."""
    offset_metadata_max_bytes: int = 4_096
    """Longest text beside a committed offset, in bytes of UTF-8."""
    offsets_retention_minutes: int = 10_080
    """How long committed offsets are kept once their group is empty, in minutes."""
    offsets_retention_check_interval_ms: int = 600_000
    """How often offsets are looked over for expiry, in ms."""
    transaction_max_timeout_ms: int = 900_000
    """Longest transaction timeout that producers may ask for, in ms."""
    transactional_id_expiration_ms: int = 604_800_000
    """A transactional id that has done nothing for so long is forgotten, in ms; never one with an open or prepared
    transaction."""
    transactional_id_check_interval_ms: int = 600_000
    """How often transactional ids are looked over for expiry, in ms."""
    transaction_prepared_max_ms: int = 86_400_000
    """A prepared transaction that is undecided for longer is overdue: the log and a metric tell, in ms."""
    unit_prepared_timeout_ms: int = 3_600_000
    """A prepared transaction of an owner (owner/suffix) that is undecided for so long is aborted, in ms."""
    unit_claim_ahead_max_ms: int = 7_200_000
    """How far the time in an owner's claim may be ahead of the coordinator's clock, in ms; more is refused."""
    transactional_ids_max: int = 100_000
    """Transactional ids and owners of the cluster; each coordinator refuses new ones beyond its shards' part of it."""
    groups_max: int = 100_000
    """Groups of the cluster; each coordinator refuses new ones beyond its shards' part of it."""
    coordinator_append_timeout_ms: int = 5_000
    """How long a call waits for its shard's log before it gets COORDINATOR_NOT_AVAILABLE, in ms."""
    group_lag_interval_ms: int = 10_000
    """How often group lag is measured, in ms; 100 to 3600000."""
    group_lag_partitions_max: int = 10_000
    """Partitions of all groups together whose lag is measured; 0: none."""
    shutdown_ms_max: int = 10_000
    """How long to wait at shutdown for shards to move away, in ms; 0 to 600000."""
    server: ServerConfig = inline(_server)
    """Where it listens."""
    internal: InternalListener = inline(InternalListener)
    """Where the other nodes of the cluster reach it."""
    external: ExternalListener = inline(ExternalListener)
    """Where clients from outside reach it."""
    otlp_endpoint: str | None = None
    """Where traces go (OTLP over gRPC); without it there are none."""

    def __post_init__(self) -> None:
        wrong = [text for holds, text in self._rules() if not holds]
        if wrong:
            raise InvalidConfig("; ".join(wrong))

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

    def _rules(self) -> list[tuple[bool, str]]:
        low, high = self.group_min_session_timeout_ms, self.group_max_session_timeout_ms
        assignors = self.group_consumer_assignors
        beat, session = self.group_consumer_heartbeat_interval_ms, self.group_consumer_session_timeout_ms
        return [
            (bool(self.controllers), "controllers needs at least one address, such as 127.0.0.1:9390"),
            (
                low <= high,
                f"group_min_session_timeout_ms ({low}) is above group_max_session_timeout_ms ({high})",
            ),
            (
                bool(assignors) and set(assignors) <= set(SERVER_ASSIGNORS),
                f"group_consumer_assignors takes {', '.join(SERVER_ASSIGNORS)}, not {','.join(assignors)!r}",
            ),
            (
                1 <= beat < session,
                f"group_consumer_heartbeat_interval_ms ({beat}) must be below"
                f" group_consumer_session_timeout_ms ({session})",
            ),
            *(
                (least <= getattr(self, name) <= most, f"{name} takes {least} to {most}, not {getattr(self, name)}")
                for name, least, most in _BOUNDS
            ),
        ]


_BOUNDS = (
    ("node_id", 0, 2**31 - 1),
    ("group_min_session_timeout_ms", 100, 24 * _HOUR_MS),
    ("group_max_session_timeout_ms", 100, 24 * _HOUR_MS),
    ("group_initial_rebalance_delay_ms", 0, _HOUR_MS),
    ("group_max_size", 1, 100_000),
    ("group_consumer_session_timeout_ms", 100, 24 * _HOUR_MS),
    ("group_rejoin_grace_ms", 0, _HOUR_MS),
    ("offset_metadata_max_bytes", 0, 65_536),
    ("offsets_retention_minutes", 1, 10 * 365 * 24 * 60),
    ("offsets_retention_check_interval_ms", 100, 24 * _HOUR_MS),
    ("transaction_max_timeout_ms", 1, 2**31 - 1),
    ("transactional_id_expiration_ms", 1_000, 10 * 365 * 24 * _HOUR_MS),
    ("transactional_id_check_interval_ms", 100, 24 * _HOUR_MS),
    ("transaction_prepared_max_ms", 1_000, 365 * 24 * _HOUR_MS),
    ("unit_prepared_timeout_ms", 1_000, 365 * 24 * _HOUR_MS),
    ("unit_claim_ahead_max_ms", 0, 365 * 24 * _HOUR_MS),
    ("transactional_ids_max", 1, 10_000_000),
    ("groups_max", 1, 10_000_000),
    ("coordinator_append_timeout_ms", 100, _HOUR_MS),
    ("group_lag_interval_ms", 100, _HOUR_MS),
    ("group_lag_partitions_max", 0, 1_000_000),
    ("shutdown_ms_max", 0, 600_000),
)
