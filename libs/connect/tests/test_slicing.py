"""Large chunks are converted and sent in slices, within one transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from libs.connect.tests.idle import run_until_idle

from headrace_common.runtime.clock import SystemClock, pause_ms
from headrace_connect import Chunk, Position, Split
from headrace_connect.core.errors import Fault
from headrace_connect.core.source_commit import Boundary, Rules
from headrace_connect.plugin import BadItem, NoSettings, Note, Source, Written
from headrace_connect.runtime.failing import TaskFailed
from headrace_connect.runtime.pipeline import ConvertedChunk
from headrace_connect.runtime.sending import BadRecords
from headrace_connect.runtime.sizes import size_of
from headrace_connect.runtime.slicing import slices_of
from headrace_connect.runtime.source_task import SourceOutside, SourceTask, SourceTaskSettings
from headrace_connect.testing.faults import KillAt, Killed
from headrace_connect.testing.memory import DEAD, TOPIC, MemoryLog, MemorySourceLog, RawPipeline

ROWS = [f"{number:03}" for number in range(23)]
FURTHER = [f"f{number:02}" for number in range(9)]


def chunk(**more: Any) -> Chunk:
    keys = [f"k{row}" for row in ROWS]
    return Chunk(ROWS, {"at": 1}, keys=keys, boundary=True, further=[Chunk(FURTHER, {}, topic="other")], **more)


class Large(Source[NoSettings]):
    """One large chunk, then a small one."""

    noted: Sequence[Written] = ()

    async def read(self, split: Split, after: Position | None) -> AsyncIterator[Chunk]:
        at = after["at"] if after else 0
        if at < 1:
            yield chunk(bad=[BadItem(b"bad", "is bad")])
        if at < 2:
            yield Chunk(["last"], {"at": 2}, boundary=True)
        while True:
            yield Chunk([], {"at": 2}, boundary=True, drained=True)
            await pause_ms(1)

    def note(self, written: Sequence[Written]) -> Sequence[Note]:
        type(self).noted = [*self.noted, *written]
        return ()


class Watching(RawPipeline):
    """Notes the largest chunk that it was given."""

    most = 0

    def apply(self, chunk: Chunk) -> ConvertedChunk:
        self.most = max(self.most, size_of(chunk))
        return super().apply(chunk)


async def run(log: MemoryLog, steps: KillAt, generation: int = 0, pipeline: Any = None, **rules: Any) -> None:
    outside = SourceOutside(MemorySourceLog(log, generation), pipeline or RawPipeline(), SystemClock(), steps)
    settings = SourceTaskSettings(Rules(interval_ms=5, **rules), bad=BadRecords("c", 0), slice_bytes=40)
    task = SourceTask(Large(NoSettings()), [Split("all")], outside, settings)

    await run_until_idle(task)


def values(log: MemoryLog, topic: str = TOPIC) -> list[str]:
    return [row["value"].decode() for row in log.records[topic]]


def check(log: MemoryLog) -> None:
    assert values(log) == [*ROWS, "last"]
    assert [row["key"] for row in log.records[TOPIC]][:-1] == [f"k{row}".encode() for row in ROWS]
    assert values(log, "other") == FURTHER
    assert values(log, DEAD) == ["bad"]


@pytest.mark.parametrize("boundary", list(Boundary))
async def test_killed_at_each_step_each_row_is_there_once_and_in_order(boundary: Boundary) -> None:
    steps, log = KillAt(), MemoryLog()
    await run(log, steps, boundary=boundary)
    check(log)
    assert steps.reached.index("connect.source.positions") > 6, "no position before all of the chunk is sent"
    for number in range(1, len(steps.reached) + 1):
        log = MemoryLog()
        with pytest.raises(Killed):
            await run(log, KillAt(number), boundary=boundary, generation=1)
        assert log.positions or not log.records[TOPIC], "rows and position come together"
        await run(log, KillAt(), boundary=boundary, generation=2)
        check(log)


@pytest.mark.parametrize("full", [{"rows_max": 1}, {"bytes_max": 1}])
async def test_a_transaction_that_is_full_is_not_committed_within_a_chunk(full: dict[str, int]) -> None:
    log = MemoryLog()
    await run(log, KillAt(), **full)
    check(log)
    assert log.commits == 2


@pytest.mark.parametrize("trouble", ["undelivered", "unknown", "forgotten"])
async def test_commits_in_trouble_bring_it_once(trouble: str) -> None:
    log = MemoryLog(**{trouble: {1}})
    await run(log, KillAt())
    check(log)


async def test_no_slice_is_larger_than_the_bound_when_it_is_converted() -> None:
    pipeline = Watching()
    await run(MemoryLog(), KillAt(), pipeline=pipeline)
    assert 20 < pipeline.most <= 40


async def test_notes_are_of_the_whole_chunk_with_its_own_rows() -> None:
    Large.noted = ()
    await run(MemoryLog(), KillAt())
    large, small = Large.noted
    assert large.chunk.rows is ROWS
    assert [row for place in large.places for row in place.rows.tolist()] == list(range(23))
    assert [at for place in large.places for at in place.offsets.tolist()] == list(range(23))
    assert len(small.places) == 1


class Refusing(RawPipeline):
    """Fails at one value."""

    def apply(self, chunk: Chunk) -> ConvertedChunk:
        found = super().apply(chunk)
        if "015" not in chunk.rows:
            return found
        from headrace_connect.core.dead_letters import Origin, Refusal, Stage
        from headrace_connect.runtime.pipeline import Lost

        lost = Lost(Origin("c", 0, "p", TOPIC), Refusal(Stage.VALUE, "row 15"), None, b"015")
        return ConvertedChunk(found.outgoing, [lost], found.rows, found.bytes)


async def test_a_bad_row_in_a_later_slice_leaves_nothing_of_the_chunk() -> None:
    log, steps = MemoryLog(), KillAt()
    with pytest.raises(TaskFailed, match="row 15") as failed:
        await run(log, steps, pipeline=Refusing())
    assert failed.value.fault is Fault.DATA
    assert "connect.source.sent" in steps.reached
    assert steps.reached[-1] == "connect.source.aborted"
    assert not log.records[TOPIC]
    assert not log.positions


@pytest.mark.parametrize("bytes_max", [1, 17, 40, 1_000])
@pytest.mark.parametrize("kind", ["list", "array", "chunked", "table"])
def test_slices_are_the_chunk(bytes_max: int, kind: str) -> None:
    made: dict[str, Any] = {
        "list": ROWS,
        "array": pa.array(ROWS),
        "chunked": pa.chunked_array([ROWS[:5], ROWS[5:]]),
        "table": pa.table({"a": ROWS}),
    }
    whole = Chunk(
        made[kind],
        {"at": 1},
        "t",
        ROWS,
        list(range(23)),
        pa.array([[]] * 23, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        7,
        bad=[BadItem(b"", "")],
        key_schema="k",
        value_schema="v",
    )
    slices = list(slices_of(whole, size_of(whole), bytes_max))
    assert [one.first for one in slices] == [True] + [False] * (len(slices) - 1)
    assert [one.last for one in slices] == [False] * (len(slices) - 1) + [True]
    assert [len(one.chunk.bad) for one in slices] == [int(one.last) for one in slices]
    at = 0
    for one in slices:
        part = one.chunk
        assert one.start == at
        count = len(part.rows)
        rows = part.rows if isinstance(part.rows, list) else part.rows.to_pylist()
        assert [row["a"] if kind == "table" else row for row in rows] == ROWS[at : at + count] == part.keys
        assert list(part.timestamps_ms or ()) == list(range(at, at + count))
        assert len(part.headers or ()) == count
        assert (part.position, part.topic, part.partition) == ({"at": 1}, "t", 7)
        assert (part.key_schema, part.value_schema) == ("k", "v")
        assert count == 1 or size_of(part) <= bytes_max
        at += count
    assert at == 23


def test_a_chunk_of_nothing_but_what_is_bad_is_one_slice() -> None:
    [one] = slices_of(Chunk([], {}, bad=[BadItem(b"x" * 100, "")]), 100, 10)
    assert (one.first, one.last, len(one.chunk.bad)) == (True, True, 1)
