"""Who may ask the admin service for what over gRPC, and on whose behalf it asks those behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

import grpc.aio
import pytest
from libs.common.tests.kit.access import allow
from libs.common.tests.kit.closed import Rows, bearing, key_of, key_text, user
from services.admin.tests.kit.behind import TOPICS, Front, opened, serving

from headrace_admin.rpc.access_table import ACCESS
from headrace_common.core.access.grants import Grant
from headrace_common.core.access.principal import Grantee
from headrace_common.core.access.resources import EVERY_NAME, Operation, ResourceType, literal
from headrace_common.core.access.rows import Mode
from headrace_common.core.errors import ErrorCode, HeadraceError
from headrace_common.rpc.access_rules import ENTRIES, NOBODY
from headrace_common.rpc.channels import Security, open_channel
from headrace_common.rpc.status import error_from_rpc
from headrace_proto.v1 import access_pb2, admin_pb2, broker_pb2, cluster_pb2, coordinator_pb2, errors_pb2
from headrace_proto.v1 import controller_pb2 as pb
from headrace_proto.v1 import transaction_pb2 as txn
from headrace_proto.v1.admin_pb2_grpc import AdminStub

Op, Of = Operation, ResourceType
LOOKS: Final = (allow(Of.CLUSTER, EVERY_NAME, Op.DESCRIBE),)
CHANGES: Final = (allow(Of.CLUSTER, EVERY_NAME, Op.ALTER),)
TOKEN: Final = txn.PreparedToken(transactional_id="t", producer_id=1)


@dataclass(frozen=True)
class Case:
    """A request, what its caller has to have, and what is asked for in the caller's name."""

    request: Any
    rights: tuple[Grant, ...] = ()
    behind: frozenset[str] = frozenset()
    itself: frozenset[str] = frozenset()
    """What the node asks for on its own behalf."""


def controller(*operations: str) -> frozenset[str]:
    return frozenset(f"Controller/{one}" for one in operations)


def groups(*operations: str) -> frozenset[str]:
    return frozenset(f"Coordinator/{one}" for one in operations)


def transactions(*operations: str) -> frozenset[str]:
    return frozenset(f"TransactionCoordinator/{one}" for one in operations)


