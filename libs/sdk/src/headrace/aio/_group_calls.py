"""The calls of ``headrace.aio.Consumer`` that belong to its group, and how it looks after the group while it polls."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from headrace._waits import check_wait_ms
from headrace.aio._consumer_setup import PartitionLike, no_group, partitions_like, reads_nothing
from headrace.records import Committed, TopicPartition

if TYPE_CHECKING:
    from headrace.aio._group_steps import CommitCallback, GroupSteps, Listeners, Rebalanced
    from headrace.aio._hand_out import HandOut
    from headrace.aio._reading import Reading
    from headrace.aio._steps import Steps
    from headrace.consumer_settings import ConsumerSettings

T = TypeVar("T")


class GroupCalls:
    """A part of ``headrace.aio.Consumer``."""

    _out: HandOut
    _reading: Reading
    _settings: ConsumerSettings
    _started: bool
    _steps: GroupSteps | None
    _wanted: tuple[str, ...]

    def _check_usable(self) -> None:
        raise NotImplementedError

    def _ready(self) -> None:
        raise NotImplementedError

    async def start(self) -> None:
        raise NotImplementedError

    async def _run(self, steps: Steps[Any]) -> Any:
        from headrace.aio._steps import run_awaiting

        assert self._steps is not None, "only a group has steps"
        return await run_awaiting(steps, self._steps.group.loop)

    async def _on_group(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._steps is not None, "called for a member"
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._steps.group.loop.loop))

    async def _begin_reading(self) -> None:
        if self._steps is None:
            await self._reading.subscribe(self._wanted)
        else:
            await self._run(self._steps.subscribe(self._wanted, None, self._steps.listeners))

    async def _step(self) -> bool:
        """At each poll: what the group needs. False: nothing may be handed out now."""
        steps = self._steps
        if steps is None:
            return True
        if not steps.quiet():
            await self._run(steps.step())
        return not steps.suspended

    def _check_reads(self) -> None:
        """A poll of a consumer that reads nothing would be empty for ever."""
        steps = self._steps
        if self._out.core.partitions:
            return
        if self._reading.topics if steps is None else steps.topics or steps.pattern is not None:
            return
        raise reads_nothing()

    def _listeners(
        self, on_assign: Rebalanced | None, on_revoke: Rebalanced | None, on_lost: Rebalanced | None
    ) -> Listeners:
        from headrace.aio._group_steps import Listeners

        return Listeners(on_assign, on_revoke, on_lost)

    # --- what is read -------------------------------------------------------------------------------------------

    async def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_assign: Rebalanced | None = None,
        on_revoke: Rebalanced | None = None,
        on_lost: Rebalanced | None = None,
    ) -> None:
        """
        Read these topics instead of what was read; positions of partitions that stay are kept.

        With a group the partitions are shared with its other members. The functions get a list of partitions and are
        called by ``poll`` and iteration, on the thread or in the task that calls these. In ``aio`` they may be
        coroutine functions.

        Args:
            pattern: instead of topics, with a group: all topics whose whole name matches, those made later too.
            on_assign: these are read from now on; the place to ``seek``.
            on_revoke: these are given up when it returns; what was handed out was handled, and with
                ``enable_auto_commit`` committed. The place to ``commit``.
            on_lost: others have these by now; nothing can be committed. Without it ``on_revoke`` is called.

        Raises:
            UnknownTopicOrPartition: a topic does not exist.
            NetworkFailed: no broker answered within ``default_api_timeout_ms``.
            InvalidRegularExpression: the pattern cannot be read.

        ::

            >>> import asyncio
            >>> from headrace import aio
            >>> async def on_assign(partitions):
            ...     print("reads", len(partitions))
            >>> async def read():
            ...     async with aio.Consumer(group_id="aio-board", auto_offset_reset="earliest") as consumer:
            ...         await consumer.subscribe(pattern="fl.*", on_assign=on_assign)
            ...         records = []
            ...         while len(records) < 4:
            ...             records += await consumer.poll(timeout_ms=10_000)
            ...         await consumer.commit()
            ...         print(consumer.subscription(), consumer.state)
            >>> asyncio.run(read())
            reads 2
            {'flights'} reading
        """
        self._check_usable()
        names = [topics] if isinstance(topics, str) else topics
        if self._steps is None:
            if pattern is not None or on_assign or on_revoke or on_lost:
                raise no_group("subscribing by pattern, or with on_assign, on_revoke, on_lost,")
            await self._reading.subscribe(names)
        else:
            text = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
            await self._run(self._steps.subscribe(names, text, self._listeners(on_assign, on_revoke, on_lost)))
        self._started = True

    async def assign(self, partitions: Iterable[PartitionLike]) -> None:
        """
        Read these partitions instead of what was read; positions of those that stay are kept. With a ``group_id`` new
        ones are read from what the group has committed, and ``commit`` works while the group has no members.

        Raises:
            UnknownTopicOrPartition: one does not exist.
            Rejected: this consumer is a member of its group, which assigns partitions.
        """
        self._check_usable()
        wanted = partitions_like(partitions)
        if self._steps is None:
            await self._reading.assign(wanted)
        else:
            await self._run(self._steps.assign(wanted))
        self._started = True

    async def unsubscribe(self, timeout_ms: float | None = None) -> None:
        """
        Read nothing any more, until the next ``subscribe`` or ``assign``. A member of a group first commits what was
        handed out (``enable_auto_commit``), calls ``on_revoke``, and leaves: others have its partitions at once.

        Args:
            timeout_ms: milliseconds, for commits and the good-bye each; by default ``default_api_timeout_ms``. What is
                not committed then is read again by who has the partitions next, and a warning says so.

        Raises:
            InvalidTxnState: a transaction is to commit the positions; end it first.
        """
        self._check_usable()
        check_wait_ms(timeout_ms)
        limit_ms = self._settings.default_api_timeout_ms if timeout_ms is None else timeout_ms
        if self._steps is None:
            await self._reading.assign(())
        else:
            await self._run(self._steps.unsubscribe(limit_ms))
        self._wanted, self._started = (), True

    def subscription(self) -> set[str]:
        """The topics of which partitions are read; empty after ``assign``."""
        self._check_usable()
        if self._steps is not None and self._started:
            return self._steps.subscription()
        return set(self._reading.topics if self._started else self._wanted)

    # --- commits ------------------------------------------------------------------------------------------------

    async def commit(
        self, offsets: Mapping[PartitionLike, int | Committed] | None = None, timeout_ms: float | None = None
    ) -> None:
        """
        Commit what was handed out, or these offsets: of the *next* record to read. Repeated while that can help.

        Args:
            offsets: partition -> offset, or ``Committed(offset, metadata="…")``.
            timeout_ms: by default ``default_api_timeout_ms``.

        Raises:
            UnknownMemberId, IllegalGeneration, StaleMemberEpoch: this consumer is out of the group; the records will be
                read by others, or again.
            FencedInstanceId: another consumer has its ``group_instance_id``.
            NoGroup: the consumer has no ``group_id``.
            HeadraceError: why it could not be committed in time.
        """
        self._check_usable()
        check_wait_ms(timeout_ms)
        if self._steps is None:
            raise no_group("commit")
        await self.start()
        limit_ms = self._settings.default_api_timeout_ms if timeout_ms is None else timeout_ms
        await self._run(self._steps.commit(offsets, limit_ms))

    def commit_async(
        self,
        callback: CommitCallback | None = None,
        offsets: Mapping[PartitionLike, int | Committed] | None = None,
    ) -> None:
        """
        Commit without waiting, and without repeating; none is overtaken by an older one. ``callback(offsets, error)``
        is called by a later ``poll``, in ``aio`` awaited if it is a coroutine function; without it failures are logged.
        """
        self._check_usable()
        if self._steps is None:
            raise no_group("commit_async")
        self._ready()
        self._steps.commit_async(offsets, callback)

    async def committed(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, Committed | None]:
        """What the group has committed of any partitions; None: nothing."""
        self._check_usable()
        if self._steps is None:
            raise no_group("committed")
        wanted, group = partitions_like(partitions), self._steps.group
        found = await self._on_group(group.coordinators.fetch(wanted, self._settings.default_api_timeout_ms))
        return {tp: found[tp] for tp in wanted}
