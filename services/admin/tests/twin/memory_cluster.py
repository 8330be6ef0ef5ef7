"""The ``Cluster``, ``Controllers`` and ``Brokers`` ports in memory, for tests: a small cluster in this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from services.admin.tests.twin.memory_reading import MemoryReading

from headrace_common.core.configs import TOPIC_SETTINGS, check_broker_configs, check_topic_configs
from headrace_common.core.errors import (
    ElectionNotNeeded,
    HeadraceError,
    InvalidPartitions,
    InvalidReplicaAssignment,
    NoReassignmentInProgress,
    NotFound,
    OffsetOutOfRange,
    PreferredLeaderNotAvailable,
    Rejected,
    TopicAlreadyExists,
    UnknownTopicId,
    unknown_topic,
)
from headrace_common.core.ids import Endpoint, NodeId, PartitionId, TopicId, check_topic_name
from headrace_common.core.image import (
    EMPTY_IMAGE,
    ActiveController,
    ClusterImage,
    ImageDelta,
    Node,
    NodeKey,
    Partition,
    Role,
    Topic,
)
from headrace_common.rpc.convert import (
    active_controller_to_proto,
    node_key_from_proto,
    node_to_proto,
    partition_to_proto,
    topic_to_proto,
)
from headrace_common.rpc.status import detail_of
from headrace_proto.v1 import broker_pb2, cluster_pb2
from headrace_proto.v1 import controller_pb2 as pb


class MemoryCluster(MemoryReading):
    """All three ports over one image; brokers in ``down`` cannot be reached."""

    def __init__(self, brokers: Iterable[int] = (1, 2)) -> None:
        super().__init__()
        nodes = {}
        for n in brokers:
            key = NodeKey(Role.BROKER, NodeId(n))
            nodes[key] = Node(key, Endpoint("127.0.0.1", 9290 + n), bytes(16), n, fenced=False, version="0.1.0")
        self.image: ClusterImage = replace(
            EMPTY_IMAGE,
            incarnation=b"m" * 16,
            revision=1,
            cluster_id="memory",
            nodes=nodes,
            active_controller=ActiveController(NodeId(1), 1, Endpoint("127.0.0.1", 9390)),
        )
        self.down: set[int] = set()
        self.ends: dict[PartitionId, int] = {}
        self.sizes: dict[tuple[int, PartitionId], int] = {}
        """Bytes of a log, by broker; 100 where nothing is said."""
        self.starts: dict[PartitionId, int] = {}
        self.oldest: dict[PartitionId, int] = {}
        """Smallest timestamp of a partition, in ms; no records with times where nothing is said."""
        self.unreadable: dict[tuple[int, PartitionId], str] = {}
        self.compactions: dict[tuple[int, PartitionId], broker_pb2.LogCompaction] = {}
        """Of a log, by broker; not compacted where nothing is said."""
        self.reserves: dict[int, int] = {}
        """What a broker keeps free on its disk, of which 10 bytes are; it does not tell where nothing is said."""
        self.restore = pb.DescribeRestoreResponse()
        """What is said of a restore, and the strays that can be adopted."""
        self.failure: HeadraceError | None = None
        """Raised by every call to the controller."""
        self.waits = 0
        """How often somebody waited for a newer image."""

    async def newer(self, revision: int, timeout_ms: float) -> ClusterImage:
        """The present one."""
        self.waits += 1
        return self.image

    async def caught_up(self, timeout_ms: float) -> ClusterImage:
        """The present one."""
        return self.image

    def _change(
        self,
        *,
        nodes: tuple[Node, ...] = (),
        cluster_configs: Mapping[str, str] | None = None,
        topics: tuple[Topic, ...] = (),
        partitions: tuple[Partition, ...] = (),
        removed_topics: tuple[TopicId, ...] = (),
        removed_nodes: tuple[NodeKey, ...] = (),
    ) -> None:
        now = self.image
        self.image = now.apply(
            ImageDelta(
                now.incarnation,
                now.revision,
                now.revision + 1,
                now.cluster_id,
                nodes=nodes,
                cluster_configs=cluster_configs,
                topics=topics,
                partitions=partitions,
                removed_topics=removed_topics,
                removed_nodes=removed_nodes,
            )
        )

    def lead(self, topic: str, partition: int, leader: int) -> None:
        """Make ``leader`` lead a partition."""
        found = self._topic(topic)
        i = PartitionId(found.topic_id, partition)
        self._change(partitions=(replace(self.image.partitions[i], leader=NodeId(leader)),))

    def node(self, broker: int, **changes: Any) -> None:
        """Change what the image says of a broker: ``fenced``, ``rack``, ``drained``, ..."""
        key = NodeKey(Role.BROKER, NodeId(broker))
        self._change(nodes=(replace(self.image.nodes[key], **changes),))

    def partition(self, topic: str, number: int, **changes: Any) -> None:
        """Change what the image says of a partition."""
        i = PartitionId(self._topic(topic).topic_id, number)
        self._change(partitions=(replace(self.image.partitions[i], **changes),))

    def finish_reassignments(self) -> None:
        """All new replicas have caught up."""
        for p in self._under_way():
            replicas = tuple(b for b in p.replicas if b not in p.removing)
            leader = p.leader if p.leader in replicas else replicas[0]
            self._change(
                partitions=(replace(p, replicas=replicas, isr=replicas, adding=(), removing=(), leader=leader),)
            )

    # --- Controllers ------------------------------------------------------------------------------------------

    async def describe_cluster(self, request: pb.DescribeClusterRequest) -> pb.DescribeClusterResponse:
        """Counts and nodes."""
        self._fail()
        active = self.image.active_controller
        return pb.DescribeClusterResponse(
            cluster_id=self.image.cluster_id,
            revision=self.image.revision,
            nodes=map(node_to_proto, self.image.nodes.values()),
            active_controller=active_controller_to_proto(active) if active is not None else None,
            topic_count=len(self.image.topics),
            partition_count=len(self.image.partitions),
            offline_partition_count=sum(p.offline for p in self.image.partitions.values()),
            metadata_store_reachable=True,
            feature_level=self.image.feature_level,
        )

    async def elect_leaders(self, request: pb.ElectLeadersRequest) -> pb.ElectLeadersResponse:
        """The first replica leads, if it is in sync or the kind does not ask for that."""
        self._fail()
        named = [PartitionId(TopicId(p.topic_id), p.partition) for p in request.partitions]
        return pb.ElectLeadersResponse(
            partitions=[self._elect(i, request.type, bool(named)) for i in named or self.image.partitions]
        )

    def _elect(self, i: PartitionId, kind: int, named: bool) -> pb.PartitionOutcome:
        p = self.image.partitions[i]
        first = p.replicas[0]
        if p.leader == first or (kind != pb.PREFERRED and not p.offline):
            return _outcome(i, ElectionNotNeeded("it is led as it should be") if named else None)
        if kind == pb.PREFERRED and first not in p.isr:
            return _outcome(i, PreferredLeaderNotAvailable(f"broker {first} is not in sync"))
        elected = replace(p, leader=first, leader_epoch=p.leader_epoch + 1, recovering=kind == pb.UNCLEAN)
        self._change(partitions=(elected,))
        return _outcome(i, None, elected)

    async def alter_reassignments(self, request: pb.AlterReassignmentsRequest) -> pb.AlterReassignmentsResponse:
        """Under way at once; ``finish_reassignments`` ends them."""
        self._fail()
        return pb.AlterReassignmentsResponse(
            partitions=[self._reassign(r, request.validate_only) for r in request.reassignments]
        )

    def _reassign(self, r: pb.Reassignment, validate_only: bool) -> pb.PartitionOutcome:
        i = PartitionId(TopicId(r.topic_id), r.partition)
        p = self.image.partitions[i]
        target = tuple(map(NodeId, r.replicas))
        known = {n.key.id for n in self.image.brokers()}
        if not target and not (p.adding or p.removing):
            return _outcome(i, NoReassignmentInProgress("nothing is under way for it"))
        if not known.issuperset(target) or len(set(target)) != len(target):
            return _outcome(i, InvalidReplicaAssignment("a broker is not registered, or is named twice"))
        before = tuple(b for b in p.replicas if b not in p.adding)
        removing = tuple(b for b in before if b not in target) if target else ()
        adding = tuple(b for b in target if b not in before)
        changed = replace(p, replicas=(*target, *removing) or before, adding=adding, removing=removing)
        if not validate_only:
            self._change(partitions=(changed,))
        return _outcome(i, None, changed)

    async def list_reassignments(self, request: pb.ListReassignmentsRequest) -> pb.ListReassignmentsResponse:
        """By the image."""
        self._fail()
        return pb.ListReassignmentsResponse(partitions=map(partition_to_proto, self._under_way()))

    def _under_way(self) -> list[Partition]:
        return [p for p in self.image.partitions.values() if p.adding or p.removing]

    async def drain_broker(self, request: pb.DrainBrokerRequest) -> pb.DrainBrokerResponse:
        """Leaders stay where they are."""
        self._fail()
        if NodeKey(Role.BROKER, NodeId(request.broker_id)) not in self.image.nodes:
            raise NotFound(f"broker {request.broker_id} is not registered")
        self.node(request.broker_id, drained=request.drained)
        return pb.DrainBrokerResponse(
            still_leading=sum(p.leader == request.broker_id for p in self.image.partitions.values())
        )

    async def describe_restore(self, request: pb.DescribeRestoreRequest) -> pb.DescribeRestoreResponse:
        """As it was set."""
        self._fail()
        answer = pb.DescribeRestoreResponse()
        answer.CopyFrom(self.restore)
        if not request.strays:
            del answer.strays[:]
        return answer

    async def adopt_topic(self, request: pb.AdoptTopicRequest) -> pb.AdoptTopicResponse:
        """Of the strays that were set."""
        self._fail()
        stray = next((s for s in self.restore.strays if s.topic_id == request.topic_id), None)
        if stray is None:
            failed = _failed(request.name, UnknownTopicId(f"no broker has a log of topic {request.topic_id.hex()}"))
            return pb.AdoptTopicResponse(result=failed)
        name = request.name if request.HasField("name") else stray.topic.name
        wanted = pb.NewTopic(name=name, partition_count=request.partition_count or stray.topic.partition_count)
        result = self._create(wanted, request.validate_only)
        if not result.error and not request.validate_only:
            self.restore.strays.remove(stray)
        return pb.AdoptTopicResponse(result=result)

    async def create_topics(self, request: pb.CreateTopicsRequest) -> pb.CreateTopicsResponse:
        """One replica each, leaders in turn."""
        self._fail()
        return pb.CreateTopicsResponse(topics=[self._create(t, request.validate_only) for t in request.topics])

    def _create(self, new: pb.NewTopic, validate_only: bool) -> pb.TopicResult:
        try:
            check_topic_name(new.name)
            if new.name in self.image.topic_ids:
                raise TopicAlreadyExists(f"topic {new.name!r} exists")
            configs = check_topic_configs(new.configs)
        except HeadraceError as error:
            return _failed(new.name, error)
        count = len(new.assignments) or max(new.partition_count, 1)
        topic = Topic(new.name, TopicId(new.name.encode().ljust(16, b"\0")[:16]), count, configs)
        partitions = self._placed(topic, 0, [tuple(map(NodeId, a.replicas)) for a in new.assignments])
        if not validate_only:
            self._change(topics=(topic,), partitions=partitions)
        return pb.TopicResult(name=new.name, topic=_description(topic, partitions))

    def _placed(
        self, topic: Topic, first: int, assignments: Sequence[tuple[NodeId, ...]] = ()
    ) -> tuple[Partition, ...]:
        brokers = [node.key.id for node in self.image.brokers()]
        wanted = assignments or [(brokers[n % len(brokers)],) for n in range(topic.partition_count)]
        return tuple(
            Partition(PartitionId(topic.topic_id, n), r, r, r[0], 0, 0) for n, r in enumerate(wanted) if n >= first
        )

    async def delete_topics(self, request: pb.DeleteTopicsRequest) -> pb.DeleteTopicsResponse:
        """At once."""
        self._fail()
        results = []
        for name in request.names:
            try:
                topic = self._topic(name)
            except HeadraceError as error:
                results.append(_failed(name, error))
                continue
            self._change(removed_topics=(topic.topic_id,))
            results.append(pb.TopicResult(name=name))
        return pb.DeleteTopicsResponse(topics=results)

    async def list_topics(self, request: pb.ListTopicsRequest) -> pb.ListTopicsResponse:
        """By name."""
        self._fail()
        names = sorted(n for n in self.image.topic_ids if n > request.after)
        page = [self._topic(name) for name in names[: request.limit]]
        return pb.ListTopicsResponse(
            topics=map(topic_to_proto, page), more=len(names) > len(page), total=len(self.image.topics)
        )

    async def describe_topics(self, request: pb.DescribeTopicsRequest) -> pb.DescribeTopicsResponse:
        """With partitions."""
        self._fail()
        return pb.DescribeTopicsResponse(topics=[self._described(name) for name in request.names])

    def _described(self, name: str) -> pb.TopicResult:
        try:
            topic = self._topic(name)
        except HeadraceError as error:
            return _failed(name, error)
        return pb.TopicResult(name=name, topic=_description(topic, self.image.partitions_of(topic)))

    async def create_partitions(self, request: pb.CreatePartitionsRequest) -> pb.CreatePartitionsResponse:
        """Only more."""
        self._fail()
        try:
            topic = self._topic(request.name)
            if request.partition_count <= topic.partition_count:
                raise InvalidPartitions(f"the topic has {topic.partition_count} partitions; ask for more")
        except HeadraceError as error:
            return pb.CreatePartitionsResponse(result=_failed(request.name, error))
        larger = replace(topic, partition_count=request.partition_count)
        added = self._placed(larger, topic.partition_count)
        everything = [*self.image.partitions_of(topic), *added]
        if not request.validate_only:
            self._change(topics=(larger,), partitions=added)
        return pb.CreatePartitionsResponse(
            result=pb.TopicResult(name=request.name, topic=_description(larger, everything))
        )

    async def describe_configs(self, request: pb.DescribeConfigsRequest) -> pb.DescribeConfigsResponse:
        """Of topics: own ones and defaults."""
        self._fail()
        return pb.DescribeConfigsResponse(results=[self._configs(resource) for resource in request.resources])

    def _configs(self, resource: pb.ConfigResource, changed: Mapping[str, str] | None = None) -> pb.ConfigResult:
        if resource.type == pb.BROKER_CONFIG:
            return pb.ConfigResult(resource=resource)
        try:
            own = self._topic(resource.name).configs if changed is None else changed
        except HeadraceError as error:
            detail = detail_of(error)
            return pb.ConfigResult(resource=resource, error=detail.code, message=detail.message)
        entries = [
            pb.ConfigEntry(
                name=s.name,
                value=own.get(s.name, s.default),
                source=pb.DYNAMIC_TOPIC_CONFIG if s.name in own else pb.DEFAULT_CONFIG,
                documentation=s.doc,
                type=s.type.value,
            )
            for s in TOPIC_SETTINGS.values()
        ]
        return pb.ConfigResult(resource=resource, entries=entries)

    async def alter_configs(self, request: pb.IncrementalAlterConfigsRequest) -> pb.IncrementalAlterConfigsResponse:
        """SET and DELETE."""
        self._fail()
        return pb.IncrementalAlterConfigsResponse(
            results=[self._altered(resource, request.validate_only) for resource in request.resources]
        )

    def _altered(self, change: pb.AlterConfigsResource, validate_only: bool) -> pb.ConfigResult:
        try:
            if any(c.op not in {pb.SET, pb.DELETE} for c in change.changes):
                raise Rejected("only lists can be appended to")
            sets = {c.name: c.value for c in change.changes if c.op == pb.SET}
            if change.resource.type == pb.BROKER_CONFIG:
                checked = check_broker_configs(sets)
                gone = {c.name for c in change.changes if c.op == pb.DELETE}
                kept = {n: v for n, v in self.image.cluster_configs.items() if n not in gone} | checked
                if not validate_only and not change.resource.name:
                    self._change(cluster_configs=kept)
                return self._configs(change.resource)
            topic = self._topic(change.resource.name)
            gone = {c.name for c in change.changes if c.op == pb.DELETE}
            configs = {n: v for n, v in topic.configs.items() if n not in gone} | check_topic_configs(sets)
        except HeadraceError as error:
            detail = detail_of(error)
            return pb.ConfigResult(resource=change.resource, error=detail.code, message=detail.message)
        if not validate_only:
            self._change(topics=(replace(topic, configs=configs),))
        return self._configs(change.resource, configs)

    async def unregister_node(self, request: pb.UnregisterNodeRequest) -> pb.UnregisterNodeResponse:
        """Whatever it holds."""
        self._fail()
        key = node_key_from_proto(cluster_pb2.NodeKey(role=request.role, id=request.id))
        if key not in self.image.nodes:
            raise NotFound(f"{key} is not registered")
        self._change(removed_nodes=(key,))
        return pb.UnregisterNodeResponse()

    # --- Brokers ----------------------------------------------------------------------------------------------

    async def delete_records(
        self, broker: NodeId, request: broker_pb2.DeleteRecordsRequest
    ) -> broker_pb2.DeleteRecordsResponse:
        """Up to the end."""
        self._reach(broker)
        return broker_pb2.DeleteRecordsResponse(partitions=[self._trim(broker, p) for p in request.partitions])

    def _trim(self, broker: NodeId, p: broker_pb2.DeleteRecordsPartition) -> broker_pb2.DeleteRecordsResult:
        i = PartitionId(TopicId(p.topic_id), p.partition)
        assert self.image.partitions[i].leader == broker, "the leader is asked"
        end = self.ends.get(i, 0)
        start = end if p.offset == -1 else p.offset
        if start > end:
            detail = detail_of(OffsetOutOfRange(f"{start} is above the end, {end}"))
            return broker_pb2.DeleteRecordsResult(
                topic_id=p.topic_id, partition=p.partition, error=detail.code, message=detail.message
            )
        self.starts[i] = max(start, self.starts.get(i, 0))
        return broker_pb2.DeleteRecordsResult(
            topic_id=p.topic_id, partition=p.partition, log_start_offset=self.starts[i]
        )

    async def describe_logs(
        self, broker: NodeId, request: broker_pb2.DescribeLogsRequest
    ) -> broker_pb2.DescribeLogsResponse:
        """The partitions it has a replica of."""
        self._reach(broker)
        wanted = set(request.topic_ids)
        return broker_pb2.DescribeLogsResponse(
            disk_free_bytes=10,
            disk_total_bytes=20,
            disk_reserve_bytes=self.reserves.get(broker),
            recovery_report="clean",
            logs=[
                broker_pb2.LogDescription(
                    topic_id=i.topic_id,
                    partition=i.partition,
                    state=broker_pb2.ONLINE,
                    log_start_offset=self.starts.get(i, 0),
                    log_end_offset=self.ends.get(i, 0) if broker in p.isr else 0,
                    high_watermark=self.ends.get(i, 0),
                    last_stable_offset=self.stable_end(i),
                    size_bytes=self.sizes.get((broker, i), 100),
                    compaction=self.compactions.get((broker, i)),
                    unreadable=self.unreadable.get((broker, i)),
                    oldest_timestamp_ms=self.oldest.get(i),
                    segments=[broker_pb2.SegmentDescription(min_timestamp_ms=-1, max_timestamp_ms=-1)]
                    if request.segments
                    else [],
                )
                for i, p in self.image.partitions.items()
                if broker in p.replicas and (not wanted or i.topic_id in wanted)
                if not request.only_stuck
                or ((broker, i) in self.compactions and self.compactions[broker, i].stuck)
                or (broker, i) in self.unreadable
            ],
        )

    def _topic(self, name: str) -> Topic:
        topic = self.image.topic(check_topic_name(name))
        if topic is None:
            raise unknown_topic(name)
        return topic

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure


def _description(topic: Topic, partitions: Iterable[Partition]) -> pb.TopicDescription:
    return pb.TopicDescription(topic=topic_to_proto(topic), partitions=map(partition_to_proto, partitions))


def _outcome(i: PartitionId, error: HeadraceError | None, current: Partition | None = None) -> pb.PartitionOutcome:
    outcome = pb.PartitionOutcome(topic_id=i.topic_id, partition=i.partition)
    if error is not None:
        detail = detail_of(error)
        outcome.error, outcome.message = detail.code, detail.message
    if current is not None:
        outcome.current.CopyFrom(partition_to_proto(current))
    return outcome


def _failed(name: str, error: HeadraceError) -> pb.TopicResult:
    detail = detail_of(error)
    return pb.TopicResult(name=name, error=detail.code, message=detail.message)
