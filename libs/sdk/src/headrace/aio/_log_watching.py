"""
The engine of ``LogWatch``: which topics there are, and where their logs begin and end. Runs on the loop.

Answers are complete or there is none: a partition that was left out would be taken for one that is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import NamedTuple

from headrace._core.remedies import HOPELESS, Asker, remedy_for
from headrace._core.starts import END_TIMESTAMP, START_TIMESTAMP
from headrace._runtime import Tasks
from headrace._transport.port import Transport
from headrace.aio._client import ClusterClient
from headrace.aio._offsets import OffsetAndTimestamp, OffsetQueries
from headrace.consumer_settings import ConsumerSettings
from headrace.errors import ClusterUnreachable, HeadraceError, WaitTimedOut
from headrace_common.core.ids import NodeId, TopicPartition
from headrace_common.runtime.clock import Clock


class TopicLayout(NamedTuple):
    """One topic, as a broker has just described it."""

    topic_id: str
    """In hexadecimal digits; another one if a topic was deleted and created again."""
    partitions: int
    """How many there are; they are numbered from 0."""
    internal: bool
    """Headrace's own."""


class LogBounds(NamedTuple):
    """Where one log begins and ends."""

    start: int
    """The first offset that there is."""
    end: int
    """Behind the last record that may be read now: the high watermark or, read committed, the last stable offset."""
    topic_id: str = ""
    """Of which topic, in hexadecimal digits: a name may be used again."""


class LogWatching:
    """One client's questions; ``headrace.log_watch`` is its face."""

    def __init__(self, transport: Transport, settings: ConsumerSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._cluster = ClusterClient(transport, settings, clock=clock)
        self._offsets = OffsetQueries(self._cluster, transport, settings, clock)
        self._tasks = Tasks()

    async def topics(self) -> dict[str, TopicLayout]:
        """
        All topics.

        Raises:
            HeadraceError: what brokers said last, after ``default_api_timeout_ms`` of retries.
        """
        deadline_ms = self._deadline_ms()
        pause_ms: float = self._settings.retry_backoff_ms
        while True:
            try:
                answer = await self._cluster.everything()
            except HeadraceError as error:
                left_ms = deadline_ms - self._clock.monotonic_ms()
                hopeless = isinstance(error, ClusterUnreachable) or remedy_for(Asker.CONSUMER, error.code) in HOPELESS
                if hopeless or left_ms <= 0:
                    raise
                await self._clock.sleep_ms(min(pause_ms, left_ms))
                pause_ms = min(pause_ms * 2, self._settings.retry_backoff_max_ms)
                continue
            return {t.name: TopicLayout(t.topic_id.hex(), len(t.partitions), t.internal) for t in answer.topics}

    async def bounds(
        self, partitions: Collection[TopicPartition], newer_than: Mapping[TopicPartition, int] | None, wait_ms: int
    ) -> dict[TopicPartition, LogBounds]:
        """
        As ``LogWatch.bounds``. Starts are asked for beside the wait; an end that they have overtaken meanwhile is where
        the start is.
        """
        deadline_ms = self._deadline_ms() + (wait_ms if newer_than is not None else 0)
        if newer_than is not None and wait_ms and all(tp in newer_than for tp in partitions):
            await self._until_newer({tp: newer_than[tp] for tp in partitions}, wait_ms)
        while True:
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                raise WaitTimedOut("topics were deleted and created again, faster than their logs could be asked for")
            for topic in dict.fromkeys(tp.topic for tp in partitions):
                await self._cluster.topic(topic, left_ms)
            before = self._ids(partitions)
            starts, ends = await asyncio.gather(
                self._offsets.ask(dict.fromkeys(partitions, START_TIMESTAMP), left_ms),
                self._offsets.ask(dict.fromkeys(partitions, END_TIMESTAMP), left_ms),
            )
            ids = self._ids(partitions)
            if ids != before:
                continue  # the answers may be of two topics
            return {
                tp: LogBounds(starts[tp].offset, max(starts[tp].offset, ends[tp].offset), ids[tp.topic])
                for tp in partitions
            }

    def _ids(self, partitions: Collection[TopicPartition]) -> dict[str, str]:
        """Topic ids; empty: not known any more."""
        views = {tp.topic: self._cluster.find_view(tp.topic) for tp in partitions}
        return {topic: "" if view is None else view.topic_id.hex() for topic, view in views.items()}

    async def at_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        """For each partition the first record at or after a time; offset -1: there is none."""
        return await self._offsets.ask(times, self._settings.default_api_timeout_ms)

    async def _until_newer(self, seen: Mapping[TopicPartition, int], wait_ms: int) -> None:
        """Wait until one log ends above what was ``seen``, or a leader has something else to say than that it waits."""
        requests, unled = await self._offsets.by_leader(seen, self._deadline_ms())
        if unled:
            return  # that is for those who ask for the offsets
        polls = [
            self._tasks.start(self._poll(broker, part, seen, wait_ms), f"log watch: wait at broker {broker}")
            for broker, part in requests
        ]
        waiting = set(polls)
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if any(poll.result() for poll in done):
                    return
        finally:
            for poll in waiting:
                poll.cancel()

    async def _poll(
        self, broker: NodeId, partitions: Collection[TopicPartition], seen: Mapping[TopicPartition, int], wait_ms: int
    ) -> bool:
        """Whether there is anything but silence."""
        asked = dict.fromkeys(partitions, END_TIMESTAMP)
        above = {tp: seen[tp] for tp in partitions}
        answers = await self._offsets.ask_broker(broker, asked, wait_above=above, wait_ms=wait_ms)
        return any(isinstance(found, HeadraceError) or found.offset > seen[tp] for tp, found in answers.items())

    def _deadline_ms(self) -> float:
        return self._clock.monotonic_ms() + self._settings.default_api_timeout_ms

    async def close(self) -> None:
        """End what waits. The transport is closed by whoever opened it."""
        await self._tasks.close()
        await self._cluster.close()
