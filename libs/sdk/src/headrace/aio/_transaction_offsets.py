"""
Positions of groups in a producer's transaction: asked of the groups' coordinators. A part of ``_transactions``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from headrace._core.batch import Identity
from headrace._core.transaction import Call, TransactionCore
from headrace._transport.port import Coordinator, CoordinatorCall, Transport
from headrace.aio._coordinators import CoordinatorLink
from headrace.aio._group_wire import commits_of
from headrace.aio._transaction_link import Asking, Passing
from headrace.errors import ErrorCode, HeadraceError, Rejected, error_for
from headrace.records import Committed, TopicPartition
from headrace.settings import ProducerSettings
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.failpoints import failpoint
from headrace_proto.v1 import coordinator_pb2 as group_pb

if TYPE_CHECKING:
    from headrace.aio._transactional import Transactional

OFFSETS_MAX: Final = 10_000
"""Positions in one request."""

STALE: Final = frozenset({ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.ILLEGAL_GENERATION})
"""The member may only have moved on since it was asked who it is."""


class Member(Protocol):
    """Who commits positions of a group: ``headrace.group_types.ConsumerGroupMetadata``, or one like it."""

    @property
    def group_id(self) -> str: ...

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


class HasMember(Protocol):
    """A ``WorkGroup``."""

    def group_metadata(self) -> Member:
        """Who commits now."""
        ...


Also = Callable[[float], Coroutine[Any, Any, None]]
"""Something that is to be done by a deadline (monotonic ms) beside the delivery."""

Offsets = Mapping[TopicPartition, Committed]


class TransactionOffsets:
    """See the module's text. Lives on the producer's loop."""

    def __init__(
        self, core: TransactionCore, asking: Asking, transport: Transport, settings: ProducerSettings, clock: Clock
    ) -> None:
        self._core = core
        self._asking = asking
        self._transport = transport
        self._settings = settings
        self._clock = clock
        self._groups: dict[str, CoordinatorLink] = {}

    async def add(self, offsets: Offsets, member: Callable[[], Member], deadline_ms: float | None) -> None:
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
        self._core.writes()
        failpoint("sdk.txn.offsets.before")
        pairs = list(offsets.items())
        for start in range(0, len(pairs), OFFSETS_MAX):
            await self._add(pairs[start : start + OFFSETS_MAX], member, deadline_ms)
        failpoint("sdk.txn.offsets.after")

    async def _add(
        self, offsets: Sequence[tuple[TopicPartition, Committed]], member: Callable[[], Member], deadline_ms: float
    ) -> None:
        identity = self._core.identity
        assert identity is not None, "a transaction is open"
        who = self._who(member)
        while True:
            request = _offsets_request(self._core.transactional_id, identity, offsets, who)
            call = self._transport.group_call(lambda stub: stub.TxnOffsetCommit, request)
            try:
                await self._asking.ask(
                    Call.OFFSETS, _add_check(call), deadline_ms, self._group_link(who.group_id), passes=STALE
                )
            except Passing as stale:
                now = self._who(member)
                if now == who:
                    raise self._core.refused(Call.OFFSETS, stale.error) from None
                who = now
            else:
                return

    def _who(self, member: Callable[[], Member]) -> Member:
        try:
            return member()
        except HeadraceError as error:  # it is out of its group, or not in it yet
            self._core.refused(Call.OFFSETS, error)
            raise

    def _group_link(self, group_id: str) -> CoordinatorLink:
        link = self._groups.get(group_id)
        if link is None:
            transport = self._transport
            link = CoordinatorLink(lambda: transport.find_coordinator(group_id), self._settings, self._clock)
            self._groups[group_id] = link
        return link


def _offsets_request(
    transactional_id: str, identity: Identity, offsets: Sequence[tuple[TopicPartition, Committed]], who: Member
) -> group_pb.TxnOffsetCommitRequest:
    return group_pb.TxnOffsetCommitRequest(
        group_id=who.group_id,
        member_id=who.member_id,
        group_instance_id=who.group_instance_id,
        generation=who.generation,
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        offsets=commits_of(offsets),
    )


def _add_check(call: CoordinatorCall[group_pb.CommitOffsetsResponse]) -> CoordinatorCall[None]:
    async def attempt(coordinator: Coordinator, timeout_ms: float) -> None:
        _check_results(await call(coordinator, timeout_ms))

    return attempt


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


def check_member(given: Member | HasMember | str) -> Callable[[], Member]:
    """
    Who commits: what ``group_metadata()`` returned; who has that, and is asked whenever it matters; or the id of a
    group.

    Raises:
        Rejected: it is something else.
    """
    if isinstance(given, str):
        group = _Group(given)
        return lambda: group
    ask: Callable[[], Member] | None = getattr(given, "group_metadata", None)
    if callable(ask):
        return ask
    if not isinstance(getattr(given, "group_id", None), str):
        raise Rejected(f"group_metadata takes what consumer.group_metadata() returns, not {given!r}")
    member = cast("Member", given)
    return lambda: member


def of_consumer(mine: TransactionOffsets, consumer: Transactional, offsets: Offsets) -> Also:
    """What adds a consumer's positions to the transaction, beside the delivery of its records."""

    def who() -> Member:
        consumer._positions_to_commit()  # raises, if it has lost some of them
        return consumer.group_metadata()

    return lambda deadline_ms: mine.add(offsets, who, deadline_ms)
