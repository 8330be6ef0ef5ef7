"""Status, elections, reassignments and leaving brokers over REST."""

from __future__ import annotations

import asyncio
from typing import Any

from services.admin.tests.kit.rest import Rest
from services.admin.tests.kit.world import SESSION_S

from headrace_common.core.ids import NodeId
from headrace_common.core.image import NodeKey, Role
from headrace_proto.v1 import broker_pb2
from headrace_proto.v1 import controller_pb2 as pb

THROTTLE = "follower.replication.throttled.rate"


async def create(rest: Rest, name: str, *replicas: list[int]) -> Any:
    created = await rest.client.post("/v1/topics", json={"name": name, "assignments": list(replicas)})
    assert created.status_code == 201, created.text
    return created


def refused(answer: Any, status: int, code: str, says: str = "") -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == code
    assert answer.json()["next_step"]
    assert says in answer.json()["detail"]


async def replicas_of(rest: Rest, topic: str) -> list[list[int]]:
    found = (await rest.client.get(f"/v1/topics/{topic}?sizes=false")).json()
    return [p["replicas"] for p in found["partitions"]]


def hold(rest: Rest) -> None:
    """The brokers copy nothing from each other, so what is moved stays under way."""
    rest.world.lab.nodes.cut(1, 2)


async def finish(rest: Rest) -> None:
    """All new replicas have caught up."""
    rest.world.lab.nodes.heal()
    while any(p.adding or p.removing for p in rest.world.image.partitions.values()):
        await asyncio.sleep(0.5)


async def lose(rest: Rest, broker: int) -> None:
    """It is killed, and known to be away."""
    rest.world.lab.kill(broker)
    await asyncio.sleep(SESSION_S)


async def cluster_throttle(rest: Rest) -> str | None:
    return (await rest.world.cluster.caught_up(1_000)).cluster_configs.get(THROTTLE)


class TestStatus:
    async def test_health_follows_the_verdict(self, rest: Rest) -> None:
        await create(rest, "t", [1, 2], [2, 1])
        well = await rest.client.get("/health/cluster")
        assert (well.status_code, well.json()["state"]) == (200, "healthy")
        await lose(rest, 2)
        degraded = await rest.client.get("/health/cluster")
        assert (degraded.status_code, degraded.json()["state"]) == (200, "degraded")
        assert "broker 2 is away since" in degraded.json()["verdict"]
        status = (await rest.client.get("/v1/cluster/status")).json()
        assert [(b["id"], b["state"], b["leaders"]) for b in status["brokers"]] == [(1, "online", 2), (2, "away", 0)]
        assert status["under_replicated_partitions"] == 2
        await lose(rest, 1)
        assert (await rest.client.get("/health/cluster")).status_code == 503
        status = (await rest.client.get("/v1/cluster/status")).json()
        assert (status["state"], status["offline_partitions"]) == ("unavailable", 2)
        assert [t["partition"]["partition"] for t in status["troubled"]] == [0, 1]

    async def test_the_last_image_is_told_while_no_controller_answers(self, rest: Rest) -> None:
        await create(rest, "t", [1, 2])
        rest.world.lab.nodes.kill(controller=1)
        status = (await rest.client.get("/v1/cluster/status")).json()
        assert (status["state"], status["active_controller"], status["partitions"]) == ("degraded", None, 1)