FOUND: Final = frozenset({"Broker/FindCoordinator"})
CAUGHT_UP: Final = controller("DescribeCluster")
LOGS: Final = frozenset({"Broker/DescribeLogs"})
OF_ORDERS: Final = [coordinator_pb2.TopicPartitions(topic="orders", partitions=[0])]
CASES: Final[dict[str, Case]] = {
    "DescribeCluster": Case(pb.DescribeClusterRequest(), LOOKS, controller("DescribeCluster")),
    "DescribeStatus": Case(
        admin_pb2.DescribeStatusRequest(),
        LOOKS,
        itself=controller("DescribeCluster", "DescribeRestore")
        | LOGS
        | {"Broker/DescribeProducers"}
        | transactions("ListTransactions"),
    ),
    "DescribeCertificates": Case(
        admin_pb2.DescribeCertificatesRequest(), LOOKS, itself=frozenset({"Certificates/DescribeServed"})
    ),
    "DescribeFeatures": Case(admin_pb2.DescribeFeaturesRequest(), LOOKS, controller("DescribeCluster")),
    "DescribeRestore": Case(pb.DescribeRestoreRequest(), LOOKS, controller("DescribeRestore")),
    "ListReassignments": Case(pb.ListReassignmentsRequest(), LOOKS, controller("ListReassignments")),
    "DescribeReassignments": Case(admin_pb2.DescribeReassignmentsRequest(), LOOKS, controller("ListReassignments")),
    "UnregisterNode": Case(
        pb.UnregisterNodeRequest(role=cluster_pb2.COORDINATOR, id=1), CHANGES, controller("UnregisterNode")
    ),
    "ElectLeaders": Case(pb.ElectLeadersRequest(), CHANGES, controller("ElectLeaders")),
    "AlterReassignments": Case(pb.AlterReassignmentsRequest(), CHANGES, controller("AlterReassignments")),
    "DrainBroker": Case(pb.DrainBrokerRequest(), CHANGES, controller("DrainBroker")),
    "AdoptTopic": Case(pb.AdoptTopicRequest(), CHANGES, controller("AdoptTopic")),
    "RebalanceCluster": Case(admin_pb2.RebalanceClusterRequest(), CHANGES, LOGS),
    "DecommissionBroker": Case(admin_pb2.DecommissionBrokerRequest(broker_id=1, validate_only=True), CHANGES, LOGS),
    "AbortHangingTransaction": Case(
        admin_pb2.AbortHangingTransactionRequest(topic="orders", partition=0),
        CHANGES,
        itself=frozenset({"Broker/DescribeProducers"}),
    ),
    "CreateTopics": Case(pb.CreateTopicsRequest(), behind=controller("CreateTopics")),
    "DeleteTopics": Case(pb.DeleteTopicsRequest(), behind=controller("DeleteTopics")),
    "ListTopics": Case(pb.ListTopicsRequest(), behind=controller("ListTopics")),
    "DescribeTopics": Case(pb.DescribeTopicsRequest(), behind=controller("DescribeTopics")),
    "CreatePartitions": Case(
        pb.CreatePartitionsRequest(name="orders"),
        (allow(Of.TOPIC, literal("orders"), Op.ALTER),),
        controller("CreatePartitions"),
    ),
    "DescribeConfigs": Case(pb.DescribeConfigsRequest(), behind=controller("DescribeConfigs")),
    "IncrementalAlterConfigs": Case(pb.IncrementalAlterConfigsRequest(), behind=controller("IncrementalAlterConfigs")),
    "DeleteRecords": Case(
        broker_pb2.DeleteRecordsRequest(partitions=[broker_pb2.DeleteRecordsPartition(topic_id=TOPICS["orders"])]),
        (allow(Of.TOPIC, literal("orders"), Op.DELETE),),
        frozenset({"Broker/DeleteRecords"}),
    ),
    "DescribeLogs": Case(admin_pb2.DescribeClusterLogsRequest(), behind=LOGS),
    "ListGroups": Case(admin_pb2.ListClusterGroupsRequest(), behind=groups("ListGroups"), itself=CAUGHT_UP),
    "DescribeGroups": Case(
        coordinator_pb2.DescribeGroupsRequest(group_ids=["g"]), behind=groups("DescribeGroups"), itself=FOUND
    ),
    "DescribeGroupLag": Case(
        admin_pb2.DescribeGroupLagRequest(group_id="g", without_age=True),
        (allow(Of.GROUP, literal("g"), Op.DESCRIBE),),
        groups("DescribeGroups", "FetchOffsets") | {"Broker/ListOffsets"},
        FOUND,
    ),
    "ResetOffsets": Case(
        admin_pb2.ResetOffsetsRequest(group_id="g", partitions=OF_ORDERS, to=admin_pb2.EARLIEST, execute=True),
        (allow(Of.GROUP, literal("g"), Op.READ), allow(Of.TOPIC, literal("orders"), Op.READ)),
        groups("DescribeGroups", "FetchOffsets", "CommitOffsets") | {"Broker/ListOffsets"},
        FOUND,
    ),
    "DeleteGroups": Case(
        coordinator_pb2.DeleteGroupsRequest(group_ids=["g"]), behind=groups("DeleteGroups"), itself=FOUND
    ),
    "DeleteOffsets": Case(
        coordinator_pb2.DeleteOffsetsRequest(group_id="g", partitions=OF_ORDERS),
        (allow(Of.GROUP, literal("g"), Op.DELETE), allow(Of.TOPIC, literal("orders"), Op.READ)),
        groups("DescribeGroups", "FetchOffsets", "DeleteOffsets"),
        FOUND,
    ),
    "ListTransactions": Case(txn.ListTransactionsRequest(), behind=transactions("ListTransactions"), itself=CAUGHT_UP),
    "DescribeTransactions": Case(
        txn.DescribeTransactionsRequest(transactional_ids=["t"]),
        behind=transactions("DescribeTransactions"),
        itself=FOUND,
    ),
    "ListPreparedTransactions": Case(
        admin_pb2.ListPreparedTransactionsRequest(), behind=transactions("ListTransactions"), itself=CAUGHT_UP
    ),
    "ListOpenTransactions": Case(
        admin_pb2.ListOpenTransactionsRequest(topics=["orders"]),
        (allow(Of.TOPIC, literal("orders"), Op.DESCRIBE),),
        itself=frozenset({"Broker/DescribeProducers"}),
    ),
    "DecidePrepared": Case(txn.DecidePreparedRequest(token=TOKEN), behind=transactions("DecidePrepared"), itself=FOUND),
    "AbortTransaction": Case(
        admin_pb2.AbortClusterTransactionRequest(transactional_id="t"),
        (allow(Of.TRANSACTIONAL_ID, literal("t"), Op.WRITE),),
        transactions("AbortTransaction"),
        FOUND | transactions("DescribeTransactions"),
    ),
    "AlterAccess": Case(access_pb2.AlterAccessRequest(), behind=controller("AlterAccess")),
    "DescribeAccess": Case(
        access_pb2.DescribeAccessRequest(principal="User:x"), (allow(Of.PRINCIPAL, literal("User:x"), Op.DESCRIBE),)
    ),
    "ExplainAccess": Case(
        access_pb2.ExplainAccessRequest(principal="User:x", operation="READ", type="TOPIC", name="a"),
        (allow(Of.PRINCIPAL, literal("User:x"), Op.DESCRIBE),),
    ),
    "WhoCan": Case(
        access_pb2.WhoCanRequest(operation="READ", type="TOPIC", name="a"),
        (allow(Of.PRINCIPAL, literal("User:x"), Op.DESCRIBE),),
    ),
    "WhyRefused": Case(
        access_pb2.WhyRefusedRequest(id="0123456789"),
        (allow(Of.PRINCIPAL, literal("User:x"), Op.DESCRIBE),),
        itself=controller("Observed") | {"Broker/Observed", "Coordinator/Observed"},
    ),
    "Observed": Case(
        access_pb2.ObservedRequest(),
        itself=controller("Observed") | {"Broker/Observed", "Coordinator/Observed"},
    ),
    "CreateKey": Case(access_pb2.CreateKeyRequest(), behind=controller("CreateKey")),
    "ListKeys": Case(
        access_pb2.ListKeysRequest(owner="User:x"), (allow(Of.PRINCIPAL, literal("User:x"), Op.DESCRIBE),)
    ),
    "DeleteKeys": Case(access_pb2.DeleteKeysRequest(), behind=controller("DeleteKeys")),
    "AlterQuotas": Case(
        access_pb2.AlterQuotasRequest(),
        (allow(Of.CLUSTER, EVERY_NAME, Op.ALTER_CONFIGS),),
        behind=controller("AlterQuotas"),
    ),
    "DescribeQuotas": Case(access_pb2.DescribeQuotasRequest(), (allow(Of.CLUSTER, EVERY_NAME, Op.DESCRIBE_CONFIGS),)),
    "WhoAmI": Case(access_pb2.WhoAmIRequest()),
    "CreateUser": Case(access_pb2.CreateUserRequest(), behind=controller("CreateUser")),
    "ChangePassword": Case(access_pb2.ChangePasswordRequest(), behind=controller("ChangePassword")),
    "DeleteUser": Case(access_pb2.DeleteUserRequest(), behind=controller("DeleteUser")),
    "ListUsers": Case(access_pb2.ListUsersRequest(name="x"), (allow(Of.PRINCIPAL, literal("User:x"), Op.DESCRIBE),)),
}
LOGINS: Final = {"Admin/Login", "Auth/Authenticate", "Auth/DescribeSignOn"}
"""Asked by who has no credential yet."""
PER_ENTRY: Final = {"DeleteRecords"}
"""A refusal is in an entry of the answer."""
TOLD_BY: Final = {"DescribeAccess", "ListKeys", "ListUsers", "ListOpenTransactions"}
"""Rows ``ENTRIES`` whose engine refuses what is named."""


