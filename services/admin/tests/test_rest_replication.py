"""Status, elections, reassignments and leaving brokers over REST."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace_common.core.errors import MetadataUnavailable
from headrace_common.core.ids import NodeId, PartitionId
from headrace_common.core.image import NodeKey, Role
from headrace_proto.v1 import controller_pb2 as pb


@pytest.fixture
def rest(rest_in_memory: Any) -> Any:
    return rest_in_memory


THROTTLE = "follower.replication.throttled.rate"


async def create(rest: Any, name: str, *replicas: list[int]) -> Any:
    created = await rest.client.post("/v1/topics", json={"name": name, "assignments": list(replicas)})
    assert created.status_code == 201, created.text
    return created


def refused(answer: Any, status: int, code: str, says: str = "") -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == code
    assert answer.json()["next_step"]
    assert says in answer.json()["detail"]


async def replicas_of(rest: Any, topic: str) -> list[list[int]]:
    found = (await rest.client.get(f"/v1/topics/{topic}?sizes=false")).json()
    return [p["replicas"] for p in found["partitions"]]


class TestStatus:
    async def test_health_follows_the_verdict(self, rest: Any) -> None:
        await create(rest, "t", [1, 2], [2, 1])
        well = await rest.client.get("/health/cluster")
        assert (well.status_code, well.json()["state"]) == (200, "healthy")
        rest.cluster.node(2, fenced=True)
        rest.cluster.partition("t", 0, isr=(1,))
        rest.cluster.partition("t", 1, isr=(1,), leader=1)
        degraded = await rest.client.get("/health/cluster")
        assert (degraded.status_code, degraded.json()["state"]) == (200, "degraded")
        assert "broker 2 is away since" in degraded.json()["verdict"]
        rest.cluster.lead("t", 1, -1)
        assert (await rest.client.get("/health/cluster")).status_code == 503
        status = (await rest.client.get("/v1/cluster/status")).json()
        assert (status["state"], status["offline_partitions"]) == ("unavailable", 1)
        assert status["under_replicated_partitions"] == 2
        assert [(b["id"], b["state"], b["leaders"]) for b in status["brokers"]] == [(1, "online", 1), (2, "away", 0)]
        assert [t["partition"]["partition"] for t in status["troubled"]] == [1, 0]

    async def test_the_last_image_is_told_while_no_controller_answers(self, rest: Any) -> None:
        await create(rest, "t", [1, 2])
        rest.cluster.failure = MetadataUnavailable("etcd is away")
        status = (await rest.client.get("/v1/cluster/status")).json()
        assert (status["state"], status["active_controller"], status["partitions"]) == ("degraded", None, 1)


class TestElections:
    async def test_preferred_leaders_of_all_or_of_a_topic(self, rest: Any) -> None:
        await create(rest, "t", [1, 2], [2, 1])
        rest.cluster.lead("t", 0, 2)
        answer = await rest.client.post("/v1/elections", json={})
        assert answer.json()["partitions"][0]["current"]["leader"] == 1
        again = (await rest.client.post("/v1/elections", json={"partitions": [{"topic": "t"}]})).json()["partitions"]
        assert [p["error"]["code"] for p in again] == ["ELECTION_NOT_NEEDED"] * 2

    async def test_losing_records_is_said_twice_and_of_named_partitions(self, rest: Any) -> None:
        await create(rest, "t", [1, 2])
        rest.cluster.lead("t", 0, -1)
        named = {"type": "unclean", "partitions": [{"topic": "t", "partition": 0}]}
        refused(await rest.client.post("/v1/elections", json=named), 400, "INVALID_REQUEST", '"confirm": true')
        all_of_them = {"type": "without-missing", "confirm": True}
        refused(await rest.client.post("/v1/elections", json=all_of_them), 400, "INVALID_REQUEST", "name the")
        done = (await rest.client.post("/v1/elections", json=named | {"confirm": True})).json()["partitions"]
        assert done[0]["current"]["recovering"]
        unknown = {"partitions": [{"topic": "t", "partition": 9}]}
        refused(await rest.client.post("/v1/elections", json=unknown), 404, "UNKNOWN_TOPIC_OR_PARTITION", "t-9")


class TestReassignments:
    async def test_started_watched_and_finished(self, rest: Any) -> None:
        await create(rest, "t", [1], [2])
        i = PartitionId(rest.cluster.image.topic_ids["t"], 0)
        rest.cluster.ends = {i: 50}
        rest.cluster.sizes = {(1, i): 400, (2, i): 100}
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
        assert (one["topic"], one["leader_bytes"], one["new_replicas"][0]["percent"]) == ("t", 400, 25)
        rest.cluster.finish_reassignments()
        assert await replicas_of(rest, "t") == [[2], [2]]

    async def test_each_is_refused_by_itself(self, rest: Any) -> None:
        await create(rest, "t", [1], [2])
        moves = [{"topic": "t", "partition": n, "replicas": [2 + 7 * n]} for n in (0, 1)]
        answer = (await rest.client.post("/v1/reassignments", json={"reassignments": moves})).json()["partitions"]
        assert [p["error"] and p["error"]["code"] for p in answer] == [None, "INVALID_REPLICA_ASSIGNMENT"]
        twice = {"reassignments": [moves[0], moves[0]]}
        refused(await rest.client.post("/v1/reassignments", json=twice), 400, "INVALID_REQUEST", "twice")

    async def test_cancelled_one_by_one_or_all(self, rest: Any) -> None:
        await create(rest, "t", [1], [1], [1])
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

    async def test_rates_are_told_by_looking_twice(self, rest: Any) -> None:
        refused(await rest.client.get("/v1/reassignments?measure_ms=10001"), 400, "INVALID_REQUEST")
        assert (await rest.client.get("/v1/reassignments?measure_ms=5")).json()["reassignments"] == []

    async def test_the_throttle(self, rest: Any) -> None:
        assert (await rest.client.get("/v1/reassignments/throttle")).json() == {"bytes_per_s": None}
        await rest.client.put("/v1/reassignments/throttle", json={"bytes_per_s": 1000})
        assert rest.cluster.image.cluster_configs == {THROTTLE: "1000"}
        await rest.client.put("/v1/reassignments/throttle", json={"bytes_per_s": -1})
        assert rest.cluster.image.cluster_configs == {}
        refused(await rest.client.put("/v1/reassignments/throttle", json={"bytes_per_s": -2}), 400, "INVALID_REQUEST")


class TestPlans:
    async def test_a_rebalance_is_planned_then_done(self, rest: Any) -> None:
        await create(rest, "t", [1], [1], [1], [1])
        plan = (await rest.client.post("/v1/cluster/rebalance", json={"validate_only": True})).json()
        assert len(plan["moves"]) == 2
        assert plan["bytes_to_copy"] == 200
        assert [(b["replicas_before"], b["replicas_after"]) for b in plan["brokers"]] == [(4, 2), (0, 2)]
        assert (await rest.client.get("/v1/reassignments")).json()["reassignments"] == []
        await rest.client.post("/v1/cluster/rebalance", json={"throttle_bytes_per_s": 9})
        assert rest.cluster.image.cluster_configs == {THROTTLE: "9"}
        refused(await rest.client.post("/v1/cluster/rebalance", json={}), 409, "INVALID_UPDATE_VERSION", "moved")
        rest.cluster.finish_reassignments()
        assert (await rest.client.post("/v1/cluster/rebalance", json={})).json()["moves"] == []
        unknown = {"topics": ["nope"]}
        refused(await rest.client.post("/v1/cluster/rebalance", json=unknown), 404, "UNKNOWN_TOPIC_OR_PARTITION")
        rest.cluster.node(2, fenced=True)
        refused(await rest.client.post("/v1/cluster/rebalance", json={}), 409, "INVALID_UPDATE_VERSION", "away")

    async def test_a_broker_is_emptied_step_by_step_and_forgotten(self, rest: Any) -> None:
        await create(rest, "t", [1], [2], [1])
        planned = (await rest.client.get("/v1/brokers/1/decommission")).json()
        assert (len(planned["moves"]), planned["drained"], planned["replicas_left"]) == (2, False, 2)
        started = (await rest.client.post("/v1/brokers/1/decommission", json={})).json()
        assert (len(started["moves"]), started["drained"], started["moving"]) == (2, True, 2)
        assert all(1 not in move["replicas"] for move in started["moves"])
        again = (await rest.client.post("/v1/brokers/1/decommission", json={})).json()
        assert (again["moves"], again["replicas_left"]) == ([], 2)
        rest.cluster.finish_reassignments()
        done = (await rest.client.get("/v1/brokers/1/decommission")).json()
        assert (done["replicas_left"], done["leaders_left"]) == (0, 0)
        assert "unregister 1" in done["next_step"]
        refused(await rest.client.delete("/v1/brokers/1"), 400, "INVALID_REQUEST", "?confirm=1")
        refused(await rest.client.delete("/v1/brokers/1?confirm=1"), 409, "INVALID_UPDATE_VERSION", "stop it first")
        refused(await rest.client.delete("/v1/brokers/2?confirm=2"), 409, "INVALID_UPDATE_VERSION", "holds 3")
        rest.cluster.node(1, fenced=True)
        assert (await rest.client.delete("/v1/brokers/1?confirm=1")).status_code == 204
        refused(await rest.client.get("/v1/brokers/1/decommission"), 404, "RESOURCE_NOT_FOUND")

    async def test_a_node_of_any_role_is_forgotten_by_its_name(self, rest: Any) -> None:
        for wrong in ("king-1", "admin", "admin-x", "admin-" + "1" * 20):
            refused(
                await rest.client.delete(f"/v1/cluster/nodes/{wrong}?confirm={wrong}"), 400, "INVALID_REQUEST", "no"
            )
        refused(await rest.client.delete("/v1/cluster/nodes/admin-9"), 400, "INVALID_REQUEST", "?confirm=admin-9")
        gone = await rest.client.delete("/v1/cluster/nodes/admin-9?confirm=admin-9")
        refused(gone, 404, "RESOURCE_NOT_FOUND", "admin-9 is not registered")
        lives = await rest.client.delete("/v1/cluster/nodes/broker-1?confirm=broker-1")
        refused(lives, 409, "INVALID_UPDATE_VERSION", "stop it first")
        rest.cluster.node(1, fenced=True)
        assert (await rest.client.delete("/v1/cluster/nodes/broker-1?confirm=broker-1")).status_code == 204
        assert NodeKey(Role.BROKER, NodeId(1)) not in rest.cluster.image.nodes

    async def test_where_nobody_else_could_take_it_nothing_is_started(self, rest: Any) -> None:
        await create(rest, "t", [1, 2])
        answer = await rest.client.post("/v1/brokers/1/decommission", json={})
        refused(answer, 400, "INVALID_REPLICATION_FACTOR", "start another broker")
        assert not (await rest.client.get("/v1/brokers/1")).json()["drained"]

    async def test_draining(self, rest: Any) -> None:
        await create(rest, "t", [1], [2])
        assert (await rest.client.post("/v1/brokers/2/drain")).json() == {"drained": True, "still_leading": 1}
        assert (await rest.client.get("/v1/brokers/2")).json()["drained"]
        assert not (await rest.client.delete("/v1/brokers/2/drain")).json()["drained"]
        refused(await rest.client.post("/v1/brokers/9/drain"), 404, "RESOURCE_NOT_FOUND")


async def test_the_document_has_examples(rest: Any) -> None:
    schemas = (await rest.client.get("/openapi.json")).json()["components"]["schemas"]
    for name in ("Elect", "Reassign", "CancelReassignments", "Throttle", "Rebalance", "Decommission"):
        assert schemas[name]["examples"], name


async def test_progress_is_measured_by_the_clock(rest: Any) -> None:
    from libs.common.tests.kit.clock import FakeClock

    from headrace_admin.engine.administration import Administration
    from headrace_admin.engine.reassignments import Reassignments

    await create(rest, "t", [1])
    topic_id = rest.cluster.image.topic_ids["t"]
    i = PartitionId(topic_id, 0)
    rest.cluster.sizes = {(1, i): 1000, (2, i): 0}
    clock = FakeClock()
    engine = Reassignments(Administration(rest.cluster, rest.cluster, rest.cluster), clock)
    await engine.alter([pb.Reassignment(topic_id=topic_id, partition=0, replicas=[2])], validate_only=False)
    asked = asyncio.ensure_future(engine.progress(measure_ms=500))
    await clock.until_asleep()
    rest.cluster.sizes[2, i] = 100
    await clock.advance(500)
    (found,) = await asked
    assert found.replicas[0].bytes_per_s == 200
