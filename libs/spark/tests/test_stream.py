"""Dialogues with the planner of a streaming query: Spark asks, the cluster changes, ranges come out."""

from __future__ import annotations

import pytest

from headrace_common.core.errors import InvalidConfig
from headrace_common.core.ids import TopicPartition
from headrace_spark.core.limits import AtOffsets, AtTime, Earliest, Latest, Subscribe
from headrace_spark.core.losses import Cause, Loss, RecordsLost
from headrace_spark.core.offsets import Bound, OffsetRange, Positions, Snapshot
from headrace_spark.core.options import ConnectorOptions, Mode
from headrace_spark.core.stream import (
    LOOK_AGAIN_MS,
    LOOKS_MAX,
    Answer,
    FetchSnapshot,
    InitialAsked,
    SnapshotFetched,
    StreamPlanner,
    StreamSettings,
    default_offsets_max,
    stream_settings,
)

from .streams import Query, World

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


@pytest.fixture
def world() -> World:
    made = World(ids={"a": "a1"})
    made.put("a", 0, 0, 10)
    return made


def at(world: World, **offsets: int) -> Positions:
    """Positions in topic a, by partition: ``_0=5``."""
    return Positions.of({TopicPartition("a", int(name[1:])): offset for name, offset in offsets.items()}, world.ids)


# --- a new query -------------------------------------------------------------------------------------------------


def test_a_new_query_is_anchored_before_it_reads(world: World) -> None:
    query = Query(world)
    first = query.initial()
    assert first.text == '{"@headrace": {"topics": {"a": "a1"}}, "a": {"0": 0}}'
    world.put("a", 0, 0, 99)
    assert query.initial() == first, "Spark asks twice, and gets the same"
    assert query.latest(first) == first, "the first batch is empty: it writes the start into the checkpoint"
    assert query.plan(first, first) == ()
    end = query.latest(first)
    assert query.plan(first, end) == (OffsetRange(A0, 0, 99),)
    assert query.latest(end) == end


def test_latest_loses_nothing_when_batch_0_crashes(world: World) -> None:
    query = Query(world, start=Latest())
    anchor = query.latest(query.initial())
    world.put("a", 0, 0, 30)
    again = Query(world, start=Latest())
    later = again.initial()
    assert later.next[A0] == 30, "the initial offset is not kept by Spark"
    assert again.plan(later, anchor) == (), "a start behind its end reads nothing"
    end = again.latest(anchor)
    assert again.plan(anchor, end) == (OffsetRange(A0, 10, 30),)


def test_a_replayed_batch_0_is_not_anchored_again(world: World) -> None:
    anchor = Query(world).initial()
    again = Query(world)
    assert again.plan(again.initial(), anchor) == ()
    assert again.latest(anchor).next[A0] == 10, "with AvailableNow an empty batch here would end the query"


def test_a_query_that_matches_nothing_yet_begins_empty(world: World) -> None:
    empty = World()
    query = Query(empty)
    first = query.initial()
    assert first.text == "{}"
    assert query.latest(query.latest(first)) == first
    empty.put("a", 0, 0, 3)
    joined = query.latest(first)
    assert joined.next == {A0: 0}
    assert query.latest(joined).next == {A0: 3}


def test_a_query_begins_at_a_time(world: World) -> None:
    world.times[A0] = 4
    assert Query(world, start=AtTime(5)).initial().next == {A0: 4}
    world.times.clear()
    with pytest.raises(InvalidConfig, match="no record is at or after"):
        Query(world, start=AtTime(5)).initial()
    assert Query(world, start=AtTime(5), latest_if_no_match=True).initial().next == {A0: 10}


def test_a_start_that_is_gone_fails_or_warns_once(world: World) -> None:
    world.put("a", 0, 6, 10)
    with pytest.raises(RecordsLost) as lost:
        Query(world, start=AtOffsets({A0: 2})).initial()
    assert lost.value.losses == (Loss(A0, Cause.TRIMMED, 2, 6),)
    query = Query(world, start=AtOffsets({A0: 2}), fail_on_data_loss=False)
    assert query.initial().next == {A0: 6}
    query.initial()
    assert len(world.warnings) == 1
    assert "a-0: offsets 2 to 5 were removed by retention" in world.warnings[0]


def test_after_an_error_the_same_question_can_be_asked(world: World) -> None:
    query = Query(world, start=AtTime(5))
    with pytest.raises(InvalidConfig):
        query.initial()
    world.times[A0] = 4
    assert query.initial().next == {A0: 4}


