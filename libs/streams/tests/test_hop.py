"""Rows on their way through a repartition topic."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libs.streams.tests.kit.feeding import raw

from headrace_common.core.murmur2 import partitions_for
from headrace_streams import App, NotAllowed, agg, json, string, tumbling
from headrace_streams.core.operators import hop
from headrace_streams.core.operators.hop import Flush, HopOut
from headrace_streams.core.outputs import Output
from headrace_streams.core.rows import KEYS, NO_TIME, TIMESTAMP
from headrace_streams.core.state.changelog import NotReadable
from headrace_streams.core.state.memory import MemoryCold
from headrace_streams.core.task import Task
from headrace_streams.core.time import Clock, Watermarks
from headrace_streams.plan.cut import Assembly
from headrace_streams.testing import Driver


def table(keys: list[bytes | None], marks: list[int] | None = None, *, coded: bool = False) -> pa.Table:
    count = len(keys)
    key = pa.array(keys, pa.binary())
    columns = {
        "n": pa.array(range(count), pa.int64()),
        "_key": key.dictionary_encode().cast(KEYS) if coded else key,
        "_time": pa.array([5] * count, pa.int64()).cast(TIMESTAMP),
        "_watermark": pa.array(marks or [7] * count, pa.int64()),
        "_row": pa.array(range(count), pa.int32()),
    }
    return pa.table(columns)


def sender(partitions: int = 3, interval_ms: int = 0) -> tuple[HopOut, list[Output]]:
    written: list[Output] = []
    out = HopOut("app.by-k.repartition", partitions, 2, written.append, interval_ms)
    out.clock = Clock()
    out.begin(NO_TIME)
    return out, written


def never(rows: pa.Table, error: Exception) -> None:
    raise AssertionError from error


def flushes(written: list[Output]) -> list[tuple[int | None, Flush]]:
    return [
        (output.partition, hop.decode(value)) for output in written for value in output.records["value"].to_pylist()
    ]


@given(
    sender=st.integers(0, 2**32 - 1), watermark=st.integers(-(2**63), 2**63 - 1), idle=st.booleans(), rows=st.booleans()
)
def test_what_is_encoded_is_decoded(sender: int, watermark: int, idle: bool, rows: bool) -> None:
    flush = Flush(sender, watermark, table([b"a", None]) if rows else None, idle)
    decoded = hop.decode(hop.encode(flush))
    assert (decoded.sender, decoded.watermark, decoded.idle) == (sender, watermark, idle)
    assert decoded.rows == flush.rows if rows else decoded.rows is None


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"\x01",
        b"\x02" + hop.encode(Flush(0, 0, None))[1:],
        b"no flush, but long enough",
        hop.encode(Flush(0, 0, None)) + b"?",
    ],
)
def test_what_is_no_flush_of_this_version_is_refused(value: bytes | None) -> None:
    with pytest.raises(NotReadable, match=r"upgrade all workers, or reset the app|this record is broken"):
        hop.decode(value)


keys = st.lists(st.none() | st.binary(max_size=3), min_size=1, max_size=30)


@settings(max_examples=50)
@given(given=keys, partitions=st.integers(1, 7), coded=st.booleans(), cut=st.integers(1, 30))
def test_a_row_goes_to_the_partition_of_its_key(
    given: list[bytes | None], partitions: int, coded: bool, cut: int
) -> None:
    out, written = sender(partitions)
    rows = table(given, coded=coded)
    for first in range(0, len(given), cut):
        assert list(out.feed(rows.slice(first, cut), 0, never)) == []
    list(out.flush())
    found: dict[bytes, list[int]] = {}
    count = 0
    for partition, flush in flushes(written):
        if flush.rows is None:
            continue
        count += flush.rows.num_rows
        assert "_row" not in flush.rows.column_names
        for row in flush.rows.to_pylist():
            if row["_key"] is not None:
                assert partition == partitions_for(pa.array([row["_key"]], pa.binary()), partitions)[0]
                found.setdefault(row["_key"], []).append(row["n"])
    assert count == len(given)
    assert all(places == sorted(places) for places in found.values()), "rows of a key keep their order"


def test_rows_without_a_key_are_dealt_out() -> None:
    out, written = sender()
    list(out.feed(table([None] * 6), 0, never))
    list(out.flush())
    assert [(p, f.rows.num_rows) for p, f in flushes(written) if f.rows is not None] == [(0, 2), (1, 2), (2, 2)]


def test_every_partition_is_told_the_watermark_once() -> None:
    out, written = sender()
    list(out.feed(table([b"a"], [9]), 0, never))
    list(out.flush())
    assert sorted((p, f.watermark, f.sender) for p, f in flushes(written)) == [(p, 9, 2) for p in range(3)]
    written.clear()
    list(out.flush())
    assert written == [], "nothing is new"
    list(out.advance(12, never))
    list(out.flush())
    assert [(f.watermark, f.rows) for _, f in flushes(written)] == [(12, None)] * 3


def test_a_sender_that_rests_says_so_until_rows_come() -> None:
    out, written = sender(1)
    list(out.advance(5, never))
    out.rest()
    list(out.flush())
    list(out.advance(6, never))
    list(out.flush())
    assert [(f.watermark, f.idle) for _, f in flushes(written)] == [(5, True), (6, False)]


def test_a_sender_that_wakes_with_many_rows_says_at_no_time_that_it_rests() -> None:
    """The others would not wait for the rows behind those that leave before the commit."""
    out, written = sender(1)
    list(out.advance(5, never))
    out.rest()
    list(out.flush())
    written.clear()
    list(out.feed(table([b"a" * 1_000] * 600, [6] * 600), 0, never))
    assert written, "some leave at once"
    list(out.advance(6, never))
    list(out.flush())
    assert [f.idle for _, f in flushes(written)] == [False] * len(written)


def test_a_large_flush_of_a_sender_that_rests_leaves_it_at_rest() -> None:
    out, written = sender(1)
    list(out.advance(5, never))
    out.rest()
    list(out.flush())
    list(out.feed(table([b"a" * 1_000] * 600, [5] * 600), 0, never))
    list(out.flush())
    assert [f.idle for _, f in flushes(written)][-1]


def test_a_flush_that_grows_large_leaves_before_the_commit() -> None:
    out, written = sender(1)
    rows = table([b"a" * 1_000] * 600)
    list(out.feed(rows, 0, never))
    assert sum(f.rows.num_rows for _, f in flushes(written) if f.rows is not None) == 600
    before = len(written)
    list(out.flush())
    assert len(written) == before


@pytest.mark.parametrize("combine", [False, True])
def test_rows_that_wait_for_a_flush_count_for_the_next_commit(combine: bool) -> None:
    """``commit_state_bytes`` is of them too: with many partitions they are more than the state of most programs."""
    app = App("a")
    words = app.stream("lines", value=string).select(word="value")
    words.group_by("word", name="by-word", combine=combine).agg(n=agg.count(), name="counts").to("out")
    assembly = Assembly("a", app.graph, {"lines": 1})
    task = assembly.make(assembly.parts[0], 0)
    task.open(lambda name: MemoryCold(), {})
    assert task.dirty_bytes() == 0
    task.feed("lines", raw([(None, b"%d" % n * 100, 0) for n in range(100)]))
    assert task.dirty_bytes() > (100 if combine else 10_000)
    task.flush()
    assert task.dirty_bytes() == 0


@pytest.mark.parametrize("coded", [False, True])
def test_a_large_flush_leaves_in_parts_that_a_topic_takes(coded: bool) -> None:
    """What a part says of time holds for the rows of the parts behind it: else their windows would be closed."""
    out, written = sender(1)
    marks = [10 * (number // 700) for number in range(5_000)]
    keys: list[bytes | None] = [b"%04d" % (number % 3_000) * 100 for number in range(5_000)]
    whole = table(keys, marks, coded=coded)
    for first in (0, 4_000):
        list(out.feed(whole.slice(first, 4_000), 0, never))
    out.rest()
    list(out.flush())
    found = [flush for _, flush in flushes(written)]
    parts = [flush for flush in found if flush.rows is not None]
    assert [n for flush in parts for n in (flush.rows["n"].to_pylist() if flush.rows else [])] == list(range(5_000))
    assert all(len(hop.encode(flush)) < 1.1 * hop.FLUSH_BYTES for flush in found)
    for flush in parts:
        assert flush.rows is not None
        assert flush.watermark == max(flush.rows["_watermark"].to_pylist())
    assert [flush.idle for flush in found] == [*[False] * (len(found) - 1), True]
    assert found[-1].watermark == marks[-1]


def test_a_row_that_is_larger_than_a_part_goes_alone() -> None:
    out, written = sender(1)
    list(out.feed(table([b"a", b"b" * 2 * hop.FLUSH_BYTES, b"c"]), 0, never))
    assert [flush.rows.num_rows for _, flush in flushes(written) if flush.rows] == [1, 1, 1]


@pytest.mark.parametrize("coded", [False, True])
def test_a_row_that_no_repartition_topic_takes_is_an_error_of_the_row(
    coded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker could not send it, and would end each time that it comes to it, whatever ``on_error`` says."""
    out, written = sender(1)
    failed: list[tuple[Any, str]] = []
    monkeypatch.setattr(hop, "_ROW_BYTES_MAX", 8_000)
    keys: list[bytes | None] = [b"a", b"c" * 5_000, b"b" * 9_000, b"d" * 5_000, None]
    list(out.feed(table(keys, coded=coded), 0, lambda rows, error: failed.append((rows["n"].to_pylist(), str(error)))))
    list(out.flush())
    assert sorted(n for _, f in flushes(written) if f.rows for n in f.rows["n"].to_pylist()) == [0, 1, 3, 4]
    ((rows, why),) = failed
    assert rows == [2]
    assert "a repartition topic takes rows of 8,000: select() less before it" in why


