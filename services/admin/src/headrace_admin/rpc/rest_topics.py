"""``/v1/topics``: create, list, describe, change, trim and delete topics."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response, status

from headrace_admin.engine.administration import Administration, one_topic
from headrace_admin.rpc import answer_types, models
from headrace_admin.rpc.rest_configs import alter, describe
from headrace_common.core.errors import Rejected
from headrace_common.core.ids import check_topic_name
from headrace_common.rpc import answers
from headrace_common.runtime.access_gate import current_rights
from headrace_proto.v1 import admin_pb2, broker_pb2, errors_pb2
from headrace_proto.v1 import controller_pb2 as pb

TopicPath = Annotated[str, Path(min_length=1, max_length=249)]


def topic_routes(engine: Administration) -> APIRouter:
    """All routes of this module."""
    routes = APIRouter(prefix="/v1/topics", tags=["topics"])
    _describing(routes, engine)
    _changing(routes, engine)
    return routes


def _describing(routes: APIRouter, engine: Administration) -> None:
    @routes.get("", operation_id="list_topics")
    async def list_topics(
        limit: Annotated[int, Query(ge=1, le=10_000, description="Most topics in the answer.")] = 100,
        after: Annotated[str, Query(max_length=249, description="Only names after this one.")] = "",
        internal: Annotated[bool, Query(description="Also topics of the system.")] = False,
    ) -> answer_types.Topics:
        """Topics by name, page by page."""
        request = pb.ListTopicsRequest(after=after, limit=limit, include_internal=internal)
        return answers.topics(await engine.controllers.ask(lambda stub: stub.ListTopics, request))

    @routes.get("/{topic}", operation_id="describe_topic")
    async def describe_topic(
        topic: TopicPath,
        sizes: Annotated[bool, Query(description="Ask the leaders for offsets and sizes.")] = True,
    ) -> answer_types.Topic:
        """A topic with its partitions; offsets and sizes are null where a leader does not answer."""
        found = await engine.topic(check_topic_name(topic))
        if not sizes:
            return answers.topic(found)
        request = broker_pb2.DescribeLogsRequest(topic_ids=[found.topic.topic_id])
        logs = await engine.describe_logs(admin_pb2.DescribeClusterLogsRequest(request=request))
        return answers.topic(found, logs)

    @routes.get("/{topic}/logs", operation_id="describe_topic_logs")
    async def describe_topic_logs(
        topic: TopicPath,
        segments: Annotated[bool, Query(description="Also each segment.")] = False,
    ) -> answer_types.TopicLogs:
        """Every replica of a topic: offsets, sizes, the oldest record's time, and how far it is compacted."""
        found = await engine.topic(check_topic_name(topic))
        request = broker_pb2.DescribeLogsRequest(topic_ids=[found.topic.topic_id], segments=segments)
        answer = await engine.describe_logs(admin_pb2.DescribeClusterLogsRequest(request=request))
        return answers.topic_logs(found, answer)

    @routes.get("/{topic}/configs", operation_id="describe_topic_configs")
    async def describe_topic_configs(topic: TopicPath) -> answer_types.ConfigEntries:
        """Effective settings of a topic, and where each comes from."""
        return await describe(engine, pb.TOPIC_CONFIG, check_topic_name(topic))


def _changing(routes: APIRouter, engine: Administration) -> None:
    @routes.post("", operation_id="create_topic", status_code=status.HTTP_201_CREATED)
    async def create_topic(body: models.CreateTopic, response: Response) -> answer_types.Topic:
        """Create a topic; 200 instead of 201 with `validate_only`, or with `if_not_exists` where there is one."""
        request = pb.CreateTopicsRequest(
            topics=[_new_topic(body)], validate_only=body.validate_only, timeout_ms=body.timeout_ms
        )
        answer = await engine.controllers.ask(lambda stub: stub.CreateTopics, request)
        there = body.if_not_exists and answer.topics[0].error == errors_pb2.TOPIC_ALREADY_EXISTS
        created = answers.topic(await engine.topic(body.name) if there else one_topic(answer.topics))
        if body.validate_only or there:
            response.status_code = status.HTTP_200_OK
        else:
            response.headers["location"] = f"/v1/topics/{body.name}"
        return created

    @routes.delete("/{topic}", operation_id="delete_topic", status_code=status.HTTP_204_NO_CONTENT)
    async def delete_topic(
        topic: TopicPath,
        confirm: Annotated[str, Query(max_length=249, description="The topic's name once more.")] = "",
    ) -> None:
        """Delete a topic and all its records, for good."""
        check_topic_name(topic)
        if confirm != topic:
            raise Rejected(f"deleting {topic!r} loses all its records; to confirm it, add ?confirm={topic}")
        answer = await engine.controllers.ask(lambda stub: stub.DeleteTopics, pb.DeleteTopicsRequest(names=[topic]))
        one_topic(answer.topics)

    @routes.patch("/{topic}/configs", operation_id="change_topic_configs")
    async def change_topic_configs(topic: TopicPath, change: models.ChangeConfigs) -> answer_types.ConfigEntries:
        """Change settings of a topic; the answer has them as they are then."""
        return await alter(engine, pb.TOPIC_CONFIG, check_topic_name(topic), change)

    @routes.post("/{topic}/partitions", operation_id="add_partitions")
    async def add_partitions(topic: TopicPath, body: models.AddPartitions) -> answer_types.Topic:
        """Add partitions. Keys may land elsewhere afterwards; order per key holds only from then on."""
        request = pb.CreatePartitionsRequest(
            name=check_topic_name(topic),
            partition_count=body.partitions,
            assignments=_assignments(body.assignments),
            validate_only=body.validate_only,
        )
        answer = await engine.controllers.ask(lambda stub: stub.CreatePartitions, request)
        return answers.topic(one_topic([answer.result]))

    @routes.post("/{topic}/trim", operation_id="trim_topic")
    async def trim_topic(topic: TopicPath, body: models.Trim) -> answer_types.TrimResult:
        """Drop records from the front of partitions, for good. Each partition succeeds or fails by itself."""
        topic_id = (await engine.topic(check_topic_name(topic))).topic.topic_id
        answer = await engine.delete_records(
            broker_pb2.DeleteRecordsRequest(
                partitions=[
                    broker_pb2.DeleteRecordsPartition(topic_id=topic_id, partition=p.partition, offset=p.offset)
                    for p in body.partitions
                ]
            ),
            current_rights(),
        )
        return answers.trimmed(topic, answer)


def _new_topic(body: models.CreateTopic) -> pb.NewTopic:
    if body.assignments is not None and (body.partitions is not None or body.replication_factor is not None):
        raise Rejected("assignments say how many partitions and replicas there are; leave the two numbers out")
    return pb.NewTopic(
        name=check_topic_name(body.name),
        partition_count=-1 if body.partitions is None else body.partitions,
        replication_factor=-1 if body.replication_factor is None else body.replication_factor,
        configs=body.configs,
        assignments=_assignments(body.assignments),
    )


def _assignments(assignments: list[list[int]] | None) -> list[pb.ReplicaAssignment]:
    return [pb.ReplicaAssignment(replicas=replicas) for replicas in assignments or []]
