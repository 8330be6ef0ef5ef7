"""The ``Coordinators`` port in memory, for tests: the groups of a ``MemoryCluster``, and the rules that guard them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from services.admin.tests.twin.memory_cluster import MemoryCluster

from headrace_admin.ports import CoordinatorPlace
from headrace_common.core.errors import (
    GroupNotFound,
    GroupSubscribedToTopic,
    HeadraceError,
    NetworkFailed,
    NonEmptyGroup,
    NotCoordinator,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from headrace_common.core.ids import TopicPartition
from headrace_common.core.image import ShardKey, ShardKind
from headrace_common.rpc.status import detail_of
from headrace_proto.v1 import coordinator_pb2 as pb

A = TypeVar("A")


@dataclass
class _Group:
    members: dict[str, pb.MemberDescription] = field(default_factory=dict)
    offsets: dict[TopicPartition, pb.OffsetCommit] = field(default_factory=dict)
    generation: int = 0


class MemoryCoordinators:
    """One for all coordinators; those in ``down`` cannot be reached, shards in ``loading`` are not served yet."""

    def __init__(self, cluster: MemoryCluster, committed_at_ms: int = 1_700_000_000_000) -> None:
        self._cluster = cluster
        self._committed_at_ms = committed_at_ms
        self._groups: dict[str, _Group] = {}
        self.down: set[int] = set()
        self.loading: set[int] = set()
        self.lost = 0
        """So many answers are lost from now on, after the request was carried out."""
        self.asked: list[str] = []
        """The names of what was asked for, in order."""

    def join(self, group: str, member: str, assigned: Mapping[str, Iterable[int]], client: str = "app") -> None:
        """A member that holds partitions."""
        self._made(group).members[member] = pb.MemberDescription(
            member_id=member,
            client_id=client,
            client_address="10.0.0.7:4711",
            member_epoch=1,
            state="STABLE",
            topics=list(assigned),
            assigned=[pb.TopicPartitions(topic=t, partitions=list(n)) for t, n in assigned.items()],
        )
        self._made(group).generation += 1

    def leave(self, group: str, member: str) -> None:
        """It is gone."""
        del self._made(group).members[member]
        self._made(group).generation += 1

    def commit(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """As its members did."""
        for (topic, number), offset in offsets.items():
            self._made(group).offsets[TopicPartition(topic, number)] = pb.OffsetCommit(
                topic=topic, partition=number, offset=offset, leader_epoch=-1
            )

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """What is committed now."""
        return {p: o.offset for p, o in self._groups[group].offsets.items()} if group in self._groups else {}

    def _made(self, group: str) -> _Group:
        return self._groups.setdefault(group, _Group())

    # --- Coordinators ---------------------------------------------------------------------------------------------

    async def list_groups(self, place: CoordinatorPlace, request: pb.ListGroupsRequest) -> pb.ListGroupsResponse:
        """Those of its shards that are loaded."""
        self._reach(place, "list_groups")
        owned = {key.number for key, s in self._cluster.image.shards.items() if s.owner == place.id}
        mine = [i for i in sorted(self._groups) if self._cluster.shard_of(i) in owned - self.loading]
        listed = [self._described(i) for i in mine]
        return pb.ListGroupsResponse(
            groups=[
                pb.GroupListing(group_id=g.group_id, protocol=g.protocol, state=g.state, members=len(g.members))
                for g in listed
                if not request.states or g.state in request.states
            ],
            loading=sorted(owned & self.loading),
        )

    async def describe_groups(
        self, place: CoordinatorPlace, request: pb.DescribeGroupsRequest
    ) -> pb.DescribeGroupsResponse:
        """Each by itself."""
        self._reach(place, "describe_groups")
        answer = pb.DescribeGroupsResponse()
        for i in request.group_ids:
            try:
                self._check(place, i)
                self._found(i)
            except HeadraceError as error:
                detail = detail_of(error)
                answer.groups.add(group_id=i, error=detail.code, message=detail.message)
            else:
                answer.groups.append(self._described(i))
        return self._answered(answer)

    def _described(self, i: str) -> pb.GroupDescription:
        group = self._groups[i]
        return pb.GroupDescription(
            group_id=i,
            protocol=pb.CONSUMER,
            state=pb.STABLE if group.members else pb.EMPTY,
            generation=group.generation,
            assignment_epoch=group.generation,
            assignor="uniform",
            members=group.members.values(),
            coordinator=self._cluster.coordinator_of(i),
            shard=self._cluster.shard_of(i),
        )

    async def fetch_offsets(self, place: CoordinatorPlace, request: pb.FetchOffsetsRequest) -> pb.FetchOffsetsResponse:
        """Those named, or all."""
        self._reach(place, "fetch_offsets")
        self._check(place, request.group_id)
        group = self._groups.get(request.group_id, _Group())
        named = {TopicPartition(t.topic, n) for t in request.partitions for n in t.partitions}
        answer = pb.FetchOffsetsResponse()
        for p in sorted(named or group.offsets):
            known = group.offsets.get(p)
            answer.offsets.add(
                topic=p.topic,
                partition=p.partition,
                offset=known.offset if known is not None else -1,
                leader_epoch=known.leader_epoch if known is not None else -1,
                metadata=known.metadata if known is not None else "",
                committed_at_ms=self._committed_at_ms if known is not None else 0,
            )
        return self._answered(answer)

    async def commit_offsets(
        self, place: CoordinatorPlace, request: pb.CommitOffsetsRequest
    ) -> pb.CommitOffsetsResponse:
        """Only without members, for nobody here speaks as one."""
        self._reach(place, "commit_offsets")
        self._check(place, request.group_id)
        group = self._made(request.group_id)
        answer = pb.CommitOffsetsResponse()
        for o in request.offsets:
            topic = self._cluster.image.topic(o.topic)
            error: HeadraceError | None = None
            if group.members:
                error = UnknownMemberId("the group has members; only they commit")
            elif topic is None or o.partition >= topic.partition_count:
                error = UnknownTopicOrPartition(f"{o.topic}-{o.partition} does not exist")
            else:
                group.offsets[TopicPartition(o.topic, o.partition)] = o
            answer.results.append(_result(o.topic, o.partition, error))
        return self._answered(answer)

    async def delete_groups(self, place: CoordinatorPlace, request: pb.DeleteGroupsRequest) -> pb.DeleteGroupsResponse:
        """Each by itself."""
        self._reach(place, "delete_groups")
        answer = pb.DeleteGroupsResponse()
        for i in request.group_ids:
            result = answer.groups.add(group_id=i)
            try:
                self._check(place, i)
                if self._found(i).members:
                    raise NonEmptyGroup(f"group {i!r} has members; stop them first")
            except HeadraceError as error:
                detail = detail_of(error)
                result.error, result.message = detail.code, detail.message
            else:
                del self._groups[i]
        return self._answered(answer)

    async def delete_offsets(
        self, place: CoordinatorPlace, request: pb.DeleteOffsetsRequest
    ) -> pb.DeleteOffsetsResponse:
        """Those of topics that nobody subscribes to."""
        self._reach(place, "delete_offsets")
        self._check(place, request.group_id)
        group = self._found(request.group_id)
        subscribed = {t for m in group.members.values() for t in m.topics}
        answer = pb.DeleteOffsetsResponse()
        for topic, n in ((t.topic, n) for t in request.partitions for n in t.partitions):
            error = GroupSubscribedToTopic(f"a member reads {topic!r}; stop it first") if topic in subscribed else None
            if error is None:
                group.offsets.pop(TopicPartition(topic, n), None)
            answer.results.append(_result(topic, n, error))
        return self._answered(answer)

    def _reach(self, place: CoordinatorPlace, what: str) -> None:
        self.asked.append(what)
        if place.id in self.down:
            raise NetworkFailed(f"coordinator {place.id} does not answer")

    def _check(self, place: CoordinatorPlace, group: str) -> None:
        number = self._cluster.shard_of(group)
        shard = self._cluster.image.shards.get(ShardKey(ShardKind.GROUPS, number))
        if shard is None or shard.owner != place.id or number in self.loading:
            raise NotCoordinator(f"coordinator {place.id} does not serve shard {number}")

    def _found(self, i: str) -> _Group:
        group = self._groups.get(i)
        if group is None:
            raise GroupNotFound(f"there is no group {i!r}")
        return group

    def _answered(self, answer: A) -> A:
        if self.lost:
            self.lost -= 1
            raise NetworkFailed("the connection broke before the answer came")
        return answer


def _result(topic: str, partition: int, error: HeadraceError | None) -> pb.OffsetResult:
    result = pb.OffsetResult(topic=topic, partition=partition)
    if error is not None:
        detail = detail_of(error)
        result.error, result.message = detail.code, detail.message
    return result