def told(out: HopOut, written: list[Output]) -> list[tuple[int | None, int, int]]:
    """What one more flush says: to which partition, the watermark, how many rows."""
    written.clear()
    list(out.flush())
    return sorted((p, f.watermark, f.rows.num_rows if f.rows else 0) for p, f in flushes(written))


def test_time_alone_is_told_once_in_an_interval_and_with_rows_at_once() -> None:
    out, written = sender(3, 200)
    list(out.advance(5, never))
    assert told(out, written) == [(p, 5, 0) for p in range(3)]
    out.clock.wall = 100
    list(out.feed(table([b"a"], [9]), 0, never))
    ((partition, *_),) = told(out, written)
    assert out.due == 200, "the others are told without more rows"
    list(out.advance(11, never))
    assert told(out, written) == []
    out.clock.wall = 200
    assert told(out, written) == [(p, 11, 0) for p in range(3)]
    assert (out.due, told(out, written)) == (None, [])
    list(out.feed(table([b"a"], [13]), 0, never))
    assert told(out, written) == [(partition, 13, 1)]
    out.clock.wall = 400
    assert told(out, written) == [(p, 13, 0) for p in range(3) if p != partition]


def test_that_a_sender_rests_or_does_no_longer_is_told_at_once() -> None:
    out, written = sender(2, 200)
    list(out.advance(5, never))
    list(out.flush())
    list(out.advance(6, never))
    out.rest()
    assert told(out, written) == [(0, 6, 0), (1, 6, 0)]
    list(out.advance(7, never))
    assert told(out, written) == [(0, 7, 0), (1, 7, 0)]


