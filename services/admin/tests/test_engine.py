"""The engine's own decisions: whom to ask for a log, how often, and how much at one time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from services.admin.tests.twin.memory_cluster import MemoryCluster
from services.admin.tests.twin.memory_messages import MemoryMessages

from headrace_admin.config import AdminConfig, Limits
from headrace_admin.engine.administration import Administration
from headrace_admin.engine.messages import Messages
from headrace_admin.ports import NewMessage
from headrace_common.core.errors import InvalidConfig, NotFound, Overloaded, Rejected
from headrace_common.core.image import ClusterImage
from headrace_common.runtime.env import load_settings
from headrace_proto.v1 import admin_pb2, broker_pb2, errors_pb2
from headrace_proto.v1 import controller_pb2 as pb


async def cluster_with(partitions: int) -> tuple[MemoryCluster, bytes]:
    cluster = MemoryCluster()
    await cluster.create_topics(pb.CreateTopicsRequest(topics=[pb.NewTopic(name="t", partition_count=partitions)]))
    return cluster, cluster.image.topic_ids["t"]


def trim(*partitions: tuple[bytes, int, int]) -> broker_pb2.DeleteRecordsRequest:
    return broker_pb2.DeleteRecordsRequest(
        partitions=[broker_pb2.DeleteRecordsPartition(topic_id=t, partition=p, offset=o) for t, p, o in partitions]
    )


class LeadershipMoves(MemoryCluster):
    """The image is behind: the first leader asked refuses, and the next image has the new one."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []
        self.images = 0

    async def newer(self, revision: int, timeout_ms: float) -> ClusterImage:
        self.images += 1
        self.lead("t", 0, 2)
        return self.image

    async def delete_records(self, broker: Any, request: Any) -> Any:
        self.asked.append(broker)
        if broker == 1:
            result = broker_pb2.DeleteRecordsResult(error=errors_pb2.NOT_LEADER_OR_FOLLOWER, log_start_offset=-1)
            return broker_pb2.DeleteRecordsResponse(partitions=[result])
        return await super().delete_records(broker, request)


async def test_trimming_follows_the_leader() -> None:
    cluster = LeadershipMoves()
    await cluster.create_topics(pb.CreateTopicsRequest(topics=[pb.NewTopic(name="t", partition_count=1)]))
    engine = Administration(cluster, cluster, cluster)
    answer = await engine.delete_records(trim((cluster.image.topic_ids["t"], 0, 0)))
    assert cluster.asked == [1, 2]
    assert answer.partitions[0].error == errors_pb2.NONE


async def test_trimming_gives_up_after_a_few_tries() -> None:
    cluster, _ = await cluster_with(1)
    answer = await Administration(cluster, cluster, cluster).delete_records(trim((b"x" * 16, 0, 0)))
    assert answer.partitions[0].error == errors_pb2.UNKNOWN_TOPIC_ID


async def test_results_keep_the_order_of_the_request() -> None:
    cluster, topic_id = await cluster_with(4)
    wanted = [(topic_id, n, 0) for n in (3, 0, 2, 1)]
    answer = await Administration(cluster, cluster, cluster).delete_records(trim(*wanted))
    assert [p.partition for p in answer.partitions] == [3, 0, 2, 1]


async def test_a_broker_that_is_away_fails_its_partitions_only() -> None:
    cluster, topic_id = await cluster_with(2)
    cluster.down.add(1)
    answer = await Administration(cluster, cluster, cluster).delete_records(trim((topic_id, 0, 0), (topic_id, 1, 0)))
    assert [p.error for p in answer.partitions] == [errors_pb2.NETWORK_EXCEPTION, errors_pb2.NONE]


@pytest.mark.parametrize("partitions", [[], [(b"x" * 16, 0, 0)] * 2])
async def test_empty_and_double_requests_are_refused(partitions: list[Any]) -> None:
    cluster, _ = await cluster_with(1)
    with pytest.raises(Rejected):
        await Administration(cluster, cluster, cluster).delete_records(trim(*partitions))


async def test_logs_of_all_brokers_with_their_errors() -> None:
    cluster, _ = await cluster_with(2)
    cluster.down.add(2)
    engine = Administration(cluster, cluster, cluster)
    answer = await engine.describe_logs(admin_pb2.DescribeClusterLogsRequest())
    assert [b.broker_id for b in answer.brokers] == [1, 2]
    assert len(answer.brokers[0].logs.logs) == 1
    assert answer.brokers[1].error.code == errors_pb2.NETWORK_EXCEPTION
    with pytest.raises(NotFound):
        await engine.describe_logs(admin_pb2.DescribeClusterLogsRequest(broker_id=9))


async def test_a_broker_that_is_away_and_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hangs(MemoryCluster):
        async def describe_logs(self, broker: Any, request: Any) -> Any:
            if broker == 2:
                await asyncio.Event().wait()
            return await super().describe_logs(broker, request)

    monkeypatch.setattr("headrace_admin.engine.administration._AWAY_ASK_MS_MAX", 1.0)
    cluster = Hangs()
    cluster.node(2, fenced=True)
    answer = await Administration(cluster, cluster, cluster).describe_logs(admin_pb2.DescribeClusterLogsRequest())
    assert [b.error.code for b in answer.brokers] == [errors_pb2.NONE, errors_pb2.NETWORK_EXCEPTION]


async def test_messages_at_one_time_are_bounded() -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    class Slow(MemoryMessages):
        async def append(self, topic: str, messages: Any) -> Any:
            entered.set()
            await release.wait()
            return await super().append(topic, messages)

    cluster, _ = await cluster_with(1)
    messages = Messages(Slow(), cluster, Limits(reads_max=1))
    first = asyncio.ensure_future(messages.produce("t", [NewMessage(b"v")]))
    await entered.wait()
    with pytest.raises(Overloaded):
        await messages.produce("t", [NewMessage(b"v")])
    release.set()
    assert len(await first) == 1
    assert len(await messages.produce("t", [NewMessage(b"v")])) == 1


async def test_topics_of_the_system_are_not_written_to() -> None:
    from dataclasses import replace

    cluster, topic_id = await cluster_with(1)
    internal = replace(cluster.image.topics[topic_id], internal=True)
    cluster.image = replace(cluster.image, topics={topic_id: internal})
    with pytest.raises(Rejected, match="system"):
        await Messages(MemoryMessages(), cluster, Limits()).produce("t", [NewMessage(b"v")])


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
