"""
Whose buffer counts against which broker's room, and which brokers may be sent a fetch.

Bookkeeping of ``fetch_positions``, its only caller: after any change of a partition it calls ``settle``.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace._core.fetch_partition import PartitionFetch
from headrace._core.fetch_plans import BrokerFetches, FetchLimits
from headrace_common.core.ids import NO_NODE, NodeId


@dataclass(slots=True)
class PausedRoom:
    """What was fetched of paused partitions."""

    buffered_bytes: int = 0


class FetchRooms:
    """One room per broker for the partitions that are read from it; one for all that are paused."""

    def __init__(self, limits: FetchLimits) -> None:
        self._limits = limits
        self._counted_in: dict[PartitionFetch, BrokerFetches | PausedRoom] = {}
        self._paused = PausedRoom()
        self.brokers: dict[NodeId, BrokerFetches] = {}
        self.wakes: set[NodeId] = set()
        """Brokers that a fetch may now be sent to; the shell empties it."""
        self.late: set[NodeId] = set()
        """Brokers whose fetch on the wire lacks a partition that should be in it; the shell empties it."""

    @property
    def paused_bytes(self) -> int:
        return self._paused.buffered_bytes

    def count(self, partition: PartitionFetch, size: int) -> None:
        """Its buffer grew, or shrank with a negative ``size``."""
        partition.buffered_bytes += size
        room = self._counted_in.get(partition)
        if room is not None:
            room.buffered_bytes += size
            if isinstance(room, BrokerFetches):
                self.wake(room)

    def charge(self, partition: PartitionFetch) -> None:
        """Count the buffer where it now belongs."""
        now: BrokerFetches | PausedRoom | None = None
        if partition.assigned:
            now = self._paused if partition.paused else self.brokers.get(partition.source)
        was = self._counted_in.get(partition)
        if was is now:
            return
        if was is not None:
            was.buffered_bytes -= partition.buffered_bytes
            del self._counted_in[partition]
        if now is not None:
            now.buffered_bytes += partition.buffered_bytes
            self._counted_in[partition] = now

    def settle(self, partition: PartitionFetch) -> None:
        """Put the partition among those its source is asked for, or take it out."""
        source = partition.source
        if source != NO_NODE and source not in self.brokers:
            self.brokers[source] = BrokerFetches(source, self._limits)
        was = self._counted_in.get(partition)
        self.charge(partition)
        now = self.brokers.get(partition.source)
        if isinstance(was, BrokerFetches) and was is not now:
            was.remove(partition)
            self.wake(was)
        if now is None:
            return
        if partition.may_fetch:
            now.add(partition)
        else:
            now.remove(partition)
        self.wake(now)

    def moved(self, partition: PartitionFetch) -> None:
        """Its fetch offset or its epoch is another one."""
        fetches = self.brokers.get(partition.source)
        if fetches is not None:
            fetches.moved[partition] = None

    def sought(self, partition: PartitionFetch) -> None:
        """What is on the wire for it is stale."""
        fetches = self.brokers.get(partition.source)
        if fetches is not None and partition in fetches.members:
            fetches.late = fetches.on_wire

    def leader_changed(self, leader: NodeId) -> None:
        """Its epoch, and whether it may name a replica, are part of the request: that is made anew."""
        fetches = self.brokers.get(leader)
        if fetches is not None:
            fetches.dirty = True

    def wake(self, fetches: BrokerFetches) -> None:
        """Name the broker in ``wakes`` if a fetch may leave, in ``late`` if the one on the wire lacks somebody."""
        if fetches.ready:
            self.wakes.add(fetches.broker)
        elif fetches.late and fetches.on_wire:
            self.late.add(fetches.broker)
