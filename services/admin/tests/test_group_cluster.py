"""Consumer groups over REST on real processes: members, lag, resets, and a coordinator that dies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest

import headrace
from headrace.securing import security_of
from headrace_cli.local import LocalCluster
from headrace_common.rpc.channels import open_sync_channel
from headrace_proto.v1 import broker_pb2, broker_pb2_grpc, coordinator_pb2_grpc
from headrace_proto.v1 import coordinator_pb2 as pb

pytestmark = pytest.mark.integration

RECORDS = 300
STEP_MS = 1_000
PATIENCE_S = 30.0

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("groups") / "data"
    with LocalCluster(directory, brokers=2, coordinators=2, restart=False) as started:
        yield started


@pytest.fixture
def http(cluster: LocalCluster) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=cluster.admin_url, timeout=60, headers={**JSON, **cluster.authorization}) as client:
        yield client


@pytest.fixture
def first_ms() -> int:
    """When the first record of ``topic`` was written; the last one a second ago."""
    return time.time_ns() // 1_000_000 - RECORDS * STEP_MS


@pytest.fixture
def topic(cluster: LocalCluster, http: httpx.Client, first_ms: int) -> str:
    """Partition 0 has records a second apart, in many batches; partition 1 has none."""
    name = f"t-{uuid4()}"
    assert http.post("/v1/topics", json={"name": name, "partitions": 2}).status_code == 201
    with headrace.Producer(cluster.bootstrap_servers, linger_ms=0) as producer:
        for n in range(RECORDS):
            producer.send(name, b"x" * 100, partition=0, timestamp_ms=first_ms + n * STEP_MS)
            if n % 37 == 0:
                producer.flush(10)
        producer.flush(10)
    return name


@pytest.fixture
def group() -> str:
    return f"g-{uuid4()}"


def until(holds: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return found


def reset(http: httpx.Client, group: str, **body: Any) -> Any:
    answer = http.post(f"/v1/groups/{group}/offsets/reset", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def committed(http: httpx.Client, group: str) -> dict[int, int]:
    found = http.get(f"/v1/groups/{group}/lag?seconds=false").json()
    return {p["partition"]: p["committed_offset"] for p in found["partitions"]}


class Stream:
    """A membership stream to the group's coordinator, held open until it is closed."""

    def __init__(self, cluster: LocalCluster, group: str) -> None:
        self._group = group
        self._requests: Any = _Requests()
        with open_sync_channel(cluster.bootstrap_servers[0], security_of(cluster.address)) as channel:
            stub = broker_pb2_grpc.BrokerStub(channel)
            request = broker_pb2.FindCoordinatorRequest(keys=[group])
            (found,) = until(
                lambda: [c for c in stub.FindCoordinator(request).coordinators if not c.error], "a coordinator"
            )
        self._channel = open_sync_channel(f"{found.endpoint.host}:{found.endpoint.port}", security_of(cluster.address))
        self._answers = coordinator_pb2_grpc.CoordinatorStub(self._channel).Membership(self._requests)

    def say(self, **request: Any) -> None:
        self._requests.put(pb.MembershipRequest(group_id=self._group, **request))

    def hear(self, kind: str) -> Any:
        for answer in self._answers:
            if answer.WhichOneof("response") == kind:
                return getattr(answer, kind)
        raise AssertionError("the stream ended")

    def close(self) -> None:
        self._answers.cancel()
        self._channel.close()


class ConsumerMember(Stream):
    """Of the server-side protocol; holds all of a topic."""

    def __init__(self, cluster: LocalCluster, group: str, topic: str) -> None:
        super().__init__(cluster, group)
        self._id = str(uuid4())
        self._beat(0, subscription=pb.ConsumerSubscription(topics=[topic]), owned=pb.PartitionSet())
        while not self.hear("consumer_state").assignment.topics:
            pass

    def _beat(self, epoch: int, **more: Any) -> None:
        self.say(
            consumer_heartbeat=pb.ConsumerHeartbeat(
                member_id=self._id, member_epoch=epoch, rebalance_timeout_ms=60_000, client_id="reader", **more
            )
        )

    def leave(self) -> None:
        self._beat(-1)
        self.hear("consumer_state")
        self.close()


