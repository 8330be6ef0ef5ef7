"""Requests as they came over the wire, into the events of the core; what no client may send is refused here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from headrace_common.core.errors import InvalidGroupId, Rejected
from headrace_common.core.ids import TOPIC_NAME_LENGTH_MAX, PartitionId
from headrace_common.rpc.convert import partition_id_from_proto
from headrace_coordinator.core.events import (
    ClassicHeartbeat,
    ClassicJoined,
    ClassicSynced,
    ConsumerHeartbeat,
    Left,
    Marker,
    MemberEvent,
    OffsetToCommit,
)
from headrace_coordinator.core.offsets import Transaction
from headrace_coordinator.core.values import (
    ClassicAssignment,
    ClassicSubscription,
    GroupState,
    Moment,
    Subscription,
    TopicPartitions,
)
from headrace_coordinator.engine.coordinator import PartitionsByTopic
from headrace_coordinator.engine.streams import MemberStream
from headrace_coordinator.rpc import work_decode
from headrace_coordinator.rpc.checks import NAME_CHARACTERS_MAX, check_count, check_name
from headrace_coordinator.rpc.transaction_decode import producer, transactional_id
from headrace_proto.v1 import coordinator_pb2 as pb
from headrace_proto.v1 import transaction_pb2

GROUP_ID_CHARACTERS_MAX: Final = 249
PROTOCOLS_MAX: Final = 16
TOPICS_MAX: Final = 10_000
"""Topics that one member may name."""
PARTITIONS_MAX: Final = 100_000
"""Partitions that one request may name."""
OFFSETS_MAX: Final = 10_000
MARKERS_MAX: Final = 10_000
GROUPS_MAX: Final = 1_000
USER_DATA_BYTES_MAX: Final = 1 << 20
MEMBERS_MAX: Final = 100_000

WithInstance: TypeAlias = (
    pb.ClassicJoin
    | pb.ClassicSync
    | pb.ClassicHeartbeat
    | pb.ConsumerHeartbeat
    | pb.WorkHeartbeat
    | pb.LeaveGroup
    | pb.CommitOffsetsRequest
    | pb.TxnOffsetCommitRequest
)


def group_id(text: str) -> str:
    """
    Raises:
        InvalidGroupId: empty, or too long.
    """
    if not 1 <= len(text) <= GROUP_ID_CHARACTERS_MAX:
        raise InvalidGroupId(f"a group id has 1 to {GROUP_ID_CHARACTERS_MAX} characters, not {len(text)}")
    return text


def instance(request: WithInstance) -> str | None:
    """The static member's name; None: a dynamic one."""
    if not request.HasField("group_instance_id"):
        return None
    if not request.group_instance_id:
        raise Rejected("group_instance_id is empty; leave it out for a dynamic member")
    return check_name(request.group_instance_id, "group_instance_id")


def member_event(
    request: pb.MembershipRequest, stream: MemberStream, at: Moment, fresh_id: Callable[[str], str]
) -> MemberEvent:
    """
    What a member says on its stream.

    Raises:
        Rejected: nothing that a client may say.
    """
    match request.WhichOneof("request"):
        case "classic_join":
            return _classic_join(request.classic_join, stream, at, fresh_id)
        case "classic_sync":
            return _classic_sync(request.classic_sync, stream, at)
        case "classic_heartbeat":
            classic = request.classic_heartbeat
            return ClassicHeartbeat(
                stream.group_id,
                stream.number,
                at,
                check_name(classic.member_id, "member_id"),
                instance(classic),
                classic.generation,
            )
        case "consumer_heartbeat":
            return _consumer_heartbeat(request.consumer_heartbeat, stream, at)
        case "work_heartbeat":
            beat = request.work_heartbeat
            return work_decode.heartbeat(beat, instance(beat), stream, at)
        case "leave":
            leave = request.leave
            return Left(
                stream.group_id,
                stream.number,
                at,
                check_name(leave.member_id, "member_id"),
                instance(leave),
                leave.permanently,
                leave.reason[:NAME_CHARACTERS_MAX],
            )
    raise Rejected("the request asks for nothing that this version knows; is the client newer?")


