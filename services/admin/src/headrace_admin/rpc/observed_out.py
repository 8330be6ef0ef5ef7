"""What nodes have seen of who calls, as messages of the wire, and the change that needs to know it."""

from __future__ import annotations

from headrace_admin.engine.observations import NodeReport, Observations
from headrace_admin.ports import Controllers
from headrace_common.core.access.control import Rights
from headrace_common.core.access.rows import Mode
from headrace_common.core.errors import Conflict, NotFound, Rejected
from headrace_common.rpc.convert_access import change_from_proto, rule_to_proto
from headrace_common.rpc.convert_observed import (
    LIMIT,
    limit_of,
    loss_to_proto,
    refusal_to_proto,
    refused_to_proto,
    report_to_proto,
    window_ms,
)
from headrace_proto.v1 import access_pb2 as pb

_CLOSED = Mode.CLOSED.name.lower()


async def observed(observations: Observations, request: pb.ObservedRequest, rights: Rights) -> pb.ObservedResponse:
    """
    The answer, of all nodes or of this process alone, as far as the caller may know it.

    Raises:
        Rejected: nobody remembers that long, or as much.
    """
    if request.refusal:
        return refused_to_proto(observations.refused_here(rights, request.refusal))
    if request.here:
        return report_to_proto(observations.here(rights))
    within, limit = window_ms(request.within_ms), limit_of(request.limit)
    gathered = await observations.gather(rights, within)
    told = report_to_proto(gathered.report, limit, observations.remedies(gathered.report))
    told.nodes.extend(map(_asked, gathered.nodes))
    told.unused.extend(rule_to_proto(rule) for rule in gathered.unused[:limit])
    told.mode = gathered.mode.name.lower()
    return told


async def why_refused(observations: Observations, id: str, rights: Rights) -> pb.WhyRefusedResponse:
    """
    What all nodes remember of a refusal, as far as the caller may know.

    Raises:
        Rejected: there is no such id.
        NotFound: nobody remembers it whom the caller may know of.
    """
    found = await observations.why_refused(rights, id)
    return pb.WhyRefusedResponse(
        refusals=[refusal_to_proto(one, str(node)) for node, one in found.refusals],
        nodes=map(_asked, found.nodes),
    )


def _asked(node: NodeReport) -> pb.SeenBy:
    return pb.SeenBy(node=str(node.node), since_ms=node.since_ms, fault=node.error)


async def altered(
    observations: Observations, controllers: Controllers, request: pb.AlterAccessRequest, rights: Rights
) -> pb.AlterAccessResponse:
    """
    The active controller's answer; a cluster is closed only where nobody is cut off whose loss is not taken. A dry run
    says besides what was done in the last day and would be refused.

    Raises:
        Conflict: somebody would be cut off.
        Denied: the caller may not change this.
    """
    if request.mode == _CLOSED and not request.accept_loss:
        dry = pb.AlterAccessRequest()
        dry.CopyFrom(request)
        dry.validate_only = True
        await controllers.ask(lambda stub: stub.AlterAccess, dry)  # who may not is told nothing of who calls
        await observations.check_closing(rights, window_ms(request.within_ms), request.accept_loss_of)
    answer: pb.AlterAccessResponse = await controllers.ask(lambda stub: stub.AlterAccess, request)
    if request.validate_only and request.changes:
        try:
            losses, nodes = await observations.losses(rights, [change_from_proto(change) for change in request.changes])
        except (Rejected, NotFound, Conflict):
            return answer  # the controller knows something newer: no node was asked, as the answer says
        answer.refuses.extend(map(loss_to_proto, losses[:LIMIT]))
        answer.refuses_more = len(losses) > LIMIT
        answer.nodes.extend(map(_asked, nodes))
    return answer
