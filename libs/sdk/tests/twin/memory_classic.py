"""A classic group in memory: the coordinator's half of join, sync and heartbeat. Owned by ``memory_groups``."""

from __future__ import annotations

from collections import Counter
from itertools import count

from libs.sdk.tests.twin.memory_member import Line, Member

from headrace.errors import ErrorCode
from headrace_proto.v1 import coordinator_pb2 as pb
from headrace_proto.v1 import errors_pb2

_IDS = count(1)


class MemoryClassicGroup:
    """One group; every method is called under the coordinator's lock."""

    kind = pb.CLASSIC

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.state = pb.EMPTY
        self.generation = 0
        self.protocol = ""
        self._leader = ""
        self._rounds = 0

    # --- requests -------------------------------------------------------------------------------------------------

    def join(self, line: Line, request: pb.ClassicJoin) -> None:
        """Answered when all have joined."""
        member = self.members.get(request.member_id)
        if request.member_id and member is None:
            self._answer_join(line, request.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
            return
        instance = request.group_instance_id if request.HasField("group_instance_id") else None
        subscriptions = {protocol.name: protocol.subscription for protocol in request.protocols}
        others = [
            m for m in self.members.values() if m is not member and (instance is None or m.instance_id != instance)
        ]
        if others and not set(subscriptions).intersection(*(m.subscriptions for m in others)):
            self._answer_join(line, request.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            return
        if member is None:
            member = Member(f"{request.client_id or 'member'}-{next(_IDS)}", instance, line)
            if self._replaces(member, subscriptions):
                return
            self.members[member.member_id] = member
        member.line, member.subscriptions, member.joins = line, subscriptions, True
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        self._rebalance()

    def _replaces(self, new: Member, subscriptions: dict[str, pb.ClassicSubscription]) -> bool:
        """A static member that was started again takes the place of the old one; True: nobody has to rebalance."""
        old = next((m for m in self.members.values() if new.instance_id and m.instance_id == new.instance_id), None)
        if old is None:
            return False
        del self.members[old.member_id]
        _say_state(old.line, ErrorCode.FENCED_INSTANCE_ID, self.generation)
        if self._leader == old.member_id:
            self._leader = new.member_id
        new.assignment, new.subscriptions = old.assignment, subscriptions
        same = {name: list(s.topics) for name, s in subscriptions.items()} == {
            name: list(s.topics) for name, s in old.subscriptions.items()
        }
        if self.state != pb.STABLE or not same:
            return False
        self.members[new.member_id] = new
        self._joined(new, skip=True)
        return True

    def sync(self, line: Line, request: pb.ClassicSync) -> None:
        """The leader's is for all."""
        member = self.members.get(request.member_id)
        error = self._check(member, request.generation)
        if error is None and self.state == pb.PREPARING_REBALANCE:
            error = ErrorCode.REBALANCE_IN_PROGRESS
        if member is None or error is not None:
            _say_synced(line, error or ErrorCode.UNKNOWN_MEMBER_ID)
            return
        member.line, member.syncs = line, True
        if self.state == pb.COMPLETING_REBALANCE and member.member_id == self._leader:
            given = {entry.member_id: entry.assignment for entry in request.assignments}
            for each in self.members.values():
                each.assignment = given.get(each.member_id, pb.ClassicAssignment())
            self.state = pb.STABLE
        if self.state == pb.STABLE:
            for each in self.members.values():
                if each.syncs:
                    each.syncs = False
                    _say_synced(each.line, ErrorCode.NONE, self.generation, each.assignment)

    def beat(self, line: Line, request: pb.ClassicHeartbeat) -> None:
        """Say how the group is doing."""
        member = self.members.get(request.member_id)
        error = self._check(member, request.generation)
        if member is not None:
            member.line = line
        if error is None and self.state == pb.PREPARING_REBALANCE:
            error = ErrorCode.REBALANCE_IN_PROGRESS
        _say_state(line, error or ErrorCode.NONE, self.generation)

    def _check(self, member: Member | None, generation: int) -> ErrorCode | None:
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.ILLEGAL_GENERATION if generation != self.generation else None

    def refuses_commit(self, member_id: str, generation: int) -> ErrorCode | None:
        """Whether a commit of this member may not be taken."""
        error = self._check(self.members.get(member_id), generation)
        if error is None and self.state == pb.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return error

    def remove(self, member_id: str) -> None:
        """It left, or is out."""
        member = self.members.pop(member_id, None)
        if member is None:
            return
        if member.joins:
            self._answer_join(member.line, member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        self._rebalance()

    # --- rebalances -----------------------------------------------------------------------------------------------

    def _rebalance(self) -> None:
        if self.state != pb.PREPARING_REBALANCE:
            self.state = pb.PREPARING_REBALANCE
            self._rounds += 1
            for member in self.members.values():
                if member.syncs:
                    member.syncs = False
                    _say_synced(member.line, ErrorCode.REBALANCE_IN_PROGRESS)
                if not member.joins:
                    _say_state(member.line, ErrorCode.REBALANCE_IN_PROGRESS, self.generation)
            waits = [m for m in self.members.values() if not m.joins]
            if waits:
                limit, number = max(m.rebalance_timeout_ms for m in self.members.values()), self._rounds
                waits[0].line.later(limit, lambda: self._give_up(number))
        if all(member.joins for member in self.members.values()):
            self._complete()

    def _give_up(self, number: int) -> None:
        """Whoever has not joined in time is out."""
        if number == self._rounds and self.state == pb.PREPARING_REBALANCE:
            late = [m for m in self.members.values() if not m.joins]
            for member in late:
                del self.members[member.member_id]
                _say_state(member.line, ErrorCode.UNKNOWN_MEMBER_ID, self.generation)
            self._complete()

    def _complete(self) -> None:
        self.generation += 1
        if not self.members:
            self.state, self._leader, self.protocol = pb.EMPTY, "", ""
            return
        self.state = pb.COMPLETING_REBALANCE
        if self._leader not in self.members:
            self._leader = next(iter(self.members))
        common = set.intersection(*(set(m.subscriptions) for m in self.members.values()))
        votes = Counter(next(name for name in m.subscriptions if name in common) for m in self.members.values())
        self.protocol = votes.most_common(1)[0][0]
        for member in self.members.values():
            member.joins = False
            self._joined(member)

    def _joined(self, member: Member, *, skip: bool = False) -> None:
        joined = pb.ClassicJoined(
            member_id=member.member_id,
            generation=self.generation,
            protocol=self.protocol,
            leader=self._leader,
            skip_assignment=skip,
        )
        if member.member_id == self._leader:
            for each in self.members.values():
                joined.members.add(
                    member_id=each.member_id,
                    group_instance_id=each.instance_id,
                    subscription=each.subscriptions[self.protocol],
                )
        member.line.push(pb.MembershipResponse(classic_joined=joined))

    @staticmethod
    def _answer_join(line: Line, member_id: str, error: ErrorCode) -> None:
        joined = pb.ClassicJoined(error=_wire(error), message=error.name, member_id=member_id)
        line.push(pb.MembershipResponse(classic_joined=joined))


def _wire(error: ErrorCode) -> errors_pb2.ErrorCode.ValueType:
    return errors_pb2.ErrorCode.ValueType(error)


def _say_state(line: Line, error: ErrorCode, generation: int) -> None:
    state = pb.ClassicState(error=_wire(error), message=error.name, generation=generation)
    line.push(pb.MembershipResponse(classic_state=state))


def _say_synced(
    line: Line, error: ErrorCode, generation: int = -1, assignment: pb.ClassicAssignment | None = None
) -> None:
    synced = pb.ClassicSynced(
        error=_wire(error), message=error.name, generation=max(0, generation), assignment=assignment
    )
    line.push(pb.MembershipResponse(classic_synced=synced))
