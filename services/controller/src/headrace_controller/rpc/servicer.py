"""
The ``Controller`` service: decode, one engine call per thing asked for, encode.

What is asked of a whole request is in ``access_table``. Where each entry has an answer of its own, it is asked here
whether the caller may: before it is looked at whether there is such a thing, so that a refusal tells nothing of it.
"""

# ruff: noqa: N802 - methods have the names of the RPCs

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import grpc.aio

from headrace_common.core.access.api_keys import KeyId
from headrace_common.core.access.control import Asked
from headrace_common.core.access.resources import CLUSTER_NAME, Operation, ResourceType
from headrace_common.core.errors import Denied, HeadraceError, Rejected, Unauthenticated, unknown_topic
from headrace_common.core.ids import PARTITIONS_PER_TOPIC_MAX, NodeId, PartitionId
from headrace_common.core.image import INTERNAL_TOPICS, ImageDelta, NodeKey, Role, ShardKind, Topic
from headrace_common.rpc.convert import (
    NamesPartition,
    active_controller_to_proto,
    node_from_proto,
    node_key_from_proto,
    node_key_to_proto,
    node_to_proto,
    partition_id_from_proto,
    partition_to_proto,
    role_from_proto,
    shard_kind_from_proto,
    topic_id_from_proto,
    topic_to_proto,
)
from headrace_common.rpc.convert_access import change_from_proto
from headrace_common.rpc.convert_delta import delta_to_proto
from headrace_common.rpc.convert_observed import observed_of
from headrace_common.rpc.convert_quotas import quota_change_from_proto
from headrace_common.rpc.node_gate import NodeGate
from headrace_common.rpc.peers import peer_of
from headrace_common.runtime.access_gate import current_rights, current_shown
from headrace_common.runtime.admission import host_of_peer
from headrace_common.runtime.auditing import Auditing
from headrace_controller.config import LivenessConfig
from headrace_controller.core.sessions import Heartbeat
from headrace_controller.core.settings import Entry, TopicResource
from headrace_controller.core.topics import Wanted
from headrace_controller.engine.controller import ControllerEngine
from headrace_controller.engine.nodes import Joining
from headrace_controller.engine.topics import Described, check_once
from headrace_controller.rpc import encode, encode_access
from headrace_proto.v1 import access_pb2, cluster_pb2, controller_pb2_grpc
from headrace_proto.v1 import controller_pb2 as pb

T = TypeVar("T")
Context = grpc.aio.ServicerContext[Any, Any]

_TOPICS_MAX: Final = 1_000
_NAMES_MAX: Final = 10_000
_ISR_CHANGES_MAX: Final = 1_000
_TIMEOUT_MS_MAX: Final = 600_000
_STEPS_KEPT: Final = 32
_EXPLAINED_MAX: Final = 10
_AUDIT: Final = TopicResource(INTERNAL_TOPICS[ShardKind.AUDIT])
"""Its settings are for who may change all rules."""
_CREATE_ANY: Final = (Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME)


