"""A cluster in memory that is copied, as connections see it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import pyarrow as pa

from headrace.records import TopicPartition
from headrace_common.core.batch.arrow_schema import headers_type
from headrace_connect.connectors.copying.port import Fetched, Moved, Recreated, SourceCluster, SourceTopic, TopicGone
from headrace_connect.connectors.copying.settings import CopySettings
from headrace_connect.connectors.copying.source import CopySource
from headrace_connect.plugin import RetriableError, TopicState

_IDS = count(1)


@dataclass
class Log:
    """A partition: values by offset, and its bounds."""

    values: dict[int, bytes] = field(default_factory=dict)
    start: int = 0
    end: int = 0

    def write(self, *values: bytes | None) -> None:
        """None: an offset without a record, as a marker has."""
        for value in values:
            if value is not None:
                self.values[self.end] = value
            self.end += 1

    def delete_below(self, start: int) -> None:
        self.start = start
        self.values = {at: value for at, value in self.values.items() if at >= start}

    def truncate(self, end: int) -> None:
        self.end = end
        self.values = {at: value for at, value in self.values.items() if at < end}


@dataclass
class Topic:
    logs: list[Log]
    configs: dict[str, str] = field(default_factory=dict)
    id: str = field(default_factory=lambda: f"id{next(_IDS)}")


@dataclass
class System:
    """What is there, whoever is connected."""

    topics: dict[str, Topic] = field(default_factory=dict)
    groups: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    members: dict[str, int] = field(default_factory=dict)
    cluster: str = "source"
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    is_away: bool = False

    def log(self, topic: str, partition: int = 0) -> Log:
        return self.topics[topic].logs[partition]


class Connection:
    """Satisfies ``SourceCluster``."""

    def __init__(self, system: System, rows_max: int = 4) -> None:
        self.system = system
        self.rows_max = rows_max
        self.at: dict[TopicPartition, int] = {}
        self.seen: dict[TopicPartition, str] = {}
        self.idle: set[TopicPartition] = set()

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def cluster_id(self) -> str:
        return self.system.cluster

    async def topics(self) -> Mapping[str, SourceTopic]:
        return {name: SourceTopic(one.id, len(one.logs), one.configs) for name, one in self.system.topics.items()}

    async def topic_id(self, topic: str) -> str:
        if topic not in self.system.topics:
            raise TopicGone(topic)
        return self.system.topics[topic].id

    async def end_offsets(self, partitions: list[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {at: self.system.log(*at).end for at in partitions}

    def seek(self, at: TopicPartition, offset: int | None) -> None:
        self.at[at] = -1 if offset is None else offset
        self.seen.pop(at, None)
        self.idle.discard(at)

    async def take(self, at: TopicPartition) -> Fetched:
        while True:
            fetched = self._take(at)
            if fetched is not None:
                return fetched
            self.system.changed.clear()
            await self.system.changed.wait()

    def _take(self, at: TopicPartition) -> Fetched | None:
        if self.system.is_away:
            raise RetriableError("the source does not answer")
        topic = self.system.topics.get(at.topic)
        if topic is None:
            raise TopicGone(at.topic)
        if self.seen.setdefault(at, topic.id) != topic.id:
            self.seek(at, None)
            raise Recreated(at.topic)
        log, position = topic.logs[at.partition], self.at[at]
        if position < 0:
            position = log.start
        if not log.start <= position <= log.end:
            self.at[at] = log.start if position < log.start else log.end
            raise Moved(f"{at}: offset {position} does not exist", self.at[at])
        offsets = [offset for offset in sorted(log.values) if offset >= position][: self.rows_max]
        more = any(offset > offsets[-1] for offset in log.values) if offsets else False
        after = offsets[-1] + 1 if more else log.end
        if not offsets and after == position and at in self.idle:
            return None
        self.at[at] = after
        (self.idle.discard if more else self.idle.add)(at)
        return Fetched(
            np.array(offsets, np.int64),
            pa.array([b"k%d" % offset if offset % 3 else None for offset in offsets], pa.binary()),
            pa.array([log.values[offset] for offset in offsets], pa.binary()),
            pa.array([1_000 + offset for offset in offsets], pa.int64()),
            pa.array([[{"key": "h", "value": b"%d" % offset}] for offset in offsets], headers_type()),
            after,
            not more,
        )

    async def group_members(self, group: str) -> int:
        return self.system.members.get(group, 0)

    async def group_positions(self, group: str) -> Mapping[TopicPartition, int]:
        return self.system.groups.get(group, {})


class Copying(CopySource):
    """Of a system in memory."""

    settings_type = CopySettings

    def __init__(self, settings: CopySettings, system: System) -> None:
        self.system = system
        super().__init__(settings)

    def connect(self, settings: CopySettings) -> SourceCluster:
        return Connection(self.system, settings.batch_max_rows)


@dataclass
class Targets:
    """Satisfies ``Topics``."""

    there: dict[str, TopicState] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    cluster: str = "target"

    async def cluster_id(self) -> str:
        return self.cluster

    async def describe(self) -> Mapping[str, TopicState]:
        return self.there

    async def create(self, name: str, partitions: int | None = None, configs: Mapping[str, str] | None = None) -> None:
        self.done.append(f"create {name} {partitions} {dict(configs or {})}")
        self.there[name] = TopicState(partitions or 1, dict(configs or {}))

    async def grow(self, name: str, partitions: int) -> None:
        self.done.append(f"grow {name} {partitions}")
        self.there[name] = TopicState(partitions, self.there[name].configs)

    async def configure(self, name: str, changes: Mapping[str, str | None]) -> None:
        self.done.append(f"configure {name} {dict(changes)}")
        configs = {**self.there[name].configs, **changes}
        kept = {key: value for key, value in configs.items() if value is not None}
        self.there[name] = TopicState(self.there[name].partitions, kept)

    async def end_offset(self, name: str, partition: int) -> int:
        return self.ends.get(TopicPartition(name, partition), 0)


def settings(*topics: str, **values: object) -> CopySettings:
    return CopySettings("eu", "nowhere:1", topics or ("orders",), **values)  # type: ignore[arg-type]
