"""
A closed cluster's controller over real connections: each operation with the right, without it, without a credential,
as a node and by oneself; and that a refusal has changed and told nothing.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from libs.common.tests.kit.access import ADMIN, ALICE, BOB, allow
from libs.common.tests.kit.closed import key_of, key_text
from libs.common.tests.kit.fixed_tokens import Fixed
from libs.common.tests.kit.issuer import SigningIssuer
from libs.common.tests.kit.passwords import client as log_in_as
from libs.common.tests.kit.passwords import verifiers
from services.controller.tests.kit.access import called_by, config
from services.controller.tests.kit.client import Client, Watcher, eventually
from services.controller.tests.kit.dialogue import FakeInventories, FakeIssuers, FakeLogEnds, FakeProbe, broker

from headrace_common.core.access.changes import Block, Change, Put, Rule
from headrace_common.core.access.grants import Grant
from headrace_common.core.access.principal import Principal, PrincipalType
from headrace_common.core.access.resources import CLUSTER_NAME, Operation, ResourceType, literal, prefix
from headrace_common.core.access.rows import Mode, write_key
from headrace_common.core.errors import ErrorCode, HeadraceError
from headrace_common.core.features import HIGHEST
from headrace_common.core.ids import Endpoint
from headrace_common.core.image import Role
from headrace_common.rpc.access_rules import NODES
from headrace_common.rpc.channels import PLAIN, Security
from headrace_common.rpc.node_gate import FORWARDED_KEY, NODE_KEY, TOKEN_KEY, NodeGate
from headrace_common.runtime.access_gate import Access, AccessGate
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.service import GrpcService
from headrace_common.runtime.tasks import TaskRunner
from headrace_controller.adapters.memory_store import MemoryStore
from headrace_controller.core import records
from headrace_controller.core.issuing import Fetched, InFile, WantedIssuer
from headrace_controller.core.records import Cluster
from headrace_controller.core.sessions import Heartbeat
from headrace_controller.core.store import Put as StorePut
from headrace_controller.core.store import Transaction
from headrace_controller.core.topics import Wanted
from headrace_controller.engine.controller import ControllerEngine
from headrace_controller.engine.keys import WantedKey
from headrace_controller.engine.nodes import Joining
from headrace_controller.engine.term import Outside
from headrace_controller.rpc.access_table import ACCESS
from headrace_controller.rpc.servicer import ControllerServicer
from headrace_proto.v1 import access_pb2, cluster_pb2, controller_pb2_grpc
from headrace_proto.v1 import controller_pb2 as pb

Op, Kind = Operation, ResourceType
TOKENS: Final = Fixed()
IDP: Final = SigningIssuer()
MINE: Final = pb.ConfigResource(type=pb.TOPIC_CONFIG, name="mine")
BROKERS: Final = pb.ConfigResource(type=pb.BROKER_CONFIG, name="")
REFUSED: Final = {
    Kind.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Kind.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    Kind.PRINCIPAL: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}


@dataclass(frozen=True)
class Case:
    """A request, and what its caller needs."""

    request: Any
    operation: Operation
    type: ResourceType
    name: str = CLUSTER_NAME
    besides: tuple[Grant, ...] = field(default=())
    """More that is needed, for another reason."""

    @property
    def grant(self) -> Grant:
        return allow(self.type, literal(self.name), self.operation)


def setting(resource: pb.ConfigResource, name: str, value: str) -> pb.IncrementalAlterConfigsRequest:
    change = pb.AlterConfig(name=name, op=pb.SET, value=value)
    return pb.IncrementalAlterConfigsRequest(resources=[pb.AlterConfigsResource(resource=resource, changes=[change])])


def new_topic(name: str) -> pb.CreateTopicsRequest:
    topic = pb.NewTopic(name=name, partition_count=1, replication_factor=1)
    return pb.CreateTopicsRequest(topics=[topic], timeout_ms=20_000)


def giving(principal: Principal, grant: pb.Grant) -> access_pb2.AlterAccessRequest:
    rule = access_pb2.AccessRule(principal=str(principal), grant=grant)
    return access_pb2.AlterAccessRequest(changes=[access_pb2.AccessChange(rule=rule)])


READS: Final = access_pb2.Grant(operations=["READ"], type="TOPIC", pattern="mine")
READS_MINE: Final = allow(Kind.TOPIC, literal("mine"), Op.READ)
ID: Final = key_of("bob").id
CAROL: Final = Principal(PrincipalType.USER, "carol")
VERIFIERS: Final = [
    access_pb2.ScramVerifier(
        mechanism=one.mechanism,
        salt=one.salt,
        iterations=one.iterations,
        stored_key=one.stored_key,
        server_key=one.server_key,
    )
    for one in verifiers()
]
CASES: Final[Mapping[str, list[Case]]] = {
    "UnregisterNode": [Case(pb.UnregisterNodeRequest(role=cluster_pb2.BROKER, id=2), Op.ALTER, Kind.CLUSTER)],
    "DescribeCluster": [Case(pb.DescribeClusterRequest(), Op.DESCRIBE, Kind.CLUSTER)],
    "CreateTopics": [
        Case(new_topic("new"), Op.CREATE, Kind.TOPIC, "new"),
    ],
    "DeleteTopics": [Case(pb.DeleteTopicsRequest(names=["mine"]), Op.DELETE, Kind.TOPIC, "mine")],
    "DescribeTopics": [Case(pb.DescribeTopicsRequest(names=["mine"]), Op.DESCRIBE, Kind.TOPIC, "mine")],
    "CreatePartitions": [
        Case(pb.CreatePartitionsRequest(name="mine", partition_count=2), Op.ALTER, Kind.TOPIC, "mine")
    ],
    "DescribeConfigs": [
        Case(pb.DescribeConfigsRequest(resources=[MINE]), Op.DESCRIBE_CONFIGS, Kind.TOPIC, "mine"),
        Case(pb.DescribeConfigsRequest(resources=[BROKERS]), Op.DESCRIBE_CONFIGS, Kind.CLUSTER),
    ],
    "IncrementalAlterConfigs": [
        Case(setting(MINE, "retention.ms", "77"), Op.ALTER_CONFIGS, Kind.TOPIC, "mine"),
        Case(setting(BROKERS, "leader.imbalance.per.broker.percentage", "11"), Op.ALTER_CONFIGS, Kind.CLUSTER),
    ],
    "ElectLeaders": [Case(pb.ElectLeadersRequest(type=pb.PREFERRED), Op.ALTER, Kind.CLUSTER)],
    "AlterReassignments": [
        Case(
            pb.AlterReassignmentsRequest(
                reassignments=[pb.Reassignment(topic_id=b"t" * 16, partition=0, replicas=[1])]
            ),
            Op.ALTER,
            Kind.CLUSTER,
        )
    ],
    "ListReassignments": [Case(pb.ListReassignmentsRequest(), Op.DESCRIBE, Kind.CLUSTER)],
    "DrainBroker": [Case(pb.DrainBrokerRequest(broker_id=1, drained=True), Op.ALTER, Kind.CLUSTER)],
    "DescribeRestore": [Case(pb.DescribeRestoreRequest(), Op.DESCRIBE, Kind.CLUSTER)],
    "AdoptTopic": [Case(pb.AdoptTopicRequest(topic_id=b"t" * 16), Op.ALTER, Kind.CLUSTER)],
    "AlterAccess": [
        Case(giving(BOB, READS), Op.ALTER, Kind.PRINCIPAL, str(BOB), (READS_MINE,)),
        Case(
            access_pb2.AlterAccessRequest(
                changes=[access_pb2.AccessChange(rule=access_pb2.AccessRule(principal=str(BOB), grant=READS))],
                validate_only=True,
            ),
            Op.ALTER,
            Kind.PRINCIPAL,
            str(BOB),
            (READS_MINE,),
        ),
    ],
    "AlterQuotas": [
        Case(
            access_pb2.AlterQuotasRequest(
                changes=[access_pb2.QuotaSetting(entity="users/*", name="producer_byte_rate", value=5)]
            ),
            Op.ALTER_CONFIGS,
            Kind.CLUSTER,
        )
    ],
    "Observed": [Case(access_pb2.ObservedRequest(), Op.DESCRIBE, Kind.CLUSTER)],
    "CreateKey": [Case(access_pb2.CreateKeyRequest(owner=str(BOB)), Op.ALTER, Kind.PRINCIPAL, str(BOB))],
    "CreateUser": [
        Case(access_pb2.CreateUserRequest(name="bob", verifiers=VERIFIERS), Op.ALTER, Kind.PRINCIPAL, str(BOB))
    ],
    "ChangePassword": [
        Case(access_pb2.ChangePasswordRequest(name="carol", verifiers=VERIFIERS), Op.ALTER, Kind.PRINCIPAL, str(CAROL))
    ],
    "DeleteUser": [Case(access_pb2.DeleteUserRequest(name="carol"), Op.ALTER, Kind.PRINCIPAL, str(CAROL))],
    "DeleteKeys": [
        Case(
            access_pb2.DeleteKeysRequest(ids=[ID]),
            Op.ALTER,
            Kind.PRINCIPAL,
            str(BOB),
            (allow(Kind.PRINCIPAL, literal(str(BOB)), Op.DESCRIBE_TOKENS),),
        )
    ],
}
PAIRS: Final = [
    pytest.param(name, case, id=f"{name}-{number}")
    for name, cases in CASES.items()
    for number, case in enumerate(cases)
]
AUTHORIZATION: Final = {*REFUSED.values()}


def as_node(role: Role, bearer: str | None = None, number: int = 1) -> Security:
    said: list[tuple[str, str | bytes]] = [(NODE_KEY, f"{role.value}-{number}"), (TOKEN_KEY, TOKENS.shown)]
    if bearer is not None:
        said.append((FORWARDED_KEY, bearer.encode()))
    return Security(lambda _: tuple(said))


def with_key(bearer: str) -> Security:
    return Security(lambda _: (("authorization", f"Bearer {bearer}"),))


class Closed:
    """An active controller of a closed cluster, and its callers."""

    def __init__(self, engine: ControllerEngine, store: MemoryStore, endpoint: Endpoint, stack: AsyncExitStack) -> None:
        self.engine = engine
        self.alice = ""
        """Alice's key."""
        self._store = store
        self._endpoint = endpoint
        self._stack = stack

    async def client(self, security: Security = PLAIN) -> Client:
        return await self._stack.enter_async_context(Client.open(self._endpoint, security))

    async def for_alice(self) -> Client:
        """An admin node that asks for her."""
        return await self.client(as_node(Role.ADMIN, self.alice))

    async def by_admin(self, *changes: Change) -> None:
        await self.engine.alter_access(changes, None, called_by(ADMIN), validate_only=False)

    async def allow(self, *grants: Grant) -> None:
        await self.by_admin(*(Put(Rule(ALICE, grant)) for grant in grants))

    async def held(self) -> dict[str, bytes]:
        """All that is stored."""
        return {item.key: item.value for item in (await self._store.list_all()).items}


