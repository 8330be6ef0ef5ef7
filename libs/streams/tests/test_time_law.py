"""
Event time behind repartitions: tasks that commit, abort and begin again each on its own, by any clock.

Once everything was told, the windows are those of one pass, and no row was late.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from libs.streams.tests.kit.feeding import Record, milliseconds, raw

from headrace_common.core.murmur2 import partitions_for
from headrace_streams import App, agg, col, json, tumbling
from headrace_streams.core.outputs import Output
from headrace_streams.core.rows import NO_TIME
from headrace_streams.core.state.changelog import of_remark, remark
from headrace_streams.core.state.memory import MemoryCold
from headrace_streams.core.task import Task
from headrace_streams.plan.cut import Assembly, SubTopology
from headrace_streams.plan.nodes import repartition_topic

_PARTITIONS = 2
_WINDOW_MS = 10
_GRACE_MS = 5
_ROUNDS_MAX = 50
_RECORDS = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("timestamp_ms", pa.int64())])


def app() -> App:
    """Tasks without state, others without state that read theirs, and those with windows."""
    made = App("timed")
    stream = made.stream("in", value=json("a string, b string, n bigint")).filter(col("n") >= 0)
    between = stream.key_by("a").repartition(name="by-a").with_columns(n=col("n") * 2)
    windows = between.group_by("b", name="by-b").window(
        tumbling(f"{_WINDOW_MS}ms", grace=f"{_GRACE_MS}ms"), late="too-late"
    )
    windows.agg(n=agg.sum("n"), name="w", emit="final").to("out")
    return made


@dataclass(slots=True)
class _One:
    """One task, and what was committed of it."""

    part: SubTopology
    partition: int
    topics: list[str]
    cold: dict[str, MemoryCold] = field(default_factory=dict)
    committed: dict[str, int] = field(default_factory=dict)
    watermarks: dict[str, int] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    touched: bool = False
    idle: bool = False
    task: Task = field(init=False)


class World:
    """All tasks of an app, each of which is the only one of its worker."""

    def __init__(self, app: App, interval_ms: int) -> None:
        self.assembly = Assembly(
            app.name, app.graph, {"in": _PARTITIONS}, app.on_error, watermark_interval_ms=interval_ms
        )
        self.logs: dict[tuple[str, int], list[dict[str, Any]]] = {}
        self.wall = 0
        self.tasks = []
        for part in self.assembly.parts:
            for partition in range(self.assembly.tasks_of(part)):
                topics = [*part.topics, *(repartition_topic(app.name, hop.name) for hop in part.hops)]
                self.tasks.append(_One(part, partition, topics))
        for one in self.tasks:
            self.begin(one)

    def begin(self, one: _One) -> None:
        """Another worker has taken it over."""
        one.task = self.assembly.make(one.part, one.partition)
        one.task.open(lambda name: one.cold.setdefault(name, MemoryCold()), one.watermarks)
        self._back(one)

    def abort(self, one: _One) -> None:
        one.task.rewind(one.watermarks)
        self._back(one)

    def _back(self, one: _One) -> None:
        one.positions = dict(one.committed)
        one.touched = one.idle = False

    def feed(self, one: _One, most: int) -> None:
        one.task.tell(self.wall)
        for topic in one.topics:
            log, at = self.logs.get((topic, one.partition), []), one.positions.get(topic, 0)
            if found := log[at : at + most]:
                table = pa.Table.from_pylist(found, schema=_RECORDS)
                offsets = pa.array(range(at, at + len(found)), pa.int64())
                one.task.feed(topic, table.append_column("offset", offsets))
                one.positions[topic] = at + len(found)
                one.touched, one.idle = True, False

    def rest(self, one: _One) -> None:
        """Its source has stood at its end for long."""
        if one.part.topics and not one.idle:
            one.task.idle("in")
            one.touched = one.idle = True

    def commit(self, one: _One) -> None:
        if one.task.due is not None and one.task.due <= self.wall:
            one.task.tick(self.wall)
            one.touched = True
        if not one.touched:
            return
        one.task.flush()
        for output in one.task.take():
            self.write(output)
        for name, changes in one.task.changes().items():
            one.cold.setdefault(name, MemoryCold()).write(changes)
        one.watermarks, one.committed = one.task.watermarks(), dict(one.positions)
        if not one.task.stores:
            one.watermarks = of_remark(remark(one.watermarks))
        one.task.settle()
        one.touched = False

    def write(self, output: Output) -> None:
        keys = output.records["key"].combine_chunks()
        by_key = [max(0, at) for at in partitions_for(keys, _PARTITIONS).tolist()]
        for record, at in zip(output.records.to_pylist(), by_key, strict=True):
            where = at if output.partition is None else output.partition
            self.logs.setdefault((output.topic, where), []).append(record)

    def until_nothing_is_left(self, interval_ms: int) -> None:
        before = -1
        for _ in range(_ROUNDS_MAX):
            for one in self.tasks:
                self.feed(one, 1_000)
                self.commit(one)
            self.wall += interval_ms
            if (left := sum(map(len, self.logs.values()))) == before:
                if not (waiting := [one for one in self.tasks if one.task.waits]):
                    return
                for one in waiting:  # so long that nothing is on its way any more
                    one.task.rest_again()
                    one.touched = True
            before = left
        raise AssertionError("tasks tell each other the same again and again")

    def read(self, topic: str) -> list[dict[str, Any]]:
        found = [record for (name, _), log in self.logs.items() if name == topic for record in log]
        return [orjson.loads(record["value"]) for record in found]


row = st.tuples(st.sampled_from("kl"), st.sampled_from("pqr"), st.integers(0, 9), st.integers(-_GRACE_MS, 25))
rows = st.lists(row, min_size=4, max_size=12)
both: st.SearchStrategy[Any] = st.tuples(rows, rows) | st.tuples(rows, st.just([])) | st.tuples(st.just([]), rows)
which = st.just(list(range(6))) | st.lists(st.integers(0, 5), min_size=1, max_size=6)
whats = st.sampled_from(["work", "work", "feed", "abort", "begin", "clock"])
steps = st.lists(st.tuples(which, whats, st.integers(1, 4)), min_size=4, max_size=15)


@settings(max_examples=100)
@given(given=both, interval_ms=st.sampled_from([0, 50]), do=steps)
def test_windows_do_not_depend_on_who_told_what_when(
    given: tuple[list[tuple[str, str, int, int]], ...], interval_ms: int, do: list[tuple[list[int], str, int]]
) -> None:
    world = World(app(), interval_ms)
    expected: Counter[tuple[str, int]] = Counter()
    greatest_of: list[int] = []
    for partition, of_one in enumerate(given):
        greatest = 0
        records: list[Record] = []
        for a, b, n, step in of_one:  # no row is further than the grace behind those before it
            time = max(0, greatest + step)
            greatest = max(greatest, time)
            records.append((None, {"a": a, "b": b, "n": n}, time))
            expected[b, time // _WINDOW_MS * _WINDOW_MS] += 2 * n
        greatest_of += [greatest] if of_one else []
        world.logs["in", partition] = raw(records).drop_columns(["offset"]).to_pylist()
    without = [one for one in world.tasks if one.part.topics and not given[one.partition]]
    for one in without:
        world.rest(one)
    for numbers, what, count in do:
        for one in (world.tasks[number] for number in numbers):
            match what:
                case "work":
                    world.feed(one, count)
                    world.commit(one)
                case "feed":
                    world.feed(one, count)
                case "abort":
                    world.abort(one)
                case "begin":
                    world.begin(one)
        world.wall += 20 * count if what == "clock" else 0
    for one in without:
        world.rest(one)
    world.until_nothing_is_left(interval_ms)
    assert {one.task.watermark for one in world.tasks[-_PARTITIONS:]} == {min(greatest_of, default=NO_TIME)}
    for one in world.tasks:
        world.rest(one)
    world.until_nothing_is_left(interval_ms)
    assert world.read("too-late") == []
    end = max(greatest_of, default=NO_TIME)
    closed = {of: n for of, n in expected.items() if of[1] + _WINDOW_MS + _GRACE_MS <= end}
    found = [(row["b"], milliseconds(row["window_start"]), row["n"]) for row in world.read("out")]
    assert sorted(found) == sorted((b, start, n) for (b, start), n in closed.items())
