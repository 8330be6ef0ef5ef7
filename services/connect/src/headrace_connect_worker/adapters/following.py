"""Reads a topic from its beginning, for good: keys and values, and whether that was all there was."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from headrace import aio
from headrace.records import TopicPartition
from headrace_common.core.errors import HeadraceError, Rejected, Then
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.logs import logger
from headrace_connect_worker.core.encoding import UnreadableRecord

ROWS_MAX: Final = 10_000
_POLL_MS: Final = 500.0
_PAUSE_MS: Final = 200.0
Record = TypeVar("Record")
_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class RawRead:
    """Records of one poll, in the order of each partition."""

    records: Sequence[tuple[int, bytes | None, bytes | None]]
    """Offset, key, value."""
    at_end: bool
    """Whether every partition was read to the end that it had."""


async def follow_topic(servers: str, topic: str, partitions: int, clock: Clock) -> AsyncIterator[RawRead]:
    """
    Committed records of all partitions, for good; says at least once that the end was reached. While brokers are away
    it waits.

    Raises:
        Rejected: the topic was deleted and made anew, or has lost records that were read: what was read counts no more.
        HeadraceError: something that waiting does not mend.
    """
    resets: list[object] = []
    assigned = [TopicPartition(topic, number) for number in range(partitions)]
    behind = set(assigned)
    consumer: aio.Consumer[Any, Any] = aio.Consumer(
        bootstrap_servers=servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        on_position_reset=resets.append,
    )
    async with consumer:
        await consumer.assign(assigned)
        consumer.seek_to_beginning(*assigned)
        while True:
            try:
                tables = await consumer.poll_batches(_POLL_MS, ROWS_MAX)
            except HeadraceError as error:
                if error.then != Then.RETRY:
                    raise
                _log.warning("%s cannot be read: %s", topic, error)
                await clock.sleep_ms(_PAUSE_MS)
                continue
            if resets:
                raise Rejected(f"topic {topic} is not what it was ({resets[0]}): start the workers anew")
            records: list[tuple[int, bytes | None, bytes | None]] = []
            for table in tables:
                columns = [table.table.column(name).to_pylist() for name in ("offset", "key", "value")]
                records += zip(*columns, strict=True)
                at = TopicPartition(table.topic, table.partition)
                if table.end_offset < 0 or table.next_offset < table.end_offset:
                    behind.add(at)
                else:
                    behind.discard(at)
            if tables:
                yield RawRead(records, not behind)


def decode_each(
    read: RawRead, decode: Callable[[bytes | None, bytes | None], Record | None], topic: str
) -> list[tuple[int, Record]]:
    """Offsets and records; the log says what was skipped because it cannot be read."""
    found: list[tuple[int, Record]] = []
    for offset, key, value in read.records:
        try:
            record = decode(key, value)
        except UnreadableRecord as error:
            _log.warning("offset %d of %s is skipped: %s", offset, topic, error)
            continue
        if record is not None:
            found.append((offset, record))
    return found
