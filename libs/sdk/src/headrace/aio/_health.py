"""How a consumer is doing, as values."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.records import TopicPartition


@dataclass(frozen=True, slots=True)
class GroupHealth:
    """What a consumer knows of its membership."""

    group_id: str
    protocol: str
    """``consumer`` or ``classic``."""
    member_id: str
    """Empty: not given yet."""
    instance_id: str | None
    generation: int
    """Generation (classic) or member epoch; -1 or 0: none yet."""
    coordinator: str | None
    """To whom there is a connection; None: to nobody now."""
    heartbeat_age_ms: float | None
    """How long ago the coordinator confirmed the membership; None: never."""
    trouble: str | None
    """What keeps it from being a member, or from knowing that it is one."""


@dataclass(frozen=True, slots=True)
class ConsumerHealth:
    """How a consumer is doing, for status pages and probes."""

    state: str
    """As ``Consumer.state``."""
    partitions: int
    paused: int
    buffered_bytes: int
    """Fetched and not handed out."""
    resets: int
    """How often a position did not exist and ``auto_offset_reset`` was applied."""
    troubled: dict[TopicPartition, str] = field(default_factory=dict)
    """Partitions that cannot be read now, and why; they are tried again. Past a batch that cannot be read only
    ``skip_batch`` or a seek leads."""
    group: GroupHealth | None = None
    """None: no member of a group."""

    @property
    def ok(self) -> bool:
        """Whether it is open, a member if it has a group, and every partition can be read."""
        return self.state not in ("stuck", "closed", "disconnected", "out", "topic_deleted") and not self.troubled
