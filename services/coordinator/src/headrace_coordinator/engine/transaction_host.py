"""
Keeps a shard of transactions: what producers, partition leaders and operators ask goes to its state machine, what was
decided goes to the marker driver. See ``host`` for the rest.

Whatever is answered is current: an answer that no record stands behind waits for a proof. Records that nobody waits for
(a transaction is over) may gather for a moment, because the next transaction of the id usually follows at once and
writes the same record again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from headrace_common.core.errors import ConcurrentTransactions, CoordinatorNotAvailable, HeadraceError
from headrace_common.core.features import OWNER_TIMES
from headrace_common.core.ids import PartitionId
from headrace_common.core.image import ShardKey, ShardKind
from headrace_common.runtime.clock import call_later_ms, limit_ms
from headrace_common.runtime.failpoints import failpoint
from headrace_coordinator.core.effects import Row
from headrace_coordinator.core.transactions.effects import (
    Answer,
    Completed,
    Persist,
    Tally,
    TookProducerId,
    TransactionListing,
    Visible,
    WriteMarkers,
)
from headrace_coordinator.core.transactions.events import (
    EnrolAsked,
    Event,
    GaveUp,
    Loaded,
    MarkersWritten,
    OwnerInitAsked,
    UnitAsked,
    Woken,
)
from headrace_coordinator.core.transactions.shard import TransactionShard
from headrace_coordinator.core.values import Moment
from headrace_coordinator.engine.host import Host, Phase
from headrace_coordinator.engine.host_ports import TransactionHostPorts
from headrace_coordinator.engine.outbox import Outbox
from headrace_coordinator.ports import Marker

GATHER_MS: Final = 10.0
"""How long a record that nobody waits for may wait for others."""


class TransactionHost(Host[TransactionShard, Event, Visible]):
    """Of one shard of transactions in one epoch; ``start`` it once, ``stop`` it once."""

    def __init__(self, number: int, epoch: int, ports: TransactionHostPorts) -> None:
        self._own = ports
        self._steps: dict[str, None] = {}
        """What the append that gathers is about."""
        self._reserved: set[int] = set()
        """Producer ids that requests brought along and nobody has yet."""
        self._under_way: dict[str, None] = {}
        """What the append under way is about."""
        self._gathering: asyncio.Task[None] | None = None
        super().__init__(ShardKey(ShardKind.TRANSACTIONS, number), epoch, ports.shared)

    # --- called by the coordinator ----------------------------------------------------------------------------

    async def ask(
        self, transactional_id: str, make: Callable[[object], Event], *, end_wait_ms: float | None = None
    ) -> Any:
        """
        The answer to the event that ``make`` makes of a reference; durable, and current when the call began.

        Args:
            end_wait_ms: how long it may wait for the end of the transaction before; None: as long as for the log.

        Raises:
            CoordinatorNotAvailable: the log did not confirm it in time; the outcome is unknown.
            ConcurrentTransactions: the end of the transaction before took too long; nothing has happened.
            HeadraceError: as ``check_serving``, or what the state machine answers.
        """
        if end_wait_ms is None:
            return await self._answer_to(make, lambda ref: self._gave_up(transactional_id, ref))
        timers: list[asyncio.TimerHandle] = []

        def made(ref: object) -> Event:
            timers.append(call_later_ms(end_wait_ms, self._wait_no_more, transactional_id, ref))
            return make(ref)

        try:
            return await self._answer_to(made, lambda ref: self._gave_up(transactional_id, ref))
        finally:
            for timer in timers:
                timer.cancel()

    async def ask_with_id(self, transactional_id: str, make: Callable[[object, int], Event]) -> Any:
        """
        The same for an event that may need a new producer id.

        Raises:
            CoordinatorNotAvailable: also where there is no such id.
            HeadraceError: as ``ask``.
        """
        self.check_serving()
        spares = self._own.spares
        try:
            async with limit_ms(self._ports.append_timeout_ms):
                spare = await spares.take()
        except TimeoutError:
            raise CoordinatorNotAvailable(
                "no broker gave a new producer id; nothing has happened: try again, and see that brokers run"
            ) from None
        self._reserved.add(spare)

        def gave_up(ref: object) -> HeadraceError:
            self._reserved.discard(spare)  # somebody may yet get it
            return self._gave_up(transactional_id, ref)

        try:
            return await self._answer_to(lambda ref: make(ref, spare), gave_up)
        finally:
            if spare in self._reserved:
                self._reserved.remove(spare)
                spares.give_back(spare)

    def markers_written(self, transactional_id: str, marker: Marker, partitions: Sequence[PartitionId]) -> None:
        """Said by the marker driver: these partitions need the end no more."""
        if self.phase is Phase.SERVING:
            at = self._ports.moment()
            self._take_in(MarkersWritten(transactional_id, at, marker.producer_id, marker.epoch, partitions))

    # --- reading beside the events ----------------------------------------------------------------------------

    def list_transactions(self) -> list[TransactionListing]:
        """All ids as they are in memory; they may be ahead of the log, or out of date by a moment."""
        return self._core.list_transactions() if self.phase is Phase.SERVING else []

    def tally(self) -> Tally | None:
        """What is to be done; None: the shard is not served."""
        return self._core.tally() if self.phase is Phase.SERVING else None

    # --- what transactions add to a host ----------------------------------------------------------------------

    def _new_core(self) -> TransactionShard:
        return TransactionShard(self.key.number, self._own.settings, self._own.room)

    def _new_outbox(self) -> Outbox[Visible]:
        return Outbox(_no_group, self._show)

    def _first_events(self) -> Iterable[Event]:
        return (Loaded(self._ports.moment()),)

    def _make_wake(self, at: Moment) -> Event:
        return Woken(at)

    def _handle(self, event: Event) -> None:
        if self._ports.cluster.image.has(OWNER_TIMES):
            self._core.write_times()
        super()._handle(event)

    def _needs_proof(self, event: Event, effects: Sequence[Any]) -> bool:
        return any(isinstance(effect, Answer) for effect in effects)

    def _carry_out_at_once(self, event: Event, effects: Sequence[Any]) -> Sequence[Any]:
        rest = []
        for effect in effects:
            match effect:
                case TookProducerId(producer_id):
                    self._reserved.discard(producer_id)
                    continue
                case WriteMarkers():
                    self._steps["txn.unit.write" if isinstance(event, UnitAsked) else "txn.prepare.write"] = None
                case Completed():
                    self._steps["txn.complete.write"] = None
                case Persist() if isinstance(event, EnrolAsked):
                    self._steps["txn.enrol.write"] = None
                case Persist() if isinstance(event, OwnerInitAsked):
                    self._steps["txn.owner.write"] = None
            rest.append(effect)
        return rest

    def _urgent(self, effects: Sequence[Any]) -> bool:
        if any(isinstance(effect, Answer | WriteMarkers) for effect in effects):
            return True
        if self._gathering is None:
            self._gathering = self._ports.tasks.start(self._gather(), name=f"{self.key}-gather")
        return False

    async def _gather(self) -> None:
        await self._ports.clock.sleep_ms(GATHER_MS)
        self._gathering = None
        self._append_wanted.set()

    def _appending(self) -> None:
        self._under_way, self._steps = self._steps, {}
        for step in self._under_way:
            failpoint(f"{step}.before")

    def _appended(self) -> None:
        for step in self._under_way:
            failpoint(f"{step}.after")

    def _let_go(self, error: HeadraceError) -> None:
        del error  # those who wait were told
        self._own.room.leave(self.number)
        self._steps = {}
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        self._own.driver.forget(self)

    def _show(self, effect: Visible) -> None:
        match effect:
            case WriteMarkers():
                marker = Marker(effect.producer_id, effect.epoch, effect.commit)
                self._own.driver.write(self, effect.transactional_id, marker, effect.partitions)
            case Answer(_, ref, result):
                self._resolve(ref, result)
            case Completed():
                self._ports.measures.ended(effect.commit, effect.cause.name.lower(), effect.ending_ms)

    # --- waiting ----------------------------------------------------------------------------------------------

    def _gave_up(self, transactional_id: str, ref: object) -> HeadraceError:
        """Whoever asked waits no more: have it forgotten if it only waited for an end, and say which it was."""
        if not self._forgotten(transactional_id, ref):
            return self._unconfirmed()
        return _still_ending(transactional_id)

    def _wait_no_more(self, transactional_id: str, ref: object) -> None:
        assert isinstance(ref, asyncio.Future), "a reference is what _answer_to made"
        if not ref.done() and self._forgotten(transactional_id, ref):
            self._resolve(ref, _still_ending(transactional_id))

    def _forgotten(self, transactional_id: str, ref: object) -> bool:
        """Whether the request waited for an end; it does not any more."""
        if self.phase is not Phase.SERVING:
            return False
        waiting = self._core.tally().waiting
        self._handle(GaveUp(transactional_id, ref))
        return self._core.tally().waiting < waiting


def _still_ending(transactional_id: str) -> HeadraceError:
    return ConcurrentTransactions(
        f"the end of the transaction before, of {transactional_id!r}, is still being written; nothing has happened: "
        "try again, and see that the partitions of that transaction have leaders"
    )


def _no_group(key: str) -> list[Row]:
    raise AssertionError(f"transactions persist rows, not groups: {key}")
