"""The part of ``headrace.AdminClient`` that looks after transactions; its asyncio twin does the work."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.admin_transaction_types import (
        OpenList,
        OpenTransaction,
        PreparedList,
        TransactionDescription,
        TransactionList,
    )
    from headrace.aio._transaction_admin import TransactionAdmin as AsyncTransactionAdmin
    from headrace.transactions import PreparedTransaction

T = TypeVar("T")


class TransactionAdmin:
    """
    Inherited by ``AdminClient``.

    Transactions are found by their state, by what they write to, and by what they keep readers from::

        >>> import headrace
        >>> admin = headrace.AdminClient()
        >>> admin.list_transactions(states=["ongoing"], older_than="10m").transactions
        ()
        >>> admin.list_prepared_transactions().transactions, admin.find_hanging_transactions().transactions
        ((), ())
        >>> admin.close()
    """

    _transactions: AsyncTransactionAdmin

    def _wait(self, coro: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        older_than: timedelta | str | int = 0,
    ) -> TransactionList:
        """
        The transactional ids of all coordinators, or some of them; and which shards could not be asked.

        Args:
            states: ``"ongoing"``, ``"prepared"``… ; by default all.
            producer_ids: only ids that have one of these now.
            older_than: only transactions that are open for that long: a duration, as text too (``"10m"``), or ms.

        Raises:
            Rejected: there is no such state.
        """
        return self._wait(
            self._transactions.list_transactions(states=states, producer_ids=producer_ids, older_than=older_than)
        )

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """
        One transactional id, with the partitions of its open transaction.

        Raises:
            TransactionalIdNotFound: there is none of this name.
        """
        return self._wait(self._transactions.describe_transaction(transactional_id))

    def describe_transactions(
        self, transactional_ids: Iterable[str]
    ) -> dict[str, TransactionDescription | HeadraceError]:
        """Several, up to 1,000; in place of one that cannot be told, its error."""
        return self._wait(self._transactions.describe_transactions(transactional_ids))

    def list_prepared_transactions(self, *, older_than: timedelta | str | int = 0) -> PreparedList:
        """Transactions that are prepared and not decided, oldest first, with the tokens that decide them."""
        return self._wait(self._transactions.list_prepared_transactions(older_than=older_than))

    def list_open_transactions(self, topics: Iterable[str] = (), *, older_than: timedelta | str | int = 0) -> OpenList:
        """
        What is open in the logs of partitions, and so holds readers of read_committed back; oldest first.

        Raises:
            UnknownTopicOrPartition: a topic does not exist.
        """
        return self._wait(self._transactions.list_open_transactions(topics, older_than=older_than))

    def find_hanging_transactions(
        self, topics: Iterable[str] = (), *, older_than: timedelta | str | int | None = None
    ) -> OpenList:
        """
        What is open in the logs of partitions and no coordinator is going to end.

        Args:
            older_than: by default longer than any transaction may be open.

        Raises:
            UnknownTopicOrPartition: a topic does not exist.
        """
        return self._wait(self._transactions.find_hanging_transactions(topics, older_than=older_than))

    def commit_prepared(self, token: PreparedTransaction | str | bytes) -> None:
        """
        Commit a prepared transaction, from any process; again: nothing happens.

        Raises:
            AlreadyDecided: it was aborted before.
            TxnVerdictUnknown: it was decided too long ago, or never prepared.
        """
        self._wait(self._transactions.commit_prepared(token))

    def abort_prepared(self, token: PreparedTransaction | str | bytes) -> None:
        """
        Abort a prepared transaction, from any process; again: nothing happens.

        Raises:
            AlreadyDecided: it was committed before.
            TxnVerdictUnknown: it was decided too long ago, or never prepared.
        """
        self._wait(self._transactions.abort_prepared(token))

    def abort_transaction(
        self,
        transactional_id: str,
        *,
        producer_id: int | None = None,
        producer_epoch: int | None = None,
        validate_only: bool = False,
    ) -> TransactionDescription:
        """
        Abort the open transaction of a transactional id and fence its producer.

        Args:
            producer_id: only if it has this one; so, too, ``producer_epoch``.
            validate_only: tell what would be aborted, and do nothing.

        Returns:
            As it was before.

        Raises:
            TransactionalIdNotFound: there is none of this name.
            InvalidTxnState: nothing is open, it is prepared, or it is ending already.
        """
        return self._wait(
            self._transactions.abort_transaction(
                transactional_id, producer_id=producer_id, producer_epoch=producer_epoch, validate_only=validate_only
            )
        )

    def abort_hanging_transaction(
        self,
        partition: tuple[str, int],
        producer_id: int | None = None,
        *,
        validate_only: bool = False,
        force: bool = False,
    ) -> OpenTransaction:
        """
        End what hangs in a partition with an abort marker, so that readers go on, and fence its producer there.

        Args:
            producer_id: by default the only one that hangs there.
            validate_only: tell what would be ended, and do nothing.
            force: also what began a moment ago, or what a coordinator that does not answer might know. Never what a
                coordinator knows.

        Returns:
            As it was before.

        Raises:
            NotFound: nothing hangs there.
            InvalidTxnState: a coordinator is going to end it, or it began a moment ago.
        """
        return self._wait(
            self._transactions.abort_hanging_transaction(
                partition, producer_id, validate_only=validate_only, force=force
            )
        )
