"""What a worker counts: each committed row once, however often it was tried, by nodes and topics of the program."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from libs.streams.tests.kit.stage import Stage

from headrace.records import PartitionTable
from headrace.work_types import WorkChange
from headrace_common.core.errors import NotEnoughReplicas
from headrace_streams import App, agg, col, json, tumbling
from headrace_streams.core.state.cache import StateCache
from headrace_streams.runtime.figures import Figures
from headrace_streams.runtime.worker import Worker

LOG = "a.by-word.changelog"


def program() -> Stage:
    app = App("a", on_error="skip")
    words = app.stream("lines", value=json("word string")).filter(col("word") != "the")
    words.group_by("word", name="by-word").agg(n=agg.count(), name="counts", emit="every").to("out")
    return Stage(app, "lines", "out")


def told(worker: Worker, name: str) -> dict[str, float]:
    """The values of one name, by the label's first words."""
    found = {}
    for count, labels in worker.figures.values(name, 0.0):
        (label,) = labels.values()
        found[label.split(" (")[0]] = count
    return found


async def work(stage: Stage, worker: Worker, turns: int = 2) -> None:
    for _ in range(turns):
        stage.at_ms += 100
        await worker._persist(worker.step)


@pytest.mark.parametrize("fails", [False, True])
async def test_rows_of_each_node_count_when_they_are_committed(fails: bool) -> None:
    async with program() as stage:
        worker = await stage.working("lines/0", "by-word/0")
        stage.write("lines", *((None, b'{"word": "%s"}' % word) for word in (b"a", b"the", b"b", b"a")), (None, b"no"))
        if fails:
            stage.fails[f"send {LOG}"].append(NotEnoughReplicas())
        assert told(worker, "rows_in") == told(worker, "rows_out") == {}
        await work(stage, worker, 4)
        into, out = told(worker, "rows_in"), told(worker, "rows_out")
        nodes = ["stream", "filter", "repartition 'by-word'", "agg 'counts'", "to"]
        assert [into[node] for node in nodes] == [5, 4, 3, 3, 3]
        assert [out.get(node) for node in nodes] == [4, 3, 3, 3, None]
        assert told(worker, "read_records")["lines"] == (10 if fails else 5), "reading is counted as it is done"
        assert told(worker, "failed_records") == {"stream": 1}


@pytest.mark.parametrize("fails", [False, True])
async def test_what_rows_met_with_counts_once_and_stays_when_their_task_has_gone(fails: bool) -> None:
    """A counter that falls is a jump to whoever computes its rate."""
    app = App("a", on_error="skip")
    windows = (
        app.stream("lines", value=json("at bigint"), key="k", timestamp="at")
        .group_by("k")
        .window(tumbling(10), late="drop")
    )
    windows.agg(n=agg.count(), name="counts").to("out")
    async with Stage(app, "lines", "out") as stage:
        worker = await stage.working("lines/0")
        stage.write("lines", *((b"a", value) for value in (b'{"at":100}', b'{"at":5}', b"no", None)))
        stage.write("lines", (b"b", b'{"at":105}'))
        if fails:
            stage.fails["send out"].append(NotEnoughReplicas())
        await work(stage, worker, 4)
        seen = {name: told(worker, name) for name in ("late_rows", "dropped_rows", "failed_records")}
        assert [sum(counts.values()) for counts in seen.values()] == [1, 1, 1]
        stage.members[-1].changes.append(WorkChange(lost=frozenset({"lines/0"})))
        await work(stage, worker, 1)
        assert {name: told(worker, name) for name in seen} == seen


async def test_bytes_and_records_of_each_topic() -> None:
    async with program() as stage:
        worker = await stage.working("lines/0", "by-word/0")
        stage.write("lines", (None, b'{"word": "%s"}' % (b"x" * 1_000)))
        await work(stage, worker)
        assert told(worker, "written_records") == {"a.by-word.repartition": 1, "out": 1, LOG: 3}, "two control rows"
        for name, least in (("lines", 1_000), ("a.by-word.repartition", 1_000)):
            assert least < told(worker, "read_bytes")[name] < 3 * least, name
        for name in ("a.by-word.repartition", "out", LOG):
            assert 1_000 < told(worker, "written_bytes")[name] < 3_000, name


