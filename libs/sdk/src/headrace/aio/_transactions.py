"""
The transactions of one producer: carries out what its application asks, on the producer's loop.

What is possible, and what errors mean, is decided by ``_core.transaction``; here are waiting and wire. Beginning a
transaction asks nobody. Its end delivers what was accepted, without linger, and asks the coordinator once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from typing import Any, Final, Protocol

from headrace._core.batch import Identity
from headrace._core.transaction import Call, State, TransactionCore
from headrace._tokens import PreparedTransaction
from headrace._transport.port import Coordinator, CoordinatorCall, Transport
from headrace.aio._coordinators import CoordinatorLink
from headrace.aio._transaction_link import Asking
from headrace.aio._transaction_offsets import Also, TransactionOffsets
from headrace.errors import AlreadyDecided, HeadraceError, TransactionAbortable
from headrace.settings import ProducerSettings
from headrace_common.core.features import TRANSACTION_STREAMS
from headrace_common.runtime.clock import Clock, limit_s
from headrace_common.runtime.failpoints import failpoint
from headrace_proto.v1 import broker_pb2
from headrace_proto.v1 import transaction_pb2 as pb

_log = logging.getLogger("headrace")

MARGIN_MS_MAX: Final = 2_000
"""Beyond the delivery timeout: batches that are late say so themselves, and the end is asked for at least once."""

LEAVE_S: Final = 5.0
"""How long closing a producer waits for the abort of its open transaction."""


class Records(Protocol):
    """The producing engine, as transactions see it."""

    @property
    def feature_level(self) -> int:
        """The cluster's, as far as is known."""
        ...

    def open_gate(self, identity: Identity) -> None:
        """Take records from now on, for a transaction under ``identity``."""
        ...

    def shut_gate(self, why: HeadraceError) -> None:
        """Take no more; what was taken is on its way at once."""
        ...

    def drop_all(self, error: HeadraceError) -> None:
        """Whatever has no outcome fails with ``error`` now; answers that come later count for nothing."""
        ...

    async def flush(self, timeout: float | None) -> None:
        """Wait until all that was taken has its outcome. Raises: ``WaitTimedOut`` after ``timeout`` seconds."""
        ...