class TestElections:
    async def test_preferred_leaders_of_all_or_of_a_topic(self, rest: Rest) -> None:
        await create(rest, "t", [1, 2], [2, 1])
        rest.world.lab.stop(1)
        rest.world.lab.restart(1)
        while (await rest.client.get("/v1/cluster/status")).json()["under_replicated_partitions"]:
            await asyncio.sleep(0.1)
        assert rest.world.lab.leader("t", 0)[0] == 2
        answer = await rest.client.post("/v1/elections", json={})
        assert answer.json()["partitions"][0]["current"]["leader"] == 1
        again = (await rest.client.post("/v1/elections", json={"partitions": [{"topic": "t"}]})).json()["partitions"]
        assert [p["error"]["code"] for p in again] == ["ELECTION_NOT_NEEDED"] * 2

    async def test_losing_records_is_said_twice_and_of_named_partitions(self, rest: Rest) -> None:
        await create(rest, "t", [1, 2])
        await lose(rest, 2)
        await rest.world.fill("t", 0, 3)
        await lose(rest, 1)
        rest.world.lab.restart(2)
        named = {"type": "unclean", "partitions": [{"topic": "t", "partition": 0}]}
        refused(await rest.client.post("/v1/elections", json=named), 400, "INVALID_REQUEST", '"confirm": true')
        all_of_them = {"type": "without-missing", "confirm": True}
        refused(await rest.client.post("/v1/elections", json=all_of_them), 400, "INVALID_REQUEST", "name the")
        done = (await rest.client.post("/v1/elections", json=named | {"confirm": True})).json()["partitions"]
        assert done[0]["current"]["recovering"]
        unknown = {"partitions": [{"topic": "t", "partition": 9}]}
        refused(await rest.client.post("/v1/elections", json=unknown), 404, "UNKNOWN_TOPIC_OR_PARTITION", "t-9")


class TestReassignments:
    async def test_started_watched_and_finished(self, rest: Rest) -> None:
        await create(rest, "t", [1], [2])
        await rest.world.fill("t", 0, 50)
        size = sum(map(len, rest.world.lab.log("t", 0).batches))
        hold(rest)
        body = {"reassignments": [{"topic": "t", "partition": 0, "replicas": [2]}], "throttle_bytes_per_s": 7}
        dry = await rest.client.post("/v1/reassignments", json=body | {"validate_only": True})
        assert dry.json()["partitions"][0]["current"]["adding"] == [2]
        assert (await rest.client.get("/v1/reassignments")).json() == {
            "reassignments": [],
            "throttle_bytes_per_s": None,
        }
        assert (await rest.client.post("/v1/reassignments", json=body)).status_code == 200
        found = (await rest.client.get("/v1/reassignments")).json()
        assert found["throttle_bytes_per_s"] == 7
        (one,) = found["reassignments"]
        assert (one["topic"], one["leader_bytes"], one["new_replicas"][0]["percent"]) == ("t", size, 0)
        await finish(rest)
        assert await replicas_of(rest, "t") == [[2], [2]]

    async def test_each_is_refused_by_itself(self, rest: Rest) -> None:
        await create(rest, "t", [1], [2])
        moves = [{"topic": "t", "partition": n, "replicas": [2 + 7 * n]} for n in (0, 1)]
        answer = (await rest.client.post("/v1/reassignments", json={"reassignments": moves})).json()["partitions"]
        assert [p["error"] and p["error"]["code"] for p in answer] == [None, "INVALID_REPLICA_ASSIGNMENT"]
        twice = {"reassignments": [moves[0], moves[0]]}
        refused(await rest.client.post("/v1/reassignments", json=twice), 400, "INVALID_REQUEST", "twice")

    async def test_cancelled_one_by_one_or_all(self, rest: Rest) -> None:
        await create(rest, "t", [1], [1], [1])
        hold(rest)
        moves = [{"topic": "t", "partition": n, "replicas": [2]} for n in (0, 1)]
        await rest.client.post("/v1/reassignments", json={"reassignments": moves})
        refused(await rest.client.post("/v1/reassignments/cancel", json={}), 400, "INVALID_REQUEST", "all")
        one = {"partitions": [{"topic": "t", "partition": 2}]}
        answer = (await rest.client.post("/v1/reassignments/cancel", json=one)).json()["partitions"]
        assert answer[0]["error"]["code"] == "NO_REASSIGNMENT_IN_PROGRESS"
        topic = {"partitions": [{"topic": "t"}]}
        answer = (await rest.client.post("/v1/reassignments/cancel", json=topic)).json()["partitions"]
        assert [(p["partition"], p["error"]) for p in answer] == [(0, None), (1, None)]
        assert await replicas_of(rest, "t") == [[1], [1], [1]]
        assert (await rest.client.post("/v1/reassignments/cancel", json={"all": True})).json() == {"partitions": []}

    async def test_rates_are_told_by_looking_twice(self, rest: Rest) -> None:
        refused(await rest.client.get("/v1/reassignments?measure_ms=10001"), 400, "INVALID_REQUEST")
        assert (await rest.client.get("/v1/reassignments?measure_ms=5")).json()["reassignments"] == []

    async def test_the_throttle(self, rest: Rest) -> None:
        assert (await rest.client.get("/v1/reassignments/throttle")).json() == {"bytes_per_s": None}
        await rest.client.put("/v1/reassignments/throttle", json={"bytes_per_s": 1000})
        assert await cluster_throttle(rest) == "1000"
        await rest.client.put("/v1/reassignments/throttle", json={"bytes_per_s": -1})
        assert await cluster_throttle(rest) is None
        refused(await rest.client.put("/v1/reassignments/throttle", json={"bytes_per_s": -2}), 400, "INVALID_REQUEST")