async def test_records_of_changelogs_that_were_restored() -> None:
    async with program() as stage:
        worker = await stage.working("by-word/0", "lines/0")
        assert list(worker.figures.values("restored_records", 0)) == [(0, {})]
        stage.write("lines", (None, b'{"word": "a"}'), (None, b'{"word": "b"}'))
        await work(stage, worker)
        written = sum(row is not None for row in stage.logs[LOG])
        async with Stage(stage.app, "lines", "out") as anew:
            anew.topics, anew.logs, anew.group = stage.topics, stage.logs, stage.group
            worker = await anew.working("by-word/0")
            await worker._hear()
            assert list(worker.figures.values("restored_records", 0)) == [(written, {})]
    assert written >= 3, "two words, and how far it is"


async def test_state_that_the_last_commit_changed() -> None:
    async with program() as stage:
        worker = await stage.working("lines/0", "by-word/0")
        assert told(worker, "dirty_state_bytes") == {}
        stage.write("lines", *((None, b'{"word": "%d"}' % n) for n in range(50)))
        await work(stage, worker)
        (many,) = told(worker, "dirty_state_bytes").values()
        stage.write("lines", (None, b'{"word": "0"}'))
        await work(stage, worker)
        (few,) = told(worker, "dirty_state_bytes").values()
        assert many > 10 * few > 0
        stage.write("lines", (None, b'{"word": "the"}'))
        await work(stage, worker, 1)
        assert told(worker, "dirty_state_bytes") == {"agg 'counts'": 0}, "another task's commit"


async def test_who_was_put_out_has_no_lag() -> None:
    """Others read on; what it had seen last would stand still for ever beside theirs."""
    async with program() as stage:
        worker = await stage.working("lines/0")
        stage.write("lines", (None, b'{"word": "a"}'))
        await work(stage, worker, 1)
        assert list(worker.figures.values("lag_records", 0)) == [(0, {"topic": "lines", "partition": "0"})]
        stage.members[-1].changes.append(WorkChange(lost=frozenset({"lines/0"})))
        await work(stage, worker, 1)
        assert list(worker.figures.values("lag_records", 0)) == []


def batch(lag: int, *times: int) -> PartitionTable:
    table = pa.table({"timestamp_ms": pa.array(times, pa.int64())})
    return PartitionTable("t", 0, table, 10, 0, 10 + lag, 10 + lag)


@pytest.mark.parametrize(
    ("batches", "age"),
    [
        ([batch(5, 1_000, 2_000)], 8.0),
        ([batch(5, 2_000), batch(3)], 8.0),
        ([batch(5, 2_000), batch(0, 9_000)], 0.0),
        ([batch(3)], 0.0),
        ([batch(5, 30_000)], 0.0),
    ],
    ids=["more is there", "positions alone", "at its end", "nothing read yet", "of the future"],
)
def test_how_old_is_what_was_read_last(batches: list[PartitionTable], age: float) -> None:
    figures = Figures(StateCache(0))
    for one in batches:
        figures.seen(one)
    assert list(figures.values("lag_seconds", 10_000)) == [(age, {"topic": "t", "partition": "0"})]
    figures.seen(PartitionTable("u", 0, pa.table({}), 10, 0, -1, -1))
    assert len(list(figures.values("lag_seconds", 10_000))) == 1, "nobody knows where it ends"


async def test_tasks_that_warm_up_are_no_standbys() -> None:
    async with program() as stage:
        worker = await stage.working("lines/0")

        async def states(**change: Any) -> Mapping[str, int]:
            stage.members[-1].changes.append(WorkChange(**change))
            stage.at_ms += 100
            await worker._hear()
            await asyncio.sleep(0)
            return worker.figures.states

        others = {"running": 1, "taking": 0}
        item = frozenset({"by-word/0"})
        assert await states(warm_up=item) == {**others, "standby": 0, "warm_up": 1}
        assert await states(standby=item) == {**others, "standby": 1, "warm_up": 0}
        assert await states() == {**others, "standby": 0, "warm_up": 0}
