"""A group of the server-side protocol in memory: epochs, target, reconciliation. Owned by ``memory_groups``."""

from __future__ import annotations

import re
from collections.abc import Callable

from libs.sdk.tests.twin.memory_member import (
    Line,
    Member,
    Topics,
    partition_set,
    partitions_in,
    subscription_of,
)

from headrace.errors import ErrorCode
from headrace_common.core.assignors import assign
from headrace_common.core.ids import TopicPartition
from headrace_proto.v1 import coordinator_pb2 as pb
from headrace_proto.v1 import errors_pb2

LEAVE, LEAVE_STATIC = -1, -2


class MemoryTargetGroup:
    """One group; every method is called under the coordinator's lock."""

    kind = pb.CONSUMER

    def __init__(self, topics: Callable[[], Topics], heartbeat_interval_ms: int) -> None:
        self.members: dict[str, Member] = {}
        self.generation = 0
        self._topics = topics
        self._beat_ms = heartbeat_interval_ms
        self._target: dict[str, frozenset[TopicPartition]] = {}
        self._counts: dict[str, int] = {}

    @property
    def state(self) -> pb.GroupState.ValueType:
        """As it is described."""
        if not self.members:
            return pb.EMPTY
        settled = all(
            m.epoch == self.generation and m.assigned == self._target.get(m.member_id) for m in self.members.values()
        )
        return pb.STABLE if settled else pb.RECONCILING

    # --- requests -------------------------------------------------------------------------------------------------

    def beat(self, line: Line, request: pb.ConsumerHeartbeat) -> None:
        """Join, report, or leave."""
        if request.member_epoch < 0:
            self._leave(line, request)
            return
        member = self.members.get(request.member_id)
        if request.member_epoch == 0:
            error = self._join(line, request)
            member = self.members.get(request.member_id)
        elif member is None:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        elif request.member_epoch > member.epoch:
            error = ErrorCode.FENCED_MEMBER_EPOCH
        else:
            error = None
        if error is not None or member is None:
            state = pb.ConsumerState(error=_wire(error or ErrorCode.UNKNOWN_MEMBER_ID), message=str(error))
            line.push(pb.MembershipResponse(consumer_state=state))
            return
        member.line = line
        before = (member.topics, member.pattern, member.assignor)
        if request.HasField("subscription"):
            member.topics = tuple(request.subscription.topics)
            member.pattern = request.subscription.pattern if request.subscription.HasField("pattern") else None
        if request.HasField("assignor"):
            member.assignor = request.assignor
        if request.HasField("owned"):
            owned = partitions_in(request.owned.topics)
            member.releasing &= owned
            member.unconfirmed -= owned
        if (member.topics, member.pattern, member.assignor) != before:
            self._aim()
        self._reconcile()
        self._say(member, whole=request.HasField("owned") or request.member_epoch == 0)

    def _join(self, line: Line, request: pb.ConsumerHeartbeat) -> ErrorCode | None:
        instance = request.group_instance_id if request.HasField("group_instance_id") else None
        old = next((m for m in self.members.values() if instance is not None and m.instance_id == instance), None)
        known = self.members.get(request.member_id)
        if old is not None and old is not known and not old.away:
            return ErrorCode.UNRELEASED_INSTANCE_ID
        member = Member(request.member_id, instance, line, topics=("",))
        if old is not None:
            del self.members[old.member_id]
            self._target[member.member_id] = self._target.pop(old.member_id, frozenset())
            member.topics, member.pattern, member.assignor = old.topics, old.pattern, old.assignor
            member.epoch, member.assigned = old.epoch, old.assigned
            member.unconfirmed = old.assigned
        self.members[member.member_id] = member
        return None

    def _leave(self, line: Line, request: pb.ConsumerHeartbeat) -> None:
        member = self.members.get(request.member_id)
        state = pb.ConsumerState(member_id=request.member_id, member_epoch=request.member_epoch)
        line.push(pb.MembershipResponse(consumer_state=state))
        if member is None:
            return
        if request.member_epoch == LEAVE_STATIC:
            member.away, member.releasing, member.unconfirmed = True, frozenset(), frozenset()
        else:
            self.remove(request.member_id)

    def refuses_commit(self, member_id: str, epoch: int) -> ErrorCode | None:
        """Whether a commit of this member may not be taken."""
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.STALE_MEMBER_EPOCH if epoch != member.epoch else None

    def remove(self, member_id: str) -> None:
        """It left, or is out."""
        if self.members.pop(member_id, None) is not None:
            self._aim()
            self._reconcile()

    def topics_changed(self) -> None:
        """There are other topics, or more partitions."""
        if self.members and self._counts != {name: count for name, (_, count) in self._topics().items()}:
            self._aim()
            self._reconcile()

    # --- target and reconciliation --------------------------------------------------------------------------------

    def _aim(self) -> None:
        """A new group epoch, and who is to have what in it."""
        self.generation += 1
        self._counts = {name: count for name, (_, count) in self._topics().items()}
        subscriptions = {}
        for member in self.members.values():
            names = set(member.topics)
            if member.pattern is not None:
                names.update(filter(re.compile(member.pattern).fullmatch, self._counts))
            subscriptions[member.member_id] = subscription_of(member, names)
        wished = {m.assignor for m in self.members.values()} - {""}
        name = wished.pop() if len(wished) == 1 else "uniform"
        shares = assign(name, subscriptions, self._counts)
        self._target = {
            member: frozenset(TopicPartition(topic, number) for topic, numbers in share.items() for number in numbers)
            for member, share in shares.items()
        }

    def _reconcile(self) -> None:
        """Move every member as far as it can go, and tell those that moved."""
        before = {m.member_id: (m.epoch, m.assigned) for m in self.members.values()}
        for member in self.members.values():
            gone = member.assigned - self._target[member.member_id] - member.unconfirmed
            member.assigned -= gone
            if not member.away:
                member.releasing |= gone
        for member in self.members.values():
            if member.releasing or member.assigned - self._target[member.member_id]:
                continue
            member.epoch = self.generation
            taken = {tp for m in self.members.values() if m is not member for tp in m.assigned | m.releasing}
            assigned = frozenset(self._target[member.member_id] - taken)
            if not member.away:
                member.unconfirmed = (member.unconfirmed & assigned) | (assigned - member.assigned)
            member.assigned = assigned
        for member in self.members.values():
            if (member.epoch, member.assigned) != before[member.member_id]:
                self._say(member, whole=True)

    def _say(self, member: Member, *, whole: bool) -> None:
        state = pb.ConsumerState(
            member_id=member.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=self._beat_ms,
            session_timeout_ms=45_000,
        )
        if whole:
            state.assignment.topics.extend(partition_set(member.assigned, self._topics()))
            state.assignment.SetInParent()
        member.line.push(pb.MembershipResponse(consumer_state=state))


def _wire(error: ErrorCode) -> errors_pb2.ErrorCode.ValueType:
    return errors_pb2.ErrorCode.ValueType(error)
