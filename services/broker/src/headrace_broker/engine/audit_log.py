"""
WriteAudit: lines of nodes' audits, appended to partitions of ``__audit`` that this broker leads.

The servicer calls ``write`` once it knows that the caller is the node that it names. Nobody else appends there: not by
Produce, whatever its rights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from headrace_broker.engine.coordinators import Coordinators
from headrace_broker.engine.replicas import Replicas
from headrace_broker.engine.storage_loop import StorageLoop
from headrace_broker.engine.storage_queue import Arrival
from headrace_common.core.audit.canonical import LINE_BYTES_MAX
from headrace_common.core.batch import Codec, RecordColumns, build_batch, read_header
from headrace_common.core.errors import HeadraceError, Rejected, RequestTimedOut
from headrace_common.core.ids import Offset, PartitionId
from headrace_common.core.image import INTERNAL_TOPICS, NodeKey, ShardKind
from headrace_common.runtime.clock import Clock, limit_ms

AUDIT_TOPIC: Final = INTERNAL_TOPICS[ShardKind.AUDIT]
LINES_MAX: Final = 1_000
BYTES_MAX: Final = 8 << 20
COMMIT_MS_MAX: Final = 10_000
"""How long a request waits for its lines to be committed; whoever sent it sends it again."""


class _Call:
    """One batch on its way: what became of it."""

    acks: int = -1

    def __init__(self, deadline_ms: float) -> None:
        self.deadline_ms = deadline_ms
        self.done: asyncio.Future[HeadraceError | None] = asyncio.get_running_loop().create_future()

    def on_appended(self, index: int, base_offset: Offset, log_append_time_ms: int) -> None:
        """The storage loop says so."""
        del index, base_offset, log_append_time_ms
        self._decide(None)

    def on_refused(self, index: int, error: HeadraceError) -> None:
        """The storage loop says so."""
        del index
        self._decide(error)

    def _decide(self, error: HeadraceError | None) -> None:
        if not self.done.done():
            self.done.set_result(error)


class AuditLog:
    """One for the broker."""

    def __init__(self, replicas: Replicas, loop: StorageLoop, coordinators: Coordinators, clock: Clock) -> None:
        self._replicas = replicas
        self._loop = loop
        self._coordinators = coordinators
        self._clock = clock

    async def write(self, node: NodeKey, partition: int, lines: Sequence[bytes]) -> None:
        """
        Append the lines in order; all replicas in sync have them when this returns.

        Raises:
            Rejected: they are none that a node writes; nothing was appended.
            HeadraceError: they may be appended or not; send them again, here or to who leads the partition now.
        """
        if not 1 <= len(lines) <= LINES_MAX or sum(map(len, lines)) > BYTES_MAX:
            raise Rejected(f"a request takes 1 to {LINES_MAX} lines of at most {BYTES_MAX} bytes together")
        if max(map(len, lines)) > LINE_BYTES_MAX or not all(lines):
            raise Rejected(f"a line of the audit has 1 to {LINE_BYTES_MAX} bytes")
        topic = self._replicas.image.topic(AUDIT_TOPIC)
        if topic is None:
            await self._coordinators.make(ShardKind.AUDIT)
            topic = self._replicas.image.topic(AUDIT_TOPIC)
            assert topic is not None, "made, or an error was raised"
        replica = self._replicas.get_leading(PartitionId(topic.topic_id, partition), None)
        key = str(node).encode()
        columns = RecordColumns(list(lines), [key] * len(lines), self._clock.now_ms())
        batch = build_batch(columns, codec=Codec.ZSTD)
        call = _Call(self._clock.monotonic_ms() + COMMIT_MS_MAX)
        self._loop.append([Arrival(replica, read_header(batch), batch, None, call, 0)])
        try:
            async with limit_ms(COMMIT_MS_MAX):
                error = await call.done
        except TimeoutError:
            raise RequestTimedOut("the lines are not committed yet, their fate is unknown; send them again") from None
        if error is not None:
            raise error
