"""
One task: a sub-topology over one partition. Records in; records for topics, and changes of state, out.

A batch passes the operators in their order. Where branches meet, rows are put in the order of the records that they
stem from. An operator without state that raises is given halves of its
batch until the rows that it cannot process stand alone; these go the way that ``on_error`` says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa

from headrace_streams.core.changes import ADDED, changes_of
from headrace_streams.core.errors import NotAllowed, Origin, RowFailed, cause_of, words_of
from headrace_streams.core.feed import merged, runs
from headrace_streams.core.formats.ddl import without_times
from headrace_streams.core.operators import hop
from headrace_streams.core.operators.base import Emitted, Failed, Operator, halved
from headrace_streams.core.operators.ends import Source, with_place
from headrace_streams.core.outputs import Headers, Output, records
from headrace_streams.core.rows import (
    KEY,
    NO_TIME,
    RECORD,
    ROW,
    TIME,
    WATERMARK,
    Numbers,
    brought_about,
    numbers,
    ordered,
    replace,
    user_columns,
)
from headrace_streams.core.state.changelog import NotReadable
from headrace_streams.core.state.store import Changes, Cold, Store
from headrace_streams.core.time import Clock, Watermarks

FAIL: Final = "fail"
SKIP: Final = "skip"


@dataclass(frozen=True, slots=True)
class Link:
    """Where rows that leave a node by an edge go."""

    node: int
    edge: str
    to: int
    port: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """A node of a task's chain."""

    id: int
    label: str
    """For messages: what it is, its name, and where the program says it."""
    operator: Operator
    on_error: str = FAIL
    """``FAIL``, ``SKIP``, or the dead letter topic."""
    store: str = ""
    """The name of its store, if it has one."""


