"""A real Kafka that is copied while it and the connector are killed. ``make kafka-import``: needs Java 17 and Maven."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import confluent_kafka as kafka
import pytest
from bench.kafka_side import KafkaSide
from libs.connect.tests.connectors.copying.contract import ClusterContract, Site
from libs.connect.tests.connectors.kafka_import.real import FOR_EVER, RealSite
from tests.integration.connect.killing import run
from tests.integration.connect.test_mirror import contents, read_some, servers
from typer.testing import CliRunner

from headrace.testing import TestCluster
from headrace_cli.app import app

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(1_800),
    pytest.mark.skipif(not os.environ.get("HEADRACE_REAL_KAFKA"), reason="make kafka-import starts a real Kafka"),
]
_PARTITIONS: Final = 4
_RECORDS: Final = 120_000
_BATCH: Final = 500
_LIMIT_S: Final = 300.0
_KILLS: Final = 9
_STEPS: Final = ("noted", "positions", "committed")
Told = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]


@pytest.fixture(scope="module")
def side() -> Iterator[KafkaSide]:
    with KafkaSide.running(warm=False) as running:
        yield running


class TestReal(ClusterContract):
    @pytest.fixture
    def site(self, side: KafkaSide) -> Site:
        return RealSite(side.bootstrap)


class Writer(threading.Thread):
    """Writes transactions, of which each third is aborted, and begins anew where Kafka was killed."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.bootstrap, self.topic = bootstrap, topic
        self.committed = self.aborted = self.rounds = 0
        self.enough = threading.Event()
        """Set: it ends, when it has written what it has to."""

    def run(self) -> None:
        until = time.monotonic() + 2 * _LIMIT_S
        while not self._done() and time.monotonic() < until:
            try:
                self._write()
            except kafka.KafkaException:
                time.sleep(0.5)  # Kafka was killed

    def _done(self) -> bool:
        return self.committed >= _RECORDS and self.enough.is_set()

    def _write(self) -> None:
        producer = kafka.Producer(
            {"bootstrap.servers": self.bootstrap, "transactional.id": "w", "log_level": 0, "linger.ms": 5}
        )
        producer.init_transactions(30)
        while not self._done():
            self.rounds += 1
            if self.committed >= _RECORDS:
                self.enough.wait(0.2)  # slower, until all are killed
            commits = self.rounds % 3 != 0
            producer.begin_transaction()
            for number in range(_BATCH):
                value = b"%d-%d %s" % (self.rounds, number, b"seen" if commits else b"never seen")
                headers = [("n", b"%d" % number), ("n", None)] if number % 2 else None
                producer.produce(
                    self.topic, value, b"%d" % (number % 97), headers=headers, timestamp=1_600_000_000_000 + number
                )
            (producer.commit_transaction if commits else producer.abort_transaction)(30)
            self.committed += _BATCH * commits
            self.aborted += _BATCH * (not commits)


def kafka_contents(bootstrap: str, topic: str) -> dict[int, list[Told]]:
    """All that is committed; nothing of it may be deleted."""
    found: dict[int, list[Told]] = {number: [] for number in range(_PARTITIONS)}
    consumer = kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "look",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    consumer.assign([kafka.TopicPartition(topic, number, kafka.OFFSET_BEGINNING) for number in found])
    left, until = set(found), time.monotonic() + _LIMIT_S
    while left:
        assert time.monotonic() < until, f"no end of {left}"
        for one in consumer.consume(5_000, 1):
            if one.error() is None:
                found[one.partition()].append((one.key(), one.value(), one.headers() or [], one.timestamp()[1]))
            elif one.error().code() == kafka.KafkaError._PARTITION_EOF:
                left.discard(one.partition())
    for number in found:
        low, _ = consumer.get_watermark_offsets(kafka.TopicPartition(topic, number), _LIMIT_S)
        assert low == 0, (
            f"Kafka has deleted the first {low} records of {topic}-{number}: this is no copy to compare with"
        )
    consumer.close()
    return found


def kafka_read(bootstrap: str, topic: str, group: str, count: int) -> list[bytes]:
    """What a member of a group reads and commits before it leaves."""
    consumer = kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    found: list[bytes] = []
    until = time.monotonic() + _LIMIT_S
    while len(found) < count:
        assert time.monotonic() < until, f"{len(found)} of {count}"
        found += [one.value() for one in consumer.consume(min(500, count - len(found)), 1) if one.error() is None]
    consumer.commit(asynchronous=False)
    consumer.close()
    return found


_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_KEYS: Final = (None, b"", b"k", b"\xff\x00")
_VALUES: Final = (b"v", None, b"", b"large " * 20_000, b"\x00\xff")
_HEADERS: Final = (
    None,
    [("n", b"1"), ("n", None), ("n", b"")],
    [("", b"of no name"), ("\u00fc", b"\xff")],
    [(f"h{number}", b"x") for number in range(50)],
)
_OF_EACH: Final = 120


