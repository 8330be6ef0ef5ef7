"""What a tap says becomes chunks that end at a STATE, dialogue by dialogue."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from libs.connect.tests.connectors.singer.taps import (
    SaidTap,
    ShopTap,
    lines_of,
    record,
    settings,
    source_of,
    state,
    stream,
    take,
    values_of,
)

from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.singer.collecting import Collector, Rules
from headrace_connect.connectors.singer.lines import Line
from headrace_connect.connectors.singer.position import Place
from headrace_connect.connectors.singer.tap import TapFailed
from headrace_connect.plugin import Chunk

NUMBER = {"type": "integer"}
ALL = Rules(lambda name: name, lambda _: True)


async def said(*messages: Any, **values: Any) -> list[Chunk]:
    tap = SaidTap([messages])
    return await take(source_of(tap, settings(tap_discover=False, run_interval_ms=1, **values)))


def bad_of(chunks: list[Chunk]) -> list[str]:
    return [bad.reason for chunk in chunks for one in (chunk, *chunk.further) for bad in one.bad]


async def test_a_chunk_ends_at_a_state_and_has_all_streams() -> None:
    chunks = await said(
        stream(), stream("lines", n=NUMBER, keys=[]),
        record(id=1), record("lines", n=1), record(id=2), state(1),
        record("lines", n=2), state(2), state(3),
    )  # fmt: skip
    assert [(values_of(chunk), chunk.position) for chunk in chunks] == [
        ([("orders", [{"id": 1}, {"id": 2}]), ("lines", [{"n": 1}])], {"state": 1}),
        ([("lines", [{"n": 2}])], {"state": 2}),
        ([], {"state": 3}),
    ]
    assert all(chunk.boundary for chunk in chunks)
    first = chunks[0]
    assert first.keys is not None
    assert first.keys.to_pylist() == [{"id": 1}, {"id": 2}]  # type: ignore[union-attr]
    assert first.further[0].keys is None


async def test_states_that_come_together_are_one_chunk() -> None:
    collector = Collector(Place(), ALL)
    for line in lines_of([stream(), record(id=1), state(1), record(id=2), state(2), record(id=3)]):
        collector.feed(line)
    chunk = collector.take()
    assert (values_of(chunk), chunk.position) == ([("orders", [{"id": 1}, {"id": 2}])], {"state": 2})
    assert not collector.ready
    assert values_of(collector.take_open()) == [("orders", [{"id": 3}])]


async def test_what_comes_behind_the_last_state_is_committed_when_the_run_has_ended_well() -> None:
    *_, last = await said(stream(), record(id=1), state(1), record(id=2))
    assert (values_of(last), last.position) == ([("orders", [{"id": 2}])], {"state": 1})


async def test_and_is_dropped_when_it_has_not() -> None:
    source = source_of(SaidTap([[stream(), record(id=1), state(1), record(id=2), None]]))
    [split] = await source.splits()
    chunks = source.read(split, None)
    assert values_of(await anext(chunks)) == [("orders", [{"id": 1}])]
    with pytest.raises(TapFailed):
        await anext(chunks)


async def test_a_tap_is_run_again_with_its_last_state() -> None:
    tap = SaidTap([[state({"a": 1}), state({"a": [2]})], [], [state(3)], []])
    chunks = await take(source_of(tap), runs=4)
    assert tap.states == [None, {"a": [2]}, {"a": [2]}, 3]
    assert [chunk.position for chunk in chunks] == [{"state": {"a": 1}}, {"state": {"a": [2]}}, {"state": 3}]


async def test_a_tap_without_states_is_read_from_the_beginning_each_time() -> None:
    run = [stream(), record(id=1)]
    tap = SaidTap([run, run])
    chunks = await take(source_of(tap), runs=2)
    assert [(values_of(chunk), chunk.position) for chunk in chunks] == [
        ([("orders", [{"id": 1}])], {"state": None})
    ] * 2
    assert tap.states == [None, None]


async def test_a_schema_that_changes_makes_another_part() -> None:
    [chunk] = await said(
        stream(), record(id=1), stream(), record(id=2),
        stream(id=NUMBER, name={"type": "string"}), record(id=3, name="x"), state(1),
    )  # fmt: skip
    assert values_of(chunk) == [("orders", [{"id": 1}, {"id": 2}]), ("orders", [{"id": 3, "name": "x"}])]


async def test_what_is_no_message_is_bad_alone() -> None:
    chunks = await said(
        "Traceback (most recent call last):", b"\xff\xfe", "[1]", "{}", '{"type": "RECORD", "stream": "orders"}',
        record(id=0), '{"type": "STATE", "value": NaN}', {"type": "SCHEMA", "stream": "orders"},
        '{"type": "RECORD", "record": {}}', {"type": "SCHEMA", "stream": "x", "schema": {"type": "string"}},
        record("x", id=1), {"type": "SCHEMA", "stream": "x", "schema": {}, "key_properties": [7]},
        {"type": "SCHEMA", "stream": "y", "schema": {"properties": {"a": {}}}, "key_properties": ["id"]},
        record("y", a=1),
        stream(), record(id=1), record(id="x"), record(id=None), record(id=2, more=1), record(id=2), state(1),
    )  # fmt: skip
    [chunk] = chunks
    assert values_of(chunk) == [("orders", [{"id": 1}, {"id": 2}])]
    reasons = bad_of(chunks)
    for number, word in {
        1: "is not JSON", 2: "is not JSON", 3: "is not a message", 4: "is not a message", 5: "without a record",
        6: "there was no SCHEMA", 7: "is not JSON", 8: "without a schema", 9: "names no stream",
        11: "it has no properties", 12: "are no names", 14: "no property 'id'", 17: "is no whole number",
        18: "id is null", 19: "extra.properties=drop",
    }.items():  # fmt: skip
        [reason] = [one for one in reasons if one.split()[1].strip(",") == str(number)]
        assert word in reason
    assert len(reasons) == 15
    assert chunk.bad[0].raw == b'{"type": "RECORD", "stream": "orders", "record": {"id": "x"}}'


async def test_extra_properties_can_be_left_out_and_types_be_those_of_json() -> None:
    messages = [stream(), record(id=1, more={"a": 1}), state(1)]
    [chunk] = await said(*messages, extra_properties="drop")
    assert values_of(chunk) == [("orders", [{"id": 1}])]
    [chunk] = await said(*messages, types="json")
    assert values_of(chunk) == [("orders", [{"id": 1, "more": {"a": 1}}])]
    assert chunk.keys == [{"id": 1}]


async def test_batch_messages_are_refused_by_name_and_unknown_ones_are_left_out() -> None:
    with pytest.raises(InvalidConfig, match="BATCH messages for the stream orders"):
        await said({"type": "BATCH", "stream": "orders", "encoding": {}, "manifest": []})
    [chunk] = await said(
        {"type": "ACTIVATE_VERSION", "stream": "orders", "version": 1},
        {"type": "LATER"},
        stream(),
        record(id=1),
        state(1),
    )
    assert values_of(chunk) == [("orders", [{"id": 1}])]
    assert bad_of([chunk]) == []


async def test_a_tap_that_sends_no_state_fails_or_repeats() -> None:
    records = [stream(), *(record(id=n) for n in range(60))]
    with pytest.raises(InvalidConfig, match=r"state\.overflow=repeat"):
        await said(*records, state_bytes_max=1_024)
    chunks = await said(*records, state(1), state_bytes_max=1_024, state_overflow="repeat")
    assert [row["id"] for chunk in chunks for _, rows in values_of(chunk) for row in rows] == list(range(60))
    assert [chunk.position for chunk in chunks] == [{"state": None}] * (len(chunks) - 1) + [{"state": 1}]
    assert len(chunks) > 2


async def test_a_failure_of_overflow_kills_the_tap() -> None:
    tap = SaidTap([[stream(), *(record(id=n) for n in range(60))]])
    with pytest.raises(InvalidConfig):
        await take(source_of(tap, settings(tap_discover=False, state_bytes_max=1_024)))
    assert tap.killed == 1


async def test_many_records_keep_their_order_and_their_bad_ones() -> None:
    count = 4_500
    messages = [record(id=n if n % 1_000 != 7 else "x") for n in range(count)]
    [chunk] = await said(stream(), *messages, state(1))
    assert [row["id"] for row in values_of(chunk)[0][1]] == [n for n in range(count) if n % 1_000 != 7]
    assert [reason.split(",")[0] for reason in bad_of([chunk])] == [f"line {n + 2}" for n in range(7, count, 1_000)]


async def test_times_are_when_the_tap_read() -> None:
    [chunk] = await said(
        stream(), record(id=1) | {"time_extracted": "2024-01-01T00:00:00.5Z"}, record(id=2),
        record(id=3) | {"time_extracted": "yesterday"}, record(id=4) | {"time_extracted": "2024-01-01T00:00:00"},
        state(1),
    )  # fmt: skip
    assert chunk.timestamps_ms == [1_704_067_200_500, None, None, 1_704_067_200_000]


async def test_lines_that_were_cut_are_bad() -> None:
    collector = Collector(Place(), ALL)
    collector.feed(Line(b'{"type": "RECORD"', 3, 999))
    [bad] = collector.take_open().bad
    assert (bad.raw, bad.reason) == (
        b'{"type": "RECORD"',
        "line 3 of the tap has 999 bytes, and line.bytes.max is less",
    )


async def test_a_state_that_has_no_room_is_named() -> None:
    with pytest.raises(InvalidConfig, match="choose fewer streams"):
        await said(state([sha256(b"%d" % n).hexdigest() for n in range(200)]))


async def test_streams_that_are_not_chosen_are_left_out() -> None:
    messages = [
        stream(),
        stream("lines", n=NUMBER, keys=[]),
        record(id=1),
        record("lines", n=1),
        record("lines"),
        state(1),
    ]
    [chunk] = await said(*messages, stream_include_list=("or.*",))
    assert values_of(chunk) == [("orders", [{"id": 1}])]
    assert bad_of([chunk]) == []


async def test_topics_by_pattern() -> None:
    messages = [stream("a/b c"), record("a/b c", id=1), state(1), stream("a.b-c"), record("a.b-c", id=2), state(2)]
    chunks = await said(*messages, topic_pattern="shop.{stream}")
    assert [one[0][0] for one in map(values_of, chunks)] == ["shop.a_b_c", "shop.a.b-c"]
    with pytest.raises(InvalidConfig, match="would both be the topic"):
        await said(*messages, stream("a_b c"), record("a_b c", id=3), state(3))


# --- records that come again ----------------------------------------------------------------------------------------


async def test_what_the_run_before_sent_last_is_left_out() -> None:
    source = source_of(ShopTap())
    chunks = await take(source, runs=3)
    ids = [row["id"] for chunk in chunks for _, rows in values_of(chunk) for row in rows]
    assert sorted(ids) == [*range(20), *range(100, 110)]
    of = settings(repeats="keep", run_interval_ms=1)
    chunks = await take(source_of(ShopTap(), of), runs=2)
    assert len([row for chunk in chunks for _, rows in values_of(chunk) for row in rows]) == 33


async def test_what_has_changed_is_sent_and_so_is_what_was_not_sent_last() -> None:
    head = stream(id=NUMBER, at=NUMBER, name={"type": "string"}, bookmark="at")

    def row(id_: int, at: int, name: str) -> Any:
        return record(id=id_, at=at, name=name)

    runs = [
        [head, row(1, 5, "a"), row(2, 6, "b"), row(3, 6, "c"), state(6)],
        [
            head, row(1, 5, "a"), row(2, 6, "changed"), row(3, 6, "c"), row(4, 6, "new"), row(5, 7, "d"),
            row(5, 7, "d"), state(7),
        ],
        [head, row(5, 7, "d"), state(7)],
    ]  # fmt: skip
    chunks = await take(source_of(SaidTap(runs)), runs=3)
    sent = [[(row["id"], row["name"]) for _, rows in values_of(chunk) for row in rows] for chunk in chunks]
    assert sent == [
        [(1, "a"), (2, "b"), (3, "c")],
        [(1, "a"), (2, "changed"), (4, "new"), (5, "d"), (5, "d")],
        [],
    ]


async def test_marks_are_of_the_last_bookmark_alone() -> None:
    head = stream(id=NUMBER, bookmark="id")
    runs = [
        [head, *(message for n in range(100) for message in (record(id=n), state(n)))],
        [head, record(id=99), state(99)],
    ]
    chunks = await take(source_of(SaidTap(runs)), runs=2)
    assert [row["id"] for chunk in chunks for _, rows in values_of(chunk) for row in rows] == list(range(100))
    assert {len(edge.marks) for chunk in chunks for edge in Place.of_json(chunk.position).edges.values()} == {1}


@pytest.mark.parametrize(
    "head",
    [
        stream(id=NUMBER, keys=[], bookmark="id"),
        stream(id=NUMBER),
        stream(id=NUMBER) | {"bookmark_properties": ["id", "at"]},
    ],
)
async def test_nothing_is_left_out_without_a_key_or_one_bookmark(head: Any) -> None:
    runs = [[head, record(id=1), state(1)]] * 2
    chunks = await take(source_of(SaidTap(runs)), runs=2)
    assert [values_of(chunk) for chunk in chunks] == [[("orders", [{"id": 1}])]] * 2


async def test_too_many_with_one_bookmark_come_again(caplog: pytest.LogCaptureFixture) -> None:
    head = stream(id=NUMBER, at=NUMBER, bookmark="at")
    run = [head, *(record(id=n, at=1) for n in range(100)), state(1)]
    chunks = await take(source_of(SaidTap([run, run])), runs=2)
    assert [len(chunk.rows) for chunk in chunks] == [100, 100]
    assert "more than 64 records of orders have its last bookmark" in caplog.text


async def test_the_replication_key_of_the_catalog_is_a_bookmark_too() -> None:
    place = {"breadcrumb": [], "metadata": {"replication-key": "id"}}
    catalog = {"streams": [{"tap_stream_id": "orders", "schema": {}, "metadata": [place]}]}
    runs = [[stream(), record(id=1), state(1)]] * 2
    chunks = await take(source_of(SaidTap(runs, catalog)), runs=2)
    assert [values_of(chunk) for chunk in chunks if len(chunk.rows)] == [[("orders", [{"id": 1}])]]


@given(st.lists(st.lists(st.integers(0, 4), max_size=6), max_size=5), st.data())
async def test_each_row_once_wherever_it_is_killed(steps: list[list[int]], data: st.DataObject) -> None:
    """A table that grows by rows with ascending bookmarks, a tap that begins at the last one, a kill at any chunk."""
    head = stream(id=NUMBER, at=NUMBER, bookmark="at")
    rows = list(enumerate(sorted(at for step in steps for at in step)))
    found: list[int] = []
    position: Any = None
    for last in (False, False, False, True):
        place = Place.of_json(position)
        messages = [head]
        for id_, at in rows:
            if place.state is None or at >= place.state:
                messages.append(record(id=id_, at=at))
                messages += [state(at)] if data.draw(st.booleans()) else []
        chunks = await take(source_of(SaidTap([[*messages, state(rows[-1][1])] if rows else messages])), position)
        safe = len(chunks) if last else data.draw(st.integers(0, len(chunks)))
        for chunk in chunks[:safe]:
            found += [row["id"] for _, values in values_of(chunk) for row in values]
            position = chunk.position
    assert sorted(found) == [id_ for id_, _ in rows]