def rows(mode: Mode, *, alice: tuple[Grant, ...] = ()) -> Rows:
    rules: dict[Grantee, frozenset[Grant]] = {user("alice"): frozenset(alice)} if alice else {}
    return Rows(mode, rules, keys=[key_of("alice"), key_of("bob"), key_of("late", expires_ms=2_000)])


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    async with opened(rows(Mode.CLOSED)) as made:
        yield made


@dataclass
class Calls:
    """Of the admin service, as somebody."""

    at: str

    async def __call__(self, who: str | None, operation: str, request: Any) -> Any:
        """The answer, or the error."""
        shown = Security(lambda _: tuple(bearing(who).items()))
        async with open_channel(self.at, shown, own_connection=True) as channel:
            try:
                return await getattr(AdminStub(channel), operation)(request, timeout=20)
            except grpc.aio.AioRpcError as error:
                return error_from_rpc(error)


@pytest.fixture
async def ask(front: Front) -> AsyncIterator[Calls]:
    async with serving(front) as at:
        yield Calls(at)


def test_every_operation_has_its_row() -> None:
    there = {f"Admin/{one.name}" for one in admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods}
    assert ACCESS.keys() == there | LOGINS == {f"Admin/{name}" for name in CASES} | LOGINS
    assert {name for name, rule in ACCESS.items() if rule is NOBODY} == LOGINS


