"""Whether somebody may, and tickets that say so to others: made for who may, worth nothing when that is taken back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from libs.common.tests.kit.access import allow, deny
from libs.common.tests.kit.closed import key_of, key_text, user
from services.broker.tests.kit.guarded import ALICE, NOTHING, ROOT, Guarded, Shows, guarded_broker, node

from headrace import aio
from headrace.ticket_types import AccessQuestion, TicketAudience
from headrace_common.core.access.client_certificates import ClientCertificate, write_certificate
from headrace_common.core.access.principal import Principal, PrincipalType
from headrace_common.core.access.resources import EVERY_NAME, Operation, ResourceType, literal
from headrace_common.core.access.rows import Mode
from headrace_common.core.access.tickets import LIFE_MS
from headrace_common.core.audit.events import Event, Resource
from headrace_common.core.audit.kinds import Kind
from headrace_common.core.errors import (
    AuditUnavailable,
    Denied,
    ErrorCode,
    HeadraceError,
    NetworkFailed,
    Rejected,
    Unauthenticated,
)
from headrace_common.core.image import Role
from headrace_common.core.secret import Secret
from headrace_common.rpc.node_gate import FORWARDED_CERTIFICATE_KEY, FORWARDED_KEY
from headrace_common.rpc.status import error_from_rpc
from headrace_common.runtime.clock import SystemClock
from headrace_proto.v1 import tickets_pb2 as pb
from headrace_proto.v1.tickets_pb2_grpc import TicketsStub

if TYPE_CHECKING:
    from headrace_proto.v1.tickets_pb2_grpc import TicketsAsyncStub

WORKER = pb.TicketAudience(group="billing", endpoint="10.0.0.1:7000", purpose="totals")
READ = pb.AccessQuestion(operation="READ", type="GROUP", name="billing")
ALTER = pb.AccessQuestion(operation="ALTER", type="CONNECTOR", name="shop")
READS = allow(ResourceType.GROUP, literal("billing"), Operation.READ)


@pytest.fixture
async def world() -> AsyncIterator[Guarded]:
    async with guarded_broker(orders=1) as one:
        yield one


async def stub(world: Guarded, shows: Shows) -> TicketsAsyncStub:
    return TicketsStub(await world.channel(shows))


async def make(world: Guarded, shows: Shows = ALICE, *questions: pb.AccessQuestion) -> pb.IssueTicketResponse:
    try:
        asked = pb.IssueTicketRequest(audience=WORKER, questions=questions or [READ])
        return await (await stub(world, shows)).IssueTicket(asked)
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from error


async def check(
    world: Guarded,
    ticket: bytes = b"",
    *questions: pb.AccessQuestion,
    shows: Shows = ROOT,
    audience: pb.TicketAudience = WORKER,
) -> pb.CheckAccessResponse:
    asked = pb.CheckAccessRequest(questions=questions or [READ], ticket=ticket, audience=audience)
    try:
        return await (await stub(world, shows)).CheckAccess(asked)
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from error


async def test_who_may_gets_a_ticket_and_who_may_not_does_not(world: Guarded) -> None:
    with pytest.raises(Denied, match=r"User:alice may not READ GROUP billing .refusal .*; who may change rules"):
        await make(world)
    await world.allow(READS)
    made = await make(world)
    assert LIFE_MS - 5_000 < made.life_ms <= LIFE_MS
    answer = await check(world, made.ticket)
    assert (answer.principal, list(answer.refusals), answer.mode) == ("User:alice", [""], "closed")


async def test_who_shows_nothing_is_told_nothing(world: Guarded) -> None:
    for shows in (NOTHING, (("authorization", "Bearer hrk_x"),)):
        with pytest.raises(Unauthenticated):
            await make(world, shows)
        with pytest.raises(Unauthenticated):
            await check(world, shows=shows)


async def test_a_ticket_is_for_what_its_owner_may_of_what_was_asked(world: Guarded) -> None:
    await world.allow(READS)
    made = await make(world, ALICE, ALTER, READ)
    answer = await check(world, made.ticket, READ, ALTER)
    assert answer.refusals[0] == ""
    assert "not for ALTER CONNECTOR shop" in answer.refusals[1]
    changes = allow(ResourceType.CONNECTOR, EVERY_NAME, Operation.ALTER)
    await world.allow(READS, changes)
    refused = (await check(world, made.ticket, ALTER)).refusals  # what it may since was not asked for then
    assert "not for ALTER CONNECTOR shop" in refused[0]


async def test_what_was_taken_back_counts_for_tickets_at_once(world: Guarded) -> None:
    await world.allow(READS)
    made = await make(world)
    await world.allow(READS, deny(ResourceType.GROUP, literal("billing"), Operation.READ))
    assert "may not READ GROUP billing" in (await check(world, made.ticket)).refusals[0]
    await world.allow(READS)
    assert list((await check(world, made.ticket)).refusals) == [""]
    world.rows.keys = [key_of("root")]
    await world.show()
    answer = await check(world, made.ticket)
    assert "deleted" in answer.ticket_refused
    assert (answer.principal, list(answer.refusals)) == ("", [])


async def test_whoever_is_blocked_has_no_ticket(world: Guarded) -> None:
    await world.allow(READS)
    made = await make(world)
    world.rows.blocked = frozenset({user("alice")})
    await world.show()
    answer = await check(world, made.ticket)
    assert "User:alice is blocked" in answer.ticket_refused


@pytest.mark.parametrize(
    "other", [{"group": "other"}, {"endpoint": "10.0.0.2:7000"}, {"purpose": "secrets"}, {"purpose": ""}]
)
async def test_a_ticket_that_was_shown_to_somebody_else_is_none(world: Guarded, other: dict[str, Any]) -> None:
    await world.allow(READS)
    made = await make(world)
    audience = pb.TicketAudience(group="billing", endpoint="10.0.0.1:7000", purpose="totals")
    audience.MergeFrom(pb.TicketAudience(**other))
    if other == {"purpose": ""}:
        audience.purpose = ""
    answer = await check(world, made.ticket, audience=audience)
    assert "another member" in answer.ticket_refused
    assert not answer.refusals


async def test_what_is_no_ticket_is_none(world: Guarded) -> None:
    await world.allow(READS)
    made = await make(world)
    for forged in (b"x", made.ticket[:-1], made.ticket[:-1] + b"?", bytes(36)):
        assert (await check(world, forged)).ticket_refused


async def test_without_a_ticket_the_caller_is_asked_about(world: Guarded) -> None:
    answer = await check(world, b"", READ, ALTER, shows=ALICE)
    assert answer.principal == "User:alice"
    assert ["may not" in refusal for refusal in answer.refusals] == [True, True]
    await world.allow(READS)
    assert [bool(refusal) for refusal in (await check(world, b"", READ, ALTER, shows=ALICE)).refusals] == [False, True]


async def test_a_question_without_a_name_is_about_any(world: Guarded) -> None:
    anywhere = pb.AccessQuestion(operation="READ", type="GROUP")
    assert "may READ no GROUP" in (await check(world, b"", anywhere, shows=ALICE)).refusals[0]
    await world.allow(READS)
    assert list((await check(world, b"", anywhere, shows=ALICE)).refusals) == [""]


async def test_of_many_refusals_a_few_are_explained(world: Guarded) -> None:
    questions = [pb.AccessQuestion(operation="READ", type="CONNECTOR", name=f"c{n}") for n in range(1_000)]
    refusals = (await check(world, b"", *questions, shows=ALICE)).refusals
    assert len(refusals) == 1_000
    assert sum("headrace access allow" in refusal for refusal in refusals) == 20


@pytest.mark.parametrize(("mode", "may"), [(Mode.OPEN, True), (Mode.PERMISSIVE, True)])
async def test_where_it_is_not_closed_everybody_may(world: Guarded, mode: Mode, may: bool) -> None:
    await world.turn(mode)
    answer = await check(world, shows=NOTHING)
    assert (answer.mode, [not refusal for refusal in answer.refusals]) == (mode.name.lower(), [may])
    made = await make(world, NOTHING)
    await world.turn(Mode.CLOSED)
    assert (await check(world, made.ticket)).ticket_refused  # nobody stands behind it


async def test_admin_nodes_get_tickets_of_who_asks_them(world: Guarded) -> None:
    await world.allow(READS)
    made = await make(world, node(Role.ADMIN, "alice"))
    assert (await check(world, made.ticket)).principal == "User:alice"
    with pytest.raises(Denied):
        await make(world, node(Role.ADMIN, "carol"))
    with pytest.raises(Denied):
        await make(world, node(Role.ADMIN))


@pytest.mark.parametrize(
    ("audience", "questions"),
    [
        (pb.TicketAudience(endpoint="a:1"), [READ]),
        (pb.TicketAudience(group="g"), [READ]),
        (pb.TicketAudience(group="g" * 2_000, endpoint="a:1"), [READ]),
        (WORKER, []),
        (WORKER, [READ] * 17),
        (WORKER, [pb.AccessQuestion(operation="EAT", type="GROUP", name="g")]),
        (WORKER, [pb.AccessQuestion(operation="READ", type="CAKE", name="g")]),
        (WORKER, [pb.AccessQuestion(operation="FENCE", type="GROUP", name="g")]),
    ],
)
async def test_what_cannot_be_asked_is_refused(
    world: Guarded, audience: pb.TicketAudience, questions: list[pb.AccessQuestion]
) -> None:
    asked = pb.IssueTicketRequest(audience=audience, questions=questions)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await (await stub(world, ROOT)).IssueTicket(asked)
    error: HeadraceError = error_from_rpc(raised.value)
    assert isinstance(error, Rejected), error


async def test_a_program_asks_about_whoever_asked_it_and_shows_nothing_of_its_own(world: Guarded) -> None:
    mine, hers = Secret(key_text("root")), Secret(key_text("alice"))
    await world.allow(READS)
    asked = [AccessQuestion("READ", "GROUP", "billing"), AccessQuestion("ALTER", "CONNECTOR", "shop")]
    audience = TicketAudience("billing", "10.0.0.1:7000", "totals")
    async with aio.AdminClient(world.target, api_key=mine) as admin:
        answer = await admin.check_access(asked, bearer=hers)
        assert answer.principal == "User:alice"
        assert [bool(refusal) for refusal in answer.refusals] == [False, True]
        assert (await admin.check_access(asked)).principal == "User:root"
        ticket = (await admin.issue_ticket(audience, asked, bearer=hers)).text
        assert (await check(world, ticket)).principal == "User:alice"
        wrong = Secret(key_text("nobody"))
        with pytest.raises(Unauthenticated):
            await admin.check_access(asked, bearer=wrong)
    async with aio.AdminClient(world.target, api_key=wrong) as admin:
        with pytest.raises(NetworkFailed, match="this program is not let in itself"):
            await admin.check_access(asked, bearer=hers)


async def test_whoever_an_admin_node_asks_for_by_a_certificate_has_a_ticket_until_that_ends(world: Guarded) -> None:
    owner = Principal(PrincipalType.CERT, "billing")

    def forwarded(ends_ms: int) -> Shows:
        said = write_certificate(ClientCertificate(owner, "", ends_ms, "ab"))
        return (*node(Role.ADMIN), (FORWARDED_KEY, b""), (FORWARDED_CERTIFICATE_KEY, said))

    world.rows.rules = {owner: frozenset({READS})}
    await world.show()
    long, short = SystemClock().now_ms() + 3_600_000, SystemClock().now_ms() + 3_000_000
    ticket = (await make(world, forwarded(long))).ticket
    answer = await check(world, ticket)
    assert (answer.principal, list(answer.refusals)) == (str(owner), [""])
    assert (await make(world, forwarded(short))).ticket != ticket, "another certificate, another ticket"
    assert (await make(world, forwarded(long))).ticket == ticket
    world.rows.blocked = frozenset({owner})
    await world.show()
    assert "is blocked" in (await check(world, ticket)).ticket_refused


class Written:
    """An audit that a test reads, or that fails."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ends: list[Event] = []
        self.failure: AuditUnavailable | None = None

    async def record(self, *events: Event) -> None:
        if self.failure is not None:
            raise self.failure
        self.events += events

    async def tell(self, *events: Event) -> None:
        self.ends += events

    def note(self, event: Event) -> None:
        """Of refusals, and of who is new."""


