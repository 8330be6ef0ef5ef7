"""
The source of ``spark.readStream``: Spark's questions go to ``core.stream``, which decides; this does what it says.

One process per query run holds the reader on the driver. Another one, which plans how tasks read, makes a reader too
and pickles it to the tasks; so a reader does nothing before it is asked for something.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from headrace_common.runtime.clock import SystemClock
from headrace_spark.adapters.clients import warn_once
from headrace_spark.core.offsets import Positions, Snapshot
from headrace_spark.core.option_table import Mode
from headrace_spark.core.options import ConnectorOptions, drop_token
from headrace_spark.core.stream import (
    Answer,
    AvailableNowAsked,
    Event,
    Fail,
    FetchSnapshot,
    FetchTimes,
    InitialAsked,
    LatestAsked,
    PlanAsked,
    Planned,
    Question,
    SnapshotFetched,
    StreamPlanner,
    TimesFetched,
    Warn,
    default_offsets_max,
    stream_settings,
)
from headrace_spark.reading import columns_of, rows_of, tasks_of
from headrace_spark.telling import shorten_trace

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from headrace_spark.adapters.sdk_rows import Reading
    from headrace_spark.ports import Logs, Onlookers, TaskKeys

STEPS_MAX: Final = 20
"""Questions to the cluster for one question of Spark."""


class HeadraceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """
    Follows topics. Wrong options are told by the first call and not here: Spark would hide what its constructor raises
    behind an error of its own.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._given = dict(options)
        self._schema = schema
        self._query: StreamQuery | None = None

    def __getstate__(self) -> dict[str, Any]:
        """For the tasks, which are given what they show with each partition."""
        return {"_given": drop_token(self._given), "_schema": self._schema, "_query": None}

    # --- on the driver ---

    @shorten_trace
    def getDefaultReadLimit(self) -> ReadLimit:
        """As ``maxOffsetsPerTrigger`` says."""
        offsets_max = default_offsets_max(self._open_query().options)
        return ReadAllAvailable() if offsets_max is None else ReadMaxRows(offsets_max)

    @shorten_trace
    def prepareForTriggerAvailableNow(self) -> None:
        """The query ends when what is there now was read."""
        self._open_query().available_now()

    @shorten_trace
    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins; Spark asks twice and gets the same."""
        return self._open_query().initial().to_json()

    @shorten_trace
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch may end. Waits for ``longPollMs`` where nothing is new."""
        offsets_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        everything = isinstance(limit, ReadAllAvailable)
        return self._open_query().latest(Positions.from_json(start), offsets_max, everything=everything).to_json()

    @shorten_trace
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The ends that were seen last, for the progress report."""
        latest = self._open_query().latest_seen
        return None if latest is None else latest.to_json()

    @shorten_trace
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a batch."""
        return self._open_query().tasks(Positions.from_json(start), Positions.from_json(end))

    @shorten_trace
    def commit(self, end: dict[str, Any]) -> None:
        """Nothing depends on it: the checkpoint has the positions. It only shows how far the query is."""
        self._open_query().show(Positions.from_json(end))

    def stop(self) -> None:
        """The query ends; the process too."""
        if self._query is not None:
            self._query.close()

    def _open_query(self) -> StreamQuery:
        if self._query is None:
            from headrace_spark.adapters.sdk_address import cluster_of
            from headrace_spark.adapters.sdk_keys import query_keys
            from headrace_spark.adapters.sdk_logs import SdkLogs, SdkOnlookers

            options = ConnectorOptions.parse(self._given, Mode.READ_STREAM)
            columns_of(self._schema)
            for warning in options.warnings:
                warn_once(warning)
            self._query = StreamQuery(
                options,
                SdkLogs(cluster_of(options), options.client),
                SdkOnlookers(cluster_of(options), options.client),
                query_keys(options),
            )
        return self._query

    # --- in the tasks ---

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """
        The records of one task.

        Raises:
            RecordsLost: some were removed after the batch was planned.
            HeadraceError: they could not be read in time.
        """
        return rows_of(self._reading(), partition)

    def _reading(self) -> Reading:
        from headrace_spark.adapters.sdk_rows import Reading

        return Reading.of(ConnectorOptions.parse(self._given, Mode.READ_STREAM), columns_of(self._schema))