async def test_a_login_goes_on_from_the_node_itself_and_says_where_the_client_is(front: Front, ask: Calls) -> None:
    heard: list[access_pb2.LoginRequest] = []

    def answer(request: access_pb2.LoginRequest) -> access_pb2.LoginResponse:
        heard.append(request)
        return access_pb2.LoginResponse(exchange_id="1")

    front.behind.answers["Controller/Login"] = answer
    said = await ask(None, "Login", access_pb2.LoginRequest(message=b"n,,", host="10.9.9.9"))
    assert said.exchange_id == "1"
    assert [(one.message, one.host) for one in heard] == [(b"n,,", "127.0.0.1")], "whatever the client says"
    assert front.behind.whose() == {"Controller/Login": {None}}


@pytest.mark.parametrize("who", [None, "late", "stranger"])
async def test_nobody_gets_anything_of_a_closed_cluster(front: Front, ask: Calls, who: str | None) -> None:
    for operation, case in CASES.items():
        refused = await ask(who, operation, case.request)
        assert isinstance(refused, HeadraceError), operation
        expected = ErrorCode.CREDENTIALS_EXPIRED if who == "late" else ErrorCode.SASL_AUTHENTICATION_FAILED
        assert refused.code == expected
    assert front.behind.asked == []


@pytest.mark.parametrize("operation", CASES)
async def test_who_has_the_right_is_asked_for_in_its_name(front: Front, ask: Calls, operation: str) -> None:
    case = CASES[operation]
    front.told(rows(Mode.CLOSED, alice=case.rights))
    answer = await ask("alice", operation, case.request)
    assert getattr(answer, "code", None) not in DENIALS, answer
    found = front.behind.whose()
    assert found == {**{one: {key_text("alice")} for one in case.behind}, **{one: {None} for one in case.itself}}


DENIALS: Final = {
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.SASL_AUTHENTICATION_FAILED,
}


@pytest.mark.parametrize("operation", [name for name, case in CASES.items() if case.rights])
async def test_who_lacks_one_right_gets_nothing(front: Front, ask: Calls, operation: str) -> None:
    case = CASES[operation]
    for lacking in case.rights:
        front.told(rows(Mode.CLOSED, alice=tuple(one for one in case.rights if one is not lacking)))
        answer = await ask("alice", operation, case.request)
        if operation in PER_ENTRY:
            assert [one.error for one in answer.partitions] == [errors_pb2.TOPIC_AUTHORIZATION_FAILED]
        else:
            assert isinstance(answer, HeadraceError), answer
            assert answer.code in DENIALS, answer
    assert front.behind.asked == []


