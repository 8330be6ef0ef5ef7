"""Streams: what a row costs in a task, beside a plain loop of Python over the same records."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from bench.rows import Row, compare, interleaved
from bench.sizes import sized
from headrace.streams import App, agg, col, tumbling, value
from headrace.streams import json as json_of
from headrace_streams.core.state.memory import MemoryCold
from headrace_streams.core.task import Task
from headrace_streams.plan.cut import Assembly

BATCH = 10_000
KEYS = 10_000


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
