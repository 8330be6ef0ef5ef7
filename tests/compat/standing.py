"""A cluster of today's processes on what was kept of another version."""

from __future__ import annotations

import io
import lzma
import signal
import tarfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from services.coordinator.tests.kit.processes import Cluster, processes
from tests.compat.record import LASTING, ready

from headrace_common.core.ids import Endpoint
from headrace_common.runtime.clock import SystemClock
from headrace_controller.adapters.etcd_store import EtcdStore
from headrace_controller.core import records
from headrace_controller.core.backup_file import Backup, decode
from headrace_controller.core.store import Put, Transaction
from headrace_controller.store_access import once_it_answers

KEPT: Final = Path(__file__).with_name("kept")
VERSIONS: Final = sorted(path.name for path in KEPT.iterdir())
SESSION_MS: Final = 3_000
"""Of nodes; recorded answers tell it."""


def metadata(version: str) -> Backup:
    """Every key as it was in etcd."""
    return decode((KEPT / version / "metadata.backup").read_bytes())


def unpack(version: str, into: Path) -> None:
    """The broker's data directory."""
    raw = lzma.decompress((KEPT / version / "data-1.tar.xz").read_bytes())
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        archive.extractall(into, filter="data")


@asynccontextmanager
async def standing(version: str, directory: Path, *, controller: Sequence[str] = ()) -> AsyncIterator[Cluster]:
    """
    All processes, once they serve what was kept; killed at the end.

    Args:
        controller: more arguments of the controller.
    """
    unpack(version, directory / "data-1")
    cluster = processes(directory, 1, 1, LASTING, session_ms=SESSION_MS)
    cluster.controller.argv = [*cluster.controller.argv, *controller]
    everything = [cluster.etcd, cluster.controller, *cluster.brokers, *cluster.coordinators]
    try:
        await cluster.etcd.start()
        argv = list(cluster.controller.argv)
        await _filled(argv[argv.index("--etcd") + 1], metadata(version))
        for process in everything[1:]:
            await process.start()
        await ready(cluster)
        yield cluster
    finally:
        for channel in cluster.channels.values():
            await channel.close()
        for process in reversed(everything):
            if process.running is not None:
                await process.stop(signal.SIGKILL)


async def _filled(etcd: str, backup: Backup) -> None:
    """Put the rows where they were, at a revision that is not below theirs."""
    rows = [Put(row.key, row.value) for row in backup.rows if row.key != records.CONTROLLER_KEY]
    async with EtcdStore.open([Endpoint.parse(etcd)], f"/headrace/{backup.cluster}/") as store:
        await once_it_answers(store, SystemClock(), 30)
        while (await store.list_all()).revision < backup.revision:
            await store.commit(Transaction((), (Put(records.REMOVAL_KEY, b"0"),)))
        for start in range(0, len(rows), 100):
            await store.commit(Transaction((), tuple(rows[start : start + 100])))
