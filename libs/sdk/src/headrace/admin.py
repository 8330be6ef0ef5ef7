"""
``headrace.AdminClient``: topics, settings, brokers, logs, consumer groups and transactions, from a thread that may
block.

Each call runs on the process's loop thread by ``headrace.aio.AdminClient``, which tells what it does and raises.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from headrace import _runtime
from headrace._group_admin import GroupAdmin
from headrace._restore_admin import RestoreAdmin
from headrace._setting_names import Servers
from headrace._transaction_admin import TransactionAdmin
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
from headrace.aio.admin import HIGH_WATERMARK
from headrace.aio.admin import AdminClient as AsyncAdminClient
from headrace.errors import ClientClosed, HeadraceError
from headrace.records import TopicPartition

if TYPE_CHECKING:
    from headrace._transport.port import Transport
    from headrace.setting_types import AdminSettingsDict

T = TypeVar("T")

CLOSE_TIMEOUT_S = 10.0

__all__ = ["HIGH_WATERMARK", "AdminClient", "NewTopic"]


class AdminClient(GroupAdmin, TransactionAdmin, RestoreAdmin):
    """
    Administration of one cluster. Any thread may call it. Ctrl+C ends a wait; what was asked for may still happen.

    Args:
        bootstrap_servers: any brokers, ``"host:port,host:port"`` or a list; by default ``HEADRACE_BOOTSTRAP``.
        settings: see ``headrace.aio.admin.AdminSettings``.

    Topics::

        >>> import headrace
        >>> admin = headrace.AdminClient()
        >>> created = admin.create_topic("departures", partitions=6, configs={"retention.ms": "86400000"})
        >>> len(created.partitions), [topic.name for topic in admin.list_topics()]
        (6, ['departures'])
        >>> admin.describe_topic("departures").configs
        {'retention.ms': '86400000'}
        >>> len(admin.add_partitions("departures", 8).partitions)
        8
        >>> admin.delete_records({("departures", 0): -1})
        {TopicPartition(topic='departures', partition=0): 0}
        >>> len(admin.create_topic("departures", partitions=3, if_not_exists=True).partitions)   # as it is
        8
        >>> results = admin.create_topics([NewTopic("arrivals"), NewTopic("departures")])
        >>> type(results["departures"]).__name__
        'TopicAlreadyExists'

    Settings::

        >>> admin.describe_configs(topic="departures")["retention.ms"].source
        'dynamic_topic'
        >>> admin.alter_configs({"retention.ms": None}, topic="departures")["retention.ms"].value
        '604800000'

    The cluster::

        >>> admin.describe_cluster().offline_partitions
        0
        >>> [broker.id for broker in admin.list_brokers()], admin.describe_broker(1).fenced
        ([1], False)
        >>> sum(len(broker.logs) for broker in admin.describe_logs(topics=["departures"]))
        8

    Leaders and replicas::

        >>> zero = headrace.TopicPartition("departures", 0)
        >>> type(admin.elect_leaders([zero])[zero]).__name__
        'ElectionNotNeeded'
        >>> type(admin.alter_reassignments({zero: None})[zero]).__name__
        'NoReassignmentInProgress'
        >>> admin.list_reassignments()
        []
        >>> admin.drain_broker(1) > 0, admin.describe_broker(1).drained
        (True, True)
        >>> admin.drain_broker(1, drained=False) > 0, admin.describe_broker(1).drained
        (True, False)

    And at the end::

        >>> admin.delete_topic("departures")
        >>> admin.close()
    """

    def __init__(
        self,
        bootstrap_servers: Servers = None,
        *,
        _transport: Transport | None = None,
        **settings: Unpack[AdminSettingsDict],
    ) -> None:
        self._client: AsyncAdminClient = AsyncAdminClient(bootstrap_servers, _transport=_transport, **settings)
        self._transactions = self._client
        self._restores = self._client
        self._loop = _runtime.loop_thread()
        self._abandoned = False
        _runtime.enroll(self)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        if not self._abandoned:
            _runtime.dismiss(self)
            self._loop.call(self._client.close(), CLOSE_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _abandon(self) -> None:
        self._abandoned = True

    def _close_at_exit(self, timeout: float) -> None:
        """Nothing of an admin client is lost with its process."""

    def _wait(self, coro: Coroutine[Any, Any, T]) -> T:
        if self._abandoned:
            coro.close()
            raise ClientClosed.by_fork("admin client")
        return self._loop.call(coro)

    # --- topics -------------------------------------------------------------------------------------------------

    def create_topic(
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
        return self._wait(
            self._client.create_topic(
                name,
                partitions,
                replication_factor,
                configs,
                assignments=assignments,
                validate_only=validate_only,
                if_not_exists=if_not_exists,
            )
        )

    def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, TopicDescription | HeadraceError]:
        """Create several; each succeeds or fails by itself, and its error is returned in its place."""
        return self._wait(self._client.create_topics(topics, validate_only=validate_only))

    def delete_topic(self, name: str) -> None:
        """
        Delete a topic and its records. The name is free at once.

        Raises:
            UnknownTopicOrPartition: there is none of this name.
        """
        self._wait(self._client.delete_topic(name))

    def list_topics(self, *, include_internal: bool = False) -> list[TopicInfo]:
        """All topics, by name."""
        return self._wait(self._client.list_topics(include_internal=include_internal))

    def describe_topic(self, name: str) -> TopicDescription:
        """
        A topic with its partitions.

        Raises:
            UnknownTopicOrPartition: there is none of this name.
        """
        return self._wait(self._client.describe_topic(name))

    def add_partitions(
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
        return self._wait(
            self._client.add_partitions(name, total, assignments=assignments, validate_only=validate_only)
        )

    def delete_records(self, offsets: Mapping[tuple[str, int], int]) -> dict[TopicPartition, int]:
        """
        Delete all records below an offset, per partition; ``HIGH_WATERMARK`` (-1) means all there are.

        Returns:
            The first offset that each partition now has.

        Raises:
            OffsetOutOfRange: an offset is above the end.
            UnknownTopicOrPartition: there is no such partition.
        """
        return self._wait(self._client.delete_records(offsets))

    # --- settings -----------------------------------------------------------------------------------------------

    def describe_configs(self, *, topic: str | None = None, broker: int | None = None) -> dict[str, ConfigEntry]:
        """
        The settings of a topic, of one broker, or (neither given) those that all brokers share; with their sources.

        Raises:
            UnknownTopicOrPartition, NotFound: there is no such topic or broker.
        """
        return self._wait(self._client.describe_configs(topic=topic, broker=broker))

    def alter_configs(
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
        return self._wait(self._client.alter_configs(changes, topic=topic, broker=broker, validate_only=validate_only))

    # --- cluster ------------------------------------------------------------------------------------------------

    def describe_cluster(self) -> ClusterDescription:
        """Who is there, and how much there is."""
        return self._wait(self._client.describe_cluster())

    def describe_features(self) -> FeaturesInfo:
        """The cluster's feature level, what comes with each, what every node knows, and what the next waits for."""
        return self._wait(self._client.describe_features())

    def list_brokers(self) -> list[BrokerInfo]:
        """All registered brokers by id, fenced ones too."""
        return self._wait(self._client.list_brokers())

    def describe_broker(self, broker_id: int) -> BrokerInfo:
        """
        One broker.

        Raises:
            NotFound: none of this id is registered.
        """
        return self._wait(self._client.describe_broker(broker_id))

    def describe_logs(
        self, *, broker: int | None = None, topics: Iterable[str] = (), segments: bool = False
    ) -> list[BrokerLogs]:
        """The logs of all brokers or of one, of all topics or of some; a broker that does not answer says why."""
        return self._wait(self._client.describe_logs(broker=broker, topics=topics, segments=segments))

    # --- leaders and replicas -----------------------------------------------------------------------------------

    def elect_leaders(
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
        return self._wait(self._client.elect_leaders(partitions, kind=kind))

    def alter_reassignments(
        self, targets: Mapping[tuple[str, int], Sequence[int] | None], *, validate_only: bool = False
    ) -> dict[TopicPartition, PartitionInfo | HeadraceError]:
        """
        Give partitions other replicas: broker ids, the preferred leader first. New ones copy while the old ones serve;
        ``list_reassignments`` shows what is under way. None cancels that for a partition.

        Returns:
            Per partition its state, or in its place its error: ``InvalidReplicaAssignment``,
            ``NoReassignmentInProgress``…
        """
        return self._wait(self._client.alter_reassignments(targets, validate_only=validate_only))

    def list_reassignments(self, partitions: Iterable[tuple[str, int]] = ()) -> list[Reassignment]:
        """Partitions whose replicas are being changed: all, or those of ``partitions``."""
        return self._wait(self._client.list_reassignments(partitions))

    def drain_broker(self, broker_id: int, *, drained: bool = True) -> int:
        """
        Keep leaders away from a broker, also after it restarts; with ``drained=False`` they may come back.

        Returns:
            How many partitions it still leads, because nobody else can. Ask again until it is 0.

        Raises:
            NotFound: no broker of this id is registered.
        """
        return self._wait(self._client.drain_broker(broker_id, drained=drained))
