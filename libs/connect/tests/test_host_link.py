"""The two ends of a host's pipe."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import pytest

from headrace_connect.core import host_messages as messages
from headrace_connect.core.host_messages import Command, Report
from headrace_connect.core.host_protocol import NotAMessage
from headrace_connect.runtime import host_link
from headrace_connect.runtime.host_link import Link, LinkLost, open_host_end, open_worker_end

Ends = tuple[Link[Command, Report], Link[Report, Command]]


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    one, other = socket.socketpair()
    worker, host = await open_worker_end(one), await open_host_end(other)
    yield worker, host
    worker.close()
    host.close()


async def test_both_ends_speak_and_hear_when_the_other_has_closed(ends: Ends) -> None:
    worker, host = ends
    worker.send(messages.Ping(1))
    worker.send(messages.Ping(2))
    assert [await host.receive(), await host.receive()] == [messages.Ping(1), messages.Ping(2)]
    host.send(messages.Pong(1))
    host.close()
    assert await worker.receive() == messages.Pong(1), "what was sent before still comes"
    assert await worker.receive() is None
    with pytest.raises(LinkLost, match="closed"):
        host.send(messages.Pong(2))


async def test_half_a_line_is_of_one_who_died_over_it() -> None:
    one, other = socket.socketpair()
    worker = await open_worker_end(one)
    other.sendall(b'{"v":1,"type":"Pong","num')
    other.close()
    assert await worker.receive() is None
    worker.close()


async def test_a_line_without_end_is_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_link, "LINE_BYTES_MAX", 1_000)
    one, other = socket.socketpair()
    worker = await open_worker_end(one)
    other.sendall(b"x" * 5_000)
    with pytest.raises(NotAMessage, match="a line of more than"):
        await worker.receive()
    other.close()
    worker.close()


async def test_an_end_that_reads_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_link, "UNREAD_BYTES_MAX", 100_000)
    one, other = socket.socketpair()
    worker = await open_worker_end(one)
    watch = messages.Watch("a", 1, {"k": "x" * 50_000})

    def flood() -> None:
        for _ in range(1_000):
            worker.send(watch)

    with pytest.raises(LinkLost, match="unread"):
        flood()
    with pytest.raises(LinkLost):
        worker.send(messages.Ping(1))
    other.close()
