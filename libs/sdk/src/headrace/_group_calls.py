"""The calls of ``headrace.Consumer`` that belong to its group, and how it looks after the group while it polls."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from headrace._waits import check_wait_ms
from headrace.aio._consumer_setup import PartitionLike, no_group, partitions_like, reads_nothing
from headrace.errors import Rejected
from headrace.records import Committed, TopicPartition

if TYPE_CHECKING:
    from headrace._runtime import LoopThread
    from headrace.aio._group_steps import CommitCallback, GroupSteps, Listeners, Rebalanced, Steps
    from headrace.aio._hand_out import HandOut
    from headrace.aio._reading import Reading
    from headrace.consumer_settings import ConsumerSettings
    from headrace.records import Record


class GroupCalls:
    """A part of ``headrace.Consumer``."""

    _loop: LoopThread
    _out: HandOut
    _reading: Reading
    _settings: ConsumerSettings
    _started: bool
    _steps: GroupSteps | None
    _wanted: tuple[str, ...]

    def _check_usable(self) -> None:
        raise NotImplementedError

    def _start(self) -> None:
        raise NotImplementedError

    def _run(self, steps: Steps[Any]) -> Any:
        from headrace.aio._group_steps import run_blocking

        return run_blocking(steps, self._loop)

    def _begin_reading(self) -> None:
        if self._steps is None:
            self._loop.call(self._reading.subscribe(self._wanted))
        else:
            self._run(self._steps.subscribe(self._wanted, None, self._steps.listeners))

    def _step(self) -> bool:
        """At each poll: what the group needs. False: nothing may be handed out now."""
        steps = self._steps
        if steps is None:
            return True
        if not steps.quiet():
            self._run(steps.step())
        return not steps.suspended

    def _take(self, records_max: int) -> list[Record]:
        return self._out.take(records_max) if self._step() else []

    def _check_reads(self) -> None:
        """A poll of a consumer that reads nothing would be empty for ever."""
        steps = self._steps
        if self._out.core.partitions:
            return
        if self._reading.topics if steps is None else steps.topics or steps.pattern is not None:
            return
        raise reads_nothing()

    # --- what is read -------------------------------------------------------------------------------------------

    def subscribe(
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
        called by ``poll`` and iteration, on the thread that calls these.

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

            >>> import headrace
            >>> consumer = headrace.Consumer(group_id="board", auto_offset_reset="earliest")
            >>> consumer.subscribe(
            ...     ["flights"],
            ...     on_assign=lambda partitions: print("reads", len(partitions)),
            ...     on_revoke=lambda partitions: print("gives up", len(partitions)),
            ... )
            >>> records = []
            >>> while len(records) < 4:
            ...     records += consumer.poll(timeout_ms=10_000)
            reads 2
            >>> consumer.state, consumer.health().group.group_id
            ('reading', 'board')
            >>> consumer.close()
            gives up 2
        """
        self._check_usable()
        names = [topics] if isinstance(topics, str) else topics
        if self._steps is None:
            if pattern is not None or on_assign or on_revoke or on_lost:
                raise no_group("subscribing by pattern, or with on_assign, on_revoke, on_lost,")
            self._loop.call(self._reading.subscribe(names))
        else:
            for name, function in (("on_assign", on_assign), ("on_revoke", on_revoke), ("on_lost", on_lost)):
                if inspect.iscoroutinefunction(function):
                    raise Rejected(f"{name} is a coroutine function; those are for headrace.aio.Consumer")
            text = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
            self._run(self._steps.subscribe(names, text, _listeners(on_assign, on_revoke, on_lost)))
        self._started = True

    def assign(self, partitions: Iterable[PartitionLike]) -> None:
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
            self._loop.call(self._reading.assign(wanted))
        else:
            self._run(self._steps.assign(wanted))
        self._started = True

    def unsubscribe(self, timeout_ms: float | None = None) -> None:
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
            self._loop.call(self._reading.assign(()))
        else:
            self._run(self._steps.unsubscribe(limit_ms))
        self._wanted, self._started = (), True

    def subscription(self) -> set[str]:
        """The topics of which partitions are read; empty after ``assign``."""
        self._check_usable()
        if self._steps is not None and self._started:
            return self._steps.subscription()
        return set(self._reading.topics if self._started else self._wanted)

    # --- commits ------------------------------------------------------------------------------------------------

    def commit(
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

        ::

            >>> from headrace import Committed, Consumer, TopicPartition
            >>> first = TopicPartition("flights", 0)
            >>> settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
            >>> with Consumer("flights", group_id="bills", **settings) as consumer:
            ...     records = []
            ...     while len(records) < 4:
            ...         records += consumer.poll(timeout_ms=10_000)
            ...     consumer.commit({first: Committed(1, metadata="the second waits for its invoice")})
            ...     print(consumer.committed([first])[first].offset)
            ...     consumer.commit()                           # what was handed out
            ...     print(consumer.committed([first])[first].offset)
            1
            2
        """
        self._check_usable()
        check_wait_ms(timeout_ms)
        if self._steps is None:
            raise no_group("commit")
        self._start()
        limit_ms = self._settings.default_api_timeout_ms if timeout_ms is None else timeout_ms
        self._run(self._steps.commit(offsets, limit_ms))

    def commit_async(
        self,
        callback: CommitCallback | None = None,
        offsets: Mapping[PartitionLike, int | Committed] | None = None,
    ) -> None:
        """
        Commit without waiting, and without repeating; none is overtaken by an older one. ``callback(offsets, error)``
        is called by a later ``poll``; without it failures are logged.
        """
        self._check_usable()
        if self._steps is None:
            raise no_group("commit_async")
        self._start()
        self._steps.commit_async(offsets, callback)

    def committed(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, Committed | None]:
        """What the group has committed of any partitions; None: nothing."""
        self._check_usable()
        if self._steps is None:
            raise no_group("committed")
        wanted, group = partitions_like(partitions), self._steps.group
        found = self._loop.call(group.committed(wanted, self._settings.default_api_timeout_ms))
        return {tp: found[tp] for tp in wanted}


def _listeners(on_assign: Rebalanced | None, on_revoke: Rebalanced | None, on_lost: Rebalanced | None) -> Listeners:
    from headrace.aio._group_steps import Listeners

    return Listeners(on_assign, on_revoke, on_lost)
