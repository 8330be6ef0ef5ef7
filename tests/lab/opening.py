"""Opens the cluster of one seed, on the loop that ``asyncio.run`` has made."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace_lab.adopting import adopted
from headrace_lab.cluster import Cluster
from headrace_lab.lab import laboratory
from headrace_lab.loop import LabLoop
from headrace_lab.nodes import Configs


@asynccontextmanager
async def open_cluster(
    seed: int, configs: Configs | None = None, *, brokers: int, controllers: int = 1, coordinators: int = 0
) -> AsyncIterator[Cluster]:
    """A cluster that serves, until the block ends; with ``configs`` its nodes have settings of their own."""
    with adopted(seed) as loop, laboratory(loop) as lab:
        cluster = Cluster(lab, brokers=brokers, controllers=controllers, coordinators=coordinators, configs=configs)
        try:
            await cluster.start()
            yield cluster
        finally:
            await loop.end_tasks()
            await cluster.end()


def measure(cluster: Cluster) -> tuple[int, float]:
    """Steps, and virtual seconds, until now."""
    loop = cluster.lab.loop
    assert isinstance(loop, LabLoop)
    return loop.fired, loop.time()
