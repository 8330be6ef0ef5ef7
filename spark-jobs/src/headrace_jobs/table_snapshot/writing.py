"""In a task: the rows of a range, as the connector's records, in a transaction that is prepared. Called by ``job``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from headrace import aio
from headrace_common.core.errors import InvalidRecord
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.entropy import new_uuid
from headrace_connect.connectors.postgres_cdc.exported import Point, Range, read_range
from headrace_connect.core.dead_letters import Origin
from headrace_connect.plugin import Chunk
from headrace_connect.runtime.adapters.source_log import REQUEST_BYTES_MAX
from headrace_connect.runtime.adapters.topics import SdkTopics
from headrace_connect.runtime.config import SourceConfig
from headrace_connect.runtime.configuring import Configured
from headrace_connect.runtime.converting import ChunkPipeline
from headrace_connect.runtime.pipeline import dead_letters
from headrace_connect.runtime.ports import Outgoing
from headrace_jobs.connectors import Given
from headrace_streams.patience import Patience

TRANSACTION_MS: Final = 600_000
"""Of one range; a cluster allows 15 minutes unless it is set otherwise."""


@dataclass(frozen=True, slots=True)
class Unit:
    """What all tasks write together; travels pickled."""

    given: Given
    point: Point
    bootstrap: str
    epoch: int
    """Of the owner."""
    timeout_ms: int
    """For the answers of the cluster."""


@dataclass(frozen=True, slots=True)
class Written:
    """Of a range."""

    rows: int
    token: str = ""
    """Of the prepared transaction; empty: there was nothing to write."""


async def write_range(unit: Unit, each: Range) -> Written:
    """
    Write it; nobody sees it before the unit is committed.

    Raises:
        InvalidRecord: a row has no form, and ``errors.tolerance`` is ``none``.
        RetriableError, InvalidConfig: see ``read_range``.
        HeadraceError: the cluster does not answer, or a newer run of the job has begun.
    """
    configured = unit.given.configured()
    clock = SystemClock()
    patience = Patience(clock, unit.timeout_ms)
    async with (
        aio.AdminClient(unit.bootstrap, default_api_timeout_ms=unit.timeout_ms) as admin,
        aio.Producer(
            unit.bootstrap,
            transactional_id=f"{unit.point.owner}/{new_uuid()}",
            owner_epoch=unit.epoch,
            transaction_timeout_ms=TRANSACTION_MS,
            max_request_size=REQUEST_BYTES_MAX,
        ) as producer,
    ):
        records = _Records(configured, SdkTopics(admin, clock, unit.bootstrap), producer)
        async for chunk in read_range(configured.settings, unit.point, each, clock):
            if not records.rows:
                await patience.ask(producer.init_transactions)
                await producer.begin_transaction()
            await records.send(chunk)
        if not records.rows:
            return Written(0)
        return Written(records.rows, str(await patience.ask(producer.prepare_transaction)))


class _Records:
    """Chunks as a worker's task would send them."""

    def __init__(self, configured: Configured, topics: SdkTopics, producer: aio.Producer) -> None:
        config: Any = configured.config
        self._config: SourceConfig = config
        self._topics = topics
        self._producer = producer
        self._pipeline = ChunkPipeline(configured.converting(), Origin(config.name, 0, configured.name, config.topic))
        self.rows = 0

    async def send(self, chunk: Chunk) -> None:
        """Accept its records, and its dead letters."""
        converted = self._pipeline.apply(chunk)
        outgoing = list(converted.outgoing)
        if converted.lost:
            if self._config.errors_tolerance == "none":
                raise InvalidRecord(str(converted.lost[0]))
            topic = self._config.errors_deadletterqueue_topic_name
            if topic:
                headers = self._config.errors_deadletterqueue_context_headers_enable
                outgoing.append(dead_letters(topic, converted.lost, headers=headers))
        self.rows += len(chunk.rows) + len(chunk.bad)
        for records in outgoing:
            await self._send(records)

    async def _send(self, records: Outgoing) -> None:
        if self._config.topic_creation_enable:
            await self._topics.ensure(records.topic)
        await self._producer.send_table(records.topic, records.table)
