"""Produce and consume against our own baselines: the bare stream, and flush ``os`` for flush ``group``."""

from __future__ import annotations

from bench import stream
from bench.headrace_side import HeadraceSide
from bench.rows import Row, compare, interleaved

RECORDS = 2_000_000


def produce(runs: int) -> list[Row]:
    """100-byte records over six partitions, acks=all; ``group`` beside ``os``."""
    rows: list[Row] = []
    with HeadraceSide.running(flush="os") as fast, HeadraceSide.running(flush="group") as safe:

        def side(cluster: HeadraceSide, mode: str) -> dict[str, float]:
            return cluster.client("produce", topic=cluster.topic(6), records=RECORDS, mode=mode)

        for mode in ("send", "many"):
            group, os_ = interleaved(runs, lambda mode=mode: side(safe, mode), lambda mode=mode: side(fast, mode))
            rows.append(_rate(f"produce {mode}: group / os", group, os_, "≥ 0.70"))
            rows.append(compare(f"produce {mode}: client CPU", "µs/record", [r["cpu_us"] for r in os_]))
    return rows


def produce_stream(runs: int) -> list[Row]:
    """MB/s of whole requests of 1 MiB beside the bare stream."""
    with HeadraceSide.running(flush="os") as cluster:

        def ours() -> float:
            settings = ["batch_size=1000000", "linger_ms=20"]
            row = cluster.client(
                "produce", topic=cluster.topic(6), records=500_000, size=1000, mode="many", set=settings
            )
            return row["mb_s"]

        mine, bare = interleaved(runs, ours, stream.mb_per_second)
    return [compare("produce 1 MiB requests / bare stream", "MB/s", mine, bare, target="≥ 0.15")]


def consume(runs: int) -> list[Row]:
    """Iteration, lists and tables over the same records."""
    rows: list[Row] = []
    with HeadraceSide.running(flush="os") as cluster:
        topic = cluster.topic(6)
        cluster.client("produce", topic=topic, records=RECORDS, mode="many")
        one, poll, table = interleaved(
            runs,
            *(
                lambda mode=mode: cluster.client("consume", topic=topic, records=RECORDS, mode=mode)
                for mode in ("one", "poll", "table")
            ),
        )
        for name, found in (("iteration", one), ("poll", poll), ("poll_table", table)):
            rows.append(compare(f"consume {name}", "records/s", [r["rec_s"] for r in found]))
            rows.append(compare(f"consume {name}: client CPU", "µs/record", [r["cpu_us"] for r in found]))
    return rows


def latency(runs: int) -> list[Row]:
    """One record in flight: ack, and produce to consume."""
    rows: list[Row] = []
    for flush in ("os", "group"):
        with HeadraceSide.running(flush=flush) as cluster:
            for test in ("rtt", "e2e"):
                found = [cluster.client(test, topic=cluster.topic(1), records=2000, mode="aio") for _ in range(runs)]
                for point in ("p50_ms", "p99_ms"):
                    target = {"p50_ms": "≤ 1.5", "p99_ms": "≤ 5"}[point] if test == "e2e" and flush == "os" else ""
                    rows.append(compare(f"{test} {flush} {point[:3]}", "ms", [r[point] for r in found], target=target))
    return rows


def _rate(name: str, ours: list[dict[str, float]], theirs: list[dict[str, float]], target: str) -> Row:
    return compare(name, "records/s", [r["rec_s"] for r in ours], [r["rec_s"] for r in theirs], target=target)
