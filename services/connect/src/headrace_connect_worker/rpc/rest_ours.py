"""``/v1``: what Kafka Connect does not have. Errors are problems (RFC 9457)."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from headrace_connect_worker.rpc import models
from headrace_connect_worker.rpc.answering import OURS, answer
from headrace_connect_worker.rpc.models import answers
from headrace_connect_worker.rpc.workers import Worker


def our_routes(worker: Worker) -> APIRouter:
    """Hosts answer."""
    routes = APIRouter(prefix=OURS.rstrip("/"), tags=["ours"])

    @routes.post("/preview", operation_id="preview", responses=answers(models.Records))
    async def preview(wanted: models.Preview) -> Response:
        """The first records of a source as they would be written. Nothing is written or committed."""
        return answer({"records": list(await worker.checking.preview(wanted.config, wanted.records))})

    return routes