class TestPlans:
    async def test_a_rebalance_is_planned_then_done(self, rest: Rest) -> None:
        await create(rest, "t", [1], [1], [1], [1])
        for partition in range(4):
            await rest.world.fill("t", partition, 3)
        size = sum(map(len, rest.world.lab.log("t", 0).batches))
        hold(rest)
        plan = (await rest.client.post("/v1/cluster/rebalance", json={"validate_only": True})).json()
        assert len(plan["moves"]) == 2
        assert plan["bytes_to_copy"] == 2 * size
        assert [(b["replicas_before"], b["replicas_after"]) for b in plan["brokers"]] == [(4, 2), (0, 2)]
        assert (await rest.client.get("/v1/reassignments")).json()["reassignments"] == []
        await rest.client.post("/v1/cluster/rebalance", json={"throttle_bytes_per_s": 9})
        assert await cluster_throttle(rest) == "9"
        refused(await rest.client.post("/v1/cluster/rebalance", json={}), 409, "INVALID_UPDATE_VERSION", "moved")
        await finish(rest)
        assert (await rest.client.post("/v1/cluster/rebalance", json={})).json()["moves"] == []
        unknown = {"topics": ["nope"]}
        refused(await rest.client.post("/v1/cluster/rebalance", json=unknown), 404, "UNKNOWN_TOPIC_OR_PARTITION")
        await lose(rest, 2)
        refused(await rest.client.post("/v1/cluster/rebalance", json={}), 409, "INVALID_UPDATE_VERSION", "away")

    async def test_a_broker_is_emptied_step_by_step_and_forgotten(self, rest: Rest) -> None:
        await create(rest, "t", [1], [2], [1])
        hold(rest)
        planned = (await rest.client.get("/v1/brokers/1/decommission")).json()
        assert (len(planned["moves"]), planned["drained"], planned["replicas_left"]) == (2, False, 2)
        started = (await rest.client.post("/v1/brokers/1/decommission", json={})).json()
        assert (len(started["moves"]), started["drained"], started["moving"]) == (2, True, 2)
        assert all(1 not in move["replicas"] for move in started["moves"])
        again = (await rest.client.post("/v1/brokers/1/decommission", json={})).json()
        assert (again["moves"], again["replicas_left"]) == ([], 2)
        await finish(rest)
        done = (await rest.client.get("/v1/brokers/1/decommission")).json()
        assert (done["replicas_left"], done["leaders_left"]) == (0, 0)
        assert "unregister 1" in done["next_step"]
        refused(await rest.client.delete("/v1/brokers/1"), 400, "INVALID_REQUEST", "?confirm=1")
        refused(await rest.client.delete("/v1/brokers/1?confirm=1"), 409, "INVALID_UPDATE_VERSION", "stop it first")
        refused(await rest.client.delete("/v1/brokers/2?confirm=2"), 409, "INVALID_UPDATE_VERSION", "holds 3")
        await lose(rest, 1)
        assert (await rest.client.delete("/v1/brokers/1?confirm=1")).status_code == 204
        refused(await rest.client.get("/v1/brokers/1/decommission"), 404, "RESOURCE_NOT_FOUND")

    async def test_a_node_of_any_role_is_forgotten_by_its_name(self, rest: Rest) -> None:
        for wrong in ("king-1", "admin", "admin-x", "admin-" + "1" * 20):
            refused(
                await rest.client.delete(f"/v1/cluster/nodes/{wrong}?confirm={wrong}"), 400, "INVALID_REQUEST", "no"
            )
        refused(await rest.client.delete("/v1/cluster/nodes/admin-9"), 400, "INVALID_REQUEST", "?confirm=admin-9")
        gone = await rest.client.delete("/v1/cluster/nodes/admin-9?confirm=admin-9")
        refused(gone, 404, "RESOURCE_NOT_FOUND", "admin-9 is not registered")
        lives = await rest.client.delete("/v1/cluster/nodes/broker-1?confirm=broker-1")
        refused(lives, 409, "INVALID_UPDATE_VERSION", "stop it first")
        await lose(rest, 1)
        assert (await rest.client.delete("/v1/cluster/nodes/broker-1?confirm=broker-1")).status_code == 204
        assert NodeKey(Role.BROKER, NodeId(1)) not in (await rest.world.cluster.caught_up(1_000)).nodes

    async def test_where_nobody_else_could_take_it_nothing_is_started(self, rest: Rest) -> None:
        await create(rest, "t", [1, 2])
        answer = await rest.client.post("/v1/brokers/1/decommission", json={})
        refused(answer, 400, "INVALID_REPLICATION_FACTOR", "start another broker")
        assert not (await rest.client.get("/v1/brokers/1")).json()["drained"]

    async def test_draining(self, rest: Rest) -> None:
        await create(rest, "t", [1], [2])
        for said in ({"validate_only": True}, []):
            assert (await rest.client.post("/v1/brokers/2/drain", json=said)).status_code == 400
        assert (await rest.client.post("/v1/brokers/2/drain")).json() == {"drained": True, "still_leading": 1}
        assert (await rest.client.get("/v1/brokers/2")).json()["drained"]
        assert not (await rest.client.delete("/v1/brokers/2/drain")).json()["drained"]
        refused(await rest.client.post("/v1/brokers/9/drain"), 404, "RESOURCE_NOT_FOUND")


