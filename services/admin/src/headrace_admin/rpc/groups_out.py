"""What the engine found out about consumer groups, as messages of the wire; and what a reset asks for, from there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from headrace_admin.core.lag import PartitionLag
from headrace_admin.core.resets import At, Current, Earliest, Given, Latest, ShiftBy, Since, Target
from headrace_admin.engine.coordination import Unanswered
from headrace_admin.engine.groups import Described, Listing
from headrace_admin.engine.resets import Ago, Moved, Reset
from headrace_common.core.errors import HeadraceError, Rejected
from headrace_common.core.ids import TopicPartition
from headrace_common.core.moments import TIMESTAMP_MS_MAX
from headrace_common.rpc.status import detail_of
from headrace_proto.v1 import admin_pb2 as pb
from headrace_proto.v1 import coordinator_pb2, errors_pb2


def unanswered_shards(shards: Iterable[Unanswered]) -> list[pb.UnansweredShard]:
    """Shards whose groups or transactional ids are not in a list."""
    return [pb.UnansweredShard(shard=u.shard, coordinator=u.coordinator, error=detail_of(u.error)) for u in shards]


def listing_message(listing: Listing) -> pb.ListClusterGroupsResponse:
    """All groups, and the shards that are missing."""
    return pb.ListClusterGroupsResponse(
        groups=[pb.ListedGroup(group=g.group, coordinator=g.coordinator) for g in listing.groups],
        unanswered=unanswered_shards(listing.unanswered),
    )


def described_message(group_id: str, described: Described) -> coordinator_pb2.GroupDescription:
    """A group, or why it cannot be told."""
    if isinstance(described, HeadraceError):
        code, message = _detail(described)
        return coordinator_pb2.GroupDescription(group_id=group_id, error=code, message=message)
    return described


def lag_message(group: coordinator_pb2.GroupDescription, lags: Iterable[PartitionLag]) -> pb.DescribeGroupLagResponse:
    """How far a group is behind."""
    return pb.DescribeGroupLagResponse(state=group.state, partitions=[_lag(one) for one in lags])


def _lag(one: PartitionLag) -> pb.PartitionLag:
    committed, bounds, owner = one.committed, one.bounds, one.owner
    return pb.PartitionLag(
        topic=one.partition.topic,
        partition=one.partition.partition,
        committed_offset=None if committed is None else committed.offset,
        leader_epoch=-1 if committed is None else committed.leader_epoch,
        metadata="" if committed is None else committed.metadata,
        committed_at_ms=None if committed is None else committed.committed_at_ms,
        log_start_offset=None if bounds is None else bounds.start,
        end_offset=None if bounds is None else bounds.end,
        lag=one.lag,
        lag_ms=one.lag_ms,
        member_id=None if owner is None else owner.member_id,
        client_id=None if owner is None else owner.client_id,
        error=None if one.error is None else detail_of(one.error),
    )


def named(topics: Iterable[coordinator_pb2.TopicPartitions]) -> list[tuple[str, Collection[int]]]:
    """Topics with numbers of partitions; none: all of the topic."""
    return [(t.topic, list(t.partitions)) for t in topics]


def target_of(request: pb.ResetOffsetsRequest) -> Target | Ago:
    """
    Where a reset goes.

    Raises:
        Rejected: it says nothing, or something that cannot be.
    """
    match request.WhichOneof("target"):
        case "to":
            return _position(request.to)
        case "to_timestamp_ms":
            return Since(_between(request.to_timestamp_ms, "to_timestamp_ms"))
        case "to_offset":
            return At(request.to_offset)
        case "shift_by":
            return ShiftBy(request.shift_by)
        case "ago_ms":
            return Ago(_between(request.ago_ms, "ago_ms"))
        case "to_offsets":
            return given((o.topic, o.partition, o.offset) for o in request.to_offsets.offsets)
        case _:
            raise Rejected("say where to: earliest, latest, current, a time, an offset, a shift, or offsets")


def _position(to: int) -> Target:
    match to:
        case pb.EARLIEST:
            return Earliest()
        case pb.LATEST:
            return Latest()
        case pb.CURRENT:
            return Current()
    raise Rejected(f"position {to} is not known; it takes EARLIEST, LATEST or CURRENT")


def _between(ms: int, name: str) -> int:
    if not 0 <= ms <= TIMESTAMP_MS_MAX:
        raise Rejected(f"{name} takes 0 to {TIMESTAMP_MS_MAX}, not {ms}")
    return ms


def given(offsets: Iterable[tuple[str, int, int]]) -> Given:
    """
    Offsets per partition.

    Raises:
        Rejected: a partition is named twice.
    """
    found: dict[TopicPartition, int] = {}
    for topic, partition, offset in offsets:
        where = TopicPartition(topic, partition)
        if where in found:
            raise Rejected(f"{where} is named twice; name each partition once")
        found[where] = offset
    return Given(found)


def reset_message(reset: Reset) -> pb.ResetOffsetsResponse:
    """A plan, or what became of it."""
    return pb.ResetOffsetsResponse(
        partitions=[_moved(m) for m in reset.moved],
        executed=reset.executed,
        members=reset.members,
        new_group=reset.new_group,
    )


def _moved(moved: Moved) -> pb.PlannedReset:
    p = moved.planned
    message = pb.PlannedReset(
        topic=p.partition.topic,
        partition=p.partition.partition,
        old_offset=p.old,
        new_offset=p.new,
        log_start_offset=p.bounds.start,
        end_offset=p.bounds.end,
        note=p.note,
    )
    if moved.error is not None:
        message.error, text = _detail(moved.error)
        if text is not None:
            message.message = text
    return message


def group_result(group_id: str, error: HeadraceError | None) -> coordinator_pb2.GroupResult:
    code, message = _detail(error)
    return coordinator_pb2.GroupResult(group_id=group_id, error=code, message=message)


def offset_results(results: Mapping[TopicPartition, HeadraceError | None]) -> coordinator_pb2.DeleteOffsetsResponse:
    """What became of each partition."""
    return coordinator_pb2.DeleteOffsetsResponse(results=[_offset_result(p, e) for p, e in results.items()])


def _offset_result(where: TopicPartition, error: HeadraceError | None) -> coordinator_pb2.OffsetResult:
    code, message = _detail(error)
    return coordinator_pb2.OffsetResult(topic=where.topic, partition=where.partition, error=code, message=message)


def _detail(error: HeadraceError | None) -> tuple[errors_pb2.ErrorCode.ValueType, str | None]:
    if error is None:
        return errors_pb2.NONE, None
    detail = detail_of(error)
    return detail.code, detail.message
