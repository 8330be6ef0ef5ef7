"""``/v1/restore`` and ``/v1/strays``: how far restored metadata is, and logs that nobody knows."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response, status

from headrace_admin.engine.administration import Administration, one_topic
from headrace_admin.rpc import answer_types
from headrace_admin.rpc import models_restore as shapes
from headrace_common.rpc import answers
from headrace_proto.v1 import controller_pb2 as pb

TopicIdPath = Annotated[str, Path(pattern="^[0-9a-fA-F]{32}$", description="32 hexadecimal digits.")]


def restore_routes(engine: Administration) -> APIRouter:
    """All routes of this module."""
    routes = APIRouter(prefix="/v1", tags=["restore"])

    @routes.get("/restore", operation_id="describe_restore")
    async def describe_restore() -> answer_types.RestoreStatus:
        """Whether the metadata was restored from a backup, and which brokers are still to be asked."""
        answer = await engine.controllers.ask(lambda stub: stub.DescribeRestore, pb.DescribeRestoreRequest())
        return answers.restore(answer)

    @routes.get("/strays", operation_id="list_strays")
    async def list_strays() -> answer_types.Strays:
        """Logs that brokers have and the metadata does not know. Asks every broker."""
        answer = await engine.controllers.ask(lambda stub: stub.DescribeRestore, pb.DescribeRestoreRequest(strays=True))
        return answers.strays(answer)

    @routes.post(
        "/strays/{topic_id}/adopt",
        operation_id="adopt_topic",
        status_code=status.HTTP_201_CREATED,
    )
    async def adopt_topic(topic_id: TopicIdPath, body: shapes.Adopt, response: Response) -> answer_types.Topic:
        """Make a topic of stray logs, led by the longest of them; 200 instead of 201 with `validate_only`."""
        request = pb.AdoptTopicRequest(
            topic_id=bytes.fromhex(topic_id),
            name=body.name,
            partition_count=body.partitions,
            validate_only=body.validate_only,
        )
        adopted = answers.topic(
            one_topic([(await engine.controllers.ask(lambda stub: stub.AdoptTopic, request)).result])
        )
        if body.validate_only:
            response.status_code = status.HTTP_200_OK
        else:
            response.headers["location"] = f"/v1/topics/{adopted['name']}"
        return adopted

    return routes
