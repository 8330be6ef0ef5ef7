"""``/v1``: what Kafka Connect does not have. Errors are problems (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.connector_text import difference
from headrace_connect.core.options import Problem
from headrace_connect_worker.core import commands
from headrace_connect_worker.core.commands import CLASS
from headrace_connect_worker.core.events import Happened
from headrace_connect_worker.rpc import models
from headrace_connect_worker.rpc.answering import OURS, answer
from headrace_connect_worker.rpc.callers import current_caller
from headrace_connect_worker.rpc.kafka_shapes import Json
from headrace_connect_worker.rpc.models import answers, takes
from headrace_connect_worker.rpc.paths import ConnectorName
from headrace_connect_worker.rpc.workers import Worker


def our_routes(worker: Worker) -> APIRouter:
    """Hosts answer."""
    routes = APIRouter(prefix=OURS.rstrip("/"), tags=["ours"])

    @routes.post("/preview", operation_id="preview", responses=answers(models.Records))
    async def preview(wanted: models.Preview) -> Response:
        """
        The first records of a source as they would be written; of a sink what would become of those of its topics.
        Nothing is committed: what `sql-sink` writes for that is rolled back.
        """
        return answer({"records": list(await worker.checking.preview(wanted.config, wanted.records))})

    @routes.post(
        "/plan", operation_id="plan", responses=answers(models.Plan), openapi_extra=takes(models.CreateConnector)
    )
    async def plan(request: Request) -> Response:
        """What `POST /connectors` or a configuration that is put would change, and what is wrong with it."""
        wanted = commands.read_create(await request.body())
        found = worker.views.names
        await current_caller().check_put(wanted.name, exists=wanted.name in found)
        before = worker.views.find(wanted.name).config if wanted.name in found else None
        action, changes = difference(before, wanted.config)
        problems = [_wrong(one) for one in await _problems(worker, wanted.config)]
        return answer({"name": wanted.name, "action": action, "changes": changes, "problems": problems})

    @routes.post("/connectors/{name}/snapshot", operation_id="snapshot", responses=answers(models.Tables))
    async def snapshot(name: ConnectorName, wanted: models.SomeTables) -> Response:
        """
        Have tables of a source be read again beside its changes, also while it runs. They are read when it runs; the
        answer has their full names.
        """
        config = worker.views.find(name).config
        return answer({"tables": list(await worker.checking.snapshot(config, wanted.tables))})

    @routes.get("/connectors/{name}/events", operation_id="getEvents", responses=answers(models.Events))
    async def events(
        name: ConnectorName,
        limit: Annotated[int, Query(ge=1, le=100, description="The newest ones.")] = 50,
        kind: Annotated[str | None, Query(description="Only these.")] = None,
    ) -> Response:
        """What the connector has told, and what became of it and its tasks; workers keep the last 100 of each."""
        worker.views.find(name)
        return answer({"events": [_event(one) for one in worker.herd.events(name, limit, kind)]})

    return routes


def _event(event: Happened) -> Json:
    return {
        "at": event.at_ms,
        "kind": event.kind,
        "text": event.text,
        "task": event.task,
        "worker_id": event.worker_id,
        "detail": dict(event.detail),
    }


async def _problems(worker: Worker, config: Mapping[str, str]) -> list[Problem]:
    if not config.get(CLASS):
        return [Problem(CLASS, f"{CLASS} is missing")]
    try:
        return list((await worker.checking.look(config))[1])
    except InvalidConfig as error:
        return [Problem(CLASS, str(error))]


def _wrong(problem: Problem) -> Json:
    return {"key": problem.key or None, "problem": problem.message}
