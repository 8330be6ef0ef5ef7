"""
How every transaction ends, whoever decides it: the verdict is persisted, then the partitions are told, then it is
complete. ``producers``, ``units``, ``loading`` and the shard call this.
"""

from __future__ import annotations

from headrace_coordinator.core.effects import Row
from headrace_coordinator.core.transactions.effects import Completed, Effect, Persist, WriteMarkers
from headrace_coordinator.core.transactions.events import MarkersWritten
from headrace_coordinator.core.transactions.register import Register
from headrace_coordinator.core.transactions.transaction import Transaction
from headrace_coordinator.core.transactions.values import EndCause, owner_of
from headrace_coordinator.core.values import Moment


class Ending:
    """Of the ids of one shard."""

    def __init__(self, register: Register) -> None:
        self._register = register

    def abort(self, txn: Transaction, cause: EndCause, at: Moment, *, continues: bool) -> list[Effect]:
        """Abort what is open or prepared; nobody asked who is to be answered."""
        txn.decide(commit=False, cause=cause, at=at, continues=continues)
        row, after = self.carry_out(txn, at)
        return [Persist(txn.group_id, (row,)), *after]

    def replace(self, txn: Transaction, at: Moment) -> tuple[Row, list[Effect]]:
        """The owner has a newer epoch: nobody goes on with the id. The row to persist, and what follows it."""
        if txn.at_rest:
            return self._register.bury(txn), []
        if txn.ending:
            txn.continues = False
            return self._register.save(txn, at), []
        txn.decide(commit=False, cause=EndCause.OWNER, at=at, continues=False)
        return self.carry_out(txn, at)

    def carry_out(self, txn: Transaction, at: Moment) -> tuple[Row, list[Effect]]:
        """After a verdict: the row to persist, and what follows it."""
        txn.decided_at_step = self._register.step
        return (self._register.save(txn, at), [tell(txn)]) if txn.ending else self._complete(txn, at)

    def markers_written(self, event: MarkersWritten) -> tuple[Transaction | None, list[Effect]]:
        """Some partitions were told: the transaction if these were the last ones, and what follows."""
        txn = self._register.ids.get(event.transactional_id)
        if txn is None or not txn.ending or txn.marker != (event.producer_id, event.epoch):
            return None, []
        self._register.durable_step = max(self._register.durable_step, txn.decided_at_step)
        for partition in event.partitions:
            txn.partitions.pop(partition, None)
        if txn.partitions:
            return None, []
        txn.complete()
        row, after = self._complete(txn, event.at)
        return txn, [Persist(txn.group_id, (row,)), *after]

    def _complete(self, txn: Transaction, at: Moment) -> tuple[Row, list[Effect]]:
        """
        An id of an owner is forgotten once nobody goes on with it and no holder of its token may ask for the verdict.
        """
        decided = txn.decided
        assert decided is not None, "what is complete was decided"
        owner = owner_of(txn.transactional_id)
        if owner is not None:
            self._register.owners[owner].completed(decided.nonce, self._register.step)
        buried = owner is not None and not txn.continues and not txn.contested
        row = self._register.bury(txn) if buried else self._register.save(txn, at)
        spent_ms = at.mono_ms - txn.ending_since_ms
        return row, [Completed(txn.group_id, txn.transactional_id, decided.commit, decided.cause, spent_ms)]


def tell(txn: Transaction) -> WriteMarkers:
    """The verdict, for all partitions."""
    assert txn.ending, "what was decided is told"
    assert txn.decided is not None, "an end has a verdict"
    return WriteMarkers(txn.group_id, txn.transactional_id, *txn.marker, txn.decided.commit, tuple(txn.partitions))