def _produce_kinds(producer: kafka.Producer, topic: str, first: int) -> None:
    """Each key with each value and each headers, in all partitions."""
    for number in range(first, first + _OF_EACH):
        producer.produce(
            topic,
            _VALUES[number % 5],
            _KEYS[number % 4],
            number * 7 % _PARTITIONS,
            headers=_HEADERS[number // 5 % 4],
            timestamp=number,
        )
        producer.poll(0)


def write_kinds(bootstrap: str, topic: str) -> int:
    """Batches of each codec: plain, committed, and aborted while others are written. How many are committed."""
    committed = 0
    for codec in _CODECS:
        settings = {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20, "log_level": 0}
        kept, dropped = (kafka.Producer(settings | {"transactional.id": f"{codec}-{name}"}) for name in ("a", "b"))
        for one in (kept, dropped):
            one.init_transactions(30)
            one.begin_transaction()
        _produce_kinds(dropped, topic, 0)
        assert dropped.flush(60) == 0
        _produce_kinds(kept, topic, 1)
        plain = kafka.Producer(settings)
        _produce_kinds(plain, topic, 2)
        assert plain.flush(60) == 0
        kept.commit_transaction(60)
        dropped.abort_transaction(60)
        committed += 2 * _OF_EACH
    return committed


def importing(side: KafkaSide, name: str, topic: str, **more: str) -> dict[str, str]:
    """A connector that takes a topic of Kafka over."""
    return {
        "name": name,
        "connector.class": "kafka-import",
        "source.cluster.alias": name,
        "source.cluster.bootstrap.servers": side.bootstrap,
        "topics": topic,
        **more,
    }


def _kill_and_start(side: KafkaSide) -> None:
    side.end(1, signal.SIGKILL)
    side.start(1)


def test_killed_while_it_is_written(side: KafkaSide, cluster: TestCluster, tmp_path: Path) -> None:
    topic = "orders"
    RealSite(side.bootstrap).create_named(topic, _PARTITIONS, FOR_EVER)
    config = importing(side, "kafka", topic, **{"tasks.max": "2", "offset.flush.interval.ms": "100"})
    writer = Writer(side.bootstrap, topic)
    writer.start()
    for kill in range(_KILLS):
        death = threading.Timer(3, _kill_and_start, [side])
        if kill % 3 == 1:
            death.start()
        run(cluster, tmp_path, config, f"connect.source.{_STEPS[kill % 3]}")
        if kill % 3 == 1:
            death.join()
    writer.enough.set()
    writer.join(_LIMIT_S)
    assert not writer.is_alive()
    print(f"{_KILLS} kills, {_KILLS // 3} of Kafka; records: {writer.committed} committed, {writer.aborted} aborted")
    read = kafka_read(side.bootstrap, topic, "billing", writer.committed // 3)
    run(cluster, tmp_path, config)
    theirs, ours = kafka_contents(side.bootstrap, topic), contents(cluster, topic)
    assert {number: len(own) for number, own in ours.items()} == {number: len(own) for number, own in theirs.items()}
    assert ours == theirs
    assert sum(map(len, ours.values())) >= _RECORDS
    words = ["connect", "cutover", str(tmp_path / "kafka.json"), "billing", "--bootstrap", servers(cluster)]
    done = CliRunner().invoke(app, [*words, "-o", "json", "--execute"])
    assert done.exit_code == 0, done.output
    assert 0 < len(json.loads(done.stdout)["positions"]) <= _PARTITIONS  # of those that it has read
    wanted = [value for own in theirs.values() for _, value, _, _ in own]
    read += read_some(cluster, topic, "billing", len(wanted) - len(read))  # type: ignore[arg-type]
    assert sorted(read) == sorted(wanted)


def test_records_of_all_kinds(side: KafkaSide, cluster: TestCluster, tmp_path: Path) -> None:
    """Each codec, keys and values that are null or empty, headers; killed between them at each step."""
    topic = "kinds"
    RealSite(side.bootstrap).create_named(topic, _PARTITIONS, FOR_EVER)
    more = {"tasks.max": "2", "batch.max.rows": "17", "offset.flush.interval.ms": "10"}
    config = importing(side, topic, topic, **more)
    written = write_kinds(side.bootstrap, topic)
    for step in _STEPS:
        run(cluster, tmp_path, config, f"connect.source.{step}")
    run(cluster, tmp_path, config)
    theirs, ours = kafka_contents(side.bootstrap, topic), contents(cluster, topic)
    assert sum(map(len, theirs.values())) == written
    assert ours == theirs
    assert {(key is None, value is None) for own in ours.values() for key, value, *_ in own} == {
        (True, True), (True, False), (False, True), (False, False)
    }  # fmt: skip


def test_what_an_open_transaction_holds_back_comes_when_it_is_committed(
    side: KafkaSide, cluster: TestCluster, tmp_path: Path
) -> None:
    topic = "held"
    site = RealSite(side.bootstrap)
    site.create_named(topic, 1, FOR_EVER)
    config = importing(side, topic, topic)
    before, held, behind = ([(None, b"%s%d" % (name, n), None, n) for n in range(10)] for name in (b"a", b"t", b"b"))
    site.write(topic, before)
    holds = kafka.Producer({"bootstrap.servers": side.bootstrap, "transactional.id": topic, "log_level": 0})
    holds.init_transactions(30)
    holds.begin_transaction()
    for _, value, _, timestamp_ms in held:
        holds.produce(topic, value, partition=0, timestamp=timestamp_ms)
    assert holds.flush(30) == 0
    site.write(topic, behind)
    run(cluster, tmp_path, config)
    assert [value for _, value, *_ in contents(cluster, topic)[0]] == [value for _, value, *_ in before]
    holds.commit_transaction(30)
    run(cluster, tmp_path, config, "connect.source.positions")
    run(cluster, tmp_path, config)
    wanted = [value for _, value, *_ in [*before, *held, *behind]]
    assert [value for _, value, *_ in contents(cluster, topic)[0]] == wanted
