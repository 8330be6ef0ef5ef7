"""
What ``fetch_positions`` and ``fetch_answers`` share: the partitions, whose turn it is, what is wrong with which, and
what the shell should hear. Nobody else changes it, but the shell empties what it has heard.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from headrace._core.fetch_events import FetchEvent, LogDiverged, PositionReset, Reset, TopicRecreated
from headrace._core.fetch_partition import PartitionFetch
from headrace._core.fetch_plans import FetchLimits
from headrace._core.fetch_rooms import FetchRooms
from headrace._core.fetch_sources import FetchSources
from headrace._core.starts import Start
from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import NodeId, TopicId, TopicPartition


class Ends(NamedTuple):
    """Where a log ends, as a broker said last; -1: not known."""

    high_watermark: int = -1
    last_stable: int = -1


class Place(NamedTuple):
    """Where a consumer is in one partition."""

    tp: TopicPartition
    offset: int
    """Of the next record."""
    leader_epoch: int
    """Under which leader the record before it was written; -1: not known."""
    ends: Ends


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
        self.untold: dict[PartitionFetch, None] = {}
        """Whose position or end may be another than ``take_places`` told last."""
        self.ends: dict[tuple[TopicId, int], Ends] = {}
        """Brokers repeat nothing on a stream, so it outlives what is assigned."""
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

    def learn_ends(self, partition: PartitionFetch, ends: Ends) -> bool:
        """A broker has said it, perhaps in an answer that came too late for what it was asked. True: it is new."""
        if ends.high_watermark < 0 or self.ends.get(partition.key) == ends:
            return False
        self.ends[partition.key] = ends
        now = self.partitions.get(partition.tp)
        if now is not None and now.key == partition.key:
            self.untold[now] = None
        return True

    def step_over(self, partition: PartitionFetch) -> bool:
        """Move the position past what is not for applications. False: that does not come next."""
        moved = partition.step_over()
        if moved:
            self.untold[partition] = None
        return moved

    def take_places(self, handed_out: Mapping[PartitionFetch, tuple[int, int]]) -> list[Place]:
        """
        Where reading is in the partitions that were ``handed_out``, given as their epochs then and the positions; and
        where it is in others, if that was not told yet, no record of theirs is here that will tell it, and the
        application has heard of all resets.
        """
        places: list[Place] = []
        for partition, (epoch, offset) in handed_out.items():
            if partition.epoch == epoch:
                places.append(self._take_place(partition))
            else:  # it goes on elsewhere now, which is told next time
                places.append(Place(partition.tp, offset, -1, self.ends.get(partition.key, Ends())))
        others = [
            partition
            for partition in self.untold
            if not self.resets
            and partition not in handed_out
            and partition.position is not None
            and not (partition.paused or partition.has_records)
            and partition.key in self.ends
        ]
        return places + [self._take_place(partition) for partition in others]

    def _take_place(self, partition: PartitionFetch) -> Place:
        self.untold.pop(partition, None)
        assert partition.position is not None, "asked only where there is a position"
        return Place(partition.tp, partition.position, partition.position_epoch, self.ends.get(partition.key, Ends()))

    def tell(self, event: FetchEvent) -> None:
        """Have it logged and, if it is a reset, have the application hear of it."""
        self.events.append(event)
        if isinstance(event, PositionReset | TopicRecreated | LogDiverged):
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