def test_what_was_told_in_an_aborted_transaction_is_told_again() -> None:
    out, written = sender(2, 200)
    list(out.advance(5, never))
    list(out.flush())
    out.begin(5)
    assert told(out, written) == [(0, 5, 0), (1, 5, 0)]


def test_a_sender_that_begins_again_tells_without_more_rows_who_was_not_told_before() -> None:
    out, written = sender(2, 200)
    assert out.due is None, "it has nothing to tell"
    out.begin(5)
    assert out.due == 0
    assert told(out, written) == [(0, 5, 0), (1, 5, 0)]
    assert out.due is None


def test_a_clock_that_is_set_back_holds_nothing_up() -> None:
    out, written = sender(1, 200)
    out.clock.wall = 3_600_000
    list(out.advance(5, never))
    assert told(out, written) == [(0, 5, 0)]
    out.clock.wall = 0
    list(out.advance(6, never))
    assert told(out, written) == [(0, 6, 0)]
    list(out.advance(7, never))
    assert told(out, written) == []
    assert out.due == 200


@pytest.mark.parametrize(
    ("wanted", "senders", "partitions", "is_"), [(200, 6, 6, 200), (200, 64, 64, 2_048), (0, 64, 64, 0), (1, 3, 1, 1)]
)
def test_a_topic_gets_no_more_than_2000_flushes_a_second_that_tell_time_alone(
    wanted: int, senders: int, partitions: int, is_: int
) -> None:
    assert hop.interval_ms(wanted, senders, partitions) == is_


def test_what_was_not_committed_is_sent_again_and_not_twice() -> None:
    out, written = sender(1)
    list(out.feed(table([b"a"], [9]), 0, never))
    out.begin(4)
    list(out.advance(4, never))
    list(out.flush())
    assert [f.rows for _, f in flushes(written)] == [None]
    written.clear()
    list(out.feed(table([b"b"], [9]), 0, never))
    list(out.flush())
    assert [(f.watermark, f.rows.num_rows if f.rows else 0) for _, f in flushes(written)] == [(9, 1)]