class ControllerServicer(controller_pb2_grpc.ControllerServicer):
    """Every controller serves it, active or not."""

    def __init__(
        self, engine: ControllerEngine, liveness: LivenessConfig, gate: NodeGate, auditing: Auditing | None = None
    ) -> None:
        self._engine = engine
        self._auditing = auditing
        self._gate = gate
        self._liveness = liveness
        self._encoded: OrderedDict[int, tuple[ImageDelta, cluster_pb2.MetadataUpdate]] = OrderedDict()

    async def RegisterNode(self, request: pb.RegisterNodeRequest, context: Context) -> pb.RegisterNodeResponse:
        node = node_from_proto(request.node)
        self._gate.hold(self._gate.caller(context), node.key)
        joining = Joining(
            node=node,
            cluster_id=request.cluster_id if request.HasField("cluster_id") else None,
            previous_epoch=request.previous_epoch if request.HasField("previous_epoch") else None,
            damaged=frozenset(PartitionId(topic_id_from_proto(d.topic_id), d.partition) for d in request.damaged),
            max_producer_id=request.max_producer_id or -1,
            max_leader_epoch=request.max_leader_epoch,
        )
        joined = await self._engine.register(joining)
        if self._auditing is not None:
            host = host_of_peer(peer_of(context))
            self._auditing.registered(node.key, request.audit_start, request.audit_key, host)
        return pb.RegisterNodeResponse(
            cluster_id=joined.cluster_id,
            epoch=joined.epoch,
            revision=joined.revision,
            heartbeat_interval_ms=self._liveness.heartbeat_interval_ms,
            session_timeout_ms=self._liveness.session_timeout_ms,
        )

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Context) -> pb.HeartbeatResponse:
        key = _node_key(request.role, request.id)
        self._gate.hold(self._gate.caller(context), key)
        heartbeat = Heartbeat(
            key=key,
            epoch=request.epoch,
            image_revision=request.image_revision,
            want_fenced=request.want_fenced,
            want_shutdown=request.want_shutdown,
            feature_level_max=request.feature_level_max,
            disk_low=request.disk_low,
            session_key=request.session_key,
            keys_wanted=tuple(request.keys_wanted),
        )
        vitals = await self._engine.heartbeat(heartbeat)
        if self._auditing is not None:
            self._auditing.counted(key, request.audit_start, request.audit_events)
        return pb.HeartbeatResponse(fenced=vitals.fenced, may_shut_down=vitals.may_shut_down)

    async def UnregisterNode(self, request: pb.UnregisterNodeRequest, context: Context) -> pb.UnregisterNodeResponse:
        key = _node_key(request.role, request.id)
        caller = self._gate.caller(context)
        self._gate.hold(caller, key, Role.ADMIN)
        if caller != key:
            current_rights().check(Operation.ALTER, ResourceType.CLUSTER)
        await self._engine.unregister(key)
        return pb.UnregisterNodeResponse()

    async def WatchMetadata(
        self, request: pb.WatchMetadataRequest, context: Context
    ) -> AsyncIterator[cluster_pb2.MetadataUpdate]:
        node = node_key_from_proto(request.node) if request.HasField("node") else None
        async for step in self._engine.watch(node):
            yield self._once(step)

    async def DescribeCluster(self, request: pb.DescribeClusterRequest, context: Context) -> pb.DescribeClusterResponse:
        status = self._engine.describe_cluster()
        image, health = status.image, status.health
        active = image.active_controller
        return pb.DescribeClusterResponse(
            cluster_id=image.cluster_id,
            revision=image.revision,
            nodes=[node_to_proto(image.nodes[k]) for k in sorted(image.nodes, key=lambda k: (k.role.value, k.id))],
            active_controller=None if active is None else active_controller_to_proto(active),
            topic_count=len(image.topics),
            partition_count=len(image.partitions),
            offline_partition_count=health.offline,
            under_replicated_partition_count=health.under_replicated,
            metadata_store_reachable=status.store_reachable,
            under_min_isr_partition_count=health.under_min_isr,
            not_preferred_partition_count=health.not_preferred,
            reassigning_partition_count=health.reassigning,
            troubled=map(partition_to_proto, health.troubled),
            recovering_partition_count=health.recovering,
            shard_count=status.shards.shards,
            unowned_shard_count=status.shards.unowned,
            feature_level=image.feature_level,
            access_behind=[
                pb.AccessBehind(node=node_key_to_proto(key), behind_ms=int(ms))
                for key, ms in sorted(status.behind.items(), key=lambda one: -one[1])
            ],
        )

    async def CreateTopics(self, request: pb.CreateTopicsRequest, context: Context) -> pb.CreateTopicsResponse:
        _check_count(len(request.topics), _TOPICS_MAX)
        if not 1 <= request.timeout_ms <= _TIMEOUT_MS_MAX:
            raise Rejected(f"timeout_ms takes 1 to {_TIMEOUT_MS_MAX}, not {request.timeout_ms}")
        check_once([t.name for t in request.topics])
        self._engine.require_active()
        may, rights = _asking(len(request.topics)), current_rights()

        async def create(wanted: Wanted) -> Described:
            may(_CREATE_ANY, (Operation.CREATE, ResourceType.TOPIC, wanted.name))
            return await self._engine.create_topic(
                wanted, rights, validate_only=request.validate_only, timeout_ms=request.timeout_ms
            )

        results = await _each([create(encode.decode_topic(topic)) for topic in request.topics])
        named = zip(request.topics, results, strict=True)
        return pb.CreateTopicsResponse(topics=[encode.topic_result(t.name, r) for t, r in named])

    async def DeleteTopics(self, request: pb.DeleteTopicsRequest, context: Context) -> pb.DeleteTopicsResponse:
        _check_count(len(request.names), _TOPICS_MAX)
        check_once(request.names)
        self._engine.require_active()
        may, rights = _asking(len(request.names)), current_rights()

        async def delete(name: str) -> Topic:
            may((Operation.DELETE, ResourceType.TOPIC, name))
            return await self._engine.delete_topic(name, rights)

        results = await _each([delete(name) for name in request.names])
        topics = []
        for name, result in zip(request.names, results, strict=True):
            gone = result if isinstance(result, HeadraceError) else Described(result, ())
            topics.append(encode.topic_result(name, gone))
        return pb.DeleteTopicsResponse(topics=topics)

    async def ListTopics(self, request: pb.ListTopicsRequest, context: Context) -> pb.ListTopicsResponse:
        page = self._engine.list_topics(
            request.after, request.limit, include_internal=request.include_internal, rights=current_rights()
        )
        return pb.ListTopicsResponse(topics=map(topic_to_proto, page.topics), more=page.more, total=page.total)

    async def DescribeTopics(self, request: pb.DescribeTopicsRequest, context: Context) -> pb.DescribeTopicsResponse:
        _check_count(len(request.names), _NAMES_MAX)
        may, results = _asking(len(request.names)), []
        for name in request.names:
            try:
                may((Operation.DESCRIBE, ResourceType.TOPIC, name))
            except Denied as error:
                results.append(encode.topic_result(name, error))
            else:
                results.append(encode.topic_result(name, self._engine.describe_topic(name) or unknown_topic(name)))
        return pb.DescribeTopicsResponse(topics=results)

    async def CreatePartitions(
        self, request: pb.CreatePartitionsRequest, context: Context
    ) -> pb.CreatePartitionsResponse:
        self._engine.require_active()
        placed = encode.assignments(request.assignments)
        may = _asking(1)

        async def grow() -> Described:
            may((Operation.ALTER, ResourceType.TOPIC, request.name))
            return await self._engine.create_partitions(
                request.name, request.partition_count, placed, current_rights(), validate_only=request.validate_only
            )

        (result,) = await _each([grow()])
        return pb.CreatePartitionsResponse(result=encode.topic_result(request.name, result))

    async def DescribeConfigs(self, request: pb.DescribeConfigsRequest, context: Context) -> pb.DescribeConfigsResponse:
        _check_count(len(request.resources), _TOPICS_MAX)
        may, results = _asking(len(request.resources)), []
        for resource in request.resources:
            try:
                target = encode.resource(resource)
                may((Operation.DESCRIBE_CONFIGS, *encode.accessed(target)))
                entries = self._engine.describe_configs(target)
            except HeadraceError as error:
                results.append(encode.config_result(resource, error))
            else:
                results.append(encode.config_result(resource, entries))
        return pb.DescribeConfigsResponse(results=results)

    async def IncrementalAlterConfigs(
        self, request: pb.IncrementalAlterConfigsRequest, context: Context
    ) -> pb.IncrementalAlterConfigsResponse:
        _check_count(len(request.resources), _TOPICS_MAX)
        check_once([f"{r.resource.type}/{r.resource.name}" for r in request.resources])
        self._engine.require_active()

        may = _asking(len(request.resources))

        async def alter(part: pb.AlterConfigsResource) -> list[Entry]:
            changes = encode.alterations(part.changes)
            target = encode.resource(part.resource)
            may((Operation.ALTER_CONFIGS, *encode.accessed(target)))
            if target == _AUDIT:
                current_rights().check_anywhere(Operation.ESCALATE, ResourceType.PRINCIPAL)
            return await self._engine.alter_configs(target, changes, validate_only=request.validate_only)

        results = await _each([alter(part) for part in request.resources])
        parts = zip(request.resources, results, strict=True)
        return pb.IncrementalAlterConfigsResponse(results=[encode.config_result(p.resource, r) for p, r in parts])

    async def AllocateProducerIds(
        self, request: pb.AllocateProducerIdsRequest, context: Context
    ) -> pb.AllocateProducerIdsResponse:
        broker = self._broker(context, request.broker_id)
        block = await self._engine.allocate_producer_ids(broker, request.broker_epoch)
        return pb.AllocateProducerIdsResponse(first_id=block.start, count=len(block))

    async def ConfirmDeletions(
        self, request: pb.ConfirmDeletionsRequest, context: Context
    ) -> pb.ConfirmDeletionsResponse:
        topic_ids = [topic_id_from_proto(i) for i in request.topic_ids]
        partitions = [partition_id_from_proto(p) for p in request.partitions]
        broker = self._broker(context, request.broker_id)
        await self._engine.confirm_deletions(broker, request.broker_epoch, topic_ids, partitions)
        return pb.ConfirmDeletionsResponse()

    async def AlterPartitions(self, request: pb.AlterPartitionsRequest, context: Context) -> pb.AlterPartitionsResponse:
        broker = self._broker(context, request.broker_id)
        _check_count(len(request.partitions), _ISR_CHANGES_MAX)
        proposals = [encode.proposal(p) for p in request.partitions]
        check_once([str(p.id) for p in proposals])
        results = await self._engine.alter_partitions(broker, request.broker_epoch, proposals)
        named = zip(proposals, results, strict=True)
        return pb.AlterPartitionsResponse(partitions=[encode.isr_result(p.id, r) for p, r in named])

    async def ElectLeaders(self, request: pb.ElectLeadersRequest, context: Context) -> pb.ElectLeadersResponse:
        kind = encode.election(request.type)
        ids = _partitions(request.partitions)
        outcomes = await self._engine.elect(kind, ids)
        return pb.ElectLeadersResponse(partitions=[encode.outcome(i, r) for i, r in outcomes])

    async def AlterReassignments(
        self, request: pb.AlterReassignmentsRequest, context: Context
    ) -> pb.AlterReassignmentsResponse:
        _check_count(len(request.reassignments), _NAMES_MAX)
        ids = _partitions(request.reassignments)
        asked = zip(ids, request.reassignments, strict=True)
        targets = {i: tuple(map(NodeId, r.replicas)) for i, r in asked}
        results = await self._engine.alter_reassignments(targets, validate_only=request.validate_only)
        outcomes = [encode.outcome(i, r) for i, r in zip(ids, results, strict=True)]
        return pb.AlterReassignmentsResponse(partitions=outcomes)

    async def ListReassignments(
        self, request: pb.ListReassignmentsRequest, context: Context
    ) -> pb.ListReassignmentsResponse:
        found = self._engine.list_reassignments(_partitions(request.partitions))
        return pb.ListReassignmentsResponse(partitions=map(partition_to_proto, found))

    async def DrainBroker(self, request: pb.DrainBrokerRequest, context: Context) -> pb.DrainBrokerResponse:
        left = await self._engine.drain(NodeId(request.broker_id), drained=request.drained)
        return pb.DrainBrokerResponse(still_leading=left)

    async def EnsureInternalTopic(
        self, request: pb.EnsureInternalTopicRequest, context: Context
    ) -> pb.EnsureInternalTopicResponse:
        revision = await self._engine.ensure_internal_topic(shard_kind_from_proto(request.kind))
        return pb.EnsureInternalTopicResponse(revision=revision)

    async def DescribeRestore(self, request: pb.DescribeRestoreRequest, context: Context) -> pb.DescribeRestoreResponse:
        return encode.restore_status(await self._engine.describe_restore(strays=request.strays))

    async def AdoptTopic(self, request: pb.AdoptTopicRequest, context: Context) -> pb.AdoptTopicResponse:
        self._engine.require_active()
        topic_id = topic_id_from_proto(request.topic_id)
        name = request.name if request.HasField("name") else None
        if not 0 <= request.partition_count <= PARTITIONS_PER_TOPIC_MAX:
            raise Rejected(f"partition_count takes 0 to {PARTITIONS_PER_TOPIC_MAX}, not {request.partition_count}")
        (result,) = await _each(
            [self._engine.adopt_topic(topic_id, name, request.partition_count, validate_only=request.validate_only)]
        )
        return pb.AdoptTopicResponse(result=encode.topic_result(_name_of(result) or name or "", result))

    async def AlterAccess(
        self, request: access_pb2.AlterAccessRequest, context: Context
    ) -> access_pb2.AlterAccessResponse:
        changes = [change_from_proto(change) for change in request.changes]
        mode = encode_access.mode(request.mode)
        batch = await self._engine.alter_access(changes, mode, current_rights(), validate_only=request.validate_only)
        return encode_access.altered(batch)

    async def CreateKey(self, request: access_pb2.CreateKeyRequest, context: Context) -> access_pb2.CreateKeyResponse:
        shown = current_shown()
        made = await self._engine.create_key(encode_access.wanted_key(request), current_rights(), shown.key)
        return encode_access.new_key(made)

    async def DeleteKeys(
        self, request: access_pb2.DeleteKeysRequest, context: Context
    ) -> access_pb2.DeleteKeysResponse:
        await self._engine.delete_keys([KeyId(id) for id in request.ids], current_rights())
        return access_pb2.DeleteKeysResponse()

    async def AlterQuotas(
        self, request: access_pb2.AlterQuotasRequest, context: Context
    ) -> access_pb2.AlterQuotasResponse:
        changes = list(map(quota_change_from_proto, request.changes))
        await self._engine.alter_quotas(changes, current_rights(), validate_only=request.validate_only)
        return access_pb2.AlterQuotasResponse()

    async def Observed(self, request: access_pb2.ObservedRequest, context: Context) -> access_pb2.ObservedResponse:
        return observed_of(current_rights().control, request)

    async def CreateUser(
        self, request: access_pb2.CreateUserRequest, context: Context
    ) -> access_pb2.CreateUserResponse:
        await self._engine.create_user(request.name, encode_access.verifiers(request.verifiers), current_rights())
        return access_pb2.CreateUserResponse()

    async def ChangePassword(
        self, request: access_pb2.ChangePasswordRequest, context: Context
    ) -> access_pb2.ChangePasswordResponse:
        verifiers = encode_access.verifiers(request.verifiers)
        await self._engine.change_password(request.name, verifiers, request.grace_ms, current_rights())
        return access_pb2.ChangePasswordResponse()

    async def DeleteUser(
        self, request: access_pb2.DeleteUserRequest, context: Context
    ) -> access_pb2.DeleteUserResponse:
        await self._engine.delete_user(request.name, current_rights(), cascade=request.cascade)
        return access_pb2.DeleteUserResponse()

    async def Login(self, request: access_pb2.LoginRequest, context: Context) -> access_pb2.LoginResponse:
        try:
            if not request.exchange_id:
                return encode_access.step(self._engine.begin_login(request.mechanism, request.message, request.host))
            step = await self._engine.finish_login(request.exchange_id, request.message)
        except Unauthenticated as error:
            if self._auditing is not None:
                self._auditing.login_failed(error, request.host, "Controller/Login")
            raise
        if self._auditing is not None and step.made is not None:
            self._auditing.logged_in(step.made.key.owner.name, request.host, "Controller/Login")
        return encode_access.step(step)

    def _broker(self, context: Context, broker_id: int) -> NodeId:
        """The broker that a request speaks for; the call must come from it."""
        self._gate.hold(self._gate.caller(context), NodeKey(Role.BROKER, NodeId(broker_id)))
        return NodeId(broker_id)

    def _once(self, step: ImageDelta) -> cluster_pb2.MetadataUpdate:
        """Each step is encoded once, however many watch; the newest few are kept."""
        found = self._encoded.get(id(step))
        if found is not None and found[0] is step:
            return found[1]
        update = delta_to_proto(step)
        self._encoded[id(step)] = (step, update)
        while len(self._encoded) > _STEPS_KEPT:
            self._encoded.popitem(last=False)
        return update


