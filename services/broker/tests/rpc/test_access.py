"""Who gets what of each operation, by what it shows and by the cluster's mode; a refusal changes and tells nothing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import grpc
import pytest
from libs.common.tests.kit.access import allow, deny
from libs.common.tests.kit.closed import PRODUCER_KEY, key_of
from services.broker.tests.kit.batches import NOW_MS, batch_of
from services.broker.tests.kit.cluster import image_of, topic_id_of, with_coordinator
from services.broker.tests.kit.guarded import ALICE, NOTHING, ROOT, Guarded, Shows, guarded_broker, node

from headrace_broker.core.owned_ids import owned_id
from headrace_broker.rpc import metadata_answers
from headrace_broker.rpc.access_table import ACCESS
from headrace_common.core.access.grants import Grant
from headrace_common.core.access.resources import (
    CLUSTER_NAME,
    EVERY_NAME,
    Operation,
    ResourceType,
    literal,
    prefix,
)
from headrace_common.core.access.rows import Mode
from headrace_common.core.batch import build_fence_batch
from headrace_common.core.errors import CredentialsRevoked, ErrorCode
from headrace_common.core.image import Role
from headrace_common.core.node_rules import WHO_MAY_CALL
from headrace_common.rpc.access_rules import NODES
from headrace_common.rpc.status import error_from_rpc
from headrace_proto.v1 import access_pb2, auth_pb2, certificates_pb2, tickets_pb2
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import transaction_pb2 as txn

TOPIC = topic_id_of("orders")
OFFSETS = "__consumer_offsets"
NONE, OF_TOPIC, OF_CLUSTER = (
    ErrorCode.NONE,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
)
OF_GROUP, OF_TXN = ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
UNKNOWN_CALLER = ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.fixture
async def world() -> AsyncIterator[Guarded]:
    async with guarded_broker(orders=2, payments=1, **{OFFSETS: 1}) as one:
        yield one


def on(operation: Operation, name: str = "orders", type: ResourceType = ResourceType.TOPIC) -> Grant:
    return allow(type, literal(name), operation)


def on_cluster(operation: Operation) -> Grant:
    return on(operation, CLUSTER_NAME, ResourceType.CLUSTER)


async def ask(call: Any, message: Any) -> Any:
    """Send one message of a stream and read the next answer."""
    async with asyncio.timeout(20):
        with suppress(asyncio.InvalidStateError):  # it is over already, and to read tells why
            await call.write(message)
        answer = await call.read()
    assert answer is not grpc.aio.EOF
    return answer


# --- one of each operation: what comes of it, as a code -----------------------------------------------------------


def produce(*batches: bytes, topic: str = "orders", token: int | None = None, id: str | None = None) -> Any:
    entries = [
        pb.ProducePartition(topic_id=topic_id_of(topic), partition=0, batch=batch, fencing_token=token)
        for batch in batches or (batch_of(1),)
    ]
    return pb.ProduceRequest(correlation_id=7, acks=-1, timeout_ms=9_000, partitions=entries, transactional_id=id)


def fetch(topic: str = "orders", partition: int = 0, **changes: Any) -> pb.FetchRequest:
    part = pb.FetchPartition(topic_id=topic_id_of(topic), partition=partition, fetch_offset=0, max_bytes=1 << 20)
    whole = {"correlation_id": 1, "min_bytes": 1, "max_wait_ms": 0, "max_bytes": 1 << 20, "partitions": [part]}
    return pb.FetchRequest(**{**whole, **changes})


def of_entries(answer: Any) -> ErrorCode:
    [one] = answer.partitions
    assert bool(one.message) == bool(one.error)
    return ErrorCode(one.error)


async def _produce(stub: Any) -> ErrorCode:
    return of_entries(await ask(stub.Produce(), produce()))


async def _fence(stub: Any) -> ErrorCode:
    return told_of_fences(await ask(stub.Produce(), produce(build_fence_batch(5, timestamp_ms=NOW_MS))))


async def _produce_under_token(stub: Any) -> ErrorCode:
    return told_of_fences(await ask(stub.Produce(), produce(token=4)))


def told_of_fences(answer: Any) -> ErrorCode:
    """Who may is told that the token is not the partition's, or is so already."""
    code = of_entries(answer)
    return NONE if code is ErrorCode.FENCED_WRITER else code


async def _produce_in_transaction(stub: Any) -> ErrorCode:
    batch = batch_of(1, producer_id=7, epoch=0, sequence=0, transactional=True)
    return of_entries(await ask(stub.Produce(), produce(batch, id="tx")))


