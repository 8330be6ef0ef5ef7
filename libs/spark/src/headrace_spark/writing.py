"""
What Spark's two kinds of writers have in common: what they are told when a query is planned, and what tasks tell them.

Spark pickles a writer to the tasks and, of a micro-batch, lets another object of the same class commit; so what commits
knows nothing but what the messages say. Called by ``batch_writer`` and ``stream_writer``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pickle import PicklingError
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from headrace.settings import ProducerSettings, read_settings
from headrace_common.core.errors import CredentialsExpired, HeadraceError
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.entropy import new_incarnation, new_seed
from headrace_spark.adapters.clients import settle_worker, warn_once
from headrace_spark.core.columns import FieldGiven
from headrace_spark.core.option_table import Mode
from headrace_spark.core.options import ConnectorOptions
from headrace_spark.core.sink_columns import check_sink_schema
from headrace_spark.core.units import SinkPlan, TaskMessage, claim_number
from headrace_spark.sink import Attempt, abort_unit, commit_unit, write_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from headrace_common.core.secret import Secret
    from headrace_spark.ports import Sink

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties that Spark sets for all jobs of a streaming query, also within ``foreachBatch``."""


@dataclass
class SinkMessage(WriterCommitMessage):
    """What one task tells the driver, in the wrapper that Spark asks for."""

    told: TaskMessage


class Writing:
    """
    A writer's part that knows no kind; made anew for each batch, travels pickled.

    Raises:
        InvalidConfig: all that is wrong with the options, or with the columns.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, mode: Mode) -> None:
        self._options = ConnectorOptions.parse(options, mode)
        self._check_settings()
        given = [FieldGiven(each.name, each.dataType.simpleString(), each.nullable) for each in schema.fields]
        self._columns = check_sink_schema(given, self._options.topic)
        self._plan = SinkPlan(
            transactional=self._options.transactional,
            prefix=self._options.transactional_id,
            claim=claim_number(SystemClock().now_ms(), new_seed()),
            job=None if mode.streams else f"batch.{new_incarnation().hex()}",
            topic=self._options.topic,
        )
        self._task_key: Secret | None = None
        for warning in self._options.warnings:
            warn_once(warning)

    def __getstate__(self) -> dict[str, Any]:
        """
        Spark pickles a writer for the tasks and, of a batch job, once more for the process that commits: both show the
        tasks' key. It is made now, since whoever commits a micro-batch makes a writer too, and needs none.

        Raises:
            PicklingError: no key could be made in time; Spark would put another text around any other error.
        """
        try:
            return {**self.__dict__, "_task_key": self._task_key or self._new_task_key()}
        except HeadraceError as error:
            raise PicklingError(str(error)) from None

    def _new_task_key(self) -> Secret | None:
        if self._options.token is None:
            return None
        from headrace_spark.adapters.sdk_keys import shared_keys  # not where nobody needs keys: it loads gRPC
        from headrace_spark.core.task_keys import writing_scope

        keys = shared_keys(self._options)
        assert keys is not None, "there is a credential"
        return keys.key(writing_scope(self._options))

    def _check_settings(self) -> None:
        """The client has rules between its settings, and tells them when it is made: in the tasks, and to each."""
        settings = dict(self._options.client)
        if self._options.transactional:
            settings |= {"transactional_id": "some/task", "owner_epoch": 0}
        read_settings(ProducerSettings, settings)

    def write(self, batches: Iterator[pa.RecordBatch]) -> SinkMessage:
        """In a task: write all rows."""
        sink = self._sink()
        settle_worker()
        try:
            return SinkMessage(write_rows(sink, self._plan, self._columns, batches, _attempt()))
        except CredentialsExpired as error:
            from headrace_spark.core.task_keys import explain_end

            raise (error if self._task_key is None else explain_end(error)) from None

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int | None) -> None:
        """On the driver: make all that was written visible."""
        commit_unit(self._sink(), self._plan, _extract_messages(messages), batch_id)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: give up what was written."""
        abort_unit(self._sink(), self._plan, _extract_messages(messages))

    def _sink(self) -> Sink:
        from headrace_spark.adapters.sdk_address import cluster_of
        from headrace_spark.adapters.sdk_writing import SdkSink  # not where a query is only planned: it loads gRPC

        return SdkSink(cluster_of(self._options, self._task_key), self._options.client)


def _extract_messages(messages: Sequence[WriterCommitMessage | None]) -> list[TaskMessage | None]:
    return [message.told if isinstance(message, SinkMessage) else None for message in messages]


def _attempt() -> Attempt:
    context = TaskContext.get()
    if context is None:
        return Attempt(None, None, 0)
    query_id, batch_id = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    return Attempt(query_id, None if batch_id is None else int(batch_id), context.attemptNumber())