def _classic_join(
    join: pb.ClassicJoin, stream: MemberStream, at: Moment, fresh_id: Callable[[str], str]
) -> ClassicJoined:
    check_count(len(join.protocols), PROTOCOLS_MAX, "protocols", 1)
    if join.rebalance_timeout_ms < 1:
        raise Rejected(f"rebalance_timeout_ms is {join.rebalance_timeout_ms}; it is 1 or more")
    name = instance(join)
    client_id = check_name(join.client_id, "client_id")
    return ClassicJoined(
        stream.group_id,
        stream.number,
        at,
        check_name(join.member_id, "member_id"),
        name,
        join.session_timeout_ms,
        join.rebalance_timeout_ms,
        tuple((check_name(one.name, "protocol"), _subscription(one.subscription)) for one in join.protocols),
        fresh_id((name or client_id or "member")[: NAME_CHARACTERS_MAX - 40]),
        client_id,
        stream.address,
        join.reason[:NAME_CHARACTERS_MAX],
    )


def _subscription(said: pb.ClassicSubscription) -> ClassicSubscription:
    return ClassicSubscription(
        _topics(said.topics),
        topic_partitions(said.owned),
        said.generation,
        check_name(said.rack, "rack"),
        _user_data(said.user_data),
    )


def _user_data(data: bytes) -> bytes:
    check_count(len(data), USER_DATA_BYTES_MAX, "bytes of user_data")
    return data


def _topics(names: Iterable[str]) -> tuple[str, ...]:
    topics = tuple(names)
    check_count(len(topics), TOPICS_MAX, "topics")
    for name in topics:
        _topic(name)
    return topics


def _topic(name: str) -> str:
    if not 1 <= len(name) <= TOPIC_NAME_LENGTH_MAX:
        raise Rejected(f"a topic name has 1 to {TOPIC_NAME_LENGTH_MAX} characters, not {len(name)}")
    return name


def topic_partitions(said: Iterable[pb.TopicPartitions]) -> tuple[TopicPartitions, ...]:
    """
    Partitions by topic, ascending, each once.

    Raises:
        Rejected: too many, negative ones, or an id that is none.
    """
    found = tuple(
        TopicPartitions(check_name(one.topic, "topic"), one.topic_id, tuple(sorted(set(one.partitions))))
        for one in said
    )
    check_count(len(found), TOPICS_MAX, "topics")
    check_count(sum(len(one.partitions) for one in found), PARTITIONS_MAX, "partitions")
    for one in found:
        if len(one.topic_id) not in {0, 16}:
            raise Rejected(f"topic ids have 16 bytes, not {len(one.topic_id)}")
        if one.partitions and one.partitions[0] < 0:
            raise Rejected(f"partition {one.partitions[0]} of {one.topic[:60]!r} is negative")
    return found


def partitions_by_topic(said: Iterable[pb.TopicPartitions]) -> PartitionsByTopic:
    """The same by names alone, in the order of the request."""
    found = tuple((_topic(one.topic), tuple(one.partitions)) for one in said)
    check_count(len(found), TOPICS_MAX, "topics")
    check_count(sum(len(partitions) for _, partitions in found), PARTITIONS_MAX, "partitions")
    return found


def _classic_sync(sync: pb.ClassicSync, stream: MemberStream, at: Moment) -> ClassicSynced:
    check_count(len(sync.assignments), MEMBERS_MAX, "assignments")
    assignments = {
        one.member_id: ClassicAssignment(
            topic_partitions(one.assignment.partitions), _user_data(one.assignment.user_data)
        )
        for one in sync.assignments
    }
    return ClassicSynced(
        stream.group_id,
        stream.number,
        at,
        check_name(sync.member_id, "member_id"),
        instance(sync),
        sync.generation,
        assignments,
    )


