"""
The word count of ``bench.streams`` beside Kafka Streams and Quix Streams on a real Kafka: exactly once, commits each
100 ms, one broker, six partitions, from the first count that is read to the last.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka import TopicPartition

from bench import streams
from bench.headrace_side import HeadraceSide
from bench.kafka_side import CACHE, KafkaSide, fetch, java
from bench.machine import cpu_seconds
from bench.rows import Row, interleaved, paired
from bench.sizes import sized

QUIX = "quixstreams==3.28.1"
CLIENTS = Path(__file__).with_name("clients")
PARTITIONS = 6
LIMIT_S = 600.0


def words(runs: int) -> list[Row]:
    """Ours and theirs take turns; the first turn of each warms caches of files and is left out."""
    count, few = sized(500_000, 2_000), sized(50_000, 500)
    lines = streams.lines_of(count)
    fetch("streams")
    quix = _quix()
    with (
        HeadraceSide.running(flush="os") as ours,
        KafkaSide.running() as kafka,
        tempfile.TemporaryDirectory() as directory,
    ):
        root = Path(directory)

        def of_java(threads: int) -> Callable[[], dict[str, float]]:
            def start(source: str, target: str, state: Path) -> Sequence[str]:
                program = [str(CLIENTS / "WordCount.java"), kafka.bootstrap, source, target, str(state), str(threads)]
                return [*java("streams"), *program]

            return lambda: _on_kafka(kafka, lines, start, root)

        def of_quix(source: str, target: str, state: Path) -> Sequence[str]:
            return [str(quix), str(CLIENTS / "quix_words.py"), kafka.bootstrap, source, target, str(state)]

        mine, one, two = interleaved(
            runs + 1, lambda: streams.count_words(ours, lines, _new(root)), of_java(1), of_java(2)
        )
        little, theirs = interleaved(
            runs + 1,
            lambda: streams.count_words(ours, lines[:few], _new(root)),
            lambda: _on_kafka(kafka, lines[:few], of_quix, root),
        )
    rows = []
    for name, left, right, target in (
        ("Kafka Streams, 1 thread", mine, one, "≥ 3"),
        ("Kafka Streams, 2 threads", mine, two, "≥ 3"),
        (f"Quix, {few:,} lines", little, theirs, "≥ 15"),
    ):
        for what, unit, goal in (("rate", "lines/s", target), ("worker's CPU", "µs/record", "")):
            key = "lines_s" if what == "rate" else "cpu_us"
            mine_runs, theirs_runs = [run[key] for run in left[1:]], [run[key] for run in right[1:]]
            rows.append(paired(f"streams word count / {name}: {what}", unit, mine_runs, theirs_runs, target=goal))
    return rows


def _new(root: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=root))


def _quix() -> Path:
    """The Python of an environment with Quix, made once: it needs older libraries than ours."""
    folder = CACHE / "quix"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", QUIX], check=True)
    return python


def _on_kafka(
    kafka: KafkaSide, lines: list[bytes], start: Callable[[str, str, Path], Sequence[str]], root: Path
) -> dict[str, float]:
    source, target = kafka.topic(PARTITIONS), kafka.topic(PARTITIONS)
    producer = KafkaProducer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 20, "acks": "all"})
    for place, line in enumerate(lines):
        producer.produce(source, line, partition=place % PARTITIONS)
        if place % 10_000 == 0:
            producer.poll(0)
    producer.flush()
    with _running(start(source, target, _new(root))) as worker:
        return _count(kafka.bootstrap, target, lines, worker)


@contextmanager
def _running(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    worker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield worker
    finally:
        worker.terminate()
        try:
            worker.wait(30)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


def _count(bootstrap: str, target: str, lines: list[bytes], worker: subprocess.Popen[bytes]) -> dict[str, float]:
    consumer = KafkaConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"reads-{target}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(target, number, 0) for number in range(PARTITIONS)])
    counts: dict[bytes, int] = {}
    total, begun, cpu = len(lines) * streams.WORDS_A_LINE, 0.0, 0.0
    until = time.monotonic() + LIMIT_S
    while sum(counts.values()) < total:
        for message in consumer.consume(50_000, 0.1):
            if not begun:
                begun, cpu = time.perf_counter(), cpu_seconds([worker.pid])
            counts[message.key()] = int(message.value())
        assert worker.poll() is None, "the worker ended"
        assert time.monotonic() < until, f"{sum(counts.values())} of {total} words were counted in {LIMIT_S:.0f} s"
    seconds, used = time.perf_counter() - begun, cpu_seconds([worker.pid]) - cpu
    consumer.close()
    return {"lines_s": len(lines) / seconds, "cpu_us": used / len(lines) * 1e6}
