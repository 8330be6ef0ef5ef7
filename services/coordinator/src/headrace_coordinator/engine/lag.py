"""
Measures how far groups are behind, and counts groups and members; for metrics only.

Every ``interval_ms`` it reads committed offsets from memory and asks leaders where their logs end. The number of
partitions is bounded: beyond it groups are left out whole, the same ones each time, and the number left out is told.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from headrace_common.core.ids import Offset, PartitionId
from headrace_common.runtime.clock import Clock
from headrace_coordinator.core.effects import OffsetsFound
from headrace_coordinator.core.events import OffsetsAsked
from headrace_coordinator.engine.coordinator import Coordinator
from headrace_coordinator.engine.host import Phase
from headrace_coordinator.engine.shard_host import ShardHost
from headrace_coordinator.ports import LogEnds

GROUPS_PER_TURN = 50
"""Groups read before others on the event loop get a turn."""


@dataclass(frozen=True, slots=True)
class Lag:
    """Of one group in one partition."""

    group_id: str
    topic: str
    partition: int
    records: int
    """Between the committed offset and the end of the log; 0 where the log was cut below the offset."""


@dataclass(frozen=True, slots=True)
class Census:
    """What was found at the last look."""

    shards: dict[str, int] = field(default_factory=dict)
    """By phase."""
    groups: dict[str, int] = field(default_factory=dict)
    """By state."""
    members: int = 0
    lags: tuple[Lag, ...] = ()
    groups_left_out: int = 0
    """Groups whose lag was not measured, because there are too many partitions."""


class LagWatch:
    """One per process; ``census`` may be read from any thread."""

    def __init__(
        self, coordinator: Coordinator, ends: LogEnds, clock: Clock, *, interval_ms: float, partitions_max: int
    ) -> None:
        self.census = Census()
        self._coordinator = coordinator
        self._ends = ends
        self._clock = clock
        self._interval_ms = interval_ms
        self._partitions_max = partitions_max

    async def run(self) -> None:
        """Look every ``interval_ms``, until cancelled."""
        while True:
            await self._clock.sleep_ms(self._interval_ms)
            await self.look()

    async def look(self) -> None:
        hosts = self._coordinator.hosts
        listings = [(host, group) for host in hosts for group in host.list_groups()]
        wanted: list[tuple[str, str, PartitionId, Offset]] = []
        left_out = 0
        for count, (host, group) in enumerate(listings):
            if count % GROUPS_PER_TURN == 0:
                await self._clock.sleep_ms(0)
            own = self._positions(host, group.group_id)
            if len(wanted) + len(own) > self._partitions_max:
                left_out += 1
            else:
                wanted += own
        ends = await self._ends.ends(dict.fromkeys(id for _, _, id, _ in wanted)) if wanted else {}
        self.census = Census(
            dict(Counter(host.phase.value for host in hosts)),
            dict(Counter(group.state.name for _, group in listings)),
            sum(group.members for _, group in listings),
            tuple(
                Lag(group_id, topic, id.partition, max(0, ends[id] - offset))
                for group_id, topic, id, offset in wanted
                if id in ends
            ),
            left_out,
        )

    def _positions(self, host: ShardHost, group_id: str) -> list[tuple[str, str, PartitionId, Offset]]:
        if host.phase is not Phase.SERVING:
            return []
        found = host.peek(OffsetsAsked(group_id, None, self._coordinator.moment()))
        if not isinstance(found, OffsetsFound):
            return []
        topics = self._coordinator.topics
        return [
            (group_id, one.topic, PartitionId(topics[one.topic].topic_id, one.partition), Offset(one.committed.offset))
            for one in found.offsets
            if one.committed is not None and one.topic in topics
        ]
