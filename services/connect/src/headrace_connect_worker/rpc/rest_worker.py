"""``/``, ``/health`` and ``/admin/loggers``: about this worker alone."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request
from starlette.responses import Response

from headrace_connect_worker.core import commands
from headrace_connect_worker.core.refusals import BadCommand
from headrace_connect_worker.engine.loggers import LoggerLevel
from headrace_connect_worker.rpc import models
from headrace_connect_worker.rpc.answering import answer
from headrace_connect_worker.rpc.kafka_shapes import Json
from headrace_connect_worker.rpc.models import answers, takes
from headrace_connect_worker.rpc.paths import LoggerName
from headrace_connect_worker.rpc.workers import Worker


def worker_routes(worker: Worker) -> APIRouter:
    """Asks and sets."""
    routes = APIRouter(tags=["worker"])

    @routes.get("/", operation_id="getWorker", responses=answers(models.Worker))
    async def about() -> Response:
        """Version, and the cluster that it works with."""
        about = worker.about
        return answer({"version": about.version, "commit": about.commit, "kafka_cluster_id": about.cluster_id()})

    @routes.get(
        "/health",
        operation_id="getHealth",
        responses=answers(models.Health) | answers(models.Health, 503, "It is still starting"),
    )
    async def health() -> Response:
        """Whether it has read everything once, and takes requests."""
        if worker.herd.is_ready:
            message = "Worker has completed startup and is ready to handle requests."
            return answer({"status": "healthy", "message": message})
        return answer({"status": "starting", "message": "Worker is still starting up."}, 503)

    @routes.get("/admin/loggers", operation_id="listLoggers", responses=answers(dict[str, models.LoggerLevel]))
    async def list_loggers() -> Response:
        """The loggers of this worker whose level was set."""
        return answer({name: _level(level) for name, level in worker.loggers.list_levels().items()})

    @routes.get("/admin/loggers/{logger}", operation_id="getLogger", responses=answers(models.LoggerLevel))
    async def get_logger(logger: LoggerName) -> Response:
        """The level that counts for a logger."""
        found = worker.loggers.find(logger)
        if found is None:
            raise HTTPException(404, f"Logger {logger[:200]} not found.")
        return answer(_level(found))

    @routes.put(
        "/admin/loggers/{logger}",
        operation_id="setLogger",
        responses=answers(list[str]),
        openapi_extra=takes(models.Level),
    )
    async def set_logger(
        request: Request,
        logger: LoggerName,
        scope: Annotated[str, Query(description="`worker`: this one alone.")] = "worker",
    ) -> Response:
        """Set the level of a logger and of all below it, until the worker ends; the names of those."""
        if scope.lower() != "worker":
            raise BadCommand(f"there is no scope {scope[:80]!r}: levels are set at each worker, scope=worker")
        level = commands.read_level(await request.body())
        changed = worker.loggers.set_level(logger, level)
        if changed is None:
            raise HTTPException(404, f"invalid log level '{level[:80]}'.")
        return answer(changed)

    return routes


def _level(level: LoggerLevel) -> Json:
    return {"level": level.level, "last_modified": level.changed_ms}
