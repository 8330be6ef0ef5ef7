"""
What the admin service needs from the rest of the cluster.

Requests and answers are the generated messages: this service forwards them and decides little about them. All
methods run on one event loop and raise ``HeadraceError``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from headrace_common.core.access.observed import Report
from headrace_common.core.access.refusals import Remembered
from headrace_common.core.ids import Endpoint, NodeId, Offset
from headrace_common.core.image import ClusterImage, Node, NodeKey
from headrace_common.core.served_certificates import Served
from headrace_common.core.worker_address import WorkerAddress
from headrace_common.rpc.calls import A_co, Method, Q_contra
from headrace_proto.v1 import broker_pb2, streams_pb2

if TYPE_CHECKING:
    from headrace_proto.v1.broker_pb2_grpc import BrokerAsyncStub  # exist for type checkers only
    from headrace_proto.v1.controller_pb2_grpc import ControllerAsyncStub
    from headrace_proto.v1.coordinator_pb2_grpc import CoordinatorAsyncStub
    from headrace_proto.v1.transaction_pb2_grpc import TransactionCoordinatorAsyncStub


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
    """The active controller, wherever it is."""

    async def ask(self, method: Callable[[ControllerAsyncStub], Method[Q_contra, A_co]], request: Q_contra) -> A_co:
        """
        Its answer: ``ask(lambda stub: stub.CreateTopics, request)``. What may be carried out twice is repeated until
        the time is over.

        Raises:
            UnknownOutcome: of a change: some of it may have been made; look before trying again.
        """
        ...


class Brokers(Protocol):
    """Single brokers, by id, at the address the image has for them."""

    async def ask(
        self, broker: NodeId, method: Callable[[BrokerAsyncStub], Method[Q_contra, A_co]], request: Q_contra
    ) -> A_co:
        """
        Its answer; partitions and keys have their own errors in it.

        Raises:
            NetworkFailed: the outcome is unknown; or there is no such broker, or no address of it.
        """
        ...

    async def fetch(self, broker: NodeId, request: broker_pb2.FetchRequest) -> broker_pb2.FetchResponse:
        """One request and its answer. Raises: ``HeadraceError``."""
        ...


class Nodes(Protocol):
    """Any node, by how it is registered."""

    key: NodeKey
    """Which one this process is."""

    async def observed(self, node: Node) -> Report:
        """
        What it has seen of who calls it; of another admin process what the running call's caller may know.

        Raises:
            HeadraceError: it does not answer, or is of a version that does not know this.
        """
        ...

    async def own(self, *, look: bool) -> tuple[Served, ...]:
        """What this process shows; nothing: it speaks plain text."""
        ...

    async def certificates(self, node: Node, *, look: bool) -> tuple[Served, ...]:
        """
        What it shows; nothing: it speaks plain text. Another admin process tells what the running call's caller may
        know.

        Args:
            look: it looks at its files first.

        Raises:
            HeadraceError: it does not answer, or is of a version that does not know this.
        """
        ...

    async def refused(self, node: Node, id: str) -> Remembered | None:
        """
        What it remembers of a refusal; of another admin process as ``observed``. None: nothing.

        Raises:
            HeadraceError: it does not answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class CoordinatorPlace:
    """Whom to ask about some groups or transactional ids, and where."""

    id: NodeId
    endpoint: Endpoint


class Coordinators(Protocol):
    """
    Single coordinators; whoever has not the group or transactional id says ``NotCoordinator``. What is answered is
    durable. Groups, partitions and transactional ids have their own errors in answers.
    """

    async def ask_group(
        self,
        place: CoordinatorPlace,
        method: Callable[[CoordinatorAsyncStub], Method[Q_contra, A_co]],
        request: Q_contra,
    ) -> A_co:
        """Raises: ``UnknownOutcome``: a change may have been made; but for deletions of groups it may be repeated."""
        ...

    async def ask_transaction(
        self,
        place: CoordinatorPlace,
        method: Callable[[TransactionCoordinatorAsyncStub], Method[Q_contra, A_co]],
        request: Q_contra,
    ) -> A_co:
        """Raises: ``UnknownOutcome``: a change may have been made; with producer id and epoch it may be repeated."""
        ...


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """What a program of streams keeps under one name."""

    name: str
    sub_topology: str
    """Its tasks are ``<sub_topology>/0`` and so on."""
    partitions: int
    key_columns: Mapping[str, str]
    """The types of its keys' columns, by name; empty: not known."""


class Workers(Protocol):
    """
    Single workers of streams, at the addresses that they told their groups. In a closed cluster each is shown a ticket
    of the caller's; without the right to read the app's group that is ``Denied``.
    """

    async def stores(self, app: str, at: WorkerAddress) -> Sequence[StoreFacts]:
        """Of its program. Raises: ``HeadraceError``."""
        ...

    async def locate(
        self, app: str, at: WorkerAddress, request: streams_pb2.LocateKeyRequest
    ) -> streams_pb2.LocateKeyResponse:
        """
        The key that texts stand for.

        Raises:
            NotFound: the program has no such store.
            Rejected: its keys have other columns.
        """
        ...

    async def rows(
        self, app: str, at: WorkerAddress, request: streams_pb2.QueryStoreRequest
    ) -> Sequence[dict[str, Any]]:
        """
        Rows of a store in one task.

        Raises:
            NotCoordinator: the task is elsewhere, or is being taken over.
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


class Opened(NamedTuple):
    """What was sealed."""

    text: str
    by_old_key: bool
    """Not by the one that seals now: soon nobody opens it any more."""


class Seals(Protocol):
    """What browsers keep for us, and nobody reads or makes but who has the key."""

    def seal(self, text: str) -> str:
        """Letters, digits, ``-`` and ``_``; another text each time."""
        ...

    def open(self, sealed: str) -> Opened | None:
        """None: it was sealed under no key that counts, or was changed."""
        ...
