"""
Brings the ISRs that leaders here ask for to the controller, many in one call, and the answers back.

Nothing is given up: a proposal is asked for again until it is decided or the image has moved on (KIP-497). A call
whose fate is unknown is repeated too; the controller answers what is so already as if it had just done it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from headrace_broker.core.leadership import Assignment, Proposal
from headrace_broker.core.partition_events import ProposalRefused, Reassigned
from headrace_broker.engine.replicas import Replica
from headrace_broker.engine.storage_loop import StorageLoop
from headrace_broker.ports import Cluster, IsrDecision
from headrace_common.core.errors import HeadraceError, IneligibleReplica
from headrace_common.core.image import Partition
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.entropy import backoff_ms

PROPOSALS_PER_CALL: Final = 1_000
UNDECIDED_RETRY_MS: Final = 300.0
_RETRY_MS_MAX: Final = 1_000.0

_log = logging.getLogger(__name__)


class IsrProposals:
    """One for the broker."""

    def __init__(
        self, loop: StorageLoop, cluster: Cluster, clock: Clock, assignment: Callable[[Partition], Assignment]
    ) -> None:
        self._loop = loop
        self._cluster = cluster
        self._clock = clock
        self._assignment = assignment
        self._waiting: dict[Replica, Proposal] = {}
        self._wake = asyncio.Event()

    def ask(self, replica: Replica, proposal: Proposal) -> None:
        """A leader asks for this ISR; it replaces what the same leader asked for before."""
        self._waiting[replica] = proposal
        self._wake.set()

    async def run(self) -> None:
        """Ask the controller for ever; ends only when cancelled."""
        failures = 0
        while True:
            self._drop_decided()
            if not self._waiting:
                self._wake.clear()
                await self._wake.wait()
                continue
            asked = dict(list(self._waiting.items())[:PROPOSALS_PER_CALL])
            try:
                decisions = await self._cluster.alter_partitions(
                    [(replica.id, proposal) for replica, proposal in asked.items()]
                )
            except HeadraceError as error:
                failures += 1
                level = logging.INFO if failures < 5 else logging.WARNING
                _log.log(level, "ISR changes are asked for again: %s", error, extra={"partitions": len(asked)})
                await self._clock.sleep_ms(backoff_ms(failures, ms_max=_RETRY_MS_MAX))
                continue
            failures = 0
            undecided = 0
            for (replica, proposal), decision in zip(asked.items(), decisions, strict=True):
                undecided += not self._take_decision(replica, proposal, decision)
            if undecided:
                await self._clock.sleep_ms(UNDECIDED_RETRY_MS)

    def _drop_decided(self) -> None:
        for replica, proposal in list(self._waiting.items()):
            leading = replica.core.leading
            if leading is None or leading.pending != proposal:
                del self._waiting[replica]

    def _take_decision(self, replica: Replica, proposal: Proposal, decision: IsrDecision) -> bool:
        """Tell the partition; False: it waits for the image, and is asked for again."""
        if decision.current is not None:
            current = decision.current
            if replica.core.leader_epoch == current.leader_epoch:
                now_ms = self._clock.monotonic_ms()
                self._loop.handle_now(replica, Reassigned(self._assignment(current), now_ms))
            return True
        extra = {"partition": str(replica.id), "epoch": proposal.leader_epoch}
        if isinstance(decision.error, IneligibleReplica):
            _log.info("a replica may not join the ISR now: %s", decision.error, extra=extra)
            self._loop.handle_now(replica, ProposalRefused(proposal, self._clock.monotonic_ms()))
            return True
        _log.info("an ISR change waits for newer metadata: %s", decision.error, extra=extra)
        return False
