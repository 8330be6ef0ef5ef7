"""``/v1/cluster/status`` and ``/health/cluster``: how the cluster is, in full and in one line."""

from __future__ import annotations

from fastapi import APIRouter, Response, status

from headrace_admin.core.status import State
from headrace_admin.engine.statuses import Statuses
from headrace_admin.rpc import answer_types
from headrace_admin.rpc.messages_out import status_message
from headrace_common.rpc import answers


def status_routes(statuses: Statuses) -> APIRouter:
    """All routes of this module."""
    routes = APIRouter()

    @routes.get("/v1/cluster/status", tags=["cluster"], operation_id="cluster_status")
    async def cluster_status() -> answer_types.Status:
        """How the cluster is: what each broker carries, partitions in trouble, and a verdict that says what to do."""
        return answers.status(status_message(await statuses.now()))

    @routes.get("/health/cluster", tags=["health"], operation_id="cluster_health")
    async def cluster_health(response: Response) -> answer_types.ClusterHealth:
        """The verdict alone. 200 when healthy or degraded; 503 when unavailable: some partitions are not served."""
        judged = await statuses.now()
        if judged.state is State.UNAVAILABLE:
            response.status_code = status.HTTP_503_SERVICE_UNAVAILABLE
        return {"state": judged.state.value, "verdict": judged.verdict}

    return routes