async def _fetch(stub: Any) -> ErrorCode:
    answer = await ask(stub.Fetch(), fetch())
    [one] = answer.partitions
    if one.error:
        assert (one.high_watermark, one.last_stable_offset, one.log_start_offset, len(one.batches)) == (-1, -1, -1, 0)
    return of_entries(answer)


async def _list_offsets(stub: Any) -> ErrorCode:
    asked = pb.ListOffsetsPartition(topic_id=TOPIC, partition=0, timestamp_ms=-1)
    answer = await stub.ListOffsets(pb.ListOffsetsRequest(partitions=[asked]))
    assert (answer.partitions[0].offset == -1) == bool(answer.partitions[0].error)
    return of_entries(answer)


async def _metadata(stub: Any) -> ErrorCode:
    [one] = (await stub.Metadata(pb.MetadataRequest(topics=["orders"]))).topics
    assert bool(one.topic_id) == bool(one.partitions) == (not one.error)
    return ErrorCode(one.error)


def _coordinator(type: Any) -> Callable[[Any], Awaitable[ErrorCode]]:
    async def find(stub: Any) -> ErrorCode:
        [one] = (await stub.FindCoordinator(pb.FindCoordinatorRequest(type=type, keys=["mine"]))).coordinators
        code = ErrorCode(one.error)
        assert code is not NONE, "no coordinator runs"
        return NONE if code is ErrorCode.COORDINATOR_NOT_AVAILABLE else code

    return find


async def _init_producer_id(stub: Any) -> ErrorCode:
    await stub.InitProducerId(pb.InitProducerIdRequest())
    return NONE


async def _delete_records(stub: Any) -> ErrorCode:
    asked = pb.DeleteRecordsPartition(topic_id=TOPIC, partition=0, offset=-1)
    return of_entries(await stub.DeleteRecords(pb.DeleteRecordsRequest(partitions=[asked])))


async def _describe_logs(stub: Any) -> ErrorCode:
    """Of topics alone; to leave something out is no error, but counts as one here."""
    answer = await stub.DescribeLogs(pb.DescribeLogsRequest(topic_ids=[TOPIC]))
    return NONE if len(answer.logs) == 2 else OF_TOPIC


async def _describe_broker(stub: Any) -> ErrorCode:
    answer = await stub.DescribeLogs(pb.DescribeLogsRequest())
    told = [bool(answer.disk_total_bytes), answer.HasField("disk_reserve_bytes"), bool(answer.recovery_report)]
    assert len({*told, answer.HasField("scrub"), len(answer.logs) == 4}) == 1
    return NONE if all(told) else OF_CLUSTER


async def _describe_producers(stub: Any) -> ErrorCode:
    asked = pb.FollowedPartition(topic_id=TOPIC, partition=0)
    return of_entries(await stub.DescribeProducers(pb.DescribeProducersRequest(partitions=[asked])))


async def _replicate(stub: Any) -> ErrorCode:
    call = stub.Replicate()
    async with asyncio.timeout(20):
        with suppress(asyncio.InvalidStateError):  # as above
            await call.write(pb.ReplicateRequest(broker_id=1, broker_epoch=1))
            await call.done_writing()
        assert await call.read() is grpc.aio.EOF
    return NONE


async def _log_ends(stub: Any) -> ErrorCode:
    await stub.LogEnds(pb.LogEndsRequest())
    return NONE


async def _inventory(stub: Any) -> ErrorCode:
    async for _ in stub.Inventory(pb.InventoryRequest()):
        pass
    return NONE


async def _identify(stub: Any) -> ErrorCode:
    await stub.Identify(pb.IdentifyRequest())
    return NONE


async def _observed(stub: Any) -> ErrorCode:
    assert (await stub.Observed(access_pb2.ObservedRequest())).HasField("since_ms")
    return NONE


async def _write_markers(stub: Any) -> ErrorCode:
    answer = await stub.WriteTxnMarkers(txn.WriteTxnMarkersRequest(markers=[MARKER]))
    assert [one.error for one in answer.markers[0].partitions] == [NONE]
    return NONE


async def _mark(stub: Any) -> ErrorCode:
    call = stub.Mark()
    await ask(call, txn.MarkRequest(correlation_id=1, ask=txn.WriteTxnMarkersRequest(markers=[MARKER])))
    return NONE


MARKER: Final = txn.TxnMarker(
    producer_id=70, producer_epoch=1, commit=False, partitions=[txn.TxnPartition(topic_id=TOPIC, partition=0)]
)


async def _write_audit(stub: Any) -> ErrorCode:
    """Without a node's name, so whoever is let in is told that it has to say one."""
    try:
        await stub.WriteAudit(pb.WriteAuditRequest())
    except grpc.aio.AioRpcError as error:
        if error_from_rpc(error).code is not ErrorCode.INVALID_REQUEST:
            raise
    return NONE


