"""
The transactions of one producer: carries out what its application asks, on the producer's loop.

What is possible, and what errors mean, is decided by ``_core.transaction``; here are waiting and wire. Beginning a
transaction asks nobody. Its end delivers what was accepted, without linger, and asks the coordinator once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from headrace._core.batch import Identity
from headrace._core.transaction import Call, State, TransactionCore, remedy_for
from headrace._runtime import Clock
from headrace._transport.port import Coordinator, Transport
from headrace.aio._transaction_link import Ask, TransactionLink
from headrace.errors import (
    AlreadyDecided,
    ErrorCode,
    HeadraceError,
    Rejected,
    TransactionAbortable,
    WaitTimedOut,
    error_for,
)
from headrace.records import Committed, TopicPartition
from headrace.settings import ProducerSettings
from headrace.transactions import PreparedTransaction
from headrace_common.runtime.failpoints import failpoint
from headrace_proto.v1 import coordinator_pb2 as group_pb
from headrace_proto.v1 import transaction_pb2 as pb

if TYPE_CHECKING:
    from headrace.aio._transactional import Transactional

A = TypeVar("A")

_log = logging.getLogger("headrace")

OFFSETS_MAX: Final = 10_000
"""Positions in one request."""

MARGIN_MS_MAX: Final = 2_000
"""Beyond the delivery timeout: batches that are late say so themselves, and the end is asked for at least once."""

LEAVE_S: Final = 5.0
"""How long closing a producer waits for the abort of its open transaction."""

STALE: Final = frozenset({ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.ILLEGAL_GENERATION})
"""The member may only have moved on since it was asked who it is."""


class Member(Protocol):
    """Who commits positions of a group: ``headrace.group_types.ConsumerGroupMetadata``, or one like it."""

    @property
    def group_id(self) -> str:
        """The group."""
        ...

    @property
    def member_id(self) -> str:
        """Empty: not a member."""
        ...

    @property
    def generation(self) -> int:
        """Generation or member epoch; -1: none."""
        ...

    @property
    def group_instance_id(self) -> str | None:
        """None: a dynamic member."""
        ...


Also = Callable[[float], Coroutine[Any, Any, None]]
"""Something that is to be done by a deadline (monotonic ms) beside the delivery."""

Offsets = Mapping[TopicPartition, Committed]


class Records(Protocol):
    """The producing engine, as transactions see it."""

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
    """See the module's text."""

    def __init__(self, transport: Transport, settings: ProducerSettings, clock: Clock, records: Records) -> None:
        assert settings.transactional_id is not None, "only then there are transactions"
        self.core = TransactionCore(settings.transactional_id)
        self._id = settings.transactional_id
        self._transport = transport
        self._settings = settings
        self._clock = clock
        self._records = records
        self._link = TransactionLink(lambda: transport.find_transaction_coordinator(self._id), settings, clock)
        self._groups: dict[str, TransactionLink] = {}
        self._introducing = asyncio.Lock()
        self._margin_ms = min(MARGIN_MS_MAX, settings.delivery_timeout_ms / 4)

    # --- beginning --------------------------------------------------------------------------------------------------

    async def init(self) -> PreparedTransaction | None:
        """Fence earlier producers of the id; the token of what they left prepared."""
        core = self.core
        if core.state is State.OVER:
            core.begins()
        await self._introduced()
        prepared: PreparedTransaction | None = core.prepared
        return prepared

    async def _introduced(self) -> None:
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

        async def attempt(coordinator: Coordinator, timeout_ms: float) -> pb.InitTransactionalIdResponse:
            return await self._transport.init_transactional_id(coordinator, request, timeout_ms)

        answer = await self._ask(Call.INIT, attempt, deadline_ms)
        token = PreparedTransaction.of(answer.prepared) if answer.HasField("prepared") else None
        self.core.initialized(Identity(answer.producer_id, answer.producer_epoch), token)

    async def begin(self) -> None:
        """Open a transaction; asks the coordinator only the first time."""
        await self._introduced()
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
        if self.core.state not in (State.OPEN, State.BROKEN):
            return
        try:
            await asyncio.wait_for(self.abort(), None if isinstance(error, Exception) else LEAVE_S)
        except (HeadraceError, TimeoutError) as failed:
            error.add_note(f"the transaction was not aborted, and ends by its timeout at the latest: {failed}")

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

    async def _end(self, call: Call, also: Also | None = None) -> None:
        core, records = self.core, self._records
        deadline_ms = self._clock.monotonic_ms() + self._settings.delivery_timeout_ms
        delivers = core.ends(call)
        try:
            self._shut()
            if delivers:
                await self._delivered(deadline_ms, also)
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
            self._shut()

    async def leave(self, timeout: float | None) -> None:
        """The producer is being closed: abort what is open, so that it holds no reader up until it times out."""
        if self.core.state not in (State.OPEN, State.BROKEN):
            return
        _log.warning("a producer is closed in the middle of a transaction of %r; it is aborted", self._id)
        try:
            await asyncio.wait_for(self.abort(), LEAVE_S if timeout is None else min(timeout, LEAVE_S))
        except (HeadraceError, TimeoutError) as error:
            _log.warning("the transaction of %r was not aborted, and ends by its timeout: %s", self._id, error)

    def _shut(self) -> None:
        why = self.core.gate()
        if why is not None:
            self._records.shut_gate(why)
        else:  # the call timed out before anything was decided: the transaction goes on
            assert self.core.identity is not None, "it is open"
            self._records.open_gate(self.core.identity)

    async def _delivered(self, deadline_ms: float, also: Also | None) -> None:
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

        async def attempt(coordinator: Coordinator, timeout_ms: float) -> pb.EndTxnResponse:
            return await self._transport.end_txn(coordinator, request, timeout_ms)

        answer = await self._ask(call, attempt, deadline_ms)
        self.core.ended(Identity(answer.producer_id, answer.producer_epoch))

    async def _ask_prepare(self, deadline_ms: float) -> None:
        identity = self.core.identity
        assert identity is not None, "a transaction is open"
        request = pb.PrepareTxnRequest(
            transactional_id=self._id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            owner_epoch=self._settings.owner_epoch,
        )

        async def attempt(coordinator: Coordinator, timeout_ms: float) -> pb.PrepareTxnResponse:
            return await self._transport.prepare_txn(coordinator, request, timeout_ms)

        answer = await self._ask(Call.PREPARE, attempt, deadline_ms)
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

        async def attempt(coordinator: Coordinator, timeout_ms: float) -> pb.DecidePreparedResponse:
            return await self._transport.decide_prepared(coordinator, request, timeout_ms)

        deadline_ms = self._clock.monotonic_ms() + self._settings.delivery_timeout_ms
        answer = await self._ask(Call.DECIDE, attempt, deadline_ms)
        if mine:
            current = answer.producer_id >= 0
            core.was_decided(Identity(answer.producer_id, answer.producer_epoch) if current else None)
        check_verdict(answer, commit=commit)

    # --- offsets ----------------------------------------------------------------------------------------------------

    async def add_offsets(self, offsets: Offsets, member: Callable[[], Member], deadline_ms: float | None) -> None:
        """
        Make positions part of the transaction.

        Args:
            member: who commits them; asked again when the coordinator says that it has moved on.
            deadline_ms: None: ``max_block_ms`` from now.
        """
        if not offsets:
            return
        if deadline_ms is None:
            deadline_ms = self._clock.monotonic_ms() + self._settings.max_block_ms
        self.core.writes()
        failpoint("sdk.txn.offsets.before")
        pairs = list(offsets.items())
        for start in range(0, len(pairs), OFFSETS_MAX):
            await self._add(pairs[start : start + OFFSETS_MAX], member, deadline_ms)
        failpoint("sdk.txn.offsets.after")

    async def _add(
        self, offsets: Sequence[tuple[TopicPartition, Committed]], member: Callable[[], Member], deadline_ms: float
    ) -> None:
        identity = self.core.identity
        assert identity is not None, "a transaction is open"
        who = self._who(member)
        while True:
            request = _offsets_request(self._id, identity, offsets, who)

            async def attempt(
                coordinator: Coordinator, timeout_ms: float, request: group_pb.TxnOffsetCommitRequest = request
            ) -> None:
                _check_results(await self._transport.commit_offsets_in_txn(coordinator, request, timeout_ms))

            try:
                await self._ask(Call.OFFSETS, attempt, deadline_ms, self._group_link(who.group_id), passes=STALE)
            except _Passing as stale:
                now = self._who(member)
                if now == who:
                    raise self.core.refused(Call.OFFSETS, stale.error) from None
                who = now
            else:
                return

    def _who(self, member: Callable[[], Member]) -> Member:
        try:
            return member()
        except HeadraceError as error:  # it is out of its group, or not in it yet
            self.core.refused(Call.OFFSETS, error)
            raise

    def _group_link(self, group_id: str) -> TransactionLink:
        link = self._groups.get(group_id)
        if link is None:
            transport = self._transport
            link = TransactionLink(lambda: transport.find_coordinator(group_id), self._settings, self._clock)
            self._groups[group_id] = link
        return link

    async def _ask(
        self,
        call: Call,
        attempt: Ask[A],
        deadline_ms: float,
        link: TransactionLink | None = None,
        passes: Collection[ErrorCode] = (),
    ) -> A:
        """
        Ask until there is an answer.

        Args:
            passes: errors that the caller knows a remedy for; raised as ``_Passing``, and the core is not told.
        """
        try:
            return await (link or self._link).ask(
                call.value, attempt, lambda error: remedy_for(call, error), deadline_ms
            )
        except WaitTimedOut as error:
            self.core.gave_up(call, error)
            raise
        except HeadraceError as error:
            if error.code in passes:
                raise _Passing(error) from error
            told = self.core.refused(call, error)
            if told is error:
                raise
            raise told from error


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


