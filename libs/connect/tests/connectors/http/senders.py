"""Senders of web hooks, who ask until they are answered with 202; and a hook that is asked without a network."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from starlette.types import Message

from headrace_common.core.ids import Endpoint
from headrace_common.runtime.clock import give_way
from headrace_common.runtime.tasks import TaskRunner
from headrace_connect.connectors.http import HttpSource
from headrace_connect.connectors.http.hook import Hook
from headrace_connect.connectors.http.settings import SourceSettings
from headrace_connect.plugin import Chunk, Position, Split

SPLIT = Split("requests")


@dataclass
class Hooked:
    """A source whose hook is asked in memory; its chunks are pulled by hand."""

    source: HttpSource
    hook: list[Hook]
    client: httpx.AsyncClient
    tasks: TaskRunner
    chunks: AsyncIterator[Chunk] | None = None
    rows: list[Any] = field(default_factory=list)

    async def post(self, body: Any, path: str = "/", **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post(path, content=content, headers=named)

    def posting(self, body: Any, **headers: str) -> asyncio.Task[httpx.Response]:
        return self.tasks.start(self.post(body, **headers), name="sender")

    async def read(self, after: Position | None = None, *, waits: bool = False) -> None:
        """Begin to read there; up to the first empty chunk, unless there is something that waits."""
        self.chunks = self.source.read(SPLIT, after)
        if not waits:
            assert list((await anext(self.chunks)).rows) == []

    async def chunk(self) -> Chunk:
        assert self.chunks is not None
        chunk = await anext(self.chunks)
        self.rows += list(chunk.rows)
        return chunk

    async def until_waiting(self, count: int) -> None:
        while self.source._room.requests < count or not self.source._intakes[0].waits:
            await give_way()


@asynccontextmanager
async def hooked(*, traces: bool = False, **values: Any) -> AsyncIterator[Hooked]:
    """One that reads from its beginning."""
    hooks: list[Hook] = []

    @asynccontextmanager
    async def serve(hook: Hook, _: SourceSettings) -> AsyncIterator[Endpoint]:
        hooks.append(hook)
        yield Endpoint("memory", 1)

    source = type("Memory", (HttpSource,), {"serve": staticmethod(serve)})(SourceSettings(**values))
    source.traces = traces

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await hooks[-1](scope, receive, send)

    transport = httpx.ASGITransport(app)
    async with TaskRunner() as tasks, httpx.AsyncClient(transport=transport, base_url="http://hook.test") as client:
        made = Hooked(source, hooks, client, tasks)
        await made.read()
        try:
            yield made
        finally:
            await source.stop()


@dataclass
class Senders:
    """Bodies by their ids, each sent until it is answered with 202."""

    bodies: Mapping[str, Any]
    done: set[str] = field(default_factory=set)
    answers: list[int] = field(default_factory=list)
    taken: bool = False
    """Whether somebody else has the address."""
    cut: asyncio.Event = field(default_factory=asyncio.Event)
    """Ends all connections there are."""

    def make(self, **values: Any) -> HttpSource:
        """An instance that all senders which are not done ask at once when it listens."""
        settings = SourceSettings(id_header="X-Id", **values)
        return type("Sent", (HttpSource,), {"serve": staticmethod(self._serve), "chunk_rows": 4})(settings)

    def cut_connections(self) -> None:
        """All that there are."""
        cut, self.cut = self.cut, asyncio.Event()
        cut.set()

    @asynccontextmanager
    async def _serve(self, hook: Hook, settings: SourceSettings) -> AsyncIterator[Endpoint]:
        if self.taken:
            raise OSError(errno.EADDRINUSE, "address already in use")
        left = [id_ for id_ in self.bodies if id_ not in self.done]

        async def ask(id_: str) -> None:
            body, status = json.dumps(self.bodies[id_]).encode(), 0
            while not status:  # its connection was cut: at once over another one
                status = await asked(hook, settings.route, body, {"X-Id": id_}, self.cut)
            self.answers.append(status)
            if status == 202:
                self.done.add(id_)

        async with TaskRunner() as tasks:
            for id_ in left:
                tasks.start(ask(id_), name=id_)
            await give_way()  # each is read and offered at once: nothing in it waits
            yield Endpoint("memory", 1)


async def asked(
    hook: Hook, path: str, body: bytes, headers: Mapping[str, str], cut: asyncio.Event | None = None
) -> int:
    """
    The status of an answer, as an ASGI server gets it from an application; quicker than a client. 0: ``cut`` came
    before.
    """
    named = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": path, "headers": named}
    sent: list[Message] = []
    ends = cut or asyncio.Event()
    bodies: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if not bodies:
            await ends.wait()
            return {"type": "http.disconnect"}
        return bodies.pop()

    async def send(message: Message) -> None:
        sent.append(message)

    await hook(scope, receive, send)
    return 0 if ends.is_set() else int(sent[0]["status"])
