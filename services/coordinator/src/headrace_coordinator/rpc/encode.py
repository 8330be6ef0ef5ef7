"""What the core and the engine answer, as messages of ``coordinator.proto``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from headrace_common.core.errors import HeadraceError
from headrace_coordinator.core.effects import (
    ClassicStanding,
    ConsumerStanding,
    GroupListing,
    ItemDescription,
    JoinAnswer,
    LeaveAnswer,
    MemberDescription,
    Message,
    OffsetFound,
    OffsetOutcome,
    SyncAnswer,
    WorkStanding,
)
from headrace_coordinator.core.values import ClassicSubscription, GroupProtocol, GroupState, TopicPartitions
from headrace_coordinator.engine.coordinator import Described
from headrace_proto.v1 import coordinator_pb2 as pb
from headrace_proto.v1 import errors_pb2, transaction_pb2

NOTHING_COMMITTED = -1


def _code(error: HeadraceError | None) -> errors_pb2.ErrorCode.ValueType:
    return errors_pb2.NONE if error is None else errors_pb2.ErrorCode.ValueType(error.code)


def _text(error: HeadraceError | None) -> str | None:
    return None if error is None else str(error)


def message(said: Message) -> pb.MembershipResponse:
    """One message over a member's stream."""
    match said:
        case JoinAnswer():
            return pb.MembershipResponse(classic_joined=_encode_join(said))
        case SyncAnswer(error, generation, assignment):
            synced = pb.ClassicSynced(
                error=_code(error),
                message=_text(error),
                generation=generation,
                assignment=pb.ClassicAssignment(
                    partitions=_partitions(assignment.partitions), user_data=assignment.user_data
                ),
            )
            return pb.MembershipResponse(classic_synced=synced)
        case ClassicStanding(error, generation):
            state = pb.ClassicState(error=_code(error), message=_text(error), generation=generation)
            return pb.MembershipResponse(classic_state=state)
        case ConsumerStanding():
            return pb.MembershipResponse(consumer_state=_consumer(said))
        case WorkStanding():
            return pb.MembershipResponse(work_state=_work(said))
        case LeaveAnswer(error):
            return pb.MembershipResponse(left=pb.LeftGroup(error=_code(error), message=_text(error)))
    assert_never(said)


def _encode_join(said: JoinAnswer) -> pb.ClassicJoined:
    return pb.ClassicJoined(
        error=_code(said.error),
        message=_text(said.error),
        member_id=said.member_id,
        generation=said.generation,
        protocol=said.protocol,
        leader=said.leader,
        members=[
            pb.ClassicMember(
                member_id=one.member_id,
                group_instance_id=one.instance_id,
                subscription=_subscription(one.subscription),
            )
            for one in said.members
        ],
        skip_assignment=said.skip_assignment,
    )


def _subscription(said: ClassicSubscription) -> pb.ClassicSubscription:
    return pb.ClassicSubscription(
        topics=said.topics,
        owned=_partitions(said.owned),
        generation=said.generation,
        rack=said.rack,
        user_data=said.user_data,
    )


def _consumer(said: ConsumerStanding) -> pb.ConsumerState:
    return pb.ConsumerState(
        error=_code(said.error),
        message=_text(said.error),
        member_id=said.member_id,
        member_epoch=said.member_epoch,
        heartbeat_interval_ms=said.heartbeat_interval_ms,
        session_timeout_ms=said.session_timeout_ms,
        assignment=None if said.assignment is None else pb.PartitionSet(topics=_partitions(said.assignment)),
    )


def _work(said: WorkStanding) -> pb.WorkState:
    share = said.share
    return pb.WorkState(
        error=_code(said.error),
        message=_text(said.error),
        member_id=said.member_id,
        member_epoch=said.member_epoch,
        heartbeat_interval_ms=said.heartbeat_interval_ms,
        session_timeout_ms=said.session_timeout_ms,
        assignment=None
        if share is None
        else pb.WorkAssignment(
            active=[pb.WorkItemGiven(id=one.id, epoch=one.epoch, unended=one.unended) for one in share.active],
            standby=share.standby,
            warm_up=share.warm_up,
        ),
        current_declaration=said.current_declaration,
        own_declaration=said.own_declaration,
    )


