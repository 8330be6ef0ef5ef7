"""Who would be cut off by closing the cluster: gathered from all nodes, and asked before it is closed."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
from libs.common.tests.kit.access import allow
from libs.common.tests.kit.closed import Rows, bearing, key_of, key_text, user
from services.admin.tests.kit.behind import Front, opened, serving

from headrace_common.core.access.changes import Remove, Rule
from headrace_common.core.access.grants import Grant
from headrace_common.core.access.refusals import Question, refusal_id
from headrace_common.core.access.resources import CLUSTER_NAME, Operation, ResourceType, literal
from headrace_common.core.access.rows import Mode
from headrace_common.core.access.state import Caller
from headrace_common.core.errors import Conflict, Denied, ErrorCode, NotFound, Rejected, error_for
from headrace_common.rpc.channels import Security, open_channel
from headrace_common.rpc.convert_access import change_to_proto
from headrace_common.rpc.status import error_from_rpc
from headrace_common.runtime.clock import SystemClock
from headrace_proto.v1 import access_pb2 as pb
from headrace_proto.v1 import controller_pb2
from headrace_proto.v1.admin_pb2_grpc import AdminStub

NODES = ("Broker", "Controller", "Coordinator")
NOW = int(SystemClock().now_ms())
MINUTE = 60_000
DAY = 24 * 60 * MINUTE
OLD = NOW - 2 * DAY
SEES = allow(ResourceType.PRINCIPAL, literal("User:bob"), Operation.DESCRIBE)


def rows(mode: Mode, *alice: Grant) -> Rows:
    return Rows(mode, {user("alice"): frozenset(alice)} if alice else {}, keys=[key_of("alice"), key_of("bob")])


def seen(ago_ms: int = 0) -> pb.SeenTimes:
    return pb.SeenTimes(first_ms=NOW - ago_ms, last_ms=NOW - ago_ms, count=1)


def stranger(host: str, ago_ms: int = 0) -> pb.SeenStranger:
    return pb.SeenStranger(host=host, seen=seen(ago_ms))


def refusal(principal: str, name: str = "t", ago_ms: int = 0) -> pb.SeenRefusal:
    return pb.SeenRefusal(
        principal=principal, host="10.0.0.9", operation="READ", type="TOPIC", name=name, seen=seen(ago_ms)
    )


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    async with opened(rows(Mode.PERMISSIVE)) as made:
        for service in NODES:
            made.behind.answers[f"{service}/Observed"] = lambda _: pb.ObservedResponse(since_ms=OLD)
        yield made


@pytest.fixture
async def at(front: Front) -> AsyncIterator[str]:
    async with serving(front) as address:
        yield address


async def ask(at: str, who: str | None, operation: str, request: Any) -> Any:
    """The answer, or the error."""
    shown = Security(lambda _: tuple(bearing(who).items()))
    async with open_channel(at, shown, own_connection=True) as channel:
        try:
            return await getattr(AdminStub(channel), operation)(request, timeout=20)
        except grpc.aio.AioRpcError as error:
            return error_from_rpc(error)


def tells(front: Front, service: str, **fields: Any) -> None:
    answer = pb.ObservedResponse(**{"since_ms": OLD, **fields})
    front.behind.answers[f"{service}/Observed"] = lambda _: answer


async def test_it_is_gathered_from_every_node(front: Front, at: str) -> None:
    tells(front, "Broker", strangers=[stranger("10.0.0.1")], refusals=[refusal("User:bob")])
    tells(front, "Coordinator", strangers=[stranger("10.0.0.1", 5)])
    tells(front, "Controller", refusals=[refusal("User:bob", "old", 2 * DAY)], since_ms=OLD + 7)
    told = await ask(at, "alice", "Observed", pb.ObservedRequest())
    assert [(one.host, one.seen.count) for one in told.strangers] == [("10.0.0.1", 2)]
    assert [(one.principal, one.name, one.remedy) for one in told.refusals] == [
        ("User:bob", "t", "headrace access allow User:bob read topic t")
    ]
    assert {one.node for one in told.nodes} == {"admin-1", "broker-1", "controller-1", "coordinator-1"}
    assert told.mode == "permissive"
    assert told.since_ms >= NOW - MINUTE, "this admin process has just begun"
    assert {name for name, of in front.behind.whose().items() if of == {None}} == {f"{one}/Observed" for one in NODES}


async def test_what_this_process_saw_itself_is_of_it(front: Front, at: str) -> None:
    await ask(at, None, "WhoAmI", pb.WhoAmIRequest())
    told = await ask(at, "alice", "Observed", pb.ObservedRequest())
    assert [one.host for one in told.strangers] == ["127.0.0.1"]
    here = await ask(at, "alice", "Observed", pb.ObservedRequest(here=True))
    assert [one.host for one in here.strangers] == ["127.0.0.1"]
    assert not here.nodes


async def test_a_closed_cluster_tells_each_what_it_may_know(front: Front, at: str) -> None:
    front.told(rows(Mode.CLOSED, SEES))
    uses = [
        pb.SeenUse(principal=who, operation="READ", type="TOPIC", name="t", seen=seen())
        for who in ("User:bob", "User:carol")
    ]
    tells(front, "Broker", uses=uses, strangers=[stranger("10.0.0.1")])
    told = await ask(at, "alice", "Observed", pb.ObservedRequest())
    assert ([one.principal for one in told.uses], list(told.strangers)) == (["User:bob"], [])
    assert not (await ask(at, "bob", "Observed", pb.ObservedRequest())).refusals


async def test_a_node_that_is_silent_is_named(front: Front, at: str) -> None:
    def fail(_: Any) -> Any:
        raise error_for(ErrorCode.UNKNOWN_SERVER_ERROR, "broken")

    front.behind.answers["Broker/Observed"] = fail
    told = await ask(at, "alice", "Observed", pb.ObservedRequest())
    [silent] = [one for one in told.nodes if one.fault]
    assert silent.node == "broker-1"
    refused = await closing(front, at, within_ms=1, accept_loss_of=["User:ANONYMOUS"])
    assert "broker-1 cannot be asked" in str(refused)


@pytest.mark.parametrize("request_", [pb.ObservedRequest(within_ms=DAY + 1), pb.ObservedRequest(limit=10_001)])
async def test_what_nobody_remembers_is_refused(front: Front, at: str, request_: Any) -> None:
    assert isinstance(await ask(at, "alice", "Observed", request_), Rejected)


REFUSED = pb.RefusedAccess(
    principal="User:bob", operation="READ", type="TOPIC", name="t", seen=seen(), reason="r", sources=["s"], remedy="l"
)
ID = refusal_id(Question(Caller(user("bob"), host="127.0.0.1"), Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME))


def remembers(front: Front, service: str, id: str) -> None:
    def answer(request: pb.ObservedRequest) -> pb.ObservedResponse:
        return pb.ObservedResponse(refused=REFUSED if request.refusal == id else None)

    front.behind.answers[f"{service}/Observed"] = answer


async def test_a_refusal_is_looked_for_at_every_node(front: Front, at: str) -> None:
    front.told(rows(Mode.CLOSED, SEES))
    refused = await ask(at, "bob", "ElectLeaders", controller_pb2.ElectLeadersRequest())
    assert f"(refusal {ID})" in str(refused)
    remembers(front, "Broker", ID)
    remembers(front, "Coordinator", "another one")
    told = await ask(at, "alice", "WhyRefused", pb.WhyRefusedRequest(id=f" {ID.upper()} "))
    own, of_broker = told.refusals
    assert (own.node, own.principal, own.host) == ("admin-1", "User:bob", "127.0.0.1")
    assert (own.operation, own.type, own.reason, own.allowed) == ("ALTER", "CLUSTER", "nothing allows it", False)
    assert own.remedy == "headrace access allow User:bob alter cluster kafka-cluster"
    assert of_broker == pb.RefusedAccess(node="broker-1", **{name.name: value for name, value in REFUSED.ListFields()})
    assert [(one.node, one.fault) for one in told.nodes] == [
        (node, "") for node in ("admin-1", "broker-1", "controller-1", "coordinator-1")
    ]
    here = await ask(at, "alice", "Observed", pb.ObservedRequest(here=True, refusal=ID))
    assert here.refused.principal == "User:bob"


async def test_a_refusal_is_told_to_who_may_know_of_whom_it_was(front: Front, at: str) -> None:
    other = allow(ResourceType.PRINCIPAL, literal("User:carol"), Operation.DESCRIBE)
    front.told(rows(Mode.CLOSED, other))
    await ask(at, "bob", "ElectLeaders", controller_pb2.ElectLeadersRequest())
    remembers(front, "Broker", ID)
    known = await ask(at, "alice", "WhyRefused", pb.WhyRefusedRequest(id=ID))
    unknown = await ask(at, "alice", "WhyRefused", pb.WhyRefusedRequest(id="0" * 10))
    assert isinstance(known, NotFound)
    assert str(known) == str(unknown).replace("0" * 10, ID)
    assert not (await ask(at, "alice", "Observed", pb.ObservedRequest(here=True, refusal=ID))).HasField("refused")
    assert isinstance(await ask(at, "bob", "WhyRefused", pb.WhyRefusedRequest(id=ID)), Denied)
    assert isinstance(await ask(at, "alice", "WhyRefused", pb.WhyRefusedRequest(id="x")), Rejected)


async def test_a_node_that_cannot_be_asked_of_a_refusal_is_named(front: Front, at: str) -> None:
    def fail(_: Any) -> Any:
        raise error_for(ErrorCode.UNKNOWN_SERVER_ERROR, "broken")

    front.behind.answers["Controller/Observed"] = fail
    nothing = await ask(at, "alice", "WhyRefused", pb.WhyRefusedRequest(id=ID))
    assert "controller-1 cannot be asked" in str(nothing)
    remembers(front, "Broker", ID)
    told = await ask(at, "alice", "WhyRefused", pb.WhyRefusedRequest(id=ID))
    assert [one.node for one in told.nodes if one.fault] == ["controller-1"]


async def closing(front: Front, at: str, **fields: Any) -> Any:
    """The error; None: it was passed on."""
    front.behind.asked.clear()
    answer = await ask(at, "alice", "AlterAccess", pb.AlterAccessRequest(mode="closed", **fields))
    real = [one for one in front.behind.asked if one.operation == "Controller/AlterAccess"]
    done = [one for one in real if not one.request.validate_only]
    assert bool(done) == (not isinstance(answer, Exception))
    assert {one.bearer for one in real} == {key_text("alice")}
    return answer if isinstance(answer, Exception) else None


async def test_it_is_not_closed_while_somebody_would_be_cut_off(front: Front, at: str) -> None:
    tells(front, "Broker", strangers=[stranger("10.0.0.1")], refusals=[refusal("User:bob")])
    refused = await closing(front, at)
    assert isinstance(refused, Conflict)
    assert "a caller without a credential from 10.0.0.1, User:bob" in str(refused)
    assert "--accept-loss-of" in str(refused)
    assert "User:bob" in str(await closing(front, at, accept_loss_of=["10.0.0.1"]))
    assert "10.0.0.1" in str(await closing(front, at, accept_loss_of=["User:bob"]))
    both = await closing(front, at, accept_loss_of=["10.0.0.1", "User:bob"])
    assert "has looked for" in str(both), "whom it would cut off is no longer why"
    assert await closing(front, at, accept_loss=True) is None


async def test_it_is_not_closed_before_all_have_looked_so_long(front: Front, at: str) -> None:
    refused = await closing(front, at)
    assert re.search(r"admin-1 has looked for \d+ seconds? who calls, not for 1440 minutes", str(refused))
    assert await closing(front, at, within_ms=1) is None
    front.behind.answers["Coordinator/Observed"] = lambda _: pb.ObservedResponse()
    assert "coordinator-1 has not looked" in str(await closing(front, at, within_ms=1))


async def test_what_had_no_room_counts(front: Front, at: str) -> None:
    tells(front, "Controller", more=True)
    assert "others that nodes had no room for" in str(await closing(front, at, within_ms=1))


async def test_a_closed_cluster_stays_so_without_a_question(front: Front, at: str) -> None:
    front.told(rows(Mode.CLOSED))
    tells(front, "Broker", refusals=[refusal("User:bob")])
    assert await closing(front, at) is None


async def test_a_dry_run_says_what_of_the_last_day_would_be_refused(front: Front, at: str) -> None:
    front.told(rows(Mode.CLOSED, SEES, allow(ResourceType.PRINCIPAL, literal("User:alice"), Operation.DESCRIBE)))
    uses = [
        pb.SeenUse(principal=who, operation="DESCRIBE", type="PRINCIPAL", name="User:bob", seen=seen())
        for who in ("User:alice", "User:carol")
    ]
    tells(front, "Broker", uses=uses)
    front.behind.answers["Coordinator/Observed"] = lambda _: pb.ObservedResponse()
    front.behind.answers["Controller/AlterAccess"] = lambda _: pb.AlterAccessResponse(generation=4)
    change = change_to_proto(Remove(Rule(user("alice"), SEES)))
    asked = pb.AlterAccessRequest(changes=[change], validate_only=True)
    told = await ask(at, "alice", "AlterAccess", asked)
    assert told.generation == 4
    assert [(one.principal, one.name, one.host) for one in told.refuses] == [("User:alice", "User:bob", "")]
    assert not told.refuses_more
    assert {one.node: one.HasField("since_ms") for one in told.nodes}["coordinator-1"] is False
    front.behind.asked.clear()
    asked.validate_only = False
    assert not (await ask(at, "alice", "AlterAccess", asked)).nodes
    assert {one.operation for one in front.behind.asked} == {"Controller/AlterAccess"}


async def test_other_changes_ask_nobody(front: Front, at: str) -> None:
    await ask(at, "alice", "AlterAccess", pb.AlterAccessRequest(mode="permissive"))
    assert {one.operation for one in front.behind.asked} == {"Controller/AlterAccess"}


@pytest.mark.parametrize(
    ("mode", "who", "bearer"),
    [
        (Mode.OPEN, None, None),
        (Mode.PERMISSIVE, None, ""),
        (Mode.PERMISSIVE, "alice", key_text("alice")),
    ],
)
async def test_who_has_shown_nothing_counts_as_nobody_and_not_as_this_node(
    front: Front, at: str, mode: Mode, who: str | None, bearer: str | None
) -> None:
    front.told(rows(mode))
    await ask(at, who, "DeleteTopics", controller_pb2.DeleteTopicsRequest(names=["t"]))
    assert front.behind.whose() == {"Controller/DeleteTopics": {bearer}}
