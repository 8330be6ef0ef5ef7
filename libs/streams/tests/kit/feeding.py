"""One task of a program, fed with cuts of a test's choice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any

import orjson
import pyarrow as pa
from hypothesis import strategies as st

from headrace_streams.core.outputs import Limits, Output
from headrace_streams.core.state.cache import StateCache
from headrace_streams.core.state.memory import MemoryCold
from headrace_streams.core.task import Task
from headrace_streams.dsl.app import App
from headrace_streams.plan.cut import Assembly
from headrace_streams.plan.nodes import SOURCE
from headrace_streams.runtime.figures import Figures

Record = tuple[bytes | None, dict[str, Any] | bytes | None, int]
"""Key, value (a dict is written as JSON) and timestamp."""
_ENDS = ["", "", "commit", "abort", "reopen", "halve", "evict"]
cuts = st.lists(st.tuples(st.integers(1, 12), st.sampled_from(_ENDS)), max_size=12)
"""How many records are fed at once, and what happens then: a commit may leave half of the state in memory, or none."""


def raw(records: Sequence[Record], first: int = 0) -> pa.Table:
    """Records as a consumer gives them."""
    keys, values, times = zip(*records, strict=True) if records else ((), (), ())
    written = [orjson.dumps(value) if isinstance(value, dict) else value for value in values]
    columns = {
        "key": pa.array(keys, pa.binary()),
        "value": pa.array(written, pa.binary()),
        "timestamp_ms": pa.array(times, pa.int64()),
        "offset": pa.array(range(first, first + len(records)), pa.int64()),
    }
    return pa.table(columns)


class Fed:
    """The only task of a program of one sub-topology, with its state in memory."""

    def __init__(self, app: App, limits: Mapping[str, Limits] | None = None) -> None:
        topics = {topic: 1 for node in app.graph.nodes if node.kind == SOURCE for topic in node.topics}
        assembly = Assembly(app.name, app.graph, topics, app.on_error, limits=limits)
        (self._part,) = assembly.parts
        self._assembly = assembly
        self.cold: dict[str, MemoryCold] = {}
        self._watermarks: dict[str, int] = {}
        self._position = 0
        self._committed = 0
        self.figures = Figures(StateCache(0))
        """Of what is committed."""
        self.task = self._make()

    def _make(self) -> Task:
        task = self._assembly.make(self._part, 0)
        task.open(lambda name: self.cold.setdefault(name, MemoryCold()), self._watermarks)
        return task

    def feed(self, topic: str, records: Sequence[Record]) -> None:
        self.task.feed(topic, raw(records, self._position))
        self._position += len(records)

    def commit(self) -> list[Output]:
        """What was written since the last commit, which is kept."""
        self.task.flush()
        outputs = self.task.take()
        for name, changes in self.task.changes().items():
            self.cold.setdefault(name, MemoryCold()).write(changes)
        self._watermarks = self.task.watermarks()
        self.figures.committed([self.task])
        self.task.settle()
        self._committed = self._position
        return outputs

    def evict(self, part: float) -> None:
        """That part of the state stays in memory, as far as it can be evicted."""
        stores = self.task.stores
        bound = int(part * sum(store.kept_bytes() for store in stores))
        StateCache(bound).fit(stores)
        assert sum(store.kept_bytes() for store in stores) <= bound, "everything is committed"

    def abort(self) -> None:
        self.task.rewind(self._watermarks)
        self._position = self._committed

    def reopen(self) -> None:
        """As another process would find it."""
        self.task = self._make()
        self._position = self._committed


def rows(outputs: Iterable[Output], topic: str) -> list[tuple[bytes | None, dict[str, Any], int]]:
    """Key, value and timestamp of what was written to a topic as JSON; None for a null value."""
    return [
        (record["key"], orjson.loads(record["value"] or b"null"), record["timestamp_ms"])
        for output in outputs
        if output.topic == topic
        for record in output.records.to_pylist()
    ]


def milliseconds(text: str) -> int:
    """A time as JSON has it, in ms since 1970."""
    return round(datetime.fromisoformat(text).timestamp() * 1_000)


@dataclass(frozen=True, slots=True)
class Letter:
    """A record of a dead letter topic."""

    key: bytes | None
    value: bytes | None
    time: int
    headers: list[tuple[str, bytes | None]]


def dead(outputs: Iterable[Output], topic: str) -> list[Letter]:
    """The records that were written to a topic, with their headers."""
    return [
        Letter(record["key"], record["value"], record["timestamp_ms"], list(output.headers))
        for output in outputs
        if output.topic == topic
        for record in output.records.to_pylist()
    ]


def by_key(found: Iterable[tuple[bytes | None, dict[str, Any], int]]) -> dict[bytes | None, list[Any]]:
    """The rows of each key, in their order."""
    grouped: dict[bytes | None, list[Any]] = {}
    for key, value, time in found:
        grouped.setdefault(key, []).append((value, time))
    return grouped


def run_cut(app: App, given: list[Record], cutting: list[tuple[int, str]], topic: str) -> list[Any]:
    """What is committed to a topic in the end, if the input is cut so."""
    return run_cut_of(app, [("in", record) for record in given], cutting, topic)


def run_cut_of(app: App, given: Sequence[tuple[str, Record]], cutting: list[tuple[int, str]], topic: str) -> list[Any]:
    """The same with several inputs: what is beside each other of one topic is fed together, as far as it is not cut."""
    fed = Fed(app)
    found: list[Any] = []
    at = committed = 0
    for count, then in [*cutting, *[(len(given), "")] * (len(cutting) + 1)]:
        for source, records in groupby(given[at : at + count], key=itemgetter(0)):
            fed.feed(source, [record for _, record in records])
        at = min(at + count, len(given))
        if then in ("commit", "halve", "evict"):
            found += rows(fed.commit(), topic)
            committed = at
            if then != "commit":
                fed.evict(0.5 if then == "halve" else 0)
        elif then == "abort":
            fed.abort()
            at = committed
        elif then == "reopen":
            fed.reopen()
            at = committed
    assert at == len(given)
    return found + rows(fed.commit(), topic)


def run_one_by_one(app: App, given: list[Record], topic: str) -> list[Any]:
    """What is written to a topic if a batch is one record."""
    return run_cut(app, given, [(1, "")] * len(given), topic)
