"""Ranges of a sink's topics beside its target: which are compared, and what retention removes meanwhile."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from headrace.records import PartitionTable, TopicPartition
from headrace_common.core.errors import InvalidConfig
from headrace_connect import Rows, Sink
from headrace_connect.core.progress import Progress
from headrace_connect.plugin import Checked
from headrace_connect.runtime import verifying
from headrace_connect.runtime.configuring import configure
from headrace_connect.runtime.pipeline import HEADERS_TYPE
from headrace_connect.runtime.verifying import PARTITIONS_MAX, RANGE, RANGES_MAX, verify
from headrace_connect.secrets import Secrets

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
AT_ONCE = 4_000


@dataclass
class Log:
    """Topics, and the target: what was asked of both is in ``said``."""

    ends: dict[TopicPartition, int] = field(default_factory=lambda: {P0: 2 * RANGE + 5, P1: 10})
    start: int = 0
    """Of all partitions."""
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    """Of the target; of all others the ends."""
    removes_at: dict[int, int] = field(default_factory=dict)
    """When so many tables were read: where the logs begin from then on."""
    reads: int = 0
    checked: list[tuple[TopicPartition, int, int, list[int]]] = field(default_factory=list)
    """Partition, first, end, and the offsets of the records."""
    closed: list[str] = field(default_factory=list)
    learns: bool = False
    """Whether the verifier wants to know all records first."""
    learnt: list[int] = field(default_factory=list)

    # the reader

    async def starts(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(partitions, self.start)

    async def ends_of(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {one: self.ends[one] for one in partitions}

    async def read(self, one: TopicPartition, start: int, end: int) -> AsyncGenerator[PartitionTable, None]:
        at = start
        while at < end:
            self.reads += 1
            self.start = self.removes_at.get(self.reads, self.start)
            at = max(at, self.start)
            offsets = list(range(at, min(at + AT_ONCE, end)))
            if not offsets:
                return
            yield table(one, offsets)
            at = offsets[-1] + 1


def table(one: TopicPartition, offsets: list[int]) -> PartitionTable:
    count, end = len(offsets), offsets[-1] + 1
    columns = {
        "offset": pa.array(offsets, pa.int64()),
        "timestamp_ms": pa.array([0] * count, pa.int64()),
        "key": pa.nulls(count, pa.binary()),
        "value": pa.array([b"{" if offset == 7 else b'{"n":1}' for offset in offsets], pa.binary()),
        "headers": pa.array([[]] * count, HEADERS_TYPE),
    }
    return PartitionTable(one.topic, one.partition, pa.table(columns), end, 0, end, end)


class Comparing:
    """Satisfies ``Verifier``: one record of each range is missing."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.learns = log.learns

    def begin(self, partitions: Sequence[TopicPartition], *, repair: bool) -> Mapping[TopicPartition, int]:
        del repair
        return {one: self._log.positions.get(one, self._log.ends[one]) for one in partitions}

    def learn(self, rows: Rows) -> None:
        self._log.learnt += rows.offsets.to_pylist()

    def check(self, partition: TopicPartition, rows: Sequence[Rows], first: int, end: int) -> Checked:
        offsets = [offset for part in rows for offset in part.offsets.to_pylist()]
        self._log.checked.append((partition, first, end, offsets))
        return Checked(len(offsets), missing=offsets[:1])

    def finish(self) -> None:
        self._log.closed.append("finish")

    def close(self) -> None:
        self._log.closed.append("verifier")


class Target(Sink):
    """Of the log of this test."""

    log: ClassVar[Log]

    def write(self, rows: Any) -> None:
        """Never run."""

    def verifier(self) -> Any:
        return Comparing(self.log)


async def verified(
    monkeypatch: pytest.MonkeyPatch,
    log: Log,
    records_max: int = 10**9,
    *topics: str,
    tell: Callable[[Progress], None] = lambda _: None,
) -> Any:
    async def partitions(*_: object) -> list[TopicPartition]:
        return sorted(log.ends)

    Target.log = log
    reader: Any = SimpleNamespace(starts=log.starts, ends=log.ends_of, read=log.read)

    class Reader:
        def __init__(self, _: object) -> None:
            pass

        async def __aenter__(self) -> Any:
            return reader

        async def __aexit__(self, *_: object) -> None:
            log.closed.append("reader")

    monkeypatch.setattr(verifying, "TopicReader", Reader)
    monkeypatch.setattr(verifying, "find_partitions", partitions)
    configured = configure({"name": "c", "connector.class": f"{__name__}:Target", "topics": "t"}, Secrets())
    process: Any = SimpleNamespace(topics=None, config=None)
    return await verify(configured, process, topics, records_max=records_max, repair=False, tell=tell)


