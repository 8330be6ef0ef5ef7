"""
What becomes of a replica one of whose stored batches cannot be read any more.

The cold reader tells of it. Where enough others have the log the broker stops: started again, it says that the log is
damaged, does not lead it, and copies it anew. Until then what is left of it here may be needed: the replica stays in
the ISR, but another member of it is to lead, from which those that are behind can copy. So this is looked at again and
again.
It also ends the recovery of partitions that wait for no replica any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from headrace_broker.core.leadership import Assignment, Proposal, as_it_is
from headrace_broker.core.rows import LogId
from headrace_broker.engine.replicas import Replica, Replicas
from headrace_broker.engine.storage_loop import StorageLoop
from headrace_broker.ports import BytesLost, Cluster, LogStore
from headrace_common.core.errors import HeadraceError, StorageFailed
from headrace_common.core.ids import NodeId, PartitionId
from headrace_common.core.image import Partition
from headrace_common.runtime.clock import Clock

CHECK_MS: Final = 1_000.0
ASKED_MAX: Final = 1_000

_log = logging.getLogger(__name__)


class LostBatches:
    """One for the broker."""

    def __init__(
        self,
        replicas: Replicas,
        loop: StorageLoop,
        store: LogStore,
        cluster: Cluster,
        clock: Clock,
        assignment: Callable[[Partition], Assignment],
        peers: Callable[[], Mapping[NodeId, int]],
    ) -> None:
        self._replicas = replicas
        self._loop = loop
        self._store = store
        self._cluster = cluster
        self._clock = clock
        self._assignment = assignment
        self._peers = peers
        self._known: dict[PartitionId, tuple[LogId, BytesLost]] = {}

    def on_lost_batch(self, replica: Replica, error: BytesLost) -> None:
        """A batch of the replica cannot be read."""
        if replica.id not in self._known and not self._stops(replica, error):
            self._known[replica.id] = replica.core.log, error
            _log.error(
                "a stored batch cannot be read, and too few others are in sync to copy it from; another is to lead",
                extra={**replica.log_fields, "reason": str(error)},
            )

    async def run(self) -> None:
        """Look for ever at what can be done by now."""
        while True:
            await self._clock.sleep_ms(CHECK_MS)
            asked = [*self._propose_resigning(), *self._propose_recovered()][:ASKED_MAX]
            if asked:
                await self._ask(asked)

    def _stops(self, replica: Replica, error: BytesLost) -> bool:
        """Stop the broker if enough others have the log; whether nothing more is to be done."""
        partition = self._replicas.image.partitions.get(replica.id)
        if partition is None or self._loop.failure is not None:
            return True
        others = [r for r in partition.isr if r in self._peers() and r != self._replicas.broker_id]
        enough = min(self._assignment(partition).min_isr, len(partition.replicas) - 1)
        if len(others) < max(enough, 1):
            return False
        extra = {**replica.log_fields, "in_sync": others, "reason": str(error)}
        _log.critical("a stored batch cannot be read; the log is copied again after a restart", extra=extra)
        try:
            self._store.distrust(replica.core.log)
        except StorageFailed as failed:
            _log.error("that cannot be noted: %s", failed, extra=extra)
            return True
        self._loop.stop(error)
        return True

    def _propose_resigning(self) -> list[tuple[PartitionId, Proposal]]:
        """Partitions that are led here with a batch that is lost, where another may lead."""
        asked = []
        for id, (log, error) in list(self._known.items()):
            replica = self._replicas.get(id)
            if replica is None or replica.core.log != log or self._stops(replica, error):
                del self._known[id]
                continue
            leading = replica.core.leading
            if leading is not None and any(
                r in self._peers() for r in leading.assignment.isr if r != leading.assignment.me
            ):
                asked.append((id, as_it_is(leading.assignment, resign=True)))
        return asked

    def _propose_recovered(self) -> list[tuple[PartitionId, Proposal]]:
        """Partitions led here that count as recovering although all their replicas are in sync."""
        return [
            (replica.id, as_it_is(leading.assignment))
            for replica in self._replicas.all()
            if replica.metadata is not None
            and replica.metadata.recovering
            and (leading := replica.core.leading) is not None
            and leading.pending is None
            and set(leading.assignment.isr) == set(leading.assignment.replicas)
        ]

    async def _ask(self, asked: list[tuple[PartitionId, Proposal]]) -> None:
        try:
            decisions = await self._cluster.alter_partitions(asked)
        except HeadraceError as error:
            _log.info("the controller is asked again: %s", error, extra={"partitions": len(asked)})
            return
        for (id, proposal), decision in zip(asked, decisions, strict=True):
            extra = {"partition": str(id), "epoch": proposal.leader_epoch}
            if decision.error is not None:
                _log.info("the controller is asked again: %s", decision.error, extra=extra)
            elif proposal.resign and decision.current is not None:
                _log.warning("broker %d leads instead of this one", decision.current.leader, extra=extra)
