"""
Which replica each partition is read from: its leader, or the one near the client that the leader has named.

``fetch_positions`` owns one of these and is the only caller. A follower is read from until ``follow_ms`` have passed,
the leader changes, or it errs. Then the leader is read from, and asked not to name a replica for a while: only what the
leader says is believed of offsets that are gone, and a replica that cannot be reached would be named again.
Times are monotonic milliseconds.
"""

from __future__ import annotations

from typing import Final

from headrace._core.fetch_partition import PartitionFetch
from headrace._core.fetch_plans import FetchLimits
from headrace._core.fetch_rooms import FetchRooms
from headrace_common.core.errors import ErrorCode, HeadraceError
from headrace_common.core.ids import NO_NODE, NodeId

AVOID_MS: Final = 10_000
"""How long a follower that erred is not read from: about what a cluster needs to notice that it is gone."""

PATIENCE: Final = 5
"""How often in a row a follower may say that it does not know enough yet; its pauses add up to seconds."""


class FetchSources:
    def __init__(self, limits: FetchLimits, rooms: FetchRooms) -> None:
        self._limits = limits
        self._rooms = rooms
        self._until_ms: dict[PartitionFetch, float] = {}
        """Until when a partition is read from its follower, or from the leader itself."""

    def follow(self, partition: PartitionFetch, replica: NodeId, now_ms: float) -> None:
        """The leader has named ``replica``. The caller settles the partition."""
        if replica in (NO_NODE, partition.leader) or partition.from_leader:
            return
        partition.follower = replica
        self._until_ms[partition] = now_ms + self._limits.follow_ms

    def lead(self, partition: PartitionFetch) -> None:
        """Ask the leader: it is another, or nothing is known of the partition. The caller settles it."""
        partition.follower, partition.from_leader = NO_NODE, False
        self._until_ms.pop(partition, None)

    def erred(self, partition: PartitionFetch, error: HeadraceError, now_ms: float) -> bool:
        """The follower erred; False: it may be asked again after a pause. The caller settles the partition."""
        assert partition.follower != NO_NODE, "only a follower errs here"
        trouble = partition.trouble
        if error.code is ErrorCode.OFFSET_NOT_AVAILABLE and (trouble is None or trouble.failures < PATIENCE):
            return False
        partition.follower, partition.from_leader = NO_NODE, True
        self._until_ms[partition] = now_ms + AVOID_MS
        return True

    def tick(self, now_ms: float) -> tuple[list[PartitionFetch], float | None]:
        """Let those whose time is over ask the leader as at first: they are to be settled; and when to call again."""
        over = [partition for partition, until_ms in self._until_ms.items() if until_ms <= now_ms]
        for partition in over:
            self.lead(partition)
            self._rooms.leader_changed(partition.leader)
        return over, min(self._until_ms.values(), default=None)
