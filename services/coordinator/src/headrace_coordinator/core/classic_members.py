"""The members of a classic group: who they are, what each is waited for, and which assignors all of them know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from headrace_common.core.errors import HeadraceError
from headrace_coordinator.core.effects import MemberDescription
from headrace_coordinator.core.identity import identify
from headrace_coordinator.core.records import ClassicMemberRecord
from headrace_coordinator.core.values import ClassicAssignment, ClassicSubscription

Protocols = tuple[tuple[str, ClassicSubscription], ...]


class Awaits(Enum):
    """Which answer a member waits for."""

    NOTHING = ""
    JOIN = "JOIN"
    SYNC = "SYNC"


@dataclass(slots=True)
class ClassicMember:
    member_id: str
    instance_id: str | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    client_id: str
    client_address: str
    protocols: Protocols
    assignment: ClassicAssignment = field(default_factory=ClassicAssignment)
    announced: bool = False
    """It has been told its id; until then nobody but its stream knows of it, and it is not in the record."""
    awaits: Awaits = Awaits.NOTHING
    deadline_ms: float = 0.0
    """Monotonic; when it is out unless it is heard before. While an answer is awaited over a living stream: never."""

    def subscription(self, protocol: str) -> ClassicSubscription:
        """What it says to the assignor of this name; nothing, if it does not know that one."""
        return next((s for name, s in self.protocols if name == protocol), ClassicSubscription(()))

    def topics(self) -> frozenset[str]:
        return frozenset(topic for _, subscription in self.protocols for topic in subscription.topics)

    def describe(self, *, assigned: bool) -> MemberDescription:
        """For people. ``assigned``: the group is stable, so what it was assigned is in force."""
        return MemberDescription(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_address=self.client_address,
            member_epoch=-1,
            state=self.awaits.value,
            topics=tuple(sorted(self.topics())),
            pattern=None,
            assigned=self.assignment.partitions if assigned else (),
        )

    def record(self) -> ClassicMemberRecord:
        """Its durable part."""
        return ClassicMemberRecord(
            member_id=self.member_id,
            instance_id=self.instance_id,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            client_id=self.client_id,
            client_address=self.client_address,
            protocols=self.protocols,
            assignment=self.assignment,
        )

    @staticmethod
    def restore(record: ClassicMemberRecord) -> ClassicMember:
        """The member of a record."""
        return ClassicMember(
            member_id=record.member_id,
            instance_id=record.instance_id,
            session_timeout_ms=record.session_timeout_ms,
            rebalance_timeout_ms=record.rebalance_timeout_ms,
            client_id=record.client_id,
            client_address=record.client_address,
            protocols=record.protocols,
            assignment=record.assignment,
            announced=True,
        )


class ClassicMembers:
    """All members of one group, in the order in which they came."""

    __slots__ = ("_by_id", "_by_instance", "_known_by")

    def __init__(self) -> None:
        self._by_id: dict[str, ClassicMember] = {}
        self._by_instance: dict[str, str] = {}
        self._known_by: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[ClassicMember]:
        return iter(self._by_id.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._by_id

    def get(self, member_id: str) -> ClassicMember | None:
        """The member of this id."""
        return self._by_id.get(member_id)

    def holder(self, instance_id: str | None) -> ClassicMember | None:
        """Who has this instance id."""
        return None if instance_id is None else self._by_id.get(self._by_instance.get(instance_id, ""))

    def identify(self, member_id: str, instance_id: str | None) -> ClassicMember | HeadraceError:
        """The member that speaks, or why it may not: it is not known, or another one has its instance id."""
        return identify(self._by_id.get(member_id), self.holder(instance_id), member_id, instance_id)

    def add(self, member: ClassicMember) -> None:
        assert member.member_id not in self._by_id, "member ids are unique"
        self._by_id[member.member_id] = member
        if member.instance_id is not None:
            self._by_instance[member.instance_id] = member.member_id
        self._known_by.update({name for name, _ in member.protocols})

    def remove(self, member: ClassicMember) -> None:
        del self._by_id[member.member_id]
        if member.instance_id is not None:
            del self._by_instance[member.instance_id]
        self._known_by.subtract({name for name, _ in member.protocols})

    def change_protocols(self, member: ClassicMember, protocols: Protocols) -> None:
        """It has joined again with these."""
        self._known_by.subtract({name for name, _ in member.protocols})
        member.protocols = protocols
        self._known_by.update({name for name, _ in protocols})

    def compatible(self, protocols: Protocols, besides: ClassicMember | None) -> bool:
        """Whether a member with these shares an assignor with all the others; ``besides``: itself as it was."""
        own = set() if besides is None else {name for name, _ in besides.protocols}
        others = len(self._by_id) - (besides is not None)
        return any(self._known_by[name] - (name in own) == others for name, _ in protocols)

    def vote(self) -> str:
        """The assignor that most members prefer of those that all know; of equals the first member's favourite."""
        assert self._by_id, "there is nobody to vote"
        common = {name for name, knowing in self._known_by.items() if knowing == len(self._by_id)}
        assert common, "who shares no assignor was not let in"
        votes: Counter[str] = Counter()
        for member in self._by_id.values():
            votes[next(name for name, _ in member.protocols if name in common)] += 1
        favourites = [name for name, _ in next(iter(self._by_id.values())).protocols if name in common]
        return max(favourites, key=lambda name: (votes[name], -favourites.index(name)))
