"""What brokers store, as the verdict tells it: compaction that is stuck and disks that are full; and REST of logs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from services.admin.tests.kit.rest import Rest
from services.admin.tests.kit.world import SESSION_S, TIME_ZERO_MS, World

from headrace_admin.core.status import State, Status, observe
from headrace_admin.core.stored import Disk, Stored, StuckLog, not_compacted
from headrace_admin.core.verdict import verdict
from headrace_admin.engine import stored_logs
from headrace_admin.engine.stored_logs import StoredLogs
from headrace_common.core.ids import Endpoint, NodeId, PartitionId, TopicId
from headrace_common.core.image import EMPTY_IMAGE, ImageDelta, Node, NodeKey, Partition, Role, Topic
from headrace_proto.v1 import broker_pb2

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


def says(world: World, broker: int, **told: Any) -> None:
    """What a broker says of its log of t-1 besides."""
    ask, topic_id = world.broker_calls.DescribeLogs, world.image.topic_ids["t"]

    async def asked(who: NodeId, request: broker_pb2.DescribeLogsRequest) -> broker_pb2.DescribeLogsResponse:
        answer = await ask(who, request)
        if who == broker:
            own = [log for log in answer.logs if (log.topic_id, log.partition) == (topic_id, 1)]
            log = own[0] if own else answer.logs.add(topic_id=topic_id, partition=1)
            log.MergeFrom(broker_pb2.LogDescription(**told))
        return answer

    world.broker_calls.DescribeLogs = asked


STUCK_1 = {"compaction": broker_pb2.LogCompaction(stuck=True, waits_for="why")}


class TestAsking:
    async def test_all_that_are_there(self, world: World) -> None:
        world.lab.create_topic("t", on=[[1], [2]])
        says(world, 2, **STUCK_1)
        world.lab.nodes.fill_disk(1)
        told = await StoredLogs(world.cluster, world.brokers).look()
        assert told.stuck == (StuckLog("t", 1, NodeId(2), "why"),)
        assert [(disk.broker, disk.full) for disk in told.disks] == [(1, True), (2, False)]

    async def test_batches_that_consumers_could_not_read(self, world: World) -> None:
        world.lab.create_topic("t", on=[[1], [2]])
        says(world, 2, unreadable="offsets 10 to 12: why")
        told = await StoredLogs(world.cluster, world.brokers).look()
        assert told.unreadable == (StuckLog("t", 1, NodeId(2), "offsets 10 to 12: why"),)
        assert not told.stuck

    async def test_who_does_not_answer_is_left_out(self, world: World) -> None:
        world.lab.refuse("broker-1")
        told = await StoredLogs(world.cluster, world.brokers).look()
        assert [disk.broker for disk in told.disks] == [2]

    async def test_who_hangs_is_not_waited_for(self, world: World) -> None:
        world.lab.pause(1)
        began_ms = world.clock.monotonic_ms()
        told = await StoredLogs(world.cluster, world.brokers).look()
        assert [disk.broker for disk in told.disks] == [2]
        assert stored_logs.ASK_MS_MAX <= world.clock.monotonic_ms() - began_ms < stored_logs.ASK_MS_MAX + 100

    async def test_who_is_fenced_is_not_asked(self, world: World) -> None:
        world.lab.nodes.cut(1, "controller-1")
        await asyncio.sleep(SESSION_S)
        await world.brokers.ask(
            NodeId(1), lambda stub: stub.DescribeLogs, broker_pb2.DescribeLogsRequest()
        )  # it would answer
        assert [disk.broker for disk in (await StoredLogs(world.cluster, world.brokers).look()).disks] == [2]


class TestRest:
    async def test_the_status_names_them(self, rest: Rest) -> None:
        rest.world.lab.create_topic("t", on=[[1], [2]])
        says(rest.world, 2, **STUCK_1)
        status = (await rest.client.get("/v1/cluster/status")).json()
        assert status["state"] == "degraded"
        assert status["stuck_compactions"] == [{"topic": "t", "partition": 1, "broker": 2, "reason": "why"}]
        assert status["brokers"][0]["disk_free_bytes"] == 1 << 40

    async def test_every_replica_of_a_topic(self, rest: Rest) -> None:
        rest.world.lab.create_topic("t", on=[[1], [2]])
        await rest.world.fill("t", 1, 5)
        numbers = {"cleaned_to": 5, "cleanable_to": 9, "clean_bytes": 100, "dirty_bytes": 300}
        says(rest.world, 2, compaction=broker_pb2.LogCompaction(**numbers))
        answer = (await rest.client.get("/v1/topics/t/logs", params={"segments": "true"})).json()
        assert [(log["partition"], log["broker"], len(log["segments"])) for log in answer["logs"]] == [
            (0, 1, 1),
            (1, 2, 1),
        ]
        other, one = answer["logs"]
        assert (one["oldest_timestamp_ms"], one["topic"]) == (TIME_ZERO_MS, "t")
        assert one["compaction"] == numbers | {
            "dirty_ratio": 0.75,
            "last_compacted_ms": None,
            "stuck": False,
            "waits_for": None,
        }
        assert (other["compaction"], other["oldest_timestamp_ms"]) == (None, None)
        described = (await rest.client.get("/v1/topics/t")).json()["partitions"]
        assert described[1]["compaction"] == one["compaction"]
        assert described[1]["oldest_timestamp_ms"] == TIME_ZERO_MS

    async def test_a_broker_that_is_silent_is_named_if_it_holds_a_replica(self, rest: Rest) -> None:
        rest.world.lab.create_topic("t", on=[[2]])
        for number in (1, 2):
            rest.world.lab.refuse(f"broker-{number}")
        answer = (await rest.client.get("/v1/topics/t/logs")).json()
        assert answer["logs"] == []
        [silent] = answer["unanswered"]
        assert (silent["broker"], silent["error"]["code"]) == (2, "NETWORK_EXCEPTION")

    async def test_of_a_topic_that_is_not_there(self, rest: Rest) -> None:
        assert (await rest.client.get("/v1/topics/nope/logs")).status_code == 404
