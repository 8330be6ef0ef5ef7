"""``/v1/streams``: programs of ``headrace.streams``, their tasks and what they have kept."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Mapping
from datetime import date, time
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from headrace_admin.engine.streams import Streams
from headrace_admin.rpc import models_streams as shapes
from headrace_common.runtime.access_gate import current_rights

AppPath = Annotated[str, Path(min_length=1, max_length=249)]
StorePath = Annotated[str, Path(min_length=1, max_length=255)]
KeyPath = Annotated[str, Path(max_length=32_768, description="The key, or its first column.")]
Columns = Annotated[
    list[str], Query(default_factory=list, max_length=100, description="Further columns of the key, in their order.")
]


def streams_routes(streams: Streams) -> APIRouter:
    """All routes of this module."""
    routes = APIRouter(prefix="/v1/streams", tags=["streams"])

    @routes.get("", operation_id="list_streams_apps")
    async def list_apps() -> shapes.StreamsApps:
        """The programs that have topics of their own, and how many workers of each run."""
        found = await streams.apps(current_rights())
        apps = [shapes.StreamsApp(app=one.app, members=one.members, topics=list(one.topics)) for one in found]
        return shapes.StreamsApps(apps=apps)

    @routes.get("/{app}/tasks", operation_id="list_streams_tasks")
    async def list_tasks(app: AppPath) -> shapes.StreamsTasks:
        """The tasks of a program, and which workers run and follow them."""
        group = await streams.describe(app)
        endpoints = {member.member_id: member.endpoint or None for member in group.members}
        tasks = [
            shapes.StreamsTask(
                task=one.item.id,
                stateful=one.item.stateful,
                owner=one.owner or None,
                endpoint=endpoints.get(one.owner),
                epoch=one.epoch,
                standbys=[
                    shapes.StreamsFollower(
                        member_id=follower.member_id,
                        endpoint=endpoints.get(follower.member_id),
                        warm_up=follower.warm_up,
                        lag=follower.lag if follower.HasField("lag") else None,
                    )
                    for follower in one.followers
                ],
            )
            for one in group.items
        ]
        return shapes.StreamsTasks(app=app, tasks=tasks)

    @routes.get("/{app}/stores", operation_id="list_streams_stores")
    async def list_stores(app: AppPath) -> shapes.StreamsStores:
        """What a program keeps. A worker of it is asked: workers need `--query-listen`."""
        stores = [
            shapes.StreamsStore(
                store=one.name,
                sub_topology=one.sub_topology,
                partitions=one.partitions,
                key_columns=[shapes.StreamsColumn(name=name, type=of) for name, of in one.key_columns.items()],
            )
            for one in await streams.stores(app)
        ]
        return shapes.StreamsStores(app=app, stores=stores)

    @routes.get("/{app}/stores/{store}/keys/{key:path}", operation_id="read_streams_key")
    async def read_key(app: AppPath, store: StorePath, key: KeyPath, column: Columns) -> shapes.StreamsRows:
        """What a program has kept of one key; 404 where that is nothing."""
        rows = await streams.rows(app, store, [key, *column])
        return shapes.StreamsRows(app=app, store=store, rows=[plain(row) for row in rows])

    return routes


def plain(value: Any) -> Any:
    """A value of a row as JSON can say it: times in ISO 8601; numbers that JSON has not, and other types, as text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return b64encode(value).decode()
        case date() | time():
            return value.isoformat()
        case list():
            return [plain(one) for one in value]
        case Mapping():
            return {str(name): plain(one) for name, one in value.items()}
    return str(value)
