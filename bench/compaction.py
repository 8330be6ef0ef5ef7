"""What compaction and retention cost and give back, and what others notice of it; real brokers, flush ``os``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import headrace
from bench.headrace_side import HeadraceSide
from bench.rows import Row, compare, interleaved
from bench.sizes import sized

KEYS = 100_000
SETTLED_SECONDS = 300.0
_LIVELY = {"log.cleaner.backoff.ms": "200", "log.retention.check.interval.ms": "1000"}


def space(runs: int) -> list[Row]:
    """Updates of few keys, until nothing is dirty: bytes on disk beside those of the batches that are left."""
    del runs  # each is minutes long
    updates = sized(5_000_000, 200_000)
    with HeadraceSide.running(settings=_LIVELY) as cluster:
        topic = cluster.topic(
            1,
            configs={
                "cleanup.policy": "compact",
                "min.cleanable.dirty.ratio": "0.3",
                "segment.bytes": str(64 << 20),
                "segment.ms": "5000",
            },
        )
        cluster.client("produce", topic=topic, records=updates, mode="keyed", keys=KEYS)
        cluster.client("produce", topic=cluster.topic(1), records=1000, mode="many")
        _until(lambda: _clean(cluster, topic), SETTLED_SECONDS)
        live = sum(log.size_bytes for log in cluster.logs(topic))
        used = _settled(lambda: _bytes_in(cluster.data()), live * 1.4)
        left = _read_all(cluster.bootstrap, topic)[0]
    note = f"{updates:,} updates of {KEYS:,} keys; {left:,} records are left"
    return [compare("compacted topic: disk / live bytes", "MB", [used / 1e6], [live / 1e6], target="≤ 1.5", note=note)]


def steady(runs: int) -> list[Row]:
    """A topic with ``retention.bytes`` that is written all the time: bytes on disk beside those that are retained."""
    del runs
    ratios: list[tuple[float, float]] = []
    kept = sized(512, 64) << 20
    with HeadraceSide.running(settings=_LIVELY) as cluster:
        topic = cluster.topic(6, configs={"retention.bytes": str(kept // 6), "segment.bytes": str(kept // 48)})
        written = threading.Event()

        def write() -> None:
            records = sized(8, 16) * kept // 1000
            cluster.client("produce", topic=topic, records=records, size=1000, mode="many")
            written.set()

        writer = threading.Thread(target=write)
        writer.start()
        while not written.wait(0.5):
            logs = cluster.logs(topic)
            if any(log.log_start_offset for log in logs):
                ratios.append((_bytes_in(cluster.data()) / 1e6, sum(log.size_bytes for log in logs) / 1e6))
        writer.join()
    second_half = ratios[len(ratios) // 2 :]
    used, retained = zip(*second_half, strict=True)
    return [compare("retention, under load: disk / retained", "MB", used, retained, target="≤ 1.5")]


def producing(runs: int) -> list[Row]:
    """Keyed records into a topic that is compacted all the time, beside the same with the cleaner switched off."""
    records = sized(2_000_000, 400_000)
    with HeadraceSide.running(settings={**_LIVELY, "log.cleaner.backoff.ms": "0"}) as cluster:
        cleaned: list[int] = []

        def side(*, cleaning: bool) -> float:
            _switch(cluster, on=cleaning)
            configs = {
                "cleanup.policy": "compact",
                "min.cleanable.dirty.ratio": "0.01",
                "segment.bytes": str(sized(4 << 20, 128 << 10)),
            }
            topic = cluster.topic(6, configs=configs)
            rate = cluster.client("produce", topic=topic, records=records, mode="keyed", keys=KEYS)["rec_s"]
            if cleaning:
                cleaned.append(sum(log.compaction.cleaned_to for log in cluster.logs(topic)))
            return rate

        on, off = interleaved(runs, lambda: side(cleaning=True), lambda: side(cleaning=False))
    assert min(cleaned) > 0, "nothing was compacted while it was written"
    note = f"of {records:,} records {min(cleaned):,} to {max(cleaned):,} compacted by the end"
    return [compare("produce while compacting / without", "records/s", on, off, target="≥ 0.8", note=note)]


def reading(runs: int) -> list[Row]:
    """From the start of a compacted topic by ``poll_table``, in bytes of batches, beside one that is not compacted."""
    records = sized(3_000_000, 100_000)
    with HeadraceSide.running(settings=_LIVELY) as cluster:
        plain = cluster.topic(1)
        configs = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.01",
            "segment.bytes": str(32 << 20),
            "segment.ms": "3000",
        }
        compacted = cluster.topic(1, configs=configs)
        for topic in (plain, compacted):  # about half of the records are the last of their key
            cluster.client("produce", topic=topic, records=records, mode="keyed", keys=records * 2 // 3)
        _until(lambda: _clean(cluster, compacted), SETTLED_SECONDS)
        sizes = {topic: sum(log.size_bytes for log in cluster.logs(topic)) for topic in (plain, compacted)}

        def side(topic: str) -> float:
            return sizes[topic] / _read_all(cluster.bootstrap, topic)[1] / 1e6

        ours, theirs = interleaved(runs, lambda: side(compacted), lambda: side(plain))
        left = _read_all(cluster.bootstrap, compacted)[0]
    note = f"{left:,} of {records:,} records are left"
    return [compare("read a compacted topic / another", "MB/s", ours, theirs, target="≥ 0.7", note=note)]


def _clean(cluster: HeadraceSide, topic: str) -> bool:
    """Whether the whole topic was compacted, but for active segments that are empty."""
    return all(
        log.compaction.cleaned_to == log.log_end_offset and log.compaction.dirty_bytes == 0
        for log in cluster.logs(topic)
    )


def _switch(cluster: HeadraceSide, *, on: bool) -> None:
    with headrace.AdminClient(cluster.bootstrap) as admin:
        admin.alter_configs({"log.cleaner.enable": on})
    time.sleep(1.5)  # the cleaner looks at its settings every second


def _read_all(bootstrap: str, topic: str) -> tuple[int, float]:
    """Records of the topic's one partition, and the seconds from the first to the last."""
    with headrace.Consumer(bootstrap_servers=bootstrap) as consumer:
        partition = headrace.TopicPartition(topic, 0)
        consumer.assign([partition])
        end = consumer.end_offsets([partition])[partition]
        consumer.seek_to_beginning(partition)
        got = consumer.poll_table(30_000, max_records=1).num_rows
        start = time.perf_counter()
        while consumer.position(partition) < end:
            got += consumer.poll_table(1_000, max_records=1_000_000).num_rows
        return got, time.perf_counter() - start


def _until(done: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s")
        time.sleep(0.2)


def _settled(measured: Callable[[], int], below: float) -> int:
    """As soon as it is ``below``, or after two minutes."""
    deadline = time.monotonic() + 120
    while (found := measured()) > below and time.monotonic() < deadline:
        time.sleep(1)
    return found


def _bytes_in(folder: Path) -> int:
    """Bytes that the files below take of the disk."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total
