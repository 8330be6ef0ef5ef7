"""``/v1/restore`` and ``/v1/strays``: how far restored metadata is, and logs that nobody knows."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response, status

from headrace_admin.engine.administration import Administration, one_topic
from headrace_admin.rpc import models, views
from headrace_admin.rpc import models_restore as shapes
from headrace_proto.v1 import controller_pb2 as pb

TopicIdPath = Annotated[str, Path(pattern="^[0-9a-fA-F]{32}$", description="32 hexadecimal digits.")]


def restore_routes(engine: Administration) -> APIRouter:
    """All routes of this module."""
    routes = APIRouter(prefix="/v1", tags=["restore"])

    @routes.get("/restore", operation_id="describe_restore")
    async def describe_restore() -> shapes.RestoreStatus:
        """Whether the metadata was restored from a backup, and which brokers are still to be asked."""
        answer = await engine.controllers.describe_restore(pb.DescribeRestoreRequest())
        return shapes.RestoreStatus(restore=_restored(answer) if answer.HasField("restore") else None)

    @routes.get("/strays", operation_id="list_strays")
    async def list_strays() -> shapes.Strays:
        """Logs that brokers have and the metadata does not know. Asks every broker."""
        answer = await engine.controllers.describe_restore(pb.DescribeRestoreRequest(strays=True))
        return shapes.Strays(strays=[_stray(s) for s in answer.strays], silent_brokers=list(answer.silent))

    @routes.post("/strays/{topic_id}/adopt", operation_id="adopt_topic", status_code=status.HTTP_201_CREATED)
    async def adopt_topic(topic_id: TopicIdPath, body: shapes.Adopt, response: Response) -> models.Topic:
        """Make a topic of stray logs, led by the longest of them; 200 instead of 201 with `validate_only`."""
        request = pb.AdoptTopicRequest(
            topic_id=bytes.fromhex(topic_id),
            name=body.name,
            partition_count=body.partitions,
            validate_only=body.validate_only,
        )
        adopted = views.topic_out(one_topic([(await engine.controllers.adopt_topic(request)).result]), {})
        if body.validate_only:
            response.status_code = status.HTTP_200_OK
        else:
            response.headers["location"] = f"/v1/topics/{adopted.name}"
        return adopted

    return routes


def _restored(answer: pb.DescribeRestoreResponse) -> shapes.Restored:
    restore = answer.restore
    return shapes.Restored(
        finished=restore.finished,
        backup_revision=restore.backup_revision,
        backup_time_ms=restore.backup_time_ms,
        restore_time_ms=restore.restore_time_ms,
        expected_brokers=list(restore.expected),
        missing_brokers=list(restore.missing),
        silent_brokers=list(answer.silent),
        adopted_topics=restore.adopted_topics,
        empty_topics=restore.empty_topics,
    )


def _stray(stray: pb.StrayTopic) -> shapes.Stray:
    known = stray.HasField("topic")
    return shapes.Stray(
        topic_id=stray.topic_id.hex(),
        name=stray.topic.name if known else None,
        partitions=stray.topic.partition_count if known else None,
        logs=[
            shapes.StrayLog(
                broker=log.broker_id,
                partition=log.partition,
                log_end_offset=log.log_end_offset,
                damaged=log.damaged,
            )
            for log in stray.logs
        ],
        note=stray.note if stray.HasField("note") else None,
    )
