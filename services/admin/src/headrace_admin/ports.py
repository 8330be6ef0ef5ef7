"""
What the admin service needs from the rest of the cluster.

Requests and answers are the generated messages: this service forwards them and decides little about them. All
methods run on one event loop and raise ``HeadraceError``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace_common.core.ids import Endpoint, NodeId, Offset
from headrace_common.core.image import ClusterImage
from headrace_proto.v1 import broker_pb2, controller_pb2, coordinator_pb2, transaction_pb2


class Cluster(Protocol):
    """The cluster image, as this node follows it."""

    @property
    def image(self) -> ClusterImage:
        """The newest; empty (revision 0) before the first came."""
        ...

    async def newer(self, revision: int, timeout_ms: float) -> ClusterImage:
        """The image once its revision is above ``revision``, or the present one after ``timeout_ms``."""
        ...

    async def caught_up(self, timeout_ms: float) -> ClusterImage:
        """
        The image once it is as new as the active controller's is now: what it lacks then is not there. The present one
        after ``timeout_ms``, or where no controller answers.
        """
        ...


class Controllers(Protocol):
    """The active controller, wherever it is. What may be repeated safely is repeated until the time is over."""

    async def describe_cluster(
        self, request: controller_pb2.DescribeClusterRequest
    ) -> controller_pb2.DescribeClusterResponse:
        """Raises: ``HeadraceError``."""
        ...

    async def create_topics(self, request: controller_pb2.CreateTopicsRequest) -> controller_pb2.CreateTopicsResponse:
        """Raises: ``UnknownOutcome``: some may have been created; look before trying again."""
        ...

    async def delete_topics(self, request: controller_pb2.DeleteTopicsRequest) -> controller_pb2.DeleteTopicsResponse:
        """Raises: ``UnknownOutcome``: some may have been deleted."""
        ...

    async def list_topics(self, request: controller_pb2.ListTopicsRequest) -> controller_pb2.ListTopicsResponse:
        """Raises: ``HeadraceError``."""
        ...

    async def describe_topics(
        self, request: controller_pb2.DescribeTopicsRequest
    ) -> controller_pb2.DescribeTopicsResponse:
        """Raises: ``HeadraceError``."""
        ...

    async def create_partitions(
        self, request: controller_pb2.CreatePartitionsRequest
    ) -> controller_pb2.CreatePartitionsResponse:
        """Raises: ``UnknownOutcome``: they may have been added."""
        ...

    async def describe_configs(
        self, request: controller_pb2.DescribeConfigsRequest
    ) -> controller_pb2.DescribeConfigsResponse:
        """Raises: ``HeadraceError``."""
        ...

    async def alter_configs(
        self, request: controller_pb2.IncrementalAlterConfigsRequest
    ) -> controller_pb2.IncrementalAlterConfigsResponse:
        """Raises: ``UnknownOutcome``: the change may have been made."""
        ...

    async def unregister_node(
        self, request: controller_pb2.UnregisterNodeRequest
    ) -> controller_pb2.UnregisterNodeResponse:
        """Raises: ``UnknownOutcome``: it may be gone."""
        ...

    async def elect_leaders(self, request: controller_pb2.ElectLeadersRequest) -> controller_pb2.ElectLeadersResponse:
        """Raises: ``UnknownOutcome``: some may have been elected."""
        ...

    async def alter_reassignments(
        self, request: controller_pb2.AlterReassignmentsRequest
    ) -> controller_pb2.AlterReassignmentsResponse:
        """Raises: ``UnknownOutcome``: some may have begun, or been cancelled."""
        ...

    async def list_reassignments(
        self, request: controller_pb2.ListReassignmentsRequest
    ) -> controller_pb2.ListReassignmentsResponse:
        """Raises: ``HeadraceError``."""
        ...

    async def drain_broker(self, request: controller_pb2.DrainBrokerRequest) -> controller_pb2.DrainBrokerResponse:
        """Raises: ``NotFound``: no such broker."""
        ...

    async def describe_restore(
        self, request: controller_pb2.DescribeRestoreRequest
    ) -> controller_pb2.DescribeRestoreResponse:
        """Raises: ``HeadraceError``; a controller of an older version does not know the question."""
        ...

    async def adopt_topic(self, request: controller_pb2.AdoptTopicRequest) -> controller_pb2.AdoptTopicResponse:
        """Raises: ``UnknownOutcome``: it may have been adopted; look before trying again."""
        ...


class Brokers(Protocol):
    """Single brokers, by id, at the address the image has for them."""

    async def delete_records(
        self, broker: NodeId, request: broker_pb2.DeleteRecordsRequest
    ) -> broker_pb2.DeleteRecordsResponse:
        """Raises: ``NetworkFailed`` (also for an id without an address): the outcome is unknown; may be repeated."""
        ...

    async def describe_logs(
        self, broker: NodeId, request: broker_pb2.DescribeLogsRequest
    ) -> broker_pb2.DescribeLogsResponse:
        """Raises: ``HeadraceError``."""
        ...

    async def list_offsets(
        self, broker: NodeId, request: broker_pb2.ListOffsetsRequest
    ) -> broker_pb2.ListOffsetsResponse:
        """Each partition has its own error. Raises: ``HeadraceError``."""
        ...

    async def fetch(self, broker: NodeId, request: broker_pb2.FetchRequest) -> broker_pb2.FetchResponse:
        """One request and its answer. Raises: ``HeadraceError``."""
        ...

    async def find_coordinator(
        self, broker: NodeId, request: broker_pb2.FindCoordinatorRequest
    ) -> broker_pb2.FindCoordinatorResponse:
        """Makes the internal topic where there is none. Each key has its own error. Raises: ``HeadraceError``."""
        ...

    async def describe_producers(
        self, broker: NodeId, request: broker_pb2.DescribeProducersRequest
    ) -> broker_pb2.DescribeProducersResponse:
        """Of partitions that it leads; each has its own error. Raises: ``HeadraceError``."""
        ...

    async def write_txn_markers(
        self, broker: NodeId, request: transaction_pb2.WriteTxnMarkersRequest
    ) -> transaction_pb2.WriteTxnMarkersResponse:
        """Committed when answered; may be repeated. Each partition has its own error. Raises: ``HeadraceError``."""
        ...


@dataclass(frozen=True, slots=True)
class CoordinatorPlace:
    """Whom to ask about some groups or transactional ids, and where."""

    id: NodeId
    endpoint: Endpoint


class Coordinators(Protocol):
    """Single coordinators; whoever is not the group's says ``NotCoordinator``. What is answered is durable."""

    async def list_groups(
        self, place: CoordinatorPlace, request: coordinator_pb2.ListGroupsRequest
    ) -> coordinator_pb2.ListGroupsResponse:
        """The groups of its shards. Raises: ``HeadraceError``."""
        ...

    async def describe_groups(
        self, place: CoordinatorPlace, request: coordinator_pb2.DescribeGroupsRequest
    ) -> coordinator_pb2.DescribeGroupsResponse:
        """Each group has its own error. Raises: ``HeadraceError``."""
        ...

    async def fetch_offsets(
        self, place: CoordinatorPlace, request: coordinator_pb2.FetchOffsetsRequest
    ) -> coordinator_pb2.FetchOffsetsResponse:
        """Nothing at all where there is no such group. Raises: ``HeadraceError``."""
        ...

    async def commit_offsets(
        self, place: CoordinatorPlace, request: coordinator_pb2.CommitOffsetsRequest
    ) -> coordinator_pb2.CommitOffsetsResponse:
        """Each partition has its own error. Raises: ``UnknownOutcome``: it may be done; it may be repeated."""
        ...

    async def delete_groups(
        self, place: CoordinatorPlace, request: coordinator_pb2.DeleteGroupsRequest
    ) -> coordinator_pb2.DeleteGroupsResponse:
        """Each group has its own error. Raises: ``UnknownOutcome``: some may be gone."""
        ...

    async def delete_offsets(
        self, place: CoordinatorPlace, request: coordinator_pb2.DeleteOffsetsRequest
    ) -> coordinator_pb2.DeleteOffsetsResponse:
        """Each partition has its own error. Raises: ``UnknownOutcome``: some may be gone; it may be repeated."""
        ...