# --- rates -------------------------------------------------------------------------------------------------------


def test_a_limit_is_shared_and_lifted_when_everything_is_wanted(world: World) -> None:
    world.put("a", 1, 0, 30)
    query = Query(world)
    start = at(world, _0=0, _1=0)
    assert query.latest(start, 8).next == {A0: 2, A1: 6}
    assert query.latest(start, 8, everything=True).next == {A0: 10, A1: 30}


def test_little_waits_for_more_or_for_its_time(world: World) -> None:
    query = Query(world, offsets_min=20, delay_ms_max=5_000)
    start = query.latest(at(world, _0=0))
    assert start.next == {A0: 10}, "the first batch does not wait"
    world.put("a", 0, 0, 15)
    assert query.latest(start) == start
    assert query.latest(start, everything=True).next == {A0: 15}
    world.now_ms += 4_999
    query = Query(world, offsets_min=20, delay_ms_max=5_000)
    start = query.latest(at(world, _0=0))
    world.put("a", 0, 0, 34)
    world.now_ms += 4_999
    assert query.latest(start) == start
    world.now_ms += 1
    assert query.latest(start).next == {A0: 34}
    world.put("a", 0, 0, 54)
    assert query.latest(at(world, _0=34), 10).next == {A0: 44}, "enough, and no more than allowed"


def test_nothing_does_not_use_up_the_delay(world: World) -> None:
    query = Query(world, offsets_min=20, delay_ms_max=5_000)
    start = query.latest(at(world, _0=0))
    world.now_ms += 6_000
    assert query.latest(start) == start
    world.put("a", 0, 0, 11)
    assert query.latest(start).next == {A0: 11}, "its time had passed when it came"


def test_idle_queries_wait_for_what_is_new(world: World) -> None:
    query = Query(world, offsets_min=20, delay_ms_max=300, long_poll_ms=200)
    start = query.latest(at(world, _0=0))
    query.latest(start)
    assert world.asked[-1] == FetchSnapshot({A0: 10}, 200)
    world.put("a", 0, 0, 15)
    query.latest(start)
    world.now_ms += 250
    query.latest(start)
    assert world.asked[-1] == FetchSnapshot({A0: 15}, 50), "not woken by what it holds back, and not later than due"
    query.latest(start, everything=True)
    assert world.asked[-1] == FetchSnapshot(), "who wants everything does not wait"


# --- partitions and topics come and go ---------------------------------------------------------------------------


def test_a_new_partition_joins_at_its_start_and_is_read_from_the_next_batch_on(world: World) -> None:
    query = Query(world)
    start = at(world, _0=5)
    world.put("a", 1, 0, 100)
    joined = query.latest(start)
    assert joined.next == {A0: 10, A1: 0}
    assert query.plan(start, joined) == (OffsetRange(A0, 5, 10),)
    world.put("a", 1, 0, 110)
    end = query.latest(joined)
    assert query.plan(joined, end) == (OffsetRange(A1, 0, 110),)
    assert not world.warnings


def test_a_partition_found_too_late_is_a_loss(world: World) -> None:
    world.put("a", 1, 7, 100)
    with pytest.raises(RecordsLost, match="a-1: offsets 0 to 6 of a partition found only now"):
        Query(world).latest(at(world, _0=5))
    assert Query(world, fail_on_data_loss=False).latest(at(world, _0=5)).next == {A0: 10, A1: 7}


def test_retention_was_faster(world: World) -> None:
    world.put("a", 0, 8, 10)
    with pytest.raises(RecordsLost) as lost:
        Query(world).latest(at(world, _0=5))
    assert lost.value.losses == (Loss(A0, Cause.TRIMMED, 5, 8),)
    query = Query(world, fail_on_data_loss=False)
    end = query.latest(at(world, _0=5))
    assert query.plan(at(world, _0=5), end) == (OffsetRange(A0, 8, 10),)
    assert len(world.warnings) == 1, "told where it is found, and not again"


def test_retention_passed_a_whole_replayed_batch(world: World) -> None:
    world.put("a", 0, 50, 60)
    with pytest.raises(RecordsLost) as lost:
        Query(world).plan(at(world, _0=5), at(world, _0=10))
    assert lost.value.losses == (Loss(A0, Cause.TRIMMED, 5, 10),)
    assert Query(world, fail_on_data_loss=False).plan(at(world, _0=5), at(world, _0=10)) == ()