def _consumer_heartbeat(beat: pb.ConsumerHeartbeat, stream: MemberStream, at: Moment) -> ConsumerHeartbeat:
    if not beat.member_id:
        raise Rejected("member_id is empty; choose a UUID and keep it")
    if beat.member_epoch < -2:
        raise Rejected(f"member_epoch is {beat.member_epoch}; it is -2 or more")
    timeout = beat.rebalance_timeout_ms if beat.HasField("rebalance_timeout_ms") else None
    if timeout is not None and timeout < 1:
        raise Rejected(f"rebalance_timeout_ms is {timeout}; it is 1 or more")
    return ConsumerHeartbeat(
        stream.group_id,
        stream.number,
        at,
        check_name(beat.member_id, "member_id"),
        beat.member_epoch,
        instance_id=instance(beat),
        rack=check_name(beat.rack, "rack") if beat.HasField("rack") else None,
        rebalance_timeout_ms=timeout,
        subscription=_consumer_subscription(beat.subscription) if beat.HasField("subscription") else None,
        assignor=check_name(beat.assignor, "assignor") if beat.HasField("assignor") else None,
        owned=topic_partitions(beat.owned.topics) if beat.HasField("owned") else None,
        client_id=check_name(beat.client_id, "client_id"),
        client_address=stream.address,
        sight=stream.sight,
    )


def _consumer_subscription(said: pb.ConsumerSubscription) -> Subscription:
    pattern = said.pattern if said.HasField("pattern") else None
    return Subscription(frozenset(_topics(said.topics)), pattern)


def commits(request: pb.CommitOffsetsRequest | pb.TxnOffsetCommitRequest) -> list[OffsetToCommit]:
    """
    What is to be committed, in the order of the request.

    Raises:
        Rejected: none, or too many.
    """
    check_count(len(request.offsets), OFFSETS_MAX, "offsets", 1)
    return [
        OffsetToCommit(_topic(one.topic), one.partition, one.offset, one.leader_epoch, one.metadata)
        for one in request.offsets
    ]


def transaction(request: pb.TxnOffsetCommitRequest) -> Transaction:
    """
    The transaction that offsets are to be part of.

    Raises:
        Rejected: no producer has these numbers, or this id.
    """
    by = producer(request.producer_id, request.producer_epoch)
    return Transaction(by.producer_id, by.epoch, transactional_id(request.transactional_id))


def markers(request: transaction_pb2.WriteTxnMarkersRequest) -> list[tuple[Marker, list[PartitionId]]]:
    """
    Ends of transactions, and the partitions that they are for.

    Raises:
        Rejected: none or too many, or not what a coordinator of transactions sends.
    """
    check_count(len(request.markers), MARKERS_MAX, "markers", 1)
    check_count(sum(len(one.partitions) for one in request.markers), PARTITIONS_MAX, "partitions", 1)
    found = []
    for one in request.markers:
        by = producer(one.producer_id, one.producer_epoch)
        marker = Marker(by.producer_id, by.epoch, one.commit)
        found.append((marker, [partition_id_from_proto(id) for id in one.partitions]))
    return found


def group_ids(ids: Iterable[str]) -> list[str]:
    """
    Raises:
        Rejected: none, or too many.
        InvalidGroupId: one that no group can have; it is not repeated in an answer.
    """
    found = list(ids)
    check_count(len(found), GROUPS_MAX, "groups", 1)
    return [group_id(one) for one in found]


def states(said: Iterable[int]) -> list[GroupState]:
    """
    Raises:
        Rejected: a state that this version does not know.
    """
    known = {state.value: state for state in GroupState}
    wanted = list(dict.fromkeys(said))
    unknown = [number for number in wanted if number not in known]
    if unknown:
        raise Rejected(f"there is no group state {unknown[0]}; this version knows {sorted(known)}")
    return [known[number] for number in wanted]
