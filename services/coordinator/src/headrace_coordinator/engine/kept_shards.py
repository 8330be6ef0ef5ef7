"""
Which shards of one kind this node keeps: takes on what the image gives it, lets go at once of what it gives to others.

A host belongs to one epoch: a shard that moves away and back is a new host with nothing of the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from headrace_common.core.errors import CoordinatorLoading
from headrace_common.core.ids import NodeId
from headrace_common.core.image import INTERNAL_TOPICS, ClusterImage, Shard, ShardKey, ShardKind
from headrace_common.runtime.logs import logger
from headrace_coordinator.engine.host import Host, Phase

H = TypeVar("H", bound=Host[Any, Any, Any])

log = logger(__name__)


class KeptShards(Generic[H]):
    """Of one kind; one per process."""

    def __init__(self, kind: ShardKind, node_id: NodeId, make: Callable[[int, int], H]) -> None:
        self.kind = kind
        self.hosts: dict[int, H] = {}
        self.count = 0
        """How many there are in the cluster; 0: their topic does not exist yet."""
        self._node_id = node_id
        self._make = make
        self._settled: Mapping[ShardKey, Shard] | None = None

    def settle(self, image: ClusterImage) -> None:
        """Do as the image says."""
        internal = image.topic(INTERNAL_TOPICS[self.kind])
        self.count = 0 if internal is None else internal.partition_count
        if self._settled is image.shards:
            return
        self._settled = image.shards
        given = {
            key.number: shard.epoch
            for key, shard in image.shards.items()
            if key.kind is self.kind and shard.owner == self._node_id
        }
        gone = [number for number, host in self.hosts.items() if given.get(number) != host.epoch]
        for number in gone:
            self.hosts.pop(number).stop()
        new = {number: epoch for number, epoch in given.items() if number not in self.hosts}
        for number, epoch in new.items():
            host = self.hosts[number] = self._make(number, epoch)
            host.start()
        if gone or new:
            about = {"kind": self.kind.value, "let_go": sorted(gone), "taken_on": sorted(new)}
            log.info("shards change hands", extra=about)

    def stop(self) -> None:
        """Let go of everything: the process ends."""
        while self.hosts:
            _, host = self.hosts.popitem()
            host.stop()

    def list_loading(self) -> list[int]:
        """
        Shards that are this node's, and not served yet.

        Raises:
            CoordinatorLoading: no image has come yet, so it is not known which are.
        """
        if self._settled is None:
            raise CoordinatorLoading("this coordinator has not heard yet which shards it has; ask again in a moment")
        return sorted(n for n, host in self.hosts.items() if host.phase in {Phase.LOADING, Phase.FAILED})
