"""A stand-in of the admin service's stub: one topic of two partitions on brokers 1 and 2, and what was asked of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest
import typer
from typer import testing

from headrace import AdminClient
from headrace_cli.session import Session
from headrace_common.core.errors import ErrorCode
from headrace_proto.v1 import admin_pb2, broker_pb2, cluster_pb2, errors_pb2
from headrace_proto.v1 import controller_pb2 as pb

ID = bytes(range(16))
FLIGHTS = cluster_pb2.Topic(name="flights", topic_id=ID, partition_count=2, configs={"retention.ms": "5"})


@pytest.fixture(scope="session", autouse=True)
def _parser_is_made_once() -> Iterator[None]:
    """Of each tree of commands: a runner makes it anew for each line, which takes longer than most lines."""
    make = testing._get_command
    made: dict[tuple[int, int, int], Any] = {}

    def once(app: typer.Typer) -> Any:
        key = id(app), len(app.registered_groups), len(app.registered_commands)
        if key not in made:
            made[key] = make(app)
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(testing, "_get_command", once)
        yield


class FakeStub:
    """Answers at once. ``moving`` are reassignments under way; each look at them takes one away."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.partitions = [
            cluster_pb2.Partition(topic_id=ID, partition=0, replicas=[2, 1], isr=[2], leader=2),
            cluster_pb2.Partition(topic_id=ID, partition=1, replicas=[1], elr=[1], leader=-1),
        ]
        self.moving: list[cluster_pb2.Partition] = []
        self.away: set[int] = set()
        self.refused: dict[int, ErrorCode] = {}
        self.moves: list[admin_pb2.PlannedMove] = []
        self.replicas_left: list[int] = [0]
        self.compaction: broker_pb2.LogCompaction | None = None
        self.judged("healthy", "all is there")

    def judged(self, state: str, why: str) -> None:
        """What the cluster is called from now on."""
        self.status = admin_pb2.DescribeStatusResponse(
            state=admin_pb2.ClusterState.Value(state.upper()),
            verdict=f"{state}: {why}",
            controller_id=1,
            brokers=[
                admin_pb2.BrokerStatus(broker_id=1, fenced=True, replicas=2),
                admin_pb2.BrokerStatus(
                    broker_id=2, leaders=1, replicas=1, in_sync=1, disk_free_bytes=1 << 30, disk_total_bytes=5 << 30
                ),
            ],
            stuck_compactions=[
                admin_pb2.StuckCompaction(topic="flights", partition=0, broker_id=2, reason="batch 7 cannot be read")
            ],
            troubled=[admin_pb2.TroubledPartition(topic="flights", partition=self.partitions[1], min_isr=1)],
        )

    def DescribeCluster(self, request: Any, timeout: float) -> pb.DescribeClusterResponse:
        nodes = [
            cluster_pb2.Node(role=cluster_pb2.BROKER, id=1, grpc=cluster_pb2.Endpoint(host="b1", port=1), fenced=True),
            cluster_pb2.Node(
                role=cluster_pb2.BROKER, id=2, grpc=cluster_pb2.Endpoint(host="b2", port=1), rack="rack-a"
            ),
            cluster_pb2.Node(role=cluster_pb2.CONTROLLER, id=1, grpc=cluster_pb2.Endpoint(host="c1", port=1)),
        ]
        active = cluster_pb2.ActiveController(id=1, epoch=3)
        return pb.DescribeClusterResponse(cluster_id="c", nodes=nodes, active_controller=active, topic_count=1)

    def DescribeStatus(self, request: Any, timeout: float) -> Any:
        return self.status

    def DescribeTopics(self, request: pb.DescribeTopicsRequest, timeout: float) -> pb.DescribeTopicsResponse:
        (name,) = request.names
        if name != "flights":
            return pb.DescribeTopicsResponse(
                topics=[pb.TopicResult(name=name, error=errors_pb2.UNKNOWN_TOPIC_OR_PARTITION)]
            )
        topic = pb.TopicDescription(topic=FLIGHTS, partitions=self.partitions)
        return pb.DescribeTopicsResponse(topics=[pb.TopicResult(name=name, topic=topic)])

    def ListTopics(self, request: Any, timeout: float) -> pb.ListTopicsResponse:
        return pb.ListTopicsResponse(topics=[FLIGHTS])

    def DescribeLogs(
        self, request: admin_pb2.DescribeClusterLogsRequest, timeout: float
    ) -> admin_pb2.DescribeClusterLogsResponse:
        log = broker_pb2.LogDescription(
            topic_id=ID,
            state=broker_pb2.ONLINE,
            log_start_offset=10,
            log_end_offset=30,
            high_watermark=30,
            last_stable_offset=30,
            size_bytes=2048,
            leader_epoch=3,
            oldest_timestamp_ms=86_400_000,
            compaction=self.compaction,
        )
        if request.request.segments:
            log.segments.add(base_offset=10, end_offset=30, size_bytes=2048, created_at_ms=0)
            log.segments[0].min_timestamp_ms, log.segments[0].max_timestamp_ms = 86_400_000, 90_000_000
        silent = admin_pb2.BrokerLogs(broker_id=1)
        silent.error.code, silent.error.message = int(ErrorCode.OVERLOADED), "it does not answer"
        answer = admin_pb2.DescribeClusterLogsResponse(brokers=[silent])
        kept = answer.brokers.add(broker_id=2).logs
        kept.logs.append(log)
        kept.disk_free_bytes, kept.disk_total_bytes, kept.recovery_report = 1 << 30, 2 << 30, "clean"
        asked = [b for b in answer.brokers if not request.HasField("broker_id") or b.broker_id == request.broker_id]
        return admin_pb2.DescribeClusterLogsResponse(brokers=asked)

    def _outcome(self, number: int) -> pb.PartitionOutcome:
        code = self.refused.get(number)
        outcome = pb.PartitionOutcome(topic_id=ID, partition=number, current=self.partitions[number])
        if code is not None:
            outcome.error = errors_pb2.ErrorCode.ValueType(code)
            outcome.message = "it is not so"
        return outcome

    def ElectLeaders(self, request: pb.ElectLeadersRequest, timeout: float) -> pb.ElectLeadersResponse:
        self.asked.append((pb.ElectionType.Name(request.type), [p.partition for p in request.partitions]))
        numbers = [p.partition for p in request.partitions] or [0]
        return pb.ElectLeadersResponse(partitions=[self._outcome(n) for n in numbers])

    def AlterReassignments(
        self, request: pb.AlterReassignmentsRequest, timeout: float
    ) -> pb.AlterReassignmentsResponse:
        moves = {r.partition: list(r.replicas) for r in request.reassignments}
        self.asked.append(("reassign", moves, request.validate_only))
        outcomes = [self._outcome(n) for n in moves]
        for outcome in outcomes:
            outcome.current.adding.extend(b for b in moves[outcome.partition] if b not in outcome.current.replicas)
        return pb.AlterReassignmentsResponse(partitions=outcomes)

    def DescribeReassignments(self, request: Any, timeout: float) -> admin_pb2.DescribeReassignmentsResponse:
        shown = [
            admin_pb2.ReassignmentProgress(
                topic="flights",
                partition=p,
                leader_bytes=2048,
                replicas=[admin_pb2.ReplicaProgress(broker_id=b, bytes=1024, percent=50) for b in p.adding],
                waits_for=self.away.intersection(p.replicas),
            )
            for p in self.moving
        ]
        self.moving = self.moving[1:]
        return admin_pb2.DescribeReassignmentsResponse(partitions=shown, throttle_bytes_per_s=1000)

    def IncrementalAlterConfigs(
        self, request: pb.IncrementalAlterConfigsRequest, timeout: float
    ) -> pb.IncrementalAlterConfigsResponse:
        (resource,) = request.resources
        self.asked += [(pb.AlterConfigOp.Name(c.op), c.name, c.value) for c in resource.changes]
        return pb.IncrementalAlterConfigsResponse(results=[pb.ConfigResult(resource=resource.resource)])

    def RebalanceCluster(self, request: Any, timeout: float) -> admin_pb2.RebalanceClusterResponse:
        throttle = request.throttle_bytes_per_s if request.HasField("throttle_bytes_per_s") else None
        self.asked.append(("rebalance", list(request.topics), request.validate_only, throttle))
        return admin_pb2.RebalanceClusterResponse(moves=self.moves, brokers=[admin_pb2.BrokerLoad(broker_id=1)])

    def DecommissionBroker(self, request: Any, timeout: float) -> admin_pb2.DecommissionBrokerResponse:
        self.asked.append(("decommission", request.broker_id, request.validate_only))
        left = self.replicas_left[0]
        self.replicas_left = self.replicas_left[1:] or [0]
        step = "stop it" if not left else "wait"
        return admin_pb2.DecommissionBrokerResponse(moves=self.moves, replicas_left=left, next_step=step)

    def DrainBroker(self, request: pb.DrainBrokerRequest, timeout: float) -> pb.DrainBrokerResponse:
        self.asked.append(("drain", request.broker_id, request.drained))
        return pb.DrainBrokerResponse(still_leading=1 if request.broker_id == 2 else 0)

    def UnregisterNode(self, request: pb.UnregisterNodeRequest, timeout: float) -> pb.UnregisterNodeResponse:
        self.asked.append(("unregister", request.id))
        return pb.UnregisterNodeResponse()


class StubTransport:
    """Leads an ``AdminClient`` to the stand-in."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub

    def __getattr__(self, rpc: str) -> Callable[..., Any]:
        async def call(request: Any, timeout: float) -> Any:
            return getattr(self._stub, rpc)(request, timeout)

        return call

    async def admin(self) -> Any:
        return self

    async def close(self) -> None:
        pass


class Beside:
    """An admin client of which a test plays some calls itself: a subclass has these."""

    def __init__(self, rest: AdminClient) -> None:
        self._rest = rest

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rest, name)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> FakeStub:
    """What commands that move or judge speak to."""
    fake = FakeStub()
    monkeypatch.setattr(Session, "admin", lambda self, **_: admin_over(fake))
    return fake


def admin_over(stub: Any) -> AdminClient:
    """A client of the stand-in."""
    transport: Any = StubTransport(stub)
    return AdminClient(_transport=transport)
