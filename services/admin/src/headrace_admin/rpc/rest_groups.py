"""
``/v1/groups``: who reads together, how far they are behind, and where they go on.

A group's id may be any text, slashes included. ``/lag`` behind it is told from an id that ends so by the path as it
came: ``a/lag`` is the lag of ``a``, ``a%2Flag`` the group ``a/lag``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, status
from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope

from headrace_admin.core.resets import At, Current, Earliest, Latest, ShiftBy, Since, Target
from headrace_admin.engine.groups import Groups
from headrace_admin.engine.resets import Ago, Resets
from headrace_admin.rpc import answer_types
from headrace_admin.rpc import groups_out as out
from headrace_admin.rpc import models_groups as shapes
from headrace_admin.rpc.groups_out import given
from headrace_common.core.errors import HeadraceError, Rejected
from headrace_common.core.moments import parse_duration_ms, parse_moment_ms
from headrace_common.rpc import answers
from headrace_proto.v1 import coordinator_pb2 as pb

GroupPath = Annotated[str, Path(min_length=1, max_length=249)]

_POSITIONS: Final[Mapping[str, Target]] = {"earliest": Earliest(), "latest": Latest(), "current": Current()}


class LagRoute(APIRoute):
    """Takes only a path that ends in ``/lag`` as it came, before ``%2F`` was read as a slash."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """As the router asks."""
        path: bytes = scope.get("raw_path") or scope["path"].encode()
        return super().matches(scope) if path.partition(b"?")[0].endswith(b"/lag") else (Match.NONE, {})


def group_routes(groups: Groups, resets: Resets) -> APIRouter:
    """All routes of this module."""
    routes = APIRouter(prefix="/v1/groups", tags=["groups"])
    _looking(routes, groups)
    _changing(routes, groups, resets)
    return routes


def _looking(routes: APIRouter, groups: Groups) -> None:
    @routes.get("", operation_id="list_groups")
    async def list_groups(
        state: Annotated[shapes.State | None, Query(description="Only groups in this state.")] = None,
    ) -> answer_types.Groups:
        """The groups of all coordinators, and which shards could not be asked."""
        states = [] if state is None else [pb.GroupState.Value(state.upper())]
        return answers.groups(out.listing_message(await groups.listing(states)))

    async def describe_group_lag(
        group: GroupPath,
        topic: Annotated[list[str], Query(default_factory=list, max_length=100, description="Only these topics.")],
        seconds: Annotated[bool, Query(description="Also how old the first unread records are.")] = True,
    ) -> answer_types.GroupLag:
        """How far a group is behind, in records and in seconds."""
        described, lags = await groups.lag(group, topic, ages=seconds)
        return answers.lag(group, out.lag_message(described, lags))

    routes.add_api_route(
        "/{group:path}/lag",
        describe_group_lag,
        methods=["GET"],
        operation_id="describe_group_lag",
        route_class_override=LagRoute,
    )

    @routes.get("/{group:path}", operation_id="describe_group")
    async def describe_group(group: GroupPath) -> answer_types.Group:
        """A group with its members and what they hold."""
        described = (await groups.describe([group]))[group]
        if isinstance(described, HeadraceError):
            raise described
        return answers.group(described)


def _changing(routes: APIRouter, groups: Groups, resets: Resets) -> None:
    @routes.post("/{group:path}/offsets/reset", operation_id="reset_offsets")
    async def reset_offsets(group: GroupPath, body: shapes.Reset) -> answer_types.ResetPlan:
        """Plan where a group goes on, or, with `execute`, set it. Also makes a group that does not exist yet."""
        reset = await resets.reset(group, named(body.topics), target_of(body), execute=body.execute)
        return answers.reset(group, out.reset_message(reset))

    @routes.post("/{group:path}/offsets/delete", operation_id="delete_offsets")
    async def delete_offsets(group: GroupPath, body: shapes.DeleteOffsets) -> answer_types.OffsetOutcomes:
        """Forget committed offsets of topics that no member subscribes to. Each succeeds or fails by itself."""
        return answers.deleted_offsets(
            group, out.offset_results(await groups.delete_offsets(group, named(body.topics)))
        )

    @routes.delete("/{group:path}", operation_id="delete_group", status_code=status.HTTP_204_NO_CONTENT)
    async def delete_group(
        group: GroupPath,
        confirm: Annotated[str, Query(max_length=249, description="The group's id once more.")] = "",
    ) -> None:
        """Forget a group without members, and all that it has committed, for good."""
        if confirm != group:
            raise Rejected(f"deleting {group!r} loses its positions in all topics; to confirm it, add ?confirm={group}")
        error = (await groups.delete([group]))[group]
        if error is not None:
            raise error


def named(topics: Iterable[shapes.TopicIn]) -> list[tuple[str, Collection[int]]]:
    """Topics with numbers of partitions; none: all of the topic."""
    return [(t.topic, t.partitions) for t in topics]


def target_of(body: shapes.Reset) -> Target | Ago:
    """
    Where a reset goes.

    Raises:
        Rejected: not exactly one place is said, or it cannot be read.
    """
    said: list[Target | Ago] = []
    if body.to is not None:
        said.append(_POSITIONS[body.to])
    if body.to_datetime is not None:
        said.append(Since(parse_moment_ms(str(body.to_datetime))))
    if body.to_offset is not None:
        said.append(At(body.to_offset))
    if body.shift_by is not None:
        said.append(ShiftBy(body.shift_by))
    if body.by_duration is not None:
        said.append(Ago(parse_duration_ms(body.by_duration)))
    if body.offsets is not None:
        said.append(given((o.topic, o.partition, o.offset) for o in body.offsets))
    if len(said) != 1:
        raise Rejected("say exactly one of to, to_datetime, to_offset, shift_by, by_duration, offsets")
    return said[0]
