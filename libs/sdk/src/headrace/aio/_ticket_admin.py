"""The part of ``headrace.aio.AdminClient`` that asks brokers what somebody may, and for tickets that say so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.aio._admin_calls import AdminCalls
from headrace.errors import UnsupportedVersion
from headrace.ticket_types import AccessAnswer, AccessQuestion, AnnouncedChange, Ticket, TicketAudience
from headrace_common.core.access.tickets import maker_of
from headrace_proto.v1 import tickets_pb2 as pb

if TYPE_CHECKING:
    from headrace._transport.port import Transport
    from headrace_common.core.secret import Secret


class TicketAdmin(AdminCalls):
    """Inherited by ``AdminClient``, which has the connections."""

    _transport: Transport

    async def check_access(
        self,
        questions: Iterable[AccessQuestion] = (),
        *,
        ticket: bytes = b"",
        audience: TicketAudience | None = None,
        bearer: Secret | None = None,
        change: AnnouncedChange | None = None,
    ) -> AccessAnswer:
        """
        Whether this client may do some things; with a ticket, whether its owner may, by it, at ``audience``.

        Brokers answer; one of a version that knows no rules says that the cluster is open. Asked once, of two brokers
        where the first does not answer: who waits for it decides how long.

        Args:
            bearer: somebody else's credential, as a program got it that was asked by its owner: the question is whose
                that is. It goes out alone, on connections of its own.
            change: what this program does next if one of the questions may be: the audit has it before the answer.

        Raises:
            Unauthenticated: the cluster does not know who asks.
            AuditUnavailable: ``change`` cannot be written, and must not be done.
            CredentialInPlainText: ``bearer`` would go to another machine, and not by TLS.
            NetworkFailed: no broker answers.
        """
        assert not ticket or bearer is None, "a ticket is looked at for who asks about it"
        asked = list(questions)
        maker = maker_of(ticket) if ticket else None
        if ticket and maker is None:
            return AccessAnswer("closed", "", (), "this is no ticket")
        request = pb.CheckAccessRequest(questions=map(_question, asked), ticket=ticket)
        if audience is not None:
            request.audience.CopyFrom(_audience(audience))
        if change is not None:
            request.change.CopyFrom(pb.AnnouncedChange(what=change.what, asked_from=change.asked_from))
        try:
            answer = await self._transport.ticket_call(lambda stub: stub.CheckAccess, request, maker, bearer)
        except UnsupportedVersion:
            return AccessAnswer("open", "", ("",) * len(asked))
        return AccessAnswer(answer.mode, answer.principal, tuple(answer.refusals), answer.ticket_refused)

    async def issue_ticket(
        self, audience: TicketAudience, questions: Iterable[AccessQuestion], *, bearer: Secret | None = None
    ) -> Ticket:
        """
        A ticket for what this client may of this, of 16 things at most: ``audience`` is shown it, and no credential.

        Args:
            bearer: somebody else's credential, for a ticket of that one; as ``check_access``.

        Raises:
            Denied: it may none of it.
            Unauthenticated: the cluster does not know who asks.
            UnsupportedVersion: the cluster has no rules, and needs no tickets.
            NetworkFailed: no broker answers.
        """
        request = pb.IssueTicketRequest(audience=_audience(audience), questions=map(_question, questions))
        made = await self._transport.ticket_call(lambda stub: stub.IssueTicket, request, None, bearer)
        return Ticket(made.ticket, made.life_ms)


def _question(asked: AccessQuestion) -> pb.AccessQuestion:
    return pb.AccessQuestion(operation=asked.operation, type=asked.type, name=asked.name)


def _audience(audience: TicketAudience) -> pb.TicketAudience:
    return pb.TicketAudience(group=audience.group, endpoint=audience.endpoint, purpose=audience.purpose)