class Transactions:
    def __init__(self, transport: Transport, settings: ProducerSettings, clock: Clock, records: Records) -> None:
        assert settings.transactional_id is not None, "only then there are transactions"
        self.core = TransactionCore(settings.transactional_id)
        self._id = settings.transactional_id
        self._transport = transport
        self._settings = settings
        self._clock = clock
        self._records = records
        link = CoordinatorLink(lambda: transport.find_coordinator(self._id, broker_pb2.TRANSACTION), settings, clock)
        self._asking = Asking(self.core, link)
        self.offsets = TransactionOffsets(self.core, self._asking, transport, settings, clock)
        self._introducing = asyncio.Lock()
        self._margin_ms = min(MARGIN_MS_MAX, settings.delivery_timeout_ms / 4)
        self._ending: asyncio.Task[Any] | None = None

    # --- beginning --------------------------------------------------------------------------------------------------

    async def init(self) -> PreparedTransaction | None:
        """Fence earlier producers of the id; the token of what they left prepared."""
        core = self.core
        if core.state is State.OVER:
            core.begins()
        await self._introduce()
        prepared: PreparedTransaction | None = core.prepared
        return prepared

    async def _introduce(self) -> None:
        """The coordinator knows this producer, and that nothing is prepared, as far as it is not known here."""
        async with self._introducing:
            if self.core.state in (State.NEW, State.PREPARED):
                await self._init()

    async def _init(self) -> None:
        settings = self._settings
        request = pb.InitTransactionalIdRequest(
            transactional_id=self._id,
            transaction_timeout_ms=settings.transaction_timeout_ms,
            owner_epoch=settings.owner_epoch,
        )
        deadline_ms = self._clock.monotonic_ms() + settings.max_block_ms

        attempt = self._transport.transaction_call(lambda stub: stub.InitTransactionalId, request)
        answer = await self._asking.ask(Call.INIT, attempt, deadline_ms)
        token = PreparedTransaction.of(answer.prepared) if answer.HasField("prepared") else None
        self.core.initialized(Identity(answer.producer_id, answer.producer_epoch), token)

    async def begin(self) -> None:
        """Open a transaction; asks the coordinator only the first time."""
        await self._introduce()
        self.begin_now()

    @property
    def ready(self) -> bool:
        """Whether ``begin_now`` can be called."""
        return self.core.state is State.READY

    @property
    def unsure(self) -> bool:
        """Whether ``settle_last`` has something to do."""
        return self.core.state is State.UNSURE

    async def settle_last(self) -> None:
        """If nobody knows what became of the last transaction's end, ask again; one that was aborted is aborted."""
        if self.core.state is not State.UNSURE:
            return
        try:
            await self._end(self.core.unsure_of)
        except TransactionAbortable:
            await self.abort()

    async def undo(self, error: BaseException) -> None:
        """``error`` leaves the transaction's block: abort what is still open. Never raises what would hide it."""
        await self._cancelled_is_through()
        if self.core.state not in (State.OPEN, State.BROKEN):
            return
        try:
            async with limit_s(None if isinstance(error, Exception) else LEAVE_S):
                await self.abort()
        except (HeadraceError, TimeoutError) as failed:
            error.add_note(f"the transaction was not aborted, and ends by its timeout at the latest: {failed}")

    def begin_if_ready(self) -> bool:
        """``begin_now`` if nobody has to be asked before."""
        if self.ready:
            self.begin_now()
            return True
        return False

    def begin_now(self) -> None:
        """Open a transaction, if that needs nobody's answer. Raises: as ``TransactionCore.begins``."""
        self.core.begins()
        assert self.core.identity is not None, "it is ready"
        self._records.open_gate(self.core.identity)

    # --- ends -------------------------------------------------------------------------------------------------------

    async def commit(self, also: Also | None = None) -> None:
        """
        Deliver and commit.

        Args:
            also: something else to be done before the commit, given its deadline; goes on beside the delivery.
        """
        await self._end(Call.COMMIT, also)

    async def abort(self) -> None:
        """Drop what was not delivered, and abort."""
        await self._end(Call.ABORT)

    async def prepare(self) -> PreparedTransaction:
        """Deliver, and make it durable without deciding."""
        await self._end(Call.PREPARE)
        prepared: PreparedTransaction = self.core.prepared
        return prepared

    async def _cancelled_is_through(self) -> None:
        """Whoever was interrupted on another thread cancelled the end it had asked for, and may be here before that."""
        task = self._ending
        if task is not None and task.cancelling():
            await asyncio.wait({task}, timeout=LEAVE_S)

    async def _end(self, call: Call, also: Also | None = None) -> None:
        await self._cancelled_is_through()
        core, records = self.core, self._records
        deadline_ms = self._clock.monotonic_ms() + self._settings.delivery_timeout_ms
        delivers = core.ends(call)
        self._ending = asyncio.current_task()
        try:
            self._shut()
            if delivers:
                await self._flush(deadline_ms, also)
                deadline_ms = max(deadline_ms, self._clock.monotonic_ms() + self._margin_ms)
            elif call is Call.ABORT:
                records.drop_all(TransactionAbortable("the transaction was aborted before this was acknowledged"))
            if not core.asks():
                return
            failpoint("sdk.txn.end.before")
            await (self._ask_prepare(deadline_ms) if call is Call.PREPARE else self._ask_end(call, deadline_ms))
            failpoint("sdk.txn.end.after")
        except BaseException:
            core.interrupted(call)
            raise
        finally:
            self._ending = None
            self._shut()

    async def leave(self, timeout: float | None) -> None:
        """The producer is being closed: abort what is open, so that it holds no reader up until it times out."""
        if self.core.state not in (State.OPEN, State.BROKEN):
            return
        _log.warning("a producer is closed in the middle of a transaction of %r; it is aborted", self._id)
        try:
            async with limit_s(LEAVE_S if timeout is None else min(timeout, LEAVE_S)):
                await self.abort()
        except (HeadraceError, TimeoutError) as error:
            _log.warning("the transaction of %r was not aborted, and ends by its timeout: %s", self._id, error)

    def _shut(self) -> None:
        why = self.core.gate()
        if why is not None:
            self._records.shut_gate(why)
        else:  # the call timed out before anything was decided: the transaction goes on
            assert self.core.identity is not None, "it is open"
            self._records.open_gate(self.core.identity)

    async def _flush(self, deadline_ms: float, also: Also | None) -> None:
        timeout = (deadline_ms + self._margin_ms - self._clock.monotonic_ms()) / 1_000
        failpoint("sdk.txn.send.before")
        if also is None:
            await self._records.flush(timeout)
        else:
            await _both(self._records.flush(timeout), also(deadline_ms))
        failpoint("sdk.txn.send.after")

    async def _ask_end(self, call: Call, deadline_ms: float) -> None:
        identity = self.core.identity
        assert identity is not None, "a transaction is open"
        request = pb.EndTxnRequest(
            transactional_id=self._id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            commit=call is Call.COMMIT,
        )

        answer = await self._asking.ask(call, self._end_attempt(request), deadline_ms)
        self.core.ended(Identity(answer.producer_id, answer.producer_epoch))

    def _end_attempt(self, request: pb.EndTxnRequest) -> CoordinatorCall[pb.EndTxnResponse]:
        """First over the stream, if all coordinators take it; a repeat is a call of its own, whatever went wrong."""
        attempts = [self._transport.transaction_call(lambda stub: stub.EndTxn, request)]
        if self._records.feature_level >= TRANSACTION_STREAMS.level:
            attempts.append(self._transport.end_call(request))

        def attempt(coordinator: Coordinator, timeout_ms: float) -> Awaitable[pb.EndTxnResponse]:
            return (attempts.pop() if len(attempts) > 1 else attempts[0])(coordinator, timeout_ms)

        return attempt

    async def _ask_prepare(self, deadline_ms: float) -> None:
        identity = self.core.identity
        assert identity is not None, "a transaction is open"
        request = pb.PrepareTxnRequest(
            transactional_id=self._id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            owner_epoch=self._settings.owner_epoch,
        )

        attempt = self._transport.transaction_call(lambda stub: stub.PrepareTxn, request)
        answer = await self._asking.ask(Call.PREPARE, attempt, deadline_ms)
        self.core.was_prepared(PreparedTransaction.of(answer.token))

    async def decide(self, token: PreparedTransaction, *, commit: bool) -> None:
        """
        Decide what this producer has prepared, or was prepared under its id before.

        Raises:
            AlreadyDecided, TxnVerdictUnknown, InvalidTxnState, WaitTimedOut: see ``Producer.commit_prepared``.
        """
        core = self.core
        mine = core.decides(token)
        request = pb.DecidePreparedRequest(token=token.message(), commit=commit)

        attempt = self._transport.transaction_call(lambda stub: stub.DecidePrepared, request)
        deadline_ms = self._clock.monotonic_ms() + self._settings.delivery_timeout_ms
        answer = await self._asking.ask(Call.DECIDE, attempt, deadline_ms)
        if mine:
            current = answer.producer_id >= 0
            core.was_decided(Identity(answer.producer_id, answer.producer_epoch) if current else None)
        check_verdict(answer, commit=commit)


async def _both(*waiting: Coroutine[Any, Any, None]) -> None:
    """Wait for all, or for the first that fails; then for none."""
    tasks = [asyncio.ensure_future(each) for each in waiting]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
    errors = [error for task in tasks if task in done and (error := task.exception()) is not None]
    if errors:
        raise errors[0]


def check_verdict(answer: pb.DecidePreparedResponse, *, commit: bool) -> None:
    """Raises: ``AlreadyDecided`` the other way than asked for."""
    if answer.committed != commit:
        verdict = "committed" if answer.committed else "aborted"
        raise AlreadyDecided(f"the prepared transaction was {verdict} before; that stands")
