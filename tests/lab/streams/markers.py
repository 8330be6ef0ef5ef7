"""Ends of transactions that come late to brokers, as over a slow way: who asked for them has had its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from unittest.mock import patch

from headrace_common.core.ids import PartitionId
from headrace_common.core.image import Role
from headrace_coordinator.adapters.grpc_markers import GrpcMarkers
from headrace_coordinator.ports import Destination, Marker, MarkerErrors


@contextmanager
def late_markers(random: Random, seconds: float) -> Iterator[None]:
    """While this runs each request to a broker sets out up to so much later; coordinators of groups hear at once."""
    if not seconds:
        yield
        return
    write = GrpcMarkers.write

    async def write_late(
        self: GrpcMarkers, to: Destination, markers: Sequence[tuple[Marker, Sequence[PartitionId]]]
    ) -> MarkerErrors:
        if to.role is Role.BROKER:
            await asyncio.sleep(random.random() * seconds)
        return await write(self, to, markers)

    with patch.object(GrpcMarkers, "write", write_late):
        yield
