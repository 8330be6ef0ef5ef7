"""
What the engine relies on of transaction coordinators and of leaders: for the twins in memory, for the way over gRPC,
and for real ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, Protocol
from uuid import uuid4

import pytest
from libs.common.tests.kit.as_node import as_node
from services.admin.tests.twin.memory_cluster import MemoryCluster
from services.admin.tests.twin.memory_transactions import MemoryTransactions

from headrace import aio
from headrace_admin.adapters.grpc_brokers import GrpcBrokers
from headrace_admin.adapters.grpc_coordinators import GrpcCoordinators
from headrace_admin.ports import Brokers, CoordinatorPlace, TransactionCoordinators
from headrace_cli.local import LocalCluster
from headrace_common.core.errors import ErrorCode, HeadraceError, NetworkFailed, NotCoordinator, TxnVerdictUnknown
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.image import EMPTY_IMAGE, ClusterImage, Node, NodeKey, Role, ShardKind
from headrace_common.rpc.channels import open_channel
from headrace_common.runtime.service import GrpcService, ServerConfig
from headrace_proto.v1 import broker_pb2, controller_pb2
from headrace_proto.v1 import transaction_pb2 as pb
from headrace_proto.v1.broker_pb2_grpc import BrokerServicer, BrokerStub, add_BrokerServicer_to_server
from headrace_proto.v1.transaction_pb2_grpc import (
    TransactionCoordinatorServicer,
    add_TransactionCoordinatorServicer_to_server,
)

QUIET = ServerConfig(drain_ms_max=0)
HERE = CoordinatorPlace(NodeId(1), Endpoint("127.0.0.1", 9601))
LEADER = NodeId(1)
PATIENCE_S = 20


class BehindCoordinator(TransactionCoordinatorServicer):
    """A coordinator that answers as the twin does."""

    def __init__(self, twin: MemoryTransactions) -> None:
        self._twin = twin

    async def ListTransactions(self, request: Any, context: Any) -> Any:
        return await self._twin.list_transactions(HERE, request)

    async def DescribeTransactions(self, request: Any, context: Any) -> Any:
        return await self._twin.describe_transactions(HERE, request)

    async def DecidePrepared(self, request: Any, context: Any) -> Any:
        return await self._twin.decide_prepared(HERE, request)

    async def AbortTransaction(self, request: Any, context: Any) -> Any:
        return await self._twin.abort_transaction(HERE, request)


class BehindBroker(BrokerServicer):
    """A leader that answers as the twin does."""

    def __init__(self, twin: MemoryCluster) -> None:
        self._twin = twin

    async def DescribeProducers(self, request: Any, context: Any) -> Any:
        return await self._twin.describe_producers(LEADER, request)

    async def WriteTxnMarkers(self, request: Any, context: Any) -> Any:
        return await self._twin.write_txn_markers(LEADER, request)

    async def ListOffsets(self, request: Any, context: Any) -> Any:
        return await self._twin.list_offsets(LEADER, request)


class Known:
    """An image that knows one broker, by its address."""

    def __init__(self, endpoint: Endpoint) -> None:
        key = NodeKey(Role.BROKER, LEADER)
        node = Node(key, endpoint, bytes(16), 1, fenced=False)
        self.image: ClusterImage = replace(EMPTY_IMAGE, nodes={key: node})

    async def newer(self, revision: int, timeout_ms: float) -> ClusterImage:
        return self.image

    async def caught_up(self, timeout_ms: float) -> ClusterImage:
        return self.image


class Way(Protocol):
    """Coordinators and a leader, and producers that write to partition 0 of a topic of their own."""

    transactions: TransactionCoordinators
    brokers: Brokers

    async def place(self, i: str) -> CoordinatorPlace:
        """Who has a transactional id."""
        ...

    async def begin(self, i: str) -> bytes:
        """A transaction of one record is open; the topic's id."""
        ...

    async def prepare(self, i: str) -> pb.PreparedToken:
        """It is prepared."""
        ...

    async def commit(self, i: str) -> None:
        """It is committed, and the next may begin."""
        ...