class _Passing(Exception):
    """An error that has a remedy."""

    def __init__(self, error: HeadraceError) -> None:
        super().__init__(str(error))
        self.error = error


def check_verdict(answer: pb.DecidePreparedResponse, *, commit: bool) -> None:
    """Raises: ``AlreadyDecided`` the other way than asked for."""
    if answer.committed != commit:
        verdict = "committed" if answer.committed else "aborted"
        raise AlreadyDecided(f"the prepared transaction was {verdict} before; that stands")


def _offsets_request(
    transactional_id: str, identity: Identity, offsets: Sequence[tuple[TopicPartition, Committed]], who: Member
) -> group_pb.TxnOffsetCommitRequest:
    request = group_pb.TxnOffsetCommitRequest(
        group_id=who.group_id,
        member_id=who.member_id,
        group_instance_id=who.group_instance_id,
        generation=who.generation,
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
    )
    for tp, at in offsets:
        request.offsets.add(
            topic=tp.topic,
            partition=tp.partition,
            offset=at.offset,
            leader_epoch=at.leader_epoch,
            metadata=at.metadata,
        )
    return request


def _check_results(answer: group_pb.CommitOffsetsResponse) -> None:
    """Raises: the first error of a partition that no repetition helps, else the first."""
    errors = [error_for(r.error, f"{r.topic}-{r.partition}: {r.message}") for r in answer.results if r.error]
    if errors:
        raise next((error for error in errors if not error.retriable), errors[0])