PAUSE = pb.AnnouncedChange(what="PUT /connectors/shop/pause", asked_from="10.0.0.9")


async def announce(world: Guarded, *questions: pb.AccessQuestion, **more: Any) -> pb.CheckAccessResponse:
    asked = pb.CheckAccessRequest(questions=questions or [ALTER], **{"change": PAUSE, **more})
    try:
        return await (await stub(world, ALICE)).CheckAccess(asked)
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from error


async def test_what_a_program_does_next_is_in_the_audit_in_the_name_of_who_may(world: Guarded) -> None:
    written: Any = Written()
    world.access.auditing.audit = written
    assert list((await announce(world)).refusals) != [""]
    assert written.events == [], "who may not does nothing"
    await world.allow(allow(ResourceType.CONNECTOR, literal("shop"), Operation.ALTER, Operation.CREATE))
    assert list((await announce(world)).refusals) == [""]
    [event] = written.events
    assert (event.kind, event.actor.principal, event.status) == (Kind.ADMINISTERED, "User:alice", None)
    assert (event.rpc, event.source) == ("Connect/PUT /connectors/shop/pause", "127.0.0.1")
    assert (event.operation, event.resource) == (Operation.ALTER, Resource(ResourceType.CONNECTOR, "shop"))
    assert event.change is not None
    assert event.change.after == {"asked_from": "10.0.0.9"}
    create = pb.AccessQuestion(operation="CREATE", type="CONNECTOR", name="shop")
    configure = pb.AccessQuestion(operation="ALTER_CONFIGS", type="CONNECTOR", name="shop")
    await announce(world, create, configure)
    assert written.events[1].operation is Operation.CREATE
    await announce(world, create, ALTER, change=pb.AnnouncedChange(what="x" * 1_000))
    assert (written.events[2].operation, len(written.events[2].rpc) < 300) == (Operation.ALTER, True)
    await check(world, b"", ALTER, shows=ALICE)
    assert len(written.events) == 3, "who only asks does nothing"


async def test_what_cannot_be_written_is_refused_and_told_if_it_may_be_written_later(world: Guarded) -> None:
    written: Any = Written()
    world.access.auditing.audit = written
    await world.allow(allow(ResourceType.CONNECTOR, literal("shop"), Operation.ALTER))
    written.failure = AuditUnavailable("the disk is full")
    with pytest.raises(AuditUnavailable, match="the disk is full"):
        await announce(world)
    assert written.ends == []
    written.failure.chained = True
    with pytest.raises(AuditUnavailable):
        await announce(world)
    assert [one.status for one in written.ends] == [ErrorCode.AUDIT_UNAVAILABLE]
    world.access.auditing.audit = None
    assert list((await announce(world)).refusals) == [""], "without an audit nothing is written"