@pytest.fixture
async def closed() -> AsyncIterator[Closed]:
    wanted = WantedIssuer(IDP.issuer, InFile("/keys.json"))
    settings = config(Mode.CLOSED, admin_keys=(key_of("admin"),), issuers=(wanted,))
    issuers = FakeIssuers()
    issuers.published["idp"] = Fetched(IDP.known.keys, SystemClock().now_ms())
    store, clock, endpoint = MemoryStore(SystemClock()), SystemClock(), Endpoint("127.0.0.1", 1)
    engine = ControllerEngine(
        config=settings,
        outside=Outside(store, FakeProbe(), FakeLogEnds(), FakeInventories(), issuers, clock),
        endpoint=lambda: endpoint,
        new_cluster=lambda: Cluster("c1", b"i" * 16),
    )
    gate = NodeGate(TOKENS, lambda: engine.follower.mirror.image)
    access = Access(lambda: engine.follower.mirror.image, gate, clock, engine.follower.reader)
    engine.follower.on_image = access.look
    add = controller_pb2_grpc.add_ControllerServicer_to_server
    servicer = ControllerServicer(engine, settings.liveness, gate)
    interceptors = [AccessGate(access, ACCESS, takes_nodes=True), gate]
    async with (
        TaskRunner() as tasks,
        GrpcService.open(settings.server, [(add, servicer)], interceptors=interceptors) as server,
        AsyncExitStack() as stack,
    ):
        engine.start(tasks)
        await eventually(_term_of(engine), lambda term: term is not None)
        await eventually(_issuers_of(engine), lambda issuers: "idp" in issuers)
        made = Closed(engine, store, server.endpoint, stack)
        for number in (1, 2):
            node = broker(number, level=HIGHEST)
            joined = await engine.register(Joining(node))
            if number == 1:
                await engine.heartbeat(Heartbeat(node.key, joined.epoch, joined.revision))
        for name in ("mine", "other"):
            await engine.create_topic(Wanted(name, 1, 1), validate_only=False, timeout_ms=20_000)
        name, row = write_key(key_of("bob"))
        await store.commit(Transaction((), (StorePut(records.access_key(name), row),)))
        await engine.create_user("carol", verifiers(), called_by(ADMIN))
        made.alice = (await engine.create_key(WantedKey(owner=ALICE), called_by(ADMIN))).text
        yield made
        await engine.stop()
        assert tasks.failure is None


