"""
What the committed log of a shard says: the truth about groups and transactions in a cluster of the lab.

``CommittedShards`` looks into real brokers and coordinators. Each batch of an internal topic that any leader ever
counts as committed is told once, in the order of the log, with the very rows that the coordinator gave to its writer:
whoever notes something at a row (in a subclass of tuple, made where rows leave the outbox) finds it again here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_broker.core.fences import token_in
from headrace_broker.core.partition import Partition as Core
from headrace_broker.core.rows import IndexRow
from headrace_broker.engine.image_applier import ImageApplier
from headrace_broker.engine.replicas import Replicas
from headrace_common.core.batch import decode_batch, read_header
from headrace_common.core.ids import Offset, PartitionId
from headrace_common.core.image import INTERNAL_TOPICS, ShardKey, ShardKind
from headrace_coordinator.adapters.grpc_shard_log import GrpcShardLog
from headrace_coordinator.core.effects import Row
from headrace_coordinator.core.records import NOTE
from headrace_lab.loop import NODE, Node

_KINDS = {name: kind for kind, name in INTERNAL_TOPICS.items()}


@dataclass(frozen=True, slots=True)
class Entry:
    """One batch that is committed."""

    token: int
    """Of the writer."""
    rows: Sequence[Row]
    fence: bool = False
    """Whether it sets the token, and is nothing else."""


@dataclass(eq=False)
class CommittedShards:
    """Of one cluster; made before it starts. ``told`` is called in the midst of a broker's work: it must not raise."""

    told: Callable[[ShardKey, Entry], None]
    latest: dict[ShardKey, dict[bytes, bytes | None]] = field(default_factory=dict)
    """Of each shard, decoded from its log: the last value of each key."""
    _written: dict[tuple[int, int, int], tuple[int, Sequence[Row]]] = field(default_factory=dict)
    """Token and rows by producer id, epoch and first sequence."""
    _parts: dict[GrpcShardLog, Sequence[Row]] = field(default_factory=dict)
    """What each writer has under way."""
    _brokers: dict[Node, tuple[Replicas, MemoryLogs]] = field(default_factory=dict)
    _ends: dict[PartitionId, int] = field(default_factory=dict)
    """Of what is committed."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While this runs all brokers and coordinators of this process are looked at."""
        opened, handled = ImageApplier.__init__, Core.handle
        appended, produced = GrpcShardLog._append_part, GrpcShardLog._produce

        def __init__(one: ImageApplier, *rest: Any) -> None:
            opened(one, *rest)
            assert isinstance(one._store, MemoryLogs), "the lab's brokers have no other"
            self._brokers[NODE.get()] = one._replicas, one._store

        def handle(core: Core, event: Any) -> Any:
            before = core.high_watermark
            effects = handled(core, event)
            if core.high_watermark > before and core.leader_epoch is not None:
                self._moved(core)
            return effects

        async def _append_part(log: GrpcShardLog, part: Sequence[Row]) -> Any:
            self._parts[log] = part
            return await appended(log, part)

        async def _produce(log: GrpcShardLog, leader: Any, batch: bytes, token: int | None) -> Any:
            if token is not None:
                assert log._producer is not None, "only fences go without"
                self._written[*log._producer, log._sequence] = token, self._parts[log]
            return await produced(log, leader, batch, token)

        with ExitStack() as patches:
            patches.enter_context(patch.object(ImageApplier, "__init__", __init__))
            patches.enter_context(patch.object(Core, "handle", handle))
            patches.enter_context(patch.object(GrpcShardLog, "_append_part", _append_part))
            patches.enter_context(patch.object(GrpcShardLog, "_produce", _produce))
            yield

    def _moved(self, core: Core) -> None:
        """A leader counts more as committed."""
        known = self._brokers.get(NODE.get())
        replica = None if known is None else known[0].get(core.id)
        if known is None or replica is None or replica.core is not core or not replica.internal:
            return
        topic = next((t for t in known[0].image.topics.values() if t.topic_id == core.id.topic_id), None)
        kind = None if topic is None else _KINDS.get(topic.name)
        if kind is not None:
            self._tell(kind, core, known[1])

    def _tell(self, kind: ShardKind, core: Core, store: MemoryLogs) -> None:
        key, end = ShardKey(kind, core.id.partition), self._ends.get(core.id, 0)
        batches = store._live[core.log].batches
        for row in list(store.index(core.log, Offset(end), core.high_watermark)):
            self._ends[core.id] = row.next_offset
            entry = self._entry(row, batches[row.base_offset])
            if entry is not None:
                self.latest.setdefault(key, {}).update(entry.rows)
                self.told(key, entry)

    def _entry(self, row: IndexRow, batch: bytes) -> Entry | None:
        header = read_header(batch)
        if header.control:
            token = token_in(header, batch)
            return None if token is None else Entry(token, (), fence=True)
        token, rows = self._written[row.producer_id, row.producer_epoch, row.base_sequence]
        found = decode_batch(batch)
        said = [one for one in zip(found.keys(), found.values(), strict=True) if one[0] != NOTE]
        assert said == [tuple(one) for one in rows], "the log has what was given to it"
        return Entry(token, rows)
