"""What Spark has computed becomes an app's output, state and positions as one unit, or nothing of it does."""

from __future__ import annotations

import pyarrow as pa
import pytest
from libs.streams.tests.kit.upkeep import COMPACTED, MemoryUpkeep

from headrace.records import TopicPartition
from headrace_common.core.errors import NetworkFailed, NonEmptyGroup, Rejected
from headrace_streams import App, agg, json, tumbling
from headrace_streams.core.errors import StateFailed
from headrace_streams.core.outputs import Output
from headrace_streams.core.rows import NO_TIME
from headrace_streams.core.state.changelog import CONTROL, ROW_BYTES_MAX, Progress
from headrace_streams.plan.cut import Assembly
from headrace_streams.plan.reset import Standing
from headrace_streams.runtime.filling import History, check_new, place, watermarks

LOGS = [TopicPartition("a.in.changelog", number) for number in (0, 1)]
IN = [TopicPartition("in", number) for number in (0, 1)]
OUTPUT = Output("out", pa.table({"key": [b"k"], "value": [b"v"], "timestamp_ms": [7]}))
HISTORY = History(
    {IN[0]: 5, IN[1]: 6},
    [OUTPUT],
    {LOGS[1]: [(b"\x01sk", b"1")]},
    {log: Progress({"in": 5 + number}, {"in": 9, "": 9}) for number, log in enumerate(LOGS)},
)


def upkeep() -> MemoryUpkeep:
    made = MemoryUpkeep()
    made.add("a.in.changelog", 2, COMPACTED)
    return made


async def test_all_of_it_is_one_unit() -> None:
    cluster = upkeep()
    await place(cluster, "a", HISTORY)
    assert cluster.positions == {IN[0]: 5, IN[1]: 6}
    assert [cluster.rows(log) for log in LOGS] == [
        {CONTROL: HISTORY.progress[LOGS[0]].encode()},
        {b"\x01sk": b"1", CONTROL: HISTORY.progress[LOGS[1]].encode()},
    ]
    assert cluster.outputs == [OUTPUT]
    assert cluster.logs[LOGS[1]][-1][0] == CONTROL, "the newest commit is looked for at the end"


@pytest.mark.parametrize("step", range(7))
async def test_what_is_cut_off_changes_nothing_and_is_done_again(step: int) -> None:
    cluster = upkeep()
    cluster.fails_at = step
    with pytest.raises(NetworkFailed):
        await place(cluster, "a", HISTORY)
    assert (cluster.positions, cluster.outputs, cluster.logs) == ({}, [], {})
    await place(cluster, "a", HISTORY)
    assert (cluster.outputs, len(cluster.positions), len(cluster.logs)) == ([OUTPUT], 2, 2)


async def test_an_app_that_runs_or_has_begun_keeps_what_it_has() -> None:
    cluster = upkeep()
    cluster.joins_at = "begin"
    with pytest.raises(NonEmptyGroup):
        await place(cluster, "a", HISTORY)
    assert (cluster.positions, cluster.outputs) == ({}, [])
    cluster = upkeep()
    cluster.logs[LOGS[1]] = [(CONTROL, Progress({"in": 1}).encode())]
    with pytest.raises(Rejected, match="the app a has begun already"):
        await place(cluster, "a", HISTORY)
    assert (cluster.positions, cluster.outputs, len(cluster.logs[LOGS[1]])) == ({}, [], 1)
    for standing in (Standing("a", positions={IN[0]: 1}), Standing("a", marked=True)):
        with pytest.raises(Rejected, match="headrace streams reset a --execute"):
            check_new(standing)
    check_new(Standing("a", topics={"a.in.changelog": 2}))


async def test_state_that_no_changelog_takes_is_told_before_anything_is_written() -> None:
    cluster = upkeep()
    history = History({}, [], {LOGS[0]: [(b"\x01sk", bytes(ROW_BYTES_MAX))]}, {})
    with pytest.raises(StateFailed, match="the state 's' of key b'k'"):
        await place(cluster, "a", history)
    assert cluster.calls == []


def test_event_times_of_all_tasks() -> None:
    app = App("a")
    rows = app.stream("in", value=json("k string, n bigint"))
    grouped = rows.group_by("k", name="by").window(tumbling("1s"), late="drop")
    grouped.agg(n=agg.count(), name="s", emit="final").to("out")
    found = watermarks(Assembly("a", app.graph, {"in": 3}), {IN[0]: 500, IN[1]: 300})
    assert [found["in", number].now for number in range(3)] == [500, 300, NO_TIME]
    for number in range(3):
        assert found["by", number].state() == {
            "a.by.repartition/0": 500,
            "a.by.repartition/1": 300,
            "a.by.repartition/2": NO_TIME,
            "": 300,
        }


def test_event_time_of_a_stream_beside_a_table_is_the_streams() -> None:
    app = App("a")
    table = app.table("t", value=json("m bigint"), key="k", name="t")
    app.stream("in", value=json("n bigint"), key="k").join(table).to("out")
    newest = {IN[0]: 500, TopicPartition("t", 0): 9_000, TopicPartition("t", 1): 9_000}
    found = watermarks(Assembly("a", app.graph, {"in": 2, "t": 2}), newest)
    assert [marks.now for marks in found.values()] == [500, NO_TIME]