async def test_ranges_of_each_partition_up_to_where_the_target_is(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(positions={P1: 4})
    found = await verified(monkeypatch, log)
    assert [one[:3] for one in log.checked] == [
        (P0, 0, RANGE),
        (P0, RANGE, 2 * RANGE),
        (P0, 2 * RANGE, 2 * RANGE + 5),
        (P1, 0, 4),
    ]
    for _, first, end, offsets in log.checked:
        assert offsets == [offset for offset in range(first, end) if offset != 7]
    assert [one["refused"] for one in found["ranges"]] == [1, 0, 0, 0]
    assert [one["examples"] for one in found["ranges"]] == [[0], [RANGE], [2 * RANGE], [0]]
    assert (found["wrong"], found["agrees"]) == (4, False)
    assert log.closed == ["reader", "finish", "verifier"]


async def test_of_each_partition_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(start=3)
    await verified(monkeypatch, log, 8)
    assert [one[:3] for one in log.checked] == [(P0, 2 * RANGE - 3, 2 * RANGE + 5), (P1, 3, 10)]


async def test_what_retention_has_removed_of_a_target_that_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(start=5, positions={P0: 3, P1: 9})
    await verified(monkeypatch, log)
    assert [one[:3] for one in log.checked] == [(P1, 5, 9)]


async def test_what_retention_removes_meanwhile_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repair would delete rows whose records are gone."""
    log = Log(ends={P0: 3 * RANGE}, removes_at={2: RANGE // 2, 6: 2 * RANGE + 1})
    await verified(monkeypatch, log)
    assert [one[:3] for one in log.checked] == [(P0, RANGE // 2, RANGE), (P0, 2 * RANGE + 1, 3 * RANGE)]
    for _, first, end, offsets in log.checked:
        assert offsets == list(range(first, end))


async def test_a_range_that_is_removed_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(ends={P0: RANGE}, removes_at={2: RANGE})
    found = await verified(monkeypatch, log)
    assert (log.checked, found["ranges"], found["agrees"]) == ([], [], True)


async def test_a_target_of_another_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidConfig, match="has position 11 of t-1, which ends at 10"):
        await verified(monkeypatch, Log(positions={P1: 11}))


async def test_how_far_it_is_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Progress] = []
    log = Log(ends={P0: 2 * RANGE + 5, P1: 10}, learns=True)
    await verified(monkeypatch, log, tell=told.append)
    assert sorted(log.learnt) == sorted([o for o in range(2 * RANGE + 5) if o != 7] + [o for o in range(10) if o != 7])
    count = 2 * RANGE + 15
    assert told[0] == Progress(count, 0, 0)
    scanned = [one.scanned for one in told if not one.compared]
    assert scanned == [0, 3 * AT_ONCE, 2 * RANGE + 5, count]
    assert [one.compared for one in told if one.compared] == [RANGE, 2 * RANGE, 2 * RANGE + 5, count]


async def test_offsets_that_retention_has_removed_count_as_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Progress] = []
    await verified(monkeypatch, Log(ends={P0: RANGE}, removes_at={2: RANGE}), tell=told.append)
    assert told == [Progress(RANGE, 0, 0), Progress(RANGE, 0, RANGE)]


async def test_more_ranges_than_are_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(ends={P0: RANGE * RANGES_MAX + 1})
    with pytest.raises(InvalidConfig, match="they are 10,001 ranges of 10,000 offsets"):
        await verified(monkeypatch, log)
    assert log.closed == ["reader", "verifier"], "nothing was changed, and all is closed"


async def test_more_partitions_than_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(ends={TopicPartition("t", number): 1 for number in range(PARTITIONS_MAX + 1)})
    with pytest.raises(InvalidConfig, match="they have 1001 partitions"):
        await verified(monkeypatch, log)


async def test_topics_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(ends={P0: 1, TopicPartition("u", 0): 1})
    await verified(monkeypatch, log, 10, "u")
    assert [one[0].topic for one in log.checked] == ["u"]
    with pytest.raises(InvalidConfig, match="c reads no topic 'w'"):
        await verified(monkeypatch, log, 10, "u", "w")
