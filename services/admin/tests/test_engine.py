"""The engine's own decisions: whom to ask for a log, how often, and how much at one time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from services.admin.tests.kit.world import SESSION_S, World

from headrace_admin.config import AdminConfig, Limits
from headrace_admin.engine.administration import Administration
from headrace_admin.engine.messages import Messages
from headrace_admin.ports import NewMessage
from headrace_common.core.errors import InvalidConfig, NotFound, Overloaded, Rejected
from headrace_common.core.ids import NodeId
from headrace_common.core.image import ShardKind
from headrace_common.runtime.env import load_settings
from headrace_proto.v1 import admin_pb2, broker_pb2, errors_pb2


def create(world: World, *leaders: int) -> bytes:
    """Topic t, with one replica of each partition; its id."""
    world.lab.create_topic("t", on=[[leader] for leader in leaders])
    return world.image.topic_ids["t"]


async def trim(world: World, *partitions: tuple[bytes, int, int]) -> broker_pb2.DeleteRecordsResponse:
    wanted = [broker_pb2.DeleteRecordsPartition(topic_id=t, partition=p, offset=o) for t, p, o in partitions]
    return await world.engines.administration.delete_records(broker_pb2.DeleteRecordsRequest(partitions=wanted))


async def test_trimming_follows_the_leader(world: World) -> None:
    """The image is behind: the first leader that is asked refuses, and the next image has the new one."""
    world.lab.create_topic("t", on=[[1, 2]])
    topic_id, behind = world.image.topic_ids["t"], world.image
    world.lab.move_leader("t", 0, 2)
    delete, newer, asked = world.broker_calls.DeleteRecords, world.cluster.newer, list[NodeId]()

    async def noted(broker: NodeId, request: broker_pb2.DeleteRecordsRequest) -> broker_pb2.DeleteRecordsResponse:
        asked.append(broker)
        return await delete(broker, request)

    class Late:
        """Of the port ``Cluster``, with an image that is behind until a newer one is asked for."""

        image = behind

        async def newer(self, revision: int, timeout_ms: float) -> Any:
            self.image = await newer(revision, timeout_ms)
            return self.image

    world.broker_calls.DeleteRecords = noted
    engine = Administration(Late(), world.controllers, world.brokers)
    request = broker_pb2.DeleteRecordsRequest()
    request.partitions.add(topic_id=topic_id, partition=0, offset=0)
    answer = await engine.delete_records(request)
    assert asked == [1, 2]
    assert answer.partitions[0].error == errors_pb2.NONE


async def test_trimming_gives_up_after_a_few_tries(world: World) -> None:
    answer = await trim(world, (b"x" * 16, 0, 0))
    assert answer.partitions[0].error == errors_pb2.UNKNOWN_TOPIC_ID


async def test_results_keep_the_order_of_the_request(world: World) -> None:
    topic_id = create(world, 1, 2, 1, 2)
    answer = await trim(world, *[(topic_id, n, 0) for n in (3, 0, 2, 1)])
    assert [(p.partition, p.error) for p in answer.partitions] == [(n, errors_pb2.NONE) for n in (3, 0, 2, 1)]


async def test_a_broker_that_is_away_fails_its_partitions_only(world: World) -> None:
    topic_id = create(world, 1, 2)
    world.lab.refuse("broker-1")
    answer = await trim(world, (topic_id, 0, 0), (topic_id, 1, 0))
    assert [p.error for p in answer.partitions] == [errors_pb2.NETWORK_EXCEPTION, errors_pb2.NONE]


@pytest.mark.parametrize("partitions", [[], [(b"x" * 16, 0, 0)] * 2])
async def test_empty_and_double_requests_are_refused(world: World, partitions: list[Any]) -> None:
    with pytest.raises(Rejected):
        await trim(world, *partitions)


async def test_logs_of_all_brokers_with_their_errors(world: World) -> None:
    create(world, 1, 2)
    world.lab.refuse("broker-2")
    answer = await world.engines.administration.describe_logs(admin_pb2.DescribeClusterLogsRequest())
    assert [b.broker_id for b in answer.brokers] == [1, 2]
    assert len(answer.brokers[0].logs.logs) == 1
    assert answer.brokers[1].error.code == errors_pb2.NETWORK_EXCEPTION
    with pytest.raises(NotFound):
        await world.engines.administration.describe_logs(admin_pb2.DescribeClusterLogsRequest(broker_id=9))


async def test_a_broker_that_is_away_and_hangs_is_not_waited_for(world: World) -> None:
    world.lab.pause(2)
    await asyncio.sleep(SESSION_S)
    began_ms = world.clock.monotonic_ms()
    answer = await world.engines.administration.describe_logs(admin_pb2.DescribeClusterLogsRequest())
    assert [b.error.code for b in answer.brokers] == [errors_pb2.NONE, errors_pb2.NETWORK_EXCEPTION]
    assert 1_000 <= world.clock.monotonic_ms() - began_ms < 1_100


async def test_messages_at_one_time_are_bounded(world: World) -> None:
    create(world, 1)
    messages = Messages(world.log, world.cluster, Limits(reads_max=1))
    world.lab.pause(1)
    first = asyncio.ensure_future(messages.produce("t", [NewMessage(b"v")]))
    await asyncio.sleep(1)
    with pytest.raises(Overloaded):
        await messages.produce("t", [NewMessage(b"v")])
    world.lab.resume(1)
    assert len(await first) == 1
    assert len(await messages.produce("t", [NewMessage(b"v")])) == 1


async def test_topics_of_the_system_are_not_written_to(world: World) -> None:
    await world.make_shards(ShardKind.GROUPS)
    with pytest.raises(Rejected, match="system"):
        await world.engines.messages.produce("__consumer_offsets", [NewMessage(b"v")])


def test_settings_from_argv_and_env() -> None:
    config = load_settings(
        AdminConfig,
        service="admin",
        argv=["--controllers", "a:1,b:2", "--listen", "127.0.0.1:0", "--ready-file", "r"],
        env={"HEADRACE_ADMIN_NODE_ID": "7", "HEADRACE_ADMIN_HTTP_LISTEN": "127.0.0.1:1"},
    )
    assert [str(c) for c in config.controllers] == ["a:1", "b:2"]
    assert (config.node_id, config.http_listen.port, config.server.listen.port) == (7, 1, 0)
    assert load_settings(AdminConfig, service="admin", argv=[], env={}).server.listen.port == 9490
    with pytest.raises(InvalidConfig, match=r"(?s)node_id.*records_max|records_max.*node_id|records_max"):
        load_settings(AdminConfig, service="admin", argv=["--node-id", "-1", "--records-max", "0"], env={})
