"""The settings that rule groups; names are Kafka's with dots as underscores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace_common.core.bounds import check, setting

_HOUR_MS: Final = 3_600_000
SERVER_ASSIGNORS: Final = ("uniform", "range")
"""What members of the server-side protocol may ask for."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """One coordinator's settings for all its groups."""

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
    group_consumer_heartbeat_interval_ms: int = setting(3_000, low=1, high=24 * _HOUR_MS - 1)
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

    @property
    def offsets_retention_ms(self) -> int:
        """``offsets_retention_minutes`` in ms."""
        return self.offsets_retention_minutes * 60_000

    def __post_init__(self) -> None:
        low, high = self.group_min_session_timeout_ms, self.group_max_session_timeout_ms
        assignors = self.group_consumer_assignors
        beat, session = self.group_consumer_heartbeat_interval_ms, self.group_consumer_session_timeout_ms
        check(
            self,
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
