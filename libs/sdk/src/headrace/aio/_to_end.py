"""
``read_to_end`` of both consumers: everything from the positions to the ends that the logs had, as one list.

It is one poll that is as long as it takes: what was handed out before it counts as handled, what it gathers does not
until the next poll, so nothing of it is committed before the application has seen it. Where it fails, positions are
back where they were. Steps are generators of actions, as in ``_steps``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, Protocol

from headrace._core.starts import END_TIMESTAMP
from headrace.aio._group_steps import GroupSteps
from headrace.aio._reading import Reading
from headrace.aio._steps import Call, OnReading, Steps
from headrace.errors import WaitTimedOut
from headrace.records import Record
from headrace_common.core.ids import TopicPartition
from headrace_common.runtime.clock import Clock, limit_ms

TAKE_RECORDS: Final = 10_000
"""At most so many between two looks at the group."""

NAMED_MAX: Final = 5


class Signal(Protocol):
    """What is set when something has arrived: an event of either kind."""

    def clear(self) -> None: ...


class ToEnd:
    """
    One call of ``read_to_end``.

    Args:
        wait: waits for ``arrived`` until a deadline, in monotonic ms; false after it. It may be a coroutine function.
    """

    def __init__(
        self,
        reading: Reading,
        group: GroupSteps | None,
        clock: Clock,
        arrived: Signal,
        wait: Callable[[float | None], Any],
    ) -> None:
        self._reading = reading
        self._out = reading.out
        self._group = group
        self._clock = clock
        self._arrived = arrived
        self._wait = wait
        self._records: list[Record] = []
        self._starts: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._done: set[TopicPartition] = set()

    def run(self, timeout_ms: float) -> Steps[list[Record]]:
        """
        Read.

        Raises:
            WaitTimedOut: not everything came in time; positions are where they were.
            HeadraceError: as ``poll``; positions are where they were.
        """
        group, deadline_ms = self._group, self._clock.monotonic_ms() + timeout_ms
        try:
            if group is not None:
                if not group.quiet():
                    yield from group.step()
                group.gathered = set()
            yield from self._read(deadline_ms, timeout_ms)
        except BaseException:
            self._resume()
            here = set(self._out.assignment())
            self._out.go_to({tp: start for tp, start in self._starts.items() if tp in here})
            raise
        finally:
            if group is not None:
                group.gathered = None
        self._resume()
        return self._records

    def _read(self, deadline_ms: float, timeout_ms: float) -> Steps[None]:
        while True:
            self._arrived.clear()
            if self._group is not None and not self._group.quiet():
                yield from self._group.step()
                self._forget_given_up()
            if new := self._new():
                yield from self._look_up(new, deadline_ms, timeout_ms)
            took = self._take() if self._group is None or not self._group.suspended else False
            if self._complete():
                return
            if took and self._clock.monotonic_ms() < deadline_ms:
                continue
            if not (yield Call(self._wait, (deadline_ms,))):
                raise self._explain_timeout(timeout_ms)

    def _new(self) -> list[TopicPartition]:
        """Partitions whose ends are to be asked for; those that the application has paused are left alone."""
        paused = set(self._out.list_paused())
        return [tp for tp in self._out.assignment() if tp not in self._ends and tp not in paused]

    def _look_up(self, new: Collection[TopicPartition], deadline_ms: float, timeout_ms: float) -> Steps[None]:
        left_ms = max(1.0, deadline_ms - self._clock.monotonic_ms())

        async def bounds() -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
            async with limit_ms(left_ms):
                starts = {tp: await self._reading.position(tp) for tp in new}
                found = await self._reading.offsets.ask(dict.fromkeys(new, END_TIMESTAMP), left_ms)
                return starts, {tp: at.offset for tp, at in found.items()}

        try:
            starts, ends = yield OnReading(bounds)
        except TimeoutError as error:
            raise self._explain_timeout(timeout_ms) from error
        self._starts.update(starts)
        self._ends.update(ends)
        self._pause_reached(new)

    def _take(self) -> bool:
        """Hand out what is here, up to the ends. False: nothing is."""
        got = self._out.take(TAKE_RECORDS)
        touched = {TopicPartition(record.topic, record.partition) for record in got}
        over = self._pause_reached(touched or self._ends.keys() - self._done)
        if over:
            got = [r for r in got if r.offset < over.get(TopicPartition(r.topic, r.partition), r.offset + 1)]
        self._records += got
        return bool(touched)

    def _pause_reached(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Hold back those that are at their end; returns the ends of those that were read beyond."""
        at = {tp: self._out.position_now(tp) for tp in partitions if tp in self._ends}
        ends = self._ends
        over = {tp: ends[tp] for tp, now in at.items() if now is not None and now > ends[tp] and tp not in self._done}
        over = {tp: end for tp, end in over.items() if end >= self._starts[tp]}
        done = [tp for tp, now in at.items() if now is not None and now >= ends[tp] and tp not in self._done]
        if over:
            self._out.go_to(over)
        if done:
            self._done.update(done)
            self._out.pause(done, paused=True)
        return over

    def _forget_given_up(self) -> None:
        """What the group gave to others is read by them, from where it was before this call."""
        assert self._group is not None, "called for a member"
        gone, self._group.gathered = self._group.gathered, set()
        if not gone:
            return
        self._records = [r for r in self._records if TopicPartition(r.topic, r.partition) not in gone]
        for tp in gone:
            self._starts.pop(tp, None)
            self._ends.pop(tp, None)
            self._done.discard(tp)

    def _complete(self) -> bool:
        if self._group is not None and not self._group.settled:
            return False
        return len(self._done) == len(self._ends) and not self._new()

    def _resume(self) -> None:
        here = set(self._out.assignment())
        self._out.pause([tp for tp in self._done if tp in here], paused=False)

    def _explain_timeout(self, timeout_ms: float) -> WaitTimedOut:
        text = f"the end was not reached within {timeout_ms:g} ms; positions are where they were before. "
        if self._group is not None and not self._group.settled:
            return WaitTimedOut(text + "The group has not settled who reads what; call it again, or with more time")
        behind = sorted(self._ends.keys() - self._done) or sorted(self._new())
        named = ", ".join(
            f"{tp} at {self._out.position_now(tp)} of {self._ends.get(tp, 'an unknown end')}"
            for tp in behind[:NAMED_MAX]
        )
        return WaitTimedOut(f"{text}{len(behind)} partitions were not read to their end ({named}); give it more time")


def read_to_end(
    reading: Reading,
    group: GroupSteps | None,
    clock: Clock,
    waiting: tuple[Signal, Callable[[float | None], Any]],
    timeout_ms: float | None,
) -> Steps[list[Record]]:
    """The steps of one call; see ``ToEnd``."""
    limit_ms = reading.settings.default_api_timeout_ms if timeout_ms is None else timeout_ms
    return ToEnd(reading, group, clock, *waiting).run(limit_ms)