@pytest.mark.parametrize("anew", [False, True])
def test_a_task_that_begins_again_remembers_which_senders_rest(anew: bool) -> None:
    """They have said so once, and say it no more: windows would stay open until they have rows."""
    app = App("resting")
    stream = app.stream("in", value=json("k string"))
    windows = stream.group_by("k", name="by-k").window(tumbling("10s", grace="0s"), late="drop")
    windows.agg(n=agg.first("k"), name="w", emit="final").to("out")
    assembly = Assembly(app.name, app.graph, {"in": 2})
    cold: dict[str, MemoryCold] = {}

    def make() -> Task:
        task = assembly.make(assembly.parts[1], 0)
        task.open(lambda name: cold.setdefault(name, MemoryCold()), committed)
        return task

    def feed(flush: Flush) -> None:
        raw = pa.table({"value": pa.array([hop.encode(flush)], pa.binary()), "offset": [0]})
        task.feed("resting.by-k.repartition", raw)

    committed: dict[str, int] = {}
    task = make()
    feed(Flush(1, NO_TIME, None, idle=True))
    feed(Flush(0, 5_000, None))
    committed = task.watermarks()
    task.settle()
    if anew:
        task = make()
    else:
        task.rewind(committed)
    feed(Flush(0, 20_000, None))
    assert task.waits == anew
    if anew:
        assert task.watermark == 5_000, "sender 1 may have rows that are on their way"
        assert "idle resting.by-k.repartition/1" in task.watermarks(), "should another begin meanwhile"
        task.rewind(committed)
        assert task.waits
        feed(Flush(0, 20_000, None))
        task.rest_again()
    assert task.watermark == 20_000
    feed(Flush(1, 1_000, None))
    feed(Flush(0, 30_000, None))
    assert task.watermark == 20_000, "it has rows again"


def test_a_task_between_two_repartitions_that_rests_does_so_when_it_begins_again() -> None:
    """Those behind it would wait: nobody says to it once more that all rest."""
    app = App("resting")
    stream = app.stream("in", value=json("a string, b string")).key_by("a").repartition(name="by-a")
    stream.group_by("b", name="by-b").agg(n=agg.first("a"), name="s").to("out")
    assembly = Assembly(app.name, app.graph, {"in": 1}, watermark_interval_ms=200)
    for committed, idle in ({"": 5, "idle resting.by-a.repartition/0": NO_TIME}, True), ({"": 5}, False):
        task = assembly.make(assembly.parts[1], 0)
        task.open(lambda name: MemoryCold(), committed)
        assert task.due == 0
        task.flush()
        assert [(f.watermark, f.idle) for _, f in flushes(task.take())] == [(5, False)]
        task.rest_again()
        task.flush()
        assert [(f.watermark, f.idle) for _, f in flushes(task.take())] == ([(5, True)] if idle else [])


def test_a_source_that_was_idle_is_not_when_a_task_begins_again() -> None:
    marks = Watermarks(["in", "t/0"], ["t/0"])
    marks.is_idle("in")
    marks.is_idle("t/0")
    again = Watermarks(["in", "t/0"], ["t/0"])
    again.restore(marks.state(), anew=True)
    assert not again.rests
    again.is_idle("in")
    assert not again.rests
    again.rest_again()
    assert again.rests
    assert again.reached("t/0", 5) == 5
    assert again.state() == {"in": NO_TIME, "t/0": 5, "": 5}


def test_rows_of_another_program_that_wait_are_refused_by_name() -> None:
    """It added an aggregate over another column while rows waited in the repartition topic."""

    def program(**more: Any) -> App:
        app = App("changed")
        stream = app.stream("in", value=json("k string, n bigint, m bigint"))
        groups = stream.group_by("k", name="by-k")
        groups.agg(name="state", first=agg.first("n"), **more).to("out")
        return app

    before = Driver(program())
    before.pipe("in", [{"k": "a", "n": 1, "m": 2}])
    before.commit()
    (waits,) = before.read_raw("changed.by-k.repartition")[:1]
    app = program(second=agg.first("m"))
    assembly = Assembly(app.name, app.graph, {"in": 1})
    task = assembly.make(assembly.parts[1], 0)
    task.open(lambda name: MemoryCold(), {})
    raw = pa.table({"value": pa.array([waits["value"]], pa.binary()), "offset": [0]})
    with pytest.raises(NotAllowed, match=r"rows wait in changed\.by-k\.repartition that the program before"):
        task.feed("changed.by-k.repartition", raw)
