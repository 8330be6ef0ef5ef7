"""
Has a command carried out by who leads: here, or by the worker that does, one hop away.

A request that was forwarded has ``?forward=false``, as between Kafka's workers, and is not forwarded again: who leads
may change meanwhile, and then it is 409.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Annotated, Final, TypeAlias
from urllib.parse import urlsplit

from fastapi import Query, Request
from starlette.responses import Response

from headrace_common.core.errors import CoordinatorNotAvailable
from headrace_common.runtime.clock import pause_ms
from headrace_common.runtime.tasks import first_of
from headrace_connect_worker.core.refusals import Conflict, NotLeader
from headrace_connect_worker.ports import Forwarded, Forwarding, Herd, Leader
from headrace_connect_worker.rpc.answering import forwarded
from headrace_connect_worker.rpc.callers import current_caller, purpose_of, show_ticket

Select: TypeAlias = Callable[[bytes], Awaitable[Response]]
FORWARD = "forward"
Forward = Annotated[bool | None, Query(include_in_schema=False)]
"""Parameter of each route that forwards: False in requests of other workers."""
_LOOK_MS: Final = 100.0
_MOVED: Final = (
    "Cannot complete request because of a conflicting operation: another worker leads by now, and the one before did "
    "not answer; it may have carried the request out. Look, and ask again"
)


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

    async def do(
        self,
        request: Request,
        forward: bool | None,
        command: Callable[[], Awaitable[Response]],
        *,
        select: Select | None = None,
    ) -> Response:
        """
        The answer of ``command``, where this worker leads; else that of the leader to the same request.

        Args:
            select: makes of what the leader tells this worker, which is everything, what the caller is told; None: the
                leader is asked in the caller's name.

        Raises:
            Conflict: nobody leads for now, or the leader is another one than who forwarded it knew; or another one
                leads before that one answered, which may have carried it out.
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
        return await self._forward(request, url, select)

    async def _forward(self, request: Request, url: str, select: Select | None) -> Response:
        query = [(name, value) for name, value in request.query_params.multi_items() if name != FORWARD]
        body = await request.body()
        answers: list[Forwarded] = []

        async def send() -> None:
            path = request.scope["path"]
            ticket = await current_caller().ticket_for(
                urlsplit(url).netloc, purpose_of(request.method, path), as_worker=select is not None
            )
            shown = show_ticket(ticket) if ticket else ""
            asked = [*query, (FORWARD, "false")]
            answers.append(await self._forwarding.send(url, request.method, path, asked, body, shown))

        await first_of(send(), self._until_moved(url, self._herd.leader))
        if not answers:
            raise Conflict(_MOVED)
        (answer,) = answers
        if answer.status == HTTPStatus.UNAUTHORIZED:  # of the ticket; the caller itself was let in here
            raise CoordinatorNotAvailable("the worker that leads does not take the ticket it was shown; ask again")
        if select is not None and answer.status == HTTPStatus.OK:
            return await select(answer.body)
        headers = {}
        if answer.location is not None:
            headers["location"] = at_own_address(request, urlsplit(answer.location).path)
        return forwarded(answer.status, answer.body, request.scope["path"], headers)

    async def _until_moved(self, url: str, before: Leader | None) -> None:
        """A leader that stands still answers nobody, and writes nothing any more when another one has its place."""
        while (leader := self._herd.leader) == before or (leader is not None and leader.url == url):
            await pause_ms(_LOOK_MS)


def at_own_address(request: Request, path: str) -> str:
    """The URL of ``path``, which is encoded, as the caller reaches this worker."""
    return f"{str(request.base_url).rstrip('/')}{path}"
