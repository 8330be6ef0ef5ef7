"""
``headrace.aio.AdminClient``: topics, settings, brokers, logs, consumer groups and transactions, through the cluster's
admin service.

It finds the service through any broker's metadata and holds no state of the cluster. The sync twin is
``headrace.admin``.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, Unpack

from headrace._descriptors import needing_descriptors
from headrace._setting_names import Servers, split
from headrace.admin_feature_types import FeaturesInfo
from headrace.admin_types import (
    BrokerInfo,
    BrokerLogs,
    ClusterDescription,
    ConfigEntry,
    NewTopic,
    PartitionInfo,
    Reassignment,
    TopicDescription,
    TopicInfo,
)
from headrace.aio._access_admin import AccessAdmin
from headrace.aio._cluster_admin import ClusterAdmin
from headrace.aio._group_admin import GroupAdmin
from headrace.aio._placement import TopicIds, elect_request, outcomes, reassign_request, reassignments
from headrace.aio._restore_admin import RestoreAdmin
from headrace.aio._ticket_admin import TicketAdmin
from headrace.aio._transaction_admin import TransactionAdmin
from headrace.errors import (
    ClientClosed,
    ClusterUnreachable,
    ErrorCode,
    HeadraceError,
    Kind,
    NotFound,
    Rejected,
    TopicAlreadyExists,
    Unauthenticated,
    UnknownOutcome,
    WaitTimedOut,
    error_for,
)
from headrace.records import TopicPartition
from headrace.settings import ClientSettings, read_settings, waits_as_told
from headrace_common.core.bounds import setting
from headrace_common.core.ids import check_topic_name
from headrace_common.rpc.calls import CallTo, never_sent
from headrace_common.runtime.clock import SystemClock
from headrace_proto.v1 import admin_pb2
from headrace_proto.v1 import broker_pb2 as broker
from headrace_proto.v1 import controller_pb2 as pb

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from headrace._transport.port import Transport
    from headrace.setting_types import AdminSettingsDict
    from headrace_proto.v1.admin_pb2_grpc import AdminAsyncStub

T = TypeVar("T")

TOPICS_PER_PAGE: Final = 1000
HIGH_WATERMARK: Final = -1
"""For ``delete_records``: all that is committed."""

SAFE_TO_REPEAT: Final = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.OVERLOADED})
"""Errors after which nothing was changed, so that a change may be asked for again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSettings(ClientSettings):
    """Settings of an admin client."""

    default_api_timeout_ms: int = setting(60_000, low=1, high=600_000)
    """How long a call may take, repetitions included, in ms."""