def _asking(entries: int) -> Callable[..., None]:
    """
    Asks for an entry of a request whether the caller may do one of the things that it is called with, and raises
    ``Denied`` if not. The line that would allow it is looked for where there are few entries: that reads all grants.
    """
    rights, few = current_rights(), entries <= _EXPLAINED_MAX

    def ask(*asked: Asked) -> None:
        if not rights.may_any(*asked):
            raise rights.refusal(*asked[-1], explained=few)

    return ask


async def _each(calls: Sequence[Awaitable[T]]) -> list[T | HeadraceError]:
    """All calls side by side; what one refuses is its result. A bug ends them all."""
    results: list[T | HeadraceError] = []
    for result in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(result, HeadraceError):
            raise result
        results.append(result)
    return results


def _check_count(count: int, most: int) -> None:
    if not 1 <= count <= most:
        raise Rejected(f"a request takes 1 to {most} entries, not {count}; split it")


def _partitions(named: Sequence[NamesPartition]) -> list[PartitionId]:
    if len(named) > _NAMES_MAX:
        raise Rejected(f"a request takes up to {_NAMES_MAX} partitions, not {len(named)}; split it")
    ids = [partition_id_from_proto(n) for n in named]
    check_once([str(i) for i in ids])
    return ids


def _node_key(role: int, node_id: int) -> NodeKey:
    return NodeKey(role_from_proto(role), NodeId(node_id))


def _name_of(result: Described | HeadraceError) -> str | None:
    return None if isinstance(result, HeadraceError) else result.topic.name
