"""Connectors as classes and as functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from headrace_connect import Chunk, Guarantee, Position, Rows, Sink, Source, Split, sink, source
from headrace_connect.plugin import NoSettings


@dataclass(frozen=True, slots=True)
class Settings:
    """Of the examples."""

    first: int = 0
    """The first number."""


def rows_of(values: pa.Array[Any]) -> Rows:
    count = len(values)
    headers = pa.array([[]] * count, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
    nothing = pa.nulls(count)
    return Rows("t", 0, values, nothing, pa.array(range(5, 5 + count), pa.int64()), pa.array([0] * count), headers)


def test_the_settings_of_a_class_are_those_in_its_brackets() -> None:
    class Numbers(Source[Settings]):
        pass

    class More(Numbers):
        pass

    class Bare(Sink):  # type: ignore[type-arg]
        pass

    assert (Numbers.settings_type, More.settings_type, Bare.settings_type) == (Settings, Settings, NoSettings)
    assert Numbers(Settings(3)).settings.first == 3
    assert Numbers(Settings()).splits() == (Split("all"),)


def test_a_generator_is_a_source() -> None:
    @source(settings=Settings)
    def numbers(settings: Settings, after: Position | None) -> Iterator[Chunk]:
        """Counts."""
        at = after["at"] if after else settings.first
        yield Chunk([{"n": at}], {"at": at + 1})

    made: Any = numbers(Settings(7))
    assert (numbers.__name__, numbers.__doc__, numbers.exactly_once) == ("numbers", "Counts.", True)
    assert [chunk.rows for chunk in made.read(Split("all"), None)] == [[{"n": 7}]]
    assert [chunk.position for chunk in made.read(Split("all"), {"at": 9})] == [{"at": 10}]


def test_a_generator_that_cannot_go_on_is_not_exactly_once() -> None:
    @source
    def once() -> Iterator[Chunk]:
        yield Chunk([b"x"], {})

    assert not once.exactly_once
    assert once.settings_type is NoSettings


def test_a_function_is_a_sink() -> None:
    seen: list[Any] = []

    @sink(settings=Settings)
    def keep(table: pa.Table, settings: Settings) -> None:
        seen.append((settings.first, table.to_pylist()))

    keep(Settings(2)).write(rows_of(pa.array([{"n": 1}, {"n": 2}])))
    assert seen == [(2, [{"n": 1}, {"n": 2}])]
    assert keep.guarantee is Guarantee.AT_LEAST_ONCE


async def test_an_async_function_is_a_sink() -> None:
    seen: list[int] = []

    @sink
    async def keep(rows: Rows) -> None:
        seen.append(len(rows))

    writing = keep(NoSettings()).write(rows_of(pa.array(["a"])))
    assert writing is not None
    await writing
    assert seen == [1]


def test_a_function_that_takes_what_nobody_gives_is_refused() -> None:
    with pytest.raises(TypeError, match="takes columns, which nobody gives it"):

        @sink
        def wrong(columns: pa.Table) -> None:
            pass


def test_columns_of_rows() -> None:
    rows = rows_of(pa.array([{"n": 1}, None, {"n": 3}]))
    assert rows.table.to_pylist() == [{"n": 1}, {"n": None}, {"n": 3}]
    assert rows_of(pa.array(["a", "b"])).table.to_pylist() == [{"value": "a"}, {"value": "b"}]
    part = rows.slice(1, 1)
    assert (len(part), part.next_offset, part.values.to_pylist()) == (1, 7, [None])