def _term_of(engine: ControllerEngine) -> Callable[[], Awaitable[Any]]:
    async def look() -> Any:
        return engine.candidate.term

    return look


def _issuers_of(engine: ControllerEngine) -> Callable[[], Awaitable[Any]]:
    async def look() -> Any:
        return engine.follower.access.issuers

    return look


def errors_in(answer: Any) -> list[tuple[int, str]]:
    """The errors of the entries of an answer, and what they say."""
    entries: Iterable[Any] = [
        entry
        for name in ("topics", "results", "partitions")
        if name in answer.DESCRIPTOR.fields_by_name
        for entry in getattr(answer, name)
    ]
    if "result" in answer.DESCRIPTOR.fields_by_name:
        entries = [answer.result]
    return [(entry.error, entry.message) for entry in entries if hasattr(entry, "error")]


async def refusal(client: Client, name: str, request: Any) -> int:
    """The code of a refusal, of the whole or of its one entry; 0: it was let in, whatever came of it."""
    try:
        answer = await client.call(name, request)
    except HeadraceError as error:
        return error.code
    return next(iter(errors_in(answer)), (0, ""))[0]


def test_each_operation_that_is_asked_for_others_is_tried() -> None:
    asked = {operation for operation, rule in ACCESS.items() if rule is not NODES}
    assert asked == {*(f"Controller/{name}" for name in CASES), "Controller/ListTopics", "Certificates/DescribeServed"}