@dataclass(frozen=True, slots=True)
class Hop:
    """How rows come from a repartition topic."""

    node: int
    """That they enter by."""
    senders: int
    columns: Mapping[str, str]
    """Their names and types, of the user's."""
    timed: bool = True
    """They have a part in event time."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """How records come into a task."""

    sources: Mapping[str, int] = field(default_factory=dict)
    """Topics and the nodes that decode their records."""
    hops: Mapping[str, Hop] = field(default_factory=dict)
    """By repartition topic."""
    tables: frozenset[str] = frozenset()
    """Those of the topics that are tables."""

    def names(self) -> list[str]:
        """What has a time of its own: topics, and the senders of each repartition topic."""
        return [*self.sources, *self.sender_names()]

    def sender_names(self) -> list[str]:
        """The senders among them."""
        return [sender_name(topic, n) for topic, hop in self.hops.items() if hop.timed for n in range(hop.senders)]


def check_columns(topic: str, rows: pa.Table, wanted: Mapping[str, str]) -> None:
    """
    Raises:
        NotAllowed: the rows were written by another program.
    """
    found = hop.columns_of(rows)
    if found != wanted:
        raise NotAllowed(
            f"rows wait in {topic} that the program before this change wrote: they have the columns "
            f"{hop.rows_text(found)}, and this one wants {hop.rows_text(wanted)}. Run that program until `headrace "
            "group lag` says 0 for the topic, then this one"
        )


def sender_name(topic: str, number: int) -> str:
    """A task that writes a repartition topic, as an input of those that read it."""
    return f"{topic}/{number}"


@dataclass(frozen=True, slots=True)
class _Batch:
    """What is being fed: rows are traced back to it."""

    inputs: Sequence[tuple[str, pa.Table]]
    turns: tuple[Numbers, Numbers] | None = None
    """Of several inputs: for each row, by its column ``_row``, which input it is of, and its place in that."""

    def record(self, place: int) -> tuple[str, pa.Table, int]:
        """The topic, the table and the place in it of the record that a row stems from."""
        of, at = (0, place) if self.turns is None else (int(self.turns[0][place]), int(self.turns[1][place]))
        return *self.inputs[of], at


class Task:
    """
    Pure: no clock, no I/O. The caller feeds it, takes what it wrote, and tells it what became of a commit.

    After an exception it must be rewound, or given up: part of a batch may have left.
    """

    def __init__(
        self,
        partition: int,
        steps: Sequence[Step],
        links: Iterable[Link],
        inputs: Inputs,
        written: list[Output],
        app: str = "",
    ) -> None:
        """
        Args:
            steps: in topological order.
            written: what its operators write to.
        """
        self.partition = partition
        self._steps = list(steps)
        self._by_id = {step.id: step for step in steps}
        self._links: dict[tuple[int, str], list[Link]] = {}
        for link in links:
            self._links.setdefault((link.node, link.edge), []).append(link)
        self._inputs = inputs
        self._app = app
        self._waiting: dict[int, list[tuple[pa.Table, int]]] = {}
        self._watermarks = Watermarks(inputs.names(), inputs.sender_names(), inputs.tables)
        self._clock = Clock()
        for step in self._steps:
            step.operator.clock = self._clock
        self._batch: _Batch | None = None
        self._outputs = written
        self.failed: dict[str, int] = {}
        """Rows that nodes could not process and that were left out or sent away since the last commit, by label."""
        self._looked: dict[int, tuple[int, int]] = {}
        """What the stores had counted then."""
        self._taken: Counter[int] = Counter()
        self._given: Counter[int] = Counter()

    def passed(self) -> tuple[dict[str, int], dict[str, int]]:
        """Rows that nodes took, and that they gave, since the last commit; by label."""
        taken, given = ({s.label: by[s.id] for s in self._steps if s.id in by} for by in (self._taken, self._given))
        return taken, given

    @property
    def dirty(self) -> dict[str, int]:
        """About how many bytes of state differ from the last commit, by label."""
        return {s.label: s.operator.store.dirty_bytes() for s in self._steps if s.operator.store is not None}

    def met(self) -> dict[str, dict[str, int]]:
        """
        What rows met with since the last commit, by kind and label: ``late`` for their window; ``dropped``, without a
        key or value where one is needed; ``failed``, and left out or sent away; keys of state: ``hits`` in memory, and
        ``misses``, for which the cold tier was asked.
        """
        found: dict[str, dict[str, int]] = {
            "late": {step.label: step.operator.late for step in self._steps if step.operator.late},
            "dropped": {step.label: step.operator.dropped for step in self._steps if step.operator.dropped},
            "failed": dict(self.failed),
            "hits": {},
            "misses": {},
        }
        for step in self._steps:
            if step.operator.store is not None:
                hits, misses = self._looked[step.id]
                found["hits"][step.label] = step.operator.store.hits - hits
                found["misses"][step.label] = step.operator.store.misses - misses
        return found

    @property
    def stores(self) -> list[Store]:
        """Those of its nodes."""
        return [step.operator.store for step in self._steps if step.operator.store is not None]

    @property
    def watermark(self) -> int:
        """Event time of the task, ms."""
        return self._watermarks.now

    @property
    def held_by(self) -> tuple[str, float] | None:
        """The input that holds its event time back, and by how many ms (inf: it has none yet); None: none does."""
        return self._watermarks.held_by

    def open(self, cold: Callable[[str], Cold], watermarks: Mapping[str, int]) -> None:
        """Begin with what was committed; ``cold`` gives the committed state of a store by its name."""
        for step in self._steps:
            if step.operator.store is not None:
                step.operator.store.open(cold(step.store))
        self._restart(watermarks, anew=True)

    def rewind(self, watermarks: Mapping[str, int]) -> None:
        """The commit was aborted: state and time are as of the last one, and nothing that was written counts."""
        for store in self.stores:
            store.drop()
        self._restart(watermarks)

    def _restart(self, watermarks: Mapping[str, int], *, anew: bool = False) -> None:
        self._outputs.clear()
        self._waiting.clear()
        self._count_anew()
        self._watermarks.restore(watermarks, anew=anew)
        self._clock.start(self._watermarks.now)
        for step in self._steps:
            step.operator.begin(self._watermarks.now)
        self._rest()

    def feed(self, topic: str, raw: pa.Table) -> None:
        """
        Records of one of its topics, in the order of their offsets.

        Args:
            raw: columns ``key``, ``value``, ``timestamp_ms``, ``offset``; ``headers`` where dead letters keep them.

        Raises:
            RowFailed: a record cannot be processed, and ``on_error`` is "fail".
            StateFailed: state cannot hold what it would become.
        """
        self._batch = _Batch([(topic, raw)])
        if topic in self._inputs.sources:
            self._feed_source(topic, raw)
        else:
            self._feed_hop(topic, raw)
        self._batch = None

    def feed_together(self, inputs: Sequence[tuple[str, pa.Table]]) -> None:
        """
        Records of several of its topics, in the order of their event times, without changing the order in any. What
        comes by a repartition topic is put in the order of its records' timestamps.

        Raises: as ``feed``.
        """
        if len(inputs) > 1 and all(topic in self._inputs.sources for topic, _ in inputs):
            self._feed_sources(inputs)
            return
        for place, raw in runs([raw for _, raw in inputs]):
            self.feed(inputs[place][0], raw)

    def _feed_source(self, topic: str, raw: pa.Table) -> None:
        step = self._source_of(topic)
        self._clock.start(self._watermarks.now)
        for rows in self._decoded(step, topic, raw):
            marks = self._watermarks.passed(topic, numbers(rows[TIME]))
            self._clock.extend(marks, numbers(rows[ROW]))
            self._emit(step, Emitted(replace(rows, WATERMARK, pa.array(marks, pa.int64()))))
        self._advance()

    def _feed_sources(self, inputs: Sequence[tuple[str, pa.Table]]) -> None:
        steps, decoded = [], []
        for topic, raw in inputs:
            step = self._source_of(topic)
            self._batch = _Batch([(topic, raw)])
            parts = list(self._decoded(step, topic, raw))
            if parts:
                steps.append((topic, step))
                decoded.append(ordered(parts))
        times = [numbers(rows[TIME]) for rows in decoded]
        of, order = merged(times)
        place = np.concatenate([np.zeros(0, np.int64), *(numbers(rows[ROW]) for rows in decoded)])
        self._clock.start(self._watermarks.now)
        topics = [topic for topic, _ in steps]
        marks = self._watermarks.passed_by(topics, of[order], np.concatenate([place[:0], *times])[order])
        self._clock.extend(marks, np.arange(len(order)))
        named = {topic: number for number, (topic, _) in enumerate(inputs)}
        input_of = np.array([named[topic] for topic in topics], np.int64)[of[order]]
        self._batch = _Batch(inputs, (input_of, place[order]))
        turn = np.empty(len(order), np.int32)
        turn[order] = np.arange(len(order))
        for number, ((_, step), rows) in enumerate(zip(steps, decoded, strict=True)):
            at = turn[of == number]
            marked = replace(rows, WATERMARK, pa.array(marks[at], pa.int64()))
            self._emit(step, Emitted(replace(marked, ROW, pa.array(at, pa.int32()))))
        self._advance()
        self._batch = None

    def _source_of(self, topic: str) -> Step:
        return self._by_id[self._inputs.sources[topic]]

    def _decoded(self, step: Step, topic: str, raw: pa.Table) -> Iterable[pa.Table]:
        """The rows of records that can be read, with their event times."""
        source = step.operator
        assert isinstance(source, Source), step.label
        self._taken[step.id] += raw.num_rows
        if source.metadata:
            raw = with_place(raw, topic, self.partition)
        for emitted in self._made(step, source.feed, raw, 0, self._failing(step)):
            yield from halved(emitted.rows, source.timed, self._failing(step))

    def _feed_hop(self, topic: str, raw: pa.Table) -> None:
        source = self._inputs.hops[topic]
        step = self._by_id[source.node]
        offsets: list[Any] = raw["offset"].to_pylist()
        values: list[Any] = raw["value"].to_pylist()
        moved = False  # by flushes without rows: what waits for event time is done once behind all of them
        for offset, value in zip(offsets, values, strict=True):
            try:
                flush = hop.decode(value)
            except NotReadable as error:
                raise NotReadable(f"{Origin(topic, self.partition, offset)}: {error}") from error
            assert flush.sender < source.senders, f"{topic} has a flush of task {flush.sender}"
            if flush.rows is not None:
                check_columns(topic, flush.rows, source.columns)
            sender = sender_name(topic, flush.sender)
            if flush.rows is None and source.timed and not flush.idle:
                if not moved:
                    self._clock.start(self._watermarks.now)
                self._watermarks.reached(sender, flush.watermark)
                moved = True
                continue
            if moved:
                self._moved(self._watermarks.now, 0)
                moved = False
            self._clock.start(self._watermarks.now)
            count = 0
            if flush.rows is not None:
                count = flush.rows.num_rows
                places = np.arange(count, dtype=np.int32)
                marks = numbers(flush.rows[WATERMARK])
                found = self._watermarks.passed(sender, marks) if source.timed else np.full(count, self.watermark)
                self._clock.extend(found, places)
                marked = replace(flush.rows, WATERMARK, pa.array(found, pa.int64()))
                self._emit(step, Emitted(marked.append_column(ROW, pa.array(brought_about(places), pa.int32()))))
            if not source.timed:
                self._moved(self.watermark, count)
                continue
            self._moved(self._watermarks.reached(sender, flush.watermark), count)
            if flush.idle:
                self.idle(sender)
        if moved:
            self._moved(self._watermarks.now, 0)

    def reach(self, topic: str, time: int) -> None:
        """Event time of an input is ``time`` (ms) without a record that says so."""
        self._clock.start(self._watermarks.now)
        self._moved(self._watermarks.reached(topic, time), 0)

    @property
    def due(self) -> int | None:
        """When it wants a ``tick``, by the wall clock, ms; None: not at all."""
        return min((due for step in self._steps if (due := step.operator.due) is not None), default=None)

    def tell(self, now: int) -> None:
        """It is ``now`` (ms) by the wall clock, which functions of the program may ask for."""
        self._clock.wall = now

    def tick(self, now: int) -> None:
        """The same, and what waits for that is done."""
        self.tell(now)
        self._clock.start(self._watermarks.now)
        for step in self._steps:
            self._push_waiting(step)
            for emitted in self._made(step, step.operator.tick, now, self._failing(step)):
                self._emit(step, emitted)

    def idle(self, topic: str) -> None:
        """The topic's partition has stood at its end for long: it holds the others back no longer."""
        self._clock.start(self._watermarks.now)
        self._moved(self._watermarks.is_idle(topic), 0)

    @property
    def waits(self) -> bool:
        """Whether senders that were idle before it began are waited for: they may have rows by now."""
        return self._watermarks.waits

    def rest_again(self) -> None:
        """They have had time enough to send some: they are idle as before."""
        self._clock.start(self._watermarks.now)
        self._moved(self._watermarks.rest_again(), 0)

    def _moved(self, watermark: int, place: int) -> None:
        """The watermark has moved behind that many records."""
        self._clock.extend(np.array([watermark]), np.array([place]))
        self._advance()

    def _advance(self) -> None:
        """What waits passes the operators, and event time with it."""
        now = self._watermarks.now
        for step in self._steps:
            self._push_waiting(step)
            if now != NO_TIME:
                for emitted in self._made(step, step.operator.advance, now, self._failing(step)):
                    self._emit(step, emitted)
        self._rest()

    def _count_anew(self) -> None:
        self._taken.clear()
        self._given.clear()
        self.failed.clear()
        for step in self._steps:
            step.operator.late = step.operator.dropped = 0
            if (store := step.operator.store) is not None:
                self._looked[step.id] = store.hits, store.misses

    def _rest(self) -> None:
        if self._watermarks.rests:
            for step in self._steps:
                step.operator.rest()

    def _emit(self, step: Step, emitted: Emitted) -> None:
        count = emitted.rows.num_rows
        if not count:
            return
        self._given[step.id] += count
        for link in self._links.get((step.id, emitted.edge), ()):
            self._waiting.setdefault(link.to, []).append((emitted.rows, link.port))

    def _push_waiting(self, step: Step) -> None:
        waiting = self._waiting.pop(step.id, [])
        for rows, port in step.operator.together(waiting) if waiting else ():
            self._push(step, rows, port)

    def _push(self, step: Step, rows: pa.Table, port: int) -> None:
        self._taken[step.id] += rows.num_rows
        if step.operator.store is not None:
            for emitted in self._made(step, step.operator.feed, rows, port, self._failing(step)):
                self._emit(step, emitted)
            return

        def process(part: pa.Table) -> list[Emitted]:
            return self._made(step, step.operator.feed, part, port, self._failing(step))

        for emissions in halved(rows, process, self._failing(step)):
            for emitted in emissions:
                self._emit(step, emitted)

    def _made(self, step: Step, call: Callable[..., Iterable[Emitted]], *args: Any) -> list[Emitted]:
        """What an operator gives; of what would end the process it is told which one it was."""
        try:
            return list(call(*args))
        except Exception:
            raise
        except BaseException as error:
            if not any(note.startswith(step.label) for note in getattr(error, "__notes__", ())):
                error.add_note(step.label)
            raise

    def _failing(self, step: Step) -> Failed:
        return lambda rows, error: self._fail(step, rows, error)

    def _fail(self, step: Step, rows: pa.Table, error: BaseException) -> None:
        if not isinstance(error, Exception):
            origin = self._origin(int(numbers(rows[ROW])[0]))
            error.add_note(f"{step.label}: {f'the record of {origin}' if origin else _row_text(rows.slice(0, 1))}")
            raise error
        cause = cause_of(error)[:500]
        for at, (place, change) in enumerate(zip(numbers(rows[ROW]).tolist(), changes_of(rows).tolist(), strict=True)):
            if step.on_error == FAIL:
                origin = self._origin(place)
                told = "" if origin else _row_text(rows.slice(at, 1))
                raise RowFailed(step.label, origin, cause, told) from error
            if change != ADDED:  # what is taken away was told when it came
                continue
            self.failed[step.label] = self.failed.get(step.label, 0) + 1
            if step.on_error != SKIP:
                self._bury(step, rows, place, error)

    def _origin(self, place: int) -> Origin | None:
        batch = self._batch
        if batch is None or place < 0:
            return None
        topic, raw, at = batch.record(place)
        return Origin(topic, self.partition, raw["offset"][at].as_py())

    def _bury(self, step: Step, rows: pa.Table, place: int, error: Exception) -> None:
        """Write the record as it came, or the row where there is no one record, to the dead letter topic."""
        headers: list[tuple[str, bytes | None]] = [
            ("headrace.error.node", step.label.encode()),
            ("headrace.error.class", type(error).__name__.encode()),
            ("headrace.error.message", words_of(error)[:1_000].encode()),
            ("headrace.error.app", self._app.encode()),
            ("headrace.error.at", str(self._clock.wall).encode()),
        ]
        origin = self._origin(place)
        if origin is None:
            record = _as_record(rows, self._clock.wall)
        else:
            assert self._batch is not None
            _, raw, at = self._batch.record(place)
            record = raw.slice(at, 1).select(["key", "value", "timestamp_ms"])
            headers[:0] = _headers_of(raw, at)
            of = {"topic": origin.topic, "partition": origin.partition, "offset": origin.offset}
            headers += [(f"headrace.error.{name}", str(value).encode()) for name, value in of.items()]
        self._outputs.append(Output(step.on_error, record, headers=tuple(headers)))

    def flush(self) -> None:
        """A commit begins: what is emitted once per commit leaves."""
        for step in self._steps:
            self._push_waiting(step)
            for emitted in self._made(step, step.operator.flush):
                self._emit(step, emitted)

    def take(self) -> list[Output]:
        """What was written since the last time."""
        outputs = list(self._outputs)
        self._outputs.clear()
        return outputs

    def changes(self) -> dict[str, Changes]:
        """What differs from the last commit, by store; for the changelog."""
        stores = ((step.store, step.operator.store) for step in self._steps)
        found = {name: store.changes() for name, store in stores if store is not None}
        return {name: changes for name, changes in found.items() if changes}

    def key_at(self, store: str) -> int:
        """How many bytes stand before the record's key in the keys of a store's rows, as far as that is known."""
        found = (step.operator.store for step in self._steps if step.store == store)
        return next((kept.key_at or 0 for kept in found if kept is not None), 0)

    def step(self, store: str) -> Step:
        """Whose store it is."""
        return next(step for step in self._steps if step.store == store)

    def contents(self, store: str) -> pa.Table | None:
        """The rows of a store, as they are now."""
        return next((step.operator.contents() for step in self._steps if step.store == store), None)

    def dirty_bytes(self) -> int:
        """About how much memory is taken by what the next commit writes: changed state, rows that wait for a flush."""
        held = sum(step.operator.held_bytes for step in self._steps)
        return held + sum(store.dirty_bytes() for store in self.stores)

    def watermarks(self) -> dict[str, int]:
        """Event times, to be kept with the commit."""
        return self._watermarks.state()

    def settle(self) -> None:
        """The commit stands, and the cold tier has its changes."""
        self._count_anew()
        for store in self.stores:
            store.settle()


