"""The same logs in a cluster of the lab and at a real broker, for what both have to do alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import pytest
from libs.sdk.tests.kit.broker_thread import BrokerThread
from libs.sdk.tests.kit.cluster import LabCluster

from headrace import LogWatch, RangeReader
from headrace_common.core.batch import RecordColumns, build_batch

TOPICS = {"t": 2, "one": 1}
NOW_MS = 1_700_000_000_000


class LogWorld(Protocol):
    """Topics ``t`` (2 partitions) and ``one`` (1), empty at first."""

    def append(self, topic: str, partition: int, values: Sequence[bytes], *, timestamp_ms: int = NOW_MS) -> None:
        """One batch."""
        ...

    def trim(self, topic: str, partition: int, offset: int) -> None:
        """Delete what is below."""
        ...

    def show(self, topics: dict[str, int]) -> None:
        """These are the topics now; one that was not shown for a time is another one when it comes back."""
        ...

    def watch(self, **settings: Any) -> LogWatch: ...

    def reader(self, ranges: Iterable[tuple[str, int, int, int]], **settings: Any) -> RangeReader: ...


class LabWorld:
    """In this process."""

    def __init__(self, cluster: LabCluster) -> None:
        self.memory = cluster
        self._topics: dict[str, int] = {}
        self.show(TOPICS)

    def append(self, topic: str, partition: int, values: Sequence[bytes], *, timestamp_ms: int = NOW_MS) -> None:
        batch = build_batch(RecordColumns(values=list(values), timestamps_ms=timestamp_ms))
        self.memory.append(topic, partition, batch)

    def trim(self, topic: str, partition: int, offset: int) -> None:
        self.memory.trim(topic, partition, offset)

    def show(self, topics: dict[str, int]) -> None:
        for name in self._topics.keys() - topics.keys():
            self.memory.delete_topic(name)
        for name, partitions in topics.items():
            if name not in self._topics:
                self.memory.create_topic(name, partitions)
            elif partitions > self._topics[name]:
                self.memory.add_partitions(name, partitions - self._topics[name])
        self._topics = dict(topics)

    def watch(self, **settings: Any) -> LogWatch:
        return self.memory.log_watch(**settings)

    def reader(self, ranges: Iterable[tuple[str, int, int, int]], **settings: Any) -> RangeReader:
        return self.memory.range_reader(ranges, **settings)


class BrokerWorld:
    """A real broker, over gRPC."""

    def __init__(self) -> None:
        self.broker = BrokerThread(TOPICS)

    def append(self, topic: str, partition: int, values: Sequence[bytes], *, timestamp_ms: int = NOW_MS) -> None:
        self.broker.append(topic, partition, values, timestamps_ms=timestamp_ms)

    def trim(self, topic: str, partition: int, offset: int) -> None:
        self.broker.trim(topic, partition, offset)

    def show(self, topics: dict[str, int]) -> None:
        self.broker.show(topics)

    def watch(self, **settings: Any) -> LogWatch:
        return LogWatch(self.broker.address, **settings)

    def reader(self, ranges: Iterable[tuple[str, int, int, int]], **settings: Any) -> RangeReader:
        return RangeReader(self.broker.address, ranges, **settings)


@pytest.fixture(params=["lab", "broker"])
def world(request: pytest.FixtureRequest) -> Iterator[LogWorld]:
    if request.param == "lab":
        yield LabWorld(request.getfixturevalue("labs")())
        return
    real = BrokerWorld()
    yield real
    real.broker.stop()


def numbered(start: int, end: int) -> list[bytes]:
    return [b"%d" % n for n in range(start, end)]
