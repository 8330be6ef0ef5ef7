"""The source ``http-source``: a web hook whose senders are answered when their records are in the topic."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Any, ClassVar, Final

from headrace_common.core.ids import Endpoint
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.entropy import new_uuid
from headrace_connect.connectors.http.client import needs_http
from headrace_connect.connectors.http.intake import Arrival, Intake, Room
from headrace_connect.connectors.http.settings import SourceSettings
from headrace_connect.plugin import Chunk, Position, RetriableError, Source, Split
from headrace_connect.settings import Problem, invalid

if TYPE_CHECKING:
    from headrace_connect.connectors.http.hook import Hook

_CHUNK_BYTES: Final = 4 << 20
_SHARE: Final = "share"
_log: Final = logging.getLogger(__name__)

Serve = Callable[["Hook", SourceSettings], AbstractAsyncContextManager[Endpoint]]
"""Has the hook asked for the length of a block; gives where."""


class HttpSource(Source[SourceSettings]):
    """Requests of a web hook, each answered with 202 when it is committed."""

    serve: ClassVar[Serve | None] = None
    """Who has the hook asked; None: a server that listens. For tests."""
    chunk_rows: int = 1_000

    def __init__(self, settings: SourceSettings) -> None:
        super().__init__(settings)
        by = new_uuid().replace("-", "")[:12]
        self._room = Room(settings.queue_requests, settings.queue_bytes)
        size = -(-settings.id_window // settings.windows)
        self._intakes = [Intake(by, self._room, size) for _ in range(settings.windows)]
        self._opening = asyncio.Lock()
        self._serving: AsyncExitStack | None = None
        self.endpoint: Endpoint | None = None
        """Where it listens; None: not yet."""

    def check(self) -> Sequence[str]:
        """See ``Connector``; whether the address can be listened on. Somebody may listen there already: it itself."""
        listen = self.settings.endpoint
        family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_STREAM) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind((listen.host, listen.port))
        except PermissionError:
            return [f"listen: {listen} needs more rights than this process has; use a port from 1024 on"]
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return [f"listen: {listen} is no address of this machine: {error.strerror or error}"]
        return []

    def splits(self) -> Sequence[Split]:
        """One, or one for each share of the ids; all are read by one task: an address can be listened on once."""
        count = len(self._intakes)
        if count == 1:
            return (Split("requests"),)
        return [Split(f"requests-{count}-{share}", {_SHARE: share}) for share in range(count)]

    async def stop(self) -> None:
        """See ``Connector``; whoever waits is told to ask again."""
        for intake in self._intakes:
            intake.close()
        serving, self._serving = self._serving, None
        if serving is not None:
            await serving.aclose()

    async def read(self, split: Split, after: Position | None) -> AsyncIterator[Chunk]:
        """
        See ``Source``.

        Raises:
            InvalidConfig: ``after`` is no position of a web hook.
            RetriableError: somebody else listens there.
        """
        intake = self._intake_of(split)
        try:
            intake.resume(after)
        except ValueError as wrong:
            raise invalid([Problem("", f"{wrong}; delete the connector's offsets")]) from wrong
        await self._listen()
        if not intake.waits:
            yield Chunk([], intake.position if after is None else after, drained=True)
        while True:
            await intake.come()
            yield self._chunk(intake.hand(self.chunk_rows, _CHUNK_BYTES), intake)

    async def preview(self, split: Split) -> AsyncIterator[Chunk]:
        """Nothing: what a sender was told of a preview would be lost."""
        yield Chunk([], {}, drained=True)

    async def committed(self, split: Split, position: Position) -> None:
        """See ``Source``; the senders are answered."""
        self._intake_of(split).confirm(position)

    def _intake_of(self, split: Split) -> Intake:
        return self._intakes[int(split.detail.get(_SHARE, 0))]

    def _chunk(self, chosen: Sequence[Arrival], intake: Intake) -> Chunk:
        rows: list[Any] = []
        times: list[int | None] = []
        headers: list[Sequence[tuple[str, bytes]]] = []
        for arrival in chosen:
            own = arrival.body.to_list()
            rows += own
            times += [arrival.received_ms] * len(own)
            headers += [arrival.headers] * len(own)
        return Chunk(
            rows,
            intake.position,
            timestamps_ms=times,
            headers=headers if self.settings.headers_include or self.traces else None,
            boundary=True,
            drained=not intake.waits,
        )

    async def _listen(self) -> None:
        """
        Raises:
            RetriableError: the address cannot be had now.
        """
        async with self._opening:
            if self._serving is None:
                await self._open()

    async def _open(self) -> None:
        with needs_http():
            from headrace_connect.connectors.http.hook import Hook
            from headrace_connect.connectors.http.serving import serve
        hook = Hook(self.settings, self._room, self._intakes, SystemClock(), traces=self.traces)
        async with AsyncExitStack() as stack:
            try:
                self.endpoint = await stack.enter_async_context((type(self).serve or serve)(hook, self.settings))
            except OSError as error:
                raise RetriableError(f"listen: {error}") from error
            self._serving = stack.pop_all()
        if not self.settings.secrets:
            _log.warning("the web hook at %s takes records of whoever reaches it: set signature.secret", self.endpoint)
