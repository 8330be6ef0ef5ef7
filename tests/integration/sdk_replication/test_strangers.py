"""Strangers take all that brokers have for clients; the brokers among themselves go on."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from headrace.securing import security_of
from headrace.testing import TestCluster, started_cluster
from headrace_common.rpc.channels import open_sync_channel
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1.broker_pb2_grpc import BrokerStub

pytestmark = pytest.mark.integration

TOPIC = "held"
CALLS_MAX = 40


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TestCluster]:
    # Open: where a key is asked for, strangers get no place to take.
    settings = {"concurrent.rpcs.max": str(CALLS_MAX)}
    with started_cluster(tmp_path / "data", brokers=3, restart=False, settings=settings, closed=False) as started:
        yield started


def occupy(cluster: TestCluster, name: str, stack: ExitStack) -> None:
    """Open streams on which nothing is said, until the broker takes no more calls of clients."""

    over = threading.Event()
    stack.callback(over.set)

    def nothing() -> Iterator[pb.FetchRequest]:
        over.wait()
        yield from ()

    address, shown = cluster.local.process(name).grpc, security_of(cluster.local.address)
    channel = stack.enter_context(open_sync_channel(address, shown, own_connection=True))
    stub = BrokerStub(channel)
    for _ in range(CALLS_MAX):
        stack.callback(stub.Fetch(nothing()).cancel)
    probe = stack.enter_context(open_sync_channel(address, shown, own_connection=True))
    for _ in range(10 * CALLS_MAX):
        try:
            BrokerStub(probe).Metadata(pb.MetadataRequest(), timeout=30)
        except grpc.RpcError:  # it takes no more
            return
        stack.callback(stub.Fetch(nothing()).cancel)  # one was refused, for a call that is over now
    raise AssertionError("it takes call after call")


def in_sync(cluster: TestCluster) -> list[int]:
    """Admin has the image from the controllers; brokers answer no client now."""
    asked = urllib.request.Request(f"{cluster.admin_url}/v1/topics/{TOPIC}", headers=cluster.authorization)
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return list(json.load(answer)["partitions"][0]["isr"])


def until_in_sync(cluster: TestCluster, brokers: int) -> None:
    deadline = time.monotonic() + 60
    while len(in_sync(cluster)) != brokers:
        assert time.monotonic() < deadline, f"in sync are {in_sync(cluster)}"
        time.sleep(0.05)


def test_a_follower_catches_up_with_a_leader_that_takes_no_clients(cluster: TestCluster) -> None:
    with cluster.admin() as admin:
        admin.create_topic(TOPIC, assignments=[[1, 2, 3]])
    with cluster.producer(linger_ms=0) as producer, ExitStack() as stack:
        first = producer.send(TOPIC, b"before").result(timeout=60)
        cluster.local.kill("broker-3")
        for name in ("broker-1", "broker-2"):
            occupy(cluster, name, stack)
        assert producer.send(TOPIC, b"meanwhile").result(timeout=60).offset == first.offset + 1
        until_in_sync(cluster, 2)
        cluster.local.restart("broker-3")
        until_in_sync(cluster, 3)