def _partitions(said: Iterable[TopicPartitions]) -> list[pb.TopicPartitions]:
    return [pb.TopicPartitions(topic=one.topic, topic_id=one.topic_id, partitions=one.partitions) for one in said]


def offset_outcome(one: OffsetOutcome) -> pb.OffsetResult:
    """The fate of one partition."""
    return pb.OffsetResult(topic=one.topic, partition=one.partition, error=_code(one.error), message=_text(one.error))


def encode_offset(one: OffsetFound) -> pb.CommittedOffset:
    """One committed position, or that there is none."""
    found = one.committed
    if found is None:
        return pb.CommittedOffset(
            topic=one.topic,
            partition=one.partition,
            error=_code(one.error),
            message=_text(one.error),
            offset=NOTHING_COMMITTED,
            leader_epoch=NOTHING_COMMITTED,
        )
    return pb.CommittedOffset(
        topic=one.topic,
        partition=one.partition,
        offset=found.offset,
        leader_epoch=found.leader_epoch,
        metadata=found.metadata,
        committed_at_ms=found.committed_at_ms,
    )


def encode_marker_result(errors: Iterable[HeadraceError | None]) -> transaction_pb2.TxnMarkerResult:
    """What became of one end of a transaction in each of its partitions."""
    return transaction_pb2.TxnMarkerResult(
        partitions=[
            transaction_pb2.TxnMarkerPartitionResult(error=_code(error), message=_text(error)) for error in errors
        ]
    )


def group_state(state: GroupState) -> pb.GroupState.ValueType:
    """The numbers are the same."""
    return pb.GroupState.ValueType(state.value)


def group_protocol(protocol: GroupProtocol | None) -> pb.GroupProtocol.ValueType:
    """The numbers are the same; unspecified where only offsets were committed."""
    return pb.GROUP_PROTOCOL_UNSPECIFIED if protocol is None else pb.GroupProtocol.ValueType(protocol.value)


def encode_listing(one: GroupListing) -> pb.GroupListing:
    return pb.GroupListing(
        group_id=one.group_id,
        protocol=group_protocol(one.protocol),
        state=group_state(one.state),
        members=one.members,
    )


def description(one: Described, coordinator: int) -> pb.GroupDescription:
    """One group as it was found, or why it was not."""
    found = one.found
    if isinstance(found, HeadraceError):
        return pb.GroupDescription(
            group_id=one.group_id,
            error=_code(found),
            message=_text(found),
            coordinator=coordinator,
            shard=max(0, one.shard),
        )
    return pb.GroupDescription(
        group_id=one.group_id,
        protocol=group_protocol(found.protocol),
        state=group_state(found.state),
        generation=found.generation,
        assignment_epoch=found.assignment_epoch,
        assignor=found.assignor,
        members=map(_member, found.members),
        coordinator=coordinator,
        shard=one.shard,
        items=map(_item, found.items),
        terms=found.terms,
    )


def _item(one: ItemDescription) -> pb.WorkItemDescription:
    item = one.item
    return pb.WorkItemDescription(
        item=pb.WorkItem(id=item.id, weight=item.weight, stateful=item.stateful, standbys=item.standbys),
        owner=one.owner,
        epoch=one.epoch,
        followers=[pb.WorkFollower(member_id=f.member_id, warm_up=f.warm_up, lag=f.lag) for f in one.followers],
    )


def _member(one: MemberDescription) -> pb.MemberDescription:
    return pb.MemberDescription(
        member_id=one.member_id,
        group_instance_id=one.instance_id,
        client_id=one.client_id,
        client_address=one.client_address,
        member_epoch=one.member_epoch,
        state=one.state,
        topics=one.topics,
        pattern=one.pattern,
        assigned=_partitions(one.assigned),
        target=_partitions(one.target),
        process_id=one.process_id,
        endpoint=one.endpoint,
        zone=one.zone,
        transactional_id=one.transactional_id,
    )


def group_result(group_id: str, error: HeadraceError | None) -> pb.GroupResult:
    """The fate of one group that was to be deleted."""
    return pb.GroupResult(group_id=group_id, error=_code(error), message=_text(error))
