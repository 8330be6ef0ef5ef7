"""Records over REST are written and read as the caller: whose API key brokers are shown, and how long it is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from libs.common.tests.kit.closed import key_of, key_text
from services.admin.tests.kit.known import Known

from headrace import aio
from headrace_admin.adapters.headrace_messages import PRODUCERS_MAX, HeadraceMessages
from headrace_admin.ports import NewMessage
from headrace_common.core.access.authentication import Shown
from headrace_common.core.access.state import Caller
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.image import EMPTY_IMAGE
from headrace_common.rpc.node_gate import NodeGate
from headrace_common.runtime.access_gate import Access, current_bearer
from headrace_common.runtime.clock import SystemClock

ONE = [NewMessage(b"x")]


@dataclass
class Clients:
    """What was opened in place of the SDK's clients."""

    opened: list[Any] = field(default_factory=list)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def producers(self) -> list[tuple[str | None, bool]]:
        """The key of each, and whether it is closed."""
        return [(one.shows, one.closed) for one in self.opened]


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Clients:
    made = Clients()
    made.go_on.set()

    class Client:
        def __init__(self, servers: Any = None, *, bootstrap_servers: Any = None, **settings: Any) -> None:
            key = (servers or bootstrap_servers).api_key
            self.shows, self.closed = None if key is None else key.reveal(), False
            made.opened.append(self)

        async def send(self, *args: Any, **fields: Any) -> Any:
            assert current_bearer() is None, "what the client starts is not the caller's"

            async def delivered() -> Any:
                await made.go_on.wait()
                return SimpleNamespace(partition=0, offset=7, timestamp_ms=1)

            return delivered()

        async def end_offsets(self, partitions: Any) -> Any:
            return dict.fromkeys(partitions, 5)

        async def close(self) -> None:
            self.closed = True

    monkeypatch.setattr(aio, "Producer", Client)
    monkeypatch.setattr(aio, "Consumer", Client)
    return made


@pytest.fixture
async def log() -> AsyncIterator[HeadraceMessages]:
    cluster: Any = Known({NodeId(1): Endpoint("127.0.0.1", 1)})
    made = HeadraceMessages(cluster, credential=current_bearer)
    yield made
    await made.close()


def serving(who: str | None) -> Any:
    """As the gate has it around a request."""
    access = Access(lambda: EMPTY_IMAGE, NodeGate(), SystemClock())
    return access.serving(Shown(Caller(key_of(who or "nobody").owner), None if who is None else key_text(who)))


async def append(log: HeadraceMessages, who: str | None) -> None:
    with serving(who):
        assert [one.offset for one in await log.append("orders", ONE)] == [7]


async def test_each_caller_has_a_producer_of_its_own(log: HeadraceMessages, clients: Clients) -> None:
    for who in ("alice", "bob", "alice", None):
        await append(log, who)
    assert clients.producers == [(key_text("alice"), False), (key_text("bob"), False), (None, False)]


async def test_who_reads_shows_its_key(log: HeadraceMessages, clients: Clients) -> None:
    with serving("alice"):
        assert await log.end("orders", 0) == 5
    assert clients.producers == [(key_text("alice"), True)]


async def test_a_producer_is_closed_when_nobody_uses_it_any_more(log: HeadraceMessages, clients: Clients) -> None:
    for who in ("alice", "bob", None):
        await append(log, who)
    await log.close_idle()
    await append(log, "bob")
    await log.close_idle()
    assert clients.producers == [(key_text("alice"), True), (key_text("bob"), False), (None, False)]
    await log.close_idle()
    assert clients.producers[1:] == [(key_text("bob"), True), (None, False)]
    await append(log, "alice")
    assert clients.producers[-1] == (key_text("alice"), False)


async def test_what_is_in_use_stays(log: HeadraceMessages, clients: Clients) -> None:
    clients.go_on.clear()
    under_way = asyncio.ensure_future(append(log, "alice"))
    while not clients.opened:
        await asyncio.sleep(0)
    await log.close_idle()
    await log.close_idle()
    clients.go_on.set()
    for n in range(PRODUCERS_MAX - 1):
        await append(log, f"u{n}")
    await under_way
    assert not any(closed for _, closed in clients.producers)


async def test_so_many_are_kept_and_the_oldest_goes(log: HeadraceMessages, clients: Clients) -> None:
    for n in range(PRODUCERS_MAX):
        await append(log, f"u{n}")
    await append(log, "u0")
    await append(log, "another")
    assert [shows for shows, closed in clients.producers if closed] == [key_text("u1")]
    await log.close()
    assert all(closed for _, closed in clients.producers)
