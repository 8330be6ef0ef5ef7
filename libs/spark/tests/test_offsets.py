"""Positions as text, ranges between them, and what earliest, latest and times stand for."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_common.core.errors import InvalidConfig
from headrace_common.core.ids import TopicPartition
from headrace_spark.core.batch import lookups, plan_batch
from headrace_spark.core.limits import AtOffsets, AtTime, AtTimes, Earliest, Latest
from headrace_spark.core.losses import Cause, Loss, RecordsLost, describe_losses
from headrace_spark.core.offsets import Bound, OffsetRange, Positions, Snapshot, name_partitions, ranges_between
from headrace_spark.core.options import ConnectorOptions, Mode
from headrace_spark.core.resolving import plan_lookups, resolve_end, resolve_start

Offsets: TypeAlias = dict[TopicPartition, int]

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)

partitions = st.builds(TopicPartition, st.sampled_from(["a", "b", "x.y", "9"]), st.integers(0, 12))
positions = st.dictionaries(partitions, st.integers(0, 2**63 - 1), max_size=8)
ids = st.dictionaries(st.sampled_from(["a", "b", "gone"]), st.text("0123456789abcdef", min_size=1, max_size=4))


# --- text --------------------------------------------------------------------------------------------------------


def test_the_text_has_topics_and_partitions_in_order() -> None:
    written = Positions.of({B0: 3, TopicPartition("a", 10): 2, TopicPartition("a", 9): 1}, {"b": "f0", "gone": "1"})
    assert written.text == '{"@headrace": {"topics": {"b": "f0"}}, "a": {"9": 1, "10": 2}, "b": {"0": 3}}'


@given(positions, ids)
def test_what_is_written_is_read_again(offsets: Offsets, known: dict[str, str]) -> None:
    written = Positions.of(offsets, known, "".join(known))
    read = Positions.from_json(json.loads(written.text))
    assert read == written
    assert read.text == written.text


@given(positions, st.randoms())
def test_the_same_positions_have_the_same_text(offsets: Offsets, chance: Any) -> None:
    shuffled = list(offsets.items())
    chance.shuffle(shuffled)
    assert Positions.of(dict(shuffled), {}).text == Positions.of(offsets, {}).text


@pytest.mark.parametrize(
    "given_",
    [
        *(None, 1, "x", [], {"a": 1}, {"a": {"x": 1}}, {"a": {"0": -1}}, {"a": {"0": True}}, {"a": {"0": 2**63}}),
        *({"a b": {"0": 1}}, {"@headrace": 1, "a": {"0": 1}}, {"@headrace": {"reader": 1}}),
        {"@headrace": {"topics": {"a": 1}}, "a": {"0": 1}},
    ],
)
def test_a_checkpoint_of_something_else_is_refused(given_: object) -> None:
    with pytest.raises(InvalidConfig, match="start the query with a new checkpoint"):
        Positions.from_json(given_)


def test_a_query_that_reads_nothing_yet_has_a_text() -> None:
    assert Positions.from_json({}) == Positions.of({}, {})
    assert Positions.of({}, {}).text == "{}"


# --- ranges ------------------------------------------------------------------------------------------------------


def test_ranges_lie_between_positions() -> None:
    start, end = {A0: 1, A1: 5, B0: 9}, {A0: 4, A1: 5, B0: 3, TopicPartition("new", 0): 7}
    assert ranges_between(start, end) == (OffsetRange(A0, 1, 4),)


@given(positions, positions)
def test_no_range_is_empty_and_none_leaves_its_positions(start: Offsets, end: Offsets) -> None:
    for each in ranges_between(start, end):
        assert start[each.partition] == each.start < each.end == end[each.partition]


def test_long_lists_are_cut_for_people() -> None:
    assert name_partitions([B0, A0]) == "a-0, b-0"
    assert name_partitions([TopicPartition("t", n) for n in range(12)]).endswith("t-9 and 2 more")


# --- resolving ---------------------------------------------------------------------------------------------------

BOUNDS = {A0: Bound(5, 20), A1: Bound(0, 0)}


def start(limit: Any, found: Any = None, *, latest: bool = False) -> tuple[dict[TopicPartition, int], list[Loss]]:
    return resolve_start(limit, BOUNDS, found or {}, latest_if_no_match=latest)


def test_where_a_query_begins() -> None:
    assert start(Earliest()) == ({A0: 5, A1: 0}, [])
    assert start(Latest()) == ({A0: 20, A1: 0}, [])
    assert start(AtOffsets({A0: -1, A1: -2})) == ({A0: 20, A1: 0}, [])
    assert start(AtOffsets({A0: 7, A1: 0})) == ({A0: 7, A1: 0}, [])


def test_a_start_that_retention_has_passed_is_a_loss() -> None:
    assert start(AtOffsets({A0: 2, A1: 0})) == ({A0: 5, A1: 0}, [Loss(A0, Cause.TRIMMED, 2, 5)])


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        (AtOffsets({A0: 21, A1: 0}), r"beyond the end of the log in a-0 \(21 > 20\)"),
        (AtOffsets({A0: 5}), "leave out a-1"),
        (AtOffsets({A0: 5, A1: 0, B0: 1}), "for b-0, which are not there"),
        (AtTime(9), "no record is at or after the starting time in a-0, a-1"),
    ],
)
def test_starts_that_do_not_fit(limit: Any, told: str) -> None:
    with pytest.raises(InvalidConfig, match=told):
        start(limit)


def test_starting_times() -> None:
    assert plan_lookups(AtTime(9), BOUNDS) == {A0: 9, A1: 9}
    assert plan_lookups(Earliest(), BOUNDS) == {}
    with pytest.raises(InvalidConfig, match="leave out a-1"):
        plan_lookups(AtTimes({A0: 9}), BOUNDS)
    assert start(AtTime(9), {A0: 11, A1: None}, latest=True) == ({A0: 11, A1: 0}, [])
    assert start(AtTime(9), {A0: 3, A1: None}, latest=True)[0][A0] == 5, "what was found is trimmed by now"


def test_where_a_batch_ends() -> None:
    assert resolve_end(Latest(), BOUNDS, {}) == ({A0: 20, A1: 0}, [])
    assert resolve_end(AtTime(9), BOUNDS, {A0: 11, A1: None}) == ({A0: 11, A1: 0}, [])
    too_far = AtOffsets({A0: 25, A1: -1})
    assert resolve_end(too_far, BOUNDS, {}) == ({A0: 20, A1: 0}, [Loss(A0, Cause.TRUNCATED, 20, 25)])


# --- a batch query -----------------------------------------------------------------------------------------------


def batch(**options: str) -> ConnectorOptions:
    return ConnectorOptions.parse({"kafka.bootstrap.servers": "a:1", "subscribe": "a"} | options, Mode.READ_BATCH)


def test_a_batch_of_everything() -> None:
    snapshot = Snapshot(BOUNDS)
    assert lookups(batch(), snapshot).start_ms == {}
    assert plan_batch(batch(), snapshot, {}, {}).ranges == (OffsetRange(A0, 5, 20),)


def test_a_batch_between_times() -> None:
    options = batch(startingTimestamp="1", endingTimestamp="2", startingOffsetsByTimestampStrategy="latest")
    asked = lookups(options, Snapshot(BOUNDS))
    assert (asked.start_ms, asked.end_ms) == ({A0: 1, A1: 1}, {A0: 2, A1: 2})
    plan = plan_batch(options, Snapshot(BOUNDS), {A0: 6, A1: None}, {A0: 9, A1: None})
    assert plan.ranges == (OffsetRange(A0, 6, 9),)


def test_a_batch_tells_exactly_what_is_gone() -> None:
    options = {"startingOffsets": '{"a":{"0":1,"1":0}}', "endingOffsets": '{"a":{"0":30,"1":-1}}'}
    with pytest.raises(RecordsLost) as lost:
        plan_batch(batch(**options), Snapshot(BOUNDS), {}, {})
    assert lost.value.losses == (Loss(A0, Cause.TRIMMED, 1, 5), Loss(A0, Cause.TRUNCATED, 20, 30))
    assert "a-0: offsets 1 to 4 were removed by retention before they were read" in str(lost.value)
    assert "set 'failOnDataLoss' to false" in str(lost.value)
    plan = plan_batch(batch(failOnDataLoss="false", **options), Snapshot(BOUNDS), {}, {})
    assert plan.ranges == (OffsetRange(A0, 5, 20),)
    assert "offsets 20 to 29 are not in the log any more" in plan.warnings[0]


def test_many_losses_are_cut_for_people() -> None:
    text = describe_losses([Loss(TopicPartition("t", n), Cause.DELETED, 5) for n in range(30)])
    assert "t-9: records from offset 5 on" in text
    assert text.endswith("and in 20 more partitions")