def check_offsets(offsets: Mapping[Any, Any]) -> dict[TopicPartition, Committed]:
    """
    What an application gave: partitions, or (topic, partition), and offsets of next records.

    Raises:
        Rejected: it is something else.
    """
    checked: dict[TopicPartition, Committed] = {}
    for partition, offset in offsets.items():
        at = Committed(offset) if isinstance(offset, int) and not isinstance(offset, bool) else offset
        if not isinstance(partition, tuple) or len(partition) != 2 or not isinstance(at, Committed) or at.offset < 0:
            raise Rejected(
                "offsets map partitions to the offset of the next record to read, or to Committed(offset, …); not "
                f"{partition!r}: {offset!r}"
            )
        checked[TopicPartition(*partition)] = at
    return checked


@dataclass(frozen=True, slots=True)
class _Group:
    """A group whose members are not checked."""

    group_id: str
    member_id: str = ""
    generation: int = -1
    group_instance_id: str | None = None


def check_member(given: Member | str) -> Member:
    """
    Who commits: what ``group_metadata()`` returned, or the id of a group.

    Raises:
        Rejected: it is something else.
    """
    if isinstance(given, str):
        return _Group(given)
    if not isinstance(getattr(given, "group_id", None), str):
        raise Rejected(f"group_metadata takes what consumer.group_metadata() returns, not {given!r}")
    return given


def of_consumer(transactions: Transactions, consumer: Transactional, offsets: Offsets) -> Also:
    """What adds a consumer's positions to the transaction, beside the delivery of its records."""

    def who() -> Member:
        consumer._positions_to_commit()  # raises, if it has lost some of them
        return consumer.group_metadata()

    return lambda deadline_ms: transactions.add_offsets(offsets, who, deadline_ms)