def test_a_topic_is_gone(world: World) -> None:
    world.put("b", 0, 0, 4)
    start = Positions.of({A0: 5, B0: 0}, world.ids)
    world.remove("a")
    with pytest.raises(RecordsLost, match="a-0: records from offset 5 on, if there were any, are gone with"):
        Query(world).latest(start)
    query = Query(world, fail_on_data_loss=False)
    end = query.latest(start)
    assert end.next == {B0: 4}
    assert end.topic_ids == {}
    assert query.plan(start, end) == (OffsetRange(B0, 0, 4),)


def test_a_topic_that_the_options_name_no_more(world: World) -> None:
    start = Positions.of({A0: 5, B0: 0}, world.ids)
    with pytest.raises(RecordsLost, match="are not read any more: the options name other topics"):
        Query(world, selection=Subscribe(("a",))).latest(start)
    forgets = Query(world, selection=Subscribe(("a",)), fail_on_data_loss=False)
    assert forgets.latest(start).next == {A0: 10}


def test_a_topic_gone_between_plan_and_replay(world: World) -> None:
    world.remove("a")
    start, end = Positions.of({A0: 5}, {}), Positions.of({A0: 9}, {})
    with pytest.raises(RecordsLost, match="a-0: offsets 5 to 8 are gone with their topic"):
        Query(world).plan(start, end)


def test_a_topic_created_again_is_read_from_its_beginning(world: World) -> None:
    start = at(world, _0=5)
    world.ids["a"] = "a2"
    world.put("a", 0, 0, 1_000)
    with pytest.raises(RecordsLost, match="the topic was deleted and created again"):
        Query(world).latest(start)
    query = Query(world, fail_on_data_loss=False)
    joined = query.latest(start)
    assert (joined.next, joined.topic_ids) == ({A0: 0}, {"a": "a2"})
    assert query.plan(start, joined) == ()
    assert query.plan(joined, query.latest(joined)) == (OffsetRange(A0, 0, 1_000),)


def test_a_topic_created_again_whose_start_has_moved_already(world: World) -> None:
    start = at(world, _0=5)
    world.ids["a"] = "a2"
    world.put("a", 0, 20, 1_000)
    query = Query(world, fail_on_data_loss=False)
    joined = query.latest(start)
    assert joined.next == {A0: 20}
    assert query.plan(start, joined) == (), "offsets of two topics are no range"


def test_a_topic_created_again_before_a_replay_gives_nothing_of_it(world: World) -> None:
    start, end = at(world, _0=5), at(world, _0=9)
    world.ids["a"] = "a2"
    world.put("a", 0, 0, 1_000)
    with pytest.raises(RecordsLost) as lost:
        Query(world).plan(start, end)
    assert lost.value.losses == (Loss(A0, Cause.RECREATED, 5, 9),)
    assert Query(world, fail_on_data_loss=False).plan(start, end) == ()


def test_an_end_that_falls_back_is_looked_at_again(world: World) -> None:
    start = at(world, _0=10)
    world.put("a", 0, 0, 8)
    world.heals[3] = {A0: Bound(0, 12)}
    assert Query(world).latest(start).next == {A0: 12}
    assert world.asked[1:] == [FetchSnapshot(after_ms=LOOK_AGAIN_MS)] * 2


def test_an_end_that_stays_back_is_a_loss(world: World) -> None:
    start = at(world, _0=10)
    world.put("a", 0, 0, 8)
    with pytest.raises(RecordsLost) as lost:
        Query(world).latest(start)
    assert lost.value.losses == (Loss(A0, Cause.TRUNCATED, 8, 10),)
    assert len(world.asked) == 1 + LOOKS_MAX
    query = Query(world, fail_on_data_loss=False)
    end = query.latest(start)
    assert end.next == {A0: 8}
    assert query.plan(start, end) == ()
    world.put("a", 0, 0, 9)
    assert query.latest(end).next == {A0: 9}


def test_a_replayed_batch_beyond_the_end(world: World) -> None:
    start, end = at(world, _0=5), at(world, _0=15)
    with pytest.raises(RecordsLost, match="a-0: offsets 10 to 14 are not in the log any more"):
        Query(world).plan(start, end)
    assert Query(world, fail_on_data_loss=False).plan(start, end) == (OffsetRange(A0, 5, 10),)


