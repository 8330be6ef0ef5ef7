"""Taps in memory, and what reads them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from libs.connect.tests.connectors.singer import tap_shop

from headrace_common.runtime.clock import give_way
from headrace_connect.connectors.singer import SingerSource
from headrace_connect.connectors.singer.lines import Line
from headrace_connect.connectors.singer.settings import SourceSettings
from headrace_connect.connectors.singer.tap import TapFailed
from headrace_connect.plugin import Chunk, Position


def settings(**values: Any) -> SourceSettings:
    return SourceSettings(**{"tap_executable": "tap-shop", "config": {}} | values)


def lines_of(messages: Iterable[Any]) -> list[Line]:
    """As a tap writes them; texts and bytes as they are."""
    made = []
    for number, one in enumerate(messages, 1):
        text = one if isinstance(one, bytes) else one.encode() if isinstance(one, str) else json.dumps(one).encode()
        made.append(Line(text, number, len(text)))
    return made


@dataclass
class ShopTap:
    """Satisfies ``Tap``: ``tap_shop`` in memory, which writes a few lines at a time."""

    at_once: int = 3
    away: bool = False
    """Whether what it reads is: it does not start, and ends where it stands."""

    async def discover(self, config: Mapping[str, Any]) -> bytes:
        self._reach()
        return json.dumps(tap_shop.discover()).encode()

    async def run(self, config: Mapping[str, Any], files: Mapping[str, Any]) -> AsyncGenerator[Sequence[Line], None]:
        catalog = files.get("--catalog", files.get("--properties"))
        lines = lines_of(tap_shop.messages(dict(config), files.get("--state"), catalog))
        for begin in range(0, len(lines), self.at_once):
            await give_way()
            self._reach()
            yield lines[begin : begin + self.at_once]

    def _reach(self) -> None:
        if self.away:
            raise TapFailed("the tap ended with 1: the shop does not answer")


@dataclass
class SaidTap:
    """Satisfies ``Tap``: each run says the next of these; None ends the run with a failure."""

    runs: Sequence[Sequence[Any]]
    catalog: Any = None
    states: list[Any] = field(default_factory=list)
    """That it was started with."""
    catalogs: list[Any] = field(default_factory=list)
    killed: int = 0

    async def discover(self, config: Mapping[str, Any]) -> bytes:
        return self.catalog if isinstance(self.catalog, bytes) else json.dumps(self.catalog).encode()

    async def run(self, config: Mapping[str, Any], files: Mapping[str, Any]) -> AsyncGenerator[Sequence[Line], None]:
        number = len(self.states)
        self.states.append(files.get("--state"))
        self.catalogs.append(files.get("--catalog", files.get("--properties")))
        said = self.runs[number] if number < len(self.runs) else ()
        try:
            for line in lines_of(one for one in said if one is not None):
                yield [line]
        except GeneratorExit:
            self.killed += 1
            raise
        if None in said:
            raise TapFailed("the tap ended with 1")


def source_of(tap: Any, of: SourceSettings | None = None) -> SingerSource:
    class Read(SingerSource):
        make_tap = staticmethod(lambda _: tap)

    return Read(of or settings(tap_discover=tap_knows(tap), run_interval_ms=1))


def tap_knows(tap: Any) -> bool:
    return isinstance(tap, ShopTap) or getattr(tap, "catalog", None) is not None


def values_of(chunk: Chunk) -> list[tuple[str | None, list[Any]]]:
    """Topic and records of each part."""
    return [(one.topic, listed(one.rows)) for one in (chunk, *chunk.further) if len(one.rows)]


def listed(rows: Any) -> list[Any]:
    return rows.to_pylist() if isinstance(rows, pa.Array) else list(rows)


async def take(source: SingerSource, after: Position | None = None, runs: int = 1) -> list[Chunk]:
    """Chunks of so many runs, without those that say that one has ended."""
    [split] = await source.splits()
    found: list[Chunk] = []
    async with aclosing(source.read(split, after)) as chunks:
        async for chunk in chunks:
            runs -= chunk.drained
            if not chunk.drained:
                found.append(chunk)
            if not runs:
                break
    return found


def stream(name: str = "orders", /, *, keys: Sequence[str] = ("id",), bookmark: str = "", **properties: Any) -> Any:
    """A SCHEMA message."""
    schema = {"type": "object", "properties": properties or {"id": {"type": "integer"}}}
    said = {"type": "SCHEMA", "stream": name, "schema": schema, "key_properties": list(keys)}
    return said | ({"bookmark_properties": [bookmark]} if bookmark else {})


def record(name: str = "orders", /, **values: Any) -> Any:
    """A RECORD message."""
    return {"type": "RECORD", "stream": name, "record": values}


def state(value: Any) -> Any:
    """A STATE message."""
    return {"type": "STATE", "value": value}
