"""
The workloads of Streams beside each peer when both are warm: a minute is measured, after half a minute of warm-up. The
peers are tuned. A first turn of the usual size compares the answers and says how many records fill the time.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient as KafkaAdmin

from bench.headrace_side import HeadraceSide
from bench.kafka_side import KafkaSide
from bench.machine import cpu_seconds
from bench.rows import Row, paired
from bench.sizes import sized
from bench.streams_peer import Peer, Theirs, compare_answers, faust, kafka_streams, quix
from bench.streams_workloads import (
    CPU_STEP_S,
    FUNCTION,
    JOIN,
    LIMIT_S,
    WINDOW_MS,
    WINDOWED,
    WINDOWS,
    WORDS,
    Ours,
    Records,
    Started,
    Tally,
    Workload,
)
from headrace import AdminClient

BLOCK: Final = 1_000_000
"""A side gets so many records again and again, or some of them."""
MORE: Final = 1.5
"""So much more is written than the rate says: a side that is warm is faster than in its first turn."""
LOOK_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Span:
    """What is measured, from the first output on."""

    warm_s: float
    seconds: float

    def records(self, rate: float) -> int:
        """How many fill it at that rate."""
        return math.ceil(rate * (self.warm_s + self.seconds) * MORE)


def sustained(app: Started, tally: Tally | None, total: int, span: Span) -> dict[str, Any]:
    """
    Inputs a second and what the worker spends on one, in that span, or until all are done: ``warm_s`` and ``seconds``
    say how long it was.

    Args:
        tally: of the output; None: what the app has committed counts, and nobody reads its output. On two cores a
            reader in Python is a good part of what is measured.

    Raises:
        TimeoutError: nothing was done for ``LIMIT_S``.
    """
    look, until = 0.0, time.monotonic() + LIMIT_S
    first: _Mark | None = None
    begun: _Mark | None = None
    while True:
        if tally is None:
            time.sleep(LOOK_S)
        else:
            for key, value in app.poll(50_000):
                tally.add(key, value)
            if time.monotonic() < look:
                continue
            look = time.monotonic() + LOOK_S
        app.worker.check()
        now = _Mark(time.perf_counter(), app.read() if tally is None else tally.done, cpu_seconds([app.worker.pid]))
        if first is None or begun is None:
            first = begun = now if now.done else None
            if time.monotonic() > until:
                raise TimeoutError(f"nothing of {total:,} inputs was done in {LIMIT_S:.0f} s")
        elif begun is first and now.at - first.at >= span.warm_s:
            begun = now
        elif now.done >= total or now.at - first.at >= span.warm_s + span.seconds:
            seconds, rows = now.at - begun.at, max(1, now.done - begun.done)
            cpu_us = max(CPU_STEP_S, now.cpu_s - begun.cpu_s) / rows * 1e6
            return {
                "rows_s": rows / seconds,
                "cpu_us": cpu_us,
                "seconds": seconds,
                "warm_s": begun.at - first.at,
            }


@dataclass(frozen=True, slots=True)
class _Mark:
    """How far a worker was."""

    at: float
    done: int
    cpu_s: float


def suite(workload: Workload, full: int, peer: Peer) -> Callable[[int], list[Row]]:
    """Ours and the peer take turns."""

    def run(runs: int) -> list[Row]:
        span = Span(sized(30, 2), sized(60, 3))
        with (
            HeadraceSide.running(flush="os") as cluster,
            KafkaSide.running() as kafka,
            tempfile.TemporaryDirectory() as root,
        ):
            ours = Ours(cluster, workload, sized(full // peer.share, 2_000 // peer.share), Path(root))
            theirs = Theirs(kafka, workload, ours, peer, Path(root))
            our_settings = {"processing_guarantee": peer.guarantee}
            name = f"streams {workload.about}, warm / {peer.name}, tuned"
            firsts = [ours.run(**our_settings), theirs.run()]
            compare_answers(name, firsts)
            sides = [
                Side(workload, partial(ours.started, **our_settings), partial(_clear, cluster), firsts[0]["rows_s"]),
                Side(workload, theirs.started, partial(_clear_kafka, kafka), firsts[1]["rows_s"]),
            ]
            block = workload.make(sized(BLOCK, 20_000))
            found: list[list[dict[str, Any]]] = [[], []]
            for _ in range(runs):
                for side, into in zip(sides, found, strict=True):
                    into.append(side.run(block, span))
        return _rows(name, *found, target=peer.target)

    return run


class Side:
    """One of the two; each turn has as many records as the fastest one before it would read in the span."""

    def __init__(
        self,
        workload: Workload,
        started: Callable[[Records], AbstractContextManager[Started]],
        clear: Callable[[], None],
        rate: float,
    ) -> None:
        self._workload, self._started, self._clear, self._rate = workload, started, clear, rate

    def run(self, block: Records, span: Span) -> dict[str, Any]:
        """One turn; its topics are deleted afterwards, as they take gigabytes."""
        records = repeated(block, span.records(self._rate))
        tally = None if self._workload.by_position else self._workload.tally()
        with self._started(records) as app:
            found = sustained(app, tally, records.count, span)
        self._clear()
        self._rate = max(self._rate, found["rows_s"])
        print(f"  {found['rows_s']:,.0f} rows/s in {found['seconds']:.0f} s", file=sys.stderr, flush=True)
        return found


def repeated(block: Records, count: int) -> Records:
    """At least so many records: the first ones of a block, or all of it several times, one after the other in time."""
    if count > len(block.values):
        rounds = math.ceil(count / len(block.values))
        return replace(block, rounds=rounds, round_ms=WINDOWS * WINDOW_MS, last_ms=0)
    keys = None if block.keys is None else block.keys[:count]
    times = None if block.times_ms is None else block.times_ms[:count]
    return Records(block.values[:count], keys, times)


def _rows(name: str, ours: list[dict[str, Any]], theirs: list[dict[str, Any]], target: str) -> list[Row]:
    rows = [
        paired(f"{name}: {what}", unit, [run[key] for run in ours], [run[key] for run in theirs], target=goal)
        for what, unit, key, goal in (("rate", "rows/s", "rows_s", target), ("worker's CPU", "µs/record", "cpu_us", ""))
    ]
    warm, measured = (min(run[what] for run in (*ours, *theirs)) for what in ("warm_s", "seconds"))
    for row in rows:
        row.note += f"; warm for {warm:.0f} s, measured for {measured:.0f} s at least"
    return rows


def _clear(cluster: HeadraceSide) -> None:
    with AdminClient(cluster.bootstrap) as admin:
        for topic in admin.list_topics():
            admin.delete_topic(topic.name)


def _clear_kafka(kafka: KafkaSide) -> None:
    admin = KafkaAdmin({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    names = [name for name in admin.list_topics(timeout=30).topics if not name.startswith("__")]
    for deleted in admin.delete_topics(names).values():
        deleted.result(60)


def _peers(kafka: str, quix_target: str, faust_target: str, faust_share: int = 10) -> dict[str, Peer]:
    return {
        "kafka-1": kafka_streams(1, kafka, tuned=True),
        "kafka-2": kafka_streams(2, kafka, tuned=True),
        "quix": quix(quix_target, tuned=True),
        "faust": faust(faust_target, share=faust_share, tuned=True),
    }


_SIDES: Sequence[tuple[Workload, int, dict[str, Peer]]] = (
    (WORDS, 500_000, _peers("≥ 3", "≥ 15", "≥ 15", faust_share=100)),
    (WINDOWED, 1_000_000, _peers("≥ 2", "≥ 15", "≥ 15")),
    (JOIN, 1_000_000, _peers("≥ 2", "≥ 10", "≥ 10")),
    (FUNCTION, 300_000, _peers("≥ 0.2", "≥ 1.5", "≥ 3")),
)
SUITES: dict[str, Callable[[int], list[Row]]] = {
    f"peer-streams-long-{workload.name}-{name}": suite(workload, full, peer)
    for workload, full, peers in _SIDES
    for name, peer in peers.items()
}
