"""How connectors are, and what they are to do: status, pause, resume, stop, restart, topics."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from headrace_connect_worker.core.records import TargetState
from headrace_connect_worker.rpc import models
from headrace_connect_worker.rpc.answering import answer, no_body
from headrace_connect_worker.rpc.forwarding import Forward
from headrace_connect_worker.rpc.models import ACCEPTED, NO_CONTENT, answers
from headrace_connect_worker.rpc.paths import ConnectorName, TaskNumber
from headrace_connect_worker.rpc.workers import Worker


def status_routes(worker: Worker) -> APIRouter:
    """What asks."""
    routes = APIRouter(prefix="/connectors/{name}", tags=["running"])

    @routes.get("/status", operation_id="getConnectorStatus", responses=answers(models.ConnectorStatus))
    async def status(name: ConnectorName) -> Response:
        """How a connector and its tasks are, on which workers; what failed or waits, and why."""
        return answer(worker.views.status(name))

    @routes.get("/tasks/{task}/status", operation_id="getTaskStatus", responses=answers(models.TaskState))
    async def task_status(name: ConnectorName, task: TaskNumber) -> Response:
        """How a task is."""
        return answer(worker.views.task_status(name, task))

    @routes.get("/topics", operation_id="getTopics", responses=answers(dict[str, models.Topics]))
    async def topics(name: ConnectorName) -> Response:
        """The topics that a connector has written or read since they were reset."""
        return answer({name: {"topics": worker.views.topics(name)}})

    return routes


def running_routes(worker: Worker) -> APIRouter:
    """What changes."""
    routes = APIRouter(prefix="/connectors/{name}", tags=["running"])

    @routes.put("/pause", operation_id="pauseConnector", status_code=202, responses=ACCEPTED)
    async def pause(request: Request, name: ConnectorName, forward: Forward = None) -> Response:
        """Its tasks stay, and read no more."""
        return await _target(request, name, TargetState.PAUSED, forward, 202)

    @routes.put("/resume", operation_id="resumeConnector", status_code=202, responses=ACCEPTED)
    async def resume(request: Request, name: ConnectorName, forward: Forward = None) -> Response:
        """It runs, whether it was paused or stopped."""
        return await _target(request, name, TargetState.STARTED, forward, 202)

    @routes.put("/stop", operation_id="stopConnector", status_code=204, responses=NO_CONTENT)
    async def stop(request: Request, name: ConnectorName, forward: Forward = None) -> Response:
        """Its tasks end, and it has none; configuration and offsets stay."""
        return await _target(request, name, TargetState.STOPPED, forward, 204)

    async def _target(request: Request, name: str, target: TargetState, forward: bool | None, status: int) -> Response:
        async def here() -> Response:
            await worker.herd.set_target(name, target)
            return no_body(status)

        return await worker.leading.do(request, forward, here)

    @routes.post(
        "/restart",
        operation_id="restartConnector",
        status_code=204,
        responses=NO_CONTENT | answers(models.ConnectorStatus, 202, "With `includeTasks` or `onlyFailed`"),
    )
    async def restart(
        request: Request,
        name: ConnectorName,
        include_tasks: Annotated[bool, Query(alias="includeTasks", description="Its tasks too.")] = False,
        only_failed: Annotated[bool, Query(alias="onlyFailed", description="Only what has failed.")] = False,
        forward: Forward = None,
    ) -> Response:
        """Have a connector begin anew: what looks for its work, and with `includeTasks` its tasks."""

        async def here() -> Response:
            tasks = None if include_tasks else ()
            await worker.herd.restart(name, connector=True, tasks=tasks, only_failed=only_failed)
            if not include_tasks and not only_failed:
                return no_body(204)
            return answer(worker.views.restarting(name, tasks=include_tasks, only_failed=only_failed), 202)

        return await worker.leading.do(request, forward, here)

    @routes.post("/tasks/{task}/restart", operation_id="restartTask", status_code=204, responses=NO_CONTENT)
    async def restart_task(
        request: Request, name: ConnectorName, task: TaskNumber, forward: Forward = None
    ) -> Response:
        """Have a task begin anew."""

        async def here() -> Response:
            await worker.herd.restart(name, connector=False, tasks=[task])
            return no_body(204)

        return await worker.leading.do(request, forward, here)

    @routes.put("/topics/reset", operation_id="resetTopics", status_code=202, responses=ACCEPTED)
    async def reset_topics(name: ConnectorName) -> Response:
        """Forget which topics it has used."""
        await worker.herd.reset_topics(name)
        return no_body(202)

    return routes
