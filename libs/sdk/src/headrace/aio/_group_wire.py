"""Between the membership machines' messages and those of ``Membership``. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from headrace._core.group_messages import (
    Answer,
    Beat,
    BeatAnswered,
    Join,
    Joined,
    Leave,
    Left,
    Partitions,
    Report,
    Reported,
    Request,
    Sync,
    Synced,
    WorkReport,
)
from headrace._core.own_assignors import USER_DATA_BYTES_MAX
from headrace.consumer_settings import ConsumerSettings
from headrace.errors import HeadraceError, error_for
from headrace.records import Committed
from headrace_common.core.assignors import MemberSubscription
from headrace_common.core.ids import TopicPartition
from headrace_proto.v1 import coordinator_pb2 as pb

CLIENT_ID_LENGTH_MAX = 255
NO_DATA: Mapping[str, bytes] = MappingProxyType({})


class GroupWire:
    """One member's translator; it remembers topic ids that the coordinator has named."""

    def __init__(self, settings: ConsumerSettings) -> None:
        assert settings.group_id is not None, "only members have one"
        self._settings = settings
        self._group = settings.group
        self._topic_ids: dict[str, bytes] = {}

    # --- up -------------------------------------------------------------------------------------------------------

    def request(self, request: Request, user_data: Mapping[str, bytes] = NO_DATA) -> pb.MembershipRequest:
        """What the machine wants to say; ``user_data``: with a join, of assignors by name."""
        group_id, instance = self._group.group_id, self._group.instance_id
        match request:
            case Join():
                return pb.MembershipRequest(group_id=group_id, classic_join=self._join(request, user_data))
            case Sync(member_id, generation, assignments, counts):
                sync = pb.ClassicSync(member_id=member_id, group_instance_id=instance, generation=generation)
                for member, partitions in assignments.items():
                    assignment = pb.ClassicAssignment(partitions=self._encode_partitions(partitions))
                    if member == member_id:
                        assignment.user_data = _pack_counts(counts)
                    sync.assignments.add(member_id=member, assignment=assignment)
                return pb.MembershipRequest(group_id=group_id, classic_sync=sync)
            case Beat(member_id, generation):
                beat = pb.ClassicHeartbeat(member_id=member_id, group_instance_id=instance, generation=generation)
                return pb.MembershipRequest(group_id=group_id, classic_heartbeat=beat)
            case Report():
                return pb.MembershipRequest(group_id=group_id, consumer_heartbeat=self._report(request))
            case Leave(member_id, reason):
                leave = pb.LeaveGroup(member_id=member_id, group_instance_id=instance, reason=reason)
                return pb.MembershipRequest(group_id=group_id, leave=leave)
            case WorkReport():
                raise AssertionError("no consumer says that")

    def _join(self, request: Join, user_data: Mapping[str, bytes]) -> pb.ClassicJoin:
        settings, group = self._settings, self._group
        join = pb.ClassicJoin(
            member_id=request.member_id,
            group_instance_id=group.instance_id,
            session_timeout_ms=settings.session_timeout_ms,
            rebalance_timeout_ms=settings.max_poll_interval_ms,
            client_id=settings.client_id[:CLIENT_ID_LENGTH_MAX],
            reason=request.reason,
        )
        for name in group.assignors:
            owned = request.held if name in group.cooperative_names else request.assigned
            subscription = pb.ClassicSubscription(
                topics=request.topics,
                owned=self._encode_partitions(owned),
                generation=request.generation,
                rack=settings.client_rack,
                user_data=user_data.get(name, b""),
            )
            join.protocols.add(name=name, subscription=subscription)
        return join

    def _report(self, request: Report) -> pb.ConsumerHeartbeat:
        settings = self._settings
        beat = pb.ConsumerHeartbeat(
            member_id=request.member_id,
            member_epoch=request.epoch,
            group_instance_id=self._group.instance_id,
            client_id=settings.client_id[:CLIENT_ID_LENGTH_MAX],
        )
        if request.whole:
            beat.rebalance_timeout_ms = settings.max_poll_interval_ms
            if settings.client_rack:
                beat.rack = settings.client_rack
            if settings.group_remote_assignor is not None:
                beat.assignor = settings.group_remote_assignor
        if request.topics is not None:
            beat.subscription.topics.extend(request.topics)
            beat.subscription.SetInParent()
            if request.pattern is not None:
                beat.subscription.pattern = request.pattern
        if request.owned is not None:
            beat.owned.topics.extend(self._encode_partitions(request.owned))
            beat.owned.SetInParent()
        return beat

    def _encode_partitions(self, partitions: Partitions) -> list[pb.TopicPartitions]:
        return encode_partitions(partitions, self._topic_ids)

    # --- down -----------------------------------------------------------------------------------------------------

    def answer(self, response: pb.MembershipResponse) -> Answer | None:
        """What the coordinator said; None: something that this version does not know."""
        match response.WhichOneof("response"):
            case "classic_joined":
                return self._decode_joined(response.classic_joined)
            case "classic_synced":
                synced = response.classic_synced
                self._learn(synced.assignment.partitions)
                partitions = partitions_in(synced.assignment.partitions)
                counts = _unpack_counts(synced.assignment.user_data)
                return Synced(_error(synced), synced.generation, partitions, counts)
            case "classic_state":
                state = response.classic_state
                return BeatAnswered(_error(state), state.generation)
            case "consumer_state":
                return self._decode_report(response.consumer_state)
            case "left":
                return Left(_error(response.left))
            case _:
                return None

    def _decode_joined(self, joined: pb.ClassicJoined) -> Joined:
        members: dict[str, MemberSubscription] = {}
        for member in joined.members:
            subscription = member.subscription
            owned: dict[str, list[int]] = {}
            for entry in subscription.owned:
                owned.setdefault(entry.topic, []).extend(entry.partitions)
            members[member.member_id] = MemberSubscription(
                tuple(subscription.topics),
                owned,
                subscription.generation,
                member.group_instance_id if member.HasField("group_instance_id") else None,
                subscription.rack or None,
                subscription.user_data,
            )
        return Joined(
            _error(joined),
            joined.member_id,
            joined.generation,
            joined.protocol,
            joined.leader,
            members,
            joined.skip_assignment,
        )

    def _decode_report(self, state: pb.ConsumerState) -> Reported:
        assignment = None
        if state.HasField("assignment"):
            self._learn(state.assignment.topics)
            assignment = partitions_in(state.assignment.topics)
        return Reported(
            _error(state),
            state.member_id,
            state.member_epoch,
            state.heartbeat_interval_ms,
            assignment,
            state.session_timeout_ms,
        )

    def _learn(self, entries: Iterable[pb.TopicPartitions]) -> None:
        for entry in entries:
            if entry.topic_id:
                self._topic_ids[entry.topic] = entry.topic_id

    def learn_ids(self, topic_ids: Mapping[str, bytes]) -> None:
        """Metadata has named these."""
        self._topic_ids.update(topic_ids)


