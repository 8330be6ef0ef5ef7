"""The calls of ``headrace.Producer`` that are about transactions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headrace._tokens import PreparedTransaction
from headrace.aio._transaction_offsets import Member, Offsets, check_member, check_offsets, of_consumer
from headrace.aio._transactions import Transactions
from headrace.records import Committed

if TYPE_CHECKING:
    from headrace._runtime import LoopThread
    from headrace.aio._consumer_setup import PartitionLike
    from headrace.aio._engine import ProducerEngine
    from headrace.aio._transactional import Transactional


class TransactionCalls:
    """A part of ``headrace.Producer``. One thread at a time begins and ends transactions; any may send."""

    _engine: ProducerEngine
    _thread: LoopThread

    def _usable(self) -> Transactions:
        self._engine.intake.check_alive()
        return self._engine.transactions

    def init_transactions(self) -> PreparedTransaction | None:
        """
        Become the only producer of the ``transactional_id``: earlier ones are fenced, what they left open is aborted.
        The first ``begin_transaction`` does it by itself. Waits up to ``max_block_ms``.

        Returns:
            What an earlier producer has prepared and nobody has decided: decide it first.
        """
        return self._thread.call(self._usable().init())

    def begin_transaction(self) -> None:
        """
        Open a transaction: records sent from now on belong to it. Asks nobody, except the first time.

        Raises:
            InvalidTxnState: one is open, or the last has no known outcome yet.
            ProducerFenced: a newer producer has the ``transactional_id``.
            WaitTimedOut: first time: no coordinator answered within ``max_block_ms``.
        """
        transactions = self._usable()
        if not self._engine.intake.within(transactions.begin_if_ready):  # else nobody has to be asked
            self._thread.call(transactions.begin())

    def commit_transaction(self) -> None:
        """
        Deliver what was sent, and make it all visible at once. Waits up to ``delivery_timeout_ms``.

        Raises:
            TransactionAbortable: something was not delivered, or it took too long: abort.
            WaitTimedOut: nobody answered; what became of it is not known: make the same call again.
            ProducerFenced: a newer producer has the ``transactional_id``.
        """
        self._thread.call(self._usable().commit())

    def abort_transaction(self) -> None:
        """
        Drop what was not delivered; what was is never seen by readers of committed records. Waits up to
        ``delivery_timeout_ms``.

        Raises:
            WaitTimedOut: nobody answered: make the same call again, or let it time out.
            ProducerFenced: a newer producer has the ``transactional_id``, and has aborted it.
        """
        self._thread.call(self._usable().abort())

    def send_offsets_to_transaction(
        self, offsets: Mapping[PartitionLike, int | Committed], group_metadata: Member | str
    ) -> None:
        """
        Commit positions of a group if and when the transaction is committed.

        Args:
            offsets: partition -> offset of the next record to read.
            group_metadata: ``consumer.group_metadata()``; a group's id alone is not checked against rebalances.

        Raises:
            IllegalGeneration, StaleMemberEpoch, UnknownMemberId: the group has gone on without this member: abort.
            WaitTimedOut: no coordinator answered within ``max_block_ms``: abort.
        """
        member = check_member(group_metadata)
        self._thread.call(self._usable().offsets.add(check_offsets(offsets), lambda: member, None))

    @contextmanager
    def transaction(self, consumer: Transactional | None = None) -> Iterator[None]:
        """
        A transaction for the block: committed at its end, aborted when an exception leaves it, which goes on.

        If it is not known what became of the transaction before, that is settled first.

        Args:
            consumer: its positions become part of the transaction. After an abort it goes back to what is committed,
                so the same records are read again. It needs a group, and ``enable_auto_commit=False``.

        ::

            >>> from headrace import Consumer, Producer
            >>> with Producer(bootstrap) as source:
            ...     _ = source.send("flights", b"UA 1545 departed").result()
            >>> settings = {"group_id": "board", "auto_offset_reset": "earliest", "enable_auto_commit": False}
            >>> with (
            ...     Producer(bootstrap, transactional_id="board-1") as producer,
            ...     Consumer("flights", bootstrap_servers=bootstrap, **settings) as consumer,
            ... ):
            ...     with producer.transaction(consumer):
            ...         for record in consumer.poll(timeout_ms=10_000):
            ...             _ = producer.send("board", record.value)
            ...     print(consumer.committed([("flights", 0)])[("flights", 0)].offset)
            1
        """
        transactions = self._usable()
        if transactions.unsure:
            self._thread.call(transactions.settle_last())
        if consumer is not None:
            consumer._begin_transaction()
        try:
            self.begin_transaction()
            yield
            offsets: Offsets = {} if consumer is None else consumer._positions_to_commit()
            also = None if consumer is None else of_consumer(transactions.offsets, consumer, offsets)
            self._thread.call(self._usable().commit(also))
            if consumer is not None:
                consumer._transaction_committed(offsets)
        except BaseException as error:
            try:
                if self._thread.pid == os.getpid():  # a forked child leaves the transaction to its parent
                    self._thread.call(transactions.undo(error))
            finally:  # whatever else comes: nobody waits for the abort, but the consumer must go back
                if consumer is not None:
                    consumer._rewind()
            raise

    # --- prepared ---------------------------------------------------------------------------------------------------

    def prepare_transaction(self) -> PreparedTransaction:
        """
        Deliver what was sent and make the transaction durable, undecided. Whoever has the token decides it, from any
        process; nobody else does, and no timeout (ids of units: after an hour). Waits up to ``delivery_timeout_ms``.

        Raises:
            As ``commit_transaction``.
        """
        return self._thread.call(self._usable().prepare())

    def commit_prepared(self, token: PreparedTransaction | str | bytes) -> None:
        """
        Commit what was prepared under this ``transactional_id``; again: nothing happens.

        Raises:
            AlreadyDecided: it was aborted before.
            TxnVerdictUnknown: it was decided too long ago.
            WaitTimedOut: nobody answered: make the same call again.
        """
        self._decide(token, commit=True)

    def abort_prepared(self, token: PreparedTransaction | str | bytes) -> None:
        """
        Abort what was prepared under this ``transactional_id``; again: nothing happens.

        Raises:
            AlreadyDecided: it was committed before.
            TxnVerdictUnknown, WaitTimedOut: as ``commit_prepared``.
        """
        self._decide(token, commit=False)

    def _decide(self, token: Any, *, commit: bool) -> None:
        self._thread.call(self._usable().decide(PreparedTransaction.parse(token), commit=commit))
