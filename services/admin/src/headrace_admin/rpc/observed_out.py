"""What nodes have seen of who calls, as messages of the wire, and the change that needs to know it."""

from __future__ import annotations

from headrace_admin.engine.observations import Observations
from headrace_admin.ports import Controllers
from headrace_common.core.access.control import Rights
from headrace_common.core.access.rows import Mode
from headrace_common.rpc.convert_access import rule_to_proto
from headrace_common.rpc.convert_observed import limit_of, report_to_proto, window_ms
from headrace_proto.v1 import access_pb2 as pb

_CLOSED = Mode.CLOSED.name.lower()


async def observed(observations: Observations, request: pb.ObservedRequest, rights: Rights) -> pb.ObservedResponse:
    """
    The answer, of all nodes or of this process alone, as far as the caller may know it.

    Raises:
        Rejected: nobody remembers that long, or as much.
    """
    if request.here:
        return report_to_proto(observations.here(rights))
    within, limit = window_ms(request.within_ms), limit_of(request.limit)
    gathered = await observations.gather(rights, within)
    told = report_to_proto(gathered.report, limit, observations.remedies(gathered.report))
    for node in gathered.nodes:
        told.nodes.add(node=str(node.node), since_ms=node.since_ms, fault=node.error)
    told.unused.extend(rule_to_proto(rule) for rule in gathered.unused[:limit])
    told.mode = gathered.mode.name.lower()
    return told


async def altered(
    observations: Observations, controllers: Controllers, request: pb.AlterAccessRequest, rights: Rights
) -> pb.AlterAccessResponse:
    """
    The active controller's answer; a cluster is closed only where nobody is cut off whose loss is not taken.

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
    return await controllers.ask(lambda stub: stub.AlterAccess, request)