@pytest.mark.parametrize(("name", "case"), PAIRS)
async def test_with_the_right_it_is_done_and_without_nothing_is(closed: Closed, name: str, case: Case) -> None:
    client = await closed.for_alice()
    await closed.allow(*case.besides)
    before = await closed.held()
    assert await refusal(client, name, case.request) == REFUSED[case.type]
    assert await closed.held() == before
    await closed.allow(case.grant)
    assert await refusal(client, name, case.request) not in AUTHORIZATION


@pytest.mark.parametrize(("name", "case"), PAIRS)
async def test_who_shows_nothing_valid_is_refused(closed: Closed, name: str, case: Case) -> None:
    before = await closed.held()
    callers = (
        PLAIN,
        with_key(key_text("nobody")),
        as_node(Role.ADMIN, key_text("nobody")),
        Security(lambda _: ((FORWARDED_KEY, closed.alice.encode()),)),
    )
    for security in callers:
        client = await closed.client(security)
        assert await refusal(client, name, case.request) == ErrorCode.SASL_AUTHENTICATION_FAILED
    no_node = await closed.client(Security(lambda _: ((NODE_KEY, "admin-1"), (TOKEN_KEY, "guess"))))
    assert await refusal(no_node, name, case.request) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert await closed.held() == before


@pytest.mark.parametrize(("name", "case"), PAIRS)
async def test_a_right_is_of_no_use_without_an_admin_node_that_asks(closed: Closed, name: str, case: Case) -> None:
    await closed.allow(case.grant, *case.besides)
    before = await closed.held()
    for security in (with_key(closed.alice), as_node(Role.BROKER, closed.alice), as_node(Role.COORDINATOR)):
        client = await closed.client(security)
        assert await refusal(client, name, case.request) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert await closed.held() == before


