"""Messages of ``broker.proto`` as the engine's questions; pure, nothing is checked that the engine checks."""

from __future__ import annotations

from typing import Any, Final

from headrace_broker.core.copying import CopyAsk, Position
from headrace_broker.engine.fetch import FetchAsk, FetchEntry
from headrace_broker.engine.markers import MarkerAsk
from headrace_broker.engine.offsets import OffsetAsk
from headrace_broker.engine.produce import ProduceEntry
from headrace_common.core.ids import NodeId, Offset, PartitionId, TopicId
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import transaction_pb2

TOPIC_ID_KEPT: Final = 17
"""Bytes kept of a topic id: one more than an id has."""


def topic_id(raw: bytes) -> TopicId:
    """One that is too long stays one that nothing has; errors show ids and answers repeat them."""
    return TopicId(raw[:TOPIC_ID_KEPT])


def partition(entry: Any) -> PartitionId:
    """Its topic id as ``topic_id`` has it."""
    return PartitionId(topic_id(entry.topic_id), entry.partition)


def produce_entry(entry: pb.ProducePartition) -> ProduceEntry:
    epoch = entry.leader_epoch if entry.HasField("leader_epoch") else None
    token = entry.fencing_token if entry.HasField("fencing_token") else None
    return ProduceEntry(partition(entry), entry.batch, epoch, token)


def fetch_entry(entry: pb.FetchPartition) -> FetchEntry:
    epoch = entry.leader_epoch if entry.HasField("leader_epoch") else None
    last = entry.last_fetched_epoch if entry.HasField("last_fetched_epoch") else None
    return FetchEntry(
        partition(entry), Offset(entry.fetch_offset), entry.max_bytes, epoch, last, entry.from_leader, entry.unreadable
    )


def copy_ask(request: pb.ReplicateRequest) -> CopyAsk:
    return CopyAsk(
        NodeId(request.broker_id),
        request.broker_epoch,
        [
            Position(
                partition(one),
                one.leader_epoch,
                one.last_epoch,
                Offset(one.log_end),
                Offset(one.written_end),
                one.wants,
                Offset(one.forgotten_to),
            )
            for one in request.positions
        ],
        [partition(one) for one in request.withdrawn],
        request.received,
    )


def offset_ask(entry: pb.ListOffsetsPartition) -> OffsetAsk:
    return OffsetAsk(
        partition(entry),
        entry.timestamp_ms,
        entry.wait_above if entry.HasField("wait_above") else None,
        entry.leader_epoch if entry.HasField("leader_epoch") else None,
    )


def fetch_ask(request: pb.FetchRequest) -> FetchAsk:
    entries = [fetch_entry(entry) for entry in request.partitions]
    return FetchAsk(
        entries,
        request.min_bytes,
        request.max_bytes,
        request.max_wait_ms,
        request.rack if request.HasField("rack") else None,
        request.isolation_level == pb.READ_COMMITTED,
        next((at for at, entry in enumerate(entries) if entry.unreadable), None),
    )


def marker_ask(marker: transaction_pb2.TxnMarker) -> MarkerAsk:
    partitions = [partition(one) for one in marker.partitions]
    return MarkerAsk(marker.producer_id, marker.producer_epoch, marker.commit, partitions)
