"""``/v1/topics/{topic}/records`` and ``.../partitions/{n}/records``: a few messages in and out."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, status

from headrace_admin.engine.messages import Messages
from headrace_admin.rpc import models
from headrace_admin.rpc.contents import Form, message_of, record_out
from headrace_common.core.errors import Rejected
from headrace_common.core.ids import Offset
from headrace_common.http.paces import Paces
from headrace_common.runtime.access_gate import current_shown

TopicPath = Annotated[str, Path(min_length=1, max_length=249)]
PartitionPath = Annotated[int, Path(ge=0, le=models.INT32_MAX)]
_DIGITS_MAX = 19


def message_routes(messages: Messages, paces: Paces) -> APIRouter:
    """All routes of this module."""
    routes = APIRouter(prefix="/v1/topics/{topic}", tags=["messages"])

    @routes.post("/records", operation_id="produce_records", status_code=status.HTTP_201_CREATED)
    async def produce_records(topic: TopicPath, body: models.ProduceRecords) -> models.WrittenRecords:
        """Write a few records; the answer comes when all in-sync replicas have them."""
        written = await messages.produce(topic, [message_of(record) for record in body.records])
        return models.WrittenRecords(
            records=[
                models.Written(partition=w.partition, offset=w.offset, timestamp_ms=w.timestamp_ms) for w in written
            ]
        )

    @routes.get("/partitions/{partition}/records", operation_id="read_records")
    async def read_records(
        topic: TopicPath,
        partition: PartitionPath,
        offset: Annotated[str, Query(max_length=20, description="A number, `earliest`, or `latest`.")] = "earliest",
        limit: Annotated[int, Query(ge=1, le=1_000, description="Most records in the answer.")] = 100,
        wait_ms: Annotated[int, Query(ge=0, le=30_000, description="How long to wait for the first record.")] = 0,
        bytes_max: Annotated[
            int, Query(ge=1, le=4 << 20, description="Most bytes; the first record comes whatever its size.")
        ] = 1 << 20,
        form: Annotated[
            Form, Query(description="How keys, values and headers are given; base64 where they do not fit it.")
        ] = "auto",
    ) -> models.Records:
        """Read a few records of one partition, from an offset on."""
        start = _start(offset)
        with paces.reading(current_shown()):
            if start == "latest":
                start = await messages.end(topic, partition)
            page = await messages.read(
                topic,
                partition,
                None if isinstance(start, str) else start,
                limit=limit,
                bytes_max=bytes_max,
                wait_ms=wait_ms,
            )
        return models.Records(
            records=[record_out(message, form) for message in page.messages], next_offset=page.next_offset
        )

    return routes


def _start(text: str) -> Offset | str:
    if text in {"earliest", "latest"}:
        return text
    if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX and int(text) <= models.INT64_MAX:
        return Offset(int(text))
    raise Rejected(f"offset takes a number from 0 on, earliest or latest, not {text!r}")