class ClassicMember(Stream):
    """Of the classic protocol; alone, so that it leads, and takes all of a topic."""

    def __init__(self, cluster: LocalCluster, group: str, topic: str) -> None:
        super().__init__(cluster, group)
        subscription = pb.ClassicSubscription(topics=[topic], generation=-1)
        join = pb.ClassicJoin(
            group_instance_id="desk-1",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            protocols=[pb.ClassicProtocol(name="range", subscription=subscription)],
            client_id="reader",
        )
        self.say(classic_join=join)
        joined = self.hear("classic_joined")
        assert joined.error == 0, joined
        self._id = joined.member_id
        assignment = pb.ClassicAssignment(partitions=[pb.TopicPartitions(topic=topic, partitions=[0, 1])])
        own = pb.ClassicMemberAssignment(member_id=self._id, assignment=assignment)
        sync = pb.ClassicSync(
            member_id=self._id, group_instance_id="desk-1", generation=joined.generation, assignments=[own]
        )
        self.say(classic_sync=sync)
        assert self.hear("classic_synced").error == 0

    def leave(self) -> None:
        self.say(leave=pb.LeaveGroup(member_id=self._id, group_instance_id="desk-1", permanently=True))
        self.hear("left")
        self.close()


class _Requests:
    """An iterator that waits for the next request."""

    def __init__(self) -> None:
        from queue import SimpleQueue

        self._queue: Any = SimpleQueue()
        self.put = self._queue.put

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return self._queue.get()


def test_a_group_is_made_measured_moved_and_forgotten(
    http: httpx.Client, topic: str, group: str, first_ms: int
) -> None:
    plan = reset(http, group, topics=[{"topic": topic}], to="earliest")
    assert (plan["new_group"], plan["executed"]) == (True, False)
    assert http.get(f"/v1/groups/{group}").status_code == 404
    reset(http, group, topics=[{"topic": topic}], to="earliest", execute=True)
    for where, offset in (
        ({"to_offset": 40}, 40),
        ({"shift_by": 5}, 45),
        ({"shift_by": -100}, 0),
        ({"to_offset": 10_000}, RECORDS),
        ({"to_datetime": first_ms + 77 * STEP_MS - 1}, 77),
        ({"to_datetime": first_ms + 77 * STEP_MS + 1}, 78),
        ({"to_datetime": first_ms + RECORDS * STEP_MS * 2}, RECORDS),
        ({"to": "latest"}, RECORDS),
        ({"to": "current"}, RECORDS),
        ({"offsets": [{"topic": topic, "partition": 0, "offset": 123}]}, 123),
    ):
        reset(http, group, **where, execute=True)
        assert committed(http, group) == {0: offset, 1: 0}, where
    half_way = reset(http, group, by_duration="150s")["partitions"][0]["new_offset"]
    assert 150 <= half_way <= 190, "records are a second apart, and the last is a few seconds old"
    lag = http.get(f"/v1/groups/{group}/lag").json()
    zero, one = lag["partitions"]
    assert (zero["lag"], one["lag"], one["lag_seconds"], lag["total_lag"]) == (RECORDS - 123, 0, 0.0, RECORDS - 123)
    written_s = (first_ms + 123 * STEP_MS) / 1_000
    assert zero["lag_seconds"] == pytest.approx(time.time() - written_s, abs=5)
    assert http.delete(f"/v1/groups/{group}?confirm={group}").status_code == 204
    assert http.get(f"/v1/groups/{group}/lag").status_code == 404
    assert group not in {g["group"] for g in http.get("/v1/groups").json()["groups"]}


def test_trimmed_records_are_not_lag_and_plans_begin_at_the_first_that_is_left(
    http: httpx.Client, topic: str, group: str, first_ms: int
) -> None:
    reset(http, group, topics=[{"topic": topic}], to="earliest", execute=True)
    trim = {"partitions": [{"partition": 0, "offset": 55}]}
    assert http.post(f"/v1/topics/{topic}/trim", json=trim).status_code == 200
    (zero, _) = http.get(f"/v1/groups/{group}/lag").json()["partitions"]
    assert (zero["committed_offset"], zero["log_start_offset"], zero["lag"]) == (0, 55, RECORDS - 55)
    written_s = (first_ms + 55 * STEP_MS) / 1_000
    assert zero["lag_seconds"] == pytest.approx(time.time() - written_s, abs=5)
    moved = reset(http, group, to="current")["partitions"][0]
    assert (moved["new_offset"], moved["note"]) == (55, "0 is below the first record: to 55")