async def test_the_document_has_examples(rest: Rest) -> None:
    schemas = (await rest.client.get("/openapi.json")).json()["components"]["schemas"]
    for name in ("Elect", "Reassign", "CancelReassignments", "Throttle", "Rebalance", "Decommission"):
        assert schemas[name]["examples"], name


async def test_progress_is_measured_by_the_clock(rest: Rest) -> None:
    await create(rest, "t", [1])
    hold(rest)
    topic_id = rest.world.image.topic_ids["t"]
    describe, looks = rest.world.broker_calls.DescribeLogs, 0

    async def growing(broker: NodeId, request: broker_pb2.DescribeLogsRequest) -> broker_pb2.DescribeLogsResponse:
        nonlocal looks
        answer = await describe(broker, request)
        for log in answer.logs:
            log.size_bytes = 1_000 if broker == 1 else 100 * looks
        looks += broker == 2
        return answer

    engine = rest.world.engines.reassignments
    await engine.alter([pb.Reassignment(topic_id=topic_id, partition=0, replicas=[2])], validate_only=False)
    await rest.world.cluster.caught_up(1_000)
    rest.world.broker_calls.DescribeLogs = growing
    (found,) = await engine.progress(measure_ms=500)
    assert looks == 2
    assert 190 <= (found.replicas[0].bytes_per_s or 0) <= 200
