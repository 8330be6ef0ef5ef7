"""Looking at a connector leaves nothing open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from libs.connect.tests.connectors.sql_sink.records import TOPIC, rows

from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.clock import give_way
from headrace_connect import Chunk, Position, Source, Split, sink, source
from headrace_connect.runtime.configuring import configure
from headrace_connect.runtime.looking import ask_snapshot, preview
from headrace_connect.runtime.verifying import verify
from headrace_connect.secrets import Secrets


class Rows(Source):
    """Does not end."""

    said: ClassVar[list[str]] = []

    def splits(self) -> Sequence[Split]:
        return [Split("all")]

    async def read(self, split: Split, after: Position | None) -> AsyncGenerator[Chunk, None]:
        try:
            while True:
                yield Chunk([{"n": 1}, {"n": 2}], {})
        finally:
            await give_way()
            self.said.append("closed")

    async def stop(self) -> None:
        self.said.append("stopped")


class RowsOfAThread(Rows):
    """The same without ``async``."""

    def read(self, split: Split, after: Position | None) -> Iterator[Chunk]:  # type: ignore[override]
        try:
            while True:
                yield Chunk([{"n": 1}, {"n": 2}], {})
        finally:
            self.said.append("closed")

    def stop(self) -> None:  # type: ignore[override]
        self.said.append("stopped")


@pytest.mark.parametrize("source", [Rows, RowsOfAThread])
async def test_what_a_preview_has_opened_is_closed_before_the_source_is_stopped(source: type[Rows]) -> None:
    source.said.clear()
    given = {"name": "rows", "connector.class": f"{__name__}:{source.__name__}", "topic": "t"}
    shown = await preview(configure(given, Secrets()), 3)
    assert [row["value"] for row in shown] == [b'{"n":1}', b'{"n":2}', b'{"n":1}']
    assert source.said == ["closed", "stopped"]


class OnePartition:
    """Of each topic."""

    async def partitions(self, name: str) -> int:
        del name
        return 1


@sink
def show(table: Any) -> None:
    """At least once."""


@source
def numbers() -> Any:
    """Of nothing."""
    yield Chunk([], {})


def test_what_a_connector_cannot_do_is_refused() -> None:
    here = __name__
    reads: Any
    writes: Any
    reads, writes = (
        configure(
            {"name": "c", "connector.class": f"{here}:{name}", "topics" if name == "show" else "topic": "t"}, Secrets()
        )
        for name in ("numbers", "show")
    )
    process: Any = SimpleNamespace(topics=OnePartition())
    with pytest.raises(InvalidConfig, match="c is a sink: only sources"):
        asyncio.run(ask_snapshot(writes, ["a"]))
    with pytest.raises(InvalidConfig, match="numbers cannot read a part of its source again"):
        asyncio.run(ask_snapshot(reads, ["a"]))
    with pytest.raises(InvalidConfig, match="c is a source: verify compares"):
        asyncio.run(verify(reads, process, (), records_max=1, repair=False))
    with pytest.raises(InvalidConfig, match="c reads no topic 'u'"):
        asyncio.run(verify(writes, process, ("u",), records_max=1, repair=False))
    with pytest.raises(InvalidConfig, match="show cannot be verified"):
        writes.make().verifier()


def test_a_sink_that_shows_nothing_of_its_own_shows_what_it_would_get() -> None:
    assert show(None).preview([rows([{"n": 1}], [{"id": 2}], start=5)]) == [
        {"topic": TOPIC, "partition": 0, "offset": 5, "key": {"id": 2}, "value": {"n": 1}}
    ]
