"""The ``MessageLog`` port in memory, for tests: the same rules, no cluster."""

from __future__ import annotations

from collections.abc import Sequence

from headrace_admin.ports import MessagePage, NewMessage, StoredMessage, WrittenMessage
from headrace_common.core.errors import OffsetOutOfRange
from headrace_common.core.ids import Offset


class MemoryMessages:
    """Keeps what was appended; never waits."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._logs: dict[tuple[str, int], list[StoredMessage]] = {}

    async def append(self, topic: str, messages: Sequence[NewMessage]) -> Sequence[WrittenMessage]:
        """Partition 0 where none is named."""
        written = []
        for message in messages:
            partition = message.partition or 0
            log = self._logs.setdefault((topic, partition), [])
            timestamp = self._now_ms if message.timestamp_ms is None else message.timestamp_ms
            log.append(StoredMessage(Offset(len(log)), timestamp, message.key, message.value, message.headers))
            written.append(WrittenMessage(partition, Offset(len(log) - 1), timestamp))
        return written

    async def read(
        self, topic: str, partition: int, start: Offset | None, *, limit: int, bytes_max: int, wait_ms: int
    ) -> MessagePage:
        """What is there."""
        log = self._logs.get((topic, partition), [])
        first = start or 0
        if first > len(log):
            raise OffsetOutOfRange(f"offset {first} is not in 0..{len(log)}; ask for one that is")
        page: list[StoredMessage] = []
        room = bytes_max
        for message in log[first : first + limit]:
            room -= len(message.key or b"") + len(message.value or b"")
            if page and room < 0:
                break
            page.append(message)
        return MessagePage(page, Offset(first + len(page)))

    async def end(self, topic: str, partition: int) -> Offset:
        """The log's length."""
        return Offset(len(self._logs.get((topic, partition), [])))