class TransactionCoordinators(Protocol):
    """Single coordinators of transactions; whoever is not the id's says ``NotCoordinator``. Answers are durable."""

    async def list_transactions(
        self, place: CoordinatorPlace, request: transaction_pb2.ListTransactionsRequest
    ) -> transaction_pb2.ListTransactionsResponse:
        """The transactional ids of its shards. Raises: ``HeadraceError``."""
        ...

    async def describe_transactions(
        self, place: CoordinatorPlace, request: transaction_pb2.DescribeTransactionsRequest
    ) -> transaction_pb2.DescribeTransactionsResponse:
        """Each id has its own error. Raises: ``HeadraceError``."""
        ...

    async def decide_prepared(
        self, place: CoordinatorPlace, request: transaction_pb2.DecidePreparedRequest
    ) -> transaction_pb2.DecidePreparedResponse:
        """
        The verdict that holds, which may be an earlier one.

        Raises:
            TxnVerdictUnknown: it was decided long ago, or never prepared.
            UnknownOutcome: it may be decided; it may be repeated.
        """
        ...

    async def abort_transaction(
        self, place: CoordinatorPlace, request: transaction_pb2.AbortTransactionRequest
    ) -> transaction_pb2.AbortTransactionResponse:
        """
        Decided when answered; readers see it soon after.

        Raises:
            TransactionalIdNotFound, InvalidTxnState: there is nothing to abort, or it is prepared.
            UnknownOutcome: it may be aborted; with producer id and epoch it may be repeated.
        """
        ...


@dataclass(frozen=True, slots=True)
class NewMessage:
    """One record to write."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    """None: by the key, or any."""
    timestamp_ms: int | None = None
    """None: now."""


@dataclass(frozen=True, slots=True)
class WrittenMessage:
    """Where it is, or why it is not."""

    partition: int
    offset: Offset
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One record that was read."""

    offset: Offset
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = field(default=())


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Some records of a partition, ascending, and where to go on."""

    messages: Sequence[StoredMessage]
    next_offset: Offset
    """The offset to ask for next; equal to the one asked for where nothing was there."""


class MessageLog(Protocol):
    """A few messages in and out: what any client of the cluster can do."""

    async def append(self, topic: str, messages: Sequence[NewMessage]) -> Sequence[WrittenMessage]:
        """
        Write all, acknowledged by all in-sync replicas; answers in the order of ``messages``.

        Raises:
            HeadraceError: at least one was not written, or it is unknown; others may be there.
        """
        ...

    async def read(
        self, topic: str, partition: int, start: Offset | None, *, limit: int, bytes_max: int, wait_ms: int
    ) -> MessagePage:
        """
        Up to ``limit`` records from ``start`` (None: the oldest there is), no more than ``bytes_max`` bytes but for
        the first, waiting up to ``wait_ms`` for the first.

        Raises:
            UnknownTopicOrPartition, OffsetOutOfRange: with the bounds that would do.
        """
        ...

    async def end(self, topic: str, partition: int) -> Offset:
        """
        One past the last record that can be read.

        Raises:
            UnknownTopicOrPartition: there is no such partition.
        """
        ...