@pytest.mark.parametrize("operation", [name for name, case in CASES.items() if not case.rights])
async def test_what_others_decide_goes_on_in_the_callers_name(front: Front, ask: Calls, operation: str) -> None:
    """Bob has no right at all."""
    case = CASES[operation]
    await ask("bob", operation, case.request)
    whose = {bearer for name, of in front.behind.whose().items() if name in case.behind for bearer in of}
    assert whose == ({key_text("bob")} if case.behind else set())


async def test_an_open_cluster_asks_nobody(front: Front, ask: Calls) -> None:
    front.told(rows(Mode.OPEN))
    for who in (None, "stranger"):
        for operation, case in CASES.items():
            answer = await ask(who, operation, case.request)
            assert getattr(answer, "code", None) not in DENIALS, (operation, answer)


async def test_a_row_that_leaves_it_to_others_says_so() -> None:
    left = {name for name, rule in ACCESS.items() if rule is ENTRIES}
    asked_for = {f"Admin/{name}" for name, case in CASES.items() if case.rights}
    assert {name.removeprefix("Admin/") for name in left & asked_for} == TOLD_BY | PER_ENTRY


async def test_a_token_is_shown_to_who_may_use_it(front: Front, ask: Calls) -> None:
    prepared = txn.TransactionDescription(transactional_id="t", state=txn.TXN_PREPARED, token=TOKEN)
    answers = front.behind.answers
    answers["TransactionCoordinator/DescribeTransactions"] = lambda _: txn.DescribeTransactionsResponse(
        transactions=[prepared]
    )
    answers["TransactionCoordinator/ListTransactions"] = lambda _: txn.ListTransactionsResponse(
        transactions=[txn.TransactionListing(transactional_id="t", state=txn.TXN_PREPARED)]
    )
    for may in (False, True):
        rights = (allow(Of.TRANSACTIONAL_ID, literal("t"), Op.WRITE if may else Op.DESCRIBE),)
        front.told(rows(Mode.CLOSED, alice=rights))
        for operation in ("DescribeTransactions", "ListPreparedTransactions"):
            [told] = (await ask("alice", operation, CASES[operation].request)).transactions
            assert told.transaction.HasField("token") == may, operation


@pytest.mark.parametrize("sees_owner", [True, False])
async def test_what_is_open_is_told_as_far_as_the_caller_may_know(front: Front, ask: Calls, sees_owner: bool) -> None:
    state = broker_pb2.ProducerState(producer_id=5, transaction_start=0, transaction_since_ms=1)
    front.behind.answers["Broker/DescribeProducers"] = lambda request: broker_pb2.DescribeProducersResponse(
        partitions=[broker_pb2.PartitionProducers(topic_id=p.topic_id, producers=[state]) for p in request.partitions]
    )
    listed = txn.TransactionListing(transactional_id="t", producer_id=5, state=txn.TXN_ONGOING)
    front.behind.answers["TransactionCoordinator/ListTransactions"] = lambda _: txn.ListTransactionsResponse(
        transactions=[listed]
    )
    owner = (allow(Of.TRANSACTIONAL_ID, literal("t"), Op.DESCRIBE),) if sees_owner else ()
    front.told(rows(Mode.CLOSED, alice=(allow(Of.TOPIC, literal("orders"), Op.DESCRIBE), *owner)))
    told = await ask("alice", "ListOpenTransactions", admin_pb2.ListOpenTransactionsRequest())
    [one] = told.transactions
    assert (one.topic, one.HasField("transactional_id")) == ("orders", sees_owner)
    assert not told.unasked
    front.told(rows(Mode.CLOSED, alice=LOOKS))
    everywhere = await ask("alice", "ListOpenTransactions", admin_pb2.ListOpenTransactionsRequest())
    assert {each.topic for each in everywhere.transactions} == {"orders", "secret"}
