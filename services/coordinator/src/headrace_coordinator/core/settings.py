"""The limits and times that rule groups; ``config.py`` fills them, names are Kafka's with dots as underscores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SERVER_ASSIGNORS: Final = ("uniform", "range")
"""What members of the server-side protocol may ask for."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """One coordinator's settings for all its groups."""

    group_min_session_timeout_ms: int = 6_000
    """Classic: shorter session timeouts are refused. ms."""
    group_max_session_timeout_ms: int = 1_800_000
    """Classic: longer session timeouts are refused. ms."""
    group_initial_rebalance_delay_ms: int = 3_000
    """Classic: how long an empty group gathers members before its first assignment; each newcomer renews it. ms."""
    group_max_size: int = 10_000
    """Members per group."""
    group_consumer_session_timeout_ms: int = 45_000
    """Server-side protocol: a member that is silent for so long is out. ms."""
    group_consumer_heartbeat_interval_ms: int = 3_000
    """Server-side protocol: how often members are told to heartbeat. ms."""
    group_consumer_assignors: tuple[str, ...] = SERVER_ASSIGNORS
    """Server-side protocol: what members may ask for; the first is the default."""
    group_rejoin_grace_ms: int = 3_000
    """How long a dynamic member may be without its stream. ms."""
    offset_metadata_max_bytes: int = 4_096
    """The longest text beside a committed offset, in bytes of UTF-8."""
    offsets_retention_ms: int = 10_080 * 60_000
    """How long offsets are kept once their group is empty. ms (offsets.retention.minutes)."""
    offsets_retention_check_interval_ms: int = 600_000
    """How often offsets and groups are looked over for expiry. ms."""

    def __post_init__(self) -> None:
        assert set(self.group_consumer_assignors) <= set(SERVER_ASSIGNORS), "config checks the names"
        assert self.group_consumer_assignors, "config checks that there is one"
