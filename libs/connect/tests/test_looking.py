"""Looking at a connector leaves nothing open."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import ClassVar

import pytest

from headrace_common.runtime.clock import give_way
from headrace_connect import Chunk, Position, Source, Split
from headrace_connect.runtime.configuring import configure
from headrace_connect.runtime.looking import preview
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
