"""``/connectors/{name}/offsets``: where reading goes on."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, Request
from starlette.responses import Response

from headrace_connect_worker.core import commands
from headrace_connect_worker.core.refusals import Conflict
from headrace_connect_worker.ports import ConnectorOffset
from headrace_connect_worker.rpc import kafka_shapes, models
from headrace_connect_worker.rpc.answering import answer
from headrace_connect_worker.rpc.forwarding import Forward
from headrace_connect_worker.rpc.models import answers, takes
from headrace_connect_worker.rpc.paths import ConnectorName
from headrace_connect_worker.rpc.workers import Worker


def offset_routes(worker: Worker) -> APIRouter:
    """Reading asks the cluster; changes need a stopped connector."""
    routes = APIRouter(prefix="/connectors/{name}/offsets", tags=["offsets"])

    @routes.get("", operation_id="getOffsets", responses=answers(models.Offsets))
    async def get(name: ConnectorName) -> Response:
        """All that is committed: of a source the position of each split, of a sink the offsets of its group."""
        worker.views.find(name)
        found = await worker.herd.offsets(name)
        return answer(kafka_shapes.offsets([(one.partition, one.offset) for one in found]))

    @routes.patch(
        "", operation_id="alterOffsets", responses=answers(models.Message), openapi_extra=takes(models.Offsets)
    )
    async def alter(request: Request, name: ConnectorName, forward: Forward = None) -> Response:
        """Set some, and forget those that are null. The connector must be stopped."""
        given = commands.read_offsets(await request.body())

        async def here() -> Response:
            worker.views.find(name)
            kind = worker.views.kind(name)
            if not kind:
                raise Conflict(f"nobody knows yet whether {name} is a source or a sink; start it once")
            offsets = [ConnectorOffset(one.partition or {}, one.offset) for one in commands.offsets_of(kind, given)]
            return await _change(name, offsets)

        return await worker.leading.do(request, forward, here)

    @routes.delete("", operation_id="resetOffsets", responses=answers(models.Message))
    async def reset(request: Request, name: ConnectorName, forward: Forward = None) -> Response:
        """Forget all. The connector must be stopped."""

        async def here() -> Response:
            worker.views.find(name)
            return await _change(name, None)

        return await worker.leading.do(request, forward, here)

    async def _change(name: str, offsets: Sequence[ConnectorOffset] | None) -> Response:
        await worker.herd.change_offsets(name, offsets)
        done = "reset" if offsets is None else "altered"
        return answer({"message": f"The offsets for this connector have been {done} successfully"})

    return routes