class TwinWay:
    def __init__(
        self,
        cluster: MemoryCluster,
        twin: MemoryTransactions,
        ways: tuple[TransactionCoordinators, Brokers, CoordinatorPlace],
    ) -> None:
        self.cluster, self.twin = cluster, twin
        self.transactions, self.brokers, self._place = ways

    async def place(self, i: str) -> CoordinatorPlace:
        return self._place

    async def begin(self, i: str) -> bytes:
        new = controller_pb2.NewTopic(name=i, partition_count=1)
        await self.cluster.create_topics(controller_pb2.CreateTopicsRequest(topics=[new]))
        self.twin.begin(i, 1_000 + hash(i) % 1_000, partitions=[(i, 0)])
        return self.cluster.image.topic_ids[i]

    async def prepare(self, i: str) -> pb.PreparedToken:
        return self.twin.prepare(i)

    async def commit(self, i: str) -> None:
        self.twin.end(i, commit=True)


class RealWay:
    def __init__(self, cluster: LocalCluster, stack: AsyncExitStack) -> None:
        self._bootstrap = cluster.bootstrap_servers[0]
        self._stack = stack
        self._producers: dict[str, aio.Producer] = {}
        security = as_node(cluster.directory.path)
        coordinators = GrpcCoordinators(5_000, security)
        brokers = GrpcBrokers(Known(Endpoint.parse(self._bootstrap)), 5_000, security)
        stack.push_async_callback(coordinators.close)
        stack.push_async_callback(brokers.close)
        self.transactions: TransactionCoordinators = coordinators
        self.brokers: Brokers = brokers

    async def place(self, i: str) -> CoordinatorPlace:
        request = broker_pb2.FindCoordinatorRequest(type=broker_pb2.TRANSACTION, keys=[i])
        async with open_channel(self._bootstrap) as channel, asyncio.timeout(PATIENCE_S):
            stub: Any = BrokerStub(channel)
            while True:
                (found,) = (await stub.FindCoordinator(request)).coordinators
                if not found.error:
                    return CoordinatorPlace(
                        NodeId(found.coordinator), Endpoint(found.endpoint.host, found.endpoint.port)
                    )
                await asyncio.sleep(0.05)

    async def begin(self, i: str) -> bytes:
        async with aio.AdminClient(self._bootstrap) as admin:
            topic_id = (await admin.create_topic(i, 1)).topic_id
        producer = await self._stack.enter_async_context(aio.Producer(self._bootstrap, transactional_id=i))
        self._producers[i] = producer
        await producer.begin_transaction()
        await (await producer.send(i, b"x", partition=0))
        return topic_id

    async def prepare(self, i: str) -> pb.PreparedToken:
        return (await self._producers[i].prepare_transaction()).message()

    async def commit(self, i: str) -> None:
        await self._producers[i].commit_transaction()


@pytest.fixture(scope="module")
def real_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("contract") / "data"
    with LocalCluster(directory, brokers=1, coordinators=1, restart=False) as cluster:
        yield cluster


@asynccontextmanager
async def twin(kind: str) -> AsyncIterator[TwinWay]:
    cluster = MemoryCluster([1])
    cluster.start_coordinators(1)
    cluster.make_shards(ShardKind.TRANSACTIONS)
    transactions = MemoryTransactions(cluster)
    if kind == "memory":
        yield TwinWay(cluster, transactions, (transactions, cluster, HERE))
        return
    coordinators = GrpcCoordinators(5_000)
    servicers = [
        (add_TransactionCoordinatorServicer_to_server, BehindCoordinator(transactions)),
        (add_BrokerServicer_to_server, BehindBroker(cluster)),
    ]
    async with GrpcService.open(QUIET, servicers) as server:
        brokers = GrpcBrokers(Known(server.endpoint), 5_000)
        yield TwinWay(cluster, transactions, (coordinators, brokers, CoordinatorPlace(NodeId(1), server.endpoint)))
        await coordinators.close()
        await brokers.close()


@pytest.fixture(params=["memory", "grpc", pytest.param("real", marks=pytest.mark.integration)])
async def way(request: pytest.FixtureRequest) -> AsyncIterator[Way]:
    async with AsyncExitStack() as stack:
        if request.param == "real":
            yield RealWay(request.getfixturevalue("real_cluster"), stack)
        else:
            yield await stack.enter_async_context(twin(request.param))


