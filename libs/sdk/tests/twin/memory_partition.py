"""
One partition of the cluster in memory: its leader and epoch, what followers know of it, and answers to fetches.

All replicas share one log, as if replication took no time; a follower may be told to know less of it, and a leader that
was elected uncleanly cuts it. Called by ``memory``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from libs.sdk.tests.twin.memory_log import END, MemoryLog
from libs.sdk.tests.twin.memory_transactions import aborted, last_stable

from headrace_common.core.batch import read_header
from headrace_common.core.ids import NO_NODE, NodeId
from headrace_proto.v1 import errors_pb2


class MemoryPartition:
    """See the module's text."""

    def __init__(self, leader: NodeId) -> None:
        self.log = MemoryLog()
        self.leader = leader
        self.leader_epoch = 0
        self.known: dict[NodeId, int] = {}
        """The high watermark that a follower has heard of; absent: all of it."""
        self.end_known = True
        """False: a new leader does not know yet what is committed."""

    def lead(self, broker: NodeId, *, log_end: int | None = None) -> None:
        """Another leader, or none with -1, under the next epoch; what is above ``log_end`` it never had."""
        if log_end is not None:
            self.log.truncate(log_end)
        self.leader = broker
        self.leader_epoch += 1

    def refused(self, broker: NodeId, entry: Any, result: Any, *, followers: bool = False) -> bool:
        """Whether this broker may not answer; why goes into ``result``."""
        if entry.HasField("leader_epoch") and entry.leader_epoch < self.leader_epoch:
            result.error = errors_pb2.FENCED_LEADER_EPOCH
        elif entry.HasField("leader_epoch") and entry.leader_epoch > self.leader_epoch:
            result.error = errors_pb2.UNKNOWN_LEADER_EPOCH
        if self.leader != broker and not followers:
            result.error = errors_pb2.NOT_LEADER_OR_FOLLOWER
        if result.error and hasattr(result, "leader") and self.leader >= 0:
            result.leader.id, result.leader.leader_epoch = self.leader, self.leader_epoch
        return bool(result.error)

    def fetch(
        self,
        broker: NodeId,
        entry: Any,
        result: Any,
        bytes_max: int,
        *,
        first: bool,
        near: NodeId = NO_NODE,
        committed: bool = False,
    ) -> int:
        """
        Answer one entry of a fetch; returns the bytes of batches.

        Args:
            first: whether the first batch comes whatever its size.
            near: the replica that the leader should name, if it holds what is asked for.
            committed: only what is below the last stable offset, with the aborted transactions in it.
        """
        log, asked = self.log, entry.fetch_offset
        end = log.end if broker == self.leader else self.known.get(broker, log.end)
        result.high_watermark, result.last_stable_offset = end, last_stable(self, end)
        result.log_start_offset = log.start
        if entry.HasField("last_fetched_epoch"):
            epoch, epoch_end = log.end_of(entry.last_fetched_epoch)
            if epoch < entry.last_fetched_epoch or epoch_end < asked:
                result.diverging.epoch, result.diverging.end_offset = epoch, epoch_end
                return 0
        if asked > end and broker != self.leader:
            result.error = errors_pb2.OFFSET_NOT_AVAILABLE
            return 0
        if not log.start <= asked <= end:
            result.error = errors_pb2.OFFSET_OUT_OF_RANGE
            return 0
        if near not in (NO_NODE, broker) and asked <= self.known.get(near, log.end) and not entry.from_leader:
            result.preferred_replica = near
            return 0
        room = min(entry.max_bytes, bytes_max)
        readable = result.last_stable_offset if committed else end
        batches = log.read(asked, room, first=first, end=readable) if room > 0 else []
        result.batches.extend(batches)
        if committed and batches:
            begin, behind = read_header(batches[0]).base_offset, read_header(batches[-1]).next_offset
            result.aborted.extend(aborted(self, begin, behind))
        return sum(map(len, batches))

    def find(self, timestamp_ms: int, *, committed: bool) -> tuple[int, int]:
        """As ``MemoryLog.find``; ``committed``: below the last stable offset."""
        end = last_stable(self) if committed else self.log.end
        return (end, -1) if timestamp_ms == END else self.log.find(timestamp_ms, end)

    def near(self, broker: NodeId, rack: str, racks: Mapping[NodeId, str], down: set[NodeId]) -> NodeId:
        """The replica in ``rack`` that the leader names; none when it is there itself."""
        if broker != self.leader or not rack or racks.get(broker) == rack:
            return NO_NODE
        return next((node for node, where in racks.items() if where == rack and node not in down), NO_NODE)
