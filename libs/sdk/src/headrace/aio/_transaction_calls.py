"""The calls of ``headrace.aio.Producer`` that are about transactions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from headrace._tokens import PreparedTransaction
from headrace.aio._transaction_offsets import HasMember, Member, Offsets, check_member, check_offsets, of_consumer
from headrace.aio._transactions import Transactions
from headrace.records import Committed

if TYPE_CHECKING:
    from headrace.aio._consumer_setup import PartitionLike
    from headrace.aio._engine import ProducerEngine
    from headrace.aio._transactional import Transactional


class TransactionCalls:
    """A part of ``headrace.aio.Producer``. What is said of errors and waiting holds for the sync twin too."""

    _engine: ProducerEngine

    def _start(self) -> None:
        raise NotImplementedError

    def _usable(self) -> Transactions:
        self._start()
        self._engine.intake.check_alive()
        return self._engine.transactions

    async def init_transactions(self) -> PreparedTransaction | None:
        """
        Become the only producer of the ``transactional_id``: earlier ones are fenced, what they left open is aborted.
        The first ``begin_transaction`` does it by itself. Waits up to ``max_block_ms``.

        Returns:
            What an earlier producer has prepared and nobody has decided: decide it first.
        """
        return await self._usable().init()

    async def begin_transaction(self) -> None:
        """
        Open a transaction: records sent from now on belong to it. Asks nobody, except the first time.

        Raises:
            InvalidTxnState: one is open, or the last has no known outcome yet.
            ProducerFenced: a newer producer has the ``transactional_id``.
            WaitTimedOut: first time: no coordinator answered within ``max_block_ms``.
        """
        await self._usable().begin()

    async def commit_transaction(self) -> None:
        """
        Deliver what was sent, and make it all visible at once. Waits up to ``delivery_timeout_ms``.

        Raises:
            TransactionAbortable: something was not delivered, or it took too long: abort.
            WaitTimedOut: nobody answered; what became of it is not known: make the same call again.
            ProducerFenced: a newer producer has the ``transactional_id``.
        """
        await self._usable().commit()

    async def abort_transaction(self) -> None:
        """
        Drop what was not delivered; what was is never seen by readers of committed records. Waits up to
        ``delivery_timeout_ms``.

        Raises:
            WaitTimedOut: nobody answered: make the same call again, or let it time out.
            ProducerFenced: a newer producer has the ``transactional_id``, and has aborted it.
        """
        await self._usable().abort()

    async def send_offsets_to_transaction(
        self, offsets: Mapping[PartitionLike, int | Committed], group_metadata: Member | HasMember | str
    ) -> None:
        """
        Commit positions of a group if and when the transaction is committed.

        Args:
            offsets: partition -> offset of the next record to read.
            group_metadata: ``consumer.group_metadata()``, or a ``WorkGroup``, which is asked for its newest epoch; a
                group's id alone is not checked against rebalances.

        Raises:
            IllegalGeneration, StaleMemberEpoch, UnknownMemberId: the group has gone on without this member: abort.
            WaitTimedOut: no coordinator answered within ``max_block_ms``: abort.
        """
        member = check_member(group_metadata)
        await self._usable().offsets.add(check_offsets(offsets), member, None)

    @asynccontextmanager
    async def transaction(self, consumer: Transactional | None = None) -> AsyncIterator[None]:
        """
        A transaction for the block: committed at its end, aborted when an exception leaves it, which goes on.

        If it is not known what became of the transaction before, that is settled first.

        Args:
            consumer: its positions become part of the transaction. After an abort it goes back to what is committed,
                so the same records are read again. It needs a group, and ``enable_auto_commit=False``.

        ::

            >>> import asyncio
            >>> from headrace import aio
            >>> settings = {"group_id": "board", "auto_offset_reset": "earliest", "enable_auto_commit": False}
            >>> async def main():
            ...     async with (
            ...         aio.Producer(bootstrap, transactional_id="board-1") as producer,
            ...         aio.Consumer("flights", bootstrap_servers=bootstrap, **settings) as consumer,
            ...     ):
            ...         async with producer.transaction(consumer):
            ...             for record in await consumer.poll(timeout_ms=10_000):
            ...                 await producer.send("board", record.value)
            ...         print((await consumer.committed([("flights", 0)]))[("flights", 0)].offset)
            >>> asyncio.run(main())
            1
        """
        transactions = self._usable()
        await transactions.settle_last()
        if consumer is not None:
            consumer._begin_transaction()
        try:
            await transactions.begin()
            yield
            offsets: Offsets = {} if consumer is None else consumer._positions_to_commit()
            await transactions.commit(
                None if consumer is None else of_consumer(transactions.offsets, consumer, offsets)
            )
            if consumer is not None:
                consumer._transaction_committed(offsets)
        except BaseException as error:
            try:
                await transactions.undo(error)
            finally:  # whatever else comes: nobody waits for the abort, but the consumer must go back
                if consumer is not None:
                    consumer._rewind()
            raise

    # --- prepared ---------------------------------------------------------------------------------------------------

    async def prepare_transaction(self) -> PreparedTransaction:
        """
        Deliver what was sent and make the transaction durable, undecided. Whoever has the token decides it, from any
        process; nobody else does, and no timeout (ids of units: after an hour). Waits up to ``delivery_timeout_ms``.

        Raises:
            As ``commit_transaction``.
        """
        return await self._usable().prepare()

    async def commit_prepared(self, token: PreparedTransaction | str | bytes) -> None:
        """
        Commit what was prepared under this ``transactional_id``; again: nothing happens.

        Raises:
            AlreadyDecided: it was aborted before.
            TxnVerdictUnknown: it was decided too long ago.
            WaitTimedOut: nobody answered: make the same call again.
        """
        await self._decide(token, commit=True)

    async def abort_prepared(self, token: PreparedTransaction | str | bytes) -> None:
        """
        Abort what was prepared under this ``transactional_id``; again: nothing happens.

        Raises:
            AlreadyDecided: it was committed before.
            TxnVerdictUnknown, WaitTimedOut: as ``commit_prepared``.
        """
        await self._decide(token, commit=False)

    async def _decide(self, token: Any, *, commit: bool) -> None:
        await self._usable().decide(PreparedTransaction.parse(token), commit=commit)
