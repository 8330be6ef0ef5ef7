"""New producer ids from any broker that lives: ``ProducerIds``."""

from __future__ import annotations

from itertools import count

from headrace_common.core.errors import LeaderNotAvailable
from headrace_coordinator.adapters.broker_connections import BrokerConnections
from headrace_coordinator.ports import Cluster


class BrokerProducerIds:
    """See ``ProducerIds``. Asks brokers in turn, so that one that is slow does not stand in the way."""

    def __init__(self, cluster: Cluster, connections: BrokerConnections) -> None:
        self._cluster = cluster
        self._connections = connections
        self._turns = count()

    async def next_id(self) -> int:
        living = [node.inside for node in self._cluster.image.brokers() if not node.fenced]
        if not living:
            raise LeaderNotAvailable("no broker lives now")
        producer_id, _ = await self._connections.init_producer_id(living[next(self._turns) % len(living)])
        return producer_id
