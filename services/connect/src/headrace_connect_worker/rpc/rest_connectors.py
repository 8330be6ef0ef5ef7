"""``/connectors``: what there is, and changes of configurations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from headrace_connect_worker.core import commands
from headrace_connect_worker.core.commands import CLASS
from headrace_connect_worker.core.records import TargetState
from headrace_connect_worker.core.refusals import BadCommand, Conflict
from headrace_connect_worker.rpc import kafka_shapes, models
from headrace_connect_worker.rpc.answering import answer, no_body
from headrace_connect_worker.rpc.callers import change_of, current_caller
from headrace_connect_worker.rpc.forwarding import Forward, at_own_address
from headrace_connect_worker.rpc.kafka_shapes import Json
from headrace_connect_worker.rpc.models import NO_CONTENT, answers, takes
from headrace_connect_worker.rpc.paths import ConnectorName
from headrace_connect_worker.rpc.views import Views
from headrace_connect_worker.rpc.workers import Worker

_EXPANSIONS = ("info", "status")


def reading_routes(worker: Worker) -> APIRouter:
    """What asks for configurations."""
    routes = APIRouter(prefix="/connectors", tags=["connectors"])

    @routes.get("", operation_id="listConnectors", responses=answers(list[str] | dict[str, models.Expansion]))
    async def list_connectors(
        expand: Annotated[list[str] | None, Query(description="`info` and `status`; others are ignored.")] = None,
    ) -> Response:
        """The names of all connectors; with `expand` an object of them."""
        views, caller = worker.views, current_caller()
        names = await caller.those_it_may("DESCRIBE", views.names)
        if expand is None:
            return answer(names)
        readable = set(await caller.those_it_may("DESCRIBE_CONFIGS", names)) if "info" in expand else ()
        return answer({name: _expanded(views, name, expand, info=name in readable) for name in names})

    @routes.get("/{name}", operation_id="getConnector", responses=answers(models.ConnectorInfo))
    async def get_connector(name: ConnectorName) -> Response:
        """A connector: configuration, tasks, and whether it is a source or a sink."""
        return answer(worker.views.info(name))

    @routes.get("/{name}/config", operation_id="getConnectorConfig", responses=answers(models.Config))
    async def get_config(name: ConnectorName) -> Response:
        """Its configuration, as it was given."""
        return answer(worker.views.find(name).config)

    @routes.get("/{name}/tasks", operation_id="getTasks", responses=answers(list[models.Task]))
    async def get_tasks(name: ConnectorName) -> Response:
        """Its tasks with their configurations: the connector's, the generation and the splits of each."""
        return answer(worker.views.tasks(name))

    @routes.get(
        "/{name}/tasks-config",
        operation_id="getTasksConfig",
        responses=answers(dict[str, models.Config]),
        deprecated=True,
    )
    async def get_tasks_config(name: ConnectorName) -> Response:
        """The same in another form."""
        return answer({f"{name}-{task['id']['task']}": task["config"] for task in worker.views.tasks(name)})

    return routes


def changing_routes(worker: Worker) -> APIRouter:
    """What changes configurations."""
    routes = APIRouter(prefix="/connectors", tags=["connectors"])
    leading = worker.leading

    @routes.post(
        "",
        operation_id="createConnector",
        responses=answers(models.ConnectorInfo, 201),
        openapi_extra=takes(models.CreateConnector),
    )
    async def create(request: Request, forward: Forward = None) -> Response:
        """A new connector; 409 where there is one of this name."""
        wanted = commands.read_create(await request.body())
        await current_caller().check("CREATE", wanted.name, change_of(request.scope))

        async def here() -> Response:
            if wanted.name in worker.views.names:
                raise Conflict(f"Connector {wanted.name} already exists")
            kind = await _check(worker, wanted.config)
            return await _put(worker, request, wanted.name, wanted.config, kind, wanted.target, only_new=True)

        return await leading.do(request, forward, here)

    @routes.put(
        "/{name}/config",
        operation_id="putConnectorConfig",
        responses=answers(models.ConnectorInfo) | answers(models.ConnectorInfo, 201, "It is new"),
        openapi_extra=takes(None),
    )
    async def put_config(request: Request, name: ConnectorName, forward: Forward = None) -> Response:
        """Another configuration for a connector, or a new one."""
        config = commands.read_config(await request.body(), name)

        async def here() -> Response:
            await _let_put(worker, name)
            kind = await _check(worker, config)
            await _let_put(worker, name)  # that took its time
            return await _put(worker, request, name, config, kind)

        return await leading.do(request, forward, here)

    @routes.patch(
        "/{name}/config",
        operation_id="patchConnectorConfig",
        responses=answers(models.ConnectorInfo),
        openapi_extra=takes(None, nullable=True),
    )
    async def patch_config(request: Request, name: ConnectorName, forward: Forward = None) -> Response:
        """Changes of some keys; null leaves one out from now on."""
        changes = commands.read_changes(await request.body())

        async def here() -> Response:
            kind = await _check(worker, commands.changed(worker.views.find(name).config, changes))
            changed = await worker.herd.patch_config(name, changes)
            return answer(worker.views.info(name, changed, kind))

        return await leading.do(request, forward, here)

    @routes.delete("/{name}", operation_id="deleteConnector", status_code=204, responses=NO_CONTENT)
    async def delete(request: Request, name: ConnectorName, forward: Forward = None) -> Response:
        """Delete a connector and its tasks. Its offsets stay: one of the same name goes on there."""

        async def here() -> Response:
            await worker.herd.delete(name)
            return no_body(204)

        return await leading.do(request, forward, here)

    return routes


async def _let_put(worker: Worker, name: str) -> None:
    await current_caller().check_put(name, exists=name in worker.views.names)


async def _check(worker: Worker, config: Mapping[str, str]) -> str:
    """
    ``source`` or ``sink``.

    Raises:
        BadCommand: has everything that is wrong with a configuration.
    """
    if not config.get(CLASS):
        raise BadCommand(f"Connector config contains no connector type: {CLASS} is missing")
    kind, problems = await worker.checking.check(config)
    if problems:
        raise BadCommand(kafka_shapes.invalid_config(problems))
    return kind


async def _put(
    worker: Worker,
    request: Request,
    name: str,
    config: Mapping[str, str],
    kind: str,
    target: TargetState | None = None,
    *,
    only_new: bool = False,
) -> Response:
    created = await worker.herd.put_config(name, config, only_new=only_new, target=target)
    headers = {"location": at_own_address(request, f"/connectors/{quote(name, safe='')}")} if created else {}
    return answer(worker.views.info(name, config, kind), 201 if created else 200, headers)


def _expanded(views: Views, name: str, expand: list[str], *, info: bool) -> Json:
    """What nobody can say yet is left out, and configurations that the caller may not read."""
    made: Json = {}
    for what in _EXPANSIONS:
        if what in expand and (info if what == "info" else views.has_status(name)):
            made[what] = views.info(name) if what == "info" else views.status(name)
    return made
