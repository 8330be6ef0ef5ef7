"""Opens the cluster of one seed, on the loop that ``asyncio.run`` has made."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace_lab.adopting import adopt_loop
from headrace_lab.cluster import Cluster
from headrace_lab.lab import laboratory
from headrace_lab.loop import LabLoop
from headrace_lab.nodes import Configs


@asynccontextmanager
async def open_cluster(
    seed: int,
    configs: Configs | None = None,
    *,
    brokers: int,
    controllers: int = 1,
    coordinators: int = 0,
    admins: int = 1,
    closed: bool = True,
) -> AsyncIterator[Cluster]:
    """
    A cluster, until the block ends; with ``configs`` its nodes have settings of their own. Its nodes serve when the
    block begins; they are closed unless it is said otherwise. Without admin services nobody has asked them, and they
    have just been started.
    """
    with adopt_loop(seed) as loop, laboratory(loop) as lab:
        cluster = Cluster(
            lab,
            brokers=brokers,
            controllers=controllers,
            coordinators=coordinators,
            admins=admins,
            configs=configs,
            closed=closed,
        )
        try:
            if admins:
                await cluster.start()
            else:
                cluster.begin()
            yield cluster
        finally:
            await loop.end_tasks()
            await cluster.end()


def measure(cluster: Cluster) -> tuple[int, float]:
    """Steps, and virtual seconds, until now."""
    loop = cluster.lab.loop
    assert isinstance(loop, LabLoop)
    return loop.fired, loop.time()
