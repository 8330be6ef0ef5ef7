"""The ``Tickets`` service of ``tickets.proto``: what others may do at programs that are no nodes of the cluster."""
# ruff: noqa: N802 - methods have the names of the proto

from __future__ import annotations

from typing import Any, Final

import grpc.aio

from headrace_common.core.access.authentication import Shown
from headrace_common.core.access.control import Asked, Rights
from headrace_common.core.access.names import WILDCARD
from headrace_common.core.access.resources import CLUSTER_NAME, OPERATIONS, ResourceType
from headrace_common.core.access.right import EXPLAINED_MAX
from headrace_common.core.access.tickets import SECRET_BYTES, Audience, Ticket, Tickets
from headrace_common.core.errors import Denied, Rejected, Unauthenticated
from headrace_common.core.ids import NodeId
from headrace_common.rpc.convert_access import operation_of, type_of
from headrace_common.runtime.access_gate import Access, current_rights, current_shown
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.entropy import new_secret
from headrace_proto.v1 import tickets_pb2 as pb
from headrace_proto.v1 import tickets_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]
_ANY_NAME: Final = WILDCARD
"""Stands for the resource where any would do; none has it for a name."""


class TicketsServicer(tickets_pb2_grpc.TicketsServicer):
    """One for all listeners of a broker: it knows the tickets that this broker has made."""

    def __init__(self, node: NodeId, access: Access, clock: Clock) -> None:
        self._node = node
        self._access = access
        self._clock = clock
        self._tickets = Tickets(lambda: new_secret(SECRET_BYTES))

    async def CheckAccess(self, request: pb.CheckAccessRequest, context: Context) -> pb.CheckAccessResponse:
        """See the proto."""
        questions = [_asked(question) for question in request.questions]
        answer = pb.CheckAccessResponse(mode=self._access.view.mode.name.lower())
        if not request.ticket:
            shown = current_shown()
            _answer(answer, current_rights(), questions)
        else:
            try:
                ticket = self._tickets.find(request.ticket, _audience(request.audience), self._clock.monotonic_ms())
                shown = self._owner(ticket)
                _answer(answer, self._access.rights(shown), questions, ticket)
            except Unauthenticated as error:
                answer.ticket_refused = str(error)
                return answer
        if request.HasField("change"):
            await self._announce(shown, request.change, questions, answer)
        return answer

    async def _announce(
        self, shown: Shown, change: pb.AnnouncedChange, questions: list[Asked], answer: pb.CheckAccessResponse
    ) -> None:
        """
        By the last of what it may: who may make a connector and configure it asks for both.

        Raises:
            AuditUnavailable: it cannot be written.
        """
        allowed = [asked for asked, refusal in zip(questions, answer.refusals, strict=True) if not refusal]
        if allowed:
            what = f"Connect/{change.what}"
            await self._access.auditing.announced(shown, what, change.asked_from, allowed[-1])

    async def IssueTicket(self, request: pb.IssueTicketRequest, context: Context) -> pb.IssueTicketResponse:
        """See the proto."""
        audience = _audience(request.audience)
        audience.check()
        questions = [_asked(question) for question in request.questions]
        if not questions:
            raise Rejected("a ticket is for something: say what it is to be good for")
        rights = current_rights()
        refused = {one: error for one in questions if (error := _refusal(rights, one)) is not None}
        if len(refused) == len(set(questions)):
            raise refused[questions[0]]
        allowed = frozenset(one for one in questions if one not in refused)
        now_ms = self._clock.monotonic_ms()
        ticket = self._tickets.make(self._node, current_shown(), audience, allowed, now_ms)
        return pb.IssueTicketResponse(ticket=ticket.text, life_ms=int(ticket.until_ms - now_ms))

    def _owner(self, ticket: Ticket) -> Shown:
        """
        Who has it, by what was shown for it: that may have been taken back.

        Raises:
            Unauthenticated: it was, or is over.
        """
        owner = ticket.owner
        if owner.node is not None:
            return owner
        found = self._access.authenticate(owner.bearer, owner.caller.host or "", owner.certificate)
        if found.caller.principal != owner.caller.principal:
            raise Unauthenticated("the credential is another one's by now")
        return found


def _asked(question: pb.AccessQuestion) -> Asked:
    operation, type = operation_of(question.operation), type_of(question.type)
    if not operation.bit & OPERATIONS[type]:
        raise Rejected(f"nobody asks for {operation.value} of {type.value}")
    return operation, type, CLUSTER_NAME if type is ResourceType.CLUSTER else question.name or _ANY_NAME


def _audience(audience: pb.TicketAudience) -> Audience:
    return Audience(audience.group, audience.endpoint, audience.purpose)


def _answer(
    answer: pb.CheckAccessResponse, rights: Rights, questions: list[Asked], ticket: Ticket | None = None
) -> None:
    answer.principal = str(rights.caller.principal)
    explained = 0
    for one in questions:
        error: Denied | None
        if ticket is not None and one not in ticket.rights:
            error = Denied(f"the ticket of {rights.caller.principal} is not for {one[0].value} {one[1].value} {one[2]}")
        else:
            error = _refusal(rights, one, explained=explained < EXPLAINED_MAX)
            explained += error is not None
        answer.refusals.append("" if error is None else str(error))


def _refusal(rights: Rights, asked: Asked, *, explained: bool = True) -> Denied | None:
    operation, type, name = asked
    if name != _ANY_NAME:
        return None if rights.may(*asked) else rights.refusal(*asked, explained=explained)
    try:
        rights.check_anywhere(operation, type)
    except Denied as error:
        return error
    return None
