"""
Brokers whose partitions take part in transactions: appends that park, markers, reads of what is committed.

``tests.simulation.brokers`` drives the cores and their copying; here is what the produce path, the enrolments and the
fetches of ``headrace_broker.engine`` do with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.brokers import MOVED, Broker, Replica
from tests.simulation.transactions.callers import Caller
from tests.simulation.transactions.processes import Promise, Script

from headrace_broker.core.partition_events import Answer, AskEnrolment, BatchArrived, Enrolled, MarkerArrived, Refuse
from headrace_broker.core.rows import IndexRow
from headrace_common.core.batch import build_marker_batch, read_header
from headrace_common.core.errors import HeadraceError, NotLeader
from headrace_common.core.ids import NodeId, Offset, PartitionId
from headrace_coordinator.core.transactions.events import EnrolAsked

if TYPE_CHECKING:
    from tests.simulation.transactions.world import World

ENROL_MS = 4_000.0
READ_ROWS = 6
ALL = -1


class LogBroker(Broker, Caller):
    """One broker process and its disk."""

    def __init__(self, id: NodeId, world: World) -> None:
        Caller.__init__(self, id, world)
        Broker.__init__(self, id, world)

    # --- what is asked ----------------------------------------------------------------------------------------

    def append(self, answer: Promise, id: PartitionId, batch: bytes, transactional_id: str | None) -> None:
        """Produce, one batch; answered with its offset when it is committed."""
        replica = self._replica(id, answer)
        if replica is not None:
            arrived = BatchArrived(
                read_header(batch), batch, ALL, int(self.clock), None, answer, transactional_id=transactional_id
            )
            self.handle(id, arrived)

    def mark(self, answer: Promise, id: PartitionId, producer_id: int, epoch: int, commit: bool) -> None:
        """WriteTxnMarkers, one marker."""
        replica = self._replica(id, answer)
        if replica is not None:
            now = int(self.clock)
            batch = build_marker_batch(producer_id, epoch, commit=commit, timestamp_ms=now)
            self.handle(id, MarkerArrived(read_header(batch), batch, commit, now, answer))

    def _replica(self, id: PartitionId, answer: Promise) -> Replica | None:
        replica = self.replicas.get(id)
        if replica is None or self.broker_epoch < 0:
            answer.settle(error=MOVED)
            return None
        return replica

    def read(self, id: PartitionId, position: int) -> tuple[int, list[tuple[int, int]]] | None:
        """
        Fetch of committed records, and what a client makes of it: the next position, offsets and values.

        None: this broker cannot say, or does not know of that position yet.
        """
        replica = self.replicas.get(id)
        if replica is None or replica.core.known_epoch is None or replica.core.last_stable < position:
            return None
        core, rows = replica.core, []
        for row in self.disk.index(core.log, Offset(position), core.last_stable):
            if row.base_offset >= position and row.next_offset <= core.last_stable:
                rows.append(row)
            if len(rows) == READ_ROWS:
                break
        if not rows:
            return position, []
        end = rows[-1].next_offset
        aborted = core.aborted.find_overlapping(Offset(position), end)
        shown = _without(rows, [(one.producer_id, one.first, one.last) for one in aborted])
        found = [point for row in shown for point in self.world.points_of(id, row)]
        self.world.invariants.was_read(self, id, position, end, found)
        return end, found

    # --- effects ----------------------------------------------------------------------------------------------

    def _do(self, id: PartitionId, replica: Replica, effects: list[object]) -> None:
        asks = [effect for effect in effects if isinstance(effect, AskEnrolment)]
        super()._do(id, replica, [effect for effect in effects if not isinstance(effect, AskEnrolment)])
        for ask in asks:
            self.world.counts["enrolments"] += 1
            self.run(self._enrol(id, replica, ask))

    def _reply(self, effect: Answer | Refuse) -> None:
        answer = effect.ref
        assert isinstance(answer, Promise), "a reference is a promise"
        if isinstance(effect, Answer):
            answer.settle(effect.base_offset)
        else:
            answer.settle(error=effect.error)

    def _enrol(self, id: PartitionId, replica: Replica, ask: AskEnrolment) -> Script:
        """As the engine: asked again for a while, then the batch is refused with an error that may be tried again."""
        number = self.world.shard_of(ask.transactional_id)

        def asked() -> Script:
            return (
                yield from self.to_shard(
                    number,
                    lambda ref, at: EnrolAsked(ask.transactional_id, ref, at, ask.producer_id, ask.epoch, (id,)),
                )
            )

        error: HeadraceError | None = None
        try:
            yield from self.again(asked, self.mono + ENROL_MS)
        except HeadraceError as refused:
            retriable = NotLeader("the transaction's coordinator did not answer; send it again")
            error = retriable if refused.retriable else refused
        yield self.world.lag()
        if self.replicas.get(id) is replica:
            self.handle(id, Enrolled(ask.producer_id, ask.number, error, int(self.clock)))


def _without(rows: list[IndexRow], aborted: list[tuple[int, int, int]]) -> list[IndexRow]:
    """What a consumer keeps: no markers, and of a producer nothing between the two ends of what it aborted."""
    return [
        row
        for row in rows
        if row.base_sequence >= 0
        and not any(row.producer_id == who and first <= row.base_offset <= last for who, first, last in aborted)
    ]
