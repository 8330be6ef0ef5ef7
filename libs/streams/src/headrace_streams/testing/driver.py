"""
Runs a program in one process and without a server: the same tasks as a worker, over topics in memory.

A seed decides how input is cut into batches, which task is next, and when a commit is made. None of that may be seen in
what the program writes, so a test may run with many seeds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import orjson
import pyarrow as pa

from headrace_common.core.murmur2 import partitions_for
from headrace_streams.core.errors import NotAllowed
from headrace_streams.core.feed import Feed, Portion
from headrace_streams.core.formats.ddl import type_text
from headrace_streams.core.formats.framing import HEADER_BYTES, Framed, Schemas
from headrace_streams.core.formats.port import Format
from headrace_streams.core.operators.headers import HEADERS
from headrace_streams.core.outputs import Output
from headrace_streams.core.rows import user_columns, whole
from headrace_streams.core.state.cache import STATE_CACHE_BYTES, StateCache
from headrace_streams.core.state.memory import MemoryCold
from headrace_streams.core.task import Task
from headrace_streams.dsl.app import App
from headrace_streams.dsl.durations import Duration, to_ms
from headrace_streams.dsl.record_calls import hint
from headrace_streams.plan.cut import Assembly, SubTopology, on_topics
from headrace_streams.plan.nodes import SINK, SOURCE, Global, Node, repartition_topic

_COLUMNS: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "timestamp_ms": pa.int64(),
    "headers": HEADERS,
}
_RECORD: Final = pa.schema(_COLUMNS)
Rows = Sequence[Mapping[str, Any]]


@dataclass(slots=True)
class _Log:
    """One partition of a topic."""

    records: pa.Table = field(default_factory=_RECORD.empty_table)

    @property
    def end(self) -> int:
        return int(self.records.num_rows)

    def append(self, records: pa.Table) -> None:
        self.records = pa.concat_tables([self.records, records.cast(_RECORD)])

    def read(self, offset: int, count: int) -> pa.Table:
        found = self.records.slice(offset, count)
        return found.append_column("offset", pa.array(range(offset, offset + found.num_rows), pa.int64()))


@dataclass(slots=True)
class _Committed:
    """What a task that begins anew finds."""

    stores: dict[str, MemoryCold] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    watermarks: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Running:
    part: SubTopology
    partition: int
    task: Task
    positions: dict[str, int]


class Driver:
    """
    ::

        with Driver(app, partitions=3, seed=7) as driver:
            driver.pipe("orders", [{"user": "ann", "amount": 20.0, "at": 1_000}])
            driver.advance_to(16_000)
            assert driver.read("totals") == [...]
    """

    def __init__(
        self,
        app: App,
        *,
        partitions: int | Mapping[str, int] = 1,
        seed: int = 0,
        registry: Schemas | None = None,
        state_cache_bytes: int = STATE_CACHE_BYTES,
    ) -> None:
        """
        Args:
            partitions: of the topics that the program reads, of all or of each.
            registry: has the schemas, in place of each registry that the program names.
            state_cache_bytes: about how much state stays in memory after a commit; it is not seen in what is written.
        """
        self._app = app
        of_nodes = [format_ for node in app.graph.nodes for format_ in (node.value, node.key)]
        of_tables = [format_ for one in app.graph.globals for format_ in (one.value, one.key)]
        for format_ in (*of_nodes, *of_tables):
            if registry is not None and isinstance(format_, Framed):
                format_.use(registry)
        self._chance = random.Random(seed)
        self._tables = {one.topic: one.rows() for one in app.graph.globals}
        self._partitions = partitions
        self._topics = {*(() if isinstance(partitions, int) else partitions)}
        self._assemble()
        self._cache = StateCache(state_cache_bytes)
        self._logs: dict[tuple[str, int], _Log] = {}
        self._committed: dict[tuple[str, int], _Committed] = {}
        self._read: dict[tuple[str, int], int] = {}
        self._running: list[_Running] = []
        self._crashed = False
        self._now_ms = 0
        self.restart()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._running = []

    # --- topics ---------------------------------------------------------------------------------------------------

    def _assemble(self) -> None:
        """The program on the topics that there are."""
        app, partitions = self._app, self._partitions
        graph = on_topics(app.name, app.graph, app.on_error, self._topics)
        self._nodes = graph.nodes
        topics = {topic for node in self._nodes if node.kind == SOURCE for topic in node.topics}
        for topic in topics:
            if not isinstance(partitions, int) and topic not in partitions:
                raise NotAllowed(f"say how many partitions the topic {topic!r} has: partitions={{{topic!r}: 1}}")
        counts = {topic: partitions if isinstance(partitions, int) else partitions[topic] for topic in topics}
        self._assembly = Assembly(app.name, graph, counts, app.on_error, self._tables)
        hops = self._assembly.repartitions.items()
        self._counts = {**counts, **{repartition_topic(app.name, name): count for name, count in hops}}

    def pipe(self, topic: str, rows: Rows, *, partition: int | None = None, time: int | None = None) -> None:
        """
        Write rows to a topic that the program reads, and let it work.

        Args:
            rows: the columns of the topic's format; ``_key`` (bytes or text) is the record's key, ``_headers`` (names
                and bytes) its headers.
            partition: by key if not told, or any where there is none.
            time: the records' timestamp, ms.

        Raises:
            NotAllowed: a row has a column that the topic's format does not have, or a value of another type.
        """
        node = self._source(topic)
        assert node.value is not None
        schema = node.value.schema
        assert schema is not None
        of_key = pa.schema([]) if node.key is None or node.key.schema is None else node.key.schema
        known = {*schema.names, *of_key.names, "_key", "_headers"}
        for unknown in dict.fromkeys(name for row in rows for name in row if name not in known):
            raise NotAllowed(
                f"the rows for {topic!r} have a column {unknown!r}, which its format does not have; "
                f"{hint(pa.schema([*of_key, *schema]))}; _key and _headers are the record's own"
            )
        keys = pa.array([self._key_of(node, row) for row in rows], pa.binary())
        columns = {field.name: _column(field, rows, topic) for field in schema}
        values = node.value.encode(pa.table(columns, schema=schema))
        headers = [row.get("_headers") or {} for row in rows]
        self.pipe_raw(topic, keys.to_pylist(), values.to_pylist(), headers=headers, partition=partition, time=time)

    def pipe_raw(
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        *,
        headers: Sequence[Mapping[str, bytes | None]] | None = None,
        partition: int | None = None,
        time: int | None = None,
    ) -> None:
        """Write records to a topic that the program reads as bytes, and let it work."""
        self._source(topic)
        stamps = [time or 0] * len(keys)
        records = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
        table = pa.table({**records, "timestamp_ms": pa.array(stamps, pa.int64())})
        if headers is not None:
            pairs = [[{"key": name, "value": value} for name, value in of.items()] for of in headers]
            table = table.append_column("headers", pa.array(pairs, HEADERS))
        self._append(Output(topic, table, partition))
        self._work()

    def _source(self, topic: str) -> Node | Global:
        for one in self._app.graph.globals:
            if one.topic == topic:
                return one
        for node in self._nodes:
            if node.kind == SOURCE and topic in node.topics:
                return node
        if topic not in self._topics:  # a pattern may match it
            self.commit()
            self._topics.add(topic)
            self._assemble()
            if not self._crashed:
                self.restart()
            return self._source(topic)
        raise NotAllowed(f"the program does not read the topic {topic!r}")

    def _key_of(self, node: Node | Global, row: Mapping[str, Any]) -> bytes | None:
        key = row.get("_key")
        if key is None and node.key is not None:
            schema = node.key.schema
            assert schema is not None
            if all(row.get(name) is None for name in schema.names):
                return None
            return bytes(node.key.encode(pa.Table.from_pylist([dict(row)], schema=schema))[0].as_py())
        return key.encode() if isinstance(key, str) else key

    def _append(self, output: Output) -> None:
        count = self._counts.get(output.topic, 1)
        records = output.records
        headers = [[{"key": name, "value": value} for name, value in output.headers]] * records.num_rows
        records = (
            records.append_column("headers", pa.array(headers, HEADERS))
            if "headers" not in records.column_names
            else records
        )
        if output.topic in self._tables:
            log = self._log(output.topic, 0)
            log.append(records)
            self._tables[output.topic].apply(output.topic, 0, log.read(log.end - records.num_rows, records.num_rows))
            return
        if output.partition is not None:
            self._log(output.topic, output.partition).append(records)
            return
        targets = [
            self._chance.randrange(count) if t < 0 else t for t in partitions_for(whole(records["key"]), count).tolist()
        ]
        for partition in sorted(set(targets)):
            mask = pa.array([target == partition for target in targets])
            self._log(output.topic, partition).append(records.filter(mask))

    def _log(self, topic: str, partition: int) -> _Log:
        return self._logs.setdefault((topic, partition), _Log())

    def read(self, topic: str) -> list[Any]:
        """
        What the program wrote to a topic since the last ``read`` of it, committed, by partition and offset.

        Values of JSON are read as JSON, those of other formats by their format; a null value is None.

        Raises:
            NotAllowed: the program neither reads nor writes it.
        """
        self.commit()
        format_ = next((n.value for n in self._nodes if n.kind == SINK and topic in n.topics), None)
        found: list[Any] = []
        for records in self._news(topic):
            found += _decoded(format_, records)
        return found

    def read_raw(self, topic: str) -> list[dict[str, Any]]:
        """The same as records: ``key``, ``value``, ``timestamp_ms``, ``headers``, ``offset``."""
        self.commit()
        return [record for records in self._news(topic) for record in records.to_pylist()]

    def _news(self, topic: str) -> list[pa.Table]:
        known = [*Assembly.topics_of(self._app.graph, self._app.on_error), *self._assembly.internal()]
        if topic not in known and all(name != topic for name, _ in self._logs):
            raise NotAllowed(f"the program has no topic {topic!r}; it has {', '.join(known)}")
        found = []
        for (name, partition), log in sorted(self._logs.items()):
            if name == topic:
                begin = self._read.get((name, partition), 0)
                found.append(log.read(begin, log.end - begin))
                self._read[name, partition] = log.end
        return found

    # --- work -----------------------------------------------------------------------------------------------------

    def _work(self, *, commits: bool = True) -> None:
        """Feed what is there in batches of any size, with commits now and then."""
        while True:
            ready = [
                (running, topic)
                for running in self._running
                for topic in running.positions
                if running.positions[topic] < self._log(topic, running.partition).end
            ]
            if not ready:
                return
            running, topic = self._chance.choice(ready)
            if running.part.in_order:
                self._feed_in_order(running)
            else:
                records = self._some(running, topic)
                running.task.feed(topic, records)
                running.positions[topic] += records.num_rows
            if commits and self._chance.random() < 0.2:
                self._commit()

    def _some(self, running: _Running, topic: str) -> pa.Table:
        """So many of the records that wait in a topic as chance will have it."""
        log, position = self._log(topic, running.partition), running.positions[topic]
        left = log.end - position
        return log.read(position, self._chance.choice([1, left, self._chance.randint(1, left)]) if left else 0)

    def _feed_in_order(self, running: _Running) -> None:
        feed = Feed(running.positions)
        for topic, position in running.positions.items():
            records = self._some(running, topic)
            behind = position + records.num_rows
            at_end = behind == self._log(topic, running.partition).end
            feed.offer(Portion(topic, records, behind), at_end=at_end)
        portions = feed.take(patient=True)
        running.task.feed_together([(one.topic, one.records) for one in portions if one.records.num_rows])
        running.positions |= {one.topic: one.next_offset for one in portions}

    def commit(self) -> None:
        """Commit until nothing is left to do."""
        self._work()
        while self._commit():
            self._work()

    def _commit(self) -> bool:
        """One commit of all tasks; whether records came of it that some task reads."""
        news = False
        for running in self._running:
            running.task.flush()
            for output in running.task.take():
                self._append(output)
                news |= any(output.topic in other.positions for other in self._running)
        for running in self._running:
            self._keep(running)
        self._cache.fit([store for running in self._running for store in running.task.stores])
        return news

    def _keep(self, running: _Running) -> None:
        committed = self._committed[running.part.name, running.partition]
        for store, changes in running.task.changes().items():
            committed.stores.setdefault(store, MemoryCold()).write(changes)
        committed.positions = dict(running.positions)
        committed.watermarks = running.task.watermarks()
        running.task.settle()

    def advance_to(self, time: int) -> None:
        """Event time of every topic that the program reads is at least ``time`` (ms), in all partitions."""
        self._work()
        self._each_source(lambda task, topic: task.reach(topic, time))
        self.commit()

    def advance(self, duration: Duration) -> None:
        """
        Let time by the clock pass, which began at 0: timers of the wall clock fire, and after 5 s topics at their end
        hold event time back no longer.
        """
        self._work()
        self._now_ms += to_ms(duration, "the duration")
        if to_ms(duration, "the duration") >= IDLE_AFTER_MS:
            self._each_source(lambda task, topic: task.idle(topic))
            for running in self._running:
                if running.task.waits:
                    running.task.rest_again()
        for running in self._running:
            self._tick(running.task)
        self.commit()

    def _tick(self, task: Task) -> None:
        task.tell(self._now_ms)
        if task.due is not None and task.due <= self._now_ms:
            task.tick(self._now_ms)

    def _each_source(self, do: Callable[[Task, str], None]) -> None:
        for running in self._running:
            for topic in running.part.topics:
                do(running.task, topic)

    # --- state ----------------------------------------------------------------------------------------------------

    def store(self, name: str) -> list[dict[str, Any]]:
        """
        The rows of a store, committed, of all tasks.

        Raises:
            NotAllowed: the program has no such store.
        """
        self.commit()
        of_tasks = [running.task.contents(name) for running in self._running]
        stores = [rows for rows in of_tasks if rows is not None]
        if of_tasks and not stores:
            raise NotAllowed(f"the program has no store {name!r}; stores have the names of what keeps state")
        return [row for rows in stores for row in rows.select(user_columns(rows.column_names)).to_pylist()]

    def crash(self) -> None:
        """What was not committed is gone. Nothing is worked on until ``restart``."""
        self._running, self._crashed = [], True

    def restart(self) -> None:
        """Begin with what was committed; what had been done since is done again."""
        self._running, self._crashed = [], False
        for part in self._assembly.parts:
            for partition in range(self._assembly.tasks_of(part)):
                self._running.append(self._begin(part, partition))
        self._work()

    def _begin(self, part: SubTopology, partition: int) -> _Running:
        committed = self._committed.setdefault((part.name, partition), _Committed())
        task = self._assembly.make(part, partition)
        task.open(lambda store: committed.stores.setdefault(store, MemoryCold()), committed.watermarks)
        self._tick(task)
        topics = [*part.topics, *(repartition_topic(self._app.name, hop.name) for hop in part.hops)]
        return _Running(part, partition, task, {topic: committed.positions.get(topic, 0) for topic in topics})


IDLE_AFTER_MS: Final = 5_000


def _column(field: pa.Field[Any], rows: Rows, topic: str) -> pa.Array[Any]:
    try:
        column: pa.Array[Any] = pa.array([row.get(field.name) for row in rows], field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as wrong:
        raise NotAllowed(f"the rows for {topic!r}: {field.name} is {type_text(field.type)}: {wrong}") from wrong
    return column


def _decoded(format_: Format | None, records: pa.Table) -> list[Any]:
    if not records.num_rows:
        return []
    if format_ is None or format_.schema is None:
        values: list[Any] = records["value"].to_pylist()
        begin = HEADER_BYTES if isinstance(format_, Framed) else 0
        return [orjson.loads(value[begin:] if value else b"null") for value in values]
    rows = iter(format_.decode(whole(records["value"].drop_null())).table.to_pylist())
    return [next(rows) if there else None for there in records["value"].is_valid().to_pylist()]
