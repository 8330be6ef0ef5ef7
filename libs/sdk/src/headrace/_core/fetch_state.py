"""
What ``fetch_positions`` and ``fetch_answers`` share: the partitions, whose turn it is, what is wrong with which, and
what the shell should hear. Nobody else changes it, but the shell empties what it has heard.
"""

from __future__ import annotations

from collections import deque

from headrace._core.fetch_events import FetchEvent, LogDiverged, PositionReset, Reset
from headrace._core.fetch_partition import PartitionFetch
from headrace._core.fetch_plans import FetchLimits
from headrace._core.fetch_rooms import FetchRooms
from headrace._core.fetch_sources import FetchSources
from headrace._core.starts import Start
from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import NodeId, TopicPartition


class FetchState:
    """Of one consumer."""

    def __init__(self, limits: FetchLimits, reset: Start | None) -> None:
        self.limits = limits
        self.reset = reset
        self.partitions: dict[TopicPartition, PartitionFetch] = {}
        self.rooms = FetchRooms(limits)
        self.sources = FetchSources(limits, self.rooms)
        self.doubts: dict[TopicPartition, int] = {}
        """Leader epochs under which nobody answered as a leader; the shell empties it."""
        self.refresh_reason: str | None = None
        """Why metadata should be fetched again; the shell empties it."""
        self.care = False
        """Whether there may be starts to look up, pauses to wait for, a refresh or events; the shell clears it."""
        self.events: deque[FetchEvent] = deque(maxlen=1000)
        """What should be logged; the shell empties it."""
        self.resets: deque[Reset] = deque(maxlen=1000)
        """The same, of what the application should hear before it gets more; the shell empties it."""
        self.ready: deque[PartitionFetch] = deque()
        """Who has records to hand out, next first."""
        self.troubled: dict[PartitionFetch, None] = {}
        self.failed: dict[PartitionFetch, None] = {}

    def lead_by(self, partition: PartitionFetch, leader: NodeId, leader_epoch: int) -> None:
        """Another leader, or another epoch of it: it is asked at once."""
        self.sources.lead(partition)
        partition.leader, partition.leader_epoch = leader, leader_epoch
        partition.retry_at_ms = 0.0
        partition.looking_up = False  # who is asked may never answer; both answers are good
        self.rooms.leader_changed(leader)

    def went_wrong(
        self, partition: PartitionFetch, error: HeadraceError, now_ms: float, *, refresh: bool = True
    ) -> None:
        """It is asked again after a pause; ``refresh``: metadata may help."""
        limits = self.limits
        partition.went_wrong(error, now_ms, limits.retry_backoff_ms, limits.retry_backoff_max_ms)
        self.troubled[partition] = None
        self.care = True
        if refresh:
            self.refresh_reason = str(error)
            self.doubts[partition.tp] = partition.leader_epoch

    def went_well(self, partition: PartitionFetch) -> None:
        partition.went_well()
        self.troubled.pop(partition, None)

    def tell(self, event: FetchEvent) -> None:
        """Have it logged and, if it is a reset, have the application hear of it."""
        self.events.append(event)
        if isinstance(event, PositionReset | LogDiverged):
            self.resets.append(event)
        self.care = True

    def fail(self, partition: PartitionFetch, error: HeadraceError) -> None:
        """The application gets ``error`` when all was handed out."""
        partition.failure = error
        self.failed[partition] = None

    def drop_buffer(self, partition: PartitionFetch) -> None:
        """Before the buffer is emptied: give its room back."""
        self.rooms.count(partition, -partition.buffered_bytes)
        if partition.buffer and partition in self.ready:
            self.ready.remove(partition)

    def settle(self, partition: PartitionFetch) -> None:
        self.care = self.care or partition.may_look_up
        self.rooms.settle(partition)
