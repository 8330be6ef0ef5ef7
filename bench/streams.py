"""Streams: what a row costs in a task, beside a plain loop of Python over the same records; a worker on a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from bench.headrace_side import HeadraceSide
from bench.machine import cpu_seconds
from bench.rows import Row, compare, interleaved, percentile
from bench.sizes import sized
from headrace.streams import App, agg, col, tumbling, value
from headrace.streams import json as json_of
from headrace_streams.core.state.memory import MemoryCold
from headrace_streams.core.task import Task
from headrace_streams.plan.cut import Assembly

BATCH = 10_000
KEYS = 10_000
WORDS_A_LINE, VOCABULARY = 8, 20_000
CLIENTS = Path(__file__).with_name("clients")


def _orders() -> list[pa.Table]:
    """Batches of records as a consumer gives them."""
    chance = np.random.default_rng(1)
    batches = []
    for number in range(sized(30, 5)):
        users, amounts = chance.integers(0, KEYS, BATCH).tolist(), (chance.random(BATCH) * 100).round(2).tolist()
        first = number * 1_000
        values = [
            b'{"user":"u%d","amount":%.2f,"at":%d}' % (user, amount, first + place // 10)
            for place, (user, amount) in enumerate(zip(users, amounts, strict=True))
        ]
        columns = {
            "key": pa.array([b"u%d" % user for user in users], pa.binary()),
            "value": pa.array(values, pa.binary()),
            "timestamp_ms": pa.array(np.arange(first, first + BATCH), pa.int64()),
            "offset": pa.array(np.arange(number * BATCH, (number + 1) * BATCH), pa.int64()),
        }
        batches.append(pa.table(columns))
    return batches


def _task(app: App) -> Task:
    assembly = Assembly(app.name, app.graph, {"orders": 1, "users": 1})
    (part,) = assembly.parts
    task = assembly.make(part, 0)
    task.open(lambda name: MemoryCold(), {})
    if "users" in part.topics:
        task.feed("users", _users())
    return task


def _users() -> pa.Table:
    """One record of each user."""
    values = [b'{"name":"name %d","tier":"tier %d"}' % (user, user % 7) for user in range(KEYS)]
    columns = {
        "key": pa.array([b"u%d" % user for user in range(KEYS)], pa.binary()),
        "value": pa.array(values, pa.binary()),
        "timestamp_ms": pa.array(np.zeros(KEYS, np.int64)),
        "offset": pa.array(np.arange(KEYS)),
    }
    return pa.table(columns)


def _stream(app: App) -> Any:
    return app.stream("orders", value=json_of("amount double, at bigint"), key="user", timestamp="at")


def _columns() -> App:
    app = App("columns")
    _stream(app).filter(col("amount") > 10).with_columns(eur=col("amount") * 0.92).to("out")
    return app


def _keys() -> App:
    app = App("keys")
    _stream(app).group_by("user").agg(total=agg.sum("amount"), n=agg.count(), name="totals").to("out")
    return app


def _windows() -> App:
    app = App("windows")
    groups = _stream(app).group_by("user").window(tumbling("10s"), late="drop")
    groups.agg(total=agg.sum("amount"), n=agg.count(), name="totals", emit="final").to("out")
    return app


def _join() -> App:
    """Two streams of half the rows each; a left one meets one on average."""
    app = App("join")
    stream = _stream(app)
    left = stream.filter(col("amount") < 50).select("user", "amount")
    right = stream.filter(col("amount") >= 50).select("user", paid=col("amount"))
    left.join(right, within="1s", how="left", late="drop", name="near").to("out")
    return app


def _table() -> App:
    """A stream whose rows find each their user in a table, which does not change meanwhile."""
    app = App("table")
    users = app.table("users", value=json_of("name string, tier string"), key="user", name="users")
    _stream(app).join(users).to("out")
    return app


def _function() -> App:
    app = App("function")

    def count(row: dict[str, Any], state: Any, context: Any) -> dict[str, Any]:
        state.seen += 1
        return {"user": row["user"], "seen": state.seen}

    _stream(app).process(count, name="seen", state={"seen": value(int)}).to("out")
    return app


def _run(app: Callable[[], App], batches: list[pa.Table]) -> float:
    """ns a row, commits included."""
    task = _task(app())
    begun = time.perf_counter()
    for number, batch in enumerate(batches):
        task.feed("orders", batch)
        if number % 5 == 4:
            task.flush()
            task.take()
            task.changes()
            task.settle()
    return (time.perf_counter() - begun) / (len(batches) * BATCH) * 1e9


def _loop(batches: list[pa.Table]) -> float:
    """ns a row of what one writes by hand: read JSON, add to a dict."""
    totals: dict[bytes, list[float]] = {}
    begun = time.perf_counter()
    for batch in batches:
        keys: list[Any] = batch["key"].to_pylist()
        values: list[Any] = batch["value"].to_pylist()
        for key, text in zip(keys, values, strict=True):
            row = orjson.loads(text)
            kept = totals.get(key)
            if kept is None:
                kept = totals[key] = [0.0, 0]
            kept[0] += row["amount"]
            kept[1] += 1
    return (time.perf_counter() - begun) / (len(batches) * BATCH) * 1e9


def tasks(runs: int) -> list[Row]:
    """A task in this process, JSON decoded and encoded, beside a loop that only reads and adds."""
    batches = _orders()
    programs = {
        "filter, computed column": _columns,
        "sum and count by key": _keys,
        "tumbling 10 s, final": _windows,
        "join of two streams, a pair for each left row": _join,
        "join with a table of 10,000": _table,
        "function per record with state": _function,
    }
    sides = [lambda app=app: _run(app, batches) for app in programs.values()]
    *found, loop = interleaved(runs, *sides, lambda: _loop(batches))
    return [
        compare(f"streams task: {name} / plain loop", "ns/row", ours, loop)
        for name, ours in zip(programs, found, strict=True)
    ]


def words(runs: int) -> list[Row]:
    """Word count by one worker on a cluster of one broker: from its start until every word is counted."""
    lines = lines_of(sized(500_000, 5_000))
    with HeadraceSide.running(flush="os") as cluster, tempfile.TemporaryDirectory() as directory:
        found = [count_words(cluster, lines, Path(directory) / str(number)) for number in range(runs)]
    rates, cpu = [run["lines_s"] for run in found], [run["cpu_us"] for run in found]
    name = f"streams word count, lines of {WORDS_A_LINE} words"
    return [compare(name, "lines/s", rates), compare(f"{name}: worker's CPU", "µs/record", cpu)]


def lines_of(count: int) -> list[bytes]:
    """Lines of words, each word as likely as the others."""
    chance = np.random.default_rng(2)
    vocabulary = np.array([f"word{number}" for number in range(VOCABULARY)])
    return [" ".join(row).encode() for row in vocabulary[chance.integers(0, VOCABULARY, (count, WORDS_A_LINE))]]


def count_words(cluster: HeadraceSide, lines: list[bytes], state: Path) -> dict[str, float]:
    """Lines a second from the first count that is read to the last, and what the worker spent on a line meanwhile."""
    from headrace import Consumer, Producer

    source, target = cluster.topic(6), cluster.topic(6)
    with Producer(cluster.bootstrap) as producer:
        for first in range(0, len(lines), 10_000):
            producer.send_many(source, lines[first : first + 10_000])
    settings = {"bootstrap_servers": cluster.bootstrap, "state_dir": str(state)}
    counts: dict[bytes, int] = {}
    begun = cpu = 0.0
    with (
        Consumer(
            target, bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer,
        running("streams_words.py", source, target, settings) as worker,
    ):
        while sum(counts.values()) < len(lines) * WORDS_A_LINE:
            for record in consumer.poll(100, max_records=50_000):
                if not begun:
                    begun, cpu = time.perf_counter(), cpu_seconds([worker.pid])
                counts[record.key] = orjson.loads(record.value)["n"]
            assert worker.poll() is None, "the worker ended"
        seconds, used = time.perf_counter() - begun, cpu_seconds([worker.pid]) - cpu
    return {"lines_s": len(lines) / seconds, "cpu_us": used / len(lines) * 1e6}


def latency(runs: int) -> list[Row]:
    """One record at a time through a filter, exactly once, commits each 20 ms: sent until it is read, committed."""
    with HeadraceSide.running(flush="os") as cluster, tempfile.TemporaryDirectory() as directory:
        states = (Path(directory) / str(number) for number in range(runs))
        found = [sorted(_one_at_a_time(cluster, state, sized(300, 20))) for state in states]
    target = {0.5: "≤ 40", 0.99: ""}
    return [
        compare(f"streams in to out, p{share * 100:.0f}", "ms", [percentile(one, share) for one in found], target=goal)
        for share, goal in target.items()
    ]


def _one_at_a_time(cluster: HeadraceSide, state: Path, count: int) -> list[float]:
    from headrace import Consumer, Producer

    source, target = cluster.topic(1), cluster.topic(1)
    settings = {"bootstrap_servers": cluster.bootstrap, "state_dir": str(state), "commit_interval_ms": 20}
    took: list[float] = []
    with (
        running("streams_filter.py", source, target, settings),
        Producer(cluster.bootstrap) as producer,
        Consumer(
            target, bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer,
    ):
        for number in range(count + 20):
            begun = time.perf_counter()
            producer.send(source, b"%d" % number)
            while not consumer.poll(60_000):
                pass
            if number >= 20:  # the first find everything cold
                took.append((time.perf_counter() - begun) * 1e3)
    return took


@contextmanager
def running(program: str, source: str, target: str, settings: dict[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of one of the programs in ``bench/clients``."""
    command = [sys.executable, "-m", "headrace_streams", str(CLIENTS / program), json.dumps(settings)]
    topics = {"SOURCE": source, "TARGET": target}
    worker = subprocess.Popen(command, env=os.environ | topics, stderr=subprocess.DEVNULL)
    try:
        yield worker
    finally:
        worker.terminate()
        worker.wait()
