"""
Has a command carried out by who leads: here, or by the worker that does, one hop away.

A request that was forwarded has ``?forward=false``, as between Kafka's workers, and is not forwarded again: who leads
may change meanwhile, and then it is 409.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Query, Request
from starlette.responses import Response

from headrace_connect_worker.core.refusals import Conflict, NotLeader
from headrace_connect_worker.ports import Forwarding, Herd

FORWARD = "forward"
Forward = Annotated[bool | None, Query(include_in_schema=False)]
"""Parameter of each route that forwards: False in requests of other workers."""


class AtLeader:
    """Carries out commands where the leader is."""

    def __init__(self, herd: Herd, forwarding: Forwarding, url: Callable[[], str]) -> None:
        """
        Args:
            url: of this worker, as the others know it.
        """
        self._herd = herd
        self._forwarding = forwarding
        self._url = url

    async def do(self, request: Request, forward: bool | None, command: Callable[[], Awaitable[Response]]) -> Response:
        """
        The answer of ``command``, where this worker leads; else that of the leader to the same request.

        Raises:
            Conflict: nobody leads for now, or the leader is another one than who forwarded it knew.
            HeadraceError: the leader does not answer.
        """
        leader = self._herd.leader
        if leader is not None and leader.is_me:
            try:
                return await command()
            except NotLeader as moved:
                url = moved.url
        else:
            url = None if leader is None else leader.url
        if url is None or url == self._url():  # it is to lead, and does not yet
            raise NotLeader(None)
        if forward is False:
            raise Conflict("Cannot complete request because of a conflicting operation: another worker leads by now")
        return await self._forward(request, url)

    async def _forward(self, request: Request, url: str) -> Response:
        query = [(name, value) for name, value in request.query_params.multi_items() if name != FORWARD]
        answer = await self._forwarding.send(
            url, request.method, request.scope["path"], [*query, (FORWARD, "false")], await request.body()
        )
        headers = {}
        if answer.location is not None:
            headers["location"] = at_own_address(request, urlsplit(answer.location).path)
        return Response(answer.body, answer.status, headers, "application/json" if answer.body else None)


def at_own_address(request: Request, path: str) -> str:
    """The URL of ``path``, which is encoded, as the caller reaches this worker."""
    return f"{str(request.base_url).rstrip('/')}{path}"
