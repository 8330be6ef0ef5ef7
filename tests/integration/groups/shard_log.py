"""What is in ``__consumer_offsets``, batch by batch, as its leader hands it out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from headrace.securing import security_of
from headrace.testing import TestCluster
from headrace_common.core.batch import BatchHeader, read_header
from headrace_common.rpc.channels import open_sync_channel
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1.broker_pb2_grpc import BrokerStub

TOPIC = "__consumer_offsets"


def headers(stub: BrokerStub, topic_id: bytes, partition: int, epoch: int) -> Iterator[BatchHeader]:
    """Of all batches, in order."""
    ask = pb.ListOffsetsPartition(topic_id=topic_id, partition=partition, timestamp_ms=-2)
    at = stub.ListOffsets(pb.ListOffsetsRequest(partitions=[ask]), timeout=10).partitions[0].offset
    while True:
        entry = pb.FetchPartition(
            topic_id=topic_id, partition=partition, fetch_offset=at, max_bytes=1 << 20, leader_epoch=epoch
        )
        request = pb.FetchRequest(correlation_id=1, min_bytes=1, max_bytes=1 << 20, partitions=[entry])
        answer = next(iter(stub.Fetch(iter([request]), timeout=10)))
        found = [read_header(batch) for part in answer.partitions for batch in part.batches]
        yield from found
        if not found:
            return
        at = found[-1].next_offset


def assert_no_late_writer(cluster: TestCluster) -> None:
    """
    In every shard: no batch of an earlier owner comes after a later owner's fence. Each owner writes under a producer
    id of its own, so a batch tells who wrote it.
    """
    fences = 0
    with ExitStack() as stack:
        stubs = [
            BrokerStub(stack.enter_context(open_sync_channel(at, security_of(cluster.local.address))))
            for at in cluster.bootstrap_servers
        ]
        topic = stubs[0].Metadata(pb.MetadataRequest(topics=[TOPIC]), timeout=10).topics[0]
        assert topic.partitions
        for partition in topic.partitions:
            earlier: set[int] = set()
            writer = -1
            stub = stubs[partition.leader - 1]
            for header in headers(stub, topic.topic_id, partition.partition, partition.leader_epoch):
                if header.control:
                    fences += 1
                    earlier |= {writer} - {-1}
                    writer = -1
                    continue
                where = f"{TOPIC}-{partition.partition}@{header.base_offset}"
                assert header.producer_id not in earlier, f"{where} was written by an owner that had been fenced"
                assert writer in (-1, header.producer_id), f"{where}: two writers under one fence"
                writer = header.producer_id
    assert fences >= len(topic.partitions), "each shard's owner fences it first"
