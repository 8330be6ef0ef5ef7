"""
What it would cost a broker to read the whole body of each compressed batch before it acknowledges it, beside all the
CPU that it spends on a bulk producer today. A broker looks at what the frame says of itself, and no further.
"""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa

import headrace
from bench.headrace_side import HeadraceSide
from bench.machine import cpu_seconds
from bench.rows import Row, compare
from bench.sizes import sized
from headrace_common.core.batch import Codec, RecordColumns, build_batch, decode_batch

RECORDS = 10_000
MIB = 1 << 20
CODECS = (Codec.LZ4, Codec.ZSTD, Codec.SNAPPY, Codec.GZIP)
AIRPORTS = ("ZRH", "JFK", "SFO", "NRT", "LHR", "GRU", "SYD", "CDG")


def lines(count: int) -> list[bytes]:
    """Records as applications have them: lz4 makes a third of them, zstd an eighth."""
    return [
        b'{"flight": "LX%d", "from": "%s", "to": "%s", "late": %d, "gate": "%c%d", "at": "2026-01-%02dT%02d:%02d:00"}'
        % (
            n * 7_919 % 9_000,
            AIRPORTS[n * 31 % 8].encode(),
            AIRPORTS[n * 17 % 7].encode(),
            n * n % 97,
            65 + n % 5,
            n * 13 % 60,
            1 + n % 28,
            n * 11 % 24,
            n * 37 % 60,
        )
        for n in range(count)
    ]


def run(runs: int) -> list[Row]:
    """A row for each codec: CPU of inspection beside the broker's, both in µs for a MiB of records."""
    values = lines(RECORDS)
    found: dict[Codec, list[tuple[float, float]]] = {codec: [] for codec in CODECS}
    with HeadraceSide.running() as cluster:
        for codec in CODECS:
            _broker_us(cluster, codec, values, 2)
        for _ in range(runs):
            for codec in CODECS:
                found[codec].append((_inspection_us(codec, values), _broker_us(cluster, codec, values, sized(100, 5))))
    return [
        compare(
            f"whole body of {codec.name.lower()} read / broker's CPU today",
            "µs/MiB",
            *zip(*measured, strict=True),
            target="≤ 0.05",
        )
        for codec, measured in found.items()
    ]


def _inspection_us(codec: Codec, values: list[bytes]) -> float:
    """As a thread would do it: inflate, and check lengths, ends and offsets of all columns."""
    batch = build_batch(RecordColumns(values, None, 1_700_000_000_000), codec=codec)
    repeats = 30
    before = time.thread_time()
    for _ in range(repeats):
        decode_batch(batch, verify_crc=False)
    return (time.thread_time() - before) / repeats * 1e6 / (_bytes(values) / MIB)


def _broker_us(cluster: HeadraceSide, codec: Codec, values: list[bytes], batches: int) -> float:
    """With one producer that sends tables as fast as it can."""
    topic = cluster.topic(6)
    table = pa.table({"value": pa.array(values, pa.binary())})
    settings: dict[str, Any] = {"compression_type": codec.name.lower(), "batch_size": 2 * MIB}
    with headrace.Producer(cluster.bootstrap, **settings) as producer:
        before = cpu_seconds(cluster.brokers())
        for _ in range(batches):
            producer.send_table(topic, table)
        producer.flush(120)
    return (cpu_seconds(cluster.brokers()) - before) * 1e6 / (batches * _bytes(values) / MIB)


def _bytes(values: list[bytes]) -> int:
    return sum(len(value) for value in values)
