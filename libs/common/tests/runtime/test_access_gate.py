"""Who is let in by the gate of a service, over real connections, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import grpc.aio
import pytest
from libs.common.tests.kit.access import ALICE, BOB, allow, deny
from libs.common.tests.kit.clock import FakeClock
from libs.common.tests.kit.fixed_tokens import Fixed

from headrace_common.core.access.api_keys import ApiKey, digest_of, format_key, parse_key
from headrace_common.core.access.authentication import Verified, authenticate
from headrace_common.core.access.grants import scope_of
from headrace_common.core.access.issuers import IssuerKeys
from headrace_common.core.access.refusals import Question, refusal_id
from headrace_common.core.access.resources import CLUSTER_NAME, Operation, ResourceType, literal
from headrace_common.core.access.rows import (
    STATE,
    Mode,
    Reader,
    changed_rows,
    write_issuer,
    write_key,
    write_state,
    write_user,
)
from headrace_common.core.access.state import Access as Rules
from headrace_common.core.access.state import Caller
from headrace_common.core.access.users import User
from headrace_common.core.errors import (
    ClusterAuthorizationFailed,
    CredentialsExpired,
    CredentialsRevoked,
    HeadraceError,
    MetadataUnavailable,
    TopicAuthorizationFailed,
    Unauthenticated,
)
from headrace_common.core.features import NODE_TOKEN
from headrace_common.core.ids import NodeId
from headrace_common.core.image import EMPTY_IMAGE, ClusterImage, Node, NodeKey, Role
from headrace_common.core.node_rules import NO_TOKEN
from headrace_common.rpc.access_rules import ANYBODY, ENTRIES, NODES, AccessTable, AsksAnywhere, on_cluster, on_each
from headrace_common.rpc.channels import Security, open_channel
from headrace_common.rpc.credentials import Pem
from headrace_common.rpc.node_gate import FORWARDED_HOST_KEY, FORWARDED_KEY, NODE_KEY, TOKEN_KEY, NodeGate
from headrace_common.rpc.status import error_from_rpc
from headrace_common.runtime.access_gate import Access, AccessGate, current_bearer, current_rights
from headrace_common.runtime.service import GrpcService, ServerConfig
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import broker_pb2_grpc, transaction_pb2

TABLE: AccessTable = {
    "Broker/Metadata": ANYBODY,
    "Broker/ListOffsets": on_cluster(Operation.DESCRIBE),
    "Broker/DescribeLogs": NODES,
    "Broker/Replicate": NODES,
    "Broker/DeleteRecords": on_each(
        Operation.DELETE, ResourceType.TOPIC, lambda request: (str(one.partition) for one in request.partitions)
    ),
    "Broker/Produce": ENTRIES,
    "Broker/InitProducerId": AsksAnywhere(Operation.WRITE, ResourceType.TOPIC),
    "Broker/WriteTxnMarkers": on_cluster(Operation.ALTER, own=[Role.COORDINATOR]),
}
KEY_TEXT = format_key(bytes(10), bytes(32))
OTHER_TEXT = format_key(b"\1" * 10, bytes(32))


def key_of(text: str, **fields: Any) -> ApiKey:
    id, secret = parse_key(text)
    return ApiKey(id, fields.pop("owner", ALICE), digest_of(secret), 1, **fields)


@dataclass
class World:
    """A server with a gate before it, and what the cluster says of access."""

    address: str = ""
    clock: FakeClock = field(default_factory=FakeClock)
    mode: Mode = Mode.CLOSED
    rules: Rules = Rules(1)
    keys: list[ApiKey] = field(default_factory=lambda: [key_of(KEY_TEXT)])
    issuers: dict[str, IssuerKeys] = field(default_factory=dict)
    users: list[User] = field(default_factory=list)
    nodes: Mapping[NodeKey, Node] = field(default_factory=dict)
    image: ClusterImage = EMPTY_IMAGE
    access: Access = None  # type: ignore[assignment]
    seen: list[tuple[str, str, str | None]] = field(default_factory=list)
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    ended: list[BaseException | None] = field(default_factory=list)
    before_it_answers: Callable[[], None] | None = None
    """Called while an answer of a stream is on its way."""

    def told(self) -> None:
        """The image is as the world is now."""
        rows = {
            STATE: write_state(self.mode, self.rules.generation),
            **changed_rows(Rules(), self.rules),
            **dict(map(write_key, self.keys)),
            **dict(map(write_issuer, self.issuers.values())),
            **dict(map(write_user, self.users)),
        }
        revision = self.image.revision + 1
        self.image = replace(
            EMPTY_IMAGE, revision=revision, feature_level=NODE_TOKEN.level, access=rows, nodes=self.nodes
        )
        self.access.look()

    def grant(self, *grants: Any) -> None:
        self.rules = replace(self.rules, generation=self.rules.generation + 1, rules={ALICE: frozenset(grants)})
        self.told()

    pem: Pem | None = None
    """With what it is called; None: in plain text."""

    def shows(self, *metadata: tuple[str, str | bytes]) -> Security:
        return Security(lambda _: metadata, self.pem)

    async def call(self, operation: str, *metadata: tuple[str, str | bytes], request: Any = None) -> Any:
        """The error; None: there is none."""
        async with open_channel(self.address, self.shows(*metadata), own_connection=True) as channel:
            stub: Any = broker_pb2_grpc.BrokerStub(channel)
            try:
                if operation == "Produce":
                    await stub.Produce().read()
                else:
                    of = transaction_pb2 if operation == "WriteTxnMarkers" else pb
                    await getattr(stub, operation)(request or getattr(of, f"{operation}Request")())
            except grpc.aio.AioRpcError as error:
                return error_from_rpc(error)
        return None


class Servicer(broker_pb2_grpc.BrokerServicer):
    def __init__(self, world: World) -> None:
        self._world = world

    def _saw(self, operation: str) -> None:
        self._world.seen.append((operation, str(current_rights().caller.principal), current_bearer()))

    async def Metadata(self, request: Any, context: Any) -> Any:
        self._saw("Metadata")
        return pb.MetadataResponse()

    async def ListOffsets(self, request: Any, context: Any) -> Any:
        self._saw("ListOffsets")
        return pb.ListOffsetsResponse()

    async def DescribeLogs(self, request: Any, context: Any) -> Any:
        self._saw("DescribeLogs")
        return pb.DescribeLogsResponse()

    async def DeleteRecords(self, request: Any, context: Any) -> Any:
        self._saw("DeleteRecords")
        return pb.DeleteRecordsResponse()

    async def Identify(self, request: Any, context: Any) -> Any:
        self._saw("Identify")
        return pb.IdentifyResponse()

    async def InitProducerId(self, request: Any, context: Any) -> Any:
        self._saw("InitProducerId")
        return pb.InitProducerIdResponse()

    async def WriteTxnMarkers(self, request: Any, context: Any) -> Any:
        self._saw("WriteTxnMarkers")
        return transaction_pb2.WriteTxnMarkersResponse()

    async def Replicate(self, requests: Any, context: Any) -> Any:
        self._saw("Replicate")
        async for _ in requests:
            yield pb.ReplicateResponse()

    async def Produce(self, requests: Any, context: Any) -> Any:
        self._saw("Produce")
        self._world.opened.set()
        ended: BaseException | None = None
        try:
            async for _ in requests:
                if self._world.before_it_answers is not None:
                    asyncio.get_running_loop().call_soon(self._world.before_it_answers)
                yield pb.ProduceResponse()
        except asyncio.CancelledError as error:
            ended = error
            raise
        finally:
            self._world.ended.append(ended)


@asynccontextmanager
async def serving(world: World) -> AsyncIterator[World]:
    """While the block runs; the image is of the world."""
    nodes = NodeGate(Fixed(), lambda: world.image)
    world.access = Access(lambda: world.image, nodes, world.clock)
    servicers = [(broker_pb2_grpc.add_BrokerServicer_to_server, Servicer(world))]
    gates = [AccessGate(world.access, TABLE, takes_nodes=True), nodes]
    async with GrpcService.open(ServerConfig(drain_ms_max=0), servicers, interceptors=gates) as running:
        world.address = f"127.0.0.1:{running.port}"
        world.told()
        yield world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with serving(World()) as world:
        yield world


def bearer(text: str) -> tuple[str, str]:
    return "authorization", f"Bearer {text}"


ME = bearer(KEY_TEXT)


def node(role: Role, token: str = "secret") -> tuple[tuple[str, str], tuple[str, str]]:
    return (NODE_KEY, str(NodeKey(role, NodeId(1)))), (TOKEN_KEY, token)


NOTHING_VALID = {
    "nothing": (),
    "another scheme": (("authorization", "Basic YTpi"),),
    "no text": (("authorization", ""),),
    "a key without a scheme": (("authorization", KEY_TEXT),),
    "a key of another form": (bearer("hrk_x"),),
    "a token of another kind": (bearer("eyJhbGciOiJub25lIn0.e30."),),
    "one that is too long": (bearer("hrk_" + "a" * 9_000),),
    "one that is unknown": (bearer(OTHER_TEXT),),
    "the id of a key with another secret": (bearer(format_key(bytes(10), b"\1" * 32)),),
    "a node without its token": ((NODE_KEY, "broker-1"),),
    "a node with a wrong token": node(Role.BROKER, "wrong"),
}


@pytest.mark.parametrize("metadata", NOTHING_VALID.values(), ids=NOTHING_VALID)
@pytest.mark.parametrize("operation", ["Metadata", "ListOffsets", "DescribeLogs", "Produce", "Identify"])
async def test_who_shows_nothing_valid_reaches_no_handler(world: World, operation: str, metadata: Any) -> None:
    error = await world.call(operation, *metadata)
    assert isinstance(error, (Unauthenticated, ClusterAuthorizationFailed))
    says_node = dict(metadata).get(NODE_KEY) is not None
    assert isinstance(error, Unauthenticated) or operation == "Identify" or (says_node and operation == "DescribeLogs")
    assert not world.seen
    assert KEY_TEXT not in str(error)


@pytest.mark.parametrize("metadata", [((NODE_KEY, "admin-1"),), node(Role.ADMIN, "wrong")])
async def test_who_only_says_that_it_is_a_node_hears_why_it_is_taken_for_none(world: World, metadata: Any) -> None:
    error = await world.call("DescribeLogs", *metadata)
    assert isinstance(error, ClusterAuthorizationFailed)
    assert NO_TOKEN in str(error)
    assert isinstance(await world.call("DescribeLogs", *metadata, bearer(OTHER_TEXT)), Unauthenticated)
    assert isinstance(await world.call("Metadata", *metadata), Unauthenticated), "everybody may ask for it, with a key"


@pytest.mark.parametrize("mode", [Mode.OPEN, Mode.PERMISSIVE])
@pytest.mark.parametrize("metadata", NOTHING_VALID.values(), ids=NOTHING_VALID)
async def test_where_it_is_not_closed_they_are_anonymous(world: World, mode: Mode, metadata: Any) -> None:
    world.mode = mode
    world.told()
    assert await world.call("ListOffsets", *metadata) is None
    assert world.seen[0][:2] == ("ListOffsets", "User:ANONYMOUS")
    seen = world.access.control.report()
    assert [one.count for one in seen.refusals.values()] == [1] * (mode is Mode.PERMISSIVE)
    assert [one.wrong for one in seen.strangers] == ["authorization" in dict(metadata)] * (mode is Mode.PERMISSIVE)


@pytest.mark.parametrize("mode", [Mode.OPEN, Mode.PERMISSIVE])
async def test_who_comes_in_plain_text_to_who_speaks_tls_too_is_seen(world: World, mode: Mode) -> None:
    world.mode = mode
    world.told()
    world.access.nodes._also_plain = True  # as of a process with certificates, while its cluster is moved to TLS
    assert await world.call("Metadata", bearer(KEY_TEXT)) is None
    seen = world.access.control.report().strangers
    assert [(one.wrong, one.plain) for one in seen] == [(False, True)] * (mode is Mode.PERMISSIVE)


async def test_who_has_heard_no_controller_for_long_lets_nobody_in_anew(world: World) -> None:
    access, heard = world.access, world.clock.monotonic_ms()
    access.heard_ms = lambda: heard
    shown = access.authenticate(KEY_TEXT, "10.0.0.1")
    await world.clock.advance(1_001)
    assert access.authenticate(KEY_TEXT, "10.0.0.1") == shown, "off"
    access.stale_ms_max = 1_000
    for bearer in (KEY_TEXT, None):
        with pytest.raises(MetadataUnavailable, match=r"no controller since 2023-11-14T22:13.*Z.*access_stale_ms_max"):
            access.authenticate(bearer, "10.0.0.1")
    assert access.authenticate(KEY_TEXT, "10.0.0.1", anew=False) == shown, "its stream runs"
    refused = await world.call("Metadata", ME)
    assert isinstance(refused, MetadataUnavailable)
    heard = world.clock.monotonic_ms() - 1_000
    assert access.authenticate(KEY_TEXT, "10.0.0.1") == shown
    await world.clock.advance(1)
    access.heard_ms = lambda: None
    assert access.authenticate(KEY_TEXT, "10.0.0.1") == shown, "where none has to be heard"
    access.heard_ms = lambda: heard
    world.mode = Mode.PERMISSIVE
    world.told()
    assert await world.call("Metadata", ME) is None


async def test_who_has_a_key_is_known_and_gets_what_rules_allow(world: World) -> None:
    assert await world.call("Metadata", ME) is None
    assert world.seen == [("Metadata", "User:alice", KEY_TEXT)]
    refused = await world.call("ListOffsets", ME)
    assert isinstance(refused, ClusterAuthorizationFailed)
    asked = Question(Caller(ALICE, host="127.0.0.1"), Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    id = refusal_id(asked)
    assert str(refused) == (
        f"User:alice may not DESCRIBE CLUSTER (refusal {id}); who may change rules allows it with: headrace access "
        "allow User:alice describe cluster kafka-cluster"
    )
    world.grant(allow(ResourceType.CLUSTER, literal(CLUSTER_NAME), Operation.DESCRIBE))
    assert await world.call("ListOffsets", ME) is None
    world.grant(deny(ResourceType.CLUSTER, literal(CLUSTER_NAME), Operation.DESCRIBE))
    refused = await world.call("ListOffsets", ME)
    assert str(refused) == f"User:alice may not DESCRIBE CLUSTER (refusal {id}): a rule denies it"
    assert [one[0] for one in world.seen] == ["Metadata", "ListOffsets"]


async def test_a_request_is_refused_whole_where_one_of_its_names_is(world: World) -> None:
    world.grant(allow(ResourceType.TOPIC, literal("1"), Operation.DELETE))
    both = pb.DeleteRecordsRequest(partitions=[pb.DeleteRecordsPartition(partition=n) for n in (1, 2)])
    through = (*node(Role.ADMIN), (FORWARDED_KEY, KEY_TEXT.encode()))
    assert isinstance(await world.call("DeleteRecords", *through, request=both), TopicAuthorizationFailed)
    assert isinstance(await world.call("DeleteRecords", ME, request=both), ClusterAuthorizationFailed), "nodes alone"
    assert not world.seen
    del both.partitions[1]
    assert await world.call("DeleteRecords", *through, request=both) is None


async def test_a_right_anywhere_is_enough_where_the_name_does_not_matter(world: World) -> None:
    world.grant(allow(ResourceType.TOPIC, literal("1"), Operation.READ))
    assert isinstance(await world.call("InitProducerId", ME), TopicAuthorizationFailed)
    assert not world.seen
    world.grant(allow(ResourceType.TOPIC, literal("1"), Operation.WRITE))
    assert await world.call("InitProducerId", ME) is None
    assert isinstance(await world.call("InitProducerId", *node(Role.ADMIN)), TopicAuthorizationFailed)
    assert await world.call("InitProducerId", *node(Role.COORDINATOR)) is None


async def test_what_a_node_does_of_itself_it_does_not_do_for_others(world: World) -> None:
    forwarded = (*node(Role.ADMIN), (FORWARDED_KEY, KEY_TEXT.encode()))
    for who in ([ME], node(Role.ADMIN), forwarded, (*node(Role.ADMIN), ME)):
        assert isinstance(await world.call("WriteTxnMarkers", *who), ClusterAuthorizationFailed)
    assert not world.seen
    assert await world.call("WriteTxnMarkers", *node(Role.COORDINATOR)) is None
    world.grant(allow(ResourceType.CLUSTER, literal(CLUSTER_NAME), Operation.ALTER))
    assert await world.call("WriteTxnMarkers", *forwarded) is None
    assert isinstance(await world.call("WriteTxnMarkers", ME), ClusterAuthorizationFailed), "nodes alone"


async def test_a_key_gives_no_more_than_its_scope(world: World) -> None:
    on_cluster_ = allow(ResourceType.CLUSTER, literal(CLUSTER_NAME), Operation.DESCRIBE)
    world.keys = [key_of(KEY_TEXT, scope=scope_of([allow(ResourceType.TOPIC, literal("1"), Operation.READ)]))]
    world.grant(on_cluster_)
    assert str(await world.call("ListOffsets", ME)).endswith(": its key is not for that")


async def test_an_operation_without_a_row_is_refused_in_every_mode(world: World) -> None:
    for world.mode in Mode:
        world.told()
        assert isinstance(await world.call("Identify", *node(Role.CONTROLLER)), ClusterAuthorizationFailed)
    assert not world.seen


async def test_what_nodes_ask_for_themselves_no_key_opens(world: World) -> None:
    assert isinstance(await world.call("DescribeLogs", ME), ClusterAuthorizationFailed)
    assert await world.call("DescribeLogs", *node(Role.ADMIN)) is None
    world.rules = replace(world.rules, generation=2, super_users=frozenset({ALICE}))
    world.told()
    assert isinstance(await world.call("DescribeLogs", ME), ClusterAuthorizationFailed)


async def test_an_admin_node_asks_for_who_it_says_and_no_other_node_does(world: World) -> None:
    forwarded = (FORWARDED_KEY, KEY_TEXT.encode())
    assert await world.call("Metadata", *node(Role.ADMIN), forwarded) is None
    assert await world.call("Metadata", *node(Role.BROKER), forwarded) is None
    assert await world.call("Metadata", *node(Role.ADMIN)) is None
    assert world.seen == [
        ("Metadata", "User:alice", KEY_TEXT),
        ("Metadata", "Node:broker-1", None),
        ("Metadata", "Node:admin-1", None),
    ]
    assert isinstance(await world.call("ListOffsets", *node(Role.ADMIN), forwarded), ClusterAuthorizationFailed)
    assert await world.call("ListOffsets", *node(Role.ADMIN)) is None, "it may look for itself"
    gone = (FORWARDED_KEY, OTHER_TEXT.encode())
    assert isinstance(await world.call("Metadata", *node(Role.ADMIN), gone), Unauthenticated)
    assert isinstance(await world.call("Metadata", ("headrace-node", "admin-1"), forwarded), Unauthenticated)


async def test_rules_for_an_address_mean_that_of_who_asks_an_admin_node(world: World) -> None:
    described = literal(CLUSTER_NAME), Operation.DESCRIBE
    forwarded = (*node(Role.ADMIN), (FORWARDED_KEY, KEY_TEXT.encode()))
    here, there = (FORWARDED_HOST_KEY, "10.0.0.1"), (FORWARDED_HOST_KEY, "10.0.0.2")
    world.grant(allow(ResourceType.CLUSTER, *described, host="10.0.0.1"))
    assert await world.call("ListOffsets", *forwarded, here) is None
    for elsewhere in ([there], [(FORWARDED_HOST_KEY, "no address")], []):
        assert isinstance(await world.call("ListOffsets", *forwarded, *elsewhere), ClusterAuthorizationFailed)
    world.grant(allow(ResourceType.CLUSTER, *described), deny(ResourceType.CLUSTER, *described, host="10.0.0.1"))
    assert isinstance(await world.call("ListOffsets", *forwarded, here), ClusterAuthorizationFailed)
    assert await world.call("ListOffsets", *forwarded, there) is None
    assert await world.call("ListOffsets", ME, here) is None, "who is no node says nothing of it"


async def test_before_there_is_an_image_clients_wait_and_nodes_do_not(world: World) -> None:
    world.image = EMPTY_IMAGE
    assert isinstance(await world.call("Metadata", ME), MetadataUnavailable)
    assert isinstance(await world.call("Metadata"), MetadataUnavailable)
    assert await world.call("DescribeLogs", *node(Role.ADMIN)) is None


async def test_a_key_that_is_over_or_whose_owner_is_blocked_is_refused(world: World) -> None:
    world.keys = [key_of(KEY_TEXT, expires_ms=world.clock.now_ms() + 1_000)]
    world.told()
    assert await world.call("Metadata", ME) is None
    await world.clock.advance(1_000)
    assert isinstance(await world.call("Metadata", ME), CredentialsExpired)
    world.keys = [key_of(KEY_TEXT, owner=BOB)]
    world.rules = replace(world.rules, generation=2, blocked=frozenset({BOB}))
    world.told()
    assert isinstance(await world.call("Metadata", ME), CredentialsRevoked)


async def test_who_is_remembered_is_known_by_nothing_less(world: World) -> None:
    """The same credential again and again, then one that differs in a letter, and one that was taken back."""
    for _ in range(3):
        assert await world.call("Metadata", ME) is None
    assert isinstance(await world.call("Metadata", bearer(KEY_TEXT[:-1])), Unauthenticated)
    world.keys.clear()
    world.told()
    assert isinstance(await world.call("Metadata", ME), Unauthenticated)


async def test_health_is_for_everybody(world: World) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    async with open_channel(world.address, own_connection=True) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest())
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


class Streams:
    """Streams of a caller that are open."""

    def __init__(self, world: World, stack: AsyncExitStack) -> None:
        self._world = world
        self._stack = stack

    async def open(self, *metadata: tuple[str, str | bytes]) -> Any:
        channel = open_channel(self._world.address, self._world.shows(*metadata), own_connection=True)
        await self._stack.enter_async_context(channel)
        stub: Any = broker_pb2_grpc.BrokerStub(channel)
        stream = stub.Produce()
        await self.goes_on(stream)
        return stream

    async def goes_on(self, stream: Any) -> None:
        await stream.write(pb.ProduceRequest())
        assert isinstance(await stream.read(), pb.ProduceResponse)

    async def ends(self, stream: Any) -> HeadraceError:
        async with asyncio.timeout(20):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await stream.read()
        return error_from_rpc(raised.value)


@pytest.fixture
async def streams(world: World) -> AsyncIterator[Streams]:
    async with AsyncExitStack() as stack:
        yield Streams(world, stack)


async def test_what_an_admin_node_asks_for_somebody_elsewhere_goes_on_when_others_lose_theirs(
    world: World, streams: Streams
) -> None:
    world.keys.append(key_of(OTHER_TEXT, owner=BOB))
    world.told()
    asked_for = (FORWARDED_KEY, KEY_TEXT.encode()), (FORWARDED_HOST_KEY, "10.0.0.7")
    stream = await streams.open(*node(Role.ADMIN), *asked_for)
    world.keys.pop()
    world.told()
    await streams.goes_on(stream)


async def test_streams_end_when_their_key_is_deleted_and_others_go_on(world: World, streams: Streams) -> None:
    world.keys.append(key_of(OTHER_TEXT, owner=BOB))
    world.told()
    mine, other, of_node = [await streams.open(*who) for who in ([ME], [bearer(OTHER_TEXT)], node(Role.COORDINATOR))]
    del world.keys[0]
    world.told()
    error = await streams.ends(mine)
    assert isinstance(error, CredentialsRevoked)
    assert "was deleted" in str(error)
    await streams.goes_on(other)
    await streams.goes_on(of_node)
    assert len(world.ended) == 1
    assert isinstance(world.ended[0], asyncio.CancelledError)


@pytest.mark.parametrize("answers", [1, 2])
async def test_a_stream_ends_while_an_answer_is_on_its_way(world: World, answers: int) -> None:
    left = iter(range(answers - 1, -1, -1))

    def block() -> None:
        if next(left) == 0:
            world.rules = replace(world.rules, generation=2, blocked=frozenset({ALICE}))
            world.told()

    world.before_it_answers = block
    async with open_channel(world.address, Security(lambda _: [ME]), own_connection=True) as channel:
        stub: Any = broker_pb2_grpc.BrokerStub(channel)
        stream = stub.Produce()
        for _ in range(answers):
            await stream.write(pb.ProduceRequest())
        async with asyncio.timeout(5):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                _ = [answer async for answer in stream]
    assert isinstance(error_from_rpc(raised.value), CredentialsRevoked)


async def test_streams_end_when_their_owner_is_blocked(world: World, streams: Streams) -> None:
    stream = await streams.open(ME)
    world.rules = replace(world.rules, generation=2, blocked=frozenset({ALICE}))
    world.told()
    assert isinstance(await streams.ends(stream), CredentialsRevoked)


async def test_streams_end_when_their_key_expires(world: World, streams: Streams) -> None:
    world.keys = [key_of(KEY_TEXT, expires_ms=world.clock.now_ms() + 50)]
    world.told()
    stream = await streams.open(ME)
    await world.clock.advance(50)
    assert isinstance(await streams.ends(stream), CredentialsExpired)


async def test_streams_of_nobody_end_when_the_cluster_is_closed_and_those_with_a_key_go_on(
    world: World, streams: Streams
) -> None:
    world.mode = Mode.OPEN
    world.told()
    nobody, somebody = await streams.open(), await streams.open(ME)
    world.mode = Mode.PERMISSIVE
    world.told()
    await streams.goes_on(nobody)
    world.mode = Mode.CLOSED
    world.told()
    assert isinstance(await streams.ends(nobody), Unauthenticated)
    await streams.goes_on(somebody)


async def test_a_stream_whose_credential_was_not_known_yet_begins_again(world: World, streams: Streams) -> None:
    world.mode = Mode.PERMISSIVE
    world.told()
    stream = await streams.open(bearer(OTHER_TEXT))
    world.keys.append(key_of(OTHER_TEXT, owner=BOB))
    world.told()
    await streams.goes_on(stream)
    world.mode = Mode.CLOSED
    world.told()
    assert "connect again" in str(await streams.ends(stream))


async def test_where_it_is_not_closed_no_stream_ends(world: World, streams: Streams) -> None:
    world.mode = Mode.PERMISSIVE
    world.told()
    stream = await streams.open(ME)
    world.keys.clear()
    world.told()
    await streams.goes_on(stream)


async def test_what_changes_for_others_ends_nothing(world: World, streams: Streams) -> None:
    stream = await streams.open(ME)
    for _ in range(3):
        world.grant(allow(ResourceType.TOPIC, literal("1"), Operation.READ))
        await streams.goes_on(stream)


async def test_a_stream_that_its_caller_ends_leaves_nothing(world: World, streams: Streams) -> None:
    stream = await streams.open(ME)
    stream.cancel()
    async with asyncio.timeout(20):
        while not world.ended:
            await asyncio.sleep(0)
        while world.access.streams:
            await asyncio.sleep(0)


async def test_of_who_is_refused_no_request_is_read(world: World) -> None:
    """A call that sends no request, although it is of an operation that takes one, is answered all the same."""
    async with open_channel(world.address, own_connection=True) as channel:
        call: Any = channel.stream_stream("/headrace.v1.Broker/Metadata")
        async with asyncio.timeout(20):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call().read()
    assert isinstance(error_from_rpc(raised.value), Unauthenticated)


async def test_a_server_that_nodes_do_not_come_to_believes_none(world: World) -> None:
    servicers = [(broker_pb2_grpc.add_BrokerServicer_to_server, Servicer(world))]
    gate = AccessGate(world.access, TABLE, takes_nodes=False)
    async with GrpcService.open(ServerConfig(drain_ms_max=0), servicers, interceptors=[gate]) as running:
        world.address = f"127.0.0.1:{running.port}"
        for operation in ("Metadata", "DescribeLogs"):
            assert isinstance(await world.call(operation, *node(Role.ADMIN)), Unauthenticated)
        assert await world.call("Metadata", *node(Role.ADMIN), ME) is None
    assert world.seen == [("Metadata", "User:alice", KEY_TEXT)]


async def test_the_cluster_that_cannot_tell_nodes_is_open_to_none_of_what_they_ask(world: World) -> None:
    nodes = NodeGate(None, lambda: world.image)
    access = Access(lambda: world.image, nodes, world.clock)
    servicers = [(broker_pb2_grpc.add_BrokerServicer_to_server, Servicer(world))]
    gates = [AccessGate(access, TABLE, takes_nodes=True), nodes]
    async with GrpcService.open(ServerConfig(drain_ms_max=0), servicers, interceptors=gates) as running:
        world.address = f"127.0.0.1:{running.port}"
        assert isinstance(await world.call("DescribeLogs", ME), ClusterAuthorizationFailed)
        world.mode = Mode.PERMISSIVE
        world.told()
        assert await world.call("DescribeLogs") is None


async def test_it_is_made_before_its_process_has_an_image() -> None:
    def image() -> ClusterImage:
        raise AssertionError("nobody has asked for one yet")

    assert not Access(image, NodeGate(), FakeClock()).streams


def test_a_node_that_cannot_read_the_rows_does_not_say_that_keys_are_gone() -> None:
    id, row = write_key(key_of(KEY_TEXT))
    rows = {STATE: write_state(Mode.CLOSED, 1), id: row, "roles/of-later": b'{"v":2}'}
    with pytest.raises(MetadataUnavailable, match=r"roles/of-later.*run the newer version"):
        authenticate(Reader().read(rows), KEY_TEXT, "", 1, Verified())
    del rows["roles/of-later"]
    assert authenticate(Reader().read(rows), KEY_TEXT, "", 1, Verified()).caller.principal == ALICE
