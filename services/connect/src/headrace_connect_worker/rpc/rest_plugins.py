"""``/connector-plugins``: what can be named, its settings, and what is wrong with a configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from headrace_common.core.errors import InvalidConfig
from headrace_connect import converters, transforms
from headrace_connect.core.options import Option, Problem
from headrace_connect_worker.core import commands
from headrace_connect_worker.core.commands import CLASS
from headrace_connect_worker.core.refusals import BadCommand, NoSuchConnector
from headrace_connect_worker.ports import Plugin
from headrace_connect_worker.rpc import kafka_shapes, models
from headrace_connect_worker.rpc.answering import answer
from headrace_connect_worker.rpc.kafka_shapes import Json
from headrace_connect_worker.rpc.models import answers, takes
from headrace_connect_worker.rpc.paths import PluginName
from headrace_connect_worker.rpc.workers import Worker

_SUFFIX: Final = "Connector"


def plugin_routes(worker: Worker) -> APIRouter:
    """Hosts answer: no code of a connector runs in a worker."""
    routes = APIRouter(prefix="/connector-plugins", tags=["plugins"])

    @routes.get("", operation_id="listPlugins", responses=answers(list[models.Plugin]))
    async def list_plugins(
        connectors_only: Annotated[
            bool, Query(alias="connectorsOnly", description="False: converters, transforms and predicates too.")
        ] = True,
    ) -> Response:
        """The plugins that are installed."""
        found = [_plugin(plugin) for plugin in await worker.checking.plugins()]
        return answer(found if connectors_only else [*found, *_of_the_library()])

    @routes.get("/{plugin}/config", operation_id="getPluginConfig", responses=answers(list[models.ConfigKey]))
    async def plugin_config(plugin: PluginName) -> Response:
        """The settings of a plugin, of a connector after those that all have."""
        options = _options_of(plugin)
        if options is not None:
            return answer([kafka_shapes.option_key(option) for option in options if not option.name.endswith("*")])
        try:
            definitions = await worker.checking.describe(plugin)
        except (InvalidConfig, BadCommand) as error:
            raise NoSuchConnector(f"Unknown plugin {plugin[:80]}: {error}") from None
        return answer([kafka_shapes.config_key(one) for one in definitions if not one.family])

    @routes.put(
        "/{plugin}/config/validate",
        operation_id="validateConfig",
        responses=answers(models.ConfigInfos),
        openapi_extra=takes(None, nullable=True),
    )
    async def validate(request: Request, plugin: PluginName) -> Response:
        """Every setting with its value and what is wrong with it; whether the other system lets the connector in."""
        given = commands.read_changes(await request.body())
        included = given.get(CLASS)
        if included is None:
            raise BadCommand(f"Connector config contains no connector type: {CLASS} is missing")
        if not _normal(included).endswith(_normal(plugin)):
            raise BadCommand(f"Included connector type {included[:80]} does not match request type {plugin[:80]}")
        config = {key: value for key, value in given.items() if value is not None}
        nulls = [Problem(key, f"{key}: {_NULL}") for key, value in given.items() if value is None]
        definitions, problems = await worker.checking.look(config)
        return answer(kafka_shapes.config_infos(config, definitions, [*nulls, *problems]))

    return routes


_NULL: Final = "null value can not be supplied as the configuration value"


def _plugin(plugin: Plugin) -> Json:
    version = {"version": plugin.version} if plugin.version else {}
    return {"class": plugin.name, "type": plugin.kind or kafka_shapes.UNKNOWN, **version}


def _of_the_library() -> Iterator[Json]:
    kinds: Mapping[str, tuple[str, ...]] = {
        "converter": converters.NAMES,
        "transformation": transforms.TRANSFORMS,
        "predicate": transforms.PREDICATES,
    }
    for kind, names in kinds.items():
        yield from ({"class": name, "type": kind} for name in names)


def _options_of(plugin: str) -> tuple[Option, ...] | None:
    """Of a converter, a transform or a predicate; None: it is none of them."""
    for options_of in (converters.options_of, transforms.options_of):
        try:
            return options_of(plugin)
        except KeyError:
            continue
    return None


def _normal(plugin: str) -> str:
    return plugin.removesuffix(_SUFFIX) or plugin