def _headers_of(raw: pa.Table, place: int) -> Headers:
    if "headers" not in raw.column_names:
        return ()
    found: Any = raw["headers"][place].as_py()
    pairs = ((h["key"], h["value"]) if isinstance(h, dict) else h for h in found or ())
    return tuple((name, value) for name, value in pairs)


def _row_text(row: pa.Table) -> str:
    """A row that stems from no single record, for messages."""
    ((key, value, time),) = zip(
        *_as_record(row, 0).select(["key", "value", "timestamp_ms"]).to_pydict().values(), strict=True
    )
    return f"the row {value.decode(errors='replace'):.200} of key {key!r:.100} at {np.datetime64(time, 'ms')}Z"


def _as_dict(row: pa.Table) -> dict[str, Any]:
    """One row; its times are numbers if one of them is none of Python's."""
    try:
        (found,) = row.to_pylist()
    except OverflowError:
        numbered = [field.with_type(without_times(field.type)) for field in row.schema]
        (found,) = row.cast(pa.schema(numbered)).to_pylist()
    return found


def _as_record(rows: pa.Table, now: int) -> pa.Table:
    """A row as a record, whose time is that of the row, but not ahead of ``now`` (ms; 0: not known)."""
    if RECORD in rows.column_names:
        (value,) = rows[RECORD].to_pylist()
    else:
        row = _as_dict(rows.select(user_columns(rows.column_names)))
        value = orjson.dumps(row, default=str)
    time = numbers(rows[TIME])
    times = pa.chunked_array([pa.array(np.minimum(time, now) if now else time, pa.int64())])
    return records(rows[KEY], pa.array([value], pa.binary()), times)