@dataclass(frozen=True)
class Case:
    """One thing that may be asked, and who may: a client with ``grants``, and nodes for themselves."""

    operation: str
    call: Callable[[Any], Awaitable[ErrorCode]]
    grants: Sequence[Grant] = ()
    refused: ErrorCode = OF_TOPIC
    """What is said to who is known and may not."""
    nodes: frozenset[Role] = frozenset()

    @property
    def for_nodes(self) -> frozenset[Role] | None:
        """None: clients ask this."""
        return WHO_MAY_CALL[f"Broker/{self.operation}"]

    @property
    def on_behalf(self) -> bool:
        """Whether admin nodes ask it for somebody."""
        return self.for_nodes is None or Role.ADMIN in self.for_nodes


GROUP, TXN = ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
LOOKING: Final = frozenset({Role.ADMIN, Role.COORDINATOR})
CASES: Final = {
    "produce": Case("Produce", _produce, [on(Operation.WRITE)]),
    "fence": Case("Produce", _fence, [on(Operation.WRITE), on(Operation.FENCE)]),
    "produce under a token": Case("Produce", _produce_under_token, [on(Operation.WRITE), on(Operation.FENCE)]),
    "produce in a transaction": Case(
        "Produce", _produce_in_transaction, [on(Operation.WRITE), on(Operation.WRITE, "tx", TXN)], OF_TXN
    ),
    "fetch": Case("Fetch", _fetch, [on(Operation.READ)]),
    "list offsets": Case("ListOffsets", _list_offsets, [on(Operation.DESCRIBE)], nodes=LOOKING),
    "metadata": Case("Metadata", _metadata, [on(Operation.DESCRIBE)], nodes=LOOKING),
    "find a group": Case(
        "FindCoordinator",
        _coordinator(pb.GROUP),
        [on(Operation.DESCRIBE, "mine", GROUP)],
        OF_GROUP,
        frozenset({Role.ADMIN}),
    ),
    "find a transaction": Case(
        "FindCoordinator",
        _coordinator(pb.TRANSACTION),
        [on(Operation.DESCRIBE, "mine", TXN)],
        OF_TXN,
        frozenset({Role.ADMIN}),
    ),
    "producer id": Case(
        "InitProducerId", _init_producer_id, [on(Operation.WRITE, "other")], nodes=frozenset({Role.COORDINATOR})
    ),
    "trim": Case("DeleteRecords", _delete_records, [on(Operation.DELETE)]),
    "logs": Case("DescribeLogs", _describe_logs, [on(Operation.DESCRIBE)], nodes=frozenset({Role.ADMIN})),
    "the broker": Case(
        "DescribeLogs",
        _describe_broker,
        [on_cluster(Operation.DESCRIBE)],
        OF_CLUSTER,
        frozenset({Role.ADMIN}),
    ),
    "producers": Case(
        "DescribeProducers", _describe_producers, [on(Operation.DESCRIBE)], nodes=frozenset({Role.ADMIN})
    ),
    "producers of any topic": Case(
        "DescribeProducers", _describe_producers, [on_cluster(Operation.DESCRIBE)], nodes=frozenset({Role.ADMIN})
    ),
    "replicate": Case("Replicate", _replicate, nodes=frozenset({Role.BROKER})),
    "log ends": Case("LogEnds", _log_ends, nodes=frozenset({Role.CONTROLLER})),
    "inventory": Case("Inventory", _inventory, nodes=frozenset({Role.CONTROLLER})),
    "identify": Case("Identify", _identify, nodes=frozenset({Role.CONTROLLER})),
    "markers": Case(
        "WriteTxnMarkers", _write_markers, [on_cluster(Operation.ALTER)], OF_CLUSTER, frozenset({Role.COORDINATOR})
    ),
    "observed": Case("Observed", _observed, [on_cluster(Operation.DESCRIBE)], OF_CLUSTER, frozenset({Role.ADMIN})),
    "mark": Case("Mark", _mark, nodes=frozenset({Role.COORDINATOR})),
    "audit": Case("WriteAudit", _write_audit, nodes=frozenset(Role)),
}


def test_each_operation_has_a_row_and_a_case() -> None:
    of_service = {one.name for one in pb.DESCRIPTOR.services_by_name["Broker"].methods}
    of_tickets = {one.name for one in tickets_pb2.DESCRIPTOR.services_by_name["Tickets"].methods}  # test_tickets.py
    of_auth = {one.name for one in auth_pb2.DESCRIPTOR.services_by_name["Auth"].methods}
    of_tls = {one.name for one in certificates_pb2.DESCRIPTOR.services_by_name["Certificates"].methods}
    services = {"Broker": of_service, "Tickets": of_tickets, "Auth": of_auth, "Certificates": of_tls}
    assert {f"{service}/{name}" for service, names in services.items() for name in names} == set(ACCESS)
    assert {case.operation for case in CASES.values()} == of_service


