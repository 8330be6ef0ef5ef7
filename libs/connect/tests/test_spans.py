"""Traces of tasks: spans of what sources send and sinks write, and the headers that carry them on."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from libs.connect.tests.idle import run_until_idle
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from headrace_common.core.batch.arrow_schema import headers_type
from headrace_common.runtime.clock import SystemClock, limit_s, pause_ms
from headrace_common.runtime.tasks import TaskRunner
from headrace_common.runtime.traceparent import HEADER, TraceParent, current, to_header
from headrace_connect import Chunk, Position, Rows, RowsRefused, Sink, Split
from headrace_connect.core.dead_letters import Origin
from headrace_connect.core.sink_commit import SinkRules
from headrace_connect.core.source_commit import Rules
from headrace_connect.plugin import NoSettings, Source, TopicPartition
from headrace_connect.runtime import seating
from headrace_connect.runtime.adapters.spans import LINKS_MAX, TracedSink, TracedSource, TracedTask
from headrace_connect.runtime.config import RunConfig
from headrace_connect.runtime.configuring import configure
from headrace_connect.runtime.converting import ChunkPipeline, Converting
from headrace_connect.runtime.failing import TaskFailed
from headrace_connect.runtime.ports import Steps
from headrace_connect.runtime.seating import Hooks, Part
from headrace_connect.runtime.sink_task import SinkOutside, SinkTask, SinkTaskSettings
from headrace_connect.runtime.source_task import SourceOutside, SourceTask, SourceTaskSettings
from headrace_connect.runtime.trace_headers import add_parent, find_parents
from headrace_connect.secrets import Secrets
from headrace_connect.testing.group import MemoryGroup, MemoryTopic
from headrace_connect.testing.memory import JsonPipeline, MemoryLog, MemorySourceLog, NoSteps

FIRST, SECOND = TraceParent(0xABC, 0xDEF), TraceParent(0x123, 0x456)
Header = tuple[str, bytes | None]


@dataclass
class Traced:
    """A tracer whose spans stay here."""

    sampler: Any = None
    spans: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)

    def __post_init__(self) -> None:
        sampled = {} if self.sampler is None else {"sampler": self.sampler}
        provider = TracerProvider(shutdown_on_exit=False, **sampled)
        provider.add_span_processor(SimpleSpanProcessor(self.spans))
        self.tracer = provider.get_tracer("test")

    @property
    def ended(self) -> Sequence[ReadableSpan]:
        return self.spans.get_finished_spans()


@pytest.fixture
def traced() -> Traced:
    return Traced()


# --- headers ----------------------------------------------------------------------------------------------------------


def lists(rows: Sequence[Sequence[Header] | None]) -> pa.Array[Any]:
    pairs = [None if row is None else [{"key": key, "value": value} for key, value in row] for row in rows]
    return pa.array(pairs, headers_type())


def pairs(headers: pa.Array[Any]) -> list[list[Header]]:
    return [[(one["key"], one["value"]) for one in row or ()] for row in headers.to_pylist()]


PARENTS = st.sampled_from([FIRST, SECOND]).map(to_header)
HEADERS = st.one_of(PARENTS, st.just((HEADER, b"nonsense")), st.just(("a", None)), st.just(("b", b"x")))
ROWS = st.lists(st.one_of(st.none(), st.lists(HEADERS, max_size=3)), max_size=8)


@given(ROWS, st.integers(0, 3))
def test_a_context_is_added_where_there_is_none_and_nothing_else_changes(rows: Any, skip: int) -> None:
    own = TraceParent(7, 8)
    headers, rows = lists(rows)[skip:], rows[skip:]
    expected = [
        [*(row or ()), *(() if any(key == HEADER for key, _ in row or ()) else (to_header(own),))] for row in rows
    ]
    added = add_parent(headers, own)
    assert added.type == headers.type
    assert pairs(added) == expected


@given(ROWS, st.integers(0, 3))
def test_contexts_are_found_once_each(rows: Any, skip: int) -> None:
    headers, rows = lists(rows)[skip:], [row or () for row in rows[skip:]]
    parents, whole = find_parents(headers, 10)
    listed = [TraceParent.parse(value.decode()) for row in rows for key, value in row if key == HEADER]
    assert parents == list(dict.fromkeys(one for one in listed if one is not None))
    assert whole == all(any(key == HEADER for key, _ in row) for row in rows)


def test_of_many_contexts_the_first_ones_are_found() -> None:
    own = [TraceParent(number, number) for number in range(1, 500)]
    parents, _ = find_parents(lists([[to_header(one)] for one in own]), 3)
    assert parents == own[:3]


# --- sources ----------------------------------------------------------------------------------------------------------


class Told(Source[NoSettings]):
    """Chunks that it was given."""

    chunks: Sequence[Chunk] = ()

    async def read(self, split: Split, after: Position | None) -> AsyncIterator[Chunk]:
        for chunk in self.chunks[after["at"] if after else 0 :]:
            yield chunk
        while True:
            yield Chunk([], {"at": len(self.chunks)}, drained=True)
            await pause_ms(1)


class Copying(Told):
    copies = True


def chunk(at: int, rows: Sequence[str], headers: Any = None, **more: Any) -> Chunk:
    return Chunk(rows, {"at": at}, headers=headers, **more)


async def send(
    chunks: Sequence[Chunk],
    spans: Any,
    log: MemoryLog | None = None,
    of: type[Told] = Told,
    steps: Steps | None = None,
) -> MemoryLog:
    log, source = log or MemoryLog(), of(NoSettings())
    source.chunks = chunks
    pipeline = ChunkPipeline(Converting.of({"value.converter": "string"}), Origin("shop", 0, "told", "orders"))
    outside = SourceOutside(MemorySourceLog(log), pipeline, SystemClock(), steps or NoSteps(), spans=spans)
    task = SourceTask(source, [Split("all")], outside, SourceTaskSettings(Rules(interval_ms=10_000), 1))

    await run_until_idle(task)
    return log


def of_source(traced: Traced, *, copies: bool = False) -> TracedSource:
    return TracedSource(traced.tracer, TracedTask("shop", 3), copies=copies)


def headers_of(log: MemoryLog, topic: str = "orders") -> list[list[Header]]:
    return [[(one["key"], one["value"]) for one in row.get("headers") or ()] for row in log.records[topic]]


def parent_of(span: ReadableSpan) -> TraceParent:
    assert span.context is not None
    return TraceParent(span.context.trace_id, span.context.span_id, bool(span.context.trace_flags.sampled))


def links_of(span: ReadableSpan) -> list[TraceParent]:
    return [TraceParent(link.context.trace_id, link.context.span_id) for link in span.links]


async def test_records_carry_the_span_of_their_topic_and_commit(traced: Traced) -> None:
    chunks = [chunk(1, ["a", "b"]), chunk(2, ["c"], further=[Chunk(["x"], {}, topic="others")])]
    log = await send(chunks, of_source(traced))
    spans = {span.name: span for span in traced.ended}
    assert (len(traced.ended), sorted(spans)) == (2, ["send orders", "send others"])
    span = spans["send orders"]
    assert headers_of(log) == [[to_header(parent_of(span))]] * 3
    assert headers_of(log, "others") == [[to_header(parent_of(spans["send others"]))]]
    assert span.kind.name == "PRODUCER"
    assert dict(span.attributes or {}) == {
        "messaging.system": "headrace",
        "messaging.operation.type": "send",
        "messaging.operation.name": "send",
        "messaging.destination.name": "orders",
        "messaging.batch.message_count": 3,
        "headrace.connect.connector": "shop",
        "headrace.connect.task": 3,
    }
    assert (span.status.status_code.name, span.parent) == ("UNSET", None)


async def test_each_commit_has_its_own_span(traced: Traced) -> None:
    spans = of_source(traced)
    log = await send([chunk(1, ["a"])], spans)
    await send([chunk(1, ["a"]), chunk(2, ["b"])], spans, log)
    first, second = map(parent_of, traced.ended)
    assert first != second
    assert headers_of(log) == [[to_header(first)], [to_header(second)]]


async def test_what_an_item_carries_goes_on_and_is_linked(traced: Traced) -> None:
    own = [("a", b"1"), to_header(FIRST)]
    log = await send([chunk(1, ["a", "b"], [own, [("a", b"2")]])], of_source(traced))
    [span] = traced.ended
    assert headers_of(log) == [own, [("a", b"2"), to_header(parent_of(span))]]
    assert links_of(span) == [FIRST]


async def test_a_copy_stays_a_copy(traced: Traced) -> None:
    own = [to_header(FIRST)]
    log = await send([chunk(1, ["a", "b"], [own, []])], of_source(traced, copies=True), of=Copying)
    [span] = traced.ended
    assert headers_of(log) == [own, []]
    assert links_of(span) == [FIRST]


async def test_links_of_a_span_are_bounded(traced: Traced) -> None:
    rows = [[to_header(TraceParent(number, number))] for number in range(1, LINKS_MAX + 20)]
    chunks = [chunk(1, ["x"], [[to_header(FIRST)]]), chunk(2, ["x"] * len(rows), rows), chunk(3, ["x"], rows[-1:])]
    await send(chunks, of_source(traced))
    [span] = traced.ended
    assert links_of(span) == [FIRST, *(TraceParent(number, number) for number in range(1, LINKS_MAX))]


async def test_a_context_of_several_chunks_is_linked_once(traced: Traced) -> None:
    own = [[to_header(FIRST)]]
    await send([chunk(1, ["a"], own), chunk(2, ["b"], own)], of_source(traced))
    [span] = traced.ended
    assert links_of(span) == [FIRST]


async def test_a_transaction_that_is_given_up_is_a_failed_span(traced: Traced) -> None:
    log = await send([chunk(1, ["a"])], of_source(traced), MemoryLog(undelivered={1}))
    failed, good = traced.ended
    assert failed.status.status_code.name == "ERROR"
    assert "not delivered" in (failed.status.description or "")
    assert good.status.status_code.name == "UNSET"
    assert headers_of(log) == [[to_header(parent_of(good))]]


async def test_an_outcome_that_is_unknown_at_first_is_no_failure(traced: Traced) -> None:
    await send([chunk(1, ["a"])], of_source(traced), MemoryLog(unknown={1}))
    assert [span.status.status_code.name for span in traced.ended] == ["UNSET"]


async def test_a_forgotten_id_is_a_failed_span(traced: Traced) -> None:
    log = await send([chunk(1, ["a"])], of_source(traced), MemoryLog(forgotten={1}))
    assert [span.status.status_code.name for span in traced.ended] == ["ERROR", "UNSET"]
    assert headers_of(log) == [[to_header(parent_of(traced.ended[1]))]]


class Breaking(Told):
    """Fails for good behind its chunks."""

    async def read(self, split: Split, after: Position | None) -> AsyncIterator[Chunk]:
        for chunk in self.chunks:
            yield chunk
        raise ValueError("broken")


async def test_what_a_task_that_fails_has_sent_is_a_failed_span(traced: Traced) -> None:
    with pytest.raises(TaskFailed):
        await send([chunk(1, ["a"])], of_source(traced), MemoryLog(record_bytes_max=0))
    with pytest.raises(TaskFailed):
        await send([chunk(1, ["a"])], of_source(traced), of=Breaking)
    assert [span.status.description for span in traced.ended] == ["its transaction was aborted"] * 2


async def test_what_a_task_that_is_cancelled_has_sent_is_a_failed_span(traced: Traced) -> None:
    class Cancel:
        async def reach(self, step: str) -> None:
            if step == "connect.source.sent":
                run.cancel()
                await asyncio.Event().wait()

    run = asyncio.create_task(send([chunk(1, ["a"])], of_source(traced), steps=Cancel()))
    await asyncio.wait([run])
    assert [span.status.description for span in traced.ended] == ["its task has ended"]


async def test_what_is_not_sampled_says_so_in_the_header() -> None:
    traced = Traced(ALWAYS_OFF)
    log = await send([chunk(1, ["a"])], of_source(traced))
    assert traced.ended == ()
    [[(key, value)]] = headers_of(log)
    assert (key, (value or b"")[-3:]) == (HEADER, b"-00")


async def test_without_tracing_no_header_is_added() -> None:
    log = await send([chunk(1, ["a"]), chunk(2, ["b"], [[to_header(FIRST)]])], None)
    assert headers_of(log) == [[], [to_header(FIRST)]]


# --- sinks ------------------------------------------------------------------------------------------------------------


class Taking(Sink[NoSettings]):
    """Takes rows; fails as it is told, once each."""

    def __init__(self, settings: NoSettings) -> None:
        super().__init__(settings)
        self.within: list[TraceParent | None] = []
        self.fails: dict[str, list[Exception]] = {"write": [], "commit": []}

    def write(self, rows: Rows) -> None:
        self.within.append(current())
        if self.fails["write"]:
            raise self.fails["write"].pop()

    def commit(self, positions: Mapping[TopicPartition, int], token: bytes | None) -> None:
        if self.fails["commit"]:
            raise self.fails["commit"].pop()


class Headed(MemoryGroup):
    """Its records have these headers."""

    headers: Sequence[Sequence[Header]] = ()

    async def poll(self, *limits: Any) -> Any:
        tables = await super().poll(*limits)
        for one in tables:
            if one.table.num_rows:
                at = one.table.column_names.index("headers")
                table = one.table.set_column(at, "headers", pa.chunked_array([lists(self.headers)]))
                object.__setattr__(one, "table", table)
        return tables


async def write(
    headers: Sequence[Sequence[Header]],
    spans: Any,
    sink: Taking | None = None,
    group: type[Headed] = Headed,
    **rules: Any,
) -> Taking:
    sink = sink or Taking(NoSettings())
    reader = group(MemoryTopic.of(list(range(len(headers)))))
    reader.headers = headers
    outside = SinkOutside(reader, JsonPipeline(), None, SystemClock(), NoSteps(), spans=spans)
    given = {"interval_ms": 10_000, "retry_delay_ms_max": 1} | rules
    task = SinkTask(sink, outside, SinkTaskSettings("shop", 3, SinkRules(False, True, **given)))

    async def close() -> None:
        while not task.is_idle:
            await pause_ms(1)
        task.close()

    async with limit_s(30), TaskRunner() as runner:
        runner.start(close(), name="close")
        await task.run()
    return sink


def of_sink(traced: Traced) -> TracedSink:
    return TracedSink(traced.tracer, TracedTask("shop", 3), "connect-shop")


async def test_a_batch_is_a_span_with_links_to_what_its_records_carry(traced: Traced) -> None:
    sink = await write([[to_header(FIRST)], [], [("a", None), to_header(SECOND)], [to_header(FIRST)]], of_sink(traced))
    [span] = traced.ended
    assert (span.name, span.kind.name, span.parent) == ("process records", "CONSUMER", None)
    assert links_of(span) == [FIRST, SECOND]
    assert sink.within == [parent_of(span)], "what the connector calls is under it, in its thread too"
    assert current() is None
    assert dict(span.attributes or {}) == {
        "messaging.system": "headrace",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": "records",
        "messaging.destination.partition.id": "0",
        "messaging.consumer.group.name": "connect-shop",
        "messaging.batch.message_count": 4,
        "headrace.connect.connector": "shop",
        "headrace.connect.task": 3,
    }
    assert span.status.status_code.name == "UNSET"


async def test_a_batch_of_one_context_goes_on_in_its_trace(traced: Traced) -> None:
    await write([[to_header(FIRST)], [to_header(FIRST)]], of_sink(traced))
    [span] = traced.ended
    assert (parent_of(span).trace_id, span.parent and span.parent.span_id) == (FIRST.trace_id, FIRST.span_id)
    assert links_of(span) == [FIRST]


async def test_a_record_without_a_context_does_not_join_the_trace_of_another_one(traced: Traced) -> None:
    await write([[to_header(FIRST)], []], of_sink(traced))
    [span] = traced.ended
    assert (span.parent, links_of(span)) == (None, [FIRST])


async def test_records_of_two_traces_join_neither(traced: Traced) -> None:
    await write([[to_header(FIRST)], [to_header(SECOND)]], of_sink(traced))
    [span] = traced.ended
    assert (span.parent, links_of(span)) == (None, [FIRST, SECOND])


def test_links_of_a_batch_of_several_parts_are_bounded(traced: Traced) -> None:
    own = [TraceParent(number, number) for number in range(1, LINKS_MAX + 20)]
    spans, partition = of_sink(traced), TopicPartition("t", 0)
    with spans.write(partition, [some([[to_header(one)]]) for one in own]):
        pass
    spans.commit([partition])
    [span] = traced.ended
    assert links_of(span) == own[:LINKS_MAX]


async def test_links_of_a_batch_are_bounded(traced: Traced) -> None:
    own = [TraceParent(number, number) for number in range(1, LINKS_MAX + 20)]
    await write([[to_header(one)] for one in own], of_sink(traced))
    [span] = traced.ended
    assert links_of(span) == own[:LINKS_MAX]


@pytest.mark.parametrize("step", ["write", "commit"])
async def test_a_write_that_fails_is_a_failed_span(traced: Traced, step: str) -> None:
    sink = Taking(NoSettings())
    sink.fails[step].append(OSError("disk is away"))
    await write([[]], of_sink(traced), sink)
    failed, good = traced.ended
    assert failed.status.status_code.name == "ERROR"
    assert "disk is away" in (failed.status.description or "")
    assert good.status.status_code.name == "UNSET"


async def test_bad_rows_fail_one_span_and_the_others_are_another_one(traced: Traced) -> None:
    sink = Taking(NoSettings())
    sink.fails["write"].append(RowsRefused({1: "no"}))
    await write([[], [], []], of_sink(traced), sink)
    assert [span.status.status_code.name for span in traced.ended] == ["ERROR", "UNSET"]
    assert [(span.attributes or {})["messaging.batch.message_count"] for span in traced.ended] == [3, 2]


def some(headers: Sequence[Sequence[Header]]) -> Rows:
    numbers = pa.array(range(len(headers)), pa.int64())
    return Rows("t", 0, numbers, pa.nulls(len(headers), pa.binary()), numbers, numbers, lists(headers))


def test_what_is_given_back_is_no_success(traced: Traced, caplog: pytest.LogCaptureFixture) -> None:
    spans = of_sink(traced)
    one, other = TopicPartition("t", 0), TopicPartition("t", 1)
    for partition in (one, other):
        with spans.write(partition, [some([[]])]):
            pass
    spans.drop("another holder has it", [one])
    assert [span.status.status_code.name for span in traced.ended] == ["ERROR"]
    spans.commit([one, other])
    assert [span.status.status_code.name for span in traced.ended] == ["ERROR", "UNSET"]
    spans.drop("the end")
    assert len(traced.ended) == 2
    assert not caplog.records, "none is ended twice"


class Losing(Headed):
    """Its member is put out once, when it has written."""

    lost = False

    async def poll(self, *limits: Any) -> Any:
        if not self.lost and self._held and self._held[0].told_end:
            self.lost = True
            await self._lose([0])
        return await super().poll(*limits)


async def test_what_was_written_of_a_lost_partition_is_a_failed_span(traced: Traced) -> None:
    await write([[]], of_sink(traced), group=Losing, drained=False, interval_ms=50)
    assert [span.status.status_code.name for span in traced.ended] == ["ERROR", "UNSET"]
    assert traced.ended[0].status.description == "its partition was lost"


async def test_what_a_task_that_is_cancelled_has_written_is_a_failed_span(traced: Traced) -> None:
    sink = Taking(NoSettings())
    run = asyncio.create_task(write([[]], of_sink(traced), sink, drained=False))
    async with limit_s(30):
        while not sink.within:
            await pause_ms(1)
    run.cancel()
    await asyncio.wait([run])
    assert [span.status.status_code.name for span in traced.ended] == ["ERROR"]


async def test_without_tracing_a_sink_has_no_span() -> None:
    sink = await write([[to_header(FIRST)]], None)
    assert sink.within == [None]


# --- processes --------------------------------------------------------------------------------------------------------


async def test_tasks_of_a_process_that_traces_have_spans(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seating, "SdkGroup", MagicMock())
    servers = {"source.cluster.alias": "x", "source.cluster.bootstrap.servers": "x:1"}
    copy = configure({"name": "copy", "connector.class": "mirror", "topics": "t", **servers}, Secrets())
    out = configure({"name": "out", "connector.class": "files-sink", "path": "/x", "topics": "t"}, Secrets())
    for tracer, traces in ((traced.tracer, True), (None, False)):
        process: Any = seating.Process(RunConfig(), MagicMock(), MagicMock(), SystemClock(), None, tracer)
        loop: Any = seating._source_loop(process, lambda: copy, Part(0), Hooks(), list, list)
        assert isinstance(loop._task._outside.spans, TracedSource) is traces
        assert loop._task._source.traces is traces
        if traces:
            assert loop._task._outside.spans._copies, "of a cluster"
        async with AsyncExitStack() as stack:
            task: Any = await seating._open_sink(process, out, Part(0), Hooks(), list, list, stack)
            assert isinstance(task._outside.spans, TracedSink) is traces
            assert task._sink.traces is traces
            stack.pop_all()


def test_a_process_traces_where_the_environment_names_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_OTLP_ENDPOINT", raising=False)
    with seating.open_spans() as tracer:
        assert tracer is None
    monkeypatch.setenv("HEADRACE_OTLP_ENDPOINT", "http://127.0.0.1:9")
    with seating.open_spans() as tracer:
        assert tracer is not None


def test_without_its_libraries_a_process_says_so_and_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HEADRACE_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    with caplog.at_level(logging.WARNING), seating.open_spans() as tracer:
        assert tracer is None
    assert "headrace-connect[tracing]" in caplog.text


def test_without_tracing_nothing_of_opentelemetry_is_loaded() -> None:
    code = (
        "import sys, headrace_connect.runtime.host, headrace_connect.runtime.seating as s\n"
        "with s.open_spans(): print([m for m in sys.modules if m.split('.')[0] == 'opentelemetry'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