class AdminClient(ClusterAdmin, GroupAdmin, TransactionAdmin, RestoreAdmin, AccessAdmin, TicketAdmin):
    """
    Administration of one cluster.

    Args:
        bootstrap_servers: any brokers, ``"host:port,host:port"`` or a list; else as ``headrace.finding`` says.
        settings: see ``AdminSettings``.

    Calls that only read are repeated while the cluster is busy or moves; changes are repeated only when it is certain
    that nothing was changed. Concurrent calls are fine.

    Raises:
        InvalidConfig: a setting is unknown or out of bounds.

    The methods are those of ``headrace.AdminClient``, as coroutines::

        >>> import asyncio
        >>> from headrace import aio
        >>> async def make():
        ...     async with aio.AdminClient() as admin:
        ...         await admin.create_topic("gates", partitions=2)
        ...         print(len((await admin.describe_topic("gates")).partitions))
        ...         await admin.delete_topic("gates")
        >>> asyncio.run(make())
        2
    """

    def __init__(
        self,
        bootstrap_servers: Servers = None,
        *,
        _transport: Transport | None = None,
        **settings: Unpack[AdminSettingsDict],
    ) -> None:
        servers, given = split(bootstrap_servers, settings)
        self._settings = read_settings(AdminSettings, given)
        if _transport is None:
            with needing_descriptors():
                from headrace._transport.grpc import GrpcTransport

            timeout_ms = min(self._settings.request_timeout_ms, self._settings.default_api_timeout_ms)
            _transport = GrpcTransport(
                self._settings.find(servers),
                call_timeout_ms=timeout_ms,
                patient=waits_as_told("default_api_timeout_ms", given),
            )
        self._transport = _transport
        self._clock = SystemClock()
        self._stub: AdminAsyncStub | None = None
        self._closed = False
        self._pid = os.getpid()

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        if not self._closed and self._pid == os.getpid():
            self._closed = True
            await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # --- topics -------------------------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
        *,
        assignments: Sequence[Sequence[int]] = (),
        validate_only: bool = False,
        if_not_exists: bool = False,
    ) -> TopicDescription:
        """
        Create a topic, and wait until a broker knows it with leaders for all its partitions.

        Args:
            if_not_exists: be content with a topic of this name, whatever it is like; it is described.

        Raises:
            TopicAlreadyExists: there is one of this name.
            InvalidTopic, InvalidPartitions, InvalidReplicationFactor, InvalidConfig: it cannot be made so.
            WaitTimedOut: it was created, but brokers did not hear of it within ``default_api_timeout_ms``.
        """
        topic = NewTopic(name, partitions, replication_factor, configs or {}, assignments)
        created = (await self.create_topics([topic], validate_only=validate_only))[name]
        if isinstance(created, TopicAlreadyExists) and if_not_exists:
            await self._wait_until_known([name], {})
            return await self.describe_topic(name)
        if isinstance(created, HeadraceError):
            raise created
        return created

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, TopicDescription | HeadraceError]:
        """
        Create several; each succeeds or fails by itself, and its error is returned in its place. Those of which nothing
        was changed are asked for again, for ``default_api_timeout_ms``.
        """
        left, results = list(topics), dict[str, TopicDescription | HeadraceError]()
        settings, clock = self._settings, self._clock
        deadline_ms = clock.monotonic_ms() + settings.default_api_timeout_ms
        while True:
            request = _new_topics(left, validate_only, settings.default_api_timeout_ms)
            answer = await self._call(partial(_create_topics, request), change=True)
            results |= {result.name: _decode_topic(result) for result in answer.topics}
            left = [topic for topic in left if _nothing_changed(results[topic.name])]
            if not left or clock.monotonic_ms() >= deadline_ms:
                break
            await clock.sleep_ms(max(1, settings.retry_backoff_ms))
        if not validate_only:
            await self._wait_until_known([r.name for r in results.values() if isinstance(r, TopicDescription)], {})
        return results

    async def delete_topic(self, name: str) -> None:
        """
        Delete a topic and its records. The name is free at once.

        Raises:
            UnknownTopicOrPartition: there is none of this name.
        """
        request = pb.DeleteTopicsRequest(names=[name])
        answer = await self._call(lambda stub, timeout: stub.DeleteTopics(request, timeout=timeout), change=True)
        _check(answer.topics[0].error, answer.topics[0].message)

    async def list_topics(self, *, include_internal: bool = False) -> list[TopicInfo]:
        """All topics, by name."""
        topics: list[TopicInfo] = []
        after = ""
        while True:
            page = await self._topics_after(after, include_internal)
            topics += [TopicInfo.of(topic) for topic in page.topics]
            if not page.more or not page.topics:
                return topics
            after = page.topics[-1].name

    async def _topics_after(self, after: str, include_internal: bool) -> pb.ListTopicsResponse:
        request = pb.ListTopicsRequest(after=after, limit=TOPICS_PER_PAGE, include_internal=include_internal)
        return await self._call(lambda stub, timeout: stub.ListTopics(request, timeout=timeout))

    async def describe_topic(self, name: str) -> TopicDescription:
        """
        A topic with its partitions.

        Raises:
            UnknownTopicOrPartition: there is none of this name.
        """
        request = pb.DescribeTopicsRequest(names=[name])
        answer = await self._call(lambda stub, timeout: stub.DescribeTopics(request, timeout=timeout))
        return _or_raise(_decode_topic(answer.topics[0]))

    async def add_partitions(
        self,
        name: str,
        total: int,
        *,
        assignments: Sequence[Sequence[int]] = (),
        validate_only: bool = False,
    ) -> TopicDescription:
        """
        Raise the number of a topic's partitions to ``total``. Keys may land elsewhere from then on.

        Raises:
            UnknownTopicOrPartition: there is no such topic.
            InvalidPartitions: it has as many already, or more.
        """
        request = pb.CreatePartitionsRequest(
            name=name,
            partition_count=total,
            assignments=[pb.ReplicaAssignment(replicas=list(replicas)) for replicas in assignments],
            validate_only=validate_only,
        )
        answer = await self._call(lambda stub, timeout: stub.CreatePartitions(request, timeout=timeout), change=True)
        described = _or_raise(_decode_topic(answer.result))
        if not validate_only:
            await self._wait_until_known([name], {name: total})
        return described

    async def delete_records(self, offsets: Mapping[tuple[str, int], int]) -> dict[TopicPartition, int]:
        """
        Delete all records below an offset, per partition; ``HIGH_WATERMARK`` (-1) means all there are.

        Returns:
            The first offset that each partition now has.

        Raises:
            OffsetOutOfRange: an offset is above the end.
            UnknownTopicOrPartition: there is no such partition.
        """
        tps = [TopicPartition(*tp) for tp in offsets]
        ids = {topic: (await self.describe_topic(topic)).topic_id for topic in dict.fromkeys(tp.topic for tp in tps)}
        request = broker.DeleteRecordsRequest()
        for tp, offset in zip(tps, offsets.values(), strict=True):
            request.partitions.add(topic_id=ids[tp.topic], partition=tp.partition, offset=offset)
        answer = await self._call(lambda stub, timeout: stub.DeleteRecords(request, timeout=timeout))
        starts: dict[TopicPartition, int] = {}
        for tp, result in zip(tps, answer.partitions, strict=True):
            _check(result.error, f"{tp}: {result.message}" if result.message else str(tp))
            starts[tp] = result.log_start_offset
        return starts

    # --- settings -----------------------------------------------------------------------------------------------

    async def describe_configs(self, *, topic: str | None = None, broker: int | None = None) -> dict[str, ConfigEntry]:
        """
        The settings of a topic, of one broker, or (neither given) those that all brokers share; with their sources.

        Raises:
            UnknownTopicOrPartition, NotFound: there is no such topic or broker.
        """
        request = pb.DescribeConfigsRequest(resources=[_resource(topic, broker)])
        answer = await self._call(lambda stub, timeout: stub.DescribeConfigs(request, timeout=timeout))
        return _entries(answer.results[0])

    async def alter_configs(
        self,
        changes: Mapping[str, str | int | float | bool | None],
        *,
        topic: str | None = None,
        broker: int | None = None,
        validate_only: bool = False,
    ) -> dict[str, ConfigEntry]:
        """
        Change settings of a topic, of one broker, or (neither given) of all brokers; all of them or none. The value
        None means back to the default. Returns the settings after the change.

        Raises:
            InvalidConfig: a setting is unknown, fixed at start, or its value is out of bounds.
        """
        resource = pb.AlterConfigsResource(resource=_resource(topic, broker))
        for name, value in changes.items():
            if value is None:
                resource.changes.add(name=name, op=pb.DELETE)
            else:
                resource.changes.add(name=name, op=pb.SET, value=_text(name, value))
        request = pb.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
        answer = await self._call(
            lambda stub, timeout: stub.IncrementalAlterConfigs(request, timeout=timeout), change=True
        )
        return _entries(answer.results[0])

    # --- cluster ------------------------------------------------------------------------------------------------

    async def describe_cluster(self) -> ClusterDescription:
        """Who is there, and how much there is."""
        answer = await self._call(
            lambda stub, timeout: stub.DescribeCluster(pb.DescribeClusterRequest(), timeout=timeout)
        )
        return ClusterDescription.of(answer)

    async def describe_features(self) -> FeaturesInfo:
        """The cluster's feature level, what comes with each, what every node knows, and what the next waits for."""
        request = admin_pb2.DescribeFeaturesRequest()
        return FeaturesInfo.of(await self._call(lambda stub, timeout: stub.DescribeFeatures(request, timeout=timeout)))

    async def list_brokers(self) -> list[BrokerInfo]:
        """All registered brokers by id, fenced ones too."""
        return list((await self.describe_cluster()).brokers)

    async def describe_broker(self, broker_id: int) -> BrokerInfo:
        """
        One broker.

        Raises:
            NotFound: none of this id is registered.
        """
        for info in await self.list_brokers():
            if info.id == broker_id:
                return info
        raise NotFound(f"no broker {broker_id} is registered; `headrace broker list` shows those that are")

    async def describe_logs(
        self, *, broker: int | None = None, topics: Iterable[str] = (), segments: bool = False
    ) -> list[BrokerLogs]:
        """The logs of all brokers or of one, of all topics or of some; a broker that does not answer says why."""
        ids = [(await self.describe_topic(topic)).topic_id for topic in topics]
        request = admin_pb2.DescribeClusterLogsRequest(broker_id=broker)
        request.request.topic_ids.extend(ids)
        request.request.segments = segments
        answer = await self._call(lambda stub, timeout: stub.DescribeLogs(request, timeout=timeout))
        return [BrokerLogs.of(logs) for logs in sorted(answer.brokers, key=lambda logs: logs.broker_id)]

    # --- leaders and replicas -----------------------------------------------------------------------------------

    async def elect_leaders(
        self, partitions: Iterable[tuple[str, int]] | None = None, *, kind: str = "preferred"
    ) -> dict[TopicPartition, PartitionInfo | HeadraceError]:
        """
        Elect leaders by command.

        Args:
            partitions: None: all, which only ``preferred`` takes.
            kind: ``"preferred"``: the first replica leads, where it is in sync; nothing can be lost. Where nobody
                leads, ``"without_missing"``: the longest log leads of the replicas that may hold all that is committed;
                those that are away are given up. ``"unclean"``: any replica that lives; committed records may be lost.

        Returns:
            The partitions that were named or changed, as they are now; in place of each that could not be, its error:
            ``ElectionNotNeeded``, ``PreferredLeaderNotAvailable``, ``EligibleLeadersNotAvailable``…
        """
        ids = await self._topic_ids()
        request = elect_request(kind, [TopicPartition(*tp) for tp in partitions or ()], ids)
        answer = await self._call(lambda stub, timeout: stub.ElectLeaders(request, timeout=timeout), change=True)
        return outcomes(answer.partitions, ids)

    async def alter_reassignments(
        self, targets: Mapping[tuple[str, int], Sequence[int] | None], *, validate_only: bool = False
    ) -> dict[TopicPartition, PartitionInfo | HeadraceError]:
        """
        Give partitions other replicas: broker ids, the preferred leader first. New ones copy while the old ones serve;
        ``list_reassignments`` shows what is under way. None cancels that for a partition.

        Returns:
            Per partition its state, or in its place its error: ``InvalidReplicaAssignment``,
            ``NoReassignmentInProgress``…
        """
        ids = await self._topic_ids()
        wanted = {TopicPartition(*tp): replicas for tp, replicas in targets.items()}
        request = reassign_request(wanted, ids, validate_only=validate_only)
        answer = await self._call(lambda stub, timeout: stub.AlterReassignments(request, timeout=timeout), change=True)
        return outcomes(answer.partitions, ids)

    async def list_reassignments(self, partitions: Iterable[tuple[str, int]] = ()) -> list[Reassignment]:
        """Partitions whose replicas are being changed: all, or those of ``partitions``."""
        ids = await self._topic_ids()
        request = pb.ListReassignmentsRequest(partitions=[ids.ref(TopicPartition(*tp)) for tp in partitions])
        answer = await self._call(lambda stub, timeout: stub.ListReassignments(request, timeout=timeout))
        return reassignments(answer.partitions, ids)

    # --- everything else ----------------------------------------------------------------------------------------

    async def ask(self, rpc: str, request: Message, *, change: bool = False) -> Any:
        """
        One call of the ``Admin`` service in its own messages: for what has no method here, and for the JSON that REST
        answers, which ``headrace_common.rpc.answers`` makes of them.

        Args:
            rpc: its name, such as ``"DescribeStatus"``.
            change: it changes something, so it is repeated only when it is certain that nothing was changed.

        Raises:
            Rejected: the service has no such call.
        """

        def attempt(stub: Any, timeout: float) -> Awaitable[Any]:
            call = getattr(stub, rpc, None)
            if call is None:
                raise Rejected(f"the admin service has no call {rpc!r}; admin.proto names those it has")
            answer: Awaitable[Any] = call(request, timeout=timeout)
            return answer

        return await self._call(attempt, change=change)

    async def _topic_ids(self) -> TopicIds:
        return TopicIds({topic.name: topic.topic_id for topic in await self.list_topics(include_internal=True)})

    # --- calls --------------------------------------------------------------------------------------------------

    async def _call(self, ask: Callable[[Any, float], Awaitable[T]], *, change: bool = False) -> T:
        """One call, repeated while that is safe, at most for ``default_api_timeout_ms``."""
        self._check_usable()
        settings, clock = self._settings, self._clock
        deadline_ms = clock.monotonic_ms() + settings.default_api_timeout_ms
        pause_ms: float = max(1, settings.retry_backoff_ms)
        told: HeadraceError | None = None
        refused = False
        while True:
            left_ms = deadline_ms - clock.monotonic_ms()
            try:
                found = self._stub is not None
                stub = self._stub = self._stub or await self._transport.admin()
            except HeadraceError as failed_to_find:
                safe = failed_to_find.retriable and not isinstance(failed_to_find, ClusterUnreachable)
                error, found = failed_to_find, False
            else:
                try:
                    with CallTo("the admin service"):
                        return await ask(stub, max(0.001, min(left_ms, self._attempt_ms(change)) / 1000))
                except HeadraceError as failed:
                    error = failed
                    self._stub = None
                    if isinstance(error, Unauthenticated):  # whoever is asked for the next stub looks for another key
                        safe, refused = not refused, True
                    elif change:
                        safe = error.code in SAFE_TO_REPEAT or never_sent(error)
                    else:
                        safe = error.retriable and error.kind is not Kind.NOT_FOUND
            if not change and error.code is not ErrorCode.REQUEST_TIMED_OUT:
                told = error
            if not safe or left_ms <= pause_ms:
                if change and found and isinstance(error, UnknownOutcome) and not never_sent(error):
                    raise type(error)(f"{error}; the change may have been made: look before you ask again") from error
                raise told or error  # what was said before says more than our own last timeout
            if not found:
                await clock.sleep_ms(pause_ms)
                pause_ms = min(pause_ms * 2, max(1, settings.retry_backoff_max_ms))

    def _attempt_ms(self, change: bool) -> float:
        """A change is not given up early: its outcome would be unknown."""
        return self._settings.default_api_timeout_ms if change else self._settings.request_timeout_ms

    async def _wait_until_known(self, names: Sequence[str], partitions: Mapping[str, int]) -> None:
        """Wait until a broker's metadata has these topics, led in all partitions."""
        missing = set(names)
        deadline_ms = self._clock.monotonic_ms() + self._settings.default_api_timeout_ms
        pause_ms = 5.0
        while missing:
            answer = await self._transport.metadata(broker.MetadataRequest(topics=sorted(missing)))
            for topic in answer.topics:
                led = topic.partitions and all(p.leader >= 0 for p in topic.partitions)
                if not topic.error and led and len(topic.partitions) >= partitions.get(topic.name, 1):
                    missing.discard(topic.name)
            if not missing:
                return
            if self._clock.monotonic_ms() >= deadline_ms:
                names_text = ", ".join(sorted(missing)[:5])
                raise WaitTimedOut(f"{names_text}: done, but no broker leads all partitions yet; see describe_topic")
            await self._clock.sleep_ms(pause_ms)
            pause_ms = min(pause_ms * 2, 200.0)

    def _check_usable(self) -> None:
        if self._closed:
            raise ClientClosed("the admin client is closed; make a new one")
        if self._pid != os.getpid():
            raise ClientClosed.by_fork("admin client")


