"""What the gates of a service tell its audit, over real connections: refusals, credentials, changes and their ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from libs.common.tests.kit import audit as kit
from libs.common.tests.kit.access import ALICE, allow
from libs.common.tests.runtime.test_access_gate import KEY_TEXT, ME, OTHER_TEXT, World, bearer, node, serving

from headrace_common.core.access.authentication import node_shown
from headrace_common.core.access.grants import Effect
from headrace_common.core.access.resources import CLUSTER_NAME, Operation, ResourceType, literal
from headrace_common.core.access.rows import Mode
from headrace_common.core.access.state import Caller
from headrace_common.core.audit.chain import Start
from headrace_common.core.audit.events import Event, Resource
from headrace_common.core.audit.journal import Journal
from headrace_common.core.audit.kinds import Kind
from headrace_common.core.errors import AuditUnavailable, ClusterAuthorizationFailed, ErrorCode, Unauthenticated
from headrace_common.core.ids import NodeId
from headrace_common.core.image import NodeKey, Role
from headrace_common.rpc.node_gate import FORWARDED_HOST_KEY, FORWARDED_KEY
from headrace_common.runtime.audit import Audit, StartKey
from headrace_proto.v1 import broker_pb2 as pb

START = Start(kit.BROKER, "one")
THROUGH = (*node(Role.ADMIN), (FORWARDED_KEY, KEY_TEXT.encode()), (FORWARDED_HOST_KEY, "10.0.0.7"))
"""As an admin node asks for alice."""
PLACE = f"{(b't' * 16).hex()}/2"


class Written(Audit):
    """All events, in the order in which the gates told them; changes are refused while it is broken."""

    def __init__(self, world: World) -> None:
        journal = Journal(START, kit.key_of(START).sign)
        super().__init__(journal, StartKey("one", kit.public_key_of(START)), [], world.clock)
        self.begin()
        self.told: list[Event] = []
        self.broken = False
        self.seen_before: list[int] = []
        self._world = world

    def note(self, event: Event) -> None:
        self.told.append(event)

    async def record(self, *events: Event) -> None:
        self.seen_before.append(len(self._world.seen))
        if self.broken:
            raise AuditUnavailable
        self.told += events

    async def tell(self, *events: Event) -> None:
        self.seen_before.append(len(self._world.seen))
        self.told += events


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with serving(World()) as world:
        yield world


@pytest.fixture
def audit(world: World) -> Written:
    audit = Written(world)
    world.access.auditing.audit = audit
    return audit


def trim() -> pb.DeleteRecordsRequest:
    return pb.DeleteRecordsRequest(partitions=[pb.DeleteRecordsPartition(topic_id=b"t" * 16, partition=2, offset=7)])


def told(audit: Written, *kinds: Kind) -> list[tuple[Any, ...]]:
    return [
        (one.kind, one.actor.principal, one.rpc, None if one.status is None else one.status.name)
        for one in audit.told
        if not kinds or one.kind in kinds
    ]


async def test_a_change_is_told_before_it_is_made_and_after(world: World, audit: Written) -> None:
    world.grant(allow(ResourceType.TOPIC, literal("2"), Operation.DELETE))
    assert await world.call("DeleteRecords", *THROUGH, request=trim()) is None
    changes = [one for one in audit.told if one.kind is Kind.ADMINISTERED]
    assert [None if one.status is None else one.status.name for one in changes] == [None, "NONE"]
    assert audit.seen_before == [0, 1], "the handler ran between the two"
    assert {(one.actor.principal, one.actor.credential) for one in changes} == {("User:alice", KEY_TEXT.split("_")[1])}
    begun = changes[0]
    assert begun.resource is not None
    assert begun.change is not None
    assert (begun.operation, begun.resource.type, begun.resource.name) == (
        Operation.DELETE,
        ResourceType.TOPIC,
        PLACE,
    )
    assert begun.change.after["offset"] == "7"
    assert begun.source == "10.0.0.7"


async def test_what_cannot_be_told_is_not_done(world: World, audit: Written) -> None:
    world.grant(allow(ResourceType.TOPIC, literal("2"), Operation.DELETE))
    audit.broken = True
    assert isinstance(await world.call("DeleteRecords", *THROUGH, request=trim()), AuditUnavailable)
    assert world.seen == []
    assert told(audit, Kind.ADMINISTERED) == [], "nothing was chained, so it has no end"


async def test_what_only_looks_is_done_without_it(world: World, audit: Written) -> None:
    audit.broken = True
    assert await world.call("Metadata", ME) is None
    assert [kind for kind, *_ in told(audit)] == [Kind.SESSION_BEGUN]


async def test_who_is_refused_is_told_with_what_it_asked_for(world: World, audit: Written) -> None:
    assert isinstance(await world.call("ListOffsets", ME), ClusterAuthorizationFailed)
    (event,) = [one for one in audit.told if one.kind is Kind.OPERATION_REFUSED]
    assert event.resource is not None
    assert (event.operation, event.resource.type, event.rpc) == (
        Operation.DESCRIBE,
        ResourceType.CLUSTER,
        "Broker/ListOffsets",
    )
    assert (event.actor.principal, event.status.name if event.status else None) == (
        "User:alice",
        "CLUSTER_AUTHORIZATION_FAILED",
    )
    assert world.seen == []


@pytest.mark.parametrize(
    ("metadata", "method"),
    [((), "nothing"), ((bearer(OTHER_TEXT),), "api_key"), ((bearer("eyJhbGciOiJub25lIn0.e30."),), "token")],
)
async def test_a_wrong_credential_is_told_without_it(
    world: World, audit: Written, metadata: Sequence[Any], method: str
) -> None:
    assert isinstance(await world.call("Metadata", *metadata), Unauthenticated)
    (event,) = audit.told
    assert (event.kind, event.actor.method.value, event.source, event.rpc) == (
        Kind.AUTHENTICATION_FAILED,
        method,
        "127.0.0.1",
        "Broker/Metadata",
    )
    assert event.actor.credential == (OTHER_TEXT.split("_")[1] if method == "api_key" else "")


async def test_who_comes_again_is_not_told_again(world: World, audit: Written) -> None:
    for _ in range(3):
        await world.call("Metadata", ME)
    assert told(audit) == [(Kind.SESSION_BEGUN, "User:alice", "", "NONE")]


async def test_who_passes_for_a_node_is_told(world: World, audit: Written) -> None:
    assert await world.call("DescribeLogs", ME, *node(Role.ADMIN, "wrong")) is not None
    assert await world.call("DescribeLogs", *node(Role.BROKER)) is not None
    assert told(audit, Kind.NODE_CLAIM_REFUSED) == [
        (Kind.NODE_CLAIM_REFUSED, "User:ANONYMOUS", "Broker/DescribeLogs", "CLUSTER_AUTHORIZATION_FAILED"),
        (Kind.NODE_CLAIM_REFUSED, "Node:broker-1", "Broker/DescribeLogs", "CLUSTER_AUTHORIZATION_FAILED"),
    ]


async def test_what_mode_permissive_lets_pass_is_told_as_what_would_be_refused(world: World, audit: Written) -> None:
    world.mode = Mode.PERMISSIVE
    world.told()
    assert await world.call("ListOffsets", ME) is None
    (event,) = [one for one in audit.told if one.kind is not Kind.SESSION_BEGUN]
    assert (event.kind, event.status, event.actor.principal, event.actor.method.value, event.rpc, event.operation) == (
        Kind.OPERATION_TOLERATED,
        ErrorCode.NONE,
        "User:alice",
        "api_key",
        "Broker/ListOffsets",
        Operation.DESCRIBE,
    )
    assert event.decision is not None
    assert event.decision.effect is Effect.DENY
    assert event.resource == Resource(ResourceType.CLUSTER, CLUSTER_NAME)
    world.grant(allow(ResourceType.CLUSTER, literal(CLUSTER_NAME), Operation.DESCRIBE))
    assert await world.call("ListOffsets", ME) is None
    assert len(told(audit, Kind.OPERATION_TOLERATED)) == 1, "a rule allows it now"


async def test_a_list_that_permissive_shows_whole_is_no_refusal(world: World, audit: Written) -> None:
    world.mode = Mode.PERMISSIVE
    world.told()
    assert world.access.control.shows(Caller(ALICE), Operation.DESCRIBE, ResourceType.TOPIC, "orders")
    assert audit.told == []


async def test_records_are_told_of_callers_and_not_of_nodes(world: World, audit: Written) -> None:
    auditing = world.access.auditing
    shown = world.access.authenticate(KEY_TEXT, "10.0.0.9")
    audit.told.clear()
    tell = auditing.record_teller(Kind.RECORDS_WRITTEN, shown, "Broker/Produce")
    assert tell is not None
    tell("orders")
    (event,) = audit.told
    assert (event.kind, event.actor.credential, event.source, event.rpc, event.operation, event.resource) == (
        Kind.RECORDS_WRITTEN,
        KEY_TEXT.split("_")[1],
        "10.0.0.9",
        "Broker/Produce",
        Operation.WRITE,
        Resource(ResourceType.TOPIC, "orders"),
    )
    assert auditing.record_teller(Kind.RECORDS_READ, node_shown(kit.BROKER), "Broker/Fetch") is None
    auditing.audit = None
    tell("orders")
    assert auditing.record_teller(Kind.RECORDS_READ, shown, "Broker/Fetch") is None
    assert len(audit.told) == 1


async def test_a_node_that_speaks_for_another_is_told(world: World, audit: Written) -> None:
    other = NodeKey(Role.BROKER, NodeId(2))
    with pytest.raises(ClusterAuthorizationFailed):
        world.access.nodes.hold(kit.BROKER, other)
    assert told(audit) == [(Kind.NODE_CLAIM_REFUSED, "Node:broker-1", "", "CLUSTER_AUTHORIZATION_FAILED")]


async def test_what_a_coordinator_ends_of_its_own_is_no_event(world: World, audit: Written) -> None:
    assert await world.call("WriteTxnMarkers", *node(Role.COORDINATOR)) is None
    assert audit.told == []


async def test_an_error_is_told_once_however_many_tell(world: World, audit: Written) -> None:
    error = ClusterAuthorizationFailed("no")
    for _ in range(2):
        world.access.auditing.refused(error, Caller(ALICE), None, "Broker/Fetch")
        world.access.auditing.claim_refused(error, None, "", "Broker/Fetch")
    assert told(audit) == [(Kind.OPERATION_REFUSED, "User:alice", "Broker/Fetch", "CLUSTER_AUTHORIZATION_FAILED")]


async def test_counts_of_nodes_are_told_once_a_minute_and_only_what_is_new(world: World, audit: Written) -> None:
    auditing, other = world.access.auditing, NodeKey(Role.ADMIN, NodeId(2))
    await world.clock.advance(1)

    def say(key: NodeKey, events: int, start: str = "s") -> list[dict[str, str]]:
        before = len(audit.told)
        auditing.counted(key, start, events)
        return [dict(one.change.after) for one in audit.told[before:] if one.change is not None]

    assert say(kit.BROKER, 3) == [{"broker-1 s": "3"}]
    assert say(kit.BROKER, 4) == []
    assert say(other, 1) == []
    await world.clock.advance(60_000)
    assert say(kit.BROKER, 4) == [{"broker-1 s": "4", "admin-2 s": "1"}]
    await world.clock.advance(60_000)
    assert say(kit.BROKER, 4) == [], "nothing is new"
    assert say(kit.BROKER, 1, "t") == [{"broker-1 t": "1"}]
    assert say(other, 1, "") == []


async def test_breakglass_is_told_when_it_begins_and_ends(world: World, audit: Written) -> None:
    for is_open in (False, True, True, False):
        world.access.auditing.breakglass("User:breakglass", is_open=is_open)
    changes = [one.change for one in audit.told if one.change is not None]
    assert [one.after["open"] for one in changes] == ["True", "False"]
