"""``/v1/cluster/status`` and ``/health/cluster``: how the cluster is, in full and in one line."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Depends, Response, status

from headrace_admin.core.status import State
from headrace_admin.engine.statuses import Statuses
from headrace_admin.rpc import answer_types
from headrace_admin.rpc.messages_out import status_message
from headrace_common.core.access.resources import CLUSTER_NAME, Operation, ResourceType
from headrace_common.http.paces import Paces
from headrace_common.rpc import answers
from headrace_common.runtime.access_gate import current_rights

_UNTOLD: Final = "GET /v1/cluster/status tells more, to those who may describe the cluster"


def status_routes(statuses: Statuses, paces: Paces) -> APIRouter:
    """All routes of this module."""
    routes = APIRouter()

    @routes.get("/v1/cluster/status", tags=["cluster"], operation_id="cluster_status")
    async def cluster_status() -> answer_types.Status:
        """How the cluster is: what each broker carries, partitions in trouble, and a verdict that says what to do."""
        return answers.status(status_message(await statuses.now()))

    @routes.get(
        "/health/cluster", tags=["health"], operation_id="cluster_health", dependencies=[Depends(paces.count_sender)]
    )
    async def cluster_health(response: Response) -> answer_types.ClusterHealth:
        """
        The verdict alone. 200 when healthy or degraded; 503 when unavailable: some partitions are not served. In a
        closed cluster the state alone.
        """
        judged = await statuses.now()
        if judged.state is State.UNAVAILABLE:
            response.status_code = status.HTTP_503_SERVICE_UNAVAILABLE
        told = current_rights().shows(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
        return {"state": judged.state.value, "verdict": judged.verdict if told else _UNTOLD}

    return routes
