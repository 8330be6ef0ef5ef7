"""
The workloads of Streams beside Kafka Streams, Quix Streams and Faust on a real Kafka: one broker, six partitions,
commits each 100 ms, the same guarantee on both sides. The two read the same records, and their answers are compared.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka import TopicPartition

from bench.headrace_side import HeadraceSide
from bench.kafka_side import CACHE, KafkaSide, fetch, java
from bench.rows import Row, interleaved, paired
from bench.sizes import sized
from bench.streams_cluster import Restart, restarts
from bench.streams_workloads import (
    CLIENTS,
    KEYS,
    PARTITIONS,
    TABLE_USERS,
    Ours,
    Records,
    Started,
    Worker,
    Workload,
    measure,
    running,
)

EXACTLY_ONCE = "exactly_once"
AT_LEAST_ONCE = "at_least_once"


@dataclass(frozen=True, slots=True)
class Peer:
    """Another library, with the settings that it is given."""

    name: str
    command: Callable[[], list[str]]
    target: str
    """What our rate is to be of theirs."""
    guarantee: str = EXACTLY_ONCE
    threads: int = 1
    share: int = 1
    """So much less is given to both sides: theirs would take minutes."""
    tuned: bool = False
    """As its documents advise for throughput, where its defaults are for other uses."""

    def environment(self, kafka: KafkaSide, workload: Workload, topics: dict[str, str], state: Path) -> dict[str, str]:
        """What its program is told."""
        told = {"PROGRAM": workload.name, "BOOTSTRAP": kafka.bootstrap, "STATE": str(state)}
        how = {"GUARANTEE": self.guarantee, "THREADS": str(self.threads), "TUNED": str(int(self.tuned))}
        return topics | told | how | {"TABLE_USERS": str(TABLE_USERS)}


def kafka_streams(threads: int, target: str, *, tuned: bool = False) -> Peer:
    """Kafka Streams: RocksDB and its cache. Tuned: a larger cache, optimized topology, batches of clients."""

    def command() -> list[str]:
        fetch("streams")
        return [*java("streams"), str(CLIENTS / "KafkaPrograms.java")]

    name = f"Kafka Streams, {threads} thread{'s' * (threads > 1)}"
    return Peer(name, command, target, threads=threads, tuned=tuned)


def quix(target: str, *, tuned: bool = False) -> Peer:
    """Quix Streams: RocksDB. Tuned: batches of clients, larger buffers of RocksDB."""

    def command() -> list[str]:
        return [str(_environment("quix", "quixstreams==3.28.1")), str(CLIENTS / "quix_programs.py")]

    return Peer("Quix", command, target, share=10, tuned=tuned)


def faust(target: str, *, share: int = 10, tuned: bool = False) -> Peer:
    """Faust, as its community goes on with it, on RocksDB. Tuned: uvloop, its fast extensions, larger buffers."""

    def command() -> list[str]:
        extras, loop = ("rocksdict,fast,uvloop", "uvloop") if tuned else ("rocksdict", "aio")
        python = str(_environment("faust-fast" if tuned else "faust", f"faust-streaming[{extras}]==0.15.3"))
        options = ["--loop", loop, "worker", "--loglevel", "error", "--without-web"]
        return [python, str(CLIENTS / "faust_programs.py"), *options]

    return Peer("Faust", command, target, guarantee=AT_LEAST_ONCE, share=share, tuned=tuned)


def _environment(name: str, package: str) -> Path:
    """The Python of an environment with that package, made once: it needs other libraries than ours."""
    folder = CACHE / name
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", package], check=True)
    return python


def suite(workload: Workload, full: int, *peers: Peer) -> Callable[[int], list[Row]]:
    """Ours and each peer take turns; the first turn warms caches of files and is left out."""

    def run(runs: int) -> list[Row]:
        rows: list[Row] = []
        with (
            HeadraceSide.running(flush="os") as ours,
            KafkaSide.running() as kafka,
            tempfile.TemporaryDirectory() as root,
        ):
            for peer in peers:
                count = sized(full // peer.share, 2_000 // peer.share)
                mine = Ours(ours, workload, count, Path(root))
                theirs = Theirs(kafka, workload, mine, peer, Path(root))
                our_run = partial(mine.run, processing_guarantee=peer.guarantee)
                sides = interleaved(runs + 1, our_run, theirs.run)
                rows += _compare(f"streams {workload.about}, {count:,} / {peer.name}", *sides, target=peer.target)
        return rows

    return run


def _compare(name: str, ours: list[dict[str, Any]], theirs: list[dict[str, Any]], target: str) -> list[Row]:
    compare_answers(name, [*ours, *theirs])
    ours, theirs = ours[1:], theirs[1:]
    return [
        paired(f"{name}: {what}", unit, [run[key] for run in ours], [run[key] for run in theirs], target=goal)
        for what, unit, key, goal in (("rate", "rows/s", "rows_s", target), ("worker's CPU", "µs/record", "cpu_us", ""))
    ]


def compare_answers(name: str, runs: list[dict[str, Any]]) -> None:
    """
    Raises:
        AssertionError: two have done different things with the same records.
    """
    answers = [run["answer"] for run in runs]
    assert all(answer == answers[0] for answer in answers), f"{name}: the sides differ: {str(answers)[:1000]}"


class Theirs:
    """A workload by a peer, with the records that ours has."""

    def __init__(self, kafka: KafkaSide, workload: Workload, ours: Ours, peer: Peer, root: Path) -> None:
        self._kafka, self._workload, self._ours, self._peer, self._root = kafka, workload, ours, peer, root

    def run(self) -> dict[str, Any]:
        """One run."""
        records = self._ours.records
        with self.started(records) as app:
            return measure(app.poll, self._workload.tally(), records.count, [app.worker])

    @contextmanager
    def started(self, records: Records) -> Iterator[Started]:
        """An app of its own with these records, for a block."""
        kafka, peer, table = self._kafka, self._peer, self._ours.table
        topics = {"SOURCE": kafka.topic(PARTITIONS), "TARGET": kafka.topic(PARTITIONS)}
        if table is not None:
            topics["TABLE"] = kafka.topic(PARTITIONS)
            fill_kafka(kafka, topics["TABLE"], table)
        source = topics["SOURCE"]
        fill_kafka(kafka, source, records)
        environment = peer.environment(kafka, self._workload, topics, Path(tempfile.mkdtemp(dir=self._root)))
        group = KafkaConsumer({"bootstrap.servers": kafka.bootstrap, "group.id": f"bench-{source}"})
        partitions = [TopicPartition(source, number) for number in range(PARTITIONS)]
        try:
            with _output(kafka, topics["TARGET"]) as poll, running(peer.command(), environment) as worker:
                yield Started(worker, poll, lambda: sum(max(0, at.offset) for at in group.committed(partitions)))
        finally:
            group.close()


def fill_kafka(kafka: KafkaSide, topic: str, records: Records) -> None:
    """As ``fill``, into Kafka."""
    producer = KafkaProducer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "linger.ms": 20,
            "acks": "all",
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 1_000_000,
        }
    )
    for number in range(records.rounds):
        later_ms = number * records.round_ms
        for place, value in enumerate(records.values):
            where = {"partition": place % PARTITIONS} if records.keys is None else {"key": records.keys[place]}
            when = {} if records.times_ms is None else {"timestamp": records.times_ms[place] + later_ms}
            _produce(producer, topic, value, **where, **when)
            if place % 10_000 == 0:
                producer.poll(0)
    if records.last_ms:
        producer.flush()
        for partition in range(PARTITIONS):
            producer.produce(topic, records.values[0], b"end", partition, timestamp=records.last_ms)
    producer.flush()


def _produce(producer: KafkaProducer, topic: str, value: bytes, **more: Any) -> None:
    """Wait where its queue is full."""
    while True:
        try:
            return producer.produce(topic, value, **more)
        except BufferError:
            producer.poll(0.1)


@contextmanager
def _output(kafka: KafkaSide, topic: str) -> Iterator[Callable[[int], Iterable[tuple[bytes, bytes]]]]:
    """Reads the next records of a topic from its beginning, committed ones."""
    consumer = KafkaConsumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": f"reads-{topic}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    try:
        yield lambda most: [(message.key(), message.value()) for message in consumer.consume(most, 0.1)]
    finally:
        consumer.close()


class TheirRestart:
    """As ``Restart``, by a peer."""

    def __init__(self, kafka: KafkaSide, peer: Peer, state: Path, count: int) -> None:
        self.state, self.count = state, count
        self._kafka, self._peer = kafka, peer
        self._topics = {"SOURCE": kafka.topic(PARTITIONS), "TARGET": kafka.topic(PARTITIONS)}

    def write(self, records: Records) -> None:
        """Into the app's source."""
        fill_kafka(self._kafka, self._topics["SOURCE"], records)

    @contextmanager
    def started(self) -> Iterator[Worker]:
        """A worker, for a block."""
        environment = self._peer.environment(self._kafka, KEYS, self._topics, self.state)
        with running(self._peer.command(), environment) as worker:
            yield worker

    def output(self) -> Any:
        """Reads the app's output, for a block."""
        return _output(self._kafka, self._topics["TARGET"])


def restore(runs: int) -> list[Row]:
    """A million keys: a start without the disk, beside Kafka Streams; what a start with the disk takes is taken off."""
    count = sized(1_000_000, 2_000)
    peer = kafka_streams(1, "≤ 0.5")
    with (
        HeadraceSide.running(flush="os") as ours,
        KafkaSide.running() as kafka,
        tempfile.TemporaryDirectory() as root,
    ):
        sides = [Restart(ours, Path(root) / "ours", count), TheirRestart(kafka, peer, Path(root) / "theirs", count)]
        (my_kept, my_wiped), (their_kept, their_wiped) = (restarts(side, runs) for side in sides)
    name = f"streams start, {count:,} keys / {peer.name}"
    mine = [wiped - kept for kept, wiped in zip(my_kept, my_wiped, strict=True)]
    theirs = [wiped - kept for kept, wiped in zip(their_kept, their_wiped, strict=True)]
    return [
        paired(f"{name}: an empty disk", "ms", my_wiped, their_wiped),
        paired(f"{name}: its disk", "ms", my_kept, their_kept),
        paired(f"{name}: the restore, one less the other", "ms", mine, theirs, target=peer.target),
    ]