def test_a_checkpoint_without_ids_learns_them(world: World) -> None:
    start = Positions.of({A0: 10}, {})
    end = Query(world).latest(start)
    assert (end.next, end.topic_ids) == ({A0: 10}, {"a": "a1"})


# --- AvailableNow ------------------------------------------------------------------------------------------------


def run_out(query: Query, start: Positions, most: int | None = None) -> tuple[Positions, list[OffsetRange]]:
    read: list[OffsetRange] = []
    for _ in range(100):
        end = query.latest(start, most)
        if end == start:
            return start, read
        read += query.plan(start, end)
        start = end
    raise AssertionError("the query does not end")


def test_available_now_reads_what_was_there(world: World) -> None:
    query = Query(world, offsets_min=1_000)
    query.available_now()
    first = query.initial()
    assert query.latest(first) == first
    world.put("a", 0, 0, 50)
    world.put("a", 1, 0, 50)
    end, read = run_out(query, first, 4)
    assert read == [OffsetRange(A0, 0, 4), OffsetRange(A0, 4, 8), OffsetRange(A0, 8, 10)]
    assert end.next == {A0: 10}, "what came later is for the next run"
    assert all(isinstance(asked, FetchSnapshot) and not asked.wait_ms for asked in world.asked)


def test_available_now_reads_partitions_that_came_between_runs(world: World) -> None:
    world.put("a", 1, 0, 5)
    query = Query(world)
    query.available_now()
    end, read = run_out(query, at(world, _0=10))
    assert end.next == {A0: 10, A1: 5}
    assert read == [OffsetRange(A1, 0, 5)]


def test_available_now_ends_when_a_topic_is_created_again_meanwhile(world: World) -> None:
    query = Query(world, fail_on_data_loss=False)
    query.available_now()
    world.ids["a"] = "a2"
    world.put("a", 0, 0, 5)
    end, read = run_out(query, at(Query(World(ids={"a": "a1"})).world, _0=3))
    assert end.next == {A0: 0}
    assert read == []


def test_available_now_where_latest_is_later_than_the_target(world: World) -> None:
    query = Query(world, start=Latest())
    query.available_now()
    world.put("a", 0, 0, 20)
    first = query.initial()
    assert query.latest(first) == first
    assert query.latest(first) == first


# --- options -----------------------------------------------------------------------------------------------------


def test_what_the_options_say() -> None:
    given_ = {"kafka.bootstrap.servers": "a:1", "subscribe": "a"}
    plain = ConnectorOptions.parse(given_, Mode.READ_STREAM)
    assert stream_settings(plain) == StreamSettings(start=Latest(), selection=Subscribe(("a",)))
    assert default_offsets_max(plain) is None
    more = {"minOffsetsPerTrigger": "3", "maxTriggerDelay": "2s", "failOnDataLoss": "false", "longPollMs": "5"}
    least = ConnectorOptions.parse(given_ | more, Mode.READ_STREAM)
    assert stream_settings(least) == StreamSettings(
        start=Latest(),
        selection=Subscribe(("a",)),
        fail_on_data_loss=False,
        offsets_min=3,
        delay_ms_max=2_000,
        long_poll_ms=5,
    )
    assert default_offsets_max(least) == 2**63 - 1
    most = ConnectorOptions.parse(given_ | more | {"maxOffsetsPerTrigger": "9"}, Mode.READ_STREAM)
    assert default_offsets_max(most) == 9


def test_a_query_keeps_its_name(world: World) -> None:
    planner = StreamPlanner(StreamSettings(start=Earliest()))
    planner.handle(InitialAsked("5b"))
    (answer,) = planner.handle(SnapshotFetched(Snapshot(world.logs, world.ids), 0))
    assert isinstance(answer, Answer)
    assert answer.positions is not None
    assert answer.positions.text == '{"@headrace": {"reader": "5b", "topics": {"a": "a1"}}, "a": {"0": 0}}'
    assert planner.handle(InitialAsked("6c")) == [answer]
    later = Query(world).latest(answer.positions)
    assert (later.next, later.reader) == ({A0: 10}, "5b")


# --- reports -----------------------------------------------------------------------------------------------------


def test_what_was_seen_last_is_reported(world: World) -> None:
    query = Query(world)
    assert query.planner.latest is None
    query.latest(at(world, _0=0), 2)
    assert query.planner.latest == at(world, _0=10)