@pytest.mark.parametrize(("name", "case"), PAIRS)
async def test_an_admin_node_by_itself_looks_and_changes_nothing(closed: Closed, name: str, case: Case) -> None:
    client, before = await closed.client(as_node(Role.ADMIN)), await closed.held()
    expected = REFUSED[case.type]
    if case.operation in {Op.DESCRIBE, Op.DESCRIBE_CONFIGS}:
        expected = ErrorCode.NONE
    elif name == "DeleteKeys":
        expected = ErrorCode.RESOURCE_NOT_FOUND  # it is not told of keys
    assert await refusal(client, name, case.request) == expected
    assert await closed.held() == before


async def test_who_shows_a_token_of_an_issuer_whose_keys_it_fetched_has_its_own_rights_and_those_of_its_groups(
    closed: Closed,
) -> None:
    now_ms = SystemClock().now_ms()
    request = pb.DescribeClusterRequest()
    client = await closed.client(as_node(Role.ADMIN, IDP.token(now_ms=now_ms, groups=["staff"])))
    other = await closed.client(as_node(Role.ADMIN, IDP.token(now_ms=now_ms)))
    assert await refusal(client, "DescribeCluster", request) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    grant = allow(Kind.CLUSTER, literal(CLUSTER_NAME), Op.DESCRIBE)
    await closed.by_admin(Put(Rule(Principal(PrincipalType.GROUP, "staff"), grant)))
    assert await refusal(client, "DescribeCluster", request) == ErrorCode.NONE
    assert await refusal(other, "DescribeCluster", request) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    for wrong in ({"aud": "billing"}, {"iss": "https://evil"}, {"exp": now_ms // 1_000 - 60}):
        forged = await closed.client(as_node(Role.ADMIN, IDP.token(now_ms=now_ms, groups=["staff"], **wrong)))
        code = await refusal(forged, "DescribeCluster", request)
        assert code in {ErrorCode.SASL_AUTHENTICATION_FAILED, ErrorCode.CREDENTIALS_EXPIRED}
    await closed.by_admin(Put(Block(Principal(PrincipalType.OIDC, "idp/alice"))))
    assert await refusal(client, "DescribeCluster", request) == ErrorCode.CREDENTIALS_REVOKED


async def test_a_deleted_key_opens_nothing_from_the_next_call_on(closed: Closed) -> None:
    await closed.allow(allow(Kind.CLUSTER, literal(CLUSTER_NAME), Op.DESCRIBE))
    client = await closed.for_alice()
    await client.cluster()
    id = next(id for id, key in closed.engine.follower.access.keys.items() if key.owner == ALICE)
    await closed.engine.delete_keys([id], called_by(ALICE))
    assert await refusal(client, "DescribeCluster", pb.DescribeClusterRequest()) == ErrorCode.SASL_AUTHENTICATION_FAILED


async def test_who_may_create_in_the_cluster_may_create_any_topic(closed: Closed) -> None:
    await closed.allow(allow(Kind.CLUSTER, literal(CLUSTER_NAME), Op.CREATE))
    assert await refusal(await closed.for_alice(), "CreateTopics", new_topic("new")) == ErrorCode.NONE


def without_id(text: str) -> str:
    return re.sub(r"refusal \w+", "", text)


async def test_entries_are_decided_one_by_one_and_a_refusal_does_not_say_what_there_is(closed: Closed) -> None:
    await closed.allow(allow(Kind.TOPIC, literal("mine"), Op.DELETE, Op.DESCRIBE_CONFIGS))
    client = await closed.for_alice()
    names = ["mine", "other", "not-there"]
    described = errors_in(await client.call("DescribeTopics", pb.DescribeTopicsRequest(names=names)))
    resources = [pb.ConfigResource(type=pb.TOPIC_CONFIG, name=name) for name in names]
    configs = errors_in(await client.call("DescribeConfigs", pb.DescribeConfigsRequest(resources=resources)))
    deleted = errors_in(await client.call("DeleteTopics", pb.DeleteTopicsRequest(names=names)))
    for answer in (described, configs, deleted):
        assert [code for code, _ in answer] == [0, *2 * [ErrorCode.TOPIC_AUTHORIZATION_FAILED]]
        assert without_id(answer[1][1]).replace("other", "not-there") == without_id(answer[2][1])
    assert [code for code, _ in described] == [code for code, _ in deleted]
    assert closed.engine.image.topic("other") is not None
    assert closed.engine.image.topic("mine") is None
    grown = [
        errors_in(await client.call("CreatePartitions", pb.CreatePartitionsRequest(name=name, partition_count=3)))
        for name in names[1:]
    ]
    assert without_id(grown[0][0][1]).replace("other", "not-there") == without_id(grown[1][0][1])


async def test_a_list_leaves_out_what_is_not_to_be_seen(closed: Closed) -> None:
    client, request = await closed.for_alice(), pb.ListTopicsRequest(limit=10, include_internal=True)
    empty = await client.call("ListTopics", request)
    assert (list(empty.topics), empty.total, empty.more) == ([], 0, False)
    await closed.allow(allow(Kind.TOPIC, prefix("oth"), Op.READ))
    some = await client.call("ListTopics", request)
    assert ([topic.name for topic in some.topics], some.total) == (["other"], 1)
    everything = await (await closed.client(as_node(Role.ADMIN))).call("ListTopics", request)
    assert everything.total == 2


async def test_many_refusals_do_not_look_for_what_would_allow_them(closed: Closed) -> None:
    client = await closed.for_alice()
    for count, explained in ((10, True), (11, False)):
        request = pb.DescribeTopicsRequest(names=[f"t{n}" for n in range(count)])
        answer = errors_in(await client.call("DescribeTopics", request))
        assert all(("who may change rules allows it" in message) is explained for _, message in answer)


async def test_a_node_takes_itself_out_and_nobody_else(closed: Closed) -> None:
    request = pb.UnregisterNodeRequest(role=cluster_pb2.BROKER, id=2)
    for other in (as_node(Role.BROKER), as_node(Role.COORDINATOR, number=2)):
        code = await refusal(await closed.client(other), "UnregisterNode", request)
        assert code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    itself = await closed.client(as_node(Role.BROKER, number=2))
    assert await refusal(itself, "UnregisterNode", request) == ErrorCode.NONE
    assert [node.key.id for node in closed.engine.image.brokers()] == [1]


async def test_the_rows_go_to_nodes_and_to_nobody_else(closed: Closed) -> None:
    watcher = Watcher(await closed.client(as_node(Role.BROKER)), broker_node())
    await watcher.until(lambda image: "state" in image.access)
    await closed.allow(READS_MINE)
    await watcher.until(lambda image: "grants/User:alice" in image.access)
    assert watcher.image.access == closed.engine.image.access
    await watcher.close()
    strange = Watcher(await closed.client(with_key(closed.alice)))
    await strange.task
    assert strange.ended is not None
    assert (strange.ended.code, strange.steps) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, 0)


async def test_rules_keys_and_the_mode_over_the_wire(closed: Closed) -> None:
    admin = await closed.client(as_node(Role.ADMIN, key_text("admin")))
    request = giving(ALICE, READS)
    tried = await admin.call("AlterAccess", access_pb2.AlterAccessRequest(changes=request.changes, validate_only=True))
    done = await admin.call("AlterAccess", request)
    assert (done.generation, done.more) == (tried.generation + 1, False)
    (shift,) = done.shifts
    (reach,) = shift.gains
    assert (shift.principal, reach.pattern, list(reach.operations)) == ("User:alice", "mine", ["READ", "DESCRIBE"])
    made = await admin.call(
        "CreateKey",
        access_pb2.CreateKeyRequest(owner=str(ALICE), lifetime_ms=60_000, scope=[READS], note="for tests"),
    )
    described = made.description
    assert (described.owner, described.note, described.configured) == ("User:alice", "for tests", False)
    assert described.expires_ms == described.created_ms + 60_000
    assert list(described.scope) == [READS]
    with_it = await closed.client(as_node(Role.ADMIN, made.key))
    assert await refusal(with_it, "DescribeTopics", pb.DescribeTopicsRequest(names=["mine"])) == ErrorCode.NONE
    await admin.call("DeleteKeys", access_pb2.DeleteKeysRequest(ids=[described.id]))
    code = await refusal(with_it, "DescribeTopics", pb.DescribeTopicsRequest(names=["mine"]))
    assert code == ErrorCode.SASL_AUTHENTICATION_FAILED
    for wrong in ("open", "permissive", "shut", "CLOSED"):
        code = await refusal(admin, "AlterAccess", access_pb2.AlterAccessRequest(mode=wrong))
        assert code == ErrorCode.INVALID_REQUEST
    assert await refusal(admin, "AlterAccess", access_pb2.AlterAccessRequest(mode="closed")) == ErrorCode.NONE


async def test_a_login_gives_an_admin_node_a_key_for_who_has_the_password(closed: Closed) -> None:
    node, asks = await closed.client(as_node(Role.ADMIN)), log_in_as("carol")
    begun = await node.call(
        "Login", access_pb2.LoginRequest(mechanism=asks.mechanism, message=asks.first(), host="10.0.0.1")
    )
    last = access_pb2.LoginRequest(exchange_id=begun.exchange_id, message=asks.last(begun.message))
    done = await node.call("Login", last)
    asks.check(done.message)
    assert (done.made.description.owner, done.made.description.login) == (str(CAROL), True)
    assert await refusal(node, "Login", last) == ErrorCode.SASL_AUTHENTICATION_FAILED, "each is good once"
    await closed.by_admin(Put(Rule(CAROL, allow(Kind.CLUSTER, literal(CLUSTER_NAME), Op.DESCRIBE))))
    carol = await closed.client(as_node(Role.ADMIN, done.made.key))
    assert await refusal(carol, "DescribeCluster", pb.DescribeClusterRequest()) == ErrorCode.NONE
    await closed.engine.change_password("carol", verifiers("another good one"), 0, called_by(ADMIN))
    code = await refusal(carol, "DescribeCluster", pb.DescribeClusterRequest())
    assert code == ErrorCode.CREDENTIALS_REVOKED, "it goes with the password"
    for other in (as_node(Role.BROKER), as_node(Role.COORDINATOR), with_key(closed.alice)):
        code = await refusal(await closed.client(other), "Login", access_pb2.LoginRequest())
        assert code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def test_nonsense_is_refused_with_a_sentence(closed: Closed) -> None:
    admin = await closed.client(as_node(Role.ADMIN, key_text("admin")))
    requests: list[tuple[str, Any]] = [
        ("AlterAccess", access_pb2.AlterAccessRequest(changes=[access_pb2.AccessChange()])),
        ("AlterAccess", giving(ALICE, access_pb2.Grant(operations=["FLY"], type="TOPIC", pattern="a"))),
        ("AlterAccess", access_pb2.AlterAccessRequest(changes=[access_pb2.AccessChange(block="alice")])),
        ("CreateKey", access_pb2.CreateKeyRequest(owner="alice")),
        ("CreateKey", access_pb2.CreateKeyRequest(owner="User:alice", scope=[access_pb2.Grant()])),
        ("CreateKey", access_pb2.CreateKeyRequest(owner="User:alice", note="a\nb")),
        ("CreateKey", access_pb2.CreateKeyRequest(owner="User:alice", lifetime_ms=-(2**63))),
    ]
    before = await closed.held()
    for name, request in requests:
        assert await refusal(admin, name, request) == ErrorCode.INVALID_REQUEST, request
    code = await refusal(admin, "DeleteKeys", access_pb2.DeleteKeysRequest(ids=["", "x" * 1_000]))
    assert code == ErrorCode.RESOURCE_NOT_FOUND
    assert await closed.held() == before


def broker_node() -> cluster_pb2.Node:
    return cluster_pb2.Node(role=cluster_pb2.BROKER, id=1)
