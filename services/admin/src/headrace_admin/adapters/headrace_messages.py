"""
The ``MessageLog`` port over the SDK: this service writes and reads as any client does.

In a closed cluster it is the client of whoever asks: brokers are shown the caller's API key and decide. A producer is
kept for each credential that was used of late; each read has a consumer of its own, because two reads of one partition
have two positions. Brokers are found through the cluster image, so no setting names them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from headrace import aio
from headrace.finding import ClusterAddress
from headrace.records import Record, TopicPartition
from headrace_admin.ports import Cluster, MessagePage, NewMessage, StoredMessage, WrittenMessage
from headrace_common.core.errors import LeaderNotAvailable, OffsetOutOfRange
from headrace_common.core.ids import Offset
from headrace_common.core.secret import Secret
from headrace_common.runtime.access_gate import by_itself
from headrace_common.runtime.clock import Clock

_DELIVERY_MS: Final = 30_000
PRODUCERS_MAX: Final = 16
"""Credentials whose producers are kept."""
_IDLE_MS: Final = 60_000
"""A producer is closed when it was not used for one or two of these."""
_POLL_MS_MIN: Final = 1_500
"""A read that is not to wait still gives a fetch the time to come back."""


@dataclass(slots=True, eq=False)
class _Kept:
    """A producer, and who uses it."""

    producer: aio.Producer
    uses: int = 0
    """Appends under way."""
    used: bool = True
    """Since idle ones were looked for."""


class HeadraceMessages:
    """One event loop."""

    def __init__(
        self, cluster: Cluster, ca: str | None = None, credential: Callable[[], str | None] = lambda: None
    ) -> None:
        """
        Args:
            ca: the file of the brokers' CAs; None: in plain text.
            credential: the API key of the caller for whom this runs; None: it shows none.
        """
        self._cluster = cluster
        self._ca = ca
        self._credential = credential
        self._kept: dict[str | None, _Kept] = {}

    async def append(self, topic: str, messages: Sequence[NewMessage]) -> Sequence[WrittenMessage]:
        """Idempotent, acknowledged by all in-sync replicas."""
        async with self._producer() as producer:
            deliveries = [
                await producer.send(
                    topic,
                    value=m.value,
                    key=m.key,
                    headers=list(m.headers),
                    partition=m.partition,
                    timestamp_ms=m.timestamp_ms,
                )
                for m in messages
            ]
            written = [await delivery for delivery in deliveries]
        return [WrittenMessage(w.partition, Offset(w.offset), w.timestamp_ms) for w in written]

    async def read(
        self, topic: str, partition: int, start: Offset | None, *, limit: int, bytes_max: int, wait_ms: int
    ) -> MessagePage:
        """One poll after the other until something came or the time is over."""
        where = TopicPartition(topic, partition)
        async with self._consumer(bytes_max) as consumer:
            await consumer.assign([where])
            begin = (await consumer.beginning_offsets([where]))[where]
            end = (await consumer.end_offsets([where]))[where]
            first = begin if start is None else start
            if not begin <= first <= end:
                raise OffsetOutOfRange(f"offset {first} is not there; {topic}-{partition} holds {begin} to {end}")
            consumer.seek(where, first)
            records = await _collected(consumer, limit, bytes_max, max(end, first), wait_ms)
        page = [_stored(record) for record in _within(records, bytes_max)]
        return MessagePage(page, Offset(page[-1].offset + 1 if page else first))

    async def end(self, topic: str, partition: int) -> Offset:
        """One past the last record that can be read."""
        where = TopicPartition(topic, partition)
        async with self._consumer(1) as consumer:
            return Offset((await consumer.end_offsets([where]))[where])

    async def follow(self, clock: Clock) -> None:
        """Close what is idle, for ever; a background task of ``main``."""
        while True:
            await clock.sleep_ms(_IDLE_MS)
            await self.close_idle()

    async def close_idle(self) -> None:
        """Close the producers of credentials that nobody has used since the last time."""
        for credential, kept in list(self._kept.items()):
            if credential is not None and not kept.uses and not kept.used:
                await self._drop(credential)
            kept.used = False

    async def close(self) -> None:
        for credential in list(self._kept):
            await self._drop(credential)

    @asynccontextmanager
    async def _producer(self) -> AsyncIterator[aio.Producer]:
        """That of the caller; what it does beyond this call it does for nobody in particular."""
        credential = self._credential()
        kept = self._kept.pop(credential, None)
        with by_itself():
            if kept is None:
                kept = _Kept(
                    aio.Producer(
                        self._bootstrap(credential),
                        linger_ms=0,
                        delivery_timeout_ms=_DELIVERY_MS,
                        request_timeout_ms=10_000,
                    )
                )
            self._kept[credential] = kept  # the last in order is the last used
            kept.uses += 1
            kept.used = True
            try:
                await self._trim()
                yield kept.producer
            finally:
                kept.uses -= 1

    async def _trim(self) -> None:
        """Close those that were not used for longest and are not in use."""
        for credential in [credential for credential, kept in self._kept.items() if not kept.uses]:
            if len(self._kept) <= PRODUCERS_MAX:
                break
            await self._drop(credential)

    async def _drop(self, credential: str | None) -> None:
        kept = self._kept.pop(credential, None)
        if kept is not None:
            await kept.producer.close()

    @asynccontextmanager
    async def _consumer(self, bytes_max: int) -> AsyncIterator[aio.Consumer]:
        consumer = aio.Consumer(
            bootstrap_servers=self._bootstrap(self._credential()),
            auto_offset_reset="none",
            fetch_max_bytes=bytes_max,
            max_partition_fetch_bytes=bytes_max,
        )
        try:
            yield consumer
        finally:
            await consumer.close()

    def _bootstrap(self, credential: str | None) -> ClusterAddress:
        brokers = [str(node.grpc) for node in self._cluster.image.brokers()]
        if not brokers:
            raise LeaderNotAvailable("no broker is registered; start one and try again")
        api_key = None if credential is None else Secret(credential)
        return ClusterAddress(tuple(brokers), "the cluster image", ca=self._ca, api_key=api_key)


async def _collected(consumer: aio.Consumer, limit: int, bytes_max: int, end: int, wait_ms: int) -> list[Record]:
    """What is there below ``end``; the first record above it where nothing is, if it comes in time."""
    records: list[Record] = []
    size = 0
    position = await consumer.position(next(iter(consumer.assignment())))
    wait: float = wait_ms if position >= end else max(wait_ms, _POLL_MS_MIN)
    while wait and len(records) < limit and size <= bytes_max:
        got = await consumer.poll(timeout_ms=wait, max_records=limit - len(records))
        if not got:
            break
        records += got
        size += sum(map(_size, got))
        if got[-1].offset + 1 >= end:
            break
    return records


def _size(record: Record) -> int:
    return len(record.key or b"") + len(record.value or b"") + sum(len(v or b"") for _, v in record.headers)


def _within(records: Sequence[Record], bytes_max: int) -> Sequence[Record]:
    size = 0
    for n, record in enumerate(records):
        size += _size(record)
        if n and size > bytes_max:
            return records[:n]
    return records


def _stored(record: Record) -> StoredMessage:
    return StoredMessage(
        Offset(record.offset), record.timestamp_ms, record.key, record.value, tuple((n, v) for n, v in record.headers)
    )
