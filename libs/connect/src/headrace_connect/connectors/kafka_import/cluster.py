"""A Kafka cluster, by confluent-kafka. Its calls are made in one thread."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from headrace.records import TopicPartition
from headrace_common.runtime.clock import Clock, SystemClock, limit_s
from headrace_common.runtime.threads import run_in_thread
from headrace_connect.connectors.copying.polling import Polled
from headrace_connect.connectors.copying.port import Fetched, SourceTopic, TopicGone
from headrace_connect.connectors.kafka_import.asking import Asking
from headrace_connect.connectors.kafka_import.messages import to_fetched
from headrace_connect.connectors.kafka_import.reading import Piece, Reading
from headrace_connect.connectors.kafka_import.settings import ImportSettings

T = TypeVar("T")
_HELD_BYTES: Final = 32 << 20
"""What was read of all partitions and not taken; beyond it nothing is read."""
_MESSAGE_BYTES: Final = 200
"""What a message takes besides its value."""
_WAIT_S: Final = 0.1


class KafkaCluster(Polled):
    """Satisfies ``SourceCluster``."""

    def __init__(self, settings: ImportSettings, clock: Clock | None = None) -> None:
        super().__init__()
        self._settings = settings
        self._clock = clock or SystemClock()
        self._thread: ThreadPoolExecutor | None = None
        self._asking: Asking | None = None
        self._reading: Reading | None = None
        self._held: dict[TopicPartition, list[Any]] = defaultdict(list)
        """Messages that were read and not taken."""
        self._bytes: dict[TopicPartition, int] = defaultdict(int)
        """Of them."""
        self._ends: dict[TopicPartition, int] = {}
        """The position at the end of the log, of partitions that have come there since the last ``pop``."""
        self._taken = asyncio.Event()
        self._begun: set[TopicPartition] = set()
        """Partitions that are read."""
        self._call: asyncio.Future[list[Piece]] | None = None
        """What the thread does."""

    async def open(self) -> None:
        """
        See ``SourceCluster``.

        Raises:
            InvalidConfig: a property of the client is wrong.
        """
        if self._thread is not None:
            return
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kafka")
        self._asking = await self._run(lambda: Asking(self._settings))
        self._reading = await self._run(lambda: Reading(self._settings, self._ask, self._clock))

    async def close(self) -> None:
        """See ``SourceCluster``."""
        reading, thread = self._reading, self._thread
        self._reading = self._asking = self._thread = None
        if reading is not None:
            await run_in_thread(reading.close, pool=thread)
        if thread is not None:
            thread.shutdown(wait=False)

    async def _run(self, call: Callable[[], T]) -> T:
        return await run_in_thread(call, pool=self._thread)

    @property
    def _ask(self) -> Asking:
        assert self._asking is not None, "it is open"
        return self._asking

    async def cluster_id(self) -> str:
        """See ``SourceCluster``."""
        return await self._run(self._ask.cluster_id)

    async def topics(self) -> Mapping[str, SourceTopic]:
        """See ``SourceCluster``; settings only of those that are copied."""
        return await self._run(self._ask.topics)

    async def topic_id(self, topic: str) -> str:
        """See ``SourceCluster``."""
        ask = self._ask
        described = await self._run(lambda: ask.describe([topic]))
        if topic not in described:
            raise TopicGone(topic)
        return described[topic][0]

    async def end_offsets(self, partitions: list[TopicPartition]) -> Mapping[TopicPartition, int]:
        """See ``SourceCluster``."""
        ask = self._ask
        return await self._run(lambda: ask.end_offsets(partitions))

    async def group_members(self, group: str) -> int:
        """See ``SourceCluster``."""
        ask = self._ask
        return await self._run(lambda: ask.group_members(group))

    async def group_positions(self, group: str) -> Mapping[TopicPartition, int]:
        """See ``SourceCluster``."""
        ask = self._ask
        return await self._run(lambda: ask.group_positions(group))

    # --- records ------------------------------------------------------------------------------------------------------

    def drop(self, at: TopicPartition) -> None:
        """See ``Polled``."""
        self._held.pop(at, None)
        self._bytes.pop(at, None)
        self._ends.pop(at, None)
        self._taken.set()

    def pop(self, at: TopicPartition) -> Fetched | None:
        """See ``Polled``."""
        held, most = self._held.get(at), self._settings.batch_max_rows
        if not held:
            return to_fetched((), self._ends.pop(at)) if at in self._ends else None
        messages, self._held[at] = held[:most], held[most:]
        self._bytes[at] -= _bytes_of(messages)
        self._taken.set()
        return to_fetched(messages, None if self._held[at] else self._ends.pop(at, None))

    async def poll(self) -> None:
        """See ``Polled``."""
        if self._call is None:
            starts = dict(self.starts)
            if not starts and sum(self._bytes.values()) >= _HELD_BYTES:
                self._taken.clear()
                with suppress(TimeoutError):
                    async with limit_s(_WAIT_S):
                        await self._taken.wait()
                return
            assert self._reading is not None, "it is open"
            call = asyncio.ensure_future(run_in_thread(self._reading.read, starts, pool=self._thread))
            call.add_done_callback(partial(self._apply, starts))
            self._call = call
        # who waits may go: what was read is of all partitions
        await asyncio.wait([self._call])

    def _apply(self, starts: Mapping[TopicPartition, int | None], call: asyncio.Future[list[Piece]]) -> None:
        self._call = None
        if call.cancelled():
            return
        error = call.exception()
        self._begun |= starts.keys()
        for at, offset in starts.items():
            if at in self.starts and self.starts[at] == offset:
                del self.starts[at]
        if error is not None:
            self._fail(error)
            return
        for piece in call.result():
            if piece.at not in self.starts:  # it is elsewhere by now
                self._keep(piece)

    def _fail(self, error: BaseException) -> None:
        """Nothing is read any more until it is sought."""
        for at in self._begun - self.starts.keys():
            self.failed[at] = error
        self._begun = set()

    def _keep(self, piece: Piece) -> None:
        at = piece.at
        if piece.failed is not None:
            self._begun.discard(at)
            self.failed[at] = piece.failed
            return
        self._held[at] += piece.messages
        self._bytes[at] += _bytes_of(piece.messages)
        self._ends.pop(at, None)
        if piece.end is not None:
            self._ends[at] = piece.end


def _bytes_of(messages: Sequence[Any]) -> int:
    return sum(map(len, messages)) + _MESSAGE_BYTES * len(messages)