class StreamQuery:
    """One run of a query on the driver: carries out what ``StreamPlanner`` decides. One caller at a time."""

    def __init__(
        self, options: ConnectorOptions, logs: Logs, onlookers: Onlookers, keys: TaskKeys | None = None
    ) -> None:
        self.options = options
        self._logs = logs
        self._onlookers = onlookers
        self._keys = keys
        self._planner = StreamPlanner(stream_settings(options))
        self._clock = SystemClock()
        self._shown: Positions | None = None
        self._snapshot: Snapshot | None = None

    def initial(self) -> Positions:
        return self._positions(InitialAsked(os.urandom(8).hex()))

    def available_now(self) -> None:
        self._ask(AvailableNowAsked())

    def latest(self, start: Positions, offsets_max: int | None, *, everything: bool) -> Positions:
        """See ``LatestAsked``. What lies before ``start`` was read: Spark asks when the batch before is committed."""
        self.show(start)
        end = self._positions(LatestAsked(start, offsets_max, everything, self._clock.monotonic_ms()))
        if end == start:
            self.show(start, last=True)  # for now, or for good: with AvailableNow Spark ends the process at once
        return end

    @property
    def latest_seen(self) -> Positions | None:
        return self._planner.latest

    def tasks(self, start: Positions, end: Positions) -> list[InputPartition]:
        planned = self._ask(PlanAsked(start, end))
        assert isinstance(planned, Planned), "a plan is what was asked for"
        if not planned.ranges:
            return []
        assert self._snapshot is not None, "ranges are planned by what is there"
        return tasks_of(planned.ranges, self.options, self._snapshot, self._logs, self._keys)

    def show(self, positions: Positions, *, last: bool = False) -> None:
        """Let people see how far the query is."""
        if positions.reader or self.options.group_id:
            self._shown = positions
            self._onlookers.show(self.options.group(positions.reader), positions.next, last=last)

    def close(self) -> None:
        """Show what was read last; its tasks' key is over."""
        if self._shown is not None:
            self.show(self._shown, last=True)
        if self._keys is not None:
            self._keys.close()

    # --- effects ---

    def _positions(self, question: Question) -> Positions:
        answer = self._ask(question)
        assert isinstance(answer, Answer), "positions are what was asked for"
        assert answer.positions is not None, "positions are what was asked for"
        return answer.positions

    def _ask(self, question: Question) -> Answer | Planned:
        """
        Do what the planner says until it has an answer.

        Raises:
            HeadraceError: the query cannot go on.
        """
        event: Event | None = question
        must_exist = isinstance(question, InitialAsked)
        for _ in range(STEPS_MAX):
            assert event is not None, "the planner asks for something, or answers"
            effects, event = self._planner.handle(event), None
            for effect in effects:
                match effect:
                    case FetchSnapshot():
                        event = self._fetch(effect, must_exist=must_exist)
                    case FetchTimes(timestamps_ms):
                        event = TimesFetched(self._logs.offsets_for_times(timestamps_ms))
                    case Warn(text):
                        warn_once(text)
                    case Fail(error):
                        raise error
                    case Answer() | Planned():
                        return effect
        raise AssertionError("a question has an answer after a few looks at the cluster")

    def _fetch(self, wanted: FetchSnapshot, *, must_exist: bool) -> SnapshotFetched:
        assert self.options.selection is not None, "a query that reads says what"
        self._snapshot = self._logs.snapshot(
            self.options.selection,
            newer_than=wanted.newer_than,
            wait_ms=wanted.wait_ms,
            after_ms=wanted.after_ms,
            must_exist=must_exist,
        )
        return SnapshotFetched(self._snapshot, self._clock.monotonic_ms())