TRIES: Final = 10


async def outcome(world: Guarded, shows: Shows, case: Case) -> ErrorCode:
    """
    What comes of one call; what is refused has changed nothing. gRPC loses a refusal that a write on a stream meets, so
    a stream that broke is opened again.
    """
    before = changes(world)
    for _ in range(TRIES):
        try:
            code = await case.call(await world.stub(shows))
        except grpc.aio.AioRpcError as error:
            code = error_from_rpc(error).code
        if code is not ErrorCode.NETWORK_EXCEPTION:
            break
    if code is not NONE:
        assert changes(world) == before
    return code


def changes(world: Guarded) -> Any:
    """What a call may change."""
    broker = world.broker
    logs = {one.id: (one.core.log_end, one.core.log_start, one.core.fences.newest) for one in broker.replicas.all()}
    return logs, broker.producer_ids.left, broker.producer_ids.highest, world.cluster.ensured


async def prepare(world: Guarded, case: Case, mode: Mode, *grants: Grant) -> None:
    world.cluster.ensuring.set()
    if case.call is _produce_in_transaction:
        await world.show(with_coordinator(world.cluster.image))
    world.rows.mode = mode
    await world.allow(*grants)


every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


class TestMatrix:
    @every_case
    @pytest.mark.parametrize("mode", [Mode.OPEN, Mode.PERMISSIVE])
    @pytest.mark.parametrize("shows", [NOTHING, ALICE], ids=["nothing", "a key"])
    async def test_where_it_is_not_closed_everybody_may(
        self, world: Guarded, case: Case, mode: Mode, shows: Shows
    ) -> None:
        await prepare(world, case, mode)
        assert await outcome(world, shows, case) is (NONE if case.for_nodes is None else OF_CLUSTER)
        asked = mode is Mode.PERMISSIVE and case.for_nodes is None
        assert bool(world.access.control.report().refusals) == asked

    @every_case
    async def test_who_may_gets_it(self, world: Guarded, case: Case) -> None:
        await prepare(world, case, Mode.CLOSED, *case.grants)
        expected = NONE if case.for_nodes is None else OF_CLUSTER
        assert await outcome(world, ALICE, case) is expected
        assert await outcome(world, ROOT, case) is expected

    @every_case
    async def test_who_may_something_else_does_not(self, world: Guarded, case: Case) -> None:
        await prepare(world, case, Mode.CLOSED)
        for missing in range(len(case.grants)):
            others = [*case.grants[:missing], *case.grants[missing + 1 :]]
            type, pattern = case.grants[missing].type, literal("elsewhere")
            if type is not ResourceType.CLUSTER and case.operation != "InitProducerId":
                others.append(allow(type, pattern, Operation.ALL))
            await world.allow(*others)
            assert await outcome(world, ALICE, case) is not NONE
        await world.allow()
        assert await outcome(world, ALICE, case) is (case.refused if case.for_nodes is None else OF_CLUSTER)

    @every_case
    async def test_who_shows_nothing_is_not_let_in(self, world: Guarded, case: Case) -> None:
        await prepare(world, case, Mode.CLOSED)
        assert await outcome(world, NOTHING, case) is UNKNOWN_CALLER

    @every_case
    @pytest.mark.parametrize("role", Role)
    async def test_nodes_by_themselves(self, world: Guarded, case: Case, role: Role) -> None:
        await prepare(world, case, Mode.CLOSED)
        refused = case.refused if case.for_nodes is None or role in case.for_nodes else OF_CLUSTER
        assert await outcome(world, node(role), case) is (NONE if role in case.nodes else refused)

    @every_case
    async def test_admin_nodes_for_who_may_and_who_may_not(self, world: Guarded, case: Case) -> None:
        await prepare(world, case, Mode.CLOSED, *case.grants)
        through = node(Role.ADMIN, "alice")
        assert await outcome(world, through, case) is (NONE if case.on_behalf else OF_CLUSTER)
        if ACCESS[f"Broker/{case.operation}"] is NODES and case.on_behalf:
            return  # it asks for itself, whatever credential it has with it
        await world.allow()
        assert await outcome(world, through, case) is (case.refused if case.on_behalf else OF_CLUSTER)
        world.rows.keys = [key_of("root")]
        await world.show()
        assert await outcome(world, through, case) is not NONE


