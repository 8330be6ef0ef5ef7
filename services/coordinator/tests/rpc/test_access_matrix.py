"""
Every operation of both services, by callers of every kind: who may, who may not, and that a refusal changed nothing and
told nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message
from services.coordinator.tests.kit.closed import (
    NOBODY,
    Closed,
    Granted,
    Metadata,
    as_node,
    as_user,
    closed_coordinator,
)
from services.coordinator.tests.kit.ports import topic_id_of
from services.coordinator.tests.kit.processes import answered

from headrace_common.core.access.resources import CLUSTER_NAME, OPERATIONS, Operation, ResourceType, operations_in
from headrace_common.core.access.rows import Mode
from headrace_common.core.errors import Denied, ErrorCode, HeadraceError, NetworkFailed, Unauthenticated
from headrace_common.core.image import Role
from headrace_common.core.node_rules import WHO_MAY_CALL
from headrace_common.rpc import access_rules
from headrace_common.rpc.status import error_from_rpc
from headrace_coordinator.rpc.access_table import ACCESS
from headrace_proto.v1 import access_pb2, certificates_pb2, coordinator_pb2, transaction_pb2
from headrace_proto.v1 import coordinator_pb2 as pb
from headrace_proto.v1 import transaction_pb2 as txn

KNOWN, OTHER = "known", "other"
TOPIC, GROUP, ID = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
READ, WRITE, DESCRIBE, DELETE = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.DELETE
AUTHORIZATION = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
NODE: Metadata = as_node(Role.ADMIN)


def test_every_operation_has_its_row() -> None:
    services = (
        coordinator_pb2.DESCRIPTOR.services_by_name["Coordinator"],
        transaction_pb2.DESCRIPTOR.services_by_name["TransactionCoordinator"],
        certificates_pb2.DESCRIPTOR.services_by_name["Certificates"],
    )
    assert set(ACCESS) == {f"{service.name}/{method.name}" for service in services for method in service.methods}


def test_what_nodes_ask_for_themselves_is_what_admin_nodes_do_not_ask() -> None:
    allowed = {operation: WHO_MAY_CALL[operation] for operation in ACCESS}
    of_nodes = {one for one, roles in allowed.items() if roles is not None and Role.ADMIN not in roles}
    assert {operation for operation, rule in ACCESS.items() if rule is access_rules.NODES} == of_nodes


# --- what is asked ----------------------------------------------------------------------------------------------


@dataclass
class There:
    """What the coordinator knows: a group, a producer, a prepared transaction."""

    producer: txn.InitTransactionalIdResponse
    token: txn.PreparedToken
    owner_epoch: int


Ask = Callable[[There, str], Message]
"""A request about what exists, or by another name about what does not."""


@dataclass(frozen=True)
class Case:
    """One operation, and what it takes."""

    operation: str
    ask: Ask
    rights: tuple[Granted, ...] = ()
    """Each of them is needed."""
    stream: bool = False
    role: Role | None = None
    """The node that may ask; None: clients do."""
    describes: bool = False
    """An admin node may without being asked for it."""


def offset(name: str) -> pb.OffsetCommit:
    return pb.OffsetCommit(topic=name, partition=0, offset=7, leader_epoch=-1)


def join(_: There, name: str) -> Message:
    subscription = pb.ConsumerSubscription(topics=[name])
    beat = pb.ConsumerHeartbeat(member_id="m", subscription=subscription, owned=pb.PartitionSet())
    return pb.MembershipRequest(group_id=name, consumer_heartbeat=beat)


def commit(_: There, name: str) -> Message:
    return pb.CommitOffsetsRequest(group_id=name, generation=-1, offsets=[offset(name)])


def commit_in_transaction(there: There, name: str) -> Message:
    return pb.TxnOffsetCommitRequest(
        group_id=name, generation=-1, offsets=[offset(name)], transactional_id=name, **numbers(there)
    )


def numbers(there: There) -> dict[str, Any]:
    return {"producer_id": there.producer.producer_id, "producer_epoch": there.producer.producer_epoch}


def partitions(name: str) -> list[pb.TopicPartitions]:
    return [pb.TopicPartitions(topic=name, partitions=[0])]


def end(there: There, name: str) -> txn.EndTxnRequest:
    return txn.EndTxnRequest(transactional_id=name, commit=True, **numbers(there))


def decide(there: There, name: str) -> Message:
    token = txn.PreparedToken()
    token.CopyFrom(there.token)
    token.transactional_id = f"{name}/prepared"
    return txn.DecidePreparedRequest(token=token, commit=True)


def enrolment(there: There, name: str) -> txn.AddPartitionsToTxnRequest:
    one = txn.TxnPartitions(
        transactional_id=name, partitions=[txn.TxnPartition(topic_id=topic_id_of(KNOWN))], **numbers(there)
    )
    return txn.AddPartitionsToTxnRequest(transactions=[one])


def marker(there: There, _: str) -> txn.WriteTxnMarkersRequest:
    shard = txn.TxnPartition(topic_id=topic_id_of("__consumer_offsets"))
    return txn.WriteTxnMarkersRequest(markers=[txn.TxnMarker(commit=True, partitions=[shard], **numbers(there))])


CLIENTS = (
    Case("Coordinator/Membership", join, ((GROUP, KNOWN, READ),), stream=True),
    Case("Coordinator/CommitOffsets", commit, ((GROUP, KNOWN, READ), (TOPIC, KNOWN, READ))),
    Case(
        "Coordinator/TxnOffsetCommit",
        commit_in_transaction,
        ((GROUP, KNOWN, READ), (TOPIC, KNOWN, READ), (ID, KNOWN, WRITE)),
    ),
    Case(
        "Coordinator/FetchOffsets",
        lambda _, name: pb.FetchOffsetsRequest(group_id=name, partitions=partitions(name)),
        ((GROUP, KNOWN, DESCRIBE), (TOPIC, KNOWN, DESCRIBE)),
        describes=True,
    ),
    Case(
        "TransactionCoordinator/InitTransactionalId",
        lambda _, name: txn.InitTransactionalIdRequest(transactional_id=name, transaction_timeout_ms=60_000),
        ((ID, KNOWN, WRITE),),
    ),
    Case("TransactionCoordinator/EndTxn", end, ((ID, KNOWN, WRITE),)),
    Case(
        "TransactionCoordinator/End",
        lambda there, name: txn.EndRequest(correlation_id=1, ask=end(there, name)),
        ((ID, KNOWN, WRITE),),
        stream=True,
    ),
    Case(
        "TransactionCoordinator/PrepareTxn",
        lambda there, name: txn.PrepareTxnRequest(transactional_id=name, **numbers(there)),
        ((ID, KNOWN, WRITE),),
    ),
    Case("TransactionCoordinator/DecidePrepared", decide, ((ID, f"{KNOWN}/prepared", WRITE),)),
    Case("TransactionCoordinator/InitOwner", lambda _, name: txn.InitOwnerRequest(owner=name), ((ID, KNOWN, WRITE),)),
    Case(
        "TransactionCoordinator/CommitUnit",
        lambda there, name: txn.CommitUnitRequest(owner=name, owner_epoch=there.owner_epoch),
        ((ID, KNOWN, WRITE),),
    ),
)
OPERATORS = (
    Case("Coordinator/ListGroups", lambda *_: pb.ListGroupsRequest(), ((GROUP, KNOWN, DESCRIBE),), describes=True),
    Case(
        "Coordinator/DescribeGroups",
        lambda _, name: pb.DescribeGroupsRequest(group_ids=[name]),
        ((GROUP, KNOWN, DESCRIBE),),
        describes=True,
    ),
    Case(
        "Coordinator/DeleteGroups",
        lambda _, name: pb.DeleteGroupsRequest(group_ids=[name]),
        ((GROUP, KNOWN, DELETE),),
    ),
    Case(
        "Coordinator/DeleteOffsets",
        lambda _, name: pb.DeleteOffsetsRequest(group_id=name, partitions=partitions(name)),
        ((GROUP, KNOWN, DELETE), (TOPIC, KNOWN, READ)),
    ),
    Case(
        "Coordinator/Observed",
        lambda *_: access_pb2.ObservedRequest(),
        ((ResourceType.CLUSTER, CLUSTER_NAME, DESCRIBE),),
        describes=True,
    ),
    Case(
        "TransactionCoordinator/ListTransactions",
        lambda *_: txn.ListTransactionsRequest(),
        ((ID, KNOWN, DESCRIBE),),
        describes=True,
    ),
    Case(
        "TransactionCoordinator/DescribeTransactions",
        lambda _, name: txn.DescribeTransactionsRequest(transactional_ids=[name]),
        ((ID, KNOWN, DESCRIBE),),
        describes=True,
    ),
    Case(
        "TransactionCoordinator/AbortTransaction",
        lambda _, name: txn.AbortTransactionRequest(transactional_id=name),
        ((ID, KNOWN, WRITE),),
    ),
)
NODES = (
    Case("Coordinator/WriteTxnMarkers", marker, role=Role.COORDINATOR),
    Case(
        "Coordinator/Mark",
        lambda there, name: txn.MarkRequest(correlation_id=1, ask=marker(there, name)),
        stream=True,
        role=Role.COORDINATOR,
    ),
    Case("Coordinator/IdentifyCoordinator", lambda *_: pb.IdentifyCoordinatorRequest(), role=Role.CONTROLLER),
    Case("TransactionCoordinator/AddPartitionsToTxn", enrolment, role=Role.BROKER),
    Case(
        "TransactionCoordinator/Enrol",
        lambda there, name: txn.EnrolRequest(correlation_id=1, ask=enrolment(there, name)),
        stream=True,
        role=Role.BROKER,
    ),
)


def test_every_operation_is_tried() -> None:
    of_all_services = {"Certificates/DescribeServed"}  # tests/integration/access/test_matrix.py
    assert sorted(case.operation for case in (*CLIENTS, *OPERATORS, *NODES)) == sorted(ACCESS.keys() - of_all_services)


# --- the world --------------------------------------------------------------------------------------------------


async def furnished(world: Closed) -> There:
    """A group with a position, an open transaction of ``KNOWN``, and a prepared one of its owner."""
    world.turn(Mode.OPEN)
    world.running.cluster.lead(KNOWN, 0, 1)
    groups, transactions = await world.stub(NOBODY), await world.stub(NOBODY, "TransactionCoordinator")
    nodes = await world.stub(as_node(Role.BROKER), "TransactionCoordinator")
    assert (await answered(groups.CommitOffsets(commit(None, KNOWN)))).results[0].error == 0  # type: ignore[arg-type]

    async def begun(id: str, **fields: Any) -> There:
        made = await answered(
            transactions.InitTransactionalId(
                txn.InitTransactionalIdRequest(transactional_id=id, transaction_timeout_ms=60_000, **fields)
            )
        )
        there = There(made, txn.PreparedToken(), 0)
        assert (await answered(nodes.AddPartitionsToTxn(enrolment(there, id)))).transactions[0].error == 0
        return there

    epoch = (await answered(transactions.InitOwner(txn.InitOwnerRequest(owner=KNOWN)))).owner_epoch
    prepared = await begun(f"{KNOWN}/prepared", owner_epoch=epoch)
    request = txn.PrepareTxnRequest(transactional_id=f"{KNOWN}/prepared", owner_epoch=epoch, **numbers(prepared))
    token = (await answered(transactions.PrepareTxn(request))).token
    there = await begun(KNOWN)
    world.turn(Mode.CLOSED)
    return There(there.producer, token, epoch)


async def call(world: Closed, case: Case, shown: Metadata, request: Message) -> Message | HeadraceError:
    """What is answered."""
    service, _, method = case.operation.partition("/")
    asking = getattr(await world.stub(shown, service), method)
    try:
        async with asyncio.timeout(10):
            if not case.stream:
                return await asking(request)  # type: ignore[no-any-return]
            stream = asking()
            try:
                await stream.write(request)
                return await stream.read()  # type: ignore[no-any-return]
            finally:
                stream.cancel()
    except grpc.aio.AioRpcError as error:
        return error_from_rpc(error)


async def asked(world: Closed, case: Case, shown: Metadata, request: Message) -> Message | HeadraceError:
    """As ``call``; gRPC may lose the refusal of a stream that is written to, so it is opened again."""
    for _ in range(10):
        answer = await call(world, case, shown, request)
        if not isinstance(answer, NetworkFailed):
            break
    return answer


def codes(answer: Message | HeadraceError) -> set[int]:
    """Of the whole and of its entries."""
    if isinstance(answer, HeadraceError):
        return {answer.code}
    return set(_codes(answer))


def _codes(message: Message) -> Iterator[int]:
    for field, value in message.ListFields():
        if field.enum_type is not None and field.enum_type.name == "ErrorCode":
            yield value
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for one in value if isinstance(value, Iterable) else (value,):
                yield from _codes(one)


def refused(answer: Message | HeadraceError) -> bool:
    """Whether something was denied, or left out of a list."""
    if isinstance(answer, pb.ListGroupsResponse):
        return KNOWN not in {one.group_id for one in answer.groups}
    if isinstance(answer, txn.ListTransactionsResponse):
        return KNOWN not in {one.transactional_id for one in answer.transactions}
    return bool(codes(answer) & AUTHORIZATION)


async def check_refused(world: Closed, case: Case, there: There, shown: Metadata) -> None:
    """Nothing is done, and of what exists the same is said as of what does not."""
    before = world.written
    known = await asked(world, case, shown, case.ask(there, KNOWN))
    other = await asked(world, case, shown, case.ask(there, OTHER))
    assert refused(known), known
    texts = [re.sub(r"refusal \w+", "", str(one)) for one in (known, other)]  # its id is of the name that was asked for
    assert texts[0].replace(KNOWN, OTHER) == texts[1]
    assert type(known) is type(other)
    assert world.written == before, "and no shard was asked"


def all_but(missing: Granted, rights: Iterable[Granted]) -> list[Granted]:
    """On what exists and on what does not; in place of what is missing all that does not imply it."""
    given = [right for right in rights if right != missing]
    type, name, wanted = missing
    if wanted is not DESCRIBE:
        given += [(type, name, one) for one in operations_in(OPERATIONS[type]) if one is not wanted]
    return [(type, name.replace(KNOWN, one), operation) for type, name, operation in given for one in (KNOWN, OTHER)]


# --- who may ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CLIENTS, ids=lambda case: case.operation)
async def test_what_clients_ask(case: Case) -> None:
    async with closed_coordinator({KNOWN: 1}) as world:
        there = await furnished(world)
        request = case.ask(there, KNOWN)
        for shown in (as_user("bob"), as_node(Role.ADMIN, "bob"), as_node(Role.BROKER), as_node(Role.COORDINATOR)):
            await check_refused(world, case, there, shown)
        for missing in case.rights:
            world.grant("alice", *all_but(missing, case.rights))
            await check_refused(world, case, there, as_user("alice"))
        nobody = await asked(world, case, NOBODY, request)
        assert isinstance(nobody, Unauthenticated)
        assert not refused(nobody)
        if not case.describes:
            await check_refused(world, case, there, NODE)
        else:
            assert not refused(await asked(world, case, NODE, request))
        world.grant("alice", *case.rights)
        before = world.written
        for shown in (as_user("alice"), as_node(Role.ADMIN, "alice")):
            answer = await asked(world, case, shown, request)
            assert not refused(answer), answer
            assert not isinstance(answer, Unauthenticated)
        assert world.written > before, "it was asked of the shard"
        world.turn(Mode.OPEN)
        for shown in (NOBODY, as_user("bob"), NODE, as_node(Role.BROKER)):
            answer = await asked(world, case, shown, request)
            assert not refused(answer), answer
            assert not isinstance(answer, Unauthenticated)


@pytest.mark.parametrize("case", OPERATORS, ids=lambda case: case.operation)
async def test_what_operators_ask_by_an_admin_node(case: Case) -> None:
    async with closed_coordinator({KNOWN: 1}) as world:
        there = await furnished(world)
        request = case.ask(there, KNOWN)
        await check_refused(world, case, there, as_node(Role.ADMIN, "bob"))
        for missing in case.rights:
            world.grant("alice", *all_but(missing, case.rights))
            await check_refused(world, case, there, as_node(Role.ADMIN, "alice"))
        world.grant("alice", *case.rights)
        for shown in (as_user("alice"), as_node(Role.BROKER), as_node(Role.COORDINATOR)):
            assert isinstance(await asked(world, case, shown, request), Denied), "only an admin node asks this"
        assert isinstance(await asked(world, case, NOBODY, request), Unauthenticated)
        if not case.describes:
            await check_refused(world, case, there, NODE)
        else:
            assert not refused(await asked(world, case, NODE, request))
        answer = await asked(world, case, as_node(Role.ADMIN, "alice"), request)
        assert not codes(answer) - {0}, answer
        assert not refused(answer)
        world.turn(Mode.OPEN)
        for shown in (NODE, as_node(Role.ADMIN, "bob")):
            answer = await asked(world, case, shown, request)
            assert not codes(answer) & AUTHORIZATION, answer


@pytest.mark.parametrize("case", NODES, ids=lambda case: case.operation)
async def test_what_nodes_ask_for_themselves(case: Case) -> None:
    async with closed_coordinator({KNOWN: 1}) as world:
        there = await furnished(world)
        request = case.ask(there, KNOWN)
        assert case.role is not None
        everything: list[Granted] = [(ResourceType.CLUSTER, CLUSTER_NAME, Operation.ALTER), (ID, KNOWN, WRITE)]
        world.grant("alice", *everything)
        before = world.written
        for shown in (as_user("alice"), as_node(Role.ADMIN, "alice"), NODE):
            assert isinstance(await asked(world, case, shown, request), Denied)
        assert isinstance(await asked(world, case, NOBODY, request), Unauthenticated)
        assert world.written == before
        answer = await asked(world, case, as_node(case.role), request)
        assert not refused(answer), answer
        assert not isinstance(answer, HeadraceError)
