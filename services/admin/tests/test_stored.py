"""What brokers store, as the verdict tells it: compaction that is stuck and disks that are full; and REST of logs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from services.admin.tests.twin.memory_cluster import MemoryCluster

from headrace_admin.core.status import State, Status, observe
from headrace_admin.core.stored import Disk, Stored, StuckLog, not_compacted
from headrace_admin.core.verdict import verdict
from headrace_admin.engine import stored_logs
from headrace_admin.engine.stored_logs import StoredLogs
from headrace_common.core.ids import Endpoint, NodeId, PartitionId, TopicId
from headrace_common.core.image import EMPTY_IMAGE, ImageDelta, Node, NodeKey, Partition, Role, Topic
from headrace_proto.v1 import broker_pb2
from headrace_proto.v1 import controller_pb2 as pb


@pytest.fixture
def rest(rest_in_memory: Any) -> Any:
    return rest_in_memory


GIB = 1 << 30
ID = TopicId(b"t" * 16)
STUCK = StuckLog("t", 3, NodeId(2), "batch 17 cannot be read: its bytes are no zstd.")


def seen(stored: Stored) -> Status:
    """Brokers 1 and 2, of which 1 leads."""
    nodes = tuple(Node(NodeKey(Role.BROKER, NodeId(n)), Endpoint("b", n), bytes(16), n, fenced=False) for n in (1, 2))
    both = (NodeId(1), NodeId(2))
    delta = ImageDelta(
        b"i" * 16,
        None,
        1,
        "c",
        nodes=nodes,
        topics=(Topic("t", ID, 1),),
        partitions=(Partition(PartitionId(ID, 0), both, both, NodeId(1), 0, 0),),
    )
    image = EMPTY_IMAGE.apply(delta)
    return observe(image, controller=NodeId(1), store_reachable=True, away_since_ms={}, stored=stored)


class TestVerdict:
    def test_a_log_that_is_stuck_is_named_with_its_broker_and_why(self) -> None:
        state, said = verdict(seen(Stored((STUCK,))))
        assert state is State.DEGRADED
        assert said == (
            "degraded: compaction of t-3 on broker 2 is stuck: batch 17 cannot be read: its bytes are no zstd; nothing "
            "is lost, but old records stay; `headrace topic describe t` shows it; docs/operations/cluster.md#old-data "
            "says what to do"
        )

    def test_several_are_named_and_counted(self) -> None:
        several = tuple(StuckLog("t", n, NodeId(1), "why") for n in range(6))
        [part] = not_compacted(Stored(several))
        assert "compaction of t-0 on broker 1 is stuck: why; so is that of t-1 on broker 1, t-2 on broker 1," in part
        assert "t-3 on broker 1 and 2 more; nothing is lost" in part

    def test_a_batch_that_no_consumer_can_read_is_named(self) -> None:
        bad = tuple(StuckLog("t", n, NodeId(1), "offsets 10 to 12: why") for n in range(2))
        state, said = verdict(seen(Stored(unreadable=bad)))
        assert state is State.DEGRADED
        assert said == (
            "degraded: t-0 on broker 1 has a batch that no consumer can read, offsets 10 to 12: why; so does t-1 on "
            "broker 1; consumers stop there until they skip it, with Consumer.skip_batch() or by a reset of the "
            "group's offsets"
        )

    @pytest.mark.parametrize(("reason", "told"), [("x" * 5_000, f"{'x' * 300}...;"), ("", "does not say why;")])
    def test_a_reason_is_never_the_whole_line_nor_nothing(self, reason: str, told: str) -> None:
        assert told in not_compacted(Stored((replace(STUCK, reason=reason),)))[0]

    def test_a_full_disk_of_a_leader_is_felt(self) -> None:
        state, said = verdict(seen(Stored(disks=(Disk(NodeId(1), 3 * GIB, 98 * GIB, 5 * GIB),))))
        assert state is State.UNAVAILABLE
        assert said == (
            "unavailable: the disk of broker 1 is full, 3.0 GiB free of 98.0 GiB with a reserve of 5.0 GiB: what it "
            "leads takes no records; delete topics, lower retention.ms or retention.bytes, or enlarge it"
        )

    def test_that_of_a_follower_is_not_yet(self) -> None:
        state, said = verdict(seen(Stored(disks=(Disk(NodeId(2), 1, 2, 3),))))
        assert state is State.DEGRADED
        assert "the disk of broker 2 is full" in said

    @pytest.mark.parametrize("reserve", [None, 5])
    def test_a_disk_with_its_reserve_or_without_a_word_of_one(self, reserve: int | None) -> None:
        assert verdict(seen(Stored(disks=(Disk(NodeId(1), 5, 9, reserve),))))[0] is State.HEALTHY


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster()


async def _topic(cluster: MemoryCluster, name: str = "t", partitions: int = 2) -> TopicId:
    request = pb.CreateTopicsRequest(topics=[pb.NewTopic(name=name, partition_count=partitions, replication_factor=1)])
    [result] = (await cluster.create_topics(request)).topics
    return TopicId(result.topic.topic.topic_id)


class TestAsking:
    async def test_all_that_are_there(self, cluster: MemoryCluster) -> None:
        topic = await _topic(cluster)
        partition = cluster.image.partitions[PartitionId(topic, 1)]
        cluster.compactions[partition.leader, partition.id] = broker_pb2.LogCompaction(stuck=True, waits_for="why")
        cluster.reserves[1] = 11
        told = await StoredLogs(cluster, cluster).look()
        assert told.stuck == (StuckLog("t", 1, partition.leader, "why"),)
        disk = told.disk(NodeId(1))
        assert disk is not None
        assert disk.full

    async def test_batches_that_consumers_could_not_read(self, cluster: MemoryCluster) -> None:
        topic = await _topic(cluster)
        partition = cluster.image.partitions[PartitionId(topic, 1)]
        cluster.unreadable[partition.leader, partition.id] = "offsets 10 to 12: why"
        told = await StoredLogs(cluster, cluster).look()
        assert told.unreadable == (StuckLog("t", 1, partition.leader, "offsets 10 to 12: why"),)
        assert not told.stuck

    async def test_who_does_not_answer_is_left_out(self, cluster: MemoryCluster) -> None:
        cluster.down.add(1)
        told = await StoredLogs(cluster, cluster).look()
        assert told.disk(NodeId(1)) is None
        assert told.disk(NodeId(2)) is not None

    async def test_who_hangs_is_not_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Hanging(MemoryCluster):
            async def describe_logs(
                self, broker: NodeId, request: broker_pb2.DescribeLogsRequest
            ) -> broker_pb2.DescribeLogsResponse:
                if broker == 1:
                    await asyncio.Event().wait()
                return await super().describe_logs(broker, request)

        monkeypatch.setattr(stored_logs, "ASK_MS_MAX", 10)
        told = await StoredLogs(Hanging(), Hanging()).look()
        assert [d.broker for d in told.disks] == [2]

    async def test_who_is_fenced_is_not_asked(self, cluster: MemoryCluster) -> None:
        cluster.node(1, fenced=True)
        assert (await StoredLogs(cluster, cluster).look()).disk(NodeId(1)) is None


class TestRest:
    async def test_the_status_names_them(self, rest: Any) -> None:
        topic = await _topic(rest.cluster)
        partition = rest.cluster.image.partitions[PartitionId(topic, 0)]
        rest.cluster.compactions[partition.leader, partition.id] = broker_pb2.LogCompaction(stuck=True, waits_for="why")
        status = (await rest.client.get("/v1/cluster/status")).json()
        assert status["state"] == "degraded"
        assert status["stuck_compactions"] == [
            {"topic": "t", "partition": 0, "broker": partition.leader, "reason": "why"}
        ]
        assert status["brokers"][0]["disk_free_bytes"] == 10

    async def test_every_replica_of_a_topic(self, rest: Any) -> None:
        topic = await _topic(rest.cluster)
        first = rest.cluster.image.partitions[PartitionId(topic, 0)]
        rest.cluster.oldest[first.id] = 77
        rest.cluster.compactions[first.leader, first.id] = broker_pb2.LogCompaction(
            cleaned_to=5, cleanable_to=9, clean_bytes=100, dirty_bytes=300
        )
        answer = (await rest.client.get("/v1/topics/t/logs", params={"segments": "true"})).json()
        assert [(log["partition"], len(log["segments"])) for log in answer["logs"]] == [(0, 1), (1, 1)]
        one, other = answer["logs"]
        assert (one["broker"], one["oldest_timestamp_ms"], one["topic"]) == (first.leader, 77, "t")
        assert one["compaction"] == {
            "cleaned_to": 5,
            "cleanable_to": 9,
            "clean_bytes": 100,
            "dirty_bytes": 300,
            "dirty_ratio": 0.75,
            "last_compacted_ms": None,
            "stuck": False,
            "waits_for": None,
        }
        assert (other["compaction"], other["oldest_timestamp_ms"]) == (None, None)
        described = (await rest.client.get("/v1/topics/t")).json()["partitions"]
        assert described[0]["compaction"] == one["compaction"]
        assert described[0]["oldest_timestamp_ms"] == 77

    async def test_a_broker_that_is_silent_is_named_if_it_holds_a_replica(self, rest: Any) -> None:
        topic = await _topic(rest.cluster, partitions=1)
        holder = rest.cluster.image.partitions[PartitionId(topic, 0)].leader
        rest.cluster.down.update({1, 2})
        answer = (await rest.client.get("/v1/topics/t/logs")).json()
        assert answer["logs"] == []
        [silent] = answer["unanswered"]
        assert (silent["broker"], silent["error"]["code"]) == (holder, "NETWORK_EXCEPTION")

    async def test_of_a_topic_that_is_not_there(self, rest: Any) -> None:
        assert (await rest.client.get("/v1/topics/nope/logs")).status_code == 404
