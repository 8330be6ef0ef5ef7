"""
What a member of a group does on the application's own thread or task: rebalances, callbacks, commits, the end.

The same for both twins: methods that may wait are steps (``_steps``). ``step`` runs at each poll and between batches of
iteration: what was handed out before has been handled.

While a transaction is to commit this consumer's positions (``_transaction_positions``), partitions are given up only
after it: else its records would be committed without the positions they came from.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from headrace._core.commits import check_offsets
from headrace._core.group_messages import Did, Job, Kind, Polled
from headrace._core.phases import Phase
from headrace.aio._group import Group
from headrace.aio._health import GroupHealth
from headrace.aio._reading import Reading
from headrace.aio._steps import Call, OnGroup, OnReading, Pace, Steps
from headrace.aio._transaction_positions import TransactionPositions
from headrace.errors import HeadraceError, InvalidRegularExpression, Overloaded, Rejected
from headrace.records import Committed
from headrace_common.core.ids import TopicPartition
from headrace_common.runtime.clock import Clock

Rebalanced = Callable[[list[TopicPartition]], Any]
CommitCallback = Callable[[dict[TopicPartition, Committed], HeadraceError | None], Any]

ASYNC_MAX: Final = 10_000
"""Calls of ``commit_async`` that are not answered yet, or whose callback waits for the application's next poll."""

INTERNAL_TOPIC: Final = "__consumer_offsets"
"""Coordinators and leaders of groups leave it out of all shares: who subscribed to it would wait for ever."""

_log = logging.getLogger("headrace.consumer")


@dataclass(slots=True)
class Listeners:
    """What the application wants to hear of rebalances."""

    on_assign: Rebalanced | None = None
    on_revoke: Rebalanced | None = None
    on_lost: Rebalanced | None = None