@pytest.mark.parametrize(
    ("kind", "protocol", "instance", "assignor"),
    [(ConsumerMember, "consumer", None, "uniform"), (ClassicMember, "classic", "desk-1", "range")],
)
def test_a_living_group_is_shown_and_left_alone(
    cluster: LocalCluster,
    http: httpx.Client,
    topic: str,
    group: str,
    kind: Any,
    protocol: str,
    instance: str | None,
    assignor: str,
) -> None:
    reset(http, group, topics=[{"topic": topic}], to="earliest", execute=True)
    member = kind(cluster, group, topic)
    shown = http.get(f"/v1/groups/{group}").json()
    (one,) = shown["members"]
    assert (shown["protocol"], shown["assignor"], shown["state"]) == (protocol, assignor, "stable")
    assert (one["client_id"], one["group_instance_id"], one["topics"]) == ("reader", instance, [topic])
    assert (shown["assignment_epoch"] is None, one["member_epoch"] is None) == (protocol == "classic",) * 2
    assert one["client_address"].startswith("127.0.0.1:")
    assert one["assigned"] == [{"topic": topic, "partitions": [0, 1]}]
    assert {p["client_id"] for p in http.get(f"/v1/groups/{group}/lag").json()["partitions"]} == {"reader"}
    listed = {g["group"]: g for g in http.get("/v1/groups").json()["groups"]}
    assert listed[group]["members"] == 1
    refused = http.post(f"/v1/groups/{group}/offsets/reset", json={"to": "latest", "execute": True})
    assert (refused.status_code, refused.json()["code"]) == (409, "NON_EMPTY_GROUP")
    assert "reader at 127.0.0.1:" in refused.json()["detail"]
    assert http.delete(f"/v1/groups/{group}?confirm={group}").json()["code"] == "NON_EMPTY_GROUP"
    body = {"topics": [{"topic": topic}]}
    offsets = http.post(f"/v1/groups/{group}/offsets/delete", json=body)
    assert (offsets.status_code, offsets.json()["code"]) == (409, "GROUP_SUBSCRIBED_TO_TOPIC")
    member.leave()
    until(lambda: not http.get(f"/v1/groups/{group}").json()["members"], "the member has left")
    reset(http, group, to="latest", execute=True)
    assert committed(http, group) == {0: RECORDS, 1: 0}
    gone = http.post(f"/v1/groups/{group}/offsets/delete", json=body).json()["partitions"]
    assert [(p["partition"], p["error"]) for p in gone] == [(0, None), (1, None)]


def test_groups_are_served_on_when_a_coordinator_is_killed(
    cluster: LocalCluster, http: httpx.Client, topic: str
) -> None:
    groups = [f"k-{n}-{uuid4()}" for n in range(8)]
    for group in groups:
        reset(http, group, topics=[{"topic": topic}], to_offset=7, execute=True)
    until(lambda: not http.get("/v1/groups").json()["missing_shards"], "all shards are served")
    listed = {g["group"]: g["coordinator"] for g in http.get("/v1/groups").json()["groups"]}
    assert {listed[group] for group in groups} == {1, 2}, "the shards are spread"
    cluster.kill("coordinator-2")
    for group in groups:
        assert committed(http, group) == {0: 7, 1: 0}, "calls wait for the next owner, and nothing is lost"
        reset(http, group, to_offset=8, execute=True)
    until(lambda: not http.get("/v1/groups").json()["missing_shards"], "all shards are served by the other")
    after = {g["group"]: g["coordinator"] for g in http.get("/v1/groups").json()["groups"]}
    assert {after[group] for group in groups} == {1}
    cluster.kill("coordinator-1")
    missing = until(lambda: http.get("/v1/groups").json()["missing_shards"], "a list that is not whole says so")
    assert {m["error"]["code"] for m in missing} <= {"NETWORK_EXCEPTION", "COORDINATOR_NOT_AVAILABLE"}