@pytest.fixture
def i() -> str:
    """A transactional id, and a topic, that no other test has."""
    return f"x-{uuid4()}"


async def described(way: Way, i: str) -> pb.TransactionDescription:
    request = pb.DescribeTransactionsRequest(transactional_ids=[i])
    (one,) = (await way.transactions.describe_transactions(await way.place(i), request)).transactions
    return one


async def still_open(way: Way, topic_id: bytes) -> broker_pb2.PartitionProducers:
    request = broker_pb2.DescribeProducersRequest(
        partitions=[broker_pb2.FollowedPartition(topic_id=topic_id, partition=0)], open_only=True
    )
    (one,) = (await way.brokers.describe_producers(LEADER, request)).partitions
    assert one.error == 0
    return one


async def ended(way: Way, topic_id: bytes) -> broker_pb2.PartitionProducers:
    """Markers follow the verdict soon, and are committed soon."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            said = await still_open(way, topic_id)
            if not said.producers and said.last_stable_offset == said.high_watermark:
                return said
            await asyncio.sleep(0.02)


async def mark(way: Way, topic_id: bytes, producer_id: int, epoch: int, *, commit: bool = False) -> int:
    marker = pb.TxnMarker(producer_id=producer_id, producer_epoch=epoch, commit=commit)
    marker.partitions.add(topic_id=topic_id, partition=0)
    answer = await way.brokers.write_txn_markers(LEADER, pb.WriteTxnMarkersRequest(markers=[marker]))
    ((said,),) = (m.partitions for m in answer.markers)
    return int(said.error)


async def ends(way: Way, topic_id: bytes) -> tuple[int, int]:
    """As readers of all see it, and those of what is committed."""
    found = []
    for level in (broker_pb2.READ_UNCOMMITTED, broker_pb2.READ_COMMITTED):
        request = broker_pb2.ListOffsetsRequest(isolation_level=level)
        request.partitions.add(topic_id=topic_id, partition=0, timestamp_ms=-1)
        (one,) = (await way.brokers.list_offsets(LEADER, request)).partitions
        assert one.error == 0
        found.append(one.offset)
    return found[0], found[1]


async def test_what_is_open_is_known_at_both_ends(way: Way, i: str) -> None:
    topic_id = await way.begin(i)
    one = await described(way, i)
    assert (one.error, one.state) == (0, pb.TXN_ONGOING)
    assert [(p.topic_id, p.partition) for p in one.partitions] == [(topic_id, 0)]
    assert one.started_at_ms > 0 > one.prepared_at_ms
    said = await still_open(way, topic_id)
    (producer,) = said.producers
    assert (producer.producer_id, producer.producer_epoch) == (one.producer_id, one.producer_epoch)
    assert producer.HasField("transaction_since_ms")
    assert (producer.transaction_start, said.last_stable_offset, said.high_watermark) == (0, 0, 1)
    assert await ends(way, topic_id) == (1, 0)
    for request, wanted in (
        (pb.ListTransactionsRequest(producer_ids=[one.producer_id]), True),
        (pb.ListTransactionsRequest(states=[pb.TXN_ONGOING], producer_ids=[one.producer_id]), True),
        (pb.ListTransactionsRequest(states=[pb.TXN_PREPARED], producer_ids=[one.producer_id]), False),
        (pb.ListTransactionsRequest(older_than_ms=10**9), False),
    ):
        listed = (await way.transactions.list_transactions(await way.place(i), request)).transactions
        assert (i in {t.transactional_id for t in listed}) == wanted, request
    await way.commit(i)
    assert (await ended(way, topic_id)).last_stable_offset == 2
    assert await ends(way, topic_id) == (2, 2)


@pytest.mark.parametrize("commit", [True, False])
async def test_a_token_is_decided_once(way: Way, i: str, commit: bool) -> None:
    topic_id = await way.begin(i)
    token = await way.prepare(i)
    one = await described(way, i)
    assert (one.state, one.token) == (pb.TXN_PREPARED, token)
    assert one.prepared_at_ms >= one.started_at_ms
    place = await way.place(i)
    for wish in (commit, commit, not commit):
        request = pb.DecidePreparedRequest(token=token, commit=wish)
        assert (await way.transactions.decide_prepared(place, request)).committed == commit
    await ended(way, topic_id)
    other = pb.DecidePreparedRequest(token=pb.PreparedToken(transactional_id=i, nonce=99), commit=commit)
    with pytest.raises(TxnVerdictUnknown):
        await way.transactions.decide_prepared(place, other)


async def test_an_abort_takes_the_transaction_that_it_names(way: Way, i: str) -> None:
    topic_id = await way.begin(i)
    one, place = await described(way, i), await way.place(i)
    named = {"transactional_id": i, "producer_id": one.producer_id}
    wrong = pb.AbortTransactionRequest(**named, producer_epoch=one.producer_epoch + 1)
    with pytest.raises(HeadraceError):
        await way.transactions.abort_transaction(place, wrong)
    assert (await described(way, i)).state == pb.TXN_ONGOING
    await way.transactions.abort_transaction(
        place, pb.AbortTransactionRequest(**named, producer_epoch=one.producer_epoch)
    )
    await ended(way, topic_id)
    assert (await described(way, i)).producer_epoch == one.producer_epoch + 1
    again = pb.AbortTransactionRequest(**named, producer_epoch=one.producer_epoch)
    await way.transactions.abort_transaction(place, again)
    assert (await described(way, i)).producer_epoch == one.producer_epoch + 1, "told twice it is done once"


async def test_what_is_prepared_is_not_aborted_by_its_id(way: Way, i: str) -> None:
    await way.begin(i)
    await way.prepare(i)
    with pytest.raises(HeadraceError) as refused:
        await way.transactions.abort_transaction(await way.place(i), pb.AbortTransactionRequest(transactional_id=i))
    assert refused.value.code is ErrorCode.INVALID_TXN_STATE
    assert (await described(way, i)).state == pb.TXN_PREPARED


async def test_a_marker_ends_what_is_open_and_repeats_change_nothing(way: Way, i: str) -> None:
    topic_id = await way.begin(i)
    one = await described(way, i)
    epoch = one.producer_epoch + 1
    assert await mark(way, topic_id, one.producer_id, one.producer_epoch) == ErrorCode.INVALID_PRODUCER_EPOCH
    for _ in range(2):
        assert await mark(way, topic_id, one.producer_id, epoch) == 0
        assert await ends(way, topic_id) == (2, 2)
    refused = await mark(way, topic_id, one.producer_id, epoch, commit=True)
    assert refused == ErrorCode.INVALID_PRODUCER_EPOCH, "another verdict is no repeat"
    assert not (await still_open(way, topic_id)).producers


async def test_an_id_that_is_not_there(way: Way, i: str) -> None:
    await way.begin(f"{i}-other")
    assert (await described(way, i)).error == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    with pytest.raises(HeadraceError) as refused:
        await way.transactions.abort_transaction(await way.place(i), pb.AbortTransactionRequest(transactional_id=i))
    assert refused.value.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


@pytest.mark.parametrize("kind", ["memory", "grpc"])
async def test_who_does_not_serve_the_shard_says_so(kind: str, i: str) -> None:
    async with twin(kind) as way:
        await way.begin(i)
        token = await way.prepare(i)
        way.twin.loading |= {0, 1, 2, 3}
        with pytest.raises(NotCoordinator):
            await way.transactions.decide_prepared(await way.place(i), pb.DecidePreparedRequest(token=token))
        assert (await described(way, i)).error == ErrorCode.NOT_COORDINATOR
        listed = await way.transactions.list_transactions(await way.place(i), pb.ListTransactionsRequest())
        assert list(listed.loading) == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["memory", "grpc"])
async def test_one_that_is_away_is_an_unknown_outcome(kind: str, i: str) -> None:
    async with twin(kind) as way:
        topic_id = await way.begin(i)
        way.twin.down.add(1)
        way.cluster.down.add(1)
        with pytest.raises(NetworkFailed):
            await described(way, i)
        with pytest.raises(NetworkFailed):
            await mark(way, topic_id, 1, 1)
