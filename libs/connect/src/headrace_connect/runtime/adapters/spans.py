"""
Spans of tasks, by OpenTelemetry and its conventions for messaging. Only tasks of a process that traces have them.

A source's task has a span for each topic of a commit, whose context its records carry unless they carry one already. A
sink's task has one for each batch that it writes, from then until the target has committed it. Spans link to at most
``LINKS_MAX`` contexts that records carry.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.records import TopicPartition
from headrace_common.core.batch.arrow_schema import headers_type
from headrace_common.runtime.traceparent import TraceParent
from headrace_common.runtime.tracing import context_of, parent_in, span_context_of
from headrace_connect.plugin import Rows
from headrace_connect.runtime.ports import Outgoing
from headrace_connect.runtime.trace_headers import add_parent, find_parents

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

LINKS_MAX: Final = 128
_COUNT: Final = "messaging.batch.message_count"
_HEADERS: Final = "headers"


@dataclass(frozen=True, slots=True)
class TracedTask:
    """Whose spans they are."""

    connector: str
    task: int

    def attributes(self, operation: str, topic: str) -> dict[str, str | int]:
        """Of each of its spans."""
        return {
            "messaging.system": "headrace",
            "messaging.operation.type": operation,
            "messaging.operation.name": operation,
            "messaging.destination.name": topic,
            "headrace.connect.connector": self.connector,
            "headrace.connect.task": self.task,
        }


# --- sources ----------------------------------------------------------------------------------------------------------


class _Topic:
    """What was sent to a topic since the last commit."""

    def __init__(self, span: Span) -> None:
        self.span = span
        self.parent = parent_in(span)
        self._linked: set[TraceParent] = set()
        self._records = 0

    def take(self, records: int, parents: Sequence[TraceParent]) -> None:
        """More of it, and what it carries."""
        self._records += records
        for parent in parents:
            if parent not in self._linked and len(self._linked) < LINKS_MAX:
                self._linked.add(parent)
                self.span.add_link(span_context_of(parent))

    def end(self, failure: str | None = None) -> None:
        """It is committed, or why not."""
        self.span.set_attribute(_COUNT, self._records)
        _end(self.span, failure)


class TracedSource:
    """Satisfies ``SourceSpans``."""

    def __init__(self, tracer: Tracer, task: TracedTask, *, copies: bool) -> None:
        """
        Args:
            copies: see ``Source``; records get no header then.
        """
        self._tracer = tracer
        self._task = task
        self._copies = copies
        self._topics: dict[str, _Topic] = {}

    def send(self, records: Outgoing) -> Outgoing:
        """See ``SourceSpans``."""
        topic = self._topics.get(records.topic)
        if topic is None:
            topic = self._topics[records.topic] = _Topic(self._start(records.topic))
        table = records.table
        headers = _headers_of(table)
        parents, whole = find_parents(headers, LINKS_MAX)
        topic.take(table.num_rows, parents)
        if whole or self._copies:
            return records
        added = add_parent(headers, topic.parent)
        if _HEADERS in table.column_names:
            table = table.set_column(table.column_names.index(_HEADERS), _HEADERS, added)
        else:
            table = table.append_column(_HEADERS, added)
        return replace(records, table=table)

    def _start(self, topic: str) -> Span:
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind

        attributes = self._task.attributes("send", topic)
        return self._tracer.start_span(f"send {topic}", Context(), SpanKind.PRODUCER, attributes)

    def commit(self) -> None:
        """See ``SourceSpans``."""
        self._end_all(None)

    def drop(self, reason: str) -> None:
        """See ``SourceSpans``."""
        self._end_all(reason)

    def _end_all(self, failure: str | None) -> None:
        topics, self._topics = self._topics, {}
        for topic in topics.values():
            topic.end(failure)


def _headers_of(table: pa.Table) -> Any:
    if _HEADERS in table.column_names:
        return table.column(_HEADERS).combine_chunks()
    return pa.array([None] * table.num_rows, headers_type())


# --- sinks ------------------------------------------------------------------------------------------------------------


class TracedSink:
    """Satisfies ``SinkSpans``."""

    def __init__(self, tracer: Tracer, task: TracedTask, group: str) -> None:
        self._tracer = tracer
        self._task = task
        self._group = group
        self._open: dict[TopicPartition, list[Span]] = {}

    @contextmanager
    def write(self, partition: TopicPartition, rows: Sequence[Rows]) -> Iterator[None]:
        """See ``SinkSpans``."""
        from opentelemetry.trace import use_span

        span = self._start(partition, rows)
        self._open.setdefault(partition, []).append(span)
        with use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
            yield

    def _start(self, partition: TopicPartition, rows: Sequence[Rows]) -> Span:
        from opentelemetry.context import Context
        from opentelemetry.trace import Link, SpanKind

        found = [find_parents(some.headers, LINKS_MAX) for some in rows]
        parents = list(dict.fromkeys(parent for own, _ in found for parent in own))[:LINKS_MAX]
        in_one_trace = len(parents) == 1 and all(whole for _, whole in found)
        return self._tracer.start_span(
            f"process {partition.topic}",
            context_of(parents[0]) if in_one_trace else Context(),
            SpanKind.CONSUMER,
            {
                **self._task.attributes("process", partition.topic),
                "messaging.destination.partition.id": str(partition.partition),
                "messaging.consumer.group.name": self._group,
                _COUNT: sum(map(len, rows)),
            },
            [Link(span_context_of(parent)) for parent in parents],
        )

    def commit(self, partitions: Collection[TopicPartition]) -> None:
        """See ``SinkSpans``."""
        self._end(partitions, None)

    def drop(self, reason: str, partitions: Collection[TopicPartition] | None = None) -> None:
        """See ``SinkSpans``."""
        self._end(list(self._open) if partitions is None else partitions, reason)

    def _end(self, partitions: Collection[TopicPartition], failure: str | None) -> None:
        for partition in partitions:
            for span in self._open.pop(partition, ()):
                _end(span, failure)


def _end(span: Span, failure: str | None) -> None:
    from opentelemetry.trace import StatusCode

    if failure is not None:
        span.set_status(StatusCode.ERROR, failure)
    span.end()
