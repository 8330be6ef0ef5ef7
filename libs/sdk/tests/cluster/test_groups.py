"""Groups against real processes: sharing, leaving, commits, and a coordinator that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import Consumer, TopicPartition
from headrace.securing import security_of
from headrace.testing import TestCluster, started_cluster
from headrace_common.rpc.channels import open_sync_channel
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1.broker_pb2_grpc import BrokerStub

pytestmark = pytest.mark.integration

PROTOCOLS: dict[str, dict[str, Any]] = {
    "server-side": {"group_protocol": "consumer"},
    "eager": {"group_protocol": "classic"},
    "cooperative": {"group_protocol": "classic", "partition_assignment_strategy": ["cooperative-sticky"]},
}
PARTITIONS = 6


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    with started_cluster(tmp_path_factory.mktemp("groups"), coordinators=2, restart=True) as running:
        yield running


@pytest.fixture(params=list(PROTOCOLS))
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def until(condition: Callable[[], bool], *members: Consumer) -> list[bytes]:
    values: list[bytes] = []
    deadline = time.monotonic() + 40
    while not condition():
        for member in members:
            values += [record.value for record in member.poll(timeout_ms=10)]
        assert time.monotonic() < deadline, [(m.state, m.assignment(), m.health()) for m in members]
    return values


def fill(cluster: TestCluster, topic: str, first: int, last: int) -> None:
    with cluster.producer() as producer:
        for n in range(first, last):
            producer.send(topic, b"%d" % n, partition=n % PARTITIONS)
        producer.flush()


def test_a_group_shares_commits_and_goes_on(cluster: TestCluster, protocol: str) -> None:
    topic = cluster.unique_topic(partitions=PARTITIONS)
    fill(cluster, topic, 0, 60)
    settings = {"group_id": f"g-{topic}", **PROTOCOLS[protocol]}
    one, two = cluster.consumer(topic, **settings), cluster.consumer(topic, **settings)
    values = until(lambda: len(one.assignment()) == len(two.assignment()) == 3, one, two)
    assert one.assignment().isdisjoint(two.assignment())
    while len(set(values)) < 60:
        values += [record.value for member in (one, two) for record in member.poll(timeout_ms=20)]
    one.close()
    began = time.monotonic()
    until(lambda: len(two.assignment()) == PARTITIONS, two)
    taken_over_s = time.monotonic() - began
    two.commit()
    ends = two.committed([TopicPartition(topic, n) for n in range(PARTITIONS)])
    assert {at.offset for at in ends.values() if at is not None} == {10}
    two.close()
    fill(cluster, topic, 60, 66)
    with cluster.consumer(topic, **settings) as three:
        later: list[bytes] = []
        while len(later) < 6:
            later += [record.value for record in three.poll(timeout_ms=100)]
    assert sorted(later) == [b"%d" % n for n in range(60, 66)], "it goes on behind what was committed"
    assert taken_over_s < 20, "by the news of the member that left, not by its session"


def test_a_killed_coordinator_changes_nothing(cluster: TestCluster, protocol: str) -> None:
    topic = cluster.unique_topic(partitions=PARTITIONS)
    settings = {"group_id": f"g-{topic}", **PROTOCOLS[protocol]}
    story: list[str] = []
    members = [cluster.consumer(**settings) for _ in range(2)]
    for member in members:
        member.subscribe(
            [topic],
            on_assign=lambda partitions: story.append(f"+{len(partitions)}"),
            on_revoke=lambda partitions: story.append(f"-{len(partitions)}"),
            on_lost=lambda partitions: story.append(f"!{len(partitions)}"),
        )
    until(lambda: all(len(m.assignment()) == 3 for m in members), *members)
    until(lambda: all(m.state == "reading" for m in members), *members)
    told = list(story)
    health = members[0].health().group
    assert health is not None
    assert health.coordinator is not None
    name = f"coordinator-{health.coordinator.split()[1]}"
    [process] = [p for p in cluster.local.processes if p.name == name]
    os.kill(process.pid, signal.SIGKILL)

    def found_again() -> bool:
        facts = [member.health().group for member in members]
        return all(f is not None and f.coordinator is not None and f.trouble is None for f in facts)

    until(lambda: not found_again(), *members)
    fill(cluster, topic, 0, 60)
    values = until(found_again, *members)
    while len(values) < 60:
        values += [r.value for member in members for r in member.poll(timeout_ms=20)]
    assert len(set(values)) == 60
    assert story == told, "nobody was put out, nothing was taken away"
    for member in members:
        member.commit()
        member.close()


def shards_rest(cluster: TestCluster) -> None:
    """Both coordinators have their shards: where one moves, its members have a whole session, dead ones too."""
    ask = pb.FindCoordinatorRequest(keys=[f"g{n}" for n in range(200)])
    deadline = time.monotonic() + 40
    with open_sync_channel(cluster.bootstrap_servers[0], security_of(cluster.local.address)) as channel:
        while True:
            answer = BrokerStub(channel).FindCoordinator(ask, timeout=10)
            owners = [None if one.error else one.coordinator for one in answer.coordinators]
            if None not in owners and len(set(owners)) == 2:
                return
            assert time.monotonic() < deadline, owners
            time.sleep(0.05)


def test_a_killed_member_is_missed_and_its_records_are_read_again(cluster: TestCluster) -> None:
    shards_rest(cluster)
    topic = cluster.unique_topic(partitions=PARTITIONS)
    fill(cluster, topic, 0, 60)
    code = (
        "import sys, headrace\n"
        "c = headrace.Consumer(sys.argv[2], bootstrap_servers=sys.argv[1], group_id='g-' + sys.argv[2],"
        " auto_offset_reset='earliest')\n"
        "n = 0\n"
        "while n < 60: n += len(c.poll(timeout_ms=100))\n"
        "print('read', flush=True)\n"
        "while True: c.poll(timeout_ms=100)\n"
    )
    servers = ",".join(cluster.bootstrap_servers)
    with subprocess.Popen([sys.executable, "-c", code, servers, topic], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "read\n"
        child.kill()
    with cluster.consumer(topic, group_id=f"g-{topic}") as other:
        values: list[bytes] = []
        deadline = time.monotonic() + 30
        while len(values) < 60 and time.monotonic() < deadline:
            values += [record.value for record in other.poll(timeout_ms=100)]
        assert len(values) == 60, "what was read and not committed; long before the session of 45 s ends"
