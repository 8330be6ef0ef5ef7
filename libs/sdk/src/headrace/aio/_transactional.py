"""What a transactional producer asks of a consumer, the same for both twins: nothing here waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.aio._consumer_setup import no_group
from headrace.records import Committed, TopicPartition

if TYPE_CHECKING:
    from headrace.aio._group_steps import GroupSteps
    from headrace.aio._transaction_positions import TransactionPositions
    from headrace.group_types import ConsumerGroupMetadata


class Transactional:
    """
    A part of both consumers. ``producer.transaction(consumer)`` calls, in this order: ``_begin_transaction``; at its
    end ``_positions_to_commit`` and ``group_metadata``; then ``_transaction_committed``, or ``_rewind`` if it failed.
    """

    _steps: GroupSteps | None
    _closed: bool

    def _check_usable(self) -> None:
        raise NotImplementedError

    def group_metadata(self) -> ConsumerGroupMetadata:
        """
        Who commits for the group now: for ``Producer.send_offsets_to_transaction``. Ask before you poll again: a poll
        may give partitions up, and then the coordinator refuses what was said before it, so the transaction is aborted
        rather than committed with records that others read again.

        Raises:
            NoGroup: the consumer has no ``group_id``.
            UnknownMemberId: it is out of the group; the next poll joins again.
            RebalanceInProgress: it is not in the group yet; poll first.

        By hand; ``producer.transaction(consumer)`` does it all, and goes back when something fails::

            >>> from headrace import Consumer, Producer, TopicPartition
            >>> settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
            >>> with (
            ...     Consumer("flights", group_id="copies", isolation_level="read_committed", **settings) as consumer,
            ...     Producer(transactional_id="copies-1") as producer,
            ... ):
            ...     records = consumer.poll(timeout_ms=10_000, max_records=1)
            ...     member = consumer.group_metadata()
            ...     producer.begin_transaction()
            ...     _ = producer.send("orders", records[0].value)
            ...     here = TopicPartition(records[0].topic, records[0].partition)
            ...     producer.send_offsets_to_transaction({here: consumer.position(here)}, member)
            ...     producer.commit_transaction()
            ...     print(member.group_id, consumer.committed([here])[here].offset)
            copies 1
        """
        return self._positions("group_metadata").metadata()

    def _positions(self, call: str) -> TransactionPositions:
        self._check_usable()
        if self._steps is None:
            raise no_group(call)
        return self._steps.transaction

    def _begin_transaction(self) -> None:
        """
        A transaction is to commit the positions: until it has ended nobody else does, and no partition is given up.

        Raises:
            NoGroup: there are no positions to commit.
            InvalidConfig: the consumer commits by itself.
            InvalidTxnState: another transaction has them.
        """
        self._positions("producer.transaction(consumer)").begin()

    def _positions_to_commit(self) -> dict[TopicPartition, Committed]:
        """
        What was handed out, as the next record to read of each partition that has moved.

        Raises:
            IllegalGeneration: partitions were lost in the middle of the transaction; it must be aborted.
        """
        return self._positions("producer.transaction(consumer)").to_commit()

    def _transaction_committed(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        """The transaction has ended well, and has committed these."""
        if self._steps is not None:
            self._steps.transaction.end(offsets)

    def _rewind(self) -> None:
        """
        The transaction has failed, or nobody knows: go on at what is committed, or where reading began if that is
        nothing. What is buffered or on the wire is dropped; positions are looked up in the background, and reading
        waits for them. Never raises, so that it fits where another exception is on its way.
        """
        if self._steps is not None and not self._closed:
            self._steps.transaction.end(None)
