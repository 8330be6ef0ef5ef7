"""Copying, from a cluster in memory: each record once whatever happens, and a sync for each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Hashable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from libs.connect.tests.connectors.copying.systems import Copying, Log, System, Targets, Topic, settings

from headrace.errors import InvalidConfig
from headrace.records import TopicPartition
from headrace_connect.connectors.copying.port import SourceGap
from headrace_connect.connectors.copying.syncs import decode, decode_key
from headrace_connect.connectors.copying.translating import History, NoTranslation
from headrace_connect.plugin import Chunk, Place, Position, Source, Split, Written
from headrace_connect.testing import SourceCase, check_source
from headrace_connect.testing.memory import MemoryLog

ORDERS = TopicPartition("orders", 0)


def filled(partitions: int = 2, rows: int = 15) -> System:
    """Records with gaps between: markers, and what compaction took."""
    logs = []
    for partition in range(partitions):
        log = Log()
        for row in range(rows):
            log.write(*[None] * (row % 4 == 1), b"%d-%d" % (partition, row), *[None] * (row % 5 == 2))
        logs.append(log)
    return System({"orders": Topic(logs)})


class OrdersCase(SourceCase):
    """Two partitions; each position has its translation, wherever a task was killed."""

    def __init__(self) -> None:
        self.system = filled()
        self.settings = settings(batch_max_rows=4)

    def make(self) -> Source[Any]:
        return Copying(self.settings, self.system)

    def go_away(self) -> bool:
        self.system.is_away = True
        self.system.changed.set()
        return True

    def come_back(self) -> None:
        self.system.is_away = False

    def identify(self, key: bytes | None, value: bytes | None) -> Hashable:
        return None if key is not None and key.startswith(b"[") else value

    def check(self, log: MemoryLog) -> None:
        syncs: dict[TopicPartition, list[Any]] = {}
        for one in log.records["eu.offset-syncs"]:
            syncs.setdefault(decode_key(one["key"]), []).append(decode(one["value"]))
        for partition in (0, 1):
            source = self.system.log("orders", partition)
            copied = {one["value"]: one["offset"] for one in log.records["orders"] if one["partition"] == partition}
            history = History(syncs[TopicPartition("orders", partition)])
            assert history.copied == source.end
            for position in range(source.end + 1):
                rest = [copied[value] for offset, value in source.values.items() if offset >= position]
                wanted = min(rest) if rest else max(copied.values()) + 1
                assert history.translate(position) == wanted


def test_the_suite() -> None:
    check_source(OrdersCase)


# --- chunks -----------------------------------------------------------------------------------------------------------


async def read(source: Copying, after: Position | None = None, *, until: int = 1, at: TopicPartition = ORDERS) -> Any:
    """Chunks until so many have said that there is no more for now."""
    split = Split(str(at), {"topic": at.topic, "partition": at.partition})
    chunks: list[Chunk] = []
    reading = source.read(split, after)
    async for chunk in reading:
        chunks.append(chunk)
        until -= chunk.drained
        if not until:
            break
    await reading.aclose()  # type: ignore[attr-defined]
    return chunks


def values_of(chunks: list[Chunk]) -> list[bytes]:
    return [value for chunk in chunks for value in pa.array(chunk.rows, pa.binary()).to_pylist()]


def test_records_are_copied_as_they_are() -> None:
    chunks = asyncio.run(read(Copying(settings(topic_prefix="eu.", batch_max_rows=3), filled(1, 4))))
    assert values_of(chunks) == [b"0-0", b"0-1", b"0-2", b"0-3"]
    first = chunks[0]
    assert (first.topic, first.partition, first.drained) == ("eu.orders", 0, False)
    assert pa.array(first.keys).to_pylist() == [None, b"k2", None]
    assert pa.array(first.timestamps_ms).to_pylist() == [1_000, 1_002, 1_003]
    assert first.headers.to_pylist()[1] == [{"key": "h", "value": b"2"}]
    assert chunks[-1].drained


def test_a_partition_without_records_has_a_position() -> None:
    system = System({"orders": Topic([Log()])})
    source = Copying(settings(), system)
    source.topics = Targets(ends={ORDERS: 42})
    [chunk] = asyncio.run(read(source))
    assert chunk.position == {"offset": 0, "topic_id": system.topics["orders"].id, "base": 42, "n": 0}


def test_only_markers_move_the_position() -> None:
    system = filled(1, 3)
    position = asyncio.run(read(Copying(settings(), system)))[-1].position
    system.log("orders").write(None, None)
    [chunk] = asyncio.run(read(Copying(settings(), system), position))
    assert len(chunk.rows) == 0
    assert (chunk.position["offset"], chunk.position["n"]) == (position["offset"] + 2, position["n"] + 1)
    [again] = asyncio.run(read(Copying(settings(), system), chunk.position))
    assert again.position == chunk.position


def test_what_retention_took_is_told() -> None:
    system = filled(1)
    position = asyncio.run(read(Copying(settings(batch_max_rows=4), system)))[0].position
    system.log("orders").delete_below(15)
    chunks = asyncio.run(read(Copying(settings(), system), position))
    [bad] = chunks[0].bad
    assert "offset 6 does not exist; going on at 15. With errors.tolerance=all" in bad.reason
    assert json.loads(bad.raw) == {"topic": "orders", "partition": 0, "from": 6, "to": 15}
    assert chunks[0].position["offset"] == 15
    assert values_of(chunks) == [value for offset, value in sorted(system.log("orders").values.items())]


def test_a_source_that_is_shorter_than_what_was_copied_is_told() -> None:
    system = filled(1)
    position = asyncio.run(read(Copying(settings(), system)))[-1].position
    system.log("orders").truncate(6)
    chunks = asyncio.run(read(Copying(settings(), system), position))
    assert json.loads(chunks[0].bad[0].raw) == {"topic": "orders", "partition": 0, "from": 6, "to": 6}
    assert (chunks[0].position["offset"], values_of(chunks)) == (6, [])


@pytest.mark.parametrize("while_reading", [True, False])
def test_a_topic_that_was_made_again_is_told_and_copied_from_its_beginning(while_reading: bool) -> None:
    system = filled(1, 3)
    source = Copying(settings(), system)
    source.topics = targets = Targets()

    async def go() -> list[Chunk]:
        before = await read(source)
        make_again()
        return list(await read(source, before[-1].position))

    async def go_while_reading() -> list[Chunk]:
        split = Split("orders-0", {"topic": "orders", "partition": 0})
        chunks = []
        async for chunk in source.read(split, None):
            chunks.append(chunk)
            if chunk.drained and len(chunks) > 2:
                return chunks[1:]
            if chunk.drained:
                make_again()
        raise AssertionError

    def make_again() -> None:
        system.topics["orders"] = Topic([Log({0: b"new"}, 0, 1)])
        targets.ends[ORDERS] = 30

    chunks = asyncio.run(go_while_reading() if while_reading else go())
    assert "the topic was deleted at the source and made again" in chunks[0].bad[0].reason
    assert values_of(chunks) == [b"new"]
    assert chunks[-1].position == {"offset": 1, "topic_id": system.topics["orders"].id, "base": 30, "n": 3}


def test_a_topic_that_is_deleted_fails_or_ends() -> None:
    system = filled(1, 3)
    position = asyncio.run(read(Copying(settings(), system)))[-1].position
    del system.topics["orders"]
    with pytest.raises(SourceGap, match=r"orders-0: the topic was deleted at the source.*topics.missing=wait"):
        asyncio.run(read(Copying(settings(), system), position))
    assert asyncio.run(read(Copying(settings(topics_missing="wait"), system), position)) == []


@pytest.mark.parametrize("position", [{}, {"offset": 1}, {"offset": -1, "topic_id": "x", "base": 0, "n": 0}, {"at": 1}])
def test_positions_of_others_are_refused(position: Position) -> None:
    with pytest.raises(InvalidConfig, match="no position of a partition"):
        asyncio.run(read(Copying(settings(), filled()), position))


# --- transforms -------------------------------------------------------------------------------------------------------


def history_with(places: list[Place]) -> History:
    """Of three records at offsets 0, 2 and 3, of which these are where the places say."""
    source = Copying(settings(), filled(1, 4))
    [chunk, *_] = asyncio.run(read(Copying(settings(batch_max_rows=3), source.system)))
    written = Written(Split("orders-0", {"topic": "orders", "partition": 0}), chunk, places)
    [note] = asyncio.run(source.note([written]))  # type: ignore[arg-type]
    assert (note.topic, decode_key(note.key)) == ("eu.offset-syncs", ORDERS)
    sync = decode(note.value or b"")
    assert sync is not None
    return History([sync])


def place_of(topic: str, rows: list[int], offsets: list[int]) -> Place:
    return Place(topic, np.array(rows), np.zeros(len(rows), np.int64), np.array(offsets))


def test_records_that_a_transform_leaves_out_have_the_place_of_the_next() -> None:
    history = history_with([place_of("orders", [0, 2], [70, 71])])
    assert [history.translate(position) for position in (0, 1, 2, 3, 4)] == [70, 71, 71, 71, 72]


def test_where_a_transform_changes_the_topic_nothing_is_translated() -> None:
    places = [place_of("orders", [0, 2], [70, 71]), place_of("elsewhere", [1], [5])]
    with pytest.raises(NoTranslation, match="a transform changes the topic"):
        history_with(places).translate(0)


# --- topics -----------------------------------------------------------------------------------------------------------


def splits(source: Copying) -> list[str]:
    return [split.id for split in asyncio.run(source.splits())]  # type: ignore[arg-type]


def test_the_target_follows_before_a_partition_is_read() -> None:
    system = filled(2)
    system.topics["orders"].configs["retention.ms"] = "7"
    source = Copying(settings(".*", topic_prefix="eu."), system)
    source.topics = targets = Targets()
    assert splits(source) == ["orders-0", "orders-1"]
    syncs = "create eu.offset-syncs 1 {'cleanup.policy': 'compact'}"
    assert targets.done == ["create eu.orders 2 {'retention.ms': '7'}", syncs]
    system.topics["orders"].logs.append(Log())
    system.topics["orders"].configs["retention.ms"] = "8"
    system.topics["parcels"] = Topic([Log()])
    assert splits(source) == ["orders-0", "orders-1", "orders-2", "parcels-0"]
    assert targets.done[2:] == [
        "grow eu.orders 3",
        "configure eu.orders {'retention.ms': '8'}",
        "create eu.parcels 1 {}",
    ]
    assert splits(source)
    assert len(targets.done) == 5


def test_nothing_is_changed_for_a_look() -> None:
    assert splits(Copying(settings(), filled())) == ["orders-0", "orders-1"]


def test_a_cluster_is_not_copied_onto_itself() -> None:
    source = Copying(settings(), filled())
    source.topics = Targets(cluster="source")
    with pytest.raises(InvalidConfig, match="the source is the target"):
        splits(source)
    source = Copying(settings(topic_prefix="copy."), filled())
    source.topics = Targets(cluster="source")
    assert splits(source)


def test_a_named_topic_that_is_missing() -> None:
    with pytest.raises(InvalidConfig, match=r"there is no topic parcels at the source.*topics.missing=wait"):
        splits(Copying(settings("orders", "parcels"), filled()))
    assert splits(Copying(settings("orders", "parcels", topics_missing="wait"), filled()))
    assert splits(Copying(settings("x.*"), filled())) == []
    said = asyncio.run(Copying(settings("order", "x.*"), filled()).check())  # type: ignore[arg-type]
    assert [one.split(" at ")[0] for one in said] == ["topics: there is no topic order", "topics: no topic matches x.*"]


def test_names_of_splits_are_short_enough_and_different() -> None:
    long = {"a" * 245 + end: Topic([Log() for _ in range(1001)]) for end in ("1234", "1235")}
    ids = splits(Copying(settings(".*"), System(long)))
    assert len(set(ids)) == 2002
    assert max(map(len, ids)) <= 249
