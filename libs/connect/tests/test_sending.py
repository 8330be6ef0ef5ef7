"""Records of a source that are too large for their topic: each is a bad record, and no other is."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from libs.connect.tests.idle import run_until_idle

from headrace_common.runtime.clock import SystemClock, pause_ms
from headrace_connect import Chunk, Position, Split
from headrace_connect.core.counts import Counts
from headrace_connect.core.dead_letters import Origin, Refusal, Stage
from headrace_connect.core.errors import Fault
from headrace_connect.core.source_commit import Rules
from headrace_connect.plugin import NoSettings, Source
from headrace_connect.runtime.failing import TaskFailed
from headrace_connect.runtime.pipeline import ConvertedChunk, Lost
from headrace_connect.runtime.sending import BadRecords
from headrace_connect.runtime.source_task import SourceOutside, SourceTask, SourceTaskSettings
from headrace_connect.testing.memory import DEAD, MemoryLog, MemorySourceLog, NoSteps, RawPipeline

LIMIT = 100
LARGE = {3: "x" * 101, 4: "y" * 200, 9: "z" * 5_000}
ROWS = [LARGE.get(number, f"row {number}") for number in range(11)]
GOOD = [row for row in ROWS if len(row) <= LIMIT]
BAD = BadRecords("shop", 2, tolerates=True, topic=DEAD)


class Large(Source[NoSettings]):
    """Two chunks, the second one without what is too large."""

    async def read(self, split: Split, after: Position | None) -> AsyncIterator[Chunk]:
        at = after["at"] if after else 0
        if at < 1:
            yield Chunk(ROWS, {"at": 1})
        if at < 2:
            yield Chunk(["last"], {"at": 2})
        while True:
            yield Chunk([], {"at": 2}, drained=True)
            await pause_ms(1)


async def run(log: MemoryLog, bad: BadRecords, pipeline: Any = None, **rules: Any) -> Counts:
    counts = Counts()
    outside = SourceOutside(MemorySourceLog(log), pipeline or RawPipeline(), SystemClock(), NoSteps())
    settings = SourceTaskSettings(Rules(interval_ms=5, **rules), poll_interval_ms=1, bad=bad)
    task = SourceTask(Large(NoSettings()), [Split("all")], outside, settings, counts=counts)

    await run_until_idle(task)
    return counts


def values(log: MemoryLog, topic: str = "records") -> list[str | None]:
    return [None if row["value"] is None else row["value"].decode() for row in log.records[topic]]


def said(record: Any) -> dict[str, str]:
    return {one["key"].removeprefix("__connect.errors."): one["value"].decode() for one in record["headers"]}


@pytest.mark.parametrize("rules", [{}, {"rows_max": 1}], ids=["interval", "a commit follows"])
async def test_without_tolerance_the_task_fails_by_the_data_and_nothing_is_committed(rules: dict[str, Any]) -> None:
    log = MemoryLog(record_bytes_max=LIMIT)
    with pytest.raises(TaskFailed) as failed:
        await run(log, BadRecords("shop", 2), **rules)
    assert failed.value.fault is Fault.DATA
    text = str(failed.value)
    says = ("shop: ", "records", "row 3 of a chunk of split all", "101 bytes", "max.message.bytes", "errors.tolerance")
    for part in says:
        assert part in text, text
    assert not log.records["records"]
    assert not log.positions


async def test_with_tolerance_each_is_a_dead_letter_and_all_others_are_sent_in_their_order() -> None:
    log = MemoryLog(record_bytes_max=LIMIT)
    counts = await run(log, BAD)
    assert values(log) == [*GOOD, "last"]
    letters = log.records[DEAD]
    assert [said(letter)["exception.message"].split(" of a chunk")[0].split("; ")[-1] for letter in letters] == [
        "row 3",
        "row 4",
        "row 9",
    ]
    assert values(log, DEAD) == [None, None, None], "they are too large for that topic too"
    first = said(letters[0])
    assert first["exception.message"].startswith("its value of 101 bytes is left out; row 3 ")
    assert (first["stage"], first["connector.name"], first["task.id"]) == ("TASK_PUT", "shop", "2")
    assert (first["topic"], first["exception.class.name"]) == ("records", "RecordTooLarge")
    assert (counts.read_records, counts.written_records, counts.dead_letters) == (12, len(GOOD) + 1, 3)
    assert counts.written_bytes > 0
    assert counts.retries == 0


async def test_a_topic_of_dead_letters_that_takes_more_has_all_of_them() -> None:
    log = MemoryLog(record_bytes_max=LIMIT, record_bytes_max_of={DEAD: 1_000})
    await run(log, BAD)
    assert values(log, DEAD) == [LARGE[3], LARGE[4], None]


async def test_without_a_topic_of_dead_letters_they_are_dropped_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    log = MemoryLog(record_bytes_max=LIMIT)
    with caplog.at_level(logging.WARNING):
        await run(log, replace(BAD, topic=None))
    assert values(log) == [*GOOD, "last"]
    assert [one for one in caplog.messages if "row 4 of a chunk of split all" in one]


async def test_a_dead_letter_of_what_cannot_be_converted_is_cut_too() -> None:
    class Refuses(RawPipeline):
        def apply(self, chunk: Chunk) -> ConvertedChunk:
            converted = super().apply(chunk)
            lost = Lost(Origin("shop", 2, "p", "records"), Refusal(Stage.VALUE, "no number"), b"k" * 150, b"v" * 200)
            return replace(converted, lost=[lost] if len(chunk.rows) > 1 else [])

    log = MemoryLog(record_bytes_max=LIMIT)
    await run(log, BAD, Refuses())
    assert [letter["key"] for letter in log.records[DEAD]] == [None] * 4
    message = said(log.records[DEAD][0])["exception.message"]
    assert message == "its key too; its value of 200 bytes is left out; no number"