class GroupSteps:
    def __init__(self, group: Group, reading: Reading, clock: Clock) -> None:
        self.group = group
        self.listeners = Listeners()
        self.topics: tuple[str, ...] = ()
        self.pattern: str | None = None
        self.pace = Pace(group.settings.max_poll_records, clock)
        self._sizes: dict[str, int] = {}
        """How many partitions topics had when they were subscribed to: those above are new."""
        self._reading = reading
        self._out = reading.out
        self._clock = clock
        self._settings = group.settings
        self._answers: deque[tuple[CommitCallback, dict[TopicPartition, Committed], HeadraceError | None]] = deque()
        self._under_way: set[object] = set()
        """One for each ``commit_async`` without an answer."""
        self._committed: dict[TopicPartition, int] = {}
        """What was committed last, as far as this consumer knows."""
        self._auto_at_ms = clock.monotonic_ms() + self._settings.auto_commit_interval_ms
        self._stepping = False
        self.gathered: set[TopicPartition] | None = None
        """While one call gathers records (``read_to_end``), they are not handled: what was given up meanwhile."""
        self.transaction = TransactionPositions(group, self._out, self._committed)
        reading.recall = self.transaction.recall

    # --- at each poll -------------------------------------------------------------------------------------------------

    @property
    def suspended(self) -> bool:
        """Whether nothing may be handed out, as others may have the partitions."""
        return self.group.core.suspended(self._clock.monotonic_ms())

    def quiet(self) -> bool:
        """The application asks for more. True: there is nothing to do for ``step``."""
        now_ms = self._clock.monotonic_ms()
        core = self.group.core
        core.last_poll_ms = now_ms
        if self.gathered is None:
            self._out.mark()
        group = self.group
        nothing = not (
            group.news or group.crash or core.trouble or core.failure or self._answers or self.transaction.doomed
        )
        return nothing and core.phase is not Phase.AWAY and not self._auto_is_due(now_ms)

    def _auto_is_due(self, now_ms: float) -> bool:
        return self._settings.enable_auto_commit and now_ms >= self._auto_at_ms and self.gathered is None

    @property
    def settled(self) -> bool:
        """Whether it holds what it is to hold, or would if a transaction did not keep it."""
        core = self.group.core
        if not self.group.joined or self._held_back:
            return True
        return core.phase is Phase.MEMBER and core.holdings.target is not None and core.holdings.settled

    def step(self) -> Steps[None]:
        """
        Do what is due.

        Raises:
            HeadraceError: what keeps this consumer from being a member, or its transaction from being committed.
        """
        if self._stepping:
            raise Rejected("poll was called by a callback of a rebalance; return from it first")
        self._stepping = True
        try:
            yield from self._step()
        finally:
            self._stepping = False

    def _step(self) -> Steps[None]:
        now_ms = self._clock.monotonic_ms()
        if self.group.core.phase is Phase.AWAY:
            self.group.tell(Polled(now_ms))
        while self._answers:
            callback, offsets, error = self._answers.popleft()
            yield Call(callback, (offsets, error))
        while not self._held_back and (job := self.group.begin_job()) is not None:
            yield from self._do(job)
        self.transaction.check_held()
        failure = self.group.take_failure(self._clock.monotonic_ms())
        if failure is not None:
            self.group.tell(Polled(now_ms))  # now that it was told, what failed is tried again
            raise failure
        if self._auto_is_due(now_ms):
            self._auto_commit()

    @property
    def _held_back(self) -> bool:
        """
        Whether partitions are to be given up with records that a transaction is to commit: that waits for its end.
        What is lost is lost, and the transaction with it; what is new is taken at once.
        """
        if not self._out.in_transaction:
            return False
        with self.group.lock:
            job = self.group.core.holdings.job()
        if job is None or job.kind is not Kind.REVOKE:
            return False
        return not job.partitions.isdisjoint(self._out.to_commit(self._committed))

    def _do(self, job: Job) -> Steps[None]:
        partitions = sorted(job.partitions)
        listeners = self.listeners
        if job.kind is Kind.ASSIGN:
            new = [tp for tp in partitions if tp.partition >= self._sizes.get(tp.topic, tp.partition + 1)]
            yield OnReading(lambda: self._reading.hold(job.offsets, new))
            self._committed.update({tp: at.offset for tp, at in job.offsets.items() if at is not None})
            if self.pattern is not None:  # what it matched is subscribed to, and missed when it is deleted
                self._reading.watch({tp.topic for tp in partitions})
            self._done(job)
            if listeners.on_assign is not None:
                yield Call(listeners.on_assign, (partitions,))
            return
        try:
            if job.kind is Kind.REVOKE:
                if self._settings.enable_auto_commit:
                    handled = self._out.positions(handled=self.gathered is not None)
                    yield from self._commit_quietly(job.partitions, handled)
                if listeners.on_revoke is not None:
                    yield Call(listeners.on_revoke, (partitions,))
            else:
                told = listeners.on_lost or listeners.on_revoke
                if told is not None:
                    yield Call(told, (partitions,))
        finally:
            self.transaction.lost(partitions)
            if self.gathered is not None:
                self.gathered.update(job.partitions)
            self._out.release(job.partitions)
            self._reading.look_again({tp.topic for tp in job.partitions})
            for tp in job.partitions:
                self._committed.pop(tp, None)
            self.group.give_up(job.partitions)
            self._done(job)

    def _done(self, job: Job) -> None:
        self.group.tell(Did(job, self._clock.monotonic_ms()))

    # --- what is read -------------------------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str], pattern: str | None, listeners: Listeners) -> Steps[None]:
        """Join, or change what is subscribed to."""
        names = tuple(dict.fromkeys(topics))
        if self._out.assignment() and not self.group.joined:
            raise Rejected("this consumer reads partitions that were assigned to it; make another one to subscribe")
        if bool(names) == (pattern is not None):
            raise Rejected("subscribe takes topics or a pattern")
        if INTERNAL_TOPIC in names:
            raise Rejected(f"no group shares {INTERNAL_TOPIC}, which is internal; read it without a group_id")
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise InvalidRegularExpression(f"pattern={pattern!r}: {error}") from None
        for name in names:
            found = yield OnReading(partial(self._reading.partitions_of, name))
            self._sizes.setdefault(name, len(found))
        self.topics, self.pattern, self.listeners = names, pattern, listeners
        self._reading.group_topics = names
        self.group.core.last_poll_ms = self._clock.monotonic_ms()
        yield OnGroup(lambda: self.group.subscribe(names, pattern))

    def unsubscribe(self, timeout_ms: float) -> Steps[None]:
        """Commit, let go, leave, and read nothing; as at the end, but there is a next beginning."""
        if self._stepping:
            raise Rejected("unsubscribe was called by a callback of a rebalance; return from it first")
        self.transaction.check_none("unsubscribe")
        self._stepping = True
        try:
            yield from self._let_go(timeout_ms, handled_only=False)
        finally:
            self._stepping = False
            self.topics, self.pattern, self.listeners = (), None, Listeners()
            self._reading.group_topics, self._reading.deleted = (), frozenset()
            self._committed.clear()
            self._sizes.clear()
            yield OnGroup(lambda: self.group.unsubscribe(timeout_ms))

    def assign(self, partitions: Iterable[TopicPartition]) -> Steps[None]:
        """Read these, without being a member; positions of the group are used and committed."""
        if self.group.joined:
            raise Rejected("this consumer is a member of its group, which assigns partitions; make another to assign")
        self.transaction.check_none("assign")
        wanted = dict.fromkeys(partitions)
        yield OnReading(lambda: self._reading.check(wanted))
        held = set(self._out.assignment())
        new = [tp for tp in wanted if tp not in held]
        offsets = yield OnGroup(lambda: self.group.coordinators.fetch(new, self._settings.default_api_timeout_ms))
        self._out.release(held.difference(wanted))
        yield OnReading(lambda: self._reading.hold(offsets))
        self._committed.update({tp: at.offset for tp, at in offsets.items() if at is not None})

    # --- commits ------------------------------------------------------------------------------------------------------

    def _offsets_of(self, given: Mapping[Any, Any] | None) -> dict[TopicPartition, Committed]:
        """What the application wants committed: what was handed out, or what it names."""
        positions = self._out.positions()
        return positions if given is None else check_offsets(given, positions, set(self._out.assignment()))

    def commit(self, given: Mapping[Any, Any] | None, timeout_ms: float) -> Steps[None]:
        """Commit and wait."""
        self.transaction.check_none("commit")
        offsets = self._offsets_of(given)
        if offsets:
            yield OnGroup(lambda: self.group.commit(offsets, timeout_ms))
            self.transaction.committed(offsets)

    def commit_async(self, given: Mapping[Any, Any] | None, callback: CommitCallback | None) -> None:
        """Commit; ``callback`` is called at the next poll after the answer."""
        if len(self._under_way) + len(self._answers) >= ASYNC_MAX:
            raise Overloaded(
                f"{ASYNC_MAX} calls of commit_async are not answered, or wait for a poll; poll, then commit"
            )
        self.transaction.check_none("commit_async")
        offsets = self._offsets_of(given)
        me = object()
        self._under_way.add(me)

        def done(error: HeadraceError | None) -> None:
            self._under_way.discard(me)
            if error is None:
                self.transaction.committed(offsets)
            if callback is not None:
                self._answers.append((callback, offsets, error))
            elif error is not None:
                _log.warning("commit_async failed: %s", error)

        self._send(offsets, done)

    def _send(self, offsets: dict[TopicPartition, Committed], done: Callable[[HeadraceError | None], None]) -> None:
        self.group.loop.call_soon(lambda: self.group.start_commit(offsets, done))

    def _auto_commit(self) -> None:
        self._auto_at_ms = self._clock.monotonic_ms() + self._settings.auto_commit_interval_ms
        positions = self._out.positions()
        moved = {tp: at for tp, at in positions.items() if self._committed.get(tp) != at.offset}
        if not moved:
            return

        def done(error: HeadraceError | None) -> None:
            if error is None:
                self.transaction.committed(moved)
            else:
                _log.warning("automatic commit of group %s failed: %s", self._settings.group_id, error)

        self._send(moved, done)

    def _commit_quietly(
        self,
        partitions: Iterable[TopicPartition],
        positions: Mapping[TopicPartition, Committed],
        timeout_ms: float = float("inf"),
    ) -> Steps[None]:
        """Before partitions go: a failure is logged, and the records are read again."""
        moved = {
            tp: positions[tp]
            for tp in partitions
            if tp in positions and self._committed.get(tp) != positions[tp].offset and self._reading.exists(tp.topic)
        }
        if not moved:
            return
        settings = self._settings
        limit_ms = min(settings.default_api_timeout_ms, settings.max_poll_interval_ms / 2, timeout_ms)
        try:
            yield OnGroup(lambda: self.group.commit(moved, limit_ms))
            self.transaction.committed(moved)
        except HeadraceError as error:
            names = ", ".join(map(str, sorted(moved)[:5]))
            _log.warning("%s given up uncommitted, records will be read again: %s", names, error)

    # --- how it is doing ------------------------------------------------------------------------------------------

    def subscription(self) -> set[str]:
        """The topics that are subscribed to; with a pattern those that are known to match."""
        core = self.group.core
        known = set(core.subscribed) if self.group.joined else set(self.topics)
        return known | ({tp.topic for tp in self._out.assignment()} if self.pattern is not None else set())

    def state(self, reading: str) -> str:
        """What a member is; ``reading`` is what its partitions are."""
        core = self.group.core
        if core.phase is Phase.FAILED or self.group.crash is not None:
            return "stuck"
        if core.phase in (Phase.OUT, Phase.AWAY) or core.holdings.lost:
            return "out"
        if self.suspended:
            return "disconnected"
        if core.phase is not Phase.MEMBER and not core.holdings.held:
            return "joining"
        return "rebalancing" if core.rebalancing else reading

    def health(self) -> GroupHealth:
        group, core = self.group, self.group.core
        heard_ms = self._clock.monotonic_ms() - core.heard_ms
        error = core.failure or (core.trouble.error if core.trouble is not None else None)
        return GroupHealth(
            group_id=group.coordinators.group_id,
            protocol=self._settings.group_protocol,
            member_id=core.member_id,
            instance_id=self._settings.group_instance_id,
            generation=core.generation,
            coordinator=None if group.coordinator is None else str(group.coordinator),
            heartbeat_age_ms=None if heard_ms == float("inf") else heard_ms,
            trouble=None if error is None else str(error),
        )

    # --- the end ------------------------------------------------------------------------------------------------------

    def close(self, timeout_ms: float, *, handled_only: bool) -> Steps[None]:
        """
        Commit, let go, leave. With ``handled_only`` what was handed out last is not taken for handled. It leaves also
        when a function of the application raises: others would wait for what nobody reads.
        """
        self._stepping = True
        try:
            yield from self._let_go(timeout_ms, handled_only=handled_only)
        finally:
            yield OnGroup(lambda: self.group.leave(timeout_ms))

    def _let_go(self, timeout_ms: float, *, handled_only: bool) -> Steps[None]:
        held = set(self._out.assignment())
        listeners, core = self.listeners, self.group.core
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        lost = core.holdings.lost or core.phase in (Phase.OUT, Phase.AWAY, Phase.FAILED)
        try:
            if self._settings.enable_auto_commit and held and not lost:
                positions = self._out.positions(handled=handled_only)
                yield from self._commit_quietly(held, positions, timeout_ms)
            yield OnGroup(lambda: self.group.wait_until_committed(max(0.0, deadline_ms - self._clock.monotonic_ms())))
            if held and self.group.joined:
                told = (listeners.on_lost or listeners.on_revoke) if lost else listeners.on_revoke
                if told is not None:
                    yield Call(told, (sorted(held),))
            while self._answers:
                callback, offsets, error = self._answers.popleft()
                yield Call(callback, (offsets, error))
        finally:
            self._out.release(held)
