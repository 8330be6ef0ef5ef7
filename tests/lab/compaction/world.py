"""One run of a cluster in the lab under faults, from one seed."""

from __future__ import annotations

from tests.lab.kind import Outcome
from tests.lab.opening import measure, open_cluster


async def play(seed: int) -> Outcome:
    """One run."""
    async with open_cluster(seed, brokers=1, coordinators=1) as cluster:
        steps, seconds = measure(cluster)
        return Outcome([], [], steps, seconds)