class TestInternalTopics:
    async def test_coordinators_keep_their_state_there(self, world: Guarded) -> None:
        stub = await world.stub(node(Role.COORDINATOR))
        fence = build_fence_batch(1, timestamp_ms=NOW_MS)
        call = stub.Produce()
        assert of_entries(await ask(call, produce(fence, topic=OFFSETS))) is NONE
        assert of_entries(await ask(call, produce(topic=OFFSETS, token=1))) is NONE
        assert of_entries(await ask(stub.Fetch(), fetch(OFFSETS))) is NONE

    @pytest.mark.parametrize("role", [Role.ADMIN, Role.BROKER, Role.CONTROLLER])
    async def test_other_nodes_do_not(self, world: Guarded, role: Role) -> None:
        stub = await world.stub(node(role))
        assert of_entries(await ask(stub.Produce(), produce(topic=OFFSETS, token=1))) is OF_TOPIC
        assert of_entries(await ask(stub.Fetch(), fetch(OFFSETS))) is OF_TOPIC

    async def test_no_right_of_a_user_lets_it_write_there(self, world: Guarded) -> None:
        all_of_it = allow(ResourceType.TOPIC, EVERY_NAME, Operation.ALL)
        await world.allow(all_of_it)
        stub = await world.stub(ALICE)
        assert of_entries(await ask(stub.Produce(), produce(topic=OFFSETS, token=1))) is OF_TOPIC
        assert of_entries(await ask(stub.Fetch(), fetch(OFFSETS))) is OF_TOPIC
        await world.allow(all_of_it, on(Operation.ALL, OFFSETS))
        for who in (ALICE, ROOT):
            stub = await world.stub(who)
            assert of_entries(await ask(stub.Produce(), produce(topic=OFFSETS, token=1))) is OF_CLUSTER
            assert of_entries(await ask(stub.Fetch(), fetch(OFFSETS))) is NONE


