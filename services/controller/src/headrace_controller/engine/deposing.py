"""
Ends the term of an active controller whose process is gone, so that nobody waits for its lease to run out.

Every standby looks at the active one's address a few times a second. When the kernel there refuses twice, nobody
listens any more, and the election key is taken away; who stands for election is then elected at once. A process that
was started again on the same address takes its own predecessor's key away without looking: the address is its own
now. Deposing somebody who lives is safe, since his writes compare the key; it costs an election, and the same standby
does it at most once in ten seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace_common.core.ids import NO_NODE, Endpoint, NodeId
from headrace_common.core.image import ActiveController
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.logs import logger
from headrace_controller.core import records
from headrace_controller.core.store import Committed, CreatedAt, Delete, Put, Transaction
from headrace_controller.engine.follower import Follower
from headrace_controller.ports import MetadataStore, NodeProbe, ProbeResult, StoreOutcomeUnknown, StoreUnavailable

_LOOK_EVERY_MS: Final = 250
_AGAIN_AFTER_MS: Final = 10_000

log = logger(__name__)


class Deposing:
    """One standby's eye on the active controller."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        follower: Follower,
        probe: NodeProbe,
        clock: Clock,
        endpoint: Callable[[], Endpoint],
        node_id: int,
        probe_delay_ms: int,
    ) -> None:
        self._store = store
        self._follower = follower
        self._probe = probe
        self._clock = clock
        self._endpoint = endpoint
        self._node_id = NodeId(node_id)
        self._delay_ms = probe_delay_ms

    async def run(self, is_bidding: Callable[[], bool]) -> None:
        """Look, for ever; not while ``is_bidding`` says that the key is this process's, or may be in a moment."""
        while True:
            await self._clock.sleep_ms(_LOOK_EVERY_MS)
            active = self._follower.mirror.image.active_controller
            elected = self._follower.mirror.raw.get(records.CONTROLLER_KEY)
            if active is None or active.id == NO_NODE or elected is None or is_bidding():
                continue
            if await self._is_gone(active) and await self._depose(active, elected.create_revision):
                await self._clock.sleep_ms(_AGAIN_AFTER_MS)

    async def _is_gone(self, active: ActiveController) -> bool:
        if active.grpc is None:
            return False
        if active.grpc == self._endpoint():
            return active.id == self._node_id  # who had this address and number before
        if await self._probe.listens(active.grpc) is not ProbeResult.REFUSED:
            return False
        await self._clock.sleep_ms(self._delay_ms)
        return await self._probe.listens(active.grpc) is not ProbeResult.ANSWERS

    async def _depose(self, active: ActiveController, elected_at: int) -> bool:
        """Whether it was this process that did it, of all that may try."""
        key = records.CONTROLLER_KEY
        operations = (Delete(key), Put(records.REMOVAL_KEY, records.encode_number(active.epoch)))
        try:
            outcome = await self._store.commit(Transaction((CreatedAt(key, elected_at),), operations))
        except (StoreUnavailable, StoreOutcomeUnknown) as error:
            log.warning("a dead controller's term ends with its lease", extra={"reason": str(error)})
            return False
        if isinstance(outcome, Committed):
            log.warning("the active controller's process is gone", extra={"peer": active.id, "epoch": active.epoch})
        return isinstance(outcome, Committed)
