"""What the admin client makes of restores and strays, against an admin service that answers what a test says."""

from __future__ import annotations

import pytest
from libs.sdk.tests.kit.admin_service import AdminTransport, Service

from headrace import aio
from headrace.admin_restore_types import RestoreInfo, StrayList, StrayLog, StrayTopic
from headrace.errors import ErrorCode, Rejected, TopicAlreadyExists
from headrace_proto.v1 import cluster_pb2, errors_pb2
from headrace_proto.v1 import controller_pb2 as pb

ID = bytes(range(16))


@pytest.fixture
def service() -> Service:
    return Service(pb.DescribeRestoreResponse())


@pytest.fixture
def admin(service: Service) -> aio.AdminClient:
    return aio.AdminClient(_transport=AdminTransport(service))


async def test_restores(service: Service, admin: aio.AdminClient) -> None:
    assert await admin.describe_restore() is None
    service.answer = pb.DescribeRestoreResponse(
        restore=pb.Restore(
            backup_revision=1,
            backup_time_ms=2,
            restore_time_ms=3,
            expected=[0, 1],
            missing=[1],
            adopted_topics=4,
            empty_topics=5,
        ),
        silent=[0],
    )
    assert await admin.describe_restore() == RestoreInfo(False, (0, 1), (1,), 1, 2, 3, 4, 5, (0,))
    assert [request.strays for request in service.asked] == [False, False]


async def test_strays(service: Service, admin: aio.AdminClient) -> None:
    known = cluster_pb2.Topic(topic_id=ID, name="t", partition_count=2)
    log = pb.StrayLog(broker_id=1, partition=1, log_end_offset=7, damaged=True)
    service.answer = pb.DescribeRestoreResponse(
        strays=[pb.StrayTopic(topic_id=ID, topic=known, logs=[log]), pb.StrayTopic(topic_id=bytes(16), note="why")],
        silent=[3],
    )
    found = await admin.list_strays()
    first = StrayTopic(ID, "t", 2, (StrayLog(1, 1, 7, True),), None)
    assert found == StrayList((first, StrayTopic(bytes(16), None, None, (), "why")), (3,))
    assert service.asked[0].strays


async def test_adoption(service: Service, admin: aio.AdminClient) -> None:
    topic = pb.TopicDescription(topic=cluster_pb2.Topic(topic_id=ID, name="t", partition_count=1))
    service.answer = pb.AdoptTopicResponse(result=pb.TopicResult(name="t", topic=topic))
    assert (await admin.adopt_topic(ID)).name == "t"
    await admin.adopt_topic(ID.hex(), "u", partitions=3, validate_only=True)
    assert service.asked == [
        pb.AdoptTopicRequest(topic_id=ID),
        pb.AdoptTopicRequest(topic_id=ID, name="u", partition_count=3, validate_only=True),
    ]
    service.answer = pb.AdoptTopicResponse(
        result=pb.TopicResult(error=errors_pb2.TOPIC_ALREADY_EXISTS, message="its name is taken")
    )
    with pytest.raises(TopicAlreadyExists, match="taken") as raised:
        await admin.adopt_topic(ID)
    assert raised.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    for wrong in (b"short", "00", "x" * 32):
        with pytest.raises(Rejected, match="16 bytes"):
            await admin.adopt_topic(wrong)
