"""
The record batch against Kafka's rows as aiokafka's C codec writes and reads them, in one process; and the codec against
the reader of rows in Python alone.

``run(runs)`` gives rows of medians for the report of ``make bench``; ``python bench/codec.py [runs]`` prints them.
Every run measures all cases once, ours and the baseline by turns, so that a slow moment of the machine meets both.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from headrace_common.core.batch import (
    Codec,
    RecordColumns,
    build_batch,
    build_row_batch,
    check_body,
    check_crc,
    decode_batch,
    read_header,
    recompress_batch,
    stamp,
)
from headrace_common.core.batch.header import ROW_HEADER_SIZE
from headrace_common.core.batch.row_reader import read_rows as read_rows_ourselves
from headrace_common.core.batch.rows import read_by_codec
from headrace_common.core.murmur2 import partitions_for

VALUE_BYTES = 100
RECORDS_PER_MEASUREMENT = 60_000
TARGET_BUILD = 1 / 3
TARGET_READ = 2 / 3


class Case(NamedTuple):
    """One thing measured, ``per`` units of work a call, and the baseline beside it."""

    name: str
    ours: Callable[[], Any]
    baseline: Callable[[], Any] | None
    per: int
    target: float | None


class Sample(NamedTuple):
    """The same records, as each side takes them."""

    size: int
    values: list[bytes]
    keys: list[bytes] | None
    timestamps: int | list[int]

    @property
    def columns(self) -> RecordColumns:
        return RecordColumns(self.values, self.keys, self.timestamps)


def sample(count: int, *, spread: int, keyed: bool) -> Sample:
    """``count`` records of about 100 bytes; keyed ones have a timestamp each."""
    values = [bytes([number % 251]) * (VALUE_BYTES - spread + number % (2 * spread + 1)) for number in range(count)]
    if not keyed:
        return Sample(count, values, None, 1_700_000_000_000)
    keys = [b"key-%06d" % number for number in range(count)]
    return Sample(count, values, keys, list(range(1_700_000_000_000, 1_700_000_000_000 + count)))


def build_rows(given: Sample, codec: Codec) -> bytes:
    """The baseline: one append per record, as a Kafka client does."""
    builder = DefaultRecordBatchBuilder(2, int(codec), 0, -1, -1, -1, 1 << 30)
    append = builder.append
    if given.keys is None:
        stamp_ms = given.timestamps
        for delta, value in enumerate(given.values):
            append(delta, stamp_ms, None, value, [])
    else:
        assert not isinstance(given.timestamps, int)
        for delta, (at, key, value) in enumerate(zip(given.timestamps, given.keys, given.values, strict=True)):
            append(delta, at, key, value, [])
    return bytes(builder.build())


def read_rows(batch: bytes, *, keyed: bool) -> Any:
    """The baseline: check the CRC, then take the same fields from every record as our side gives."""
    reader = DefaultRecordBatch(batch)
    assert reader.validate_crc()
    if keyed:
        return [(record.key, record.value, record.timestamp, record.offset) for record in reader]
    return [record.value for record in reader]


def read_columns(batch: bytes, *, keyed: bool) -> Any:
    decoded = decode_batch(batch)
    if keyed:
        return decoded.keys(), decoded.values(), decoded.timestamps(), decoded.offsets()
    return decoded.values()


def record_cases(count: int, *, spread: int, keyed: bool, codec: Codec = Codec.NONE) -> list[Case]:
    given = sample(count, spread=spread, keyed=keyed)
    rows, ours = build_rows(given, codec), build_batch(given.columns, codec=codec)
    kind = "key, value, time" if keyed else ("values of one length" if not spread else "values")
    label = f"{kind}, n={count}" + (f", {codec.name.lower()}" if codec else "")
    judged = count >= 1000 and not codec
    return [
        Case(
            f"build {label}",
            lambda: build_batch(given.columns, codec=codec),
            lambda: build_rows(given, codec),
            count,
            TARGET_BUILD if judged and not keyed else None,  # the target is for 100-byte values alone
        ),
        Case(
            f"read {label}",
            lambda: read_columns(ours, keyed=keyed),
            lambda: read_rows(rows, keyed=keyed),
            count,
            TARGET_READ if judged else None,
        ),
    ]


def row_cases(count: int) -> list[Case]:
    """Rows inflated already, read as where aiokafka is not installed, and by its codec as ``decode_batch`` calls it."""
    given = sample(count, spread=10, keyed=True)
    pairs = [("trace", b"0123456789"), ("kind", b"x")]
    cases: list[Case] = []
    for name, headers in (("", None), (", 2 headers", [pairs] * count)):
        batch = build_row_batch(RecordColumns(given.values, given.keys, given.timestamps, headers))
        header, body = read_header(batch), memoryview(batch)[ROW_HEADER_SIZE:]
        cases.append(
            Case(
                f"read rows without the codec{name}, n={count}",
                partial(read_rows_ourselves, header, body),
                partial(read_by_codec, header, body),
                count,
                None,
            )
        )
    return cases


def bulk_cases(count: int) -> list[Case]:
    """What has no baseline in rows is set against rows from and to lists."""
    given = sample(count, spread=10, keyed=True)
    table = pa.table({"key": given.keys, "value": given.values}).to_batches()[0]
    keys, values = table["key"].cast(pa.binary()), table["value"].cast(pa.binary())
    ours, rows = build_batch(given.columns), build_rows(given, Codec.NONE)
    return [
        Case(
            f"build from Arrow, n={count}",
            lambda: build_batch(RecordColumns(values, keys, 5)),
            lambda: build_rows(given, Codec.NONE),
            count,
            None,
        ),
        Case(
            f"read to Arrow, n={count}",
            lambda: decode_batch(ours).to_arrow(),
            lambda: read_rows(rows, keyed=True),
            count,
            None,
        ),
        Case(f"partitions of keys, n={count}", lambda: partitions_for(given.keys or [], 6), None, count, None),
    ]


def broker_cases() -> list[Case]:
    """What a broker does to a batch, whatever it holds."""
    batch = build_batch(sample(1, spread=0, keyed=False).columns)
    large = build_batch(sample(1000, spread=0, keyed=False).columns)
    header, large_header = read_header(batch), read_header(large)
    return [
        Case("read_header", lambda: read_header(batch), None, 1, None),
        Case("check_crc of one record", lambda: check_crc(batch, header), None, 1, None),
        Case("check_crc of 100 kB", lambda: check_crc(large, large_header), None, 1, None),
        Case("check_body of one record", lambda: check_body(batch, header), None, 1, None),
        Case("check_body of 100 kB", lambda: check_body(large, large_header), None, 1, None),
        *body_cases(),
        Case("stamp of one record", lambda: stamp(batch, 7, 1), None, 1, None),
        Case("stamp of 100 kB", lambda: stamp(large, 7, 1), None, 1, None),
    ]


def body_cases() -> list[Case]:
    """The check of a batch of about 1 MiB: columns, columns in frames, rows."""
    given = sample(10_000, spread=10, keyed=True)
    batches = {
        "1 MB": build_batch(given.columns),
        "1 MB, zstd": build_batch(given.columns, codec=Codec.ZSTD),
        "1 MB, lz4": build_batch(given.columns, codec=Codec.LZ4),
        "1 MB of rows": build_rows(given, Codec.NONE),
        "1 MB of rows, zstd": build_rows(given, Codec.ZSTD),
    }
    checks = [
        Case(f"check_body of {name}", partial(check_body, one, read_header(one)), None, 1, None)
        for name, one in batches.items()
    ]
    plain, packed = batches["1 MB"], batches["1 MB, lz4"]
    return checks + [
        Case(f"recompress 1 MB, {way}", partial(recompress_batch, one, read_header(one), codec), None, 1, None)
        for way, one, codec in (
            ("none to lz4", plain, Codec.LZ4),
            ("none to zstd", plain, Codec.ZSTD),
            ("none to snappy", plain, Codec.SNAPPY),
            ("none to gzip", plain, Codec.GZIP),
            ("lz4 to zstd", packed, Codec.ZSTD),
            ("lz4 to none", packed, Codec.NONE),
        )
    ]


def all_cases() -> list[Case]:
    cases: list[Case] = []
    for count in (1, 15, 100, 1000, 10_000):
        for spread, keyed in ((0, False), (10, False), (10, True)):
            cases += record_cases(count, spread=spread, keyed=keyed)
    for codec in (Codec.LZ4, Codec.ZSTD):
        cases += record_cases(1000, spread=10, keyed=True, codec=codec)
    return [*cases, *row_cases(1000), *bulk_cases(1000), *bulk_cases(10_000), *broker_cases()]


def time_ns(work: Callable[[], Any], per: int) -> float:
    """Nanoseconds per unit, of one measurement."""
    calls = max(2, RECORDS_PER_MEASUREMENT // per)
    started = time.perf_counter_ns()
    for _ in range(calls):
        work()
    return (time.perf_counter_ns() - started) / calls / per


def run(runs: int) -> list[dict[str, Any]]:
    """
    Medians of ``runs`` interleaved runs. ``ratio`` is ours over the baseline, ``target`` the most it may be; both None
    where there is none.
    """
    cases = all_cases()
    ours: list[list[float]] = [[] for _ in cases]
    baselines: list[list[float]] = [[] for _ in cases]
    gc.disable()
    try:
        for measured in range(runs + 1):  # the first warms up
            for index, case in enumerate(cases):
                our_time = time_ns(case.ours, case.per)
                baseline = time_ns(case.baseline, case.per) if case.baseline else 0.0
                if measured:
                    ours[index].append(our_time)
                    baselines[index].append(baseline)
    finally:
        gc.enable()
    return [row_of(case, *each) for case, *each in zip(cases, ours, baselines, strict=True)]


def row_of(case: Case, ours: list[float], baselines: list[float]) -> dict[str, Any]:
    value, baseline = statistics.median(ours), statistics.median(baselines)
    return {
        "name": case.name,
        "value": round(value, 1),
        "unit": "ns/record" if case.per > 1 or case.baseline else "ns/batch",
        "baseline": round(baseline, 1) if case.baseline else None,
        "ratio": round(value / baseline, 3) if case.baseline else None,
        "target": round(case.target, 3) if case.target else None,
        "runs": len(ours),
    }


def main() -> int:
    rows = run(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
    print(f"{'case':45} {'ours':>9} {'rows':>9} {'ratio':>7} {'target':>7}  unit")
    for row in rows:
        shown = [f"{row[name]:g}" if row[name] is not None else "" for name in ("value", "baseline", "ratio", "target")]
        missed = "  MISSED" if row["target"] and row["ratio"] > row["target"] else ""
        print(f"{row['name']:45} {shown[0]:>9} {shown[1]:>9} {shown[2]:>7} {shown[3]:>7}  {row['unit']}{missed}")
    return 1 if any(row["target"] and row["ratio"] > row["target"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
