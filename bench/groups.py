"""
Consumer groups: what heartbeats cost, how fast large groups settle, fail-over of a coordinator, and when what a member
had is read again. The other side of a figure is the wanted one; Kafka has no such rows of its own.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import psutil
from tests.integration.groups.moves import scenario

import headrace
from bench.headrace_side import HeadraceSide
from bench.kafka_side import HERE
from bench.rows import Row, compare
from bench.sizes import sized
from headrace.testing import TestCluster
from headrace_common.core.murmur2 import partition_for
from headrace_proto.v1 import broker_pb2
from headrace_proto.v1 import coordinator_pb2 as pb
from headrace_proto.v1.broker_pb2_grpc import BrokerStub
from headrace_proto.v1.coordinator_pb2_grpc import CoordinatorStub

PATIENCE_S = 60.0
LOOK_S = 0.01
SHARDS = 50
SESSION_S = 9.0
"""Of a coordinator at the controller, by default."""
PROTOCOLS: dict[str, dict[str, Any]] = {
    "range": {"group_protocol": "classic", "partition_assignment_strategy": ["range"]},
    "cooperative": {"group_protocol": "classic", "partition_assignment_strategy": ["cooperative-sticky"]},
    "server-side": {"group_protocol": "consumer"},
}


# --- heartbeats ---------------------------------------------------------------------------------------------------


def heartbeats(runs: int) -> list[Row]:
    """
    200 groups of 5 on one coordinator, heartbeats every 3 s: round trips, and the coordinator's CPU.

    The baseline of a round trip is how late timers of the same client went off: what the machine does to any process.
    """
    rows: list[Row] = []
    groups = sized(200, 10)
    with HeadraceSide.running() as cluster:
        topic = cluster.topic(5)
        for protocol in ("classic", "consumer"):
            for commits in (False, True):
                found = [_beat(cluster, topic, protocol, groups, commits) for _ in range(runs)]
                name = f"groups-heartbeat {protocol}, {groups} x 5" + (", each commits every 5 s" if commits else "")
                late = [one["late_p99_ms"] for one in found]
                rows.append(compare(f"{name}: p50", "ms", [one["p50_ms"] for one in found]))
                target = "" if commits else "≤ 50"
                p99 = [one["p99_ms"] for one in found]
                rows.append(compare(f"{name}: p99", "ms", p99, late, target=target, note="beside timers' lateness p99"))
                target = "" if commits else "≤ 30"
                cpu = [one["cpu"] for one in found]
                rows.append(compare(f"{name}: coordinator CPU", "% of a core", cpu, target=target))
                if commits:
                    rows.append(compare(f"{name}: commit p99", "ms", [one["commit_p99_ms"] for one in found]))
    return rows


def _beat(cluster: HeadraceSide, topic: str, protocol: str, groups: int, commits: bool) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.clients.group_members", "--bootstrap", cluster.bootstrap]
    command += ["--topic", topic, "--partitions", "5", "--protocol", protocol, "--groups", str(groups)]
    command += ["--seconds", str(sized(20, 5)), *(["--commits"] if commits else [])]
    members = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=HERE.parent)
    try:
        assert members.stdout is not None
        if members.stdout.readline().strip() != "ready":
            raise RuntimeError("the members of the heartbeat benchmark did not get ready")
        coordinator = psutil.Process(cluster.pid("coordinator-1"))
        began, before = time.monotonic(), coordinator.cpu_times()
        said = json.loads(members.stdout.readline())
        after, seconds = coordinator.cpu_times(), time.monotonic() - began
        assert said["held"] == groups * 5, said
        return {**said, "cpu": (after.user + after.system - before.user - before.system) / seconds * 100}
    finally:
        members.kill()
        members.wait()


# --- a large group ------------------------------------------------------------------------------------------------


def large(runs: int) -> list[Row]:
    """100 consumers of our SDK, in one process, on 1,000 partitions: from the last join until shares are even."""
    members, partitions = sized(100, 10), sized(1000, 60)
    rows: list[Row] = []
    with HeadraceSide.running() as cluster:
        topic = cluster.topic(partitions)
        _wake_groups(cluster)
        for protocol, settings in PROTOCOLS.items():
            together: list[float] = []
            one_more: list[float] = []
            for _ in range(runs):
                found = asyncio.run(_settle(cluster.bootstrap, topic, members, partitions, settings))
                together.append(found[0])
                one_more.append(found[1])
            name = f"groups-large {protocol}, {members} members, {partitions:,} partitions"
            rows.append(compare(f"{name}: all join at once", "s", together, target="≤ 5", note="after the last join"))
            rows.append(compare(f"{name}: one more joins", "s", one_more, target="≤ 5"))
    return rows


async def _settle(
    bootstrap: str, topic: str, members: int, partitions: int, settings: dict[str, Any]
) -> tuple[float, float]:
    group = f"large-{uuid.uuid4().hex[:6]}"
    numbers = count(1)
    polling: list[asyncio.Task[None]] = []
    consumers: list[headrace.aio.Consumer] = []

    async def poll(consumer: headrace.aio.Consumer) -> None:
        while True:
            await consumer.poll(timeout_ms=200)

    async def join() -> None:
        consumer = headrace.aio.Consumer(
            bootstrap_servers=bootstrap, group_id=group, client_id=f"m{next(numbers)}", **settings
        )
        await consumer.subscribe([topic])
        consumers.append(consumer)
        polling.append(asyncio.ensure_future(poll(consumer)))

    async def settled() -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not _even(consumers, partitions):
            failed = [task for task in polling if task.done()]
            if failed:
                raise failed[0].exception() or RuntimeError("a member ended")
            if time.monotonic() > deadline:
                shares = [len(consumer.assignment()) for consumer in consumers]
                raise TimeoutError(f"{group} did not settle; shares {shares}")
            await asyncio.sleep(LOOK_S)

    try:
        await asyncio.gather(*(join() for _ in range(members - 1)))
        began = time.perf_counter()
        await settled()
        together = time.perf_counter() - began
        began = time.perf_counter()
        await join()
        await settled()
        return together, time.perf_counter() - began
    finally:
        for task in polling:
            task.cancel()
        await asyncio.gather(*polling, return_exceptions=True)
        await asyncio.gather(*(consumer.close() for consumer in consumers), return_exceptions=True)


def _even(consumers: list[headrace.aio.Consumer], partitions: int) -> bool:
    shares = [len(consumer.assignment()) for consumer in consumers]
    return sum(shares) == partitions and max(shares) - min(shares) <= 1


# --- fail-over ----------------------------------------------------------------------------------------------------


def failover(runs: int) -> list[Row]:
    """A shard with 100,000 committed offsets: until the other coordinator answers from it."""
    partitions, groups = sized(1000, 50), sized(100, 5)
    rows: list[Row] = []
    with HeadraceSide.running(coordinators=2) as cluster:
        topic = cluster.topic(partitions)
        _wake_groups(cluster)
        names = _groups_of_a_shard(groups)
        with grpc.insecure_channel(cluster.bootstrap.split(",", maxsplit=1)[0]) as channel:
            finder = BrokerStub(channel)
            for group in names:
                _commit(finder, group, topic, partitions)
            killed = [_fail(cluster, finder, names[-1], partitions, hard=True)[1] for _ in range(runs)]
            stopped = [_fail(cluster, finder, names[-1], partitions, hard=False) for _ in range(runs)]
    name = f"groups-failover, {partitions * groups:,} offsets"
    rows.append(compare(f"{name}: kill -9 to the first answer", "s", killed))
    after = [total - SESSION_S for _, total in stopped]
    rows.append(compare(f"{name}: stopped, after the session", "s", after, target="≤ 3"))
    rows.append(compare(f"{name}: taken over to answered", "s", [own for own, _ in stopped], target="≤ 3"))
    return rows


def _groups_of_a_shard(wanted: int) -> list[str]:
    names = (f"offsets-{number}" for number in count())
    found: list[str] = []
    while len(found) < wanted:
        name = next(names)
        if partition_for(name.encode(), SHARDS) == 7:
            found.append(name)
    return found


def _find(finder: Any, group: str) -> broker_pb2.CoordinatorOfKey:
    request = broker_pb2.FindCoordinatorRequest(type=broker_pb2.GROUP, keys=[group])
    return finder.FindCoordinator(request, timeout=10).coordinators[0]


def _wake_groups(cluster: HeadraceSide) -> None:
    """Groups have their topic, and are served."""
    with headrace.Consumer(bootstrap_servers=cluster.bootstrap, group_id="first") as consumer:
        consumer.committed([("__consumer_offsets", 0)])
    time.sleep(2)


def _commit(finder: Any, group: str, topic: str, partitions: int) -> None:
    found = _find(finder, group)
    offsets = [pb.OffsetCommit(topic=topic, partition=n, offset=n + 1, leader_epoch=-1) for n in range(partitions)]
    with grpc.insecure_channel(f"{found.endpoint.host}:{found.endpoint.port}") as channel:
        request = pb.CommitOffsetsRequest(group_id=group, generation=-1, offsets=offsets)
        answer = CoordinatorStub(channel).CommitOffsets(request, timeout=30)
    assert not any(one.error for one in answer.results), answer.results[0]


def _fail(cluster: HeadraceSide, finder: Any, group: str, partitions: int, *, hard: bool) -> tuple[float, float]:
    """Seconds from when another has it to its first answer, and from the fault to that."""
    _wait_served(finder, group, partitions, not_by=None)
    victim = _find(finder, group).coordinator
    name = f"coordinator-{victim}"
    began = time.perf_counter()
    cluster.cluster.signal(name, signal.SIGKILL if hard else signal.SIGSTOP)
    while True:
        found = _find(finder, group)
        if not found.error and found.coordinator != victim:
            break
        time.sleep(LOOK_S)
    moved = time.perf_counter()
    _wait_served(finder, group, partitions, not_by=victim)
    ended = time.perf_counter()
    if hard:
        _restart(cluster, name)
    else:
        cluster.cluster.signal(name, signal.SIGCONT)
    time.sleep(5)  # it joins again, and gets half of the shards
    return ended - moved, ended - began


def _restart(cluster: HeadraceSide, name: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while cluster.cluster.process(name).alive():
        assert time.monotonic() < deadline, f"{name} does not end"
        time.sleep(LOOK_S)
    cluster.cluster.restart(name)
    cluster.cluster.wait_ready()


def _wait_served(finder: Any, group: str, partitions: int, *, not_by: int | None) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = _find(finder, group)
        if not found.error and found.coordinator != not_by:
            with grpc.insecure_channel(f"{found.endpoint.host}:{found.endpoint.port}") as channel:
                try:
                    answer = CoordinatorStub(channel).FetchOffsets(pb.FetchOffsetsRequest(group_id=group), timeout=5)
                    assert len(answer.offsets) == partitions, len(answer.offsets)
                    return
                except grpc.RpcError as error:
                    last = error
            assert time.monotonic() < deadline, last
        time.sleep(LOOK_S)


# --- what moves ---------------------------------------------------------------------------------------------------


def moves(runs: int) -> list[Row]:
    """12 partitions under load, members as processes: what is read again when, and how long what stays is paused."""
    rows: list[Row] = []
    with HeadraceSide.running(coordinators=2) as cluster:
        for protocol in ("eager", "cooperative", "server-side"):
            with tempfile.TemporaryDirectory(prefix="bench-groups-") as folder:
                found = [
                    scenario(TestCluster(cluster.cluster), Path(folder) / str(run), protocol) for run in range(runs)
                ]
            name = f"groups-moves {protocol}"
            closed, killed = [one.closed_s for one in found], [one.killed_s for one in found]
            rows.append(compare(f"{name}: read again after a close", "s", closed, target="≤ 0.5"))
            rows.append(compare(f"{name}: read again after a kill -9", "s", killed, target="≤ 4"))
            if protocol != "eager":
                paused = [max(one.pauses_ms.values()) for one in found]
                rows.append(compare(f"{name}: longest pause of what stays", "ms", paused, target="≤ 100"))
    return rows
