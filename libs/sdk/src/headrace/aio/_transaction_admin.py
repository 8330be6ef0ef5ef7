"""The part of ``headrace.aio.AdminClient`` that looks after transactions."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from headrace._tokens import PreparedTransaction
from headrace.admin_transaction_types import (
    OpenList,
    OpenTransaction,
    PreparedList,
    TransactionDescription,
    TransactionList,
    state_number,
)
from headrace.aio._admin_calls import AdminCalls
from headrace.errors import HeadraceError, Rejected, error_for
from headrace_common.core.moments import parse_duration_ms
from headrace_proto.v1 import admin_pb2 as pb
from headrace_proto.v1 import transaction_pb2 as txn

_MILLISECOND: Final = timedelta(milliseconds=1)


class TransactionAdmin(AdminCalls):
    """Inherited by ``AdminClient``, which brings the calls."""

    async def list_transactions(
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
        request = txn.ListTransactionsRequest(
            states=[state_number(s) for s in ([states] if isinstance(states, str) else states)],
            producer_ids=producer_ids,
            older_than_ms=_ms(older_than),
        )
        answer = await self._call(lambda stub, timeout: stub.ListTransactions(request, timeout=timeout))
        return TransactionList.of(answer)

    async def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """
        One transactional id, with the partitions of its open transaction.

        Raises:
            TransactionalIdNotFound: there is none of this name.
        """
        (described,) = (await self.describe_transactions([transactional_id])).values()
        if isinstance(described, HeadraceError):
            raise described
        return described

    async def describe_transactions(
        self, transactional_ids: Iterable[str]
    ) -> dict[str, TransactionDescription | HeadraceError]:
        """Several, up to 1,000; in place of one that cannot be told, its error."""
        request = txn.DescribeTransactionsRequest(transactional_ids=transactional_ids)
        answer = await self._call(lambda stub, timeout: stub.DescribeTransactions(request, timeout=timeout))
        return {t.transaction.transactional_id: _decode(t) for t in answer.transactions}

    async def list_prepared_transactions(self, *, older_than: timedelta | str | int = 0) -> PreparedList:
        """Transactions that are prepared and not decided, oldest first, with the tokens that decide them."""
        request = pb.ListPreparedTransactionsRequest(older_than_ms=_ms(older_than))
        answer = await self._call(lambda stub, timeout: stub.ListPreparedTransactions(request, timeout=timeout))
        return PreparedList.of(answer)

    async def list_open_transactions(
        self, topics: Iterable[str] = (), *, older_than: timedelta | str | int = 0
    ) -> OpenList:
        """
        What is open in the logs of partitions, and so holds readers of read_committed back; oldest first.

        Raises:
            UnknownTopicOrPartition: a topic does not exist.
        """
        request = pb.ListOpenTransactionsRequest(topics=_several(topics), older_than_ms=_ms(older_than))
        answer = await self._call(lambda stub, timeout: stub.ListOpenTransactions(request, timeout=timeout))
        return OpenList.of(answer)

    async def find_hanging_transactions(
        self, topics: Iterable[str] = (), *, older_than: timedelta | str | int | None = None
    ) -> OpenList:
        """
        What is open in the logs of partitions and no coordinator is going to end.

        Args:
            older_than: by default longer than any transaction may be open.

        Raises:
            UnknownTopicOrPartition: a topic does not exist.
        """
        request = pb.ListOpenTransactionsRequest(
            topics=_several(topics), hanging_only=True, older_than_ms=None if older_than is None else _ms(older_than)
        )
        answer = await self._call(lambda stub, timeout: stub.ListOpenTransactions(request, timeout=timeout))
        return OpenList.of(answer)

    async def commit_prepared(self, token: PreparedTransaction | str | bytes) -> None:
        """
        Commit a prepared transaction, from any process; again: nothing happens.

        Raises:
            AlreadyDecided: it was aborted before.
            TxnVerdictUnknown: it was decided too long ago, or never prepared.
        """
        await self._decide(token, commit=True)

    async def abort_prepared(self, token: PreparedTransaction | str | bytes) -> None:
        """
        Abort a prepared transaction, from any process; again: nothing happens.

        Raises:
            AlreadyDecided: it was committed before.
            TxnVerdictUnknown: it was decided too long ago, or never prepared.
        """
        await self._decide(token, commit=False)

    async def _decide(self, token: PreparedTransaction | str | bytes, *, commit: bool) -> None:
        from headrace.aio._transactions import check_verdict

        request = txn.DecidePreparedRequest(token=PreparedTransaction.parse(token).message(), commit=commit)
        # Not a change in the sense of the calls: the same again gives the same verdict.
        answer = await self._call(lambda stub, timeout: stub.DecidePrepared(request, timeout=timeout))
        check_verdict(answer, commit=commit)

    async def abort_transaction(
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
        request = pb.AbortClusterTransactionRequest(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            validate_only=validate_only,
        )
        answer = await self._call(
            lambda stub, timeout: stub.AbortTransaction(request, timeout=timeout), change=not validate_only
        )
        return TransactionDescription.of(answer.transaction)

    async def abort_hanging_transaction(
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
        topic, number = partition
        request = pb.AbortHangingTransactionRequest(
            topic=topic, partition=number, producer_id=producer_id, validate_only=validate_only, force=force
        )
        answer = await self._call(
            lambda stub, timeout: stub.AbortHangingTransaction(request, timeout=timeout), change=not validate_only
        )
        return OpenTransaction.of(answer.transaction)


def _decode(t: pb.DescribedTransaction) -> TransactionDescription | HeadraceError:
    said = t.transaction
    return error_for(said.error, said.message) if said.error else TransactionDescription.of(t)


def _several(topics: Iterable[str]) -> list[str]:
    """A text alone is one topic, not its letters."""
    return [topics] if isinstance(topics, str) else list(topics)


def _ms(duration: timedelta | str | int) -> int:
    if isinstance(duration, timedelta):
        duration = duration // _MILLISECOND
    elif isinstance(duration, str):
        duration = parse_duration_ms(duration)
    if not 0 <= duration < 2**63:
        raise Rejected(f"older_than takes 0 or more, not {duration} ms")
    return duration