class TestEntries:
    async def test_of_one_request_some_are_done_and_some_refused(self, world: Guarded) -> None:
        await world.allow(on(Operation.WRITE), on(Operation.READ))
        stub = await world.stub(ALICE)
        message = produce()
        message.partitions.add(topic_id=topic_id_of("payments"), partition=0, batch=batch_of(1))
        message.partitions.add(topic_id=TOPIC, partition=1, batch=batch_of(1))
        answer = await ask(stub.Produce(), message)
        assert [one.error for one in answer.partitions] == [NONE, OF_TOPIC, NONE]
        both = fetch().partitions[0], fetch("payments").partitions[0]
        read = await ask(stub.Fetch(), fetch(partitions=both))
        assert [(one.error, len(one.batches)) for one in read.partitions] == [(NONE, 1), (OF_TOPIC, 0)]
        places = [
            pb.ListOffsetsPartition(topic_id=topic_id_of(topic), partition=0, timestamp_ms=-1)
            for topic in ("payments", "orders")
        ]
        found = await stub.ListOffsets(pb.ListOffsetsRequest(partitions=places))
        assert [(one.error, one.offset) for one in found.partitions] == [(OF_TOPIC, -1), (NONE, 1)]

    async def test_a_batch_is_looked_at_for_who_may_write_it(
        self, world: Guarded, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        checks, looked_at = world.broker.body_checks, list[int]()
        check_beside = checks.check_beside

        async def note(entries: Any, costly: Any) -> Any:
            looked_at.extend(costly)
            return await check_beside(entries, costly)

        monkeypatch.setattr(checks, "check_beside", note)
        await world.allow(on(Operation.WRITE, "payments"))
        call = (await world.stub(ALICE)).Produce()
        assert of_entries(await ask(call, produce(b"garbage"))) is OF_TOPIC
        both = produce()  # the first batch of a format is checked in a thread
        both.partitions.add(topic_id=topic_id_of("payments"), partition=0, batch=batch_of(1))
        answer = await ask(call, both)
        assert [one.error for one in answer.partitions] == [OF_TOPIC, NONE]
        assert looked_at == [1]

    async def test_who_leads_and_how_many_partitions_there_are_is_told_to_who_may_know(self, world: Guarded) -> None:
        stub = await world.stub(ALICE)
        missing = fetch(partition=77)
        refused = await ask(stub.Fetch(), missing)
        assert of_entries(refused) is OF_TOPIC
        assert "orders" not in str(refused)
        await world.allow(on(Operation.READ))
        told = await ask(stub.Fetch(), missing)
        assert told.partitions[0].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert "orders has partitions 0 to 1" in told.partitions[0].message
        unknown = fetch("nothing")
        assert of_entries(await ask(stub.Fetch(), unknown)) is ErrorCode.UNKNOWN_TOPIC_ID

    async def test_followers_are_asked_like_leaders(self, world: Guarded) -> None:
        stub = await world.stub(ALICE)
        assert of_entries(await ask(stub.Fetch(), fetch(rack="here"))) is OF_TOPIC
        assert of_entries(await ask(stub.Fetch(), fetch(rack="here", partition=77))) is OF_TOPIC
        await world.allow(on(Operation.READ))
        assert of_entries(await ask(stub.Fetch(), fetch(rack="here"))) is NONE

    async def test_the_name_of_a_topic_is_told_to_who_may_describe_it(self, world: Guarded) -> None:
        stub = await world.stub(ALICE)
        for call, message in ((stub.Produce(), produce()), (stub.Fetch(), fetch())):
            hidden = (await ask(call, message)).partitions[0].message
            assert f"TOPIC with the id {TOPIC.hex()}" in hidden
            assert "orders" not in hidden
        await world.allow(on(Operation.DESCRIBE))
        told = (await ask(stub.Produce(), produce())).partitions[0].message
        assert told.endswith("headrace access allow User:alice write topic orders")

    async def test_a_topic_of_the_same_name_is_the_same_to_rules(self, world: Guarded) -> None:
        await world.allow(on(Operation.WRITE))
        call = (await world.stub(ALICE)).Produce()
        assert of_entries(await ask(call, produce())) is NONE
        again = image_of({"other": 1})
        topic = replace(again.topics[topic_id_of("other")], name="orders")
        await world.show(
            replace(again, topics={topic.topic_id: topic}, topic_ids={"orders": topic.topic_id}, access={})
        )
        assert of_entries(await ask(call, produce(topic="other"))) is NONE
        renamed = replace(topic, name="payments")
        await world.show(
            replace(again, topics={topic.topic_id: renamed}, topic_ids={"payments": topic.topic_id}, access={})
        )
        assert of_entries(await ask(call, produce(topic="other"))) is OF_TOPIC

    async def test_for_keys_that_may_not_be_described_no_topic_is_made(self, world: Guarded) -> None:
        world.cluster.ensuring.set()
        await world.allow(on(Operation.DESCRIBE, "mine", TXN))
        stub = await world.stub(ALICE)
        refused = await stub.FindCoordinator(pb.FindCoordinatorRequest(type=pb.TRANSACTION, keys=["a", ""]))
        assert [one.error for one in refused.coordinators] == [OF_TXN, OF_TXN]
        assert not world.cluster.ensured
        some = await stub.FindCoordinator(pb.FindCoordinatorRequest(type=pb.TRANSACTION, keys=["a", "mine"]))
        assert [one.error for one in some.coordinators] == [OF_TXN, ErrorCode.COORDINATOR_NOT_AVAILABLE]
        assert world.cluster.ensured == 1


class TestMetadata:
    @pytest.fixture(autouse=True)
    async def topics(self, world: Guarded) -> None:
        await world.show(image_of({"a1": 1, "a2": 2, "b": 1, OFFSETS: 1}))

    async def names(self, world: Guarded, shows: Shows) -> list[str]:
        answer = await (await world.stub(shows)).Metadata(pb.MetadataRequest(all_topics=True))
        assert not any(one.error for one in answer.topics)
        return [one.name for one in answer.topics]

    async def test_of_all_topics_each_caller_sees_its_own(self, world: Guarded) -> None:
        mine = allow(ResourceType.TOPIC, prefix("a"), Operation.READ)
        await world.allow(mine)
        await world.allow(on(Operation.WRITE, "b"), who="carol")
        carol = node(Role.ADMIN, "carol")
        for _ in range(2):
            assert await self.names(world, ROOT) == [OFFSETS, "a1", "a2", "b"]
            assert await self.names(world, ALICE) == ["a1", "a2"]
            assert await self.names(world, carol) == ["b"]
        await world.allow(mine, deny(ResourceType.TOPIC, literal("a1"), Operation.DESCRIBE))
        assert await self.names(world, ALICE) == ["a2"]
        await world.turn(Mode.PERMISSIVE)
        assert await self.names(world, NOTHING) == [OFFSETS, "a1", "a2", "b"]
        assert not world.access.control.report().refusals
        await world.turn(Mode.CLOSED)
        await world.allow()
        assert await self.names(world, ALICE) == []

    async def test_topics_that_come_and_go_do(self, world: Guarded) -> None:
        await world.allow(allow(ResourceType.TOPIC, prefix("a"), Operation.READ))
        assert await self.names(world, ALICE) == ["a1", "a2"]
        await world.show(image_of({"a2": 1, "a3": 1, "b": 1}))
        assert await self.names(world, ALICE) == ["a2", "a3"]

    async def test_who_sees_the_same_gets_the_same_answer(
        self, world: Guarded, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        built: list[object] = []
        encode = metadata_answers.encode.metadata

        def build(*args: Any, **more: Any) -> pb.MetadataResponse:
            built.append(args)
            return encode(*args, **more)

        monkeypatch.setattr(metadata_answers.encode, "metadata", build)
        monkeypatch.setattr(metadata_answers, "ANSWERS_MAX", 2)
        for who in ("alice", "carol"):
            await world.allow(allow(ResourceType.TOPIC, prefix("a"), Operation.READ), who=who)
        carol = node(Role.ADMIN, "carol")
        for shows in (ALICE, carol, ALICE, ROOT, ROOT):
            await self.names(world, shows)
        assert len(built) == 2
        await world.allow(on(Operation.READ, "b"))
        for shows in (ALICE, carol, ROOT):
            await self.names(world, shows)
        assert len(built) == 5, "the image is another"
        await self.names(world, ALICE)
        assert len(built) == 6, "the oldest was dropped"

    async def test_a_named_topic_is_refused_alike_whether_or_not_it_exists(self, world: Guarded) -> None:
        stub = await world.stub(ALICE)
        names = ["b", "not-there", "b", "", "*", "x" * 5_000, "a\nb"]
        answer = await stub.Metadata(pb.MetadataRequest(topics=names))
        assert [one.name for one in answer.topics] == ["b", "not-there", "", "*", "x" * 249, "a\nb"]
        assert {one.error for one in answer.topics} == {OF_TOPIC}
        there, missing = answer.topics[:2]
        texts = [re.sub(r"refusal \w+", "", one.message) for one in (there, missing)]
        assert texts[0].replace("b", "?") == texts[1].replace("not-there", "?").replace("b", "?")
        assert not any(one.topic_id or one.partitions or one.max_message_bytes for one in answer.topics)
        await world.allow(on(Operation.DESCRIBE, "b"), on(Operation.DESCRIBE, "not-there"))
        answer = await stub.Metadata(pb.MetadataRequest(topics=["b", "not-there"]))
        assert [one.error for one in answer.topics] == [NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]

    async def test_logs_of_topics_that_one_may_describe(self, world: Guarded) -> None:
        await world.allow(on(Operation.DESCRIBE, "b"))
        stub = await world.stub(node(Role.ADMIN, "alice"))
        answer = await stub.DescribeLogs(pb.DescribeLogsRequest())
        assert [one.topic_id for one in answer.logs] == [topic_id_of("b")], "and no strays"
        assert (answer.disk_total_bytes, answer.recovery_report, answer.HasField("scrub")) == (0, "", False)


class TestRevocation:
    async def test_streams_end_when_their_key_is_deleted(self, world: Guarded) -> None:
        await world.allow(on(Operation.WRITE), on(Operation.READ))
        stub = await world.stub(ALICE)
        produced, fetched = stub.Produce(), stub.Fetch()
        assert of_entries(await ask(produced, produce())) is NONE
        assert of_entries(await ask(fetched, fetch())) is NONE
        await fetched.write(fetch(min_bytes=1 << 20, max_wait_ms=60_000))
        before = changes(world)
        world.rows.keys = [key_of("root")]
        await world.show()
        for call in (produced, fetched):
            async with asyncio.timeout(20):
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await call.read()
            assert isinstance(error_from_rpc(raised.value), CredentialsRevoked)
        assert changes(world) == before
        assert not world.broker.upkeep.sessions

    async def test_a_right_that_is_taken_away_counts_from_the_next_request(self, world: Guarded) -> None:
        stub = await world.stub(ALICE)
        produced, fetched = stub.Produce(), stub.Fetch()
        for _ in range(2):
            await world.allow(on(Operation.WRITE), on(Operation.READ))
            assert of_entries(await ask(produced, produce())) is NONE
            assert of_entries(await ask(fetched, fetch())) is NONE
            await world.allow(on(Operation.WRITE, "payments"))
            before = changes(world)
            assert of_entries(await ask(produced, produce())) is OF_TOPIC
            assert of_entries(await ask(fetched, fetch())) is OF_TOPIC
            assert changes(world) == before

    async def test_who_waits_for_records_gets_none_that_came_after(self, world: Guarded) -> None:
        await world.allow(on(Operation.READ))
        stub = await world.stub(ALICE)
        fetched, other = stub.Fetch(), (await world.stub(ROOT)).Produce()
        await fetched.write(fetch(max_wait_ms=60_000))
        polled = pb.ListOffsetsPartition(topic_id=TOPIC, partition=0, timestamp_ms=-1, wait_above=0)
        poll = stub.ListOffsets(pb.ListOffsetsRequest(partitions=[polled], max_wait_ms=60_000))
        replica = world.broker.replicas.all()[0]
        async with asyncio.timeout(20):
            while len(replica.waiters) < 2:
                await asyncio.sleep(0)
        await world.allow()
        assert of_entries(await ask(other, produce())) is NONE
        async with asyncio.timeout(20):
            answer = await fetched.read()
            assert of_entries(answer) is OF_TOPIC
            assert not answer.partitions[0].batches
            assert of_entries(await poll) is OF_TOPIC

    async def test_a_poll_that_is_refused_does_not_wait(self, world: Guarded) -> None:
        polled = pb.ListOffsetsPartition(topic_id=TOPIC, partition=0, timestamp_ms=-1, wait_above=0)
        async with asyncio.timeout(20):
            found = await (await world.stub(ALICE)).ListOffsets(
                pb.ListOffsetsRequest(partitions=[polled], max_wait_ms=60_000)
            )
        assert of_entries(found) is OF_TOPIC


class TestProducers:
    """What is refused is not appended: nothing that was acknowledged is lost, and no sequence is skipped."""

    def batch(self, sequence: int, *, transactional: bool = False) -> bytes:
        id = 7 if transactional else owned_id(7, "User:alice", PRODUCER_KEY)
        return batch_of(1, producer_id=id, epoch=0, sequence=sequence, transactional=transactional)

    async def test_an_idempotent_producer_goes_on_where_it_was(self, world: Guarded) -> None:
        await world.allow(on(Operation.WRITE))
        call = (await world.stub(ALICE)).Produce()
        assert of_entries(await ask(call, produce(self.batch(0)))) is NONE
        await world.allow()
        two = await ask(call, produce(self.batch(1), self.batch(2)))
        assert [one.error for one in two.partitions] == [OF_TOPIC, ErrorCode.OPERATION_NOT_ATTEMPTED]
        await world.allow(on(Operation.WRITE))
        gap = await ask(call, produce(self.batch(2)))
        assert of_entries(gap) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        for sequence in (1, 2):
            [one] = (await ask(call, produce(self.batch(sequence)))).partitions
            assert (one.error, one.base_offset) == (NONE, sequence)

    async def test_a_transaction_stays_open_with_what_it_has(self, world: Guarded) -> None:
        await world.show(with_coordinator(world.cluster.image))
        id = on(Operation.WRITE, "tx", TXN)
        await world.allow(on(Operation.WRITE), id)
        stub = await world.stub(ALICE)
        call = stub.Produce()
        assert of_entries(await ask(call, produce(self.batch(0, transactional=True), id="tx"))) is NONE
        for grants, code in (([id], OF_TOPIC), ([on(Operation.WRITE)], OF_TXN)):
            await world.allow(*grants)
            assert of_entries(await ask(call, produce(self.batch(1, transactional=True), id="tx"))) is code
        replica = world.broker.replicas.all()[0]
        assert (replica.core.log_end, replica.core.last_stable, len(replica.core.producers.open)) == (1, 0, 1)
        marker = txn.TxnMarker(
            producer_id=7, producer_epoch=1, commit=True, partitions=[txn.TxnPartition(topic_id=TOPIC, partition=0)]
        )
        coordinator = await world.stub(node(Role.COORDINATOR))
        await coordinator.WriteTxnMarkers(txn.WriteTxnMarkersRequest(markers=[marker]))
        assert (replica.core.log_end, replica.core.last_stable, len(replica.core.producers.open)) == (2, 2, 0)

    async def test_a_transaction_that_was_refused_in_a_partition_is_not_enrolled_there(self, world: Guarded) -> None:
        await world.show(with_coordinator(world.cluster.image))
        await world.allow(on(Operation.WRITE, "tx", TXN))
        call = (await world.stub(ALICE)).Produce()
        assert of_entries(await ask(call, produce(self.batch(0, transactional=True), id="tx"))) is OF_TOPIC
        assert not world.broker.measures.enrolments
        assert not world.broker.replicas.all()[0].core.producers.open

    async def test_with_acks_0_nobody_is_told_and_nothing_appended(self, world: Guarded) -> None:
        stub = await world.stub(ALICE)
        call, quiet = stub.Produce(), produce()
        quiet.acks, quiet.correlation_id = 0, 3
        await call.write(quiet)
        assert (await ask(call, produce())).correlation_id == 7
        assert world.broker.replicas.all()[0].core.log_end == 0
