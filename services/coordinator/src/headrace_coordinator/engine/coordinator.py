"""
The coordinator's engine: which shards this node keeps, and which of them a call is for.

It follows the image: a shard whose owner or epoch is another than that of the host is let go of at once, one that is
new here is taken over. The servicer calls one method per RPC. One event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from headrace_common.core.access.control import EVERYTHING, Rights
from headrace_common.core.assignors import racks_of
from headrace_common.core.errors import (
    HeadraceError,
    NotCoordinator,
    Rejected,
    UnknownTopicId,
    UnsupportedVersion,
)
from headrace_common.core.features import WORK_GROUPS, say_too_low
from headrace_common.core.ids import NodeId, PartitionId
from headrace_common.core.image import INTERNAL_TOPICS, ClusterImage, ShardKind, Topic
from headrace_common.core.murmur2 import partition_for
from headrace_common.runtime.entropy import new_incarnation
from headrace_common.runtime.failpoints import failpoint
from headrace_coordinator.core.effects import (
    ConsumerStanding,
    GroupDescription,
    GroupListing,
    MarkerOutcomes,
    OffsetOutcomes,
    OffsetsFound,
    WorkStanding,
)
from headrace_coordinator.core.events import (
    AdminEvent,
    ClassicJoined,
    CommitAsked,
    ConsumerHeartbeat,
    DescriptionAsked,
    GroupDeletionAsked,
    Marker,
    MarkersAsked,
    MemberEvent,
    OffsetsAsked,
    OffsetsDeletionAsked,
    OffsetToCommit,
    TxnCommitAsked,
    WorkHeartbeat,
)
from headrace_coordinator.core.offsets import Transaction
from headrace_coordinator.core.values import GroupState, Moment, TopicInfo, Topics
from headrace_coordinator.engine.host_ports import HostPorts
from headrace_coordinator.engine.kept_shards import KeptShards
from headrace_coordinator.engine.shard_host import ShardHost
from headrace_coordinator.engine.streams import MemberStream

PartitionsByTopic = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Who:
    """This process."""

    node_id: NodeId
    incarnation: bytes
    cluster_id: str = ""


@dataclass(frozen=True, slots=True)
class Committer:
    """Who commits or reads offsets, as it says itself."""

    member_id: str
    instance_id: str | None
    generation: int


@dataclass(frozen=True, slots=True)
class Described:
    """What is known of a group that was asked for."""

    group_id: str
    shard: int
    found: GroupDescription | HeadraceError


class Coordinator:
    """One per process."""

    def __init__(self, who: Who, ports: HostPorts) -> None:
        self.who = who
        self._ports = ports
        self._topics: Topics = {}
        self._shards = KeptShards(
            ShardKind.GROUPS, who.node_id, lambda number, epoch: ShardHost(number, epoch, ports, self._topics)
        )
        self._hosts = self._shards.hosts
        self._seen: ClusterImage | None = None
        self._streams = 0

    # --- shards -----------------------------------------------------------------------------------------------

    async def follow(self) -> None:
        """Take on and let go of shards as the image says; runs until cancelled."""
        async for image in self._ports.cluster.images():
            self._apply(image)

    def _apply(self, image: ClusterImage) -> None:
        before, self._seen = self._seen, image
        topics, known = _topics_of(image, before, self._topics), self._topics
        self._topics = topics
        for host in self._hosts.values():
            if before is not None and image.access is not before.access:
                host.access_changed(topics)
            elif topics is not known:
                host.topics_changed(topics)
        self._shards.settle(image)
        self._ports.room.shards = self._shards.count

    def stop(self) -> None:
        """Let go of everything: the process ends."""
        self._shards.stop()

    def _host(self, group_id: str) -> ShardHost:
        """
        Raises:
            NotCoordinator: this node does not have the group's shard.
        """
        if not self._shards.count:
            raise NotCoordinator("there are no groups yet; find the group's coordinator, which makes their topic")
        number = self.shard_of(group_id)
        host = self._hosts.get(number)
        if host is None:
            raise NotCoordinator(f"shard {number} of group {group_id!r} is not here; find its coordinator")
        return host

    def shard_of(self, group_id: str) -> int:
        """The shard of a group; -1: there are none yet."""
        return partition_for(group_id.encode(), self._shards.count) if self._shards.count else -1

    # --- members ----------------------------------------------------------------------------------------------

    def moment(self) -> Moment:
        """Now, as events have it."""
        return self._ports.moment()

    def fresh_id(self, name: str) -> str:
        """A member id that nobody has."""
        return f"{name}-{UUID(bytes=new_incarnation(), version=4)}"

    def open_stream(self, group_id: str, address: str, rights: Rights = EVERYTHING) -> MemberStream:
        """
        The stream of one Membership call, whose caller has these rights.

        Raises:
            HeadraceError: the group is not served here, or not now.
        """
        self._streams += 1
        return self._host(group_id).open_stream(self._streams, group_id, address, rights)

    def say(self, stream: MemberStream, event: MemberEvent) -> None:
        """
        A member's request. What follows from it comes over the stream.

        Raises:
            HeadraceError: the group is not served here any more; the stream has ended.
            GroupAuthorizationFailed: the member's caller may not READ the group any more.
        """
        stream.check()
        if isinstance(event, ClassicJoined):
            event = replace(event, protocols=stream.sight.filter_protocols(event.protocols))
        if isinstance(event, ConsumerHeartbeat) and event.subscription is not None:
            try:
                event = self._match_pattern(event)
            except Rejected as error:
                stream.send(ConsumerStanding(error, event.member_id))
                return
        if isinstance(event, WorkHeartbeat) and event.member_epoch == 0:
            image = self._ports.cluster.image
            if not image.has(WORK_GROUPS):
                too_low = UnsupportedVersion(say_too_low("a work group", WORK_GROUPS, image.feature_level))
                stream.send(WorkStanding(too_low, event.member_id))
                return
        self._host(stream.group_id).post(event)

    def _match_pattern(self, event: ConsumerHeartbeat) -> ConsumerHeartbeat:
        pattern = None if event.subscription is None else event.subscription.pattern
        if pattern is None:
            return event
        self._ports.patterns.check(pattern)
        return replace(event, matched=self._ports.patterns.find_matching(pattern, self._topics))

    def broke(self, stream: MemberStream) -> None:
        """No more requests come over the stream. Once."""
        host = self._hosts.get(self.shard_of(stream.group_id))
        if host is not None:
            host.stream_broke(stream)

    def close_stream(self, stream: MemberStream) -> None:
        """The call has ended."""
        host = self._hosts.get(self.shard_of(stream.group_id))
        if host is not None:
            host.close_stream(stream)

    # --- offsets ----------------------------------------------------------------------------------------------

    async def commit(self, group_id: str, by: Committer, offsets: Sequence[OffsetToCommit]) -> OffsetOutcomes:
        """
        Commit positions; those without an error are durable.

        Raises:
            HeadraceError: nothing is known of any of them.
        """
        clock = self._ports.clock
        began = clock.monotonic_ms()

        def asked(ref: object) -> AdminEvent:
            at = self.moment()
            return CommitAsked(group_id, ref, at, by.member_id, by.instance_id, by.generation, tuple(offsets))

        found = await self._host(group_id).ask(asked)
        self._ports.measures.committed(clock.monotonic_ms() - began)
        assert isinstance(found, OffsetOutcomes), "that is what commits are answered with"
        return found

    async def commit_in_transaction(
        self, group_id: str, by: Committer, transaction: Transaction, offsets: Sequence[OffsetToCommit]
    ) -> OffsetOutcomes:
        """
        Positions that are committed if and when the transaction is; those without an error are durable.

        Raises:
            HeadraceError: nothing is known of any of them.
        """
        clock = self._ports.clock
        began = clock.monotonic_ms()

        def asked(ref: object) -> AdminEvent:
            return TxnCommitAsked(
                group_id,
                ref,
                self.moment(),
                by.member_id,
                by.instance_id,
                by.generation,
                tuple(offsets),
                transaction.transactional_id,
                transaction.producer_id,
                transaction.epoch,
            )

        found = await self._host(group_id).ask(asked)
        failpoint("txn.offsets.write.after")
        self._ports.measures.committed(clock.monotonic_ms() - began)
        assert isinstance(found, OffsetOutcomes), "that is what commits are answered with"
        return found

    async def end_transactions(
        self, ends: Sequence[tuple[Marker, Sequence[PartitionId]]]
    ) -> list[list[HeadraceError | None]]:
        """Ends of transactions in shards of groups; for each and each shard: None, it is durable, or why it is not."""
        by_shard: dict[PartitionId, list[Marker]] = {}
        for marker, ids in ends:
            for id in ids:
                by_shard.setdefault(id, []).append(marker)
        found = await asyncio.gather(*(self._end_in_shard(id, tuple(markers)) for id, markers in by_shard.items()))
        answered = {id: iter(outcomes) for id, outcomes in zip(by_shard, found, strict=True)}
        failpoint("txn.offsets.marker.after")
        return [[next(answered[id]) for id in ids] for _, ids in ends]

    async def _end_in_shard(self, id: PartitionId, markers: tuple[Marker, ...]) -> tuple[HeadraceError | None, ...]:
        try:
            host = self._host_of(id)
            found = await host.ask(lambda ref: MarkersAsked(ref, self.moment(), markers))
        except HeadraceError as error:
            return (error,) * len(markers)
        assert isinstance(found, MarkerOutcomes), "that is what ends are answered with"
        return found.outcomes

    def _host_of(self, id: PartitionId) -> ShardHost:
        """
        Raises:
            NotCoordinator: this node does not have the shard.
            UnknownTopicId: this is no partition of groups.
        """
        host = self._hosts.get(id.partition)
        topic = self._ports.cluster.image.topic(INTERNAL_TOPICS[ShardKind.GROUPS])
        if topic is not None and topic.topic_id != id.topic_id:
            raise UnknownTopicId("only shards of groups have ends of transactions told here; ask the leaders of others")
        if topic is None or host is None:
            raise NotCoordinator(f"shard {id.partition} of groups is not here; find who keeps it")
        return host

    async def offsets(
        self,
        group_id: str,
        member_id: str | None,
        member_epoch: int | None,
        partitions: PartitionsByTopic | None,
        *,
        require_stable: bool = False,
    ) -> OffsetsFound:
        """
        Committed positions: all that was acknowledged before this call is seen, by whichever coordinator.

        Args:
            require_stable: where an undecided transaction has a position, tell that instead.

        Raises:
            HeadraceError: the member is out, or the group is not served here.
        """

        def asked(ref: object) -> AdminEvent:
            return OffsetsAsked(group_id, ref, self.moment(), member_id, member_epoch, partitions, require_stable)

        found = await self._host(group_id).ask(asked)
        assert isinstance(found, OffsetsFound), "that is what reads are answered with"
        return found

    async def delete_offsets(self, group_id: str, partitions: PartitionsByTopic) -> OffsetOutcomes:
        """
        Forget committed positions.

        Raises:
            HeadraceError: nothing is known of any of them.
        """

        def asked(ref: object) -> AdminEvent:
            return OffsetsDeletionAsked(group_id, ref, self.moment(), partitions)

        found = await self._host(group_id).ask(asked)
        assert isinstance(found, OffsetOutcomes), "that is what deletions are answered with"
        return found

    # --- groups -----------------------------------------------------------------------------------------------

    def list_groups(self, states: Collection[GroupState]) -> tuple[list[GroupListing], list[int]]:
        """The groups of all shards served here, in these states (none: in any); and the shards that still load."""
        groups = [
            group
            for host in self._hosts.values()
            for group in host.list_groups()
            if not states or group.state in states
        ]
        return sorted(groups, key=lambda g: g.group_id), self._shards.list_loading()

    async def describe(self, group_id: str) -> Described:
        """What is known of one group, here and now."""
        shard = self.shard_of(group_id)
        try:
            found = await self._host(group_id).ask(lambda ref: DescriptionAsked(group_id, ref, self.moment()))
        except HeadraceError as error:
            return Described(group_id, shard, error)
        assert isinstance(found, GroupDescription), "that is what descriptions are"
        return Described(group_id, shard, found)

    async def delete_group(self, group_id: str) -> HeadraceError | None:
        """Forget a group and its offsets; None: done, and durable."""
        try:
            await self._host(group_id).ask(lambda ref: GroupDeletionAsked(group_id, ref, self.moment()))
        except HeadraceError as error:
            return error
        return None

    # --- measuring --------------------------------------------------------------------------------------------

    @property
    def hosts(self) -> list[ShardHost]:
        """Of all shards that are this node's."""
        return list(self._hosts.values())

    @property
    def topics(self) -> Topics:
        return self._topics


def _topics_of(image: ClusterImage, before: ClusterImage | None, known: Topics) -> Topics:
    """What groups are told of topics; ``known``, which is that of ``before``, where nothing is new in it."""
    by_node: dict[int, str] = {node.key.id: node.rack for node in image.brokers() if node.rack}
    if before is not None and before.topics is image.topics:
        racks_before: dict[int, str] = {node.key.id: node.rack for node in before.brokers() if node.rack}
        if by_node == racks_before and (not by_node or before.partitions is image.partitions):
            return known
    topics = {
        topic.name: TopicInfo(topic.topic_id, topic.partition_count, _racks(image, topic, by_node))
        for topic in image.topics.values()
        if not topic.internal
    }
    return topics if before is None or before.topics is not image.topics or topics != known else known


def _racks(image: ClusterImage, topic: Topic, by_node: Mapping[int, str]) -> tuple[frozenset[str], ...]:
    """Of each partition; empty where no broker has a rack."""
    if not by_node:
        return ()
    return tuple(racks_of(partition.replicas, by_node) for partition in image.partitions_of(topic))