def encode_partitions(partitions: Iterable[TopicPartition], topic_ids: Mapping[str, bytes]) -> list[pb.TopicPartitions]:
    """One entry per topic."""
    entries: dict[str, pb.TopicPartitions] = {}
    for topic, partition in sorted(partitions):
        if topic not in entries:
            entries[topic] = pb.TopicPartitions(topic=topic, topic_id=topic_ids.get(topic, b""))
        entries[topic].partitions.append(partition)
    return list(entries.values())


def partitions_in(entries: Iterable[pb.TopicPartitions]) -> Partitions:
    """All that the entries name."""
    return frozenset(TopicPartition(entry.topic, number) for entry in entries for number in entry.partitions)


def _pack_counts(counts: Mapping[str, int]) -> bytes:
    """Partition counts in a leader's own assignment; nothing, if they are too many for it."""
    data = "\n".join(f"{count} {topic}" for topic, count in sorted(counts.items())).encode()
    return data if len(data) <= USER_DATA_BYTES_MAX else b""


def _unpack_counts(data: bytes) -> dict[str, int]:
    """The same read; what is written otherwise is nothing."""
    try:
        pairs = [line.split(" ") for line in data.decode().splitlines()]
        return {topic: int(count) for count, topic in pairs}
    except ValueError:
        return {}


def _error(
    answer: pb.ClassicJoined | pb.ClassicSynced | pb.ClassicState | pb.ConsumerState | pb.LeftGroup,
) -> HeadraceError | None:
    return error_for(answer.error, answer.message) if answer.error else None


def commits_of(positions: Iterable[tuple[TopicPartition, Committed]]) -> Iterator[pb.OffsetCommit]:
    """Positions to commit, by themselves or in a transaction."""
    for tp, at in positions:
        yield pb.OffsetCommit(
            topic=tp.topic,
            partition=tp.partition,
            offset=at.offset,
            leader_epoch=at.leader_epoch,
            metadata=at.metadata,
        )
