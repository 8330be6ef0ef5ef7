"""An HTTP server as a sink's target, in memory: it keeps what it takes, and answers as it is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from headrace_connect.connectors.http import HttpSink
from headrace_connect.connectors.http.sink_settings import SinkSettings

URL = "http://target.test/orders"
Reply = httpx.Response | Exception


@dataclass
class Target:
    """``bad`` are numbers that it refuses; ``replies`` are given first, before anything is taken."""

    knows: str = ""
    """``request``: it does not take a request with a key again; ``record``: nor a record with an id."""
    bad: frozenset[int] = frozenset()
    replies: list[Reply] = field(default_factory=list)
    after: list[Reply] = field(default_factory=list)
    """Given when a request was taken, instead of the answer."""
    away: bool = False
    requests: list[httpx.Request] = field(default_factory=list)
    stored: list[int] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    """Keys of requests."""
    ids: set[str] = field(default_factory=set)
    """Of records."""

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if self.away:
            raise httpx.ConnectError("refused")
        self.requests.append(request)
        if self.replies:
            return give(self.replies.pop(0))
        items = parsed(request)
        if any(number_of(item) in self.bad for item in items):
            return httpx.Response(422, text="a bad number")
        key = request.headers.get("idempotency-key", "")
        if self.knows == "request" and key in self.seen:
            return httpx.Response(200)
        self.seen.add(key)
        for item in items:
            id_ = item.get("id", "")
            if self.knows == "record" and id_ in self.ids:
                continue
            self.ids.add(id_)
            self.stored.append(number_of(item))
        return give(self.after.pop(0)) if self.after else httpx.Response(201)

    @property
    def keys(self) -> list[str]:
        """Of the requests."""
        return [one.headers.get("idempotency-key", "") for one in self.requests]


def give(reply: Reply) -> httpx.Response:
    if isinstance(reply, Exception):
        raise reply
    return reply


def parsed(request: httpx.Request) -> list[Any]:
    if request.headers["content-type"] == "application/x-ndjson":
        return [json.loads(line) for line in request.content.splitlines()]
    value = json.loads(request.content)
    return value if isinstance(value, list) else [value]


def number_of(item: Any) -> int:
    return int(item.get("value", item)["n"])


def sink_on(target: Callable[[httpx.Request], httpx.Response], **values: Any) -> HttpSink:
    """A sink that asks ``target`` instead of the network."""
    sink = HttpSink(SinkSettings(**{"url": URL} | values))
    sink.transport = httpx.MockTransport(target)  # type: ignore[misc]
    return sink