def _check(code: int, message: str) -> None:
    if code:
        raise error_for(code, message)


def _new_topics(topics: Iterable[NewTopic], validate_only: bool, timeout_ms: int) -> pb.CreateTopicsRequest:
    request = pb.CreateTopicsRequest(validate_only=validate_only, timeout_ms=timeout_ms)
    for topic in topics:
        request.topics.add(
            name=check_topic_name(topic.name),
            partition_count=-1 if topic.partitions is None else topic.partitions,
            replication_factor=-1 if topic.replication_factor is None else topic.replication_factor,
            configs={name: _text(name, value) for name, value in topic.configs.items()},
            assignments=[pb.ReplicaAssignment(replicas=list(replicas)) for replicas in topic.assignments],
        )
    return request


async def _create_topics(request: pb.CreateTopicsRequest, stub: Any, timeout: float) -> pb.CreateTopicsResponse:
    answer: pb.CreateTopicsResponse = await stub.CreateTopics(request, timeout=timeout)
    return answer


def _nothing_changed(result: TopicDescription | HeadraceError) -> bool:
    return isinstance(result, HeadraceError) and result.code in SAFE_TO_REPEAT


def _decode_topic(result: pb.TopicResult) -> TopicDescription | HeadraceError:
    if result.error:
        return error_for(result.error, result.message or f"topic {result.name!r}")
    return TopicDescription.of(result.topic)


def _or_raise(result: TopicDescription | HeadraceError) -> TopicDescription:
    if isinstance(result, HeadraceError):
        raise result
    return result


def _resource(topic: str | None, broker_id: int | None) -> pb.ConfigResource:
    if topic is not None and broker_id is not None:
        raise Rejected("name a topic or a broker, not both; without either it is all brokers")
    if topic is not None:
        return pb.ConfigResource(type=pb.TOPIC_CONFIG, name=topic)
    return pb.ConfigResource(type=pb.BROKER_CONFIG, name="" if broker_id is None else str(broker_id))


def _entries(result: pb.ConfigResult) -> dict[str, ConfigEntry]:
    _check(result.error, result.message)
    return {entry.name: ConfigEntry.of(entry) for entry in result.entries}


def _text(name: str, value: Any) -> str:
    """A setting's value as text, as Kafka writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise Rejected(f"{name} takes a text or a number, not {value!r}")


__all__ = ["HIGH_WATERMARK", "AdminClient", "AdminSettings"]
